// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const day = 24 * time.Hour

// lockedBucket opens a location with a lock of 30 days, in a bucket that wrap changes.
func lockedBucket(t *testing.T, locks *storetest.Locks, wrap func(http.Handler) http.Handler) *store.Bucket {
	t.Helper()
	location, secret := storetest.FakeS3(t, func(next http.Handler) http.Handler {
		if next = locks.Wrap(next); wrap != nil {
			next = wrap(next)
		}
		return next
	})
	location.Prefix = "one/two"
	location.Lock = &enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockGovernance, Days: 30}
	return storetest.Open(t, location, secret)
}

// Each object that a restore needs is written with a lock, whole or in parts, which ends by the
// store's clock. Objects that are derived or rewritten have none.
func TestWritesAreLocked(t *testing.T) {
	locks := storetest.NewLocks()
	locks.Skew = -10 * time.Minute // a server takes less than 15
	bucket, ctx := lockedBucket(t, locks, nil), t.Context()
	before := time.Now()
	_, err := bucket.Identify(ctx, before)
	must(t, err)
	for _, key := range []string{"backups/a/velero-backup.json", "metadata/holdfast/keys/c/app/f.json", "kopia/app/kopia.repository"} {
		must(t, bucket.Create(ctx, key, []byte("created")))
	}
	must(t, bucket.Put(ctx, "backups/a/holdfast-owner.json", []byte("put")))
	for key, size := range map[string]int{"backups/a/a.tar.gz": 1, "backups/a/a-large.tar.gz": 20 << 20} {
		w, err := bucket.NewWriter(ctx, key)
		must(t, err)
		_, err = w.Write(make([]byte, size))
		must(t, err)
		must(t, w.Commit())
	}
	after := time.Now()
	found := locks.All()
	want := []string{"backups/a/a-large.tar.gz", "backups/a/a.tar.gz", "backups/a/holdfast-owner.json", "backups/a/velero-backup.json", "kopia/app/kopia.repository", "metadata/holdfast/keys/c/app/f.json", "metadata/holdfast/store.json"}
	for _, key := range want {
		lock := found["one/two/"+key]
		// A store tells its time to the second.
		earliest, latest := before.Add(locks.Skew+30*day-time.Second), after.Add(locks.Skew+30*day+2*time.Second)
		if lock.Mode != "GOVERNANCE" || lock.Until.Before(earliest) || lock.Until.After(latest) {
			t.Errorf("%s has the lock %v, want one until %s to %s", key, lock, earliest, latest)
		}
	}
	for _, key := range []string{"metadata/holdfast/index/c/1", "metadata/holdfast/claims/c.json", "metadata/holdfast/probes/c/default/p", "metadata/holdfast/removals/c/app/r.json", "kopia/app/kopia.maintenance", "restores/r/r.gz"} {
		must(t, bucket.Put(ctx, key, []byte("x")))
	}
	if all := locks.All(); len(all) != len(want) {
		t.Errorf("these have a lock: %v", all)
	}
}

// TestExtendLock: a lock that ends too early is extended, in its own mode, and another is left alone.
func TestExtendLock(t *testing.T) {
	locks := storetest.NewLocks()
	bucket, ctx := lockedBucket(t, locks, nil), t.Context()
	const key = "backups/a/velero-backup.json"
	must(t, bucket.Create(ctx, key, []byte("x")))
	extend := func() time.Time {
		t.Helper()
		until, err := bucket.ExtendLock(ctx, key, 15*day)
		must(t, err)
		if lock := locks.All()["one/two/"+key]; !lock.Until.Equal(until) {
			t.Errorf("it is locked until %s, and said to be until %s", lock.Until, until)
		}
		return until
	}
	first := extend()
	if locks.Extended() != 0 {
		t.Error("a lock of 30 days was extended, and 15 suffice")
	}
	for name, lock := range map[string]storetest.ObjectLock{
		"that ends early":      {Mode: "GOVERNANCE", Until: time.Now().Add(14 * day).Truncate(time.Second)},
		"of another mode":      {Mode: "COMPLIANCE", Until: time.Now().Add(day).Truncate(time.Second)},
		"that an object lacks": {},
	} {
		locks.Set("one/two/"+key, lock)
		extended := locks.Extended()
		if until := extend(); until.Before(first.Add(-2*time.Second)) || locks.Extended() != extended+1 {
			t.Errorf("a lock %s is extended until %s, want %s at least; %d requests", name, until, first, locks.Extended()-extended)
		}
		if mode := locks.All()["one/two/"+key].Mode; lock.Mode != "" && mode != lock.Mode {
			t.Errorf("a lock %s has the mode %s now", name, mode)
		}
	}
	if _, err := bucket.ExtendLock(ctx, "backups/none", day); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("of a missing object: %v", err)
	}
	if _, err := storetest.Memory(t).ExtendLock(ctx, key, day); err == nil {
		t.Error("a store without locks has extended one")
	}
}

// A location without a lock locks nothing, and asks for nothing about locks.
func TestNoLock(t *testing.T) {
	locks := storetest.NewLocks()
	location, secret := storetest.FakeS3(t, locks.Wrap)
	bucket := storetest.Open(t, location, secret)
	must(t, bucket.Create(t.Context(), "backups/a/velero-backup.json", []byte("x")))
	must(t, bucket.CheckLock(t.Context()))
	if all := locks.All(); len(all) > 0 {
		t.Errorf("these have a lock: %v", all)
	}
}

