// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Action is what becomes of an object that exists.
type Action string

const (
	// Equal: it has all that the desired one has, and nothing that was added since. Nothing is
	// written.
	Equal Action = "Equal"
	// Keep: it differs, and stays as it is.
	Keep Action = "Keep"
	// Update: it is patched.
	Update Action = "Update"
	// Conflict: fields differ that can't be changed. Nothing is written.
	Conflict Action = "Conflict"
	// Remade: it is newborn, and differs only in what its controller has written anew. Nothing is
	// written.
	Remade Action = "Remade"
	// Recreate: it is deleted, and created as desired, since fields differ that can't be
	// changed.
	Recreate Action = "Recreate"
)

// Decision is what becomes of an object that exists.
type Decision struct {
	Action Action
	// Differs are the fields whose values differ, as paths such as spec.replicas, in order.
	Differs []string
	// Besides are the fields that the live object has and the desired one lacks, in order.
	Besides []string
	// Kept are the fields of Differs and Besides that an update leaves, and why.
	Kept []string
	// Immutable are the fields of Differs and Besides that can't be changed.
	Immutable []string
	// Patch is a JSON merge patch for Update, which fails if the object is another one, or
	// was changed, since it was read.
	Patch []byte
	// Probe is set if fields of Besides may be the server's own. It is a patch for a dry run:
	// what the server puts back is its own. Compare takes the answer.
	Probe []byte
}

// Compare decides about an object that exists. The desired one is as Rules.Desired gives it.
//
// Two objects are equal if each field of the desired one is live with an equal value, and each
// further field of the live one belongs to the cluster. These belong to the cluster:
//   - what Kubernetes allots or fills in when the object is created (see given);
//   - what a controller applies, as server-side apply has it, what it sets through the
//     subresource scale, and what a component of Kubernetes writes;
//   - what the server puts back when it is removed: its defaults, and what admission adds.
//
// Any other field was added since. It differs, whatever the kind: it is removed by an update. Only a
// CustomResourceDefinition keeps it: objects of its kind may have what a newer definition knows, and
// would lose it.
//
// In lists whose elements have a key, elements are compared by that; in others one by one. Of
// metadata, labels, annotations and owners count, without Holdfast's own; further ones make
// no difference.
//
// A value stays that a controller applies, or sets through the subresource scale. One that the
// controller of HorizontalPodAutoscalers sets is no difference.
//
// Served is the server's answer to Probe, or nil before that is known. Then each field that may
// have been added since counts as one.
func Compare(live, desired, served *unstructured.Unstructured, policy holdfast.ExistingResourcePolicy) Decision {
	return compare(live, desired, served, policy, managersOf(live))
}

func compare(live, desired, served *unstructured.Unstructured, policy holdfast.ExistingResourcePolicy, managers []manager) Decision {
	_, status := desired.Object["status"] // else the server keeps it apart, or the backup has none
	meta, wanted := lists(desired.GroupVersionKind()), relevant(desired, status)
	var put map[string]any
	if served != nil {
		put = relevant(served, status)
	}
	merge := func(c *comparison) map[string]any {
		c.immutable, c.given, c.injected, c.definition = immutable(live), given(live), isInjected(live), isDefinition(live)
		return c.merge("", relevant(live, status), wanted, put, meta, managers)
	}
	c := &comparison{}
	target := merge(c)
	fixed := slices.Concat(c.fixed, c.fixedBesides)
	for _, paths := range [][]string{c.differs, c.kept, c.besides, fixed} {
		slices.Sort(paths)
	}
	removable := len(c.besides)
	if c.definition {
		removable = 0
		for _, path := range c.besides {
			c.kept = append(c.kept, path+" (objects of its kind may have it)")
		}
	}
	d := Decision{Action: Equal, Differs: c.differs, Besides: c.besides, Kept: c.kept, Immutable: fixed}
	if len(c.besides) > 0 && served == nil {
		removed := target
		if len(c.fixed) > 0 || c.definition { // the server would refuse the whole, or the target has it all
			removed = merge(&comparison{removesOnly: true})
		}
		d.Probe = patch(live, removed, status)
	}
	switch {
	case len(c.differs) == 0 && len(c.besides) == 0:
	case policy == "" || policy == holdfast.ExistingResourceNone:
		d.Action = Keep
	case len(fixed) > 0 && policy == holdfast.ExistingResourceRecreate:
		d.Action = Recreate
	case len(fixed) > 0:
		d.Action = Conflict
	case len(c.kept) == len(c.differs)+len(c.besides)-removable && removable == 0:
		d.Action = Keep
	default:
		d.Action = Update
		d.Patch = patch(live, target, status)
	}
	return d
}

