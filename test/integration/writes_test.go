// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// most is how many writes a backup may cost.
const most = 10

// TestWritesPerBackup counts the writes to Kubernetes from the creation of tiny
// backups to the removal of their records: all those of Holdfast's own users, be
// they refused or not, events, and the creation by the user. Leases are not
// counted, since they are renewed whether there are backups or not. However many
// wait, each costs the same.
func TestWritesPerBackup(t *testing.T) {
	few := writesPerBackup(t, 5)
	many := writesPerBackup(t, 100)
	t.Logf("writes per backup: %.2f with 5 in the queue, %.2f with 100", few, many)
	// One write more for each backup is 1. Now and then a single one meets another, and is
	// made again. A cost that grows with the queue is far beyond that, too.
	const ofFew, ofMany = 0.9, 0.1
	if few > most+ofFew || many > most+ofMany {
		t.Errorf("a backup costs %.2f writes with 5 in the queue and %.2f with 100, more than %d", few, many, most)
	}
	if math.Abs(few-many) > ofFew {
		t.Errorf("a backup costs %.2f writes with 5 in the queue, and %.2f with 100", few, many)
	}
}

// writesPerBackup is the mean for n backups that wait together and then drain.
func writesPerBackup(t *testing.T, n int) float64 {
	t.Helper()
	namespace := lab.Namespace(t, "tiny-ns")
	var held []string
	var release []func()
	for range slots {
		h := lab.Hold(t, labtest.Name("held"))
		held = append(held, h.Name)
		release = append(release, func() { h.Release(t); lab.AwaitRunGone(t, h.Name) })
	}
	labtest.Eventually(t, "the records of other tests to be gone", func() error {
		list, err := lab.Engine.EngineV1alpha1().BackupRuns(labtest.System).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		// Those of which nothing is stored are kept for a day, and are written no more.
		passing := slices.DeleteFunc(list.Items, func(run enginev1alpha1.BackupRun) bool {
			return run.Status.Phase.Ended() && !run.Status.Stored
		})
		if len(passing) != len(held) {
			return fmt.Errorf("there are %d", len(passing))
		}
		return nil
	})
	mark := lab.AuditMark(t)
	var tiny []string
	for range n {
		name := labtest.Name("tiny")
		lab.Backup(t, name, namespace)
		tiny = append(tiny, name)
	}
	for _, name := range tiny {
		lab.AwaitPhase(t, labtest.System, name, v1alpha1.BackupPhaseQueued)
	}
	for _, f := range release {
		f()
	}
	for _, name := range tiny {
		lab.AwaitCompleted(t, name)
		lab.AwaitRunGone(t, name)
	}
	// The log, and events, come a moment after what they are about.
	var writes map[string]int
	labtest.Eventually(t, "the audit log to be complete", func() error {
		before := writes
		writes = count(lab.WritesSince(t, mark), held)
		if writes["delete backupruns"] < n || !maps.Equal(before, writes) {
			return fmt.Errorf("so far it has %v", writes)
		}
		return nil
	})
	t.Logf("%d backups: %v", n, writes)
	sum := 0
	for _, number := range writes {
		sum += number
	}
	return float64(sum) / float64(n)
}

// count counts writes by verb and resource, without those for the backups that
// were held.
func count(writes []auditv1.Event, held []string) map[string]int {
	counts := map[string]int{}
	for _, write := range writes {
		ref := write.ObjectRef
		created := ref.APIGroup == v1alpha1.GroupName && write.Verb == "create" // by the user
		switch {
		case !created && !strings.HasPrefix(write.User.Username, "system:serviceaccount:"+labtest.System): // and of the agents' namespace
		case slices.ContainsFunc(held, func(name string) bool {
			// Events and VolumeUploads have names that begin with the backup's.
			return ref.Name == name || strings.HasPrefix(ref.Name, name+"-") || strings.HasPrefix(ref.Name, name+".")
		}):
		case ref.Resource == "volumeuploads" && write.Verb == "deletecollection":
			// Only the held ones have volumes.
		case ref.Resource == "volumerepositories" && write.Verb == "update":
			// The same; one of another test may just have lost its store.
		case ref.Resource == "scheduleentries":
			// No schedule makes these backups; those of the tests before go with their namespaces.
		default:
			counts[strings.TrimSuffix(write.Verb+" "+ref.Resource+"/"+ref.Subresource, "/")]++
		}
	}
	return counts
}
