// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// fakeKinds are those that the fake server serves.
var fakeKinds = []metav1.APIResourceList{
	{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "namespaces", Kind: "Namespace"}, {Name: "configmaps", Kind: "ConfigMap", Namespaced: true, ShortNames: []string{"cm"}},
		{Name: "secrets", Kind: "Secret", Namespaced: true}, {Name: "services", Kind: "Service", Namespaced: true},
		{Name: "pods", Kind: "Pod", Namespaced: true}, {Name: "serviceaccounts", Kind: "ServiceAccount", Namespaced: true},
		{Name: "persistentvolumeclaims", Kind: "PersistentVolumeClaim", Namespaced: true}, {Name: "persistentvolumes", Kind: "PersistentVolume"},
	}},
	{GroupVersion: "apps/v1", APIResources: []metav1.APIResource{{Name: "deployments", SingularName: "deployment", Kind: "Deployment", Namespaced: true, ShortNames: []string{"deploy"}}, {Name: "deployments/status", Kind: "Deployment", Namespaced: true}, {Name: "replicasets", Kind: "ReplicaSet", Namespaced: true}}},
	{GroupVersion: "rbac.authorization.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "rolebindings", Kind: "RoleBinding", Namespaced: true}}},
	{GroupVersion: "holdfast.io/v1alpha1", APIResources: []metav1.APIResource{{Name: "backups", Kind: "Backup", Namespaced: true}, {Name: "schedules", Kind: "Schedule", Namespaced: true}}},
	{GroupVersion: "storage.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "storageclasses", Kind: "StorageClass"}}},
	{GroupVersion: "apiextensions.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "customresourcedefinitions", Kind: "CustomResourceDefinition"}}},
}

// fakeServer is an API server that knows names, uids, versions, namespaces and
// preconditions, and nothing else.
type fakeServer struct {
	t      testing.TB
	server *httptest.Server
	client rest.Interface

	mu      sync.Mutex
	kinds   []metav1.APIResourceList
	objects map[string]map[string]any // by resource/namespace/name
	version int
	// requests counts all, by method; created how often each object was created.
	requests map[string]int
	created  map[string]int
	writes   int
	// fault may answer a request itself: with a code, and the request carried out or not.
	fault func(r *http.Request) (code int, carriedOut bool)
	// faultText is what such an answer says; "" is anything.
	faultText string
	// warnings come with each answer to what writes.
	warnings []string
}

// checks are how many random cases a test has, unless -rapid.checks says how many.
const checks = "30"

func init() { _ = flag.Set("rapid.checks", checks) }

func init() { retries.Duration, retries.Cap = time.Millisecond, 10*time.Millisecond }

func newFakeServer(t testing.TB) *fakeServer {
	s := &fakeServer{t: t, kinds: slices.Clone(fakeKinds), objects: map[string]map[string]any{}, requests: map[string]int{}, created: map[string]int{}}
	s.server = httptest.NewServer(s)
	t.Cleanup(s.server.Close)
	client, err := rest.UnversionedRESTClientFor(&rest.Config{
		Host: s.server.URL, QPS: -1, WarningHandler: rest.NoWarnings{}, ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs.WithoutConversion()},
		WrapTransport: func(transport http.RoundTripper) http.RoundTripper { return broken{transport} },
	})
	if err != nil {
		t.Fatal(err)
	}
	s.client = client
	return s
}

// broken says of connections that break no more than that: of some the client waits a second
// before it tries again, and what is tested is that this package does.
type broken struct{ http.RoundTripper }

func (b broken) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, errors.New("the connection broke")
	}
	return response, nil
}

func (s *fakeServer) ServerGroupsAndResourcesWithContext(context.Context) ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lists []*metav1.APIResourceList
	for i := range s.kinds {
		list := s.kinds[i].DeepCopy()
		for j := range list.APIResources {
			list.APIResources[j].Verbs = metav1.Verbs{"create"}
		}
		lists = append(lists, list)
	}
	return nil, lists, nil
}

