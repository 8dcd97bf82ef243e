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

// MaxClaimBytes is the size beyond which a Claim is not read.
const MaxClaimBytes = 4 << 10

const maxHolderBytes = 512

// ClaimKey is where the controller that leads in a cluster says so, as Claim. It is replaced.
func ClaimKey(clusterUID string) string { return HoldfastPrefix + "claims/" + clusterUID + ".json" }

// Claim is of one process, which is the only one of its cluster that writes to the store.
type Claim struct {
	// Nonce is random, and another one for each process.
	Nonce string `json:"nonce"`
	// Holder is the identity under which the process holds its Lease.
	Holder string `json:"holder"`
	// Renewals count how often it was written.
	Renewals int64 `json:"renewals"`
	// Written is when, by the clock of the process.
	Written time.Time `json:"written"`
}

// EncodeClaim gives the content of ClaimKey.
func EncodeClaim(claim Claim) ([]byte, error) { return json.Marshal(claim) }

// DecodeClaim reads the content of ClaimKey.
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
