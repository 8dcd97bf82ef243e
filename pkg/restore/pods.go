// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
)

// Volumes without a claim, such as emptyDirs, are filled through the pod that has them, if
// the restore creates it: it waits for its data before its first container. A pod that its
// controller makes anew has a new name, and its volumes are empty. A volume that outlives its
// pod, such as an NFS export, holds what others may use: it is written only if the spec says
// that existing data is overwritten or replaced.

// scratchOf are the volumes without a claim of which the backup has the data, of a pod.
func (e *execution) scratchOf(item *manifest.Item) []*source.Volume {
	if item.APIGroup != "" || item.KindName != "Pod" || !ptr.Deref(e.spec.RestorePVs, true) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(e.scratch[types.UID(item.UID)]), func(volume *source.Volume) bool {
		return volume.Pod.Namespace != item.Namespace
	})
}

// warnOfEmpty names the volumes of a pod that are empty when its controller makes it anew.
func (e *execution) warnOfEmpty(item *manifest.Item) {
	var names []string
	for _, volume := range e.scratchOf(item) {
		names = append(names, volume.Name)
	}
	if len(names) > 0 {
		e.report.warn(e.subject(item), fmt.Sprintf("its volumes %s, which have no claim, are empty in the pod that is made in its place: their data stays in the backup", strings.Join(names, ", ")))
	}
}

// waiting is an object as it is created: a pod that is to have data waits for that. It is another
// one then, since the object may be created again, or be compared with one that did not wait.
func (e *execution) waiting(ctx context.Context, k *kind, about subject, desired *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if k.group != "" || k.kind != "Pod" || e.Volumes == nil || !ptr.Deref(e.spec.RestorePVs, true) {
		return desired, nil
	}
	volumes, _, err := unstructured.NestedSlice(desired.Object, "spec", "volumes")
	if err != nil {
		return nil, fmt.Errorf("reading the pod's volumes: %w", err)
	}
	uid := types.UID(desired.GetAnnotations()[object.AnnotationOriginalUID])
	data := dataOf(slices.DeleteFunc(slices.Clone(e.scratch[uid]), func(volume *source.Volume) bool {
		// The data of a pod of another namespace is in the repository of that namespace.
		if e.target(volume.Pod.Namespace) != desired.GetNamespace() {
			return true
		}
		if e.isSpared(uid, volume.Name) {
			return true
		}
		// What was put into the pod, and is not restored, is put there anew.
		gone := volumeNamed(volumes, volume.Name) == nil
		if gone {
			e.report.warn(about, fmt.Sprintf("the data of its volume %s is not restored: the pod had the volume from a service mesh or an earlier restore, and is restored without", volume.Name))
		}
		return gone
	}))
	if len(data) == 0 {
		return desired, nil
	}
	pod := desired.DeepCopy()
	return pod, e.Volumes.Hold(ctx, pod, data)
}

// spareVolumesOf decides which volumes of a pod are not filled, and says so. The pod is as it
// is created, since a modifier may change the type of a volume. A restore that goes on after a
// restart decides the same.
func (e *execution) spareVolumesOf(item *manifest.Item, about subject, desired *unstructured.Unstructured) {
	if e.writesOver() {
		return
	}
	scratch := e.scratchOf(item)
	if len(scratch) == 0 {
		return
	}
	volumes, _, _ := unstructured.NestedSlice(desired.Object, "spec", "volumes")
	for _, volume := range scratch {
		source := volumeNamed(volumes, volume.Name)
		if source == nil || source["emptyDir"] != nil || source["ephemeral"] != nil {
			continue
		}
		e.mu.Lock()
		e.sparedVolumes[types.NamespacedName{Namespace: item.UID, Name: volume.Name}] = true
		e.mu.Unlock()
		e.report.warn(about, fmt.Sprintf("the data of its volume %s (%s) is not restored, since others may use what is there: set existingVolumePolicy to overwrite (other files stay) or replace (they are removed)",
			volume.Name, typeOf(source)))
	}
}

func (e *execution) isSpared(pod types.UID, volume string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sparedVolumes[types.NamespacedName{Namespace: string(pod), Name: volume}]
}

// volumeNamed returns a volume of a pod's spec, or nil.
func volumeNamed(volumes []any, name string) map[string]any {
	for _, v := range volumes {
		if volume, _ := v.(map[string]any); volume["name"] == name {
			return volume
		}
	}
	return nil
}

// typeOf returns the type of a volume, as its field in the pod's spec is called.
func typeOf(volume map[string]any) string {
	for _, field := range slices.Sorted(maps.Keys(volume)) {
		if field != "name" {
			return field
		}
	}
	return "of no type"
}

// dataOf are the volumes whose data can be restored.
func dataOf(volumes []*source.Volume) (data []format.Volume) {
	for _, volume := range volumes {
		if volume.Problem == "" {
			data = append(data, volume.Volume)
		}
	}
	return data
}

// fill returns when a pod that this restore has created has its data, and goes on.
func (e *execution) fill(ctx context.Context, item *manifest.Item, about subject) error {
	volumes := slices.DeleteFunc(e.scratchOf(item), func(volume *source.Volume) bool { return e.isSpared(types.UID(item.UID), volume.Name) })
	for _, volume := range volumes {
		if volume.Problem != "" {
			e.report.fail(about, fmt.Sprintf("the data of its volume %s is not in the backup: %s", volume.Name, volume.Problem))
		}
	}
	data := dataOf(volumes)
	switch {
	case len(data) == 0:
		return nil
	case e.Volumes == nil:
		return errors.New("the data of its volumes is not restored: this Holdfast restores no volumes")
	}
	return e.Volumes.Pod(ctx, about.namespace, about.name, data)
}
