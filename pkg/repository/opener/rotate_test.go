// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package opener_test

import (
	"crypto/rand"
	"errors"
	"testing"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/recovery"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Wherever a rotation ends, what the Secret holds opens the repository, and so does what the store
// holds for a recovery key; when it is through, the former key does not; and one that was stopped
// goes on.
func TestRotate(t *testing.T) {
	const name = "app.default"
	stored := &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"},
		Spec:       enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: t.TempDir()}},
	}
	private, err := age.GenerateX25519Identity()
	must(t, err)
	stored.Spec.RecoveryKeys = []string{private.Recipient().String()}
	signing, err := format.NewSigningKey(rand.Reader)
	must(t, err)
	cluster := format.Cluster{UID: "cluster", Key: signing}
	where := repository.Location{Spec: stored.Spec}
	bucket, err := store.Open(t.Context(), &stored.Spec, nil)
	must(t, err)
	defer bucket.Close()
	must(t, recovery.Keep(t.Context(), bucket, recovery.Repository{Cluster: cluster, VolumeNamespace: app, Location: "default"}, password, stored.Spec.RecoveryKeys))
	var keys corev1client.SecretInterface
	// recovered fails unless the key that opens the repository is in the store.
	recovered := func(when string) {
		t.Helper()
		found, err := recovery.Find(t.Context(), bucket, func(err error) { t.Error(err) })
		must(t, err)
		stored := map[repository.Key]bool{}
		for _, wrapped := range found {
			key, err := recovery.Unwrap(&wrapped, []recovery.Identity{private})
			must(t, err)
			stored[key] = true
		}
		key, others, err := opener.Keys(t.Context(), keys, name)
		must(t, err)
		for _, key := range append([]repository.Key{key}, others...) {
			if repository.Opens(t.Context(), where, app, key) == nil {
				if !stored[key] {
					t.Errorf("%s: the key that opens the repository is not in the store", when)
				}
				return
			}
		}
	}
	must(t, repository.Create(t.Context(), where, app, password))
	kube := kubefake.NewClientset(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: enginev1alpha1.KeysNamespace(system), Name: enginev1alpha1.KeySecretName(name)},
		Data:       map[string][]byte{enginev1alpha1.KeySecretKey: []byte(password)},
	})
	keys = kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(system))
	lost := errors.New("killed here")
	fail, after := 0, false
	kube.PrependReactor("update", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if fail--; fail != 0 {
			return false, nil, nil
		}
		if after { // it was carried out, and nobody heard of it
			update := action.(clienttesting.UpdateAction)
			if err := kube.Tracker().Update(update.GetResource(), update.GetObject(), update.GetNamespace()); err != nil {
				return true, nil, err
			}
		}
		return true, nil, lost
	})
	opens := func(when string) repository.Key {
		t.Helper()
		recovered(when)
		opened, err := opener.OpenAt(t.Context(), nil, keys, stored, app, repository.Options{})
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		must(t, opened.Close(t.Context()))
		key, err := opener.Key(t.Context(), keys, name)
		must(t, err)
		return key
	}
	for _, stop := range []struct {
		at    int
		after bool
	}{{1, false}, {1, true}, {2, false}, {2, true}, {0, false}} {
		before := opens("before")
		fail, after = stop.at, stop.after
		err := opener.Rotate(t.Context(), nil, keys, stored, app, cluster)
		if stop.at > 0 && !errors.Is(err, lost) || stop.at == 0 && err != nil {
			t.Fatalf("stopped at %+v: %v", stop, err)
		}
		fail = 0
		opens("stopped")
		must(t, opener.Rotate(t.Context(), nil, keys, stored, app, cluster))
		key := opens("through")
		if key == before || key == password {
			t.Error("the key is as it was")
		}
		if _, err := repository.Open(t.Context(), where, app, before, repository.Options{}); !errors.Is(err, repository.ErrWrongKey) {
			t.Errorf("with the former key: %v", err)
		}
		opened, err := repository.Open(t.Context(), where, app, key, repository.Options{})
		must(t, err)
		must(t, opened.Close(t.Context()))
	}
	// Somebody who slept since the first one writes what was then.
	key, _, err := opener.Keys(t.Context(), keys, name)
	must(t, err)
	must(t, repository.ChangeKey(t.Context(), where, app, key, password))
	opens("with a format of long ago")
	must(t, opener.Rotate(t.Context(), nil, keys, stored, app, cluster))
	opens("rotated since")
	if _, err := repository.Open(t.Context(), where, app, password, repository.Options{}); !errors.Is(err, repository.ErrWrongKey) {
		t.Errorf("with the first key: %v", err)
	}
}
