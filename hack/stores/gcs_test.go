// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package stores runs the suite for stores, and a repository, against servers that emulate clouds.
// They are a module of their own, since the product needs none of it.
package stores

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"

	"github.com/fsouza/fake-gcs-server/fakestorage"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// fakeGCS opens a new bucket of fake-gcs-server with each call, below a prefix.
func fakeGCS(t testing.TB) func(t testing.TB) (enginev1alpha1.StorageLocationSpec, map[string][]byte) {
	t.Helper()
	var handler http.Handler
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))
	t.Cleanup(listener.Close)
	server, err := fakestorage.NewServerWithOptions(fakestorage.Options{NoListener: true, ExternalURL: listener.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	handler = withGenerations(server.HTTPHandler())
	account := storetest.ServiceAccount(t, "token", nil)
	buckets := 0
	return func(t testing.TB) (enginev1alpha1.StorageLocationSpec, map[string][]byte) {
		t.Helper()
		buckets++
		name := fmt.Sprintf("backups-%d", buckets)
		server.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: name})
		return enginev1alpha1.StorageLocationSpec{
			Provider: enginev1alpha1.StorageProviderGCS,
			Prefix:   "one/two",
			GCS:      &enginev1alpha1.GCSLocation{Bucket: name, Endpoint: listener.URL, CredentialsSecret: "account"},
		}, account
	}
}

// withGenerations adds what the emulator ignores: ifGenerationMatch of a removal. As Google documents
// it, a removal with another generation is refused with status 412. Removals exclude writes here.
func withGenerations(next http.Handler) http.Handler {
	var mu sync.RWMutex
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want := r.URL.Query().Get("ifGenerationMatch")
		switch {
		case r.Method == http.MethodGet:
		case r.Method != http.MethodDelete || want == "":
			mu.RLock()
			defer mu.RUnlock()
		default:
			mu.Lock()
			defer mu.Unlock()
			asked := r.Clone(r.Context())
			asked.Method, asked.URL.RawQuery, asked.Body = http.MethodGet, "", http.NoBody
			found := httptest.NewRecorder()
			next.ServeHTTP(found, asked)
			var object struct {
				Generation string `json:"generation"`
			}
			_ = json.Unmarshal(found.Body.Bytes(), &object)
			if found.Code == http.StatusOK && object.Generation != want {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusPreconditionFailed)
				_, _ = io.WriteString(w, `{"error": {"code": 412, "errors": [{"reason": "conditionNotMet"}]}}`)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func TestGCS(t *testing.T) {
	next := fakeGCS(t)
	storetest.Run(t, func(t *testing.T) storetest.Store {
		location, account := next(t)
		return storetest.Open(t, location, account)
	})
}

// TestGCSRepository: Kopia's storage goes over the same store.
func TestGCSRepository(t *testing.T) {
	location, account := fakeGCS(t)(t)
	testRepository(t, repository.Location{Spec: location, Secret: account})
}

// counting is a server before another one, which tells the method of each request.
func counting(t testing.TB, endpoint string, tell func(method string)) string {
	t.Helper()
	target, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tell(r.Method)
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// counted is a server before another one; taken returns the requests since the last call.
func counted(t *testing.T, endpoint string) (address string, taken func() string) {
	t.Helper()
	var mu sync.Mutex
	var requests []string
	address = counting(t, endpoint, func(method string) {
		mu.Lock()
		defer mu.Unlock()
		requests = append(requests, method)
	})
	return address, func() string {
		mu.Lock()
		defer mu.Unlock()
		taken := fmt.Sprint(requests)
		requests = nil
		return taken
	}
}

// TestGCSRequests has what an operation costs. The parts of a large stream go to the emulator's own
// address, past the count.
func TestGCSRequests(t *testing.T) {
	location, account := fakeGCS(t)(t)
	var taken func() string
	location.GCS.Endpoint, taken = counted(t, location.GCS.Endpoint)
	testRequests(t, storetest.Open(t, location, account), taken, map[string]string{
		"check": "[GET]", "create": "[POST]", "put": "[POST]", "small stream": "[POST]", "large stream": "[POST]", "list": "[GET]",
		"list after": "[GET]", "get": "[GET]", "part": "[GET]", "attributes": "[GET]", "delete": "[DELETE]", "remove": "[DELETE]",
	})
}
