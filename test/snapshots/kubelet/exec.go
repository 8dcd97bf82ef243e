// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// Exec carries out the commands in the pods of a node until the test ends: it calls ran for each, which
// succeeds at once. The certificate is for loopback, of the authority that the API server trusts.
func Exec(t testing.TB, kube kubernetes.Interface, node string, certificate tls.Certificate, ran func(namespace, pod string, command []string)) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		// The path is /exec/NAMESPACE/POD/CONTAINER.
		path := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
		if len(path) != 4 || path[0] != "exec" {
			http.NotFound(w, request)
			return
		}
		ran(path[1], path[2], request.URL.Query()["command"])
		if err := succeed(w, request); err != nil {
			t.Log("the kubelet: ", err)
		}
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.StartTLS()
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	of, err := kube.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	of.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	of.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(number)
	if _, err := kube.CoreV1().Nodes().UpdateStatus(t.Context(), of, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// succeed answers a command without output, by the protocol v4.channel.k8s.io: the stream for errors has
// the result.
func succeed(w http.ResponseWriter, request *http.Request) error {
	if _, err := httpstream.Handshake(request, w, []string{"v4.channel.k8s.io"}); err != nil {
		return err
	}
	wanted := 1
	for _, of := range []string{"input", "output", "error"} {
		if request.URL.Query().Get(of) == "1" {
			wanted++
		}
	}
	streams := make(chan httpstream.Stream, wanted)
	connection := spdy.NewResponseUpgrader().UpgradeResponse(w, request, func(stream httpstream.Stream, replied <-chan struct{}) error {
		go func() { <-replied; streams <- stream }()
		return nil
	})
	if connection == nil {
		return errors.New("the connection can't be upgraded")
	}
	defer connection.Close()
	var result httpstream.Stream
	for range wanted {
		select {
		case stream := <-streams:
			if stream.Headers().Get(corev1.StreamType) == corev1.StreamTypeError {
				result = stream
			} else if err := stream.Close(); err != nil {
				return err
			}
		case <-connection.CloseChan():
			return errors.New("the connection was closed before all streams were there")
		}
	}
	if result == nil {
		return errors.New("there is no stream for errors")
	}
	if _, err := io.WriteString(result, `{"metadata":{},"status":"Success"}`); err != nil {
		return err
	}
	_ = result.Close() // the caller may have closed the connection by now
	<-connection.CloseChan()
	return nil
}
