// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package selection says what a backup selects: which namespaces and which
// resources, from include and exclude lists with Velero's meaning.
//
// Lists are compiled once and then only read, so a compiled selection may be
// shared. Everything is decided on the words of the lists; no answer depends on
// a client, on discovery at hand, or on who asks. Words that can't be read are
// refused with the name of their field, and a selection that can't be read (a
// nil *Namespaces) selects nothing and overlaps everything.
//
// Semantics follow Velero's documentation, "Resource filtering" and "Namespace
// Glob Patterns". Where Velero's documentation and code disagree, the docstring
// of the function says which was taken.
package selection
