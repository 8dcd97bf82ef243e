// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

const (
	// LabelRepository names, on a Job and its pod, the only VolumeRepository that it maintains:
	// by its uid, as its name may be too long for a label.
	LabelRepository = "engine.holdfast.io/repository-uid"
	// LabelPrefix and the namespace of a repository are a label of each Job that maintains it,
	// and of its pod, also beside others. Its value is the storage location, if it is short
	// enough for one.
	LabelPrefix = "repository.holdfast.io/"
	// containerName is that of the only container.
	containerName = "repo-maintenance"
	// account is the service account of the pods.
	account = "holdfast-repo-maintenance"
	// jobTTL is how long the cluster keeps a Job that has ended, if nobody removes it before.
	jobTTL = 24 * time.Hour
)

// Resources are what the pod of a Job asks for, and may use. Zero is nothing.
type Resources struct {
	CPURequest, CPULimit, MemoryRequest, MemoryLimit resource.Quantity
}

func (r Resources) requirements() (all corev1.ResourceRequirements) {
	set := func(list *corev1.ResourceList, name corev1.ResourceName, quantity resource.Quantity) {
		if !quantity.IsZero() {
			if *list == nil {
				*list = corev1.ResourceList{}
			}
			(*list)[name] = quantity
		}
	}
	set(&all.Requests, corev1.ResourceCPU, r.CPURequest)
	set(&all.Requests, corev1.ResourceMemory, r.MemoryRequest)
	set(&all.Limits, corev1.ResourceCPU, r.CPULimit)
	set(&all.Limits, corev1.ResourceMemory, r.MemoryLimit)
	return all
}

// jobName is the name of the Job that maintains a repository next. It follows from who asked
// for it, or else from the maintenance before: two controllers, or one before and after its
// restart, that mean the same maintenance give it the same name.
func jobName(record *engine.VolumeRepository) string {
	if name, waits := record.RequestedJob(); waits {
		return name
	}
	since, _ := last(record)
	return record.MaintenanceJob(strconv.FormatInt(since.Unix(), 10))
}

// jobNameOf is the name of the Job of several repositories, or of one.
func jobNameOf(group []*engine.VolumeRepository) string {
	name := jobName(group[0])
	if len(group) > 1 {
		return "several" + name[strings.LastIndex(name, "-"):]
	}
	return name
}

// job is a Job that maintains repositories of one location. Its pod is like own, the
// controller's pod: it has the same image, environment, volumes and place.
func job(group []*engine.VolumeRepository, system string, own *corev1.Pod, resources Resources, timeout time.Duration, logFlags []string) *batchv1.Job {
	labels := map[string]string{"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/component": "maintenance"}
	args := []string{"repo-maintenance", "--namespace=" + system}
	var names []string
	for _, record := range group {
		names = append(names, record.Name)
		location := record.Spec.BackupStorageLocation
		if len(location) > validation.LabelValueMaxLength {
			location = ""
		}
		labels[LabelPrefix+record.Spec.VolumeNamespace] = location
		args = append(args, "--repo-name="+record.Spec.VolumeNamespace)
	}
	if len(group) == 1 {
		labels[LabelRepository] = string(group[0].UID)
		if _, requested := group[0].RequestedJob(); requested && group[0].Spec.MaintenanceRequest.Verify {
			args = append(args, "--verify")
		}
	} else {
		args = append(args, "--repo-timeout="+togetherTimeout.String())
	}
	args = append(args, "--repo-type="+engine.RepositoryTypeKopia, "--backup-storage-location="+group[0].Spec.BackupStorageLocation)
	container := corev1.Container{
		Name:      containerName,
		Image:     "holdfast.io/holdfast:dev",
		Args:      append(args, logFlags...),
		Resources: resources.requirements(),
		// A process that was killed before it could say anything.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
	spec := corev1.PodSpec{
		RestartPolicy:      corev1.RestartPolicyNever,
		ServiceAccountName: account,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(65532)), RunAsGroup: new(int64(65532)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	if own != nil && len(own.Spec.Containers) > 0 {
		inherit(&spec, &container, own)
	}
	spec.Containers = []corev1.Container{container}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name:        jobNameOf(group),
			Labels:      labels,
			Annotations: map[string]string{annotationRepositories: strings.Join(names, ",")},
		},
		Spec: batchv1.JobSpec{
			Completions: new(int32(1)), Parallelism: new(int32(1)), BackoffLimit: new(int32(0)),
			ActiveDeadlineSeconds:   new(int64(timeout.Seconds())),
			TTLSecondsAfterFinished: new(int32(jobTTL.Seconds())),
			Template:                corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(labels)}, Spec: spec},
		},
	}
}

// annotationRepositories holds the names of the VolumeRepositories, with commas between.
const annotationRepositories = "engine.holdfast.io/repositories"

// namesOf are the VolumeRepositories that a Job maintains.
func namesOf(job *batchv1.Job) []string {
	return strings.FieldsFunc(job.Annotations[annotationRepositories], func(r rune) bool { return r == ',' })
}

// isOf reports whether a Job maintains a repository, and not one that had its name before.
func isOf(job *batchv1.Job, record *engine.VolumeRepository) bool {
	return slices.Contains(namesOf(job), record.Name) && !job.CreationTimestamp.Before(&record.CreationTimestamp)
}

// inherit gives a pod what the controller's has, but for its account's token.
func inherit(spec *corev1.PodSpec, container *corev1.Container, own *corev1.Pod) {
	from := own.Spec.DeepCopy()
	parent := from.Containers[0]
	isToken := func(name string) bool { return strings.HasPrefix(name, "kube-api-access-") }
	container.Image, container.ImagePullPolicy = parent.Image, parent.ImagePullPolicy
	container.Env, container.EnvFrom = parent.Env, parent.EnvFrom
	container.VolumeMounts = slices.DeleteFunc(parent.VolumeMounts, func(m corev1.VolumeMount) bool { return isToken(m.Name) })
	container.SecurityContext = parent.SecurityContext
	spec.Volumes = slices.DeleteFunc(from.Volumes, func(v corev1.Volume) bool { return isToken(v.Name) })
	spec.ImagePullSecrets = from.ImagePullSecrets
	spec.NodeSelector, spec.Affinity, spec.Tolerations = from.NodeSelector, from.Affinity, from.Tolerations
	// The pod's priority and the tolerations of its node's taints are given anew.
	spec.PriorityClassName, spec.RuntimeClassName = from.PriorityClassName, from.RuntimeClassName
	spec.SecurityContext = from.SecurityContext
}

// finished says whether a Job has ended, and with success.
func finished(job *batchv1.Job) (ended, succeeded bool, condition batchv1.JobCondition) {
	for _, c := range job.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			return true, c.Type == batchv1.JobComplete, c
		}
	}
	return false, false, batchv1.JobCondition{}
}
