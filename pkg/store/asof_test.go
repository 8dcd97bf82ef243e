// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// oneVersion is a version of an object, or a delete marker, that was made some seconds after noon.
type oneVersion struct {
	key, id, content string
	second           float64
	marker           bool
}

// versionedBucket answers as a bucket with versions does, a few versions a page.
type versionedBucket struct {
	versions []oneVersion // of each key, the newest first
	page     int
	status   string // of the versioning
	lists    int
}

var noon = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

func after(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

type listedVersion struct {
	Key, VersionId, ETag, LastModified string
	IsLatest                           bool
	Size                               int
}

type listedVersions struct {
	XMLName                            xml.Name `xml:"ListVersionsResult"`
	IsTruncated                        bool
	NextKeyMarker, NextVersionIdMarker string `xml:",omitempty"`
	Version, DeleteMarker              []listedVersion
}

func (b *versionedBucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Date", after(1000).Format(http.TimeFormat))
	query := r.URL.Query()
	switch {
	case query.Has("versioning"):
		status := ""
		if b.status != "" {
			status = "<Status>" + b.status + "</Status>"
		}
		fmt.Fprintf(w, "<VersioningConfiguration>%s</VersioningConfiguration>", status)
	case query.Has("versions"):
		b.list(w, r)
	case r.Method == http.MethodGet && query.Has("versionId"):
		_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		i := slices.IndexFunc(b.versions, func(v oneVersion) bool { return v.key == key && v.id == query.Get("versionId") })
		if i < 0 {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, "<Error><Code>NoSuchVersion</Code></Error>")
			return
		}
		w.Header().Set("ETag", b.versions[i].id)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(b.versions[i].content))
	default:
		w.WriteHeader(http.StatusNotImplemented)
	}
}

func (b *versionedBucket) list(w http.ResponseWriter, r *http.Request) {
	b.lists++
	query := r.URL.Query()
	all := slices.Clone(b.versions)
	slices.SortStableFunc(all, func(x, y oneVersion) int { return cmp.Compare(x.key, y.key) })
	var answer listedVersions
	passed := query.Get("version-id-marker") == ""
	count := 0
	for i, v := range all {
		marker := query.Get("key-marker")
		switch {
		case !strings.HasPrefix(v.key, query.Get("prefix")), v.key < marker, v.key == marker && query.Get("version-id-marker") == "":
			continue
		case v.key == marker && !passed:
			passed = v.id == query.Get("version-id-marker")
			continue
		case count == b.page:
			answer.IsTruncated = true
		}
		if answer.IsTruncated {
			break
		}
		count++
		listed := listedVersion{Key: v.key, VersionId: v.id, LastModified: after(v.second).Format("2006-01-02T15:04:05.000Z"), IsLatest: i == 0 || all[i-1].key != v.key}
		answer.NextKeyMarker, answer.NextVersionIdMarker = v.key, v.id
		if v.marker {
			answer.DeleteMarker = append(answer.DeleteMarker, listed)
			continue
		}
		listed.ETag, listed.Size = v.id, len(v.content)
		answer.Version = append(answer.Version, listed)
	}
	_ = xml.NewEncoder(w).Encode(answer)
}

