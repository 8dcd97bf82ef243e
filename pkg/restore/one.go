// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

type action uint8

const (
	actionNone action = iota
	actionCreate
	actionUpdate
	actionRecreate
	// actionSkip: it exists, and is equal.
	actionSkip
	actionLeave
	actionConflict
	// actionForbidden: the requester may not write it; one warning counts all such.
	actionForbidden
	actionRefused
	actionError
)

var actionNames = [...]string{"", "create", "update", "recreate", "skip", "skip", "conflict", "refused", "refused", "error"}

const extensionsGroup = "apiextensions.k8s.io"

const (
	goneTimeout = 30 * time.Second
	// recreateTimeout is longer: dependents of an object that this restore deletes are deleted
	// first, and pods take time to end.
	recreateTimeout = 10 * time.Minute
	// quotaTimeout bounds the time until a new quota's usage is counted.
	quotaTimeout = 30 * time.Second
	// attempts bounds new decisions about a changing object.
	attempts = 5
)

func (e *execution) target(namespace string) string {
	if to, ok := e.spec.NamespaceMapping[namespace]; ok && namespace != "" {
		return to
	}
	return namespace
}

func resourceOf(item *manifest.Item) string {
	if item.APIGroup == "" {
		return item.Resource
	}
	return item.Resource + "." + item.APIGroup
}

func (e *execution) subject(item *manifest.Item) subject {
	s := subject{resourceOf(item), e.target(item.Namespace), item.Name}
	if isNamespace(item) {
		s.name = e.target(item.Name)
	}
	return s
}

func isNamespace(item *manifest.Item) bool {
	return item.APIGroup == "" && item.KindName == "Namespace"
}

// give records a decision made without the cluster: actionError and actionRefused are errors,
// actionConflict is a warning.
func (e *execution) give(node int32, a action, about subject, reason string) {
	e.decided(node, a, about, reason, nil)
}

func (e *execution) decided(node int32, a action, about subject, reason string, diff json.RawMessage) {
	item := e.graph.Nodes[node].Item
	e.outcomes[node] = a
	switch a {
	case actionError, actionRefused:
		e.report.fail(about, reason)
	case actionConflict:
		e.report.warn(about, reason)
	default:
		text := actionNames[a]
		if reason != "" {
			text += ": " + reason
		}
		e.report.info(about, text)
	}
	if item.APIGroup == "" && item.KindName == "Secret" || e.request.tenant() && about.namespace != e.request.Run.Spec.RestoreRef.Namespace {
		diff = nil // readers of the plan may not read it; the reason names the fields
	}
	e.planned.decided(e, item, about, a, reason)
	e.report.planned(format.PlannedObject{
		APIVersion: strings.TrimSuffix(item.GroupKind(), "/"+item.KindName), Kind: item.KindName,
		Namespace: about.namespace, Name: about.name, Action: actionNames[a], Reason: reason, Diff: diff, Bytes: e.bytesOf(item),
	})
}

func (e *execution) one(ctx context.Context, l *loop, t task) {
	item := e.graph.Nodes[t.node].Item
	about := e.subject(item)
	live, ok := e.decide(ctx, t.node, item, about, t.content)
	if e.webhooks.isPostponed(t.node) {
		l.postpone(ctx, t.node, e.hasData(item) || isNamespace(item) || item.APIGroup == extensionsGroup)
		return
	}
	if ok && live == "" && e.spec.PlanOnly {
		live = types.UID(item.UID)
	}
	if ok && live != "" && item.UID != "" {
		e.mu.Lock()
		e.uids[types.UID(item.UID)] = live
		if a := e.outcomes[t.node]; a == actionCreate || a == actionRecreate {
			e.made[types.UID(item.UID)] = true
		}
		e.mu.Unlock()
	}
	if ok && isNamespace(item) && e.outcomes[t.node] == actionCreate {
		e.succeed(ctx, about.name, types.UID(item.UID), live)
	}
	switch {
	case !ok:
		if e.hasData(item) {
			e.holdBack(item)
		}
	case item.APIGroup == extensionsGroup && item.KindName == "CustomResourceDefinition":
		if e.outcomes[t.node] != actionConflict { // else the cluster serves the existing one
			e.define(t.content)
		}
	case !e.spec.PlanOnly && e.hasData(item):
		created := e.outcomes[t.node] == actionCreate
		l.wait(ctx, t.node, item, func(ctx context.Context) error { return e.restoreData(ctx, item, about, created) })
		return
	case !e.spec.PlanOnly && len(e.scratchOf(item)) > 0:
		if a := e.outcomes[t.node]; a == actionCreate || a == actionRecreate {
			l.wait(ctx, t.node, item, func(ctx context.Context) error { return e.fill(ctx, item, about) })
			return
		}
		e.report.warn(about, "it exists, so that its volumes without a claim are as they are: they are filled only in a pod that the restore creates")
	}
	l.done(ctx, t.node)
}

