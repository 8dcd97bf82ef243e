// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/runlog"
)

func leads(context.Context) error { return nil }

// process is a controller that serves.
type process struct {
	logs    runlog.Logs
	server  *Server
	http    *httptest.Server
	address string
}

func start(t *testing.T) *process {
	t.Helper()
	p := &process{}
	var err error
	if p.server, err = NewServer(&p.logs, time.Now()); err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(p.server.Certificate, p.server.Key)
	if err != nil {
		t.Fatal(err)
	}
	p.http = httptest.NewUnstartedServer(p.server)
	p.http.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	p.http.StartTLS()
	t.Cleanup(p.http.Close)
	p.address = p.http.Listener.Addr().String()
	return p
}

func TestLogOfAnotherProcess(t *testing.T) {
	secrets := kubefake.NewClientset().CoreV1().Secrets("holdfast")
	client := &Client{Secrets: secrets}
	read := func() (string, error) {
		var text bytes.Buffer
		err := client.Copy(t.Context(), "u", false, &text)
		return text.String(), err
	}
	follow := func(then func()) (string, error) {
		text := &arrival{then: then}
		err := client.Copy(t.Context(), "u", true, text)
		return text.String(), err
	}
	expect := func(err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("got the error %v, not %v", err, want)
		}
	}
	_, err := read()
	expect(err, ErrUnreachable)

	first := start(t)
	if err := first.server.publish(t.Context(), secrets, first.address, leads); err != nil {
		t.Fatal(err)
	}
	_, err = read()
	expect(err, ErrNotExecuted)

	log, end := first.logs.Begin("u", clock.RealClock{})
	log.Write(slog.LevelInfo, "line")
	if text, err := read(); err != nil || !strings.Contains(text, "line") {
		t.Errorf("the log so far is %q, %v", text, err)
	}
	if text, err := follow(func() { log.Write(slog.LevelInfo, "last"); log.End() }); err != nil || !strings.Contains(text, "line") || !strings.Contains(text, "last") {
		t.Errorf("the log is %q, %v", text, err)
	}
	end()

	// A log that is not completed is told from one that is, whether its process lives on or not.
	for _, stop := range []func(end func()){
		func(end func()) { end() },
		func(func()) { first.http.CloseClientConnections() },
	} {
		log, end := first.logs.Begin("u", clock.RealClock{})
		log.Write(slog.LevelInfo, "line")
		text, err := follow(func() { stop(end) })
		if expect(err, ErrBroken); !strings.Contains(text, "line") {
			t.Errorf("before it broke off it was %q", text)
		}
		end()
	}

	// The next process takes its place, and the one before does not come back.
	second := start(t)
	if err := second.server.publish(t.Context(), secrets, second.address, leads); err != nil {
		t.Fatal(err)
	}
	lost := errors.New("another one leads")
	expect(first.server.publish(t.Context(), secrets, first.address, func(context.Context) error { return lost }), lost)
	log, end = second.logs.Begin("u", clock.RealClock{})
	defer end()
	log.Write(slog.LevelInfo, "second attempt")
	log.End()
	if text, err := follow(nil); err != nil || !strings.Contains(text, "second attempt") {
		t.Errorf("the next attempt's log is %q, %v", text, err)
	}

	// Neither a token that is not its own nor another process at its address is answered.
	published, err := secrets.Get(t.Context(), SecretName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	published.Data[tokenKey] = []byte("forged")
	if _, err := secrets.Update(t.Context(), published, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = read()
	expect(err, ErrUnreachable)
	published.Data[tokenKey], published.Data[addressKey] = []byte(second.server.token), []byte(first.address)
	if _, err := secrets.Update(t.Context(), published, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err = read(); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a process with another certificate was asked: %v", err)
	}
}

// arrival is what a follower has; then is called when the line has come.
type arrival struct {
	bytes.Buffer
	then func()
}

func (a *arrival) Write(p []byte) (int, error) {
	n, err := a.Buffer.Write(p)
	if a.then != nil && bytes.Contains(a.Bytes(), []byte("line")) {
		go a.then()
		a.then = nil
	}
	return n, err
}
