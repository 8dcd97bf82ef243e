// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	enginefake "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/fake"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
)

const system = "holdfast"

// harness is the storage of restores over a fake cluster of records.
type harness struct {
	*testing.T
	*REST
	records    *enginefake.Clientset
	publisher  *Publisher
	reads      int
	namespaces map[string]bool
	backups    []v1alpha1.Backup
	// held are the claims whose data a backup holds, by its name.
	held    map[string][]types.NamespacedName
	loading error
	// shut is a namespace that may use no location.
	shut string
	// may are the rights of jane, as "verb resource namespace".
	may map[string]bool
	// asked are the rights that were asked about.
	asked    []string
	warnings []string
	// planned are the runs that were planned, and unplannable fails that.
	planned     []*enginev1alpha1.RestoreRun
	unplannable error
}

// AddWarning implements warning.Recorder.
func (h *harness) AddWarning(_, text string) { h.warnings = append(h.warnings, text) }

// fakeBackups are those of a harness.
type fakeBackups struct {
	*virtual.ReadOnly
	h *harness
}

func (f fakeBackups) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	for i := range f.h.backups {
		if backup := &f.h.backups[i]; backup.Name == name && backup.Namespace == genericapirequest.NamespaceValue(ctx) {
			return backup.DeepCopy(), nil
		}
	}
	return nil, apierrors.NewNotFound(v1alpha1.Resource("backups"), name)
}

func (f fakeBackups) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	list := &v1alpha1.BackupList{}
	for _, backup := range f.h.backups {
		if backup.Namespace == genericapirequest.NamespaceValue(ctx) && options.LabelSelector.Matches(labels.Set(backup.Labels)) {
			list.Items = append(list.Items, backup)
		}
	}
	return list, nil
}