// decide restores or plans an object. It reports whether the object exists, or will.
func (e *execution) decide(ctx context.Context, node int32, item *manifest.Item, about subject, content *unstructured.Unstructured) (types.UID, bool) {
	k, err := e.kinds.find(item)
	if err == nil {
		err = rescoped(item, k)
	}
	if err != nil {
		e.give(node, actionError, about, err.Error())
		return "", false
	}
	refused, why, inits, err := e.leftOut(ctx, k, item, about, content)
	if err != nil {
		e.give(node, actionError, about, err.Error())
		return "", false
	}
	if refused != actionNone && refused != actionRefused {
		e.give(node, refused, about, why)
		return "", false
	}
	w, err := e.wish(ctx, k, item, about, content, inits)
	if err != nil {
		e.give(node, actionError, about, err.Error())
		return "", false
	}
	about.namespace, about.name = w.desired.GetNamespace(), w.desired.GetName()
	if refused == actionNone {
		refused, why = e.refuse(ctx, w.desired, about)
	}
	if refused != actionNone {
		if live := e.standing(ctx, k, about, w.desired); refused == actionRefused && live != nil {
			e.give(node, actionSkip, about, isEqual)
			return live.GetUID(), true
		}
		e.give(node, refused, about, why)
		return "", false
	}
	if err := e.fitToCluster(ctx, k, item, about, w); err != nil {
		e.give(node, actionError, about, err.Error())
		return "", false
	}
	live, a, reason, diff, err := e.bring(ctx, k, item, about, w.desired, w.status, w.converted)
	if err != nil {
		switch {
		case ctx.Err() != nil:
		case e.webhooks.postpone(node, err):
			e.report.info(about, "it is tried once more at the end: "+err.Error())
		default:
			e.give(node, actionError, about, explain(err, w.converted, item, k))
		}
		return "", false
	}
	e.warnOfWish(k, item, about, w, a)
	e.decided(node, a, about, reason, diff)
	e.warnOfNoData(item, a, about, w.desired)
	if a == actionForbidden || a == actionRefused || a == actionError {
		return live, false
	}
	return live, true
}

// leftOut decides whether an object stays out before its content is worked on, and why. If not, it
// awaits its namespace. An object with actionRefused may exist already.
func (e *execution) leftOut(ctx context.Context, k *kind, item *manifest.Item, about subject, content *unstructured.Unstructured) (a action, why string, inits []map[string]any, err error) {
	skipped, err := e.skips(ctx, k, item, about, content)
	if err != nil {
		return actionNone, "", nil, err
	}
	inits = e.hooks.note(item, about, content, skipped)
	if reason := cmp.Or(skipped, e.ofPods[item]); reason != "" {
		e.warnOfEmpty(item)
		return actionLeave, reason, nil, nil
	}
	reason, err := e.elsewhere(ctx, item)
	if err != nil {
		return actionNone, "", nil, err
	}
	if reason != "" {
		e.report.warn(about, reason)
		return actionLeave, reason, nil, nil
	}
	if reason := e.heldBack(item); reason != "" {
		return actionError, reason, nil, nil
	}
	if a, why = e.refuse(ctx, content, about); a != actionNone {
		return a, why, inits, nil
	}
	return actionNone, "", inits, e.namespaces.await(ctx, e, item, about)
}

type wish struct {
	desired  *unstructured.Unstructured
	status   map[string]any
	warnings []string
	// asWritten is false for a schedule that the restore pauses.
	asWritten bool
	// converted says that the cluster serves another version than the backup's, reworded that
	// fields had to change.
	converted, reworded bool
}

