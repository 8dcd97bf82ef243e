// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebackup_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
	"github.com/holdfast-io/holdfast/pkg/registry/volumebackup"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
)

const system = "holdfast"

var t0 = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

// fixture is a catalogue, as it is served.
type fixture struct {
	testing.TB
	catalog *catalog.Catalog
	storage *volumebackup.Storage
	served  *virtual.ListOnly
	read    int
}

func newFixture(t testing.TB, notify ...func(catalog.Changes)) *fixture {
	return newFixtureWith(t, nil, notify...)
}

// newFixtureWith has the records of snapshots too.
func newFixtureWith(t testing.TB, taken *snapshots.Records, notify ...func(catalog.Changes)) *fixture {
	notify = append(notify, nil)
	f := &fixture{TB: t, catalog: catalog.New(system, notify[0])}
	f.catalog.SetIdentity(identity.Identity{UID: "cluster", Keys: []string{"key"}})
	f.catalog.SetNamespaces(map[string]types.UID{})
	f.storage = volumebackup.NewStorage(f.catalog, volumebackup.Options{Loading: "all", Clock: clock.RealClock{}, OnRead: func(context.Context) { f.read++ }, Snapshots: taken})
	served, err := volumebackup.Resource.ListOnly(f.storage)
	if err != nil {
		t.Fatal(err)
	}
	f.served = served
	return f
}

// ready lets clients in.
func (f *fixture) ready() *fixture {
	f.storage.SetReady()
	return f
}

// put stores a backup of the namespace shop or, without one, of the system's, that holds
// one volume of each of so many claims in each of so many namespaces.
func (f *fixture) put(storeName string, hour, namespaces, claims int) {
	ended := metav1.NewTime(t0.Add(time.Duration(hour) * time.Hour))
	namespace, name, tenant := strings.Cut(storeName, ".")
	if !tenant {
		namespace, name = system, storeName
	}
	backup := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: storeName, UID: types.UID("uid-of-" + storeName), CreationTimestamp: ended},
		Spec:       v1alpha1.BackupSpec{StorageLocation: "default"},
		Status: v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, CompletionTimestamp: &ended,
			Origin: &v1alpha1.BackupOrigin{ClusterUID: "cluster", PublicKey: "key", Namespace: namespace, Name: name}},
	}
	backup.Status.Conditions = format.EndConditions(&backup.Status)
	var volumes []catalog.Volume
	for n := range namespaces {
		for i := range claims {
			v := catalog.Volume{
				Namespace: fmt.Sprintf("namespace-%03d", n), ClaimName: fmt.Sprintf("data-%04d", i), PodName: fmt.Sprintf("db-%04d", i), PodVolume: "data",
				Node: fmt.Sprintf("node-%02d", i%50), SnapshotID: fmt.Sprintf("%08x%024x", hour, i), SizeBytes: 1, BytesDone: 1, IncrementalBytes: 1,
				Start: ended, Completion: ended, State: v1alpha1.VolumeBackupCompleted,
				Labels: catalog.NewLabels(map[string]string{"tier": []string{"gold", "silver"}[i%2]}),
			}
			if i%100 == 99 {
				v.State, v.Message = v1alpha1.VolumeBackupFailed, "the agent restarted"
			}
			volumes = append(volumes, v)
		}
	}
	f.catalog.Put("default", storeName, catalog.Content{Backup: backup, Volumes: volumes}, t0)
}

// list lists as clients do.
func (f *fixture) list(namespace string, options internalversion.ListOptions) (*v1alpha1.VolumeBackupList, error) {
	list, err := f.served.List(genericapirequest.WithNamespace(f.Context(), namespace), &options)
	if err != nil {
		return nil, err
	}
	return list.(*v1alpha1.VolumeBackupList), nil
}

func (f *fixture) mustList(namespace string, options internalversion.ListOptions) *v1alpha1.VolumeBackupList {
	f.Helper()
	list, err := f.list(namespace, options)
	if err != nil {
		f.Fatalf("%+v: %v", options, err)
	}
	return list
}

// pages lists page by page, and calls between after each.
func (f *fixture) pages(options internalversion.ListOptions, between func()) (names []string, versions map[string]bool) {
	f.Helper()
	versions = map[string]bool{}
	for {
		list := f.mustList("", options)
		names, versions[list.ResourceVersion] = append(names, namesOf(list)...), true
		if options.Continue = list.Continue; options.Continue == "" {
			return names, versions
		}
		if options.Limit > 0 && int64(len(list.Items)) != options.Limit {
			f.Fatalf("a page has %d", len(list.Items))
		}
		between()
	}
}

