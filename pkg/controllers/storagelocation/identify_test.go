// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package storagelocation

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// emptyFolder makes a folder, as of a mount point whose disk is not mounted.
func emptyFolder(t *testing.T, folder string) {
	t.Helper()
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
}

func isEmpty(t *testing.T, folder string) bool {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries) == 0
}

// giveUp gives up a store.
func (h *harness) giveUp(name, id string) {
	h.Helper()
	changed := h.location(name)
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, enginev1alpha1.AnnotationGiveUpStore, id)
	if _, err := h.EngineV1alpha1().StorageLocations(system).Update(h.Context(), changed, metav1.UpdateOptions{}); err != nil {
		h.Fatal(err)
	}
}

// A location keeps the store that it has had. Another one in its place is not written to, and
// takes its place when an administrator says so, and not before.
func TestAnotherStoreInItsPlace(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "store")
	emptyFolder(t, folder)
	synctest.Test(t, func(t *testing.T) {
		h := start(t, inFolder("default", folder))
		h.expect("default", metav1.ConditionTrue, enginev1alpha1.ReasonReachable)
		first := h.location("default").Status.StoreID
		if first == "" {
			t.Fatal("the store got no id")
		}

		move(t, folder, folder+".disk")
		emptyFolder(t, folder)
		time.Sleep(checkInterval)
		condition := h.expect("default", metav1.ConditionFalse, enginev1alpha1.ReasonOtherStore)
		for _, part := range []string{first, "not mounted", "kubectl annotate storagelocation default -n holdfast --overwrite " + enginev1alpha1.AnnotationGiveUpStore + "=" + first} {
			if !strings.Contains(condition.Message, part) {
				t.Errorf("%q lacks %q", condition.Message, part)
			}
		}
		writes := len(h.Writes("storagelocations"))
		time.Sleep(time.Hour)
		if got := len(h.Writes("storagelocations")); got != writes || !isEmpty(t, folder) || h.location("default").Status.StoreID != first {
			t.Errorf("%d writes in an hour, and the folder is empty: %t", got-writes, isEmpty(t, folder))
		}
		const shown = `# HELP holdfast_locations_stopped [ALPHA] Storage locations to which nothing is written, by why: all but Unreachable need somebody to act.
# TYPE holdfast_locations_stopped gauge
holdfast_locations_stopped{reason="AccessDenied"} 0
holdfast_locations_stopped{reason="ClockSkew"} 0
holdfast_locations_stopped{reason="ClonedCluster"} 0
holdfast_locations_stopped{reason="Invalid"} 0
holdfast_locations_stopped{reason="NoSuchBucket"} 0
holdfast_locations_stopped{reason="OtherStore"} 1
holdfast_locations_stopped{reason="Unreachable"} 0
`
		if err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(shown), "holdfast_locations_stopped"); err != nil {
			t.Error(err)
		}
		h.giveUp("default", "another-id")
		h.expect("default", metav1.ConditionFalse, enginev1alpha1.ReasonOtherStore)

		h.giveUp("default", first)
		h.expect("default", metav1.ConditionTrue, enginev1alpha1.ReasonReachable)
		second := h.location("default").Status.StoreID
		if second == "" || second == first {
			t.Errorf("the second store has the id %q", second)
		}

		// The first one again: what was given up is not taken back by itself.
		move(t, folder, folder+".second")
		move(t, folder+".disk", folder)
		time.Sleep(checkInterval)
		condition = h.expect("default", metav1.ConditionFalse, enginev1alpha1.ReasonOtherStore)
		if !strings.Contains(condition.Message, first) || !strings.Contains(condition.Message, second) {
			t.Errorf("%q does not tell both", condition.Message)
		}
		h.giveUp("default", second)
		h.expect("default", metav1.ConditionTrue, enginev1alpha1.ReasonReachable)
		if got := h.location("default").Status.StoreID; got != first {
			t.Errorf("the first store has the id %q by now", got)
		}
	})
}