func (b *versionedBucket) open(t *testing.T, seconds float64, wrap func(http.Handler) http.Handler) *store.Bucket {
	t.Helper()
	var handler http.Handler = b
	if wrap != nil {
		handler = wrap(handler)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return storetest.Open(t, enginev1alpha1.StorageLocationSpec{
		Provider: enginev1alpha1.StorageProviderS3,
		S3: &enginev1alpha1.S3Location{Bucket: "backups", Endpoint: server.URL, ForcePathStyle: true, CredentialsSecret: "credentials",
			AsOf: &metav1.Time{Time: after(seconds)}},
	}, map[string][]byte{store.SecretAccessKeyID: []byte("id"), store.SecretSecretAccessKey: []byte("key")})
}

// attacked is a bucket whose objects were replaced and deleted after the 10th second.
func attacked() *versionedBucket {
	return &versionedBucket{page: 2, status: "Enabled", versions: []oneVersion{
		{key: "a", id: "a5", second: 40, marker: true}, {key: "a", id: "a4", content: "evil", second: 30}, {key: "a", id: "a3", content: "evil", second: 20},
		{key: "a", id: "a2", content: "second", second: 9}, {key: "a", id: "a1", content: "first", second: 1},
		{key: "a/b", id: "ab1", content: "inside", second: 2},
		{key: "a/c", id: "ac1", content: "inside too", second: 2}, {key: "a/d", id: "ad1", content: "inside too", second: 2},
		{key: "ab", id: "b1", content: "beside", second: 3},
		{key: "deleted", id: "d2", second: 8, marker: true}, {key: "deleted", id: "d1", content: "x", second: 1},
		{key: "late/x", id: "l1", content: "later", second: 11},
		{key: "same", id: "s3", second: 50, marker: true}, {key: "same", id: "s2", content: "newer", second: 10}, {key: "same", id: "s1", content: "older", second: 10},
		{key: "tie", id: "t1", second: 10, marker: true}, {key: "tie", id: "t0", content: "x", second: 10},
		{key: "z", id: "z1", content: "last", second: 10}, {key: "z.", id: "z2", content: "a moment later", second: 10.001},
	}}
}

// TestABucketAsOfATime: objects are listed and read as they were, whatever page of the versions
// they are on, and a folder is listed only if it had an object.
func TestABucketAsOfATime(t *testing.T) {
	for _, page := range []int{1, 2, 3, 1000} {
		bucket := attacked()
		bucket.page = page
		b := bucket.open(t, 10, nil)
		must(t, b.Check(t.Context()))
		for name, test := range map[string]struct {
			folder  string
			options store.ListOptions
			want    []string
		}{
			"all":       {"", store.ListOptions{Recursive: true}, []string{"a", "a/b", "a/c", "a/d", "ab", "same", "z"}},
			"one level": {"", store.ListOptions{}, []string{"a", "a/", "ab", "same", "z"}},
			"a folder":  {"a/", store.ListOptions{}, []string{"a/b", "a/c", "a/d"}},
			"after":     {"", store.ListOptions{StartAfter: "a/"}, []string{"ab", "same", "z"}},
			"later":     {"", store.ListOptions{Recursive: true, StartAfter: "a/b"}, []string{"a/c", "a/d", "ab", "same", "z"}},
			"beginning": {"", store.ListOptions{Beginning: "a"}, []string{"a", "a/", "ab"}},
		} {
			var got []string
			for object, err := range b.List(t.Context(), test.folder, test.options) {
				must(t, err)
				got = append(got, object.Key)
			}
			if diff := gocmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s, %d a page (-want +got):\n%s", name, page, diff)
			}
		}
		for key, want := range map[string]string{"a": "second", "a/b": "inside", "ab": "beside", "same": "newer", "z": "last"} {
			content, err := bucket.open(t, 10, nil).Get(t.Context(), key) // nothing is known yet
			must(t, err)
			got, err := io.ReadAll(content)
			must(t, errors.Join(err, content.Close()))
			seen, err := b.Attributes(t.Context(), key)
			must(t, err)
			if string(got) != want || seen.Version != store.VersionOf(content) || seen.Size != int64(len(want)) {
				t.Errorf("%s, %d a page: got %q, %+v", key, page, got, seen)
			}
		}
		for _, key := range []string{"deleted", "late/x", "tie", "z.", "none", "aa"} {
			if _, err := b.Get(t.Context(), key); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("%s, %d a page: got %v", key, page, err)
			}
		}
	}
}

// TestALocationAsOfATimeTakesNoWrites: each write fails with one error, before any request.
func TestALocationAsOfATimeTakesNoWrites(t *testing.T) {
	b := attacked().open(t, 10, nil)
	_, err := b.NewWriter(t.Context(), "n")
	_, unfinished := b.RemoveUnfinished(t.Context(), "", noon, false)
	for name, err := range map[string]error{
		"put": b.Put(t.Context(), "n", nil), "create": b.Create(t.Context(), "n", nil), "stream": err, "unfinished": unfinished,
		"delete": b.Delete(t.Context(), store.Object{Key: "a", Version: "a2"}), "remove": b.Remove(t.Context(), "a"),
	} {
		if !errors.Is(err, store.ErrAsOf) || !strings.Contains(err.Error(), "as of 2026-11-27T12:00:10Z: nothing can be written") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestABucketThatCantBeReadAsOfATime: it has no versions, or the instant is not in the past.
func TestABucketThatCantBeReadAsOfATime(t *testing.T) {
	for status, says := range map[string]string{"": "no versioning", "Suspended": "is suspended"} {
		plain := attacked()
		plain.status = status
		if err := plain.open(t, 10, nil).Check(t.Context()); !errors.Is(err, store.ErrAsOf) || !strings.Contains(err.Error(), says) {
			t.Errorf("with the versioning %q: %v", status, err)
		}
	}
	for _, seconds := range []float64{1000, 2000} {
		b := attacked().open(t, seconds, nil)
		_, err := b.Get(t.Context(), "a")
		for _, err := range []error{err, b.Check(t.Context()), drain(b.List(t.Context(), "", store.ListOptions{}))} {
			if !errors.Is(err, store.ErrAsOf) || !strings.Contains(err.Error(), "not in the past") {
				t.Errorf("after %v seconds: %v", seconds, err)
			}
		}
	}
}

// TestPolicyOfAReaderAsOfATime: with it a store is checked, listed and restored from.
func TestPolicyOfAReaderAsOfATime(t *testing.T) {
	guard := &iam{policy: policyInDocs(t, "A policy to read as of a time"), used: map[string]bool{}}
	b := attacked().open(t, 10, guard.guard)
	must(t, b.Check(t.Context()))
	must(t, drain(b.List(t.Context(), "", store.ListOptions{Recursive: true})))
	must(t, get(t.Context(), b, "a"))
	must(t, getPart(t.Context(), b, "a", 1, 2))
	guard.compare(t)
}
