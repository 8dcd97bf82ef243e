// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package storagelocation

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// bench probes one location.
type bench struct {
	*testing.T
	record  *enginev1alpha1.StorageLocation
	secret  map[string][]byte
	bucket  *store.Bucket
	refuse  func(*http.Request) (status int, code string)
	changed func(*http.Request)
	skew    time.Duration

	mu     sync.Mutex
	writes []string
}

// onS3 is a bench with a bucket.
func onS3(t *testing.T) *bench {
	b := &bench{T: t, record: &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default", Generation: 1}}}
	b.record.Spec, b.secret = storetest.FakeS3(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut || r.Method == http.MethodDelete {
				b.mu.Lock()
				b.writes = append(b.writes, r.Method+" "+r.URL.Path)
				b.mu.Unlock()
			}
			if b.refuse != nil {
				if status, code := b.refuse(r); status != 0 {
					w.WriteHeader(status)
					_, _ = io.WriteString(w, "<Error><Code>"+code+"</Code></Error>")
					return
				}
			}
			if b.changed != nil {
				b.changed(r)
			}
			w.Header().Set("Date", time.Now().Add(b.skew).UTC().Format(http.TimeFormat))
			next.ServeHTTP(w, r)
		})
	})
	b.bucket = storetest.Open(t, b.record.Spec, b.secret)
	return b
}

func (b *bench) probe() metav1.Condition {
	b.Helper()
	b.writes = nil
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "credentials"}, Data: b.secret}
	c := &Controller{secrets: kubefake.NewClientset(secret).CoreV1().Secrets(system), clusterUID: "cluster", clock: clock.RealClock{}}
	return c.tryOut(b.Context(), b.record)
}

// expect probes the location, and fails unless the result says all of that.
func (b *bench) expect(status metav1.ConditionStatus, reason string, says ...string) {
	b.Helper()
	got := b.probe()
	if got.Status != status || got.Reason != reason {
		b.Errorf("it says %s %s: %s; want %s %s", got.Status, got.Reason, got.Message, status, reason)
	}
	for _, want := range says {
		if !strings.Contains(got.Message, want) {
			b.Errorf("it says %q, without %q", got.Message, want)
		}
	}
}

// keys lists all of the store.
func (b *bench) keys() (keys []string) {
	b.Helper()
	for object, err := range b.bucket.List(context.Background(), "", store.ListOptions{Recursive: true, Unfinished: true}) {
		if err != nil {
			b.Fatal(err)
		}
		keys = append(keys, object.Key)
	}
	return keys
}

