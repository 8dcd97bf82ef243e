// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"

	eventsv1 "k8s.io/api/events/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// eventWrites bounds concurrent writes of events. A broadcaster writes all at once, maybe thousands, and would
// delay the renewal of a Lease.
const eventWrites = 4

// longestNote bounds the bytes of an event's note; the API allows 1,024.
const longestNote = 1000

type eventSink struct {
	sink  events.EventSink
	slots chan struct{}
}

func init() { utilruntime.Must(enginev1alpha1.AddToScheme(scheme.Scheme)) }

func newBroadcaster(kube kubernetes.Interface) events.EventBroadcaster {
	return events.NewBroadcaster(newEventSink(&events.EventSinkImpl{Interface: kube.EventsV1()}))
}

func newEventSink(sink events.EventSink) *eventSink {
	return &eventSink{sink: sink, slots: make(chan struct{}, eventWrites)}
}

func (s *eventSink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	if len(event.Note) > longestNote {
		event = event.DeepCopy()
		event.Note = strings.ToValidUTF8(event.Note[:longestNote], "")
	}
	return s.write(ctx, func() (*eventsv1.Event, error) { return s.sink.Create(ctx, event) })
}

func (s *eventSink) Update(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	return s.write(ctx, func() (*eventsv1.Event, error) { return s.sink.Update(ctx, event) })
}

func (s *eventSink) Patch(ctx context.Context, event *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	return s.write(ctx, func() (*eventsv1.Event, error) { return s.sink.Patch(ctx, event, data) })
}

func (s *eventSink) write(ctx context.Context, request func() (*eventsv1.Event, error)) (*eventsv1.Event, error) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-s.slots }()
	return request()
}
