// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
)

func TestCreateRecordsTheRequestAndWhoMadeIt(t *testing.T) {
	h := newHarness(t, nil, locationOf("default", true, metav1.ConditionTrue))
	asked := newBackup("shop", "daily")
	asked.Labels, asked.Annotations = map[string]string{"app": "shop"}, map[string]string{"note": "mine"}
	asked.Status = v1alpha1.BackupStatus{Phase: "Completed", Requester: "root"}
	created, err := h.create(asked)
	if err != nil {
		t.Fatal(err)
	}
	run := h.run("shop.daily")
	want := enginev1alpha1.BackupRunSpec{
		BackupRef:    v1alpha1.BackupReference{Namespace: "shop", Name: "daily"},
		NamespaceUID: "uid-of-shop",
		Labels:       map[string]string{"app": "shop"},
		Annotations:  map[string]string{"note": "mine"},
		Requester:    enginev1alpha1.Requester{Username: "jane", UID: "uid-of-jane", Groups: []string{"team", "system:authenticated"}},
		Backup: v1alpha1.BackupSpec{
			IncludedNamespaces: []string{"shop"},
			TTL:                v1alpha1.Duration{Duration: 720 * time.Hour},
			StorageLocation:    "default",
		},
	}
	if !reflect.DeepEqual(run.Spec, want) {
		t.Errorf("the record is %+v\nwant %+v", run.Spec, want)
	}
	if !reflect.DeepEqual(run.Status, enginev1alpha1.BackupRunStatus{}) {
		t.Errorf("the record has a status: %+v", run.Status)
	}
	if created.UID != "uid-of-shop.daily" || created.Status.Phase != "New" || created.Status.Requester != "jane" || created.ResourceVersion == "" {
		t.Errorf("created: %+v", created)
	}
	if len(h.asked) != 0 {
		t.Errorf("rights in %q were asked for", h.asked)
	}
	// A GET finds it, without asking the cluster.
	if got, err := h.Get(h.ctx("shop"), "daily", &metav1.GetOptions{}); err != nil || got.(*v1alpha1.Backup).UID != created.UID {
		t.Errorf("Get: %v, %v", got, err)
	}
	if h.calls("get") != 1 { // by this test
		t.Errorf("%d reads of records", h.calls("get"))
	}
}

// TestTimeoutsOfSnapshots: limits are recorded where they have an effect, and defaults are left out.
func TestTimeoutsOfSnapshots(t *testing.T) {
	for _, test := range []struct {
		on        bool
		set, want time.Duration
	}{
		{true, 10 * time.Minute, 0}, {true, time.Hour, time.Hour}, {false, time.Hour, 0},
	} {
		backup := newBackup(system, "x")
		backup.Spec.CSISnapshotTimeout.Duration = test.set
		(&kind{options: validation.Options{Snapshots: test.on}}).Canonicalize(backup)
		if got := backup.Spec.CSISnapshotTimeout.Duration; got != test.want {
			t.Errorf("%+v: recorded is %s", test, got)
		}
	}
}

