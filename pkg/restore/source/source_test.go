// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func placeOf(name string) format.Place {
	return format.Place{StoreName: name, Location: "main", SystemNamespace: "holdfast", Now: now}
}

// object is one to be backed up.
type object struct {
	resource, namespace, name string
	apiVersion, kind          string
	extra                     string // fields of metadata, with a comma before
	body                      string // fields, with a comma before
}

func (o object) json() []byte {
	namespace := ""
	if o.namespace != "" {
		namespace = fmt.Sprintf(`,"namespace":%q`, o.namespace)
	}
	return fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,"metadata":{"name":%q%s,"uid":"uid-%s"%s}%s}`,
		cmp.Or(o.apiVersion, "v1"), o.kind, o.name, namespace, o.name, o.extra, o.body)
}

// written is a backup in a store, made as backups are.
type written struct {
	bucket   *store.Bucket
	contents format.Contents
	name     string
}

func write(t testing.TB, bucket *store.Bucket, name string, withManifest bool, objects ...object) *written {
	t.Helper()
	w := &written{bucket, format.Contents{}, name}
	var tarball, graph bytes.Buffer
	writer, err := archive.NewWriter(&tarball, now, "backup-uid")
	check(t, err)
	items := manifest.Writer{}
	for _, o := range objects {
		resource := schema.ParseGroupResource(o.resource)
		gv, err := schema.ParseGroupVersion(cmp.Or(o.apiVersion, "v1"))
		check(t, err)
		content := o.json()
		position, err := writer.WriteItem(archive.Item{Resource: resource, Version: gv.Version, Namespace: o.namespace, Name: o.name}, content)
		check(t, err)
		stored := format.NewContent(content)
		check(t, items.Add(&manifest.Item{
			APIGroup: gv.Group, APIVersion: gv.Version, KindName: o.kind, Resource: resource.Resource, Namespace: o.namespace, Name: o.name, UID: "uid-" + o.name,
			References: manifest.ReferencesOf(schema.GroupKind{Group: gv.Group, Kind: o.kind}, o.namespace, content),
			Size:       stored.Size, SHA256: stored.SHA256, Place: manifest.Place(position),
		}))
	}
	check(t, writer.Close())
	w.put(t, format.TarballKey(name), tarball.Bytes())
	if withManifest {
		_, err := items.WriteTo(&graph)
		check(t, err)
		w.put(t, format.ManifestKey(name), graph.Bytes())
	}
	w.finish(t)
	return w
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put stores an object of the backup, and has the metadata speak of it.
func (w *written) put(t testing.TB, key string, data []byte) {
	t.Helper()
	check(t, w.bucket.Put(t.Context(), key, data))
	w.contents.Set(key, format.NewContent(data))
}

func (w *written) finish(t testing.TB) {
	t.Helper()
	at := metav1.NewTime(now)
	backup := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: w.name, UID: "backup-uid", CreationTimestamp: at},
		Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &at, CompletionTimestamp: &at},
	}
	data, err := format.EncodeBackup(backup, w.contents, format.Cluster{SystemNamespace: "holdfast"})
	check(t, err)
	check(t, w.bucket.Put(t.Context(), format.MetadataKey(w.name), data))
}

func some(count int) []object {
	objects := []object{{resource: "namespaces", name: "shop", kind: "Namespace"}}
	for i := range count {
		// What does not compress makes several members.
		noise := sha256.Sum256(fmt.Append(nil, i))
		objects = append(objects, object{resource: "configmaps", namespace: "shop", name: fmt.Sprintf("c-%04d", i), kind: "ConfigMap",
			body: fmt.Sprintf(`,"data":{"k":"%s"}`, strings.Repeat(hex.EncodeToString(noise[:]), 40))})
	}
	return append(objects, object{resource: "deployments.apps", namespace: "shop", name: "web", apiVersion: "apps/v1", kind: "Deployment",
		body: `,"spec":{"template":{"spec":{"volumes":[{"name":"v","persistentVolumeClaim":{"claimName":"data"}}]}}}`})
}

// readAll reads wanted objects, in the tarball's order.
func readAll(t testing.TB, b *Backup, want func(*manifest.Item) bool) (names []string, err error) {
	t.Helper()
	for object, failed := range b.ObjectsOf(t.Context(), slices.DeleteFunc(slices.Clone(b.Items), func(item *manifest.Item) bool { return !want(item) })) {
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		names = append(names, object.Content.GetKind()+" "+object.Content.GetName())
	}
	return names, err
}

func everything(*manifest.Item) bool { return true }

func TestOpen(t *testing.T) {
	for _, withManifest := range []bool{true, false} {
		t.Run(fmt.Sprintf("manifest=%t", withManifest), func(t *testing.T) {
			bucket := storetest.Memory(t)
			objects := some(2000)
			write(t, bucket, "b", withManifest, objects...)
			b, err := Open(t.Context(), bucket, placeOf("b"), "backup-uid", nil)
			check(t, err)
			if len(b.Items) != len(objects) || len(b.Warnings) != 0 {
				t.Fatalf("%d items, warnings %q", len(b.Items), b.Warnings)
			}
			members := map[int64]bool{}
			var web *manifest.Item
			for _, item := range b.Items {
				members[item.Place.Member] = true
				if item.Name == "web" {
					web = item
				}
			}
			if withManifest != (len(members) > 5) {
				t.Errorf("%d gzip members", len(members))
			}
			if len(web.References) != 1 || web.References[0].Name != "data" {
				t.Errorf("references %v", web.References)
			}
			names, err := readAll(t, b, everything)
			check(t, err)
			if len(names) != len(objects) || names[0] != "Namespace shop" {
				t.Errorf("read %d objects, first %s", len(names), names[0])
			}
			names, err = readAll(t, b, func(i *manifest.Item) bool { return strings.HasSuffix(i.Name, "7") || i.Name == "web" })
			check(t, err)
			if len(names) != 201 {
				t.Errorf("read %d objects", len(names))
			}
			for _, item := range []*manifest.Item{b.Items[0], web, b.Items[777]} {
				o, err := b.Object(t.Context(), item)
				check(t, err)
				if o.GetName() != item.Name {
					t.Errorf("read %s for %s", o.GetName(), item.Name)
				}
			}
			if _, err := Open(t.Context(), bucket, placeOf("b"), "other", nil); !errors.Is(err, ErrNoBackup) {
				t.Errorf("another backup: %v", err)
			}
			if _, err := Open(t.Context(), bucket, placeOf("none"), "", nil); !errors.Is(err, ErrNoBackup) {
				t.Errorf("no backup: %v", err)
			}
		})
	}
}

// A manifest that is not the one of the backup is not used.
func TestManifestThatDoesNotFit(t *testing.T) {
	for name, data := range map[string][]byte{"damaged": []byte("x"), "missing": nil} {
		t.Run(name, func(t *testing.T) {
			bucket := storetest.Memory(t)
			objects := some(3)
			write(t, bucket, "b", true, objects...)
			if data == nil {
				check(t, bucket.Remove(t.Context(), format.ManifestKey("b")))
			} else {
				check(t, bucket.Put(t.Context(), format.ManifestKey("b"), data))
			}
			b, err := Open(t.Context(), bucket, placeOf("b"), "", nil)
			check(t, err)
			if len(b.Items) != len(objects) || len(b.Warnings) != 1 {
				t.Errorf("%d items, warnings %q", len(b.Items), b.Warnings)
			}
		})
	}
	t.Run("another backup's", func(t *testing.T) {
		bucket := storetest.Memory(t)
		objects := some(3)
		write(t, bucket, "b", true, objects...)
		write(t, bucket, "other", true, some(5)...)
		content, err := bucket.Get(t.Context(), format.ManifestKey("other"))
		check(t, err)
		data, err := io.ReadAll(content)
		check(t, err)
		check(t, content.Close())
		check(t, bucket.Put(t.Context(), format.ManifestKey("b"), data))
		b, err := Open(t.Context(), bucket, placeOf("b"), "", nil)
		check(t, err)
		if len(b.Items) != len(objects) || len(b.Warnings) != 1 {
			t.Errorf("%d items, warnings %q", len(b.Items), b.Warnings)
		}
	})
}

type entry struct {
	path, content string
	change        func(*tar.Header)
}

func tarball(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	w := tar.NewWriter(compressed)
	for _, e := range entries {
		header := &tar.Header{Name: e.path, Size: int64(len(e.content)), Mode: 0o600, Typeflag: tar.TypeReg}
		if e.change != nil {
			e.change(header)
		}
		check(t, w.WriteHeader(header))
		if header.Typeflag == tar.TypeReg {
			_, err := io.WriteString(w, e.content)
			check(t, err)
		}
	}
	check(t, w.Close())
	check(t, compressed.Close())
	return out.Bytes()
}

// Proof 20: hostile tarballs are refused.
func TestHostile(t *testing.T) {
	const good = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"shop"}}`
	const at = "resources/configmaps/namespaces/shop/a.json"
	for name, test := range map[string]struct {
		data []byte
		says string
	}{
		"it leaves its folder":   {tarball(t, entry{path: "resources/configmaps/namespaces/../../x/a.json", content: good}), "leaves it"},
		"it is absolute":         {tarball(t, entry{path: "/" + at, content: good}), "leaves it"},
		"twice":                  {tarball(t, entry{path: at, content: good}, entry{path: at, content: good}), "is in it twice"},
		"twice, by another path": {tarball(t, entry{path: at, content: good}, entry{path: "./" + at, content: good}), "is in it twice"},
		"another name":           {tarball(t, entry{path: "resources/configmaps/namespaces/shop/b.json", content: good}), "by its content"},
		"another namespace":      {tarball(t, entry{path: "resources/configmaps/namespaces/kube-system/a.json", content: good}), "by its content"},
		"a namespace of none":    {tarball(t, entry{path: "resources/configmaps/cluster/a.json", content: good}), "by its content"},
		"another group":          {tarball(t, entry{path: "resources/configmaps.apps/namespaces/shop/a.json", content: good}), "by its content"},
		"no kind":                {tarball(t, entry{path: at, content: `{"apiVersion":"v1","metadata":{"name":"a","namespace":"shop"}}`}), "the kind"},
		"no JSON":                {tarball(t, entry{path: at, content: `{`}), at},
		"a list":                 {tarball(t, entry{path: at, content: `[]`}), at},
		"cut short":              {tarball(t, entry{path: at, content: good})[:80], "read the tarball"},
		"no gzip":                {[]byte("none"), "not gzip"},
		"a file with holes":      {holes(t, at, good), ""},
		"a huge object":          {tarball(t, entry{path: at, content: `{"a":"` + strings.Repeat("x", MaxObjectBytes) + `"}`}), "more than an object has"},
		"a bomb":                 {bomb(t), "far more than a backup"},
	} {
		t.Run(name, func(t *testing.T) {
			bucket := storetest.Memory(t)
			w := &written{bucket, format.Contents{}, "b"}
			check(t, bucket.Put(t.Context(), format.TarballKey("b"), test.data))
			w.finish(t)
			_, err := Open(t.Context(), bucket, placeOf("b"), "", nil)
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v, want one with %q", err, test.says)
			}
		})
	}
}

