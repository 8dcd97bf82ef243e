// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// iamPolicy is a policy of AWS IAM, as docs/identity.md has it.
type iamPolicy struct {
	Version   string
	Statement []struct {
		Effect           string
		Action, Resource []string
	}
}

// policyInDocs returns the policy below a heading of docs/identity.md.
func policyInDocs(t *testing.T, heading string) iamPolicy {
	t.Helper()
	page, err := os.ReadFile("../../docs/identity.md")
	must(t, err)
	_, rest, found := strings.Cut(string(page), "\n### "+heading+"\n")
	_, rest, found2 := strings.Cut(rest, "\n    {")
	text, _, _ := strings.Cut("{"+rest, "\n\n")
	var policy iamPolicy
	if err := json.Unmarshal([]byte(text), &policy); err != nil || !found || !found2 || policy.Version != "2012-10-17" {
		t.Fatalf("docs/identity.md has no policy below %q: %v", heading, err)
	}
	return policy
}

func (p iamPolicy) actions() []string {
	var all []string
	for _, statement := range p.Statement {
		all = append(all, statement.Action...)
	}
	return slices.Sorted(slices.Values(all))
}

func (p iamPolicy) allows(action, resource string) bool {
	for _, statement := range p.Statement {
		if statement.Effect != "Allow" || !slices.Contains(statement.Action, action) {
			continue
		}
		for _, pattern := range statement.Resource {
			if before, whole := strings.CutSuffix(pattern, "*"); pattern == resource || whole && strings.HasPrefix(resource, before) {
				return true
			}
		}
	}
	return false
}

// iamActions returns the actions that AWS demands of a request's sender, and the resource.
// https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html
func iamActions(r *http.Request) (actions []string, resource string) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	query := r.URL.Query()
	resource = "arn:aws:s3:::" + path.Join(bucket, key)
	one := func(action string) []string { return []string{"s3:" + action} }
	switch {
	case key == "" && r.Method == http.MethodGet && query.Has("uploads"):
		return one("ListBucketMultipartUploads"), resource
	case key == "" && r.Method == http.MethodGet && query.Get("list-type") == "2":
		return one("ListBucket"), resource
	case key == "" && r.Method == http.MethodGet && query.Has("object-lock"):
		return one("GetBucketObjectLockConfiguration"), resource
	case key != "" && query.Has("retention") && r.Method == http.MethodGet:
		return one("GetObjectRetention"), resource
	case key != "" && query.Has("retention") && r.Method == http.MethodPut && r.Header.Get("x-amz-bypass-governance-retention") == "":
		return one("PutObjectRetention"), resource
	case key == "" && r.Method == http.MethodGet && query.Has("versioning"):
		return one("GetBucketVersioning"), resource
	case key == "" && r.Method == http.MethodGet && query.Has("versions"):
		return one("ListBucketVersions"), resource
	case key != "" && r.Method == http.MethodGet && query.Has("versionId"):
		return one("GetObjectVersion"), resource
	case key == "" || onlyKnown(query) != "":
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		return one("GetObject"), resource
	case r.Method == http.MethodPut && r.Header.Get("x-amz-copy-source") == "", r.Method == http.MethodPost && (query.Has("uploads") || query.Has("uploadId")):
		actions = one("PutObject")
		if r.Header.Get("If-Match") != "" {
			actions = append(actions, "s3:GetObject")
		}
		if r.Header.Get("x-amz-object-lock-mode") != "" {
			actions = append(actions, "s3:PutObjectRetention")
		}
		return actions, resource
	case r.Method == http.MethodDelete && query.Has("uploadId"):
		return one("AbortMultipartUpload"), resource
	case r.Method == http.MethodDelete:
		return one("DeleteObject"), resource
	}
	return one(fmt.Sprintf("unknown: %s %s", r.Method, r.URL)), resource
}

// onlyKnown returns a parameter that makes a request about an object another one.
func onlyKnown(query url.Values) string {
	for name := range query {
		if name != "x-id" && name != "uploads" && name != "uploadId" && name != "partNumber" {
			return name
		}
	}
	return ""
}

// iam has an S3 server obey a policy, and remembers what was used of it.
type iam struct {
	policy iamPolicy

	mu   sync.Mutex
	used map[string]bool
}

