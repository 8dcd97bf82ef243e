// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package logstore serves API objects from one in-memory event log for each resource, with the
// semantics of k8s.io/apiserver/pkg/storage.Interface. Projectors write a log, and clients read it.
package logstore
