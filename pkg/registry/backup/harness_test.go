// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	enginefake "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/fake"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

const system = "holdfast"

// harness is the storage of backups over a fake cluster of records.
type harness struct {
	testing.TB
	*REST
	kind    *kind
	records *enginefake.Clientset
	log     *logstore.Log[*v1alpha1.Backup]
	// may says whether backups may be created in a namespace, "" for all of them.
	// Nil is a broken authorizer.
	may map[string]bool
	// shut is a namespace that may not use the location default.
	shut string
	// asked are the namespaces that were asked about.
	asked []string
	// observed are the records that were put into the log.
	observed []string
	// stored are how many backups are stored of each namespace.
	stored map[string]int
	// planner counts the records that were observed.
	planner *records.Planner
}

func newHarness(t testing.TB, may map[string]bool, locations ...*enginev1alpha1.StorageLocation) *harness {
	t.Helper()
	h := loadingHarness(t, may, locations...)
	h.log.SetReady()
	return h
}

// loadingHarness is one whose log is not ready.
func loadingHarness(t testing.TB, may map[string]bool, locations ...*enginev1alpha1.StorageLocation) *harness {
	t.Helper()
	scheme := runtime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, location := range locations {
		if err := index.Add(location); err != nil {
			t.Fatal(err)
		}
	}
	planner, err := records.NewPlanner(records.DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{TB: t, records: enginefake.NewSimpleClientset(), may: may, planner: planner}
	// The tracker gives no uid, and knows nothing of dry runs.
	h.records.PrependReactor("create", "backupruns", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create := action.(clienttesting.CreateActionImpl)
		run := create.GetObject().(*enginev1alpha1.BackupRun)
		run.UID, run.CreationTimestamp, run.ResourceVersion = types.UID("uid-of-"+run.Name), metav1.Unix(1, 0), "7"
		return len(create.CreateOptions.DryRun) > 0, run, nil
	})
	h.log = logstore.New(func() *v1alpha1.Backup { return &v1alpha1.Backup{} }, logstore.Options{Resource: resource, Namespaced: true})
	storage, err := NewREST(Config{
		Scheme:          scheme,
		Log:             h.log,
		SystemNamespace: system,
		Runs:            h.records.EngineV1alpha1().BackupRuns(system),
		Locations: location.Known{
			Lister: enginelisters.NewStorageLocationLister(index).StorageLocations(system),
			Live:   h.records.EngineV1alpha1().StorageLocations(system),
		},
		NamespaceUID: func(_ context.Context, name string) (types.UID, error) { return types.UID("uid-of-" + name), nil },
		MayUse: func(_ context.Context, name, namespace string) error {
			if namespace == h.shut && name == "default" {
				return fmt.Errorf("%w: ask", location.ErrNotAllowed)
			}
			return nil
		},
		Authorizer: authorizer.AuthorizerFunc(h.authorize),
		Observe: func(run *enginev1alpha1.BackupRun) {
			h.observed = append(h.observed, run.Name)
			h.planner.UpdateRun(run, nil)
			if _, err := h.log.Apply(run.AsBackup()); err != nil {
				t.Error(err)
			}
		},
		Load: func(namespace string, coming sets.Set[string]) records.Load {
			return planner.Load(queue.Backup, namespace, coming)
		},
		Limits: Limits{Waiting: 3, WaitingInSystem: 5, Stored: 2},
		Stored: func(namespace string) int { return h.stored[namespace] },
		MaxTTL: 2 * DefaultTTL,
	})
	if err != nil {
		t.Fatal(err)
	}
	h.REST, h.kind = storage, storage.Kind.(*kind)
	return h
}

func locationOf(name string, isDefault bool, available metav1.ConditionStatus) *enginev1alpha1.StorageLocation {
	return &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name},
		Spec:       enginev1alpha1.StorageLocationSpec{Default: isDefault},
		Status: enginev1alpha1.StorageLocationStatus{Conditions: []metav1.Condition{
			{Type: enginev1alpha1.ConditionAvailable, Status: available},
		}},
	}
}

// authorize is the authorizer's answer to jane.
func (h *harness) authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() == "get" && a.GetResource() == "configmaps" && a.GetAPIGroup() == "" && a.GetName() != "" {
		asked := a.GetNamespace() + "/" + a.GetName()
		h.asked = append(h.asked, asked)
		if h.may[asked] {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "no role allows it", nil
	}
	if a.GetVerb() != "create" || a.GetAPIGroup() != "holdfast.io" || a.GetResource() != "backups" || !a.IsResourceRequest() || a.GetUser().GetName() != "jane" {
		h.Errorf("asked about %+v", a)
	}
	h.asked = append(h.asked, a.GetNamespace())
	switch {
	case h.may == nil:
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("the authorizer is broken")
	case h.may[a.GetNamespace()]:
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "no role allows it", nil
}

// ctx is that of a request of jane's in a namespace.
func (h *harness) ctx(namespace string) context.Context {
	ctx := genericapirequest.WithNamespace(h.Context(), namespace)
	return genericapirequest.WithUser(ctx, &user.DefaultInfo{Name: "jane", UID: "uid-of-jane", Groups: []string{"team", "system:authenticated"}})
}

func (h *harness) create(backup *v1alpha1.Backup, dryRun ...string) (*v1alpha1.Backup, error) {
	h.Helper()
	created, err := h.Create(h.ctx(backup.Namespace), backup, nil, &metav1.CreateOptions{DryRun: dryRun})
	if err != nil {
		return nil, err
	}
	return created.(*v1alpha1.Backup), nil
}

// run is the record of a backup that was created.
func (h *harness) run(name string) *enginev1alpha1.BackupRun {
	h.Helper()
	run, err := h.records.EngineV1alpha1().BackupRuns(system).Get(h.Context(), name, metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	return run
}

// calls counts the requests of a verb to the cluster.
func (h *harness) calls(verb string) int {
	n := 0
	for _, action := range h.records.Actions() {
		if action.GetVerb() == verb {
			n++
		}
	}
	return n
}

func newBackup(namespace, name string, includedNamespaces ...string) *v1alpha1.Backup {
	return &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.BackupSpec{IncludedNamespaces: includedNamespaces},
	}
}
