// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/install"
	enginefake "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/fake"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
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
	ctx, cancel := context.WithCancel(context.Background())
	scheme := runtime.NewScheme()
	install.Install(scheme)
	engine := engineinformers.NewSharedInformerFactory(clientset, 0)
	kube := informers.NewSharedInformerFactory(kubefake.NewClientset(), 0)
	p, err := New(Config{
		Scheme:          scheme,
		SystemNamespace: system,
		PollInterval:    poll,
		Clock:           clock.RealClock{},
		Runs:            engine.Engine().V1alpha1().BackupRuns(),
		Locations:       engine.Engine().V1alpha1().BackupStorageLocations(),
		Namespaces:      kube.Core().V1().Namespaces(),
		Settings:        kube.Core().V1().ConfigMaps().Informer(),
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
		record := &enginev1alpha1.BackupStorageLocation{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"},
			Spec:       enginev1alpha1.BackupStorageLocationSpec{Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: path}},
		}
		clientset := enginefake.NewSimpleClientset(record)
		p := start(t, clientset)

		time.Sleep(24 * time.Hour) // until it is tried once an hour
		if state := p.refresher.States()["default"]; !state.Loaded || state.LastError == "" {
			t.Fatalf("without a folder: %+v", state)
		}
		time.Sleep(time.Minute)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		back := time.Now()
		record = record.DeepCopy()
		record.Status.Conditions = []metav1.Condition{{Type: enginev1alpha1.ConditionAvailable, Status: metav1.ConditionTrue}}
		if _, err := clientset.EngineV1alpha1().BackupStorageLocations(system).UpdateStatus(t.Context(), record, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if state := p.refresher.States()["default"]; state.LastError != "" || !state.LastSuccess.Equal(back) {
			t.Errorf("%s after it is back: %+v", time.Since(back), state)
		}
	})
}
