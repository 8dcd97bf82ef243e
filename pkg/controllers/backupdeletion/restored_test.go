// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupdeletion

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
)

// TestWhileItIsRestored: a backup is not deleted while a restore reads it, or is to, and is
// when that has ended. Restores of others hold nothing up.
func TestWhileItIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, t.TempDir())
		restores := w.EngineV1alpha1().RestoreRuns(system)
		restore := func(name, of, location string, phase v1alpha1.RestorePhase) *enginev1alpha1.RestoreRun {
			run := &enginev1alpha1.RestoreRun{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: system}}
			run.Spec.Backup.StoreName, run.Spec.Backup.StorageLocation, run.Spec.Backup.UID = of, location, uidOf("a")
			run.Status.Phase = phase
			created, err := restores.Create(t.Context(), run, metav1.CreateOptions{})
			must(t, err)
			return created
		}
		location := completed("a").Spec.Backup.StorageLocation
		reading := restore("reads-it", "a", location, v1alpha1.RestorePhaseQueued)
		restore("another", "b", location, v1alpha1.RestorePhaseInProgress)
		restore("elsewhere", "a", "other", v1alpha1.RestorePhaseInProgress)
		restore("ended", "a", location, v1alpha1.RestorePhaseCompleted)
		ofEarlier := restore("of-an-earlier-one", "a", location, v1alpha1.RestorePhaseInProgress)
		ofEarlier.Spec.Backup.UID = uidOf("earlier")
		_, err := restores.Update(t.Context(), ofEarlier, metav1.UpdateOptions{})
		must(t, err)

		writeBackup(t, w.faulty, "a", uidOf("a"))
		w.Create(completed("a"))
		w.start()
		time.Sleep(time.Hour)
		synctest.Wait()
		if run := w.run("a"); run == nil || len(w.keys("a")) == 0 || !strings.Contains(run.Status.FailureReason, "waits for a restore of the backup to end") {
			t.Fatalf("the record is %v, and there is %q", run, w.keys("a"))
		}
		reading.Status.Phase = v1alpha1.RestorePhaseCancelled
		_, err = restores.Update(t.Context(), reading, metav1.UpdateOptions{})
		must(t, err)
		time.Sleep(lastRetry)
		synctest.Wait()
		if w.run("a") != nil || len(w.keys("a")) != 0 {
			t.Errorf("there are still the record %v and %q", w.run("a"), w.keys("a"))
		}
	})
}

// TestWhatIsNotKnown: while the cluster does not say whether somebody holds a backup or reads it,
// nothing of it goes.
func TestWhatIsNotKnown(t *testing.T) {
	for resource, verb := range map[string]string{"backupchanges": "get", "expirationchanges": "get", "restoreruns": "list"} {
		t.Run(resource, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, t.TempDir())
				w.Fault(func(action clienttesting.Action) enginetest.Fault {
					if action.Matches(verb, resource) {
						return enginetest.Fault{Err: errors.New("it is denied")}
					}
					return enginetest.Fault{}
				})
				writeBackup(t, w.faulty, "a", uidOf("a"))
				before := len(w.keys("a"))
				w.Create(completed("a"))
				w.start()
				time.Sleep(time.Hour)
				synctest.Wait()
				if w.run("a") == nil || len(w.keys("a")) != before {
					t.Fatalf("the record is %v, and there is %q", w.run("a"), w.keys("a"))
				}
				w.Fault(nil)
				time.Sleep(lastRetry)
				synctest.Wait()
				if w.run("a") != nil || len(w.keys("a")) != 0 {
					t.Errorf("there are still the record %v and %q", w.run("a"), w.keys("a"))
				}
			})
		})
	}
}
