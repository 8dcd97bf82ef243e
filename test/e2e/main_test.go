// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e tests Holdfast as people install it: its image, its manifests, real
// nodes with real pods, and an S3 server. It promises that what make demo shows
// also holds there, and beside it what needs a kubelet: processes and pods that
// are killed in the middle of a backup, a rollout, and Pod Security.
//
// make e2e makes the lab for it, and takes it away again.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	engineclientset "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
	holdfastclientset "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned"
)

// cluster is a lab with nodes, an S3 server and Holdfast's image.
type cluster struct {
	dir      string // the lab's folder
	bin      string // the folder of its programs
	config   *rest.Config
	kube     kubernetes.Interface
	engine   engineclientset.Interface
	holdfast holdfastclientset.Interface
}

// lab is the one that all tests share.
var lab *cluster

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if lab, err = open(os.Getenv("HOLDFAST_LAB")); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer lab.keepLogs()
	if err := lab.install(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: installing Holdfast:", err)
		return 1
	}
	return m.Run()
}

func open(dir string) (*cluster, error) {
	if dir == "" {
		return nil, errors.New("these tests need a lab with nodes, named by HOLDFAST_LAB; run make e2e, which makes one")
	}
	bin, err := filepath.Abs(filepath.Join("..", "..", ".lab", "bin"))
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir, bin: bin}
	if c.config, err = clientcmd.BuildConfigFromFlags("", c.path("kubeconfig")); err != nil {
		return nil, fmt.Errorf("no lab in %s: %w; run make e2e", dir, err)
	}
	c.config.QPS = -1 // the server's priority and fairness suffice
	var errs [3]error
	c.kube, errs[0] = kubernetes.NewForConfig(c.config)
	c.engine, errs[1] = engineclientset.NewForConfig(c.config)
	c.holdfast, errs[2] = holdfastclientset.NewForConfig(c.config)
	return c, errors.Join(errs[:]...)
}

// path joins names to the lab's folder.
func (c *cluster) path(names ...string) string {
	return filepath.Join(append([]string{c.dir}, names...)...)
}
