// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/table"
)

var columns = []metav1.TableColumnDefinition{
	table.Column("Pos", "Place among the waiting backups of the whole cluster."),
	table.Name(),
	table.Column("State", "Running, Ready or Queued."),
	table.Column("Reason", "Why the backup waits."),
	table.Column("Blocked-By", "The backups that it waits for."),
	table.Column("Since", "How long it has been waiting, or running."),
	table.Wide(table.Column("Namespaces", "The namespaces that it includes.")),
	table.Wide(table.Column("Conflict", "The namespaces that it shares with those it waits for.")),
	table.Wide(table.Column("Slots", "How many backups run in the whole cluster, of how many that may.")),
	table.Wide(table.Column("Location", "The storage location.")),
	table.Wide(table.Column("Requester", "Who asked for the backup.")),
}

func cells(entry *v1alpha1.BackupQueueEntry, now time.Time) []any {
	position := table.None
	if entry.Status.Position > 0 {
		position = fmt.Sprint(entry.Status.Position)
	}
	return []any{
		position, entry.Name, string(entry.Status.State), table.Text(string(entry.Status.Reason)),
		blockers(entry), table.Since(entry.Status.Since, now),
		namespaces(&entry.Spec), table.Text(strings.Join(entry.Status.ConflictNamespaces, ",")),
		fmt.Sprintf("%d/%d", entry.Status.SlotsInUse, entry.Status.SlotLimit),
		table.Text(entry.Spec.StorageLocation), table.Text(entry.Spec.Requester),
	}
}

func namespaces(spec *v1alpha1.BackupQueueEntrySpec) string {
	included := "*"
	if len(spec.IncludedNamespaces) > 0 {
		included = strings.Join(spec.IncludedNamespaces, ",")
	}
	if len(spec.ExcludedNamespaces) > 0 {
		included += " except " + strings.Join(spec.ExcludedNamespaces, ",")
	}
	return included
}

// blockers names the blockers by name, with the namespace when it is another
// one, and counts those that may not be named.
func blockers(entry *v1alpha1.BackupQueueEntry) string {
	var names []string
	for _, blocker := range entry.Status.Blockers {
		name := blocker.Name
		if blocker.Namespace != entry.Namespace {
			name = blocker.Namespace + "/" + name
		}
		names = append(names, name)
	}
	switch others := entry.Status.OtherBlockers; {
	case others == 1:
		names = append(names, "another backup")
	case others > 1:
		names = append(names, fmt.Sprintf("%d other backups", others))
	}
	return table.Text(strings.Join(names, ","))
}

// compare puts the running above the ready above the queued, and those in order.
func compare(a, b *v1alpha1.BackupQueueEntry) int {
	return cmp.Or(
		cmp.Compare(rank(a), rank(b)),
		cmp.Compare(a.Status.Position, b.Status.Position),
		compareTimes(a.Status.Since, b.Status.Since),
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
	)
}

func rank(entry *v1alpha1.BackupQueueEntry) int {
	switch entry.Status.State {
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
