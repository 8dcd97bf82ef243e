// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package servingcert

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"time"
)

const (
	// The alert HoldfastCertificateExpires fires three weeks before this end, after the renewal should have
	// happened.
	lifetime = 90 * 24 * time.Hour
	renewal  = lifetime / 3 * 2
	backdate = time.Hour        // how far kube-apiserver's clock may be behind
	overlap  = 30 * time.Second // of each step, for all replicas of kube-apiserver
	bound    = 16               // of replicas' certificates in a bundle

	organization = "holdfast.io apiserver, self-made"
)

type pair struct {
	der      []byte
	pem, key []byte
	made     time.Time
}

// newPair makes one replica's certificate for a name.
func newPair(dnsName, replica string, now time.Time) (*pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: replica, Organization: []string{organization}},
		DNSNames:     []string{dnsName},
		NotBefore:    now.Add(-backdate),
		NotAfter:     now.Add(lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		// It vouches only for itself.
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return &pair{
		der:  der,
		pem:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		key:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}),
		made: now,
	}, nil
}

// rotation decides which certificates a replica and the bundle should have, by the time and the seen bundles.
type rotation struct {
	dnsName, replica string

	// next is added before it replaces serving. former is kept for replicas of kube-apiserver that learn late.
	serving, next, former *pair
	// nextSince is when the bundle got next, formerUntil when former is removed.
	nextSince, formerUntil time.Time
}

// step returns the wanted bundle, whether it differs, and when to check again without a change.
func (r *rotation) step(now time.Time, bundle []byte) (want []byte, changed bool, again time.Time, err error) {
	have := blocks(bundle)
	if r.serving == nil {
		if r.serving, err = newPair(r.dnsName, r.replica, now); err != nil {
			return nil, false, now, fmt.Errorf("making a certificate: %w", err)
		}
	}
	if r.former != nil && !now.Before(r.formerUntil) {
		r.former = nil
	}
	if r.next == nil && !now.Before(r.serving.made.Add(renewal)) || r.next != nil && !now.Before(r.next.made.Add(renewal)) {
		if r.next, err = newPair(r.dnsName, r.replica, now); err != nil {
			return nil, false, now, fmt.Errorf("making a new certificate: %w", err)
		}
	}
	if r.next != nil {
		switch {
		case !holds(have, r.next):
			r.nextSince = time.Time{}
		case r.nextSince.IsZero():
			r.nextSince = now
		}
		// The successor of an expired one need not wait.
		expired := !now.Before(r.serving.made.Add(lifetime))
		if !r.nextSince.IsZero() && (expired || !now.Before(r.nextSince.Add(overlap))) {
			r.former, r.serving, r.next = r.serving, r.next, nil
			r.nextSince, r.formerUntil = time.Time{}, now.Add(overlap)
		}
	}

	wanted := r.keep(now, have)
	again = r.serving.made.Add(renewal)
	if r.next != nil { // the bundle has it, or will
		again = now.Add(overlap)
		if !r.nextSince.IsZero() {
			again = r.nextSince.Add(overlap)
		}
	}
	if r.former != nil && r.formerUntil.Before(again) {
		again = r.formerUntil
	}
	return bytes.Join(encode(wanted), nil), !slices.EqualFunc(have, wanted, bytes.Equal), again, nil
}

// keep returns a bundle's certificates that stay, then this replica's own. It drops replicas' certificates that
// are expired, from former processes of this replica, or the oldest beyond the bound. Their replicas add them
// again. Other certificates always stay.
func (r *rotation) keep(now time.Time, have [][]byte) [][]byte {
	own := []*pair{r.former, r.serving, r.next}
	var wanted [][]byte
	selfMade := 0
	for _, der := range have {
		certificate, err := x509.ParseCertificate(der)
		if err == nil && slices.Equal(certificate.Subject.Organization, []string{organization}) {
			if !isOne(der, own) && (now.After(certificate.NotAfter) || certificate.Subject.CommonName == r.replica) {
				continue
			}
			selfMade++
		}
		wanted = append(wanted, der)
	}
	for _, p := range own {
		if p != nil && !holds(wanted, p) {
			wanted = append(wanted, p.der)
			selfMade++
		}
	}
	return slices.DeleteFunc(wanted, func(der []byte) bool {
		if selfMade <= bound || isOne(der, own) {
			return false
		}
		certificate, err := x509.ParseCertificate(der)
		if err != nil || !slices.Equal(certificate.Subject.Organization, []string{organization}) {
			return false
		}
		selfMade--
		return true
	})
}

func (r *rotation) inBundle(bundle []byte) bool {
	return r.serving != nil && holds(blocks(bundle), r.serving)
}

func holds(bundle [][]byte, p *pair) bool {
	return slices.ContainsFunc(bundle, func(der []byte) bool { return bytes.Equal(der, p.der) })
}

func isOne(der []byte, of []*pair) bool {
	return slices.ContainsFunc(of, func(p *pair) bool { return p != nil && bytes.Equal(p.der, der) })
}

func blocks(bundle []byte) [][]byte {
	var found [][]byte
	for {
		block, rest := pem.Decode(bundle)
		if block == nil {
			return found
		}
		if block.Type == "CERTIFICATE" {
			found = append(found, block.Bytes)
		}
		bundle = rest
	}
}

func encode(certificates [][]byte) [][]byte {
	var encoded [][]byte
	for _, der := range certificates {
		encoded = append(encoded, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	return encoded
}
