// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// Limits bound the backups of one namespace; 0 is no limit.
type Limits struct {
	// Waiting is each namespace's limit, except the system namespace's, which is WaitingInSystem.
	Waiting, WaitingInSystem int
	// Stored bounds each namespace's stored backups, except the system namespace's. Unfinished backups are stored
	// all the same.
	Stored int
}

// recordsPerWaiting bounds all records, in multiples of the limit: cancelled ones stay for a day.
const recordsPerWaiting = 10

// CauseTooManyBackups is the cause of a refusal beyond a limit.
const CauseTooManyBackups metav1.CauseType = "TooManyBackups"

func newQuota(config Config) *recorded.Quota {
	return &recorded.Quota{
		Resource: resource, Cause: CauseTooManyBackups, Factor: recordsPerWaiting,
		Limit: func(namespace string) (limit int, flag string) {
			if namespace == config.SystemNamespace {
				return config.Limits.WaitingInSystem, "--waiting-backups-in-system-namespace"
			}
			return config.Limits.Waiting, "--waiting-backups-per-namespace"
		},
		Load: func(namespace string, coming sets.Set[string]) (records, unfinished int) {
			load := config.Load(namespace, coming)
			return load.Records, load.Waiting
		},
		Unfinished: "%[1]d backups of namespace %[2]q wait already, and at most %[4]d may (%[5]s of the API server): wait until one has started, or cancel one that waits",
		Records:    "there are %[1]d records of backups of namespace %[2]q that wait, run, or ended lately, and at most %[4]d may be (%[6]d times %[5]s of the API server): records of cancelled and refused backups are removed after a day",
	}
}

// Admit implements recorded.Kind.
func (k *kind) Admit(backup *v1alpha1.Backup, run *enginev1alpha1.BackupRun) (done func(), err error) {
	if k.maxStored > 0 && k.stored != nil && backup.Namespace != k.systemNamespace {
		if stored := k.stored(backup.Namespace); stored >= k.maxStored {
			return nil, k.quota.Refuse(backup.Name, fmt.Sprintf(
				"%d backups of namespace %q are stored, and at most %d may be (--stored-backups-per-namespace of the API server): delete some, or have them expire sooner by spec.ttl",
				stored, backup.Namespace, k.maxStored))
		}
	}
	return k.quota.Admit(backup.Namespace, backup.Name, run.Name)
}
