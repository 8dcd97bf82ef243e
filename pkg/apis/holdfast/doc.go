// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package holdfast is the internal form of the holdfast.io API group: what the
// API server works with, whichever version a client speaks. The fields' meaning
// is documented on the versioned types.
//
// +k8s:deepcopy-gen=package
// +groupName=holdfast.io
package holdfast
