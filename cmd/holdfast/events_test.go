// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/reference"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// slowSink takes a second for each request.
type slowSink struct {
	mu                        sync.Mutex
	underWay, mostAtOnce, all int
}

func (s *slowSink) request(event *eventsv1.Event) (*eventsv1.Event, error) {
	s.mu.Lock()
	s.underWay++
	s.all++
	s.mostAtOnce = max(s.mostAtOnce, s.underWay)
	s.mu.Unlock()
	time.Sleep(time.Second)
	s.mu.Lock()
	s.underWay--
	s.mu.Unlock()
	return event, nil
}

func (s *slowSink) Create(_ context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	return s.request(event)
}

func (s *slowSink) Update(_ context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	return s.request(event)
}

func (s *slowSink) Patch(_ context.Context, event *eventsv1.Event, _ []byte) (*eventsv1.Event, error) {
	return s.request(event)
}

func TestAFloodOfEventsIsWrittenAFewAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowSink{}
		sink := newEventSink(slow)
		const flood = 100
		for i := range flood {
			go func() {
				event := &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast"}}
				var err error
				switch i % 3 {
				case 0:
					_, err = sink.Create(t.Context(), event)
				case 1:
					_, err = sink.Update(t.Context(), event)
				default:
					_, err = sink.Patch(t.Context(), event, nil)
				}
				if err != nil {
					t.Error(err)
				}
			}()
		}
		time.Sleep(flood * time.Second)
		synctest.Wait()
		if slow.mostAtOnce != eventWrites || slow.all != flood {
			t.Errorf("%d requests of %d, %d of them at once; want %d", slow.all, flood, slow.mostAtOnce, eventWrites)
		}
	})
}

func TestAnEventIsGivenUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowSink{}
		var sink events.EventSink = newEventSink(slow)
		for range eventWrites {
			go func() { _, _ = sink.Create(t.Context(), &eventsv1.Event{}) }()
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := sink.Create(ctx, &eventsv1.Event{}); err == nil {
			t.Error("it was written")
		}
		time.Sleep(time.Second) // the others end
	})
}

// An error may be of any length, and the API refuses a note of more than 1,024 bytes.
func TestALongNoteIsShortened(t *testing.T) {
	long := &eventsv1.Event{Note: strings.Repeat("€", 1500)}
	for _, event := range []*eventsv1.Event{long, {Note: "short"}} {
		synctest.Test(t, func(t *testing.T) {
			written, err := newEventSink(&slowSink{}).Create(t.Context(), event)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(event.Note, written.Note) || !utf8.ValidString(written.Note) || len(written.Note) < min(len(event.Note), 990) || len(written.Note) > 1024 {
				t.Errorf("%d bytes were made %d: %q", len(event.Note), len(written.Note), written.Note)
			}
		})
	}
	if len(long.Note) != 4500 {
		t.Error("the caller's event has changed")
	}
}

// Events are about our own records too.
func TestEventsMayBeAboutRecords(t *testing.T) {
	for _, record := range []runtime.Object{&enginev1alpha1.VolumeUpload{}, &enginev1alpha1.VolumeRestore{}, &enginev1alpha1.StorageLocation{}, &enginev1alpha1.VolumeRepository{}} {
		if of, err := reference.GetReference(scheme.Scheme, record); err != nil || of.Kind == "" {
			t.Errorf("an event about a %T is about %v, %v", record, of, err)
		}
	}
}
