// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package csi runs a driver of the Container Storage Interface for the nodes of a lab:
// cmd/csi, whose volumes are folders of this machine.
package csi

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/holdfast-io/holdfast/hack/lab/binaries"
	"github.com/holdfast-io/holdfast/hack/lab/kubectl"
	"github.com/holdfast-io/holdfast/hack/lab/node"
	"github.com/holdfast-io/holdfast/hack/lab/process"
	"github.com/holdfast-io/holdfast/hack/lab/workdir"
)

// Driver is the name that PersistentVolumes give in spec.csi.driver.
const Driver = "folder.lab.holdfast.io"

const (
	name    = "csi"
	program = "csi"
)

// Up starts the driver anew. The first time it returns once the kubelet of each node knows it;
// later each finds it anew by itself. Pods keep what is mounted.
func Up(ctx context.Context, dir workdir.Dir) error {
	state, err := dir.Running()
	if err != nil {
		return err
	}
	if len(state.Nodes) == 0 {
		return fmt.Errorf("the lab in %s has no nodes that could mount a volume; start one with `lab up --nodes 2`, as root", dir)
	}
	if err := binaries.Missing(state.Bin, program); err != nil {
		return err
	}
	if err := Down(ctx, dir); err != nil {
		return err
	}
	args := []string{Driver}
	for _, n := range state.Nodes {
		args = append(args, filepath.Dir(node.PodsDir(dir, n)))
	}
	p, err := process.Start(dir.Run(), process.Spec{Name: name, Path: filepath.Join(state.Bin, program), Args: args, Log: dir.Log(name)})
	if err != nil {
		return err
	}
	kube := kubectl.New(dir, state)
	if err := kube.Apply(ctx, fmt.Sprintf("apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {name: %s}\nspec: {attachRequired: false}\n", Driver)); err != nil {
		return err
	}
	for _, n := range state.Nodes {
		if _, err := kube.Run(ctx, "wait", "--for=jsonpath={.spec.drivers[*].name}="+Driver, "--timeout=60s", "csinode/"+n); err != nil {
			return fmt.Errorf("%w\nthe end of the driver's log:\n%s", err, process.Tail(p.Log))
		}
	}
	return nil
}

// Down stops the driver. What it has mounted stays until the nodes go.
func Down(ctx context.Context, dir workdir.Dir) error {
	return process.StopNamed(ctx, dir.Run(), name, 10*time.Second)
}
