// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kinds fills a cluster with objects of 40 kinds, as diverse as the API allows, to see
// what becomes of them in a backup: of both scopes, custom ones in two versions, one of them
// converted by a webhook, with names of 63 and 253 characters, text of all scripts wherever the API
// takes it, and owners in a circle and across scopes. Labels, as names, are ASCII: it takes no others.
//
// There are no owners across namespaces: the garbage collector takes such an owner for gone,
// and deletes what it has. Nothing runs, so that the objects soon stay as they are.
package kinds

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
)

// Label is on all objects, with the name of their set.
const Label = "kinds.holdfast.io/set"

// Text is in an annotation of each object, and in what some kinds have for text of people: with
// letters in two forms, right to left, beyond 16 bits, of no width, and what is no text at all.
const Text = "Füße \u00e9e\u0301 例え שלום 🚀 👩\u200d🔧 \ufeff \ufffd \U0010fffd <a href=\"x\">&amp;</a> \\ \u2028 \u007f \t end"

// quoted is Text, as JSON, with what may be in data as well.
var quoted = func() string {
	text, _ := json.Marshal(Text + "\x00\x1f") // any string can be encoded
	return string(text)
}()

// Kind is one of the kinds.
type Kind struct {
	schema.GroupVersionResource
	Name       string
	Namespaced bool
	// longest is the number of characters that a name may have, and content what an object
	// has besides its metadata.
	longest int
	content string
}

// The versions of a custom kind, of which each object is written in one and stored in the other.
const writtenVersion, storedVersion = "v1", "v1beta1"

const podTemplate = `{"metadata":{"labels":{"app":"none"}},"spec":{"containers":[{"name":"c","image":"example.com/none"}]}}`

var builtIn = []Kind{
	of("", "v1", "configmaps", "ConfigMap", true, 253, `"data":{"a":"b","text":`+quoted+`},"binaryData":{"z":"AAEC"}`),
	of("", "v1", "secrets", "Secret", true, 253, `"stringData":{"password":`+quoted+`}`),
	of("", "v1", "services", "Service", true, 63, `"spec":{"clusterIP":"None"}`),
	of("", "v1", "serviceaccounts", "ServiceAccount", true, 253, `"automountServiceAccountToken":false`),
	of("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", true, 253, `"spec":{"storageClassName":"none","accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}`),
	of("", "v1", "limitranges", "LimitRange", true, 253, `"spec":{"limits":[{"type":"PersistentVolumeClaim","max":{"storage":"1Ti"}}]}`),
	of("", "v1", "podtemplates", "PodTemplate", true, 253, `"template":`+podTemplate),
	of("", "v1", "replicationcontrollers", "ReplicationController", true, 63, `"spec":{"replicas":0,"selector":{"app":"none"},"template":`+podTemplate+`}`),
	of("", "v1", "pods", "Pod", true, 63, `"spec":{"schedulerName":"none","containers":[{"name":"c","image":"example.com/none"}]}`),
	of("apps", "v1", "deployments", "Deployment", true, 63, `"spec":{"replicas":0,"selector":{"matchLabels":{"app":"none"}},"template":`+podTemplate+`}`),
	of("apps", "v1", "statefulsets", "StatefulSet", true, 50, `"spec":{"replicas":0,"serviceName":"none","selector":{"matchLabels":{"app":"none"}},"template":`+podTemplate+`}`),
	of("apps", "v1", "replicasets", "ReplicaSet", true, 63, `"spec":{"replicas":0,"selector":{"matchLabels":{"app":"alone"}},"template":`+strings.Replace(podTemplate, "none", "alone", 1)+`}`),
	of("batch", "v1", "jobs", "Job", true, 63, `"spec":{"suspend":true,"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"example.com/none"}]}}}`),
	of("batch", "v1", "cronjobs", "CronJob", true, 52, `"spec":{"suspend":true,"schedule":"0 0 1 1 *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"example.com/none"}]}}}}}`),
	of("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", true, 253, `"spec":{"podSelector":{}}`),
	of("networking.k8s.io", "v1", "ingresses", "Ingress", true, 253, `"spec":{"defaultBackend":{"service":{"name":"none","port":{"number":80}}}}`),
	of("rbac.authorization.k8s.io", "v1", "roles", "Role", true, 253, `"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]`),
	of("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", true, 253, `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"none"}`),
	of("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", true, 253, `"spec":{"maxUnavailable":1,"selector":{"matchLabels":{"app":"none"}}}`),
	of("coordination.k8s.io", "v1", "leases", "Lease", true, 253, `"spec":{"holderIdentity":"nobody"}`),
	of("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", true, 253, `"addressType":"IPv4","endpoints":[]`),
	of("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", false, 253, `"rules":[]`),
	of("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", false, 253, `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"none"}`),
	of("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", false, 253, `"value":7,"description":`+quoted),
	of("storage.k8s.io", "v1", "storageclasses", "StorageClass", false, 253, `"provisioner":"example.com/none","parameters":{"text":`+quoted+`}`),
	of("networking.k8s.io", "v1", "ingressclasses", "IngressClass", false, 253, `"spec":{"controller":"example.com/none"}`),
	of("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", false, 253, `"handler":"none"`),
	of("", "v1", "persistentvolumes", "PersistentVolume", false, 253, `"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"storageClassName":"other","csi":{"driver":"example.com","volumeHandle":"h"}}`),
}

