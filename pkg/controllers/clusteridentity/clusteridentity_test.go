// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package clusteridentity

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
)

const system = "holdfast"

func init() {
	// The handlers behind the first one slow callers down by the time since the last
	// error: in a synctest bubble, where time starts anew, by decades.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
}

func TestOneKeyIsMade(t *testing.T) {
	kube := kubefake.NewClientset()
	secrets := kube.CoreV1().Secrets(system)
	var mu sync.Mutex
	keys := map[string]bool{}
	var racing sync.WaitGroup
	for range 16 {
		racing.Go(func() {
			key, err := Key(t.Context(), secrets)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			keys[key.PublicKey()] = true
		})
	}
	racing.Wait()
	if len(keys) != 1 {
		t.Errorf("%d keys were made", len(keys))
	}
	secret, err := secrets.Get(t.Context(), SecretName, metav1.GetOptions{})
	if err != nil || secret.Immutable == nil || !*secret.Immutable || len(secret.OwnerReferences) > 0 || secret.Labels["velero.io/exclude-from-backup"] != "true" {
		t.Errorf("stored: %+v, %v", secret, err)
	}
}

func TestAKeyThatCannotBeUsed(t *testing.T) {
	kube := kubefake.NewClientset(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: SecretName},
		Data:       map[string][]byte{SecretKey: []byte("half of a secret")},
	})
	_, err := Key(t.Context(), kube.CoreV1().Secrets(system))
	if err == nil || !strings.Contains(err.Error(), SecretName) || strings.Contains(err.Error(), "half of") {
		t.Errorf("got %v", err)
	}
	denied := errors.New("denied")
	kube.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, denied })
	if _, err := Key(t.Context(), kube.CoreV1().Secrets(system)); !errors.Is(err, denied) {
		t.Errorf("got %v", err)
	}
}

// What people and programs read is put back when it is gone, and a new key joins the
// ones before it.
func TestTheIdentityIsPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := kubefake.NewClientset()
		configMaps := kube.CoreV1().ConfigMaps(system)
		run := func(key *format.SigningKey) (stop func()) {
			factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(system))
			c, err := New(format.Cluster{UID: "cluster", Key: key}, configMaps, factory.Core().V1().ConfigMaps().Informer(), clock.RealClock{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			factory.StartWithContext(ctx)
			var running sync.WaitGroup
			running.Go(func() { c.Run(ctx) })
			return func() { cancel(); running.Wait(); factory.Shutdown() }
		}
		published := func() identity.Identity {
			time.Sleep(time.Minute) // the bubble's
			stored, err := configMaps.Get(t.Context(), identity.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return identity.Of(stored)
		}
		first, err := Key(t.Context(), kube.CoreV1().Secrets(system))
		if err != nil {
			t.Fatal(err)
		}
		stop := run(first)
		if got := published(); got.UID != "cluster" || len(got.Keys) != 1 || got.Keys[0] != first.PublicKey() {
			t.Errorf("published %+v", got)
		}

		failures := 2
		kube.PrependReactor("create", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			failures--
			return failures >= 0, nil, errors.New("passing")
		})
		if err := configMaps.Delete(t.Context(), identity.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := published(); len(got.Keys) != 1 || got.Keys[0] != first.PublicKey() {
			t.Errorf("put back as %+v", got)
		}
		stop()

		// The Secret is lost.
		if err := kube.CoreV1().Secrets(system).Delete(t.Context(), SecretName, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		second, err := Key(t.Context(), kube.CoreV1().Secrets(system))
		if err != nil {
			t.Fatal(err)
		}
		stop = run(second)
		if got := published(); len(got.Keys) != 2 || got.Keys[0] != second.PublicKey() || got.Keys[1] != first.PublicKey() {
			t.Errorf("with a new key: %+v", got)
		}
		stop()
	})
}
