// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package opener_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const (
	system = "holdfast"
	app    = "app"
	// chosen by a person, so that each repository has other inner keys.
	password = repository.Key("chosen by a person")
)

// fixture is a bucket with repositories, and what is shared of them.
type fixture struct {
	*opener.Shared
	t       *testing.T
	clock   *clocktesting.FakeClock
	kube    kubernetes.Interface
	where   repository.Location
	workDir string
	records cache.Indexer
	// locations has the record default.
	locations cache.Indexer

	lists, formats atomic.Int64
	// on sees each request, and answers it if it returns true.
	on atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
}

func newFixture(t *testing.T, namespaces ...string) *fixture {
	t.Helper()
	f := &fixture{t: t, clock: clocktesting.NewFakeClock(time.Now()), workDir: t.TempDir(), records: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})}
	f.where.Spec, f.where.Secret = storetest.FakeS3(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Query().Get("list-type") != "":
				f.lists.Add(1)
			case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/kopia.blobcfg"):
				f.formats.Add(1) // once for each key that is derived
			}
			if do := f.on.Load(); do == nil || !(*do)(w, r) {
				next.ServeHTTP(w, r)
			}
		})
	})
	locations := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	must(t, locations.Add(&enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}, Spec: f.where.Spec}))
	f.locations = locations
	f.kube = kubefake.NewSimpleClientset(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: enginev1alpha1.CredentialsNamespace(system), Name: "credentials"}, Data: f.where.Secret,
	})
	for _, namespace := range append(namespaces, app) {
		must(t, repository.Create(t.Context(), f.where, namespace, password))
		f.record(namespace, "1")
		f.key(namespace, password)
	}
	f.Shared = &opener.Shared{
		Repositories: enginelisters.NewVolumeRepositoryLister(f.records).VolumeRepositories(system),
		Locations:    enginelisters.NewStorageLocationLister(locations).StorageLocations(system),
		Options:      repository.Options{WorkDir: f.workDir},
		Indexes:      func(context.Context, int64) (func(), error) { return nil, nil },
		Clock:        f.clock,
	}
	f.lists.Store(0)
	f.formats.Store(0)
	return f
}

func (f *fixture) record(namespace string, uid types.UID) {
	must(f.t, f.records.Add(&enginev1alpha1.VolumeRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: namespace, UID: uid},
		Spec:       enginev1alpha1.VolumeRepositorySpec{VolumeNamespace: namespace, BackupStorageLocation: "default"},
	}))
}

// secret writes a Secret, be it there or not.
func (f *fixture) secret(namespace, name string, data map[string][]byte) {
	f.t.Helper()
	secrets := f.kube.CoreV1().Secrets(namespace)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: data}
	if _, err := secrets.Update(f.t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		_, err = secrets.Create(f.t.Context(), secret, metav1.CreateOptions{})
		must(f.t, err)
	}
}

func (f *fixture) key(namespace string, key repository.Key) {
	f.secret(enginev1alpha1.KeysNamespace(system), enginev1alpha1.KeySecretName(namespace), map[string][]byte{enginev1alpha1.KeySecretKey: []byte(key)})
}

// answer has requests answered by do, until it is called with nil.
func (f *fixture) answer(do func(w http.ResponseWriter, r *http.Request) bool) {
	if do == nil {
		f.on.Store(nil)
		return
	}
	f.on.Store(&do)
}

