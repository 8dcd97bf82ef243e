// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// azureCloud answers as the service of tokens and as the store do, without a network.
type azureCloud func(request *http.Request, body string) (status int, content string)

func (c azureCloud) Do(request *http.Request) (*http.Response, error) {
	var body []byte
	if request.Body != nil {
		body, _ = io.ReadAll(request.Body)
	}
	status, content := c(request, string(body))
	header := http.Header{"X-Ms-Request-Id": {"1"}, "Content-Type": {"application/json"}}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(content)), ContentLength: int64(len(content)), Request: request}, nil
}

// TestAzureFederatedTokens: without a Secret, the pod's token file gives the identity, as in AKS. A
// refused application is an error of the credentials, and a service of tokens that can't answer an
// unavailable store.
func TestAzureFederatedTokens(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("of-the-service-account"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "client", "AZURE_FEDERATED_TOKEN_FILE": file, "AZURE_AUTHORITY_HOST": "https://login.microsoftonline.com/",
		"AZURE_TOKEN_CREDENTIALS": "WorkloadIdentityCredential",
	} {
		t.Setenv(name, value)
	}
	const authority = "https://login.microsoftonline.com/tenant"
	for name, test := range map[string]struct {
		status int
		secret map[string][]byte
		asks   string
		want   error
	}{
		"federated":      {http.StatusOK, nil, "client_assertion=of-the-service-account", nil},
		"an application": {http.StatusOK, map[string][]byte{SecretTenantID: []byte("tenant"), SecretClientID: []byte("client"), SecretClientSecret: []byte("password")}, "client_secret=password", nil},
		"refused":        {http.StatusUnauthorized, nil, "client_assertion=of-the-service-account", ErrDenied},
	} {
		t.Run(name, func(t *testing.T) {
			location := &enginev1alpha1.AzureLocation{StorageAccount: "account", Container: "backups"}
			if test.secret != nil {
				location.CredentialsSecret = "application"
			}
			opener := newAzureOpener(location, nil)
			opener.options.Transport = azureCloud(func(request *http.Request, body string) (int, string) {
				switch {
				case request.URL.Host == "account.blob.core.windows.net":
					if request.Header.Get("Authorization") != "Bearer of-the-pod" {
						t.Errorf("authorized as %q", request.Header.Get("Authorization"))
					}
					if request.Method == http.MethodPut {
						return http.StatusCreated, ""
					}
					return http.StatusOK, ""
				case strings.HasSuffix(request.URL.Path, "/token"):
					if !strings.Contains(body, test.asks) {
						t.Errorf("the service of tokens was asked by %s, without %s", body, test.asks)
					}
					if test.status != http.StatusOK {
						return test.status, `{"error": "invalid_client", "error_description": "refused"}`
					}
					return http.StatusOK, `{"access_token": "of-the-pod", "token_type": "Bearer", "expires_in": 3600}`
				case strings.Contains(request.URL.Path, "openid-configuration"):
					return http.StatusOK, `{"issuer": "` + authority + `/v2.0", "authorization_endpoint": "` + authority + `/oauth2/v2.0/authorize", "token_endpoint": "` + authority + `/oauth2/v2.0/token"}`
				}
				return http.StatusOK, `{"tenant_discovery_endpoint": "` + authority + `/v2.0/.well-known/openid-configuration", "api-version": "1.1",
					"metadata": [{"preferred_network": "login.microsoftonline.com", "preferred_cache": "login.windows.net", "aliases": ["login.microsoftonline.com"]}]}`
			})
			clients, err := opener.clients(test.secret, nil)
			if err != nil {
				t.Fatal(err)
			}
			bucket := &Bucket{backend: &azureBackend{clients: clients, transport: newTransport()}}
			err = bucket.Create(t.Context(), "a", []byte("content"))
			if !errors.Is(err, test.want) || err != nil && (strings.Contains(err.Error(), "of-the-service-account") || !strings.Contains(err.Error(), "credentials")) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

// TestAzureWithoutCredentials: an environment without an identity has no usable credentials.
func TestAzureWithoutCredentials(t *testing.T) {
	for _, name := range []string{"AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AZURE_TOKEN_CREDENTIALS", "WorkloadIdentityCredential")
	opener := newAzureOpener(&enginev1alpha1.AzureLocation{StorageAccount: "account", Container: "backups"}, nil)
	opener.options.Transport = azureCloud(func(request *http.Request, _ string) (int, string) {
		t.Errorf("a request was sent to %s", request.URL)
		return http.StatusOK, ""
	})
	clients, err := opener.clients(nil, nil)
	if err == nil {
		bucket := &Bucket{backend: &azureBackend{clients: clients, transport: newTransport()}}
		err = bucket.Create(t.Context(), "a", nil)
		if !errors.Is(err, ErrDenied) {
			t.Errorf("got %v, want %v", err, ErrDenied)
		}
	}
	if err == nil || !strings.Contains(err.Error(), "credentials") && !strings.Contains(err.Error(), "spec.azure.credentialsSecret") {
		t.Errorf("got %v", err)
	}
}