func (e *execution) wish(ctx context.Context, k *kind, item *manifest.Item, about subject, content *unstructured.Unstructured, inits []map[string]any) (*wish, error) {
	e.findOwners(ctx, item, content, about)
	if err := e.decideVolume(ctx, item, about, content); err != nil {
		return nil, err
	}
	resource := schema.GroupResource{Group: item.APIGroup, Resource: item.Resource}
	w := &wish{
		status:    e.rules.Status(content, resource),
		asWritten: resource.String() != object.Schedules || object.IsPaused(content),
		converted: k.version != item.APIVersion,
	}
	var err error
	if w.desired, w.warnings, err = e.rules.Desired(ctx, content, resource, e.ownersOf(item)); err != nil {
		return nil, err
	}
	e.spareVolumesOf(item, about, w.desired)
	if err := withInits(w.desired, inits); err != nil {
		return nil, err
	}
	if w.converted {
		w.reworded = object.Reword(w.desired)
		w.desired.SetAPIVersion(k.apiVersion())
	}
	return w, nil
}

func (e *execution) fitToCluster(ctx context.Context, k *kind, item *manifest.Item, about subject, w *wish) error {
	why, err := e.lacksAccount(ctx, item, about, w.desired)
	if err != nil {
		return err
	}
	if why != "" {
		return errors.New(why)
	}
	ofDefault, err := e.settleDefaults(ctx, k, about, w.desired)
	if err != nil {
		return err
	}
	if ofDefault != "" {
		w.warnings = append(w.warnings, ofDefault)
	}
	if e.fills(item) {
		made, err := e.mayMark(ctx, about.namespace)
		if err != nil {
			return err
		}
		setMark(w.desired, e.newMark(item, made), &w.warnings)
	}
	return nil
}

func (e *execution) warnOfWish(k *kind, item *manifest.Item, about subject, w *wish, a action) {
	for _, warning := range w.warnings {
		e.report.warn(about, warning)
	}
	if w.reworded {
		e.report.warn(about, fmt.Sprintf("the cluster does not serve it in version %s: it was converted, and written in %s", item.APIVersion, k.apiVersion()))
	} else if w.converted {
		e.report.warn(about, fmt.Sprintf("the cluster does not serve it in version %s: its fields are all known in %s, in which it was written", item.APIVersion, k.apiVersion()))
	}
	if was := e.Backup.Instead(item); was != "" {
		e.report.warn(about, fmt.Sprintf("the cluster does not serve it in version %s: it was written in %s, in which the backup holds it too", was, k.apiVersion()))
	}
	if made := a == actionCreate || a == actionRecreate; !w.asWritten && (made || a == actionUpdate && !e.request.tenant()) {
		e.report.warn(about, "it is paused, and makes no backups until somebody resumes it who may create backups of what it selects: set spec.paused to false")
	}
}

const isEqual = "it is there, and equal"

func (e *execution) isOurs(live *unstructured.Unstructured) bool {
	return live.GetAnnotations()[object.AnnotationRestoreUID] == string(e.request.Run.UID)
}

func ownedAs(live, desired *unstructured.Unstructured) bool {
	owners := live.GetOwnerReferences()
	return !slices.ContainsFunc(desired.GetOwnerReferences(), func(wanted metav1.OwnerReference) bool {
		return !slices.ContainsFunc(owners, func(owner metav1.OwnerReference) bool { return owner.UID == wanted.UID })
	})
}

