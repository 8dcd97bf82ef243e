// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/clusteridentity"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

var catalogueFull = flag.Bool("catalogue.full", false, "run TestCatalogueFarAway with 1,000 backups of 1,000 volumes in a store 750 ms away")

// farStore is an S3 server far away, for all but the test itself, which counts requests and
// knows which objects were written over.
type farStore struct {
	latency  time.Duration
	requests atomic.Int64

	mu        sync.Mutex
	written   map[string]bool // guarded by mu
	rewritten []string        // guarded by mu
}

// near is the access key of the test's own client.
const near = "near"

func (f *farStore) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		isFar := !strings.Contains(r.Header.Get("Authorization"), "Credential="+near+"/")
		if isFar {
			f.requests.Add(1)
			select {
			case <-time.After(f.latency):
			case <-r.Context().Done():
				return
			}
		}
		answer := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(answer, r)
		if answer.status >= http.StatusMultipleChoices {
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		switch r.Method {
		case http.MethodPut:
			// The leader's claim is the one object that is replaced, at each renewal.
			if isFar && f.written[r.URL.Path] && !strings.Contains(r.URL.Path, "/"+format.HoldfastPrefix+"claims/") {
				f.rewritten = append(f.rewritten, r.URL.Path)
			}
			f.written[r.URL.Path] = true
		case http.MethodDelete:
			delete(f.written, r.URL.Path)
		}
	})
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// TestCatalogueFarAway: of many backups of many volumes in a store far away, kubectl lists the
// volumes and the history of one; what is deleted leaves the lists with the answer, and the
// store later; and what is removed from the store behind Holdfast's back leaves them after a
// poll and the one that confirms it; so does what is replaced there. Holdfast writes over no
// object, so a lock would do no harm.
func TestCatalogueFarAway(t *testing.T) {
	t.Parallel()
	backups, volumes, limit := 60, 50, 2*time.Minute
	far := &farStore{latency: 50 * time.Millisecond, written: map[string]bool{}}
	if *catalogueFull {
		backups, volumes, limit = 1000, 1000, 30*time.Minute
		far.latency = 750 * time.Millisecond
	}
	await := func(what string, condition func() error) time.Duration {
		t.Helper()
		begin, last := time.Now(), error(nil)
		if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, limit, true, func(context.Context) (bool, error) {
			last = condition()
			return last == nil, nil
		}); err != nil {
			t.Fatalf("gave up waiting for %s: %v", what, last)
		}
		t.Logf("%s: after %s", what, time.Since(begin).Round(time.Millisecond))
		return time.Since(begin)
	}

	spec, secret := storetest.FakeS3(t, far.wrap)
	bucket := storetest.Open(t, spec, map[string][]byte{store.SecretAccessKeyID: []byte(near), store.SecretSecretAccessKey: []byte("key")})
	namespace := lab.Namespace(t, "far-away")
	storeNames := fillFar(t, bucket, namespace, backups, volumes)

	name := labtest.Name("far-away")
	spec.S3.CredentialsSecret = name
	credentials := lab.Kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(labtest.System))
	if _, err := credentials.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: secret}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	locations := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System)
	spec.AllowedNamespaces = &enginev1alpha1.AllowedNamespaces{Names: []string{"*"}}
	if _, err := locations.Create(t.Context(), &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := locations.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := credentials.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})

	// list runs kubectl, and gives the names that it prints.
	list := func(args ...string) []string {
		t.Helper()
		stdout := lab.Kubectl(t, append([]string{"get", "-n", namespace, "-o", "name"}, args...)...)
		var names []string
		for line := range strings.Lines(stdout) {
			_, name, _ := strings.Cut(strings.TrimSpace(line), "/")
			names = append(names, name)
		}
		return names
	}
	timed := func(what string, list func() []string) []string {
		t.Helper()
		begin := time.Now()
		names := list()
		t.Logf("kubectl lists %s, %d: in %s", what, len(names), time.Since(begin).Round(time.Millisecond))
		return names
	}
	history := func(volume string) []string {
		t.Helper()
		return list("volumebackups", "--field-selector", "spec.volumeName="+volume)
	}
	remove := func(resource, name string) {
		t.Helper()
		path := fmt.Sprintf("%s/namespaces/%s/%s/%s/deletion", api, namespace, resource, name)
		begin := time.Now()
		if _, stderr, err := lab.TryKubectl(t, `{"apiVersion":"holdfast.io/v1alpha1","kind":"VolumeDeletion"}`, "create", "--raw", path, "-f", "-"); err != nil {
			t.Fatalf("deleting %s: %v: %s", name, err, stderr)
		}
		t.Logf("the deletion of %s %s: answered after %s", resource, name, time.Since(begin).Round(time.Millisecond))
	}
	// inStore waits until changes lie beside so many backups, and no deletion is left to do.
	inStore := func(what string, want int) {
		t.Helper()
		await(what+" to be in the store", func() error {
			records, err := lab.Engine.EngineV1alpha1().BackupChanges(labtest.System).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for i := range records.Items {
				if d := &records.Items[i]; d.Spec.Namespace == namespace && (!d.Done() || len(d.Status.Refused) > 0) {
					return fmt.Errorf("it is %+v", d.Status)
				}
			}
			changed := map[string]bool{}
			for object, err := range bucket.List(t.Context(), format.BackupsPrefix, store.ListOptions{}) {
				if err != nil {
					return err
				}
				if storeName, _, _, ok := format.ParseExpirationKey(object.Key); ok {
					changed[storeName] = true
				}
			}
			if len(changed) != want {
				return fmt.Errorf("%d backups are changed, not %d", len(changed), want)
			}
			return nil
		})
	}

	await("all to be listed first", func() error {
		record, err := locations.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && (record.Status.Catalogue == nil || int(record.Status.Catalogue.Backups) != backups) {
			err = fmt.Errorf("the location says %+v", record.Status)
		}
		return err
	})
	t.Logf("%d requests by then; the API server has %d MB resident, and had %d at its peak", far.requests.Load(),
		lab.Memory(t, labtest.APIServer)/1e6, lab.PeakMemory(t, labtest.APIServer)/1e6)

	if got := timed("the volumes", func() []string { return list("backupvolumes") }); len(got) != volumes+1 {
		t.Errorf("%d volumes are listed, not %d", len(got), volumes+1)
	}
	if got := timed("the history of one", func() []string { return history("data-0001") }); len(got) != backups {
		t.Errorf("the history of one has %d entries, not %d", len(got), backups)
	}

	one := storeNames[0] + ":data-0000"
	remove("volumebackups", one)
	if got := history("data-0000"); len(got) != backups-1 || slices.Contains(got, one) {
		t.Errorf("when one volume backup is deleted, %d are listed, not %d", len(got), backups-1)
	}
	inStore("the deletion of one", 1)
	remove("backupvolumes", "data-0000")
	if got := history("data-0000"); len(got) != 0 {
		t.Errorf("when a volume's history is deleted, %d of it are listed", len(got))
	}
	if got := list("backupvolumes"); len(got) != volumes || slices.Contains(got, "data-0000") {
		t.Errorf("when a volume is deleted, %d are listed, not %d", len(got), volumes)
	}
	inStore("the deletion of a history", backups)
	if got := history("data-0000"); len(got) != 0 {
		t.Errorf("when the deletion is in the store, %d of it are listed", len(got))
	}

	leaves := func(what string, count int) {
		t.Helper()
		await(what+" behind our back to leave", func() error {
			if got := history("data-0001"); len(got) != backups-count {
				return fmt.Errorf("the history of one has %d entries, not %d", len(got), backups-count)
			}
			return nil
		})
	}
	for _, storeName := range storeNames[backups-rareIn:] {
		storetest.Empty(t, bucket, format.BackupPrefix(storeName))
	}
	leaves("what was removed", rareIn)
	if got := list("backupvolumes"); len(got) != volumes-1 || slices.Contains(got, "rare") {
		t.Errorf("when all backups of a volume have gone, %d are listed, not %d", len(got), volumes-1)
	}
	// Nobody answers for what another writer has put in the place of a backup.
	theirs := fmt.Sprintf(`{"apiVersion":"velero.io/v1","kind":"Backup","metadata":{"name":%q,"uid":"of-velero"},"status":{"phase":"Completed"}}`, storeNames[1])
	if err := bucket.Put(t.Context(), format.MetadataKey(storeNames[1]), []byte(theirs)); err != nil {
		t.Fatal(err)
	}
	leaves("what was replaced", rareIn+1)
	t.Logf("%d requests in all", far.requests.Load())

	far.mu.Lock()
	defer far.mu.Unlock()
	if len(far.rewritten) > 0 {
		t.Errorf("objects were written over: %q", far.rewritten)
	}
}

