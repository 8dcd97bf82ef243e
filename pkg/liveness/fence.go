// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package liveness

import "net/http"

// Fence sends nothing any more once this process may have been taken for dead: one that was
// paused would else go on for a moment with what another one has ended long ago. What it had
// sent before arrives all the same. The contexts of the requests come from Lead.
func Fence(next http.RoundTripper) http.RoundTripper { return fenced{next} }

type fenced struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (f fenced) RoundTrip(r *http.Request) (*http.Response, error) {
	if !Holds(r.Context()) {
		return nil, ErrLost
	}
	return f.RoundTripper.RoundTrip(r)
}