// secrets are all that there are.
func (f *fixture) secrets(ctx context.Context) ([]corev1.Secret, error) {
	list, err := f.kube.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// open is how many repositories are.
func (f *fixture) open() int {
	f.t.Helper()
	left, err := os.ReadDir(f.workDir)
	must(f.t, err)
	return len(left)
}

func (f *fixture) eventually(what string, done func() bool) {
	f.t.Helper()
	for range 12_000 {
		if done() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	f.t.Fatal(what)
}

// use uses a repository for work that is asked for now.
func (f *fixture) use(name string, do func(ctx context.Context, r *repository.Repository) error) error {
	f.t.Helper()
	return f.Use(f.t.Context(), name, f.secrets, f.clock.Now(), do)
}

func nothing(context.Context, *repository.Repository) error { return nil }

// put stores a manifest, and found is how many there are.
func put(ctx context.Context, r *repository.Repository) error {
	return repo.WriteSession(ctx, r.Kopia(), repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		_, err := w.PutManifest(ctx, map[string]string{manifest.TypeLabelKey: "test"}, "payload")
		return err
	})
}

func found(ctx context.Context, t *testing.T, r *repository.Repository) int {
	t.Helper()
	entries, err := r.Kopia().FindManifests(ctx, map[string]string{manifest.TypeLabelKey: "test"})
	must(t, err)
	return len(entries)
}

// other does something with a client of its own.
func (f *fixture) other(do func(ctx context.Context, r *repository.Repository) error) {
	f.t.Helper()
	r, err := repository.Open(f.t.Context(), f.where, app, password, repository.Options{})
	must(f.t, err)
	must(f.t, errors.Join(do(f.t.Context(), r), r.Close(f.t.Context())))
}

// All work of a repository has one opening, whether it comes at once or later, and of
// what waits from the beginning only the first looks at the store.
func TestShared(t *testing.T) {
	f := newFixture(t)
	asked := f.clock.Now()
	var users, most atomic.Int64
	work := func(ctx context.Context, r *repository.Repository) error {
		now := users.Add(1)
		for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
		}
		defer users.Add(-1)
		return put(ctx, r)
	}
	var volumes sync.WaitGroup
	for range 10 {
		volumes.Go(func() {
			if err := f.Use(t.Context(), app, f.secrets, asked, work); err != nil {
				t.Error(err)
			}
		})
	}
	volumes.Wait()
	opening := f.lists.Load()
	for range 20 {
		must(t, f.Use(t.Context(), app, f.secrets, asked, nothing))
	}
	if formats, lists := f.formats.Load(), f.lists.Load(); formats != 1 || lists != opening {
		t.Errorf("%d keys were derived for 30 volumes, and the last 20 took %d listings", formats, lists-opening)
	}
	if most.Load() < 2 || f.open() != 1 {
		t.Errorf("at most %d used it at once, and %d are open", most.Load(), f.open())
	}
	// One of those that were asked for later looks for all of them.
	f.clock.Step(time.Second)
	asked = f.clock.Now()
	f.other(put)
	f.clock.Step(time.Second)
	f.formats.Store(0)
	f.lists.Store(0)
	for range 20 {
		must(t, f.Use(t.Context(), app, f.secrets, asked, func(ctx context.Context, r *repository.Repository) error {
			if got := found(ctx, t, r); got != 11 {
				t.Errorf("%d of the 11 manifests are visible", got)
			}
			return nil
		}))
	}
	if formats, lists := f.formats.Load(), f.lists.Load(); formats != 0 || lists == 0 || lists > 8 {
		t.Errorf("%d keys were derived, with %d listings", formats, lists)
	}
}

// What uses a repository goes on when the key of its bucket is replaced, and the former one is
// refused: each user's Secrets will do.
func TestSharedFollowsTheCredentials(t *testing.T) {
	f := newFixture(t)
	var valid atomic.Pointer[string]
	rotate := func(key string) {
		valid.Store(&key)
		f.secret(enginev1alpha1.CredentialsNamespace(system), "credentials", map[string][]byte{store.SecretAccessKeyID: []byte(key), store.SecretSecretAccessKey: []byte("key")})
	}
	rotate("first")
	f.answer(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.Header.Get("Authorization"), "Credential="+*valid.Load()+"/") {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte("<Error><Code>InvalidAccessKeyId</Code></Error>"))
		return true
	})
	must(t, f.use(app, func(ctx context.Context, r *repository.Repository) error {
		must(t, put(ctx, r))
		rotate("second")
		return put(ctx, r)
	}))
}

// The repositories of a location lie in the store that it has had, and in no other one.
func TestRepositoriesOfAnotherStore(t *testing.T) {
	f := newFixture(t)
	bucket, err := store.Open(t.Context(), &f.where.Spec, f.where.Secret)
	must(t, err)
	defer bucket.Close()
	id, err := bucket.Identify(t.Context(), time.Now())
	must(t, err)
	is := func(id string) *enginev1alpha1.StorageLocation {
		location := &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}, Spec: f.where.Spec}
		location.Status.StoreID = id
		return location
	}
	must(t, f.locations.Update(is(id)))
	must(t, f.use(app, put))
	must(t, f.locations.Update(is("another")))
	if err := f.use(app, put); !errors.Is(err, store.ErrOther) || !strings.Contains(err.Error(), id) {
		t.Errorf("the repository in another store: %v", err)
	}
	where, err := opener.Where(t.Context(), f.kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(system)), is("another"))
	must(t, err)
	if err := repository.Create(t.Context(), where, "new", password); !errors.Is(err, store.ErrOther) {
		t.Errorf("a new repository in another store: %v", err)
	}
	if err := repository.ChangeKey(t.Context(), where, app, password, "new key"); !errors.Is(err, store.ErrOther) {
		t.Errorf("another key in another store: %v", err)
	}
}

