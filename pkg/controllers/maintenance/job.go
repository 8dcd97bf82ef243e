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

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

const (
	// LabelRepository has, on a Job and its pod, the uid of its only VolumeRepository; a name may be
	// too long.
	LabelRepository = "engine.holdfast.io/repository-uid"
	// LabelPrefix and a repository's namespace are a label of its Jobs and pods. The value is the
	// storage location, if short enough.
	LabelPrefix   = "repository.holdfast.io/"
	containerName = "repo-maintenance"
	account       = "holdfast-repo-maintenance"
	jobTTL        = 24 * time.Hour
)

// Resources are the requests and limits of a Job's pod. Zero means none.
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

// jobName returns the name of a repository's next Job. It follows from the request or the last
// maintenance, so two controllers, or restarts, use the same name.
func jobName(record *enginev1alpha1.VolumeRepository) string {
	if name, waits := record.RequestedJob(); waits {
		return name
	}
	since, _ := last(record)
	return record.MaintenanceJob(strconv.FormatInt(since.Unix(), 10))
}

func jobNameOf(group []*enginev1alpha1.VolumeRepository) string {
	name := jobName(group[0])
	if len(group) > 1 {
		return "several" + name[strings.LastIndex(name, "-"):]
	}
	return name
}

// job returns a Job for repositories of one location. Its pod resembles own, the controller's, in
// image, environment, volumes and placement.
func job(group []*enginev1alpha1.VolumeRepository, system string, own *corev1.Pod, resources Resources, timeout time.Duration, logFlags []string) *batchv1.Job {
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
	args = append(args, "--repo-type="+enginev1alpha1.RepositoryTypeKopia, "--backup-storage-location="+group[0].Spec.BackupStorageLocation)
	container := corev1.Container{
		Name:      containerName,
		Image:     "ghcr.io/holdfast-io/holdfast:dev",
		Args:      append(args, logFlags...),
		Resources: resources.requirements(),
		// For a killed process.
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
			Template:                corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: podLabels(labels, own)}, Spec: spec},
		},
	}
}

const annotationRepositories = "engine.holdfast.io/repositories"

func namesOf(job *batchv1.Job) []string {
	return strings.FieldsFunc(job.Annotations[annotationRepositories], func(r rune) bool { return r == ',' })
}

// isOf reports whether a Job maintains a repository, and not an earlier one of its name.
func isOf(job *batchv1.Job, record *enginev1alpha1.VolumeRepository) bool {
	return slices.Contains(namesOf(job), record.Name) && !job.CreationTimestamp.Before(&record.CreationTimestamp)
}

const labelAzureIdentity = "azure.workload.identity/use"

func podLabels(labels map[string]string, own *corev1.Pod) map[string]string {
	labels = maps.Clone(labels)
	if own != nil && own.Labels[labelAzureIdentity] != "" {
		labels[labelAzureIdentity] = own.Labels[labelAzureIdentity]
	}
	return labels
}

// injected has the volumes by which clouds' webhooks give a pod its service account's identity, each
// with its variables. They add nothing that exists, and a Job's account may have another role.
var injected = map[string][]string{
	"aws-iam-token":          {"AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"},
	"eks-pod-identity-token": {"AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"},
	"azure-identity-token":   {"AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_AUTHORITY_HOST"},
}

// inherit copies the controller's pod, except its account's tokens.
func inherit(spec *corev1.PodSpec, container *corev1.Container, own *corev1.Pod) {
	from := own.Spec.DeepCopy()
	parent := from.Containers[0]
	var variables []string
	for _, volume := range from.Volumes {
		variables = append(variables, injected[volume.Name]...)
	}
	isToken := func(name string) bool { return strings.HasPrefix(name, "kube-api-access-") || injected[name] != nil }
	container.Image, container.ImagePullPolicy = parent.Image, parent.ImagePullPolicy
	container.Env = slices.DeleteFunc(parent.Env, func(v corev1.EnvVar) bool { return slices.Contains(variables, v.Name) })
	container.EnvFrom = parent.EnvFrom
	container.VolumeMounts = slices.DeleteFunc(parent.VolumeMounts, func(m corev1.VolumeMount) bool { return isToken(m.Name) })
	container.SecurityContext = parent.SecurityContext
	spec.Volumes = slices.DeleteFunc(from.Volumes, func(v corev1.Volume) bool { return isToken(v.Name) })
	spec.ImagePullSecrets = from.ImagePullSecrets
	spec.NodeSelector, spec.Affinity, spec.Tolerations = from.NodeSelector, from.Affinity, from.Tolerations
	// Admission sets the pod's priority and default tolerations.
	spec.PriorityClassName, spec.RuntimeClassName = from.PriorityClassName, from.RuntimeClassName
	spec.SecurityContext = from.SecurityContext
}

func finished(job *batchv1.Job) (ended, succeeded bool, condition batchv1.JobCondition) {
	for _, c := range job.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			return true, c.Type == batchv1.JobComplete, c
		}
	}
	return false, false, batchv1.JobCondition{}
}
