// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// TestKeptInStorage: a volume with the handle of a stored snapshot lies in its storage. It has no problem
// if its backup has succeeded. With a snapshot in a repository its data was moved.
func TestKeptInStorage(t *testing.T) {
	const driver, handle = `"holdfast.io/snapshot-driver":"ebs.example.com"`, `"holdfast.io/snapshot-handle":"snap-1"`
	for name, test := range map[string]struct {
		annotations       []string
		uploader, status  string
		inStorage, source bool
		problem           string
	}{
		"kept":                     {annotations: []string{driver, handle}, status: `"phase":"Completed"`, inStorage: true, source: true},
		"kept, with another mover": {annotations: []string{driver, handle}, uploader: "restic", status: `"phase":"Completed"`, inStorage: true, source: true},
		"failed":                   {annotations: []string{driver, handle}, status: `"phase":"Failed","message":"the driver is gone"`, source: true, problem: "the driver is gone"},
		"failed without a reason":  {annotations: []string{driver, handle}, status: `"phase":"Failed"`, source: true, problem: "has not succeeded"},
		"not ended":                {annotations: []string{driver, handle}, status: `"phase":"InProgress"`, source: true, problem: "has not succeeded"},
		"moved":                    {annotations: []string{driver}, status: `"phase":"Completed","snapshotID":"k1"`},
		"moved, with a handle":     {annotations: []string{driver, handle}, status: `"phase":"Completed","snapshotID":"k1"`, source: true},
		"moved, and failed":        {annotations: []string{driver}, status: `"phase":"Failed","message":"no room"`, problem: "no room"},
		"without a snapshot":       {annotations: []string{driver}, status: `"phase":"Completed"`, problem: "has not succeeded"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.uploader == "" {
				test.uploader = format.UploaderKopia
			}
			var list bytes.Buffer
			zip := gzip.NewWriter(&list)
			annotations := append(test.annotations, `"velero.io/pvc-name":"data"`)
			_, err := fmt.Fprintf(zip, `[{"metadata":{"labels":{"velero.io/pvc-uid":"claim-uid"},"annotations":{%s}},"spec":{"pod":{"namespace":"shop"},"uploaderType":%q},"status":{%s}}]`,
				strings.Join(annotations, ","), test.uploader, test.status)
			check(t, err)
			check(t, zip.Close())
			bucket := storetest.Memory(t)
			w := write(t, bucket, "b", true, some(1)...)
			w.put(t, format.PodVolumeBackupsKey("b"), list.Bytes())
			w.finish(t)
			b, err := Open(t.Context(), bucket, placeOf("b"), "", nil)
			check(t, err)
			if len(b.Volumes) != 1 {
				t.Fatalf("there are %d volumes", len(b.Volumes))
			}
			v := b.Volumes[0]
			if v.InStorage() != test.inStorage || (v.Snapshot != nil) != test.source {
				t.Errorf("in its storage: %t, with the source %+v", v.InStorage(), v.Snapshot)
			}
			if test.source && (v.Snapshot.Driver != "ebs.example.com" || v.Snapshot.Cut == nil || v.Snapshot.Cut.Handle != "snap-1") {
				t.Errorf("its source is %+v", v.Snapshot)
			}
			if (v.Problem == "") != (test.problem == "") || !strings.Contains(v.Problem, test.problem) {
				t.Errorf("its problem is %q", v.Problem)
			}
			if claim := v.Claim(); claim.Namespace != "shop" || claim.Name != "data" || v.ClaimUID != "claim-uid" {
				t.Errorf("its claim is %v with the uid %q", claim, v.ClaimUID)
			}
		})
	}
}

