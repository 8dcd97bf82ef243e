// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var bindingAnnotations = []string{
	"pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller",
	"volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner",
	"volume.kubernetes.io/selected-node",
}

// staleLabels are from an earlier restore or backup of Velero.
var staleLabels = []string{"velero.io/restore-name", "velero.io/backup-name", "velero.io/volume-snapshot-name"}

// veleroPrefix begins the labels by which Velero's restore finds a volume.
const veleroPrefix = "velero.io/"

// storedClaim returns a claim without source and binding, which hold only in this cluster, as Velero.
// h.original keeps the removed fields.
func storedClaim(h *head, raw []byte) ([]byte, error) {
	var object map[string]any
	if err := decode(raw, &object); err != nil {
		return nil, err
	}
	phase, _, _ := unstructured.NestedString(object, "status", "phase")
	volume, _, _ := unstructured.NestedString(object, "spec", "volumeName")
	if phase != string(corev1.ClaimBound) || volume == "" {
		return raw, nil
	}
	removed := map[string]any{}
	remove := func(path ...string) {
		if value, found, err := unstructured.NestedFieldNoCopy(object, path...); err == nil && found {
			unstructured.RemoveNestedField(object, path...)
			_ = unstructured.SetNestedField(removed, value, path...)
		}
	}
	remove("spec", "dataSource")
	remove("spec", "dataSourceRef")
	if class, named, _ := unstructured.NestedString(object, "spec", "storageClassName"); !named || class != "" {
		remove("spec", "selector")
	} else if wanted, _, _ := unstructured.NestedMap(object, "spec", "selector", "matchLabels"); wanted != nil {
		for key := range wanted {
			if strings.HasPrefix(key, veleroPrefix) {
				remove("spec", "selector", "matchLabels", key)
			}
		}
	}
	for _, key := range bindingAnnotations {
		remove("metadata", "annotations", key)
		delete(h.Metadata.Annotations, key)
	}
	for _, key := range staleLabels {
		remove("metadata", "labels", key)
		delete(h.Metadata.Labels, key)
	}
	if len(removed) == 0 {
		return raw, nil
	}
	var err error
	if h.original, err = json.Marshal(removed); err != nil {
		return nil, err
	}
	return json.Marshal(object)
}
