// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