// TestAppliedAgain: a backup whose timeouts were recorded while snapshots were on is applied unchanged later.
func TestAppliedAgain(t *testing.T) {
	h := newHarness(t, nil, locationOf("b", true, metav1.ConditionTrue))
	of := h.Kind.(*kind)
	of.options.Snapshots = true
	asked := newBackup(system, "x")
	asked.Spec.CSISnapshotTimeout.Duration = time.Hour
	if _, err := h.create(asked.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	of.options.Snapshots = false
	if _, _, err := h.Update(h.ctx(system), "x", rest.DefaultUpdatedObjectInfo(asked), nil, nil, false, &metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
}

func TestDefaults(t *testing.T) {
	locations := []*enginev1alpha1.StorageLocation{
		locationOf("b", true, metav1.ConditionTrue), locationOf("a", false, metav1.ConditionTrue), locationOf("c", true, metav1.ConditionTrue),
	}
	cases := map[string]struct {
		backup *v1alpha1.Backup
		change func(*v1alpha1.BackupSpec)
		want   v1alpha1.BackupSpec
	}{
		"of the system namespace": {
			backup: newBackup(system, "x"),
			want:   v1alpha1.BackupSpec{TTL: v1alpha1.Duration{Duration: DefaultTTL}, StorageLocation: "b"},
		},
		"of another one": {
			backup: newBackup("shop", "x"),
			want:   v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, TTL: v1alpha1.Duration{Duration: DefaultTTL}, StorageLocation: "b"},
		},
		"what Velero fills in": {
			backup: newBackup(system, "x"),
			change: func(spec *v1alpha1.BackupSpec) {
				spec.Metadata.Labels, spec.CSISnapshotTimeout.Duration, spec.VolumeGroupSnapshotLabelKey = map[string]string{"a": "b"}, time.Hour, "velero.io/volume-group"
				spec.VolumeSnapshotLocations = []string{"default"}
			},
			want: v1alpha1.BackupSpec{TTL: v1alpha1.Duration{Duration: DefaultTTL}, StorageLocation: "b"},
		},
		"what is set stays": {
			backup: newBackup(system, "x", "shop"),
			change: func(spec *v1alpha1.BackupSpec) {
				spec.TTL, spec.StorageLocation = v1alpha1.Duration{Duration: time.Hour}, "a"
			},
			want: v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, TTL: v1alpha1.Duration{Duration: time.Hour}, StorageLocation: "a"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil, locations...)
			if c.change != nil {
				c.change(&c.backup.Spec)
			}
			created, err := h.create(c.backup)
			if err != nil {
				t.Fatal(err)
			}
			record := "x"
			if c.backup.Namespace != system {
				record = c.backup.Namespace + ".x"
			}
			if got := h.run(record).Spec.Backup; !reflect.DeepEqual(got, c.want) {
				t.Errorf("recorded %+v\nwant     %+v", got, c.want)
			}
			if created.Spec.StorageLocation != c.want.StorageLocation {
				t.Errorf("answered %+v", created.Spec)
			}
		})
	}
}

func TestTakenNames(t *testing.T) {
	expect := func(t *testing.T, err error) {
		t.Helper()
		if !apierrors.IsAlreadyExists(err) {
			t.Fatalf("answered %v", err)
		}
		status, _ := errors.AsType[*apierrors.StatusError](err)
		if causes := status.Status().Details.Causes; len(causes) != 1 || causes[0].Field != "metadata.name" {
			t.Errorf("causes: %v", causes)
		}
	}
	t.Run("by one that is shown", func(t *testing.T) {
		h := newHarness(t, nil, locationOf("default", true, metav1.ConditionTrue))
		if _, err := h.log.Apply(&v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "daily", UID: "stored", CreationTimestamp: metav1.Unix(1, 0)}}); err != nil {
			t.Fatal(err)
		}
		_, err := h.create(newBackup("shop", "daily"))
		expect(t, err)
		if h.calls("create") != 0 {
			t.Error("it was recorded all the same")
		}
	})
	t.Run("by a record of another server", func(t *testing.T) {
		h := newHarness(t, nil, locationOf("default", true, metav1.ConditionTrue))
		if err := h.records.Tracker().Add(record("shop", "daily")); err != nil {
			t.Fatal(err)
		}
		_, err := h.create(newBackup("shop", "daily"))
		expect(t, err)
	})
	t.Run("in another namespace", func(t *testing.T) {
		h := newHarness(t, nil, locationOf("default", true, metav1.ConditionTrue))
		for _, namespace := range []string{"shop", "web", system} {
			if _, err := h.create(newBackup(namespace, "daily")); err != nil {
				t.Errorf("in %s: %v", namespace, err)
			}
		}
	})
}

// record is the record of a backup, as another server has created it.
func record(namespace, name string) *enginev1alpha1.BackupRun {
	return &enginev1alpha1.BackupRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: namespace + "." + name, UID: "theirs", CreationTimestamp: metav1.Unix(1, 0), ResourceVersion: "7"},
		Spec:       enginev1alpha1.BackupRunSpec{BackupRef: v1alpha1.BackupReference{Namespace: namespace, Name: name}},
	}
}

