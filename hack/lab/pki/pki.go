// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pki makes the certificate authorities, certificates and keys of a
// lab, in process. All keys are ECDSA P-256: they take microseconds to make.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// validity outlasts any lab; its certificates go when it goes.
const validity = 365 * 24 * time.Hour

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pair Pair
}

// Pair is a certificate and its private key, both PEM.
type Pair struct{ Cert, Key []byte }

// Subject is what a certificate says of its holder. Kubernetes reads Name as
// the user and Groups as the groups. With Hosts (names or IP addresses) the
// certificate is a server's, otherwise a client's.
type Subject struct {
	Name   string
	Groups []string
	Hosts  []string
}

// NewAuthority makes a self-signed authority, valid from an hour before now.
func NewAuthority(name string, now time.Time) (*Authority, error) {
	t := template(pkix.Name{CommonName: name}, now)
	t.IsCA = true
	t.BasicConstraintsValid = true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	pair, cert, key, err := sign(t, nil)
	if err != nil {
		return nil, fmt.Errorf("certificate authority %s: %w", name, err)
	}
	return &Authority{cert: cert, key: key, pair: pair}, nil
}

// Pair returns the authority's own certificate and key.
func (a *Authority) Pair() Pair { return a.pair }

// Issue signs a certificate for s, with a new key.
func (a *Authority) Issue(s Subject, now time.Time) (Pair, error) {
	t := template(pkix.Name{CommonName: s.Name, Organization: s.Groups}, now)
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(s.Hosts) > 0 {
		// A server may call another one with the certificate it serves with:
		// etcd checks its own listener so.
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, h := range s.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	pair, _, _, err := sign(t, a)
	if err != nil {
		return Pair{}, fmt.Errorf("certificate for %s: %w", s.Name, err)
	}
	return pair, nil
}

// Write puts the pair into dir as name.crt and name.key. The key is readable
// by its owner only.
func (p Pair) Write(dir, name string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, name+".crt"), p.Cert, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".key"), p.Key, 0o600)
}

// ReadAuthority reads an authority that Write wrote.
func ReadAuthority(dir, name string) (*Authority, error) {
	pair, err := ReadPair(dir, name)
	if err != nil {
		return nil, err
	}
	certBlock, _ := pem.Decode(pair.Cert)
	keyBlock, _ := pem.Decode(pair.Key)
	if certBlock == nil || keyBlock == nil {
		return nil, fmt.Errorf("%s/%s.crt and .key are not PEM", dir, name)
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s/%s.key holds a %T, which can't sign", dir, name, key)
	}
	return &Authority{cert: cert, key: signer, pair: pair}, nil
}

// ReadPair reads a pair that Write wrote.
func ReadPair(dir, name string) (Pair, error) {
	cert, err := os.ReadFile(filepath.Join(dir, name+".crt"))
	if err != nil {
		return Pair{}, err
	}
	key, err := os.ReadFile(filepath.Join(dir, name+".key"))
	return Pair{Cert: cert, Key: key}, err
}

func template(name pkix.Name, now time.Time) *x509.Certificate {
	return &x509.Certificate{
		Subject: name,
		// An hour of slack, for clocks that are set back while a lab runs.
		NotBefore: now.Add(-time.Hour),
		NotAfter:  now.Add(validity),
	}
}

// sign makes a key and signs t for it; without an issuer t signs itself.
func sign(t *x509.Certificate, issuer *Authority) (Pair, *x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, nil, nil, err
	}
	// RFC 5280 4.1.2.2: a positive number of at most 20 octets.
	t.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 159))
	if err != nil {
		return Pair{}, nil, nil, err
	}
	parent, signer := t, crypto.Signer(key)
	if issuer != nil {
		parent, signer = issuer.cert, issuer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, key.Public(), signer)
	if err != nil {
		return Pair{}, nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return Pair{}, nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, nil, nil, err
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}, cert, key, nil
}
