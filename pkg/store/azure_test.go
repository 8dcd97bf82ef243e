// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"crypto/md5"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

func azureAt(t *testing.T, serve http.HandlerFunc) enginev1alpha1.StorageLocationSpec {
	t.Helper()
	server := httptest.NewServer(serve)
	t.Cleanup(server.Close)
	return enginev1alpha1.StorageLocationSpec{
		Provider: enginev1alpha1.StorageProviderAzure,
		Azure:    &enginev1alpha1.AzureLocation{StorageAccount: "account", Container: "backups", Endpoint: server.URL, CredentialsSecret: "account"},
	}
}

func accountKey(key string) map[string][]byte {
	return map[string][]byte{store.SecretAccountKey: []byte(base64.StdEncoding.EncodeToString([]byte(key)))}
}

// openAzure opens a container whose service is a handler. Questions for the account are answered.
func openAzure(t *testing.T, serve http.HandlerFunc) *store.Bucket {
	t.Helper()
	return storetest.Open(t, azureAt(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("x-ms-request-id", "1")
		if r.URL.Query().Get("restype") == "account" {
			return
		}
		serve(w, r)
	}), accountKey("secret-key"))
}

func azureRefuses(status int, code string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("x-ms-request-id", "1")
		if code != "" {
			w.Header().Set("x-ms-error-code", code)
		}
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "<Error><Code>"+code+"</Code><Message>secret-key</Message></Error>")
	}
}

// TestAzureErrors: an error is classified by its code and status, and names no secret.
func TestAzureErrors(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		code   string
		kind   error
		reason string
	}{
		"no container":   {404, "ContainerNotFound", store.ErrNoBucket, "the container does not exist"},
		"being deleted":  {409, "ContainerBeingDeleted", store.ErrNoBucket, "the container does not exist"},
		"no such object": {404, "BlobNotFound", store.ErrNotFound, "no such object"},
		"wrong key":      {403, "AuthenticationFailed", store.ErrDenied, "the store denies access (AuthenticationFailed)"},
		"no right":       {403, "AuthorizationPermissionMismatch", store.ErrDenied, "the store denies access (AuthorizationPermissionMismatch)"},
		"no token":       {401, "NoAuthenticationInformation", store.ErrDenied, "the store denies access (NoAuthenticationInformation)"},
		"exists":         {409, "BlobAlreadyExists", store.ErrExists, "the object exists"},
		"condition":      {412, "ConditionNotMet", store.ErrExists, "the object exists"},
		"immutable":      {409, "BlobImmutableDueToPolicy", store.ErrDenied, "the store denies access (BlobImmutableDueToPolicy)"},
		"archived":       {409, "BlobArchived", nil, "the store refuses the request (BlobArchived)"},
		"range":          {416, "InvalidRange", store.ErrRange, "the object has no such part"},
		"too many":       {429, "TooManyRequests", store.ErrUnavailable, "the store can't answer now"},
		"busy":           {503, "ServerBusy", store.ErrUnavailable, "the store can't answer now (ServerBusy)"},
		"broken":         {500, "InternalError", store.ErrUnavailable, "the store can't answer now"},
		"elsewhere":      {302, "", store.ErrUnavailable, "the bucket is elsewhere: check region and endpoint"},
		"odd":            {400, "InvalidHeaderValue", nil, "the store refuses the request (InvalidHeaderValue)"},
		"hostile":        {400, "secret-key 1", nil, "the store refuses the request"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // there are pauses between the attempts
			_, err := openAzure(t, azureRefuses(test.status, test.code)).Get(t.Context(), "a/b")
			if test.kind != nil && !errors.Is(err, test.kind) {
				t.Errorf("%v is not %v", err, test.kind)
			}
			for _, kind := range []error{store.ErrNotFound, store.ErrUnavailable, store.ErrDenied, store.ErrExists, store.ErrRange} {
				if kind != test.kind && errors.Is(err, kind) && test.kind != store.ErrNoBucket {
					t.Errorf("%v is also %v", err, kind)
				}
			}
			if err == nil || !strings.HasPrefix(err.Error(), "get a/b: "+test.reason) || strings.Contains(err.Error(), "secret-key") {
				t.Errorf("got %q, want %q", err, test.reason)
			}
		})
	}
}

// TestAzureDeniesEverything: a denied operation has done nothing, and nothing is missing. The same
// holds for a missing container.
func TestAzureDeniesEverything(t *testing.T) {
	for code, want := range map[string]error{"AuthorizationFailure": store.ErrDenied, "ContainerNotFound": store.ErrNoBucket} {
		status := map[string]int{"AuthorizationFailure": http.StatusForbidden, "ContainerNotFound": http.StatusNotFound}[code]
		for operation, err := range eachOperation(t.Context(), openAzure(t, azureRefuses(status, code))) {
			if !errors.Is(err, want) || errors.Is(err, store.ErrNotFound) {
				t.Errorf("%s: got %v, want %v", operation, err, want)
			}
		}
	}
}

