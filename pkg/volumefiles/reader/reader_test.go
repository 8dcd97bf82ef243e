// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	"github.com/holdfast-io/holdfast/pkg/format"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
	"github.com/holdfast-io/holdfast/pkg/volumefiles"
)

// world is a store with a backup "shop.nightly" of a volume of the namespace shop, of uid "shop-1".
type world struct {
	testing.TB
	*Reader
	record  *enginev1alpha1.StorageLocation
	bucket  *store.Bucket
	content []byte
	asked   []types.UID
	present bool
	secrets *kubefake.Clientset
}

func newWorld(t *testing.T, forged bool) *world {
	t.Helper()
	content, volume := make([]byte, 9<<20), t.TempDir()
	_, _ = rand.Read(content)
	if err := errors.Join(os.WriteFile(filepath.Join(volume, "large"), content, 0o640), os.Mkdir(filepath.Join(volume, "sub"), 0o755), os.Chmod(filepath.Join(volume, "sub"), 0o755|os.ModeSetgid)); err != nil {
		t.Fatal(err)
	}
	w := newWorldOf(t, inFolder(t), nil, volume, forged)
	w.content = content
	return w
}

func inFolder(t testing.TB) enginev1alpha1.StorageLocationSpec {
	return enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: t.TempDir()}}
}

// newWorldOf has the backup of a folder in a store.
func newWorldOf(t testing.TB, spec enginev1alpha1.StorageLocationSpec, credentials map[string][]byte, volume string, forged bool) *world {
	t.Helper()
	w := &world{TB: t, bucket: storetest.Open(t, spec, credentials), present: true}
	w.record = &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: "default", UID: "location"}, Spec: spec}
	where, key := repository.Location{Spec: spec, Secret: credentials}, repository.NewKey()
	if err := repository.Create(t.Context(), where, "shop", key); err != nil {
		t.Fatal(err)
	}
	opened, err := repository.Open(t.Context(), where, "shop", key, repository.Options{})
	if err != nil {
		t.Fatal(err)
	}
	uploaded, err := datapath.Upload(t.Context(), opened, datapath.UploadRequest{Path: volume, Source: datapath.Source{Namespace: "shop", Pod: "web", Volume: "content", ClaimName: "data"}}, new(datapath.Progress))
	if err := errors.Join(err, opened.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	signing, err := format.NewSigningKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w.store(format.Cluster{SystemNamespace: "holdfast", UID: "us", Key: signing}, uploaded.SnapshotID, forged)

	w.secrets = kubefake.NewClientset(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: enginev1alpha1.KeysNamespace("holdfast"), Name: enginev1alpha1.KeySecretName(enginev1alpha1.RepositoryName("shop", "default"))},
		Data:       map[string][]byte{enginev1alpha1.KeySecretKey: []byte(key)},
	}, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: enginev1alpha1.CredentialsNamespace("holdfast"), Name: "credentials"}, Data: credentials})
	index := func(objects ...any) cache.Indexer {
		indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
		for _, object := range objects {
			if err := indexer.Add(object); err != nil {
				t.Fatal(err)
			}
		}
		return indexer
	}
	w.Reader = New(Config{
		Namespace: "holdfast",
		Secrets:   w.secrets.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace("holdfast")),
		Keys:      w.secrets.CoreV1().Secrets(enginev1alpha1.KeysNamespace("holdfast")),
		Locations: enginelisters.NewStorageLocationLister(index(w.record)).StorageLocations("holdfast"),
		Repositories: enginelisters.NewVolumeRepositoryLister(index(&enginev1alpha1.VolumeRepository{
			ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: enginev1alpha1.RepositoryName("shop", "default"), UID: "repository"},
			Spec:       enginev1alpha1.VolumeRepositorySpec{VolumeNamespace: "shop", BackupStorageLocation: "default"},
		})).VolumeRepositories("holdfast"),
		Readable: func(context.Context, string, string) error { return nil },
		Continues: func(_ context.Context, _ *enginev1alpha1.StorageLocation, _ *v1alpha1.BackupOrigin, _ string, uid types.UID) (bool, error) {
			w.asked = append(w.asked, uid)
			return w.present, nil
		},
		Indexes: 64 << 20,
		WorkDir: t.TempDir(),
		Clock:   clock.RealClock{},
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() { defer close(ended); w.Reader.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return w
}

