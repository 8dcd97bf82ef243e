// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/restorewait"
)

func (c *change) kind(resource schema.GroupResource, began bool) {
	switch resource.String() {
	case "namespaces":
		c.removeLabels("kubernetes.io/metadata.name")
		delete(c.object.Object, "spec")
	case "pods":
		c.removeLabels(enginev1alpha1.LabelWaits)
		c.pod()
	case "services":
		c.service()
	case "persistentvolumeclaims":
		c.claim()
	case "persistentvolumes":
		c.volume()
	case "serviceaccounts":
		c.account()
	case "secrets":
		c.secret()
	case "jobs.batch":
		c.job(began)
	case "cronjobs.batch":
		if zone := moveZone(c.object.Object); zone != "" {
			c.warn("its schedule had the time zone %s in it, which is allowed only where it is there already: it is in spec.timeZone", zone)
		}
	case Schedules:
		Pause(c.object)
	case "statefulsets.apps":
		for _, template := range list(c.object.Object, "spec", "volumeClaimTemplates") {
			delete(template, "status")
			c.storageClass(template)
		}
	case "apiservices.apiregistration.k8s.io":
		c.removeLabels(automanaged)
	case "customresourcedefinitions.apiextensions.k8s.io":
		preserveUnknown(c.object.Object)
	case "validatingwebhookconfigurations.admissionregistration.k8s.io", "mutatingwebhookconfigurations.admissionregistration.k8s.io":
		for _, webhook := range list(c.object.Object, "webhooks") {
			if effects := text(webhook, "sideEffects"); effects == "Unknown" || effects == "Some" {
				webhook["sideEffects"] = "None"
				c.warn("its webhook %s had the side effects %s, which only old versions of the API allow: it gets None", text(webhook, "name"), effects)
			}
		}
	}
}

// Schedules is the resource of Holdfast's schedules.
const Schedules = "schedules.holdfast.io"

// IsPaused reports whether a schedule is paused.
func IsPaused(schedule *unstructured.Unstructured) bool {
	paused, _, _ := unstructured.NestedBool(schedule.Object, "spec", "paused")
	return paused
}

// Pause pauses a schedule, which would make backups with the restoring user's rights.
func Pause(schedule *unstructured.Unstructured) { setPaused(schedule, true) }

// KeepPaused takes over the live schedule's pause, which is no difference.
func KeepPaused(schedule, live *unstructured.Unstructured) { setPaused(schedule, IsPaused(live)) }

func setPaused(schedule *unstructured.Unstructured, paused bool) {
	spec := nested(schedule.Object, "spec")
	if spec != nil && paused {
		spec["paused"] = true
	} else if spec != nil {
		delete(spec, "paused")
	}
}

// list returns the objects in a list, not copies.
func list(object map[string]any, path ...string) []map[string]any {
	value, _, _ := unstructured.NestedFieldNoCopy(object, path...)
	elements, _ := value.([]any)
	var objects []map[string]any
	for _, element := range elements {
		if fields, ok := element.(map[string]any); ok {
			objects = append(objects, fields)
		}
	}
	return objects
}

func text(object map[string]any, path ...string) string {
	value, _, _ := unstructured.NestedString(object, path...)
	return value
}

func nested(object map[string]any, path ...string) map[string]any {
	value, _, _ := unstructured.NestedFieldNoCopy(object, path...)
	fields, _ := value.(map[string]any)
	return fields
}

func without(object map[string]any, field string, drop func(element map[string]any) bool) {
	elements, ok := object[field].([]any)
	if !ok {
		return
	}
	elements = slices.DeleteFunc(elements, func(element any) bool {
		fields, ok := element.(map[string]any)
		return ok && drop(fields)
	})
	if len(elements) == 0 {
		delete(object, field)
		return
	}
	object[field] = elements
}

// pod removes decisions about a pod, and others' additions.
func (c *change) pod() {
	spec := nested(c.object.Object, "spec")
	if spec == nil {
		return
	}
	// Its node, values computed from its classes, and additions while it ran.
	for _, field := range []string{"nodeName", "priority", "preemptionPolicy", "overhead", "ephemeralContainers"} {
		delete(spec, field)
	}
	account := text(spec, "serviceAccountName")
	without(spec, "imagePullSecrets", func(reference map[string]any) bool {
		return c.isRemade(account, text(reference, "name"))
	})
	injected := c.injected()
	dropped := sets.New[string]()
	without(spec, "volumes", func(volume map[string]any) bool {
		name := text(volume, "name")
		if isToken(spec, volume) || injected.volumes.Has(name) {
			dropped.Insert(name)
			return true
		}
		return false
	})
	for _, field := range []string{"initContainers", "containers"} {
		without(spec, field, func(container map[string]any) bool { return injected.containers.Has(text(container, "name")) })
		for _, container := range list(spec, field) {
			without(container, "volumeMounts", func(mount map[string]any) bool { return dropped.Has(text(mount, "name")) })
		}
	}
}