func (e *execution) bring(ctx context.Context, k *kind, item *manifest.Item, about subject, desired *unstructured.Unstructured, status map[string]any, strict bool) (uid types.UID, a action, reason string, diff json.RawMessage, err error) {
	look := e.looksFirst(k, about) || e.inStorage(item) || e.hasLocal(item) // an existing claim needs no snapshot
	for range attempts {
		var live *unstructured.Unstructured
		if look {
			live, err = e.look(ctx, k, about)
			if apierrors.IsForbidden(err) && e.request.tenant() {
				uid, a, reason = e.leave(ctx, k, item, about, desired, mayNotRead)
				return uid, a, reason, nil, nil
			}
			if err != nil {
				return "", 0, "", nil, err
			}
		}
		if live == nil {
			var done bool
			if live, done, uid, a, reason, err = e.bringNew(ctx, k, item, about, desired, status, strict); done || err != nil {
				return uid, a, reason, nil, err
			}
		}
		switch {
		case live == nil:
			continue
		case e.inStorage(item) && !e.isOurs(live) && live.GetDeletionTimestamp() == nil:
			e.holdBack(item)
			return live.GetUID(), actionError, "it exists, and " + onlyNew + ": delete it, or restore into another namespace", nil, nil
		case e.spec.VolumesOnly:
			return live.GetUID(), actionSkip, "only its data is restored", nil, nil
		case e.isHalf(item, live) != "":
			e.holdBack(item)
			return live.GetUID(), actionError, e.isHalf(item, live), nil, nil
		case e.isOurs(live):
			// An earlier attempt may have failed to restore an owner.
			if !e.spec.PlanOnly && !ownedAs(live, desired) {
				if err := e.setOwners(ctx, k, about, desired); err != nil {
					return "", 0, "", nil, fmt.Errorf("it is there, but its owners could not be set: %w", err)
				}
			}
			e.noteSource(item, about, live)
			return live.GetUID(), actionCreate, "", nil, e.setStatus(ctx, k, about, status, live.GetUID())
		case live.GetDeletionTimestamp() != nil && e.spec.PlanOnly:
			reason, err := e.planSnapshot(ctx, item, about, desired)
			if reason != "" {
				reason = "; " + reason
			}
			return "", actionCreate, "one of its name is being deleted, and is waited for" + reason, nil, err
		case live.GetDeletionTimestamp() != nil:
			if err := e.awaitGone(ctx, k, live); err != nil {
				return "", 0, "", nil, err
			}
			continue
		}
		wanted := desired
		if live.GetAnnotations()[object.AnnotationRestoreUID] != "" { // a restore made it, perhaps waiting for data
			if wanted, err = e.waiting(ctx, k, about, desired); err != nil {
				return "", 0, "", nil, err
			}
		}
		if k.name() == object.Schedules {
			wanted = wanted.DeepCopy()
			object.KeepPaused(wanted, live)
		}
		wanted, single, err := e.shared(ctx, item, live, wanted)
		if err != nil {
			return "", 0, "", nil, err
		}
		decision, again, err := e.compare(ctx, k, item, about, live, wanted)
		if err != nil {
			return "", 0, "", nil, err
		}
		if again || e.isDenied(ctx, k, about, decision, live, desired) {
			look = true
			continue
		}
		a, reason, diff, again, err := e.carryOut(ctx, k, item, about, live, decision)
		if err != nil && e.yields(k, about, desired, err) {
			again, err = true, nil
		}
		if err != nil || !again {
			e.tellSingle(about, single)
			return live.GetUID(), a, reason, diff, err
		}
		look = true
	}
	return "", 0, "", nil, fmt.Errorf("it changes all the time: %d times while it was restored", attempts)
}

// bringNew brings an object that was not there. If it isn't done, an object of this name came meanwhile, and
// live is that object, unless it has left again.
func (e *execution) bringNew(ctx context.Context, k *kind, item *manifest.Item, about subject, desired *unstructured.Unstructured, status map[string]any, strict bool) (live *unstructured.Unstructured, done bool, uid types.UID, a action, reason string, err error) {
	leave := func(why string) (*unstructured.Unstructured, bool, types.UID, action, string, error) {
		uid, a, reason := e.leave(ctx, k, item, about, desired, why)
		return nil, true, uid, a, reason, nil
	}
	fail := func(err error) (*unstructured.Unstructured, bool, types.UID, action, string, error) {
		return nil, true, "", 0, "", err
	}
	why, err := e.forbids(ctx, k, about, "create")
	switch {
	case err != nil:
		return fail(err)
	case why != "":
		return leave(why)
	case e.spec.VolumesOnly:
		return fail(errors.New("there is no such claim, and nothing but data is restored: leave out volumesOnly"))
	case e.spec.PlanOnly:
		e.noteClass(item, desired)
		reason, err := e.planSnapshot(ctx, item, about, desired)
		return nil, true, "", actionCreate, reason, err
	}
	held, err := e.waiting(ctx, k, about, desired)
	if err == nil {
		held, err = e.fromSnapshot(ctx, item, about, held)
	}
	if err != nil {
		return fail(err)
	}
	created, err := e.create(ctx, k, about, held, strict)
	if err == nil {
		e.noteSource(item, about, held)
		return nil, true, created.UID, actionCreate, "", e.setStatus(ctx, k, about, status, created.UID)
	}
	if !apierrors.IsAlreadyExists(err) {
		why, lacks := e.lacks(ctx, k, about, "create", err)
		if lacks != nil || why == "" {
			return fail(err)
		}
		return leave(why)
	}
	e.namespaces.inhabited(about.namespace)
	live, err = e.writer.get(ctx, k, about.namespace, about.name)
	if apierrors.IsForbidden(err) && e.request.tenant() {
		return leave(mayNotRead)
	}
	if err != nil {
		return fail(err)
	}
	return live, false, "", 0, "", nil
}