// What an opening depends on is looked at by each use, and an old one is used by nobody
// else when that changes, also while it is in use.
func TestSharedOfWhatHasChanged(t *testing.T) {
	f := newFixture(t)
	other := repository.Location{Spec: f.where.Spec, Secret: map[string][]byte{store.SecretAccessKeyID: []byte("rotated"), store.SecretSecretAccessKey: []byte("key")}}
	used := atomic.Pointer[string]{}
	f.answer(func(_ http.ResponseWriter, r *http.Request) bool {
		by := r.Header.Get("Authorization")
		used.Store(&by)
		return false
	})
	must(t, f.use(app, func(ctx context.Context, _ *repository.Repository) error {
		f.secret(enginev1alpha1.CredentialsNamespace(system), "credentials", other.Secret)
		must(t, f.use(app, put))
		if by := *used.Load(); !strings.Contains(by, "Credential=rotated/") {
			t.Errorf("after the rotation the store was asked by %q", by)
		}
		return ctx.Err() // it goes on
	}))
	if got := f.open(); got != 1 {
		t.Errorf("%d are open", got)
	}
	f.record(app, "2")
	must(t, f.use(app, nothing))
	if got := f.formats.Load(); got != 3 {
		t.Errorf("it was opened %d times, want once for each change", got)
	}
	f.key(app, "another")
	if err := f.use(app, nothing); !errors.Is(err, repository.ErrWrongKey) {
		t.Errorf("with another key: %v", err)
	}
	f.key(app, password)
	must(t, f.use(app, nothing))
	f.eventually("what was changed stays open", func() bool { return f.open() == 1 })
	before := f.formats.Load()
	must(t, f.records.Update(&enginev1alpha1.VolumeRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: app, UID: "2"},
		Spec:       enginev1alpha1.VolumeRepositorySpec{VolumeNamespace: app, BackupStorageLocation: "default"},
		Status:     enginev1alpha1.VolumeRepositoryStatus{Damage: &enginev1alpha1.RepositoryDamage{MissingPacks: 1}},
	}))
	must(t, f.use(app, nothing))
	if got := f.formats.Load(); got != before+1 {
		t.Errorf("after the loss of packs it was opened %d times more, want once", got-before)
	}
	if err := f.use("unknown", nothing); err == nil {
		t.Error("there is a repository without a record")
	}
}

// A repository that was replaced, or is gone, is not used, nor one whose work has failed.
func TestSharedThatHasFailed(t *testing.T) {
	f := newFixture(t)
	must(t, f.use(app, nothing))
	failure := errors.New("it failed")
	must(t, f.use(app, func(ctx context.Context, _ *repository.Repository) error {
		if err := f.use(app, func(context.Context, *repository.Repository) error { return failure }); !errors.Is(err, failure) {
			t.Errorf("Use = %v", err)
		}
		must(t, f.use(app, nothing))
		if got := f.formats.Load(); got != 2 {
			t.Errorf("after a failure it was opened %d times in all", got)
		}
		return ctx.Err()
	}))

	// A listing that fails would be tried without end.
	f.answer(func(w http.ResponseWriter, r *http.Request) bool {
		refused := r.URL.Query().Get("list-type") != ""
		if refused {
			w.WriteHeader(http.StatusForbidden)
		}
		return refused
	})
	if err := f.use(app, put); err == nil || !strings.Contains(err.Error(), "denies access") {
		t.Errorf("a store that does not list: %v", err)
	}
	f.clock.Step(time.Second)
	if err := f.use(app, nothing); err == nil || !strings.Contains(err.Error(), "denies access") {
		t.Errorf("a store that does not list: %v", err)
	}
	f.answer(nil)
	must(t, f.use(app, nothing))

	f.wipe()
	f.clock.Step(time.Second)
	if err := f.use(app, nothing); !errors.Is(err, repository.ErrNotInitialized) {
		t.Errorf("a repository that is gone: %v", err)
	}
	must(t, repository.Create(t.Context(), f.where, app, password))
	must(t, f.use(app, put))
	f.wipe()
	must(t, repository.Create(t.Context(), f.where, app, password))
	f.clock.Step(time.Second)
	must(t, f.use(app, func(ctx context.Context, r *repository.Repository) error {
		if got := found(ctx, t, r); got != 0 {
			t.Errorf("%d manifests are in a new repository", got)
		}
		return put(ctx, r)
	}))
	f.other(func(ctx context.Context, r *repository.Repository) error {
		if got := found(ctx, t, r); got != 1 {
			t.Errorf("others see %d manifests", got)
		}
		return nil
	})
	if got := f.open(); got != 1 {
		t.Errorf("%d are open", got)
	}
}

// wipe removes the repository from the store.
func (f *fixture) wipe() {
	f.t.Helper()
	bucket, err := store.Open(f.t.Context(), &f.where.Spec, f.where.Secret)
	must(f.t, err)
	defer bucket.Close()
	for object, err := range bucket.List(f.t.Context(), repository.Folder("", app), store.ListOptions{Recursive: true}) {
		must(f.t, err)
		must(f.t, bucket.Remove(f.t.Context(), object.Key))
	}
}

