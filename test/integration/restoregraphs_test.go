// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/format"
	restoring "github.com/holdfast-io/holdfast/pkg/restore"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
	"github.com/holdfast-io/holdfast/test/story"
)

// badNetwork is between a process and the API server: it refuses requests, loses them or their
// answers, and ends the process.
type badNetwork struct {
	next http.RoundTripper
	kill context.CancelFunc
	// killAt is the request that is the process's last, carried out or not; 0 is none.
	killAt     int
	carriedOut bool

	mu       sync.Mutex
	faults   *rand.Rand // nil if there are none
	requests int
	writes   []string
	// created counts the creations by their objects.
	created map[string]int
}

var errBroken = errors.New("the connection broke")

func (n *badNetwork) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	n.requests++
	last, dead, fate := n.requests == n.killAt, n.killAt > 0 && n.requests > n.killAt, -1
	if n.faults != nil && !last {
		fate = n.faults.IntN(20)
	}
	n.mu.Unlock()
	if last {
		defer n.kill()
	}
	switch {
	case dead, last && !n.carriedOut, fate == 0:
		return nil, errBroken
	case fate == 1:
		return refusal(r, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests), nil
	case fate == 2:
		return refusal(r, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable), nil
	case fate <= 4 && fate > 0 && r.Method == http.MethodPatch:
		return refusal(r, http.StatusConflict, metav1.StatusReasonConflict), nil
	}
	response, err := n.next.RoundTrip(r)
	if err != nil {
		return nil, errBroken
	}
	if err := n.count(r, response); err != nil {
		return nil, err
	}
	if last || fate == 5 { // the answer is lost
		_ = response.Body.Close()
		return nil, errBroken
	}
	return response, nil
}

// count takes note of what was written.
func (n *badNetwork) count(r *http.Request, response *http.Response) error {
	if r.Method == http.MethodGet || response.StatusCode >= 300 || r.URL.Query().Has("dryRun") {
		return nil
	}
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil {
		return errBroken
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	n.mu.Lock()
	defer n.mu.Unlock()
	n.writes = append(n.writes, r.Method+" "+r.URL.Path)
	if response.StatusCode == http.StatusCreated {
		var o metav1.PartialObjectMetadata
		if err := json.Unmarshal(body, &o); err != nil {
			return err
		}
		n.created[r.URL.Path+"/"+o.Name]++
	}
	return nil
}

func refusal(r *http.Request, code int, reason metav1.StatusReason) *http.Response {
	body, _ := json.Marshal(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "a fault"})
	return &http.Response{
		StatusCode: code, ProtoMajor: 1, ProtoMinor: 1, Request: r, ContentLength: int64(len(body)),
		Header: http.Header{"Content-Type": {"application/json"}, "Retry-After": {"0"}}, Body: io.NopCloser(bytes.NewReader(body)),
	}
}

// objectGraph is a backup of the namespace graph, and what it holds.
type objectGraph struct {
	backup  *source.Backup
	objects []*unstructured.Unstructured // without the namespace and the definition
	client  dynamic.Interface
	group   string
	// created counts the creations of the restore that is under way, by all of its processes.
	created map[string]int
}

// resources are those of the kinds in graphs.
var graphResources = map[string]string{
	"Namespace": "namespaces", "ConfigMap": "configmaps", "Secret": "secrets", "ServiceAccount": "serviceaccounts", "Service": "services",
	"Role": "roles", "RoleBinding": "rolebindings", "Deployment": "deployments", "CustomResourceDefinition": "customresourcedefinitions", "Widget": "widgets",
}

func resourceOf(o *unstructured.Unstructured) schema.GroupVersionResource {
	return o.GroupVersionKind().GroupVersion().WithResource(graphResources[o.GetKind()])
}