type injection struct{ containers, volumes sets.Set[string] }

// injected returns the additions of a service mesh, which adds them again, and of an earlier
// restore, for which the pod must not wait.
func (c *change) injected() injection {
	found := injection{sets.New[string](), sets.New[string]()}
	spec := nested(c.object.Object, "spec")
	told := sets.New[string]()
	for _, container := range list(spec, "initContainers") {
		var typed corev1.Container
		if runtime.DefaultUnstructuredConverter.FromUnstructured(container, &typed) != nil {
			continue
		}
		if volume := restorewait.ToldIn(&typed); volume != "" {
			found.containers.Insert(typed.Name)
			told.Insert(volume)
		}
	}
	if told.Len() > 0 {
		for _, container := range slices.Concat(list(spec, "initContainers"), list(spec, "containers")) {
			for _, mount := range list(container, "volumeMounts") {
				if !found.containers.Has(text(container, "name")) {
					told.Delete(text(mount, "name"))
				}
			}
		}
		for _, volume := range list(spec, "volumes") {
			if name := text(volume, "name"); told.Has(name) && volume["emptyDir"] != nil {
				found.volumes.Insert(name)
			}
		}
	}
	c.mesh(&found)
	return found
}

func (c *change) service() {
	spec := nested(c.object.Object, "spec")
	if spec == nil {
		return
	}
	if text(spec, "clusterIP") != corev1.ClusterIPNone {
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
	}
	if c.rules.nodePorts {
		return
	}
	asked := c.askedPorts()
	for _, port := range list(spec, "ports") {
		if !asked.has(port) {
			delete(port, "nodePort")
		}
	}
	if !asked.healthCheck {
		delete(spec, "healthCheckNodePort")
	}
}

// askedPorts are the ports asked for by the Service's author: in kubectl's stored configuration, or
// by another field manager than the API server.
type askedPorts struct {
	numbers     sets.Set[int64]
	healthCheck bool
}

func (a *askedPorts) has(port map[string]any) bool {
	number, _, _ := unstructured.NestedInt64(port, "nodePort")
	return a.numbers.Has(number)
}

func (c *change) askedPorts() *askedPorts {
	asked := &askedPorts{numbers: sets.New[int64]()}
	if applied, ok := c.object.GetAnnotations()[corev1.LastAppliedConfigAnnotation]; ok {
		var service corev1.Service
		if json.Unmarshal([]byte(applied), &service) == nil {
			for _, port := range service.Spec.Ports {
				if port.NodePort != 0 {
					asked.numbers.Insert(int64(port.NodePort))
				}
			}
			asked.healthCheck = service.Spec.HealthCheckNodePort != 0
		}
		return asked
	}
	ports := fieldpath.MakePathOrDie("spec", "ports")
	for _, entry := range c.managed {
		set := &fieldpath.Set{}
		if entry.FieldsV1 == nil || set.FromJSON(entry.FieldsV1.GetRawReader()) != nil {
			continue
		}
		asked.healthCheck = asked.healthCheck || set.Has(fieldpath.MakePathOrDie("spec", "healthCheckNodePort"))
		for _, port := range list(c.object.Object, "spec", "ports") {
			number, _, _ := unstructured.NestedInt64(port, "nodePort")
			protocol := text(port, "protocol")
			if protocol == "" {
				protocol = string(corev1.ProtocolTCP)
			}
			key := fieldpath.KeyByFields("port", port["port"], "protocol", protocol)
			if set.Has(append(ports.Copy(), fieldpath.PathElement{Key: key}, fieldpath.PathElement{FieldName: new("nodePort")})) {
				asked.numbers.Insert(number)
			}
		}
	}
	return asked
}

// labelSnapshot is also an annotation.
const labelSnapshot = "velero.io/volume-snapshot-name"