func (s *fakeServer) ServerResourcesForGroupVersionWithContext(ctx context.Context, gv string) (*metav1.APIResourceList, error) {
	_, lists, _ := s.ServerGroupsAndResourcesWithContext(ctx)
	for _, list := range lists {
		if list.GroupVersion == gv {
			return list, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{}, gv)
}

func (s *fakeServer) add(resource string, object map[string]any) {
	o := &unstructured.Unstructured{Object: object}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	if o.GetUID() == "" {
		o.SetUID(types.UID(fmt.Sprintf("live-%d", s.version)))
	}
	o.SetResourceVersion(strconv.Itoa(s.version))
	s.objects[resource+"/"+o.GetNamespace()+"/"+o.GetName()] = o.Object
}

func (s *fakeServer) get(resource, namespace, name string) *unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	object := s.objects[resource+"/"+namespace+"/"+name]
	if object == nil {
		return nil
	}
	return (&unstructured.Unstructured{Object: object}).DeepCopy()
}

// ServeHTTP implements http.Handler.
func (s *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[r.Method]++
	if s.fault != nil {
		if code, carriedOut := s.fault(r); code != 0 {
			if carriedOut {
				_, _ = s.answer(r)
			}
			if code == -1 {
				panic(http.ErrAbortHandler) // the connection breaks
			}
			if code == http.StatusTooManyRequests {
				w.Header().Set("Retry-After", "0")
			}
			s.reply(w, code, status(code, cmp.Or(s.faultText, "a fault")))
			return
		}
	}
	code, content := s.answer(r)
	if r.Method != http.MethodGet && r.URL.Query().Get("fieldValidation") == metav1.FieldValidationWarn {
		for _, warning := range s.warnings {
			w.Header().Add("Warning", fmt.Sprintf("299 - %q", warning))
		}
	}
	s.reply(w, code, content)
}

func (s *fakeServer) reply(w http.ResponseWriter, code int, content any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(content)
}

func status(code int, message string) *metav1.Status {
	reasons := map[int]metav1.StatusReason{
		404: metav1.StatusReasonNotFound, 409: metav1.StatusReasonConflict, 403: metav1.StatusReasonForbidden,
		429: metav1.StatusReasonTooManyRequests, 422: metav1.StatusReasonInvalid, 503: metav1.StatusReasonServiceUnavailable,
	}
	return &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Code: int32(code), Reason: reasons[code], Message: message}
}

func (s *fakeServer) answer(r *http.Request) (int, any) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	group := ""
	if parts[0] == "apis" {
		group, parts = "."+parts[1], parts[3:]
	} else {
		parts = parts[2:]
	}
	namespace := ""
	if parts[0] == "namespaces" && len(parts) > 2 {
		namespace, parts = parts[1], parts[2:]
	}
	resource := parts[0] + group
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	key := resource + "/" + namespace + "/"
	if len(parts) > 1 {
		key += parts[1]
	}
	found := s.objects[key]
	live := &unstructured.Unstructured{Object: found}
	switch r.Method {
	case http.MethodGet:
		if len(parts) == 1 {
			return 200, s.list(resource, namespace, r.URL.Query().Get("fieldSelector"), r.URL.Query().Get("continue"), r.URL.Query().Get("limit"))
		}
		if found == nil {
			return 404, status(404, key)
		}
		return 200, found
	case http.MethodPost:
		o := &unstructured.Unstructured{}
		if err := o.UnmarshalJSON(body); err != nil {
			return 400, status(400, err.Error())
		}
		if namespace != "" && s.objects["namespaces//"+namespace] == nil {
			return 404, status(404, "there is no namespace "+namespace)
		}
		if s.objects[key+o.GetName()] != nil {
			taken := status(409, "it exists")
			taken.Reason = metav1.StatusReasonAlreadyExists
			return 409, taken
		}
		s.version++
		s.writes++
		s.created[key+o.GetName()]++
		o.SetUID(types.UID(fmt.Sprintf("live-%d", s.version)))
		o.SetResourceVersion(strconv.Itoa(s.version))
		s.objects[key+o.GetName()] = o.Object
		if resource == "customresourcedefinitions.apiextensions.k8s.io" {
			s.define(o)
		}
		return 201, o.Object
	case http.MethodPatch:
		if found == nil {
			return 404, status(404, key)
		}
		var wanted struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
		}
		_ = json.Unmarshal(body, &wanted)
		if wanted.Metadata.UID != "" && wanted.Metadata.UID != live.GetUID() || wanted.Metadata.ResourceVersion != "" && wanted.Metadata.ResourceVersion != live.GetResourceVersion() {
			return 409, status(409, "it has changed")
		}
		before, _ := json.Marshal(found)
		after, err := jsonpatch.MergePatch(before, body)
		if err != nil {
			return 400, status(400, err.Error())
		}
		changed := &unstructured.Unstructured{}
		if err := changed.UnmarshalJSON(after); err != nil {
			return 400, status(400, err.Error())
		}
		if r.URL.Query().Get("dryRun") != "" {
			return 200, changed.Object
		}
		s.version++
		s.writes++
		changed.SetResourceVersion(strconv.Itoa(s.version))
		s.objects[key] = changed.Object
		return 200, changed.Object
	case http.MethodDelete:
		if found == nil {
			return 404, status(404, key)
		}
		s.writes++
		delete(s.objects, key)
		return 200, &metav1.Status{Status: "Success"}
	}
	return 405, status(405, r.Method)
}

