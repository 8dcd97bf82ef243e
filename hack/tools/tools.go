// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools pins the tools that generate and check Holdfast's code, apart
// from what the product itself depends on.
package tools

import (
	_ "honnef.co/go/tools/cmd/staticcheck"
	_ "k8s.io/code-generator"
	_ "sigs.k8s.io/controller-tools/cmd/controller-gen"
)
