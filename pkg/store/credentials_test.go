// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// identities are the ways in which a pod gets credentials, and the kind of request that each makes.
var identities = map[string]struct {
	use  func(*storetest.Cloud, *testing.T)
	asks string
}{
	"IRSA":         {(*storetest.Cloud).ServiceAccounts, "AssumeRoleWithWebIdentity"},
	"Pod Identity": {(*storetest.Cloud).PodIdentity, "agent"},
	"node":         {(*storetest.Cloud).Node, "metadata"},
}

func withoutSecret(t *testing.T, wrap func(http.Handler) http.Handler) enginev1alpha1.StorageLocationSpec {
	t.Helper()
	location, _ := storetest.FakeS3(t, wrap)
	location.S3.CredentialsSecret = ""
	return location
}

// stderr returns a function with all that the process has written there, as the SDK's logger does.
func stderr(t *testing.T) func() string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "stderr")
	file, err := os.Create(name)
	must(t, err)
	before := os.Stderr
	os.Stderr = file
	t.Cleanup(func() { os.Stderr = before; _ = file.Close() })
	return func() string {
		text, err := os.ReadFile(name)
		must(t, err)
		return string(text)
	}
}

// TestIdentityOfThePod: a location without a Secret is used with the pod's own identity. One session
// serves all openings of it. When it ends, the token is read anew.
func TestIdentityOfThePod(t *testing.T) {
	for name, identity := range identities {
		t.Run(name, func(t *testing.T) {
			logged := stderr(t)
			cloud := storetest.NewCloud(t)
			identity.use(cloud, t)
			location := withoutSecret(t, cloud.Guard(storetest.RoleOfPods))
			bucket := storetest.Open(t, location, nil)
			must(t, bucket.Put(t.Context(), "a", []byte("x")))
			once := cloud.Asked(identity.asks)
			for range 3 {
				must(t, storetest.Open(t, location, nil).Check(t.Context()))
				must(t, get(t.Context(), bucket, "a"))
			}
			if got := cloud.Asked(identity.asks); got != once || once == 0 {
				t.Errorf("%d requests for credentials, and %d for the first session", got, once)
			}
			cloud.RotateToken(t)
			cloud.EndSessions()
			_, err := storetest.Open(t, location, nil).Attributes(t.Context(), "a") // whose refusal has no code
			must(t, err)
			cloud.RotateToken(t)
			cloud.EndSessions()
			must(t, bucket.Create(t.Context(), "b", []byte("x")))
			must(t, storetest.Open(t, location, nil).Check(t.Context()))
			if got := cloud.Asked(identity.asks); got == once {
				t.Error("there is no request for the new session")
			}
			if cloud.Leaked(logged()) {
				t.Errorf("a secret was logged: %s", logged())
			}
		})
	}
}

// TestIdentityIsRefused: the reason has the words of STS, which say what right is missing, and no
// token, also if STS quotes it.
func TestIdentityIsRefused(t *testing.T) {
	const words = "User: arn:aws:sts::111122223333:assumed-role/holdfast/pod is not authorized to perform: sts:AssumeRole"
	for name, test := range map[string]struct {
		identity      string
		status        int
		code, message string
		kind          error
		reason        string
	}{
		"STS denies":           {"IRSA", 403, "AccessDenied", words, store.ErrDenied, "STS refuses to give credentials (AccessDenied): " + words},
		"STS quotes the token": {"IRSA", 403, "AccessDenied", "no: TOKEN", store.ErrDenied, "STS refuses to give credentials (AccessDenied)"},
		"the token's time":     {"IRSA", 400, "ExpiredTokenException", "Token expired: current date/time 1 must be before 0", store.ErrDenied, "STS refuses to give credentials (ExpiredTokenException)"},
		"STS is down":          {"IRSA", 503, "ServiceUnavailable", "", store.ErrUnavailable, "STS can't answer now (ServiceUnavailable)"},
		"STS is busy":          {"IRSA", 400, "Throttling", "Rate exceeded", store.ErrUnavailable, "STS can't answer now (Throttling)"},
		"the agent denies":     {"Pod Identity", 403, "AccessDeniedException", "no association", store.ErrDenied, "the identity service of the pods refuses to give credentials (AccessDeniedException): no association"},
		"the agent is down":    {"Pod Identity", 500, "InternalServerException", "", store.ErrUnavailable, "the identity service of the pods can't answer now (InternalServerException)"},
		"a node without role":  {"node", 404, "", "", store.ErrDenied, "there are no usable credentials for the store: give the pods an identity, or name a Secret in spec.s3.credentialsSecret"},
	} {
		t.Run(name, func(t *testing.T) {
			logged := stderr(t)
			cloud := storetest.NewCloud(t)
			t.Setenv("AWS_MAX_ATTEMPTS", "1")
			identities[test.identity].use(cloud, t)
			token, err := os.ReadFile(cloud.TokenFile())
			must(t, err)
			cloud.Fail(test.status, test.code, strings.ReplaceAll(test.message, "TOKEN", string(token)))
			bucket := storetest.Open(t, withoutSecret(t, cloud.Guard(storetest.RoleOfPods)), nil)
			err = bucket.Check(t.Context())
			if !errors.Is(err, test.kind) || store.Reason(err) != test.reason {
				t.Errorf("got %q, of kind %v: %t, want %q", store.Reason(err), test.kind, errors.Is(err, test.kind), test.reason)
			}
			if err != nil && cloud.Leaked(err.Error()+logged()) {
				t.Errorf("the token is in %q, or in the log", err.Error())
			}
			cloud.Fail(0, "", "")
			must(t, bucket.Check(t.Context()))
		})
	}
}

