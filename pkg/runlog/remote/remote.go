// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package remote lets the API server read logs of running backups and restores from the leading
// controller's memory, and have it plan others.
//
// The controller publishes its address, a certificate and a token, new for each process, in a Secret
// that only the API server reads. So no other credential travels. After Silence without data the log
// breaks off; the next controller has the next attempt's log.
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
	SecretName = "holdfast-running-logs"
	Prefix     = "/running-logs/"
	// ServerName is the certificate's name, without an address.
	ServerName = "running-logs.holdfast.internal"
	// Silence is how long a controller may be silent: some heartbeats.
	Silence = 3 * runlog.Heartbeat

	addressKey, certificateKey, tokenKey = "address", corev1.TLSCertKey, "token"

	publishInterval = time.Minute
	firstRetry      = time.Second
	dialTimeout     = 5 * time.Second
)

var (
	ErrNotExecuted = errors.New("the controller does not execute it just now")
	ErrUnreachable = errors.New("the controller can't be reached")
	// ErrBroken reports an incomplete log: the run or its controller was stopped.
	ErrBroken = errors.New("the log breaks off")
)

// Server serves this process's logs. It is an http.Handler for paths below Prefix.
type Server struct {
	logs             *runlog.Logs
	token            string
	Certificate, Key []byte
}

// NewServer returns a Server with its own certificate and token.
func NewServer(logs *runlog.Logs, now time.Time) (*Server, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	// Valid while published, with any difference of clocks.
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
	if !s.MayAsk(request) {
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

// MayAsk reports whether a request has this process's token.
func (s *Server) MayAsk(request *http.Request) bool {
	token, _ := strings.CutPrefix(request.Header.Get("Authorization"), "Bearer ")
	return subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) == 1
}

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

// Publish writes this process's address into the Secret, repeatedly until ctx ends or it no longer
// leads.
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

// publish checks the leadership after it read the Secret: a former leader does not overwrite its successor.
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

// Client reads the leading controller's logs.
type Client struct{ Secrets Secrets }

// Copy writes a run's log, and with follow later lines until its end. Without one of the errors above
// it is complete.
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
			return nil // the log continues
		case err != nil:
			return fmt.Errorf("%w: %w", ErrBroken, err)
		}
	}
}

func (c *Client) ask(ctx context.Context, uid types.UID, follow bool) (*http.Response, error) {
	response, err := c.Do(ctx, http.MethodGet, fmt.Sprintf("%s%s?follow=%t", Prefix, uid, follow), nil, dialTimeout)
	switch {
	case err != nil:
		return nil, err
	case response.StatusCode == http.StatusOK:
		return response, nil
	}
	_ = response.Body.Close()
	if response.StatusCode == http.StatusNotFound {
		return nil, ErrNotExecuted
	}
	return nil, fmt.Errorf("%w: it answers %s", ErrUnreachable, response.Status)
}

// Do sends a request to the leading controller, which begins to answer within some time, or fails with
// ErrUnreachable. The caller closes the response's body.
func (c *Client) Do(ctx context.Context, method, path string, body io.Reader, within time.Duration) (*http.Response, error) {
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
		ResponseHeaderTimeout: within,
		DisableKeepAlives:     true, // the next request may be for another controller
		DisableCompression:    true,
		TLSClientConfig:       &tls.Config{RootCAs: trusted, ServerName: ServerName, MinVersion: tls.VersionTLS13},
	}
	request, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("https://%s%s", secret.Data[addressKey], path), body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	request.Header.Set("Authorization", "Bearer "+string(secret.Data[tokenKey]))
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return response, nil
}

// heard ends after Silence, and knows whether the whole answer was read.
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
