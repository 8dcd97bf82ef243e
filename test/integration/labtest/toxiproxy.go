// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Toxiproxy is a network between the clients of a server and the server, which does what
// it is told to the bytes on their way.
type Toxiproxy struct {
	// Address is where the clients find the server.
	Address string

	api string
}

// Toxic is something bad that a network does, in Toxiproxy's words.
type Toxic struct {
	Type string `json:"type"`
	// Stream is upstream or downstream: from the clients to the server, or back.
	Stream     string         `json:"stream"`
	Attributes map[string]int `json:"attributes"`
}

// Toxiproxy starts one in front of a server, until the test ends.
func (l *Lab) Toxiproxy(t testing.TB, upstream string) *Toxiproxy {
	t.Helper()
	// A module of its own: the product needs nothing of it. Tests of several processes
	// may build it at once, so each has its own copy.
	program := filepath.Join(t.TempDir(), "toxiproxy-server")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", filepath.Join(l.options.Root, "hack", "toxiproxy"), "-o", program, "github.com/Shopify/toxiproxy/v2/cmd/server")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building toxiproxy: %v\n%s", err, output)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(l.Dir, "logs", "toxiproxy.log"))
	if err != nil {
		t.Fatal(err)
	}
	server := exec.CommandContext(t.Context(), program, "-host", "127.0.0.1", "-port", fmt.Sprint(port))
	server.Stdout, server.Stderr = log, log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Wait() // it was killed, by the end of the test's context
		_ = log.Close()
	})
	p := &Toxiproxy{api: fmt.Sprintf("http://127.0.0.1:%d", port)}
	Eventually(t, "toxiproxy to listen", func() error {
		_, err := p.ask(t.Context(), http.MethodGet, "/version", nil)
		return err
	})
	answer, err := p.ask(t.Context(), http.MethodPost, "/proxies", map[string]any{"name": "server", "listen": "127.0.0.1:0", "upstream": upstream, "enabled": true})
	if err != nil {
		t.Fatal(err)
	}
	var made struct{ Listen string }
	if err := json.Unmarshal(answer, &made); err != nil {
		t.Fatal(err)
	}
	p.Address = made.Listen
	return p
}

// Add lets toxics begin, on connections that there are and those to come, until the
// returned function is called.
func (p *Toxiproxy) Add(t testing.TB, toxics ...Toxic) (remove func()) {
	t.Helper()
	var names []string
	for _, toxic := range toxics {
		name := Name(toxic.Type)
		names = append(names, name)
		p.must(t, http.MethodPost, "/proxies/server/toxics", map[string]any{
			"name": name, "type": toxic.Type, "stream": toxic.Stream, "toxicity": 1, "attributes": toxic.Attributes,
		})
	}
	return func() {
		t.Helper()
		for _, name := range names {
			p.must(t, http.MethodDelete, "/proxies/server/toxics/"+name, nil)
		}
	}
}

// Down cuts all connections and takes no others, until the returned function is called.
func (p *Toxiproxy) Down(t testing.TB) (up func()) {
	t.Helper()
	p.must(t, http.MethodPatch, "/proxies/server", map[string]any{"enabled": false})
	return func() {
		t.Helper()
		p.must(t, http.MethodPatch, "/proxies/server", map[string]any{"enabled": true})
	}
}

func (p *Toxiproxy) must(t testing.TB, method, path string, body any) {
	t.Helper()
	if _, err := p.ask(t.Context(), method, path, body); err != nil {
		t.Fatal(err)
	}
}

func (p *Toxiproxy) ask(ctx context.Context, method, path string, body any) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var content io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(raw)
	}
	request, err := http.NewRequestWithContext(ctx, method, p.api+path, content)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, strings.TrimSpace(string(answer)))
	}
	return answer, err
}