// TestIdentityCannotBeReached: the message names the service, since the store is well.
func TestIdentityCannotBeReached(t *testing.T) {
	cloud := storetest.NewCloud(t)
	t.Setenv("AWS_MAX_ATTEMPTS", "1")
	location := withoutSecret(t, cloud.Guard(storetest.RoleOfPods))
	for name, test := range map[string]struct {
		set    func(*testing.T)
		kind   error
		reason string
	}{
		"STS": {func(t *testing.T) {
			cloud.ServiceAccounts(t)
			t.Setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
		}, store.ErrUnavailable, "STS can't be reached: connection refused"},
		"the agent": {func(t *testing.T) {
			cloud.PodIdentity(t)
			t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/")
		}, store.ErrUnavailable, "the identity service of the pods can't be reached: connection refused"},
		"nothing at all": {func(*testing.T) {}, store.ErrDenied, "there are no usable credentials for the store: give the pods an identity, or name a Secret in spec.s3.credentialsSecret"},
		"no token": {func(t *testing.T) {
			cloud.ServiceAccounts(t)
			t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/no/such/file")
		}, store.ErrDenied, "there are no usable credentials for the store: give the pods an identity, or name a Secret in spec.s3.credentialsSecret"},
	} {
		t.Run(name, func(t *testing.T) {
			test.set(t)
			err := storetest.Open(t, location, nil).Check(t.Context())
			if !errors.Is(err, test.kind) || store.Reason(err) != test.reason {
				t.Errorf("got %v, want %q", err, test.reason)
			}
		})
	}
}

// TestRoleOfALocation: two locations of one process have two roles, whatever identity the pod has.
// One role is not used for the other, and a wrong external id is told by STS.
func TestRoleOfALocation(t *testing.T) {
	for name, identity := range identities {
		t.Run(name, func(t *testing.T) {
			cloud := storetest.NewCloud(t)
			identity.use(cloud, t)
			cloud.ExternalID = "e1"
			plain := withoutSecret(t, cloud.Guard(storetest.RoleOfPods))
			assumed := withoutSecret(t, cloud.Guard(storetest.RoleOfLocation))
			assumed.S3.RoleARN, assumed.S3.ExternalID = storetest.RoleOfLocation, "e1"
			bucket := storetest.Open(t, assumed, nil)
			must(t, bucket.Put(t.Context(), "a", []byte("x")))
			must(t, storetest.Open(t, plain, nil).Put(t.Context(), "a", []byte("x")))
			must(t, storetest.Open(t, assumed, nil).Check(t.Context()))
			if got := cloud.Asked("AssumeRole"); got != 1 {
				t.Errorf("%d sessions of the role, want one for all openings", got)
			}
			assumed.S3.RoleARN, assumed.S3.ExternalID = "", ""
			if err := storetest.Open(t, assumed, nil).Check(t.Context()); !errors.Is(err, store.ErrDenied) {
				t.Errorf("without the role: %v", err)
			}
			cloud.RotateToken(t)
			cloud.EndSessions()
			must(t, bucket.Check(t.Context())) // by a new session of the pod, too
			must(t, storetest.Open(t, plain, nil).Check(t.Context()))

			assumed.S3.RoleARN, assumed.S3.ExternalID = storetest.RoleOfLocation, "e2"
			err := storetest.Open(t, assumed, nil).Check(t.Context())
			if want := "is not authorized to perform: sts:AssumeRole on resource: " + storetest.RoleOfLocation; !errors.Is(err, store.ErrDenied) || !strings.Contains(store.Reason(err), want) {
				t.Errorf("with a wrong external id: %v", err)
			}
		})
	}
}

