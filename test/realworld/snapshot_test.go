// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package realworld

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// snapshot is what a cluster has of the operators, and outside of all namespaces.
type snapshot struct {
	found   []seen
	objects map[string]seen
}

// withoutHashes is the snapshot with the hashes of pods' templates, which are part of names, as a word:
// another release has other ones.
func (s snapshot) withoutHashes(all []operator, of func(operator) string) snapshot {
	var pairs []string
	for _, object := range s.found {
		if hash := object.live.GetLabels()["pod-template-hash"]; hash != "" && object.live.GetKind() == "ReplicaSet" {
			pairs = append(pairs, hash, "HASH")
		}
	}
	return newSnapshot(s.found, all, of, pairs...)
}

// seen is an object as it is compared, under its kind and name.
type seen struct {
	// operator is whose it is, by its namespace or, outside of all, by the fixtures. It may be empty.
	operator string
	resource schema.GroupVersionResource
	live     *unstructured.Unstructured
	// content is the object without what is another one each time. A uid in it is the name of its
	// object, and the operator's namespace is namespaceWord.
	content map[string]any
}

// skipped are no objects that a backup is asked for: Holdfast's own, and what tells of a moment.
func skipped(gvr schema.GroupVersionResource) bool {
	switch gvr.GroupResource().String() {
	case "events", "events.events.k8s.io", "componentstatuses", "leases.coordination.k8s.io", "nodes", "csinodes.storage.k8s.io",
		"apiservices.apiregistration.k8s.io", "ipaddresses.networking.k8s.io", "pods.metrics.k8s.io", "nodes.metrics.k8s.io":
		return true
	}
	return strings.HasSuffix(gvr.Group, "holdfast.io")
}

// takeSnapshot lists what is there. The operators' objects are in the namespaces that the function gives.
func takeSnapshot(t *testing.T, in *labtest.Lab, all []operator, of func(operator) string) snapshot {
	t.Helper()
	client, err := dynamic.NewForConfig(in.Config)
	if err != nil {
		t.Fatal(err)
	}
	lists, err := in.Kube.Discovery().ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		t.Fatal(err)
	}
	operators := map[string]operator{}
	for _, o := range all {
		operators[of(o)] = o
	}
	var found []seen
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, resource := range list.APIResources {
			gvr := version.WithResource(resource.Name)
			if skipped(gvr) || strings.Contains(resource.Name, "/") || !slices.Contains(resource.Verbs, "list") {
				continue
			}
			objects, err := client.Resource(gvr).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatalf("%s: %v", gvr, err)
			}
			for i := range objects.Items {
				object := &objects.Items[i]
				o, mine := operators[object.GetNamespace()]
				if mine || object.GetNamespace() == "" && !otherOf(all, of, object) {
					found = append(found, seen{operator: o.name, resource: gvr, live: object})
				}
			}
		}
	}
	return newSnapshot(found, all, of)
}

// otherOf reports whether an object is the namespace of an operator, and not the one that is looked at.
func otherOf(all []operator, of func(operator) string, object *unstructured.Unstructured) bool {
	return object.GetKind() == "Namespace" && slices.ContainsFunc(all, func(o operator) bool {
		return object.GetName() != of(o) && (object.GetName() == o.namespace() || object.GetName() == o.copied())
	})
}

// newSnapshot puts objects under their names, and replaces in them what another cluster would have other.
// Words, in pairs, are replaced too.
func newSnapshot(found []seen, all []operator, of func(operator) string, pairs ...string) snapshot {
	var words []string
	outside := map[string]string{}
	for _, o := range all {
		// A namespace's name may be a part of the name of another one.
		words = append(words, of(o))
		outside["Namespace "+of(o)] = o.name
		for _, object := range slices.Concat(o.definitions, o.cluster) {
			if object.GetKind() != "Namespace" {
				outside[nameOf(object)] = o.name
			}
		}
	}
	slices.SortFunc(words, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, word := range words {
		pairs = append(pairs, word, namespaceWord)
	}
	names := strings.NewReplacer(pairs...)
	for _, s := range found {
		if uid := string(s.live.GetUID()); uid != "" {
			pairs = append(pairs, uid, "the uid of "+names.Replace(nameOf(s.live)))
		}
	}
	replacer := strings.NewReplacer(pairs...)
	s := snapshot{found: found, objects: map[string]seen{}}
	byName := map[string][]seen{}
	for _, object := range found {
		object.content = contentOf(object.live, replacer)
		name := nameOf(object.live)
		if object.live.GetNamespace() == "" {
			object.operator = outside[name]
		}
		name = replacer.Replace(name)
		if object.operator != "" {
			name = object.operator + ": " + name
		}
		byName[name] = append(byName[name], object)
	}
	for name, objects := range byName {
		// Those whose names Kubernetes makes up are told apart by what they hold.
		slices.SortFunc(objects, func(a, b seen) int { return strings.Compare(string(encoded(a.content)), string(encoded(b.content))) })
		for i, object := range objects {
			key := name
			if len(objects) > 1 {
				key = fmt.Sprintf("%s (%d of %d)", name, i+1, len(objects))
			}
			s.objects[key] = object
		}
	}
	return s
}

// nameOf is the kind and name of an object. A name that a controller has made up ends in a star.
func nameOf(o *unstructured.Unstructured) string {
	name := o.GetName()
	owners := o.GetOwnerReferences()
	if generated := o.GetGenerateName(); generated != "" && strings.HasPrefix(name, generated) && (len(owners) == 0 || owners[0].Kind != "StatefulSet") {
		name = generated + "*"
	}
	return o.GetKind() + " " + name
}

func encoded(value any) []byte {
	content, _ := json.Marshal(value) // it is JSON already
	return content
}

// ofToken is the part that is another one each time of the volume that each pod has for its token.
var ofToken = regexp.MustCompile(`kube-api-access-[a-z0-9]{5}\b`)

// byControllers reports whether all of an object is what a controller of Kubernetes makes of others.
func byControllers(o *unstructured.Unstructured) bool {
	switch o.GetKind() {
	case "EndpointSlice":
		return o.GetLabels()["endpointslice.kubernetes.io/managed-by"] == "endpointslice-controller.k8s.io"
	case "Endpoints":
		return o.GetLabels()["endpoints.kubernetes.io/managed-by"] == "endpoint-controller"
	}
	return false
}

// hasStatus reports whether a status is compared: the controllers that run here write that of most of
// Kubernetes' own kinds anew.
func hasStatus(o *unstructured.Unstructured) bool {
	group := o.GroupVersionKind().Group
	if strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") {
		return true
	}
	return slices.Contains([]string{"Service", "Ingress", "CronJob"}, o.GetKind())
}