// holes is a tarball with a file that says it is larger than what is there of it.
func holes(t testing.TB, path, content string) []byte {
	t.Helper()
	const records = "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
	compressed, err := gzip.NewReader(bytes.NewReader(tarball(t, entry{path: "records", content: records}, entry{path: path, content: "1\n0\n9\n" + strings.Repeat("\x00", 505) + content})))
	check(t, err)
	plain, err := io.ReadAll(compressed)
	check(t, err)
	plain[156] = tar.TypeXHeader
	copy(plain[148:156], "        ")
	sum := 0
	for _, b := range plain[:512] {
		sum += int(b)
	}
	copy(plain[148:156], fmt.Sprintf("%06o\x00 ", sum))
	var out bytes.Buffer
	again := gzip.NewWriter(&out)
	_, err = again.Write(plain)
	check(t, err)
	check(t, again.Close())
	return out.Bytes()
}

func bomb(t testing.TB) []byte {
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	w := tar.NewWriter(compressed)
	const size = 300 << 20
	check(t, w.WriteHeader(&tar.Header{Name: "metadata/version", Size: size, Typeflag: tar.TypeReg}))
	zeros := make([]byte, 1<<20)
	for range size / len(zeros) {
		_, err := w.Write(zeros)
		check(t, err)
	}
	check(t, w.Close())
	check(t, compressed.Close())
	return out.Bytes()
}

