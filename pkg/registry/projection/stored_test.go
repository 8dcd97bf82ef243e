// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/format"
	enginefake "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/fake"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	clusteridentity "github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

// start returns a Projector that runs until the test ends, on what a clientset has.
func start(t *testing.T, clientset *enginefake.Clientset) *Projector {
	t.Helper()
	p, stop := boot(t, clientset, time.Hour)
	t.Cleanup(stop)
	return p
}

// boot starts a Projector on what a clientset has.
func boot(t *testing.T, clientset *enginefake.Clientset, poll time.Duration) (*Projector, func()) {
	t.Helper()
	return bootWith(t, clientset, poll, nil)
}

func bootWith(t *testing.T, clientset *enginefake.Clientset, poll time.Duration, secrets location.Secrets) (*Projector, func()) {
	t.Helper()
	return bootOn(t, clientset, poll, secrets, "")
}

// bootOn keeps what is read in a folder, if there is one.
func bootOn(t *testing.T, clientset *enginefake.Clientset, poll time.Duration, secrets location.Secrets, cacheDir string) (*Projector, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	engine := enginefactory.NewSharedInformerFactory(clientset, 0)
	kube := informers.NewSharedInformerFactory(kubefake.NewClientset(), 0)
	own := informers.NewSharedInformerFactory(kubefake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: clusteridentity.Name}, Data: map[string]string{clusteridentity.ClusterUIDKey: "here"},
	}), 0)
	if cacheDir == "" {
		own = kube // of which nothing is kept
	}
	p, err := New(Config{
		SystemNamespace: system,
		PollInterval:    poll,
		CacheDir:        cacheDir,
		Secrets:         secrets,
		Clock:           clock.RealClock{},
		Runs:            engine.Engine().V1alpha1().BackupRuns(),
		Restores:        engine.Engine().V1alpha1().RestoreRuns(),
		Changes:         engine.Engine().V1alpha1().BackupChanges(),

		FormerExpirations: engine.Engine().V1alpha1().ExpirationChanges(),
		FormerDeletions:   engine.Engine().V1alpha1().VolumeDeletions(),
		Locations:         engine.Engine().V1alpha1().StorageLocations(),
		Namespaces:        kube.Core().V1().Namespaces(),
		Ledger:            kube.Core().V1().ConfigMaps().Informer(),
		Identity:          own.Core().V1().ConfigMaps().Informer(),
	})
	if err != nil {
		t.Fatal(err)
	}
	engine.StartWithContext(ctx)
	kube.StartWithContext(ctx)
	own.StartWithContext(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Run(ctx)
	}()
	return p, func() {
		cancel()
		<-done
		engine.Shutdown()
		kube.Shutdown()
		own.Shutdown()
	}
}

// A store that is back is read at once, and not when its next turn comes.
func TestAStoreThatIsBackIsReadAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "store")
		record := &enginev1alpha1.StorageLocation{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"},
			Spec:       enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: path}},
		}
		clientset := enginefake.NewSimpleClientset(record)
		p := start(t, clientset)

		time.Sleep(24 * time.Hour) // until it is tried once an hour
		if warnings := p.stores.refresher.Warnings(); len(warnings) != 1 || !strings.Contains(warnings[0], "it could not be read") {
			t.Fatalf("without a folder: %q", warnings)
		}
		time.Sleep(time.Minute)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		record = record.DeepCopy()
		record.Status.Conditions = []metav1.Condition{{Type: enginev1alpha1.ConditionAvailable, Status: metav1.ConditionTrue}}
		if _, err := clientset.EngineV1alpha1().StorageLocations(system).UpdateStatus(t.Context(), record, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if warnings := p.stores.refresher.Warnings(); len(warnings) > 0 {
			t.Errorf("as it is back: %q", warnings)
		}
	})
}

// hangs are Secrets that can't be read before the end, whatever the reader's context says.
type hangs struct{ end <-chan struct{} }

func (h hangs) Get(context.Context, string, metav1.GetOptions) (*corev1.Secret, error) {
	<-h.end
	return nil, errors.New("it is over")
}

// oneHangs are an empty location, and one whose Secret hangs.
func oneHangs(t *testing.T) []runtime.Object {
	return []runtime.Object{&enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"},
		Spec: enginev1alpha1.StorageLocationSpec{
			Provider:   enginev1alpha1.StorageProviderFilesystem,
			Filesystem: &enginev1alpha1.FilesystemLocation{Path: t.TempDir()},
		},
	}, &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "dead"},
		Spec: enginev1alpha1.StorageLocationSpec{
			Provider: enginev1alpha1.StorageProviderS3,
			S3:       &enginev1alpha1.S3Location{Bucket: "b", CredentialsSecret: "hangs"},
		},
	}}
}

