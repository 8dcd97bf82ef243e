// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package leftovers

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// restored writes what is told of a restore, whose uid is its name, in the folder of a name.
func (h *harness) restored(folder, name, of, clusterUID string) string {
	h.t.Helper()
	restore := &v1alpha1.Restore{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)},
		Status: v1alpha1.RestoreStatus{Backup: &v1alpha1.RestoredBackup{
			Namespace: system, Name: of, UID: types.UID("uid-of-" + of), StorageLocation: "default",
		}},
	}
	if folder == "" {
		folder = format.RestoreStoreName(restore.Namespace, restore.Name, system, restore.UID)
	}
	data, err := format.EncodeRestore(restore, nil, format.Cluster{UID: clusterUID})
	must(h.t, err)
	for key, content := range map[string][]byte{
		format.RestoreLogKey(folder): []byte("log"), format.RestorePlanKey(folder): nil, format.RestoreMetadataKey(folder): data,
	} {
		must(h.t, h.store.Create(h.t.Context(), key, content))
	}
	return folder
}

func (h *harness) restores() (names []string) {
	h.t.Helper()
	for object, err := range h.store.List(h.t.Context(), format.RestoresPrefix, store.ListOptions{}) {
		must(h.t, err)
		names = append(names, strings.Trim(strings.TrimPrefix(object.Key, format.RestoresPrefix), "/"))
	}
	return names
}

// What is told of a restore goes when its backup and its record are gone, and it is this
// cluster's by what it says and where it lies.
func TestTidyRestores(t *testing.T) {
	h := newHarness(t, &enginev1alpha1.RestoreRun{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "shop.recorded", UID: "recorded"}},
		&enginev1alpha1.RestoreRun{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "shop.again", UID: "another"}})
	keep := []string{
		h.restored("", "of-one-that-is-there", "there", cluster),
		h.restored("", "of-one-that-begins", "begins", cluster),
		h.restored("", "foreign", "gone", "another-cluster"),
		h.restored("", "nobodys", "gone", ""),
		h.restored("shop.elsewhere-0123456789", "elsewhere", "gone", cluster),
		h.restored("", "recorded", "gone", cluster),
		"by-velero",
	}
	must(t, h.store.Create(t.Context(), format.RestoresPrefix+"by-velero/restore-by-velero-logs.gz", nil))
	gone := []string{
		h.restored("", "back", "gone", cluster),
		h.restored("", "again", "gone", cluster),
	}
	slices.Sort(keep)
	all := slices.Sorted(slices.Values(append(slices.Clone(keep), gone...)))
	h.folder("begins", ours("uid-of-begins"))
	expect := func(why string, want []string) {
		t.Helper()
		h.tidyUp()
		if got := h.restores(); !slices.Equal(got, want) {
			t.Errorf("%s: the store tells of %v, want %v", why, got, want)
		}
	}
	h.clock.SetTime(time.Now().Add(MinAge - time.Hour))
	expect("they are young", all)
	h.clock.SetTime(time.Now().Add(MinAge + time.Hour))
	_, err := h.Runs.Create(t.Context(), &enginev1alpha1.BackupRun{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "begins"}}, metav1.CreateOptions{})
	must(t, err)
	expect("no backup is in the store, so it is doubted", all)
	h.folder("there", ours("uid-of-there"), format.MetadataKey("there"))
	h.clock.SetTime(time.Now().Add(2 * MinAge))
	expect("two of them have lost their backup", all)
	h.clock.Step(time.Hour)
	expect("a retry is no other pass", all)
	h.folder("gone", ours("uid-of-gone"), format.MetadataKey("gone"))
	h.clock.Step(interval)
	expect("they have it again", all)
	metadata, err := h.store.Attributes(t.Context(), format.MetadataKey("gone"))
	must(t, err)
	must(t, h.store.Delete(t.Context(), metadata))
	owner, err := h.store.Attributes(t.Context(), format.OwnerKey("gone"))
	must(t, err)
	must(t, h.store.Delete(t.Context(), owner))
	h.clock.Step(interval)
	expect("and have lost it", all)
	h.clock.Step(interval)
	expect("for a day", keep)
	expect("again", keep)
	if event := <-h.events.Events; !strings.Contains(event, "What was told of 2 restores") {
		t.Errorf("the event is %q", event)
	}
	must(t, h.Restores.Delete(t.Context(), "shop.recorded", metav1.DeleteOptions{}))
	h.tidyUp()
	h.clock.Step(interval)
	expect("a record has gone", slices.DeleteFunc(keep, func(name string) bool { return strings.HasPrefix(name, "shop.recorded-") }))
}

// One that was removed in part goes on where that stopped.
func TestTidyRestoresInPart(t *testing.T) {
	h := newHarness(t)
	name := h.restored("", "back", "gone", cluster)
	log, err := h.store.Attributes(t.Context(), format.RestoreLogKey(name))
	must(t, err)
	must(t, h.store.Delete(t.Context(), log))
	h.folder("there", ours("1"), format.MetadataKey("there"))
	h.clock.SetTime(time.Now().Add(MinAge + time.Hour))
	if got := h.would(); len(got) != 1 || got[0].Key != format.RestoresPrefix+name+"/" || len(h.restores()) != 1 {
		t.Errorf("a dry run says %v, and leaves %v", got, h.restores())
	}
	h.tidyUp()
	h.clock.Step(interval)
	h.tidyUp()
	if left := h.restores(); len(left) > 0 {
		t.Errorf("the store tells of %v", left)
	}
}

// denied is a store that denies all reading.
type denied struct{ lent }

func (denied) Get(context.Context, string) (io.ReadCloser, error) { return nil, store.ErrDenied }

// Of what the store denies, it is not remembered that it is nobody's.
func TestTidyRestoresDenied(t *testing.T) {
	h := newHarness(t)
	h.restored("", "back", "gone", cluster)
	h.clock.SetTime(time.Now().Add(MinAge + time.Hour))
	record := &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}}
	must(t, h.tidyRestores(t.Context(), record, denied{lent{h.store, nil}}, sets.New("there")))
	if known := h.of["default"]; len(known) > 0 {
		t.Errorf("it is known that %v", known)
	}
}
