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
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, TTL: metav1.Duration{Duration: ttl}})
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
	if out := lab.Kubectl(t, "get", "hfb", first, "-n", labtest.System); !strings.Contains(out, "EXPIRES") || !strings.Contains(out, " in ") {
		t.Errorf("it is shown as %s", out)
	}
	awaitEvent(t, first, "ExpiryKept", "the last good one of the namespace")
	if out := lab.Kubectl(t, "get", "hfb", first, "-n", labtest.System); !strings.Contains(out, " ago ") {
		t.Errorf("it is shown as %s", out)
	}

	// Another one of less stands in for nothing; one that is as good does.
	mark := lab.AuditMark(t)
	second := expiring(t, namespace, time.Hour)
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

// TestExpiryIsFrozen: when all that a location has expires at once, none does until
// somebody accepts it as the location's condition says, also after a restart.
func TestExpiryIsFrozen(t *testing.T) {
	lab.Reconfigure(t, "--expiry-interval=0") // so that they expire at once
	location, _ := lab.Location(t, "frozen")
	namespace := lab.Namespace(t, "frozen-ns")
	var names []string
	for range 3 {
		name := labtest.Name("frozen")
		lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{
			IncludedNamespaces: []string{namespace}, StorageLocation: location, TTL: metav1.Duration{Duration: time.Second},
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
	said := func() string {
		record, err := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System).Get(t.Context(), location, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		condition := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionExpiryFrozen)
		if condition == nil || condition.Status != metav1.ConditionTrue {
			return ""
		}
		return condition.Message
	}
	labtest.Eventually(t, "the condition ExpiryFrozen", func() error {
		if said() == "" {
			return fmt.Errorf("it is not there")
		}
		return nil
	})
	if err := lab.Restart(t.Context(), labtest.Controller); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, command, ok := strings.Cut(said(), "kubectl ")
	if !ok {
		t.Fatalf("it says %q", said())
	}
	lab.Kubectl(t, strings.Fields(command)...)
	labtest.Eventually(t, "what was accepted to go", func() error {
		for _, name := range names {
			if _, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s: %v", name, err)
			}
		}
		return nil
	})
}
