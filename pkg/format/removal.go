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

// MaxRemovalBytes bounds a Removal.
const MaxRemovalBytes = 16 << 20

// Removal requests the removal of a backup's snapshots from a repository. It proves nothing: the reader
// checks that the store does not list the backup.
type Removal struct {
	UID       types.UID `json:"uid"`
	StoreName string    `json:"storeName"`
	// Snapshots are Kopia's ids of the backup's snapshots here. Snapshots with its uid need none.
	Snapshots []string `json:"snapshots,omitempty"`
	// RequestedAt distinguishes requests for one backup.
	RequestedAt time.Time `json:"requestedAt"`
}

// EncodeRemoval encodes a Removal.
func EncodeRemoval(removal Removal) ([]byte, error) { return json.Marshal(removal) }

// DecodeRemoval decodes a Removal.
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

// VolumeRemoval requests the removal of deleted volumes' snapshots, named by the backups' changes. It
// proves nothing.
type VolumeRemoval struct {
	Request types.UID   `json:"request"`
	Backups []RemovalOf `json:"backups"`
}

// RemovalOf names a backup.
type RemovalOf struct {
	UID       types.UID `json:"uid"`
	StoreName string    `json:"storeName"`
}

// EncodeVolumeRemoval encodes a VolumeRemoval.
func EncodeVolumeRemoval(removal VolumeRemoval) ([]byte, error) { return json.Marshal(removal) }

// DecodeVolumeRemoval decodes a VolumeRemoval.
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