// store writes the metadata of the backup.
func (w *world) store(cluster format.Cluster, snapshotID string, forged bool) {
	w.Helper()
	ended := metav1.NewTime(time.Now().Truncate(time.Second))
	backup := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "nightly", UID: "backup", CreationTimestamp: ended},
		Status: v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &ended, CompletionTimestamp: &ended,
			Origin: &v1alpha1.BackupOrigin{NamespaceUID: "shop-1"}},
	}
	volume := func(pod, claim string, phase enginev1alpha1.VolumePhase) format.PodVolumeBackup {
		return format.NewPodVolumeBackup(backup, "shop.nightly", format.Volume{
			Pod: enginev1alpha1.PodReference{Namespace: "shop", Name: pod, UID: "pod"}, NamespaceUID: "shop-1", Name: "content", ClaimName: claim,
			Status: enginev1alpha1.VolumeUploadStatus{Phase: phase, SnapshotID: snapshotID, Message: "the disk was away"},
		})
	}
	var volumes bytes.Buffer
	if err := format.WritePodVolumeBackups(&volumes, []format.PodVolumeBackup{volume("web", "data", enginev1alpha1.VolumePhaseCompleted), volume("db", "broken", enginev1alpha1.VolumePhaseFailed)}); err != nil {
		w.Fatal(err)
	}
	contents := format.Contents{}
	contents.Set(format.PodVolumeBackupsKey("shop.nightly"), format.NewContent(volumes.Bytes()))
	metadata, err := format.EncodeBackup(backup, contents, cluster)
	if err != nil {
		w.Fatal(err)
	}
	if forged {
		metadata = bytes.Replace(metadata, []byte("shop-1"), []byte("shop-2"), 1)
	}
	for key, content := range map[string][]byte{format.PodVolumeBackupsKey("shop.nightly"): volumes.Bytes(), format.MetadataKey("shop.nightly"): metadata} {
		if err := w.bucket.Put(w.Context(), key, content); err != nil {
			w.Fatal(err)
		}
	}
}

func (w *world) request(change func(*volumefiles.Request)) *volumefiles.Request {
	request := &volumefiles.Request{
		StorageLocation: "default", StoreName: "shop.nightly", BackupUID: "backup", Volume: format.VolumeID{Namespace: "shop", Name: "data"},
		Namespace: "shop", Kind: volumefiles.Content, Path: "/large",
	}
	if change != nil {
		change(request)
	}
	return request
}

func (w *world) refused(request *volumefiles.Request, code int, text string) {
	w.Helper()
	var got bytes.Buffer
	err := w.Copy(w.Context(), request, func(int64) {}, &got)
	refused, ok := errors.AsType[*volumefiles.Problem](err)
	if !ok || refused.Code != code || !strings.Contains(refused.Message, text) || got.Len() > 0 {
		w.Errorf("%+v: %d bytes, and %v", request, got.Len(), err)
	}
}