// graphObject makes the nth object, of a kind.
func graphObject(t *testing.T, kind, group string, n int) *unstructured.Unstructured {
	t.Helper()
	content := map[string]string{
		"ConfigMap":      `"apiVersion":"v1","data":{"n":"%d"}`,
		"Secret":         `"apiVersion":"v1","data":{"n":"bg=="}`,
		"ServiceAccount": `"apiVersion":"v1","automountServiceAccountToken":false`,
		"Service":        `"apiVersion":"v1","spec":{"ports":[{"port":80}]}`,
		"Role":           `"apiVersion":"rbac.authorization.k8s.io/v1","rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]`,
		"RoleBinding":    `"apiVersion":"rbac.authorization.k8s.io/v1","roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"},"subjects":[{"kind":"ServiceAccount","name":"default","namespace":"graph"}]`,
		"Deployment":     `"apiVersion":"apps/v1","spec":{"replicas":0,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"example.com/web"}]}}}`,
		"Widget":         `"apiVersion":"` + group + `/v1","spec":{"n":"%d"}`,
	}[kind]
	if bytes.Contains([]byte(content), []byte("%d")) {
		content = fmt.Sprintf(content, n)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(fmt.Appendf(nil, `{"kind":%q,"metadata":{"name":"o-%02d","namespace":"graph","uid":"old-%d"},%s}`, kind, n, n, content)); err != nil {
		t.Fatal(err)
	}
	return o
}

// owns makes an object an owner of another one.
func owns(owner, o *unstructured.Unstructured) {
	o.SetOwnerReferences(append(o.GetOwnerReferences(), metav1.OwnerReference{APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID()}))
}

// graphOf makes a backup of objects, with their namespace and the definition of Widgets.
func graphOf(t *testing.T, group string, objects ...*unstructured.Unstructured) *objectGraph {
	t.Helper()
	all := append([]*unstructured.Unstructured{{}, {}}, objects...)
	for i, content := range []string{
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"graph","uid":"old-namespace"}}`,
		fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.%[1]s","uid":"old-definition"},
"spec":{"group":"%[1]s","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`, group),
	} {
		if err := all[i].UnmarshalJSON([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	backup := backupHolding(t, all...)
	return &objectGraph{backup: backup, objects: objects, client: dynamicClient(t), group: group}
}

// backupHolding makes a backup of objects, in memory.
func backupHolding(t *testing.T, objects ...*unstructured.Unstructured) *source.Backup {
	t.Helper()
	now := metav1.Now()
	var tarball bytes.Buffer
	w, err := archive.NewWriter(&tarball, now.Time, "made")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		gvr := resourceOf(o)
		if gvr.Resource == "" {
			gvr, _ = meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		}
		raw, err := o.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.WriteItem(archive.Item{Resource: gvr.GroupResource(), Version: o.GroupVersionKind().Version, Namespace: o.GetNamespace(), Name: o.GetName()}, bytes.TrimSpace(raw)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	made := &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: labtest.System, Name: "made", UID: "made", CreationTimestamp: now}}
	made.Status = v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &now, CompletionTimestamp: &now}
	metadata, err := format.EncodeBackup(made, format.Contents{}, format.Cluster{SystemNamespace: labtest.System})
	if err != nil {
		t.Fatal(err)
	}
	bucket := storetest.Memory(t)
	for key, content := range map[string][]byte{format.TarballKey("made"): tarball.Bytes(), format.MetadataKey("made"): metadata} {
		if err := bucket.Put(t.Context(), key, content); err != nil {
			t.Fatal(err)
		}
	}
	backup, err := source.Open(t.Context(), bucket, format.Place{StoreName: "made", Location: "default", SystemNamespace: labtest.System, Now: now.Time}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return backup
}

// process restores the graph into a namespace, as one process does, over a network.
func (g *objectGraph) process(t *testing.T, uid, namespace string, policy v1alpha1.ExistingResourcePolicy, n *badNetwork) *restoring.Ended {
	t.Helper()
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	n.kill, n.created = kill, g.created
	config := rest.CopyConfig(lab.Config)
	config.QPS = -1
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { n.next = next; return n })
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	run := &enginev1alpha1.RestoreRun{ObjectMeta: metav1.ObjectMeta{Namespace: labtest.System, Name: "graph", UID: types.UID(uid)}}
	run.Spec.RestoreRef = v1alpha1.BackupReference{Namespace: labtest.System, Name: "graph"}
	run.Spec.Restore = v1alpha1.RestoreSpec{NamespaceMapping: map[string]string{"graph": namespace}, ExistingResourcePolicy: policy}
	backup := *g.backup // each process reads it for itself
	return restoring.Run(ctx, restoring.Request{Run: run, SystemNamespace: labtest.System}, restoring.Dependencies{
		Backup: &backup, Writer: client, Reader: client, Discovery: discovery.ToServerResourcesInterfaceWithContext(lab.Kube.Discovery()), Clock: clock.RealClock{},
	})
}

// ends goes on with a restore until it has ended, checks what is there, and that a second restore
// writes nothing. It gives the uids of what is there.
func (g *objectGraph) ends(t *testing.T, what, namespace string, faults *rand.Rand) map[string]types.UID {
	t.Helper()
	ended := g.process(t, namespace, namespace, "", &badNetwork{faults: faults})
	for range 5 { // one request may meet all faults in a row
		if ended.Status.Phase == v1alpha1.RestorePhaseCompleted {
			break
		}
		ended = g.process(t, namespace, namespace, "", &badNetwork{faults: faults})
	}
	if ended.Status.Phase != v1alpha1.RestorePhaseCompleted {
		t.Fatalf("%s: %+v (%v)", what, ended.Status, ended.Err)
	}
	for object, times := range g.created {
		if times != 1 {
			t.Errorf("%s: %s was created %d times", what, object, times)
		}
	}
	uids := g.uids(t, what, namespace)
	n := &badNetwork{}
	ended = g.process(t, namespace+"-again", namespace, v1alpha1.ExistingResourceUpdate, n)
	if ended.Status.Phase != v1alpha1.RestorePhaseCompleted || len(n.writes) > 0 {
		t.Errorf("%s: a second restore is %s (%v), and wrote %q", what, ended.Status.Phase, ended.Err, n.writes)
	}
	return uids
}

