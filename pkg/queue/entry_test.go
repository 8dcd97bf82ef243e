// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// The size of an entry does not follow that of the cluster, and it says so when it
// leaves something out, and only then.
func TestConflictsAreBounded(t *testing.T) {
	for shared, shown := range map[int]int{maxConflicts - 1: maxConflicts - 1, maxConflicts: maxConflicts, maxConflicts + 1: maxConflicts, 100: maxConflicts} {
		var words []string
		for i := range shared {
			words = append(words, fmt.Sprintf("ns-%03d", i))
		}
		p, err := NewPlanner(2)
		if err != nil {
			t.Fatal(err)
		}
		p.SetLocations(map[string]LocationState{"default": {Available: true}})
		for i, phase := range []v1alpha1.BackupPhase{v1alpha1.BackupPhaseInProgress, v1alpha1.BackupPhaseQueued} {
			p.Update(Run{UID: types.UID(fmt.Sprint(i)), Name: fmt.Sprint(i), Namespace: systemNamespace, Phase: phase, Ticket: int64(i + 1), Location: "default", Selection: selected(t, words...)})
		}
		e, _ := p.Entry("1")
		if e.Reason != v1alpha1.QueueReasonNamespaceOverlap || len(e.ConflictNamespaces) != shown || e.MoreConflicts != (shared > shown) {
			t.Errorf("of %d shared namespaces %d are shown, more: %v", shared, len(e.ConflictNamespaces), e.MoreConflicts)
		}
	}
}

// The namespaces that exist may be told in any order.
func TestConflictsAreSorted(t *testing.T) {
	p, err := NewPlanner(2)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("ns-%03d", i*37%100))
	}
	p.SetNamespaces(names)
	p.SetLocations(map[string]LocationState{"default": {Available: true}})
	for i, phase := range []v1alpha1.BackupPhase{v1alpha1.BackupPhaseInProgress, v1alpha1.BackupPhaseQueued} {
		p.Update(Run{UID: types.UID(fmt.Sprint(i)), Name: fmt.Sprint(i), Namespace: systemNamespace, Phase: phase, Ticket: int64(i + 1), Location: "default", Selection: selected(t, "ns-*")})
	}
	e, _ := p.Entry("1")
	if got := e.ConflictNamespaces; len(got) != maxConflicts || got[0] != "ns-000" || got[maxConflicts-1] != fmt.Sprintf("ns-%03d", maxConflicts-1) || names[1] != "ns-037" {
		t.Errorf("shown: %q", got)
	}
}
