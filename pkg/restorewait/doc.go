// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package restorewait holds a restored pod back until its volumes are complete.
//
// Add gives the pod an init container, the first of all, and an emptyDir that no other
// container mounts. There the agent of the node says what became of each volume (Tell),
// from outside, through the kubelet's folder; the container looks for that (Wait). What
// it promises:
//   - No container of the pod starts before all of its volumes are complete. If one could
//     not be restored, or nothing is heard for a while, the container ends with a message.
//   - The pod needs no rights for that: the container has no token, asks nobody, and
//     passes the restricted Pod Security Standard.
//   - Nothing of it is in the pod's volumes.
//   - What the agent says is there as a whole or not at all, outlives restarts of the pod's
//     containers, of the agent and of the node, and may be said any number of times. A
//     volume that was complete once stays so.
//   - Nothing that lies in the emptyDir leads the agent anywhere else.
//
// What remains: a pod whose volume could not be restored does not start, but the kubelet
// runs the container again and again, as it does with any. When the volume is restored
// after all, the next one lets the pod start.
package restorewait
