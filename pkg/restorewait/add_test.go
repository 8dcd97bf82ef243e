// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorewait

import (
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const image = "example.com/holdfast:v1"

func emptyDir(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}

// web is a pod with containers of its own, and volumes.
func web(volumes ...string) *corev1.Pod {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "migrate"}},
		Containers:     []corev1.Container{{Name: "web"}, {Name: "sidecar"}},
	}}
	for _, name := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, emptyDir(name))
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	return pod
}

func mustAdd(t *testing.T, pod *corev1.Pod, volumes ...string) string {
	t.Helper()
	name, err := Add(pod, image, volumes, 48*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// TestAdd: the container goes before all others, has what the restricted standard and
// quotas ask for, and nothing but its emptyDir.
func TestAdd(t *testing.T) {
	pod := web("data", "logs")
	name := mustAdd(t, pod, "data", "logs")
	resources := corev1.ResourceList{"cpu": resource.MustParse("50m"), "memory": resource.MustParse("64Mi")}
	limit := resource.MustParse("1Mi")
	want := web("data", "logs")
	want.Spec.InitContainers = append([]corev1.Container{{
		Name: "holdfast-restore-wait", Image: image, ImagePullPolicy: "IfNotPresent",
		Args:      []string{"restore-wait", "--timeout=48h0m0s", "--volume=data", "--volume=logs"},
		Resources: corev1.ResourceRequirements{Requests: resources, Limits: resources},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), RunAsNonRoot: new(true), RunAsUser: new(int64(65532)),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "holdfast-restore", MountPath: "/holdfast-restore", ReadOnly: true},
			{Name: "holdfast-restore", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true},
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}}, want.Spec.InitContainers...)
	want.Spec.Volumes = append(want.Spec.Volumes, corev1.Volume{Name: "holdfast-restore", VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit},
	}})
	if diff := gocmp.Diff(want, pod); name != "holdfast-restore" || diff != "" {
		t.Errorf("it waits in %s (-want +got):\n%s", name, diff)
	}
}

// TestNamesThatAreTaken: what the pod has under our names stays the pod's.
func TestNamesThatAreTaken(t *testing.T) {
	pod := web("data", "holdfast-restore", "holdfast-restore-2")
	pod.Spec.Containers[1].Name = "holdfast-restore-wait"
	pod.Spec.InitContainers[0].Name = "holdfast-restore-wait-2"
	if name := mustAdd(t, pod, "data", "holdfast-restore"); name != "holdfast-restore-3" || pod.Spec.InitContainers[0].VolumeMounts[0].Name != name {
		t.Errorf("it waits in %s", name)
	}
	if name := pod.Spec.InitContainers[0].Name; name != "holdfast-restore-wait-3" {
		t.Errorf("the container is called %s", name)
	}
	if waiter, name := In(pod); waiter != &pod.Spec.InitContainers[0] || name != "holdfast-restore-3" {
		t.Errorf("what waits is %+v, in %q", waiter, name)
	}
}

// TestUser: the container has the pod's own user, unless that is root.
func TestUser(t *testing.T) {
	user := func(id int64) *corev1.SecurityContext { return &corev1.SecurityContext{RunAsUser: &id} }
	for name, test := range map[string]struct {
		pod  *corev1.PodSecurityContext
		web  *corev1.SecurityContext
		want int64
	}{
		"of the pod":                {&corev1.PodSecurityContext{RunAsUser: new(int64(1000))}, user(2000), 1000},
		"of a container":            {&corev1.PodSecurityContext{}, user(2000), 2000},
		"root":                      {nil, user(0), 65532},
		"root, by the pod":          {&corev1.PodSecurityContext{RunAsUser: new(int64(0))}, user(2000), 65532},
		"nobody knows: the image's": {nil, nil, 65532},
	} {
		pod := web("data")
		pod.Spec.SecurityContext, pod.Spec.Containers[0].SecurityContext = test.pod, test.web
		mustAdd(t, pod, "data")
		if got := *pod.Spec.InitContainers[0].SecurityContext.RunAsUser; got != test.want {
			t.Errorf("%s: got %d, want %d", name, got, test.want)
		}
	}
}

func TestAddRefuses(t *testing.T) {
	for name, err := range map[string]error{
		"no volume":            errOf(Add(web("data"), image, nil, time.Hour)),
		"no image":             errOf(Add(web("data"), "", []string{"data"}, time.Hour)),
		"a volume that is not": errOf(Add(web("data"), image, []string{"other"}, time.Hour)),
	} {
		if err == nil {
			t.Errorf("%s: there is no error", name)
		}
	}
}

func errOf(_ string, err error) error { return err }
