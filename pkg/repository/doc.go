// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package repository creates and opens Kopia repositories: one for the volumes
// of one namespace in one storage location.
//
// What it promises:
//   - A repository lies where Velero looks for it, and Velero can read it:
//     PREFIX/kopia/NAMESPACE/, client default@default, maintenance owned by
//     default@default, and the marker udmrepo.Repository.
//   - Create is idempotent, and safe when two processes create at once, or one
//     sleeps over it: a repository begins to exist by one conditional write.
//   - A repository is reached as its location is, by package store: with the same
//     credentials, authorities and checksums.
//   - In a folder store nothing outside of the repository's folder is reached, by
//     symbolic link or otherwise, and what is written is on the disk, names too.
//   - A key that does not open a repository is ErrWrongKey; nothing is ever
//     initialised over existing data.
//   - No key and no credential reaches a log, an error or a disk.
//   - Nothing in here ends the process, and nothing waits forever: every call
//     ends with its context.
package repository
