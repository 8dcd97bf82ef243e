// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-io/holdfast/hack/lab/process"
	"github.com/holdfast-io/holdfast/hack/lab/registry"
	"github.com/holdfast-io/holdfast/hack/lab/workdir"
)

// Down stops the nodes and takes back what they did to the machine. It works
// on any wreck that a crash left, and does nothing for a lab without nodes.
func Down(ctx context.Context, dir workdir.Dir) error {
	state, err := dir.State()
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(state.Nodes) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	all := nodes(dir, state.Nodes)
	// kubelet first, or it would start again what is stopped after it.
	for _, program := range []string{"kubelet", "kube-proxy"} {
		if err := stop(ctx, all, program); err != nil {
			return err
		}
	}
	var containers []container
	for _, n := range all {
		containers = append(containers, n.containers()...)
		n.removeContainers(ctx)
	}
	if err := stop(ctx, all, "containerd"); err != nil {
		return err
	}
	if err := registry.Down(ctx, dir); err != nil {
		return err
	}
	var failed []error
	failed = append(failed, killShims(ctx, dir.Path("nodes")))
	for _, c := range containers {
		failed = append(failed, removeCgroups(ctx, c.id))
	}
	failed = append(failed, unmountBelow(dir.Path("nodes")))
	if owner := bridgeOwner(); owner == "" || owner == string(dir) {
		failed = append(failed, networkDown(ctx))
	}
	failed = append(failed, removeLeftovers(dir, containers), restoreSysctls(dir))
	return errors.Join(failed...)
}

func stop(ctx context.Context, all []node, program string) error {
	var failed []error
	for _, n := range all {
		failed = append(failed, process.StopNamed(ctx, n.dir.Run(), program+"-"+n.name, 10*time.Second))
	}
	return errors.Join(failed...)
}

// container is what a container that containerd started leaves behind if
// nobody cleans up after it.
type container struct {
	id     string
	socket string // of its shim; empty if the shim never listened
}

// containers are those of the node, sandboxes too, whether they run or not.
func (n node) containers() []container {
	dir := n.path("containerd-state", "io.containerd.runtime.v2.task", "k8s.io")
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return nil // containerd never ran
	}
	var all []container
	for _, t := range tasks {
		// A sandbox has the file, the other containers share its shim.
		address, _ := os.ReadFile(filepath.Join(dir, t.Name(), "address"))
		all = append(all, container{id: t.Name(), socket: strings.TrimPrefix(string(address), "unix://")})
	}
	return all
}

// removeContainers asks containerd to kill and forget all containers, which
// also ends their shims. Where it can't, killShims and removeCgroups do.
func (n node) removeContainers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if !exists(n.socket()) {
		return
	}
	tasks, err := n.ctr(ctx, "tasks", "list", "--quiet")
	if err == nil && strings.TrimSpace(tasks) != "" {
		_, _ = n.ctr(ctx, append([]string{"tasks", "delete", "--force"}, strings.Fields(tasks)...)...)
	}
}

// killShims kills containerd's shims whose containerd was in this folder.
func killShims(ctx context.Context, dir string) error {
	return killAll(ctx, "container shims", func() ([]int, error) {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return nil, err
		}
		var pids []int
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			// One that ends meanwhile has no command line.
			raw, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
			if isShim(raw, dir) {
				pids = append(pids, pid)
			}
		}
		return pids, nil
	})
}

// isShim says whether a command line, its words ended by zero bytes, is that
// of a shim for a containerd below dir.
func isShim(cmdline []byte, dir string) bool {
	words := strings.Split(string(bytes.TrimRight(cmdline, "\x00")), "\x00")
	if !strings.HasPrefix(filepath.Base(words[0]), "containerd-shim-") {
		return false
	}
	i := slices.Index(words, "-address")
	return i >= 0 && i+1 < len(words) && strings.HasPrefix(words[i+1], dir+"/")
}

// removeCgroups kills what runs in a container's cgroup and removes it, in
// every hierarchy: version 1 has one per controller, version 2 has one.
func removeCgroups(ctx context.Context, container string) error {
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	var failed []error
	for _, m := range mounts {
		if m.kind != "cgroup" && m.kind != "cgroup2" {
			continue
		}
		parent := filepath.Join(m.point, "k8s.io")
		root := filepath.Join(parent, container)
		var groups []string // parents first
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				groups = append(groups, path)
			}
			return nil
		})
		failed = append(failed, err, killAll(ctx, "the containers in "+root, func() ([]int, error) { return cgroupPIDs(groups) }))
		slices.Reverse(groups)
		for _, g := range groups {
			failed = append(failed, os.Remove(g))
		}
		// Succeeds with the last container.
		_ = os.Remove(parent)
	}
	return errors.Join(failed...)
}

func cgroupPIDs(groups []string) ([]int, error) {
	var pids []int
	for _, g := range groups {
		raw, err := os.ReadFile(filepath.Join(g, "cgroup.procs"))
		if err != nil {
			return nil, err
		}
		for _, word := range strings.Fields(string(raw)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				return nil, err
			}
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// killAll kills what list names until it names nothing more.
func killAll(ctx context.Context, what string, list func() ([]int, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		pids, err := list()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill %s: process %d: %w", what, pid, err)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s survive SIGKILL: processes %v", what, pids)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// removeLeftovers removes what kubelet and the CNI plugins write outside of
// the lab's folder with no setting to forbid it.
func removeLeftovers(dir workdir.Dir, containers []container) error {
	var failed []error
	links, _ := filepath.Glob("/var/log/containers/*.log")
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, dir.Path("nodes")+"/") {
			failed = append(failed, os.Remove(l))
		}
	}
	for _, c := range containers {
		if c.socket != "" && exists(c.socket) {
			failed = append(failed, os.Remove(c.socket))
		}
		results, _ := filepath.Glob("/var/lib/cni/results/*-" + c.id + "-*")
		for _, r := range results {
			failed = append(failed, os.Remove(r))
		}
	}
	const plugins = "/var/lib/kubelet/device-plugins"
	socket := filepath.Join(plugins, "kubelet.sock")
	conn, err := net.Dial("unix", socket)
	switch {
	case err == nil: // a kubelet of this machine's own
		_ = conn.Close()
	case !errors.Is(err, fs.ErrNotExist):
		failed = append(failed, os.Remove(socket))
	}
	for _, d := range []string{plugins, "/var/lib/kubelet", "/var/log/containers", "/var/lib/cni/results", "/var/lib/cni", "/run/containerd/s", "/run/containerd"} {
		_ = os.Remove(d) // only where it is empty
	}
	return errors.Join(failed...)
}
