// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package node gives a lab real nodes: each a network namespace of this
// machine with a containerd, a kubelet and a kube-proxy of its own, so that
// pods really run. It needs root, and it undoes all that it does to the
// machine: network, mounts, processes, cgroups, kernel settings.
package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/hack/lab/image"
	"github.com/holdfast-io/holdfast/hack/lab/kubectl"
	"github.com/holdfast-io/holdfast/hack/lab/process"
	"github.com/holdfast-io/holdfast/hack/lab/registry"
	"github.com/holdfast-io/holdfast/hack/lab/workdir"
)

// Max is how many nodes the lab's networks have room for.
const Max = 50

// node is one of a lab's nodes.
type node struct {
	dir   workdir.Dir
	index int
	name  string
}

// Names are the names of n nodes.
func Names(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("lab-node-%d", i))
	}
	return names
}

func nodes(dir workdir.Dir, names []string) []node {
	var all []node
	for i, name := range names {
		all = append(all, node{dir: dir, index: i, name: name})
	}
	return all
}

// Path joins names to the node's folder.
func (n node) path(names ...string) string {
	return n.dir.Path(append([]string{"nodes", n.name}, names...)...)
}

func (n node) socket() string { return n.path("containerd.sock") }

// PodsDir is where a node's kubelet keeps the volumes of its pods.
func PodsDir(dir workdir.Dir, name string) string {
	return node{dir: dir, name: name}.path("kubelet", "pods")
}

// Possible says why this user can't have nodes in this folder, or nil.
func Possible(dir workdir.Dir, names []string) error {
	if os.Geteuid() != 0 {
		return errors.New("nodes need root: they have network namespaces, mounts and cgroups; run the command as root, or without --nodes")
	}
	// The address of a socket has room for 107 bytes, unix(7); containerd
	// makes a second one with a suffix.
	longest := node{dir: dir, name: names[len(names)-1]}.socket() + ".ttrpc"
	if len(longest) > 107 {
		return fmt.Errorf("the path %s is too long for a socket, by %d characters; give a shorter --dir", longest, len(longest)-107)
	}
	return alone(dir)
}

// Prepare makes what the control plane of a lab with nodes needs: programs of
// the distribution and the bridge that it listens on.
func Prepare(ctx context.Context, dir workdir.Dir, names []string, say func(string)) error {
	if err := ensurePackages(ctx, say); err != nil {
		return err
	}
	if err := saveSysctls(dir); err != nil {
		return err
	}
	return networkUp(ctx, nodes(dir, names))
}

// Up starts the nodes of a lab whose control plane is up, and returns once all
// of them are ready for pods.
func Up(ctx context.Context, dir workdir.Dir, say func(string)) error {
	state, err := dir.Running()
	if err != nil {
		return err
	}
	if err := shareMounts(dir.Path("nodes")); err != nil {
		return err
	}
	server, err := registry.Up(ctx, dir, state.Address)
	if err != nil {
		return err
	}
	if err := pushLabImages(ctx, server, state.Bin); err != nil {
		return err
	}
	all := nodes(dir, state.Nodes)
	state.Processes = append(state.Processes, registry.Name)
	for _, n := range all {
		state.Processes = append(state.Processes, "containerd-"+n.name, "kubelet-"+n.name, "kube-proxy-"+n.name)
	}
	if err := dir.Save(state); err != nil {
		return err
	}
	for _, n := range all {
		say("starting node " + n.name)
		if err := n.start(ctx, state, server); err != nil {
			return fmt.Errorf("node %s: %w", n.name, err)
		}
	}
	kube := kubectl.New(dir, state)
	for _, n := range all {
		// One at a time: of several that do not exist yet, kubectl waits for none.
		for _, condition := range []string{"create", "condition=Ready"} {
			if _, err := kube.Run(ctx, "wait", "--for="+condition, "--timeout=120s", "node/"+n.name); err != nil {
				return fmt.Errorf("%w\nthe end of the kubelet's log:\n%s", err, process.Tail(n.dir.Log("kubelet-"+n.name)))
			}
		}
	}
	return nil
}

func (n node) start(ctx context.Context, state workdir.State, server string) error {
	if err := n.writeConfigs(state, server, time.Now()); err != nil {
		return err
	}
	containerd, err := n.run("containerd", "containerd", "--config", n.path("containerd.toml"))
	if err != nil {
		return err
	}
	if err := containerd.AwaitConnection(ctx, "unix", n.socket()); err != nil {
		return err
	}
	if _, err := n.run("kubelet", filepath.Join(state.Bin, "kubelet"),
		"--config="+n.path("kubelet.yaml"),
		"--kubeconfig="+n.path("kubeconfig-kubelet"),
		"--hostname-override="+n.name,
		"--node-ip="+n.address(),
		"--root-dir="+n.path("kubelet"),
	); err != nil {
		return err
	}
	_, err = n.run("kube-proxy", filepath.Join(state.Bin, "kube-proxy"), "--config="+n.path("kube-proxy.yaml"))
	return err
}

// run starts a program in the node's network. nsenter, not `ip netns exec`:
// that mounts a new /sys, which hides the cgroups from kubelet.
func (n node) run(name string, command ...string) (*process.Process, error) {
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return nil, err
	}
	name += "-" + n.name
	return process.Start(n.dir.Run(), process.Spec{
		Name: name,
		Path: nsenter,
		Args: append([]string{"--net=/run/netns/" + n.namespace(), "--"}, command...),
		Log:  n.dir.Log(name),
	})
}

// pushLabImages makes the images that every lab has, and gives them to its registry.
func pushLabImages(ctx context.Context, server, bin string) error {
	pause, err := image.Program(filepath.Join(bin, "pause"))
	if err != nil {
		return err
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	applets, err := command(ctx, busybox, "--list")
	if err != nil {
		return err
	}
	shell, err := image.Shell(busybox, strings.Fields(applets))
	if err != nil {
		return err
	}
	return errors.Join(
		registry.Push(ctx, server, image.Pause, pause),
		registry.Push(ctx, server, image.Busybox, shell),
		registry.Push(ctx, server, image.PublicBusybox, shell),
	)
}

// Registry is the address of the registry that the nodes of a running lab pull all images from.
func Registry(dir workdir.Dir) (string, error) {
	state, err := dir.Running()
	if err != nil {
		return "", err
	}
	if len(state.Nodes) == 0 {
		return "", fmt.Errorf("the lab in %s has no nodes that could run an image; start one with `lab up --nodes 2`, as root", dir)
	}
	return registry.Running(dir)
}

// PushProgram makes an image of a static program, and gives it to the registry of a running lab.
func PushProgram(ctx context.Context, dir workdir.Dir, binary, tag string) error {
	server, err := Registry(dir)
	if err != nil {
		return err
	}
	img, err := image.Program(binary)
	if err != nil {
		return err
	}
	return registry.Push(ctx, server, tag, img)
}

// ctr talks to the node's containerd, about what kubelet keeps there.
func (n node) ctr(ctx context.Context, args ...string) (string, error) {
	return command(ctx, "ctr", append([]string{"--address", n.socket(), "--namespace", "k8s.io"}, args...)...)
}

// command runs a program of the machine and returns what it prints. An error
// carries what it complains about.
func command(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err == nil {
		return string(out), nil
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return string(out), fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
}
