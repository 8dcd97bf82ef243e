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

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// RestoresPrefix is Velero's folder of restores.
const RestoresPrefix = "restores/"

// RestoreStoreName returns a restore's name in the store: a backup's, with a digest of the uid, since
// names are reused.
func RestoreStoreName(namespace, name, systemNamespace string, uid types.UID) string {
	sum := sha256.Sum256([]byte(uid))
	return StoreName(namespace, name, systemNamespace) + "-" + hex.EncodeToString(sum[:5])
}

var restoreName = regexp.MustCompile(`^(.+)-[0-9a-f]{10}$`)

// RestoreStoreNameOf returns a listed folder's store name; false if not Holdfast's.
func RestoreStoreNameOf(folder string) (string, bool) {
	name, isFolder := strings.CutSuffix(strings.TrimPrefix(folder, RestoresPrefix), "/")
	return name, isFolder && restoreName.MatchString(name) && ValidateStoreName(name) == nil
}

// IsRestoreStoreName reports whether a store name is the restore's, for any system namespace.
func IsRestoreStoreName(storeName string, restore *v1alpha1.Restore) bool {
	return restore.UID != "" && restore.Name != "" && restore.Namespace != "" &&
		(storeName == RestoreStoreName(restore.Namespace, restore.Name, "", restore.UID) ||
			storeName == RestoreStoreName(restore.Namespace, restore.Name, restore.Namespace, restore.UID))
}

// RestoreResultsKey returns the key of Results.
func RestoreResultsKey(storeName string) string { return restoreKey(storeName, "-results.gz") }

// RestoreLogKey returns the key of the log, gzipped text.
func RestoreLogKey(storeName string) string { return restoreKey(storeName, "-logs.gz") }

// RestoreResourceListKey returns the key of the ResourceList of RestoredName.
func RestoreResourceListKey(storeName string) string {
	return restoreKey(storeName, "-resource-list.json.gz")
}

// RestorePlanKey returns the key of the RestorePlan.
func RestorePlanKey(storeName string) string { return restoreKey(storeName, "-plan.json.gz") }

// RestoreMetadataKey returns the key of the ended Restore, written last.
func RestoreMetadataKey(storeName string) string {
	return RestoresPrefix + storeName + "/holdfast-restore.json"
}

func restoreKey(storeName, suffix string) string {
	return RestoresPrefix + storeName + "/restore-" + storeName + suffix
}

// PlannedObject is a restore's decision about an object.
type PlannedObject struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Namespace and Name are after all mapping.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Action is create, update, recreate, skip, conflict, refused or error.
	Action string `json:"action"`
	Reason string `json:"reason,omitempty"`
	// Diff is an update's merge patch.
	Diff  json.RawMessage `json:"diff,omitempty"`
	Bytes int64           `json:"bytes,omitempty"`
}

// RestorePlan is in the order of execution.
type RestorePlan struct {
	Items []PlannedObject `json:"items"`
}

// ReadRestorePlan reads a RestorePlan.
func ReadRestorePlan(r io.Reader) (RestorePlan, error) { return readJSON[RestorePlan](r) }

// EncodeRestore encodes RestoreMetadataKey with the cluster and the other objects' contents, signed as
// a backup's metadata. Without a key or a canonical form, as with a fraction in a hook, it is unsigned
// and untrusted.
func EncodeRestore(restore *v1alpha1.Restore, contents Contents, cluster Cluster) ([]byte, error) {
	restore = restore.DeepCopy()
	restore.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: restoreKind}
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
	restore.Status.Origin = nil
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

// DecodeRestore returns the restore, its other objects' contents or nil, and the claimed origin, with
// the trust of DecodeBackup.
func DecodeRestore(data []byte) (*v1alpha1.Restore, Contents, *v1alpha1.BackupOrigin, error) {
	if len(data) > MaxMetadataBytes {
		return nil, nil, nil, fmt.Errorf("the metadata has more than %d bytes", MaxMetadataBytes)
	}
	restore := &v1alpha1.Restore{}
	if err := json.Unmarshal(data, restore); err != nil {
		return nil, nil, nil, fmt.Errorf("the metadata is not the JSON of a restore: %w", err)
	}
	origin, canonical := originOf(data, restore.Annotations)
	if canonical != nil {
		restore = &v1alpha1.Restore{}
		if err := json.Unmarshal(canonical, restore); err != nil {
			return nil, nil, nil, err
		}
	}
	if restore.APIVersion != v1alpha1.SchemeGroupVersion.String() || restore.Kind != restoreKind {
		return nil, nil, nil, fmt.Errorf("the metadata is of kind %q in %q, not of kind %s in %s", restore.Kind, restore.APIVersion, restoreKind, v1alpha1.SchemeGroupVersion)
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

// restoreKind begins the canonical form, so the signature fits no other kind.
const restoreKind = "Restore"

func isOurs(key, _ string) bool { return strings.HasPrefix(key, AnnotationPrefix) }
