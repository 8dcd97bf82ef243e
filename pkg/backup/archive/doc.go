// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package archive writes and reads a backup's tarball in Velero's layout (its pkg/archive and
// pkg/backup): one gzipped tar, without a temporary file. Memory depends only on the largest item.
//
//	metadata/version                                            first, "1.2.0\n"
//	resources/RESOURCE[.GROUP]/namespaces/NAMESPACE/NAME.json   a namespaced item
//	resources/RESOURCE[.GROUP]/cluster/NAME.json                a cluster-scoped item
//	resources/RESOURCE[.GROUP]/VERSION-preferredversion/...     the same item again
package archive