func TestBadInputNamesItsField(t *testing.T) {
	yes := true
	cases := map[string]struct {
		backup *v1alpha1.Backup
		fields []string
	}{
		"an unknown location": {with(newBackup("shop", "x"), func(spec *v1alpha1.BackupSpec) { spec.StorageLocation = "gone" }), []string{"spec.storageLocation"}},
		"a bad pattern":       {newBackup("shop", "x", "shop", "a["), []string{"spec.includedNamespaces[1]"}},
		"a bad name":          {newBackup("shop", "a.b"), []string{"metadata.name"}},
		"no name":             {newBackup("shop", ""), []string{"metadata.name"}},
		"a negative ttl":      {with(newBackup("shop", "x"), func(spec *v1alpha1.BackupSpec) { spec.TTL.Duration = -1 }), []string{"spec.ttl"}},
		"two of them": {with(newBackup("shop", "x", "a["), func(spec *v1alpha1.BackupSpec) { spec.SnapshotVolumes = &yes }),
			[]string{"spec.includedNamespaces[0]", "spec.snapshotVolumes"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, map[string]bool{}, locationOf("default", true, metav1.ConditionTrue))
			_, err := h.create(c.backup)
			if !apierrors.IsInvalid(err) {
				t.Fatalf("answered %v", err)
			}
			var fields []string
			status, _ := errors.AsType[*apierrors.StatusError](err)
			for _, cause := range status.Status().Details.Causes {
				if !slices.Contains(fields, cause.Field) {
					fields = append(fields, cause.Field)
				}
			}
			if slices.Sort(fields); !slices.Equal(fields, c.fields) {
				t.Errorf("it names %q, want %q: %v", fields, c.fields, err)
			}
			if h.calls("create") != 0 {
				t.Error("it was recorded all the same")
			}
		})
	}
	t.Run("not for this namespace", func(t *testing.T) {
		h := newHarness(t, nil, locationOf("default", true, metav1.ConditionTrue), locationOf("other", false, metav1.ConditionTrue))
		h.shut = "shop"
		if _, err := h.create(newBackup("shop", "x")); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.storageLocation") || h.calls("create") != 0 {
			t.Errorf("answered %v", err)
		}
		named := newBackup("shop", "x")
		named.Spec.StorageLocation = "other"
		if _, err := h.create(named); err != nil {
			t.Error(err)
		}
	})
	t.Run("no default location", func(t *testing.T) {
		h := newHarness(t, nil, locationOf("other", false, metav1.ConditionTrue))
		if _, err := h.create(newBackup("shop", "x")); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.storageLocation") {
			t.Errorf("answered %v", err)
		}
	})
}

func TestADryRunWritesNothing(t *testing.T) {
	h := newHarness(t, map[string]bool{}, locationOf("default", true, metav1.ConditionTrue))
	created, err := h.create(newBackup("shop", "x"), metav1.DryRunAll)
	if err != nil {
		t.Fatal(err)
	}
	if created.Name != "x" || created.UID == "" || created.CreationTimestamp.IsZero() || created.Status.Phase != "New" ||
		created.Status.Requester != "jane" || created.Spec.StorageLocation != "default" {
		t.Errorf("answered %+v", created)
	}
	for _, action := range h.records.Actions() {
		if create, ok := action.(clienttesting.CreateActionImpl); ok && !slices.Equal(create.CreateOptions.DryRun, []string{metav1.DryRunAll}) {
			t.Errorf("recorded with %v", create.CreateOptions)
		}
	}
	if _, shown := h.log.GetObject("shop", "x"); shown || len(h.observed) != 0 {
		t.Error("it is shown")
	}
	// It is refused for what a real one is refused for.
	if _, err := h.create(newBackup("shop", "y", "db"), metav1.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("answered %v", err)
	}
}

func TestGeneratedNames(t *testing.T) {
	h := newHarness(t, nil, locationOf("default", true, metav1.ConditionTrue))
	asked := newBackup("shop", "")
	asked.GenerateName = "daily-"
	created, err := h.create(asked)
	if err != nil || !strings.HasPrefix(created.Name, "daily-") || len(created.Name) == len("daily-") {
		t.Fatalf("created %v, %v", created, err)
	}
	if h.run("shop."+created.Name).Spec.BackupRef.Name != created.Name {
		t.Error("the record has another name")
	}
}

