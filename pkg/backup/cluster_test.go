// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// testCluster is an API server that serves paged lists over HTTP as
// kube-apiserver does: items of built-in types without kind and version, in the
// order of etcd, with label selectors, continue tokens and remaining counts.
type testCluster struct {
	t         testing.TB
	resources []metav1.APIResourceList
	failed    map[schema.GroupVersion]error

	mu      sync.Mutex
	objects map[schema.GroupResource][]testObject
	// intercept may answer a request itself.
	intercept func(w http.ResponseWriter, r *http.Request) bool
	// pageSize bounds pages further than whoever asks, unless it is zero.
	pageSize int
	requests []string
	active   int
	peak     int
}

type testObject struct {
	namespace, name string
	labels          labels.Set
	fields          map[string]json.RawMessage
	raw             []byte // without kind and version
}

func newTestCluster(t testing.TB) *testCluster {
	verbs := metav1.Verbs{"create", "delete", "get", "list", "watch"}
	namespaced := func(name, kind string, short ...string) metav1.APIResource {
		return metav1.APIResource{Name: name, SingularName: strings.ToLower(kind), Kind: kind, Namespaced: true, Verbs: verbs, ShortNames: short}
	}
	cluster := func(name, kind string) metav1.APIResource {
		return metav1.APIResource{Name: name, SingularName: strings.ToLower(kind), Kind: kind, Verbs: verbs}
	}
	readOnly := namespaced("summaries", "Summary")
	readOnly.Verbs = metav1.Verbs{"get", "list"}
	return &testCluster{
		t:       t,
		failed:  map[schema.GroupVersion]error{},
		objects: map[schema.GroupResource][]testObject{},
		resources: []metav1.APIResourceList{
			{GroupVersion: "v1", APIResources: []metav1.APIResource{
				namespaced("configmaps", "ConfigMap", "cm"), namespaced("secrets", "Secret"),
				namespaced("pods", "Pod", "po"), namespaced("pods/log", "Pod"),
				namespaced("events", "Event"),
				namespaced("persistentvolumeclaims", "PersistentVolumeClaim", "pvc"),
				cluster("persistentvolumes", "PersistentVolume"), cluster("namespaces", "Namespace"), cluster("nodes", "Node"),
			}},
			{GroupVersion: "apps/v1", APIResources: []metav1.APIResource{namespaced("deployments", "Deployment", "deploy")}},
			{GroupVersion: "events.k8s.io/v1", APIResources: []metav1.APIResource{namespaced("events", "Event")}},
			{GroupVersion: "apiextensions.k8s.io/v1", APIResources: []metav1.APIResource{cluster("customresourcedefinitions", "CustomResourceDefinition")}},
			{GroupVersion: "snapshot.storage.k8s.io/v1", APIResources: []metav1.APIResource{namespaced("volumesnapshots", "VolumeSnapshot")}},
			{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{namespaced("widgets", "Widget"), readOnly}},
			{GroupVersion: "holdfast.io/v1alpha1", APIResources: []metav1.APIResource{namespaced("backups", "Backup"), namespaced("schedules", "Schedule")}},
			{GroupVersion: "engine.holdfast.io/v1alpha1", APIResources: []metav1.APIResource{namespaced("backupruns", "BackupRun")}},
		},
	}
}

// ServerPreferredResourcesWithContext implements Discovery.
func (c *testCluster) ServerPreferredResourcesWithContext(context.Context) ([]*metav1.APIResourceList, error) {
	var lists []*metav1.APIResourceList
	for i := range c.resources {
		gv, _ := schema.ParseGroupVersion(c.resources[i].GroupVersion)
		if c.failed[gv] == nil {
			lists = append(lists, &c.resources[i])
		}
	}
	if len(c.failed) > 0 {
		return lists, &discovery.ErrGroupDiscoveryFailed{Groups: c.failed}
	}
	return lists, nil
}

// add puts objects into the cluster: YAML's JSON, with resource, and without
// kind and version.
func (c *testCluster) add(resource string, objects ...string) {
	c.t.Helper()
	gr := schema.ParseGroupResource(resource)
	for _, raw := range objects {
		var meta struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
		}
		object := testObject{raw: []byte(raw)}
		for _, into := range []any{&meta, &object.fields} {
			if err := json.Unmarshal(object.raw, into); err != nil {
				c.t.Fatalf("%s: %v", raw, err)
			}
		}
		object.namespace, object.name, object.labels = meta.Metadata.Namespace, meta.Metadata.Name, meta.Metadata.Labels
		c.objects[gr] = append(c.objects[gr], object)
	}
	slices.SortFunc(c.objects[gr], func(a, b testObject) int {
		return strings.Compare(a.namespace+"/"+a.name, b.namespace+"/"+b.name)
	})
}

