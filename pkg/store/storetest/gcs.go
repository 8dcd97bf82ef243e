// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/holdfast-io/holdfast/pkg/store"
)

// ServiceAccount returns a Google service account's Secret. A server on loopback gives it the token
// during the test, by status if not nil.
func ServiceAccount(t testing.TB, token string, status func() int) map[string][]byte {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if status != nil && status() != http.StatusOK {
			w.WriteHeader(status())
			_, _ = w.Write([]byte(`{"error": "invalid_grant"}`))
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": 3600})
	}))
	t.Cleanup(server.Close)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	account, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "holdfast@example.iam.gserviceaccount.com", "private_key_id": "1", "token_uri": server.URL,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})),
	})
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{store.SecretServiceAccountKey: account}
}
