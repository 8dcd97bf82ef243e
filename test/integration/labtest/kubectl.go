// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// Command is a kubectl that is not started yet. It ends with ctx, well if it can.
func (l *Lab) Command(ctx context.Context, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, filepath.Join(l.bin, "kubectl"), args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+l.Kubeconfig(), "KUBECACHEDIR="+filepath.Join(l.Dir, "kubectl-cache"))
	return command
}

// TryKubectl runs kubectl with manifest, if any, as its input. The error is that
// of the exit code.
func (l *Lab) TryKubectl(t testing.TB, manifest string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	command := l.Command(ctx, args...)
	var out, errOut bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(manifest), &out, &errOut
	err = command.Run()
	return out.String(), errOut.String(), err
}

// Kubectl runs kubectl, which must succeed, and returns what it prints.
func (l *Lab) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	stdout, stderr, err := l.TryKubectl(t, "", args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, stderr)
	}
	return stdout
}

// Refused runs kubectl, which must fail, and returns what it says. Each of want
// must be in there.
func (l *Lab) Refused(t testing.TB, manifest string, args []string, want ...string) string {
	t.Helper()
	stdout, stderr, err := l.TryKubectl(t, manifest, args...)
	if err == nil {
		t.Fatalf("kubectl %s succeeded: %s", strings.Join(args, " "), stdout)
	}
	for _, text := range want {
		if !strings.Contains(stderr, text) {
			t.Errorf("kubectl %s: %s\nwithout %q", strings.Join(args, " "), stderr, text)
		}
	}
	return stderr
}

// Response is the answer to a request.
type Response struct {
	Code   int
	Header http.Header
	Body   []byte
}

// Request makes a request of the administrator to a path of the cluster. The
// media type may be empty.
func (l *Lab) Request(t testing.TB, method, path, accept string) Response {
	t.Helper()
	return l.RequestAs(t, "", method, path, accept)
}

// RequestAs is like Request, of another user.
func (l *Lab) RequestAs(t testing.TB, user, method, path, accept string) Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	response := l.do(ctx, t, method, path, accept, rest.ImpersonationConfig{UserName: user})
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return Response{response.StatusCode, response.Header, body}
}

// Stream collects the bytes of a watch, as a user gets them.
type Stream struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	bytes bytes.Buffer
}

// Watch opens a watch as a user, and as the administrator if user is empty. It
// ends with the test.
func (l *Lab) Watch(t testing.TB, user, path, accept string) *Stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	response := l.do(ctx, t, http.MethodGet, path, accept, rest.ImpersonationConfig{UserName: user})
	s := &Stream{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer response.Body.Close()
		_, _ = io.Copy(s, response.Body) // it ends by being closed
	}()
	t.Cleanup(s.Close)
	if response.StatusCode != http.StatusOK {
		<-s.done
		t.Fatalf("watch %s as %q: %s: %s", path, user, response.Status, s.Text())
	}
	return s
}

// Write implements io.Writer.
func (s *Stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes.Write(p)
}

// Text is all that was sent so far.
func (s *Stream) Text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes.String()
}

// Ended is closed when the server has ended the watch, or the test.
func (s *Stream) Ended() <-chan struct{} { return s.done }

// Close ends the watch.
func (s *Stream) Close() {
	s.cancel()
	<-s.done
}

func (l *Lab) do(ctx context.Context, t testing.TB, method, path, accept string, as rest.ImpersonationConfig) *http.Response {
	t.Helper()
	config := rest.CopyConfig(l.Config)
	config.Impersonate = as
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(ctx, method, l.Config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return response
}
