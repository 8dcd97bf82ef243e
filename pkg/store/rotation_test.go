// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

func secretOf(key string) map[string][]byte {
	return map[string][]byte{SecretAccessKeyID: []byte(key), SecretSecretAccessKey: []byte("s")}
}

// TestCredentialsThatAreRotated: a store that is open takes up a new key at the first request
// that is refused, so that it is none to the caller, be it a write.
func TestCredentialsThatAreRotated(t *testing.T) {
	var valid atomic.Value
	valid.Store("old")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Authorization"), "Credential="+valid.Load().(string)+"/") {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `<Error><Code>InvalidAccessKeyId</Code></Error>`)
			return
		}
		if r.Method == http.MethodPut {
			if content, err := io.ReadAll(r.Body); err != nil || !strings.Contains(string(content), "content") {
				t.Errorf("%s was written, %v", content, err)
			}
			w.Header().Set("ETag", `"a"`)
			return
		}
		fmt.Fprint(w, `<ListBucketResult><Name>b</Name></ListBucketResult>`)
	}))
	defer server.Close()
	location := &enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderS3, S3: &enginev1alpha1.S3Location{
		Bucket: "b", Endpoint: server.URL, ForcePathStyle: true, CredentialsSecret: "keys",
	}}
	for name, follows := range map[string]bool{"following the Secret": true, "with the credentials at hand": false} {
		t.Run(name, func(t *testing.T) {
			valid.Store("old")
			key := "old"
			var again SecretReader
			if follows {
				again = func(context.Context) (map[string][]byte, error) { return secretOf(key), nil }
			}
			bucket, err := OpenFollowing(t.Context(), location, secretOf("old"), again)
			if err != nil {
				t.Fatal(err)
			}
			defer bucket.Close()
			if err := bucket.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			valid.Store("new")
			key = "new"
			for operation, do := range map[string]func() error{
				"check": func() error { return bucket.Check(t.Context()) },
				"write": func() error { return bucket.Create(t.Context(), "a", []byte("content")) },
				"streamed write": func() error {
					w, err := bucket.NewWriter(t.Context(), "b")
					if err != nil {
						return err
					}
					defer w.Abort()
					if _, err := w.Write([]byte("content")); err != nil {
						return err
					}
					valid.Store("newer")
					key = "newer"
					return w.Commit()
				},
			} {
				if err := do(); follows && err != nil || !follows && !errors.Is(err, ErrDenied) {
					t.Errorf("%s with a key that is not valid any more: %v", operation, err)
				}
			}
		})
	}
}

// TestSecretIsReadAgain: credentials that work are used for a minute, and stay if the Secret
// can't be read.
func TestSecretIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, reads := "second", 0
		var failure error
		given, err := rotating("keys", secretOf("first"), func(context.Context) (map[string][]byte, error) {
			reads++
			return secretOf(key), failure
		})
		if err != nil {
			t.Fatal(err)
		}
		expect := func(want string, wantReads int) {
			t.Helper()
			got, err := given.Retrieve(t.Context())
			if err != nil || got.AccessKeyID != want || reads != wantReads {
				t.Errorf("got the key %s after %d reads, want %s after %d: %v", got.AccessKeyID, reads, want, wantReads, err)
			}
		}
		expect("first", 0)
		time.Sleep(rereadEvery / 2)
		expect("first", 0)
		time.Sleep(rereadEvery)
		expect("second", 1)
		key, failure = "third", errors.New("the API server restarts")
		time.Sleep(2 * rereadEvery)
		expect("second", 2)
		failure = nil
		time.Sleep(2 * rereadEvery)
		expect("third", 3)
	})
}
