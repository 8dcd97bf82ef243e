// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package csi runs a driver of the Container Storage Interface in a lab: cmd/csi, whose volumes are
// folders of this machine. For the nodes of a lab it mounts them, and with Kubernetes's own
// sidecars it makes volumes and snapshots, also in a lab without nodes.
package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/hack/lab/binaries"
	"github.com/holdfast-io/holdfast/hack/lab/kubeconfig"
	"github.com/holdfast-io/holdfast/hack/lab/kubectl"
	"github.com/holdfast-io/holdfast/hack/lab/node"
	"github.com/holdfast-io/holdfast/hack/lab/pki"
	"github.com/holdfast-io/holdfast/hack/lab/process"
	"github.com/holdfast-io/holdfast/hack/lab/workdir"
)

// Driver is the name that PersistentVolumes give in spec.csi.driver.
const Driver = "folder.lab.holdfast.io"

const (
	name    = "csi"
	program = "csi"
	// longestSocket is the longest path that a socket may have.
	longestSocket = 107
)

// sidecar is a program of Kubernetes's that works for drivers.
type sidecar struct {
	name, namespace, account string
	// module has its roles, in a file.
	module, roles string
	// asks says that it asks the driver.
	asks bool
}

var sidecars = []sidecar{
	{name: "snapshot-controller", namespace: "kube-system", account: "snapshot-controller", module: binaries.Snapshotter, roles: "deploy/kubernetes/snapshot-controller/rbac-snapshot-controller.yaml"},
	{name: "csi-snapshotter", namespace: "default", account: "csi-snapshotter", module: binaries.Snapshotter, roles: "deploy/kubernetes/csi-snapshotter/rbac-csi-snapshotter.yaml", asks: true},
	{name: "csi-provisioner", namespace: "default", account: "csi-provisioner", module: binaries.Provisioner, roles: "deploy/kubernetes/rbac.yaml", asks: true},
}

// definitions are those of snapshots, in the module binaries.SnapshotClients.
var definitions = []string{
	"config/crd/snapshot.storage.k8s.io_volumesnapshotclasses.yaml",
	"config/crd/snapshot.storage.k8s.io_volumesnapshotcontents.yaml",
	"config/crd/snapshot.storage.k8s.io_volumesnapshots.yaml",
}

