// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package waits records, by the work's context, what a backup or restore waits for. Texts should be
// stable: each change may be a write of the run's record.
package waits

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/format"
)

const longer = 3 * time.Second

// Waits are a run's present waits. They are safe for concurrent use.
type Waits struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	current map[*Wait]struct{}
}

// New returns Waits of a run that waits for nothing.
func New(clock clock.PassiveClock) *Waits {
	return &Waits{clock: clock, current: map[*Wait]struct{}{}}
}

// Wait is one wait.
type Wait struct {
	of    *Waits
	since time.Time
	// anyone: every reader of the run may see it; else only readers of namespace.
	anyone    bool
	namespace string
	text      string
}

type contextKey struct{}

// With returns a context for work whose waits are recorded.
func With(ctx context.Context, waits *Waits) context.Context {
	return context.WithValue(ctx, contextKey{}, waits)
}

// For records a wait for something in a namespace, until End. Without Waits in the context it does
// nothing.
func For(ctx context.Context, namespace, text string) *Wait {
	return begin(ctx, Wait{namespace: namespace, text: text})
}

// ForAnyone is For without a restriction of readers.
func ForAnyone(ctx context.Context, text string) *Wait {
	return begin(ctx, Wait{anyone: true, text: text})
}

func begin(ctx context.Context, w Wait) *Wait {
	waits, _ := ctx.Value(contextKey{}).(*Waits)
	if waits == nil {
		return nil
	}
	w.of, w.since = waits, waits.clock.Now()
	waits.mu.Lock()
	defer waits.mu.Unlock()
	waits.current[&w] = struct{}{}
	return &w
}

// Set replaces the text. "" leaves it.
func (w *Wait) Set(text string) {
	if w == nil || text == "" {
		return
	}
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	w.text = text
}

// End notes that the wait is over.
func (w *Wait) End() {
	if w == nil {
		return
	}
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	delete(w.of.current, w)
}

// Line returns a run's waits in one line, the longest first. A tenant's names only its own namespace,
// and counts the rest.
func (w *Waits) Line(namespace, systemNamespace string) string {
	if w == nil {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var waiting []*Wait
	for wait := range w.current {
		if w.clock.Since(wait.since) >= longer {
			waiting = append(waiting, wait)
		}
	}
	slices.SortFunc(waiting, func(a, b *Wait) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.text, b.text)) })
	told, seen := format.NewTold(namespace, systemNamespace), map[string]bool{}
	for _, wait := range waiting {
		if seen[wait.text] {
			continue // several wait for the same thing
		}
		seen[wait.text] = true
		if wait.anyone {
			told.AddAny(wait.text, true)
		} else {
			told.Add(wait.namespace, wait.text)
		}
	}
	if told.Len() == 0 {
		return ""
	}
	return "waits for " + told.String()
}
