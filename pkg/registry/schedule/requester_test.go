// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// TestRequesterKeepsExtras: what an authorizer may take rights from is recorded, and no claim to be a
// schedule is.
func TestRequesterKeepsExtras(t *testing.T) {
	ctx := genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "ann", Extra: map[string][]string{
		"scopes.example.com": {"backup"}, recorded.ExtraScheduleUID: {"forged"},
	}})
	got, err := requester(ctx)
	want := enginev1alpha1.Requester{Username: "ann", Extra: map[string][]string{"scopes.example.com": {"backup"}}}
	if diff := gocmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}
