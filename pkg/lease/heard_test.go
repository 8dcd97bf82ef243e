// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

// TestUnheard shows that people are told when the Lease of the controllers does not change for
// longer than a takeover takes, whether or not there is one.
func TestUnheard(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	synced := false
	l := &LeaderWatch{clock: clock, seen: sighting{at: clock.Now()}, synced: func() bool { return synced }}
	lease := func(version, holder string) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: LeaderLease, UID: "u", ResourceVersion: version},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
		}
	}
	want := func(since int64) {
		t.Helper()
		got, message := l.Unheard()
		if since == 0 && (!got.IsZero() || message != "") || since != 0 && (got.Unix() != since || message == "") {
			t.Errorf("unheard since %v (%q), want %d", got, message, since)
		}
	}
	clock.Step(unheardAfter)
	want(0) // what there is has not been read
	synced = true
	want(1000)
	l.changed(lease("1", "a"))
	want(0)
	clock.Step(unheardAfter - time.Second)
	l.changed(lease("1", "a")) // again, and unchanged
	want(0)
	clock.Step(time.Second)
	want(1000 + int64(unheardAfter/time.Second))
	l.changed(lease("2", "")) // given back
	want(1000 + int64(unheardAfter/time.Second))
	l.changed(lease("3", "b"))
	want(0)
}
