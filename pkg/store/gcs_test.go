// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// gcsAt is a location whose service is a handler.
func gcsAt(t *testing.T, serve http.HandlerFunc) enginev1alpha1.StorageLocationSpec {
	t.Helper()
	server := httptest.NewServer(serve)
	t.Cleanup(server.Close)
	return enginev1alpha1.StorageLocationSpec{
		Provider: enginev1alpha1.StorageProviderGCS,
		GCS:      &enginev1alpha1.GCSLocation{Bucket: "backups", Endpoint: server.URL, CredentialsSecret: "account"},
	}
}

func openGCS(t *testing.T, serve http.HandlerFunc) *store.Bucket {
	t.Helper()
	return storetest.Open(t, gcsAt(t, serve), storetest.ServiceAccount(t, "secret-token", nil))
}

const gcsMade = `{"kind": "storage#object", "name": "a", "size": "1", "generation": "7", "timeCreated": "2026-01-02T03:04:05Z"}`

func answer(w http.ResponseWriter, status int, content string) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, content)
}

func gcsReason(reason string) string {
	return `{"error": {"code": 1, "message": "m", "errors": [{"message": "m", "domain": "global", "reason": "` + reason + `"}]}}`
}

// eachOperation does all that can be done with a store.
func eachOperation(ctx context.Context, s *store.Bucket) map[string]error {
	_, attributesErr := s.Attributes(ctx, "a")
	return map[string]error{
		"check": s.Check(ctx), "list": drain(s.List(ctx, "backups/", store.ListOptions{})), "get": get(ctx, s, "a"),
		"attributes": attributesErr, "create": s.Create(ctx, "a", nil), "put": s.Put(ctx, "a", nil),
		"write": stream(ctx, s, "a", 1), "write in parts": stream(ctx, s, "a", 20<<20),
		"delete": s.Delete(ctx, store.Object{Key: "a", Version: "7"}), "remove": s.Remove(ctx, "a"),
	}
}

// TestGCSErrors: an error is classified by its status, and names no secret.
func TestGCSErrors(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		answer string
		kind   error
		reason string
	}{
		"no such bucket": {404, `The specified bucket does not exist.`, store.ErrNoBucket, "the bucket does not exist"},
		"no such object": {404, `No such object: backups/a/b`, store.ErrNotFound, "no such object"},
		"an odd object":  {404, `No such object: backups/the bucket does not exist`, store.ErrNotFound, "no such object"},
		"no token":       {401, gcsReason("authError"), store.ErrDenied, "the store denies access (authError)"},
		"denied":         {403, gcsReason("forbidden"), store.ErrDenied, "the store denies access (forbidden)"},
		"retained":       {403, gcsReason("retentionPolicyNotMet"), store.ErrDenied, "the store denies access (retentionPolicyNotMet)"},
		"condition":      {412, gcsReason("conditionNotMet"), store.ErrExists, "the object exists"},
		"range":          {416, gcsReason("requestedRangeNotSatisfiable"), store.ErrRange, "the object has no such part"},
		"two writes":     {409, gcsReason("conflict"), store.ErrUnavailable, "another write of the same object is under way"},
		"too many":       {429, gcsReason("rateLimitExceeded"), store.ErrUnavailable, "the store can't answer now (rateLimitExceeded)"},
		"old limit":      {403, gcsReason("userRateLimitExceeded"), store.ErrUnavailable, "the store can't answer now (userRateLimitExceeded)"},
		"broken":         {500, gcsReason("backendError"), store.ErrUnavailable, "the store can't answer now (backendError)"},
		"no JSON":        {502, `<html>secret-token`, store.ErrUnavailable, "the store can't answer now"},
		"elsewhere":      {302, ``, store.ErrUnavailable, "the bucket is elsewhere: check region and endpoint"},
		"odd":            {400, gcsReason("invalid"), nil, "the store refuses the request (invalid)"},
		"hostile":        {400, gcsReason("secret-token 1"), nil, "the store refuses the request"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // there are pauses between the attempts
			bucket := openGCS(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "http://127.0.0.1:1/")
				answer(w, test.status, test.answer)
			})
			_, err := bucket.Get(t.Context(), "a/b")
			if test.kind != nil && !errors.Is(err, test.kind) {
				t.Errorf("%v is not %v", err, test.kind)
			}
			for _, kind := range []error{store.ErrNotFound, store.ErrUnavailable, store.ErrDenied, store.ErrExists, store.ErrRange} {
				if kind != test.kind && errors.Is(err, kind) && test.kind != store.ErrNoBucket {
					t.Errorf("%v is also %v", err, kind)
				}
			}
			if err == nil || err.Error() != "get a/b: "+test.reason {
				t.Errorf("got %q, want %q", err, test.reason)
			}
		})
	}
}