// Two clusters share a store, and two controllers may look at once: there is one id.
func TestAStoreOfTwoClustersHasOneID(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		one := startAs(t, Config{ClusterUID: "one", Identity: "a"}, inFolder("default", folder))
		two := startAs(t, Config{ClusterUID: "two", Identity: "b"}, inFolder("theirs", folder))
		one.expect("default", metav1.ConditionTrue, enginev1alpha1.ReasonReachable)
		two.expect("theirs", metav1.ConditionTrue, enginev1alpha1.ReasonReachable)
		if a, b := one.location("default").Status.StoreID, two.location("theirs").Status.StoreID; a == "" || a != b {
			t.Errorf("the ids are %q and %q", a, b)
		}
	})
}

// A location that is made anew takes the store that it finds, with the id that this has.
func TestALocationThatIsMadeAnewKeepsTheID(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, inFolder("default", folder))
		h.expect("default", metav1.ConditionTrue, enginev1alpha1.ReasonReachable)
		id := h.location("default").Status.StoreID
		if err := h.EngineV1alpha1().StorageLocations(system).Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		h.Create(inFolder("default", folder))
		h.expect("default", metav1.ConditionTrue, enginev1alpha1.ReasonReachable)
		if got := h.location("default").Status.StoreID; got != id {
			t.Errorf("the id was %q, and is %q", id, got)
		}
	})
}

// A store that had backups before stores had ids, and has none now, is another one.
func TestAStoreWithoutAnIDThatLostItsBackups(t *testing.T) {
	folder := t.TempDir()
	backup := filepath.Join(folder, filepath.FromSlash(format.MetadataKey("nightly")))
	if err := os.MkdirAll(filepath.Dir(backup), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(backup, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	emptyFolder(t, empty)
	synctest.Test(t, func(t *testing.T) {
		whole, lost := inFolder("whole", folder), inFolder("lost", empty)
		for _, record := range []*enginev1alpha1.StorageLocation{whole, lost} {
			record.Status.Catalogue = &enginev1alpha1.CatalogueStatus{Backups: 1}
		}
		h := start(t, whole, lost)
		h.expect("whole", metav1.ConditionTrue, enginev1alpha1.ReasonReachable)
		if h.location("whole").Status.StoreID == "" {
			t.Error("a store with backups got no id")
		}
		condition := h.expect("lost", metav1.ConditionFalse, enginev1alpha1.ReasonOtherStore)
		if !strings.Contains(condition.Message, "1 backups") || !isEmpty(t, empty) {
			t.Errorf("it says %q, and the folder is empty: %t", condition.Message, isEmpty(t, empty))
		}
		h.giveUp("lost", enginev1alpha1.UnknownStore)
		h.expect("lost", metav1.ConditionTrue, enginev1alpha1.ReasonReachable)
	})
}

// In a bucket another prefix is another store. One that is brought back from a copy is the same
// one, unless the copy is older than its id.
func TestAnotherBucket(t *testing.T) {
	spec, secret := storetest.FakeS3(t, nil)
	secrets := kubefake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: spec.S3.CredentialsSecret}, Data: secret})
	c := &Controller{secrets: secrets.CoreV1().Secrets(system), clock: clock.RealClock{}, claims: map[string]*claimant{}, clusterUID: "c", nonce: "n"}
	record := &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}, Spec: spec}
	check := func(want string) string {
		t.Helper()
		condition, id, _ := c.ask(t.Context(), record)
		if condition.Reason != want {
			t.Errorf("got %+v, want %s", condition, want)
		}
		return id
	}
	record.Status.StoreID = check(enginev1alpha1.ReasonReachable)
	bucket := storetest.Open(t, spec, secret)
	backup := format.MetadataKey("nightly")
	if err := bucket.Create(t.Context(), backup, []byte("{}")); err != nil {
		t.Fatal(err)
	}

	record.Spec.Prefix = "other"
	check(enginev1alpha1.ReasonOtherStore)
	for object, err := range bucket.List(t.Context(), "other/", store.ListOptions{Recursive: true}) {
		t.Errorf("it has written %s, %v", object.Key, err)
	}
	record.Spec.Prefix = ""
	check(enginev1alpha1.ReasonReachable)

	remove := func(key string) {
		t.Helper()
		if err := bucket.Remove(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	remove(backup) // as in a copy that is older than the backup
	check(enginev1alpha1.ReasonReachable)
	remove(format.StoreIdentityKey)
	if got := check(enginev1alpha1.ReasonOtherStore); got != record.Status.StoreID {
		t.Errorf("the location would forget its store: the id is %q", got)
	}
}

// Nothing is written to a store of Longhorn's.
func TestLonghornsStoreGetsNoID(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		theirs := inFolder("theirs", folder)
		theirs.Spec.Format = enginev1alpha1.StorageFormatLonghorn
		h := start(t, theirs)
		h.expect("theirs", metav1.ConditionTrue, enginev1alpha1.ReasonReachable)
		if id := h.location("theirs").Status.StoreID; id != "" || !isEmpty(t, folder) {
			t.Errorf("it has the id %q, and the folder is empty: %t", id, isEmpty(t, folder))
		}
	})
}

