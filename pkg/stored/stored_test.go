// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package stored_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/encryption"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
	"github.com/holdfast-io/holdfast/pkg/stored"
	"github.com/holdfast-io/holdfast/pkg/stored/storedtest"
)

// counting counts requests, and the bytes that are read.
type counting struct {
	store.Ranger
	requests int
	bytes    int64
}

func (c *counting) Attributes(ctx context.Context, key string) (store.Object, error) {
	c.requests++
	return c.Ranger.Attributes(ctx, key)
}

func (c *counting) GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	c.requests++
	r, err := c.Ranger.GetRange(ctx, key, offset, length)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.TeeReader(r, writerFunc(func(p []byte) (int, error) {
		c.bytes += int64(len(p))
		return len(p), nil
	})), r}, nil
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func find(ctx context.Context, from stored.Backup, o storedtest.Object) ([]byte, error) {
	index, err := from.Index(ctx)
	if err != nil {
		return nil, err
	}
	item, err := index.Find(ctx, o.Kind, o.Namespace, o.Name)
	if item == nil || err != nil {
		return nil, err
	}
	return from.Object(ctx, item)
}

// Each object comes back byte by byte, in four requests, wherever it lies in the tarball.
func TestOneObject(t *testing.T) {
	random := rand.NewChaCha8([32]byte{})
	var objects []storedtest.Object
	for i := range 600 {
		o := storedtest.Object{Kind: "v1/ConfigMap", Resource: "configmaps", Namespace: fmt.Sprint("n", i%9), Name: fmt.Sprintf("%s-%d", strings.Repeat("n", i%200), i)}
		if i%3 == 0 {
			o.Kind, o.Resource = "apps/v1/Deployment", "deployments"
		}
		if i%7 == 0 {
			o.Kind, o.Resource, o.Namespace = "rbac.authorization.k8s.io/v1/ClusterRole", "clusterroles", ""
		}
		size := 10 + i%2000
		switch {
		case i%150 == 149:
			size = 3 << 20 // more than a member
		case i == 17:
			size = 0
		}
		o.Content = make([]byte, size)
		_, _ = random.Read(o.Content)
		objects = append(objects, o)
	}
	bucket := storetest.Memory(t)
	storedtest.Write(t, bucket, "b", objects...)
	for _, o := range objects {
		from := &counting{Ranger: bucket}
		got, err := find(t.Context(), stored.Backup{Store: from, StoreName: "b"}, o)
		if err != nil || !bytes.Equal(got, o.Content) {
			t.Fatalf("%s/%s: %d bytes of %d: %v", o.Namespace, o.Name, len(got), len(o.Content), err)
		}
		if from.requests > 4 {
			t.Fatalf("%s/%s took %d requests", o.Namespace, o.Name, from.requests)
		}
		if limit := int64(8<<20 + len(o.Content)); from.bytes > limit {
			t.Errorf("%s/%s took %d bytes of the store", o.Namespace, o.Name, from.bytes)
		}
	}
	absent := storedtest.Object{Kind: "v1/ConfigMap", Namespace: "n1", Name: "absent"}
	if got, err := find(t.Context(), stored.Backup{Store: bucket, StoreName: "b"}, absent); got != nil || err != nil {
		t.Errorf("what is not there is %q, %v", got, err)
	}
	if _, err := (stored.Backup{Store: bucket, StoreName: "other"}).Index(t.Context()); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the manifest of a backup without one: %v", err)
	}
}

