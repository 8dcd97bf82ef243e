// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupchange

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/longhorn"
	"github.com/holdfast-io/holdfast/pkg/longhorn/longhorntest"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

var errHalfway = errors.New("the connection is lost")

// halfway is a store that is opened more than once, and that is lost at one of the removals,
// and from then on, until it is mended.
type halfway struct {
	*store.Bucket
	mu   sync.Mutex
	left int // guarded by mu
}

func (*halfway) Close() error { return nil }

func (h *halfway) removes() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.left--; h.left <= 0 {
		return errHalfway
	}
	return nil
}

func (h *halfway) Remove(ctx context.Context, key string) error {
	if err := h.removes(); err != nil {
		return err
	}
	return h.Bucket.Remove(ctx, key)
}

func (h *halfway) Delete(ctx context.Context, object store.Object) error {
	if err := h.removes(); err != nil {
		return err
	}
	return h.Bucket.Delete(ctx, object)
}

// impatient is a clock whose timers do not wait.
type impatient struct{ clock.RealClock }

func (impatient) NewTimer(time.Duration) clock.Timer { return clock.RealClock{}.NewTimer(0) }

// A deletion from Longhorn's store that is cut off at any removal stays to be done, and when it
// is tried again leaves what one leaves that was not cut off.
func TestLonghornsHalfway(t *testing.T) {
	const volume, backup = "pvc-b8e04c7d-15a2-4f39-8d6c-90f1e2d3c4b5", "backup-8293a4b5c6d7e8f9"
	for _, history := range []bool{false, true} {
		// deleted deletes one backup, or the volume with all, and gives what is left.
		deleted := func(lostAt int) (left []string, wasLost bool) {
			w := newWorld(t)
			w.Clock = impatient{}
			location := &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "longhorns"}}
			location.Spec.Format, location.Spec.Longhorn = enginev1alpha1.StorageFormatLonghorn, &enginev1alpha1.LonghornLocation{AllowDeletion: true}
			must(t, w.LocationInformer.Informer().GetStore().Add(location))
			h := &halfway{Bucket: storetest.Filesystem(t), left: lostAt}
			longhorntest.Put(t, h, longhorntest.Fixture(t))
			w.openLonghorn = func(context.Context, *enginev1alpha1.StorageLocation) (longhornStore, error) { return h, nil }
			asked := w.ask(0)
			names := []string{backup}
			if history {
				names = nil
				for object, err := range h.List(t.Context(), longhorn.BackupsPrefix(volume), store.ListOptions{}) {
					must(t, err)
					name, _ := longhorn.BackupOf(object.Key)
					names = append(names, name)
				}
			}
			for _, name := range names {
				asked.Spec.Targets = append(asked.Spec.Targets, enginev1alpha1.BackupChangeTarget{StorageLocation: "longhorns", StoreName: volume, BackupName: name})
			}
			asked.Spec.History = history
			_, err := w.Engine.BackupChanges(system).Update(t.Context(), asked, metav1.UpdateOptions{})
			must(t, err)
			err = w.deletions.sync(t.Context(), asked.Name)
			if wasLost = h.left <= 0; wasLost {
				// The lock is the last thing to be removed, and expires by itself.
				if done := w.record(asked.Name).Done(); (err == nil) != done || err != nil && !errors.Is(err, errHalfway) {
					t.Errorf("lost at removal %d: %v, and it is done: %t", lostAt, err, done)
				}
				h.left = 1 << 30
				if err != nil {
					err = w.deletions.sync(t.Context(), asked.Name)
				}
			}
			must(t, err)
			if record := w.record(asked.Name); !record.Done() || len(record.Status.Refused) > 0 {
				t.Errorf("lost at removal %d, the record says %+v", lostAt, record.Status)
			}
			all := map[string]bool{}
			for object, err := range h.List(t.Context(), longhorn.VolumePrefix(volume), store.ListOptions{Recursive: true}) {
				must(t, err)
				if _, isLock := longhorn.LockOf(object.Key); !isLock {
					all[object.Key] = true
				}
			}
			return slices.Sorted(maps.Keys(all)), wasLost
		}
		want, _ := deleted(1 << 30)
		if slices.ContainsFunc(want, func(key string) bool { return strings.Contains(key, backup) }) || (len(want) == 0) != history {
			t.Fatalf("left are %q", want)
		}
		for at := 1; ; at += 1 + at/3 {
			left, wasLost := deleted(at)
			if !slices.Equal(left, want) {
				t.Errorf("lost at removal %d, it leaves %q, not %q", at, left, want)
			}
			if !wasLost {
				if at < 4 {
					t.Errorf("it takes %d removals only", at-1)
				}
				break
			}
		}
	}
}