// restartedAt is the annotation of a template by which "kubectl rollout restart" restarts pods.
const restartedAt = "kubectl.kubernetes.io/restartedAt"

// isDefinition reports whether an object defines a kind.
func isDefinition(o *unstructured.Unstructured) bool {
	return o.GroupVersionKind().GroupKind() == schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
}

// relevant is what of an object is compared, with its status if that is a field like any.
func relevant(o *unstructured.Unstructured, status bool) map[string]any {
	copied := runtime.DeepCopyJSON(o.Object)
	if o.GetKind() == "Pod" && o.GetAPIVersion() == "v1" {
		unmesh(&unstructured.Unstructured{Object: copied})
	}
	if !status {
		delete(copied, "status")
	}
	delete(copied, "apiVersion")
	delete(copied, "kind")
	metadata, _ := copied["metadata"].(map[string]any)
	kept := map[string]any{}
	for _, field := range []string{"labels", "annotations", "ownerReferences"} {
		if value, ok := metadata[field]; ok && value != nil {
			kept[field] = value
		}
	}
	if annotations, ok := kept["annotations"].(map[string]any); ok {
		maps.DeleteFunc(annotations, func(name string, _ any) bool {
			return strings.HasPrefix(name, prefix) || slices.Contains(volatile, name)
		})
		if len(annotations) == 0 {
			delete(kept, "annotations")
		}
	}
	if labels, ok := kept["labels"].(map[string]any); ok {
		delete(labels, engine.LabelWaits)
		if len(labels) == 0 {
			delete(kept, "labels")
		}
	}
	if isDefinition(o) {
		preserveUnknown(copied) // as the desired one says it
	}
	if spec := nested(copied, "spec"); o.GetKind() == "Job" && spec != nil {
		delete(spec, "suspend") // whether it runs is not what it is; see change.job
	}
	if o.GetKind() == "CronJob" {
		moveZone(copied) // as the desired one says it
	}
	for _, template := range []map[string]any{nested(copied, "spec", "template"), nested(copied, "spec", "jobTemplate", "spec", "template")} {
		removeNames(template, "annotations", []string{restartedAt})
	}
	if o.GetKind() == "ClusterRole" && copied["aggregationRule"] != nil {
		delete(copied, "rules") // a controller collects them
	}
	delete(copied, "metadata")
	if len(kept) > 0 {
		copied["metadata"] = kept
	}
	return copied
}

// patch is the merge patch that makes of a live object the target, which has what
// relevant has.
func patch(live *unstructured.Unstructured, target map[string]any, status bool) []byte {
	before, err := json.Marshal(relevant(live, status))
	if err != nil {
		return nil
	}
	after, err := json.Marshal(target)
	if err != nil {
		return nil
	}
	encoded, err := jsonpatch.CreateMergePatch(before, after)
	if err != nil {
		return nil
	}
	var fields map[string]any
	if json.Unmarshal(encoded, &fields) != nil {
		return nil
	}
	metadata, ok := fields["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
		fields["metadata"] = metadata
	}
	metadata["uid"], metadata["resourceVersion"] = string(live.GetUID()), live.GetResourceVersion()
	encoded, _ = json.Marshal(fields)
	return encoded
}
