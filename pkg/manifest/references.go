// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "sigs.k8s.io/json"
)

// ReferencesOf returns the objects that an object of a known kind needs or is about, without owning
// them, such as claims of pods. They are sorted and unique. Other kinds, and objects that don't decode, have
// none. All versions of a kind are read as the known one.
func ReferencesOf(gk schema.GroupKind, namespace string, raw []byte) []Reference {
	references, _ := NeedsOf(gk, namespace, raw)
	return references
}

// NeedsOf returns ReferencesOf, and containers' images, sorted and unique.
func NeedsOf(gk schema.GroupKind, namespace string, raw []byte) ([]Reference, Images) {
	find := finders[gk]
	if find == nil {
		return nil, ""
	}
	refs := &references{namespace: namespace}
	find(refs, raw)
	slices.SortFunc(refs.found, compareReferences)
	slices.Sort(refs.images)
	return slices.Compact(refs.found), ImagesOf(slices.Compact(refs.images))
}

// HasReferences reports whether ReferencesOf may find any in a kind, which needs more than the
// metadata.
func HasReferences(gk schema.GroupKind) bool { return finders[gk] != nil }

func compareReferences(a, b Reference) int {
	return cmp.Or(cmp.Compare(a.APIGroup, b.APIGroup), cmp.Compare(a.KindName, b.KindName),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

type references struct {
	namespace string
	found     []Reference
	images    []string
}

func (r *references) image(name string) {
	if name != "" {
		r.images = append(r.images, name)
	}
}

func (r *references) add(group, kind, namespace, name string) {
	if name != "" {
		r.found = append(r.found, Reference{group, kind, namespace, name})
	}
}

func (r *references) local(kind, name string) { r.add("", kind, r.namespace, name) }

func of[T any](find func(r *references, object *T)) func(*references, []byte) {
	return func(r *references, raw []byte) {
		var object T
		if utiljson.UnmarshalCaseSensitivePreserveInts(raw, &object) == nil {
			find(r, &object)
		}
	}
}

const (
	rbacGroup    = "rbac.authorization.k8s.io"
	storageGroup = "storage.k8s.io"
)

var finders = map[schema.GroupKind]func(*references, []byte){
	{Kind: "Pod"}:                   of(func(r *references, o *corev1.Pod) { r.pod(&o.Spec) }),
	{Kind: "PodTemplate"}:           of(func(r *references, o *corev1.PodTemplate) { r.pod(&o.Template.Spec) }),
	{Kind: "ReplicationController"}: of(func(r *references, o *corev1.ReplicationController) { r.template(o.Spec.Template) }),
	{Group: "apps", Kind: "Deployment"}: of(func(r *references, o *appsv1.Deployment) {
		r.pod(&o.Spec.Template.Spec)
	}),
	{Group: "apps", Kind: "ReplicaSet"}: of(func(r *references, o *appsv1.ReplicaSet) { r.pod(&o.Spec.Template.Spec) }),
	{Group: "apps", Kind: "DaemonSet"}:  of(func(r *references, o *appsv1.DaemonSet) { r.pod(&o.Spec.Template.Spec) }),
	{Group: "apps", Kind: "StatefulSet"}: of(func(r *references, o *appsv1.StatefulSet) {
		r.pod(&o.Spec.Template.Spec)
		r.local("Service", o.Spec.ServiceName)
		for _, claim := range o.Spec.VolumeClaimTemplates {
			r.claim(claim.Annotations, &claim.Spec)
		}
	}),
	{Group: "batch", Kind: "Job"}:     of(func(r *references, o *batchv1.Job) { r.pod(&o.Spec.Template.Spec) }),
	{Group: "batch", Kind: "CronJob"}: of(func(r *references, o *batchv1.CronJob) { r.pod(&o.Spec.JobTemplate.Spec.Template.Spec) }),

	{Kind: "PersistentVolumeClaim"}: of(func(r *references, o *corev1.PersistentVolumeClaim) { r.claim(o.Annotations, &o.Spec) }),
	{Kind: "PersistentVolume"}: of(func(r *references, o *corev1.PersistentVolume) {
		r.add(storageGroup, "StorageClass", "", o.Spec.StorageClassName)
		r.add(storageGroup, "StorageClass", "", o.Annotations[corev1.BetaStorageClassAnnotation])
		if claim := o.Spec.ClaimRef; claim != nil {
			r.add("", "PersistentVolumeClaim", claim.Namespace, claim.Name)
		}
		r.persistentVolume(&o.Spec)
	}),
	{Kind: "ServiceAccount"}: of(func(r *references, o *corev1.ServiceAccount) {
		for _, secret := range o.Secrets {
			r.local("Secret", secret.Name)
		}
		for _, secret := range o.ImagePullSecrets {
			r.local("Secret", secret.Name)
		}
	}),
	{Group: rbacGroup, Kind: "RoleBinding"}: of(func(r *references, o *rbacv1.RoleBinding) {
		namespace := r.namespace
		if o.RoleRef.Kind == "ClusterRole" {
			namespace = ""
		}
		r.binding(o.RoleRef, namespace, o.Subjects)
	}),
	{Group: rbacGroup, Kind: "ClusterRoleBinding"}: of(func(r *references, o *rbacv1.ClusterRoleBinding) {
		r.binding(o.RoleRef, "", o.Subjects)
	}),
	{Group: "networking.k8s.io", Kind: "Ingress"}: of(func(r *references, o *networkingv1.Ingress) {
		if o.Spec.IngressClassName != nil {
			r.add("networking.k8s.io", "IngressClass", "", *o.Spec.IngressClassName)
		}
		r.backend(o.Spec.DefaultBackend)
		for _, tls := range o.Spec.TLS {
			r.local("Secret", tls.SecretName)
		}
		for _, rule := range o.Spec.Rules {
			if rule.HTTP != nil {
				for _, path := range rule.HTTP.Paths {
					r.backend(&path.Backend)
				}
			}
		}
	}),
	{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}: of(func(r *references, o *autoscalingv2.HorizontalPodAutoscaler) {
		target := o.Spec.ScaleTargetRef
		if gv, err := schema.ParseGroupVersion(target.APIVersion); err == nil {
			r.add(gv.Group, target.Kind, r.namespace, target.Name)
		}
	}),
	{Group: "admissionregistration.k8s.io", Kind: "ValidatingWebhookConfiguration"}: of(func(r *references, o *admissionregistrationv1.ValidatingWebhookConfiguration) {
		for _, webhook := range o.Webhooks {
			r.webhook(webhook.ClientConfig)
		}
	}),
	{Group: "admissionregistration.k8s.io", Kind: "MutatingWebhookConfiguration"}: of(func(r *references, o *admissionregistrationv1.MutatingWebhookConfiguration) {
		for _, webhook := range o.Webhooks {
			r.webhook(webhook.ClientConfig)
		}
	}),
	{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicyBinding"}: of(func(r *references, o *admissionregistrationv1.ValidatingAdmissionPolicyBinding) {
		r.add("admissionregistration.k8s.io", "ValidatingAdmissionPolicy", "", o.Spec.PolicyName)
	}),
	// Their modules have little else.
	{Group: "apiregistration.k8s.io", Kind: "APIService"}: of(func(r *references, o *struct {
		Spec struct {
			Service *admissionregistrationv1.ServiceReference `json:"service"`
		} `json:"spec"`
	},
	) {
		if o.Spec.Service != nil {
			r.add("", "Service", o.Spec.Service.Namespace, o.Spec.Service.Name)
		}
	}),
	{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}: of(func(r *references, o *struct {
		Spec struct {
			Conversion struct {
				Webhook struct {
					ClientConfig admissionregistrationv1.WebhookClientConfig `json:"clientConfig"`
				} `json:"webhook"`
			} `json:"conversion"`
		} `json:"spec"`
	},
	) {
		r.webhook(o.Spec.Conversion.Webhook.ClientConfig)
	}),
}

func (r *references) template(template *corev1.PodTemplateSpec) {
	if template != nil {
		r.pod(&template.Spec)
	}
}

func (r *references) pod(spec *corev1.PodSpec) {
	r.local("ServiceAccount", spec.ServiceAccountName)
	r.add("scheduling.k8s.io", "PriorityClass", "", spec.PriorityClassName)
	if spec.RuntimeClassName != nil {
		r.add("node.k8s.io", "RuntimeClass", "", *spec.RuntimeClassName)
	}
	for _, secret := range spec.ImagePullSecrets {
		r.local("Secret", secret.Name)
	}
	for i := range spec.Volumes {
		r.volume(&spec.Volumes[i])
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			r.environment(containers[i].EnvFrom, containers[i].Env)
			r.image(containers[i].Image)
		}
	}
	for i := range spec.EphemeralContainers {
		r.environment(spec.EphemeralContainers[i].EnvFrom, spec.EphemeralContainers[i].Env)
		r.image(spec.EphemeralContainers[i].Image)
	}
}

