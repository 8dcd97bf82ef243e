// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// shaky is a store in which the writes of an object fail a number of times, and then
// work.
type shaky struct {
	Store
	key      string
	failures int
	// after says that the object is written before that fails: the answer is lost.
	after bool
}

func (s *shaky) Create(ctx context.Context, key string, content []byte) error {
	if key != s.key || s.failures == 0 {
		return s.Store.Create(ctx, key, content)
	}
	s.failures--
	if s.after {
		_ = s.Store.Create(ctx, key, content)
	}
	return store.ErrUnavailable
}

func (s *shaky) NewWriter(ctx context.Context, key string) (store.ObjectWriter, error) {
	w, err := s.Store.NewWriter(ctx, key)
	return &shakyWriter{w, key == s.key}, err
}

// shakyWriter commits twice, as a client does that has lost the first answer.
type shakyWriter struct {
	store.ObjectWriter
	twice bool
}

func (w *shakyWriter) Commit() error {
	err := w.ObjectWriter.Commit()
	if err == nil && w.twice {
		return store.ErrExists
	}
	return err
}

func TestPassingStoreFaultsAreTriedAgain(t *testing.T) {
	for name, test := range map[string]struct {
		key   string
		after bool
	}{
		"the owner":                      {format.OwnerKey("b"), false},
		"the owner, its answer lost":     {format.OwnerKey("b"), true},
		"a side file":                    {format.VolumeInfoKey("b"), false},
		"a side file, its answer lost":   {format.VolumeInfoKey("b"), true},
		"the metadata":                   {format.MetadataKey("b"), false},
		"the metadata, its answer lost":  {format.MetadataKey("b"), true},
		"the copy of the metadata":       {format.CopyKey("b"), false},
		"the tarball, its answer lost":   {format.TarballKey("b"), true},
		"an empty list, its answer lost": {format.ItemOperationsKey("b"), true},
	} {
		t.Run(name, func(t *testing.T) {
			f := shopOf(t, 3)
			f.deps.Store = &shaky{Store: f.store, key: test.key, failures: 3, after: test.after}
			if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted {
				t.Errorf("the phase is %s", outcome.Status.Phase)
			}
			f.wantConfigMaps(t, 3)
		})
	}
}

// Pitfall 29: a backup whose tarball can't be stored is Failed, and the failure is
// stored, with its log.
func TestTarballThatFails(t *testing.T) {
	for _, operation := range []storetest.Operation{storetest.NewWriter, storetest.Write, storetest.Commit} {
		t.Run(string(operation), func(t *testing.T) {
			f := shopOf(t, 3)
			f.store.Inject(storetest.Fault{Operation: operation, Key: format.TarballKey("b"), Err: store.ErrUnavailable})
			outcome := f.run(t)
			if outcome.Status.Phase != v1alpha1.BackupPhaseFailed || !strings.Contains(outcome.Status.FailureReason, store.ErrUnavailable.Error()) {
				t.Errorf("got %+v", outcome.Status)
			}
			want := []string{format.LogKey("b"), format.ResultsKey("b"), format.CopyKey("b"), format.OwnerKey("b"), format.MetadataKey("b")}
			if keys := f.keys(t); !slices.Equal(keys, want) {
				t.Errorf("%v is in the store", keys)
			}
			if log := f.text(t, format.LogKey("b")); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "phase=Failed") {
				t.Errorf("the log is\n%s", log)
			}
			stored := f.stored(t)
			if stored.Status.Phase != v1alpha1.BackupPhaseFailed || stored.Status.FailureReason != outcome.Status.FailureReason {
				t.Errorf("stored is %+v", stored)
			}
		})
	}
}

// full is a store that takes some writes of a tarball, and then none.
type full struct {
	Store
	left int
}

func (f *full) NewWriter(ctx context.Context, key string) (store.ObjectWriter, error) {
	w, err := f.Store.NewWriter(ctx, key)
	return &fullWriter{w, f}, err
}

type fullWriter struct {
	store.ObjectWriter
	store *full
}

func (w *fullWriter) Write(p []byte) (int, error) {
	if w.store.left--; w.store.left < 0 {
		return 0, errBoom
	}
	return w.ObjectWriter.Write(p)
}

// Wherever the tarball breaks off, at its very end too, there is none.
func TestTarballThatBreaksOff(t *testing.T) {
	for writes := 0; ; writes++ {
		f := shopOf(t, 3)
		f.add("configmaps", fmt.Sprintf(`{"metadata":{"name":"large","namespace":"shop"},"data":{"x":%q}}`, noise(1<<20)))
		store := &full{f.store, writes}
		f.deps.Store = store
		outcome := f.run(t)
		if store.left >= 0 {
			if outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || writes < 2 {
				t.Errorf("after all %d writes: %+v", writes, outcome.Status)
			}
			return
		}
		if outcome.Status.Phase != v1alpha1.BackupPhaseFailed || !strings.Contains(outcome.Status.FailureReason, errBoom.Error()) || slices.Contains(f.keys(t), format.TarballKey("b")) {
			t.Errorf("after %d writes: %+v", writes, outcome.Status)
		}
	}
}

