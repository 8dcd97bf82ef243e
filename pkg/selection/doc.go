// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package selection compiles a backup's include and exclude lists of namespaces and resources, by
// Velero's documentation, "Resource filtering" and "Namespace Glob Patterns". Where Velero's code
// differs, the function's comment says which counts.
//
// A compiled selection is immutable and may be shared. Only the words of the lists decide. Unreadable
// words are refused with the name of their field. An unreadable selection (a nil *Namespaces) selects
// nothing and overlaps everything.
package selection
