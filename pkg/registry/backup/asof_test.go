// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestALocationAsOfATimeTakesNoBackup: a backup there is refused with the reason, and so is the
// deletion of one, with the next step.
func TestALocationAsOfATimeTakesNoBackup(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 11, 27, 10, 0, 0, 0, time.UTC))
	before := &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "before"},
		Spec:       enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderS3, S3: &enginev1alpha1.S3Location{Bucket: "backups", AsOf: &at}},
	}
	h := newHarness(t, nil, before)
	_, err := h.create(&v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "daily"}, Spec: v1alpha1.BackupSpec{StorageLocation: "before"}})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "as of 2026-11-27T10:00:00Z, and nothing is written there") {
		t.Errorf("creation: %v", err)
	}
	h.storedOnly(&v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "daily@before", UID: "1"},
		Spec:       v1alpha1.BackupSpec{StorageLocation: "before"},
		Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted},
	})
	if _, err := h.delete("daily@before"); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "kubectl delete storagelocation before -n "+system) {
		t.Errorf("deletion: %v", err)
	}
}