// What a manifest says of an object must be what lies there.
func TestManifestThatLies(t *testing.T) {
	objects := some(20)
	for name, lie := range map[string]func(*manifest.Item){
		"another object's name":   func(i *manifest.Item) { i.Name = "c-9999" },
		"another kind":            func(i *manifest.Item) { i.KindName = "Secret" },
		"another digest":          func(i *manifest.Item) { i.SHA256 = strings.Repeat("0", 64) },
		"another size":            func(i *manifest.Item) { i.Size-- },
		"another place":           func(i *manifest.Item) { i.Place.Offset += 512 },
		"beyond the end":          func(i *manifest.Item) { i.Place.Offset += 1 << 40 },
		"beyond the end, outside": func(i *manifest.Item) { i.Place.Member += 1 << 40 },
		"another uid":             func(i *manifest.Item) { i.UID = "u" },
	} {
		t.Run(name, func(t *testing.T) {
			bucket := storetest.Memory(t)
			write(t, bucket, "b", true, objects...)
			b, err := Open(t.Context(), bucket, placeOf("b"), "", nil)
			check(t, err)
			item := *b.Items[7]
			lie(&item)
			if o, err := b.Object(t.Context(), &item); err == nil {
				t.Errorf("read %v", o)
			}
		})
	}
}