func (c *change) claim() {
	spec := nested(c.object.Object, "spec")
	if spec == nil {
		return
	}
	c.removeAnnotations("pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller",
		"volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner",
		"volume.kubernetes.io/selected-node", "volume.kubernetes.io/storage-resizer",
		// By these Velero finds the snapshot that it took from this claim.
		labelSnapshot, "velero.io/data-upload-name", "backup.velero.io/must-include-additional-items", "backup.velero.io/skipped-no-csi-pv")
	c.removeLabels(labelSnapshot, "velero.io/backup-name")
	takesNew := c.rules.facts.TakesNewVolume(c.object.GetNamespace(), c.object.GetName())
	if takesNew || !c.rules.facts.KeepsVolume(c.object.GetNamespace(), c.object.GetName()) {
		delete(spec, "volumeName")
	}
	if takesNew {
		for _, field := range []string{"dataSource", "dataSourceRef", "selector"} {
			delete(spec, field)
		}
	}
	c.storageClass(c.object.Object)
}

func (c *change) storageClass(claim map[string]any) {
	const old = "volume.beta.kubernetes.io/storage-class"
	spec := nested(claim, "spec")
	if spec == nil || len(c.rules.storageClasses) == 0 {
		return
	}
	if mapped, ok := c.rules.storageClasses[text(spec, "storageClassName")]; ok {
		spec["storageClassName"] = mapped
	}
	annotations := nested(claim, "metadata", "annotations")
	if mapped, ok := c.rules.storageClasses[text(annotations, old)]; ok && annotations[old] != nil {
		annotations[old] = mapped
	}
}

func (c *change) volume() {
	c.removeAnnotations("pv.kubernetes.io/bound-by-controller")
	if reference := nested(c.object.Object, "spec", "claimRef"); reference != nil {
		delete(reference, "uid")
		delete(reference, "resourceVersion")
		if namespace := c.rules.Namespace(text(reference, "namespace")); namespace != "" {
			reference["namespace"] = namespace
		}
	}
	if spec := nested(c.object.Object, "spec"); spec != nil {
		if mapped, ok := c.rules.storageClasses[text(spec, "storageClassName")]; ok {
			spec["storageClassName"] = mapped
		}
	}
}

func (c *change) account() {
	name := c.object.GetName()
	for _, field := range []string{"secrets", "imagePullSecrets"} {
		without(c.object.Object, field, func(reference map[string]any) bool {
			return c.isRemade(name, text(reference, "name"))
		})
	}
}

// secret empties a token, which the server fills again.
func (c *change) secret() {
	if text(c.object.Object, "type") != string(corev1.SecretTypeServiceAccountToken) {
		return
	}
	data := nested(c.object.Object, "data")
	for _, field := range []string{corev1.ServiceAccountTokenKey, corev1.ServiceAccountRootCAKey, corev1.ServiceAccountNamespaceKey, "service-ca.crt"} {
		delete(data, field)
	}
	if len(data) == 0 {
		delete(c.object.Object, "data")
	}
	c.removeAnnotations(corev1.ServiceAccountUIDKey)
	c.removeLabels("kubernetes.io/legacy-token-last-used", "kubernetes.io/legacy-token-invalid-since")
}

// moveZone moves a time zone from a CronJob's schedule into its field, and returns it.
func moveZone(job map[string]any) string {
	spec := nested(job, "spec")
	prefix, rest, _ := strings.Cut(strings.TrimSpace(text(spec, "schedule")), "=")
	zone, schedule, ok := strings.Cut(rest, " ")
	if prefix != "TZ" && prefix != "CRON_TZ" || !ok || text(spec, "timeZone") != "" || strings.EqualFold(zone, "local") {
		return ""
	}
	spec["timeZone"], spec["schedule"] = zone, strings.TrimSpace(schedule)
	return zone
}

var jobLabels = []string{"controller-uid", "batch.kubernetes.io/controller-uid"}

// job removes a Job's ties to its pods. A begun Job is suspended: otherwise it would run twice.
func (c *change) job(began bool) {
	spec := nested(c.object.Object, "spec")
	if spec == nil {
		return
	}
	if manual, _, _ := unstructured.NestedBool(spec, "manualSelector"); !manual {
		delete(spec, "selector")
		c.removeLabels(jobLabels...)
		if template := nested(spec, "template"); template != nil {
			removeNames(template, "labels", jobLabels)
		}
	}
	if began {
		spec["suspend"] = true
		c.warn("it had begun when the backup was made, and is suspended, so that nothing is done twice: set spec.suspend to false to run it from its beginning")
	}
}

func jobBegan(o *unstructured.Unstructured) bool {
	suspended, _, _ := unstructured.NestedBool(o.Object, "spec", "suspend")
	return o.GetKind() == "Job" && o.GroupVersionKind().Group == "batch" && !suspended && text(o.Object, "status", "startTime") != ""
}
