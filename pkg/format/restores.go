// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// RestoresPrefix is the folder of what is told of restores, as Velero has it.
const RestoresPrefix = "restores/"

// RestoreStoreName is the name in the store of a restore: as that of a backup, with a
// digest of the uid behind it. A restore's name is free again when its record is gone, and
// other clusters use the same ones, so that without it two restores would share a folder,
// and one of them would have to be told so at its end.
func RestoreStoreName(namespace, name, systemNamespace string, uid types.UID) string {
	sum := sha256.Sum256([]byte(uid))
	return StoreName(namespace, name, systemNamespace) + "-" + hex.EncodeToString(sum[:5])
}

// restoreName is how the name in the store of a restore ends.
var restoreName = regexp.MustCompile(`^(.+)-[0-9a-f]{10}$`)

// RestoreStoreNameOf gives the store name to which a folder of RestoresPrefix belongs, as a
// listing with the delimiter "/" returns it. It is false for what is none of Holdfast's.
func RestoreStoreNameOf(folder string) (string, bool) {
	name, isFolder := strings.CutSuffix(strings.TrimPrefix(folder, RestoresPrefix), "/")
	return name, isFolder && restoreName.MatchString(name) && ValidateStoreName(name) == nil
}

// IsRestoreStoreName reports whether a store name is one that a restore has, in a cluster
// whose system namespace may have any name.
func IsRestoreStoreName(storeName string, restore *holdfast.Restore) bool {
	return restore.UID != "" && restore.Name != "" && restore.Namespace != "" &&
		(storeName == RestoreStoreName(restore.Namespace, restore.Name, "", restore.UID) ||
			storeName == RestoreStoreName(restore.Namespace, restore.Name, restore.Namespace, restore.UID))
}

// RestoreResultsKey holds the errors and warnings of a restore, as Results.
func RestoreResultsKey(storeName string) string { return restoreKey(storeName, "-results.gz") }

// RestoreLogKey is the restore's own log, gzipped lines of text.
func RestoreLogKey(storeName string) string { return restoreKey(storeName, "-logs.gz") }

// RestoreResourceListKey names every object of the restore and what became of it, as
// ResourceList; the texts are those of RestoredName.
func RestoreResourceListKey(storeName string) string {
	return restoreKey(storeName, "-resource-list.json.gz")
}

// RestorePlanKey says of each object what was decided and why, as RestorePlan.
func RestorePlanKey(storeName string) string { return restoreKey(storeName, "-plan.json.gz") }

// RestoreMetadataKey is the Restore as it ended, the last object that is written.
func RestoreMetadataKey(storeName string) string {
	return RestoresPrefix + storeName + "/holdfast-restore.json"
}

func restoreKey(storeName, suffix string) string {
	return RestoresPrefix + storeName + "/restore-" + storeName + suffix
}

// PlannedObject is what was decided about one object of a restore.
type PlannedObject struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Namespace and Name are those in the cluster, after all mapping.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Action is create, update, recreate, skip, conflict, refused or error.
	Action string `json:"action"`
	// Reason says why; empty if the action says all.
	Reason string `json:"reason,omitempty"`
	// Diff is, for an update, the merge patch.
	Diff json.RawMessage `json:"diff,omitempty"`
	// Bytes are those of a claim's data.
	Bytes int64 `json:"bytes,omitempty"`
}

// RestorePlan is the content of RestorePlanKey, in the order in which it is carried out.
type RestorePlan struct {
	Items []PlannedObject `json:"items"`
}

// ReadRestorePlan reads the content of RestorePlanKey.
func ReadRestorePlan(r io.Reader) (RestorePlan, error) { return readJSON[RestorePlan](r) }