// A cluster that says nothing is not an empty one, and what it can't tell apart is not
// left out in silence.
func TestClusterThatCannotBeRead(t *testing.T) {
	for name, test := range map[string]struct {
		spoil  func(f *fixture)
		reason string
	}{
		"no resources": {func(f *fixture) { f.resources = nil }, "serves no namespaces"},
		"an odd group": {func(f *fixture) { f.resources = append(f.resources, metav1.APIResourceList{GroupVersion: "a/b/c"}) }, "discover the cluster's resources"},
		"no namespaces": {func(f *fixture) {
			f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/api/v1/namespaces" {
					writeStatus(w, metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "no rights"})
				}
				return r.URL.Path == "/api/v1/namespaces"
			}
		}, "list the namespaces: no rights"},
		"an odd namespace": {func(f *fixture) {
			f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/api/v1/namespaces" {
					_, _ = w.Write([]byte(`{"kind":"List","items":[{"metadata":{"name":"shop","labels":7}}]}`))
				}
				return r.URL.Path == "/api/v1/namespaces"
			}
		}, "list the namespaces: read an object"},
	} {
		f := shopOf(t, 3)
		f.deps.Store = storetest.NewFaulty(storetest.Filesystem(t), f.deps.Clock.(clock.Clock))
		f.store = f.deps.Store.(*storetest.Faulty)
		test.spoil(f)
		outcome := f.run(t)
		if outcome.Status.Phase != v1alpha1.BackupPhaseFailed || !strings.Contains(outcome.Status.FailureReason, test.reason) {
			t.Errorf("%s: got %+v", name, outcome.Status)
		}
		if keys := f.unfinished(t); len(keys) != 5 || slices.Contains(keys, format.TarballKey("b")) {
			t.Errorf("%s: in the store is %v", name, keys)
		}
	}
}

// unfinished are the keys of a backup's folder, and of what nobody has finished there.
func (f *fixture) unfinished(t *testing.T) (keys []string) {
	t.Helper()
	for object, err := range f.store.List(t.Context(), format.BackupPrefix("b"), store.ListOptions{Recursive: true, Unfinished: true}) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, object.Key)
	}
	return keys
}

// Objects that are not what they should be are errors of their own.
func TestObjectsThatCannotBeUnderstood(t *testing.T) {
	yes := true
	// A volume of all that are read, or of a claim only.
	for all, count := range map[bool]int32{true: 4, false: 3} {
		f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, IncludeClusterResources: &all, DefaultVolumesToFsBackup: &yes})
		if !all {
			f.request.Backup.Spec.IncludeClusterResources = nil
		}
		f.claims()
		f.add("persistentvolumes", `{"metadata":{"name":"pv-odd"},"spec":7}`)
		f.add("persistentvolumeclaims",
			`{"metadata":{"name":"odd","namespace":"shop"},"spec":7}`,
			`{"metadata":{"name":"on-odd","namespace":"shop"},"spec":{"volumeName":"pv-odd"},"status":{"phase":"Bound"}}`)
		f.add("pods", `{"metadata":{"name":"odd","namespace":"shop"},"spec":7}`,
			podWith("p", "", `o "persistentVolumeClaim":{"claimName":"odd"}`, "data"+claimData))
		f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == configMaps {
				_, _ = w.Write([]byte(`{"kind":"List","items":[{"metadata":{"name":7,"namespace":"shop"}},{"metadata":{"name":"c-00000","namespace":"shop"}}]}`))
			}
			return r.URL.Path == configMaps
		}
		outcome := f.run(t)
		if outcome.Status.Phase != v1alpha1.BackupPhasePartiallyFailed || outcome.Status.Errors != count {
			t.Errorf("got %+v", outcome.Status)
		}
		results := f.results(t)
		for _, want := range []string{"persistentvolumes pv-odd: read an object", "pods shop/odd: read an object", "configmaps shop: read an object"} {
			if !slices.ContainsFunc(append(results.Errors.Cluster, results.Errors.Namespaces["shop"]...), func(text string) bool { return strings.HasPrefix(text, want) }) {
				t.Errorf("%q is not among %+v", want, results.Errors)
			}
		}
		if !slices.ContainsFunc(results.Warnings.Namespaces["shop"], func(text string) bool {
			return strings.HasPrefix(text, "pods shop/p: the data of volume o (claim odd) is not backed up: read an object")
		}) {
			t.Errorf("the warnings are %+v", results.Warnings)
		}
		if items := f.items(t); !slices.Contains(items, "configmaps shop/c-00000") || !slices.Contains(items, "pods shop/odd") {
			t.Errorf("the tarball holds %v", items)
		}
		if len(f.volumes.submitted) != 1 {
			t.Errorf("handed over are %v", f.volumes.submitted)
		}
	}
}

// An object of which others only give the name may be gone by now, and is an error if it
// can't be read. Definitions that are gone are in TestDefinitionsThatAreGone.
func TestObjectsThatAreFetched(t *testing.T) {
	const touched, definition = "/api/v1/namespaces/shop", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com"
	gone := metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: "not found"}
	denied := metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "no rights"}
	for _, test := range []struct {
		path   string
		answer any
		want   string
	}{
		{touched, gone, ""},
		{touched, denied, "namespaces shop: read it: no rights"},
		{touched, `{"metadata":{"name":7}}`, "namespaces shop: read an object"},
		{touched, `{"metadata":{"name":"shop","deletionTimestamp":"2026-08-01T12:00:00Z"}}`, ""},
		{definition, denied, "customresourcedefinitions.apiextensions.k8s.io widgets.example.com: read it: no rights"},
		{definition, `{"metadata":{"name":7}}`, "customresourcedefinitions.apiextensions.k8s.io widgets.example.com: read an object"},
	} {
		f := newFixture(t, v1alpha1.BackupSpec{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}})
		f.add("namespaces", namespace("shop", ""))
		f.add("customresourcedefinitions.apiextensions.k8s.io", `{"metadata":{"name":"widgets.example.com"}}`)
		f.add("widgets.example.com", `{"metadata":{"name":"gear","namespace":"shop","labels":{"app":"db"}}}`)
		f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != test.path {
				return false
			}
			switch answer := test.answer.(type) {
			case string:
				_, _ = w.Write([]byte(answer))
			case metav1.Status:
				writeStatus(w, answer)
			}
			return true
		}
		phase, count := v1alpha1.BackupPhaseCompleted, int32(0)
		if test.want != "" {
			phase, count = v1alpha1.BackupPhasePartiallyFailed, 1
		}
		outcome, results := f.run(t), f.results(t)
		if outcome.Status.Phase != phase || outcome.Status.Errors != count || outcome.Status.Warnings != 0 ||
			count == 1 && (len(results.Errors.Cluster) != 1 || !strings.HasPrefix(results.Errors.Cluster[0], test.want)) {
			t.Errorf("%s, %v: got %+v with the errors %+v", test.path, test.answer, outcome.Status, results.Errors)
		}
		// The other one comes along.
		want := []string{"customresourcedefinitions.apiextensions.k8s.io widgets.example.com", "widgets.example.com shop/gear"}
		if test.path == definition {
			want = []string{"namespaces shop", "widgets.example.com shop/gear"}
		}
		if items := f.items(t); !slices.Equal(items, want) {
			t.Errorf("%s, %v: the tarball holds %v", test.path, test.answer, items)
		}
	}
}