// rareIn is how many backups have the volume rare, the last ones.
const rareIn = 2

// fillFar stores backups of a namespace, each of all volumes, as this cluster makes them, and
// gives their names in the store.
func fillFar(t *testing.T, to store.Writer, namespace string, backups, volumes int) []string {
	t.Helper()
	of, err := lab.Kube.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	system, err := lab.Kube.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	key, err := clusteridentity.Key(t.Context(), lab.Kube.CoreV1().Secrets(labtest.System))
	if err != nil {
		t.Fatal(err)
	}
	cluster := format.Cluster{SystemNamespace: labtest.System, UID: string(system.UID), Key: key}
	ended := func(i int) *metav1.Time {
		return new(metav1.Date(2026, time.January, 1, 1, i, 0, 0, time.UTC))
	}
	// All backups have one list, or another: what differs would only take time to make.
	lists := make([][]byte, 2)
	for i := range lists {
		var pvbs []format.PodVolumeBackup
		add := func(claim string) {
			pvbs = append(pvbs, format.NewPodVolumeBackup(&v1alpha1.Backup{}, "of-all", format.Volume{
				Pod: enginev1alpha1.PodReference{Namespace: namespace, Name: "of-" + claim}, NamespaceUID: of.UID, Name: "data", ClaimName: claim,
				Status: enginev1alpha1.VolumeUploadStatus{
					Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: fmt.Sprintf("%032x", len(pvbs)+1), StartTimestamp: ended(0), CompletionTimestamp: ended(0),
				},
			}))
		}
		for volume := range volumes {
			add(fmt.Sprintf("data-%04d", volume))
		}
		if i > 0 {
			add("rare")
		}
		var list bytes.Buffer
		if err := format.WritePodVolumeBackups(&list, pvbs); err != nil {
			t.Fatal(err)
		}
		lists[i] = list.Bytes()
	}
	storeNames := make([]string, backups)
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(8)
	for i := range storeNames {
		name := fmt.Sprintf("daily-%04d", i)
		storeName, list := format.StoreName(namespace, name, labtest.System), lists[0]
		if storeNames[i] = storeName; i >= backups-rareIn {
			list = lists[1]
		}
		group.Go(func() error {
			contents := format.Contents{}
			contents.Set(format.PodVolumeBackupsKey(storeName), format.NewContent(list))
			metadata, err := format.EncodeBackup(&v1alpha1.Backup{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(fmt.Sprintf("%08d-2f0a-4a57-9d0e-6f6b1a2f3c4d", i)), CreationTimestamp: *ended(i)},
				Spec:       v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}},
				Status: v1alpha1.BackupStatus{
					Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: ended(i), CompletionTimestamp: ended(i),
					Origin: &v1alpha1.BackupOrigin{NamespaceUID: of.UID},
				},
			}, contents, cluster)
			if err != nil {
				return err
			}
			if err := to.Create(ctx, format.PodVolumeBackupsKey(storeName), list); err != nil {
				return err
			}
			return to.Create(ctx, format.MetadataKey(storeName), metadata)
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return storeNames
}
