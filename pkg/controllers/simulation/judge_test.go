// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// What is counted.
const (
	queueTried    = "writes of the queue, tried"
	queueFaulty   = "writes of the queue, lost or refused by the network"
	queueRefused  = "writes of the queue, refused by the cluster"
	queueLate     = "writes of the queue, refused when another process was elected"
	ticketWrites  = "tickets"
	startWrites   = "changes of the ledger with starts"
	otherWrites   = "other changes of the ledger by the queue"
	endWrites     = "ends in the queue"
	starts        = "starts"
	returns       = "starts to take back"
	outages       = "locations that became unavailable"
	unclaimed     = "starts taken back, or lost with the ledger"
	givenBack     = "claims given back"
	executedAgain = "executions of runs that were left behind"
	takeovers     = "leaders"
	lostLeases    = "processes that lost the Lease"
	deletedByHand = "runs deleted by hand"
	cancelledRuns = "runs cancelled"
	touched       = "runs and ledgers annotated"
	ledgersLost   = "ledgers deleted by hand"
)

// judge tells what became of it all.
func (w *world) judge() {
	r := w.referee
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, violation := range r.violations {
		w.Error(violation)
	}
	if w.Failed() {
		return
	}
	phases := map[string]map[v1alpha1.BackupPhase]int{"backups": {}, "restores": {}}
	for uid, t := range r.runs {
		class := "backups"
		if t.restore {
			class = "restores"
		}
		if t.deleted && !t.phase.Ended() {
			phases[class]["removed"]++
			continue
		}
		phases[class][t.phase]++
		if t.ends != 1 {
			w.Errorf("%s is %q and has ended %d times", t.name, t.phase, t.ends)
		}
		// The end of a restore whose store was away is stored late, or never if its process has
		// ended meanwhile: what another one had stored before is not known to the record then.
		if stored, ok := w.stored[uid]; ok && t.phase != stored && (t.stored || !t.restore) {
			w.Errorf("%s has ended %s, and %s is stored", t.name, t.phase, stored)
		}
	}
	w.judgeWrites()
	for _, start := range r.ledger {
		if start.Name != "last" { // the next start would remove that
			w.Errorf("%s is left in the ledger", start.Name)
		}
	}
	var report strings.Builder
	for _, what := range slices.Sorted(maps.Keys(r.counts)) {
		fmt.Fprintf(&report, "\n%7d %s", r.counts[what], what)
	}
	w.Logf("%d backups and restores in %s by %d processes, at most %d waited, ended as %v%s", len(r.runs), time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Round(time.Second), w.launched, r.mostWaiting, phases, report.String())
}

// judgeWrites bounds what the queue has written: a ticket and a start for each
// backup, a start again when one was taken back, an end when it was cancelled, its name
// for each leader, and two for a ledger that was lost. Next to nothing is refused, though
// caches may be stale, but for what is late, and what meets a start that is taken back.
func (w *world) judgeWrites() {
	n, total := w.referee.counts, len(w.referee.runs)
	for _, bound := range []struct {
		what      string
		got, most int
	}{
		{"accepted", n[ticketWrites] + n[startWrites] + n[otherWrites] + n[endWrites], 2*total + n[returns] + n[unclaimed] + n[takeovers] + n[cancelledRuns] + 2*n[ledgersLost]},
		{"tried", n[queueTried], n[ticketWrites] + n[startWrites] + n[otherWrites] + n[endWrites] + n[queueFaulty] + n[queueRefused]},
		{"refused in time", n[queueRefused] - n[queueLate], 20 + total*6/1000 + n[ledgersLost] + 3*n[returns]},
		{"refused too late", n[queueLate], 10 * n[takeovers]},
		{"taking back what was let start meanwhile", n[returns], 2 * limit * n[outages]},
		{"taking back what was not to be", n[unclaimed], n[returns] + limit*n[ledgersLost]},
	} {
		if bound.got > bound.most {
			w.Errorf("%d writes of the queue were %s, want %d at most", bound.got, bound.what, bound.most)
		}
	}
}

func (w *world) dump() {
	w.referee.mu.Lock()
	defer w.referee.mu.Unlock()
	for uid, t := range w.referee.left {
		w.Logf("%s %+v %+v", uid, *t, w.referee.ledger[uid])
	}
}
