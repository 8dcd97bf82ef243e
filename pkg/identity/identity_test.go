// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestPublish(t *testing.T) {
	stored := &corev1.ConfigMap{}
	for _, step := range []struct {
		publish Identity
		changed bool
		want    []string
	}{
		{Identity{"cluster", []string{"first"}}, true, []string{"first"}},
		{Identity{"cluster", []string{"first"}}, false, []string{"first"}},
		{Identity{"cluster", []string{"second"}}, true, []string{"second", "first"}},
		{Identity{"cluster", []string{"second"}}, false, []string{"second", "first"}},
		{Identity{"cluster", []string{"first"}}, true, []string{"first", "second"}},
		{Identity{"other", []string{"third"}}, true, []string{"third"}}, // a copy from another cluster
	} {
		if changed := step.publish.Publish(stored); changed != step.changed {
			t.Errorf("%+v: changed is %t", step.publish, changed)
		}
		if diff := cmp.Diff(Identity{step.publish.UID, step.want}, Of(stored)); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", step.publish, diff)
		}
	}
}

func TestOfNothing(t *testing.T) {
	for _, stored := range []*corev1.ConfigMap{nil, {}, {Data: map[string]string{PublicKeysKey: " \n"}}} {
		if got := Of(stored); got.UID != "" || len(got.Keys) != 0 {
			t.Errorf("%v: %+v", stored, got)
		}
	}
}
