// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gocloud.dev/blob/memblob"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

func TestFilesystem(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Store { return storetest.Filesystem(t) })
}

func TestFilesystemWithPrefix(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Store {
		folder := t.TempDir()
		for _, neighbour := range []string{"one/twofold", "one", "."} {
			writeFile(t, filepath.Join(folder, neighbour, "neighbour"))
		}
		return storetest.Open(t, enginev1alpha1.StorageLocationSpec{
			Provider:   enginev1alpha1.StorageProviderFilesystem,
			Prefix:     "one/two",
			Filesystem: &enginev1alpha1.FilesystemLocation{Path: folder},
		}, nil)
	})
}

func TestMemory(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Store { return storetest.Memory(t) })
}

func TestMemoryWithPrefix(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Store {
		bucket := memblob.OpenBucket(nil)
		for _, neighbour := range []string{"one/twofold/neighbour", "one/neighbour", "neighbour"} {
			if err := bucket.WriteAll(t.Context(), neighbour, []byte("x"), nil); err != nil {
				t.Fatal(err)
			}
		}
		b, err := store.OverBlob(bucket, "one/two")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		return b
	})
}

func TestS3(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Store {
		location, secret := storetest.FakeS3(t, nil)
		location.Prefix = "one/two"
		return storetest.Open(t, location, secret)
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What answers each request with a page, as a proxy or a portal does, is no store: it is not
// empty, and has stored and removed nothing. A page that can be read as XML is one, too.
func TestWhatIsNoStore(t *testing.T) {
	for name, page := range map[string]struct{ kind, content string }{
		"a page":             {"text/html; charset=utf-8", "<!DOCTYPE html><html><head><title>Sign in</title></head><body><br>Welcome</body></html>"},
		"a page that is XML": {"text/html", "<html><head><title>Sign in</title></head><body><p>Welcome</p></body></html>"},
		"nothing":            {"", ""},
		"something else":     {"application/json", `{"error": "who are you?"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			location, secret := storetest.FakeS3(t, func(http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.Header()["Content-Type"] = nil
					if page.kind != "" {
						w.Header().Set("Content-Type", page.kind)
					}
					_, _ = w.Write([]byte(page.content))
				})
			})
			s, ctx := storetest.Open(t, location, secret), t.Context()
			written := func(size int) error {
				w, err := s.NewWriter(ctx, "a")
				if err != nil {
					return err
				}
				defer w.Abort()
				if _, err := w.Write(make([]byte, size)); err != nil {
					return err
				}
				return w.Commit()
			}
			_, identifyErr := s.Identify(ctx, time.Now())
			_, attributesErr := s.Attributes(ctx, "a")
			_, unfinishedErr := s.RemoveUnfinished(ctx, "backups/", time.Now(), false)
			for operation, err := range map[string]error{
				"check": s.Check(ctx), "identify": identifyErr, "expect": s.Expect(ctx, "a"), "list": drain(s.List(ctx, "backups/", store.ListOptions{})),
				"get": get(ctx, s, "a"), "attributes": attributesErr, "create": s.Create(ctx, "a", nil), "put": s.Put(ctx, "a", nil),
				"write": written(1), "write in parts": written(20 << 20), "unfinished": unfinishedErr,
			} {
				if !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("%s: got %v, want %v", operation, err, store.ErrUnavailable)
				} else if kind, _, _ := strings.Cut(page.kind, ";"); !strings.Contains(err.Error(), kind) || !strings.Contains(err.Error(), "check the endpoint") {
					t.Errorf("%s: %v: it does not tell what came", operation, err)
				}
			}
			if err := s.Remove(ctx, "a"); err == nil && strings.HasPrefix(page.kind, "text/html") {
				t.Error("it is said to have removed something")
			}
		})
	}
}

// Whatever a store lists as unfinished, only what lies below the folder is ended; one that can't
// list it says so.
func TestUnfinishedAsListed(t *testing.T) {
	var aborted []string
	unsupported := false
	location, secret := storetest.FakeS3(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case unsupported:
				w.WriteHeader(http.StatusNotImplemented)
				_, _ = w.Write([]byte("<Error><Code>NotImplemented</Code></Error>"))
			case r.Method == http.MethodDelete:
				aborted = append(aborted, r.URL.Path[strings.Index(r.URL.Path, "one/"):])
				w.WriteHeader(http.StatusNoContent)
			default:
				const upload = "<Upload><Key>%s</Key><UploadId>1</UploadId><Initiated>2020-01-01T00:00:00Z</Initiated></Upload>"
				_, _ = fmt.Fprintf(w, "<ListMultipartUploadsResult>"+upload+upload+"</ListMultipartUploadsResult>", "one/elsewhere/object", "one/folder/object")
			}
		})
	})
	location.Prefix = "one"
	s := storetest.Open(t, location, secret)
	for _, dryRun := range []bool{true, false} {
		keys, err := s.RemoveUnfinished(t.Context(), "folder/", time.Now(), dryRun)
		if want := []string{"folder/object"}; err != nil || !slices.Equal(keys, want) || dryRun && len(aborted) > 0 {
			t.Errorf("in a dry run: %t: removed were %q, %q, with an error of %v; want %q", dryRun, keys, aborted, err, want)
		}
	}
	if want := []string{"one/folder/object"}; !slices.Equal(aborted, want) {
		t.Errorf("aborted were %q, want %q", aborted, want)
	}
	unsupported = true
	if _, err := s.RemoveUnfinished(t.Context(), "folder/", time.Now(), false); !errors.Is(err, errors.ErrUnsupported) || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("of a store that can't list it says %v", err)
	}
}

// What a writer has left that died goes, below its folder and by its age, and no object does.
// The writer lives here, to see that it has lost.
func TestRemoveUnfinished(t *testing.T) {
	location, secret := storetest.FakeS3(t, nil)
	location.Prefix = "one/two"
	for name, s := range map[string]*store.Bucket{"filesystem": storetest.Filesystem(t), "S3": storetest.Open(t, location, secret)} {
		t.Run(name, func(t *testing.T) {
			for _, key := range []string{"folder/object", "object"} {
				must(t, s.Put(t.Context(), key, nil))
			}
			w, err := s.NewWriter(t.Context(), "folder/unfinished")
			must(t, err)
			defer w.Abort()
			_, err = w.Write(make([]byte, 20<<20)) // in parts
			must(t, err)
			remove := func(folder string, before time.Duration) int {
				t.Helper()
				would, err := s.RemoveUnfinished(t.Context(), folder, time.Now().Add(before), true)
				must(t, err)
				removed, err := s.RemoveUnfinished(t.Context(), folder, time.Now().Add(before), false)
				must(t, err)
				if len(would) > len(removed) { // another one may have begun in between
					t.Errorf("a dry run names %q, and then %q go", would, removed)
				}
				return len(removed)
			}
			if n := remove("folder/", -time.Hour) + remove("other/", time.Hour); n != 0 {
				t.Errorf("%d that are young, or elsewhere, were removed", n)
			}
			removed := 0
			for begin := time.Now(); removed == 0 && time.Since(begin) < time.Minute; { // another goroutine begins an upload in parts
				removed = remove("folder/", time.Hour)
			}
			if removed != 1 {
				t.Errorf("%d were removed, want one", removed)
			}
			if err := w.Commit(); err == nil {
				t.Error("a write whose parts were removed has succeeded")
			}
			var keys []string
			for object, err := range s.List(t.Context(), "", store.ListOptions{Recursive: true, Unfinished: true}) {
				must(t, err)
				keys = append(keys, object.Key)
			}
			if want := []string{"folder/object", "object"}; !slices.Equal(keys, want) {
				t.Errorf("the store holds %v, want %v", keys, want)
			}
		})
	}
}

// A bucket with Object Lock and a default retention takes only what comes with a
// checksum, over TLS as without.
func TestS3WithObjectLock(t *testing.T) {
	for name, start := range map[string]func(http.Handler) *httptest.Server{"plain": httptest.NewServer, "TLS": httptest.NewTLSServer} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) storetest.Store {
				location, secret := lockedS3(t, start)
				return storetest.Open(t, location, secret)
			})
		})
	}
}

// lockedS3 is a bucket as strict as one with Object Lock.
func lockedS3(t *testing.T, start func(http.Handler) *httptest.Server) (enginev1alpha1.StorageLocationSpec, map[string][]byte) {
	t.Helper()
	var handler http.Handler
	location, secret := storetest.FakeS3(t, func(next http.Handler) http.Handler {
		handler = storetest.Locked(next)
		return handler
	})
	server := start(handler)
	t.Cleanup(server.Close)
	location.S3.Endpoint = server.URL
	if certificate := server.Certificate(); certificate != nil {
		location.S3.CABundle = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
	}
	return location, secret
}

// A location can do without checksums, for stores that refuse them.
func TestS3WithoutChecksums(t *testing.T) {
	location, secret := storetest.FakeS3(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for header := range r.Header {
				if strings.Contains(strings.ToLower(header), "checksum") {
					t.Errorf("%s %s has the header %s", r.Method, r.URL.Path, header)
				}
			}
			next.ServeHTTP(w, r)
		})
	})
	location.S3.ChecksumAlgorithm = enginev1alpha1.ChecksumNone
	bucket := storetest.Open(t, location, secret)
	if err := errors.Join(
		bucket.Create(t.Context(), "a/1", []byte("x")),
		bucket.Put(t.Context(), "a/2", []byte("x")),
		stream(t.Context(), bucket, "a/3", 20<<20),
	); err != nil {
		t.Error(err)
	}
	location, secret = lockedS3(t, httptest.NewServer)
	location.S3.ChecksumAlgorithm = enginev1alpha1.ChecksumNone
	err := storetest.Open(t, location, secret).Create(t.Context(), "a/1", []byte("x"))
	if err == nil || store.Reason(err) != "the store refuses the request (InvalidRequest)" {
		t.Errorf("a locked bucket took an object without a checksum: %v", err)
	}
}

func TestFaulty(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Store {
		faulty := storetest.NewFaulty(storetest.Filesystem(t), clock.RealClock{})
		faulty.Inject(storetest.Fault{Key: "no/such/key", Err: store.ErrDenied})
		return faulty
	})
}

func writeFile(t *testing.T, file string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// requestLog counts the requests that reach an S3 server.
type requestLog struct {
	mu       sync.Mutex
	requests []string
	puts     chan struct{} // if not nil, gets each PUT
}

func (l *requestLog) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		l.requests = append(l.requests, r.Method)
		l.mu.Unlock()
		if r.Method == http.MethodPut && l.puts != nil {
			l.puts <- struct{}{}
		}
		next.ServeHTTP(w, r)
	})
}

func (l *requestLog) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	requests := strings.Join(l.requests, " ")
	l.requests = nil
	return requests
}

// versitygw may describe an object without its ETag while it removes it.
func TestS3AsksAgain(t *testing.T) {
	var without atomic.Int32
	location, secret := storetest.FakeS3(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodHead && without.Add(-1) >= 0 {
				w.Header().Set("Content-Type", "application/octet-stream")
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	bucket := storetest.Open(t, location, secret)
	if err := bucket.Put(t.Context(), "a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	without.Store(1)
	if got, err := bucket.Attributes(t.Context(), "a"); err != nil || got.Size != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
	without.Store(100)
	if _, err := bucket.Attributes(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "does not speak S3") {
		t.Errorf("got %v, want an answer that is not S3", err)
	}
}

// What an operation costs at S3, where each request is paid for.
func TestS3Requests(t *testing.T) {
	log := &requestLog{}
	location, secret := storetest.FakeS3(t, log.wrap)
	bucket := storetest.Open(t, location, secret)
	ctx := t.Context()
	var seen store.Object
	for _, step := range []struct {
		name string
		do   func() error
		want string
	}{
		{"open", func() error { return nil }, ""},
		{"check", func() error { return bucket.Check(ctx) }, "GET"},
		{"create", func() error { return bucket.Create(ctx, "a/1", []byte("x")) }, "PUT"},
		{"put", func() error { return bucket.Put(ctx, "a/2", []byte("x")) }, "PUT"},
		{"small stream", func() error { return stream(ctx, bucket, "a/3", 1<<20) }, "PUT"},
		{"stream of 20 MiB: begin, three parts, complete", func() error { return stream(ctx, bucket, "a/4", 20<<20) }, "POST PUT PUT PUT POST"},
		{"list", func() error { return drain(bucket.List(ctx, "a/", store.ListOptions{})) }, "GET"},
		{"list after", func() error { return drain(bucket.List(ctx, "a/", store.ListOptions{StartAfter: "a/3"})) }, "GET"},
		{"get", func() error { return get(ctx, bucket, "a/1") }, "GET"},
		{"attributes", func() (err error) { seen, err = bucket.Attributes(ctx, "a/1"); return err }, "HEAD"},
		{"delete looks first", func() error { return bucket.Delete(ctx, seen) }, "HEAD DELETE"},
		{"part", func() error { return getPart(ctx, bucket, "a/4", 1<<20, 10) }, "GET"},
		{"large content", func() error { return bucket.Put(ctx, "a/5", make([]byte, 40<<20)) }, "PUT"},
		{"list a beginning", func() error { return drain(bucket.List(ctx, "a/", store.ListOptions{Beginning: "3"})) }, "GET"},
		{"remove", func() error { return bucket.Remove(ctx, "a/5") }, "DELETE"},
		{"folder", func() error { _, err := bucket.Folder(ctx, "a/"); return err }, ""},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := log.take(); got != step.want {
			t.Errorf("%s: requests %q, want %q", step.name, got, step.want)
		}
	}
}

// StartAfter is the server's work: a thousand keys before it cost nothing.
func TestS3StartAfterIsOneRequest(t *testing.T) {
	log := &requestLog{}
	location, secret := storetest.FakeS3(t, log.wrap)
	location.Prefix = "p"
	bucket := storetest.Open(t, location, secret)
	for i := range 1_001 {
		if err := bucket.Put(t.Context(), "k/"+string(rune('a'+i/100))+string(rune('0'+i/10%10))+string(rune('0'+i%10)), nil); err != nil {
			t.Fatal(err)
		}
	}
	log.take()
	var got []string
	for object, err := range bucket.List(t.Context(), "k/", store.ListOptions{StartAfter: "k/j98"}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, object.Key)
	}
	if !slices.Equal(got, []string{"k/j99", "k/k00"}) || log.take() != "GET" {
		t.Errorf("listed %v", got)
	}
}

// An object can be written with a retention of its own, as Kopia does in a repository
// that says so.
func TestRetention(t *testing.T) {
	until := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	got := make(chan http.Header, 1)
	location, secret := storetest.FakeS3(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got <- r.Header
			next.ServeHTTP(w, r)
		})
	})
	content := storetest.Content("x")
	if err := storetest.Open(t, location, secret).PutContent(t.Context(), "a", content, store.Retention{Mode: "COMPLIANCE", Until: until}); err != nil {
		t.Fatal(err)
	}
	header := <-got
	if header.Get("x-amz-object-lock-mode") != "COMPLIANCE" || header.Get("x-amz-object-lock-retain-until-date") != "2030-01-02T03:04:05Z" {
		t.Errorf("the request has the headers %v", header)
	}
	if err := storetest.Filesystem(t).PutContent(t.Context(), "a", content, store.Retention{Mode: "COMPLIANCE", Until: until}); err == nil {
		t.Error("a folder says that it retains an object")
	}
}

// A store that ignores the condition of a removal is asked before.
func TestDeleteFromAStoreWithoutConditions(t *testing.T) {
	log := &requestLog{}
	location, secret := storetest.FakeS3(t, func(next http.Handler) http.Handler {
		return log.wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("If-Match")
			next.ServeHTTP(w, r)
		}))
	})
	bucket := storetest.Open(t, location, secret)
	if err := bucket.Put(t.Context(), "a", []byte("one")); err != nil {
		t.Fatal(err)
	}
	seen, err := bucket.Attributes(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := bucket.Put(t.Context(), "a", []byte("two")); err != nil {
		t.Fatal(err)
	}
	log.take()
	if err := bucket.Delete(t.Context(), seen); !errors.Is(err, store.ErrChanged) || log.take() != "HEAD" {
		t.Errorf("got %v", err)
	}
}

// An aborted upload leaves no parts behind, which would be stored and paid for.
func TestS3AbortRemovesParts(t *testing.T) {
	log := &requestLog{puts: make(chan struct{}, 4)}
	location, secret := storetest.FakeS3(t, log.wrap)
	bucket := storetest.Open(t, location, secret)
	w, err := bucket.NewWriter(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 30<<20)); err != nil {
		t.Fatal(err)
	}
	// A part is under way as soon as there is more, but not at once.
	select {
	case <-log.puts:
	case <-time.After(time.Minute):
		t.Fatal("no part is sent")
	}
	w.Abort()
	requests := log.take()
	// One more part may be noted after it.
	if !strings.HasPrefix(requests, "POST PUT") || strings.Count(requests, "DELETE") != 1 {
		t.Errorf("requests %q, want an upload and its removal", requests)
	}
	if left, err := bucket.RemoveUnfinished(t.Context(), "", time.Now().Add(time.Hour), true); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// Pitfall 30: a tarball needs no room on a disk of the controller.
func TestNoLocalCopy(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	location, secret := storetest.FakeS3(t, nil)
	for _, bucket := range []*store.Bucket{storetest.Open(t, location, secret), storetest.Memory(t)} {
		w, err := bucket.NewWriter(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, 20<<20)); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(folder)
		if err != nil || len(files) > 0 {
			t.Errorf("temporary files %v, %v", files, err)
		}
		if err := w.Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestS3Errors(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		code   string
		kind   error
		reason string
	}{
		"no such bucket": {404, "NoSuchBucket", store.ErrUnavailable, "the bucket does not exist"},
		"no such key":    {404, "NoSuchKey", store.ErrNotFound, "no such object"},
		"denied":         {403, "AccessDenied", store.ErrDenied, "the store denies access (AccessDenied)"},
		"wrong key":      {403, "SignatureDoesNotMatch", store.ErrDenied, "the store denies access (SignatureDoesNotMatch)"},
		"busy":           {503, "SlowDown", store.ErrUnavailable, "the store can't answer now (SlowDown)"},
		"clocks differ":  {403, "RequestTimeTooSkewed", store.ErrDenied, "the clocks of the store and of this machine differ by too much: set the wrong one (RequestTimeTooSkewed)"},
		"unsupported":    {501, "NotImplemented", store.ErrUnavailable, "the store does not support a request that Holdfast needs, as a conditional write: docs/locations.md"},
		"broken":         {500, "InternalError", store.ErrUnavailable, "the store can't answer now (InternalError)"},
		"elsewhere":      {301, "PermanentRedirect", store.ErrUnavailable, "the bucket is elsewhere: check region and endpoint (PermanentRedirect)"},
		"odd":            {400, "InvalidRequest", nil, "the store refuses the request (InvalidRequest)"},
		"hostile":        {400, "key secret-value\n", nil, "the store refuses the request"},
		"no XML":         {502, "", store.ErrUnavailable, "the store can't answer now"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the SDK waits between its attempts
			var attempt atomic.Int32
			location, secret := storetest.FakeS3(t, func(http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("x-amz-request-id", fmt.Sprint(attempt.Add(1)))
					w.WriteHeader(test.status)
					if test.code != "" {
						_, _ = w.Write([]byte("<Error><Code>" + test.code + "</Code><Message>" + r.Header.Get("X-Amz-Security-Token") + "</Message></Error>"))
					}
				})
			})
			secret[store.SecretSessionToken] = []byte("secret-value")
			bucket := storetest.Open(t, location, secret)
			_, err := bucket.Get(t.Context(), "a/b")
			if test.kind != nil && !errors.Is(err, test.kind) {
				t.Errorf("%v is not %v", err, test.kind)
			}
			for _, kind := range []error{store.ErrNotFound, store.ErrUnavailable, store.ErrDenied, store.ErrExists} {
				if kind != test.kind && errors.Is(err, kind) {
					t.Errorf("%v is also %v", err, kind)
				}
			}
			if err == nil || err.Error() != "get a/b: "+test.reason || store.Reason(err) != test.reason {
				t.Errorf("got %q, reason %q, want %q", err, store.Reason(err), test.reason)
			}
		})
	}
}

func TestS3TLS(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("<ListBucketResult><Name>backups</Name></ListBucketResult>"))
	}))
	defer server.Close()
	location, secret := storetest.FakeS3(t, nil)
	location.S3.Endpoint = server.URL

	err := storetest.Open(t, location, secret).Check(t.Context())
	if !errors.Is(err, store.ErrUnavailable) || store.Reason(err) != "the certificate of the endpoint can't be verified: check caBundle" {
		t.Errorf("an unknown authority: %v", err)
	}

	location.S3.CABundle = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := storetest.Open(t, location, secret).Check(t.Context()); err != nil {
		t.Errorf("with the authority's certificate: %v", err)
	}

	location.S3.Endpoint = strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
	err = storetest.Open(t, location, secret).Check(t.Context())
	if !errors.Is(err, store.ErrUnavailable) || store.Reason(err) != "the certificate of the endpoint is for another host" {
		t.Errorf("another host: %v", err)
	}
}

func TestS3Unreachable(t *testing.T) {
	t.Parallel()
	location, secret := storetest.FakeS3(t, nil)
	location.S3.Endpoint = "http://127.0.0.1:1"
	bucket := storetest.Open(t, location, secret)
	err := bucket.Check(t.Context())
	if !errors.Is(err, store.ErrUnavailable) || store.Reason(err) != "the store can't be reached: connection refused" {
		t.Errorf("%v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	writeFile(t, file)
	good, secret := storetest.FakeS3(t, nil)
	s3 := func(change func(*enginev1alpha1.StorageLocationSpec)) enginev1alpha1.StorageLocationSpec {
		location := *good.DeepCopy()
		change(&location)
		return location
	}
	gcs := enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderGCS, GCS: &enginev1alpha1.GCSLocation{Bucket: "backups", CredentialsSecret: "account"}}
	azure := enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderAzure, Azure: &enginev1alpha1.AzureLocation{StorageAccount: "account", Container: "backups", CredentialsSecret: "account"}}
	for name, test := range map[string]struct {
		location enginev1alpha1.StorageLocationSpec
		secret   map[string][]byte
		want     string
	}{
		"missing folder":   {filesystem("/no/such/folder"), nil, "does not exist"},
		"file as a folder": {filesystem(file), nil, "does not exist"},
		"relative folder":  {filesystem("relative"), nil, "must be absolute"},
		"no provider":      {enginev1alpha1.StorageLocationSpec{}, nil, "spec.provider"},
		"no settings":      {enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderS3}, nil, "spec.provider"},
		"bad prefix":       {s3(func(l *enginev1alpha1.StorageLocationSpec) { l.Prefix = "../up" }), secret, "spec.prefix"},
		"no secret":        {good, nil, "Secret credentials lacks the key accessKeyID"},
		"half a secret":    {good, map[string][]byte{store.SecretAccessKeyID: []byte("hidden")}, "lacks the key secretAccessKey"},
		"bad bundle":       {s3(func(l *enginev1alpha1.StorageLocationSpec) { l.S3.CABundle = []byte("x") }), secret, "spec.s3.caBundle"},
		"no account":       {gcs, nil, "Secret account lacks the key serviceAccountKey"},
		"no key":           {gcs, map[string][]byte{store.SecretServiceAccountKey: []byte(`{"type": "service_account", "private_key": "hidden"}`)}, "key serviceAccountKey"},
		"a user's account": {gcs, map[string][]byte{store.SecretServiceAccountKey: []byte(`{"type": "external_account", "credential_source": {"executable": {"command": "hidden"}}}`)}, "is not the JSON of a service account's key"},
		"no credentials":   {azure, nil, "the key accountKey, the key sasToken, or the keys tenantID, clientID and clientSecret"},
		"several":          {azure, map[string][]byte{store.SecretAccountKey: []byte("aGlkZGVu"), store.SecretSASToken: []byte("hidden")}, "none, or several"},
		"no base64":        {azure, map[string][]byte{store.SecretAccountKey: []byte("hidden!")}, "must be in base64"},
		"half a client":    {azure, map[string][]byte{store.SecretTenantID: []byte("t"), store.SecretClientSecret: []byte("hidden")}, "none, or several"},
		"no bucket":        {s3(func(l *enginev1alpha1.StorageLocationSpec) { l.S3.Bucket = "" }), secret, "spec.s3"},
	} {
		_, err := store.Open(t.Context(), &test.location, test.secret)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}
