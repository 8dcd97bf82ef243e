// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// That the store has lost data of a backup is to be known before it is restored.
func TestDoubtsOfDamage(t *testing.T) {
	status := &v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, Conditions: []metav1.Condition{{
		Type: v1alpha1.ConditionVolumesDamaged, Status: metav1.ConditionTrue, Message: "1 of its volumes can't be restored in full",
	}}}
	if doubts := Doubts("daily", status, true); len(doubts) != 1 || !strings.Contains(doubts[0], `"daily" is damaged: 1 of its volumes`) {
		t.Errorf("the doubts are %q", doubts)
	}
	status.Conditions[0].Status = metav1.ConditionFalse
	if doubts := Doubts("daily", status, true); len(doubts) != 0 {
		t.Errorf("of a backup that is whole the doubts are %q", doubts)
	}
}
