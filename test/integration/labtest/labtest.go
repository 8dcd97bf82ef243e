// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package labtest gives tests a Kubernetes with Holdfast in it: the lab that
// people use too, started once for a test binary in a folder of its own. Its
// helpers fail the test that calls them, wait for conditions instead of
// sleeping, and name what they make so that tests may run side by side.
package labtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	engineclientset "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
	holdfastclientset "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned"
)

const (
	// System is the system namespace.
	System = "holdfast"
	// Node is the Node object that the agent works for.
	Node = "lab-node-0"
	// Unattended is a Node object without an agent, so that the backup of a volume
	// there waits until the test ends it.
	Unattended = "unattended"
)

// Options say how Holdfast runs.
type Options struct {
	// Root is the path of the repository's root.
	Root string
	// Kubernetes is the version of the lab's Kubernetes, as 1.37.2. By default the environment's
	// variable KUBERNETES names it, and without one make programs has built it last.
	Kubernetes string
	// APIServerFlags and ControllerFlags are added to the lab's own.
	APIServerFlags, ControllerFlags string
}

// Lab is a running lab.
type Lab struct {
	// Dir is the lab's folder.
	Dir string
	// Config is that of the administrator's clients.
	Config   *rest.Config
	Kube     kubernetes.Interface
	Holdfast holdfastclientset.Interface
	Engine   engineclientset.Interface

	bin     string
	options Options
}

// Main starts a lab, gives it to use, runs the tests, and stops the lab. Its
// result is for os.Exit. The logs stay if a test has failed.
func Main(m *testing.M, options Options, use func(*Lab)) int {
	return MainOf(m, 1, options, func(labs []*Lab) { use(labs[0]) })
}

// MainOf is Main with several labs, which know nothing of each other.
func MainOf(m *testing.M, count int, options Options, use func([]*Lab)) int {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	var labs []*Lab
	down := func() (err error) {
		for _, lab := range labs {
			err = errors.Join(err, lab.down())
		}
		return err
	}
	var err error
	for len(labs) < count && err == nil {
		var lab *Lab
		if lab, err = start(ctx, options); lab != nil {
			labs = append(labs, lab)
		}
	}
	code := 1
	if err == nil {
		// Who interrupts the tests must not be left with a Kubernetes.
		keepGoing := context.AfterFunc(ctx, func() {
			_ = down()
			os.Exit(1)
		})
		use(labs)
		code = m.Run()
		keepGoing()
	}
	if err = errors.Join(err, down()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	for _, lab := range labs {
		if code != 0 {
			fmt.Fprintln(os.Stderr, "the logs of the lab are in", filepath.Join(lab.Dir, "logs"))
		} else if err := os.RemoveAll(lab.Dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// Another starts one more lab, which knows nothing of this one and goes with the test. Its logs
// stay if the test has failed.
func (l *Lab) Another(t testing.TB) *Lab {
	t.Helper()
	return another(t, l.options)
}

// AnotherOf is Another, of a version of Kubernetes.
func (l *Lab) AnotherOf(t testing.TB, version string) *Lab {
	t.Helper()
	options := l.options
	options.Kubernetes = version
	return another(t, options)
}

func another(t testing.TB, options Options) *Lab {
	t.Helper()
	another, err := start(t.Context(), options)
	if another != nil {
		t.Cleanup(func() {
			if err := another.down(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				t.Log("the logs of the other lab are in", filepath.Join(another.Dir, "logs"))
			} else if err := os.RemoveAll(another.Dir); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return another
}

// Bin is the folder of the programs: holdfast, kubectl and those of the lab.
func (l *Lab) Bin() string { return l.bin }

// start starts a lab. The Lab that it returns beside an error is to be stopped.
func start(ctx context.Context, options Options) (*Lab, error) {
	bin := os.Getenv("HOLDFAST_BIN")
	if bin == "" {
		bin = filepath.Join(options.Root, ".lab", "bin")
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	release := bin
	if version := cmp.Or(options.Kubernetes, os.Getenv("KUBERNETES")); version != "" {
		release = filepath.Join(bin, "kubernetes-"+strings.TrimPrefix(version, "v"))
	}
	for _, program := range []string{filepath.Join(bin, "lab"), filepath.Join(bin, "kubectl"), filepath.Join(bin, "holdfast"), filepath.Join(release, "kube-apiserver")} {
		if _, err := os.Stat(program); err != nil {
			return nil, fmt.Errorf("the programs under test are not built: %w; run make test", err)
		}
	}
	dir, err := os.MkdirTemp("", "holdfast-integration-")
	if err != nil {
		return nil, err
	}
	l := &Lab{Dir: dir, bin: bin, options: options}
	if err := l.lab(ctx, "up", "--audit-objects", "--bin", release); err != nil {
		return l, err
	}
	if err := l.up(ctx); err != nil {
		return l, err
	}
	if l.Config, err = clientcmd.BuildConfigFromFlags("", l.Kubeconfig()); err != nil {
		return l, err
	}
	l.Config.QPS = -1                           // priority and fairness of the server suffice
	l.Config.WarningHandler = rest.NoWarnings{} // tests look at those that they expect
	var errs [3]error
	l.Kube, errs[0] = kubernetes.NewForConfig(l.Config)
	l.Holdfast, errs[1] = holdfastclientset.NewForConfig(l.Config)
	l.Engine, errs[2] = engineclientset.NewForConfig(l.Config)
	if err := errors.Join(errs[:]...); err != nil {
		return l, err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: Unattended, Labels: map[string]string{corev1.LabelHostname: Unattended}}}
	_, err = l.Kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	return l, err
}

// up starts Holdfast, or starts it again with other flags.
func (l *Lab) up(ctx context.Context) error {
	return l.lab(ctx, "holdfast", "up", "--holdfast", filepath.Join(l.bin, "holdfast"),
		"--artifacts", filepath.Join(l.options.Root, "artifacts"),
		"--apiserver-flags", l.options.APIServerFlags,
		"--controller-flags", l.options.ControllerFlags+" --host-path-roots="+l.hostPaths(), "--agent-flags", "--host-path-roots="+l.hostPaths())
}

// hostPaths is the folder below which persistent volumes of type hostPath are backed up.
func (l *Lab) hostPaths() string { return filepath.Join(l.Dir, "hostpaths") }

func (l *Lab) down() error {
	// Also after an interrupt.
	return l.lab(context.Background(), "down")
}

// lab runs a command of the lab.
func (l *Lab) lab(ctx context.Context, args ...string) error {
	command := exec.CommandContext(ctx, filepath.Join(l.bin, "lab"), append(args, "--dir", l.Dir)...)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("lab %s: %w\n%s", strings.Join(args, " "), err, output)
	}
	return nil
}

// KubeconfigOf is the path of the kubeconfig of a role's account.
func (l *Lab) KubeconfigOf(account string) string {
	return filepath.Join(l.Dir, "kubeconfig-"+account)
}

// Program runs holdfast to its end, and returns what it prints to its output.
func (l *Lab) Program(t testing.TB, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return l.Run(ctx, args...)
}

// Run is like Program, from any goroutine. It kills the program when ctx ends.
func (l *Lab) Run(ctx context.Context, args ...string) (string, error) {
	output, err := exec.CommandContext(ctx, filepath.Join(l.bin, "holdfast"), args...).Output()
	return string(output), err
}

// Kubeconfig is the path of the administrator's kubeconfig.
func (l *Lab) Kubeconfig() string { return filepath.Join(l.Dir, "kubeconfig") }
