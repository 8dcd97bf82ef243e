// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the engine.holdfast.io/v1alpha1 API: durable records that drive Holdfast's
// controllers. They are custom resources in the system namespace, and exist only while work or
// configuration needs them. The objects of holdfast.io are computed from them.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +groupName=engine.holdfast.io
// +groupGoName=Engine
package v1alpha1