// TestGCSDeniesEverything: a denied operation has done nothing, and nothing is missing. The same
// holds for a missing bucket.
func TestGCSDeniesEverything(t *testing.T) {
	for want, respond := range map[error]http.HandlerFunc{
		store.ErrDenied: func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusForbidden, gcsReason("forbidden")) },
		store.ErrNoBucket: func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusNotFound, `{"error": {"code": 404, "message": "The specified bucket does not exist.", "errors": [{"reason": "notFound"}]}}`)
		},
	} {
		for operation, err := range eachOperation(t.Context(), openGCS(t, respond)) {
			if !errors.Is(err, want) || errors.Is(err, store.ErrNotFound) {
				t.Errorf("%s: got %v, want %v", operation, err, want)
			}
		}
	}
}

// TestWhatIsNoGCS: a page in place of an answer is no store's.
func TestWhatIsNoGCS(t *testing.T) {
	for name, page := range map[string]struct{ kind, content string }{
		"a page": {"text/html; charset=utf-8", "<!DOCTYPE html><title>Sign in</title>"}, "nothing": {"", ""}, "an object of another": {"application/json", `{"items": []}`},
	} {
		bucket := openGCS(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			if page.kind != "" {
				w.Header().Set("Content-Type", page.kind)
			}
			_, _ = io.WriteString(w, page.content)
		})
		for operation, err := range eachOperation(t.Context(), bucket) {
			removes := operation == "delete" || operation == "remove"
			if !errors.Is(err, store.ErrUnavailable) && !(removes && !strings.HasPrefix(page.kind, "text/html")) {
				t.Errorf("%s: %s: got %v, want %v", name, operation, err, store.ErrUnavailable)
			}
		}
	}
}

// TestGCSRepeats: a store that can't answer is asked again, with the same content, and not without
// end.
func TestGCSRepeats(t *testing.T) {
	var requests, busy atomic.Int32
	bucket := openGCS(t, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		content, err := io.ReadAll(r.Body)
		if err != nil || int64(len(content)) != r.ContentLength || !strings.Contains(string(content), "content") {
			t.Errorf("got %d of %d bytes, %v", len(content), r.ContentLength, err)
		}
		if busy.Add(-1) >= 0 {
			answer(w, http.StatusServiceUnavailable, gcsReason("backendError"))
			return
		}
		answer(w, http.StatusOK, gcsMade)
	})
	busy.Store(2)
	if err := bucket.Create(t.Context(), "a", []byte("content")); err != nil || requests.Load() != 3 {
		t.Errorf("%v after %d requests", err, requests.Load())
	}
	requests.Store(0)
	busy.Store(100)
	if err := bucket.Create(t.Context(), "a", []byte("content")); !errors.Is(err, store.ErrUnavailable) || requests.Load() != 3 {
		t.Errorf("%v after %d requests", err, requests.Load())
	}
}