// The tarball is compared with what the metadata says of it, when it is read as a whole.
func TestTarballThatDoesNotFit(t *testing.T) {
	bucket := storetest.Memory(t)
	w := &written{bucket, format.Contents{}, "b"}
	data := tarball(t, entry{path: "resources/configmaps/namespaces/shop/a.json", content: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"shop"}}`})
	w.put(t, format.TarballKey("b"), data)
	w.finish(t)
	_, err := Open(t.Context(), bucket, placeOf("b"), "", nil)
	check(t, err)
	data[4] = 'x' // the time in the header, which readers ignore
	check(t, bucket.Put(t.Context(), format.TarballKey("b"), data))
	if _, err := Open(t.Context(), bucket, placeOf("b"), "", nil); !errors.Is(err, errSum) {
		t.Errorf("another tarball: %v", err)
	}
	check(t, bucket.Put(t.Context(), format.TarballKey("b"), data[:50]))
	if _, err := Open(t.Context(), bucket, placeOf("b"), "", nil); !errors.Is(err, ErrRefused) {
		t.Errorf("half a tarball: %v", err)
	}
}

// A backup that Velero 1.18.1 wrote.
func TestVelero(t *testing.T) {
	bucket := velero(t)
	b, err := Open(t.Context(), bucket, placeOf("v-shop"), "", nil)
	check(t, err)
	content, err := bucket.Get(t.Context(), format.ResourceListKey("v-shop"))
	check(t, err)
	list, err := format.ReadResourceList(content)
	check(t, err)
	check(t, content.Close())
	total := 0
	for _, names := range list {
		total += len(names)
	}
	if len(b.Items) != total || len(b.Warnings) != 0 {
		t.Fatalf("%d items of %d, warnings %q", len(b.Items), total, b.Warnings)
	}
	found := map[string]int{}
	for object, err := range b.ObjectsOf(t.Context(), b.Items) {
		check(t, err)
		found[object.Item.GroupKind()]++
	}
	for kind, names := range list {
		if found[kind] != len(names) {
			t.Errorf("%d of %d %s", found[kind], len(names), kind)
		}
	}
	if len(b.Volumes) != 1 {
		t.Fatalf("%d volumes", len(b.Volumes))
	}
	v := &b.Volumes[0]
	if v.Claim() != (types.NamespacedName{Namespace: "shop", Name: "data"}) || v.Status.SnapshotID != "2faa98bf6d4a1b604eebf11e8943e9e0" ||
		v.RepositoryNamespace() != "shop" || v.PersistentVolume != "shop-data" || v.Problem != "" {
		t.Errorf("volume %+v", v)
	}
}

// What a backup says of volumes whose files it does not hold, also if it holds none at all.
func TestVolumesWithoutFiles(t *testing.T) {
	for _, withFiles := range []bool{true, false} {
		bucket := storetest.Memory(t)
		w := write(t, bucket, "b", true, some(1)...)
		infos := []format.VolumeInfo{
			{PVCNamespace: "shop", PVCName: "idle", Skipped: true, SkippedReason: "no pod runs"},
			{PVCNamespace: "shop", PVCName: "failed", Skipped: true, SkippedReason: "no class", Result: format.ResultFailed},
			{PVCNamespace: "shop", PVCName: "snapshot", PVName: "pv-s", BackupMethod: "CSISnapshot"},
			{PVCNamespace: "shop", PVCName: "files", PVName: "pv-f", BackupMethod: "PodVolumeBackup"},
			{PVCNamespace: "../other", PVCName: "x", BackupMethod: "NativeSnapshot"},
			{PVName: "without-claim", BackupMethod: "NativeSnapshot"},
		}
		encoded, err := json.Marshal(infos)
		check(t, err)
		var compressed bytes.Buffer
		zip := gzip.NewWriter(&compressed)
		_, err = zip.Write(encoded)
		check(t, err)
		check(t, zip.Close())
		w.put(t, format.VolumeInfoKey("b"), compressed.Bytes())
		want := []string{"failed", "snapshot"}
		if withFiles {
			want = []string{"files", "failed", "snapshot"}
			var list bytes.Buffer
			zip := gzip.NewWriter(&list)
			_, err := io.WriteString(zip, `[{"metadata":{"annotations":{"velero.io/pvc-name":"files"}},"spec":{"pod":{"namespace":"shop","name":"p"},"volume":"v","uploaderType":"kopia","tags":{"pvc-name":"files"}},"status":{"phase":"Completed","snapshotID":"x"}}]`)
			check(t, err)
			check(t, zip.Close())
			w.put(t, format.PodVolumeBackupsKey("b"), list.Bytes())
		}
		w.finish(t)
		b, err := Open(t.Context(), bucket, placeOf("b"), "", nil)
		check(t, err)
		var claims []string
		for i := range b.Volumes {
			v := &b.Volumes[i]
			claims = append(claims, v.ClaimName)
			if v.ClaimName == "snapshot" && (v.Problem != format.StoredInStorage || v.Claim().Namespace != "shop") ||
				v.ClaimName == "failed" && (v.Problem != "no class" || v.Claim().Namespace != "shop") ||
				v.ClaimName == "files" && (v.Problem != "" || v.PersistentVolume != "pv-f") {
				t.Errorf("volume %+v", v)
			}
		}
		if !slices.Equal(claims, want) {
			t.Errorf("volumes of %q, not of %q", claims, want)
		}
		if len(b.NotTaken) != 1 || b.NotTaken[types.NamespacedName{Namespace: "shop", Name: "idle"}] != "no pod runs" {
			t.Errorf("not taken: %v", b.NotTaken)
		}
	}
}

// broken fails with err for a key.
type broken struct {
	Store
	key string
	err error
}

func (b broken) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	if key == b.key {
		return nil, b.err
	}
	return b.Store.Get(ctx, key)
}

// TestPersistentVolumesThatCannotBeRead: no backup is restored without what it says of its persistent
// volumes, since claims without their data would be taken for empty ones. Velero until 1.12 has no such list.
func TestPersistentVolumesThatCannotBeRead(t *testing.T) {
	key := format.VolumeInfoKey("b")
	for name, test := range map[string]struct {
		change func(bucket *store.Bucket) Store
		put    bool
		want   error
		says   string
	}{
		"as it was":               {func(b *store.Bucket) Store { return b }, true, nil, ""},
		"never written":           {func(b *store.Bucket) Store { return b }, false, nil, ""},
		"missing":                 {func(b *store.Bucket) Store { check(t, b.Remove(t.Context(), key)); return b }, true, ErrRefused, "its list of persistent volumes is missing"},
		"another":                 {func(b *store.Bucket) Store { check(t, b.Put(t.Context(), key, packed(t, []int{}))); return b }, true, ErrRefused, "digest"},
		"damaged":                 {func(b *store.Bucket) Store { check(t, b.Put(t.Context(), key, []byte("x"))); return b }, true, nil, "read the persistent volumes"},
		"while the store is away": {func(b *store.Bucket) Store { return broken{b, key, store.ErrUnavailable} }, true, store.ErrUnavailable, "read the persistent volumes"},
		"never written, and away": {func(b *store.Bucket) Store { return broken{b, key, store.ErrUnavailable} }, false, store.ErrUnavailable, "read the persistent volumes"},
	} {
		t.Run(name, func(t *testing.T) {
			bucket := storetest.Memory(t)
			w := write(t, bucket, "b", true, some(1)...)
			if test.put {
				w.put(t, key, packed(t, []format.VolumeInfo{{PVCNamespace: "shop", PVCName: "data", BackupMethod: format.MethodCSISnapshot}}))
			}
			w.finish(t)
			bad := test.change(bucket)
			_, whole := Open(t.Context(), bad, placeOf("b"), "", nil)
			_, volumes := OpenVolumes(t.Context(), bad, placeOf("b"), "")
			for _, err := range []error{whole, volumes} {
				if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) || test.want != nil && !errors.Is(err, test.want) {
					t.Errorf("got %v, want %q", err, test.says)
				}
			}
		})
	}
}

// velero is a store that Velero 1.18 wrote.
func velero(t testing.TB) *store.Bucket {
	t.Helper()
	return stored(t, "testdata/velero-store.tar.gz")
}

// stored is a store with the content of an archive.
func stored(t testing.TB, archive string) *store.Bucket {
	t.Helper()
	file, err := os.Open(archive)
	check(t, err)
	defer file.Close()
	bucket := storetest.Memory(t)
	compressed, err := gzip.NewReader(file)
	check(t, err)
	for entries := tar.NewReader(compressed); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return bucket
		}
		check(t, err)
		if header.Typeflag != tar.TypeReg {
			continue
		}
		data, err := io.ReadAll(entries)
		check(t, err)
		check(t, bucket.Put(t.Context(), strings.TrimPrefix(header.Name, "./"), data))
	}
}

func FuzzTarball(f *testing.F) {
	f.Add(tarball(f, entry{path: "resources/configmaps/namespaces/shop/a.json", content: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"shop"}}`}))
	f.Add(tarball(f, entry{path: "resources/deployments.apps/v1-preferredversion/namespaces/shop/a.json", content: `{}`}, entry{path: "resources/namespaces/cluster/a.json", content: `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"a"}}`}))
	f.Fuzz(func(t *testing.T, data []byte) {
		bucket := storetest.Memory(t)
		w := &written{bucket, format.Contents{}, "b"}
		check(t, bucket.Put(t.Context(), format.TarballKey("b"), data))
		w.finish(t)
		b, err := Open(t.Context(), bucket, placeOf("b"), "", nil)
		if err != nil {
			return
		}
		// What was accepted is what it says it is.
		seen := 0
		for object, err := range b.ObjectsOf(t.Context(), b.Items) {
			check(t, err)
			seen++
			if object.Content.GetName() != object.Item.Name || object.Content.GetNamespace() != object.Item.Namespace {
				t.Fatalf("%v is not %v", object.Content, object.Item)
			}
		}
		if seen != len(b.Items) {
			t.Fatalf("%d of %d objects", seen, len(b.Items))
		}
	})
}

func FuzzVolumes(f *testing.F) {
	f.Add([]byte(`[{"spec":{"pod":{"namespace":"a","name":"b"},"volume":"c","uploaderType":"kopia"},"status":{"phase":"Completed","snapshotID":"x"}}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var pvb []format.PodVolumeBackup
		if json.Unmarshal(data, &pvb) != nil {
			return
		}
		for i := range pvb {
			if v, err := newVolume(&pvb[i]); err == nil && (strings.ContainsAny(v.Pod.Namespace+v.ClaimName+v.Name, "/ \x00") || v.Problem == "" && v.Status.SnapshotID == "") {
				t.Fatalf("accepted %+v", v)
			}
		}
	})
}
