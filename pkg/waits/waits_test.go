// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package waits

import (
	"context"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// TestLine shows that a run tells what it waits for longer than a moment, the longest wait first,
// and a tenant's nothing of other namespaces.
func TestLine(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	waits := New(clock)
	ctx := With(context.Background(), waits)
	want := func(namespace, line string) {
		t.Helper()
		if got := waits.Line(namespace, "holdfast"); got != line {
			t.Errorf("in %s it says %q, want %q", namespace, got, line)
		}
	}
	want("holdfast", "")
	first := For(ctx, "bank", "pod b in bank")
	want("holdfast", "")
	clock.Step(longer)
	want("holdfast", "waits for pod b in bank")
	want("shop", "waits for 1 not named here")
	clock.Step(time.Second)
	second := For(ctx, "shop", "pod a in shop")
	For(ctx, "shop", "pod a in shop")
	whole := ForAnyone(ctx, "its store")
	clock.Step(longer)
	want("holdfast", "waits for pod b in bank; its store; pod a in shop")
	want("shop", "waits for its store; pod a in shop; and 1 more")
	first.Set("pod b in bank: no node")
	first.Set("")
	whole.End()
	want("holdfast", "waits for pod b in bank: no node; pod a in shop")
	first.End()
	second.End()
	want("bank", "waits for 1 not named here")
}

// TestNoWaits shows that work whose waits nobody notes goes on all the same.
func TestNoWaits(t *testing.T) {
	wait := For(context.Background(), "shop", "pod a")
	wait.Set("pod b")
	wait.End()
	if got := (*Waits)(nil).Line("shop", "holdfast"); got != "" {
		t.Errorf("it says %q", got)
	}
}