func newHarness(t *testing.T, may ...string) *harness {
	t.Helper()
	scheme := runtime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	h := &harness{T: t, records: enginefake.NewSimpleClientset(), namespaces: map[string]bool{system: true, "shop": true, "blog": true, "copy": true}, may: map[string]bool{}}
	for _, right := range may {
		h.may[right] = true
	}
	// The tracker gives no uid, and knows nothing of dry runs.
	h.records.PrependReactor("create", "restoreruns", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create := action.(clienttesting.CreateActionImpl)
		run := create.GetObject().(*enginev1alpha1.RestoreRun)
		run.UID, run.CreationTimestamp, run.ResourceVersion = types.UID("uid-of-"+run.Name), metav1.Unix(1, 0), "7"
		return len(create.CreateOptions.DryRun) > 0, run, nil
	})
	publisher, err := NewPublisher(system, enginefactory.NewSharedInformerFactory(h.records, 0).Engine().V1alpha1().RestoreRuns().Informer(),
		informers.NewSharedInformerFactory(kubefake.NewClientset(), 0).Core().V1().Namespaces().Informer(), nil, func(context.Context) { h.reads++ })
	if err != nil {
		t.Fatal(err)
	}
	publisher.Log.SetReady()
	h.publisher = publisher
	storage, err := NewREST(Config{
		Scheme:          scheme,
		SystemNamespace: system,
		Publisher:       publisher,
		Runs:            h.records.EngineV1alpha1().RestoreRuns(system),
		Backups:         fakeBackups{h: h},
		BackupsReady:    func() error { return h.loading },
		HeldClaims:      func(_, name string) []types.NamespacedName { return h.held[name] },
		NamespaceUID: func(_ context.Context, name string) (types.UID, error) {
			if !h.namespaces[name] {
				return "", apierrors.NewNotFound(corev1.Resource("namespaces"), name)
			}
			return types.UID("uid-of-" + name), nil
		},
		MayUse: func(_ context.Context, _, namespace string) error {
			if namespace == h.shut {
				return fmt.Errorf("%w: ask", location.ErrNotAllowed)
			}
			return nil
		},
		Authorizer: authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			right := strings.TrimSpace(a.GetVerb() + " " + strings.TrimSuffix(a.GetResource()+"/"+a.GetSubresource(), "/") + " " + a.GetNamespace())
			h.asked = append(h.asked, right)
			if a.GetUser().GetName() == "jane" && a.IsResourceRequest() && h.may[right] {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "no role allows it", nil
		}),
		Limits: Limits{Unfinished: 3, UnfinishedInSystem: 50},
		Plan: func(_ context.Context, run *enginev1alpha1.RestoreRun) (*v1alpha1.RestorePlan, error) {
			h.planned = append(h.planned, run)
			return &v1alpha1.RestorePlan{Complete: true, TotalItems: 7}, h.unplannable
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	h.REST = storage
	return h
}

// ctx is that of a request of jane's in a namespace.
func (h *harness) ctx(namespace string) context.Context {
	ctx := genericapirequest.WithNamespace(h.Context(), namespace)
	ctx = warning.WithWarningRecorder(ctx, h)
	return genericapirequest.WithUser(ctx, &user.DefaultInfo{Name: "jane", UID: "uid-of-jane", Groups: []string{"team"}, Extra: map[string][]string{"scopes": {"a"}}})
}

func (h *harness) create(namespace, name string, spec v1alpha1.RestoreSpec, dryRun ...string) (*v1alpha1.Restore, error) {
	h.Helper()
	restore := &v1alpha1.Restore{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}
	created, err := h.Create(h.ctx(namespace), restore, nil, &metav1.CreateOptions{DryRun: dryRun})
	if err != nil {
		return nil, err
	}
	return created.(*v1alpha1.Restore), nil
}

func (h *harness) run(name string) *enginev1alpha1.RestoreRun {
	h.Helper()
	run, err := h.records.EngineV1alpha1().RestoreRuns(system).Get(h.Context(), name, metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	return run
}

// stored puts a good backup of this cluster's into the catalogue, younger than those before.
func (h *harness) stored(namespace, name string, included ...string) *v1alpha1.Backup {
	at := metav1.Unix(int64(1000+len(h.backups)), 0)
	h.backups = append(h.backups, v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-of-backup-" + name), CreationTimestamp: at},
		Spec:       v1alpha1.BackupSpec{IncludedNamespaces: included, StorageLocation: "default"},
		Status: v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &at,
			Origin: &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustOwn}},
	})
	return &h.backups[len(h.backups)-1]
}

func TestCreateRecordsTheRequestTheBackupAndWhoMadeIt(t *testing.T) {
	h := newHarness(t, "get backups shop")
	h.stored("shop", "daily", "shop")
	created, err := h.create("shop", "back", v1alpha1.RestoreSpec{BackupName: "daily"})
	if err != nil {
		t.Fatal(err)
	}
	want := enginev1alpha1.RestoreRunSpec{
		RestoreRef:   v1alpha1.BackupReference{Namespace: "shop", Name: "back"},
		NamespaceUID: "uid-of-shop",
		Requester:    enginev1alpha1.Requester{Username: "jane", UID: "uid-of-jane", Groups: []string{"team"}, Extra: map[string][]string{"scopes": {"a"}}},
		Backup: enginev1alpha1.RestoreSource{
			RestoredBackup: v1alpha1.RestoredBackup{Namespace: "shop", Name: "daily", UID: "uid-of-backup-daily", StorageLocation: "default"},
			StoreName:      "shop.daily",
		},
		Restore: v1alpha1.RestoreSpec{
			BackupName: "daily", BackupNamespace: "shop", ExistingResourcePolicy: "none", ExistingVolumePolicy: "none",
			PreserveNodePorts: new(false), RestorePVs: new(true),
		},
		TargetNamespaces: []string{"shop"},
	}
	if got := h.run("shop.back").Spec; !reflect.DeepEqual(got, want) {
		t.Errorf("recorded %+v\nwant     %+v", got, want)
	}
	if created.UID != "uid-of-shop.back" || created.Status.Phase != "New" || created.Status.Requester != "jane" || created.Status.Backup.Name != "daily" || created.ResourceVersion == "" {
		t.Errorf("answered %+v", created)
	}
	if want := []string{"get backups shop"}; !slices.Equal(h.asked, want) {
		t.Errorf("asked for the rights %q, not %q", h.asked, want)
	}
	if _, err := h.create("shop", "back", v1alpha1.RestoreSpec{BackupName: "daily"}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("the same again: %v", err)
	}
	h.shut = "shop"
	if _, err := h.create("shop", "shut", v1alpha1.RestoreSpec{BackupName: "daily"}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.backupName") {
		t.Errorf("from a location that is not for it: %v", err)
	}
	h.shut = ""
	// A dry run does all of it, and writes nothing.
	dry, err := h.create("shop", "again", v1alpha1.RestoreSpec{BackupName: "daily"}, metav1.DryRunAll)
	if err != nil || dry.Status.Backup == nil || dry.Status.Backup.UID != "uid-of-backup-daily" {
		t.Errorf("the dry run: %+v, %v", dry, err)
	}
	if _, shown := h.publisher.Log.GetObject("shop", "again"); shown {
		t.Error("the dry run is shown")
	}
	if _, err := h.create("shop", "again", v1alpha1.RestoreSpec{BackupName: "other"}, metav1.DryRunAll); !apierrors.IsInvalid(err) {
		t.Errorf("the dry run of what can't be: %v", err)
	}
}