// Objects whose definition is gone can't be restored elsewhere, which is to be known. What has
// none, since the API server or another one serves it of its own, lacks nothing.
func TestDefinitionsThatAreGone(t *testing.T) {
	const definitions = "customresourcedefinitions.apiextensions.k8s.io"
	const gone = definitions + " widgets.example.com: the definition of objects that are in the backup is gone: they can be restored only where there is one"
	const leaving = definitions + " widgets.example.com: the definition of objects that are in the backup is being deleted, and left out: they can be restored only where there is one"
	const whole, deleted = `{"metadata":{"name":"widgets.example.com"}}`, `{"metadata":{"name":"widgets.example.com","deletionTimestamp":"2026-08-01T12:00:00Z"}}`
	service := func(labels, spec string) string {
		return `{"metadata":{"name":"v1.example.com","labels":{` + labels + `}},"spec":{` + spec + `}}`
	}
	for name, test := range map[string]struct {
		definition, service string
		// selected: definitions are in the backup whatever they define.
		selected bool
		// lost: it is gone when objects have been read.
		lost bool
		want string
	}{
		"there":                      {definition: whole},
		"there, and selected":        {definition: whole, selected: true},
		"gone":                       {want: gone},
		"gone, and selected":         {selected: true, want: gone},
		"gone after it was read":     {definition: whole, selected: true, lost: true},
		"gone before it was read":    {definition: whole, lost: true, want: gone},
		"being deleted":              {definition: deleted, want: leaving},
		"being deleted, and listed":  {definition: deleted, selected: true, want: leaving},
		"gone after being deleted":   {definition: deleted, selected: true, lost: true, want: gone},
		"gone, its service remains":  {service: service(`"kube-aggregator.kubernetes.io/automanaged":"true"`, ""), want: gone},
		"of a server of its own":     {service: service("", `"service":{"namespace":"op","name":"api"}`)},
		"of the API server's own":    {service: service(`"kube-aggregator.kubernetes.io/automanaged":"onstart"`, "")},
		"with a service of no sense": {service: service("", `"service":7`), want: gone},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, IncludeClusterResources: &test.selected})
			if !test.selected {
				f.request.Backup.Spec.IncludeClusterResources = nil
			}
			f.resources = append(f.resources, metav1.APIResourceList{GroupVersion: "apiregistration.k8s.io/v1", APIResources: []metav1.APIResource{
				{Name: "apiservices", SingularName: "apiservice", Kind: "APIService", Verbs: metav1.Verbs{"create", "delete", "get", "list"}},
			}})
			f.add("namespaces", namespace("shop", ""))
			f.add("widgets.example.com", named("shop", "gear")...)
			if test.definition != "" {
				f.add(definitions, test.definition)
			}
			if test.service != "" {
				f.add("apiservices.apiregistration.k8s.io", test.service)
			}
			f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				one := strings.HasSuffix(r.URL.Path, "/customresourcedefinitions/widgets.example.com")
				if one && test.lost {
					writeStatus(w, metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: "not found"})
				}
				return one && test.lost
			}
			outcome := f.run(t)
			var want []string
			if test.want != "" {
				want = append(want, test.want)
			}
			if got := f.results(t).Warnings.Cluster; outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || int(outcome.Status.Warnings) != len(want) || !slices.Equal(got, want) {
				t.Errorf("got %+v with the warnings %q", outcome.Status, got)
			}
			if !slices.Contains(f.items(t), "widgets.example.com shop/gear") {
				t.Errorf("the tarball holds %v", f.items(t))
			}
		})
	}
}

type noDiscovery struct{ error }

func (d noDiscovery) ServerPreferredResourcesWithContext(context.Context) ([]*metav1.APIResourceList, error) {
	return nil, d.error
}

// What nobody can discover is not taken for an empty cluster.
func TestNoDiscovery(t *testing.T) {
	f := shopOf(t, 3)
	f.deps.Discovery = noDiscovery{errors.New("the connection is refused")}
	if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseFailed || !strings.Contains(outcome.Status.FailureReason, "the connection is refused") {
		t.Errorf("got %+v", outcome.Status)
	}
}

// seldom is a cluster that says which resources it serves when it was asked so many times.
type seldom struct {
	Discovery
	left int
}

func (s *seldom) ServerPreferredResourcesWithContext(ctx context.Context) ([]*metav1.APIResourceList, error) {
	if s.left--; s.left >= 0 {
		return nil, syscall.ECONNREFUSED
	}
	return s.Discovery.ServerPreferredResourcesWithContext(ctx)
}

