// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var start = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// testVolumes uploads every volume at once.
type testVolumes struct {
	submitted []*format.Volume
	onCut     func()
	cut       func(*format.Volume)
	submit    func(*format.Volume) error
	result    func(*format.Volume) enginev1alpha1.VolumeUploadStatus
	wait      func(context.Context) error

	mu sync.Mutex
}

func (v *testVolumes) Submit(_ context.Context, volume *format.Volume) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.submit != nil {
		if err := v.submit(volume); err != nil {
			return err
		}
	}
	v.submitted = append(v.submitted, volume)
	return nil
}

func (v *testVolumes) Cut(_ context.Context, volumes []*format.Volume) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.onCut != nil {
		v.onCut()
	}
	for _, volume := range volumes {
		volume.Snapshot.Cut = &format.SnapshotCut{Handle: "stored-" + volume.ClaimName}
		if v.cut != nil {
			v.cut(volume)
		}
	}
	return nil
}

func (v *testVolumes) Wait(ctx context.Context, volumes []*format.Volume) error {
	if v.wait != nil {
		if err := v.wait(ctx); err != nil {
			return err
		}
	}
	for _, volume := range volumes {
		volume.Status = enginev1alpha1.VolumeUploadStatus{
			Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "snap-" + volume.Name, Path: "/pods/" + volume.Name,
			Progress:         enginev1alpha1.VolumeProgress{TotalBytes: 10, BytesDone: 10},
			IncrementalBytes: 4,
			StartTimestamp:   &metav1.Time{Time: start}, CompletionTimestamp: &metav1.Time{Time: start},
		}
		if v.result != nil {
			volume.Status = v.result(volume)
		}
	}
	return nil
}

// fixture is a backup of a test cluster into a store in memory.
type fixture struct {
	*testCluster
	store   *storetest.Faulty
	volumes *testVolumes
	hooks   *testHooks
	request Request
	deps    Dependencies
}

func newFixture(t testing.TB, spec v1alpha1.BackupSpec) *fixture {
	t.Helper()
	cluster := newTestCluster(t)
	clock := clocktesting.NewFakeClock(start.Add(time.Minute))
	f := &fixture{testCluster: cluster, store: storetest.NewFaulty(storetest.Memory(t), clock), volumes: &testVolumes{}, hooks: &testHooks{}}
	spec.StorageLocation = cmp.Or(spec.StorageLocation, "default")
	if spec.DefaultVolumesToFsBackup == nil {
		spec.DefaultVolumesToFsBackup = new(false) // TestWhatIsWantedByDefault is about the default
		if spec.SnapshotVolumes == nil {
			spec.SnapshotVolumes = new(false)
		}
	}
	spec.TTL = v1alpha1.Duration{Duration: 720 * time.Hour}
	f.request = Request{
		Backup: &v1alpha1.Backup{
			ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: "b", UID: "11111111-2222-3333-4444-555555555555", CreationTimestamp: metav1.Time{Time: start}},
			Spec:       spec,
			Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseInProgress, StartTimestamp: &metav1.Time{Time: start}, Requester: "ada"},
		},
		Cluster: format.Cluster{SystemNamespace: "holdfast", UID: "c-1"},
	}
	f.deps = Dependencies{
		Discovery: cluster,
		Client:    cluster.client(),
		Store:     f.store,
		Remover:   f.store,
		Volumes:   f.volumes,
		Hooks:     f.hooks,
		Clock:     clock,
		Progress:  &Progress{},
		PageSizes: &PageSizes{},
		Retry:     wait.Backoff{Duration: time.Microsecond, Steps: 4},
	}
	f.knowSizes()
	return f
}

// knowSizes has the controller have met small objects of all resources before.
func (f *fixture) knowSizes() {
	for _, list := range f.resources {
		gv, _ := schema.ParseGroupVersion(list.GroupVersion)
		for _, r := range list.APIResources {
			f.deps.PageSizes.learn(gv.WithResource(r.Name).GroupResource(), sampled, sampled<<10)
		}
	}
}

func (f *fixture) run(t testing.TB) Outcome {
	t.Helper()
	outcome, err := Run(t.Context(), f.request, f.deps)
	if err != nil {
		t.Fatal(err)
	}
	if !outcome.Stored {
		t.Fatal("the outcome is not stored")
	}
	return outcome
}

