// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// maxOutput is how much of the output of a command is kept.
const maxOutput = 4 << 10

// Client runs commands in pods, with the rights of its configuration.
type Client struct {
	Kube   kubernetes.Interface
	Config *rest.Config
}

// Exec runs a command in a container of a pod, and returns as much of its output as is kept.
// When ctx ends it returns, whatever the command does.
func (c *Client) Exec(ctx context.Context, pod engine.PodReference, container string, command []string) (string, error) {
	request := c.Kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	if err := request.Error(); err != nil {
		return "", err
	}
	// Proxies may know one of the two only.
	socket, err := remotecommand.NewWebSocketExecutor(c.Config, "GET", request.URL().String())
	if err != nil {
		return "", err
	}
	spdy, err := remotecommand.NewSPDYExecutor(c.Config, "POST", request.URL())
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
	return output.text(), err
}

// bounded keeps the beginning of what is written. It is safe for concurrent use, since
// what runs when its time is over may still write.
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
