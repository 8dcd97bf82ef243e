// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package logstore serves the API objects of each resource from an in-memory event log, with the semantics of
// k8s.io/apiserver/pkg/storage.Interface. Projectors write it, and clients read it.
package logstore
