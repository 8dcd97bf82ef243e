// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

const maxOutput = 4 << 10

// Client runs commands in pods, with its configuration's rights.
type Client struct {
	Kube   kubernetes.Interface
	Config *rest.Config
}

// NotRunError reports that a command has not run, and may be repeated: there was no connection, or the
// server was busy.
type NotRunError struct{ Reason error }

func (e NotRunError) Error() string { return e.Reason.Error() }

func (e NotRunError) Unwrap() error { return e.Reason }

// answered records whether the server was busy: errors of streams may lack the status.
type answered struct {
	next http.RoundTripper
	busy bool
}

func (a *answered) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := a.next.RoundTrip(request)
	a.busy = err == nil && (response.StatusCode == http.StatusTooManyRequests || response.StatusCode == http.StatusServiceUnavailable)
	return response, err
}

// Exec runs a command in a container, and returns its bounded output. It returns when ctx ends, even if
// the command runs on. Its error may be a NotRunError.
func (c *Client) Exec(ctx context.Context, pod enginev1alpha1.PodReference, container string, command []string) (string, error) {
	request := c.Kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	if err := request.Error(); err != nil {
		return "", err
	}
	// Proxies may know only one of the two.
	socket, err := remotecommand.NewWebSocketExecutor(c.Config, "GET", request.URL().String())
	if err != nil {
		return "", err
	}
	last := &answered{}
	config := rest.CopyConfig(c.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { last.next = next; return last })
	spdy, err := remotecommand.NewSPDYExecutor(config, "POST", request.URL())
	if err != nil {
		return "", err
	}
	executor, err := remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return "", err
	}
	var output bounded
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &output, Stderr: &output})
	if failed, of := errors.AsType[*net.OpError](err); last.busy || of && failed.Op == "dial" {
		err = NotRunError{err}
	}
	return output.text(), err
}

// bounded keeps an output's beginning. It is safe for concurrent use: a late command may still write.
type bounded struct {
	mu      sync.Mutex
	kept    []byte
	dropped int
}

func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(p), maxOutput-len(b.kept))
	b.kept = append(b.kept, p[:n]...)
	b.dropped += len(p) - n
	return len(p), nil
}

func (b *bounded) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dropped > 0 {
		return fmt.Sprintf("%s... and %d bytes more", b.kept, b.dropped)
	}
	return string(b.kept)
}
