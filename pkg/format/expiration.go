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

// Until when a backup is kept can be changed after it was stored, and volumes of it can be
// deleted. Each change is an object of its own beside the folder, created once under the next
// number and signed as metadata is; nothing is rewritten. It says how things stand from then
// on, so the one with the greatest number that is believed is all that counts. What is deleted
// stays deleted: each change repeats what the one before it says of that.

const (
	// MaxExpirationBytes is the size beyond which a change is not read: it may name each
	// volume of a backup.
	MaxExpirationBytes = 4 << 20
	// MaxExpirations is how many changes of one backup are made.
	MaxExpirations = 1000
	// MaxExpirationNumber is the greatest number that one can have.
	MaxExpirationNumber = 999_999_999

	expirationKind       = "BackupExpiration"
	expirationAPIVersion = "holdfast.io/v1"
)

// Expiration is one change of until when a backup is kept.
type Expiration struct {
	// StoreName and UID of the backup, and the number of the change, from 1.
	StoreName string
	UID       types.UID
	Number    int64
	// Expiration is when the backup expires; nil if it never does.
	Expiration *metav1.Time
	// Hold says who holds the backup; nil if nobody does.
	Hold *Hold
	// Deleted are the volumes of the backup that are deleted: of them nothing is shown or
	// restored any more, and their snapshots go.
	Deleted []DeletedVolume
	// Requester is who asked for the change, at an instant.
	Requester string
	Timestamp metav1.Time
	// Request tells this request from any other, so that it is not followed twice.
	Request string
	// ClusterUID and PublicKey are those of the cluster that has signed it. Whose the key
	// is, is the reader's to know.
	ClusterUID, PublicKey string
}

// Hold says who holds a backup, since when and why.
type Hold struct {
	Requester string      `json:"requester,omitempty"`
	Timestamp metav1.Time `json:"timestamp"`
	Reason    string      `json:"reason,omitempty"`
}

// VolumeID tells the volumes of a backup apart.
type VolumeID struct {
	// Namespace of the pod, and so of the claim.
	Namespace string `json:"namespace"`
	// Name as PodVolumeBackup.VolumeName has it.
	Name string `json:"name"`
	// Repeat counts the volumes of this name before it in the list of the backup's volumes.
	Repeat int32 `json:"repeat,omitempty"`
}

// DeletedVolume is a volume of a backup that is deleted.
type DeletedVolume struct {
	VolumeID `json:",inline"`
	// SnapshotID is that of its snapshot, which goes; empty if there is none, or another
	// volume of the backup needs it.
	SnapshotID string `json:"snapshotID,omitempty"`
	// Requester is who asked for that, at an instant.
	Requester string      `json:"requester,omitempty"`
	Timestamp metav1.Time `json:"timestamp"`
}

// storedExpiration is what is in the object.
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

// ExpirationsBeginning is how the names in BackupsPrefix of all changes of a backup begin.
func ExpirationsBeginning(storeName string, backup types.UID) string {
	return storeName + ".expiration-" + string(backup) + "-"
}

// ExpirationKey is one change of until when a backup is kept, as Expiration. It lies beside
// the folders, where a listing of these shows it. Velero, which takes folders only, does not
// see it.
func ExpirationKey(storeName string, backup types.UID, number int64) string {
	return BackupsPrefix + ExpirationsBeginning(storeName, backup) + strconv.FormatInt(number, 10) + ".json"
}

var expirationName = regexp.MustCompile(`^(.+)\.expiration-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})-([1-9][0-9]{0,8})\.json$`)

// ParseExpirationKey is the inverse of ExpirationKey. It is false for any other key.
func ParseExpirationKey(key string) (storeName string, backup types.UID, number int64, ok bool) {
	parts := expirationName.FindStringSubmatch(strings.TrimPrefix(key, BackupsPrefix))
	if parts == nil || ValidateStoreName(parts[1]) != nil {
		return "", "", 0, false
	}
	number, err := strconv.ParseInt(parts[3], 10, 64)
	return parts[1], types.UID(parts[2]), number, err == nil
}

// EncodeExpiration gives the content of ExpirationKey, signed by a cluster.
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

// DecodeExpiration reads what lies at ExpirationKey. It fails if that is not as it was
// signed, or a change of another backup, or another change.
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

// Newest is the change that counts, of those that are believed; nil without one.
func Newest(changes []Expiration, believed func(*Expiration) bool) *Expiration {
	var newest *Expiration
	for i := range changes {
		if c := &changes[i]; (newest == nil || c.Number > newest.Number) && believed(c) {
			newest = c
		}
	}
	return newest
}

// NewestFirst orders keys of changes of one backup, the one with the greatest number first.
func NewestFirst(keys []string) []string {
	keys = slices.Clone(keys)
	slices.SortFunc(keys, func(a, b string) int {
		_, _, m, _ := ParseExpirationKey(a)
		_, _, n, _ := ParseExpirationKey(b)
		return cmp.Compare(n, m)
	})
	return keys
}