func of(group, version, resource, name string, namespaced bool, longest int, content string) Kind {
	return Kind{schema.GroupVersionResource{Group: group, Version: version, Resource: resource}, name, namespaced, longest, content}
}

var definitionsResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// customKinds are how many kinds are custom ones.
const customKinds = 12

// Set is a set of objects.
type Set struct {
	// Name is the value of the label. It is unique in the cluster, and a DNS label.
	Name       string
	Namespaces []string
	Kinds      []Kind
	// Converter, if there is one, has the objects of the last kind converted between its versions,
	// which are not alike. Without, they are.
	Converter *Converter
}

// New is a set in namespaces that exist.
func New(name string, namespaces ...string) *Set {
	s := &Set{Name: name, Namespaces: namespaces, Kinds: builtIn[:len(builtIn):len(builtIn)]}
	for i := range customKinds {
		content := fmt.Sprintf(`"spec":{"Metadata":{"name":"not of the object"},"number":%d,"float":0.10,"null":null,"Füße 🚀":true,"text":%s,"deep":[[[{"":%s}]]]}`, 1<<60+i, quoted, quoted)
		s.Kinds = append(s.Kinds, of(fmt.Sprintf("g%d.%s.example.com", i%3, name), writtenVersion, fmt.Sprintf("things%d", i), fmt.Sprintf("Thing%d", i), i%2 == 0, 253, content))
	}
	return s
}

// Converted is the kind whose objects the converter converts, and the path of all of them, of both
// scopes, in the version in which they are stored.
func (s *Set) Converted() (Kind, string) {
	k := s.Kinds[len(s.Kinds)-1]
	return k, "/apis/" + k.Group + "/" + storedVersion + "/" + k.Resource
}

// definition is the CustomResourceDefinition of a kind: in two versions, of which the other one
// is stored, so that the server converts, or asks the converter to.
func (s *Set) definition(k Kind) *unstructured.Unstructured {
	scope := "Cluster"
	if k.Namespaced {
		scope = "Namespaced"
	}
	conversion := `{"strategy":"None"}`
	if last, _ := s.Converted(); s.Converter != nil && k == last {
		conversion = fmt.Sprintf(`{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"url":%q,"caBundle":%q}}}`,
			s.Converter.server.URL, base64.StdEncoding.EncodeToString(s.Converter.authority))
	}
	version := `{"name":%q,"served":true,"storage":%t,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}`
	return parse(fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":%q,"labels":{%q:%q}},
		"spec":{"group":%q,"scope":%q,"names":{"plural":%q,"singular":%q,"kind":%q},"conversion":%s,"versions":[%s,%s]}}`,
		k.Resource+"."+k.Group, Label, s.Name, k.Group, scope, k.Resource, strings.ToLower(k.Name), k.Name, conversion,
		fmt.Sprintf(version, writtenVersion, false), fmt.Sprintf(version, storedVersion, true)))
}

// objects are those of a kind, in a namespace if it is not empty.
func (s *Set) objects(k Kind, namespace string) []*unstructured.Unstructured {
	var all []*unstructured.Unstructured
	for _, length := range []int{len(s.Name) + 2, min(k.longest, 63), k.longest} {
		name := s.Name + "-" + strings.Repeat("x", 63)
		if length > 63 {
			name = strings.Repeat(name[:62]+".", 5)
		}
		name = strings.TrimRight(name[:length], ".-")
		if len(all) > 0 && all[len(all)-1].GetName() == name {
			continue
		}
		o := parse(fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q},%s}`, k.GroupVersion(), k.Name, name, k.content))
		o.SetNamespace(namespace)
		o.SetLabels(map[string]string{Label: s.Name, "example.com/" + strings.Repeat("k", 63): strings.Repeat("v", 63), "empty": ""})
		o.SetAnnotations(map[string]string{"example.com/text": Text})
		all = append(all, o)
	}
	return all
}