// TestProbe: a good store passes, and has nothing of the probe afterwards, in a folder not even a
// folder. An earlier probe's object is removed, and no object beside it.
func TestProbe(t *testing.T) {
	folder := t.TempDir()
	for name, b := range map[string]*bench{
		"s3":     onS3(t),
		"folder": {T: t, record: inFolder("default", folder)},
	} {
		if b.bucket == nil {
			b.bucket = storetest.Open(t, b.record.Spec, nil)
		}
		for range 2 {
			b.expect(metav1.ConditionTrue, enginev1alpha1.ReasonProbePassed, "created, not created twice, read, listed and deleted", "clock: it agrees")
		}
		if keys := b.keys(); len(keys) != 0 {
			t.Errorf("%s: left %q", name, keys)
		}
		other := format.ProbesPrefix("cluster", "default-2") + "theirs"
		for _, key := range []string{format.ProbesPrefix("cluster", "default") + "killed", other, format.BackupsPrefix + "b/x"} {
			if err := b.bucket.Put(t.Context(), key, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		b.expect(metav1.ConditionTrue, enginev1alpha1.ReasonProbePassed)
		if keys, want := b.keys(), []string{format.BackupsPrefix + "b/x", other}; !slices.Equal(keys, want) {
			t.Errorf("%s: the store has %q, want %q", name, keys, want)
		}
	}
	if err := os.RemoveAll(filepath.Join(folder, "backups")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(folder, filepath.FromSlash(format.ProbesPrefix("cluster", "default")))); !os.IsNotExist(err) {
		t.Errorf("the folder of the probes: %v", err)
	}
}

// TestProbeNamesTheFailedStep: with the store's reason and the missing right. Each failed step but the
// creation is followed by the others.
func TestProbeNamesTheFailedStep(t *testing.T) {
	denied := func(method string, nth int) func(*http.Request) (int, string) {
		seen := 0
		return func(r *http.Request) (int, string) {
			if r.Method != method || !strings.Contains(r.URL.Path+r.URL.Query().Get("prefix"), "/probes/") {
				return 0, ""
			}
			if seen++; seen < nth {
				return 0, ""
			}
			return http.StatusForbidden, "AccessDenied"
		}
	}
	unconditional := func(status int, code string) func(*http.Request) (int, string) {
		return func(r *http.Request) (int, string) {
			if r.Method == http.MethodPut && r.Header.Get("If-None-Match") != "" {
				return status, code
			}
			return 0, ""
		}
	}
	for name, test := range map[string]struct {
		refuse func(*http.Request) (int, string)
		says   []string
		left   int
	}{
		"no listing":       {denied(http.MethodGet, 1), []string{"list the probes: the store denies access (AccessDenied). The credentials lack the right s3:ListBucket"}, 0},
		"no writing":       {denied(http.MethodPut, 1), []string{"create a probe: the store denies access (AccessDenied). The credentials lack the right s3:PutObject"}, 0},
		"no writing again": {denied(http.MethodPut, 2), []string{"create a probe again: the store denies access (AccessDenied). The credentials lack the right s3:PutObject"}, 0},
		"no reading":       {denied(http.MethodGet, 2), []string{"read the probe: the store denies access (AccessDenied). The credentials lack the right s3:GetObject", "list the probe: "}, 0},
		"no deletion":      {denied(http.MethodDelete, 1), []string{"delete the probe: the store denies access (AccessDenied). The credentials lack the right s3:DeleteObject", "clock: it agrees"}, 1},
		"no condition": {unconditional(http.StatusBadRequest, "InvalidArgument"),
			[]string{"create a probe if it does not exist: the store refuses the request (InvalidArgument). Without this condition the store takes it"}, 0},
		"a condition that is not known": {unconditional(http.StatusNotImplemented, "NotImplemented"),
			[]string{"create a probe if it does not exist: the store does not support a request that Holdfast needs"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := onS3(t)
			b.refuse = test.refuse
			b.expect(metav1.ConditionFalse, enginev1alpha1.ReasonProbeFailed, test.says...)
			b.refuse = nil
			if keys := b.keys(); len(keys) != test.left {
				t.Errorf("left %q", keys)
			}
			b.expect(metav1.ConditionTrue, enginev1alpha1.ReasonProbePassed)
			if keys := b.keys(); len(keys) != 0 {
				t.Errorf("the next probe left %q", keys)
			}
		})
	}
}

// TestProbeNamesTheRightsOfTheProvider: as its own pages call them.
func TestProbeNamesTheRightsOfTheProvider(t *testing.T) {
	for provider, want := range map[enginev1alpha1.StorageProvider]string{
		enginev1alpha1.StorageProviderS3:         "the right s3:DeleteObject",
		enginev1alpha1.StorageProviderGCS:        "the right storage.objects.delete",
		enginev1alpha1.StorageProviderAzure:      "the right Microsoft.Storage/storageAccounts/blobServices/containers/blobs/delete",
		enginev1alpha1.StorageProviderFilesystem: "a right to the folder",
	} {
		p := &prober{provider: provider}
		if got := p.failure("delete the probe", toDelete, store.ErrDenied).Error(); !strings.Contains(got, want) {
			t.Errorf("%s: it says %q, without %q", provider, got, want)
		}
	}
}

// TestProbeFindsAStoreThatIgnoresConditions: a second creation must be refused.
func TestProbeFindsAStoreThatIgnoresConditions(t *testing.T) {
	b := onS3(t)
	b.changed = func(r *http.Request) { r.Header.Del("If-None-Match") }
	b.expect(metav1.ConditionFalse, enginev1alpha1.ReasonProbeFailed, "create a probe again: the store took it", "If-None-Match")
	if keys := b.keys(); len(keys) != 0 {
		t.Errorf("left %q", keys)
	}
}

// TestProbeComparesTheClocks: a small difference is told, and a large one fails.
func TestProbeComparesTheClocks(t *testing.T) {
	b := onS3(t)
	b.skew = 90 * time.Second
	b.expect(metav1.ConditionTrue, enginev1alpha1.ReasonProbePassed, "s behind the store's, and 5m0s are allowed")
	b.skew = -10 * time.Minute
	b.expect(metav1.ConditionFalse, enginev1alpha1.ReasonProbeFailed, "compare the clocks: ", "ahead of the store's", "Set the wrong one")
	b.skew = 0
	b.refuse = func(r *http.Request) (int, string) {
		if r.Method == http.MethodPut {
			return http.StatusForbidden, "RequestTimeTooSkewed"
		}
		return 0, ""
	}
	if got := b.probe(); got.Status != metav1.ConditionFalse || !strings.Contains(got.Message, "create a probe: the clocks of the store") || strings.Contains(got.Message, "lack the right") {
		t.Errorf("it says %s: %s", got.Status, got.Message)
	}
}

// TestProbeOnlyReads: Longhorn's store, and one that another cluster may write to, are listed and
// read, and nothing is written there.
func TestProbeOnlyReads(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*enginev1alpha1.StorageLocation)
		status metav1.ConditionStatus
	}{
		"longhorn": {func(record *enginev1alpha1.StorageLocation) {
			record.Spec.Format = enginev1alpha1.StorageFormatLonghorn
		}, metav1.ConditionTrue},
		"cloned": {func(record *enginev1alpha1.StorageLocation) {
			record.Status.Conditions = []metav1.Condition{{Type: enginev1alpha1.ConditionClonedCluster, Status: metav1.ConditionTrue, Reason: enginev1alpha1.ReasonStateIsOlder}}
		}, metav1.ConditionUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			b := onS3(t)
			test.change(b.record)
			b.expect(test.status, enginev1alpha1.ReasonProbeOnlyRead, "Nothing was written")
			if err := b.bucket.Put(t.Context(), "backupstore/volumes/x", []byte("x")); err != nil {
				t.Fatal(err)
			}
			b.expect(test.status, enginev1alpha1.ReasonProbeOnlyRead)
			if len(b.writes) != 0 {
				t.Errorf("it has sent %q", b.writes)
			}
			b.refuse = func(r *http.Request) (int, string) {
				if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/x") {
					return http.StatusForbidden, "AccessDenied"
				}
				return 0, ""
			}
			b.expect(metav1.ConditionFalse, enginev1alpha1.ReasonProbeFailed, "read an object: the store denies access (AccessDenied). The credentials lack the right s3:GetObject")
		})
	}
}

