// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// shaky is a store that fails a number of times, and then works.
type shaky struct {
	Store
	mu       sync.Mutex
	failures map[storetest.Operation]int
	err      error
	// after says that the operation is done before it fails: its answer is lost.
	after bool
}

func (s *shaky) strike(operation storetest.Operation, do func() error) error {
	s.mu.Lock()
	fails := s.failures[operation] > 0
	s.failures[operation]--
	s.mu.Unlock()
	if !fails {
		return do()
	}
	if s.after {
		_ = do()
	}
	return s.err
}

func (s *shaky) Put(ctx context.Context, key string, content []byte) error {
	return s.strike(storetest.Put, func() error { return s.Store.Put(ctx, key, content) })
}

func (s *shaky) Create(ctx context.Context, key string, content []byte) error {
	return s.strike(storetest.Create, func() error { return s.Store.Create(ctx, key, content) })
}

func TestPassingStoreFaultsAreTriedAgain(t *testing.T) {
	for name, test := range map[string]struct {
		operation storetest.Operation
		after     bool
	}{
		"a side file":                      {storetest.Put, false},
		"the metadata":                     {storetest.Create, false},
		"the metadata, its answer lost":    {storetest.Create, true},
		"a side file whose answer is lost": {storetest.Put, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := shopOf(t, 3)
			f.deps.Store = &shaky{Store: f.store, failures: map[storetest.Operation]int{test.operation: 3}, err: store.ErrUnavailable, after: test.after}
			if outcome := f.run(t); outcome.Status.Phase != holdfast.BackupPhaseCompleted {
				t.Errorf("the phase is %s", outcome.Status.Phase)
			}
			f.wantConfigMaps(t, 3)
		})
	}
}

// Pitfall 29: a backup whose tarball can't be stored is Failed, and the failure is
// stored, with its log.
func TestTarballThatFails(t *testing.T) {
	for _, operation := range []storetest.Operation{storetest.NewWriter, storetest.Write, storetest.Commit} {
		t.Run(string(operation), func(t *testing.T) {
			f := shopOf(t, 3)
			f.store.Inject(storetest.Fault{Operation: operation, Key: format.TarballKey("b"), Err: store.ErrUnavailable})
			outcome := f.run(t)
			if outcome.Status.Phase != holdfast.BackupPhaseFailed || !strings.Contains(outcome.Status.FailureReason, store.ErrUnavailable.Error()) {
				t.Errorf("got %+v", outcome.Status)
			}
			want := []string{format.LogKey("b"), format.ResultsKey("b"), format.MetadataKey("b")}
			if keys := f.keys(t); !slices.Equal(keys, want) {
				t.Errorf("%v is in the store", keys)
			}
			if log := f.text(t, format.LogKey("b")); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "phase=Failed") {
				t.Errorf("the log is\n%s", log)
			}
			stored, err := format.DecodeBackup(f.read(t, format.MetadataKey("b")), format.Place{StoreName: "b", SystemNamespace: "holdfast", Now: start})
			if err != nil || stored.Status.Phase != holdfast.BackupPhaseFailed || stored.Status.FailureReason != outcome.Status.FailureReason {
				t.Errorf("stored is %+v, %v", stored, err)
			}
		})
	}
}

func TestClusterThatCannotBeRead(t *testing.T) {
	f := shopOf(t, 3)
	f.resources = nil
	outcome := f.run(t)
	if outcome.Status.Phase != holdfast.BackupPhaseFailed || outcome.Status.FailureReason == "" {
		t.Errorf("got %+v", outcome.Status)
	}
	if slices.Contains(f.keys(t), format.TarballKey("b")) {
		t.Error("there is a tarball")
	}
}

func TestSpecThatCannotBeRead(t *testing.T) {
	f := shopOf(t, 3)
	f.request.Backup.Spec.IncludedNamespaces = []string{"["}
	f.request.Backup.Spec.OrLabelSelectors = []*metav1.LabelSelector{nil}
	if outcome := f.run(t); outcome.Status.Phase != holdfast.BackupPhaseFailed || !strings.Contains(outcome.Status.FailureReason, "includedNamespaces[0]") {
		t.Errorf("got %+v", outcome.Status)
	}
}

