// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A namespace that was lost twice is one with both before it, also if the second restore was
// of a backup of the first. One of its name that somebody else made is not.
func TestSuccessions(t *testing.T) {
	stored := &corev1.ConfigMap{Data: map[string]string{ClusterUIDKey: "cluster", SuccessionsKey: "odd\nshop alone\n"}}
	for _, of := range []Succession{
		{"shop", "first", "second"}, {"shop", "first", "third"}, {"shop", "other", "other-again"}, {"blog", "first", "fifth"},
	} {
		for _, want := range []bool{true, false} {
			if changed, err := Succeed(stored, of); err != nil || changed != want {
				t.Fatalf("%v: changed is %t, %v", of, changed, err)
			}
		}
	}
	if diff := cmp.Diff(map[string]string{ClusterUIDKey: "cluster", SuccessionsKey: "blog first fifth\nshop first second third\nshop other other-again\n"}, stored.Data); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	successions := SuccessionsOf(stored)
	for pair, want := range map[[2]types.UID]bool{
		{"first", "third"}: true, {"third", "second"}: true, {"first", "first"}: true, {"unknown", "unknown"}: true, {"", ""}: true,
		{"first", "other"}: false, {"third", "fifth"}: false, {"", "first"}: false, {"first", "fourth"}: false,
	} {
		if got := successions.Same("shop", pair[0], pair[1]); got != want {
			t.Errorf("%v: %t", pair, got)
		}
	}
	if SuccessionsOf(nil).Same("shop", "first", "second") {
		t.Error("without a ConfigMap namespaces continue each other")
	}
}

func TestSuccessionsHaveABound(t *testing.T) {
	stored := &corev1.ConfigMap{}
	var many []Succession
	for i := range 20_000 {
		many = append(many, Succession{fmt.Sprintf("namespace-%d", i), types.UID(fmt.Sprintf("%036d", i)), types.UID(fmt.Sprintf("%036x", i+1))})
	}
	if changed, err := Succeed(stored, many...); err == nil || changed || len(stored.Data) > 0 {
		t.Errorf("changed is %t, %v", changed, err)
	}
	if _, err := Succeed(stored, Succession{"shop", "", "second"}); err == nil {
		t.Error("a namespace continues one without a uid")
	}
}
