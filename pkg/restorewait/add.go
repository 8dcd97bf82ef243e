// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorewait

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	Command = "restore-wait"
	// Dir is the mount path of the container's emptyDir.
	Dir = "/holdfast-restore"

	// ContainerName and VolumeName begin the names of additions to a pod.
	ContainerName = "holdfast-restore-wait"
	VolumeName    = "holdfast-restore"

	// tokens is the mount path of service account tokens.
	tokens = "/var/run/secrets/kubernetes.io/serviceaccount"
	// unprivileged is the container's user if the pod's is root or unknown.
	unprivileged = 65532
)

// Add makes a pod, before its creation, wait for these volumes, at most for the timeout. It returns
// the emptyDir's name, for Tell. The image's entrypoint is the holdfast program.
func Add(pod *corev1.Pod, image string, volumes []string, timeout time.Duration) (waitVolume string, err error) {
	if len(volumes) == 0 || image == "" {
		return "", errors.New("an image and at least one volume are needed")
	}
	spec := &pod.Spec
	for _, name := range volumes {
		if !slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == name }) {
			return "", fmt.Errorf("the pod has no volume %q", name)
		}
	}
	waitVolume = unused(VolumeName, func(name string) bool {
		return slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	})
	args := []string{Command, "--timeout=" + timeout.String()}
	for _, name := range volumes {
		args = append(args, "--volume="+name)
	}
	// Requests equal limits, so that a Guaranteed pod stays so. Ephemeral storage is omitted: some
	// nodes have none to give.
	resources := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("50m"),
		corev1.ResourceMemory: resource.MustParse("64Mi"),
	}
	container := corev1.Container{
		Name: unused(ContainerName, func(name string) bool {
			named := func(c corev1.Container) bool { return c.Name == name }
			return slices.ContainsFunc(spec.InitContainers, named) || slices.ContainsFunc(spec.Containers, named)
		}),
		Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Args: args,
		Resources:       corev1.ResourceRequirements{Requests: resources, Limits: resources.DeepCopy()},
		SecurityContext: restricted(spec),
		VolumeMounts: []corev1.VolumeMount{
			{Name: waitVolume, MountPath: Dir, ReadOnly: true},
			{Name: waitVolume, MountPath: tokens, ReadOnly: true}, // keeps the token from being mounted
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
	spec.InitContainers = append([]corev1.Container{container}, spec.InitContainers...)
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: waitVolume, VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: resource.NewQuantity(1<<20, resource.BinarySI)},
	}})
	return waitVolume, nil
}

// In returns a pod's waiting container, or nil, and the emptyDir for Tell.
func In(pod *corev1.Pod) (waiter *corev1.Container, waitVolume string) {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if waitVolume := ToldIn(&containers[i]); waitVolume != "" {
				return &containers[i], waitVolume
			}
		}
	}
	return nil, ""
}

// ToldIn returns a waiting container's emptyDir, or "" for any other.
func ToldIn(c *corev1.Container) (waitVolume string) {
	if len(c.Args) == 0 || c.Args[0] != Command {
		return ""
	}
	for _, mount := range c.VolumeMounts {
		if mount.MountPath == Dir {
			return mount.Name
		}
	}
	return ""
}

func unused(name string, taken func(string) bool) string {
	found := name
	for i := 2; taken(found); i++ {
		found = name + "-" + strconv.Itoa(i)
	}
	return found
}

// restricted passes the restricted Pod Security Standard, with the pod's own user: some clusters
// allow no other.
func restricted(spec *corev1.PodSpec) *corev1.SecurityContext {
	security := &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(bool),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		ReadOnlyRootFilesystem:   new(true),
		RunAsNonRoot:             new(true),
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	var user *int64
	if of := spec.SecurityContext; of != nil {
		user = of.RunAsUser
	}
	for _, c := range spec.Containers {
		if user == nil && c.SecurityContext != nil {
			user = c.SecurityContext.RunAsUser
		}
	}
	if user == nil || *user == 0 {
		user = new(int64(unprivileged))
	}
	security.RunAsUser = user
	return security
}