func (r *references) volume(volume *corev1.Volume) {
	if source := volume.Image; source != nil {
		r.image(source.Reference)
	}
	if source := volume.PersistentVolumeClaim; source != nil {
		r.local("PersistentVolumeClaim", source.ClaimName)
	}
	if source := volume.Secret; source != nil {
		r.local("Secret", source.SecretName)
	}
	if source := volume.ConfigMap; source != nil {
		r.local("ConfigMap", source.Name)
	}
	if source := volume.CSI; source != nil && source.NodePublishSecretRef != nil {
		r.local("Secret", source.NodePublishSecretRef.Name)
	}
	if source := volume.Ephemeral; source != nil && source.VolumeClaimTemplate != nil {
		r.claim(source.VolumeClaimTemplate.Annotations, &source.VolumeClaimTemplate.Spec)
	}
	r.inTree(volume)
	if source := volume.Projected; source != nil {
		for _, part := range source.Sources {
			if part.Secret != nil {
				r.local("Secret", part.Secret.Name)
			}
			if part.ConfigMap != nil {
				r.local("ConfigMap", part.ConfigMap.Name)
			}
		}
	}
}

// inTree adds the secrets of volume types that were once built in.
func (r *references) inTree(volume *corev1.Volume) {
	if source := volume.AzureFile; source != nil {
		r.local("Secret", source.SecretName)
	}
	var secret *corev1.LocalObjectReference
	switch {
	case volume.RBD != nil:
		secret = volume.RBD.SecretRef
	case volume.ISCSI != nil:
		secret = volume.ISCSI.SecretRef
	case volume.FlexVolume != nil:
		secret = volume.FlexVolume.SecretRef
	case volume.CephFS != nil:
		secret = volume.CephFS.SecretRef
	case volume.ScaleIO != nil:
		secret = volume.ScaleIO.SecretRef
	case volume.StorageOS != nil:
		secret = volume.StorageOS.SecretRef
	}
	if secret != nil {
		r.local("Secret", secret.Name)
	}
}