// TestNamesOfALostNamespace: in a namespace that was made anew, a name that its predecessor's
// restore had is free, as a get says, once that restore has ended and can be listed without its
// record.
func TestNamesOfALostNamespace(t *testing.T) {
	begun := metav1.Unix(1, 0)
	ended := enginev1alpha1.RestoreRunStatus{Phase: "Completed", Stored: true, StartTimestamp: &begun}
	for name, c := range map[string]struct {
		namespaceUID types.UID
		successions  identity.Successions
		status       enginev1alpha1.RestoreRunStatus
		free         bool
	}{
		"ended":                 {namespaceUID: "lost", status: ended, free: true},
		"never begun":           {namespaceUID: "lost", status: enginev1alpha1.RestoreRunStatus{Phase: "Cancelled"}, free: true},
		"not ended":             {namespaceUID: "lost", status: enginev1alpha1.RestoreRunStatus{Phase: "InProgress", StartTimestamp: &begun}},
		"not stored":            {namespaceUID: "lost", status: enginev1alpha1.RestoreRunStatus{Phase: "Completed", StartTimestamp: &begun}},
		"of this namespace":     {namespaceUID: "uid-of-shop", status: ended},
		"of its predecessor":    {namespaceUID: "lost", successions: identity.Successions{"shop": {{"lost", "uid-of-shop"}}}, status: ended},
		"nobody knows of which": {status: ended},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, "get backups shop")
			h.stored("shop", "daily", "shop")
			h.publisher.setNamespace(namespace("shop", "uid-of-shop"), true)
			h.publisher.SetSuccessions(c.successions)
			old := record(1, c.namespaceUID, c.status)
			if err := h.records.Tracker().Add(old); err != nil {
				t.Fatal(err)
			}
			h.publisher.Observe(old)
			if _, err := h.create("shop", "back", v1alpha1.RestoreSpec{BackupName: "daily"}, metav1.DryRunAll); c.free && err != nil {
				t.Errorf("a dry run: %v", err)
			}
			if got := h.run("shop.back").Spec.NamespaceUID; got != c.namespaceUID {
				t.Fatalf("after the dry run the record is of %q", got)
			}
			_, err := h.create("shop", "back", v1alpha1.RestoreSpec{BackupName: "daily"})
			if c.free && err != nil || !c.free && !apierrors.IsAlreadyExists(err) {
				t.Fatalf("answered %v", err)
			}
			want := c.namespaceUID
			if c.free {
				want = "uid-of-shop"
			}
			if got := h.run("shop.back").Spec.NamespaceUID; got != want {
				t.Errorf("the record is of %q, want %q", got, want)
			}
		})
	}
}

