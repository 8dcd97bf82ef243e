// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import "net/http"

// Fence sends no request once this process may count as dead: after a pause it would act on old work.
// Requests in flight still arrive. Their contexts come from Lead.
func Fence(next http.RoundTripper) http.RoundTripper { return fenced{next} }

type fenced struct{ http.RoundTripper }

func (f fenced) RoundTrip(r *http.Request) (*http.Response, error) {
	if !Holds(r.Context()) {
		return nil, ErrLost
	}
	return f.RoundTripper.RoundTrip(r)
}
