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
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// csiPlugin mounts a volume one folder deeper than others.
const (
	csiPlugin = "kubernetes.io~csi"
	csiMount  = "mount"
)

// podPlugins provide volumes of a pod, without a PersistentVolume.
var podPlugins = []string{
	"kubernetes.io~empty-dir", "kubernetes.io~secret", "kubernetes.io~configmap",
	"kubernetes.io~downward-api", "kubernetes.io~projected", "kubernetes.io~git-repo",
}

// mountPlugins mount each volume on its folder; others, as emptyDirs, may be plain folders.
var mountPlugins = []string{
	csiPlugin,
	"kubernetes.io~aws-ebs", "kubernetes.io~azure-disk", "kubernetes.io~azure-file", "kubernetes.io~cephfs",
	"kubernetes.io~cinder", "kubernetes.io~fc", "kubernetes.io~gce-pd", "kubernetes.io~glusterfs",
	"kubernetes.io~iscsi", "kubernetes.io~local-volume", "kubernetes.io~nfs", "kubernetes.io~portworx-volume",
	"kubernetes.io~rbd", "kubernetes.io~vsphere-volume",
}

// MountProbe reports whether an open folder is the root of a mount.
type MountProbe func(folder *os.File) (bool, error)

// IsMount asks the kernel.
func IsMount(folder *os.File) (bool, error) {
	var stat unix.Statx_t
	err := again(func() error {
		// Asks no server of files, which may hang.
		return unix.Statx(int(folder.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &stat)
	})
	if err == nil && stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	}
	return leavesMount(folder) // before Linux 5.8
}

func leavesMount(folder *os.File) (bool, error) {
	above := -1
	err := again(func() (err error) {
		above, err = unix.Openat(int(folder.Fd()), "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return false, &os.PathError{Op: "open", Path: folder.Name() + "/..", Err: err}
	}
	defer unix.Close(above)
	mount, err := mountID(int(folder.Fd()))
	if err != nil {
		return false, err
	}
	mountAbove, err := mountID(above)
	return mount != mountAbove, err
}

func mountID(fd int) (string, error) {
	path := "/proc/self/fdinfo/" + strconv.Itoa(fd)
	info, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(info)) {
		if id, found := strings.CutPrefix(line, "mnt_id:"); found {
			return strings.TrimSpace(id), nil
		}
	}
	return "", fmt.Errorf("%s has no mnt_id", path)
}

// Folder is the place of a volume on this node.
type Folder struct {
	Path string
	// Root is the folder or one above it. No link below it is followed: users may write below a
	// root of hostPath volumes. It is empty for the kubelet's folders, where only the node's
	// administrator writes.
	Root string
	// IsMount checks that the volume is mounted; nil if it need not be.
	IsMount MountProbe
	// Device says that a pod serves the volume, a block device, at a socket in Path.
	Device bool
}

// checkMount fails if the volume is not mounted on its open folder, which is then on the node's own
// disk.
func (f Folder) checkMount(folder *os.File) error {
	if f.IsMount == nil {
		return nil
	}
	switch mounted, err := f.IsMount(folder); {
	case err != nil:
		return fmt.Errorf("find out whether the volume is mounted: %w", err)
	case !mounted:
		return fmt.Errorf("the volume is not mounted: %s is a folder of the node's own disk, and must be the root of a mount; see whether the volume's driver runs, restart the pod, and see whether the agent's pod has its folder of pods with mountPropagation: HostToContainer", f.Path)
	}
	return nil
}

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

func segment(what, name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("the %s %q can't be the name of a folder", what, name)
	}
	return nil
}

// PodFolder returns the folder of a pod's volumes, and its entries, one a plugin. It fails if the
// pod has left the node.
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

// VolumeFolder returns the folder of a pod's volume: UID/volumes/PLUGIN/NAME, by the name of the
// PersistentVolume or else the volume (the kubelet's GetPodVolumeDir). If its plugin mounts
// volumes, opening it asks isMount.
func VolumeFolder(podsDir string, pod types.UID, volume, persistentVolume string, isMount MountProbe) (Folder, error) {
	name := cmp.Or(persistentVolume, volume)
	if err := segment("name of the volume", name); err != nil {
		return Folder{}, err
	}
	volumes, plugins, err := PodFolder(podsDir, pod)
	if err != nil {
		return Folder{}, err
	}

	var found []string
	for _, plugin := range plugins {
		if info, err := os.Stat(filepath.Join(volumes, plugin.Name(), name)); err == nil && info.IsDir() {
			found = append(found, plugin.Name())
		}
	}
	if len(found) > 1 {
		// A pod's own volume may have the name of another volume's PersistentVolume.
		found = slices.DeleteFunc(found, func(plugin string) bool {
			return slices.Contains(podPlugins, plugin) == (persistentVolume != "")
		})
	}
	switch {
	case len(found) == 0:
		return Folder{}, fmt.Errorf("volume %q has no folder %q below %s: hostPath volumes of pods and block volumes have none, and are not read from a running pod", volume, name, volumes)
	case len(found) > 1:
		return Folder{}, fmt.Errorf("volume %q has several folders %q below %s: %s", volume, name, volumes, strings.Join(found, ", "))
	}
	folder := Folder{Path: filepath.Join(volumes, found[0], name)}
	if slices.Contains(mountPlugins, found[0]) {
		folder.IsMount = isMount
	}
	if found[0] != csiPlugin {
		return folder, nil
	}
	folder.Path = filepath.Join(folder.Path, csiMount)
	if info, err := os.Stat(folder.Path); err != nil || !info.IsDir() {
		return Folder{}, fmt.Errorf("volume %q is not mounted: there is no folder %s", volume, folder.Path)
	}
	return folder, nil
}
