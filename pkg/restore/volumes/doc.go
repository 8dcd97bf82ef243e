// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package volumes restores the data of volumes: of claims through a holder, a pod of its own, while
// the node's agent writes; of a pod's other volumes through that pod, which waits.
//
// It promises:
//   - Claim and Pod return nil only when all data is on disk.
//   - Kills and pauses are harmless: records and holders are named by the restore and the claim's
//     uid, so the next process continues.
//   - A holder has the restore's rights: quotas, limits and Pod Security hold. It has no token.
//   - A claim with a lost node or holder is held again, once, after its agent has stopped.
//   - Every wait is bounded, and an abandoned volume is not written later.
package volumes
