// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package longhorn knows the format of Longhorn's backup store: its keys, and what its
// files say. It reads values and gives values; the catalogue lists such a
// store with it, and package deletion below removes from one.
//
// Nouns: a volume is one of Longhorn's, and has a folder; a backup is a file of that folder,
// which names all of its blocks and so stands alone; a block is a piece of data, named by its
// hash, which backups of that volume share; a lock is a file that keeps work on the volume apart.
//
// All of it is overwritten as Longhorn goes along, and nothing of it is signed. So whatever it
// says is a claim, and whatever is read may be cut short, made by an older Longhorn, or by
// somebody else altogether: keys that are missing or unknown do no harm, and what is read is
// bounded, whatever its size. A backup whose file says nothing of when it was created is under
// way, or has failed: the store does not tell which.
package longhorn
