// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package datapath moves the data of volumes between folders of a node and Kopia repositories, and
// limits how much moves at once.
//
//   - Upload stores a folder as one snapshot, which is visible once complete, or fails. An
//     unreadable file fails it. Files that change or vanish meanwhile, sockets, pipes and devices
//     are warnings.
//   - Restore writes a snapshot back with modes, owners, times, links and holes. Files of the same
//     name are replaced, others kept. It returns when the data is on the disk.
//   - Extras keep what Kopia does not: hard links, extended attributes, access control lists,
//     capabilities.
//   - Both stay inside their folder despite changes by pods, and end within a second of their context.
//   - A Manager runs the work of a node within its limit, without polling, each class in order.
package datapath
