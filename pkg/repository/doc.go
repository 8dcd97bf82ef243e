// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package repository creates and opens Kopia repositories: one for a namespace's volumes in a
// location.
//
//   - Velero finds and reads it: PREFIX/kopia/NAMESPACE/, client default@default, which owns the
//     maintenance, and the marker udmrepo.Repository.
//   - The store is used through package store. A folder store never leaves the repository's folder, and
//     syncs its writes.
//   - No key or credential reaches a log, an error or a disk.
//   - Nothing ends the process, and every call ends with its context.
package repository