func (f *fixture) read(t testing.TB, key string) []byte {
	t.Helper()
	content, err := f.store.Get(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	data, err := io.ReadAll(content)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// stored is the backup as readers find it.
func (f *fixture) stored(t testing.TB) *v1alpha1.Backup {
	t.Helper()
	backup, err := format.DecodeBackup(f.read(t, format.MetadataKey("b")), format.Place{StoreName: "b", SystemNamespace: "holdfast", Now: start})
	if err != nil {
		t.Fatal(err)
	}
	return backup
}

func (f *fixture) text(t testing.TB, key string) string {
	t.Helper()
	plain, err := gzip.NewReader(bytes.NewReader(f.read(t, key)))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(plain)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func (f *fixture) keys(t testing.TB) []string {
	t.Helper()
	var keys []string
	for object, err := range f.store.List(context.Background(), "", store.ListOptions{Recursive: true}) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, object.Key)
	}
	return keys
}

// items are the objects of the stored tarball, in order, each as resource
// [namespace/]name.
func (f *fixture) items(t testing.TB) []string {
	t.Helper()
	return itemsOf(t, f.read(t, format.TarballKey("b")))
}

func itemsOf(t testing.TB, tarball []byte) []string {
	t.Helper()
	reader, err := archive.NewReader(bytes.NewReader(tarball))
	if err != nil {
		t.Fatal(err)
	}
	var items []string
	for {
		entry, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if !entry.Versioned {
			items = append(items, entry.Resource.String()+" "+itemName(entry.Namespace, entry.Name))
		}
	}
	slices.Sort(items)
	return items
}

func (f *fixture) results(t testing.TB) format.Results {
	t.Helper()
	results, err := format.ReadResults(bytes.NewReader(f.read(t, format.ResultsKey("b"))))
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func named(namespace string, names ...string) []string {
	var objects []string
	for _, name := range names {
		objects = append(objects, fmt.Sprintf(`{"metadata":{"name":%q,"namespace":%q}}`, name, namespace))
	}
	return objects
}

func namespace(name, labels string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"labels":{%s}},"status":{"phase":"Active"}}`, name, labels)
}

// story fills a cluster with one of each kind.
func (f *fixture) story() {
	f.add("namespaces", namespace("shop", ""), namespace("bank", ""), namespace("quiet", `"velero.io/exclude-from-backup":"true"`))
	f.add("configmaps", named("shop", "prices")...)
	f.add("configmaps", named("bank", "rates")...)
	f.add("configmaps", named("quiet", "hidden")...)
	f.add("configmaps",
		`{"metadata":{"name":"labelled","namespace":"shop","labels":{"velero.io/exclude-from-backup":"true"}}}`,
		`{"metadata":{"name":"going","namespace":"shop","deletionTimestamp":"2026-08-01T11:00:00Z"}}`)
	f.add("deployments.apps", named("shop", "web")...)
	f.add("events", named("shop", "happened")...)
	f.add("events.events.k8s.io", named("shop", "happened")...)
	f.add("volumesnapshots.snapshot.storage.k8s.io", named("shop", "snap")...)
	f.add("backups.holdfast.io", named("shop", "b")...)
	f.add("backupruns.engine.holdfast.io", named("shop", "b")...)
	f.add("summaries.example.com", named("shop", "computed")...)
	f.add("widgets.example.com", `{"metadata":{"name":"gear","namespace":"shop"},"Metadata":{"name":"a field of its own"},"spec":{"size":12345678901234567890}}`)
	f.add("customresourcedefinitions.apiextensions.k8s.io", named("", "widgets.example.com", "others.example.com")...)
	f.add("nodes", named("", "n1")...)
	f.add("persistentvolumes",
		`{"metadata":{"name":"pv-data","labels":{"zone":"a"},"creationTimestamp":"2026-07-01T12:00:00Z"},"spec":{"capacity":{"storage":"1Gi"},"persistentVolumeReclaimPolicy":"Delete","csi":{"driver":"d"}}}`,
		`{"metadata":{"name":"pv-idle"},"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`,
		`{"metadata":{"name":"pv-free"},"spec":{}}`)
	f.add("persistentvolumeclaims",
		`{"metadata":{"name":"data","namespace":"shop","uid":"claim-1","labels":{"app":"db"}},"spec":{"volumeName":"pv-data"},"status":{"phase":"Bound"}}`,
		`{"metadata":{"name":"idle","namespace":"shop","uid":"claim-2"},"spec":{"volumeName":"pv-idle"},"status":{"phase":"Bound"}}`)
	f.add("pods", `{"metadata":{"name":"db-0","namespace":"shop","uid":"pod-1","annotations":{"backup.velero.io/backup-volumes":"files,scratch"}},
		"spec":{"nodeName":"n1","containers":[{"name":"c","volumeMounts":[{"name":"files"},{"name":"scratch"},{"name":"conf"}]}],
		"volumes":[{"name":"files","persistentVolumeClaim":{"claimName":"data"}},{"name":"scratch","emptyDir":{}},{"name":"conf","configMap":{"name":"prices"}}]},
		"status":{"phase":"Running"}}`)
}