// A store that refuses writes can be read from, and its condition says that it has no id. What
// answers in a store's place is unavailable, and the condition says what was sent.
func TestStoresThatAnswerOtherwise(t *testing.T) {
	page := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte("<!DOCTYPE html><html><head><title>Sign in</title></head><body><br>Welcome</body></html>"))
	}
	refuse := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	for name, test := range map[string]struct {
		answer  http.HandlerFunc
		of      string // the method; empty is any
		reason  string
		message string
	}{
		"writes are forbidden":     {refuse(http.StatusForbidden), http.MethodPut, enginev1alpha1.ReasonReachable, "takes no object with an id"},
		"writes are not allowed":   {refuse(http.StatusMethodNotAllowed), http.MethodPut, enginev1alpha1.ReasonReachable, "takes no object with an id"},
		"a page for each request":  {page, "", enginev1alpha1.ReasonUnreachable, "text/html"},
		"a page for each write":    {page, http.MethodPut, enginev1alpha1.ReasonUnreachable, "text/html"},
		"nothing for each request": {refuse(http.StatusOK), "", enginev1alpha1.ReasonUnreachable, "does not speak S3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec, secret := storetest.FakeS3(t, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if test.of == "" || r.Method == test.of {
						test.answer(w, r)
						return
					}
					next.ServeHTTP(w, r)
				})
			})
			secrets := kubefake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: spec.S3.CredentialsSecret}, Data: secret})
			c := &Controller{secrets: secrets.CoreV1().Secrets(system), clock: clock.RealClock{}, claims: map[string]*claimant{}}
			condition, id, _ := c.ask(t.Context(), &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}, Spec: spec})
			if condition.Reason != test.reason || !strings.Contains(condition.Message, test.message) || id != "" {
				t.Errorf("got %+v and the id %q, want %s and %q", condition, id, test.reason, test.message)
			}
		})
	}
}

// TestAStoreThatIgnoresConditions: the condition says so, and the store is asked once.
func TestAStoreThatIgnoresConditions(t *testing.T) {
	for name, ignores := range map[string]bool{"ignores them": true, "heeds them": false} {
		t.Run(name, func(t *testing.T) {
			var writes atomic.Int32
			spec, secret := storetest.FakeS3(t, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, format.StoreIdentityKey) {
						writes.Add(1)
					}
					if ignores {
						r.Header.Del("If-None-Match")
					}
					next.ServeHTTP(w, r)
				})
			})
			secrets := kubefake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: spec.S3.CredentialsSecret}, Data: secret})
			c := &Controller{secrets: secrets.CoreV1().Secrets(system), clock: clock.RealClock{}, claims: map[string]*claimant{}, clusterUID: "c", nonce: "n"}
			record := &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}, Spec: spec}
			for range 3 {
				condition, id, _ := c.ask(t.Context(), record)
				if condition.Status != metav1.ConditionTrue || strings.Contains(condition.Message, conditionsIgnored) != ignores {
					t.Errorf("the condition is %+v", condition)
				}
				if before := record.Status.StoreID; before != "" && before != id {
					t.Errorf("the store's id was %s, and is %s", before, id)
				}
				record.Status.StoreID = id
			}
			if got := writes.Load(); got != 2 {
				t.Errorf("the id was written %d times, want once, and once for the question", got)
			}
		})
	}
}
