// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// csiPlugin mounts a volume one folder deeper than the others do.
const (
	csiPlugin = "kubernetes.io~csi"
	csiMount  = "mount"
)

// podPlugins provide volumes that belong to a pod, never a PersistentVolume.
var podPlugins = []string{
	"kubernetes.io~empty-dir", "kubernetes.io~secret", "kubernetes.io~configmap",
	"kubernetes.io~downward-api", "kubernetes.io~projected", "kubernetes.io~git-repo",
}

// VolumeFolder finds the folder of a pod's volume on this node, below the kubelet's
// folder of pods: UID/volumes/PLUGIN/NAME, with the name of the PersistentVolume
// or, without one, of the volume. Source: the kubelet's GetPodVolumeDir.
func VolumeFolder(podsDir string, pod types.UID, volume, persistentVolume string) (string, error) {
	name := cmp.Or(persistentVolume, volume)
	for what, segment := range map[string]string{"uid of the pod": string(pod), "name of the volume": name} {
		if segment == "" || segment == "." || segment == ".." || strings.ContainsAny(segment, "/\x00") {
			return "", fmt.Errorf("the %s %q can't be the name of a folder", what, segment)
		}
	}
	volumes := filepath.Join(podsDir, string(pod), "volumes")
	plugins, err := os.ReadDir(volumes)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the pod has no folder on this node (%s): is it still running here?", volumes)
	}
	if err != nil {
		return "", fmt.Errorf("look for the pod's volumes: %w", err)
	}

	var found []string
	for _, plugin := range plugins {
		if info, err := os.Stat(filepath.Join(volumes, plugin.Name(), name)); err == nil && info.IsDir() {
			found = append(found, plugin.Name())
		}
	}
	if len(found) > 1 {
		// A pod's own volume may be named like the PersistentVolume of another.
		found = slices.DeleteFunc(found, func(plugin string) bool {
			return slices.Contains(podPlugins, plugin) == (persistentVolume != "")
		})
	}
	switch {
	case len(found) == 0:
		return "", fmt.Errorf("volume %q has no folder %q below %s: hostPath and block volumes have none, and are not supported", volume, name, volumes)
	case len(found) > 1:
		return "", fmt.Errorf("volume %q has several folders %q below %s: %s", volume, name, volumes, strings.Join(found, ", "))
	}
	folder := filepath.Join(volumes, found[0], name)
	if found[0] != csiPlugin {
		return folder, nil
	}
	folder = filepath.Join(folder, csiMount)
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return "", fmt.Errorf("volume %q is not mounted: there is no folder %s", volume, folder)
	}
	return folder, nil
}