// TestAProbeIsMadeOnRequest: once for each request, when the store is available.
func TestAProbeIsMadeOnRequest(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "store")
	synctest.Test(t, func(t *testing.T) {
		h := start(t, inFolder("default", folder))
		var probes atomic.Int32
		h.controller.probe = func(context.Context, *enginev1alpha1.StorageLocation) metav1.Condition {
			probes.Add(1)
			return metav1.Condition{Status: metav1.ConditionTrue, Reason: enginev1alpha1.ReasonProbePassed}
		}
		ask := func(generation int64) {
			changed := h.location("default")
			changed.Spec.SyncRequest = &enginev1alpha1.Ask{Timestamp: metav1.Now()}
			changed.Generation = generation
			if _, err := h.EngineV1alpha1().StorageLocations(system).Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		ask(2)
		h.expect("default", metav1.ConditionFalse, enginev1alpha1.ReasonUnreachable)
		if probes.Load() != 0 {
			t.Error("a store that is not available is probed")
		}
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		for i, generation := range []int64{2, 3} {
			if generation > 2 {
				ask(generation)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			probed := meta.FindStatusCondition(h.location("default").Status.Conditions, enginev1alpha1.ConditionProbed)
			if probes.Load() != int32(i+1) || probed == nil || probed.ObservedGeneration != generation {
				t.Errorf("%d probes for generation %d: %+v", probes.Load(), generation, probed)
			}
		}
	})
}
