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
		"moved, with a handle":     {annotations: []string{driver, handle}, status: `"phase":"Completed","snapshotID":"k1"`},
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
