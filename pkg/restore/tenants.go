// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Reasons why a tenant's restore does not write an object, even if its requester could: a right
// covers verb and kind, and here the power is in the content. Change docs/security.md with them.
const (
	refusedVolume   = "a tenant's restore brings no persistent volume back: the claim gets a new one"
	refusedToken    = "a tenant's restore brings no token of a ServiceAccount back: it would be a credential made for whoever restores; have a new one made"
	refusedHostPath = "a tenant's restore brings back nothing that mounts a path of its node (hostPath): ask an administrator to restore it"
	refusedBinding  = "a tenant's restore brings no binding of a role back, which may have been taken away on purpose: ask an administrator, or create it anew"
	refusedAccount  = "its pods would run as the ServiceAccount %s, and the requester of the restore may not impersonate that"
)

var podSpecs = map[schema.GroupKind][]string{
	{Kind: "Pod"}:                               {"spec"},
	{Kind: "PodTemplate"}:                       {"template", "spec"},
	{Kind: "ReplicationController"}:             {"spec", "template", "spec"},
	{Group: "apps", Kind: "Deployment"}:         {"spec", "template", "spec"},
	{Group: "apps", Kind: "ReplicaSet"}:         {"spec", "template", "spec"},
	{Group: "apps", Kind: "StatefulSet"}:        {"spec", "template", "spec"},
	{Group: "apps", Kind: "DaemonSet"}:          {"spec", "template", "spec"},
	{Group: "batch", Kind: "Job"}:               {"spec", "template", "spec"},
	{Group: "batch", Kind: "CronJob"}:           {"spec", "jobTemplate", "spec", "template", "spec"},
	{Group: "apps", Kind: "ControllerRevision"}: {"data", "spec", "template", "spec"},
}

// refuse says what a tenant's restore leaves out by rule, or actionNone.
func (e *execution) refuse(ctx context.Context, content *unstructured.Unstructured, about subject) (action, string) {
	if !e.request.tenant() {
		return actionNone, ""
	}
	gk := content.GroupVersionKind().GroupKind()
	switch gk {
	case schema.GroupKind{Kind: "Namespace"}:
		return actionLeave, "a tenant's restore writes into namespaces that exist, and does not change them"
	case schema.GroupKind{Kind: "PersistentVolume"}:
		return actionLeave, refusedVolume
	case schema.GroupKind{Kind: "Secret"}:
		if kind, _, _ := unstructured.NestedString(content.Object, "type"); kind == string(corev1.SecretTypeServiceAccountToken) {
			return actionRefused, refusedToken
		}
	}
	if path, ok := podSpecs[gk]; ok {
		return e.refusePods(ctx, content, path, about)
	}
	return actionNone, ""
}

func (e *execution) refusePods(ctx context.Context, content *unstructured.Unstructured, path []string, about subject) (action, string) {
	found, _, _ := unstructured.NestedMap(content.Object, path...)
	var spec struct {
		ServiceAccountName string `json:"serviceAccountName"`
		ServiceAccount     string `json:"serviceAccount"`
		Volumes            []struct {
			HostPath *json.RawMessage `json:"hostPath"`
		} `json:"volumes"`
	}
	raw, err := json.Marshal(found)
	if err == nil {
		err = json.Unmarshal(raw, &spec)
	}
	if err != nil {
		return actionRefused, "the spec of its pods can't be read: " + err.Error()
	}
	for _, volume := range spec.Volumes {
		if volume.HostPath != nil {
			return actionRefused, refusedHostPath
		}
	}
	if account := cmp.Or(spec.ServiceAccountName, spec.ServiceAccount); account != "" && account != "default" {
		allowed, err := e.allowed(ctx, Right{Verb: "impersonate", Resource: "serviceaccounts", Namespace: about.namespace, Name: account})
		if err != nil {
			return actionError, err.Error()
		}
		if !allowed {
			return actionRefused, fmt.Sprintf(refusedAccount, account)
		}
	}
	return actionNone, ""
}

