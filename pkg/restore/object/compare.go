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

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Action is the fate of an existing object.
type Action string

const (
	// Equal: it has everything desired, and nothing added. Nothing is written.
	Equal  Action = "Equal"
	Keep   Action = "Keep"
	Update Action = "Update"
	// Conflict: immutable fields differ. Nothing is written.
	Conflict Action = "Conflict"
	// Remade: it is newborn, and differs only in fields that its controller wrote anew. Nothing is
	// written.
	Remade Action = "Remade"
	// Recreate: it is deleted and created, since immutable fields differ.
	Recreate Action = "Recreate"
)

// Decision is the fate of an existing object.
type Decision struct {
	Action Action
	// Differs are the sorted paths of differing fields, as spec.replicas.
	Differs []string
	// Besides are the sorted paths of fields that only the live object has.
	Besides []string
	// Kept are the fields of Differs and Besides that an update leaves, with reasons.
	Kept []string
	// Immutable are the fields of Differs and Besides that can't be changed.
	Immutable []string
	// Patch is a JSON merge patch for Update. It fails if the object has changed since it was read.
	Patch []byte
	// Probe, a patch for a dry run, is set if fields of Besides may be the server's own. Compare
	// takes its answer, which has these.
	Probe []byte
}

// Compare decides about an existing object; desired is from Rules.Desired.
//
// They are equal if each desired field is live with an equal value, and each further live field
// belongs to the cluster:
//   - fields that Kubernetes allots or fills in at the creation (see given);
//   - fields that a controller applies or scales, or that a component of Kubernetes writes;
//   - fields that the server puts back: defaults, and additions of admission.
//
// Any other field was added since, and an update removes it, except in a CustomResourceDefinition:
// objects of its kind may have fields of a newer definition.
//
// Lists with keys are compared by key, others element by element. Of metadata, only labels,
// annotations and owners count, without Holdfast's own. A value that a controller applies or scales
// stays, and a HorizontalPodAutoscaler's is no difference.
//
// served is the answer to Probe, or nil: then each field that may have been added counts.
func Compare(live, desired, served *unstructured.Unstructured, policy v1alpha1.ExistingResourcePolicy) Decision {
	return compare(live, desired, served, policy, managersOf(live))
}

func compare(live, desired, served *unstructured.Unstructured, policy v1alpha1.ExistingResourcePolicy, managers []manager) Decision {
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
		if len(c.fixed) > 0 || c.definition { // the server would refuse it, or the target has it all
			removed = merge(&comparison{removesOnly: true})
		}
		d.Probe = patch(live, removed, status)
	}
	switch {
	case len(c.differs) == 0 && len(c.besides) == 0:
	case policy == "" || policy == v1alpha1.ExistingResourceNone:
		d.Action = Keep
	case len(fixed) > 0 && policy == v1alpha1.ExistingResourceRecreate:
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

// restartedAt is the annotation of "kubectl rollout restart".
const restartedAt = "kubectl.kubernetes.io/restartedAt"

func isDefinition(o *unstructured.Unstructured) bool {
	return o.GroupVersionKind().GroupKind() == schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
}

// relevant returns an object's compared parts, with the status if it is an ordinary field.
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
		delete(labels, enginev1alpha1.LabelWaits)
		if len(labels) == 0 {
			delete(kept, "labels")
		}
	}
	if isDefinition(o) {
		preserveUnknown(copied)
	}
	if spec := nested(copied, "spec"); o.GetKind() == "Job" && spec != nil {
		delete(spec, "suspend") // whether it runs does not count; see change.job
	}
	if o.GetKind() == "CronJob" {
		moveZone(copied)
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
