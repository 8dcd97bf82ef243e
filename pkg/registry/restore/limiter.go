// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Limits are how many restores may wait or run at once in one namespace; 0 is no limit.
type Limits struct {
	// Unfinished is that of each namespace but the system namespace, which has one of
	// its own: it is the administrator's.
	Unfinished, UnfinishedInSystem int
}

// recordsPerUnfinished bounds all records of a namespace's restores, in multiples of its
// limit: they stay for a while when they have ended.
const recordsPerUnfinished = 50

// CauseTooManyRestores is the cause in the answer to a request that is beyond a limit.
const CauseTooManyRestores metav1.CauseType = "TooManyRestores"

// limiter bounds what the restores of one namespace take up in the system namespace, as
// that of package backup does.
type limiter struct {
	Limits
	systemNamespace string
	load            func(namespace string, coming []string) (records, unfinished int)

	// mu guards coming, and makes one of the decision and the entry that follows.
	mu sync.Mutex
	// coming are the names of the records that are being created, by the namespace of
	// the Restore.
	coming map[string][]string
}

// admit lets a restore be recorded under a name, or answers Forbidden, as a quota does.
// done is to be called when load counts the record, or when there will be none.
func (l *limiter) admit(restore *v1alpha1.Restore, record string) (done func(), err error) {
	namespace, limit, flag := restore.Namespace, l.Unfinished, "--unfinished-restores-per-namespace"
	if namespace == l.systemNamespace {
		limit, flag = l.UnfinishedInSystem, "--unfinished-restores-in-system-namespace"
	}
	if limit <= 0 {
		return func() {}, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	records, unfinished := l.load(namespace, l.coming[namespace])
	switch {
	case unfinished >= limit:
		return nil, tooMany(restore.Name, fmt.Sprintf(
			"%d restores of namespace %q wait or run already, and at most %d may (%s of the API server): wait until one has ended, or cancel one",
			unfinished, namespace, limit, flag))
	case records >= limit*recordsPerUnfinished:
		return nil, tooMany(restore.Name, fmt.Sprintf(
			"there are %d records of restores of namespace %q, and at most %d may be (%d times %s of the API server): those that have ended go after a while",
			records, namespace, limit*recordsPerUnfinished, recordsPerUnfinished, flag))
	}
	l.coming[namespace] = append(l.coming[namespace], record)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		names := l.coming[namespace]
		at := slices.Index(names, record)
		if names = slices.Delete(names, at, at+1); len(names) == 0 {
			delete(l.coming, namespace)
		} else {
			l.coming[namespace] = names
		}
	}, nil
}

func tooMany(name, message string) error {
	err := apierrors.NewForbidden(Resource.GroupResource, name, errors.New(message))
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: CauseTooManyRestores, Message: message}}
	return err
}
