// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorewait

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Fit sets a waiting container's resources within its namespace's LimitRanges. alone says that it
// is its pod's only container, measured as the pod. Requests equal limits, which any ratio allows.
func Fit(container *corev1.Container, ranges []corev1.LimitRange, alone bool) {
	least, most := corev1.ResourceList{}, corev1.ResourceList{}
	for i := range ranges {
		for _, item := range ranges[i].Spec.Limits {
			if item.Type != corev1.LimitTypeContainer && item.Type != corev1.LimitTypePod {
				continue
			}
			for name, value := range item.Max {
				if bound, known := most[name]; !known || value.Cmp(bound) < 0 {
					most[name] = value
				}
			}
			if item.Type == corev1.LimitTypePod && !alone { // the other containers suffice
				continue
			}
			for name, value := range item.Min {
				if bound, known := least[name]; !known || value.Cmp(bound) > 0 {
					least[name] = value
				}
			}
			if item.Type == corev1.LimitTypePod {
				bounded(least, item.Max)
			}
		}
	}
	set := func(name corev1.ResourceName, value resource.Quantity) {
		if bound, known := least[name]; known && value.Cmp(bound) < 0 {
			value = bound
		}
		if bound, known := most[name]; known && value.Cmp(bound) > 0 {
			value = bound
		}
		container.Resources.Requests[name], container.Resources.Limits[name] = value, value
	}
	for name, value := range container.Resources.Requests {
		set(name, value)
	}
	for name, value := range least {
		set(name, value)
	}
}

// scratch is the ephemeral storage where it must be stated.
var scratch = resource.MustParse("64Mi")

// bounded states the ephemeral storage where its pod is limited: pods get no default.
func bounded(least, most corev1.ResourceList) {
	if _, measured := most[corev1.ResourceEphemeralStorage]; measured {
		if _, known := least[corev1.ResourceEphemeralStorage]; !known {
			least[corev1.ResourceEphemeralStorage] = scratch
		}
	}
}
