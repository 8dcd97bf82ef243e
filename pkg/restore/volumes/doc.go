// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package volumes brings the data of volumes back for a restore: of claims, through a pod
// of its own that holds the claim while the node's agent writes, and of the other volumes
// of a pod through that pod, which waits for it.
//
// What it promises:
//   - Claim and Pod return nil when all of the data is on the disk, and not before. Whoever
//     creates what uses a claim after that starts it on complete files.
//   - Whatever is killed or paused, by two processes at once even: a record is named by the
//     restore and the claim's uid, and a holder too, so that who comes later finds them and
//     goes on. A claim that was made anew is another one.
//   - The holder is created with the rights of the restore: quota, limits, Pod Security and
//     the right to create pods hold as for any pod of whoever restores. It has no token, and
//     its user may read nothing; what writes is the agent, from outside.
//   - Claims that a pod uses together are bound where the pod can use them together.
//   - A claim whose node, or the pod that held it, went away is held anew, once. What was
//     asked for before is not written any more then: its agent has said so, or was absent for
//     as long as it takes to stop.
//   - A pod that waits is told by its agent when its restore has ended without its volumes,
//     whatever has ended that.
//   - Nothing is waited for without a bound, and what was given up is not written later.
//   - What a restore leaves behind goes: holders with its End, records when that is recorded,
//     or both with the next sweep.
package volumes
