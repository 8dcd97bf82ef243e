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

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
)

// Volumes without a claim, such as emptyDirs, are filled through their pod, which waits, if the
// restore creates it. A pod made by its controller has empty volumes. A volume that outlives its
// pod, such as an NFS export, is written only if the spec overwrites or replaces existing data.

// scratchOf returns a pod's volumes without a claim that have data in the backup.
func (e *execution) scratchOf(item *manifest.Item) []*source.Volume {
	if item.APIGroup != "" || item.KindName != "Pod" {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(e.scratch[types.UID(item.UID)]), func(volume *source.Volume) bool {
		return volume.Pod.Namespace != item.Namespace
	})
}

func (e *execution) warnOfEmpty(item *manifest.Item) {
	var names []string
	for _, volume := range e.scratchOf(item) {
		names = append(names, volume.Name)
	}
	if len(names) > 0 {
		e.report.warn(e.subject(item), fmt.Sprintf("its volumes %s, which have no claim, are empty in the pod that is made in its place: their data stays in the backup", strings.Join(names, ", ")))
	}
}

// waiting returns the object to create: a pod with data waits for it. It is a copy, since the
// original may be compared or created again.
func (e *execution) waiting(ctx context.Context, k *kind, about subject, desired *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if k.group != "" || k.kind != "Pod" || e.Volumes == nil {
		return desired, nil
	}
	volumes, _, err := unstructured.NestedSlice(desired.Object, "spec", "volumes")
	if err != nil {
		return nil, fmt.Errorf("reading the pod's volumes: %w", err)
	}
	uid := types.UID(desired.GetAnnotations()[object.AnnotationOriginalUID])
	data := dataOf(slices.DeleteFunc(slices.Clone(e.scratch[uid]), func(volume *source.Volume) bool {
		// The data of another namespace's pod is in that namespace's repository.
		if e.target(volume.Pod.Namespace) != desired.GetNamespace() {
			return true
		}
		if e.isSpared(uid, volume.Name) {
			return true
		}
		// A service mesh adds its volumes anew.
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

// spareVolumesOf decides which volumes of a pod are not filled, the same after a restart, and
// reports them. It takes the pod as created, since a modifier may change a volume's type.
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

func volumeNamed(volumes []any, name string) map[string]any {
	for _, v := range volumes {
		if volume, _ := v.(map[string]any); volume["name"] == name {
			return volume
		}
	}
	return nil
}

func typeOf(volume map[string]any) string {
	for _, field := range slices.Sorted(maps.Keys(volume)) {
		if field != "name" {
			return field
		}
	}
	return "of no type"
}

func dataOf(volumes []*source.Volume) (data []format.Volume) {
	for _, volume := range volumes {
		if volume.Problem == "" {
			data = append(data, volume.Volume)
		}
	}
	return data
}

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
