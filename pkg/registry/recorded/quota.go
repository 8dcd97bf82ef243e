// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package recorded

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Quota bounds the records that the requests of one namespace cause. They are in the system
// namespace, where no ResourceQuota of that namespace counts them.
//
// In one server the limit is exact: a record counts from the decision to create it. Two servers
// that serve at once may exceed it by the records that the other one has not observed yet.
type Quota struct {
	// Resource is the resource of the objects, and Cause the cause in the refusal.
	Resource schema.GroupResource
	Cause    metav1.CauseType
	// Limit returns the most unfinished records of a namespace, and the flag that sets it. Zero is no limit.
	Limit func(namespace string) (limit int, flag string)
	// Factor bounds all records of a namespace, in multiples of the limit: they stay for a while
	// when they are finished. Zero is no bound.
	Factor int
	// Load counts the records of a namespace, and the unfinished ones. The named records, which are
	// being created, count in any case.
	Load func(namespace string, coming sets.Set[string]) (records, unfinished int)
	// Unfinished and Records are formats of the messages. Their arguments are the present number, the
	// namespace, the number to be added, the limit, the flag and Factor.
	Unfinished, Records string

	// mu guards coming, and makes one of the decision and the entry that follows.
	mu sync.Mutex
	// coming has the names of the records that are being created, by namespace.
	coming map[string][]string
}

// Admit lets the records of an object be created, or returns Forbidden, as a ResourceQuota does.
// Clients repeat a request after a 429 by themselves, and would hang while nothing changes. The
// caller calls done when Load counts the records, or when there will be none.
func (q *Quota) Admit(namespace, name string, records ...string) (done func(), err error) {
	limit, flag := q.Limit(namespace)
	if limit <= 0 {
		return func() {}, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	all, unfinished := q.Load(namespace, sets.New(q.coming[namespace]...))
	switch more := len(records); {
	case unfinished+more > limit:
		return nil, q.Refuse(name, fmt.Sprintf(q.Unfinished, unfinished, namespace, more, limit, flag, q.Factor))
	case q.Factor > 0 && all+more > limit*q.Factor:
		return nil, q.Refuse(name, fmt.Sprintf(q.Records, all, namespace, more, limit*q.Factor, flag, q.Factor))
	}
	if q.coming == nil {
		q.coming = map[string][]string{}
	}
	q.coming[namespace] = append(q.coming[namespace], records...)
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		names := q.coming[namespace]
		for _, record := range records {
			at := slices.Index(names, record)
			names = slices.Delete(names, at, at+1)
		}
		if q.coming[namespace] = names; len(names) == 0 {
			delete(q.coming, namespace)
		}
	}, nil
}

// Refuse returns the refusal of an object that is beyond a limit.
func (q *Quota) Refuse(name, message string) error {
	err := apierrors.NewForbidden(q.Resource, name, errors.New(message))
	if q.Cause != "" {
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: q.Cause, Message: message}}
	}
	return err
}
