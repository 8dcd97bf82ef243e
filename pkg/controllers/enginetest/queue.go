// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// LedgerObject is the ConfigMap of the ledger, which must exist.
func (c *Cluster) LedgerObject(t *testing.T, namespace string) *corev1.ConfigMap {
	t.Helper()
	ledger, err := c.Kube.CoreV1().ConfigMaps(namespace).Get(t.Context(), records.LedgerName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ledger
}

// Ledger are the entries of the ledger, which must be readable.
func (c *Cluster) Ledger(t *testing.T, namespace string) []records.Start {
	t.Helper()
	starts, err := records.Ledger(c.LedgerObject(t, namespace))
	if err != nil {
		t.Fatal(err)
	}
	return starts
}

// WriteLedger replaces the entries of the ledger, and makes it if there is none.
func (c *Cluster) WriteLedger(t *testing.T, namespace string, starts ...records.Start) {
	t.Helper()
	configMaps := c.Kube.CoreV1().ConfigMaps(namespace)
	ledger, err := configMaps.Get(t.Context(), records.LedgerName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		ledger, err = configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: records.LedgerName}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	if ledger, err = records.WithLedger(ledger, starts); err != nil {
		t.Fatal(err)
	}
	if _, err = configMaps.Update(t.Context(), ledger, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// Told returns the events that were recorded so far, and forgets them.
func Told(recorder *events.FakeRecorder) (all []string) {
	for {
		select {
		case event := <-recorder.Events:
			all = append(all, event)
		default:
			return all
		}
	}
}
