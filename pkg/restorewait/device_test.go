// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorewait

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestServeDevice: a container serves the device by a socket in its emptyDir, as root without any privilege. Where
// root is refused, it runs as the pod's user.
func TestServeDevice(t *testing.T) {
	for name, user := range map[string]*int64{"no user": nil, "root": new(int64(0)), "a user": new(int64(107))} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{RunAsUser: user}, Volumes: []corev1.Volume{emptyDir("data")}}}
		mustAdd(t, pod, "data")
		container := pod.Spec.InitContainers[0]
		ServeDevice(&container, "data", true)
		pod.Spec.InitContainers, pod.Spec.Containers = nil, []corev1.Container{container}
		for _, mount := range container.VolumeMounts {
			if mount.ReadOnly == (mount.MountPath == Dir) {
				t.Errorf("%s: the mount is %+v", name, mount)
			}
		}
		if !slices.Contains(container.Args, "--writable") || !slices.Contains(container.Args, "--device="+container.VolumeDevices[0].DevicePath) || container.VolumeDevices[0].Name != "data" {
			t.Errorf("%s: %+v", name, container)
		}
		security := container.SecurityContext
		if *security.RunAsUser != 0 || *security.RunAsNonRoot || !slices.Equal(security.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s: %+v", name, security)
		}
		want := int64(unprivileged)
		if user != nil && *user != 0 {
			want = *user
		}
		if !Restrict(&pod.Spec) || Restrict(&pod.Spec) {
			t.Errorf("%s: it is not restricted once", name)
		}
		if security := pod.Spec.Containers[0].SecurityContext; *security.RunAsUser != want || !*security.RunAsNonRoot {
			t.Errorf("%s: restricted to %+v", name, security)
		}
	}
}