// A generated name may be taken by chance. The creator has not chosen it, so another
// one is tried, with all checks.
func TestGeneratedNamesAreTriedAgain(t *testing.T) {
	h := newHarness(t, nil, locationOf("default", true, metav1.ConditionTrue))
	if err := h.records.Tracker().Add(record("shop", "daily-1")); err != nil {
		t.Fatal(err)
	}
	h.storedOnly(&v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "daily-0", UID: "1"}})
	generated := &counting{}
	h.kind.NameGenerator = generated
	asked := newBackup("shop", "")
	asked.GenerateName = "daily-"
	var seen []string
	created, err := h.Create(h.ctx("shop"), asked, func(_ context.Context, obj runtime.Object) error {
		seen = append(seen, obj.(*v1alpha1.Backup).Name)
		return nil
	}, &metav1.CreateOptions{})
	if err != nil || created.(*v1alpha1.Backup).Name != "daily-2" {
		t.Fatalf("created %v, %v", created, err)
	}
	if want := []string{"daily-0", "daily-1", "daily-2"}; !slices.Equal(seen, want) {
		t.Errorf("admission saw %q, want %q", seen, want)
	}

	generated.always, generated.n = true, 0
	asked.Name = ""
	_, err = h.create(asked)
	if !apierrors.IsAlreadyExists(err) || !strings.Contains(err.Error(), "unique name") || generated.n != 8 {
		t.Errorf("after %d names: %v", generated.n, err)
	}
	// One that was chosen is not.
	generated.n = 0
	if _, err := h.create(newBackup("shop", "daily-0")); !apierrors.IsAlreadyExists(err) || generated.n != 0 {
		t.Errorf("after %d names: %v", generated.n, err)
	}
}

// counting generates the names 0, 1, 2 and so on, or always 0.
type counting struct {
	n      int
	always bool
}

func (c *counting) GenerateName(base string) string {
	c.n++
	if c.always {
		return base + "0"
	}
	return fmt.Sprintf("%s%d", base, c.n-1)
}

// What costs more than reading a request did is not done for those who may not make
// it, dry or not, and what can't be read is never taken for a backup that reaches
// nothing.
func TestTheOrderOfTheChecks(t *testing.T) {
	long := make([]string, 100_000)
	for i := range long {
		long[i] = fmt.Sprintf("n%d", i)
	}
	cases := map[string]struct {
		backup *v1alpha1.Backup
		asked  []string
		check  func(error) bool
	}{
		"too large, then rights": {newBackup("shop", "x", long...), nil, apierrors.IsInvalid},
		"rights, then the rest": {with(newBackup("shop", "x", "db"), func(spec *v1alpha1.BackupSpec) { spec.TTL.Duration = -1 }),
			[]string{"db"}, apierrors.IsForbidden},
		"unreadable": {newBackup("shop", "x", "db", "a["), nil, apierrors.IsInvalid},
		"unreadable resources": {with(newBackup("shop", "x", "db"), func(spec *v1alpha1.BackupSpec) { spec.IncludedResources = []string{"[["} }),
			nil, apierrors.IsInvalid},
	}
	for name, c := range cases {
		for _, dryRun := range [][]string{nil, {metav1.DryRunAll}} {
			h := newHarness(t, map[string]bool{}, locationOf("default", true, metav1.ConditionTrue))
			admitted := false
			_, err := h.Create(h.ctx("shop"), c.backup.DeepCopy(), func(context.Context, runtime.Object) error {
				admitted = true
				return nil
			}, &metav1.CreateOptions{DryRun: dryRun})
			if !c.check(err) || len(err.Error()) > 2000 {
				t.Errorf("%s: answered %.2000v", name, err)
			}
			if !slices.Equal(h.asked, c.asked) || admitted || h.calls("create") != 0 {
				t.Errorf("%s: asked about %q, admission asked %t, %d recorded", name, h.asked, admitted, h.calls("create"))
			}
		}
	}
}

func TestAdmission(t *testing.T) {
	h := newHarness(t, nil, locationOf("default", true, metav1.ConditionTrue))
	refusal := errors.New("refused by a policy")
	asked := newBackup("shop", "x")
	asked.Status.Phase = "Completed"
	_, err := h.Create(h.ctx("shop"), asked, func(_ context.Context, obj runtime.Object) error {
		if seen := obj.(*v1alpha1.Backup); seen.Spec.StorageLocation != "default" || seen.Status.Phase != "" {
			t.Errorf("admission sees %+v, which is not what will be", obj)
		}
		return refusal
	}, &metav1.CreateOptions{})
	if !errors.Is(err, refusal) || h.calls("create") != 0 {
		t.Errorf("answered %v", err)
	}
}