// TestCheckLock: a bucket that can't lock is told from one that may not be asked.
func TestCheckLock(t *testing.T) {
	must(t, lockedBucket(t, storetest.NewLocks(), nil).CheckLock(t.Context()))
	for name, c := range map[string]struct {
		status int
		code   string
		kind   error
		says   string
	}{
		"a bucket without it": {http.StatusNotFound, "ObjectLockConfigurationNotFoundError", store.ErrNoLock, "made without object lock"},
		"a store without it":  {http.StatusNotImplemented, "NotImplemented", store.ErrNoLock, "the store has no object lock"},
		"no right":            {http.StatusForbidden, "AccessDenied", store.ErrDenied, "s3:GetBucketObjectLockConfiguration"},
		"no bucket":           {http.StatusNotFound, "NoSuchBucket", store.ErrNoBucket, "the bucket does not exist"},
	} {
		bucket := lockedBucket(t, storetest.NewLocks(), func(next http.Handler) http.Handler { return refusing(next, "object-lock", "", c.status, c.code) })
		if err := bucket.CheckLock(t.Context()); !errors.Is(err, c.kind) || !strings.Contains(store.Reason(err), c.says) {
			t.Errorf("%s: got %v, want %v that says %q", name, err, c.kind, c.says)
		}
	}
}

// A missing right to extend locks is named.
func TestRightsToExtendAreNamed(t *testing.T) {
	for method, right := range map[string]string{http.MethodGet: "s3:GetObjectRetention", http.MethodPut: "s3:PutObjectRetention"} {
		locks := storetest.NewLocks()
		bucket := lockedBucket(t, locks, func(next http.Handler) http.Handler {
			return refusing(next, "retention", method, http.StatusForbidden, "AccessDenied")
		})
		must(t, bucket.Create(t.Context(), "backups/a", []byte("x")))
		if _, err := bucket.ExtendLock(t.Context(), "backups/a", 60*day); !errors.Is(err, store.ErrDenied) || !strings.Contains(store.Reason(err), right) {
			t.Errorf("got %v, want %s", err, right)
		}
	}
}

// A missing right to write with a lock is named, and in no error of a write without one.
func TestRightsToLockAreNamed(t *testing.T) {
	bucket := lockedBucket(t, storetest.NewLocks(), func(next http.Handler) http.Handler {
		return refusing(next, "", http.MethodPut, http.StatusForbidden, "AccessDenied")
	})
	w, err := bucket.NewWriter(t.Context(), "backups/a/a.tar.gz")
	must(t, err)
	_, _ = w.Write([]byte("x"))
	for name, c := range map[string]struct {
		err  error
		says bool
	}{
		"create":           {bucket.Create(t.Context(), "backups/a/holdfast-owner.json", []byte("x")), true},
		"commit":           {w.Commit(), true},
		"a pack of Kopia":  {bucket.PutContent(t.Context(), "kopia/app/p1", storetest.Content("x"), store.Retention{Mode: "GOVERNANCE", Until: time.Now().Add(day)}), true},
		"without any lock": {bucket.Put(t.Context(), "metadata/holdfast/claims/c.json", []byte("x")), false},
	} {
		if says := strings.Contains(store.Reason(c.err), "s3:PutObjectRetention"); !errors.Is(c.err, store.ErrDenied) || says != c.says {
			t.Errorf("%s: got %v", name, c.err)
		}
	}
}

// refusing refuses the requests with a parameter, or all, of one method or of all.
func refusing(next http.Handler, parameter, method string, status int, code string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if parameter != "" && !r.URL.Query().Has(parameter) || method != "" && r.Method != method {
			next.ServeHTTP(w, r)
			return
		}
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", code)
	})
}

// TestPolicyOfALock: with a lock a writer needs the actions of one more policy, and no others. No
// policy lets a lock be shortened, or a version be removed.
func TestPolicyOfALock(t *testing.T) {
	writer, lock := policyInDocs(t, "A policy to write"), policyInDocs(t, "More for a lock")
	both := writer
	both.Statement = slices.Concat(writer.Statement, lock.Statement)
	guard := &iam{policy: both, used: map[string]bool{}}
	locks := storetest.NewLocks()
	location, secret := storetest.FakeS3(t, func(next http.Handler) http.Handler { return guard.guard(locks.Wrap(next)) })
	location.Lock = &enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockCompliance, Days: 30}
	bucket, ctx := storetest.Open(t, location, secret), t.Context()
	must(t, bucket.CheckLock(ctx))
	must(t, bucket.Create(ctx, "backups/a", []byte("x")))
	_, err := bucket.ExtendLock(ctx, "backups/a", 60*day)
	must(t, err)
	for _, action := range lock.actions() {
		if !guard.used[action] {
			t.Errorf("%s is in the policy of a lock, and no request needs it", action)
		}
	}
	for action := range guard.used {
		if !slices.Contains(both.actions(), action) {
			t.Errorf("a request needs %s, which no policy has", action)
		}
	}
	for _, policy := range []iamPolicy{writer, lock, policyInDocs(t, "A policy to read")} {
		for _, action := range policy.actions() {
			if strings.Contains(action, "Bypass") || strings.Contains(action, "DeleteObjectVersion") || strings.Contains(action, "*") {
				t.Errorf("a policy has %s", action)
			}
		}
	}
}
