// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package datapath moves the data of volumes between folders of a node and Kopia
// repositories, and decides what of it moves now.
//
// What it promises:
//   - Upload reads a folder into one snapshot, or none: a snapshot is visible
//     once it is complete. A file that can't be read fails the upload and is
//     named. What could only be taken with a reservation is a warning: a file
//     that vanished or changed while it was read, and a socket, pipe or device,
//     which no snapshot holds.
//   - Restore writes a snapshot back with its modes, owners, times, links and
//     holes. Files of the same name are replaced, others are kept. It completes
//     once the data is on the disk.
//   - What Kopia has no place for is kept beside the snapshot, and comes back: hard
//     links, extended attributes, access control lists and capabilities.
//   - Both stay inside the folder that they were given, whatever the pod that
//     uses the folder does meanwhile, and both end within about a second of the
//     end of their context.
//   - A Manager runs the work of a node, no more than its limit at once, without
//     polling, each class in the order in which it came.
package datapath
