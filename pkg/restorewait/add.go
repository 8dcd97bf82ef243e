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
	// Command is the subcommand that the container runs.
	Command = "restore-wait"
	// Dir is where the container has its emptyDir.
	Dir = "/holdfast-restore"

	// ContainerName and VolumeName begin the names of what is added to a pod.
	ContainerName = "holdfast-restore-wait"
	VolumeName    = "holdfast-restore"

	// tokens is where every container has the token of its service account that
	// mounts nothing else there.
	tokens = "/var/run/secrets/kubernetes.io/serviceaccount"
	// nobody runs the container when the pod's own user is root, or is not known.
	nobody = 65532
)

// Add has a pod that is yet to be created wait until these of its volumes are restored, for
// so long at most, and returns the name of the emptyDir for Tell. The image's entrypoint is
// the holdfast program.
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
	// Requests equal limits, so that a pod in the class Guaranteed stays there. Nothing is
	// said of ephemeral storage, of which some nodes have none to give.
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
			{Name: waitVolume, MountPath: tokens, ReadOnly: true}, // or a token would be there
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
	spec.InitContainers = append([]corev1.Container{container}, spec.InitContainers...)
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: waitVolume, VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: resource.NewQuantity(1<<20, resource.BinarySI)},
	}})
	return waitVolume, nil
}

// In returns the container of a pod that waits for its volumes, or nil, and the emptyDir in
// which it is told what became of them.
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

// ToldIn returns the volume in which a container is told that waits for volumes. It is empty for
// any other container.
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

// unused is a name that is not taken: the name, or one with a number.
func unused(name string, taken func(string) bool) string {
	found := name
	for i := 2; taken(found); i++ {
		found = name + "-" + strconv.Itoa(i)
	}
	return found
}

// restricted passes the Pod Security Standard of that name. The user is the pod's own:
// some clusters let pods of a namespace have no other.
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
		user = new(int64(nobody))
	}
	security.RunAsUser = user
	return security
}
