// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/graph"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
)

// A claim carries a mark from before its first data is written, or from its creation, until all is
// written. The mark names the data, and the restore, so that no process removes a later one's. If
// the claim was new, a later restore of the same data continues it, unless a pod has used it.

const remarkPause = 200 * time.Millisecond

type mark struct {
	// restore is the writing restore's uid, snapshot the data.
	restore, snapshot string
	// made says that the claim was empty before.
	made bool
}

func (m mark) String() string {
	over := "over"
	if m.made {
		over = "new"
	}
	return strings.Join([]string{m.restore, over, m.snapshot}, " ")
}

// markOf returns a claim's mark, or nil. A hand-written mark means unknown data.
func markOf(claim *unstructured.Unstructured) *mark {
	text, ok := claim.GetAnnotations()[format.AnnotationIncomplete]
	if !ok {
		return nil
	}
	words := strings.SplitN(text, " ", 3)
	if len(words) < 3 {
		return &mark{}
	}
	return &mark{restore: words[0], made: words[1] == "new", snapshot: words[2]}
}

// fills reports whether an object is a claim whose data the restore writes in whole.
func (e *execution) fills(item *manifest.Item) bool {
	return !e.spec.PlanOnly && e.hasData(item) && e.volumeOf(item).Problem == "" && len(e.spec.Paths) == 0
}

const noRoom = "its annotations leave no room for " + format.AnnotationIncomplete + ", which tells that data is not complete: if this restore is stopped, look at the data before you use it"

func isRoomFor(claim *unstructured.Unstructured, m mark) bool {
	return object.Room(claim) >= len(format.AnnotationIncomplete)+len(m.String())
}

func setMark(claim *unstructured.Unstructured, m mark, warnings *[]string) {
	if !isRoomFor(claim, m) {
		*warnings = append(*warnings, noRoom)
		return
	}
	annotations := claim.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[format.AnnotationIncomplete] = m.String()
	claim.SetAnnotations(annotations)
}

func (e *execution) newMark(item *manifest.Item, made bool) mark {
	return mark{restore: string(e.request.Run.UID), snapshot: e.volumeOf(item).Status.SnapshotID, made: made}
}

func (e *execution) isPart(item *manifest.Item, claim *unstructured.Unstructured) bool {
	m := markOf(claim)
	return m != nil && m.made && m.snapshot != "" && m.snapshot == e.volumeOf(item).Status.SnapshotID
}

// isHalf says why an existing claim may not be used, or returns "": its data may be incomplete, and
// is not restored.
func (e *execution) isHalf(item *manifest.Item, claim *unstructured.Unstructured) string {
	if item.APIGroup != "" || item.KindName != claimKind.kind || markOf(claim) == nil || e.hasData(item) {
		return ""
	}
	return halfReason
}

// findHalves holds back the users of claims that the restore leaves out and that may be incomplete.
func (e *execution) findHalves(ctx context.Context, items []*manifest.Item) error {
	chosen, looked := map[manifest.Reference]bool{}, map[manifest.Reference]bool{}
	for _, item := range items {
		if item.APIGroup != "" || item.KindName != claimKind.kind {
			continue
		}
		chosen[manifest.Reference{KindName: item.KindName, Namespace: item.Namespace, Name: item.Name}] = true
	}
	here := &existing{cluster: e.reader, lists: map[listKey]*listing{}}
	for _, item := range items {
		for _, claim := range item.References {
			if claim.APIGroup != "" || claim.KindName != claimKind.kind || chosen[claim] || looked[claim] {
				continue
			}
			looked[claim] = true
			live, err := here.find(ctx, claimKind, e.target(claim.Namespace), claim.Name)
			if err != nil {
				return fmt.Errorf("find out which claims are complete: %w", err)
			}
			if live != nil && markOf(live) != nil {
				e.report.warn(subject{claimKind.resource, e.target(claim.Namespace), claim.Name}, halfReason)
				e.holdBackUsers(claim, ofPod(live))
			}
		}
	}
	for namespace := range graph.Suspects(items) {
		if err := e.findHalvesOf(ctx, namespace, chosen); err != nil {
			return err
		}
	}
	return nil
}

func ofPod(claim *unstructured.Unstructured) bool {
	owner := metav1.GetControllerOfNoCopy(claim)
	return owner != nil && owner.Kind == "Pod"
}