// What a hostile manifest says of an object gives nobody another one, or one that was changed.
func TestHostileManifest(t *testing.T) {
	objects := []storedtest.Object{
		{Kind: "v1/ConfigMap", Resource: "configmaps", Namespace: "shop", Name: "plain"},
		{Kind: "v1/Secret", Resource: "secrets", Namespace: "shop", Name: "hidden"},
	}
	var tarball bytes.Buffer
	items := storedtest.Items(t, &tarball, objects)
	for name, change := range map[string]func(plain *manifest.Item){
		"another object":      func(i *manifest.Item) { i.Place, i.Size, i.SHA256 = items[1].Place, items[1].Size, items[1].SHA256 },
		"another checksum":    func(i *manifest.Item) { i.SHA256 = strings.Repeat("0", 64) },
		"no checksum":         func(i *manifest.Item) { i.SHA256 = "" },
		"another size":        func(i *manifest.Item) { i.Size-- },
		"before the tarball":  func(i *manifest.Item) { i.Place.Member = -1 },
		"behind the tarball":  func(i *manifest.Item) { i.Place.Member = 1 << 40 },
		"within a member":     func(i *manifest.Item) { i.Place.Member = 7 },
		"negative offset":     func(i *manifest.Item) { i.Place.Offset = -1 },
		"an offset too far":   func(i *manifest.Item) { i.Place.Offset = 1 << 50 },
		"behind the end":      func(i *manifest.Item) { i.Place.Offset = 1 << 20 },
		"between two headers": func(i *manifest.Item) { i.Place.Offset += 512 },
		"a size too large":    func(i *manifest.Item) { i.Size = 1 << 40 },
		"a negative size":     func(i *manifest.Item) { i.Size = -1 },
	} {
		bucket := storetest.Memory(t)
		changed := *items[0]
		change(&changed)
		for key, content := range map[string][]byte{format.TarballKey("b"): tarball.Bytes(), format.ManifestKey("b"): storedtest.Manifest(t, []*manifest.Item{&changed, items[1]})} {
			if err := bucket.Put(t.Context(), key, content); err != nil {
				t.Fatal(err)
			}
		}
		got, err := find(t.Context(), stored.Backup{Store: bucket, StoreName: "b"}, objects[0])
		if len(got) > 0 || !errors.Is(err, archive.ErrPlace) && !errors.Is(err, stored.ErrDamaged) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// TestManifestOfItsDigest: a manifest that was replaced or removed is not read, neither for one
// object nor as a whole, and a large one not as a whole.
func TestManifestOfItsDigest(t *testing.T) {
	large, random := make([]storedtest.Object, 500), rand.NewChaCha8([32]byte{})
	for i := range large {
		noise := make([]byte, 3<<10)
		_, _ = random.Read(noise)
		large[i] = storedtest.Object{
			Kind: "v1/ConfigMap", Resource: "configmaps", Namespace: "shop", Name: fmt.Sprint("large-", i), Content: fmt.Append(nil, i),
			Labels: map[string]string{"noise": hex.EncodeToString(noise)},
		}
	}
	for name, objects := range map[string][]storedtest.Object{
		"small": {{Kind: "v1/ConfigMap", Resource: "configmaps", Namespace: "shop", Name: "a"}},
		"large": large,
	} {
		var tarball bytes.Buffer
		items := storedtest.Items(t, &tarball, objects)
		document := storedtest.Manifest(t, items)
		if isLarge := len(document) > 1<<20; isLarge != (name == "large") {
			t.Fatalf("the %s manifest has %d bytes", name, len(document))
		}
		items[0].Reason = "changed"
		changed := storedtest.Manifest(t, items)
		for what, c := range map[string]struct {
			stored         []byte
			known          bool
			object, listed error
		}{
			"as it was stored":           {stored: document, known: true},
			"replaced":                   {stored: changed, known: true, object: stored.ErrManifest, listed: stored.ErrManifest},
			"replaced, and not known":    {stored: changed},
			"removed":                    {known: true, object: stored.ErrManifest, listed: stored.ErrManifest},
			"never there, and not known": {object: store.ErrNotFound, listed: store.ErrNotFound},
		} {
			if name == "large" && what == "replaced" {
				c.object = nil // it costs more than an object is worth
			}
			bucket := storetest.Memory(t)
			if c.stored != nil {
				if err := errors.Join(bucket.Put(t.Context(), format.ManifestKey("b"), c.stored), bucket.Put(t.Context(), format.TarballKey("b"), tarball.Bytes())); err != nil {
					t.Fatal(err)
				}
			}
			from := stored.Backup{Store: bucket, StoreName: "b"}
			if c.known {
				from.ManifestDigest = format.NewContent(document).SHA256
			}
			if got, err := find(t.Context(), from, objects[len(objects)-1]); !errors.Is(err, c.object) || (err == nil) != (len(got) > 0) {
				t.Errorf("%s, %s: an object is %q, %v", name, what, got, err)
			}
			var err error
			count := 0
			for _, err = range from.Items(t.Context()) {
				if err == nil {
					count++
				}
			}
			if !errors.Is(err, c.listed) || err == nil && count != len(objects) {
				t.Errorf("%s, %s: %d items of %d, %v", name, what, count, len(objects), err)
			}
		}
	}
}

// Whatever lies in the store, an object that is given out is the one that was asked for, as
// the manifest describes it.
func FuzzObject(f *testing.F) {
	objects := []storedtest.Object{{Kind: "v1/ConfigMap", Resource: "configmaps", Namespace: "shop", Name: "a"}, {Kind: "v1/Secret", Resource: "secrets", Namespace: "shop", Name: "a"}}
	var tarball bytes.Buffer
	document := storedtest.Manifest(f, storedtest.Items(f, &tarball, objects))
	f.Add(tarball.Bytes(), document)
	f.Add(tarball.Bytes()[:100], document)
	f.Add(tarball.Bytes(), document[20:])
	f.Fuzz(func(t *testing.T, tarball, document []byte) {
		bucket := storetest.Memory(t)
		for key, content := range map[string][]byte{format.TarballKey("b"): tarball, format.ManifestKey("b"): document} {
			if err := bucket.Put(t.Context(), key, content); err != nil {
				t.Fatal(err)
			}
		}
		from := stored.Backup{Store: bucket, StoreName: "b"}
		index, err := from.Index(t.Context())
		if err != nil {
			return
		}
		for item, err := range index.Read(t.Context(), index.Kinds()...) {
			if err != nil {
				return
			}
			content, err := from.Object(t.Context(), item)
			sum := sha256.Sum256(content)
			if err == nil && (hex.EncodeToString(sum[:]) != item.SHA256 || int64(len(content)) != item.Size || !slices.Contains([]string{"configmaps", "secrets"}, item.Resource) && bytes.Equal(content, objects[1].Content)) {
				t.Fatalf("%s is %q", item, content)
			}
		}
	})
}

// An object of an encrypted backup comes back as any other, in up to seven requests; and nothing of
// it without the key.
func TestOneObjectOfAnEncryptedBackup(t *testing.T) {
	keys, err := encryption.NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	to := keys.For(nil)
	random := rand.NewChaCha8([32]byte{})
	var objects []storedtest.Object
	for i := range 300 {
		o := storedtest.Object{Kind: "v1/Secret", Resource: "secrets", Namespace: "shop", Name: fmt.Sprint("s-", i), Content: make([]byte, 10+i*40)}
		_, _ = random.Read(o.Content)
		objects = append(objects, o)
	}
	bucket := storetest.Memory(t)
	storedtest.WriteEncrypted(t, bucket, "b", to, objects...)
	from := stored.Backup{StoreName: "b", Encryption: to.Status(), Keys: func(context.Context) (encryption.Keys, error) { return keys, nil }}
	for _, o := range objects {
		counted := &counting{Ranger: bucket}
		from.Store = counted
		got, err := find(t.Context(), from, o)
		if err != nil || !bytes.Equal(got, o.Content) {
			t.Fatalf("%s: %d bytes of %d: %v", o.Name, len(got), len(o.Content), err)
		}
		if counted.requests > 7 {
			t.Fatalf("%s took %d requests", o.Name, counted.requests)
		}
	}
	from.Keys = nil
	if got, err := find(t.Context(), from, objects[0]); got != nil || !errors.Is(err, encryption.ErrNoKey) {
		t.Errorf("without the key: %d bytes, %v", len(got), err)
	}
	for _, err := range from.Scan(t.Context()) {
		if !errors.Is(err, encryption.ErrNoKey) {
			t.Errorf("a scan without the key: %v", err)
		}
	}
}
