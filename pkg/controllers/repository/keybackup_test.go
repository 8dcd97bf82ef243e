// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/recovery"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/store"
)

func testCluster(t *testing.T) format.Cluster {
	t.Helper()
	key, err := format.NewSigningKey(rand.Reader)
	must(t, err)
	return format.Cluster{UID: "cluster", Key: key}
}

// expectKey waits for the condition KeyBackedUp.
func (h *harness) expectKey(status metav1.ConditionStatus, reason string) metav1.Condition {
	h.t.Helper()
	var last *metav1.Condition
	err := wait.PollUntilContextTimeout(h.t.Context(), 5*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		last = meta.FindStatusCondition(h.record().Status.Conditions, enginev1alpha1.ConditionKeyBackedUp)
		return last != nil && last.Status == status && last.Reason == reason, nil
	})
	if err != nil {
		h.t.Fatalf("the condition is %v, want %s with reason %s", last, status, reason)
	}
	return *last
}

// setRecoveryKeys changes the location.
func (h *harness) setRecoveryKeys(identities ...*age.X25519Identity) {
	h.t.Helper()
	locations := h.engine.EngineV1alpha1().StorageLocations(system)
	location, err := locations.Get(h.t.Context(), "default", metav1.GetOptions{})
	must(h.t, err)
	location = location.DeepCopy()
	location.Generation++
	location.Spec.RecoveryKeys = nil
	for _, identity := range identities {
		location.Spec.RecoveryKeys = append(location.Spec.RecoveryKeys, identity.Recipient().String())
	}
	_, err = locations.Update(h.t.Context(), location, metav1.UpdateOptions{})
	must(h.t, err)
}

// recovered are the keys that the holder of a private key has from the store.
func (h *harness) recovered(identity *age.X25519Identity) (keys []repository.Key) {
	h.t.Helper()
	where := h.location()
	bucket, err := store.Open(h.t.Context(), &where.Spec, nil)
	must(h.t, err)
	defer bucket.Close()
	found, err := recovery.Find(h.t.Context(), bucket, func(err error) { h.t.Error(err) })
	must(h.t, err)
	for _, wrapped := range found {
		if key, err := recovery.Unwrap(&wrapped, []recovery.Identity{identity}); err == nil {
			keys = append(keys, key)
		}
	}
	return keys
}

func newIdentity(t *testing.T) *age.X25519Identity {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	must(t, err)
	return identity
}

// exported notes down that a key was exported.
func (h *harness) exported(fingerprint string) {
	h.t.Helper()
	_, err := h.engine.EngineV1alpha1().VolumeRepositories(system).Patch(h.t.Context(), name, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"holdfast.io/key-exported":"`+fingerprint+`"}}}`), metav1.PatchOptions{})
	must(h.t, err)
}

// TestKeyExported: without recovery keys the record says whether the present key was exported,
// and the metric counts those of which it was not.
func TestKeyExported(t *testing.T) {
	h := newHarness(t, record())
	h.run()
	condition := h.expectKey(metav1.ConditionFalse, enginev1alpha1.ReasonKeyNotExported)
	if !strings.Contains(condition.Message, "holdfast repo-key export --repo-name=app --backup-storage-location=default") {
		t.Errorf("it says %s", condition.Message)
	}
	h.expectMetric(`
