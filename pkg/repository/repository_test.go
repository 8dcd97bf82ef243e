// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot/policy"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const namespace = "app"

func filesystemLocation(t *testing.T) Location {
	t.Helper()
	return Location{Spec: enginev1alpha1.StorageLocationSpec{
		Provider:   enginev1alpha1.StorageProviderFilesystem,
		Prefix:     "clusters/one",
		Filesystem: &enginev1alpha1.FilesystemLocation{Path: t.TempDir()},
	}}
}

// s3Location is a bucket in a server of this process, by https if tls is set.
func s3Location(t *testing.T, tls bool) Location {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("backups"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(gofakes3.New(backend).Server())
	spec := &enginev1alpha1.S3Location{Bucket: "backups", ForcePathStyle: true, CredentialsSecret: "credentials"}
	if tls {
		server.StartTLS()
		spec.CABundle = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	spec.Endpoint = server.URL
	return Location{
		Spec:   enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderS3, Prefix: "p", S3: spec},
		Secret: map[string][]byte{"accessKeyID": []byte("AKIAEXAMPLE"), "secretAccessKey": []byte("very-secret-key")},
	}
}

func locations(t *testing.T) map[string]Location {
	return map[string]Location{
		"filesystem": filesystemLocation(t),
		"s3":         s3Location(t, false),
		"s3 by TLS":  s3Location(t, true),
	}
}

// put writes a manifest and returns its id.
func put(t *testing.T, r *Repository) manifest.ID {
	t.Helper()
	id, err := r.put(t)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (r *Repository) put(t *testing.T) (id manifest.ID, err error) {
	err = repo.WriteSession(t.Context(), r.Kopia(), repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		id, err = w.PutManifest(ctx, map[string]string{"type": "test"}, map[string]string{"a": "b"})
		return err
	})
	return id, err
}

func open1(t *testing.T, loc Location, key Key, opts Options) *Repository {
	t.Helper()
	// The context of the opening ends at once: the repository must not need it.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := Open(ctx, loc, namespace, key, opts)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return r
}

func TestLifecycle(t *testing.T) {
	for name, loc := range locations(t) {
		t.Run(name, func(t *testing.T) {
			ctx, key := t.Context(), NewKey()

			if exists, err := Exists(ctx, loc, namespace); err != nil || exists {
				t.Fatalf("Exists before = %v, %v", exists, err)
			}
			if _, err := Open(ctx, loc, namespace, key, Options{WorkDir: t.TempDir()}); !errors.Is(err, ErrNotInitialized) {
				t.Fatalf("Open before = %v, want ErrNotInitialized", err)
			}
			for range 2 {
				if err := Create(ctx, loc, namespace, key); err != nil {
					t.Fatalf("Create: %v", err)
				}
			}
			if exists, err := Exists(ctx, loc, namespace); err != nil || !exists {
				t.Fatalf("Exists after = %v, %v", exists, err)
			}

			other := NewKey()
			if err := Create(ctx, loc, namespace, other); !errors.Is(err, ErrWrongKey) {
				t.Errorf("Create with another key = %v, want ErrWrongKey", err)
			}
			if _, err := Open(ctx, loc, namespace, other, Options{}); !errors.Is(err, ErrWrongKey) {
				t.Errorf("Open with another key = %v, want ErrWrongKey", err)
			}

			work, cache := t.TempDir(), t.TempDir()
			r := open1(t, loc, key, Options{WorkDir: work, Cache: newCache(t, cache, 1<<30)})
			id := put(t, r)
			for _, dir := range []string{work, cache} {
				expectNoSecrets(t, dir, string(key), "very-secret-key", "AKIAEXAMPLE")
			}
			if err := r.Close(ctx); err != nil {
				t.Errorf("Close: %v", err)
			}
			if left, _ := os.ReadDir(work); len(left) > 0 {
				t.Errorf("Close left %v", left)
			}

			// Another client sees it at once, with the same cache and without one.
			for _, opts := range []Options{{Cache: newCache(t, cache, 1<<30)}, {}} {
				r = open1(t, loc, key, opts)
				if _, err := r.Kopia().GetManifest(ctx, id, new(map[string]string)); err != nil {
					t.Errorf("GetManifest: %v", err)
				}
				if err := r.Close(ctx); err != nil {
					t.Errorf("Close: %v", err)
				}
			}
		})
	}
}

func expectNoSecrets(t *testing.T, dir string, secrets ...string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		for _, secret := range secrets {
			if strings.Contains(string(data), secret) {
				t.Errorf("%s contains a secret", path)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestVeleroReads opens the repository as Velero does: with Kopia's own
// connection, in Velero's folder, as default@default.
func TestVeleroReads(t *testing.T) {
	ctx, loc, key := t.Context(), filesystemLocation(t), NewKey()
	if err := Create(ctx, loc, namespace, key); err != nil {
		t.Fatal(err)
	}
	r := open1(t, loc, key, Options{})
	id := put(t, r)
	r.Close(ctx)

	dir := filepath.Join(loc.Spec.Filesystem.Path, "clusters/one/kopia", namespace)
	st, err := filesystem.New(ctx, &filesystem.Options{Path: dir}, false)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "repo.conf")
	err = repo.Connect(ctx, config, st, string(key), &repo.ConnectOptions{ClientOptions: repo.ClientOptions{Username: "default", Hostname: "default"}})
	if err != nil {
		t.Fatalf("Connect: %v", err)
	}
	velero, err := repo.Open(ctx, config, string(key), &repo.Options{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer velero.Close(ctx)
	if _, err := velero.GetManifest(ctx, id, new(map[string]string)); err != nil {
		t.Errorf("GetManifest: %v", err)
	}
	params, err := maintenance.GetParams(ctx, velero)
	if err != nil || params.Owner != "default@default" {
		t.Errorf("the maintenance belongs to %q (%v), want default@default", params.Owner, err)
	}
	pol, err := policy.GetDefinedPolicy(ctx, velero, policy.GlobalPolicySourceInfo)
	if err != nil || pol.RetentionPolicy.KeepLatest.OrDefault(0) < 1e6 {
		t.Errorf("the policy does not keep everything: %v, %v", pol, err)
	}

	marker := readMarker(t, dir)
	var content struct {
		UniqueID []byte `json:"uniqueID"`
	}
	if err := json.Unmarshal(marker, &content); err != nil || string(content.UniqueID) != string(velero.(repo.DirectRepository).UniqueID()) {
		t.Errorf("marker %s (%v) does not name the repository", marker, err)
	}
}

func readMarker(t *testing.T, dir string) []byte {
	t.Helper()
	var data []byte
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		// The storage splits a blob's name into folders.
		if err == nil && strings.HasSuffix(strings.ReplaceAll(path, "/", ""), string(markerBlob)+".f") {
			data, err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestCreateTwiceAtOnce starts with the state that a store without conditional
// writes can reach when two processes initialise one repository: the later format
// replaces the earlier.
func TestCreateTwiceAtOnce(t *testing.T) {
	ctx, loc, key := t.Context(), filesystemLocation(t), NewKey()
	if err := Create(ctx, loc, namespace, key); err != nil {
		t.Fatal(err)
	}
	r := open1(t, loc, key, Options{})
	id := put(t, r)
	r.Close(ctx)

	dir := filepath.Join(loc.Spec.Filesystem.Path, "clusters/one/kopia", namespace)
	second := filesystemLocation(t)
	if err := Create(ctx, second, namespace, key); err != nil {
		t.Fatal(err)
	}
	later, err := os.ReadFile(filepath.Join(second.Spec.Filesystem.Path, "clusters/one/kopia", namespace, "kopia.repository.f"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kopia.repository.f"), later, 0o600); err != nil {
		t.Fatal(err)
	}
	r = open1(t, loc, key, Options{})
	defer r.Close(ctx)
	if _, err := r.Kopia().GetManifest(ctx, id, new(map[string]string)); err != nil {
		t.Errorf("what the first stored is lost: %v", err)
	}

	third := filesystemLocation(t)
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			if err := Create(ctx, third, namespace, key); err != nil {
				t.Errorf("concurrent Create: %v", err)
			}
		})
	}
	group.Wait()
}

func TestCreateCompletesAndRefuses(t *testing.T) {
	ctx, key := t.Context(), NewKey()
	create := func(t *testing.T) (Location, string) {
		loc := filesystemLocation(t)
		if err := Create(ctx, loc, namespace, key); err != nil {
			t.Fatal(err)
		}
		return loc, filepath.Join(loc.Spec.Filesystem.Path, "clusters/one/kopia", namespace)
	}
	t.Run("stopped by another tool before the format", func(t *testing.T) {
		loc := filesystemLocation(t)
		dir := filepath.Join(loc.Spec.Filesystem.Path, "clusters/one/kopia", namespace)
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "kopia.blobcfg.f"), []byte("of another format"), 0o600)); err != nil {
			t.Fatal(err)
		}
		if exists, err := Exists(ctx, loc, namespace); err != nil || !exists {
			t.Errorf("Exists = %v, %v", exists, err)
		}
		if err := Create(ctx, loc, namespace, key); err != nil {
			t.Errorf("Create = %v, want it to complete", err)
		}
	})
	t.Run("stopped before or after the format", func(t *testing.T) {
		for _, written := range []bool{false, true} {
			loc := filesystemLocation(t)
			if written {
				bucket := storetest.Open(t, loc.Spec, nil)
				if err := initialize(ctx, bucket, loc.Spec.Provider, namespace, key); err != nil {
					t.Fatal(err)
				}
			}
			if exists, err := Exists(ctx, loc, namespace); err != nil || exists != written {
				t.Errorf("Exists = %v, %v", exists, err)
			}
			if err := Create(ctx, loc, namespace, key); err != nil {
				t.Errorf("Create = %v, want it to complete", err)
			}
			open1(t, loc, key, Options{}).Close(ctx)
		}
	})
	t.Run("format lost", func(t *testing.T) {
		loc, dir := create(t)
		if err := os.Remove(filepath.Join(dir, "kopia.repository.f")); err != nil {
			t.Fatal(err)
		}
		if err := Create(ctx, loc, namespace, key); !errors.Is(err, ErrDamaged) {
			t.Errorf("Create = %v, want ErrDamaged", err)
		}
		if exists, err := Exists(ctx, loc, namespace); err != nil || !exists {
			t.Errorf("Exists = %v, %v", exists, err)
		}
	})
	t.Run("a password of a person", func(t *testing.T) {
		loc := filesystemLocation(t)
		if err := Create(ctx, loc, namespace, "correct horse"); err != nil {
			t.Fatal(err)
		}
		open1(t, loc, "correct horse", Options{}).Close(ctx)
	})
	t.Run("empty key", func(t *testing.T) {
		if err := Create(ctx, filesystemLocation(t), namespace, ""); err == nil {
			t.Error("an empty key is taken")
		}
	})
	t.Run("folder of the location is missing", func(t *testing.T) {
		loc := filesystemLocation(t)
		loc.Spec.Filesystem.Path = filepath.Join(loc.Spec.Filesystem.Path, "unmounted")
		if err := Create(ctx, loc, namespace, key); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotInitialized) {
			t.Errorf("Create = %v", err)
		}
		if _, err := Exists(ctx, loc, namespace); err == nil {
			t.Error("a location that isn't mounted has no error")
		}
	})
	t.Run("not a namespace", func(t *testing.T) {
		if err := Create(ctx, filesystemLocation(t), "../other", key); err == nil {
			t.Error("a namespace that leaves the folder is taken")
		}
	})
}

// TestErrorsTellNoSecrets provokes what the store says, and looks for secrets.
func TestErrorsTellNoSecrets(t *testing.T) {
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `<Error><Code>SignatureDoesNotMatch</Code><Message>The signature does not match.</Message></Error>`)
	}))
	defer refusing.Close()
	untrusted := s3Location(t, true)
	untrusted.Spec.S3.CABundle = nil
	refused := s3Location(t, false)
	refused.Spec.S3.Endpoint = refusing.URL
	lacking := s3Location(t, false)
	lacking.Secret = map[string][]byte{"secretAccessKey": []byte("very-secret-key")}
	wrong := s3Location(t, false)
	wrong.Spec.S3.Endpoint = "ftp://very.strange"

	for name, loc := range map[string]Location{"untrusted": untrusted, "refused": refused, "lacking": lacking, "endpoint": wrong} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := Create(ctx, loc, namespace, "the-repository-key")
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		for _, secret := range []string{"very-secret-key", "the-repository-key"} {
			if strings.Contains(fmt.Sprintf("%+v", err), secret) {
				t.Errorf("%s: the error tells a secret", name)
			}
		}
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if printed := fmt.Sprintf(verb, Key("hunter2")); strings.Contains(printed, "hunter2") {
			t.Errorf("a key prints as %s with %s", printed, verb)
		}
	}
}

func TestNewKey(t *testing.T) {
	a, b := NewKey(), NewKey()
	if a == b || len(a) != 43 {
		t.Errorf("keys of %d characters, equal: %v", len(a), a == b)
	}
	one, err := newRepositoryOptions("one", a)
	if err != nil {
		t.Fatal(err)
	}
	two, err := newRepositoryOptions("two", a)
	if err != nil {
		t.Fatal(err)
	}
	if string(one.BlockFormat.MasterKey) == string(two.BlockFormat.MasterKey) {
		t.Error("two namespaces with one key share their inner keys")
	}
}