// What lies in the store after a backup is fixed by golden files: the tarball
// entry by entry, the side files, and their order of writing.
func TestRunStoresTheWholeBackup(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop", "quiet"}})
	f.story()
	f.deps.Workers = 1 // for the order of the tarball
	outcome := f.run(t)

	var got strings.Builder
	fmt.Fprintf(&got, "phase %s, %d errors, %d warnings, progress %+v, volumes %+v, expires %s\n", outcome.Status.Phase, outcome.Status.Errors,
		outcome.Status.Warnings, *outcome.Status.Progress, *outcome.Status.Volumes, outcome.Status.Expiration.UTC().Format(time.RFC3339))
	fmt.Fprintf(&got, "\n# keys\n%s\n", strings.Join(f.keys(t), "\n"))
	fmt.Fprintf(&got, "\n# tarball\n%s", tarListing(t, f.read(t, format.TarballKey("b"))))
	fmt.Fprintf(&got, "\n# %s\n%s\n", format.MetadataKey("b"), digests.ReplaceAll(f.read(t, format.MetadataKey("b")), []byte("SIZE,DIGEST")))
	for _, key := range []string{
		format.ResourceListKey("b"), format.PodVolumeBackupsKey("b"), format.VolumeInfoKey("b"), format.VolumeSnapshotsKey("b"),
		format.ItemOperationsKey("b"), format.ResultsKey("b"), format.LogKey("b"),
	} {
		fmt.Fprintf(&got, "\n# %s\n%s", key, f.text(t, key))
	}
	items, _, _ := strings.Cut(f.text(t, format.ManifestKey("b")), "\n],") // the rest depends on the compressor, too
	fmt.Fprintf(&got, "\n# %s\n%s\n", format.ManifestKey("b"), items)
	golden := filepath.Join("testdata", "backup.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("the store holds something else (-want +got); run with -update if it is right:\n%s", diff)
	}
}