// define serves the kind of a definition.
func (s *fakeServer) define(o *unstructured.Unstructured) {
	group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(o.Object, "spec", "names", "plural")
	kind, _, _ := unstructured.NestedString(o.Object, "spec", "names", "kind")
	s.kinds = append(s.kinds, metav1.APIResourceList{GroupVersion: group + "/v1", APIResources: []metav1.APIResource{{Name: plural, Kind: kind, Namespaced: true}}})
}

func (s *fakeServer) list(resource, namespace, fields, next, limit string) any {
	var names []string
	prefix := resource + "/" + namespace + "/"
	for key := range s.objects {
		if name, ok := strings.CutPrefix(key, prefix); ok && name > next && selects(fields, s.objects[key]) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	list := map[string]any{"metadata": map[string]any{}}
	if n, _ := strconv.Atoi(limit); n > 0 && len(names) > n {
		names = names[:n]
		list["metadata"] = map[string]any{"continue": names[n-1]}
	}
	items := []any{}
	for _, name := range names {
		item := (&unstructured.Unstructured{Object: s.objects[prefix+name]}).DeepCopy().Object
		delete(item, "kind")
		delete(item, "apiVersion")
		items = append(items, item)
	}
	list["items"] = items
	return list
}

// selects reports whether a field selector with one term selects an object.
func selects(selector string, object map[string]any) bool {
	path, value, found := strings.Cut(selector, "=")
	if !found {
		return true
	}
	got, _, _ := unstructured.NestedString(object, strings.Split(path, ".")...)
	return got == value
}

// counts are the requests of one method, or all.
func (s *fakeServer) count(methods ...string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for method, count := range s.requests {
		if len(methods) == 0 || slices.Contains(methods, method) {
			n += count
		}
	}
	return n
}

// memory is a store.
type memory map[string][]byte

func (m memory) Get(_ context.Context, key string) (io.ReadCloser, error) {
	content, ok := m[key]
	if !ok {
		return nil, store.ErrNotFound
	}
	return io.NopCloser(bytes.NewReader(content)), nil
}

func (m memory) GetRange(_ context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	content, ok := m[key]
	if !ok {
		return nil, store.ErrNotFound
	}
	content = content[offset:]
	if length >= 0 && int64(len(content)) > length {
		content = content[:length]
	}
	return io.NopCloser(bytes.NewReader(content)), nil
}

func (m memory) Attributes(_ context.Context, key string) (store.Object, error) {
	content, ok := m[key]
	if !ok {
		return store.Object{}, store.ErrNotFound
	}
	return store.Object{Key: key, Size: int64(len(content))}, nil
}

// object is one of a backup, as map of its JSON.
func obj(apiVersion, kind, namespace, name string, more ...func(map[string]any)) map[string]any {
	metadata := map[string]any{"name": name, "uid": "old-" + kind + "-" + namespace + "-" + name}
	if namespace != "" {
		metadata["namespace"] = namespace
	}
	o := map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": metadata}
	for _, m := range more {
		m(o)
	}
	return o
}

func with(content any, path ...string) func(map[string]any) {
	return func(o map[string]any) {
		if err := unstructured.SetNestedField(o, content, path...); err != nil {
			panic(err)
		}
	}
}

// ownedBy makes an object owned by others.
func ownedBy(owners ...map[string]any) func(map[string]any) {
	var references []any
	for _, owner := range owners {
		o := unstructured.Unstructured{Object: owner}
		references = append(references, map[string]any{"apiVersion": o.GetAPIVersion(), "kind": o.GetKind(), "name": o.GetName(), "uid": string(o.GetUID())})
	}
	return with(references, "metadata", "ownerReferences")
}

// plurals are the resources of kinds.
func plural(kind string) string {
	for _, list := range fakeKinds {
		for _, r := range list.APIResources {
			if r.Kind == kind {
				return r.Name
			}
		}
	}
	return strings.ToLower(kind) + "s"
}

// backupOf is a backup that holds objects.
func backupOf(t testing.TB, objects ...map[string]any) *source.Backup {
	t.Helper()
	opened, err := source.Open(t.Context(), stored(t, objects...), format.Place{StoreName: "b", Location: "default", SystemNamespace: "holdfast", Now: time.Now()}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// stored is a store with a backup b that holds objects.
func stored(t testing.TB, objects ...map[string]any) memory {
	t.Helper()
	var tarball bytes.Buffer
	start := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	backup := &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: "b", UID: "backup-uid", CreationTimestamp: start}}
	backup.Status = v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &start, CompletionTimestamp: &start}
	w, err := archive.NewWriter(&tarball, start.Time, "backup-uid")
	if err != nil {
		t.Fatal(err)
	}
	graph := &manifest.Writer{Comment: "backup-uid"}
	for _, content := range objects {
		o := &unstructured.Unstructured{Object: content}
		raw, err := json.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		gvk := o.GroupVersionKind()
		resource := plural(gvk.Kind)
		position, err := w.WriteItem(archive.Item{Resource: schema.GroupResource{Group: gvk.Group, Resource: resource}, Version: gvk.Version, Namespace: o.GetNamespace(), Name: o.GetName()}, raw)
		if err != nil {
			t.Fatal(err)
		}
		described := format.NewContent(raw)
		item := &manifest.Item{
			APIGroup: gvk.Group, APIVersion: gvk.Version, KindName: gvk.Kind, Resource: resource, Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID()),
			Labels: o.GetLabels(), References: manifest.ReferencesOf(gvk.GroupKind(), o.GetNamespace(), raw), Size: described.Size, SHA256: described.SHA256, Place: manifest.Place(position),
		}
		for _, owner := range o.GetOwnerReferences() {
			item.OwnerUIDs = append(item.OwnerUIDs, string(owner.UID))
		}
		if err := graph.Add(item); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var list bytes.Buffer
	if _, err := graph.WriteTo(&list); err != nil {
		t.Fatal(err)
	}
	metadata, err := format.EncodeBackup(backup, format.Contents{}, format.Cluster{SystemNamespace: "holdfast"})
	if err != nil {
		t.Fatal(err)
	}
	return memory{format.TarballKey("b"): tarball.Bytes(), format.ManifestKey("b"): list.Bytes(), format.MetadataKey("b"): metadata}
}

