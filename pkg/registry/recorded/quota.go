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

// Quota bounds the records that a namespace's requests cause in the system namespace, where its ResourceQuotas do
// not count them. In one server the limit is exact. Two servers may exceed it by records that the other one has
// not observed yet.
type Quota struct {
	Resource schema.GroupResource // of the objects; Cause is in the refusal
	Cause    metav1.CauseType
	// Limit returns the most unfinished records of a namespace, and its flag. Zero is no limit.
	Limit func(namespace string) (limit int, flag string)
	// Factor bounds all records, in multiples of the limit: finished ones stay for a while. Zero is no bound.
	Factor int
	// Load counts the records of a namespace, and its unfinished ones, always with the coming ones.
	Load func(namespace string, coming sets.Set[string]) (records, unfinished int)
	// Unfinished and Records are formats of messages with the present number, the namespace, the number to be
	// added, the limit, the flag and Factor.
	Unfinished, Records string

	// mu guards coming, and makes the decision and its entry one step.
	mu     sync.Mutex
	coming map[string][]string // names of records that are being created, by namespace
}

// Admit admits the records of an object, or returns Forbidden, as a ResourceQuota does: after a 429 clients would
// repeat the request, and hang. The caller calls done when Load counts the records, or none will come.
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

// Refuse returns the refusal of an object beyond a limit.
func (q *Quota) Refuse(name, message string) error {
	err := apierrors.NewForbidden(q.Resource, name, errors.New(message))
	if q.Cause != "" {
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: q.Cause, Message: message}}
	}
	return err
}