// classes are what claims and snapshots name.
const classes = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: folder}
provisioner: ` + Driver + `
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: folder-late}
provisioner: ` + Driver + `
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: folder}
driver: ` + Driver + `
deletionPolicy: Delete
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: folder-kept}
driver: ` + Driver + `
deletionPolicy: Retain
`

// Snapshots says how the driver makes volumes and snapshots.
type Snapshots struct {
	// Builder has built the sidecars.
	Builder binaries.Builder
	// QPS bounds the requests of a sidecar to the API server in a second. Their own default is 5.
	QPS int
}

// Up starts the driver anew, and the sidecars if snapshots are wanted. The first time it returns
// once the kubelet of each node knows the driver; later each finds it anew by itself. Pods keep
// what is mounted.
func Up(ctx context.Context, dir workdir.Dir, snapshots *Snapshots) error {
	state, err := dir.Running()
	if err != nil {
		return err
	}
	if len(state.Nodes) == 0 && snapshots == nil {
		return fmt.Errorf("the lab in %s has no nodes that could mount a volume; start one with `lab up --nodes 2`, as root, or give --snapshots", dir)
	}
	if err := binaries.Missing(state.Bin, program); err != nil {
		return err
	}
	if err := Down(ctx, dir); err != nil {
		return err
	}
	args := []string{"--data", Folder(dir)}
	if snapshots != nil {
		if len(socket(dir)) > longestSocket {
			return fmt.Errorf("the driver's socket would be %s, which has %d characters, and a socket has at most %d: use a lab in a folder with a shorter path", socket(dir), len(socket(dir)), longestSocket)
		}
		args = append(args, "--socket", socket(dir))
	}
	args = append(args, Driver)
	for _, n := range state.Nodes {
		args = append(args, filepath.Dir(node.PodsDir(dir, n)))
	}
	p, err := process.Start(dir.Run(), process.Spec{Name: name, Path: filepath.Join(state.Bin, program), Args: args, Log: dir.Log(name)})
	if err != nil {
		return err
	}
	kube := kubectl.New(dir, state)
	if err := kube.Apply(ctx, fmt.Sprintf("apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {name: %s}\nspec: {attachRequired: false, fsGroupPolicy: File}\n", Driver)); err != nil {
		return err
	}
	for _, n := range state.Nodes {
		if _, err := kube.Run(ctx, "wait", "--for=jsonpath={.spec.drivers[*].name}="+Driver, "--timeout=60s", "csinode/"+n); err != nil {
			return fmt.Errorf("%w\nthe end of the driver's log:\n%s", err, process.Tail(p.Log))
		}
	}
	if snapshots == nil {
		return nil
	}
	if err := p.AwaitConnection(ctx, "unix", socket(dir)); err != nil {
		return err
	}
	return snapshots.up(ctx, dir, state, kube)
}

// up makes what the sidecars need in the cluster, and starts them.
func (s *Snapshots) up(ctx context.Context, dir workdir.Dir, state workdir.State, kube kubectl.Kubectl) error {
	for _, c := range sidecars {
		if err := binaries.Missing(state.Bin, c.name); err != nil {
			return err
		}
	}
	apply := func(module string, files ...string) error {
		folder, err := s.Builder.SnapshotModule(ctx, module)
		if err != nil {
			return err
		}
		for _, file := range files {
			content, err := os.ReadFile(filepath.Join(folder, file))
			if err != nil {
				return err
			}
			if err := kube.Apply(ctx, string(content)); err != nil {
				return fmt.Errorf("%s of %s: %w", file, module, err)
			}
		}
		return nil
	}
	if err := apply(binaries.SnapshotClients, definitions...); err != nil {
		return err
	}
	if _, err := kube.Run(ctx, "wait", "--for=condition=Established", "--timeout=60s", "crd/volumesnapshotclasses.snapshot.storage.k8s.io", "crd/volumesnapshotcontents.snapshot.storage.k8s.io", "crd/volumesnapshots.snapshot.storage.k8s.io"); err != nil {
		return err
	}
	if err := kube.Apply(ctx, classes); err != nil {
		return err
	}
	cluster, err := pki.ReadAuthority(dir.PKI(), "ca")
	if err != nil {
		return err
	}
	for _, c := range sidecars {
		if err := apply(c.module, c.roles); err != nil {
			return err
		}
		token, err := kube.Token(ctx, c.namespace, c.account)
		if err != nil {
			return err
		}
		if err := kubeconfig.OfToken(dir.KubeconfigOf(c.name), state.Server, cluster, c.account, token); err != nil {
			return err
		}
		args := []string{"--kubeconfig=" + dir.KubeconfigOf(c.name), "--kube-api-qps=" + strconv.Itoa(s.QPS), "--kube-api-burst=" + strconv.Itoa(2*s.QPS)}
		if c.asks {
			args = append(args, "--csi-address="+socket(dir))
		}
		if _, err := process.Start(dir.Run(), process.Spec{Name: c.name, Path: filepath.Join(state.Bin, c.name), Args: args, Log: dir.Log(c.name)}); err != nil {
			return err
		}
	}
	return nil
}

// Folder has the volumes and snapshots that the driver makes, each in a folder of its own below
// volumes and snapshots; the faults that it is to have, faults.json; and the number of requests,
// calls.json. cmd/csi says what is in these.
func Folder(dir workdir.Dir) string { return dir.Path("csi") }

func socket(dir workdir.Dir) string { return filepath.Join(Folder(dir), "csi.sock") }

// Down stops the sidecars and the driver. What it has mounted stays until the nodes go.
func Down(ctx context.Context, dir workdir.Dir) error {
	for _, c := range sidecars {
		if err := process.StopNamed(ctx, dir.Run(), c.name, 10*time.Second); err != nil {
			return err
		}
	}
	return process.StopNamed(ctx, dir.Run(), name, 10*time.Second)
}

// Detach ends the loop devices of volumes, the kubelets' own among them. Pods may still have them open.
func Detach(ctx context.Context, dir workdir.Dir) error {
	if _, err := exec.LookPath("losetup"); err != nil {
		return nil // so there is none
	}
	out, err := exec.CommandContext(ctx, "losetup", "--list", "--noheadings", "--raw", "--output", "NAME,BACK-FILE").Output()
	if err != nil {
		return fmt.Errorf("losetup --list: %w", err)
	}
	var failed []error
	for line := range strings.Lines(string(out)) {
		device, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.HasPrefix(file, dir.Path("csi")+"/") && !strings.HasPrefix(file, dir.Path("nodes")+"/") {
			continue
		}
		if out, err := exec.CommandContext(ctx, "losetup", "--detach", device).CombinedOutput(); err != nil {
			failed = append(failed, fmt.Errorf("losetup --detach %s: %w: %s", device, err, out))
		}
	}
	return errors.Join(failed...)
}
