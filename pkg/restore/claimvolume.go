// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/holdfast-io/holdfast/pkg/manifest"
)

var volumeKind = &kind{version: "v1", resource: "persistentvolumes", kind: "PersistentVolume"}

func isClaim(item *manifest.Item) bool {
	return item.APIGroup == "" && item.KindName == claimKind.kind
}

func isVolume(item *manifest.Item) bool {
	return item.APIGroup == "" && item.KindName == volumeKind.kind
}

// decideVolume decides whether a restored claim keeps the name of its PersistentVolume. If that is
// missing, or bound elsewhere, the claim would stay Pending. The graph orders volumes before
// claims.
func (e *execution) decideVolume(ctx context.Context, item *manifest.Item, about subject, content *unstructured.Unstructured) error {
	name, _, _ := unstructured.NestedString(content.Object, "spec", "volumeName")
	if !isClaim(item) || name == "" || e.hasData(item) || e.leavesVolumes() || e.request.tenant() || about.namespace != item.Namespace {
		return nil
	}
	keeps, err := e.keepsVolume(ctx, item, about, name)
	if err != nil {
		return fmt.Errorf("find out whether its volume %s is free for it: %w", name, err)
	}
	if keeps {
		e.mu.Lock()
		e.kept[types.NamespacedName{Namespace: item.Namespace, Name: item.Name}] = true
		e.mu.Unlock()
	}
	return nil
}

func (e *execution) keeps(namespace, name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.kept[types.NamespacedName{Namespace: namespace, Name: name}]
}

func (e *execution) keepsVolume(ctx context.Context, item *manifest.Item, about subject, name string) (bool, error) {
	for range attempts {
		volume, err := e.reader.get(ctx, volumeKind, "", name)
		if err != nil {
			return false, err
		}
		if volume == nil {
			return e.spec.PlanOnly && e.createsVolume(name), nil
		}
		if volume.GetDeletionTimestamp() != nil {
			return false, nil
		}
		reference, bound, _ := unstructured.NestedMap(volume.Object, "spec", "claimRef")
		if !bound {
			return true, nil
		}
		if reference["namespace"] != about.namespace || reference["name"] != about.name {
			return false, nil
		}
		uid, _ := reference["uid"].(string)
		if uid == "" {
			return true, nil
		}
		claim, err := e.reader.get(ctx, claimKind, about.namespace, about.name)
		if err != nil {
			return false, err
		}
		if claim != nil {
			had, _, _ := unstructured.NestedString(claim.Object, "spec", "volumeName")
			return had == name, nil
		}
		if e.spec.PlanOnly {
			return true, nil
		}
		taken, err := e.takeOver(ctx, volume, uid)
		switch {
		case apierrors.IsConflict(err):
			continue
		case apierrors.IsForbidden(err):
			e.report.warn(about, fmt.Sprintf("its volume %s still has its data, and was not given to it: the restore may not change persistent volumes: %v", name, err))
			return false, nil
		case err != nil:
			return false, err
		case taken && uid != item.UID:
			e.report.warn(about, fmt.Sprintf("it takes over the volume %s with the data that is in it: a later claim of this name has written there since the backup", name))
		case taken:
			e.report.info(about, fmt.Sprintf("it takes over its volume %s, which was kept, with the data that is in it", name))
		}
		return taken, nil
	}
	return false, fmt.Errorf("it changes all the time: %d times while it was read", attempts)
}

// takeOver frees a volume, unchanged since it was read, from a deleted claim for the next one of
// that name.
func (e *execution) takeOver(ctx context.Context, volume *unstructured.Unstructured, uid string) (bool, error) {
	if phase, _, _ := unstructured.NestedString(volume.Object, "status", "phase"); phase != "Released" && phase != "Bound" {
		return false, nil // the provisioner has given it up
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": volume.GetUID(), "resourceVersion": volume.GetResourceVersion()},
		"spec":     map[string]any{"claimRef": map[string]any{"uid": nil, "resourceVersion": nil}},
	})
	if err != nil {
		return false, err
	}
	if policy, _, _ := unstructured.NestedString(volume.Object, "spec", "persistentVolumeReclaimPolicy"); policy != "Retain" {
		return false, nil // its storage is about to be deleted
	}
	_, err = e.writer.patch(ctx, volumeKind, "", volume.GetName(), "", patch, false)
	return err == nil, err
}

func (e *execution) createsVolume(name string) bool {
	for i := range e.graph.Nodes {
		if item := e.graph.Nodes[i].Item; item != nil && isVolume(item) && item.Name == name {
			return e.outcomes[i] == actionCreate
		}
	}
	return false
}

// elsewhere returns why a PersistentVolume of another cluster is not created, or "": two clusters
// would write to its storage, unless the spec asks for it.
func (e *execution) elsewhere(ctx context.Context, item *manifest.Item) (string, error) {
	if !isVolume(item) || e.ClusterUID == "" || ptr.Deref(e.spec.RestorePVs, false) {
		return "", nil
	}
	from := "a cluster that is not known"
	if origin := e.Backup.Metadata.Status.Origin; origin != nil && origin.ClusterUID != "" {
		if origin.ClusterUID == e.ClusterUID {
			return "", nil
		}
		from = "the cluster " + origin.ClusterUID
	}
	live, err := e.reader.get(ctx, volumeKind, "", item.Name)
	if err != nil || live != nil {
		return "", err
	}
	return "it points at storage of " + from + ", which made the backup and may use it: set restorePVs: true to create it all the same", nil
}