// TestDiscoveryIsTriedAgain: a server that restarts costs no backup.
func TestDiscoveryIsTriedAgain(t *testing.T) {
	for refused, want := range map[int]v1alpha1.BackupPhase{3: v1alpha1.BackupPhaseCompleted, 4: v1alpha1.BackupPhaseFailed} {
		f := shopOf(t, 3)
		f.deps.Discovery = &seldom{f.deps.Discovery, refused}
		if outcome := f.run(t); outcome.Status.Phase != want {
			t.Errorf("after %d refusals: %+v", refused, outcome.Status)
		}
	}
}

// TestHandingOverIsTriedAgain: a server that restarts costs no volume. One that stays away is waited
// for with the first volume alone, and with the next one after it was back.
func TestHandingOverIsTriedAgain(t *testing.T) {
	yes := true
	refused := syscall.ECONNREFUSED
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "volumeuploads"}, "", nil)
	for name, test := range map[string]struct {
		answers []error
		want    []string
	}{
		"once":           {[]error{refused}, []string{"a", "a", "b", "c"}},
		"as a refusal":   {[]error{forbidden}, []string{"a", "b", "c"}},
		"for long":       {[]error{refused, refused, refused, refused, refused}, []string{"a", "a", "a", "a", "b", "c"}},
		"and then again": {[]error{refused, refused, refused, refused, nil, refused}, []string{"a", "a", "a", "a", "b", "c", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: &yes})
			f.add("namespaces", namespace("shop", ""))
			f.add("pods", podWith("p", "", "a"+emptyDir, "b"+emptyDir, "c"+emptyDir))
			var tried []string
			f.volumes.submit = func(volume *format.Volume) (err error) {
				if len(tried) < len(test.answers) {
					err = test.answers[len(tried)]
				}
				tried = append(tried, volume.Name)
				return err
			}
			f.run(t)
			if diff := gocmp.Diff(test.want, tried); diff != "" {
				t.Errorf("handed over (-want +got):\n%s", diff)
			}
		})
	}
}

// A selector that can't be read is not left out, which would select more.
func TestSelectorsThatCannotBeRead(t *testing.T) {
	bad := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like", Values: []string{"db"}}}}
	for _, selector := range []*metav1.LabelSelector{nil, bad} {
		f := shopOf(t, 3)
		f.request.Backup.Spec.OrLabelSelectors = []*metav1.LabelSelector{selector}
		if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseFailed || !strings.Contains(outcome.Status.FailureReason, "a label selector") {
			t.Errorf("%v: %+v", selector, outcome.Status)
		}
	}
}

// The store's errors are no errors of the cluster: nothing is read again.
func TestStoreThatFailsWhileItIsRead(t *testing.T) {
	for _, place := range places[1:] { // the first one is only looked at
		f := everywhere(t, place, noise(1<<20))
		f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == place {
				f.store.Inject(storetest.Fault{Operation: storetest.Write, Key: format.TarballKey("b"), Err: errors.New("the disk is full")})
			}
			return false
		}
		outcome := f.run(t)
		if status := outcome.Status; status.Phase != v1alpha1.BackupPhaseFailed || status.Errors != 1 || !strings.Contains(status.FailureReason, " to the tarball: the disk is full") {
			t.Errorf("%s: got %+v", place, status)
		}
		f.mu.Lock() // a request that was given up may come late
		requests := slices.Clone(f.requests)
		f.mu.Unlock()
		for _, request := range requests {
			if n := f.requested(request); n > 1 && request != places[0] {
				t.Errorf("%s: %s was requested %d times", place, request, n)
			}
		}
	}
}

// noise is text that can't be compressed to less than so many bytes.
func noise(bytes int) string {
	text := make([]byte, bytes)
	_, _ = rand.NewChaCha8([32]byte{8}).Read(text)
	return base64.StdEncoding.EncodeToString(text)
}

func TestSpecThatCannotBeRead(t *testing.T) {
	f := shopOf(t, 3)
	f.request.Backup.Spec.IncludedNamespaces = []string{"["}
	f.request.Backup.Spec.OrLabelSelectors = []*metav1.LabelSelector{nil}
	if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseFailed || !strings.Contains(outcome.Status.FailureReason, "includedNamespaces[0]") {
		t.Errorf("got %+v", outcome.Status)
	}
}

// Pitfall 29: a side file that a restore rests on fails the backup; the report of
// it does not.
func TestSideFilesThatFail(t *testing.T) {
	for key, want := range map[string]v1alpha1.BackupPhase{
		format.PodVolumeBackupsKey("b"): v1alpha1.BackupPhaseFailed,
		format.ResourceListKey("b"):     v1alpha1.BackupPhaseFailed,
		format.ManifestKey("b"):         v1alpha1.BackupPhaseFailed,
		format.LogKey("b"):              v1alpha1.BackupPhasePartiallyFailed,
		format.ResultsKey("b"):          v1alpha1.BackupPhasePartiallyFailed,
	} {
		f := shopOf(t, 3)
		f.store.Inject(storetest.Fault{Operation: storetest.Create, Key: key, Err: store.ErrUnavailable})
		if outcome := f.run(t); outcome.Status.Phase != want || outcome.Status.Errors != 1 {
			t.Errorf("without %s: %+v", key, outcome.Status)
		}
		if got := f.store.Count(storetest.Create); got < 4+3 {
			t.Errorf("%s was tried %d times", key, got)
		}
		// The metadata names what there is, and of a failed backup what says why.
		contents, err := format.TakeContents(f.stored(t))
		if err != nil {
			t.Error(err)
		}
		if _, named := contents.Of(key); named || want == v1alpha1.BackupPhaseFailed && len(contents) != 2 {
			t.Errorf("without %s the metadata names %v", key, contents)
		}
	}
}