func TestUnavailableLocationsWarn(t *testing.T) {
	for status, want := range map[metav1.ConditionStatus]int{metav1.ConditionTrue: 0, metav1.ConditionFalse: 1} {
		h := newHarness(t, nil, locationOf("default", true, status))
		warnings := &recorder{}
		ctx := warning.WithWarningRecorder(h.ctx("shop"), warnings)
		if _, err := h.Create(ctx, newBackup("shop", "x"), nil, &metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if len(*warnings) != want || want == 1 && !strings.HasPrefix((*warnings)[0], "spec.storageLocation:") {
			t.Errorf("location available %s: warnings %q", status, *warnings)
		}
	}
}

// Who names no location is told which of several defaults is taken, and who sets a field
// without effect is told of that.
func TestWarnings(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.BackupSpec)
		want   []string
	}{
		"nothing is named": {func(*v1alpha1.BackupSpec) {}, []string{`spec.storageLocation: the storage locations a, b are all marked as default, and "a" is taken`}},
		"a name":           {func(spec *v1alpha1.BackupSpec) { spec.StorageLocation = "b" }, nil},
		"a field of Velero's": {func(spec *v1alpha1.BackupSpec) {
			spec.StorageLocation, spec.UploaderConfig = "c", &v1alpha1.UploaderConfigForBackup{ParallelFilesUpload: 4}
		}, []string{"spec.uploaderConfig.parallelFilesUpload has no effect"}},
	} {
		h := newHarness(t, nil, locationOf("b", true, metav1.ConditionTrue), locationOf("a", true, metav1.ConditionTrue), locationOf("c", false, metav1.ConditionTrue))
		backup, warnings := newBackup("shop", "x"), &recorder{}
		c.change(&backup.Spec)
		if _, err := h.Create(warning.WithWarningRecorder(h.ctx("shop"), warnings), backup, nil, &metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if !slices.EqualFunc(*warnings, c.want, strings.HasPrefix) {
			t.Errorf("%s: warnings %q", name, *warnings)
		}
		if recorded := h.run("shop.x").Spec.Backup; recorded.UploaderConfig != nil {
			t.Errorf("%s: recorded %+v", name, recorded)
		}
	}
}

type recorder []string

func (r *recorder) AddWarning(_, text string) { *r = append(*r, text) }

func TestBeforeTheServerIsReady(t *testing.T) {
	h := loadingHarness(t, nil, locationOf("default", true, metav1.ConditionTrue))
	if _, err := h.create(newBackup("shop", "x")); !apierrors.IsTooManyRequests(err) || h.calls("create") != 0 {
		t.Errorf("answered %v", err)
	}
}

// What the cluster answers about the record is not the caller's fault, but a caller
// who can try again must be told so, and so must one whose record a quota or a policy refuses.
func TestTheClusterRefusesTheRecord(t *testing.T) {
	gr := enginev1alpha1.Resource("backupruns")
	for name, c := range map[string]struct {
		answer error
		code   int32
	}{
		"busy":      {apierrors.NewTooManyRequests("busy", 3), http.StatusTooManyRequests},
		"away":      {apierrors.NewServiceUnavailable("away"), http.StatusServiceUnavailable},
		"slow":      {apierrors.NewServerTimeout(gr, "create", 3), http.StatusInternalServerError},
		"forbidden": {apierrors.NewForbidden(gr, "x", errors.New("exceeded quota")), http.StatusForbidden},
		"broken":    {errors.New("the connection broke"), http.StatusInternalServerError},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil, locationOf("default", true, metav1.ConditionTrue))
			h.records.PrependReactor("create", "backupruns", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, c.answer })
			_, err := h.create(newBackup("shop", "x"))
			status, ok := err.(apierrors.APIStatus) // the server does not unwrap
			if !ok || status.Status().Code != c.code {
				t.Errorf("answered %#v, want code %d", err, c.code)
			}
			if len(h.observed) != 0 {
				t.Error("it is shown")
			}
		})
	}
}