// The manifest has each object of the tarball once, with the reason of what the spec does
// not select, and each object's bytes lie where it says.
func TestManifest(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop", "quiet"}})
	f.story()
	noise := make([]byte, 1<<20)
	for i := range noise {
		noise[i] = byte('a' + i*i%23)
	}
	f.add("configmaps", fmt.Sprintf(`{"metadata":{"name":"large","namespace":"shop","uid":"u","ownerReferences":[{"uid":"o"}],"labels":{"app":"x"},
		"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"secret","kept":"y"}},"data":{"noise":"%s"}}`, noise))
	f.add("configmaps", named("shop", "last")...)
	f.add("secrets", `{"metadata":{"name":"key","namespace":"shop","annotations":{"kapp.k14s.io/original":"the whole of it"}}}`)
	f.run(t)
	tarball := f.read(t, format.TarballKey("b"))
	list, err := format.ReadResourceList(bytes.NewReader(f.read(t, format.ResourceListKey("b"))))
	if err != nil {
		t.Fatal(err)
	}
	got, members := format.ResourceList{}, map[int64]bool{}
	reasons := map[string]string{}
	for item, err := range manifest.Read(bytes.NewReader(f.read(t, format.ManifestKey("b")))) {
		if err != nil {
			t.Fatal(err)
		}
		name := itemName(item.Namespace, item.Name)
		got[item.GroupKind()] = append(got[item.GroupKind()], name)
		if item.Reason != "" {
			reasons[item.KindName+" "+name] = item.Reason
		}
		members[item.Place.Member] = true
		plain, err := gzip.NewReader(bytes.NewReader(tarball[item.Place.Member:]))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, plain, item.Place.Offset); err != nil {
			t.Fatal(err)
		}
		entry := tar.NewReader(plain)
		header, err := entry.Next()
		if err != nil || !strings.HasPrefix(header.Name, "resources/"+item.Resource) || !strings.HasSuffix(header.Name, "/"+item.Name+".json") {
			t.Fatalf("where %s should be there is %+v, %v", item, header, err)
		}
		content, err := io.ReadAll(entry)
		if err != nil {
			t.Fatal(err)
		}
		if of := format.NewContent(content); of.Size != item.Size || of.SHA256 != item.SHA256 {
			t.Errorf("%s has other bytes than the manifest says", item)
		}
		if item.Resource == "secrets" && item.Annotations != nil {
			t.Errorf("of a Secret it has %v", item.Annotations)
		}
		if item.Name == "large" {
			want := &manifest.Item{APIVersion: "v1", KindName: "ConfigMap", Resource: "configmaps", Namespace: "shop", Name: "large", UID: "u", OwnerUIDs: []string{"o"},
				Labels: map[string]string{"app": "x"}, Annotations: map[string]string{"kept": "y"}, Size: item.Size, SHA256: item.SHA256, Place: item.Place}
			if diff := gocmp.Diff(want, item); diff != "" {
				t.Errorf("an item (-want +got):\n%s", diff)
			}
		}
	}
	if diff := gocmp.Diff(list, got); diff != "" {
		t.Errorf("the resource list and the manifest differ (-list +manifest):\n%s", diff)
	}
	if len(members) < 2 {
		t.Error("the tarball has one member only")
	}
	if reasons["CustomResourceDefinition widgets.example.com"] == "" || reasons["ConfigMap shop/prices"] != "" {
		t.Errorf("the reasons are %v", reasons)
	}
}

// digests depend on the compressor.
var digests = regexp.MustCompile(`\d+,\\"sha256\\":\\"[0-9a-f]{64}\\"`)

func tarListing(t *testing.T, tarball []byte) string {
	t.Helper()
	var listing strings.Builder
	for header, content := range tarEntries(t, tarball) {
		fmt.Fprintf(&listing, "%c %o %s %s %s\n", header.Typeflag, header.Mode, header.ModTime.UTC().Format(time.RFC3339), header.Name, bytes.TrimSpace(content))
	}
	return listing.String()
}

// Pitfall 29: a restore by Velero needs metadata that is written last, after all
// else.
func TestMetadataComesLast(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{})
	f.story()
	f.store.Inject(storetest.Fault{Operation: storetest.Create, Key: format.MetadataKey("b"), Err: store.ErrDenied})
	outcome, err := Run(t.Context(), f.request, f.deps)
	if !errors.Is(err, store.ErrDenied) || outcome.Stored || outcome.Status.Phase != v1alpha1.BackupPhaseFailed {
		t.Fatalf("got %+v, %v", outcome, err)
	}
	if keys := f.keys(t); len(keys) != 11 || slices.Contains(keys, format.MetadataKey("b")) {
		t.Errorf("before the metadata there is %v", keys)
	}
	if got := f.store.Count(storetest.Create); got != 11 {
		t.Errorf("%d objects were created, and a refusal was tried again", got)
	}
}

// The same backup lies in every kind of store.
func TestRunIntoEveryStore(t *testing.T) {
	var want []string
	for name, target := range map[string]storetest.Store{
		"memory":     storetest.Memory(t),
		"filesystem": storetest.Filesystem(t),
		"S3":         fakeS3(t),
	} {
		f := newFixture(t, v1alpha1.BackupSpec{})
		f.store = storetest.NewFaulty(target, clocktesting.NewFakeClock(start))
		f.deps.Store = f.store
		f.story()
		f.run(t)
		got := append(f.keys(t), f.items(t)...)
		if want == nil {
			want = got
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s holds something else than another (-want +got):\n%s", name, diff)
		}
	}
}

func fakeS3(t *testing.T) storetest.Store {
	location, secret := storetest.FakeS3(t, nil)
	return storetest.Open(t, location, secret)
}
