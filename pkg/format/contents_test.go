// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

var contents = Contents{
	"shop.daily.tar.gz":                   {Size: 1234, SHA256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"},
	"shop.daily-podvolumebackups.json.gz": NewContent([]byte("list")),
}

func TestOwnerRoundTrip(t *testing.T) {
	want := Owner{UID: "uid-1", ClusterUID: "cluster-1"}
	data, err := EncodeOwner(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeOwner(data); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, data := range []string{"", "{}", "null", `"uid"`, `{"uid":1}`, `{"uid":""}`, `{"uid":"uid-1","clusterUID":1}`} {
		if owner, err := DecodeOwner([]byte(data)); err == nil {
			t.Errorf("%q was read as %+v", data, owner)
		}
	}
}

func TestContentsRoundTrip(t *testing.T) {
	data, err := EncodeBackup(endedBackup(), contents, cluster)
	if err != nil {
		t.Fatal(err)
	}
	backup, err := DecodeBackup(data, Place{StoreName: "shop.daily", SystemNamespace: "holdfast", Now: now})
	if err != nil {
		t.Fatal(err)
	}
	got, err := TakeContents(backup)
	if diff := cmp.Diff(contents, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, shown := backup.Annotations[AnnotationContents]; shown {
		t.Error("the contents are shown to people")
	}
	if got, err := TakeContents(backup); got != nil || err != nil {
		t.Errorf("of a backup without contents: %v, %v", got, err)
	}
	if tarball, known := contents.Of(TarballKey("shop.daily")); !known || tarball.Size != 1234 {
		t.Errorf("the tarball: %+v, %v", tarball, known)
	}
	sum := sha256.New()
	_, _ = sum.Write([]byte("list"))
	made := Contents{}
	made.Set(PodVolumeBackupsKey("shop.daily"), ContentOf(4, sum))
	if want := contents["shop.daily-podvolumebackups.json.gz"]; made["shop.daily-podvolumebackups.json.gz"] != want {
		t.Errorf("got %v, want %v", made, want)
	}
	backup.Annotations = map[string]string{AnnotationContents: "["}
	if _, err := TakeContents(backup); err == nil {
		t.Error("what is no JSON was read")
	}
}

// A cancelled backup is Failed to Velero, and Cancelled to us.
func TestCancelledRoundTrip(t *testing.T) {
	backup := endedBackup()
	backup.Status.Phase = v1alpha1.BackupPhaseCancelled
	backup.Annotations[AnnotationPhase] = "Completed"
	data, err := EncodeBackup(backup, nil, cluster)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(data, []byte(`"phase":"Failed"`)) {
		t.Errorf("Velero reads %s", data)
	}
	got, err := DecodeBackup(data, Place{StoreName: "shop.daily", SystemNamespace: "holdfast", Now: now})
	if err != nil || got.Status.Phase != v1alpha1.BackupPhaseCancelled || got.Annotations[AnnotationPhase] != "" {
		t.Errorf("got %+v, %v", got, err)
	}
	// The annotation makes nothing else of a backup than what it is.
	got, err = decodeChanged(t, Place{StoreName: "shop.daily", Now: now}, func(fields map[string]any) {
		fields["metadata"].(map[string]any)["annotations"] = map[string]any{AnnotationPhase: "Cancelled"}
		fields["status"].(map[string]any)["phase"] = "Completed"
	})
	if err != nil || got.Status.Phase != v1alpha1.BackupPhaseCompleted {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestMark(t *testing.T) {
	var list bytes.Buffer
	if err := WriteEmptyList(&list); err != nil {
		t.Fatal(err)
	}
	one, other := Mark(list.Bytes(), "one"), Mark(list.Bytes(), "two")
	if bytes.Equal(one, other) {
		t.Error("the lists of two backups are equal")
	}
	r, err := gzip.NewReader(bytes.NewReader(one))
	if err != nil {
		t.Fatal(err)
	}
	if content, err := io.ReadAll(r); err != nil || string(content) != "[]\n" || r.Comment != "one" {
		t.Errorf("got %q, %q, %v", content, r.Comment, err)
	}
}

// What takes the place of the copy of an earlier attempt is the metadata of this backup, and
// of one that is not finished, at any time: so nobody takes it for the copy.
func TestRevocation(t *testing.T) {
	data, err := EncodeRevocation("shop.daily", "u")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeBackup(data, Place{StoreName: "shop.daily", SystemNamespace: "holdfast", Now: now.AddDate(100, 0, 0)}); !errors.Is(err, ErrUnfinished) {
		t.Errorf("%+v, %v", got, err)
	}
	golden(t, "revocation.json", indented(t, data))
}
