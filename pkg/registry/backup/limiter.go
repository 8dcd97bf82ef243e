// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// Limits are how many backups one namespace may have; 0 is no limit.
type Limits struct {
	// Waiting is that of each namespace but the system namespace, which has one of
	// its own: it is the administrator's.
	Waiting, WaitingInSystem int
	// Stored is how many may be stored of each namespace but the system namespace, which has no
	// such limit. Those that wait or run when it is reached are stored all the same.
	Stored int
}

// recordsPerWaiting bounds all records of a namespace's backups, in multiples of its
// limit. Those that were cancelled stay for a day, so the waiting ones are not all.
const recordsPerWaiting = 10

// CauseTooManyBackups is the cause in the answer to a request that is beyond a limit.
const CauseTooManyBackups metav1.CauseType = "TooManyBackups"

// limiter bounds what the backups of one namespace take up in the system namespace,
// where no quota of that namespace counts it.
//
// Through one server the limit is exact: a record counts from the decision to create
// it. Two servers that serve at once may together exceed it by what each creates
// before it hears of the other's.
type limiter struct {
	Limits
	systemNamespace string
	load            func(namespace string, coming sets.Set[string]) records.Load
	stored          func(namespace string) int

	// mu guards coming, and makes one of the decision and the entry that follows.
	mu sync.Mutex
	// coming are the names of the records that are being created, by the namespace of
	// the Backup.
	coming map[string][]string
}

// admit lets a backup be recorded under a name, or answers Forbidden, as a quota does:
// clients would try again by themselves after a 429, and hang while nothing changes.
// done is to be called when load counts the record, or when there will be none.
func (l *limiter) admit(backup *v1alpha1.Backup, record string) (done func(), err error) {
	namespace, limit, flag := backup.Namespace, l.Waiting, "--waiting-backups-per-namespace"
	if namespace == l.systemNamespace {
		limit, flag = l.WaitingInSystem, "--waiting-backups-in-system-namespace"
	}
	if namespace != l.systemNamespace && l.Stored > 0 && l.stored != nil {
		if stored := l.stored(namespace); stored >= l.Stored {
			return nil, tooMany(backup.Name, fmt.Sprintf(
				"%d backups of namespace %q are stored, and at most %d may be (--stored-backups-per-namespace of the API server): delete some, or have them expire sooner by spec.ttl",
				stored, namespace, l.Stored))
		}
	}
	if limit <= 0 {
		return func() {}, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	load := l.load(namespace, sets.New(l.coming[namespace]...))
	switch {
	case load.Waiting >= limit:
		return nil, tooMany(backup.Name, fmt.Sprintf(
			"%d backups of namespace %q wait already, and at most %d may (%s of the API server): wait until one has started, or cancel one that waits",
			load.Waiting, namespace, limit, flag))
	case load.Records >= limit*recordsPerWaiting:
		return nil, tooMany(backup.Name, fmt.Sprintf(
			"there are %d records of backups of namespace %q that wait, run, or ended lately, and at most %d may be (%d times %s of the API server): those of cancelled and refused backups go after a day",
			load.Records, namespace, limit*recordsPerWaiting, recordsPerWaiting, flag))
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
	err := apierrors.NewForbidden(resource, name, fmt.Errorf("%s", message))
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: CauseTooManyBackups, Message: message}}
	return err
}