// findHalvesOf does so for objects that may use any claim of a namespace.
func (e *execution) findHalvesOf(ctx context.Context, namespace string, known map[manifest.Reference]bool) error {
	err := e.reader.each(ctx, claimKind, e.target(namespace), func(raw []byte) error {
		live, err := parseItem(claimKind, raw)
		if err != nil {
			return err
		}
		claim := manifest.Reference{KindName: claimKind.kind, Namespace: namespace, Name: live.GetName()}
		if markOf(live) != nil && !known[claim] {
			e.report.warn(subject{claimKind.resource, e.target(namespace), claim.Name}, halfReason)
			e.holdBackUsers(claim, ofPod(live))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("find out which claims are complete: %w", err)
	}
	return nil
}

const halfReason = "it may hold a part of the data of a restore that was stopped: restore it with its data, delete it, or, if you know better, remove its annotation " + format.AnnotationIncomplete

// spare says why no data is written into a claim that this restore has not created.
func (e *execution) spare(ctx context.Context, item *manifest.Item, about subject) error {
	if !e.sparesData() {
		return nil
	}
	live, err := e.writer.get(ctx, claimKind, about.namespace, about.name)
	switch {
	case err != nil:
		return fmt.Errorf("find out whether it is a part of an earlier restore: %w", err)
	case live == nil:
		return errors.New("the claim does not exist")
	case e.isPart(item, live):
		e.report.info(about, "an earlier restore has begun with its data: all of it is written again")
		return nil
	}
	return errors.New("somebody has made it meanwhile, and its data would be written over: delete it and restore again, leave it out, or set existingVolumePolicy to overwrite or replace")
}

// begin marks a claim that this restore has not created, before its data is written. One with a
// part of the data becomes this restore's.
func (e *execution) begin(ctx context.Context, item *manifest.Item, about subject) error {
	err := e.remark(ctx, about, func(live *unstructured.Unstructured) (map[string]any, error) {
		part := e.isPart(item, live)
		if e.sparesData() && !part {
			return nil, errors.New("it is another one than when it was looked at: restore this again")
		}
		next, earlier := e.newMark(item, part), markOf(live)
		if earlier != nil && *earlier == next {
			return nil, nil
		}
		if earlier == nil && !isRoomFor(live, next) {
			e.report.warn(about, noRoom)
			return nil, nil
		}
		annotations := map[string]any{format.AnnotationIncomplete: next.String()}
		if part {
			annotations[object.AnnotationRestoreUID] = next.restore
		}
		return annotations, nil
	})
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("it can't be marked as incomplete while its data is written: %w", err)
	}
	return err
}

// used notes on a marked claim that a pod uses it: it then has more than a part of the data, even
// if the pod is deleted.
func (e *execution) used(ctx context.Context, about subject) error {
	err := e.remark(ctx, about, func(live *unstructured.Unstructured) (map[string]any, error) {
		m := markOf(live)
		if m == nil || !m.made {
			return nil, nil
		}
		m.made = false
		return map[string]any{format.AnnotationIncomplete: m.String()}, nil
	})
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("that can't be noted on the claim, and a later restore may write over what the pod has written: %w", err)
	}
	return err
}

// mayMark reports whether the restore may remove a created claim's mark. If not, the mark must not
// call the claim new: a later restore would write into a used claim.
func (e *execution) mayMark(ctx context.Context, namespace string) (bool, error) {
	if !e.request.tenant() {
		return true, nil
	}
	for _, verb := range []string{"get", "patch"} {
		if allowed, err := e.allowed(ctx, Right{Verb: verb, Resource: claimKind.resource, Namespace: namespace}); err != nil || !allowed {
			return false, err
		}
	}
	return true, nil
}

// complete removes this restore's mark. If that fails, again says whether a later restore would
// write the data again.
func (e *execution) complete(ctx context.Context, item *manifest.Item, about subject) (again bool, err error) {
	if !e.fills(item) {
		return false, nil
	}
	if again, err = e.mayMark(ctx, about.namespace); err != nil {
		again = true
	}
	err = e.remark(ctx, about, func(live *unstructured.Unstructured) (map[string]any, error) {
		m := markOf(live)
		if m == nil || m.restore != string(e.request.Run.UID) {
			return nil, nil
		}
		again = m.made
		return map[string]any{format.AnnotationIncomplete: nil}, nil
	})
	return again, err
}

func (e *execution) remark(ctx context.Context, about subject, change func(live *unstructured.Unstructured) (map[string]any, error)) error {
	for i := range attempts {
		if err := sleep(ctx, time.Duration(i)*remarkPause); err != nil {
			return err
		}
		live, err := e.writer.get(ctx, claimKind, about.namespace, about.name)
		switch {
		case err != nil:
			return err
		case live == nil:
			return errors.New("the claim does not exist")
		}
		annotations, err := change(live)
		if err != nil || len(annotations) == 0 {
			return err
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"annotations": annotations, "uid": live.GetUID(), "resourceVersion": live.GetResourceVersion(),
		}})
		if err != nil {
			return err
		}
		if _, err = e.writer.patch(ctx, claimKind, about.namespace, about.name, "", patch, false); !apierrors.IsConflict(err) {
			return err
		}
	}
	return fmt.Errorf("it changes all the time: %d times while it was marked", attempts)
}
