// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Doubts returns warnings before a restore: a backup is not trusted, lacks something, or its store lost
// data.
func Doubts(name string, status *v1alpha1.BackupStatus, vouched bool) (doubts []string) {
	if !vouched {
		why := "it is not signed by a cluster that its storage location trusts"
		if status.Origin != nil && status.Origin.Message != "" {
			why = status.Origin.Message
		}
		doubts = append(doubts, fmt.Sprintf("nobody vouches for what is in the backup %q: %s", name, why))
	}
	if status.Phase == v1alpha1.BackupPhasePartiallyFailed {
		about := "it has errors"
		if status.Errors > 0 {
			about = "it lacks what its " + Counted(status.Errors, "error") + " " + isOrAre(status.Errors) + " about"
		}
		doubts = append(doubts, fmt.Sprintf("the backup %q is PartiallyFailed: %s", name, about))
	}
	for _, condition := range status.Conditions {
		if condition.Type == v1alpha1.ConditionVolumesDamaged && condition.Status == metav1.ConditionTrue {
			doubts = append(doubts, fmt.Sprintf("the backup %q is damaged: %s", name, condition.Message))
		}
	}
	return doubts
}

func isOrAre(count int32) string {
	if count == 1 {
		return "is"
	}
	return "are"
}
