// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package snapshots tests the volume snapshots of a lab: its driver, and Kubernetes's sidecars, which
// this module requires.
package snapshots

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// bin has the programs: make csi builds them.
const bin = "../../../.lab/bin"

// programs are what a test of a cluster shows the logs of, if it fails.
var programs = []string{"csi", "snapshot-controller", "csi-snapshotter", "csi-provisioner"}

func absolute(t *testing.T, path string) string {
	t.Helper()
	found, err := filepath.Abs(path)
	if err == nil {
		_, err = os.Stat(found)
	}
	if err != nil {
		t.Fatalf("run `make csi`, which builds what is missing: %v", err)
	}
	return found
}

// driver starts a driver in a folder, and returns its process. It mounts where only it sees it, and
// needs no root for that.
func driver(t *testing.T, folder string) (process *os.Process, socket string) {
	t.Helper()
	socket = filepath.Join(folder, "csi.sock")
	cmd := exec.CommandContext(t.Context(), absolute(t, bin+"/csi"), "--data", filepath.Join(folder, "data"), "--socket", socket, "test.lab.holdfast.io")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	said := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the driver said\n%s", said)
		}
	})
	await(t, "the driver's socket", func() error {
		_, err := os.Stat(socket)
		return err
	})
	return cmd.Process, socket
}

// TestSanity: the driver keeps the rules of the interface, as the interface's own tests know them.
func TestSanity(t *testing.T) {
	folder := t.TempDir()
	_, socket := driver(t, folder)
	config := sanity.NewTestConfig()
	config.Address = socket
	config.TargetPath, config.StagingPath = filepath.Join(folder, "target"), filepath.Join(folder, "staging")
	sanity.Test(t, config)
	for _, kind := range []string{"volumes", "snapshots"} {
		if left, err := os.ReadDir(filepath.Join(folder, "data", kind)); err != nil || len(left) > 0 {
			t.Errorf("of the %s are left %v, %v", kind, left, err)
		}
	}
}

// TestMounts: a volume of the driver, or a folder that a volume's handle names, is mounted once where a
// pod wants it, read-only if the pod or the mode of its claim asks for that.
func TestMounts(t *testing.T) {
	folder := t.TempDir()
	process, socket := driver(t, folder)
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	capability := func(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
		return &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}, AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}}}
	}
	writer := capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
	made, err := csi.NewControllerClient(connection).CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "v", VolumeCapabilities: []*csi.VolumeCapability{writer}})
	if err != nil {
		t.Fatal(err)
	}
	byHand := filepath.Join(folder, "source")
	if err := os.Mkdir(byHand, 0o755); err != nil {
		t.Fatal(err)
	}
	node := csi.NewNodeClient(connection)
	for name, test := range map[string]struct {
		request *csi.NodePublishVolumeRequest
		want    string
	}{
		"made":           {&csi.NodePublishVolumeRequest{VolumeId: made.Volume.VolumeId, VolumeCapability: writer}, "rw"},
		"by hand":        {&csi.NodePublishVolumeRequest{VolumeId: byHand, VolumeCapability: writer}, "rw"},
		"for reading":    {&csi.NodePublishVolumeRequest{VolumeId: byHand, VolumeCapability: writer, Readonly: true}, "ro"},
		"by many, by it": {&csi.NodePublishVolumeRequest{VolumeId: made.Volume.VolumeId, VolumeCapability: capability(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)}, "ro"},
	} {
		t.Run(name, func(t *testing.T) {
			target := filepath.Join(folder, strings.ReplaceAll(name, " ", "-"), "mount")
			if err := os.Mkdir(filepath.Dir(target), 0o755); err != nil {
				t.Fatal(err)
			}
			mounts := func() (found []string) {
				t.Helper()
				content, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", process.Pid))
				if err != nil {
					t.Fatal(err)
				}
				for line := range strings.Lines(string(content)) {
					if fields := strings.Fields(line); len(fields) > 5 && fields[4] == target {
						mode, _, _ := strings.Cut(fields[5], ",")
						found = append(found, mode)
					}
				}
				return found
			}
			test.request.TargetPath = target
			for range 2 {
				if _, err := node.NodePublishVolume(t.Context(), test.request); err != nil {
					t.Fatal(err)
				}
			}
			if got := mounts(); !slices.Equal(got, []string{test.want}) {
				t.Errorf("it is mounted as %q, not once as %s", got, test.want)
			}
			for range 2 {
				if _, err := node.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: test.request.VolumeId, TargetPath: target}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := os.Stat(target); !os.IsNotExist(err) || len(mounts()) > 0 {
				t.Errorf("it is still there: %v, %q", err, mounts())
			}
		})
	}
}

// await waits until a condition holds.
func await(t *testing.T, what string, condition func() error) {
	t.Helper()
	err := condition()
	for end := time.Now().Add(2 * time.Minute); err != nil; err = condition() {
		if time.Now().After(end) {
			t.Fatalf("waiting for %s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// cluster is a lab without nodes, whose claims and snapshots get what they ask for.
type cluster struct{ bin, dir string }

// start starts the Kubernetes that was built last.
func start(t *testing.T) cluster {
	t.Helper()
	c := cluster{bin: absolute(t, bin), dir: filepath.Join(t.TempDir(), "lab")}
	for _, program := range append(programs, "lab", "kubectl") {
		absolute(t, filepath.Join(c.bin, program))
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range programs {
				log, _ := os.ReadFile(filepath.Join(c.dir, "logs", name+".log"))
				t.Logf("%s said\n%s", name, log[max(0, len(log)-4<<10):])
			}
		}
		c.run(t, "lab", "", "down", "--dir", c.dir)
	})
	c.run(t, "lab", "", "up", "--dir", c.dir, "--bin", c.bin)
	c.run(t, "lab", "", "csi", "up", "--dir", c.dir, "--source", absolute(t, ".."), "--snapshots")
	return c
}

// run runs a program, and returns what it prints.
func (c cluster) run(t *testing.T, program, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(c.bin, program), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(c.dir, "kubeconfig"))
	cmd.Stdin = strings.NewReader(stdin)
	errors := &strings.Builder{}
	cmd.Stderr = errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", program, strings.Join(args, " "), err, out, errors)
	}
	return string(out)
}

