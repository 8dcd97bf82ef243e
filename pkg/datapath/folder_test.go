// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
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
			got, err := VolumeFolder(pods, c.pod, c.volume, c.claimVolume)
			switch {
			case c.problem != "":
				if err == nil || !strings.Contains(err.Error(), c.problem) {
					t.Errorf("got %q, %v, want an error about %q", got, err, c.problem)
				}
			case err != nil || got != filepath.Join(pods, "uid/volumes", c.want):
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}
