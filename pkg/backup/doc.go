// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backup executes one backup, from InProgress until velero-backup.json is written. It knows no
// queue and no records: it gets a request and clients, and returns an outcome.
//
// Objects are read page by page and written to the tarball at once. Memory grows with the largest
// object, all objects' names and about 77 bytes of manifest for each. Only pods with pre hooks are held
// back, up to about 32 MiB. Once all pods are known, their volumes upload during the reading. An
// unreadable object is an error in the results; the rest continues.
//
// A process may pause between two requests, and other clusters may share the location:
// docs/design/fences.md.
package backup
