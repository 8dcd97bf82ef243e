// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	clusteridentity "github.com/holdfast-io/holdfast/pkg/identity"
)

// Whoever makes a namespace anew gets nothing of the one before: not what is stored, and
// not what waits, runs, or has just ended.
func TestANamespaceThatIsMadeAnewGetsNothing(t *testing.T) {
	f := newFixture(t, "shop")
	namespace := func(uid string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", UID: types.UID(uid)}}
	}
	f.namespaceChanged(namespace("first"))
	waiting := f.run("shop", "waiting", queued(1), "shop")
	ended := f.run("shop", "ended", enginev1alpha1.BackupRunStatus{
		Phase: v1alpha1.BackupPhaseCompleted, Stored: true, CompletionTimestamp: &metav1.Time{Time: time.Unix(2000, 0)},
	}, "shop")
	for _, run := range []*enginev1alpha1.BackupRun{waiting, ended} {
		run.Spec.NamespaceUID = "first"
		f.Observe(run)
	}
	f.stores.catalog.Put("default", "shop.ended", catalog.Content{Backup: storedOf(ended)}, time.Unix(3000, 0))
	watcher, err := f.Backups.Watch(t.Context(), "/holdfast.io/backups", storage.ListOptions{
		ResourceVersion: f.backup("shop", "ended").ResourceVersion, Recursive: true, Predicate: storage.Everything,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	listed := func(namespace, prefix string) string {
		f.mustPublish()
		var found []string
		for _, name := range []string{"waiting", "ended"} {
			if f.backup(namespace, prefix+name) != nil {
				found = append(found, name)
			}
			if _, waits := f.Queue.GetObject(namespace, prefix+name); waits {
				found = append(found, name+" in the queue")
			}
		}
		return strings.Join(found, ", ")
	}
	const all = "waiting, waiting in the queue, ended"
	expect := func(when, inShop, inSystem string) {
		t.Helper()
		if shop, system := listed("shop", ""), listed(system, "shop."); shop != inShop || system != inSystem {
			t.Errorf("%s: in the namespace %q, want %q; in the system namespace %q, want %q", when, shop, inShop, system, inSystem)
		}
	}
	expect("at first", all, "")
	f.namespaceGone(namespace("first"))
	expect("without the namespace", all, "")
	f.namespaceChanged(namespace("second"))
	expect("made anew", "", all)
	if moved := f.backup(system, "shop.waiting"); moved.UID != waiting.UID || moved.Status.Origin.Namespace != "shop" || moved.Status.Origin.Message == "" {
		t.Errorf("it is shown as %+v", moved)
	}
	seen := map[string]string{}
	for len(seen) < 4 {
		select {
		case event := <-watcher.ResultChan():
			backup := event.Object.(*v1alpha1.Backup)
			seen[backup.Namespace+"/"+backup.Name] = string(event.Type)
		case <-t.Context().Done():
			t.Fatalf("seen are %v", seen)
		}
	}
	for name, kind := range map[string]string{"shop/waiting": "DELETED", "shop/ended": "DELETED", "holdfast/shop.waiting": "ADDED", "holdfast/shop.ended": "ADDED"} {
		if seen[name] != kind {
			t.Errorf("of %s the watch says %s, want %s", name, seen[name], kind)
		}
	}

	f.setSuccessions(clusteridentity.Successions{"shop": {{"first", "second"}}})
	expect("it continues the first", all, "")
	f.setSuccessions(clusteridentity.Successions{"shop": {{"other", "second"}}})
	expect("it continues another", "", all)

	f.removed(waiting)
	expect("without its record", "", "ended")
	mine := f.run("shop", "waiting", queued(2), "shop")
	mine.UID, mine.Spec.NamespaceUID = "mine", "second"
	f.Observe(mine)
	expect("with one of the new namespace", "waiting, waiting in the queue", "ended")
}
