// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

const (
	prefix = "holdfast.io/"
	// AnnotationRestoreUID is the uid of the restore that created an object.
	AnnotationRestoreUID = prefix + "restore-uid"
	// AnnotationOriginalUID is a pod's uid in the backup, which identifies its volumes without a
	// claim.
	AnnotationOriginalUID = prefix + "original-uid"

	annotationRestoreStatus = "velero.io/restore-status"
)

// Rules are one restore's rules, immutable and safe for concurrent use.
type Rules struct {
	namespaces     map[string]string
	storageClasses map[string]string
	images         map[string]string
	nodePorts      bool
	status         *selection.Resources
	modifiers      *Modifiers
	facts          Facts
	// left are the mapped namespaces that are no targets; mentioned finds them in texts, or is nil.
	left      []string
	mentioned *regexp.Regexp
}

// Facts are the inputs besides the object and the spec.
type Facts struct {
	// Called are the names of resources. Nil knows the plurals.
	Called selection.Called
	// StatusIsField reports whether a kind has no status subresource; nil means none.
	StatusIsField func(kind schema.GroupVersionKind) bool
	// RestoreUID marks created objects. Optional.
	RestoreUID types.UID
	// TakesNewVolume reports whether a claim gets a new volume, for its data or an empty one; nil
	// means none.
	TakesNewVolume func(namespace, name string) bool
	// KeepsVolume reports whether a claim keeps its PersistentVolume, which is free for it; nil
	// means none.
	KeepsVolume func(namespace, name string) bool
	// OpenShift says that the cluster makes Secrets and certificates as OpenShift.
	OpenShift bool
	// Remade reports whether the cluster makes an account's Secret anew; nil means none.
	Remade func(namespace, secret string) bool
	// Template is TemplateToMake of a Deployment of the backup, by its uid, or empty if unknown.
	// Nil knows none.
	Template func(deployment types.UID) string
	// Restored reports whether an object of the backup is restored or exists, and so makes its
	// objects; nil means none.
	Restored func(uid types.UID) bool
}

// NewRules compiles a validated spec. modifiers may be nil.
func NewRules(spec *v1alpha1.RestoreSpec, modifiers *Modifiers, facts Facts) (*Rules, error) {
	r := &Rules{
		namespaces:     spec.NamespaceMapping,
		storageClasses: spec.StorageClassMapping,
		images:         spec.ImageMapping,
		nodePorts:      spec.PreserveNodePorts != nil && *spec.PreserveNodePorts,
		modifiers:      modifiers,
		facts:          facts,
	}
	for _, from := range slices.Sorted(maps.Keys(spec.NamespaceMapping)) {
		if !slices.Contains(slices.Collect(maps.Values(spec.NamespaceMapping)), from) {
			r.left = append(r.left, from)
		}
	}
	if len(r.left) > 0 {
		r.mentioned = inTexts(r.left)
	}
	if modifiers != nil {
		modifiers.called = facts.Called
	}
	if facts.TakesNewVolume == nil {
		r.facts.TakesNewVolume = func(string, string) bool { return false }
	}
	if facts.KeepsVolume == nil {
		r.facts.KeepsVolume = func(string, string) bool { return false }
	}
	if facts.StatusIsField == nil {
		r.facts.StatusIsField = func(schema.GroupVersionKind) bool { return false }
	}
	if facts.Restored == nil {
		r.facts.Restored = func(types.UID) bool { return false }
	}
	if wanted := spec.RestoreStatus; wanted != nil {
		everywhere, _ := selection.ParseNamespaces(nil, nil, nil)
		status, errs := selection.ParseResources(selection.ResourceLists{
			IncludedResources: wanted.IncludedResources, ExcludedResources: wanted.ExcludedResources,
		}, everywhere, nil)
		if len(errs) > 0 {
			return nil, fmt.Errorf("spec.restoreStatus: %w", errs.ToAggregate())
		}
		r.status = status.Bind(facts.Called.Resolve)
	}
	return r, nil
}

// Namespace returns where a namespace's objects are restored.
func (r *Rules) Namespace(namespace string) string {
	if mapped, ok := r.namespaces[namespace]; ok && namespace != "" {
		return mapped
	}
	return namespace
}

// Owners returns the present uid of an owner in the backup; false without one. With an empty uid
// the reference is added later.
type Owners func(owner metav1.OwnerReference) (types.UID, bool)

// Desired returns the object to create; it changes o. Warnings name the differences. After an
// error, such as the end of ctx between two patches, the object must not be restored.
func (r *Rules) Desired(ctx context.Context, o *unstructured.Unstructured, resource schema.GroupResource, owners Owners) (desired *unstructured.Unstructured, warnings []string, err error) {
	c := &change{rules: r, object: o, original: o.GetUID(), managed: o.GetManagedFields()}
	began := jobBegan(o)
	c.warnOfRollout(o.Object, resource)
	c.reset()
	c.kind(resource, began)
	c.warnOfProfiles(resource)
	c.mapImages(resource)
	before := identityOf(c.object)
	if r.modifiers != nil {
		if err := r.modifiers.apply(ctx, c.object, resource); err != nil {
			return nil, nil, err
		}
	}
	if after := identityOf(c.object); after != before {
		return nil, nil, fmt.Errorf("the resource modifiers make %s of %s: they can change an object, and not replace it", after, before)
	}
	c.owners(owners)
	c.mapNamespace(resource)
	c.mark()
	return c.object, c.warnings, nil
}

type identity struct{ apiVersion, kind, namespace, name string }

func (i identity) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s/%s", i.apiVersion, i.kind, i.namespace, i.name))
}

func identityOf(o *unstructured.Unstructured) identity {
	return identity{o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName()}
}