func namesOf(list *v1alpha1.VolumeBackupList) []string {
	var names []string
	for _, item := range list.Items {
		names = append(names, item.Namespace+"/"+item.Name)
	}
	return names
}

// A volume's history lies together, from the oldest to the newest.
func TestOrder(t *testing.T) {
	f := newFixture(t).ready()
	f.put("z", 1, 2, 2)
	f.put("a", 2, 2, 2)
	got, _ := f.pages(internalversion.ListOptions{}, func() {})
	want := []string{
		"namespace-000/" + f.mustList("namespace-000", internalversion.ListOptions{}).Items[0].Name,
	}
	var order []string
	for _, item := range f.mustList("", internalversion.ListOptions{}).Items {
		order = append(order, fmt.Sprint(item.Namespace, " ", item.Spec.VolumeName, " ", item.Status.CompletionTimestamp.Hour()))
	}
	if !slices.IsSorted(order) || len(order) != 8 || got[0] != want[0] {
		t.Errorf("%q", order)
	}
	if f.read == 0 {
		t.Error("nobody was told that it was read")
	}
}

// All pages are of one version, whatever happens meanwhile, and the next list is of now.
func TestPagesAreOfOneVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t).ready()
		for i := range 20 {
			f.put(fmt.Sprintf("b-%02d", i), i, 3, 3)
		}
		want, _ := f.pages(internalversion.ListOptions{}, func() {})
		next := 20
		got, versions := f.pages(internalversion.ListOptions{Limit: 7}, func() {
			f.put(fmt.Sprintf("b-%02d", next), next%7, 3, 4)
			f.catalog.Remove("default", fmt.Sprintf("b-%02d", next-19))
			time.Sleep(30 * time.Second)
			next++
		})
		if diff := cmp.Diff(want, got); diff != "" || len(versions) != 1 {
			t.Errorf("%d versions, at once (-) and in pages (+):\n%s", len(versions), diff)
		}
		if now, _ := f.pages(internalversion.ListOptions{Limit: 7}, func() {}); cmp.Equal(now, want) {
			t.Error("nothing has changed")
		}
	})
}

// What was given up for long is not kept, and who comes back then can go on.
func TestATokenThatIsTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t).ready()
		for i := range 10 {
			f.put(fmt.Sprintf("b-%d", i), i, 1, 2)
		}
		first := f.mustList("", internalversion.ListOptions{Limit: 5})
		f.put("b-10", 10, 1, 2)
		f.catalog.Remove("default", "b-0")
		time.Sleep(5 * time.Minute)
		_, err := f.list("", internalversion.ListOptions{Limit: 5, Continue: first.Continue})
		var status apierrors.APIStatus
		if !apierrors.IsResourceExpired(err) {
			t.Fatalf("after 5 minutes: %v", err)
		}
		status = err.(apierrors.APIStatus)
		rest, _ := f.pages(internalversion.ListOptions{Limit: 5, Continue: status.Status().Continue}, func() {})
		var all []string
		for _, name := range append(namesOf(first), rest...) {
			if slices.Contains(all, name) {
				t.Errorf("%s is there twice", name)
			}
			all = append(all, name)
		}
		for _, name := range namesOf(f.mustList("", internalversion.ListOptions{})) {
			if !slices.Contains(all, name) && !strings.Contains(name, "b-10:") {
				t.Errorf("%s is missing in %q", name, all)
			}
		}

		// Another server, or this one in another term, has issued other versions.
		again := f.mustList("", internalversion.ListOptions{Limit: 5})
		f.storage.Begin(f.storage.Version() + 1000)
		if _, err := f.list("", internalversion.ListOptions{Limit: 5, Continue: again.Continue}); !apierrors.IsResourceExpired(err) {
			t.Errorf("in another term: %v", err)
		}
		list := f.mustList("", internalversion.ListOptions{})
		if list.ResourceVersion <= again.ResourceVersion || list.Items[0].ResourceVersion != list.ResourceVersion {
			t.Errorf("version %s after %s, of an object %s", list.ResourceVersion, again.ResourceVersion, list.Items[0].ResourceVersion)
		}
		for _, token := range []string{"x", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoibmFtZXNwYWNlLTAwMC9kYXRhIn0"} {
			if _, err := f.list("", internalversion.ListOptions{Limit: 5, Continue: token}); !apierrors.IsBadRequest(err) {
				t.Errorf("a token %q: %v", token, err)
			}
		}
	})
}