// Live work does not wait for a store that never answers, readiness does not wait for
// ever, and until then nobody is told that he has seen all.
func TestLiveWorkDoesNotWaitForStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		defer close(end)
		run := (&fixture{t: t}).run(system, "live", running, "shop")
		p, stop := bootWith(t, enginefake.NewSimpleClientset(append(oneHangs(t), run)...), time.Minute, hangs{end})
		defer func() { go stop() }() // it waits for what hangs

		prefix := logstore.Prefix(v1alpha1.Resource("backups"))
		list := func(options storage.ListOptions) (names []string, warnings []string, err error) {
			options.Recursive, options.Predicate = true, storage.Everything
			recorder := &recorder{}
			list := &v1alpha1.BackupList{}
			err = p.Backups.GetList(warning.WithWarningRecorder(t.Context(), recorder), prefix, options, list)
			for _, backup := range list.Items {
				names = append(names, backup.Name)
			}
			return names, recorder.texts, err
		}
		time.Sleep(time.Second)
		names, warnings, err := list(storage.ListOptions{})
		if err != nil || !slices.Equal(names, []string{"live"}) || len(warnings) != 1 || warnings[0] != incomplete {
			t.Errorf("the list at once: %v, %v, warnings %q", names, err, warnings)
		}
		for _, version := range []string{"0", "12345"} {
			if _, _, err := list(storage.ListOptions{ResourceVersion: version}); !apierrors.IsTooManyRequests(err) {
				t.Errorf("an informer's list from version %s: %v", version, err)
			}
		}
		get := func(name string) error {
			return p.Backups.Get(t.Context(), prefix+system+"/"+name, storage.GetOptions{}, &v1alpha1.Backup{})
		}
		if err := get("live"); err != nil {
			t.Errorf("getting what is live: %v", err)
		}
		if err := get("perhaps-stored"); !apierrors.IsTooManyRequests(err) {
			t.Errorf("getting what may be stored: %v", err)
		}
		yes := true
		predicate := storage.Everything
		predicate.AllowWatchBookmarks = true
		watcher, err := p.Backups.Watch(t.Context(), prefix, storage.ListOptions{SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, Recursive: true, Predicate: predicate})
		if err != nil {
			t.Fatal(err)
		}
		defer watcher.Stop()
		if event := <-watcher.ResultChan(); event.Type != watch.Added {
			t.Errorf("the first event is %v", event)
		}
		if p.Ready() == nil {
			t.Error("ready before the store does not count any more")
		}
		begin := time.Now()
		if event := <-watcher.ResultChan(); event.Type != watch.Bookmark || time.Since(begin) < 20*time.Second {
			t.Errorf("after %s there is %v", time.Since(begin), event)
		}
		synctest.Wait() // the other resources
		if waited := time.Since(begin); waited > time.Minute || p.Ready() != nil {
			t.Errorf("after %s: %v", waited, p.Ready())
		}
		names, warnings, err = list(storage.ListOptions{ResourceVersion: "0"})
		if err != nil || !slices.Equal(names, []string{"live"}) || len(warnings) != 1 || warnings[0] != incomplete {
			t.Errorf("the list after that: %v, %v, warnings %q", names, err, warnings)
		}
		if err := get("perhaps-stored"); !storage.IsNotFound(err) {
			t.Errorf("getting what can't be known: %v", err)
		}
	})
}

