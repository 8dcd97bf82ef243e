// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package longhorn knows the format of Longhorn's backup store: its keys and files.
//
// A volume is a folder. A backup is a file in it that names all its blocks. A block is data named by
// its hash, shared by the volume's backups. A lock is a file that excludes other work on the volume.
//
// Files are overwritten and not signed, so their content is a claim. A file may be cut short, forged,
// or older: missing and unknown keys are accepted, and sizes are bounded. A backup's file without a
// creation time is of a running or a failed backup.
package longhorn