func (e *execution) allowed(ctx context.Context, right Right) (bool, error) {
	if known, ok := e.rights.Load(right); ok {
		return known.(bool), nil
	}
	allowed, err := e.Allowed(ctx, right)
	if err != nil {
		return false, fmt.Errorf("find out what the requester of the restore may do: %w", err)
	}
	e.rights.Store(right, allowed)
	return allowed, nil
}

// authorize checks the requester's rights in all namespaces that the restore reads and writes: the
// check at the creation may be old.
func (e *execution) authorize(ctx context.Context) error {
	if !e.request.tenant() {
		return nil
	}
	spec := &e.request.Run.Spec
	if spec.NamespaceUID != "" {
		own, err := e.reader.get(ctx, namespaceKind, "", spec.RestoreRef.Namespace)
		if err != nil {
			return err
		}
		if own == nil || own.GetUID() != spec.NamespaceUID {
			return &Refused{Reasons: []string{fmt.Sprintf("the namespace %s in which the restore was asked for is gone", spec.RestoreRef.Namespace)}}
		}
	}
	from, to := map[string]bool{}, map[string]bool{}
	for i := range e.graph.Nodes {
		if item := e.graph.Nodes[i].Item; item != nil && item.Namespace != "" {
			from[item.Namespace], to[e.target(item.Namespace)] = true, true
		}
	}
	var reasons []string
	for _, places := range []map[string]bool{from, to} {
		for namespace := range places {
			allowed, err := e.allowed(ctx, Right{Verb: "create", Group: "holdfast.io", Resource: "restores", Namespace: namespace})
			if err != nil {
				return err
			}
			if !allowed {
				reasons = append(reasons, fmt.Sprintf("the requester may not create restores in the namespace %s", namespace))
			}
		}
	}
	strange, err := e.formerOwners(ctx, from)
	if err != nil {
		return err
	}
	reasons = append(reasons, strange...)
	for namespace := range from {
		if e.target(namespace) == namespace {
			continue
		}
		// Readers of the other namespace would see this one's content.
		allowed, err := e.allowed(ctx, Right{Verb: "get", Resource: "secrets", Namespace: namespace})
		if err != nil {
			return err
		}
		if !allowed {
			reasons = append(reasons, fmt.Sprintf("the requester may not read the secrets of the namespace %s, which the restore would show in %s", namespace, e.target(namespace)))
		}
	}
	for namespace := range to {
		there, err := e.namespaces.settled(ctx, e, namespace)
		switch {
		case err != nil:
			return err
		case there == nil:
			reasons = append(reasons, fmt.Sprintf("the namespace %s does not exist: only a restore in the system namespace creates namespaces", namespace))
		}
	}
	if len(reasons) > 0 {
		slices.Sort(reasons)
		return &Refused{Reasons: slices.Compact(reasons)}
	}
	return nil
}

// formerOwners returns the backup's namespaces that are not the present ones of their names: a
// right in one gives none to the other's content. The restore's own was compared when the backup
// was listed.
func (e *execution) formerOwners(ctx context.Context, from map[string]bool) (reasons []string, err error) {
	if e.Continues == nil {
		return nil, nil
	}
	uids := map[string]types.UID{}
	if origin := e.Backup.Metadata.Status.Origin; origin != nil {
		uids[origin.Namespace] = origin.NamespaceUID
	}
	for _, item := range e.Backup.Items {
		if item.APIGroup == "" && item.KindName == namespaceKind.kind && item.UID != "" {
			uids[item.Name] = types.UID(item.UID)
		}
	}
	for _, namespace := range slices.Sorted(maps.Keys(from)) {
		same, err := e.Continues(ctx, namespace, uids[namespace])
		if err != nil {
			return nil, fmt.Errorf("find out whether the namespace %s is the backup's: %w", namespace, err)
		}
		if !same {
			reasons = append(reasons, fmt.Sprintf("the backup holds another namespace %s than the present one, which was made anew since: only a restore in the namespace %s takes it", namespace, e.request.SystemNamespace))
		}
	}
	return reasons, nil
}