// TestReader: a file comes as it was, and in part; what can't be read says why.
func TestReader(t *testing.T) {
	w := newWorld(t, false)
	var got bytes.Buffer
	size := int64(0)
	if err := w.Copy(t.Context(), w.request(nil), func(n int64) { size = n }, &got); err != nil || !bytes.Equal(got.Bytes(), w.content) || size != int64(len(w.content)) {
		t.Errorf("%d of %d bytes, %v", got.Len(), size, err)
	}
	got.Reset()
	part := w.request(func(r *volumefiles.Request) { r.Offset, r.Length = 8<<20-3, 10 })
	if err := w.Copy(t.Context(), part, func(n int64) { size = n }, &got); err != nil || !bytes.Equal(got.Bytes(), w.content[8<<20-3:8<<20+7]) || size != 10 {
		t.Errorf("a part has %d of %d bytes, %v", got.Len(), size, err)
	}
	got.Reset()
	end := w.request(func(r *volumefiles.Request) { r.Offset = int64(len(w.content)) })
	if err := w.Copy(t.Context(), end, func(n int64) { size = n }, &got); err != nil || got.Len() != 0 || size != 0 {
		t.Errorf("behind the end there are %d of %d bytes, %v", got.Len(), size, err)
	}
	list, err := w.List(t.Context(), w.request(func(r *volumefiles.Request) { r.Path = "//./" }))
	if err != nil || list.Path != "/" || len(list.Items) != 2 || list.Items[0].Name != "sub" || list.Items[0].Mode != "2755" || list.Items[1].Mode != "0640" || list.Items[1].SizeBytes != int64(len(w.content)) {
		t.Errorf("the root is %+v, %v", list, err)
	}
	w.refused(w.request(func(r *volumefiles.Request) { r.Path = "/absent" }), http.StatusNotFound, "no such file")
	w.refused(w.request(func(r *volumefiles.Request) { r.Path = "/sub" }), http.StatusBadRequest, "is a folder")
	w.refused(w.request(func(r *volumefiles.Request) { r.Offset = 1 << 40 }), http.StatusBadRequest, "no part of it")
	w.refused(w.request(func(r *volumefiles.Request) { r.Volume.Name = "broken" }), http.StatusConflict, "the disk was away")
	w.refused(w.request(func(r *volumefiles.Request) { r.Volume.Name = "absent" }), http.StatusNotFound, "no volume")
	w.refused(w.request(func(r *volumefiles.Request) { r.BackupUID = "another" }), http.StatusNotFound, "does not have this backup")
	w.refused(w.request(func(r *volumefiles.Request) { r.StoreName = "shop.gone" }), http.StatusNotFound, "does not have this backup")
	w.refused(w.request(func(r *volumefiles.Request) { r.StorageLocation = "gone" }), http.StatusNotFound, "does not exist any more")
	// A writer that fails is no failure of the repository.
	if err := w.Copy(t.Context(), w.request(nil), func(int64) {}, failing{}); err == nil {
		t.Error("a failed write is not told")
	}
	if err := w.secrets.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("secrets"), enginev1alpha1.KeysNamespace("holdfast"), enginev1alpha1.KeySecretName(enginev1alpha1.RepositoryName("shop", "default"))); err != nil {
		t.Fatal(err)
	}
	w.refused(w.request(nil), http.StatusServiceUnavailable, "its key may be missing here")
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestWhoseFilesAreRead: the reader decides by the signed metadata whose a volume is: a namespace that
// was made anew, and another one, get nothing, whatever the API server asks for.
func TestWhoseFilesAreRead(t *testing.T) {
	w := newWorld(t, false)
	w.present = false
	w.refused(w.request(nil), http.StatusForbidden, "of another namespace than the present one")
	if len(w.asked) != 1 || w.asked[0] != "shop-1" {
		t.Errorf("asked for are the namespaces %v", w.asked)
	}
	w.present = true
	w.refused(w.request(func(r *volumefiles.Request) { r.Namespace = "blog" }), http.StatusForbidden, "of another namespace")
	w.refused(w.request(func(r *volumefiles.Request) { r.Namespace = "" }), http.StatusForbidden, "of another namespace")
	w.refused(w.request(func(r *volumefiles.Request) { r.Namespace, r.Volume.Namespace = "blog", "blog" }), http.StatusNotFound, "no volume")
	w.present = false
	if _, err := w.List(t.Context(), w.request(func(r *volumefiles.Request) { r.Namespace, r.Path = "holdfast", "/" })); err != nil {
		t.Errorf("in the system namespace: %v", err)
	}
	forged := newWorld(t, true)
	forged.refused(forged.request(nil), http.StatusConflict, "not as it was made")
	forged.refused(forged.request(func(r *volumefiles.Request) { r.Namespace = "holdfast" }), http.StatusConflict, "not as it was made")
}

// TestIndexesOfTheReader: a repository whose indexes take more memory than there is for them is
// refused before they are read.
func TestIndexesOfTheReader(t *testing.T) {
	w := newWorld(t, false)
	done, err := w.shared.Indexes(t.Context(), usualIndexes)
	if done != nil || err != nil {
		t.Errorf("usual indexes: %v", err)
	}
	if _, err = w.shared.Indexes(t.Context(), 65<<20); err == nil || !strings.Contains(err.Error(), "at most 64 MiB") {
		t.Errorf("large indexes: %v", err)
	}
	done, err = w.shared.Indexes(t.Context(), 40<<20)
	if err != nil {
		t.Fatal(err)
	}
	waiting, cancel := context.WithCancelCause(t.Context())
	tired := errors.New("tired")
	cancel(tired)
	if _, err := w.shared.Indexes(waiting, 40<<20); !errors.Is(err, tired) {
		t.Errorf("indexes for which there is no room now: %v", err)
	}
	done()
	if done, err = w.shared.Indexes(t.Context(), 60<<20); err != nil {
		t.Fatal(err)
	}
	done()
}