// TestWhatIsAskedFor: which namespaces a restore of a backup touches, what its creator
// needs for it, and what is refused, with the field that says so.
func TestWhatIsAskedFor(t *testing.T) {
	all := []string{"get backups shop", "create restores blog", "create restores copy", "create restores gone", "get secrets shop", "get secrets blog"}
	type spec = v1alpha1.RestoreSpec
	names := func(n ...string) []string { return n }
	object := func(resource, namespace string) []v1alpha1.RestoreObject {
		return []v1alpha1.RestoreObject{{Resource: resource, Namespace: namespace, Name: "x"}}
	}
	for name, c := range map[string]struct {
		// of is the namespace of the restore and its backup.
		of string
		// held are the backup's namespaces.
		held   []string
		backup func(*v1alpha1.BackupSpec)
		spec   spec
		may    []string
		// targets are those of the record; else the answer has an error with the field.
		targets       []string
		clusterScoped bool
		asked         []string
		refused       string
		field         string
		says          string
	}{
		"a tenant's own namespace":               {of: "shop", held: names("shop"), may: all, targets: names("shop"), asked: names("get backups shop")},
		"a backup that may not be read":          {of: "shop", held: names("shop"), refused: "Forbidden", field: "spec.backupName", says: "may not get backups"},
		"all that a backup holds":                {of: "shop", held: names("shop", "blog"), may: all, targets: names("blog", "shop"), asked: names("get backups shop", "create restores blog")},
		"all that a backup holds, without right": {of: "shop", held: names("shop", "blog"), may: names("get backups shop"), refused: "Forbidden", field: "spec.includedNamespaces", says: `may not create restores.holdfast.io in namespace "blog"`},
		"a part of a backup":                     {of: "shop", held: names("shop", "blog"), spec: spec{IncludedNamespaces: names("shop")}, may: names("get backups shop"), targets: names("shop")},
		"what is left out needs no right":        {of: "shop", held: names("shop", "blog"), spec: spec{ExcludedNamespaces: names("bl*")}, may: names("get backups shop"), targets: names("shop")},
		"what the backup does not hold":          {of: "shop", held: names("shop"), spec: spec{IncludedNamespaces: names("blog")}, may: all, refused: "Invalid", field: "spec.includedNamespaces", says: "is not in the backup"},
		"nothing":                                {of: "shop", held: names("shop"), spec: spec{IncludedNamespaces: names("b*")}, may: all, refused: "Invalid", field: "spec.includedNamespaces", says: "selects nothing"},
		"into another namespace":                 {of: "shop", held: names("shop"), spec: spec{NamespaceMapping: map[string]string{"shop": "copy"}}, may: all, targets: names("copy"), asked: names("get backups shop", "create restores copy", "get secrets shop")},
		"into one without right":                 {of: "shop", held: names("shop"), spec: spec{NamespaceMapping: map[string]string{"shop": "copy"}}, may: names("get backups shop", "get secrets shop"), refused: "Forbidden", field: "spec.namespaceMapping", says: `in namespace "copy"`},
		"into another one, without secrets":      {of: "shop", held: names("shop"), spec: spec{NamespaceMapping: map[string]string{"shop": "copy"}}, may: names("get backups shop", "create restores copy"), refused: "Forbidden", field: "spec.namespaceMapping", says: `may not get secrets in namespace "shop"`},
		"into one that is not there":             {of: "shop", held: names("shop"), spec: spec{NamespaceMapping: map[string]string{"shop": "gone"}}, may: all, refused: "Invalid", field: "spec.namespaceMapping[shop]", says: "create it first"},
		"from one that is not restored":          {of: "shop", held: names("shop"), spec: spec{NamespaceMapping: map[string]string{"blog": "copy"}}, may: all, refused: "Invalid", field: "spec.namespaceMapping[blog]"},
		"into one that is restored too":          {of: "shop", held: names("shop", "blog"), spec: spec{NamespaceMapping: map[string]string{"shop": "blog"}}, may: all, refused: "Invalid", field: "spec.namespaceMapping[shop]"},
		"the two exchanged":                      {of: "shop", held: names("shop", "blog"), spec: spec{NamespaceMapping: map[string]string{"shop": "blog", "blog": "shop"}}, may: all, targets: names("blog", "shop")},
		"another one's backup":                   {of: "shop", held: names("shop"), spec: spec{BackupNamespace: "blog"}, may: all, refused: "Invalid", field: "spec.backupNamespace"},
		"an object":                              {of: "shop", held: names("shop", "blog"), spec: spec{Objects: object("configmaps", "shop")}, may: names("get backups shop"), targets: names("shop")},
		"an object of elsewhere":                 {of: "shop", held: names("shop"), spec: spec{Objects: object("configmaps", "blog")}, may: all, refused: "Invalid", field: "spec.objects[0].namespace", says: "is not in the backup"},
		"an object of the cluster":               {of: "shop", held: names("shop"), spec: spec{Objects: object("clusterroles", "")}, may: all, refused: "Forbidden", field: "spec.objects", says: "in all namespaces"},
		"a backup of patterns":                   {of: "shop", held: names("sh*"), may: all, refused: "Forbidden", field: "spec.includedNamespaces", says: "in all namespaces"},
		"a name out of a backup of patterns":     {of: "shop", held: names("sh*"), spec: spec{IncludedNamespaces: names("shop")}, may: names("get backups shop"), targets: names("shop")},
		"cluster-scoped objects":                 {of: "shop", held: names("shop"), backup: func(b *v1alpha1.BackupSpec) { b.IncludeClusterResources = new(true) }, spec: spec{IncludeClusterResources: new(true)}, may: all, refused: "Forbidden", field: "spec.includeClusterResources"},
		"none of them":                           {of: "shop", held: names("shop"), backup: func(b *v1alpha1.BackupSpec) { b.IncludeClusterResources = new(true) }, spec: spec{IncludeClusterResources: new(false)}, may: names("get backups shop"), targets: names("shop")},

		"an administrator":                  {of: system, held: names("shop", "blog"), targets: names("blog", "shop")},
		"an administrator, everything":      {of: system, clusterScoped: true},
		"an administrator, into a new one":  {of: system, held: names("shop"), spec: spec{NamespaceMapping: map[string]string{"shop": "gone"}}, targets: names("gone")},
		"an administrator, by name":         {of: system, spec: spec{IncludedNamespaces: names("shop")}, targets: names("shop")},
		"an administrator, with what it is": {of: system, spec: spec{IncludedNamespaces: names("shop"), IncludeClusterResources: new(true)}, targets: names("shop"), clusterScoped: true},
		"into Holdfast's own":               {of: system, held: names("shop"), spec: spec{NamespaceMapping: map[string]string{"shop": "holdfast-locations"}}, refused: "Invalid", says: "Holdfast's own"},
		"Holdfast's own":                    {of: system, spec: spec{IncludedNamespaces: names(system)}, refused: "Invalid", says: "Holdfast's own"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, c.may...)
			backup := h.stored(c.of, "daily", c.held...)
			if c.backup != nil {
				c.backup(&backup.Spec)
			}
			c.spec.BackupName = "daily"
			_, err := h.create(c.of, "back", c.spec)
			if c.asked != nil && !slices.Equal(h.asked, c.asked) {
				t.Errorf("asked for the rights %q, not %q", h.asked, c.asked)
			}
			if c.of == system && len(h.asked) > 0 {
				t.Errorf("an administrator needs the rights %q", h.asked)
			}
			if c.refused == "" {
				if err != nil {
					t.Fatal(err)
				}
				record := "back"
				if c.of != system {
					record = c.of + ".back"
				}
				if got := h.run(record).Spec; !slices.Equal(got.TargetNamespaces, c.targets) || got.ClusterScoped != c.clusterScoped {
					t.Errorf("it writes to %q, cluster-scoped %t; not %q, %t", got.TargetNamespaces, got.ClusterScoped, c.targets, c.clusterScoped)
				}
				return
			}
			expect(t, err, c.refused, c.field, c.says)
			if len(h.records.Actions()) > 0 {
				t.Errorf("there were the requests %v", h.records.Actions())
			}
		})
	}
}

