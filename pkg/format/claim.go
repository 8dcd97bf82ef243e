// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// MaxClaimBytes bounds a Claim.
const MaxClaimBytes = 4 << 10

const maxHolderBytes = 512

// ClaimKey returns the key of a cluster's Claim, which is replaced.
func ClaimKey(clusterUID string) string { return HoldfastPrefix + "claims/" + clusterUID + ".json" }

// ProbesPrefix returns the folder of a cluster's probes of a location, which are removed at once.
func ProbesPrefix(clusterUID, location string) string {
	return HoldfastPrefix + "probes/" + clusterUID + "/" + location + "/"
}

// Claim is from its cluster's only process that writes to the store.
type Claim struct {
	// Nonce is random for each process.
	Nonce string `json:"nonce"`
	// Holder is the identity in the Lease.
	Holder   string `json:"holder"`
	Renewals int64  `json:"renewals"`
	// Written is by the process's clock.
	Written time.Time `json:"written"`
}

// EncodeClaim encodes a Claim.
func EncodeClaim(claim Claim) ([]byte, error) { return json.Marshal(claim) }

// DecodeClaim decodes a Claim.
func DecodeClaim(data []byte) (Claim, error) {
	if len(data) > MaxClaimBytes {
		return Claim{}, fmt.Errorf("the claim of a cluster is longer than %d bytes", MaxClaimBytes)
	}
	var claim Claim
	if err := json.Unmarshal(data, &claim); err != nil {
		return Claim{}, fmt.Errorf("the claim of a cluster: %w", err)
	}
	if !isPlainID(claim.Nonce) || len(claim.Holder) > maxHolderBytes || strings.ContainsFunc(claim.Holder, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return Claim{}, errors.New("the claim of a cluster has no nonce, or names no process")
	}
	return claim, nil
}
