// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	enginefake "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/fake"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
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
	ctx, cancel := context.WithCancel(context.Background())
	engine := engineinformers.NewSharedInformerFactory(clientset, 0)
	kube := informers.NewSharedInformerFactory(kubefake.NewClientset(), 0)
	p, err := New(Config{
		SystemNamespace: system,
		PollInterval:    poll,
		Secrets:         secrets,
		Clock:           clock.RealClock{},
		Runs:            engine.Engine().V1alpha1().BackupRuns(),
		Locations:       engine.Engine().V1alpha1().StorageLocations(),
		Namespaces:      kube.Core().V1().Namespaces(),
		Ledger:          kube.Core().V1().ConfigMaps().Informer(),
		Identity:        kube.Core().V1().ConfigMaps().Informer(),
	})
	if err != nil {
		t.Fatal(err)
	}
	engine.StartWithContext(ctx)
	kube.StartWithContext(ctx)
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

// Live work does not wait for a store that never answers, readiness does not wait for
// ever, and until then nobody is told that he has seen all.
func TestLiveWorkDoesNotWaitForStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		defer close(end)
		run := (&fixture{t: t}).run(system, "live", running, "shop")
		p, stop := bootWith(t, enginefake.NewSimpleClientset(run, &enginev1alpha1.StorageLocation{
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
		}), time.Minute, hangs{end})
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

// recorder keeps warnings.
type recorder struct{ texts []string }

func (r *recorder) AddWarning(_, text string) { r.texts = append(r.texts, text) }