// looksFirst reports whether an object probably exists: a read then comes before the creation.
func (e *execution) looksFirst(k *kind, about subject) bool {
	if e.isBinding(k) {
		return true
	}
	if e.namespaces.fresh(about.namespace) {
		return false
	}
	return e.spec.PlanOnly || e.spec.VolumesOnly || e.groups[listKey{k.name(), about.namespace}] >= worthListing || e.namespaces.isInhabited(about.namespace)
}

func (e *execution) look(ctx context.Context, k *kind, about subject) (*unstructured.Unstructured, error) {
	if k.promised {
		return nil, nil
	}
	find := e.writer.get
	if e.groups[listKey{k.name(), about.namespace}] >= worthListing {
		find = e.here.find
	}
	live, err := find(ctx, k, about.namespace, about.name)
	switch {
	case !apierrors.IsForbidden(err):
		return live, err
	case !e.spec.PlanOnly:
		return nil, nil
	}
	if there, unknown := e.seen(ctx, k, about); unknown == nil && there == nil {
		return nil, nil
	}
	return nil, err
}

func (e *execution) create(ctx context.Context, k *kind, about subject, desired *unstructured.Unstructured, strict bool) (*metav1.PartialObjectMetadata, error) {
	deadline := e.Clock.Now().Add(quotaTimeout)
	var patience patience
	pause := 200 * time.Millisecond
	var waiting *waits.Wait
	defer func() { waiting.End() }()
	for {
		created, err := e.writer.create(ctx, k, desired, strict)
		switch {
		case err == nil:
			return created, nil
		case apierrors.IsConflict(err), apierrors.IsForbidden(err) && strings.Contains(err.Error(), "status unknown for quota"):
			// The usage of a quota changes, or is not counted yet.
		case apierrors.IsNotFound(err) && e.isDefined(k.group):
			// One of several API servers does not serve the kind yet.
		case e.yields(k, about, desired, err):
			continue
		case apierrors.IsInvalid(err) && k.group == extensionsGroup && strings.Contains(err.Error(), "openAPIV3Schema") && object.Loosen(desired):
			e.report.warn(about, "the cluster refuses its schema, which is of an older version of the API: it takes any object, and checks no fields: "+err.Error())
			continue
		default:
			makesRoom, unknown := patience.makesRoom(ctx, e, k, about, err)
			if unknown != nil {
				return nil, unknown
			}
			if !makesRoom {
				return nil, err
			}
			pause, deadline = quotaInterval, e.Clock.Now().Add(quotaTimeout)
		}
		if e.Clock.Now().After(deadline) {
			return nil, err
		}
		if waiting == nil {
			waiting = waits.For(ctx, about.namespace, fmt.Sprintf("%s to be accepted: %v", about, err))
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// carryOut carries out the decision about an existing object. again asks for a new one.
func (e *execution) carryOut(ctx context.Context, k *kind, item *manifest.Item, about subject, live *unstructured.Unstructured, d object.Decision) (a action, reason string, diff json.RawMessage, again bool, err error) {
	switch d.Action {
	case object.Equal:
		return actionSkip, isEqual, nil, false, nil
	case object.Remade:
		return actionSkip, "its controller has made it anew: " + listed(d.Kept), nil, false, nil
	case object.Keep:
		return actionConflict, differs(d), nil, false, nil
	case object.Conflict:
		advice := "delete it, or set existingResourcePolicy: recreate"
		if goesWith(k) != "" {
			advice = "change it by hand"
		}
		return actionError, "it is there, and fields differ that can't be changed: " + listed(d.Immutable) + ": " + advice, nil, false, nil
	}
	why, err := e.forbids(ctx, k, about, "patch")
	if err != nil {
		return 0, "", nil, false, err
	}
	if why != "" {
		a, reason := e.forbidden(item, k, why)
		return a, reason + ": it differs in " + differsIn(d), nil, false, nil
	}
	if d.Action == object.Recreate && goesWith(k) != "" {
		return actionError, stays(k, d.Immutable), nil, false, nil
	}
	if e.spec.PlanOnly {
		if d.Action == object.Update {
			return actionUpdate, changes(d), d.Patch, false, nil
		}
		return actionRecreate, listed(d.Immutable), nil, false, nil
	}
	if d.Action == object.Update {
		_, err = e.writer.patch(ctx, k, about.namespace, about.name, "", d.Patch, false)
		switch {
		case err == nil:
			return actionUpdate, changes(d), d.Patch, false, nil
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			return 0, "", nil, true, nil
		case apierrors.IsForbidden(err):
			if why, lacks := e.lacks(ctx, k, about, "patch", err); lacks == nil && why != "" {
				a, reason := e.forbidden(item, k, why)
				return a, reason + ": it differs in " + differsIn(d), nil, false, nil
			}
			return 0, "", nil, false, fmt.Errorf("it is there, and differs in %s, which can't be changed: %w", differsIn(d), err)
		case !apierrors.IsInvalid(err) || e.spec.ExistingResourcePolicy != v1alpha1.ExistingResourceRecreate:
			return 0, "", nil, false, fmt.Errorf("it is there, and differs in %s, which can't be changed: %w", differsIn(d), err)
		case goesWith(k) != "":
			return 0, "", nil, false, fmt.Errorf("%s: %w", stays(k, slices.Concat(d.Differs, d.Besides)), err)
		}
	}
	err = e.writer.delete(ctx, k, live)
	if apierrors.IsConflict(err) {
		return 0, "", nil, true, nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, "", nil, false, fmt.Errorf("it can't be deleted to be created anew: %w", err)
	}
	return 0, "", nil, true, e.awaitGone(ctx, k, live)
}

// goesWith names the loss with an object of a kind that no restore deletes, or returns "".
func goesWith(k *kind) string {
	switch k.name() {
	case "persistentvolumeclaims", "persistentvolumes":
		return "its data"
	case "namespaces":
		return "all that is in it"
	case "customresourcedefinitions." + extensionsGroup:
		return "all objects of its kind"
	}
	return ""
}

func stays(k *kind, fields []string) string {
	return fmt.Sprintf("it differs in %s, which can't be changed, and is not deleted, since %s would go with it: do that by hand", listed(fields), goesWith(k))
}

func (e *execution) awaitGone(ctx context.Context, k *kind, live *unstructured.Unstructured) error {
	timeout := goneTimeout
	if e.spec.ExistingResourcePolicy == v1alpha1.ExistingResourceRecreate {
		timeout = recreateTimeout
	}
	about := subject{k.name(), live.GetNamespace(), live.GetName()}
	waiting := waits.For(ctx, about.namespace, fmt.Sprintf("%s to be gone, which is being deleted: its finalizers are %v", about, live.GetFinalizers()))
	defer waiting.End()
	for deadline := e.Clock.Now().Add(timeout); ; {
		found, err := e.writer.get(ctx, k, live.GetNamespace(), live.GetName())
		if err != nil || found == nil || found.GetUID() != live.GetUID() {
			return err
		}
		if e.Clock.Now().After(deadline) {
			return fmt.Errorf("one of its name is being deleted, and is there after %s still: see what its finalizers %v wait for, and restore this again", timeout, found.GetFinalizers())
		}
		if err := sleep(ctx, 250*time.Millisecond); err != nil {
			return err
		}
	}
}

func explain(err error, converted bool, item *manifest.Item, k *kind) string {
	text := err.Error()
	if converted {
		text = fmt.Sprintf("the cluster does not serve it in version %s, and refuses it in %s: convert it by hand: %s", item.APIVersion, k.apiVersion(), text)
	}
	if name := unanswered(err); name != "" {
		text = fmt.Sprintf("the webhook %s has not answered for %s, and for %s at the end of the restore: see why, and restore this again: %s", name, webhookTimeout, webhookEndTimeout, text)
	}
	return text
}