// persistentVolume adds secrets, by default in the claim's namespace.
func (r *references) persistentVolume(spec *corev1.PersistentVolumeSpec) {
	namespace := ""
	if spec.ClaimRef != nil {
		namespace = spec.ClaimRef.Namespace
	}
	var secrets []*corev1.SecretReference
	if csi := spec.CSI; csi != nil {
		secrets = append(secrets, csi.ControllerPublishSecretRef, csi.NodeStageSecretRef, csi.NodePublishSecretRef, csi.ControllerExpandSecretRef, csi.NodeExpandSecretRef)
	}
	if source := spec.RBD; source != nil {
		secrets = append(secrets, source.SecretRef)
	}
	if source := spec.ISCSI; source != nil {
		secrets = append(secrets, source.SecretRef)
	}
	if source := spec.FlexVolume; source != nil {
		secrets = append(secrets, source.SecretRef)
	}
	if source := spec.CephFS; source != nil {
		secrets = append(secrets, source.SecretRef)
	}
	if source := spec.ScaleIO; source != nil {
		secrets = append(secrets, source.SecretRef)
	}
	if source := spec.StorageOS; source != nil && source.SecretRef != nil {
		secrets = append(secrets, &corev1.SecretReference{Namespace: source.SecretRef.Namespace, Name: source.SecretRef.Name})
	}
	if source := spec.AzureFile; source != nil {
		of := &corev1.SecretReference{Name: source.SecretName}
		if source.SecretNamespace != nil {
			of.Namespace = *source.SecretNamespace
		}
		secrets = append(secrets, of)
	}
	for _, secret := range secrets {
		if secret != nil {
			r.add("", "Secret", cmp.Or(secret.Namespace, namespace), secret.Name)
		}
	}
}

func (r *references) environment(from []corev1.EnvFromSource, variables []corev1.EnvVar) {
	for _, source := range from {
		if source.SecretRef != nil {
			r.local("Secret", source.SecretRef.Name)
		}
		if source.ConfigMapRef != nil {
			r.local("ConfigMap", source.ConfigMapRef.Name)
		}
	}
	for _, variable := range variables {
		if variable.ValueFrom == nil {
			continue
		}
		if ref := variable.ValueFrom.SecretKeyRef; ref != nil {
			r.local("Secret", ref.Name)
		}
		if ref := variable.ValueFrom.ConfigMapKeyRef; ref != nil {
			r.local("ConfigMap", ref.Name)
		}
	}
}

func (r *references) claim(annotations map[string]string, spec *corev1.PersistentVolumeClaimSpec) {
	r.add("", "PersistentVolume", "", spec.VolumeName)
	if spec.StorageClassName != nil {
		r.add(storageGroup, "StorageClass", "", *spec.StorageClassName)
	}
	r.add(storageGroup, "StorageClass", "", annotations[corev1.BetaStorageClassAnnotation])
	// The second is a copy of the first, or can say more.
	if source := spec.DataSource; source != nil {
		r.add(orCore(source.APIGroup), source.Kind, r.namespace, source.Name)
	}
	if source := spec.DataSourceRef; source != nil {
		namespace := r.namespace
		if source.Namespace != nil {
			namespace = *source.Namespace
		}
		r.add(orCore(source.APIGroup), source.Kind, namespace, source.Name)
	}
}

func orCore(group *string) string {
	if group == nil {
		return ""
	}
	return *group
}

func (r *references) binding(role rbacv1.RoleRef, namespace string, subjects []rbacv1.Subject) {
	r.add(rbacGroup, role.Kind, namespace, role.Name)
	for _, subject := range subjects {
		if subject.Kind == rbacv1.ServiceAccountKind {
			r.add("", subject.Kind, cmp.Or(subject.Namespace, r.namespace), subject.Name)
		}
	}
}

func (r *references) backend(backend *networkingv1.IngressBackend) {
	switch {
	case backend == nil:
	case backend.Service != nil:
		r.local("Service", backend.Service.Name)
	case backend.Resource != nil:
		r.add(orCore(backend.Resource.APIGroup), backend.Resource.Kind, r.namespace, backend.Resource.Name)
	}
}

func (r *references) webhook(config admissionregistrationv1.WebhookClientConfig) {
	if config.Service != nil {
		r.add("", "Service", config.Service.Namespace, config.Service.Name)
	}
}
