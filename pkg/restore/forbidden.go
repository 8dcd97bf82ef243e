// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
)

const (
	mayNotRead  = "the requester of the restore may not read it"
	mayNotWrite = "the requester of the restore may not %s it"
)

type forbiddenObjects struct {
	mu     sync.Mutex
	counts map[string]int
}

func (f *forbiddenObjects) tell(report *report, systemNamespace string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.counts) == 0 {
		return
	}
	total := 0
	var kinds []string
	for _, resource := range slices.Sorted(maps.Keys(f.counts)) {
		total += f.counts[resource]
		kinds = append(kinds, fmt.Sprintf("%d %s", f.counts[resource], resource))
	}
	report.warn(subject{}, fmt.Sprintf("objects that the requester may not write are not as in the backup: %d (%s): the plan names them; ask for a restore in the namespace %s", total, listed(kinds), systemNamespace))
}

// isBinding reports whether a tenant's restore may only find, and not write, objects of this kind.
func (e *execution) isBinding(k *kind) bool {
	return e.request.tenant() && k.group == "rbac.authorization.k8s.io" && (k.kind == "RoleBinding" || k.kind == "ClusterRoleBinding")
}

// forbids says why a tenant's requester may not do something, or returns "". It asks only for a
// plan; else the request tells.
func (e *execution) forbids(ctx context.Context, k *kind, about subject, verb string) (string, error) {
	switch {
	case e.isBinding(k):
		return refusedBinding, nil
	case !e.request.tenant() || !e.spec.PlanOnly || e.spec.VolumesOnly || k.promised:
		return "", nil
	}
	return e.mayNot(ctx, k, about, verb)
}

// lacks says which right was missing when the server refused, or returns "" for another reason,
// such as a quota.
func (e *execution) lacks(ctx context.Context, k *kind, about subject, verb string, failure error) (string, error) {
	if !apierrors.IsForbidden(failure) || !e.request.tenant() {
		return "", nil
	}
	return e.mayNot(ctx, k, about, verb)
}

func (e *execution) mayNot(ctx context.Context, k *kind, about subject, verb string) (string, error) {
	right := Right{Verb: verb, Group: k.group, Resource: k.resource}
	if k.namespaced {
		right.Namespace = about.namespace
	}
	if verb != "create" {
		right.Name = about.name
	}
	allowed, err := e.allowed(ctx, right)
	if err != nil || allowed {
		return "", err
	}
	return fmt.Sprintf(mayNotWrite, verb), nil
}

// leave decides about an object that a tenant's requester may not read or write. It needs no report
// if an equal one exists, or if Kubernetes makes it.
func (e *execution) leave(ctx context.Context, k *kind, item *manifest.Item, about subject, desired *unstructured.Unstructured, why string) (types.UID, action, string) {
	if live := e.standing(ctx, k, about, desired); live != nil {
		return live.GetUID(), actionSkip, isEqual
	}
	if maker := e.makerOf(ctx, item); maker != "" {
		return "", actionLeave, maker + " makes it"
	}
	if !k.namespaced {
		if live, err := e.seen(ctx, k, about); err == nil && live != nil {
			// Others share it: it needs no restoring.
			return live.GetUID(), actionSkip, "it is there, and the requester of the restore may not change it"
		}
	}
	a, reason := e.forbidden(item, k, why)
	return "", a, reason
}

// forbidden decides about a differing object that may not be written. It is an error if the restore
// names it or its kind, or if data would be missing; else it is counted.
func (e *execution) forbidden(item *manifest.Item, k *kind, why string) (action, string) {
	if e.named[item] || e.hasData(item) {
		return actionRefused, why
	}
	e.forbiddenObjects.mu.Lock()
	defer e.forbiddenObjects.mu.Unlock()
	if e.forbiddenObjects.counts == nil {
		e.forbiddenObjects.counts = map[string]int{}
	}
	e.forbiddenObjects.counts[k.name()]++
	return actionForbidden, why
}

// standing returns the existing object if it equals the desired one, else nil. The controller may
// read it in place of the requester, except Secrets and modified objects: the answer would reveal
// their content.
func (e *execution) standing(ctx context.Context, k *kind, about subject, desired *unstructured.Unstructured) *unstructured.Unstructured {
	if k.promised {
		return nil
	}
	live, err := e.writer.get(ctx, k, about.namespace, about.name)
	if apierrors.IsForbidden(err) && e.Modifiers == nil && (k.group != "" || k.kind != "Secret") {
		live, err = e.seen(ctx, k, about)
	}
	if err != nil || live == nil || live.GetDeletionTimestamp() != nil {
		return nil
	}
	if object.Compare(live, desired, nil, v1alpha1.ExistingResourceNone).Action != object.Equal {
		return nil
	}
	return live
}

// seen returns the object as the controller sees it, or nil.
func (e *execution) seen(ctx context.Context, k *kind, about subject) (*unstructured.Unstructured, error) {
	page, _, err := e.reader.list(ctx, k, about.namespace, "metadata.name="+about.name, "")
	if err != nil || len(page) == 0 {
		return nil, err
	}
	return parseItem(k, page[0])
}

// makers are kinds whose controllers make again what they own.
var makers = map[schema.GroupKind]bool{
	{Kind: "Service"}: true, {Kind: "ReplicationController"}: true, {Group: "apps", Kind: "Deployment"}: true, {Group: "apps", Kind: "ReplicaSet"}: true,
	{Group: "apps", Kind: "StatefulSet"}: true, {Group: "apps", Kind: "DaemonSet"}: true, {Group: "batch", Kind: "Job"}: true, {Group: "batch", Kind: "CronJob"}: true,
}

// makerOf names the backup's object, existing or to be restored, for which Kubernetes makes the
// item, or returns "".
func (e *execution) makerOf(ctx context.Context, item *manifest.Item) string {
	name := func(owner *manifest.Item) string { return "the " + owner.KindName + " " + owner.Name }
	e.indexItems()
	for _, uid := range item.OwnerUIDs {
		owner := e.byUID[uid]
		if owner == nil || !makers[schema.GroupKind{Group: owner.APIGroup, Kind: owner.KindName}] {
			continue
		}
		e.mu.Lock()
		there := e.uids[types.UID(uid)] != ""
		e.mu.Unlock()
		if there || e.restored[types.UID(uid)] {
			return name(owner)
		}
	}
	if item.APIGroup != "" || item.KindName != "Endpoints" {
		return ""
	}
	for _, service := range e.Backup.Items {
		if service.APIGroup != "" || service.KindName != "Service" || service.Namespace != item.Namespace || service.Name != item.Name {
			continue
		}
		content, err := e.Backup.Object(ctx, service)
		if err != nil {
			return ""
		}
		if selector, _, _ := unstructured.NestedMap(content.Object, "spec", "selector"); len(selector) > 0 {
			return name(service)
		}
	}
	return ""
}
