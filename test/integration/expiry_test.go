// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// expiring makes a backup of a namespace that is kept for a moment, and waits until its
// record is gone.
func expiring(t *testing.T, namespace string, ttl time.Duration) string {
	t.Helper()
	name := labtest.Name("expiring")
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, TTL: v1alpha1.Duration{Duration: ttl}})
	lab.AwaitCompleted(t, name)
	lab.AwaitRunGone(t, name)
	return name
}

// awaitEvent waits until people have been told something about a backup.
func awaitEvent(t *testing.T, name, reason, want string) {
	t.Helper()
	labtest.Eventually(t, "the event "+reason+" of "+name, func() error {
		out := lab.Kubectl(t, "get", "events", "-n", labtest.System, "--field-selector", "involvedObject.name="+name+",reason="+reason)
		if !strings.Contains(out, want) {
			return fmt.Errorf("there is %s", out)
		}
		return nil
	})
}

// TestExpiry: what has expired goes, but for the last good one of a namespace.
func TestExpiry(t *testing.T) {
	lab.Reconfigure(t, "--expiry-interval=1s --concurrent-backups=2 --run-retention=1s")
	namespace := lab.Namespace(t, "expiring-ns")
	const ttl = 8 * time.Second
	first := expiring(t, namespace, ttl)
	awaitEvent(t, first, "ExpiryKept", "the last good one of the namespace")
	if out := lab.Kubectl(t, "get", "hfb", first, "-n", labtest.System); !strings.Contains(out, " ago ") {
		t.Errorf("it is shown as %s", out)
	}

	// Another one of less stands in for nothing; one that is as good does.
	mark := lab.AuditMark(t)
	second := expiring(t, namespace, time.Hour)
	if out := lab.Kubectl(t, "get", "hfb", second, "-n", labtest.System); !strings.Contains(out, "EXPIRES") || !strings.Contains(out, " in ") {
		t.Errorf("it is shown as %s", out)
	}
	gone(t, first)
	awaitEvent(t, first, "Expired", "is being deleted")
	var writes []string
	for _, event := range lab.WritesSince(t, mark) {
		if event.ObjectRef != nil && event.ObjectRef.Resource == "backupruns" && event.ObjectRef.Name == first {
			writes = append(writes, event.Verb)
		}
	}
	if len(writes) > 2 {
		t.Errorf("an expiry costs the writes %q", writes)
	}

	// The last one stays when its time is over, until its namespace goes.
	if _, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), second, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	third := expiring(t, namespace, ttl)
	awaitEvent(t, third, "ExpiryKept", "the last good one of the namespace")
	if err := lab.Kube.CoreV1().Namespaces().Delete(t.Context(), namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone(t, third)
	if _, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), second, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		t.Error("a backup whose time is not over has gone")
	}
}

// TestShortLivedBackupsExpireTogether: backups that were to live for less than a day hold up nobody's expiry,
// however many expire at once. What bounds the others needs a day, and is in pkg/controllers/expiry.
func TestShortLivedBackupsExpireTogether(t *testing.T) {
	lab.Reconfigure(t, "--expiry-interval=0") // so that they expire at once
	location, _ := lab.Location(t, "short")
	namespace := lab.Namespace(t, "short-ns")
	var names []string
	for range 3 {
		name := labtest.Name("short")
		lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{
			IncludedNamespaces: []string{namespace}, StorageLocation: location, TTL: v1alpha1.Duration{Duration: time.Second},
		})
		names = append(names, name)
	}
	for _, name := range names {
		lab.AwaitCompleted(t, name)
	}
	last := lab.AwaitCompleted(t, names[2])
	labtest.Eventually(t, "the end of their time", func() error {
		if left := time.Until(last.Status.Expiration.Time); left > 0 {
			return fmt.Errorf("%s is left", left)
		}
		return nil
	})
	lab.Reconfigure(t, "--expiry-interval=1s --keep-last-backup=false")
	labtest.Eventually(t, "all of them to go", func() error {
		for _, name := range names {
			if _, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s: %v", name, err)
			}
		}
		return nil
	})
	record, err := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System).Get(t.Context(), location, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if meta.IsStatusConditionTrue(record.Status.Conditions, enginev1alpha1.ConditionExpiryFrozen) {
		t.Errorf("the location says %+v", record.Status.Conditions)
	}
}