// request is one for a restore of the system namespace.
func request(uid string, spec v1alpha1.RestoreSpec) Request {
	run := &enginev1alpha1.RestoreRun{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: "r", UID: types.UID(uid)}}
	run.Spec.RestoreRef = v1alpha1.BackupReference{Namespace: "holdfast", Name: "r"}
	run.Spec.Restore = spec
	return Request{Run: run, SystemNamespace: "holdfast"}
}

// run executes a restore against a fake server.
func (s *fakeServer) run(ctx context.Context, backup *source.Backup, request Request, change ...func(*Dependencies)) *Ended {
	deps := Dependencies{Backup: backup, Writer: s.client, Reader: s.client, Discovery: s, Clock: clock.RealClock{}}
	for _, c := range change {
		c(&deps)
	}
	return Run(ctx, request, deps)
}

// told are the results of a restore, and its plan.
func told(t testing.TB, ended *Ended) (format.Results, format.RestorePlan) {
	t.Helper()
	var results format.Results
	var plan format.RestorePlan
	var err error
	for _, f := range ended.files {
		switch f.key {
		case format.RestoreResultsKey(ended.name):
			results, err = format.ReadResults(bytes.NewReader(f.content))
		case format.RestorePlanKey(ended.name):
			plan, err = format.ReadRestorePlan(bytes.NewReader(f.content))
		}
		if err != nil {
			t.Fatalf("%s: %v", f.key, err)
		}
	}
	return results, plan
}

// want fails the test unless a restore ended in a phase, with results that have the texts.
func want(t testing.TB, ended *Ended, phase v1alpha1.RestorePhase, texts ...string) format.RestorePlan {
	t.Helper()
	results, plan := told(t, ended)
	encoded, _ := json.MarshalIndent(results, "", "  ")
	if ended.Status.Phase != phase {
		t.Fatalf("the restore is %+v (%v)\n%s", ended.Status, ended.Err, encoded)
	}
	for _, text := range texts {
		if !strings.Contains(string(encoded), text) {
			t.Errorf("the results lack %q:\n%s", text, encoded)
		}
	}
	return plan
}