// TestGCSChecksums: the store can verify what it gets, and what it gives is verified.
func TestGCSChecksums(t *testing.T) {
	sum := crc32.Checksum([]byte("content"), crc32.MakeTable(crc32.Castagnoli))
	encoded := base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
	given := encoded
	bucket := openGCS(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			content, _ := io.ReadAll(r.Body)
			if !strings.Contains(string(content), `"crc32c":"`+encoded+`"`) {
				t.Errorf("%q was sent, without the checksum %s", content, encoded)
			}
			answer(w, http.StatusOK, gcsMade)
			return
		}
		w.Header().Add("X-Goog-Hash", "crc32c="+given)
		w.Header().Add("X-Goog-Hash", "md5=AAAA")
		w.Header().Set("X-Goog-Generation", "7")
		_, _ = io.WriteString(w, "content")
	})
	must(t, bucket.Create(t.Context(), "a", []byte("content")))
	must(t, get(t.Context(), bucket, "a"))
	given = "AAAAAA=="
	if err := get(t.Context(), bucket, "a"); err == nil || !strings.Contains(err.Error(), "checksum") || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("other bytes were read: %v", err)
	}
}

// TestGCSListsInOrder: names and folders of a page are merged. A page that goes backwards is an error.
func TestGCSListsInOrder(t *testing.T) {
	item := func(name string) string {
		return `{"name": "` + name + `", "size": "1", "generation": "7", "timeCreated": "2026-01-02T03:04:05Z"}`
	}
	second := `{"kind": "storage#objects", "items": [` + item("d") + `], "prefixes": ["b/"]}`
	bucket := openGCS(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("pageToken") == "" {
			answer(w, http.StatusOK, `{"kind": "storage#objects", "nextPageToken": "2", "items": [`+item("a")+`, `+item("c")+`], "prefixes": ["b/"]}`)
			return
		}
		answer(w, http.StatusOK, second)
	})
	listed := func() (keys string, err error) {
		for object, err := range bucket.List(t.Context(), "", store.ListOptions{}) {
			if err != nil {
				return keys, err
			}
			keys += object.Key + " "
		}
		return keys, nil
	}
	if keys, err := listed(); err == nil || keys != "a b/ c " {
		t.Errorf("listed %q, %v", keys, err)
	}
	second = `{"kind": "storage#objects", "items": [` + item("d") + `], "prefixes": ["c"]}`
	if keys, err := listed(); err != nil || keys != "a b/ c d " {
		t.Errorf("listed %q, %v", keys, err)
	}
}

// TestGCSAccountThatIsRotated: an open store takes up another account at the first refused request.
func TestGCSAccountThatIsRotated(t *testing.T) {
	var valid atomic.Value
	valid.Store("old")
	location := gcsAt(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+valid.Load().(string) {
			answer(w, http.StatusUnauthorized, gcsReason("authError"))
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		answer(w, http.StatusOK, gcsMade)
	})
	old, fresh := storetest.ServiceAccount(t, "old", nil), storetest.ServiceAccount(t, "new", nil)
	var now atomic.Pointer[map[string][]byte]
	now.Store(&old)
	bucket, err := store.OpenFollowing(t.Context(), &location, old, func(context.Context) (map[string][]byte, error) { return *now.Load(), nil })
	must(t, err)
	defer bucket.Close()
	must(t, bucket.Create(t.Context(), "a", []byte("content")))
	valid.Store("new")
	if err := bucket.Create(t.Context(), "a", []byte("content")); !errors.Is(err, store.ErrDenied) {
		t.Errorf("before the Secret has it: %v", err)
	}
	now.Store(&fresh)
	must(t, bucket.Create(t.Context(), "a", []byte("content")))
}

