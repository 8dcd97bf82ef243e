// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
)

type entry = *v1alpha1.BackupQueueEntry

// QueueResource is backupqueues: the unfinished backups and restores.
var QueueResource = virtual.Resource[entry]{
	GroupResource: v1alpha1.Resource("backupqueues"),
	Singular:      "backupqueue",
	ShortNames:    []string{"hfq", "bq"},
	Categories:    []string{"holdfast"},
	Namespaced:    true,
	Object:        &v1alpha1.BackupQueueEntry{},
	List:          &v1alpha1.BackupQueueEntryList{},
	Fields: map[string]func(entry) string{
		"spec.kind":            entryKind,
		"spec.storageLocation": entryLocation,
		"spec.requester":       entryRequester,
		"status.state":         entryState,
		"status.reason":        entryReason,
	},
	Columns: []virtual.Column[entry]{
		virtual.Text("Pos", "Place among those that wait, in the whole cluster: restores first.", func(e entry) string {
			if e.Status.Position == 0 {
				return ""
			}
			return fmt.Sprint(e.Status.Position)
		}),
		virtual.Name[entry](),
		virtual.Text("Kind", "Backup or Restore.", entryKind),
		virtual.Text("State", "Running, Ready or Queued.", entryState),
		virtual.Text("Reason", "Why it waits, or its volumes do.", entryReason),
		virtual.Text("Blocked-By", "What it waits for.", entryBlockers),
		virtual.Timed("Since", "How long it has been waiting, or running.", func(e entry, now time.Time) string {
			return virtual.Since(e.Status.Since, now)
		}),
		virtual.Wide(virtual.Text("Namespaces", "The namespaces that a backup includes, or a restore writes to.", entryNamespaces)),
		virtual.Wide(virtual.Text("Conflict", "The namespaces that it shares with those it waits for.", func(e entry) string {
			return strings.Join(e.Status.ConflictNamespaces, ",")
		})),
		virtual.Wide(virtual.Text("Slots", "How many of its kind run in the whole cluster, of how many that may; for one that does.", func(e entry) string {
			if e.Status.SlotLimit == 0 {
				return ""
			}
			return fmt.Sprintf("%d/%d", e.Status.SlotsInUse, e.Status.SlotLimit)
		})),
		virtual.Wide(virtual.Text("Absent-Agents", "The nodes whose agents it waits for, though nothing is seen of them.", func(e entry) string {
			return strings.Join(e.Status.AbsentAgents, ",")
		})),
		virtual.Wide(virtual.Text("Location", "The storage location.", entryLocation)),
		virtual.Wide(virtual.Text("Requester", "Who asked for it.", entryRequester)),
	},
	Compare: compareEntries,
}

func entryKind(e entry) string      { return e.Spec.Kind }
func entryLocation(e entry) string  { return e.Spec.StorageLocation }
func entryRequester(e entry) string { return e.Spec.Requester }
func entryState(e entry) string     { return string(e.Status.State) }
func entryReason(e entry) string    { return string(e.Status.Reason) }

func entryNamespaces(e entry) string {
	spec := &e.Spec
	included := "*"
	if len(spec.IncludedNamespaces) > 0 {
		included = strings.Join(spec.IncludedNamespaces, ",")
	}
	if len(spec.ExcludedNamespaces) > 0 {
		included += " except " + strings.Join(spec.ExcludedNamespaces, ",")
	}
	return included
}

// entryBlockers names blockers, and other namespaces, and counts the secret ones.
func entryBlockers(e entry) string {
	var names []string
	for _, blocker := range e.Status.Blockers {
		name := blocker.Name
		if blocker.Namespace != e.Namespace {
			name = blocker.Namespace + "/" + name
		}
		if blocker.Kind == "Restore" {
			name = "restore:" + name
		}
		names = append(names, name)
	}
	switch others := e.Status.OtherBlockers; {
	case others == 1:
		names = append(names, "another")
	case others > 1:
		names = append(names, fmt.Sprintf("%d others", others))
	}
	return strings.Join(names, ",")
}

func compareEntries(a, b entry) int {
	return cmp.Or(
		cmp.Compare(entryRank(a), entryRank(b)),
		cmp.Compare(a.Status.Position, b.Status.Position),
		compareTimes(a.Status.Since, b.Status.Since),
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
	)
}

func entryRank(e entry) int {
	switch e.Status.State {
	case v1alpha1.QueueStateRunning:
		return 0
	case v1alpha1.QueueStateReady:
		return 1
	}
	return 2
}

func compareTimes(a, b *metav1.Time) int {
	switch {
	case a.Equal(b):
		return 0
	case a.Before(b):
		return -1
	}
	return 1
}