// expect checks an error's reason, the fields of its causes, and its text.
func expect(t *testing.T, err error, reason, field, says string) {
	t.Helper()
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || string(status.ErrStatus.Reason) != reason {
		t.Fatalf("answered %v, not that it is %s", err, reason)
	}
	var fields []string
	for _, cause := range status.ErrStatus.Details.Causes {
		fields = append(fields, cause.Field)
	}
	if field != "" && !slices.Contains(fields, field) || !strings.Contains(err.Error(), says) {
		t.Errorf("answered %v about %q; want %q and %q", err, fields, field, says)
	}
	if status.ErrStatus.Details.Name != "back" || !strings.Contains(status.ErrStatus.Message, "estore") {
		t.Errorf("it is about %+v", status.ErrStatus.Details)
	}
}

func TestWhichBackups(t *testing.T) {
	trust := func(trust v1alpha1.BackupTrust) func(*v1alpha1.Backup) {
		return func(b *v1alpha1.Backup) {
			b.Status.Origin = &v1alpha1.BackupOrigin{Trust: trust, Message: "nobody knows who made it"}
		}
	}
	phase := func(phase v1alpha1.BackupPhase) func(*v1alpha1.Backup) {
		return func(b *v1alpha1.Backup) { b.Status.Phase, b.Status.Errors = phase, 3 }
	}
	for name, c := range map[string]struct {
		of     string
		change func(*v1alpha1.Backup)
		says   string
		warns  string
	}{
		"running":                    {"shop", phase("InProgress"), "wait for its end", ""},
		"failed":                     {"shop", phase("Failed"), "holds nothing that could be restored", ""},
		"cancelled":                  {"shop", phase("Cancelled"), "holds nothing that could be restored", ""},
		"deleted":                    {"shop", phase("Deleting"), "is being deleted", ""},
		"unreadable":                 {system, phase("Unreadable"), "can't be read", ""},
		"partly":                     {"shop", phase("PartiallyFailed"), "", "its 3 errors"},
		"forged":                     {system, trust("Forged"), "is forged: nobody knows who made it", ""},
		"of a key that is not known": {system, trust("UnknownKey"), "is of nobody who is known: nobody knows who made it", ""},
		"foreign":                    {system, trust("Foreign"), "", "nobody vouches for"},
		"foreign, and partly": {system, func(b *v1alpha1.Backup) {
			trust("Foreign")(b)
			phase("PartiallyFailed")(b)
		}, "", "nobody knows who made it\nspec.backupName: the backup \"daily\" is PartiallyFailed: it lacks what its 3 errors are about"},
		"foreign, for a tenant":    {"shop", trust("Foreign"), "is of an unknown origin", ""},
		"of a cluster that counts": {"shop", trust("Trusted"), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, "get backups shop")
			c.change(h.stored(c.of, "daily", "shop"))
			_, err := h.create(c.of, "back", v1alpha1.RestoreSpec{BackupName: "daily"})
			if c.says != "" {
				expect(t, err, "Invalid", "spec.backupName", c.says)
			} else if err != nil {
				t.Error(err)
			}
			if got := strings.Join(h.warnings, "\n"); !strings.Contains(got, c.warns) || c.warns == "" && got != "" {
				t.Errorf("warned %q, not %q", got, c.warns)
			}
		})
	}
	// Only an administrator may ask for a poll, and only there do strangers' backups lie.
	for of, says := range map[string]bool{system: true, "shop": false} {
		h := newHarness(t, "get backups shop")
		_, err := h.create(of, "back", v1alpha1.RestoreSpec{BackupName: "just-made"})
		expect(t, err, "Invalid", "spec.backupName", "no such Backup")
		if got := strings.Contains(err.Error(), "SyncRequest"); got != says {
			t.Errorf("in %s it names the SyncRequest: %t: %v", of, got, err)
		}
	}
	t.Run("one of several of a name", func(t *testing.T) {
		h := newHarness(t)
		h.stored(system, "daily@other", "shop").Spec.StorageLocation = "other"
		if _, err := h.create(system, "back", v1alpha1.RestoreSpec{BackupName: "daily@other"}); err != nil {
			t.Fatal(err)
		}
		if got := h.run("back").Spec.Backup; got.StoreName != "daily" || got.StorageLocation != "other" {
			t.Errorf("recorded %+v", got)
		}
	})
}

