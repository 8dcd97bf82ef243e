// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backup executes one backup: everything between the moment its run is
// InProgress and the moment velero-backup.json is written. It knows nothing of
// queues and records: it gets a request and clients, and gives back an outcome.
//
// Objects are read page by page and go into the tarball in the store as they
// come, so memory follows the largest object and the number of names, never the
// backup's size. The volumes of pods are handed over as the pods are met, so
// that their upload goes on beside the reading. What can't be read is an error
// in the backup's results, and the rest goes on.
//
// velero-backup.json is written once and last, already final. Until then nothing
// in the store is a backup, and Discard may remove it.
package backup