// uids are those of what is in a namespace, all of which must be there, with its owners.
func (g *objectGraph) uids(t *testing.T, what, namespace string) map[string]types.UID {
	t.Helper()
	live, uids := map[types.UID]*unstructured.Unstructured{}, map[string]types.UID{}
	for _, o := range g.objects {
		found, err := g.client.Resource(resourceOf(o)).Namespace(namespace).Get(t.Context(), o.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatalf("%s: %s %s: %v", what, o.GetKind(), o.GetName(), err)
		}
		live[o.GetUID()], uids[o.GetName()] = found, found.GetUID()
	}
	for _, o := range g.objects {
		owners := live[o.GetUID()].GetOwnerReferences()
		for i, owner := range o.GetOwnerReferences() {
			if len(owners) != len(o.GetOwnerReferences()) || owners[i].UID != live[owner.UID].GetUID() {
				t.Errorf("%s: %s %s is owned by %v, and not by %s", what, o.GetKind(), o.GetName(), owners, owner.Name)
				break
			}
		}
	}
	return uids
}

// TestRestoreOfRandomGraphs restores objects with owners in every which way into a real API
// server, over a network that loses and refuses, by processes that are killed, also at each
// request: everything is there in the end, was made once, has the right owners, with which the
// collector of garbage is content, and a second restore writes nothing. Proofs 4, 7 and 16.
func TestRestoreOfRandomGraphs(t *testing.T) {
	t.Parallel()
	prefix := labtest.Name("graphs")
	group := prefix + ".example.com"
	type restored struct {
		graph *objectGraph
		uids  map[string]types.UID
	}
	all := map[string]restored{}
	t.Cleanup(func() {
		for namespace := range all {
			if err := lab.Kube.CoreV1().Namespaces().Delete(context.Background(), namespace, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
		definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
		if err := dynamicClient(t).Resource(definitions).Delete(context.Background(), "widgets."+group, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})

	// Whichever request is a process's last.
	var objects []*unstructured.Unstructured
	for i, kind := range []string{"ConfigMap", "ConfigMap", "Secret", "Widget", "Service", "Deployment", "RoleBinding"} {
		objects = append(objects, graphObject(t, kind, group, i))
	}
	owns(objects[0], objects[1])
	owns(objects[1], objects[0])
	owns(objects[1], objects[2])
	owns(objects[2], objects[3])
	owns(objects[3], objects[5])
	began := time.Now()
	for n := 1; ; n++ {
		killed := true
		for _, carriedOut := range []bool{false, true} {
			g := graphOf(t, group, objects...)
			g.created = map[string]int{}
			namespace := fmt.Sprintf("%s-%d-%t", prefix, n, carriedOut)
			what := fmt.Sprintf("killed at request %d, carried out: %t", n, carriedOut)
			all[namespace] = restored{graph: g}
			network := &badNetwork{killAt: n, carriedOut: carriedOut}
			g.process(t, namespace, namespace, "", network)
			killed = killed && network.requests >= n
			all[namespace] = restored{g, g.ends(t, what, namespace, nil)}
		}
		if !killed {
			t.Logf("killed at each of %d requests, in %s", n-1, time.Since(began).Round(time.Millisecond))
			break
		}
	}

	began = time.Now()
	first := story.Seed(t)
	for i := range 8 {
		seed := first + uint64(i)
		random := rand.New(rand.NewPCG(seed, 0))
		kinds := []string{"ConfigMap", "Secret", "ServiceAccount", "Service", "Role", "RoleBinding", "Deployment", "Widget"}
		var objects []*unstructured.Unstructured
		for n := range 5 + random.IntN(20) {
			objects = append(objects, graphObject(t, kinds[random.IntN(len(kinds))], group, n))
		}
		for range random.IntN(2 * len(objects)) {
			owner, o := objects[random.IntN(len(objects))], objects[random.IntN(len(objects))]
			if owner != o && len(o.GetOwnerReferences()) == 0 {
				owns(owner, o)
			}
		}
		g := graphOf(t, group, objects...)
		g.created = map[string]int{}
		namespace, what := fmt.Sprintf("%s-random-%d", prefix, i), fmt.Sprintf("seed %d", seed)
		all[namespace] = restored{graph: g}
		for range random.IntN(4) {
			g.process(t, namespace, namespace, "", &badNetwork{faults: random, killAt: 1 + random.IntN(40), carriedOut: random.IntN(2) == 0})
		}
		all[namespace] = restored{g, g.ends(t, what, namespace, random)}
	}
	t.Logf("8 random graphs in %s", time.Since(began).Round(time.Millisecond))

	for namespace, r := range all { // by now the collector has looked at most of them
		for name, uid := range r.graph.uids(t, "later, in "+namespace, namespace) {
			if uid != r.uids[name] {
				t.Errorf("%s/%s was deleted, and made again", namespace, name)
			}
		}
	}
}
