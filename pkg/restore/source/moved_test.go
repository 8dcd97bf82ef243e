// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// movedArchive is a store that the code of Velero 1.18.1 wrote: its data mover's uploads of claims of
// the namespace ware, and the backup v-moved that names them.
const movedArchive = "testdata/velero-moved.tar.gz"

func packed(t testing.TB, content any) []byte {
	t.Helper()
	var compressed bytes.Buffer
	zip := gzip.NewWriter(&compressed)
	check(t, json.NewEncoder(zip).Encode(content))
	check(t, zip.Close())
	return compressed.Bytes()
}

func infosOf(t testing.TB, bucket *store.Bucket) []format.VolumeInfo {
	t.Helper()
	content, err := bucket.Get(t.Context(), format.VolumeInfoKey("v-moved"))
	check(t, err)
	infos, err := format.ReadVolumeInfo(content)
	check(t, err)
	check(t, content.Close())
	return infos
}

// TestMovedByVelero: volumes whose snapshots Velero's data mover has uploaded have their snapshot in
// the repository of the claim's namespace, whatever the version of Velero says of them and where. The
// others have the reason why they can't be restored.
func TestMovedByVelero(t *testing.T) {
	const vendor = `data mover "vendor-mover"`
	full := map[string]string{"data": "", "idle": "", "raw": "", "failed": format.StoredFailed, "vendor": vendor, "kept": ""}
	for name, test := range map[string]struct {
		change func(t *testing.T, bucket *store.Bucket)
		// want are claims with the problem of each, files those of a look into the volumes alone.
		want, files map[string]string
	}{
		"1.14 and later": {
			want:  full,
			files: map[string]string{"data": "", "idle": "", "raw": "", "failed": format.StoredFailed, "vendor": vendor, "kept": ""},
		},
		"1.13, whose list names no snapshots": {
			change: func(t *testing.T, bucket *store.Bucket) {
				infos := infosOf(t, bucket)
				for i := range infos {
					infos[i].Result = ""
					if moved := infos[i].DataMovementInfo; moved != nil {
						infos[i].DataMovementInfo = &format.DataMovementInfo{DataMover: moved.DataMover, UploaderType: moved.UploaderType}
					}
				}
				check(t, bucket.Put(t.Context(), format.VolumeInfoKey("v-moved"), packed(t, infos)))
			},
			want:  full,
			files: map[string]string{"data": format.StoredUnnamed, "idle": format.StoredUnnamed, "raw": format.StoredUnnamed, "failed": format.StoredUnnamed, "vendor": vendor, "kept": ""},
		},
		"1.12, without a list": {
			change: func(t *testing.T, bucket *store.Bucket) {
				check(t, bucket.Remove(t.Context(), format.VolumeInfoKey("v-moved")))
			},
			want:  map[string]string{"data": "", "idle": "", "raw": "", "failed": format.StoredFailed, "vendor": vendor},
			files: map[string]string{},
		},
		"uploads of another backup": {
			change: func(t *testing.T, bucket *store.Bucket) {
				check(t, bucket.Remove(t.Context(), format.VolumeInfoKey("v-moved")))
				key := format.MetadataKey("v-moved")
				metadata, err := read(t.Context(), bucket, key, format.MaxMetadataBytes)
				check(t, err)
				check(t, bucket.Put(t.Context(), key, bytes.ReplaceAll(metadata, []byte("6a0c6e54-"), []byte("00000000-"))))
			},
			want: map[string]string{}, files: map[string]string{},
		},
		"a snapshot that can't be": {
			change: func(t *testing.T, bucket *store.Bucket) {
				infos := infosOf(t, bucket)
				infos[0].DataMovementInfo.SnapshotHandle = "../x"
				check(t, bucket.Put(t.Context(), format.VolumeInfoKey("v-moved"), packed(t, infos[:1])))
			},
			want: map[string]string{"data": `names the snapshot "../x"`}, files: map[string]string{"data": `names the snapshot "../x"`},
		},
		"told twice": { // as skipped by another way, too
			change: func(t *testing.T, bucket *store.Bucket) {
				infos := infosOf(t, bucket)
				skipped := format.VolumeInfo{PVCNamespace: "ware", PVCName: "data", PVName: infos[0].PVName, Skipped: true}
				check(t, bucket.Put(t.Context(), format.VolumeInfoKey("v-moved"), packed(t, []format.VolumeInfo{skipped, infos[0], skipped})))
			},
			want: map[string]string{"data": ""}, files: map[string]string{"data": ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bucket := stored(t, movedArchive)
			infos := infosOf(t, bucket)
			if test.change != nil {
				test.change(t, bucket)
			}
			compare := func(b *Backup, want map[string]string, objects bool) {
				t.Helper()
				if len(b.Volumes) != len(want) || len(b.Warnings) > 0 {
					t.Errorf("%d volumes, not %d, and the warnings %q: %+v", len(b.Volumes), len(want), b.Warnings, b.Volumes)
				}
				for i := range b.Volumes {
					v := &b.Volumes[i]
					problem, ok := want[v.ClaimName]
					if !ok || v.Claim().Namespace != "ware" || v.RepositoryNamespace() != "ware" || (v.Problem == "") != (problem == "") || !strings.Contains(v.Problem, problem) {
						t.Errorf("volume %+v, want the problem %q", v, problem)
					}
					if problem != "" {
						continue
					}
					if v.Device != (v.ClaimName == "raw" && objects) {
						t.Errorf("%s is a device: %t", v.ClaimName, v.Device)
					}
					info := infos[slices.IndexFunc(infos, func(info format.VolumeInfo) bool { return info.PVCName == v.ClaimName })]
					if v.InStorage() != (v.ClaimName == "kept") || v.InStorage() && *v.Snapshot.Cut != (format.SnapshotCut{Handle: "snap-kept", Size: 1 << 30}) {
						t.Errorf("volume %+v, want the snapshot in %+v", v, info)
					}
					if v.InStorage() {
						continue
					}
					of := info.DataMovementInfo
					if v.Status.SnapshotID != of.SnapshotHandle || v.Status.Phase != enginev1alpha1.VolumePhaseCompleted || v.Status.Progress.TotalBytes != of.Size || of.Size == 0 {
						t.Errorf("volume %+v, want what is in %+v", v, of)
					}
				}
				if b.Volume(format.VolumeID{Namespace: "ware", Name: "data"}) == nil && want["data"] == "" && len(want) > 0 {
					t.Error("the volume is not found by its name")
				}
			}
			b, err := Open(t.Context(), bucket, placeOf("v-moved"), "", nil)
			check(t, err)
			compare(b, test.want, true)
			if b.NotTaken[types.NamespacedName{Namespace: "ware", Name: "data"}] != "" {
				t.Errorf("not taken are %v", b.NotTaken)
			}
			b, err = OpenVolumes(t.Context(), bucket, placeOf("v-moved"), "")
			check(t, err)
			compare(b, test.files, false)
		})
	}
}