// A second life of the same run finds what the first has stored, and changes
// nothing.
func TestRunAgain(t *testing.T) {
	f := shopOf(t, 3)
	first := f.run(t)
	f.add("configmaps", named("shop", "later")...)
	f.store.Reset()
	second := f.run(t)
	if second.Status.Phase != first.Status.Phase || *second.Status.Progress != *first.Status.Progress || !second.Status.CompletionTimestamp.Equal(first.Status.CompletionTimestamp) {
		t.Errorf("got %+v after %+v", second.Status, first.Status)
	}
	if counts := f.store.Counts(); len(counts) != 1 || counts[storetest.Get] != 1 {
		t.Errorf("the store was used: %v", counts)
	}
	if third, err := f.abandon(t, v1alpha1.BackupPhaseFailed, "the controller was killed"); err != nil || third.Status.Phase != first.Status.Phase {
		t.Errorf("Abandon of a backup that has ended: %+v, %v", third, err)
	}
	f.wantConfigMaps(t, 3)
}

// Another backup of the same name is never touched.
func TestNameTaken(t *testing.T) {
	f := shopOf(t, 3)
	f.run(t)
	before := f.read(t, format.TarballKey("b"))
	f.request.Backup.UID = "another"
	f.store.Reset()
	outcome, err := Run(t.Context(), f.request, f.deps)
	if !errors.Is(err, ErrNameTaken) || outcome.Stored || outcome.Status.Phase != v1alpha1.BackupPhaseFailed {
		t.Errorf("got %+v, %v", outcome, err)
	}
	if counts := f.store.Counts(); len(counts) != 1 || counts[storetest.Get] != 1 {
		t.Errorf("the store was used: %v", counts)
	}
	if string(f.read(t, format.TarballKey("b"))) != string(before) {
		t.Error("the tarball of the other backup has changed")
	}
}

// A folder whose owner nobody can tell is another's.
func TestAnOwnerThatCannotBeRead(t *testing.T) {
	f := shopOf(t, 1)
	if err := f.store.Put(t.Context(), format.OwnerKey("b"), []byte("somebody")); err != nil {
		t.Fatal(err)
	}
	if outcome, err := Run(t.Context(), f.request, f.deps); !errors.Is(err, ErrNameTaken) || !errors.Is(err, ErrUnreadable) || outcome.Stored || len(f.keys(t)) != 1 {
		t.Errorf("got %+v, %v", outcome, err)
	}
}

// The name may be taken while the backup runs.
func TestNameTakenMeanwhile(t *testing.T) {
	f := shopOf(t, 3)
	f.volumes.wait = func(ctx context.Context) error {
		return f.store.Create(ctx, format.MetadataKey("b"), []byte("not even metadata"))
	}
	outcome, err := Run(t.Context(), f.request, f.deps)
	if !errors.Is(err, ErrNameTaken) || outcome.Stored {
		t.Errorf("got %+v, %v", outcome, err)
	}
}

// What can't be read may be this very backup.
func TestFind(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, f *fixture)
		stored  bool
		err     error
	}{
		"stored":     {prepare: func(t *testing.T, f *fixture) { f.run(t) }, stored: true},
		"not stored": {prepare: func(*testing.T, *fixture) {}},
		"another one": {prepare: func(t *testing.T, f *fixture) {
			f.run(t)
			f.request.Backup = f.request.Backup.DeepCopy()
			f.request.Backup.UID = "another"
		}},
		"unreadable": {prepare: func(t *testing.T, f *fixture) {
			f.run(t)
			if err := f.store.Put(t.Context(), format.MetadataKey("b"), []byte("<html>")); err != nil {
				t.Fatal(err)
			}
		}, err: ErrUnreadable},
		"no answer": {prepare: func(_ *testing.T, f *fixture) {
			f.store.Inject(storetest.Fault{Operation: storetest.Get, Err: store.ErrDenied})
		}, err: store.ErrDenied},
	} {
		t.Run(name, func(t *testing.T) {
			f := shopOf(t, 1)
			c.prepare(t, f)
			outcome, err := Find(t.Context(), f.request, f.deps)
			if outcome.Stored != c.stored || !errors.Is(err, c.err) {
				t.Errorf("got %+v, %v", outcome, err)
			}
		})
	}
}

// A store that is down at the start is no reason to believe that the name is free, nor
// one that takes no owner of the folder to write anything else.
func TestStoreDownAtTheStart(t *testing.T) {
	for name, fault := range map[string]storetest.Fault{
		"it can't be read":   {Operation: storetest.Get, Err: store.ErrUnavailable},
		"it takes no owner":  {Operation: storetest.Create, Key: format.OwnerKey("b"), Err: store.ErrUnavailable},
		"it denies an owner": {Operation: storetest.Create, Key: format.OwnerKey("b"), Err: store.ErrDenied},
	} {
		t.Run(name, func(t *testing.T) {
			f := shopOf(t, 3)
			f.store.Inject(fault)
			if outcome, err := Run(t.Context(), f.request, f.deps); !errors.Is(err, fault.Err) || outcome.Stored {
				t.Errorf("got %+v, %v", outcome, err)
			}
			if f.requested("/") != 0 || len(f.keys(t)) != 0 {
				t.Error("the backup ran all the same")
			}
		})
	}
}

func (f *fixture) abandon(t testing.TB, phase v1alpha1.BackupPhase, reason string) (Outcome, error) {
	t.Helper()
	return Abandon(t.Context(), f.request, f.deps, f.store, phase, reason)
}

