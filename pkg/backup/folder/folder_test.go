// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package folder_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const system = "holdfast"

var instant = metav1.Unix(1_700_000_000, 0)

// deletion is that of a backup, whose record stays.
func deletion(target storetest.Store, storeName string, uid types.UID) *folder.Deletion {
	return &folder.Deletion{
		Folder: folder.Folder{
			Place: format.Place{StoreName: storeName, Location: "default"},
			Clock: clocktesting.NewFakePassiveClock(instant.Time),
			UID:   uid,
			Store: target,
			Try:   func(ctx context.Context, request func(context.Context) error) error { return request(ctx) },
		},
		Remover: target,
		Present: func() error { return nil },
	}
}

// As long as nobody knows whose the rest is, it stays, and the deletion is not over.
func TestOwnerThatCannotBeRead(t *testing.T) {
	target := storetest.NewFaulty(storetest.Filesystem(t), clocktesting.NewFakeClock(instant.Time))
	must(t, target.Put(t.Context(), format.TarballKey("a"), []byte("a part")))
	target.Inject(storetest.Fault{Operation: storetest.Get, Key: format.OwnerKey("a"), Err: store.ErrUnavailable})
	if err := deletion(target, "a", "uid").RemoveRest(t.Context()); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if _, err := target.Attributes(t.Context(), format.TarballKey("a")); err != nil {
		t.Error(err)
	}
}

// A volume without a snapshot takes none from the list.
func TestListedSnapshots(t *testing.T) {
	target := storetest.Filesystem(t)
	var volumes []format.PodVolumeBackup
	for _, id := range []string{"one", "", "two"} {
		volume := format.PodVolumeBackup{
			Spec:   format.PodVolumeBackupSpec{UploaderType: format.UploaderKopia},
			Status: format.PodVolumeBackupStatus{SnapshotID: id},
		}
		volume.Spec.Pod.Namespace = "app"
		volumes = append(volumes, volume)
	}
	var content bytes.Buffer
	must(t, format.WritePodVolumeBackups(&content, volumes))
	must(t, target.Put(t.Context(), format.PodVolumeBackupsKey("a"), content.Bytes()))
	d := deletion(target, "a", "uid")
	if err := d.Look(t.Context()); err != nil || !slices.Equal(d.Snapshots["app"], []string{"one", "two"}) {
		t.Errorf("got %v, %v", d.Snapshots, err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
