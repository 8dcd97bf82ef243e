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

// Top-level folders of a location. Velero refuses a location with others than
// its own, so everything that Holdfast adds lies inside one of Velero's.
const (
	// BackupsPrefix is the folder of all backups.
	BackupsPrefix = "backups/"
	// RepositoriesPrefix is the folder of all Kopia repositories.
	RepositoriesPrefix = "kopia/"
	// HoldfastPrefix is Holdfast's in Velero's folder for what belongs to no backup.
	HoldfastPrefix = "metadata/holdfast/"
)

// BackupPrefix is the folder of one backup.
func BackupPrefix(storeName string) string { return BackupsPrefix + storeName + "/" }

// MetadataKey is the object whose presence makes the backup exist.
func MetadataKey(storeName string) string { return BackupPrefix(storeName) + "velero-backup.json" }

// OwnerKey says whose the folder is, as Owner: the first object that is written
// into it, by a conditional write, and the last one that is removed. Velero ignores
// it.
func OwnerKey(storeName string) string { return BackupPrefix(storeName) + "holdfast-owner.json" }

// CopyKey is a copy of the metadata, written before it: Velero replaces metadata
// without looking. Velero ignores the copy.
func CopyKey(storeName string) string { return AttemptKey(storeName, 1) }

// AttemptKey is what an attempt to make a backup creates before it may write the metadata:
// the copy of that. A later attempt that takes over creates it in the place of each one
// before it, as EncodeRevocation; its own copy has a key of its own.
func AttemptKey(storeName string, attempt int) string {
	if attempt <= 1 {
		return BackupPrefix(storeName) + "holdfast-backup.json"
	}
	return fmt.Sprintf("%sholdfast-backup-%d.json", BackupPrefix(storeName), attempt)
}

// IsAttemptKey reports whether a key is an AttemptKey of a backup.
func IsAttemptKey(storeName, key string) bool {
	name, in := strings.CutPrefix(key, BackupPrefix(storeName))
	return in && strings.HasPrefix(name, "holdfast-backup") && strings.HasSuffix(name, ".json") && !strings.Contains(name, "/")
}

// MaxAttemptKeys bounds how many are looked for.
const MaxAttemptKeys = 100

// TarballKey is the gzipped tar of the backed-up objects.
func TarballKey(storeName string) string { return sideKey(storeName, ".tar.gz") }

// LogKey is the backup's own log, gzipped lines of text.
func LogKey(storeName string) string { return sideKey(storeName, "-logs.gz") }

// ResultsKey holds the errors and warnings, as Results.
func ResultsKey(storeName string) string { return sideKey(storeName, "-results.gz") }

// ResourceListKey names every backed-up object, as ResourceList.
func ResourceListKey(storeName string) string { return sideKey(storeName, "-resource-list.json.gz") }

// ManifestKey is the graph of the backed-up objects, as package manifest writes it. Velero
// ignores it.
func ManifestKey(storeName string) string { return BackupPrefix(storeName) + "manifest.json.gz" }

// VolumeInfoKey says how each volume was backed up, as []VolumeInfo.
func VolumeInfoKey(storeName string) string { return sideKey(storeName, "-volumeinfo.json.gz") }

// PodVolumeBackupsKey lists the uploaded volumes, as []PodVolumeBackup.
func PodVolumeBackupsKey(storeName string) string {
	return sideKey(storeName, "-podvolumebackups.json.gz")
}

// VolumeSnapshotsKey lists snapshots made through a cloud's API. Holdfast makes
// none and stores an empty list.
func VolumeSnapshotsKey(storeName string) string {
	return sideKey(storeName, "-volumesnapshots.json.gz")
}

// ItemOperationsKey lists asynchronous operations of plugins. Holdfast has none
// and stores an empty list.
func ItemOperationsKey(storeName string) string {
	return sideKey(storeName, "-itemoperations.json.gz")
}

// RepositoryPrefix is the folder of the Kopia repository of a namespace.
func RepositoryPrefix(volumeNamespace string) string {
	return RepositoriesPrefix + volumeNamespace + "/"
}

// RemovalsPrefix is the folder of what a cluster wants to have removed from the
// repository of a namespace.
func RemovalsPrefix(clusterUID, volumeNamespace string) string {
	return HoldfastPrefix + "removals/" + clusterUID + "/" + volumeNamespace + "/"
}

// RemovalKey asks for the removal of the snapshots of a backup, as Removal. The uid may be
// any text, and is not in the key as it is.
func RemovalKey(clusterUID, volumeNamespace string, backup types.UID) string {
	sum := sha256.Sum256([]byte(backup))
	return RemovalsPrefix(clusterUID, volumeNamespace) + hex.EncodeToString(sum[:16]) + ".json"
}

// VolumeRemovalKey asks for the removal of the snapshots of deleted volumes, as VolumeRemoval.
func VolumeRemovalKey(clusterUID, volumeNamespace string, request types.UID) string {
	sum := sha256.Sum256([]byte(request))
	return RemovalsPrefix(clusterUID, volumeNamespace) + "volumes-" + hex.EncodeToString(sum[:16]) + ".json"
}

// IsVolumeRemovalKey reports whether a key is a VolumeRemovalKey, and not a RemovalKey.
func IsVolumeRemovalKey(key string) bool { return strings.HasPrefix(path.Base(key), "volumes-") }

func sideKey(storeName, suffix string) string {
	return path.Join(BackupsPrefix, storeName, storeName+suffix)
}

// StoreName is the name in the store of a backup: its own name for a backup from
// the system namespace, NAMESPACE.NAME for any other. Neither a namespace nor a
// backup's name has dots, so two backups never share a store name.
func StoreName(namespace, name, systemNamespace string) string {
	if namespace == systemNamespace {
		return name
	}
	return namespace + "." + name
}

// StoreNameOf gives the store name to which a folder of BackupsPrefix belongs,
// as a listing with the delimiter "/" returns it. It is false for what no backup
// can be called, which readers ignore.
func StoreNameOf(folder string) (string, bool) {
	name, isFolder := strings.CutSuffix(strings.TrimPrefix(folder, BackupsPrefix), "/")
	return name, isFolder && ValidateStoreName(name) == nil
}

// ValidateStoreName says why a string can't be the name of a backup in a store:
// it must be a DNS subdomain, as Velero demands too.
func ValidateStoreName(storeName string) error {
	if problems := validation.IsDNS1123Subdomain(storeName); len(problems) > 0 {
		return fmt.Errorf("%q can't be the name of a backup in the store: %s", storeName, strings.Join(problems, ", "))
	}
	return nil
}

// Home is the inverse of StoreName: the namespace and name of a backup whose metadata
// says that it has these. They are believed only as far as the store name bears them
// out, so every store name has one home at most, and none that another one has. It is
// false for a backup without one, which is listed in the system namespace.
func Home(storeName, systemNamespace, namespace, name string) (types.NamespacedName, bool) {
	if namespace == systemNamespace || storeName != namespace+"."+name ||
		len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Label(name)) > 0 {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, true
}
