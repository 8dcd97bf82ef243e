// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// A stored backup's expiration can change, and its volumes can be deleted, each time by a signed object
// beside the folder: docs/format.md ("Changes of the expiration"). It has the whole state, so only the
// trusted change with the greatest number counts.

const (
	// MaxExpirationBytes bounds a change, which may name each volume.
	MaxExpirationBytes = 4 << 20
	// MaxExpirations bounds a backup's changes.
	MaxExpirations      = 1000
	MaxExpirationNumber = 999_999_999

	expirationKind       = "BackupExpiration"
	expirationAPIVersion = "holdfast.io/v1"
)

// Expiration is a change of a stored backup.
type Expiration struct {
	// StoreName and UID are the backup's, Number is the change's, from 1.
	StoreName string
	UID       types.UID
	Number    int64
	// Expiration is nil for never.
	Expiration *metav1.Time
	Hold       *Hold
	// Deleted are all deleted volumes, whose snapshots are removed.
	Deleted   []DeletedVolume
	Requester string
	Timestamp metav1.Time
	// Request identifies the request, to apply it once.
	Request string
	// ClusterUID and PublicKey are the signer's, for the reader to judge.
	ClusterUID, PublicKey string
}

// Hold has the user, time and reason of a hold.
type Hold struct {
	Requester string      `json:"requester,omitempty"`
	Timestamp metav1.Time `json:"timestamp"`
	Reason    string      `json:"reason,omitempty"`
}

// VolumeID identifies a volume in a backup.
type VolumeID struct {
	Namespace string `json:"namespace"`
	// Name is PodVolumeBackup.VolumeName.
	Name string `json:"name"`
	// Repeat counts earlier volumes of this name in the backup's list.
	Repeat int32 `json:"repeat,omitempty"`
}

// DeletedVolume is a deleted volume of a backup.
type DeletedVolume struct {
	VolumeID `json:",inline"`
	// SnapshotID is the snapshot to remove, if any, and if no other volume needs it.
	SnapshotID string      `json:"snapshotID,omitempty"`
	Requester  string      `json:"requester,omitempty"`
	Timestamp  metav1.Time `json:"timestamp"`
}

type storedExpiration struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        storedExpirationMetadata `json:"metadata"`
	Spec            storedExpirationSpec     `json:"spec"`
}

type storedExpirationMetadata struct {
	Name        string            `json:"name"`
	UID         types.UID         `json:"uid"`
	Annotations map[string]string `json:"annotations"`
}

type storedExpirationSpec struct {
	Number     int64           `json:"number"`
	Expiration *metav1.Time    `json:"expiration,omitempty"`
	Hold       *Hold           `json:"hold,omitempty"`
	Deleted    []DeletedVolume `json:"deletedVolumes,omitempty"`
	Requester  string          `json:"requester,omitempty"`
	Timestamp  metav1.Time     `json:"timestamp"`
	Request    string          `json:"request,omitempty"`
}

// ExpirationsBeginning returns the prefix of a backup's changes below BackupsPrefix.
func ExpirationsBeginning(storeName string, backup types.UID) string {
	return storeName + ".expiration-" + string(backup) + "-"
}

// ExpirationKey returns a change's key, beside the folders: listings show it, and Velero ignores it.
func ExpirationKey(storeName string, backup types.UID, number int64) string {
	return BackupsPrefix + ExpirationsBeginning(storeName, backup) + strconv.FormatInt(number, 10) + ".json"
}

var expirationName = regexp.MustCompile(`^(.+)\.expiration-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})-([1-9][0-9]{0,8})\.json$`)

// ParseExpirationKey reverses ExpirationKey; false for other keys.
func ParseExpirationKey(key string) (storeName string, backup types.UID, number int64, ok bool) {
	parts := expirationName.FindStringSubmatch(strings.TrimPrefix(key, BackupsPrefix))
	if parts == nil || ValidateStoreName(parts[1]) != nil {
		return "", "", 0, false
	}
	number, err := strconv.ParseInt(parts[3], 10, 64)
	return parts[1], types.UID(parts[2]), number, err == nil
}

