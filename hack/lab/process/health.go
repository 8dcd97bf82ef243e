// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// readyLimit bounds the wait for a program. It takes seconds when nothing is
// wrong.
const readyLimit = 2 * time.Minute

// AwaitHealth returns once url answers 200, or with an error as soon as the
// process ends. caFile holds the authority of the server's certificate.
func (p *Process) AwaitHealth(ctx context.Context, url, caFile string) error {
	ca, err := os.ReadFile(caFile)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}}
	defer client.CloseIdleConnections()

	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	last := "no answer"
	for {
		select {
		case <-p.Exited():
			return p.Ended()
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready at %s (%s): %w; the end of its log %s:\n%s", p.Name, url, last, ctx.Err(), p.Log, Tail(p.Log))
		case <-tick.C:
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			last = err.Error()
			continue
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return nil
		}
		last = resp.Status
	}
}

// Ended is the error that p ended although nobody stopped it.
func (p *Process) Ended() error {
	return fmt.Errorf("%s ended unasked; the end of its log %s:\n%s", p.Name, p.Log, Tail(p.Log))
}

// Tail returns the last lines of a log, for error messages.
func Tail(path string) string {
	const lines = 15
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// AwaitConnection returns once the process takes connections at the address, or with an error as
// soon as it ends.
func (p *Process) AwaitConnection(ctx context.Context, network, address string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-p.Exited():
			return p.Ended()
		case <-ctx.Done():
			return fmt.Errorf("%s does not listen on %s: %w; see its log %s", p.Name, address, err, p.Log)
		case <-tick.C:
		}
	}
}