// changeExpiration asks for a change of until when a backup is kept.
func changeExpiration(t *testing.T, name string, body *v1alpha1.BackupExpiration) error {
	t.Helper()
	body.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "BackupExpiration"}
	return lab.Holdfast.HoldfastV1alpha1().RESTClient().Post().Namespace(labtest.System).Resource("backups").Name(name).SubResource("expiration").
		Body(body).Do(t.Context()).Error()
}

// TestHold: what somebody holds neither expires nor can be deleted, whoever dies meanwhile,
// and also if of all records none is left: the store says it.
func TestHold(t *testing.T) {
	lab.Reconfigure(t, "--expiry-interval=1s --keep-last-backup=false --run-retention=1s --max-expired-percent=100")
	namespace := lab.Namespace(t, "held-ns")
	name := expiring(t, namespace, time.Hour)
	hold, release := true, false
	if err := changeExpiration(t, name, &v1alpha1.BackupExpiration{Hold: &hold, Reason: "evidence"}); err != nil {
		t.Fatal(err)
	}
	if out := lab.Kubectl(t, "get", "hfb", name, "-n", labtest.System); !strings.Contains(out, " held ") {
		t.Errorf("right after the request it is shown as %s", out)
	}
	awaitEvent(t, name, "Held", "evidence")
	past := metav1.NewTime(time.Now().Add(-time.Minute))
	if err := changeExpiration(t, name, &v1alpha1.BackupExpiration{Expiration: &past}); err != nil {
		t.Fatal(err)
	}
	awaitEvent(t, name, "ExpirationChanged", "lets the backup expire")

	// All that the cluster knows of it goes.
	changes := lab.Engine.EngineV1alpha1().BackupChanges(labtest.System)
	if err := changes.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{labtest.APIServer, labtest.Controller} {
		if err := lab.Restart(t.Context(), role); err != nil {
			t.Fatal(err)
		}
	}
	labtest.Eventually(t, "the hold after a restart", func() error {
		backup, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if hold := backup.Status.Hold; hold == nil || hold.Reason != "evidence" || backup.Status.ExpirationChanges != 2 || !backup.Status.Expiration.Time.Equal(past.Truncate(time.Second)) {
			return fmt.Errorf("it has %+v", backup.Status)
		}
		return nil
	})
	err := lab.Holdfast.HoldfastV1alpha1().RESTClient().Post().Namespace(labtest.System).Resource("backups").Name(name).SubResource("deletion").
		Body(&v1alpha1.BackupDeletion{}).Do(t.Context()).Error()
	if apierrors.ReasonForError(err) != v1alpha1.StatusReasonBackupState || !strings.Contains(err.Error(), "evidence") {
		t.Errorf("a deletion of it is answered with %v", err)
	}
	// A deletion that is recorded all the same, past what the API server says, removes nothing.
	backup, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	runs := lab.Engine.EngineV1alpha1().BackupRuns(labtest.System)
	if _, err := runs.Create(t.Context(), &enginev1alpha1.BackupRun{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: enginev1alpha1.BackupRunSpec{
			BackupRef: v1alpha1.BackupReference{Namespace: labtest.System, Name: name}, Backup: backup.Spec,
			Deletion: &enginev1alpha1.Deletion{
				Ask:    enginev1alpha1.Ask{Timestamp: metav1.Now()},
				Stored: &enginev1alpha1.StoredBackup{UID: backup.UID, CreationTimestamp: backup.CreationTimestamp},
			},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitEvent(t, name, "DeletionWaiting", "is held")
	if err := changeExpiration(t, name, &v1alpha1.BackupExpiration{Hold: &release}); err != nil {
		t.Fatal(err)
	}
	gone(t, name)
}

// TestExpirationIsChanged: what was to go stays until the new time, and then goes.
func TestExpirationIsChanged(t *testing.T) {
	lab.Reconfigure(t, "--expiry-interval=1s --keep-last-backup=false --run-retention=1s --max-expired-percent=100")
	name := expiring(t, lab.Namespace(t, "extended-ns"), time.Hour)
	for _, years := range []int{5, -1} {
		at := metav1.NewTime(time.Now().AddDate(years, 0, 0).Truncate(time.Second))
		if err := changeExpiration(t, name, &v1alpha1.BackupExpiration{Expiration: &at}); err != nil {
			t.Fatal(err)
		}
		if years < 0 {
			break
		}
		backup, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || !backup.Status.Expiration.Equal(&at) {
			t.Errorf("it expires at %v, %v", backup.Status.Expiration, err)
		}
	}
	gone(t, name)
	awaitEvent(t, name, "Expired", "is being deleted")
}
