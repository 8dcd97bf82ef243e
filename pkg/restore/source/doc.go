// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package source reads backups for a restore: Holdfast's and Velero's, of any cluster, and
// also those that somebody has made up. What it yields has been checked:
//
//  1. An object is the one that its item names: its path in the tarball, its kind, its
//     namespace and its name agree, and its bytes have the item's size and digest. Each
//     identity is there once.
//  2. The items are those of the manifest, if that is the one which the metadata speaks
//     of, or else of the tarball itself, which is then read once more, and must be the one
//     which the metadata speaks of.
//  3. Nothing grows with what is read beyond the items, which are bounded, and one object.
//     Tarballs that decompress to more than archive.MaxBytes, or to very much more than
//     they are, are refused; so is what is cut short.
//
// Whose the metadata is, is not decided here: Backup.Metadata has the trust that its
// signature bears out, and the caller compares it with what it asked for.
package source
