// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package format knows what lies in the store: the keys of a backup's objects,
// and how each of them but the tarball is encoded. It does no I/O of its own.
//
// A backup is the folder backups/STORE-NAME/. The object velero-backup.json in
// it, written last, makes it exist; its side files carry the store name as a
// prefix and are gzipped JSON. The layout is Velero's, so that each of the two
// restores what the other wrote (docs/format.md says what that rests on).
//
// Keys are relative to the prefix of the storage location.
package format