func TestGet(t *testing.T) {
	t.Run("of a backup that another server has created", func(t *testing.T) {
		h := newHarness(t, nil)
		if err := h.records.Tracker().Add(record("shop", "daily")); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			got, err := h.Get(h.ctx("shop"), "daily", &metav1.GetOptions{})
			if err != nil || got.(*v1alpha1.Backup).UID != "theirs" {
				t.Fatalf("Get: %v, %v", got, err)
			}
		}
		if h.calls("get") != 1 {
			t.Errorf("%d live reads, want 1", h.calls("get"))
		}
	})
	t.Run("of one that does not exist", func(t *testing.T) {
		h := newHarness(t, nil)
		if _, err := h.Get(h.ctx("shop"), "daily", &metav1.GetOptions{}); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "backups.holdfast.io") {
			t.Errorf("Get: %v", err)
		}
		if h.calls("get") != 1 {
			t.Errorf("%d live reads, want 1", h.calls("get"))
		}
	})
	t.Run("while the cluster does not answer", func(t *testing.T) {
		h := newHarness(t, nil)
		h.records.PrependReactor("get", "backupruns", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("the connection broke")
		})
		if _, err := h.Get(h.ctx("shop"), "daily", &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("Get: %v", err)
		}
	})
	// The record "shop.daily" may have been written by hand, for another backup.
	t.Run("of a record that stands for another backup", func(t *testing.T) {
		h := newHarness(t, nil)
		other := record("shop", "daily")
		other.Spec.BackupRef.Namespace = "secret"
		if err := h.records.Tracker().Add(other); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Get(h.ctx("shop"), "daily", &metav1.GetOptions{}); !apierrors.IsNotFound(err) || len(h.observed) != 0 {
			t.Errorf("Get: %v", err)
		}
	})
}

func TestARequestWithoutAUser(t *testing.T) {
	h := newHarness(t, nil, locationOf("default", true, metav1.ConditionTrue))
	ctx := genericapirequest.WithNamespace(t.Context(), "shop")
	if _, err := h.Create(ctx, newBackup("shop", "x"), nil, &metav1.CreateOptions{}); err == nil || h.calls("create") != 0 {
		t.Errorf("answered %v", err)
	}
}

// TestALocationThatWasJustMade: what the informer has not heard of is asked for live, once. What
// is there needs no request, and what can't be asked for is no misspelt name.
func TestALocationThatWasJustMade(t *testing.T) {
	fresh := func(name string, isDefault bool) *enginev1alpha1.StorageLocation {
		return &enginev1alpha1.StorageLocation{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}, Spec: enginev1alpha1.StorageLocationSpec{Default: isDefault},
		}
	}
	asked := func(h *harness) (verbs []string) {
		for _, action := range h.records.Actions() {
			if action.GetResource().Resource == "storagelocations" {
				verbs = append(verbs, action.GetVerb())
			}
		}
		return verbs
	}
	for name, c := range map[string]struct {
		heard, made *enginev1alpha1.StorageLocation
		location    string
		want        string
		asked       []string
	}{
		"named":          {made: fresh("new", false), location: "new", want: "new", asked: []string{"get"}},
		"the default":    {made: fresh("new", true), want: "new", asked: []string{"list", "get"}},
		"heard of":       {heard: fresh("old", true), made: fresh("new", true), want: "old"},
		"misspelt":       {made: fresh("new", true), location: "now", asked: []string{"get"}},
		"no name at all": {made: fresh("new", true), location: "../secrets"},
	} {
		t.Run(name, func(t *testing.T) {
			var heard []*enginev1alpha1.StorageLocation
			if c.heard != nil {
				heard = append(heard, c.heard)
			}
			h := newHarness(t, nil, heard...)
			if err := h.records.Tracker().Add(c.made); err != nil {
				t.Fatal(err)
			}
			created, err := h.create(&v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "daily"}, Spec: v1alpha1.BackupSpec{StorageLocation: c.location}})
			switch {
			case c.want == "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "no such StorageLocation")):
				t.Errorf("answered %v", err)
			case c.want != "" && (err != nil || created.Spec.StorageLocation != c.want):
				t.Errorf("answered %+v, %v", created, err)
			}
			if got := asked(h); !slices.Equal(got, c.asked) {
				t.Errorf("the requests for locations were %q, want %q", got, c.asked)
			}
		})
	}
	h := newHarness(t, nil)
	h.records.PrependReactor("get", "storagelocations", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewTimeoutError("it takes too long", 1)
	})
	if _, err := h.create(&v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "daily"}, Spec: v1alpha1.BackupSpec{StorageLocation: "new"}}); !apierrors.IsInternalError(err) {
		t.Errorf("while it can't be asked: %v", err)
	}
}
