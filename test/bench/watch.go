// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned/scheme"
	"github.com/holdfast-io/holdfast/pkg/registry/projection"
)

// queueWatch are watches of the whole queue, from one version on.
type queueWatch struct {
	clients []*watchClient
	entries int // at that version
}

// watchClient is what one of them was told.
type watchClient struct {
	stream io.ReadCloser

	mu          sync.Mutex
	err         error
	positions   map[types.NamespacedName]int // 0 for what runs or is ready
	events      int
	bytes       int64
	first, last time.Time
	// gone is when an entry was seen to go.
	gone map[types.NamespacedName]time.Time
}

// watchQueue starts n watches, which go on until ctx ends.
func (l *lab) watchQueue(ctx context.Context, n int) (*queueWatch, error) {
	list, err := l.pages(ctx)
	if err != nil {
		return nil, err
	}
	result := &queueWatch{entries: len(list.entries)}
	for range n {
		stream, err := l.holdfast.HoldfastV1alpha1().RESTClient().Get().Resource("backupqueues").
			VersionedParams(&metav1.ListOptions{Watch: true, ResourceVersion: list.version}, scheme.ParameterCodec).
			SetHeader("Accept", "application/json").Stream(ctx)
		if err != nil {
			return nil, err
		}
		c := &watchClient{stream: stream, positions: list.positions(), gone: map[types.NamespacedName]time.Time{}}
		result.clients = append(result.clients, c)
		go c.follow()
	}
	return result, nil
}

func (l *listing) positions() map[types.NamespacedName]int {
	positions := make(map[types.NamespacedName]int, len(l.entries))
	for _, entry := range l.entries {
		positions[entry.key()] = entry.Status.Position
	}
	return positions
}

// follow reads the stream until it ends.
func (c *watchClient) follow() {
	defer c.stream.Close()
	decoder := json.NewDecoder(c.stream)
	for {
		var event struct {
			Type   watch.EventType
			Object queueEntry
		}
		err := decoder.Decode(&event)
		now := time.Now()
		c.mu.Lock()
		if err == nil && event.Type == watch.Error {
			err = errors.New("the server ended it")
		}
		if err != nil {
			c.err = fmt.Errorf("the watch of the queue broke off: %w", err)
			c.mu.Unlock()
			return
		}
		if c.events == 0 {
			c.first = now
		}
		c.events++
		c.last, c.bytes = now, decoder.InputOffset()
		key := event.Object.key()
		if event.Type == watch.Deleted {
			delete(c.positions, key)
			c.gone[key] = now
		} else {
			c.positions[key] = event.Object.Status.Position
		}
		c.mu.Unlock()
	}
}

// settle waits until the watches are told nothing more.
func (w *queueWatch) settle(ctx context.Context) error {
	began := time.Now()
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, 5*time.Minute, true, func(context.Context) (bool, error) {
		for _, c := range w.clients {
			c.mu.Lock()
			err, last := c.err, c.last
			c.mu.Unlock()
			if err != nil {
				return false, err
			}
			if time.Since(last) < settled || time.Since(began) < settled {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("waiting until the queue does not change any more: %w", err)
	}
	return nil
}

// judge says what the watches have cost, from their begin until nothing could start
// any more, and how late they told of the runs that ended. What they told must be
// what a list shows, and no more events than the bound allows.
func (w *queueWatch) judge(ctx context.Context, l *lab, runs map[string]*progress, began, held time.Time) ([]row, error) {
	list, err := l.pages(ctx)
	if err != nil {
		return nil, err
	}
	shown := list.positions()
	var delays []time.Duration
	var events int
	var sent int64
	var lasted, late time.Duration
	for i, c := range w.clients {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !maps.Equal(c.positions, shown) {
			return nil, fmt.Errorf("watch %d ended with %d entries, and not with the %d that a list shows, or with others or other positions", i+1, len(c.positions), len(shown))
		}
		took := c.last.Sub(c.first)
		fmt.Printf("  watch %d: %d events in %s, %.0f a second, %.1f MB; the last one %s after nothing could start any more\n",
			i+1, c.events, seconds(took), float64(c.events)/took.Seconds(), megabytes(c.bytes), seconds(c.last.Sub(held)))
		if most := bound(took, w.entries); c.events > most {
			return nil, fmt.Errorf("watch %d got %d events in %s, more than %d", i+1, c.events, seconds(took), most)
		}
		events, sent, lasted = max(events, c.events), max(sent, c.bytes), max(lasted, c.last.Sub(began))
		late = max(late, c.last.Sub(held))
		for name, run := range runs {
			gone, ok := c.gone[types.NamespacedName{Namespace: namespace, Name: name}]
			if ok && !run.ended.IsZero() {
				delays = append(delays, gone.Sub(run.ended))
			}
		}
	}
	if len(delays) == 0 {
		return nil, errors.New("no watch was told that a backup had left the queue")
	}
	return []row{
		{fmt.Sprintf("watch of them during a drain, events per watcher in %s", seconds(lasted)), fmt.Sprint(events),
			fmt.Sprintf("bound %d, %d a second", bound(lasted, w.entries), projection.MaxQueueEvents), times(float64(events), float64(bound(lasted, w.entries))) + " of the bound"},
		{"bytes per watcher", fmt.Sprintf("%.1f MB", megabytes(sent)), "", fmt.Sprintf("%.0f per event", float64(sent)/float64(events))},
		{"an ended backup leaves the watchers' queue after", seconds(median(delays)), fmt.Sprintf("the pause is %d s at most", w.entries/projection.MaxQueueEvents), seconds(slices.Max(delays)) + " at most"},
		{"last event after nothing could start any more", seconds(late), "", ""},
	}, nil
}