// TestWhatIsNoAzure: a page in place of an answer is no store's.
func TestWhatIsNoAzure(t *testing.T) {
	for _, status := range []int{http.StatusOK, http.StatusNotFound} {
		bucket := storetest.Open(t, azureAt(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "<!DOCTYPE html><title>Sign in</title>")
		}), accountKey("k"))
		for operation, err := range eachOperation(t.Context(), bucket) {
			if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "check the endpoint") {
				t.Errorf("status %d: %s: got %v, want %v", status, operation, err, store.ErrUnavailable)
			}
		}
	}
}

// TestAzureHierarchyIsRefused: an account with a hierarchical namespace is refused before anything
// is written or listed. One that may not be asked is refused when it lists a directory.
func TestAzureHierarchyIsRefused(t *testing.T) {
	var others atomic.Int32
	bucket := storetest.Open(t, azureAt(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("x-ms-request-id", "1")
		if r.URL.Query().Get("restype") != "account" {
			others.Add(1)
		}
		w.Header().Set("x-ms-is-hns-enabled", "true")
	}), accountKey("k"))
	for operation, err := range map[string]error{
		"check": bucket.Check(t.Context()), "list": drain(bucket.List(t.Context(), "", store.ListOptions{})),
		"create": bucket.Create(t.Context(), "a", nil), "stream": stream(t.Context(), bucket, "a", 1), "parts": stream(t.Context(), bucket, "a", 20<<20),
	} {
		if err == nil || !strings.Contains(err.Error(), "hierarchical namespace") || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", operation, err)
		}
	}
	if others.Load() > 0 {
		t.Errorf("%d other requests were sent", others.Load())
	}
	bucket = storetest.Open(t, azureAt(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("x-ms-request-id", "1")
		if r.URL.Query().Get("restype") == "account" {
			azureRefuses(http.StatusForbidden, "AuthorizationPermissionMismatch")(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/xml")
		const properties = "<Last-Modified>Fri, 02 Jan 2026 03:04:05 GMT</Last-Modified><Etag>0x1</Etag><Content-Length>0</Content-Length>"
		_, _ = io.WriteString(w, "<EnumerationResults><Blobs><Blob><Name>a</Name><Properties>"+properties+"<ResourceType>directory</ResourceType></Properties></Blob></Blobs><NextMarker /></EnumerationResults>")
	}), accountKey("k"))
	if err := drain(bucket.List(t.Context(), "", store.ListOptions{Recursive: true})); err == nil || !strings.Contains(err.Error(), "hierarchical namespace") {
		t.Errorf("with a directory: %v", err)
	}
}

// TestAzureRepeats: a store that can't answer is asked again, with the same content, and not
// without end.
func TestAzureRepeats(t *testing.T) {
	var requests, busy atomic.Int32
	bucket := openAzure(t, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		content, err := io.ReadAll(r.Body)
		sum := md5.Sum([]byte("content"))
		if err != nil || string(content) != "content" || r.Header.Get("Content-MD5") != base64.StdEncoding.EncodeToString(sum[:]) {
			t.Errorf("got %q with the checksum %s, %v", content, r.Header.Get("Content-MD5"), err)
		}
		if busy.Add(-1) >= 0 {
			azureRefuses(http.StatusServiceUnavailable, "ServerBusy")(w, r)
			return
		}
		w.WriteHeader(http.StatusCreated)
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

// TestAzureChecksums: a whole object that is read is compared with its checksum.
func TestAzureChecksums(t *testing.T) {
	sum := md5.Sum([]byte("content"))
	bucket := openAzure(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-MD5", base64.StdEncoding.EncodeToString(sum[:]))
		w.Header().Set("ETag", `"0x1"`)
		_, _ = io.WriteString(w, "content")
	})
	must(t, get(t.Context(), bucket, "a"))
	sum[0]++
	if err := get(t.Context(), bucket, "a"); err == nil || !strings.Contains(err.Error(), "checksum") || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("other bytes were read: %v", err)
	}
}

// TestAzureLostBlocks: a write whose blocks another one has removed says that the object exists, if
// it does.
func TestAzureLostBlocks(t *testing.T) {
	for exists, want := range map[bool]error{true: store.ErrExists, false: store.ErrUnavailable} {
		bucket := openAzure(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			switch {
			case r.Method == http.MethodPut && r.URL.Query().Get("comp") == "blocklist":
				azureRefuses(http.StatusBadRequest, "InvalidBlockList")(w, r)
			case r.Method == http.MethodPut:
				w.WriteHeader(http.StatusCreated)
			case exists:
				w.Header().Set("ETag", `"0x1"`)
				w.Header().Set("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT")
				w.Header().Set("Content-Length", "1")
			default:
				azureRefuses(http.StatusNotFound, "BlobNotFound")(w, r)
			}
		})
		if err := stream(t.Context(), bucket, "a", 20<<20); !errors.Is(err, want) {
			t.Errorf("exists %v: got %v, want %v", exists, err, want)
		}
	}
}

