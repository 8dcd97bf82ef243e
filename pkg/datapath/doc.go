// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package datapath moves volume data between folders of a node and Kopia repositories.
//
//   - Upload stores a folder as one snapshot, visible once complete. An unreadable file fails it. Files
//     that change or vanish meanwhile, sockets, pipes and devices are warnings.
//   - Restore writes a snapshot back with modes, owners, times, links and holes. It replaces files of the
//     same name, keeps others, and returns when the data is on the disk.
//   - Both stay inside their folder despite changes by pods, and end within a second of their context.
package datapath
