// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/graph"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
)

var claimKind = &kind{version: "v1", resource: "persistentvolumeclaims", kind: "PersistentVolumeClaim", namespaced: true}

// run restores or plans. An error means that not everything was tried.
func (e *execution) run(ctx context.Context) (err error) {
	for _, warning := range e.Backup.Warnings {
		e.report.warn(subject{}, warning)
	}
	if e.kinds, err = discover(ctx, e.Discovery); err != nil {
		return err
	}
	e.Backup.TakeVersions(e.kinds.best)
	e.volumes = map[types.NamespacedName]*source.Volume{}
	e.scratch = map[types.UID][]*source.Volume{}
	stored := e.Backup.Volumes
	if e.leavesVolumes() {
		stored = nil
	}
	for i := range stored {
		volume := &stored[i]
		if volume.ClaimName != "" {
			e.volumes[volume.Claim()] = volume
		} else if volume.Pod.UID != "" {
			e.scratch[volume.Pod.UID] = append(e.scratch[volume.Pod.UID], volume)
		}
	}
	if err := e.parseHooks(); err != nil {
		return err
	}
	if e.Modifiers != nil {
		if e.modifiers, err = object.ParseModifiers(e.Modifiers); err != nil {
			return &Refused{Reasons: []string{err.Error()}}
		}
	}
	items, others, err := e.choose(ctx)
	if err != nil {
		return err
	}
	e.leaveClaimsOfPods(items)
	e.graph = graph.Order(items, others, e.hasData)
	e.outcomes = make([]action, len(e.graph.Nodes))
	for _, item := range items {
		e.groups[listKey{resourceOf(item), e.target(item.Namespace)}]++
	}
	e.later = map[[2]string]bool{}
	for _, cut := range e.graph.Cut {
		if cut.Strength == graph.Owns {
			e.later[[2]string{cut.After.UID, cut.Before.UID}] = true
		}
	}
	if e.rules, err = e.compile(ctx, items); err != nil {
		return err
	}
	e.Progress.total.Store(int64(len(items)))
	if err := e.authorize(ctx); err != nil {
		return err
	}
	if err := e.spareVolumes(ctx, items); err != nil {
		return err
	}
	if err := e.findHalves(ctx, items); err != nil {
		return err
	}
	e.report.info(subject{}, fmt.Sprintf("%d objects are to be restored from the backup %s", len(items), e.request.Run.Spec.Backup.StoreName))
	if err := e.restoreAll(ctx); err != nil {
		return err
	}
	for _, text := range e.modifiers.Idle() {
		e.report.warn(subject{}, text)
	}
	if e.empty.Len() > 0 {
		e.report.warn(subject{}, fmt.Sprintf("claims come back empty, since restorePVs is false: %d (%s)", e.empty.Len(), e.empty.String()))
	}
	if err := e.mend(ctx); err != nil {
		return err
	}
	if err := e.tellOfLeft(ctx); err != nil {
		return err
	}
	e.forbiddenObjects.tell(e.report, e.request.SystemNamespace)
	if err := e.hooks.run(ctx); err != nil {
		return err
	}
	return e.lookAtMade(ctx)
}

func (e *execution) writesOver() bool {
	return e.spec.ExistingVolumePolicy == v1alpha1.ExistingVolumeOverwrite || e.spec.ExistingVolumePolicy == v1alpha1.ExistingVolumeReplace
}

func (e *execution) sparesData() bool { return !e.spec.VolumesOnly && !e.writesOver() }

