// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hostpath restricts backups and restores of hostPath persistent volumes to an administrator's folders of
// nodes. The kubelet mounts other volumes, which may be anywhere.
package hostpath

import (
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Roots are folders of nodes.
type Roots []string

// Validate fails unless each root is an absolute, clean path, and not "/".
func (r Roots) Validate() error {
	for _, root := range r {
		if !path.IsAbs(root) || path.Clean(root) != root || root == "/" {
			return fmt.Errorf("%q must be the absolute path of a folder below /, as /opt/volumes", root)
		}
	}
	return nil
}

// Over returns the root that a path equals or is below, or "": the shallowest one, since a user that writes
// between two roots could redirect. Paths with .. have none.
func (r Roots) Over(folder string) (over string) {
	if strings.Contains("/"+folder+"/", "/../") {
		return ""
	}
	folder = path.Clean(folder)
	for _, root := range r {
		if (folder == root || strings.HasPrefix(folder, root+"/")) && (over == "" || len(root) < len(over)) {
			over = root
		}
	}
	return over
}

// On reports whether a persistent volume is on a node: the same path on another node is another volume.
func On(volume *corev1.VolumeNodeAffinity, node *corev1.Node) (bool, error) {
	if volume == nil || volume.Required == nil {
		return true, nil
	}
	selector, err := nodeaffinity.NewNodeSelector(volume.Required)
	if err != nil {
		return false, fmt.Errorf("the node affinity of the persistent volume: %w", err)
	}
	return selector.Match(node), nil
}
