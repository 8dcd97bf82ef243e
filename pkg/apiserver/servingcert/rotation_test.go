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
	"fmt"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const dnsName = "holdfast-apiserver.holdfast.svc"

var start = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// process is one replica, and the bundle that all of them share.
type process struct {
	rotation
	t      testing.TB
	bundle *[]byte
}

func newProcess(t testing.TB, replica string, bundle *[]byte) *process {
	return &process{rotation: rotation{dnsName: dnsName, replica: replica}, t: t, bundle: bundle}
}

// look does a step and writes what comes of it.
func (p *process) look(now time.Time) (again time.Time) {
	p.t.Helper()
	want, changed, again, err := p.step(now, *p.bundle)
	if err != nil {
		p.t.Fatal(err)
	}
	if changed {
		*p.bundle = want
	}
	if _, changed, _, _ := p.step(now, *p.bundle); changed {
		p.t.Error("a second step at the same time changes the bundle again")
	}
	if !again.After(now) {
		p.t.Errorf("it looks again at %s, which is not after %s", again, now)
	}
	return again
}

// verify fails the test unless a client that trusts the bundle trusts the server.
func (p *process) verify(now time.Time, when string) {
	p.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(*p.bundle)
	certificate, err := x509.ParseCertificate(p.serving.der)
	if err == nil {
		_, err = certificate.Verify(x509.VerifyOptions{DNSName: dnsName, Roots: roots, CurrentTime: now})
	}
	if err != nil {
		p.t.Errorf("%s: %v", when, err)
	}
}

// TestRotation follows a certificate through its renewal: what is served is in the bundle half
// a minute before and after it is served, and nothing stays that nobody serves.
func TestRotation(t *testing.T) {
	var bundle []byte
	p := newProcess(t, "one:8443", &bundle)
	again := p.look(start)
	p.verify(start, "at the start")
	first := p.serving
	if want := start.Add(60 * 24 * time.Hour); !again.Equal(want) {
		t.Fatalf("it looks again at %s, want %s", again, want)
	}
	p.look(again.Add(-time.Second))
	if len(blocks(bundle)) != 1 {
		t.Error("it was renewed early")
	}

	p.look(again)
	now := again
	if p.serving != first || len(blocks(bundle)) != 2 {
		t.Error("the new certificate is not beside the old one before it is served")
	}
	p.look(now.Add(overlap - time.Second))
	if p.serving != first {
		t.Error("the new certificate is served before all have heard of it")
	}
	now = now.Add(overlap)
	again = p.look(now)
	if p.serving == first || len(blocks(bundle)) != 2 {
		t.Error("after the wait, the new certificate is not served, or the old one is gone at once")
	}
	p.verify(now, "after the switch")
	if !again.Equal(now.Add(overlap)) {
		t.Errorf("it looks again at %s, want %s", again, now.Add(overlap))
	}
	p.look(again)
	if len(blocks(bundle)) != 1 {
		t.Error("the old certificate stays")
	}
	p.verify(again, "at the end")
}

// TestWipedBundle takes the bundle away in the middle of a renewal: the wait begins anew.
func TestWipedBundle(t *testing.T) {
	var bundle []byte
	p := newProcess(t, "one:8443", &bundle)
	now := p.look(start)
	first := p.serving
	p.look(now)
	bundle = nil
	now = now.Add(overlap)
	p.look(now)
	if p.serving != first || len(blocks(bundle)) != 2 {
		t.Error("what was wiped was not put back, or is served at once")
	}
	p.verify(now, "after the repair")
	p.look(now.Add(overlap))
	p.look(now.Add(overlap))
	if p.serving == first {
		t.Error("the renewal does not go on")
	}
}

// TestExpired finds a process that slept past the end of its certificate.
func TestExpired(t *testing.T) {
	var bundle []byte
	p := newProcess(t, "one:8443", &bundle)
	p.look(start)
	late := start.Add(lifetime + time.Hour)
	p.look(late)
	p.look(late)
	p.verify(late, "after a long sleep")
}

