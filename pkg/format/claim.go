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

// MaxClaimBytes bounds a Claim that is read.
const MaxClaimBytes = 4 << 10

const maxHolderBytes = 512

// ClaimKey returns the key of the Claim of a cluster's leading controller. It is replaced.
func ClaimKey(clusterUID string) string { return HoldfastPrefix + "claims/" + clusterUID + ".json" }

// ProbesPrefix returns the folder of a cluster's probes of a location: objects that it removes at once.
func ProbesPrefix(clusterUID, location string) string {
	return HoldfastPrefix + "probes/" + clusterUID + "/" + location + "/"
}

// Claim is the claim of the one process of its cluster that writes to the store.
type Claim struct {
	// Nonce is random for each process.
	Nonce string `json:"nonce"`
	// Holder is the process's identity in its Lease.
	Holder   string `json:"holder"`
	Renewals int64  `json:"renewals"`
	// Written is the time by the process's clock.
	Written time.Time `json:"written"`
}

// EncodeClaim returns the content of ClaimKey.
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
