// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package install registers every version of the holdfast.io API group.
package install

import (
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Install registers the group in a scheme. A failure is a programming error.
func Install(scheme *runtime.Scheme) {
	utilruntime.Must(holdfast.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	utilruntime.Must(scheme.SetVersionPriority(v1alpha1.SchemeGroupVersion))
}
