// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package history reads from the audit log of kube-apiserver what happened to
// backups, and checks that against what the queue promises. It knows nothing of
// the processes that did it, nor of what they say of themselves.
package history

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// History is every version that runs and the ledger ever had, in the order in
// which they were written, and the versions of storage locations that the log has.
type History struct {
	versions []version
	// Unanswered is how many of them were written by requests that did not succeed:
	// who made them was killed before the answer.
	Unanswered int
}

// version is one state of a run, of the ledger, or of a storage location.
type version struct {
	number   uint64 // the resourceVersion, which etcd counts for all objects together
	run      *enginev1alpha1.BackupRun
	ledger   *corev1.ConfigMap
	location *enginev1alpha1.StorageLocation
	// unanswered means that the location had this state at a later time, if ever.
	unanswered bool
}

// object is what the log says of one object.
type object struct {
	versions map[uint64]version
	// bases are the versions that those replaced, by number.
	bases map[uint64]uint64
	// unanswered are writes of which the log does not say whether they were made, by
	// the version that they were to replace.
	unanswered map[uint64][]version
	// known is set when its versions matter from the first one that the log has: it is
	// the ledger, or a run whose creation is in there.
	known bool
	// last is the latest version that is known from elsewhere: it was deleted, or exists.
	last    uint64
	deleted bool
}

// Read reads the audited requests since a moment at which all runs had ended, given
// the runs that exist now. Runs that were created before are left out. It fails if
// the log lacks a version.
func Read(events []auditv1.Event, existing []enginev1alpha1.BackupRun) (*History, error) {
	l, h := log{}, &History{}
	for i := range events {
		if err := h.readLocation(&events[i]); err != nil {
			return nil, fmt.Errorf("the request %s of the audit log: %w", events[i].AuditID, err)
		}
		if err := l.read(&events[i]); err != nil {
			return nil, fmt.Errorf("the request %s of the audit log: %w", events[i].AuditID, err)
		}
	}
	for i := range existing {
		if err := l.seen(existing[i].UID, existing[i].ResourceVersion); err != nil {
			return nil, err
		}
	}
	for uid, o := range l {
		found, err := o.complete(h)
		if err != nil {
			return nil, fmt.Errorf("object %s: %w", uid, err)
		}
		h.versions = append(h.versions, found...)
	}
	slices.SortFunc(h.versions, func(a, b version) int { return cmp.Compare(a.number, b.number) })
	return h, nil
}

// Runs are the runs as they were last written, in the order of their creation.
func (h *History) Runs() []*enginev1alpha1.BackupRun {
	index := map[types.UID]int{}
	var runs []*enginev1alpha1.BackupRun
	for _, v := range h.versions {
		if v.run == nil {
			continue
		}
		if i, ok := index[v.run.UID]; ok {
			runs[i] = v.run
			continue
		}
		index[v.run.UID] = len(runs)
		runs = append(runs, v.run)
	}
	return runs
}

// readLocation adds the version of a storage location that a request wrote. A write
// without an answer counts with the version that it was to replace: the controller may
// have acted on it.
func (h *History) readLocation(event *auditv1.Event) error {
	ref := event.ObjectRef
	if event.Stage == auditv1.StageRequestReceived || ref == nil || ref.Resource != "storagelocations" ||
		event.Verb != "create" && event.Verb != "update" {
		return nil
	}
	written, unanswered := event.ResponseObject, false
	switch status := event.ResponseStatus; {
	case status == nil || status.Code == 0 || status.Code >= 499:
		written, unanswered = event.RequestObject, true
	case status.Code != http.StatusOK && status.Code != http.StatusCreated:
		return nil
	}
	if written == nil {
		return nil
	}
	location := &enginev1alpha1.StorageLocation{}
	if err := decode(written, location); err != nil {
		return err
	}
	number, err := strconv.ParseUint(location.ResourceVersion, 10, 64)
	if err != nil {
		return err
	}
	h.versions = append(h.versions, version{number: number, location: location, unanswered: unanswered})
	return nil
}

type log map[types.UID]*object

func (l log) object(uid types.UID) *object {
	if l[uid] == nil {
		l[uid] = &object{versions: map[uint64]version{}, bases: map[uint64]uint64{}, unanswered: map[uint64][]version{}}
	}
	return l[uid]
}

// seen takes note that an object had a version.
func (l log) seen(uid types.UID, resourceVersion string) error {
	number, err := strconv.ParseUint(resourceVersion, 10, 64)
	o := l.object(uid)
	o.last = max(o.last, number)
	return err
}

