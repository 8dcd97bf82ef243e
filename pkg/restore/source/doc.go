// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package source reads backups for a restore: Holdfast's and Velero's, of any cluster, also forged
// ones. It checks what it returns:
//
//  1. An object is the one its item names: path, kind, namespace, name, size and digest agree. Each
//     identity occurs once.
//  2. The items come from the manifest or else the tarball that the metadata names.
//  3. Memory is bounded: the items and one object. Tarballs beyond archive.MaxBytes, compressed too
//     well, or cut short are refused.
//
// The caller compares the trust in Backup.Metadata with the request.
package source
