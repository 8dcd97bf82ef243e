// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// StoreIdentityKey has the store's identity, created once, conditionally.
const StoreIdentityKey = HoldfastPrefix + "store.json"

// MaxStoreIdentityBytes bounds a StoreIdentity.
const MaxStoreIdentityBytes = 4 << 10

const maxStoreIDBytes = 63

// StoreIdentity is the content of StoreIdentityKey.
type StoreIdentity struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
}

// EncodeStoreIdentity encodes a StoreIdentity.
func EncodeStoreIdentity(identity StoreIdentity) ([]byte, error) { return json.Marshal(identity) }

// DecodeStoreIdentity decodes a StoreIdentity.
func DecodeStoreIdentity(data []byte) (StoreIdentity, error) {
	if len(data) > MaxStoreIdentityBytes {
		return StoreIdentity{}, fmt.Errorf("it has more than %d bytes", MaxStoreIdentityBytes)
	}
	var identity StoreIdentity
	if err := json.Unmarshal(data, &identity); err != nil {
		return StoreIdentity{}, fmt.Errorf("it is not the JSON of a store's identity: %w", err)
	}
	if !isPlainID(identity.ID) {
		return StoreIdentity{}, errors.New("its id is not one of up to 63 letters, digits and hyphens")
	}
	return identity, nil
}

// isPlainID reports whether an id is safe to show, and in annotations.
func isPlainID(id string) bool {
	if id == "" || len(id) > maxStoreIDBytes {
		return false
	}
	for _, r := range id {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' {
			return false
		}
	}
	return true
}