// The lists of volumes are not served before there are some, or there are none for all that can
// be known, and then in part.
func TestVolumesAreServedFromTheFirstOneOn(t *testing.T) {
	for _, some := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			end := make(chan struct{})
			defer close(end)
			p, stop := bootWith(t, enginefake.NewSimpleClientset(oneHangs(t)...), time.Minute, hangs{end})
			defer func() { go stop() }() // it waits for what hangs
			volumes, volumeBackups := &v1alpha1.BackupVolumeList{}, &v1alpha1.VolumeBackupList{}
			lists := map[string]func(context.Context, storage.ListOptions) error{
				"backupvolumes": func(ctx context.Context, options storage.ListOptions) error {
					return p.Volumes.GetList(ctx, logstore.Prefix(v1alpha1.Resource("backupvolumes")), options, volumes)
				},
				"volumebackups": func(ctx context.Context, options storage.ListOptions) error {
					return p.VolumeBackups.GetList(ctx, logstore.Prefix(v1alpha1.Resource("volumebackups")), options, volumeBackups)
				},
			}
			options := storage.ListOptions{Recursive: true, Predicate: storage.Everything}
			wait := func(when string) {
				t.Helper()
				for resource, list := range lists {
					if err := list(t.Context(), options); !apierrors.IsTooManyRequests(err) {
						t.Errorf("%s %s are answered with %v", when, resource, err)
					}
				}
			}
			time.Sleep(time.Second)
			wait("before anything is there")
			content := catalog.Content{Backup: storedOf((&fixture{t: t}).run(system, "daily", enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseCompleted, Stored: true}))}
			p.stores.catalog.Put("default", "daily", content, time.Now())
			wait("with a backup of no volume")
			rows := 0
			if some {
				rows = 1
				content.Volumes = []catalog.Volume{{Namespace: "shop", ClaimName: "data", State: v1alpha1.VolumeBackupCompleted}}
				p.stores.catalog.Put("default", "daily", content, time.Now())
			} else {
				time.Sleep(time.Minute) // until nothing is expected of the store that hangs
			}
			for resource, list := range lists {
				recorder := &recorder{}
				err := list(warning.WithWarningRecorder(t.Context(), recorder), options)
				if err != nil || len(recorder.texts) != 1 || recorder.texts[0] != incomplete {
					t.Errorf("%s: %v, warnings %q", resource, err, recorder.texts)
				}
			}
			if len(volumes.Items) != rows || len(volumeBackups.Items) != rows {
				t.Errorf("there are %d and %d, not %d", len(volumes.Items), len(volumeBackups.Items), rows)
			}
		})
	}
}

// Another writer in a store is the business of those who see all of it, and nobody else's lists
// are incomplete for that.
func TestReplacedMetadataIsNoDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, stop := boot(t, enginefake.NewSimpleClientset(oneHangs(t)[0]), time.Minute)
		defer stop()
		time.Sleep(time.Second) // until the store is listed
		content := catalog.Content{Backup: storedOf((&fixture{t: t}).run(system, "daily", enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseCompleted, Stored: true})), Replaced: "by Velero"}
		p.stores.catalog.Put("default", "daily", content, time.Now())
		told := func() []string {
			recorder := &recorder{}
			ctx := genericapirequest.WithUser(warning.WithWarningRecorder(t.Context(), recorder), &user.DefaultInfo{Name: "somebody"})
			p.stores.warn("backups")(ctx)
			return recorder.texts
		}
		if texts := told(); len(texts) != 0 {
			t.Errorf("a tenant is told %q", texts)
		}
		p.stores.authorizer = authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionAllow, "", nil
		})
		if texts := told(); len(texts) != 1 || !strings.Contains(texts[0], `"default": another writer`) {
			t.Errorf("an administrator is told %q", texts)
		}
	})
}

// Restores whose records are gone are judged again when what locations trust changes, and not by
// each change of a location's status.
func TestPastRestoresAreJudgedWhenTrustChanges(t *testing.T) {
	f := newFixture(t)
	judged := &judgedPast{}
	f.stores.past = judged
	location := &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       enginev1alpha1.StorageLocationSpec{Filesystem: &enginev1alpha1.FilesystemLocation{Path: "/none"}},
	}
	for i, want := range []int{1, 1, 2} {
		location = location.DeepCopy()
		location.ResourceVersion = strconv.Itoa(i)
		if i == 2 {
			location.Spec.TrustedClusters = []enginev1alpha1.TrustedCluster{{Name: "there", UID: "there"}}
		}
		if err := f.stores.set([]*enginev1alpha1.StorageLocation{location}); err != nil {
			t.Fatal(err)
		}
		if judged.times != want {
			t.Errorf("change %d: they were judged %d times, want %d", i, judged.times, want)
		}
	}
}

type judgedPast struct {
	PastRestores
	times int
}

func (*judgedPast) SetLocations(map[string]string) {}
func (p *judgedPast) JudgeAgain(string)            { p.times++ }

func (p *judgedPast) SetSuccessions(clusteridentity.Successions) { p.times++ }

// recorder keeps warnings.
type recorder struct{ texts []string }

func (r *recorder) AddWarning(_, text string) { r.texts = append(r.texts, text) }