// Of those who come at once one opens. It is given up when nobody waits any more, and
// goes on for those who do. Its failure is told to all of them, and to nobody else.
func TestSharedWhileItIsOpened(t *testing.T) {
	f := newFixture(t)
	asked, answer := make(chan struct{}, 100), make(chan int)
	var handling atomic.Int32
	f.answer(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/kopia.repository") {
			return false
		}
		handling.Add(1)
		defer handling.Add(-1)
		asked <- struct{}{}
		status := 0
		select {
		case status = <-answer:
		case <-r.Context().Done():
		}
		if status != 0 {
			w.WriteHeader(status)
		}
		return status != 0
	})
	first, cancel := context.WithCancel(t.Context())
	results := make(chan error, 10)
	use := func(ctx context.Context) {
		go func() { results <- f.Use(ctx, app, f.secrets, f.clock.Now(), nothing) }()
	}

	use(first)
	<-asked
	cancel()
	if err := <-results; !errors.Is(err, context.Canceled) {
		t.Errorf("the only one is told %v", err)
	}
	f.eventually("what nobody waits for goes on", func() bool { return f.open() == 0 && handling.Load() == 0 })

	first, cancel = context.WithCancel(t.Context())
	use(first)
	<-asked
	for range 3 {
		use(t.Context())
	}
	f.eventually("the others don't wait for the same opening", func() bool { return f.Users(app) == 4 })
	cancel()
	if err := <-results; !errors.Is(err, context.Canceled) {
		t.Errorf("the first is told %v", err)
	}
	answer <- http.StatusForbidden
	for range 3 {
		if err := <-results; err == nil || !strings.Contains(err.Error(), "denies access") {
			t.Errorf("another one is told %v", err)
		}
	}
	f.answer(nil)
	must(t, f.use(app, nothing))
	if len(asked) != 0 {
		t.Errorf("the store was asked %d times more", len(asked))
	}
}

// What is not used makes room, after a while or for others, and at the end.
func TestSharedIsClosed(t *testing.T) {
	namespaces := []string{"a", "b", "c", "d"}
	f := newFixture(t, namespaces...)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { f.Run(ctx); close(ended) }()
	f.eventually("Run does not run", f.clock.HasWaiters)
	for _, name := range append(namespaces, app) {
		must(t, f.use(name, nothing))
		f.clock.Step(time.Second)
	}
	if got := f.open(); got != 4 {
		t.Errorf("%d are open of 5", got)
	}
	f.formats.Store(0)
	must(t, f.use("b", nothing))
	must(t, f.use("a", nothing)) // which was not used for the longest time
	if got := f.formats.Load(); got != 1 {
		t.Errorf("%d were opened again", got)
	}
	must(t, f.use(app, func(ctx context.Context, r *repository.Repository) error {
		f.clock.Step(2 * time.Minute)
		f.eventually("they stay open", func() bool { return f.open() == 1 })
		cancel()
		<-ended
		if f.open() != 1 {
			t.Error("it was closed while it is used")
		}
		return put(context.WithoutCancel(ctx), r)
	}))
	if f.open() != 0 {
		t.Error("it is open after the end")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A repository whose indexes take what others need is measured once for all who use it at
// once, and closed when nobody does. Without that memory it is not used.
func TestLargeIndexes(t *testing.T) {
	f := newFixture(t)
	must(t, f.use(app, put))
	f.clock.Step(time.Hour)
	must(t, f.use(app, nothing)) // with the index of what was put
	before := f.open()
	var measured, taken atomic.Int64
	f.Indexes = func(_ context.Context, bytes int64) (func(), error) {
		if measured.Add(1); bytes == 0 {
			t.Error("the indexes have no bytes")
		}
		taken.Add(1)
		return func() { taken.Add(-1) }, nil
	}
	f.Shared = &opener.Shared{Repositories: f.Repositories, Locations: f.Locations, Options: f.Options, Indexes: f.Indexes, Clock: f.clock}
	must(t, f.use(app, func(context.Context, *repository.Repository) error { return f.use(app, nothing) }))
	if measured.Load() != 1 || taken.Load() != 0 || f.open() != before {
		t.Errorf("measured %d times, %d taken, %d open", measured.Load(), taken.Load(), f.open())
	}
	f.Indexes = func(context.Context, int64) (func(), error) { return nil, context.Canceled }
	if err := f.use(app, nothing); !errors.Is(err, context.Canceled) || f.open() != before {
		t.Errorf("without memory: %v, and %d are open", err, f.open())
	}
}