// TestRoleNeedsAnIdentity: the reason is the failure of the pod's own identity, and not of the role.
func TestRoleNeedsAnIdentity(t *testing.T) {
	cloud := storetest.NewCloud(t)
	cloud.PodIdentity(t)
	cloud.Fail(403, "AccessDeniedException", "no association")
	location := withoutSecret(t, cloud.Guard(storetest.RoleOfLocation))
	location.S3.RoleARN = storetest.RoleOfLocation
	err := storetest.Open(t, location, nil).Check(t.Context())
	if want := "the identity service of the pods refuses to give credentials (AccessDeniedException): no association"; !errors.Is(err, store.ErrDenied) || store.Reason(err) != want {
		t.Errorf("got %v, want %q", err, want)
	}
}

// TestDeniedAccessAsksForNoSession: another session of the role may do no more.
func TestDeniedAccessAsksForNoSession(t *testing.T) {
	var requests atomic.Int32
	cloud := storetest.NewCloud(t)
	cloud.ServiceAccounts(t)
	guard := cloud.Guard("arn:aws:iam::111122223333:role/other")
	bucket := storetest.Open(t, withoutSecret(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			guard(next).ServeHTTP(w, r)
		})
	}), nil)
	for range 3 {
		if err := bucket.Check(t.Context()); !errors.Is(err, store.ErrDenied) {
			t.Errorf("got %v, want %v", err, store.ErrDenied)
		}
	}
	if got, sessions := requests.Load(), cloud.Asked("AssumeRoleWithWebIdentity"); got != 3 || sessions != 1 {
		t.Errorf("%d requests with %d sessions, want 3 with 1", got, sessions)
	}
}

// TestIdentityStalls: a service that doesn't answer ends the caller's operation in the caller's time,
// and works when it answers again.
func TestIdentityStalls(t *testing.T) {
	for _, name := range []string{"IRSA", "Pod Identity"} {
		t.Run(name, func(t *testing.T) {
			cloud := storetest.NewCloud(t)
			t.Setenv("AWS_MAX_ATTEMPTS", "1")
			release := make(chan struct{})
			stalls := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-release:
				case <-r.Context().Done():
				}
				w.WriteHeader(http.StatusServiceUnavailable)
			}))
			t.Cleanup(stalls.Close)
			t.Cleanup(func() { close(release) })
			identities[name].use(cloud, t)
			before := os.Getenv("AWS_ENDPOINT_URL_STS")
			t.Setenv("AWS_ENDPOINT_URL_STS", stalls.URL)
			if name != "IRSA" {
				t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", stalls.URL+"/v1/credentials")
			}
			location := withoutSecret(t, cloud.Guard(storetest.RoleOfPods))
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			err := storetest.Open(t, location, nil).Check(ctx)
			if want := "the identity service of the pods did not answer in time"; !errors.Is(err, store.ErrUnavailable) || store.Reason(err) != want {
				t.Errorf("got %v, want %q", err, want)
			}
			t.Setenv("AWS_ENDPOINT_URL_STS", before)
			identities[name].use(cloud, t)
			must(t, storetest.Open(t, location, nil).Check(t.Context()))
		})
	}
}

// TestIdentityOfAnotherAuthority: the location's authorities hold for STS too, beside the system's.
func TestIdentityOfAnotherAuthority(t *testing.T) {
	cloud := storetest.NewCloud(t)
	t.Setenv("AWS_MAX_ATTEMPTS", "1")
	cloud.ServiceAccounts(t)
	plain, err := url.Parse(os.Getenv("AWS_ENDPOINT_URL_STS"))
	must(t, err)
	sts := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(plain))
	sts.Config.ErrorLog = log.New(io.Discard, "", 0)
	sts.StartTLS()
	t.Cleanup(sts.Close)
	t.Setenv("AWS_ENDPOINT_URL_STS", sts.URL)
	location := withoutSecret(t, cloud.Guard(storetest.RoleOfPods))
	err = storetest.Open(t, location, nil).Check(t.Context())
	if want := "the certificate of STS can't be verified"; !errors.Is(err, store.ErrUnavailable) || store.Reason(err) != want {
		t.Errorf("without its authority: %v, want %q", err, want)
	}
	location.S3.CABundle = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: sts.Certificate().Raw})
	must(t, storetest.Open(t, location, nil).Check(t.Context()))
}
