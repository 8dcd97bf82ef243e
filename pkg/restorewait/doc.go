// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package restorewait holds a restored pod back until its volumes are complete. Add adds an
// emptyDir and a first init container. The node's agent writes each volume's result there through
// the kubelet's folder (Tell); the container polls it (Wait). It promises:
//   - No container starts before all volumes are complete. After a failure or a timeout the container
//     ends with a message, and the kubelet restarts it; the pod starts when the volume is restored.
//   - The container needs no token and no rights, and passes the restricted Pod Security Standard.
//     Nothing of it is in the pod's volumes.
//   - A message is whole or absent, survives restarts, and may be repeated.
//   - The emptyDir's content can't lead the agent elsewhere.
package restorewait
