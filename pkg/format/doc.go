// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package format defines the store's keys, relative to the location's prefix, and encodes each object
// of a backup except the tarball: docs/format.md. It does no I/O.
//
// A backup is the folder backups/STORE-NAME/. It exists by its object velero-backup.json, written last.
// Side files are gzipped JSON, with the store name as a prefix. The layout is Velero's, so each of the
// two restores the other's backups.
package format
