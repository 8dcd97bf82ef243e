// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// A location's top-level folders: Velero refuses others.
const (
	BackupsPrefix = "backups/"
	// RepositoriesPrefix has the Kopia repositories.
	RepositoriesPrefix = "kopia/"
	// HoldfastPrefix has objects of no backup.
	HoldfastPrefix = "metadata/holdfast/"
)

// BackupPrefix returns a backup's folder.
func BackupPrefix(storeName string) string { return BackupsPrefix + storeName + "/" }

// MetadataKey returns the key of the object by which a backup exists.
func MetadataKey(storeName string) string { return BackupPrefix(storeName) + "velero-backup.json" }

// OwnerKey returns the key of the folder's Owner, written first, conditionally, and removed last.
// Velero ignores it.
func OwnerKey(storeName string) string { return BackupPrefix(storeName) + "holdfast-owner.json" }

// CopyKey returns the key of the metadata's copy, written before it, since Velero replaces metadata.
func CopyKey(storeName string) string { return AttemptKey(storeName, 1) }

// AttemptKey returns the key of an attempt's copy of the metadata, created before it. A later attempt
// first creates an EncodeRevocation at each earlier key.
func AttemptKey(storeName string, attempt int) string {
	if attempt <= 1 {
		return BackupPrefix(storeName) + "holdfast-backup.json"
	}
	return fmt.Sprintf("%sholdfast-backup-%d.json", BackupPrefix(storeName), attempt)
}

// IsAttemptKey reports whether a key is an AttemptKey.
func IsAttemptKey(storeName, key string) bool {
	name, in := strings.CutPrefix(key, BackupPrefix(storeName))
	return in && strings.HasPrefix(name, "holdfast-backup") && strings.HasSuffix(name, ".json") && !strings.Contains(name, "/")
}

// MaxAttemptKeys bounds the search.
const MaxAttemptKeys = 100

// HandoverKey returns the key of the Handover, by which a later attempt moves data. It is removed when
// the backup has ended.
func HandoverKey(storeName string) string { return BackupPrefix(storeName) + "holdfast-read.json.gz" }

// TarballKey returns the key of the objects' gzipped tar.
func TarballKey(storeName string) string { return sideKey(storeName, ".tar.gz") }

// EncryptedTarballKey replaces TarballKey after encryption with age.
func EncryptedTarballKey(storeName string) string { return sideKey(storeName, ".tar.gz.age") }

// LogKey returns the key of the log, gzipped text.
func LogKey(storeName string) string { return sideKey(storeName, "-logs.gz") }

// ResultsKey returns the key of Results.
func ResultsKey(storeName string) string { return sideKey(storeName, "-results.gz") }

// ResourceListKey returns the key of the ResourceList.
func ResourceListKey(storeName string) string { return sideKey(storeName, "-resource-list.json.gz") }

// ManifestKey returns the key of package manifest's graph. Velero ignores it.
func ManifestKey(storeName string) string { return BackupPrefix(storeName) + "manifest.json.gz" }

// VolumeInfoKey returns the key of the []VolumeInfo.
func VolumeInfoKey(storeName string) string { return sideKey(storeName, "-volumeinfo.json.gz") }

// PodVolumeBackupsKey returns the key of uploaded volumes, []PodVolumeBackup.
func PodVolumeBackupsKey(storeName string) string {
	return sideKey(storeName, "-podvolumebackups.json.gz")
}

// VolumeSnapshotsKey returns the key of a cloud API's snapshots; Holdfast stores an empty list.
func VolumeSnapshotsKey(storeName string) string {
	return sideKey(storeName, "-volumesnapshots.json.gz")
}

// ItemOperationsKey returns the key of plugins' operations; Holdfast stores an empty list.
func ItemOperationsKey(storeName string) string {
	return sideKey(storeName, "-itemoperations.json.gz")
}

// RepositoryPrefix returns the folder of a namespace's Kopia repository.
func RepositoryPrefix(volumeNamespace string) string {
	return RepositoriesPrefix + volumeNamespace + "/"
}

// RemovalsPrefix returns the folder of a cluster's Removals in a namespace.
func RemovalsPrefix(clusterUID, volumeNamespace string) string {
	return HoldfastPrefix + "removals/" + clusterUID + "/" + volumeNamespace + "/"
}

// RemovalKey returns the key of a Removal, with the uid's hash, since it may be any text.
func RemovalKey(clusterUID, volumeNamespace string, backup types.UID) string {
	sum := sha256.Sum256([]byte(backup))
	return RemovalsPrefix(clusterUID, volumeNamespace) + hex.EncodeToString(sum[:16]) + ".json"
}

// VolumeRemovalKey returns the key of a VolumeRemoval.
func VolumeRemovalKey(clusterUID, volumeNamespace string, request types.UID) string {
	sum := sha256.Sum256([]byte(request))
	return RemovalsPrefix(clusterUID, volumeNamespace) + "volumes-" + hex.EncodeToString(sum[:16]) + ".json"
}

// IsVolumeRemovalKey distinguishes VolumeRemovalKey from RemovalKey.
func IsVolumeRemovalKey(key string) bool { return strings.HasPrefix(path.Base(key), "volumes-") }

func sideKey(storeName, suffix string) string {
	return path.Join(BackupsPrefix, storeName, storeName+suffix)
}

// StoreName returns a backup's name in the store: its own in the system namespace, else NAMESPACE.NAME.
// Neither part has dots, so store names are unique.
func StoreName(namespace, name, systemNamespace string) string {
	if namespace == systemNamespace {
		return name
	}
	return namespace + "." + name
}

// StoreNameOf returns a listed folder's store name; false for impossible names, which readers ignore.
func StoreNameOf(folder string) (string, bool) {
	name, isFolder := strings.CutSuffix(strings.TrimPrefix(folder, BackupsPrefix), "/")
	return name, isFolder && ValidateStoreName(name) == nil
}

// ValidateStoreName fails unless the name is a DNS subdomain, as Velero requires.
func ValidateStoreName(storeName string) error {
	if problems := validation.IsDNS1123Subdomain(storeName); len(problems) > 0 {
		return fmt.Errorf("%q can't be the name of a backup in the store: %s", storeName, strings.Join(problems, ", "))
	}
	return nil
}

// Home reverses StoreName for claimed names, which the store name must confirm: so it has at most one
// home. It is false in the system namespace.
func Home(storeName, systemNamespace, namespace, name string) (types.NamespacedName, bool) {
	if namespace == systemNamespace || storeName != namespace+"."+name ||
		len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Label(name)) > 0 {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, true
}
