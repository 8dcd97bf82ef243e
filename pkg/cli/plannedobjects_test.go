// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
)

// TestPlannedObjectsArePrinted: the objects of a plan are printed as they come. An answer that breaks off
// is an error.
func TestPlannedObjectsArePrinted(t *testing.T) {
	answer := `{"items":[
{"resource":"configmaps","namespace":"shop","name":"conf"},
{"resource":"clusterroles.rbac.authorization.k8s.io"},
{"resource":"secrets","namespace":"shop","name":"key","reason":"a Pod names it"}
],"plan":{"complete":true,"totalItems":3}}
`
	var text strings.Builder
	plan, err := printPlannedObjects(&text, strings.NewReader(answer))
	if err != nil || plan.TotalItems != 3 {
		t.Errorf("the plan is %+v, %v", plan, err)
	}
	want := "shop/configmaps/conf\n-/clusterroles.rbac.authorization.k8s.io/(hidden)\nshop/secrets/key (a Pod names it)\n"
	if text.String() != want {
		t.Errorf("printed was %q, want %q", text.String(), want)
	}
	for end := range len(strings.TrimSpace(answer)) {
		if plan, err := printPlannedObjects(&text, strings.NewReader(answer[:end])); err == nil {
			t.Errorf("%q gives the plan %+v", answer[:end], plan)
		}
	}
	if _, err := printPlannedObjects(&text, strings.NewReader(`{"items":[]}`)); err == nil {
		t.Error("an answer without a plan is not an error")
	}
}