// Pitfall 29: a side file that a restore rests on fails the backup; the report of
// it does not.
func TestSideFilesThatFail(t *testing.T) {
	for key, want := range map[string]holdfast.BackupPhase{
		format.PodVolumeBackupsKey("b"): holdfast.BackupPhaseFailed,
		format.ResourceListKey("b"):     holdfast.BackupPhaseFailed,
		format.LogKey("b"):              holdfast.BackupPhasePartiallyFailed,
		format.ResultsKey("b"):          holdfast.BackupPhasePartiallyFailed,
	} {
		f := shopOf(t, 3)
		f.store.Inject(storetest.Fault{Operation: storetest.Put, Key: key, Err: store.ErrUnavailable})
		if outcome := f.run(t); outcome.Status.Phase != want || outcome.Status.Errors != 1 {
			t.Errorf("without %s: %+v", key, outcome.Status)
		}
		if got := f.store.Count(storetest.Put); got < 4 {
			t.Errorf("%s was tried %d times", key, got)
		}
	}
}

// A second life of the same run finds what the first has stored, and changes
// nothing.
func TestRunAgain(t *testing.T) {
	f := shopOf(t, 3)
	first := f.run(t)
	f.add("configmaps", named("shop", "later")...)
	f.store.Reset()
	second := f.run(t)
	if second.Status.Phase != first.Status.Phase || *second.Status.Progress != *first.Status.Progress || !second.Status.CompletionTimestamp.Equal(first.Status.CompletionTimestamp) {
		t.Errorf("got %+v after %+v", second.Status, first.Status)
	}
	if counts := f.store.Counts(); len(counts) != 1 || counts[storetest.Get] != 1 {
		t.Errorf("the store was used: %v", counts)
	}
	if third, err := Fail(t.Context(), f.request, f.deps, "the controller was killed"); err != nil || third.Status.Phase != first.Status.Phase {
		t.Errorf("Fail of a backup that has ended: %+v, %v", third, err)
	}
	f.wantConfigMaps(t, 3)
}

// Another backup of the same name is never touched.
func TestNameTaken(t *testing.T) {
	f := shopOf(t, 3)
	f.run(t)
	before := f.read(t, format.TarballKey("b"))
	f.request.Backup.UID = "another"
	f.store.Reset()
	outcome, err := Run(t.Context(), f.request, f.deps)
	if !errors.Is(err, ErrNameTaken) || outcome.Stored || outcome.Status.Phase != holdfast.BackupPhaseFailed {
		t.Errorf("got %+v, %v", outcome, err)
	}
	if counts := f.store.Counts(); len(counts) != 1 || counts[storetest.Get] != 1 {
		t.Errorf("the store was used: %v", counts)
	}
	if string(f.read(t, format.TarballKey("b"))) != string(before) {
		t.Error("the tarball of the other backup has changed")
	}
}

// The name may be taken while the backup runs.
func TestNameTakenMeanwhile(t *testing.T) {
	f := shopOf(t, 3)
	f.volumes.wait = func(ctx context.Context) error {
		return f.store.Create(ctx, format.MetadataKey("b"), []byte("not even metadata"))
	}
	outcome, err := Run(t.Context(), f.request, f.deps)
	if !errors.Is(err, ErrNameTaken) || outcome.Stored {
		t.Errorf("got %+v, %v", outcome, err)
	}
}

