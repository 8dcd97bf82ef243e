// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/holdfast-io/holdfast/hack/lab/process"
)

func (p plan) authorities() string { return p.Dir.PKI("ca.crt") }

// awaitHealth returns once url answers 200, or with an error as soon as the
// process ends. caFile holds the authority of the server's certificate.
func awaitHealth(ctx context.Context, p *process.Process, url, caFile string) error {
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
			return fmt.Errorf("%s ended before it was ready; the end of its log %s:\n%s", p.Name, p.Log, Tail(p.Log, 15))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready at %s (%s): %w; the end of its log %s:\n%s", p.Name, url, last, ctx.Err(), p.Log, Tail(p.Log, 15))
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
