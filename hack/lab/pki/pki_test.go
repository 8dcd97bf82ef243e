// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func issue(t *testing.T, a *Authority, s Subject) *x509.Certificate {
	t.Helper()
	pair, err := a.Issue(s, now)
	if err != nil {
		t.Fatal(err)
	}
	both, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatalf("certificate and key don't belong together: %v", err)
	}
	return both.Leaf
}

func newAuthority(t *testing.T) *Authority {
	t.Helper()
	a, err := NewAuthority("test", now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *Authority) accepts(c *x509.Certificate, host string, use x509.ExtKeyUsage) error {
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	_, err := c.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use}})
	return err
}

func TestClientCertificate(t *testing.T) {
	a := newAuthority(t)
	c := issue(t, a, Subject{Name: "system:serviceaccount:holdfast:x", Groups: []string{"system:serviceaccounts", "system:authenticated"}})
	if c.Subject.CommonName != "system:serviceaccount:holdfast:x" {
		t.Errorf("user %q", c.Subject.CommonName)
	}
	// In the order of the encoding, a sorted set.
	if diff := cmp.Diff([]string{"system:authenticated", "system:serviceaccounts"}, c.Subject.Organization); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	if err := a.accepts(c, "", x509.ExtKeyUsageClientAuth); err != nil {
		t.Errorf("as a client: %v", err)
	}
	if err := a.accepts(c, "", x509.ExtKeyUsageServerAuth); err == nil {
		t.Error("a client's certificate is good for a server")
	}
	if err := newAuthority(t).accepts(c, "", x509.ExtKeyUsageClientAuth); err == nil {
		t.Error("another authority of the same name accepts it")
	}
}

func TestServerCertificate(t *testing.T) {
	a := newAuthority(t)
	c := issue(t, a, Subject{Name: "server", Hosts: []string{"a.holdfast.svc", "127.0.0.1"}})
	for _, host := range []string{"a.holdfast.svc", "127.0.0.1"} {
		if err := a.accepts(c, host, x509.ExtKeyUsageServerAuth); err != nil {
			t.Errorf("as %s: %v", host, err)
		}
	}
	if err := a.accepts(c, "b.holdfast.svc", x509.ExtKeyUsageServerAuth); err == nil {
		t.Error("good for a host that was not asked for")
	}
	if !c.NotBefore.Before(now) || !c.NotAfter.After(now.AddDate(0, 6, 0)) {
		t.Errorf("valid from %s to %s", c.NotBefore, c.NotAfter)
	}
}

func TestAnAuthorityReadBackSigns(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	a := newAuthority(t)
	if err := a.Pair().Write(dir, "ca"); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]os.FileMode{"": 0o700 | os.ModeDir, "ca.key": 0o600} {
		info, err := os.Stat(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("mode of %q is %v, want %v", file, info.Mode(), want)
		}
	}
	read, err := ReadAuthority(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.accepts(issue(t, read, Subject{Name: "x"}), "", x509.ExtKeyUsageClientAuth); err != nil {
		t.Error(err)
	}
}