// A backup that is not executed any more ends by one conditional write. What it left
// goes after that, and what says how it ended stays.
func TestAbandon(t *testing.T) {
	for phase, errorCount := range map[v1alpha1.BackupPhase]int32{v1alpha1.BackupPhaseFailed: 1, v1alpha1.BackupPhaseCancelled: 0} {
		t.Run(string(phase), func(t *testing.T) {
			f := shopOf(t, 3)
			if first, err := newExecution(t.Context(), f.request, f.deps).takeFolder(t.Context()); err != nil || !first {
				t.Fatalf("got %v, %v", first, err)
			}
			// What a killed controller may leave.
			for _, key := range []string{format.TarballKey("b"), format.ResourceListKey("b"), format.LogKey("b"), format.TarballKey("b2")} {
				if err := f.store.Put(t.Context(), key, []byte("half")); err != nil {
					t.Fatal(err)
				}
			}
			reason := "stopped while it ran"
			outcome, err := f.abandon(t, phase, reason)
			if err != nil || !outcome.Stored || outcome.Status.Phase != phase || outcome.Status.Errors != errorCount || outcome.Status.FailureReason != reason {
				t.Errorf("got %+v, %v", outcome, err)
			}
			if complete := meta.FindStatusCondition(outcome.Status.Conditions, v1alpha1.ConditionComplete); complete == nil || complete.Reason != string(phase) {
				t.Errorf("the conditions are %+v", outcome.Status.Conditions)
			}
			want := []string{format.LogKey("b"), format.ResultsKey("b"), format.OwnerKey("b"), format.MetadataKey("b"), format.TarballKey("b2")}
			if keys := f.keys(t); !slices.Equal(keys, want) {
				t.Errorf("%v is in the store", keys)
			}
			if log := f.text(t, format.LogKey("b")); !strings.Contains(log, reason) || !strings.Contains(log, "phase="+string(phase)) {
				t.Errorf("the log is\n%s", log)
			}
			// Whatever others want then, and as often as they want it.
			for _, other := range []v1alpha1.BackupPhase{v1alpha1.BackupPhaseFailed, v1alpha1.BackupPhaseCancelled} {
				if again, err := f.abandon(t, other, "another reason"); err != nil || again.Status.Phase != phase || again.Status.FailureReason != reason {
					t.Errorf("got %+v, %v", again, err)
				}
			}
			if outcome, err := Run(t.Context(), f.request, f.deps); err != nil || outcome.Status.Phase != phase || f.requested("/") != 0 {
				t.Errorf("it was executed again: %+v, %v", outcome, err)
			}
			if keys := f.keys(t); !slices.Equal(keys, want) {
				t.Errorf("%v is in the store", keys)
			}
		})
	}
}

// What can't be removed now is said, so that it is done again; what is another object
// by now is not the backup's.
func TestAbandonThatCannotClean(t *testing.T) {
	for fault, want := range map[error]error{store.ErrDenied: store.ErrDenied, store.ErrChanged: nil} {
		f := shopOf(t, 3)
		if err := f.store.Put(t.Context(), format.TarballKey("b"), []byte("half")); err != nil {
			t.Fatal(err)
		}
		f.store.Inject(storetest.Fault{Operation: storetest.Delete, Err: fault})
		if _, err := f.abandon(t, v1alpha1.BackupPhaseFailed, "killed"); !errors.Is(err, want) {
			t.Errorf("%v: got %v", fault, err)
		}
	}
	// What nobody can list, or knows the contents of, is not taken for clean; and what has
	// been deleted meanwhile is.
	for _, fault := range []storetest.Fault{
		{Operation: storetest.List, Err: store.ErrDenied},
		{Operation: storetest.Get, Key: format.MetadataKey("b"), Err: store.ErrDenied},
		{Operation: storetest.Get, Key: format.MetadataKey("b"), Err: store.ErrNotFound},
	} {
		f := shopOf(t, 3)
		f.deps.Store = &beaten{f.store, format.MetadataKey("b"), func() { f.store.Inject(fault) }}
		want := fault.Err
		if want == store.ErrNotFound {
			want = nil
		}
		if _, err := f.abandon(t, v1alpha1.BackupPhaseFailed, "killed"); !errors.Is(err, want) {
			t.Errorf("%s, %v: %v", fault.Operation, fault.Err, err)
		}
	}
}

// What a killed process was writing into a folder goes as well.
func TestAbandonRemovesWhatIsUnfinished(t *testing.T) {
	f := shopOf(t, 3)
	f.deps.Store = storetest.NewFaulty(storetest.Filesystem(t), f.deps.Clock.(clock.Clock))
	f.store = f.deps.Store.(*storetest.Faulty)
	w, err := f.store.NewWriter(t.Context(), format.TarballKey("b"))
	if err == nil {
		_, err = w.Write([]byte("half"))
	}
	if err == nil {
		err = f.store.Put(t.Context(), format.BackupPrefix("b")+"below/it", []byte("of nobody"))
	}
	if err != nil || len(f.unfinished(t)) != 2 {
		t.Fatalf("%v, and %v is in the store", err, f.unfinished(t))
	}
	if outcome, err := f.abandon(t, v1alpha1.BackupPhaseFailed, "killed"); err != nil || !outcome.Stored {
		t.Errorf("got %+v, %v", outcome, err)
	}
	if keys, want := f.unfinished(t), []string{format.LogKey("b"), format.ResultsKey("b"), format.OwnerKey("b"), format.MetadataKey("b")}; !slices.Equal(keys, want) {
		t.Errorf("%v is in the store", keys)
	}
}