// contentOf is an object without what is another one each time.
func contentOf(o *unstructured.Unstructured, replacer *strings.Replacer) map[string]any {
	content := o.DeepCopy().Object
	if byControllers(o) {
		return map[string]any{}
	}
	if !hasStatus(o) {
		delete(content, "status")
	}
	metadata := content["metadata"].(map[string]any)
	// So that each label and annotation is compared by itself.
	for _, field := range []string{"labels", "annotations"} {
		if metadata[field] == nil {
			metadata[field] = map[string]any{}
		}
	}
	for _, field := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"} {
		delete(metadata, field)
	}
	if strings.HasSuffix(nameOf(o), "*") {
		metadata["name"] = strings.TrimPrefix(nameOf(o), o.GetKind()+" ")
	}
	return reworded(content, func(text string) string { return ofToken.ReplaceAllString(replacer.Replace(text), "kube-api-access-*") }).(map[string]any)
}

// reworded is a value with all strings and keys in it replaced.
func reworded(value any, word func(string) string) any {
	switch value := value.(type) {
	case map[string]any:
		result := make(map[string]any, len(value))
		for key, field := range value {
			result[word(key)] = reworded(field, word)
		}
		return result
	case []any:
		result := make([]any, len(value))
		for i := range value {
			result[i] = reworded(value[i], word)
		}
		return result
	case string:
		return word(value)
	}
	return value
}

// settledSnapshot waits until nothing changes any more, but for states, and gives what is there then.
func settledSnapshot(t *testing.T, in *labtest.Lab, all []operator, of func(operator) string) snapshot {
	t.Helper()
	const enough = 3
	var last string
	var current snapshot
	same := 0
	labtest.Eventually(t, "the controllers to have done their work", func() error {
		current = takeSnapshot(t, in, all, of)
		stated := map[string]any{}
		for name, object := range current.objects {
			if missing := awaited(object.live); missing != "" {
				same = 0
				return errors.New(name + ": " + missing)
			}
			content := maps.Clone(object.content)
			delete(content, "status")
			stated[name] = content
		}
		if text := string(encoded(stated)); text != last {
			last, same = text, 0
		}
		if same++; same < enough {
			return errors.New("something has changed")
		}
		return nil
	})
	return current
}

// awaited is what a controller of Kubernetes has yet to do about an object.
func awaited(o *unstructured.Unstructured) string {
	number := func(fields ...string) int64 {
		n, _, _ := unstructured.NestedInt64(o.Object, fields...)
		return n
	}
	switch o.GetKind() + "." + o.GroupVersionKind().Group {
	case "Deployment.apps", "StatefulSet.apps", "DaemonSet.apps", "ReplicaSet.apps":
		if number("status", "observedGeneration") != o.GetGeneration() {
			return "its controller has not seen it"
		}
		if wanted := number("spec", "replicas"); o.GetKind() != "DaemonSet" && number("status", "readyReplicas") != wanted {
			return fmt.Sprintf("it has %d of %d replicas", number("status", "readyReplicas"), wanted)
		}
	case "PersistentVolumeClaim.":
		volume, _, _ := unstructured.NestedString(o.Object, "spec", "volumeName")
		if phase, _, _ := unstructured.NestedString(o.Object, "status", "phase"); volume != "" && phase != "Bound" {
			return "it is " + phase
		}
	case "Job.batch":
		suspended, _, _ := unstructured.NestedBool(o.Object, "spec", "suspend")
		if _, ended, _ := unstructured.NestedString(o.Object, "status", "completionTime"); !suspended && !ended {
			return "it has not ended"
		}
	case "Namespace.":
		if phase, _, _ := unstructured.NestedString(o.Object, "status", "phase"); phase != "Active" {
			return "it is " + phase
		}
	case "CustomResourceDefinition.apiextensions.k8s.io":
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		if !slices.ContainsFunc(conditions, func(c any) bool {
			condition := c.(map[string]any)
			return condition["type"] == "Established" && condition["status"] == "True"
		}) {
			return "it is not established"
		}
	}
	return ""
}