// EncodeExpiration encodes and signs a change.
func EncodeExpiration(e Expiration, cluster Cluster) ([]byte, error) {
	if cluster.Key == nil {
		return nil, errors.New("the cluster has no key to sign with")
	}
	if _, _, _, ok := ParseExpirationKey(ExpirationKey(e.StoreName, e.UID, e.Number)); !ok {
		return nil, fmt.Errorf("the backup %s with the uid %q can't have a change with the number %d", e.StoreName, e.UID, e.Number)
	}
	stored := storedExpiration{
		TypeMeta: metav1.TypeMeta{APIVersion: expirationAPIVersion, Kind: expirationKind},
		Metadata: storedExpirationMetadata{Name: e.StoreName, UID: e.UID, Annotations: map[string]string{
			AnnotationClusterUID: cluster.UID, AnnotationPublicKey: cluster.Key.PublicKey(),
		}},
		Spec: storedExpirationSpec{Number: e.Number, Expiration: e.Expiration, Hold: e.Hold, Deleted: e.Deleted, Requester: e.Requester, Timestamp: e.Timestamp, Request: e.Request},
	}
	plain, err := json.Marshal(stored)
	if err != nil {
		return nil, err
	}
	if stored.Metadata.Annotations[AnnotationSignature], err = cluster.Key.sign(plain); err != nil {
		return nil, err
	}
	data, err := json.Marshal(stored)
	if err == nil && len(data) > MaxExpirationBytes {
		err = fmt.Errorf("the change has more than %d bytes", MaxExpirationBytes)
	}
	return data, err
}

// DecodeExpiration decodes a change. It fails for a wrong signature, backup or number.
func DecodeExpiration(data []byte, storeName string, backup types.UID, number int64) (*Expiration, error) {
	if len(data) > MaxExpirationBytes {
		return nil, fmt.Errorf("it has more than %d bytes", MaxExpirationBytes)
	}
	canonical, err := verify(bytes.TrimSpace(data))
	if err != nil {
		return nil, err
	}
	stored := &storedExpiration{}
	if err := utiljson.Unmarshal(canonical, stored); err != nil {
		return nil, err
	}
	switch {
	case stored.APIVersion != expirationAPIVersion || stored.Kind != expirationKind:
		return nil, fmt.Errorf("it is of kind %q in %q", stored.Kind, stored.APIVersion)
	case stored.Metadata.Name != storeName || stored.Metadata.UID != backup || stored.Spec.Number != number:
		return nil, fmt.Errorf("it is change %d of the backup %q with the uid %q", stored.Spec.Number, stored.Metadata.Name, stored.Metadata.UID)
	}
	return &Expiration{
		StoreName: storeName, UID: backup, Number: number,
		Expiration: stored.Spec.Expiration, Hold: stored.Spec.Hold, Deleted: stored.Spec.Deleted,
		Requester: stored.Spec.Requester, Timestamp: stored.Spec.Timestamp, Request: stored.Spec.Request,
		ClusterUID: stored.Metadata.Annotations[AnnotationClusterUID], PublicKey: stored.Metadata.Annotations[AnnotationPublicKey],
	}, nil
}

// Newest returns the newest trusted change, or nil.
func Newest(changes []Expiration, believed func(*Expiration) bool) *Expiration {
	var newest *Expiration
	for i := range changes {
		if c := &changes[i]; (newest == nil || c.Number > newest.Number) && believed(c) {
			newest = c
		}
	}
	return newest
}

// NewestFirst sorts keys of changes by descending number.
func NewestFirst(keys []string) []string {
	keys = slices.Clone(keys)
	slices.SortFunc(keys, func(a, b string) int {
		_, _, m, _ := ParseExpirationKey(a)
		_, _, n, _ := ParseExpirationKey(b)
		return cmp.Compare(n, m)
	})
	return keys
}