// TestInStorageByVelero: a snapshot that Velero has not moved is in the storage of its volume, of any mode, if the
// list names it with its driver. Others have the reason why they can't be restored.
func TestInStorageByVelero(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*format.VolumeInfo)
		problem string
		size    int64
	}{
		"made":                 {func(*format.VolumeInfo) {}, "", 5},
		"of no size":           {func(i *format.VolumeInfo) { i.CSISnapshotInfo.Size = -1 }, "", 0},
		"failed":               {func(i *format.VolumeInfo) { i.Result = "failed" }, format.StoredFailed, 0},
		"without a handle":     {func(i *format.VolumeInfo) { i.CSISnapshotInfo.SnapshotHandle = "" }, format.StoredInStorage, 0},
		"without a driver":     {func(i *format.VolumeInfo) { i.CSISnapshotInfo.Driver = "" }, format.StoredInStorage, 0},
		"without any facts":    {func(i *format.VolumeInfo) { i.CSISnapshotInfo = nil }, format.StoredInStorage, 0},
		"moved, and not named": {func(i *format.VolumeInfo) { i.SnapshotDataMoved = true }, format.StoredUnnamed, 0},
	} {
		for _, mode := range []string{"Filesystem", "Block"} {
			t.Run(name+", "+mode, func(t *testing.T) {
				info := format.VolumeInfo{
					PVCNamespace: "shop", PVCName: "data", PVName: "pv", BackupMethod: format.MethodCSISnapshot,
					CSISnapshotInfo: &format.CSISnapshotInfo{SnapshotHandle: "snap-1", Driver: "ebs.example.com", Size: 5},
				}
				test.change(&info)
				bucket := storetest.Memory(t)
				w := write(t, bucket, "b", true, object{
					resource: "persistentvolumeclaims", namespace: "shop", name: "data", kind: "PersistentVolumeClaim", body: fmt.Sprintf(`,"spec":{"volumeMode":%q}`, mode),
				})
				w.put(t, format.VolumeInfoKey("b"), packed(t, []format.VolumeInfo{info}))
				w.finish(t)
				b, err := Open(t.Context(), bucket, placeOf("b"), "", nil)
				check(t, err)
				v := b.Volume(format.VolumeID{Namespace: "shop", Name: "data"})
				if v == nil || v.Problem != test.problem || v.InStorage() != (test.problem == "") || v.PersistentVolume != "pv" {
					t.Fatalf("the volume is %+v, want the problem %q", v, test.problem)
				}
				if v.InStorage() && (v.Snapshot.Driver != "ebs.example.com" || *v.Snapshot.Cut != (format.SnapshotCut{Handle: "snap-1", Size: test.size})) {
					t.Errorf("its snapshot is %+v of %+v", v.Snapshot.Cut, v.Snapshot)
				}
			})
		}
	}
}

// TestListsSealed: the lists of volumes are sealed if the metadata has the digest of each. One that was
// put there later is not.
func TestListsSealed(t *testing.T) {
	lists := []string{format.PodVolumeBackupsKey("b"), format.VolumeInfoKey("b")}
	for name, later := range map[string]int{"all": 2, "one later": 1, "both later": 0} {
		t.Run(name, func(t *testing.T) {
			bucket := storetest.Memory(t)
			w := write(t, bucket, "b", true, some(1)...)
			for _, key := range lists[:later] {
				w.put(t, key, packed(t, []int{}))
			}
			w.finish(t)
			for _, key := range lists[later:] {
				check(t, bucket.Put(t.Context(), key, packed(t, []int{})))
			}
			b, err := Open(t.Context(), bucket, placeOf("b"), "", nil)
			check(t, err)
			if b.ListsSealed != (later == 2) {
				t.Errorf("sealed: %t", b.ListsSealed)
			}
		})
	}
}

// TestKeptInStorageAndDeleted: a volume in its storage that was deleted from the backup later has that as
// its problem.
func TestKeptInStorageAndDeleted(t *testing.T) {
	var list bytes.Buffer
	zip := gzip.NewWriter(&list)
	_, err := io.WriteString(zip, `[{"metadata":{"annotations":{"holdfast.io/snapshot-driver":"d","holdfast.io/snapshot-handle":"h","velero.io/pvc-name":"data"}},"spec":{"pod":{"namespace":"shop"},"uploaderType":"kopia"},"status":{"phase":"Completed"}}]`)
	check(t, err)
	check(t, zip.Close())
	bucket := storetest.Memory(t)
	w := write(t, bucket, "b", true, some(1)...)
	w.put(t, format.PodVolumeBackupsKey("b"), list.Bytes())
	w.finish(t)
	b, err := Open(t.Context(), bucket, placeOf("b"), "", nil)
	check(t, err)
	b.Delete([]format.DeletedVolume{{VolumeID: format.VolumeID{Namespace: "shop", Name: "data"}, Requester: "jane"}})
	if v := b.Volumes[0]; !strings.Contains(v.Problem, "jane asked for that") {
		t.Errorf("its problem is %q", v.Problem)
	}
}