# HELP holdfast_repositories_key_not_backed_up [ALPHA] Repositories whose key is in this cluster only, by why: nobody has exported it, or it could not be written for the location's recovery keys.
# TYPE holdfast_repositories_key_not_backed_up gauge
holdfast_repositories_key_not_backed_up{reason="NotExported"} 1
holdfast_repositories_key_not_backed_up{reason="NotWrapped"} 0
`)
	key, _ := h.key()
	fingerprint, err := key.Fingerprint("app")
	must(t, err)
	if got := h.record().Status.KeyFingerprint; got != fingerprint {
		t.Errorf("the fingerprint is %s, want %s", got, fingerprint)
	}
	h.exported("another one")
	h.exported(fingerprint)
	h.expectKey(metav1.ConditionTrue, enginev1alpha1.ReasonKeyExported)
	// Another key is there, as after a rotation, which takes the note away.
	h.loseKey()
	h.setKey("another key")
	h.exported("")
	h.expectKey(metav1.ConditionFalse, enginev1alpha1.ReasonKeyNotExported)
	if got := h.record().Status.KeyFingerprint; got == fingerprint {
		t.Errorf("the fingerprint is still %s", got)
	}
	// To have recovery keys is enough.
	h.setRecoveryKeys(newIdentity(t))
	h.expectKey(metav1.ConditionTrue, enginev1alpha1.ReasonKeyWrapped)
}

func (h *harness) expectMetric(want string) {
	h.t.Helper()
	compare := func() error {
		return testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want), "holdfast_repositories_key_not_backed_up")
	}
	err := wait.PollUntilContextTimeout(h.t.Context(), 5*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return compare() == nil, nil })
	if err != nil {
		h.t.Error(compare())
	}
}

// TestKeyWrapped: with recovery keys each key that may open the repository is in the store for
// each of them, also after these have changed, and nothing secret is in the record.
func TestKeyWrapped(t *testing.T) {
	first, second := newIdentity(t), newIdentity(t)
	h := newHarness(t, record())
	h.setRecoveryKeys(first)
	h.run()
	condition := h.expectKey(metav1.ConditionTrue, enginev1alpha1.ReasonKeyWrapped)
	key, _ := h.key()
	if got := h.recovered(first); len(got) != 1 || got[0] != key {
		t.Errorf("recovered: %d keys", len(got))
	}
	if !strings.Contains(condition.Message, first.Recipient().String()) || strings.Contains(condition.Message, string(key)) {
		t.Errorf("it says %s", condition.Message)
	}
	h.setRecoveryKeys(first, second)
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return len(h.recovered(second)) == 1, nil
	})
	must(t, err)
	backUp := func() { // again, when the controller has written the same key at this moment
		t.Helper()
		must(t, wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			err := h.backUpKey(ctx, name)
			if errors.Is(err, store.ErrExists) {
				return false, nil
			}
			return err == nil, err
		}))
	}
	// While it is rotated, and what it was before.
	h.loseKey()
	h.setKey(key)
	secrets := h.kube.CoreV1().Secrets(keys)
	secret, err := secrets.Get(t.Context(), name+".key", metav1.GetOptions{})
	must(t, err)
	secret.Data[enginev1alpha1.NextKeySecretKey], secret.Data[enginev1alpha1.FormerKeysSecretKey] = []byte("the next"), []byte("a former\nthe first")
	_, err = secrets.Update(t.Context(), secret, metav1.UpdateOptions{})
	must(t, err)
	backUp()
	if got := h.recovered(second); len(got) != 4 {
		t.Errorf("%d of 4 keys are recovered", len(got))
	}
	// A user removes what is there. The controller may write there meanwhile.
	for os.RemoveAll(filepath.Join(h.folder, "metadata")) != nil {
		must(t, t.Context().Err())
	}
	backUp()
	if got := h.recovered(first); len(got) != 4 {
		t.Errorf("%d of 4 keys are recovered", len(got))
	}
	// Without recovery keys nobody relies on what lies there.
	h.setRecoveryKeys()
	h.expectKey(metav1.ConditionFalse, enginev1alpha1.ReasonKeyNotExported)
}

// TestNoRepositoryBeforeItsKeyIsWrapped: as long as the store does not take the wrapped key, none
// is made; one that is there is used, and says so.
func TestNoRepositoryBeforeItsKeyIsWrapped(t *testing.T) {
	for title, exists := range map[string]bool{"there is none": false, "there is one": true} {
		t.Run(title, func(t *testing.T) {
			identity := newIdentity(t)
			h := newHarness(t, record())
			if exists {
				h.makeRepository()
				h.setKey("the password")
			}
			// What is no folder takes no file.
			must(t, os.WriteFile(filepath.Join(h.folder, "metadata"), nil, 0o600))
			h.setRecoveryKeys(identity)
			h.run()
			if exists {
				h.expect(metav1.ConditionTrue, "Ready")
			} else {
				h.expect(metav1.ConditionFalse, "Unreachable")
				h.expectNoRepository()
			}
			condition := h.expectKey(metav1.ConditionFalse, enginev1alpha1.ReasonKeyNotWrapped)
			if key, _ := h.key(); strings.Contains(condition.Message, string(key)) || !strings.Contains(condition.Message, "metadata/holdfast/keys/cluster/app/") {
				t.Errorf("it says %s", condition.Message)
			}
			h.expectMetric(`
# HELP holdfast_repositories_key_not_backed_up [ALPHA] Repositories whose key is in this cluster only, by why: nobody has exported it, or it could not be written for the location's recovery keys.
# TYPE holdfast_repositories_key_not_backed_up gauge
holdfast_repositories_key_not_backed_up{reason="NotExported"} 0
holdfast_repositories_key_not_backed_up{reason="NotWrapped"} 1
`)
			must(t, os.Remove(filepath.Join(h.folder, "metadata")))
			h.expect(metav1.ConditionTrue, "Ready")
			h.expectKey(metav1.ConditionTrue, enginev1alpha1.ReasonKeyWrapped)
			// What is there stays so while the store is away.
			// The controller may write there meanwhile.
			for os.RemoveAll(filepath.Join(h.folder, "metadata")) != nil || os.WriteFile(filepath.Join(h.folder, "metadata"), nil, 0o600) != nil {
				must(t, t.Context().Err())
			}
			if err := h.backUpKey(t.Context(), name); err == nil {
				t.Error("nothing has failed")
			}
			h.expectKey(metav1.ConditionTrue, enginev1alpha1.ReasonKeyWrapped)
			// For another recovery key it is not there.
			h.setRecoveryKeys(newIdentity(t))
			h.expectKey(metav1.ConditionFalse, enginev1alpha1.ReasonKeyNotWrapped)
		})
	}
}
