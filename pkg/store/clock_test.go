// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// dated is a store of S3 with a clock of its own; a zero one tells no time.
func dated(t *testing.T, theirs time.Time) *store.Bucket {
	t.Helper()
	location, secret := storetest.FakeS3(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Date"] = nil
			if !theirs.IsZero() {
				w.Header().Set("Date", theirs.UTC().Format(http.TimeFormat))
			}
			next.ServeHTTP(w, r)
		})
	})
	return storetest.Open(t, location, secret)
}

// A clock is compared with the store's, in both directions.
func TestCheckClock(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *store.Bucket{
		"folder": func(t *testing.T) *store.Bucket { return storetest.Filesystem(t) },
		"s3":     func(t *testing.T) *store.Bucket { return dated(t, time.Now()) },
	} {
		t.Run(name, func(t *testing.T) {
			bucket := open(t)
			for _, ahead := range []time.Duration{0, store.MostClockDifference - time.Minute, time.Minute - store.MostClockDifference} {
				if err := bucket.CheckClock(t.Context(), clocktesting.NewFakePassiveClock(time.Now().Add(ahead))); err != nil {
					t.Errorf("a clock that is ahead by %s: %v", ahead, err)
				}
			}
			for ahead, says := range map[time.Duration]string{2 * time.Hour: "ahead of", -26 * time.Hour: "behind"} {
				err := bucket.CheckClock(t.Context(), clocktesting.NewFakePassiveClock(time.Now().Add(ahead)))
				if !errors.Is(err, store.ErrClock) || errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), says) {
					t.Errorf("a clock that is ahead by %s: %v", ahead, err)
				}
			}
			if err := drain(bucket.List(t.Context(), "", store.ListOptions{Recursive: true, Unfinished: true})); err != nil {
				t.Error(err)
			}
			for object := range bucket.List(t.Context(), "", store.ListOptions{Recursive: true, Unfinished: true}) {
				t.Errorf("the question has left %s", object.Key)
			}
		})
	}
	// What tells no time can't be asked.
	year := clocktesting.NewFakePassiveClock(time.Now().Add(365 * 24 * time.Hour))
	for name, bucket := range map[string]*store.Bucket{"memory": storetest.Memory(t), "s3 without a Date": dated(t, time.Time{})} {
		if err := bucket.CheckClock(t.Context(), year); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	folder := filepath.Join(t.TempDir(), "gone")
	must(t, os.Mkdir(folder, 0o700))
	bucket := storetest.Open(t, filesystem(folder), nil)
	must(t, os.Remove(folder))
	if err := bucket.CheckClock(t.Context(), year); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a store that is not there: %v", err)
	}
}

// An answer that takes long is no difference of clocks.
func TestCheckClockOfASlowStore(t *testing.T) {
	now := time.Now()
	steps := &stepping{now: now, step: time.Hour}
	if err := dated(t, now.Add(30*time.Minute)).CheckClock(t.Context(), steps); err != nil {
		t.Error(err)
	}
}

// stepping is a clock on which time passes between two looks.
type stepping struct {
	now  time.Time
	step time.Duration
}

func (s *stepping) Now() time.Time {
	now := s.now
	s.now = now.Add(s.step)
	return now
}

func (s *stepping) Since(t time.Time) time.Duration { return s.now.Sub(t) }