func (l log) read(event *auditv1.Event) error {
	ref := event.ObjectRef
	if event.Stage == auditv1.StageRequestReceived || ref == nil ||
		ref.Resource != "backupruns" && !(ref.Resource == "configmaps" && ref.Name == records.LedgerName) {
		return nil
	}
	code := int32(0)
	if event.ResponseStatus != nil {
		code = event.ResponseStatus.Code
	}
	succeeded := code == http.StatusOK || code == http.StatusCreated
	// There is no saying what became of it; 499 is that who asked did not wait.
	unanswered := code == 0 || code >= 499
	switch {
	case event.Verb == "delete" && succeeded:
		var options metav1.DeleteOptions
		if err := decode(event.RequestObject, &options); err != nil {
			return err
		}
		// Without such a precondition it is not known which version was deleted.
		if p := options.Preconditions; p != nil && p.UID != nil && p.ResourceVersion != nil {
			l.object(*p.UID).deleted = true
			return l.seen(*p.UID, *p.ResourceVersion)
		}
	case event.Verb == "create" && succeeded:
		v, uid, err := decodeVersion(ref, event.ResponseObject)
		if err != nil {
			return err
		}
		o := l.object(uid)
		o.known = true
		o.versions[v.number] = v
	case event.Verb == "update" && succeeded:
		v, uid, err := decodeVersion(ref, event.ResponseObject)
		if err != nil {
			return err
		}
		base, err := strconv.ParseUint(ref.ResourceVersion, 10, 64)
		if err != nil {
			return fmt.Errorf("an update of whatever there is: %w", err)
		}
		if base != v.number { // else nothing has changed
			o := l.object(uid)
			o.known = o.known || v.ledger != nil
			o.versions[v.number], o.bases[v.number] = v, base
		}
	case event.Verb == "update" && unanswered && event.RequestObject != nil: // else it was cut off
		v, uid, err := decodeVersion(ref, event.RequestObject)
		if err != nil {
			return err
		}
		o := l.object(uid)
		o.unanswered[v.number] = append(o.unanswered[v.number], v)
	case event.Verb == "patch":
		return errors.New("a patch does not say what it replaces")
	}
	return nil
}

func decodeVersion(ref *auditv1.ObjectReference, raw *runtime.Unknown) (version, types.UID, error) {
	var v version
	var meta metav1.Object
	if ref.Resource == "backupruns" {
		v.run = &enginev1alpha1.BackupRun{}
		meta = v.run
	} else {
		v.ledger = &corev1.ConfigMap{}
		meta = v.ledger
	}
	if err := decode(raw, meta); err != nil {
		return v, "", err
	}
	number, err := strconv.ParseUint(meta.GetResourceVersion(), 10, 64)
	v.number = number
	return v, meta.GetUID(), err
}

func decode(raw *runtime.Unknown, into any) error {
	if raw == nil {
		return fmt.Errorf("it has no objects: start the lab with --audit-objects")
	}
	return json.Unmarshal(raw.Raw, into)
}

// inProgress reports whether it is a version of a run that is executed.
func (v version) inProgress() bool {
	return v.run != nil && v.run.Status.Phase == v1alpha1.BackupPhaseInProgress
}

// ended reports whether it is a version of a run that has ended.
func (v version) ended() bool { return v.run != nil && v.run.Status.Phase.Ended() }

// complete returns the versions of an object. Those that were written without an
// answer are known by what came behind them.
func (o *object) complete(h *History) ([]version, error) {
	if !o.known {
		return nil, nil
	}
	// All versions that there were: each was written over, or is the last one.
	numbers := sets.KeySet(o.versions).Insert(slices.Collect(maps.Values(o.bases))...).
		Union(sets.KeySet(o.unanswered)).Insert(o.last)
	var found []version
	sorted := sets.List(numbers)
	for i, number := range sorted {
		if len(found) == 0 {
			if v, ok := o.versions[number]; ok {
				found = append(found, v)
			}
			continue // what the first one has replaced does not matter
		}
		before := found[len(found)-1].number
		v, ok := o.versions[number]
		switch {
		case ok && o.bases[number] != before:
			return nil, fmt.Errorf("version %d replaced %d, but there was %d", number, o.bases[number], before)
		case !ok:
			candidates := o.unanswered[before]
			// A run that has ended is never in progress again, and only the record of such a run is deleted.
			switch isLast := i+1 == len(sorted); {
			case len(candidates) < 2:
			case isLast && o.deleted:
				candidates = slices.DeleteFunc(slices.Clone(candidates), func(v version) bool { return !v.ended() })
			case !isLast && o.versions[sorted[i+1]].inProgress():
				candidates = slices.DeleteFunc(slices.Clone(candidates), version.ended)
			}
			if len(candidates) != 1 {
				return nil, fmt.Errorf("version %d is not in the log, and %d requests may have written it", number, len(candidates))
			}
			v = candidates[0]
			v.number = number
			h.Unanswered++
		}
		found = append(found, v)
	}
	return found, nil
}