func (c cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return c.run(t, "kubectl", "", args...)
}

// bound makes a claim, of a snapshot if that is named, and returns the folder of its volume.
func (c cluster) bound(t *testing.T, name, snapshot string) string {
	t.Helper()
	source := ""
	if snapshot != "" {
		source = fmt.Sprintf("dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: %s}, ", snapshot)
	}
	c.run(t, "kubectl", fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s, namespace: default}
spec: {storageClassName: folder, %saccessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`, name, source), "create", "-f", "-")
	c.kubectl(t, "wait", "--for=jsonpath={.status.phase}=Bound", "--timeout=120s", "pvc/"+name)
	volume := c.kubectl(t, "get", "pvc", name, "-o", "jsonpath={.spec.volumeName}")
	return filepath.Join(c.dir, "csi", "volumes", c.kubectl(t, "get", "pv", volume, "-o", "jsonpath={.spec.csi.volumeHandle}"), "data")
}

// cut makes a VolumeSnapshot.
func (c cluster) cut(t *testing.T, name, claim, class string) {
	t.Helper()
	c.run(t, "kubectl", fmt.Sprintf(`apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %s, namespace: default}
spec: {volumeSnapshotClassName: %s, source: {persistentVolumeClaimName: %s}}
`, name, class, claim), "create", "-f", "-")
}

func (c cluster) ready(t *testing.T, name string) {
	t.Helper()
	c.kubectl(t, "wait", "--for=jsonpath={.status.readyToUse}=true", "--timeout=120s", "volumesnapshot/"+name)
}

// says waits until a VolumeSnapshot has a text in a field.
func (c cluster) says(t *testing.T, name, field, text string) {
	t.Helper()
	await(t, fmt.Sprintf("%q in the %s of the snapshot %s", text, field, name), func() error {
		if got := c.kubectl(t, "get", "volumesnapshot", name, "-o", "jsonpath={"+field+"}"); !strings.Contains(got, text) || got == "" {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

// faults tells the driver what goes wrong from now on.
func (c cluster) faults(t *testing.T, content string) {
	t.Helper()
	path := filepath.Join(c.dir, "csi", "faults.json")
	if err := os.WriteFile(path+".part", []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".part", path); err != nil {
		t.Fatal(err)
	}
}

// stored waits until the driver has so many volumes and snapshots.
func (c cluster) stored(t *testing.T, volumes, snapshots int) {
	t.Helper()
	for kind, want := range map[string]int{"volumes": volumes, "snapshots": snapshots} {
		await(t, fmt.Sprintf("%d %s in the storage", want, kind), func() error {
			entries, err := os.ReadDir(filepath.Join(c.dir, "csi", kind))
			if err == nil && len(entries) != want {
				err = fmt.Errorf("there are %v", entries)
			}
			return err
		})
	}
}

func write(t *testing.T, folder, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(folder, "file"), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestSnapshotsOfALab: a VolumeSnapshot has what was in its claim then, and a claim is made of it. The
// driver fails, is slow and loses answers as it is told, and stores what the cluster owes it, in the
// end nothing.
func TestSnapshotsOfALab(t *testing.T) {
	c := start(t)
	source := c.bound(t, "source", "")
	write(t, source, "before")
	c.cut(t, "first", "source", "folder")
	c.ready(t, "first")
	write(t, source, "after")
	if content, err := os.ReadFile(filepath.Join(c.bound(t, "copy", "first"), "file")); err != nil || string(content) != "before" {
		t.Errorf("the claim of the snapshot has %q, %v", content, err)
	}
	c.stored(t, 2, 1)

	c.faults(t, `{"fail":{"CreateSnapshot":{"code":"UNAVAILABLE","message":"the storage is away"}}}`)
	c.cut(t, "failing", "source", "folder")
	c.says(t, "failing", ".status.error.message", "the storage is away")
	c.stored(t, 2, 1)
	c.faults(t, `{"readyAfter":"1h","fail":{"CreateSnapshot":{"code":"DEADLINE_EXCEEDED","times":1,"after":true}}}`)
	c.says(t, "failing", ".status.readyToUse", "false")
	c.stored(t, 2, 2)
	c.faults(t, ``)
	c.ready(t, "failing")
	c.stored(t, 2, 2)

	// A snapshot that is kept without its VolumeSnapshot is deleted with its content, once the policy allows it.
	c.cut(t, "kept", "source", "folder-kept")
	c.ready(t, "kept")
	content := c.kubectl(t, "get", "volumesnapshot", "kept", "-o", "jsonpath={.status.boundVolumeSnapshotContentName}")
	c.kubectl(t, "delete", "volumesnapshot", "--all", "--timeout=120s")
	c.stored(t, 2, 1)
	c.kubectl(t, "patch", "volumesnapshotcontent", content, "--type=merge", "-p", `{"spec":{"deletionPolicy":"Delete"}}`)
	c.kubectl(t, "delete", "volumesnapshotcontent", content, "--timeout=120s")
	c.kubectl(t, "delete", "pvc", "--all", "--timeout=120s")
	c.stored(t, 0, 0)
}