func parse(text string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &o.Object); err != nil {
		panic(fmt.Sprintf("%v: %s", err, text)) // it is a constant, but for names
	}
	return o
}

// Create creates all of it, and returns how many objects these are, without the definitions.
func (s *Set) Create(ctx context.Context, client dynamic.Interface) (int, error) {
	definitions := client.Resource(definitionsResource)
	for _, k := range s.Kinds[len(builtIn):] {
		if _, err := definitions.Create(ctx, s.definition(k), metav1.CreateOptions{}); err != nil {
			return 0, err
		}
	}
	count := 0
	var above *unstructured.Unstructured // the last custom one without a namespace
	for _, k := range s.Kinds {
		namespaces := []string{""}
		if k.Namespaced {
			namespaces = s.Namespaces
		}
		for _, namespace := range namespaces {
			var made []*unstructured.Unstructured
			for _, o := range s.objects(k, namespace) {
				created, err := create(ctx, client.Resource(k.GroupVersionResource).Namespace(namespace), o)
				if err != nil {
					return count, fmt.Errorf("create %s %s: %w", k.Name, o.GetName(), err)
				}
				made = append(made, created)
			}
			count += len(made)
			custom := strings.HasSuffix(k.Group, ".example.com")
			if k.Name != "ConfigMap" && !custom {
				continue
			}
			for i, o := range made {
				owner := made[(i+1)%len(made)] // in a circle
				if custom && k.Namespaced && above != nil {
					owner = above
				}
				if err := own(ctx, client.Resource(k.GroupVersionResource).Namespace(namespace), o, owner); err != nil {
					return count, fmt.Errorf("give %s %s an owner: %w", k.Name, o.GetName(), err)
				}
			}
			if custom && !k.Namespaced {
				above = made[0]
			}
		}
	}
	return count, nil
}

// create tries until the kind is served.
func create(ctx context.Context, client dynamic.ResourceInterface, o *unstructured.Unstructured) (created *unstructured.Unstructured, err error) {
	failure := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		created, err = client.Create(ctx, o, metav1.CreateOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return true, err
	})
	if err == nil {
		err = failure
	}
	return created, err
}

// own gives an object an owner.
func own(ctx context.Context, client dynamic.ResourceInterface, o, owner *unstructured.Unstructured) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": []metav1.OwnerReference{
		{APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID()},
	}}})
	if err == nil {
		_, err = client.Patch(ctx, o.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return err
}

// Delete deletes what is outside of the namespaces, and returns when the definitions are gone, so that
// nobody asks the converter any more.
func (s *Set) Delete(ctx context.Context, client dynamic.Interface) error {
	selector := metav1.ListOptions{LabelSelector: Label + "=" + s.Name}
	for _, k := range s.Kinds {
		if k.Namespaced {
			continue
		}
		if err := client.Resource(k.GroupVersionResource).DeleteCollection(ctx, metav1.DeleteOptions{}, selector); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	definitions := client.Resource(definitionsResource)
	if err := definitions.DeleteCollection(ctx, metav1.DeleteOptions{}, selector); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		left, err := definitions.List(ctx, selector)
		return err == nil && len(left.Items) == 0, nil
	})
}
