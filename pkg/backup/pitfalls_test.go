// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// writeLog keeps the keys of the objects that come into a store, in their order.
type writeLog struct {
	Store
	keys []string
}

func (l *writeLog) note(key string, err error) error {
	if err == nil {
		l.keys = append(l.keys, key)
	}
	return err
}

func (l *writeLog) Put(ctx context.Context, key string, content []byte) error {
	return l.note(key, l.Store.Put(ctx, key, content))
}

func (l *writeLog) Create(ctx context.Context, key string, content []byte) error {
	return l.note(key, l.Store.Create(ctx, key, content))
}

func (l *writeLog) NewWriter(ctx context.Context, key string) (store.ObjectWriter, error) {
	w, err := l.Store.NewWriter(ctx, key)
	return &loggedWriter{w, l, key}, err
}

type loggedWriter struct {
	store.ObjectWriter
	log *writeLog
	key string
}

func (w *loggedWriter) Commit() error { return w.log.note(w.key, w.ObjectWriter.Commit()) }

// A bucket with object lock refuses to have an object written again.
//
// Pitfall 29: each object is written once, the owner before all others, and the metadata after them.
func TestEachObjectIsWrittenOnce(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(*fixture)
		phase v1alpha1.BackupPhase
		keys  int
	}{
		"completed": {func(*fixture) {}, v1alpha1.BackupPhaseCompleted, 12},
		"failed":    {func(f *fixture) { f.resources = nil }, v1alpha1.BackupPhaseFailed, 5},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{})
			f.story()
			test.spoil(f)
			written := &writeLog{Store: f.store}
			f.deps.Store = written
			if outcome := f.run(t); outcome.Status.Phase != test.phase {
				t.Errorf("the phase is %s", outcome.Status.Phase)
			}
			if distinct := sets.New(written.keys...); len(written.keys) != test.keys || distinct.Len() != test.keys {
				t.Errorf("%d objects were written by %q, want %d", distinct.Len(), written.keys, test.keys)
			}
			wanted := []string{format.CopyKey("b"), format.MetadataKey("b")}
			if last := written.keys[len(written.keys)-len(wanted):]; written.keys[0] != format.OwnerKey("b") || !slices.Equal(last, wanted) {
				t.Errorf("they were written in the order %q", written.keys)
			}
		})
	}
}

// Pitfall 30: however many workers read, each object and each volume comes once.
func TestWorkersLoseNothing(t *testing.T) {
	var want []string
	for _, workers := range []int{1, 2, 16} {
		f := newFixture(t, v1alpha1.BackupSpec{})
		f.story()
		for i := range 500 {
			f.add("secrets", named("shop", fmt.Sprintf("key-%03d", i))...)
			f.add("widgets.example.com", named("bank", fmt.Sprintf("gear-%03d", i))...)
		}
		f.deps.Workers = workers
		outcome := f.run(t)
		got := f.items(t)
		for _, request := range f.volumes.submitted {
			got = append(got, request.Name)
		}
		if outcome.Status.Progress.ItemsBackedUp < 1000 || len(f.volumes.submitted) != 2 {
			t.Fatalf("too little to lose: %+v, %q", outcome.Status.Progress, got)
		}
		if want == nil {
			want = got
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("with %d workers (-with 1 +got):\n%s", workers, diff)
		}
	}
}

// panicking is a client that panics at one of its requests.
type panicking struct {
	rest.Interface
	requests atomic.Int32
	at       int32
}

func (p *panicking) Get() *rest.Request {
	if p.requests.Add(1) == p.at {
		panic("no such index")
	}
	return p.Interface.Get()
}

// Pitfall 30: a panic, in whatever goroutine reads for a backup, fails that backup
// and not the process with all others.
func TestAPanicEndsOneBackup(t *testing.T) {
	run := func(at int32) (*fixture, Outcome, int32) {
		f := newFixture(t, v1alpha1.BackupSpec{})
		f.story()
		client := &panicking{Interface: f.deps.Client, at: at}
		f.deps.Client = client
		return f, f.run(t), client.requests.Load()
	}
	_, _, requests := run(0)
	if requests < 10 {
		t.Fatalf("a backup makes %d requests", requests)
	}
	for at := range requests {
		f, outcome, _ := run(at + 1)
		if outcome.Status.Phase != v1alpha1.BackupPhaseFailed || !strings.Contains(outcome.Status.FailureReason, "panic: no such index") {
			t.Errorf("a panic at request %d: %+v", at+1, outcome.Status)
		}
		if slices.Contains(f.keys(t), format.TarballKey("b")) {
			t.Errorf("a panic at request %d: there is a tarball", at+1)
		}
	}
}
