// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the holdfast.io/v1alpha1 API for users. Every resource is virtual: computed
// on read from the records of engine.holdfast.io and the catalogue of the stores.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=io.holdfast.v1alpha1
// +groupName=holdfast.io
// +groupGoName=Holdfast
package v1alpha1