// client starts the server, and makes the client of a root.
func (c *testCluster) client() rest.Interface {
	c.t.Helper()
	server := httptest.NewServer(c)
	c.t.Cleanup(server.Close)
	client, err := rest.UnversionedRESTClientFor(&rest.Config{
		Host:          server.URL,
		QPS:           -1,
		ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs.WithoutConversion()},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return client
}

func (c *testCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.requests = append(c.requests, r.URL.Path+queryText(r))
	c.active++
	c.peak = max(c.peak, c.active)
	intercept := c.intercept
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.active--
	}()
	if intercept != nil && intercept(w, r) {
		return
	}
	c.serve(w, r)
}

func queryText(r *http.Request) string {
	query := r.URL.Query()
	text := ""
	for _, key := range []string{"labelSelector", "continue"} {
		if value := query.Get(key); value != "" {
			text += " " + key + "=" + value
		}
	}
	return text
}

func (c *testCluster) serve(w http.ResponseWriter, r *http.Request) {
	segments := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	gv := schema.GroupVersion{Version: segments[1]}
	rest := segments[2:]
	if segments[0] == "apis" {
		gv, rest = schema.GroupVersion{Group: segments[1], Version: segments[2]}, segments[3:]
	}
	namespace := ""
	if len(rest) > 2 && rest[0] == "namespaces" {
		namespace, rest = rest[1], rest[2:]
	}
	gr := gv.WithResource(rest[0]).GroupResource()
	kind := c.kindOf(gv, rest[0])
	if kind == "" {
		writeStatus(w, metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: "no such resource"})
		return
	}
	if len(rest) == 2 {
		c.serveObject(w, gv, kind, gr, namespace, rest[1])
		return
	}
	c.serveList(w, r, gv, kind, gr, namespace)
}

func (c *testCluster) kindOf(gv schema.GroupVersion, resource string) string {
	for _, list := range c.resources {
		for _, r := range list.APIResources {
			if list.GroupVersion == gv.String() && r.Name == resource {
				return r.Kind
			}
		}
	}
	return ""
}

func (c *testCluster) serveObject(w http.ResponseWriter, gv schema.GroupVersion, kind string, gr schema.GroupResource, namespace, name string) {
	for _, object := range c.objects[gr] {
		if object.namespace == namespace && object.name == name {
			fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,%s`, kind, gv, object.raw[1:])
			return
		}
	}
	writeStatus(w, metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: gr.String() + " " + name + " not found"})
}

func (c *testCluster) serveList(w http.ResponseWriter, r *http.Request, gv schema.GroupVersion, kind string, gr schema.GroupResource, namespace string) {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		writeStatus(w, metav1.Status{Code: http.StatusBadRequest, Reason: metav1.StatusReasonBadRequest, Message: err.Error()})
		return
	}
	var matching []testObject
	for _, object := range c.objects[gr] {
		named := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
		if (namespace == "" || object.namespace == namespace) && (named == "" || object.name == named) && selector.Matches(object.labels) {
			matching = append(matching, object)
		}
	}
	start, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	if c.pageSize > 0 {
		limit = min(limit, c.pageSize)
	}
	end := min(start+limit, len(matching))
	metadata := `{"resourceVersion":"7"}`
	if end < len(matching) {
		metadata = fmt.Sprintf(`{"resourceVersion":"7","continue":"%d","remainingItemCount":%d}`, end, len(matching)-end)
	}
	if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") {
		c.serveMetadata(w, metadata, matching[start:end])
		return
	}
	// Custom resources come in the order of the alphabet, and say their kind.
	custom := gv.Group == "example.com"
	if custom {
		fmt.Fprintf(w, `{"apiVersion":%q,"items":[`, gv)
	} else {
		fmt.Fprintf(w, `{"kind":"%sList","apiVersion":%q,"metadata":%s,"items":[`, kind, gv, metadata)
	}
	for i, object := range matching[start:end] {
		if i > 0 {
			fmt.Fprint(w, ",")
		}
		if custom {
			fmt.Fprintf(w, `{"apiVersion":%q,"kind":%q,%s`, gv, kind, object.raw[1:])
		} else {
			_, _ = w.Write(object.raw)
		}
	}
	if custom {
		fmt.Fprintf(w, `],"kind":"%sList","metadata":%s}`, kind, metadata)
	} else {
		fmt.Fprint(w, "]}\n")
	}
}

// serveMetadata serves a list of metadata, whose items have neither kind nor version.
func (c *testCluster) serveMetadata(w http.ResponseWriter, metadata string, objects []testObject) {
	fmt.Fprintf(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":%s,"items":[`, metadata)
	for i, object := range objects {
		if i > 0 {
			fmt.Fprint(w, ",")
		}
		fmt.Fprintf(w, `{"metadata":%s}`, object.fields["metadata"])
	}
	fmt.Fprint(w, "]}\n")
}

func writeStatus(w http.ResponseWriter, status metav1.Status) {
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	status.Status = metav1.StatusFailure
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status)
}

// requested counts the requests whose text starts with a prefix.
func (c *testCluster) requested(prefix string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	count := 0
	for _, request := range c.requests {
		if strings.HasPrefix(request, prefix) {
			count++
		}
	}
	return count
}
