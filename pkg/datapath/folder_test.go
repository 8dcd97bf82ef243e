// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestVolumeFolder(t *testing.T) {
	pods := t.TempDir()
	elsewhere := t.TempDir()
	for _, dir := range []string{
		"uid/volumes/kubernetes.io~empty-dir/cache",
		"uid/volumes/kubernetes.io~csi/pvc-1/mount",
		"uid/volumes/kubernetes.io~csi/pvc-unmounted",
		"uid/volumes/kubernetes.io~local-volume/pvc-2",
		"uid/volumes/kubernetes.io~nfs/pvc-3",
		// A PersistentVolume that is named like a volume of the pod.
		"uid/volumes/kubernetes.io~csi/same/mount",
		"uid/volumes/kubernetes.io~empty-dir/same",
		"uid/volumes/kubernetes.io~nfs/twice",
		"uid/volumes/kubernetes.io~local-volume/twice",
		"outside",
	} {
		if err := os.MkdirAll(filepath.Join(pods, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(elsewhere, filepath.Join(pods, "uid/volumes/kubernetes.io~local-volume/linked")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name                string
		pod                 types.UID
		volume, claimVolume string
		want, problem       string
	}{
		{"emptyDir", "uid", "cache", "", "kubernetes.io~empty-dir/cache", ""},
		{"CSI", "uid", "data", "pvc-1", "kubernetes.io~csi/pvc-1/mount", ""},
		{"local", "uid", "data", "pvc-2", "kubernetes.io~local-volume/pvc-2", ""},
		{"NFS", "uid", "data", "pvc-3", "kubernetes.io~nfs/pvc-3", ""},
		{"a link", "uid", "data", "linked", "kubernetes.io~local-volume/linked", ""},
		{"the volume of a claim, not the pod's own", "uid", "data", "same", "kubernetes.io~csi/same/mount", ""},
		{"the pod's own, not the volume of a claim", "uid", "same", "", "kubernetes.io~empty-dir/same", ""},
		{"ambiguous", "uid", "data", "twice", "", "several folders"},
		{"CSI, not mounted", "uid", "data", "pvc-unmounted", "", "not mounted"},
		{"hostPath", "uid", "host", "", "", "hostPath"},
		{"pod is gone", "other", "cache", "", "", "no folder on this node"},
		{"no uid", "", "cache", "", "", "uid of the pod"},
		{"uid leaves the folder", "../x", "cache", "", "", "uid of the pod"},
		{"volume leaves the folder", "uid", "../../../outside", "", "", "name of the volume"},
		{"persistent volume leaves the folder", "uid", "data", "..", "", "name of the volume"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := VolumeFolder(pods, c.pod, c.volume, c.claimVolume, nil)
			switch {
			case c.problem != "":
				if err == nil || !strings.Contains(err.Error(), c.problem) {
					t.Errorf("got %q, %v, want an error about %q", got.Path, err, c.problem)
				}
			case err != nil || got.Path != filepath.Join(pods, "uid/volumes", c.want):
				t.Errorf("got %q, %v, want %q", got.Path, err, c.want)
			}
		})
	}
}

// A volume that its plugin mounts is neither read nor written where it is not mounted.
func TestVolumeThatIsNotMounted(t *testing.T) {
	pods := t.TempDir()
	for plugin, mounts := range map[string]bool{
		"kubernetes.io~csi": true, "kubernetes.io~nfs": true, "kubernetes.io~iscsi": true, "kubernetes.io~local-volume": true,
		"kubernetes.io~empty-dir": false, "kubernetes.io~host-path": false, "example.com~flex": false,
	} {
		folder := filepath.Join("uid/volumes", plugin, "of "+plugin)
		if plugin == csiPlugin {
			folder = filepath.Join(folder, csiMount)
		}
		write(t, filepath.Join(pods, folder, "file"), "of the node")
		got, err := VolumeFolder(pods, "uid", "data", "of "+plugin, IsMount)
		if err != nil || (got.IsMount != nil) != mounts {
			t.Errorf("%s: got %+v, %v, want that it must be mounted: %t", plugin, got, err, mounts)
		}
	}

	folder, err := VolumeFolder(pods, "uid", "data", "of kubernetes.io~nfs", IsMount)
	must(t, err)
	s, mounted := newStore(t), t.TempDir()
	write(t, filepath.Join(mounted, "new"), "of the volume")
	probed := func(*os.File) (bool, error) { return true, nil }
	stored, err := Upload(t.Context(), s.client(t), UploadRequest{Path: mounted, IsMount: probed, Source: web}, new(Progress))
	must(t, err)
	before := tree(t, folder.Path)
	strange := errors.New("strange")
	for name, test := range map[string]struct {
		probe MountProbe
		want  string
	}{
		"no mount":          {folder.IsMount, "the volume is not mounted: " + folder.Path},
		"nobody can tell":   {func(*os.File) (bool, error) { return false, strange }, strange.Error()},
		"another's message": {func(*os.File) (bool, error) { return false, nil }, "HostToContainer"},
	} {
		_, uploadErr := Upload(t.Context(), s.client(t), UploadRequest{Path: folder.Path, IsMount: test.probe, Source: web}, new(Progress))
		_, restoreErr := Restore(t.Context(), s.client(t), RestoreRequest{SnapshotID: stored.SnapshotID, Path: folder.Path, IsMount: test.probe}, new(Progress))
		for _, err := range []error{uploadErr, restoreErr} {
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: got %v, want an error about %q", name, err, test.want)
			}
		}
	}
	expectSameTree(t, tree(t, folder.Path), before)
	if got := s.snapshots(t); len(got) != 1 {
		t.Errorf("there are %d snapshots", len(got))
	}
}

// The kernel tells what is the root of a mount, in both ways in which it may.
func TestIsMount(t *testing.T) {
	for path, want := range map[string]bool{"/proc": true, "/proc/self": false, t.TempDir(): false} {
		folder, err := os.Open(path)
		must(t, err)
		defer folder.Close()
		for name, probe := range map[string]MountProbe{"IsMount": IsMount, "leavesMount": leavesMount} {
			if got, err := probe(folder); err != nil || got != want {
				t.Errorf("%s of %s is %t, %v, want %t", name, path, got, err, want)
			}
		}
	}
}
