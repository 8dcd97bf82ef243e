// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// MaxRemovalBytes is the size beyond which a Removal is not read.
const MaxRemovalBytes = 16 << 20

// Removal asks for the removal of the snapshots of a backup from a repository. It is a
// request, and no evidence: who follows it looks first whether the store lists the backup.
type Removal struct {
	// UID and StoreName of the backup.
	UID       types.UID `json:"uid"`
	StoreName string    `json:"storeName"`
	// Snapshots are Kopia's ids of those that the backup listed in this repository. Those
	// with its uid go without being named.
	Snapshots []string `json:"snapshots,omitempty"`
	// RequestedAt tells a request from an earlier one for the same backup.
	RequestedAt time.Time `json:"requestedAt"`
}

// EncodeRemoval gives the content of RemovalKey.
func EncodeRemoval(removal Removal) ([]byte, error) { return json.Marshal(removal) }

// DecodeRemoval reads the content of RemovalKey.
func DecodeRemoval(data []byte) (Removal, error) {
	if len(data) > MaxRemovalBytes {
		return Removal{}, fmt.Errorf("it has more than %d bytes", MaxRemovalBytes)
	}
	var removal Removal
	if err := json.Unmarshal(data, &removal); err != nil {
		return Removal{}, fmt.Errorf("it is not the JSON of a removal: %w", err)
	}
	if removal.UID == "" {
		return Removal{}, errors.New("it names no backup")
	}
	return removal, ValidateStoreName(removal.StoreName)
}

// VolumeRemoval asks for the removal of the snapshots of deleted volumes from a repository:
// those that a change beside each of the backups names. It is a request, and no evidence, as a
// Removal is: which snapshots go is in the changes, and not in it.
type VolumeRemoval struct {
	// Request tells it from any other: the uid of the record of the deletion.
	Request types.UID `json:"request"`
	// Backups are those of which volumes were deleted.
	Backups []RemovalOf `json:"backups"`
}

// RemovalOf names a backup.
type RemovalOf struct {
	UID       types.UID `json:"uid"`
	StoreName string    `json:"storeName"`
}

// EncodeVolumeRemoval gives the content of VolumeRemovalKey.
func EncodeVolumeRemoval(removal VolumeRemoval) ([]byte, error) { return json.Marshal(removal) }

// DecodeVolumeRemoval reads the content of VolumeRemovalKey.
func DecodeVolumeRemoval(data []byte) (VolumeRemoval, error) {
	if len(data) > MaxRemovalBytes {
		return VolumeRemoval{}, fmt.Errorf("it has more than %d bytes", MaxRemovalBytes)
	}
	var removal VolumeRemoval
	if err := json.Unmarshal(data, &removal); err != nil {
		return VolumeRemoval{}, fmt.Errorf("it is not the JSON of a removal: %w", err)
	}
	for _, of := range removal.Backups {
		if err := ValidateStoreName(of.StoreName); err != nil {
			return VolumeRemoval{}, err
		}
		if of.UID == "" {
			return VolumeRemoval{}, errors.New("it names a backup without a uid")
		}
	}
	return removal, nil
}
