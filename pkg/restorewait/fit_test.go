// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorewait

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestFit(t *testing.T) {
	list := func(pairs ...string) corev1.ResourceList {
		l := corev1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return l
	}
	for name, test := range map[string]struct {
		limits    []corev1.LimitRangeItem
		alone     bool
		cpu, size string
		scratch   string
	}{
		"no range":                          {cpu: "50m", size: "64Mi"},
		"a minimum":                         {limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Min: list("cpu", "200m", "memory", "128Mi")}}, cpu: "200m", size: "128Mi"},
		"a maximum":                         {limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Max: list("cpu", "20m", "memory", "32Mi")}}, cpu: "20m", size: "32Mi"},
		"the strictest of several":          {limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Min: list("cpu", "70m")}, {Type: corev1.LimitTypeContainer, Min: list("cpu", "60m")}}, cpu: "70m", size: "64Mi"},
		"a minimum of its pod":              {limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypePod, Min: list("cpu", "300m")}}, alone: true, cpu: "300m", size: "64Mi"},
		"a minimum of the pod of others":    {limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypePod, Min: list("cpu", "300m")}}, cpu: "50m", size: "64Mi"},
		"a maximum of a pod":                {limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypePod, Max: list("memory", "32Mi", "ephemeral-storage", "1Gi")}}, alone: true, cpu: "50m", size: "32Mi", scratch: "64Mi"},
		"claims are measured by themselves": {limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypePersistentVolumeClaim, Min: list("cpu", "300m")}}, alone: true, cpu: "50m", size: "64Mi"},
	} {
		t.Run(name, func(t *testing.T) {
			container := &corev1.Container{Resources: corev1.ResourceRequirements{Requests: list("cpu", "50m", "memory", "64Mi"), Limits: list("cpu", "50m", "memory", "64Mi")}}
			Fit(container, []corev1.LimitRange{{Spec: corev1.LimitRangeSpec{Limits: test.limits}}}, test.alone)
			want := list("cpu", test.cpu, "memory", test.size)
			if test.scratch != "" {
				want = list("cpu", test.cpu, "memory", test.size, "ephemeral-storage", test.scratch)
			}
			for _, got := range []corev1.ResourceList{container.Resources.Requests, container.Resources.Limits} {
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("want -, got +:\n%s", diff)
				}
			}
		})
	}
}
