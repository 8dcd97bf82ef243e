// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// cluster is a server that knows the token "good" and "other", and lets only the
// former's user read /metrics. It returns a kubeconfig for it.
func cluster(t *testing.T) string {
	t.Helper()
	answer := func(w http.ResponseWriter, obj any) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(obj); err != nil {
			t.Error(err)
		}
	}
	decode := func(r *http.Request, obj any) {
		if err := json.NewDecoder(r.Body).Decode(obj); err != nil {
			t.Error(err)
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/tokenreviews"):
			review := &authenticationv1.TokenReview{}
			decode(r, review)
			token := review.Spec.Token
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: token == "good" || token == "other", User: authenticationv1.UserInfo{Username: token}}
			answer(w, review)
		case strings.HasSuffix(r.URL.Path, "/subjectaccessreviews"):
			review := &authorizationv1.SubjectAccessReview{}
			decode(r, review)
			attributes := review.Spec.NonResourceAttributes
			review.Status.Allowed = review.Spec.User == "good" && attributes != nil && attributes.Path == "/metrics" && attributes.Verb == "get"
			answer(w, review)
		case strings.HasSuffix(r.URL.Path, "/configmaps/extension-apiserver-authentication"):
			answer(w, &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"}})
		case strings.HasSuffix(r.URL.Path, "/configmaps") && r.URL.Query().Get("watch") == "":
			answer(w, &corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}})
		case r.URL.Query().Get("watch") != "":
			<-r.Context().Done()
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: server.URL}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "c"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestWhoMayReadWhat(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := newServingOptions(listener.Addr().(*net.TCPAddr).Port)
	o.secure.Listener = listener
	var ready atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stopped, err := o.Start(ctx, cluster(t), healthz.NamedCheck("informers-synced", func(*http.Request) error {
		if !ready.Load() {
			return errors.New("they are not")
		}
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	made, _ := o.secure.ServerCert.GeneratedCert.CurrentCertKeyContent()
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(made) {
		t.Fatal("the certificate that it made can't be read")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}}
	client := &http.Client{Transport: transport}
	get := func(path, token string) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+listener.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	for _, c := range []struct {
		path, token string
		code        int
		says        string
	}{
		{"/healthz", "", http.StatusOK, "ok"},
		{"/livez", "", http.StatusOK, "ok"},
		{"/readyz", "", http.StatusInternalServerError, "[-]informers-synced failed"},
		{"/metrics", "good", http.StatusOK, "go_goroutines"},
		{"/metrics", "", http.StatusForbidden, "system:anonymous"},
		{"/metrics", "other", http.StatusForbidden, "other"},
		{"/metrics", "forged", http.StatusUnauthorized, "Unauthorized"},
		{"/elsewhere", "good", http.StatusForbidden, "good"},
	} {
		if code, body := get(c.path, c.token); code != c.code || !strings.Contains(body, c.says) {
			t.Errorf("%s with the token %q: %d, want %d and %q: %.300s", c.path, c.token, code, c.code, c.says, body)
		}
	}
	ready.Store(true)
	if code, body := get("/readyz", ""); code != http.StatusOK {
		t.Errorf("/readyz: %d: %s", code, body)
	}
	transport.CloseIdleConnections()
	cancel()
	<-stopped
}

func TestNothingIsServedAtPortZero(t *testing.T) {
	stopped, err := newServingOptions(0).Start(t.Context(), "/no/such/kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	<-stopped
}

func TestAClusterThatIsNotThere(t *testing.T) {
	o := newServingOptions(8444)
	if errs := o.Validate(); len(errs) != 0 {
		t.Errorf("Validate: %v", errs)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	o.secure.Listener = listener
	if _, err := o.Start(t.Context(), filepath.Join(t.TempDir(), "no-such-file")); err == nil {
		t.Error("it was served without a way to ask about callers")
	}
}