func TestTheNewestBackupThatHoldsWhatIsAskedFor(t *testing.T) {
	type spec = v1alpha1.RestoreSpec
	h := newHarness(t)
	h.stored(system, "a-all")
	h.stored(system, "b-shop", "shop").Labels = map[string]string{v1alpha1.LabelScheduleName: "nightly"}
	h.stored(system, "c-both", "shop", "blog").Labels = map[string]string{v1alpha1.LabelScheduleName: "nightly"}
	h.stored(system, "d-configs", "shop").Spec.IncludedResources = []string{"configmaps"}
	h.stored(system, "e-labels", "shop").Spec.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	h.stored(system, "f-failed", "shop").Status.Phase = v1alpha1.BackupPhaseFailed
	h.stored(system, "g-foreign", "shop").Status.Origin.Trust = v1alpha1.BackupTrustForeign
	h.stored(system, "h-forged", "shop").Status.Origin.Trust = v1alpha1.BackupTrustForged
	unknown := h.stored(system, "h-unknown", "shop")
	unknown.Labels, unknown.Status.Origin.Trust = map[string]string{v1alpha1.LabelScheduleName: "unknown"}, v1alpha1.BackupTrustUnknownKey
	h.stored(system, "i-wiki", "wiki").Status.Volumes = &v1alpha1.BackupVolumesProgress{Total: 1, Completed: 1}
	h.stored("shop", "z-elsewhere", "shop")
	for name, c := range map[string]struct {
		spec spec
		want string
		says string
	}{
		"anything":                   {spec{}, "i-wiki", ""},
		"a namespace":                {spec{IncludedNamespaces: []string{"shop"}}, "c-both", ""},
		"two":                        {spec{IncludedNamespaces: []string{"shop", "blog"}}, "c-both", ""},
		"one that only all has":      {spec{IncludedNamespaces: []string{"forum"}}, "a-all", ""},
		"a resource":                 {spec{IncludedNamespaces: []string{"shop"}, IncludedResources: []string{"configmaps"}}, "d-configs", ""},
		"two resources":              {spec{IncludedNamespaces: []string{"shop"}, IncludedResources: []string{"configmaps", "secrets"}}, "c-both", ""},
		"an object":                  {spec{Objects: []v1alpha1.RestoreObject{{Resource: "secrets", Namespace: "blog", Name: "x"}}}, "c-both", ""},
		"volumes":                    {spec{VolumesOnly: true}, "i-wiki", ""},
		"of a schedule":              {spec{ScheduleName: "nightly", IncludedNamespaces: []string{"shop"}}, "c-both", ""},
		"of a key that is not known": {spec{IncludedNamespaces: []string{"nowhere"}, ScheduleName: "unknown"}, "", "; 1 more are signed with keys that are not known here"},
		"of no schedule":             {spec{ScheduleName: "hourly"}, "", `no good backup of the schedule "hourly"`},
		"more than any has":          {spec{ScheduleName: "nightly", IncludedNamespaces: []string{"wiki"}}, "", "(2 hold less)"},
		"of elsewhere":               {spec{BackupNamespace: "shop"}, "z-elsewhere", ""},
		"of nowhere":                 {spec{BackupNamespace: "blog"}, "", `no good backup in namespace "blog"`},
	} {
		t.Run(name, func(t *testing.T) {
			created, err := h.create(system, "back", c.spec, metav1.DryRunAll)
			if c.says != "" {
				field := "spec.backupName"
				if c.spec.ScheduleName != "" {
					field = "spec.scheduleName"
				}
				expect(t, err, "Invalid", field, c.says)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := created.Status.Backup.Name; got != c.want {
				t.Errorf("found %s, not %s", got, c.want)
			}
		})
	}
	damage := []metav1.Condition{{Type: v1alpha1.ConditionVolumesDamaged, Status: metav1.ConditionTrue, Message: "1 of its volumes"}}
	h.stored(system, "j-damaged", "shop").Status.Conditions = damage
	h.stored("blog", "a-damaged", "blog").Status.Conditions = damage
	for want, spec := range map[string]spec{
		"c-both":    {IncludedNamespaces: []string{"shop"}}, // which is whole
		"a-damaged": {BackupNamespace: "blog"},              // since there is no other one
	} {
		if created, err := h.create(system, "back", spec, metav1.DryRunAll); err != nil || created.Status.Backup.Name != want {
			t.Errorf("beside damaged ones it finds %+v, %v, not %s", created, err, want)
		}
	}
	h.loading = errors.New("some stores have not been read")
	if _, err := h.create(system, "back", spec{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("while stores are read: %v", err)
	}
	if _, err := h.create(system, "back", spec{BackupName: "a-all"}); err != nil {
		t.Errorf("by name: %v", err)
	}
}

func TestLimits(t *testing.T) {
	h := newHarness(t, "get backups shop")
	h.stored("shop", "daily", "shop")
	for i := range 3 {
		if _, err := h.create("shop", fmt.Sprint("back-", i), v1alpha1.RestoreSpec{BackupName: "daily"}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := h.create("shop", "one-more", v1alpha1.RestoreSpec{BackupName: "daily"})
	status, _ := errors.AsType[*apierrors.StatusError](err)
	if !apierrors.IsForbidden(err) || status.ErrStatus.Details.Causes[0].Type != CauseTooManyRestores {
		t.Fatalf("one more: %v", err)
	}
	ended := h.run("shop.back-1").DeepCopy()
	ended.ResourceVersion, ended.Status.Phase = "8", v1alpha1.RestorePhaseFailed
	h.publisher.Observe(ended)
	if _, err := h.create("shop", "one-more", v1alpha1.RestoreSpec{BackupName: "daily"}); err != nil {
		t.Errorf("when one has ended: %v", err)
	}
}

func TestCancel(t *testing.T) {
	h := newHarness(t, "get backups shop")
	h.stored("shop", "daily", "shop")
	if _, err := h.create("shop", "back", v1alpha1.RestoreSpec{BackupName: "daily"}); err != nil {
		t.Fatal(err)
	}
	clock := fixedClock(time.Unix(2000, 0))
	storage := NewCancelREST(h.REST, clock)
	ask := func() (string, error) {
		answer, err := storage.Create(h.ctx("shop"), "back", storage.New(), nil, &metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
		return answer.(*metav1.Status).Message, nil
	}
	if message, err := ask(); err != nil || !strings.Contains(message, "is asked to stop") {
		t.Fatalf("%q, %v", message, err)
	}
	if by := h.run("shop.back").Spec.Cancellation; by == nil || by.Requester.Username != "jane" || !by.Timestamp.Time.Equal(clock.Now()) {
		t.Errorf("recorded %+v", by)
	}
	if message, err := ask(); err != nil || !strings.Contains(message, "nothing to do: jane asked") {
		t.Errorf("again: %q, %v", message, err)
	}
	ended := h.run("shop.back")
	ended.Status.Phase = v1alpha1.RestorePhaseCompleted
	if _, err := h.records.EngineV1alpha1().RestoreRuns(system).Update(h.Context(), ended, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(); apierrors.ReasonForError(err) != StatusReasonRestoreState || !strings.Contains(err.Error(), "it has ended already, as Completed") {
		t.Errorf("when it has ended: %v", err)
	}
}

type fixedClock time.Time

func (c fixedClock) Now() time.Time                  { return time.Time(c) }
func (c fixedClock) Since(t time.Time) time.Duration { return time.Time(c).Sub(t) }