// However often somebody comes back, an old version is kept for a time only; the present one
// is no old one, however long it has been that.
func TestATokenThatIsUsedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t).ready()
		f.put("a", 1, 1, 3)
		first := f.mustList("", internalversion.ListOptions{Limit: 1})
		page := func() error {
			_, err := f.list("", internalversion.ListOptions{Limit: 1, Continue: first.Continue})
			return err
		}
		for i := range 10 {
			if i == 5 {
				f.put("b", 2, 1, 3)
			}
			time.Sleep(4 * time.Minute)
			if err := page(); (err == nil) != (i < 8) || err != nil && !apierrors.IsResourceExpired(err) {
				t.Errorf("%d minutes after it was the present one: %v", 4*(i-4), err)
			}
		}
	})
}

// What is no longer to be seen in a namespace is not seen in an old version either.
func TestATokenOfANamespaceThatIsMadeAnew(t *testing.T) {
	f := newFixture(t).ready()
	f.put("a", 1, 2, 3)
	first := f.mustList("namespace-000", internalversion.ListOptions{Limit: 1})
	page := func() (*v1alpha1.VolumeBackupList, error) {
		return f.list("namespace-000", internalversion.ListOptions{Limit: 1, Continue: first.Continue})
	}
	f.put("b", 2, 1, 3)
	f.catalog.Remove("default", "b")
	f.catalog.SetNamespace("namespace-002", "of nobody's backups")
	if list, err := page(); err != nil || len(list.Items) != 1 {
		t.Errorf("after changes like others: %v", err)
	}
	f.catalog.SetNamespace("namespace-000", "another")
	if _, err := page(); !apierrors.IsResourceExpired(err) {
		t.Errorf("of a namespace that was made anew: %v", err)
	}
}