// Status returns the status to restore after the creation, or nil. The object is as read.
func (r *Rules) Status(o *unstructured.Unstructured, resource schema.GroupResource) map[string]any {
	wanted := r.status != nil && r.status.Included(resource, o.GetNamespace() != "")
	switch o.GetAnnotations()[annotationRestoreStatus] {
	case "true":
		wanted = true
	case "false":
		wanted = false
	}
	if !wanted {
		return nil
	}
	status, _, _ := unstructured.NestedMap(o.Object, "status")
	return status
}

type change struct {
	rules    *Rules
	object   *unstructured.Unstructured
	original types.UID
	managed  []metav1.ManagedFieldsEntry
	warnings []string
}

func (c *change) warn(text string, arguments ...any) {
	c.warnings = append(c.warnings, fmt.Sprintf(text, arguments...))
}

var keptMetadata = []string{"name", "namespace", "labels", "annotations", "ownerReferences"}

// revision is a ReplicaSet's number in its Deployment's history, which the controller continues
// from the highest.
const revision = "deployment.kubernetes.io/revision"

// volatile annotations are written by controllers for themselves.
var volatile = []string{
	revision,
	"deprecated.daemonset.template.generation",
	"control-plane.alpha.kubernetes.io/leader",
	"endpoints.kubernetes.io/last-change-trigger-time",
	"k8s.v1.cni.cncf.io/network-status",
	"k8s.v1.cni.cncf.io/networks-status",
	"k8s.ovn.org/pod-networks",
	"cni.projectcalico.org/containerID",
	"cni.projectcalico.org/podIP",
	"cni.projectcalico.org/podIPs",
	annotationRestoreStatus,
}

// removalGuard keeps Holdfast's policy against removal in force when it is deleted. A person
// removes it: see artifacts/rbac/removal-policy.yaml.
const removalGuard = "holdfast.io/removal"

func (c *change) reset() {
	o := c.object
	guarded := strings.HasPrefix(o.GetKind(), "ValidatingAdmissionPolicy") && slices.Contains(o.GetFinalizers(), removalGuard)
	for _, finalizer := range o.GetFinalizers() {
		if guarded && finalizer == removalGuard {
			continue
		}
		// Kubernetes' own finalizers have its domain, or none. A domain may have no slash.
		if domain, _, _ := strings.Cut(finalizer, "/"); !strings.HasSuffix(domain, "kubernetes.io") && strings.ContainsAny(finalizer, "/.") {
			c.warn("its finalizer %s is left out: the controller that it belongs to adds it again", finalizer)
		}
	}
	metadata, _ := o.Object["metadata"].(map[string]any)
	kept := map[string]any{}
	for _, field := range keptMetadata {
		if value, ok := metadata[field]; ok {
			kept[field] = value
		}
	}
	if guarded {
		kept["finalizers"] = []any{removalGuard}
	}
	o.Object["metadata"] = kept
	if !c.rules.facts.StatusIsField(o.GroupVersionKind()) {
		delete(o.Object, "status")
	}
	for name := range o.GetAnnotations() {
		if strings.HasPrefix(name, prefix) || slices.Contains(volatile, name) && (name != revision || o.GetKind() != "ReplicaSet") {
			c.removeAnnotations(name)
		}
	}
}

func (c *change) removeAnnotations(names ...string) { c.removeNames("annotations", names) }
func (c *change) removeLabels(names ...string)      { c.removeNames("labels", names) }

func (c *change) removeNames(field string, names []string) {
	removeNames(c.object.Object, field, names)
}

func removeNames(object map[string]any, field string, names []string) {
	metadata, _ := object["metadata"].(map[string]any)
	entries, ok := metadata[field].(map[string]any)
	if !ok {
		return
	}
	for _, name := range names {
		delete(entries, name)
	}
	if len(entries) == 0 {
		delete(metadata, field)
	}
}

func (c *change) owners(owners Owners) {
	references := c.object.GetOwnerReferences()
	if len(references) == 0 {
		return
	}
	var kept []metav1.OwnerReference
	for _, reference := range references {
		uid, ok := types.UID(""), false
		if owners != nil {
			uid, ok = owners(reference)
		}
		switch {
		case !ok:
			c.warn("its owner, the %s %s, is neither restored nor there: the reference to it is left out", reference.Kind, reference.Name)
		case uid != "":
			reference.UID = uid
			kept = append(kept, reference)
		}
	}
	c.object.SetOwnerReferences(kept)
	if len(kept) == 0 {
		unstructured.RemoveNestedField(c.object.Object, "metadata", "ownerReferences")
	}
}

var podKind = schema.GroupKind{Kind: "Pod"}

const maxAnnotations = 256 << 10

// ofBinding is the room for Kubernetes' annotations at a claim's binding.
const ofBinding = 1 << 10

// Room returns the bytes left for further annotations.
func Room(o *unstructured.Unstructured) int {
	room := maxAnnotations
	if o.GroupVersionKind().GroupKind() == (schema.GroupKind{Kind: "PersistentVolumeClaim"}) {
		room -= ofBinding
	}
	for name, value := range o.GetAnnotations() {
		room -= len(name) + len(value)
	}
	return room
}

func (c *change) mark() {
	annotations := maps.Clone(c.object.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	room := Room(c.object)
	add := func(name, value string) {
		if room -= len(name) + len(value); value != "" && room >= 0 {
			annotations[name] = value
		}
	}
	add(AnnotationRestoreUID, string(c.rules.facts.RestoreUID))
	if c.object.GroupVersionKind().GroupKind() == podKind {
		add(AnnotationOriginalUID, string(c.original))
	}
	if len(annotations) > 0 {
		c.object.SetAnnotations(annotations)
	}
}
