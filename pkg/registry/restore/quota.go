// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// Limits bound the unfinished restores of a namespace; 0 is no limit.
type Limits struct {
	// Unfinished is each namespace's limit, except the system namespace's, which is UnfinishedInSystem.
	Unfinished, UnfinishedInSystem int
}

// recordsPerUnfinished bounds all records of a namespace, in multiples of its limit: ended ones stay for a while.
const recordsPerUnfinished = 50

// CauseTooManyRestores is the cause of a refusal beyond a limit.
const CauseTooManyRestores metav1.CauseType = "TooManyRestores"

func newQuota(config Config) *recorded.Quota {
	return &recorded.Quota{
		Resource: Resource.GroupResource, Cause: CauseTooManyRestores, Factor: recordsPerUnfinished,
		Limit: func(namespace string) (limit int, flag string) {
			if namespace == config.SystemNamespace {
				return config.Limits.UnfinishedInSystem, "--unfinished-restores-in-system-namespace"
			}
			return config.Limits.Unfinished, "--unfinished-restores-per-namespace"
		},
		Load:       config.Publisher.load,
		Unfinished: "%[1]d restores of namespace %[2]q wait or run already, and at most %[4]d may (%[5]s of the API server): wait until one has ended, or cancel one",
		Records:    "there are %[1]d records of restores of namespace %[2]q, and at most %[4]d may be (%[6]d times %[5]s of the API server): those that have ended go after a while",
	}
}