// What a status says of a backup that went well, and what is used when nothing else is
// given.
func TestStatus(t *testing.T) {
	f := shopOf(t, 3)
	status := f.run(t).Status
	complete := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionComplete)
	if status.Volumes != nil || status.FormatVersion != format.FormatVersion || complete == nil || complete.Reason != string(v1alpha1.BackupPhaseCompleted) {
		t.Errorf("got %+v", status)
	}
	e := newExecution(t.Context(), f.request, Dependencies{Clock: f.deps.Clock})
	if e.Workers != defaultWorkers || e.Retry != defaultRetry || e.Dependencies.Progress == nil {
		t.Errorf("got %+v", e.Dependencies)
	}
}

// longer is a store in which the tarball is longer than it was written.
type longer struct{ Store }

func (l longer) List(ctx context.Context, folder string, options store.ListOptions) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		for object, err := range l.Store.List(ctx, folder, options) {
			if object.Key == format.TarballKey("b") {
				object.Size++
			}
			if !yield(object, err) {
				return
			}
		}
	}
}

// What is not in the store as it was written is not published as whole.
func TestWhatCannotBeVerified(t *testing.T) {
	denied, other := shopOf(t, 3), shopOf(t, 3)
	denied.store.Inject(storetest.Fault{Operation: storetest.List, Err: store.ErrDenied})
	other.deps.Store = longer{other.store}
	for f, reason := range map[*fixture]string{denied: store.ErrDenied.Error(), other: "bytes in the store"} {
		if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseFailed || !strings.Contains(outcome.Status.FailureReason, reason) {
			t.Errorf("got %+v, want %q", outcome.Status, reason)
		}
	}
}

// A backup that has the folder, and not the name, gives the folder up.
func TestAbandonOfANameThatIsTaken(t *testing.T) {
	f := shopOf(t, 1)
	if first, err := newExecution(t.Context(), f.request, f.deps).takeFolder(t.Context()); err != nil || !first {
		t.Fatalf("got %v, %v", first, err)
	}
	if err := f.store.Put(t.Context(), format.MetadataKey("b"), []byte("not even metadata")); err != nil {
		t.Fatal(err)
	}
	f.store.Inject(storetest.Fault{Operation: storetest.Delete, Err: store.ErrDenied})
	if _, err := f.abandon(t, v1alpha1.BackupPhaseFailed, "killed"); !errors.Is(err, store.ErrDenied) {
		t.Errorf("got %v", err)
	}
	f.store.Inject()
	if _, err := f.abandon(t, v1alpha1.BackupPhaseFailed, "killed"); !errors.Is(err, ErrNameTaken) {
		t.Errorf("got %v", err)
	}
	if keys := f.keys(t); !slices.Equal(keys, []string{format.MetadataKey("b")}) {
		t.Errorf("%v is in the store", keys)
	}
}

// A store that contradicts itself has not stored the backup.
func TestMetadataThatExistsAndDoesNot(t *testing.T) {
	f := shopOf(t, 1)
	f.store.Inject(storetest.Fault{Operation: storetest.Create, Key: format.MetadataKey("b"), Err: store.ErrExists})
	if outcome, err := Run(t.Context(), f.request, f.deps); err == nil || outcome.Stored || outcome.Status.Phase != v1alpha1.BackupPhaseFailed {
		t.Errorf("got %+v, %v", outcome, err)
	}
}

