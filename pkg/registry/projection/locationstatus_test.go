// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
)

// live lists the locations as they are.
type live struct{ cluster *enginetest.Cluster }

func (l live) List(labels.Selector) ([]*enginev1alpha1.StorageLocation, error) {
	list, err := l.cluster.EngineV1alpha1().StorageLocations("holdfast").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var found []*enginev1alpha1.StorageLocation
	for i := range list.Items {
		found = append(found, &list.Items[i])
	}
	return found, nil
}

// The conditions are written when they change, numbers a minute after that at the earliest,
// and how late it is never.
func TestWrites(t *testing.T) {
	cluster := enginetest.New(&enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: "default", Generation: 3}})
	clock := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	var state refresh.State
	recorder := events.NewFakeRecorder(10)
	w := NewStatusWriter(StatusConfig{
		Records: cluster.EngineV1alpha1().StorageLocations("holdfast"), Lister: live{cluster},
		State:  func(string) (refresh.State, bool) { return state, true },
		Events: recorder, Clock: clock,
	})
	synced := refresh.Asked{Generation: 3}
	for i, test := range []struct {
		after         time.Duration
		state         refresh.State
		writes        int
		due           time.Duration
		want, missing string
		backups       int32
	}{
		{0, refresh.State{}, 1, 0, "False Loading 0", "", 0},
		{0, refresh.State{Loaded: true, LastSuccess: clock.Now(), LastFull: clock.Now(), Backups: 7, Synced: synced}, 1, 0, "True Listed 3", "False", 7},
		{30 * time.Second, refresh.State{Loaded: true, LastSuccess: clock.Now().Add(time.Minute), LastFull: clock.Now().Add(time.Minute), Backups: 7, Synced: synced}, 0, 0, "True Listed 3", "False", 7},
		{10 * time.Second, refresh.State{Loaded: true, LastSuccess: clock.Now(), LastFull: clock.Now(), Backups: 9, Synced: synced}, 0, 20 * time.Second, "True Listed 3", "False", 7},
		{20 * time.Second, refresh.State{Loaded: true, LastSuccess: clock.Now(), LastFull: clock.Now(), Backups: 9, Synced: synced}, 1, 0, "True Listed 3", "False", 9},
		{0, refresh.State{Loaded: true, LastSuccess: clock.Now(), LastFull: clock.Now(), LastError: "away", Backups: 9, Synced: synced}, 1, 0, "False Unreadable 3", "False", 9},
		{time.Hour, refresh.State{Loaded: true, LastSuccess: clock.Now(), LastFull: clock.Now(), LastError: "away", Backups: 9, Synced: synced}, 0, 0, "False Unreadable 3", "False", 9},
		{0, refresh.State{Loaded: true, LastSuccess: clock.Now(), LastFull: clock.Now(), Suspicion: "few", Backups: 2, Synced: synced}, 1, 0, "True Listed 3", "True", 9},
		{0, refresh.State{Loaded: true, LastSuccess: clock.Now(), LastFull: clock.Now(), Backups: 2, Synced: refresh.Asked{Generation: 4, Request: "x"}}, 1, 0, "True Listed 4", "False", 2},
		// Fewer are written at once when the next process would miss them.
		{time.Hour, refresh.State{Loaded: true, LastSuccess: clock.Now(), LastFull: clock.Now(), Backups: 100, Synced: refresh.Asked{Generation: 4, Request: "x"}}, 1, 0, "True Listed 4", "False", 100},
		{20 * time.Second, refresh.State{Loaded: true, LastSuccess: clock.Now(), LastFull: clock.Now(), Backups: 90, Synced: refresh.Asked{Generation: 4, Request: "x"}}, 0, 40 * time.Second, "True Listed 4", "False", 100},
		{0, refresh.State{Loaded: true, LastSuccess: clock.Now(), LastFull: clock.Now(), Backups: 89, Synced: refresh.Asked{Generation: 4, Request: "x"}}, 1, 0, "True Listed 4", "False", 89},
		// Another writer replaces metadata, of one and then of two, and that ends.
		{time.Hour, refresh.State{Loaded: true, LastSuccess: clock.Now(), LastFull: clock.Now(), Backups: 89, Replaced: 1, Synced: refresh.Asked{Generation: 4, Request: "x"}}, 1, 0, "True Listed 4", "False", 89},
		{time.Minute, refresh.State{Loaded: true, LastSuccess: clock.Now(), LastFull: clock.Now(), Backups: 89, Replaced: 2, Synced: refresh.Asked{Generation: 4, Request: "x"}}, 1, 0, "True Listed 4", "False", 89},
		{time.Minute, refresh.State{Loaded: true, LastSuccess: clock.Now(), LastFull: clock.Now(), Backups: 89, Synced: refresh.Asked{Generation: 4, Request: "x"}}, 1, 0, "True Listed 4", "False", 89},
		// There are more of others than have room, and that ends.
		{time.Minute, refresh.State{Loaded: true, LastSuccess: clock.Now(), LastFull: clock.Now(), Backups: 89, LeftOut: 7, NewestLeftOut: "theirs", Synced: refresh.Asked{Generation: 4, Request: "x"}}, 1, 0, "True Listed 4", "False", 89},
		{time.Minute, refresh.State{Loaded: true, LastSuccess: clock.Now(), LastFull: clock.Now(), Backups: 89, Synced: refresh.Asked{Generation: 4, Request: "x"}}, 1, 0, "True Listed 4", "False", 89},
		// Many folders have no backup, then some more, and that ends.
		{time.Minute, refresh.State{Loaded: true, LastSuccess: clock.Now(), LastFull: clock.Now(), Backups: 89, Unfinished: 210_000, Synced: refresh.Asked{Generation: 4, Request: "x"}}, 1, 0, "True Listed 4", "False", 89},
		{time.Minute, refresh.State{Loaded: true, LastSuccess: clock.Now(), LastFull: clock.Now(), Backups: 89, Unfinished: 211_000, Synced: refresh.Asked{Generation: 4, Request: "x"}}, 0, 0, "True Listed 4", "False", 89},
		{time.Minute, refresh.State{Loaded: true, LastSuccess: clock.Now(), LastFull: clock.Now(), Backups: 89, Unfinished: 99_000, Synced: refresh.Asked{Generation: 4, Request: "x"}}, 1, 0, "True Listed 4", "False", 89},
	} {
		clock.Step(test.after)
		state = test.state
		before := len(cluster.Writes("storagelocations"))
		due := w.writeAll(t.Context())
		record, err := w.Records.Get(t.Context(), "default", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		condition := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionSynced)
		missing, backups := "", int32(0)
		if found := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionBackupsMissing); found != nil {
			missing, backups = string(found.Status), record.Status.Catalogue.Backups
		}
		if got := fmt.Sprintf("%s %s %d", condition.Status, condition.Reason, condition.ObservedGeneration); got != test.want || missing != test.missing || backups != test.backups {
			t.Errorf("%d: Synced %s, BackupsMissing %s, %d backups, want %+v", i, got, missing, backups, test)
		}
		replaced := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionMetadataReplaced)
		if told := replaced != nil && replaced.Status == metav1.ConditionTrue && strings.Contains(replaced.Message, fmt.Sprintf("of %d backups", state.Replaced)); told != (state.Replaced > 0) {
			t.Errorf("%d: %d are replaced, and the condition is %v", i, state.Replaced, replaced)
		}
		leftOut := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionBackupsLeftOut)
		if told := leftOut != nil && leftOut.Status == metav1.ConditionTrue && strings.HasPrefix(leftOut.Message, fmt.Sprintf("%d backups are not listed", state.LeftOut)) && strings.Contains(leftOut.Message, `"theirs"`); told != (state.LeftOut > 0) {
			t.Errorf("%d: %d are left out, and the condition is %v", i, state.LeftOut, leftOut)
		}
		if told := leftOut != nil && leftOut.Status == metav1.ConditionTrue && leftOut.Reason == enginev1alpha1.ReasonTooManyFolders && strings.Contains(leftOut.Message, "more than 200000 folders"); told != (state.Unfinished > manyFolders) {
			t.Errorf("%d: %d folders are unfinished, and the condition is %v", i, state.Unfinished, leftOut)
		}
		if writes := len(cluster.Writes("storagelocations")) - before; writes != test.writes || due != test.due {
			t.Errorf("%d: %d writes, due in %v, want %+v", i, writes, due, test)
		}
	}
	if told := len(recorder.Events); told != 8 {
		t.Errorf("%d events", told)
	}
}