// What was asked for counts from when it is recorded, until the catalogue has it from the
// store, and then what the store says.
func TestChangesOfExpirationsAreShown(t *testing.T) {
	f := newFixture(t, "shop")
	run := f.run("shop", "daily", enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseCompleted, Stored: true})
	at := func(year int) *metav1.Time { return &metav1.Time{Time: time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)} }
	put := func(changes ...format.Expiration) {
		backup := storedOf(run)
		backup.Status.Expiration = at(2030)
		f.stores.catalog.Put("default", "shop.daily", catalog.Content{Backup: backup, Changes: changes}, time.Unix(1, 0))
	}
	expect := func(when string, year int, held bool) {
		t.Helper()
		backup, ok := f.Backups.GetObject("shop", "daily")
		if !ok || backup.Status.Expiration.UTC().Year() != year || (backup.Status.Hold != nil) != held {
			t.Errorf("%s it is shown as %+v", when, backup)
		}
	}
	put()
	expect("at first", 2030, false)
	hold := true
	record := &enginev1alpha1.BackupChange{
		ObjectMeta: metav1.ObjectMeta{Name: "shop.daily", UID: "1", ResourceVersion: "1", Generation: 1},
		Spec: enginev1alpha1.BackupChangeSpec{BackupRef: v1alpha1.BackupReference{Namespace: "shop", Name: "daily"}, UID: run.UID,
			StorageLocation: "default", Hold: &hold, Expiration: at(2040)},
	}
	f.ObserveChange(record)
	expect("when it is recorded", 2040, true)
	done := record.DeepCopy()
	done.ResourceVersion, done.Status = "2", enginev1alpha1.BackupChangeStatus{ObservedGeneration: 1, Number: 3}
	f.ObserveChange(done)
	f.ObserveChange(record) // late
	expect("when it is in the store, unread", 2040, true)
	put(format.Expiration{Number: 2, Expiration: at(2031), ClusterUID: "cluster", PublicKey: "key"})
	expect("while an earlier one is read", 2040, true)
	put(format.Expiration{Number: 4, Expiration: at(2050), ClusterUID: "cluster", PublicKey: "key"})
	expect("when the store has a later one", 2050, false)
	f.changeGone(done)
	expect("without the record", 2050, false)

	other := record.DeepCopy()
	other.Spec.UID, other.UID = "another", "2"
	f.ObserveChange(other)
	expect("with a record of another backup of its name", 2050, false)
}

// A record of the previous version counts like a BackupChange, and with one in the order of the
// requests.
func TestFormerChangesOfExpirationsAreShown(t *testing.T) {
	f := newFixture(t, "shop")
	run := f.run("shop", "daily", enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseCompleted, Stored: true})
	at := func(year int) *metav1.Time { return &metav1.Time{Time: time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)} }
	backup := storedOf(run)
	backup.Status.Expiration = at(2030)
	f.stores.catalog.Put("default", "shop.daily", catalog.Content{Backup: backup}, time.Unix(1, 0))
	expect := func(when string, year int, held bool) {
		t.Helper()
		backup, ok := f.Backups.GetObject("shop", "daily")
		if !ok || backup.Status.Expiration.UTC().Year() != year || (backup.Status.Hold != nil) != held {
			t.Errorf("%s it is shown as %+v", when, backup)
		}
	}
	record := func(asked int, change func(*enginev1alpha1.BackupChangeSpec)) *enginev1alpha1.BackupChange {
		record := &enginev1alpha1.BackupChange{
			ObjectMeta: metav1.ObjectMeta{Name: "shop.daily", UID: "1", ResourceVersion: "1", Generation: 1},
			Spec: enginev1alpha1.BackupChangeSpec{BackupRef: v1alpha1.BackupReference{Namespace: "shop", Name: "daily"}, UID: run.UID,
				StorageLocation: "default", Ask: enginev1alpha1.Ask{Timestamp: *at(asked)}},
		}
		change(&record.Spec)
		return record
	}
	hold, release := true, false
	former := record(2001, func(spec *enginev1alpha1.BackupChangeSpec) { spec.Hold, spec.Expiration = &hold, at(2040) })
	f.observeExpiration(f.former, former)
	expect("with the former record", 2040, true)
	change := record(2002, func(spec *enginev1alpha1.BackupChangeSpec) { spec.Hold = &release })
	change.UID = "2"
	f.ObserveChange(change)
	expect("with a later one", 2040, false)
	f.changeGone(change)
	expect("without the later one", 2040, true)
	done := former.DeepCopy()
	done.ResourceVersion, done.Status = "2", enginev1alpha1.BackupChangeStatus{ObservedGeneration: 1, Message: "it is not in the store"}
	f.observeExpiration(f.former, done)
	expect("when it was refused", 2030, false)
}
