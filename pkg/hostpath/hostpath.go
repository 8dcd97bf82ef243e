// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hostpath says which folders of nodes an administrator lets be backed up and
// restored: those of persistent volumes of type hostPath, below a few roots. Other volumes
// lie where the kubelet has mounted them, these anywhere.
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

// Validate says what is wrong with them: each must be a whole path without anything to
// resolve, and the root of a node is not its administrator's to give away.
func (r Roots) Validate() error {
	for _, root := range r {
		if !path.IsAbs(root) || path.Clean(root) != root || root == "/" {
			return fmt.Errorf("%q must be the absolute path of a folder below /, as /opt/volumes", root)
		}
	}
	return nil
}

// Over is the root that a path of a node is, or lies below, or "": the shallowest, since
// whoever writes between two roots could lead from one to the other elsewhere. A path that
// goes back by .. lies nowhere.
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

// On reports whether a persistent volume lies on a node. Of a volume that the kubelet mounts it
// has made sure; the same path on another node is another volume.
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