// An object of which only a part can be read is not taken for another one.
func TestWhatIsReadInPart(t *testing.T) {
	f, key := shopOf(t, 0), format.ResultsKey("b")
	if err := f.store.Put(t.Context(), key, []byte("all of it")); err != nil {
		t.Fatal(err)
	}
	f.store.Inject(storetest.Fault{Operation: storetest.Get, Key: key, Truncate: true, After: 3, Err: store.ErrUnavailable})
	e := newExecution(t.Context(), f.request, f.deps)
	if err := e.created(t.Context(), key, format.NewContent([]byte("all of it")), store.ErrExists); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

// Metadata that says too little is not stored, and no empty one in its place.
func TestMetadataThatCannotBeMade(t *testing.T) {
	f := shopOf(t, 1)
	f.request.Backup.CreationTimestamp = metav1.Time{}
	if outcome, err := Run(t.Context(), f.request, f.deps); err == nil || outcome.Stored || slices.Contains(f.keys(t), format.MetadataKey("b")) {
		t.Errorf("got %+v, %v, and %v is in the store", outcome, err, f.keys(t))
	}
}

// What the metadata of a failed backup names stays as it was written.
func TestAbandonOfAFailedBackup(t *testing.T) {
	for attempt, removals := range map[int]int{1: 2, 3: 4} { // later attempts have revoked those before
		abandonOfAFailedBackup(t, attempt, removals)
	}
}

func abandonOfAFailedBackup(t *testing.T, attempt, removals int) {
	f := shopOf(t, 3)
	f.request.Attempt = attempt
	f.resources = nil
	f.run(t)
	if err := f.store.Put(t.Context(), format.TarballKey("b"), []byte("half")); err != nil {
		t.Fatal(err)
	}
	log := f.text(t, format.LogKey("b"))
	f.store.Reset()
	if outcome, err := f.abandon(t, v1alpha1.BackupPhaseFailed, "killed"); err != nil || !outcome.Stored {
		t.Errorf("got %+v, %v", outcome, err)
	}
	if f.store.Count(storetest.Delete) != removals || slices.Contains(f.keys(t), format.TarballKey("b")) || f.text(t, format.LogKey("b")) != log {
		t.Errorf("%v is in the store, after %v", f.keys(t), f.store.Counts())
	}
}

var errOdd = errors.New("any error")

// Nothing is removed of a backup that is not known to have been abandoned, nor of
// another one.
func TestAbandonRemovesNothingOfOthers(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(t *testing.T, f *fixture)
		err     error
	}{
		"it has ended": {func(t *testing.T, f *fixture) {
			f.run(t)
			if err := f.store.Put(t.Context(), format.BackupPrefix("b")+"notes", []byte("of another tool")); err != nil {
				t.Fatal(err)
			}
		}, nil},
		"nobody knows what it needs": {func(t *testing.T, f *fixture) {
			f.resources = nil // so that it fails
			f.run(t)
			names := format.AnnotationContents + `":"`
			odd := strings.Replace(string(f.read(t, format.MetadataKey("b"))), names+"{", names+"[", 1)
			if err := f.store.Put(t.Context(), format.MetadataKey("b"), []byte(odd)); err != nil {
				t.Fatal(err)
			}
		}, errOdd},
		"another one has ended": {func(t *testing.T, f *fixture) {
			f.run(t)
			f.request.Backup.UID = "another"
		}, ErrNameTaken},
		"another one runs": {func(t *testing.T, f *fixture) {
			if err := f.store.Create(t.Context(), format.OwnerKey("b"), []byte(`{"uid":"another"}`)); err != nil {
				t.Fatal(err)
			}
			if err := f.store.Put(t.Context(), format.TarballKey("b"), []byte("another's")); err != nil {
				t.Fatal(err)
			}
		}, ErrNameTaken},
		"another one has begun since": {func(t *testing.T, f *fixture) {
			f.resources = nil // so that it fails
			f.run(t)
			for key, content := range map[string]string{format.OwnerKey("b"): `{"uid":"another"}`, format.TarballKey("b"): "another's"} {
				if err := f.store.Put(t.Context(), key, []byte(content)); err != nil {
					t.Fatal(err)
				}
			}
		}, ErrNameTaken},
		"nobody knows whose it is": {func(t *testing.T, f *fixture) {
			if err := f.store.Create(t.Context(), format.OwnerKey("b"), []byte("<html>")); err != nil {
				t.Fatal(err)
			}
		}, ErrUnreadable},
		"the store is down": {func(t *testing.T, f *fixture) {
			f.store.Inject(storetest.Fault{Operation: storetest.Get, Err: store.ErrUnavailable})
		}, store.ErrUnavailable},
		// That the owner can't be read now does not make it another one.
		"its owner can't be read": {func(t *testing.T, f *fixture) {
			if first, err := newExecution(t.Context(), f.request, f.deps).takeFolder(t.Context()); err != nil || !first {
				t.Fatalf("got %v, %v", first, err)
			}
			f.store.Inject(storetest.Fault{Operation: storetest.Get, Key: format.OwnerKey("b"), Err: store.ErrUnavailable})
		}, store.ErrUnavailable},
		"the store can't be written": {func(t *testing.T, f *fixture) {
			if err := f.store.Put(t.Context(), format.TarballKey("b"), []byte("half")); err != nil {
				t.Fatal(err)
			}
			f.store.Inject(storetest.Fault{Operation: storetest.Create, Key: format.MetadataKey("b"), Err: store.ErrUnavailable})
		}, store.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			f := shopOf(t, 3)
			test.prepare(t, f)
			ended := slices.Contains(f.keys(t), format.MetadataKey("b"))
			f.store.Reset()
			if _, err := f.abandon(t, v1alpha1.BackupPhaseFailed, "killed"); !errors.Is(err, test.err) && (test.err != errOdd || err == nil) {
				t.Errorf("got %v, want %v", err, test.err)
			}
			if !ended && slices.Contains(f.keys(t), format.MetadataKey("b")) {
				t.Error("it has ended in a folder that is not known to be its own")
			}
			if n := f.store.Count(storetest.Delete); n != 0 {
				t.Errorf("%d objects were removed", n)
			}
		})
	}
}

// An owner that is another one by now stays, and that is no failure.
func TestRelease(t *testing.T) {
	for fault, want := range map[error]error{store.ErrChanged: nil, store.ErrDenied: store.ErrDenied} {
		f := shopOf(t, 1)
		if first, err := newExecution(t.Context(), f.request, f.deps).takeFolder(t.Context()); err != nil || !first {
			t.Fatalf("got %v, %v", first, err)
		}
		f.store.Inject(storetest.Fault{Operation: storetest.Delete, Err: fault})
		if err := Release(t.Context(), f.request, f.deps, f.store); !errors.Is(err, want) {
			t.Errorf("%v: got %v", fault, err)
		}
		f.store.Inject(storetest.Fault{Operation: storetest.Attributes, Err: store.ErrUnavailable})
		if err := Release(t.Context(), f.request, f.deps, f.store); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("a folder that can't be looked at: got %v", err)
		}
		f.store.Inject()
		for range 2 {
			if err := Release(t.Context(), f.request, f.deps, f.store); err != nil || len(f.keys(t)) != 0 {
				t.Errorf("got %v, and %v stays", err, f.keys(t))
			}
		}
	}
}

func TestExpirationIsTheRequestsOrTheStartAndTTL(t *testing.T) {
	given := metav1.Time{Time: start.Add(time.Hour)}
	f := shopOf(t, 0)
	f.request.Backup.Status.Expiration = &given
	if got := f.run(t).Status.Expiration; !got.Equal(&given) {
		t.Errorf("expires %v", got)
	}
	f = shopOf(t, 0)
	f.request.Backup.Spec.TTL = v1alpha1.Duration{}
	// Velero would remove at once what expires at its start.
	if got := f.run(t).Status.Expiration; got != nil {
		t.Errorf("expires %v", got)
	}
}
