// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorewait

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const devicePath = "/dev/holdfast-volume"

// ServeDevice has a waiting container serve a block device of its pod, see package blockdevice. It
// runs as root, to which a device belongs.
func ServeDevice(container *corev1.Container, volume string, writable bool) {
	container.Args = append(container.Args, "--device="+devicePath)
	if writable {
		container.Args = append(container.Args, "--writable")
	}
	container.VolumeDevices = append(container.VolumeDevices, corev1.VolumeDevice{Name: volume, DevicePath: devicePath})
	for i := range container.VolumeMounts {
		if container.VolumeMounts[i].MountPath == Dir { // the socket is made there
			container.VolumeMounts[i].ReadOnly = false
		}
	}
	container.SecurityContext.RunAsUser, container.SecurityContext.RunAsNonRoot = new(int64), new(false)
	// The kernel counts the pages of the device.
	for _, list := range []corev1.ResourceList{container.Resources.Requests, container.Resources.Limits} {
		list[corev1.ResourceMemory] = resource.MustParse("256Mi")
	}
}

// Restrict lets no container of a pod that serves a device run as root, and reports whether one
// did. Then the device opens only if the node's container runtime gives devices to containers'
// users.
func Restrict(spec *corev1.PodSpec) (changed bool) {
	for i := range spec.Containers {
		container := &spec.Containers[i]
		if len(container.VolumeDevices) > 0 && !*container.SecurityContext.RunAsNonRoot {
			container.SecurityContext.RunAsNonRoot, container.SecurityContext.RunAsUser = new(true), restricted(spec).RunAsUser
			changed = true
		}
	}
	return changed
}