// TestAzureKeyThatIsRotated: an open store takes up another key at the first refused request. A
// signature of shared access is in no error.
func TestAzureKeyThatIsRotated(t *testing.T) {
	var valid atomic.Value
	valid.Store("sig=old")
	location := azureAt(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.RawQuery, valid.Load().(string)) {
			azureRefuses(http.StatusForbidden, "AuthenticationFailed")(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("x-ms-request-id", "1")
		if r.Method == http.MethodPut {
			w.WriteHeader(http.StatusCreated)
		}
	})
	now := atomic.Value{}
	now.Store("?sv=1&sig=old")
	secret := func() map[string][]byte { return map[string][]byte{store.SecretSASToken: []byte(now.Load().(string))} }
	bucket, err := store.OpenFollowing(t.Context(), &location, secret(), func(context.Context) (map[string][]byte, error) { return secret(), nil })
	must(t, err)
	defer bucket.Close()
	must(t, bucket.Create(t.Context(), "a", []byte("content")))
	valid.Store("sig=new")
	if err := bucket.Create(t.Context(), "a", []byte("content")); !errors.Is(err, store.ErrDenied) || strings.Contains(err.Error(), "sig=") {
		t.Errorf("before the Secret has it: %v", err)
	}
	now.Store("?sv=1&sig=new")
	must(t, bucket.Create(t.Context(), "a", []byte("content")))
}

// TestAzureIsNotRetained: a retention of S3 is refused, and not forgotten.
func TestAzureIsNotRetained(t *testing.T) {
	bucket := openAzure(t, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") })
	if err := bucket.PutContent(t.Context(), "a", storetest.Content("x"), store.Retention{Mode: "COMPLIANCE", Until: time.Now()}); err == nil {
		t.Error("a container of Azure says that it retains an object")
	}
}

// TestAzureClock: the store's clock is the one of its answers.
func TestAzureClock(t *testing.T) {
	bucket := openAzure(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", "Fri, 02 Jan 2026 03:04:05 GMT")
		w.Header().Set("Content-Type", "application/xml")
		_, _ = io.WriteString(w, "<EnumerationResults><Blobs></Blobs><NextMarker /></EnumerationResults>")
	})
	for at, want := range map[string]error{"2026-01-02T03:06:00Z": nil, "2026-01-02T03:12:00Z": store.ErrClock} {
		now, err := time.Parse(time.RFC3339, at)
		must(t, err)
		if err := bucket.CheckClock(t.Context(), clocktesting.NewFakePassiveClock(now)); !errors.Is(err, want) {
			t.Errorf("at %s: %v", at, err)
		}
	}
}

// TestAzureNames: a name that the service would change is refused, and nothing is asked.
func TestAzureNames(t *testing.T) {
	bucket := openAzure(t, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") })
	_, attributesErr := bucket.Attributes(t.Context(), `a\b`)
	for operation, err := range map[string]error{
		"put": bucket.Put(t.Context(), `a\b`, nil), "get": get(t.Context(), bucket, `a\b`), "attributes": attributesErr,
		"stream": stream(t.Context(), bucket, `a\b`, 1), "remove": bucket.Remove(t.Context(), `a\b`),
	} {
		if !errors.Is(err, store.ErrName) || errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s: %v", operation, err)
		}
	}
}

// TestAzureAfterAnUnfinishedWrite: blocks that a killed writer has left are in no one's way.
func TestAzureAfterAnUnfinishedWrite(t *testing.T) {
	var committed atomic.Int32
	bucket := openAzure(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch comp := r.URL.Query().Get("comp"); {
		case r.Method == http.MethodHead:
			azureRefuses(http.StatusNotFound, "BlobNotFound")(w, r)
		case comp == "":
			azureRefuses(http.StatusConflict, "BlobAlreadyExists")(w, r)
		default:
			if comp == "blocklist" && r.Header.Get("If-None-Match") == "*" {
				committed.Add(1)
			}
			w.WriteHeader(http.StatusCreated)
		}
	})
	if err := bucket.Create(t.Context(), "a", []byte("content")); err != nil || committed.Load() != 1 {
		t.Errorf("%v, and %d were created", err, committed.Load())
	}
}

// TestAzureRemovesWhatIsGone: a store that refuses a removal by its condition is asked whether there is
// an object at all.
func TestAzureRemovesWhatIsGone(t *testing.T) {
	for gone, want := range map[bool]error{true: nil, false: store.ErrChanged} {
		bucket := openAzure(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodDelete:
				azureRefuses(http.StatusPreconditionFailed, "ConditionNotMet")(w, r)
			case gone:
				azureRefuses(http.StatusNotFound, "BlobNotFound")(w, r)
			default:
				w.Header().Set("ETag", `"0x1"`)
				w.Header().Set("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT")
				w.Header().Set("Content-Length", "1")
			}
		})
		if err := bucket.Delete(t.Context(), store.Object{Key: "a", Version: "0x2"}); !errors.Is(err, want) {
			t.Errorf("gone: %v: got %v, want %v", gone, err, want)
		}
	}
}