// TestGCSTokens: a refused account is an error of the credentials. A service of tokens that can't
// answer is an unavailable store.
func TestGCSTokens(t *testing.T) {
	for status, want := range map[int]error{http.StatusBadRequest: store.ErrDenied, http.StatusServiceUnavailable: store.ErrUnavailable} {
		location := gcsAt(t, func(w http.ResponseWriter, _ *http.Request) { t.Error("a request was sent without a token") })
		err := storetest.Open(t, location, storetest.ServiceAccount(t, "secret-token", func() int { return status })).Check(t.Context())
		if !errors.Is(err, want) {
			t.Errorf("status %d: got %v, want %v", status, err, want)
		}
	}
}

// TestGCSWithTheEnvironmentsAccount: without a Secret, a file of the environment or the metadata
// server gives the account, as in GKE. It is looked for when it is needed.
func TestGCSWithTheEnvironmentsAccount(t *testing.T) {
	location := gcsAt(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer of-the-pod" {
			t.Errorf("authorized as %s", r.Header.Get("Authorization"))
		}
		answer(w, http.StatusOK, gcsMade)
	})
	location.GCS.CredentialsSecret = ""
	t.Setenv("HOME", t.TempDir())
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(t.TempDir(), "absent"))
	bucket := storetest.Open(t, location, nil)
	err := bucket.Create(t.Context(), "a", nil)
	if !errors.Is(err, store.ErrDenied) || !strings.HasPrefix(store.Reason(err), "there are no usable credentials for the store: ") {
		t.Errorf("without an account: %v", err)
	}
	file := filepath.Join(t.TempDir(), "account.json")
	must(t, os.WriteFile(file, storetest.ServiceAccount(t, "of-the-pod", nil)[store.SecretServiceAccountKey], 0o600))
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
	must(t, bucket.Create(t.Context(), "a", nil))

	metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Metadata-Flavor", "Google")
		if strings.HasSuffix(r.URL.Path, "/token") {
			answer(w, http.StatusOK, `{"access_token": "of-the-pod", "token_type": "Bearer", "expires_in": 3600}`)
			return
		}
		_, _ = io.WriteString(w, "project")
	}))
	defer metadata.Close()
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(metadata.URL, "http://"))
	must(t, storetest.Open(t, location, nil).Create(t.Context(), "a", nil))
}

// TestGCSIsNotRetained: a retention of S3 is refused, and not forgotten.
func TestGCSIsNotRetained(t *testing.T) {
	bucket := openGCS(t, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") })
	if err := bucket.PutContent(t.Context(), "a", storetest.Content("x"), store.Retention{Mode: "COMPLIANCE", Until: time.Now()}); err == nil {
		t.Error("a bucket of GCS says that it retains an object")
	}
}

// TestGCSClock: the store's clock is the one of its answers.
func TestGCSClock(t *testing.T) {
	bucket := openGCS(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", "Fri, 02 Jan 2026 03:04:05 GMT")
		answer(w, http.StatusOK, `{"kind": "storage#objects"}`)
	})
	for at, want := range map[string]error{"2026-01-02T03:06:00Z": nil, "2026-01-02T03:12:00Z": store.ErrClock} {
		now, err := time.Parse(time.RFC3339, at)
		must(t, err)
		if err := bucket.CheckClock(t.Context(), clocktesting.NewFakePassiveClock(now)); !errors.Is(err, want) {
			t.Errorf("at %s: %v", at, err)
		}
	}
}

// TestGCSRemovesWhatIsGone: a store that refuses a removal by its condition is asked whether there is
// an object at all.
func TestGCSRemovesWhatIsGone(t *testing.T) {
	for gone, want := range map[bool]error{true: nil, false: store.ErrChanged} {
		bucket := openGCS(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodDelete:
				answer(w, http.StatusPreconditionFailed, gcsReason("conditionNotMet"))
			case gone:
				answer(w, http.StatusNotFound, gcsReason("notFound"))
			default:
				answer(w, http.StatusOK, gcsMade)
			}
		})
		if err := bucket.Delete(t.Context(), store.Object{Key: "a", Version: "6"}); !errors.Is(err, want) {
			t.Errorf("gone: %v: got %v, want %v", gone, err, want)
		}
	}
}