// TestKilledAtEachStep starts a process again after each step of a renewal: what the former one
// left is gone, and the other replica's stays.
func TestKilledAtEachStep(t *testing.T) {
	for killed, after := range []time.Duration{0, renewal, renewal + overlap, renewal + 2*overlap} {
		var bundle []byte
		other := newProcess(t, "two:8443", &bundle)
		p := newProcess(t, "one:8443", &bundle)
		now := start
		other.look(start.Add(time.Hour)) // it is renewed an hour later
		for _, at := range []time.Duration{0, renewal, renewal + overlap, renewal + 2*overlap} {
			if at <= after {
				now = start.Add(at)
				p.look(now)
			}
		}
		again := newProcess(t, "one:8443", &bundle)
		again.look(now)
		when := fmt.Sprintf("killed after step %d", killed)
		again.verify(now, when)
		other.verify(now, when+", the other replica")
		if n := len(blocks(bundle)); n != 2 {
			t.Errorf("%s: the bundle has %d certificates, want 2", when, n)
		}
	}
}

// TestBundleIsBounded replaces one pod many times while the other one stays: the bundle does not
// grow, the other one adds its certificate again when it was dropped, and what others have put
// into the bundle stays.
func TestBundleIsBounded(t *testing.T) {
	theirs := ofAnother(t)
	bundle := bytes.Clone(theirs)
	stays := newProcess(t, "stays:8443", &bundle)
	stays.look(start)
	repaired := 0
	for i := range 100 {
		now := start.Add(time.Duration(i) * time.Minute)
		newProcess(t, fmt.Sprintf("pod-%d:8443", i), &bundle).look(now)
		before := bytes.Clone(bundle)
		stays.look(now)
		if !bytes.Equal(before, bundle) {
			repaired++
		}
		stays.verify(now, "the replica that stays")
		if n := len(blocks(bundle)); n > bound+1 {
			t.Fatalf("the bundle has %d certificates after %d pods", n, i)
		}
		if !bytes.HasPrefix(bundle, theirs) {
			t.Fatal("what others have written is gone")
		}
	}
	if repaired > 100/(bound-2) {
		t.Errorf("the replica that stays was dropped %d times", repaired)
	}
	// When they have expired they go.
	late := start.Add(lifetime + 24*time.Hour)
	stays.look(late)
	stays.look(late)
	if n := len(blocks(bundle)); n > 3 {
		t.Errorf("%d certificates stay after all have expired", n)
	}
}

// TestRandomReplicas has some replicas take steps, end and be wiped in any order: at the end of
// each step that a replica takes, it is trusted.
func TestRandomReplicas(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var bundle []byte
		now := start
		replicas := map[int]*process{}
		steps := rapid.IntRange(1, 40).Draw(r, "steps")
		for range steps {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(renewal)).Draw(r, "pause")))
			if rapid.Bool().Draw(r, "soon") {
				now = now.Add(time.Minute)
			}
			i := rapid.IntRange(0, 2).Draw(r, "replica")
			switch rapid.SampledFrom([]string{"look", "look", "look", "restart", "wipe"}).Draw(r, "what") {
			case "restart":
				delete(replicas, i)
			case "wipe":
				bundle = nil
			}
			if replicas[i] == nil {
				replicas[i] = newProcess(t, fmt.Sprint("pod-", i), &bundle)
			}
			// A step that only adds the next one is followed by another.
			replicas[i].look(now)
			replicas[i].look(now)
			replicas[i].verify(now, "after a step")
			if n := len(blocks(bundle)); n > 9 {
				r.Fatalf("three replicas have %d certificates", n)
			}
		}
	})
}

// ofAnother is a certificate that no replica has made, in PEM.
func ofAnother(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "holdfast-ca"}, NotAfter: start}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return encode([][]byte{der})[0]
}