func (a *iam) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		actions, resource := iamActions(r)
		for _, action := range actions {
			a.mu.Lock()
			a.used[action] = true
			a.mu.Unlock()
			if !a.policy.allows(action, resource) {
				w.WriteHeader(http.StatusForbidden)
				fmt.Fprint(w, "<Error><Code>AccessDenied</Code></Error>")
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func (a *iam) compare(t *testing.T) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if diff := cmp.Diff(a.policy.actions(), slices.Sorted(maps.Keys(a.used))); diff != "" {
		t.Errorf("the policy in docs/identity.md and the requests differ (-policy +requests):\n%s", diff)
	}
}

// TestPolicyOfAWriter: the policy suffices for the suite and for what is left by writers that died,
// and has nothing beyond. No request leaves the location's prefix.
func TestPolicyOfAWriter(t *testing.T) {
	guard := &iam{policy: policyInDocs(t, "A policy to write"), used: map[string]bool{}}
	for i, statement := range guard.policy.Statement {
		for j, resource := range statement.Resource {
			guard.policy.Statement[i].Resource[j] = strings.Replace(resource, "/*", "/one/two/*", 1)
		}
	}
	open := func(t *testing.T) *store.Bucket {
		location, secret := storetest.FakeS3(t, guard.guard)
		location.Prefix = "one/two"
		return storetest.Open(t, location, secret)
	}
	t.Run("suite", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Store { return open(t) })
	})
	t.Run("leftovers", func(t *testing.T) {
		bucket := open(t)
		_, err := bucket.Identify(t.Context(), time.Now())
		must(t, err)
		w, err := bucket.NewWriter(t.Context(), "a")
		must(t, err)
		defer w.Abort()
		_, err = w.Write(make([]byte, 20<<20))
		must(t, err)
		for begin := time.Now(); time.Since(begin) < time.Minute; { // another goroutine begins the upload
			if removed, err := bucket.RemoveUnfinished(t.Context(), "", time.Now().Add(time.Hour), false); err != nil || len(removed) > 0 {
				must(t, err)
				break
			}
		}
	})
	guard.compare(t)
}

// TestPolicyOfAReader: with it a store is checked, listed and restored from.
func TestPolicyOfAReader(t *testing.T) {
	guard := &iam{policy: policyInDocs(t, "A policy to read"), used: map[string]bool{}}
	location, secret := readable(t, guard)
	bucket := storetest.Open(t, location, secret)
	ctx := t.Context()
	must(t, bucket.Check(ctx))
	id, err := bucket.Identity(ctx)
	must(t, err)
	must(t, bucket.Expect(ctx, id))
	must(t, drain(bucket.List(ctx, "backups/", store.ListOptions{Recursive: true})))
	must(t, get(ctx, bucket, "backups/a"))
	must(t, getPart(ctx, bucket, "backups/a", 1, 2))
	seen, err := bucket.Attributes(ctx, "backups/a")
	must(t, err)
	guard.compare(t)

	// Without the right to list, AWS says of a missing object that it is denied.
	for operation, err := range map[string]error{"write": bucket.Put(ctx, "b", nil), "delete": bucket.Delete(ctx, seen), "remove": bucket.Remove(ctx, "backups/a")} {
		if err == nil {
			t.Errorf("%s: a reader may do that", operation)
		}
	}
}

// readable returns a location with an object and an id, that obeys a policy.
func readable(t *testing.T, guard *iam) (enginev1alpha1.StorageLocationSpec, map[string][]byte) {
	t.Helper()
	var plain http.Handler
	location, secret := storetest.FakeS3(t, func(next http.Handler) http.Handler {
		plain = next
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.Header.Get("Authorization"), "Credential=writer/") {
				plain.ServeHTTP(w, r)
				return
			}
			guard.guard(plain).ServeHTTP(w, r)
		})
	})
	writer := storetest.Open(t, location, map[string][]byte{store.SecretAccessKeyID: []byte("writer"), store.SecretSecretAccessKey: []byte("key")})
	must(t, writer.Put(t.Context(), "backups/a", []byte("content")))
	_, err := writer.Identify(t.Context(), time.Now())
	must(t, err)
	return location, secret
}

// TestPolicyOfRetention: a repository that sets a retention of its own needs one more action, as
// docs/identity.md says.
func TestPolicyOfRetention(t *testing.T) {
	guard := &iam{policy: policyInDocs(t, "A policy to write"), used: map[string]bool{}}
	location, secret := storetest.FakeS3(t, guard.guard)
	err := storetest.Open(t, location, secret).PutContent(t.Context(), "a", storetest.Content("x"), store.Retention{Mode: "COMPLIANCE", Until: time.Now().Add(time.Hour)})
	page, readErr := os.ReadFile("../../docs/identity.md")
	must(t, readErr)
	if err == nil || !guard.used["s3:PutObjectRetention"] || !strings.Contains(string(page), "`s3:PutObjectRetention`") {
		t.Errorf("got %v, used %v", err, slices.Sorted(maps.Keys(guard.used)))
	}
}
