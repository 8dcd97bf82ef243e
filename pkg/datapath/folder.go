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

	"golang.org/x/sys/unix"
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

// Folder is where a volume lies on this node.
type Folder struct {
	// Path of the folder.
	Path string
	// Root is a folder that it is, or lies below. No link leads from there to it: whoever
	// may write below a root of volumes of type hostPath could lead elsewhere by one. Empty
	// for a folder that the kubelet has made, where only the node's administrator writes.
	Root string
}

// open opens the folder itself.
func (f Folder) open() (*os.File, error) {
	if f.Root == "" {
		return os.OpenFile(f.Path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	}
	root, err := os.Open(f.Root)
	if err != nil {
		return nil, fmt.Errorf("%w: is it mounted into the agent's pod, at the same path?", err)
	}
	defer root.Close()
	below, err := filepath.Rel(f.Root, f.Path)
	if err != nil {
		return nil, err
	}
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	fd := -1
	err = again(func() (err error) {
		fd, err = unix.Openat2(int(root.Fd()), below, &how)
		return err
	})
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("%s is reached by a symbolic link, and none is followed below %s of --host-path-roots", f.Path, f.Root)
	case err != nil:
		return nil, &os.PathError{Op: "open", Path: f.Path, Err: err}
	}
	return os.NewFile(uintptr(fd), f.Path), nil
}

// segment fails for what can't be a part of a path.
func segment(what, name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("the %s %q can't be the name of a folder", what, name)
	}
	return nil
}

// PodFolder finds the folder of a pod's volumes on this node, and what is in it: one folder for
// each plugin. A pod that has left this node has none.
func PodFolder(podsDir string, pod types.UID) (path string, plugins []os.DirEntry, err error) {
	if err := segment("uid of the pod", string(pod)); err != nil {
		return "", nil, err
	}
	path = filepath.Join(podsDir, string(pod), "volumes")
	plugins, err = os.ReadDir(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil, fmt.Errorf("the pod has no folder on this node (%s): is it still running here?", path)
	case err != nil:
		return "", nil, fmt.Errorf("look for the pod's volumes: %w", err)
	}
	return path, plugins, nil
}

// VolumeFolder finds the folder of a pod's volume on this node, below the kubelet's
// folder of pods: UID/volumes/PLUGIN/NAME, with the name of the PersistentVolume
// or, without one, of the volume. Source: the kubelet's GetPodVolumeDir.
func VolumeFolder(podsDir string, pod types.UID, volume, persistentVolume string) (string, error) {
	name := cmp.Or(persistentVolume, volume)
	if err := segment("name of the volume", name); err != nil {
		return "", err
	}
	volumes, plugins, err := PodFolder(podsDir, pod)
	if err != nil {
		return "", err
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
		return "", fmt.Errorf("volume %q has no folder %q below %s: hostPath volumes of pods and block volumes have none, and are not supported", volume, name, volumes)
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
