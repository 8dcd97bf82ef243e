// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
)

// hack/alerts reads from here what the API server serves.
const shownCertificate = `# HELP holdfast_apiserver_certificate_expiration_timestamp_seconds [ALPHA] When the certificate expires that this replica of the API server serves with.
# TYPE holdfast_apiserver_certificate_expiration_timestamp_seconds gauge
holdfast_apiserver_certificate_expiration_timestamp_seconds 2000000000
`

// serving is a certificate in PEM.
type serving []byte

func (s *serving) CurrentCertKeyContent() (certificate, key []byte) { return *s, nil }

func certificateUntil(t *testing.T, second int64) serving {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Unix(second, 0)}
	content, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: content})
}

// A certificate is shown as it is now, also after it was renewed.
func TestCertificateExpiration(t *testing.T) {
	now := certificateUntil(t, 1_900_000_000)
	registerMetrics(&now)
	shows := func(want string) {
		t.Helper()
		if err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want), "holdfast_apiserver_certificate_expiration_timestamp_seconds"); err != nil {
			t.Error(err)
		}
	}
	shows(strings.Replace(shownCertificate, "2000000000", "1900000000", 1))
	now = certificateUntil(t, 2_000_000_000)
	shows(shownCertificate)
	now = serving("what is no certificate")
	shows("")
}
