// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package remote lets the API server read the logs of the runs that the controller executes,
// from where they are written: the memory of the controller that leads.
//
// That controller publishes in a Secret where it is, a certificate, and a token. All are its
// own and made anew by each process, so that who reads talks to that process or to none, and
// no credential that is good for anything else travels. What it answers is only what the API
// server shows to those who may get the log: nobody else can read the Secret.
//
// A controller that is killed, cut off, or stopped for an hour is silent, and after Silence
// its log is broken off. The next one publishes itself, and has the log of the next attempt.
package remote

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/runlog"
)

const (
	// SecretName is the name of the Secret in the system namespace.
	SecretName = "holdfast-running-logs"
	// Prefix is that of the paths at which logs are served: Prefix + UID.
	Prefix = "/running-logs/"
	// ServerName is who the certificate is of. It has no address.
	ServerName = "running-logs.holdfast.internal"
	// Silence is how long a controller may say nothing: some heartbeats.
	Silence = 3 * runlog.Heartbeat

	addressKey, certificateKey, tokenKey = "address", corev1.TLSCertKey, "token"

	publishInterval = time.Minute
	firstRetry      = time.Second
	dialTimeout     = 5 * time.Second
)

var (
	// ErrNotExecuted says that the controller that leads does not execute the run just now.
	ErrNotExecuted = errors.New("the controller does not execute it just now")
	// ErrUnreachable says that no controller answered.
	ErrUnreachable = errors.New("the controller can't be reached")
	// ErrBroken says that a log was not completed: the run was stopped, or its controller.
	ErrBroken = errors.New("the log breaks off")
)

// Server serves the logs of this process. It is an http.Handler for what is below Prefix.
type Server struct {
	logs             *runlog.Logs
	token            string
	Certificate, Key []byte // PEM
}

// NewServer returns a Server with a certificate and a token of its own.
func NewServer(logs *runlog.Logs, now time.Time) (*Server, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	// It is trusted for as long as it is published, by clocks that differ.
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: ServerName}, DNSNames: []string{ServerName},
		NotBefore: now.AddDate(-1, 0, 0), NotAfter: now.AddDate(100, 0, 0), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &Server{
		logs: logs, token: rand.Text(),
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}, nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	token, _ := strings.CutPrefix(request.Header.Get("Authorization"), "Bearer ")
	if subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) != 1 {
		http.Error(w, "only the API server that reads the Secret "+SecretName+" may ask", http.StatusUnauthorized)
		return
	}
	log := s.logs.Get(types.UID(strings.TrimPrefix(request.URL.Path, Prefix)))
	if request.Method != http.MethodGet || log == nil {
		http.Error(w, "no such run is executed here", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/gzip")
	w.WriteHeader(http.StatusOK)
	to := prompt{w, http.NewResponseController(w)}
	if err := log.Copy(request.Context(), to, request.URL.Query().Get("follow") == "true"); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// prompt sends what is written at once, for as long as somebody takes it.
type prompt struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (p prompt) Write(content []byte) (int, error) {
	_ = p.control.SetWriteDeadline(time.Now().Add(time.Minute))
	n, err := p.ResponseWriter.Write(content)
	if err == nil {
		err = p.control.Flush()
	}
	_ = p.control.SetWriteDeadline(time.Time{})
	return n, err
}

// Publisher writes Secrets of the system namespace.
type Publisher interface {
	Secrets
	Create(ctx context.Context, secret *corev1.Secret, options metav1.CreateOptions) (*corev1.Secret, error)
	Update(ctx context.Context, secret *corev1.Secret, options metav1.UpdateOptions) (*corev1.Secret, error)
}

// Publish says where this process serves, and keeps it said, until ctx ends: when it leads no
// more. Nothing waits for it.
func (s *Server) Publish(ctx context.Context, secrets Publisher, address string, leads func(context.Context) error) {
	for {
		err := s.publish(ctx, secrets, address, leads)
		next := publishInterval
		if err != nil {
			klog.FromContext(ctx).Info("The logs of what runs can't be shown yet; it will be tried again", "secret", SecretName, "err", err)
			next = firstRetry
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait.Jitter(next, 0.1)):
		}
	}
}

// publish asks who leads after it has read what is published: so one that led, and wakes up
// late, does not take the place of the one after it.
func (s *Server) publish(ctx context.Context, secrets Publisher, address string, leads func(context.Context) error) error {
	data := map[string][]byte{addressKey: []byte(address), certificateKey: s.Certificate, tokenKey: []byte(s.token)}
	stored, err := secrets.Get(ctx, SecretName, metav1.GetOptions{})
	if err == nil && maps.EqualFunc(data, stored.Data, bytes.Equal) {
		return nil
	}
	if err := leads(ctx); err != nil {
		return err
	}
	switch {
	case apierrors.IsNotFound(err):
		_, err = secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: SecretName, Labels: map[string]string{format.LabelExclude: "true"}}, Data: data,
		}, metav1.CreateOptions{})
	case err == nil:
		stored = stored.DeepCopy()
		stored.Data = data
		_, err = secrets.Update(ctx, stored, metav1.UpdateOptions{})
	}
	return err
}

// Secrets reads Secrets of the system namespace.
type Secrets interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Secret, error)
}

// Client reads the logs of the controller that leads.
type Client struct{ Secrets Secrets }

// Copy writes the log so far of a run, and with follow what comes, until its end. Without
// one of the errors above, all of it was written.
func (c *Client) Copy(ctx context.Context, uid types.UID, follow bool, to io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(Silence, cancel)
	defer silent.Stop()
	response, err := c.ask(ctx, uid, follow)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	silent.Stop()
	from := &heard{from: response.Body, silent: silent}
	plain, err := gzip.NewReader(from)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	buffer := make([]byte, 64<<10)
	for {
		n, err := plain.Read(buffer)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil && !follow && from.whole:
			return nil // of a log that goes on
		case err != nil:
			return fmt.Errorf("%w: %w", ErrBroken, err)
		}
	}
}

func (c *Client) ask(ctx context.Context, uid types.UID, follow bool) (*http.Response, error) {
	secret, err := c.Secrets.Get(ctx, SecretName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w: none says where it is: it needs the flag --advertise-address", ErrUnreachable)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(secret.Data[certificateKey])
	transport := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: dialTimeout,
		DisableKeepAlives:     true, // the next request may be for another controller
		DisableCompression:    true,
		TLSClientConfig:       &tls.Config{RootCAs: trusted, ServerName: ServerName, MinVersion: tls.VersionTLS13},
	}
	url := fmt.Sprintf("https://%s%s%s?follow=%t", secret.Data[addressKey], Prefix, uid, follow)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	request.Header.Set("Authorization", "Bearer "+string(secret.Data[tokenKey]))
	response, err := transport.RoundTrip(request)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	case response.StatusCode == http.StatusOK:
		return response, nil
	}
	_ = response.Body.Close()
	if response.StatusCode == http.StatusNotFound {
		return nil, ErrNotExecuted
	}
	return nil, fmt.Errorf("%w: it answers %s", ErrUnreachable, response.Status)
}

// heard bounds the time that it waits for anything, and knows whether all of an answer was
// read.
type heard struct {
	from   io.Reader
	silent *time.Timer
	whole  bool
}

func (h *heard) Read(p []byte) (int, error) {
	h.silent.Reset(Silence)
	n, err := h.from.Read(p)
	h.silent.Stop()
	h.whole = err == io.EOF
	return n, err
}