// EncodeRestore writes the content of RestoreMetadataKey, which says of which cluster it is, and
// what the restore's other objects hold, and is signed as the metadata of a backup is. Without a key it is not signed, nor if it has no
// canonical form, as with a fraction in a container of the spec's hooks: then no reader
// believes it.
func EncodeRestore(restore *holdfast.Restore, contents Contents, cluster Cluster) ([]byte, error) {
	restore = restore.DeepCopy()
	restore.TypeMeta = metav1.TypeMeta{APIVersion: holdfast.SchemeGroupVersion.String(), Kind: restoreKind}
	restore.ManagedFields = nil
	annotations := maps.Clone(restore.Annotations)
	maps.DeleteFunc(annotations, isOurs)
	if annotations == nil {
		annotations = map[string]string{}
	}
	restore.Annotations = annotations
	if cluster.UID != "" {
		annotations[AnnotationClusterUID] = cluster.UID
	}
	if origin := restore.Status.Origin; origin != nil && origin.NamespaceUID != "" {
		annotations[AnnotationOriginNamespaceUID] = string(origin.NamespaceUID)
	}
	restore.Status.Origin = nil // readers derive it
	if contents != nil {
		encoded, err := json.Marshal(contents)
		if err != nil {
			return nil, err
		}
		annotations[AnnotationContents] = string(encoded)
	}
	if cluster.Key == nil {
		return json.Marshal(restore)
	}
	annotations[AnnotationPublicKey] = cluster.Key.PublicKey()
	data, err := json.Marshal(restore)
	if err != nil {
		return nil, err
	}
	signature, err := cluster.Key.sign(data)
	if errors.Is(err, errNotCanonical) {
		return data, nil
	}
	if err != nil {
		return nil, err
	}
	annotations[AnnotationSignature] = signature
	return json.Marshal(restore)
}

// DecodeRestore reads the content of RestoreMetadataKey, what it says of the restore's other
// objects, nil if nothing, and of which cluster it says to be. As with DecodeBackup the trust of that is Foreign if it is not signed, Forged if it is not as it
// was signed, and else empty: the reader knows whose the key is.
func DecodeRestore(data []byte) (*holdfast.Restore, Contents, *holdfast.BackupOrigin, error) {
	if len(data) > MaxMetadataBytes {
		return nil, nil, nil, fmt.Errorf("the metadata has more than %d bytes", MaxMetadataBytes)
	}
	restore := &holdfast.Restore{}
	if err := json.Unmarshal(data, restore); err != nil {
		return nil, nil, nil, fmt.Errorf("the metadata is not the JSON of a restore: %w", err)
	}
	origin, canonical := originOf(data, restore.Annotations)
	if canonical != nil { // what was verified is what counts
		restore = &holdfast.Restore{}
		if err := json.Unmarshal(canonical, restore); err != nil {
			return nil, nil, nil, err
		}
	}
	if restore.APIVersion != holdfast.SchemeGroupVersion.String() || restore.Kind != restoreKind {
		return nil, nil, nil, fmt.Errorf("the metadata is of kind %q in %q, not of kind %s in %s", restore.Kind, restore.APIVersion, restoreKind, holdfast.SchemeGroupVersion)
	}
	origin.ClusterUID, origin.PublicKey = restore.Annotations[AnnotationClusterUID], restore.Annotations[AnnotationPublicKey]
	origin.Namespace, origin.Name = restore.Namespace, restore.Name
	origin.NamespaceUID = types.UID(restore.Annotations[AnnotationOriginNamespaceUID])
	contents, err := contentsOf(restore.Annotations)
	if err != nil {
		return nil, nil, nil, err
	}
	maps.DeleteFunc(restore.Annotations, isOurs)
	if len(restore.Annotations) == 0 {
		restore.Annotations = nil
	}
	return restore, contents, origin, nil
}

// restoreKind is the kind in RestoreMetadataKey. That and the version stand first in the
// canonical form, so no signature of it passes for that of anything else.
const restoreKind = "Restore"

// isOurs reports whether an annotation is the writer's own.
func isOurs(key, _ string) bool { return strings.HasPrefix(key, AnnotationPrefix) }