// What versions mean is as Kubernetes has it.
func TestVersions(t *testing.T) {
	f := newFixture(t).ready()
	f.put("a", 1, 1, 1)
	before := f.mustList("", internalversion.ListOptions{}).ResourceVersion
	f.put("b", 2, 1, 1)
	now := f.mustList("", internalversion.ListOptions{}).ResourceVersion
	future := now + "0"
	for name, test := range map[string]struct {
		options internalversion.ListOptions
		want    func(error) bool
	}{
		"any":                  {internalversion.ListOptions{ResourceVersion: "0"}, nil},
		"not older than now":   {internalversion.ListOptions{ResourceVersion: now, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}, nil},
		"exactly now":          {internalversion.ListOptions{ResourceVersion: now, ResourceVersionMatch: metav1.ResourceVersionMatchExact}, nil},
		"exactly before":       {internalversion.ListOptions{ResourceVersion: before, ResourceVersionMatch: metav1.ResourceVersionMatchExact}, apierrors.IsResourceExpired},
		"not older than never": {internalversion.ListOptions{ResourceVersion: future, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}, storage.IsTooLargeResourceVersion},
		"exactly never":        {internalversion.ListOptions{ResourceVersion: future, ResourceVersionMatch: metav1.ResourceVersionMatchExact}, storage.IsTooLargeResourceVersion},
		"none":                 {internalversion.ListOptions{ResourceVersion: "x"}, apierrors.IsBadRequest},
	} {
		list, err := f.list("", test.options)
		if test.want == nil && (err != nil || len(list.Items) != 2) || test.want != nil && (err == nil || !test.want(err)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Nothing that is there in part pretends to be whole.
func TestBeforeAllIsRead(t *testing.T) {
	f := newFixture(t)
	f.put("a", 1, 1, 1)
	get := func(name string) error {
		_, err := f.served.Get(genericapirequest.WithNamespace(t.Context(), "namespace-000"), name, &metav1.GetOptions{})
		return err
	}
	var known string
	for row := range f.catalog.Snapshot().Rows("", catalog.Position{}, func(catalog.VolumeRows) bool { return true }) {
		known = row.Name()
	}
	if _, err := f.list("", internalversion.ListOptions{}); !apierrors.IsTooManyRequests(err) || !apierrors.IsTooManyRequests(get(known)) {
		t.Errorf("before it is open: %v", err)
	}
	f.storage.Open()
	if err := get(known); err != nil {
		t.Error(err)
	}
	if err := get("other:data-0000"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("what may be there: %v", err)
	}
	if len(f.mustList("", internalversion.ListOptions{}).Items) != 1 {
		t.Error("what is there is not listed")
	}
	if _, err := f.list("", internalversion.ListOptions{ResourceVersion: "0"}); !apierrors.IsTooManyRequests(err) {
		t.Errorf("an informer's list: %v", err)
	}
	f.ready()
	if err := get("other:data-0000"); !apierrors.IsNotFound(err) {
		t.Errorf("what is not there: %v", err)
	}
	if len(f.mustList("", internalversion.ListOptions{ResourceVersion: "0"}).Items) != 1 {
		t.Error("what is there is not listed")
	}
}

// Every field selects what its cell of the object has, and labels do.
func TestSelectors(t *testing.T) {
	f := newFixture(t).ready()
	f.put("a", 1, 2, 120)
	f.put("namespace-000.b", 2, 1, 120)
	at := metav1.NewTime(t0)
	f.catalog.Put("long", "pvc-1", catalog.Content{Trusted: true, Volumes: []catalog.Volume{
		{Namespace: "namespace-000", ClaimName: "data-0003", BackupName: "b1", Method: "longhorn", State: v1alpha1.VolumeBackupInProgress, Created: at},
	}}, t0)
	moved := make([]catalog.Volume, 20) // through more nodes than a volume's are told apart
	for i := range moved {
		moved[i] = catalog.Volume{Namespace: "namespace-000", ClaimName: "data-moved", BackupName: fmt.Sprintf("m%02d", i), Node: fmt.Sprintf("another-%02d", i), State: v1alpha1.VolumeBackupCompleted, Created: at}
	}
	f.catalog.Put("long", "pvc-2", catalog.Content{Trusted: true, Volumes: moved}, t0)
	all := f.mustList("", internalversion.ListOptions{}).Items
	names := volumebackup.Resource.Selectable()
	values := map[string]map[string]bool{}
	of := func(item *v1alpha1.VolumeBackup, field string) string {
		switch field {
		case "metadata.name":
			return item.Name
		case "metadata.namespace":
			return item.Namespace
		}
		return volumebackup.Resource.Fields[field](item)
	}
	for _, field := range names {
		values[field] = map[string]bool{"": true, "nothing": true}
		for i := range all {
			if value := of(&all[i], field); len(values[field]) < 6 || i > len(all)-2 {
				values[field][value] = true
			}
		}
	}
	values["status.node"]["another-18"] = true
	for _, field := range names {
		for value := range values[field] {
			for _, selector := range []fields.Selector{fields.OneTermEqualSelector(field, value), fields.OneTermNotEqualSelector(field, value)} {
				want := []string{}
				for i := range all {
					if selector.Matches(fields.Set{field: of(&all[i], field)}) {
						want = append(want, all[i].Namespace+"/"+all[i].Name)
					}
				}
				got, _ := f.pages(internalversion.ListOptions{FieldSelector: selector, Limit: 100}, func() {})
				if !slices.Equal(want, got) {
					t.Errorf("%s selects %d, not %d", selector, len(got), len(want))
				}
			}
		}
	}
	for text, want := range map[string]int{"tier=gold": 180, "tier!=gold": 201, "tier in (gold,silver)": 360, "!tier": 21} {
		selector, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := f.pages(internalversion.ListOptions{LabelSelector: selector, Limit: 50}, func() {}); len(got) != want {
			t.Errorf("%s selects %d, not %d", text, len(got), want)
		}
	}
}

// TestOverAllNamespacesBackupsAreNamed: a list within a namespace, and a get, don't name the backups
// of other ones, nor does a selector tell of them; one over all namespaces names them, at the same
// versions.
func TestOverAllNamespacesBackupsAreNamed(t *testing.T) {
	f := newFixture(t).ready()
	f.put("nightly", 1, 2, 2)
	f.put("namespace-000.b", 2, 1, 2)
	secret := fields.OneTermEqualSelector("spec.backup.name", "nightly")
	over := f.mustList("", internalversion.ListOptions{FieldSelector: secret})
	if len(over.Items) != 4 {
		t.Errorf("over all namespaces, %d are of the backup", len(over.Items))
	}
	for _, item := range over.Items {
		if item.Spec.Backup != (v1alpha1.BackupReference{Namespace: system, Name: "nightly"}) {
			t.Errorf("%s is of %+v", item.Name, item.Spec.Backup)
		}
		own := f.mustList(item.Namespace, internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", item.Name)})
		if len(own.Items) != 1 || own.Items[0].Spec.Backup.Name != "" || own.Items[0].ResourceVersion != item.ResourceVersion {
			t.Errorf("within its namespace it is %+v", own.Items)
		}
		got, err := f.served.Get(genericapirequest.WithNamespace(t.Context(), item.Namespace), item.Name, &metav1.GetOptions{})
		if err != nil || got.(*v1alpha1.VolumeBackup).Spec.Backup.Name != "" {
			t.Errorf("a get has %+v, %v", got, err)
		}
	}
	for _, namespace := range []string{"namespace-000", "namespace-001"} {
		if found := f.mustList(namespace, internalversion.ListOptions{FieldSelector: secret}).Items; len(found) != 0 {
			t.Errorf("within %s a selector finds %+v", namespace, found)
		}
	}
}

// A list of very many needs a limit, and the error says what to do; a page is never more.
func TestTooManyForOneAnswer(t *testing.T) {
	f := newFixture(t).ready()
	for i := range 3 {
		f.put(fmt.Sprintf("b-%d", i), i, 10, 400)
	}
	_, err := f.list("", internalversion.ListOptions{})
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "--chunk-size=0") {
		t.Errorf("without a limit: %v", err)
	}
	if list := f.mustList("namespace-003", internalversion.ListOptions{}); len(list.Items) != 1200 {
		t.Errorf("%d of one namespace", len(list.Items))
	}
	if list := f.mustList("", internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.backupUID", "uid-of-b-1")}); len(list.Items) != 4000 {
		t.Errorf("%d of one backup", len(list.Items))
	}
	list := f.mustList("", internalversion.ListOptions{Limit: 1e9})
	if len(list.Items) != volumebackup.MaxItems || list.Continue == "" || *list.RemainingItemCount != 2000 {
		t.Errorf("%d of 12,000, %d remain", len(list.Items), *list.RemainingItemCount)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, field := range []string{"status.node", "spec.backupUID"} { // volumes are looked at, and rows
		if _, err := f.served.List(ctx, &internalversion.ListOptions{Limit: 1, FieldSelector: fields.OneTermEqualSelector(field, "nowhere")}); err == nil {
			t.Errorf("the list by %s goes on when nobody waits for it", field)
		}
	}
}

// Whoever may read a namespace learns nothing of backups of others by its pages.
func TestATokenNamesNoBackup(t *testing.T) {
	f := newFixture(t).ready()
	for i := range 3 {
		f.put(fmt.Sprintf("secret-%d", i), 1, 1, 1)
	}
	list := f.mustList("namespace-000", internalversion.ListOptions{Limit: 1})
	key, _, err := storage.DecodeContinue(list.Continue, "/holdfast.io/volumebackups/")
	if err != nil || strings.Contains(key, "secret") {
		t.Errorf("%s, %v", key, err)
	}
	if _, err := f.list("other", internalversion.ListOptions{Limit: 1, Continue: list.Continue}); !apierrors.IsBadRequest(err) {
		t.Errorf("a token of another namespace: %v", err)
	}
	if names, _ := f.pages(internalversion.ListOptions{Limit: 1}, func() {}); len(names) != 3 || strings.Contains(fmt.Sprint(names), "secret") {
		t.Errorf("%q", names)
	}
}

// A page costs what it holds.
func TestAllocationsOfAPage(t *testing.T) {
	f := newFixture(t).ready()
	for i := range 50 {
		f.put(fmt.Sprintf("b-%02d", i), i, 10, 20)
	}
	count := func(options internalversion.ListOptions) float64 {
		return testing.AllocsPerRun(10, func() { f.mustList("", options) })
	}
	const page = 100
	whole := count(internalversion.ListOptions{Limit: page})
	none := count(internalversion.ListOptions{Limit: page, FieldSelector: fields.OneTermEqualSelector("status.node", "nowhere")})
	t.Logf("%.0f allocations for a page of %d, %.0f for one that selects nothing of 10,000", whole, page, none)
	if whole > 50*page || none > 100 {
		t.Errorf("a page of %d takes %.0f allocations, one of nothing %.0f", page, whole, none)
	}
}

// TestLocalSnapshots: a volume backup says whether the cluster has a record of its snapshot, and that one is
// missing only if that is known, is of its own backup, and the backup has no other copy.
func TestLocalSnapshots(t *testing.T) {
	const stored, missing = v1alpha1.LocalSnapshotStored, v1alpha1.LocalSnapshotMissing
	taken := snapshots.NewRecords(nil)
	f := newFixtureWith(t, taken).ready()
	const inStorage, moved, failed = catalog.MethodInStorage, catalog.MethodMoved, v1alpha1.VolumeBackupFailed
	put := func(location, storeName, key string) {
		backup := &v1alpha1.Backup{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: storeName, UID: "uid-of-nightly"},
			Spec:       v1alpha1.BackupSpec{StorageLocation: location},
			Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, Origin: &v1alpha1.BackupOrigin{ClusterUID: "cluster", PublicKey: key, Namespace: system, Name: storeName}},
		}
		content := catalog.Content{Backup: backup}
		for _, v := range []catalog.Volume{
			{ClaimName: "kept", Method: inStorage}, {ClaimName: "lost", Method: inStorage}, {ClaimName: "failed", Method: inStorage, State: failed},
			{ClaimName: "local", Method: moved, SnapshotID: "s"}, {ClaimName: "moved", Method: moved, SnapshotID: "s"}, {ClaimName: "damaged", Method: moved, SnapshotID: "s", State: v1alpha1.VolumeBackupDamaged},
			{ClaimName: "files", Method: format.UploaderKopia, SnapshotID: "s"}, {PodName: "db-0", PodVolume: "scratch", Method: format.UploaderKopia},
		} {
			v.Namespace = "shop"
			if v.State == "" {
				v.State = v1alpha1.VolumeBackupCompleted
			}
			content.Volumes = append(content.Volumes, v)
		}
		f.catalog.Put(location, storeName, content, t0)
	}
	put("default", "nightly", "key")
	put("copied", "nightly", "key")
	put("default", "forged", "another key")
	record := func(claim, label string) any {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: claim, Finalizers: []string{snapshots.Finalizer}, Labels: map[string]string{
			snapshots.LabelCluster: "cluster", snapshots.LabelBackup: "uid-of-nightly", snapshots.LabelVolume: snapshots.VolumeLabel("shop", claim), label: "1",
		}}}
	}
	const none = "none"
	var contents []any
	for _, claim := range []string{"kept", "failed"} {
		contents = append(contents, record(claim, none))
	}
	for _, claim := range []string{"local", "damaged", "files"} {
		contents = append(contents, record(claim, snapshots.LabelKeepLocal))
	}
	expect := func(when string, want map[string]string) {
		t.Helper()
		list := f.mustList("", internalversion.ListOptions{})
		for _, item := range list.Items {
			wanted := want[item.Spec.VolumeName]
			if strings.HasPrefix(item.Name, "forged:") {
				wanted = ""
			}
			got, err := f.served.Get(genericapirequest.WithNamespace(t.Context(), item.Namespace), item.Name, &metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := got.(*v1alpha1.VolumeBackup).Status.LocalSnapshot; got != wanted || item.Status.LocalSnapshot != wanted {
				t.Errorf("%s: %s is %q, and in a list %q, want %q", when, item.Name, got, item.Status.LocalSnapshot, wanted)
			}
		}
		if len(list.Items) != 24 {
			t.Errorf("%s: there are %d volume backups", when, len(list.Items))
		}
	}
	expect("before the records are known", nil)
	if err := taken.Replace(contents, ""); err != nil {
		t.Fatal(err)
	}
	version := f.storage.Version()
	want := map[string]string{"kept": stored, "lost": missing, "local": stored, "damaged": stored}
	expect("known", want)
	if err := taken.Delete(contents[0]); err != nil {
		t.Fatal(err)
	}
	want["kept"] = missing
	expect("the record is deleted", want)
	if now := f.storage.Version(); now != version {
		t.Errorf("the version is %d, and was %d", now, version)
	}
	f.catalog.SetIdentity(identity.Identity{UID: "another", Keys: []string{"key"}})
	expect("the cluster is another one", nil)
}