// spareVolumes refuses the restore if it would overwrite a claim's data, or keeps that, by the
// spec. A part left by an earlier restore is written again.
func (e *execution) spareVolumes(ctx context.Context, items []*manifest.Item) error {
	if !e.sparesData() {
		return nil
	}
	here := &existing{cluster: e.reader, lists: map[listKey]*listing{}}
	var reasons []string
	for _, item := range items {
		if !e.hasData(item) || e.volumeOf(item).Problem != "" {
			continue
		}
		namespace := e.target(item.Namespace)
		live, err := here.find(ctx, claimKind, namespace, item.Name)
		if err != nil {
			return fmt.Errorf("find out which claims exist: %w", err)
		}
		switch {
		case live == nil || e.isOurs(live) || e.isPart(item, live):
		case e.inStorage(item) && (markOf(live) != nil || e.spec.ExistingVolumePolicy != v1alpha1.ExistingVolumeKeep):
			reasons = append(reasons, fmt.Sprintf("the claim %s/%s exists, and %s: delete it, restore into another namespace, or leave it out", namespace, item.Name, onlyNew))
		case markOf(live) != nil:
			reasons = append(reasons, fmt.Sprintf("the claim %s/%s holds a part of other data, over which an earlier restore was stopped, or was used since: leave it out, delete it, or set existingVolumePolicy to overwrite (other files stay) or replace (they are removed)", namespace, item.Name))
		case e.spec.ExistingVolumePolicy == v1alpha1.ExistingVolumeKeep:
			e.keepData(item)
		default:
			since := ""
			if live.GetAnnotations()[object.AnnotationRestoreUID] != "" {
				since = ", since an earlier restore made it"
			}
			reasons = append(reasons, fmt.Sprintf("the claim %s/%s exists with its data%s: set existingVolumePolicy to keep (its data stays, and the rest is restored), overwrite (files of the same name are replaced) or replace (it becomes as in the backup), or leave the claim out", namespace, item.Name, since))
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	slices.Sort(reasons)
	if more := len(reasons) - 20; more > 0 {
		reasons = append(reasons[:20], fmt.Sprintf("and %d more", more))
	}
	return &Refused{Reasons: reasons}
}

// mend sets owners restored after their objects, in circles.
func (e *execution) mend(ctx context.Context) error {
	if e.spec.PlanOnly {
		return nil
	}
	e.mending = true
	for _, cut := range e.graph.Cut {
		if cut.Strength != graph.Owns {
			continue
		}
		about := e.subject(cut.After)
		if err := e.own(ctx, cut.After, about); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			e.report.fail(about, "its owners, one of which it owns itself, are not set: "+err.Error())
		}
	}
	return nil
}

func (e *execution) own(ctx context.Context, item *manifest.Item, about subject) error {
	content, err := e.Backup.Object(ctx, item)
	if err != nil {
		return err
	}
	k, err := e.kinds.find(item)
	if err != nil {
		return err
	}
	desired, _, err := e.rules.Desired(ctx, content, schema.GroupResource{Group: item.APIGroup, Resource: item.Resource}, e.ownersOf(item))
	if err != nil {
		return err
	}
	return e.setOwners(ctx, k, about, desired)
}

func (e *execution) setOwners(ctx context.Context, k *kind, about subject, desired *unstructured.Unstructured) error {
	owners, found, _ := unstructured.NestedSlice(desired.Object, "metadata", "ownerReferences")
	if !found {
		return nil
	}
	for range attempts {
		live, err := e.writer.get(ctx, k, about.namespace, about.name)
		if err != nil || live == nil || !e.isOurs(live) || equality.Semantic.DeepEqual(live.GetOwnerReferences(), desired.GetOwnerReferences()) {
			return err
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"ownerReferences": owners, "uid": live.GetUID(), "resourceVersion": live.GetResourceVersion(),
		}})
		if err != nil {
			return err
		}
		if _, err = e.writer.patch(ctx, k, about.namespace, about.name, "", patch, false); !apierrors.IsConflict(err) {
			return err
		}
	}
	return fmt.Errorf("it changes all the time: %d times while they were set", attempts)
}

func (e *execution) setStatus(ctx context.Context, k *kind, about subject, status map[string]any, uid types.UID) error {
	if status == nil || !k.status {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}, "status": status})
	if err != nil {
		return err
	}
	if _, err := e.writer.patch(ctx, k, about.namespace, about.name, "status", patch, false); err != nil {
		return fmt.Errorf("it is there, but its status could not be set: %w", err)
	}
	return nil
}

func (e *execution) compile(ctx context.Context, items []*manifest.Item) (*object.Rules, error) {
	restored := make(map[types.UID]bool, len(items))
	for _, item := range items {
		restored[types.UID(item.UID)] = item.UID != ""
	}
	e.restored = restored
	return object.NewRules(e.spec, e.modifiers, object.Facts{
		Called:     e.called,
		RestoreUID: e.request.Run.UID,
		TakesNewVolume: func(namespace, name string) bool {
			return e.leavesVolumes() || e.volumes[types.NamespacedName{Namespace: namespace, Name: name}] != nil
		},
		KeepsVolume: e.keeps,
		Restored:    func(uid types.UID) bool { return restored[uid] },
		StatusIsField: func(gvk schema.GroupVersionKind) bool {
			k, err := e.kinds.find(&manifest.Item{APIGroup: gvk.Group, APIVersion: gvk.Version, KindName: gvk.Kind})
			return err == nil && !k.status && !scheme.Scheme.IsGroupRegistered(gvk.Group)
		},
		Template: func(deployment types.UID) string {
			digest, _ := e.templates.Load(deployment)
			found, _ := digest.(string)
			return found
		},
		OpenShift: e.isOpenShift(),
		Remade:    func(namespace, secret string) bool { return e.isRemade(ctx, namespace, secret) },
	})
}