// What can't be read may be this very backup.
func TestFind(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, f *fixture)
		stored  bool
		err     error
	}{
		"stored":     {prepare: func(t *testing.T, f *fixture) { f.run(t) }, stored: true},
		"not stored": {prepare: func(*testing.T, *fixture) {}},
		"another one": {prepare: func(t *testing.T, f *fixture) {
			f.run(t)
			f.request.Backup = f.request.Backup.DeepCopy()
			f.request.Backup.UID = "another"
		}},
		"unreadable": {prepare: func(t *testing.T, f *fixture) {
			f.run(t)
			if err := f.store.Put(t.Context(), format.MetadataKey("b"), []byte("<html>")); err != nil {
				t.Fatal(err)
			}
		}, err: ErrUnreadable},
		"no answer": {prepare: func(_ *testing.T, f *fixture) {
			f.store.Inject(storetest.Fault{Operation: storetest.Get, Err: store.ErrDenied})
		}, err: store.ErrDenied},
	} {
		t.Run(name, func(t *testing.T) {
			f := shopOf(t, 1)
			c.prepare(t, f)
			outcome, err := Find(t.Context(), f.request, f.deps)
			if outcome.Stored != c.stored || !errors.Is(err, c.err) {
				t.Errorf("got %+v, %v", outcome, err)
			}
		})
	}
}

// A store that is down at the start is no reason to believe that the name is free.
func TestStoreDownAtTheStart(t *testing.T) {
	f := shopOf(t, 3)
	f.store.Inject(storetest.Fault{Operation: storetest.Get, Err: store.ErrUnavailable})
	if outcome, err := Run(t.Context(), f.request, f.deps); !errors.Is(err, store.ErrUnavailable) || outcome.Stored {
		t.Errorf("got %+v, %v", outcome, err)
	}
	if f.requested("/") != 0 || len(f.keys(t)) != 0 {
		t.Error("the backup ran all the same")
	}
}

func TestDiscardAndFail(t *testing.T) {
	f := shopOf(t, 3)
	// What a killed controller may leave.
	for _, key := range []string{format.TarballKey("b"), format.ResourceListKey("b")} {
		if err := f.store.Put(t.Context(), key, []byte("half")); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.store.Put(t.Context(), format.TarballKey("b2"), []byte("another's")); err != nil {
		t.Fatal(err)
	}
	if removed, err := Discard(t.Context(), f.store, "b"); err != nil || !removed {
		t.Fatalf("got %v, %v", removed, err)
	}
	if keys := f.keys(t); !slices.Equal(keys, []string{format.TarballKey("b2")}) {
		t.Fatalf("%v is left", keys)
	}
	outcome, err := Fail(t.Context(), f.request, Dependencies{Store: f.store, Clock: f.deps.Clock}, "the controller was restarted while the backup ran")
	if err != nil || !outcome.Stored || outcome.Status.Phase != holdfast.BackupPhaseFailed || outcome.Status.Errors != 1 ||
		outcome.Status.FailureReason != "the controller was restarted while the backup ran" {
		t.Errorf("got %+v, %v", outcome, err)
	}
	before := f.keys(t)
	if removed, err := Discard(t.Context(), f.store, "b"); err != nil || removed {
		t.Errorf("a backup that has ended: %v, %v", removed, err)
	}
	if !slices.Equal(f.keys(t), before) {
		t.Error("something of a backup that has ended was removed")
	}
}

func TestDiscardWithTheStoreDown(t *testing.T) {
	f := shopOf(t, 0)
	f.store.Inject(storetest.Fault{Operation: storetest.Attributes, Err: store.ErrUnavailable})
	if removed, err := Discard(t.Context(), f.store, "b"); !errors.Is(err, store.ErrUnavailable) || removed || f.store.Count(storetest.DeletePrefix) != 0 {
		t.Errorf("got %v, %v", removed, err)
	}
}

func TestExpirationIsTheRequestsOrTheStartAndTTL(t *testing.T) {
	given := metav1.Time{Time: start.Add(time.Hour)}
	f := shopOf(t, 0)
	f.request.Backup.Status.Expiration = &given
	if got := f.run(t).Status.Expiration; !got.Equal(&given) {
		t.Errorf("expires %v", got)
	}
	f = shopOf(t, 0)
	f.request.Backup.Spec.TTL = metav1.Duration{}
	// Velero would remove at once what expires at its start.
	if got := f.run(t).Status.Expiration; got != nil {
		t.Errorf("expires %v", got)
	}
}
