// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"strings"
	"testing"
	"time"
)

func TestClaim(t *testing.T) {
	claim := Claim{Nonce: "a1", Holder: "pod-1_7_ab", Renewals: 3, Written: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	content, err := EncodeClaim(claim)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeClaim(content); got != claim || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, content := range []string{
		"", "<html>", "{}", `{"nonce":""}`, `{"nonce":"a b"}`, `{"nonce":"a","holder":"x; rm -rf"}`, `{"nonce":"a","holder":"` + strings.Repeat("x", 600) + `"}`,
		`{"nonce":"a"}` + strings.Repeat(" ", MaxClaimBytes),
	} {
		if got, err := DecodeClaim([]byte(content)); err == nil {
			t.Errorf("%.40q is read as %+v", content, got)
		}
	}
}
