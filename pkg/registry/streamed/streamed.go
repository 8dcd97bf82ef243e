// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package streamed serves stored files, and the logs of executed runs, as subresources with the verb get. It
// streams: the memory does not depend on the size.
//
// An answer that ends well is complete. An error before the first byte is a Status, as a 503 for an unreachable
// store. Later errors break off the client's connection.
//
// The files of volume backups come from the controller, which has the repositories' keys: see Answer.Relay. A
// run's log comes from the controller that writes it: see sendRunning.
//
// Answers are long-running requests (LongRunning) without a seat in priority and fairness. So they have bounds of
// their own: by location, by user, on the store's first answer, and on a client's time for a piece.
package streamed

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	// perLocation bounds the concurrent answers from one location or run's log: a hanging folder, or a user that
	// follows a run for hours, takes no seats of others.
	perLocation = 64
	// perUser bounds the concurrent answers to a user. A namespace's ServiceAccounts are one user: its editors can
	// create any number.
	perUser      = 16
	perNamespace = 16               // except the system namespace
	beginTimeout = 30 * time.Second // of a store until it begins to answer
	takeTimeout  = time.Minute      // of a client for a piece
	retrySeconds = 1                // of an answer without a seat
	pieceBytes   = 64 << 10
	checkedBytes = 256 << 10 // read before the first byte is sent
)

// ErrTooLarge says that a decompressed file exceeds its limit.
var ErrTooLarge = errors.New("it is too large")

// ErrReplaced says that a file is not the one that was stored.
var ErrReplaced = errors.New("somebody has replaced it, or a process that had not noticed yet that another one had taken its work over")

// Stores gives access to the stores.
type Stores interface {
	// Use returns the open store of a location. The caller calls done.
	Use(ctx context.Context, location string) (from store.Ranger, done func(), err error)
	// MayKnow reports whether the requester may learn a store's errors.
	MayKnow(ctx context.Context) bool
}

// Answer describes the answer to a request.
type Answer struct {
	// The file in messages: the log of the backup "b".
	What        string
	Location    string
	ContentType string
	Missing     string // the message if the store has no such object; optional
	// Write reads from the store and writes the answer. Before the first byte, its errors go to the client, API
	// errors unchanged.
	Write func(ctx context.Context, from store.Ranger, to io.Writer) error
	// Relay replaces Write by an answer from another process that reads the location. It may set headers first.
	// Its errors are as of Write.
	Relay   func(ctx context.Context, to http.ResponseWriter) error
	Running *Running // whose log is sent, in place of Location, Missing and Write
}

// Streams sends and bounds answers. The zero value with Stores is ready.
type Streams struct {
	Stores          Stores
	SystemNamespace string

	mu    sync.Mutex
	taken map[string]int // the seats, by location or run, by user and by namespace; guarded by mu
}

// REST serves a subresource.
type REST struct {
	*Streams
	Object     runtime.Object
	Parameters []string // allowed once each
	// Find returns the answer for the named object in the namespace of ctx, without the store.
	Find func(ctx context.Context, name string, parameters url.Values) (*Answer, error)
}

var (
	_ rest.Storage         = &REST{}
	_ rest.Connecter       = &REST{}
	_ rest.StorageMetadata = &REST{}
)

// New implements rest.Storage.
func (r *REST) New() runtime.Object { return r.Object.DeepCopyObject() }

// Destroy implements rest.Storage.
func (r *REST) Destroy() {}

// ConnectMethods implements rest.Connecter. They give discovery the verb get.
func (r *REST) ConnectMethods() []string { return []string{http.MethodGet} }

// NewConnectOptions implements rest.Connecter. Connect reads the parameters.
func (r *REST) NewConnectOptions() (runtime.Object, bool, string) { return nil, false, "" }

// ProducesMIMETypes implements rest.StorageMetadata.
func (r *REST) ProducesMIMETypes(string) []string { return nil }

// ProducesObject implements rest.StorageMetadata.
func (r *REST) ProducesObject(string) any { return "" }

// Connect implements rest.Connecter.
func (r *REST) Connect(ctx context.Context, name string, _ runtime.Object, responder rest.Responder) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		parameters, err := r.parameters(request)
		if err != nil {
			responder.Error(err)
			return
		}
		for tries := 1; ; tries++ {
			answer, err := r.Find(ctx, name, parameters)
			if err != nil {
				responder.Error(err)
				return
			}
			if answer.Running == nil {
				r.send(ctx, w, answer, responder)
				return
			}
			err = r.sendRunning(ctx, w, answer)
			switch {
			case err == nil || ctx.Err() != nil:
				return
			case !answer.Running.Follow || tries == followTries || !isPassing(err):
				responder.Error(err)
				return
			}
			// It has just ended, or another controller takes it over.
			select {
			case <-ctx.Done():
				return
			case <-time.After(followInterval):
			}
		}
	}), nil
}

// parameters refuses unknown parameters: a filter with a typing error would show everything.
func (r *REST) parameters(request *http.Request) (url.Values, error) {
	parameters, err := url.ParseQuery(request.URL.RawQuery)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the query can't be read: %v", err))
	}
	for name, values := range parameters {
		switch {
		case name == "timeout": // kubectl's --request-timeout, which the client keeps
		case !slices.Contains(r.Parameters, name):
			return nil, apierrors.NewBadRequest(fmt.Sprintf("there is no parameter %q: there are %s", name, strings.Join(r.Parameters, ", ")))
		case len(values) > 1:
			return nil, apierrors.NewBadRequest(fmt.Sprintf("the parameter %q is there %d times", name, len(values)))
		}
	}
	return parameters, nil
}

func (s *Streams) send(ctx context.Context, w http.ResponseWriter, answer *Answer, responder rest.Responder) {
	leave, err := s.seat(ctx, answer)
	if err != nil {
		responder.Error(err)
		return
	}
	defer leave()
	to := newBody(w, answer)
	defer to.close()
	if answer.Relay != nil {
		err = answer.Relay(ctx, to)
	} else {
		from, done, useErr := s.Stores.Use(ctx, answer.Location)
		if useErr != nil {
			responder.Error(s.explain(ctx, answer, fmt.Errorf("%w: %w", store.ErrUnavailable, useErr)))
			return
		}
		defer done()
		err = answer.Write(ctx, prompt{from}, to)
	}
	switch {
	case err == nil:
		to.begin()
	case to.begun:
		// A partial answer must not look whole.
		panic(http.ErrAbortHandler)
	case ctx.Err() == nil:
		responder.Error(s.explain(ctx, answer, err))
	}
}

// Explain returns an error about a location for the client.
func (s *Streams) Explain(ctx context.Context, what, location string, err error) error {
	return s.explain(ctx, &Answer{What: what, Location: location}, err)
}

func (s *Streams) seat(ctx context.Context, answer *Answer) (leave func(), err error) {
	source := fmt.Sprintf("the storage location %q", answer.Location)
	if answer.Running != nil {
		source = "the run " + string(answer.Running.UID)
	}
	user := "user "
	if requester, ok := genericapirequest.UserFrom(ctx); ok {
		user += requester.GetName()
		if namespace, _, err := serviceaccount.SplitUsername(requester.GetName()); err == nil {
			user = "accounts of " + namespace
		}
	}
	seats := []string{source, user}
	namespace := genericapirequest.NamespaceValue(ctx)
	if namespace != "" && namespace != s.SystemNamespace {
		seats = append(seats, "namespace "+namespace)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.taken[user] >= perUser:
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("%d answers are being sent to you already: wait for one to end", perUser), retrySeconds)
	case s.taken["namespace "+namespace] >= perNamespace:
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("%d answers about the namespace %s are being sent already: wait for one to end", perNamespace, namespace), retrySeconds)
	case s.taken[source] >= perLocation:
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("%d answers from %s are being sent already: try again", perLocation, source), retrySeconds)
	}
	if s.taken == nil {
		s.taken = map[string]int{}
	}
	for _, of := range seats {
		s.taken[of]++
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, of := range seats {
			if s.taken[of]--; s.taken[of] == 0 {
				delete(s.taken, of)
			}
		}
	}, nil
}

// explain returns an error for the client. Only users that may list the store's contents learn its errors.
func (s *Streams) explain(ctx context.Context, answer *Answer, err error) error {
	if _, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return err
	}
	if errors.Is(err, store.ErrNotFound) {
		message := answer.Missing
		if message == "" {
			message = fmt.Sprintf("the storage location %q does not have %s", answer.Location, answer.What)
		}
		return NotFound(message)
	}
	reason := ""
	if s.Stores.MayKnow(ctx) {
		reason = ": " + store.Reason(err)
	}
	if errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrDenied) {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("%s lies in the storage location %q, which can't be read at the moment%s", answer.What, answer.Location, reason))
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError,
		Message: fmt.Sprintf("%s can't be read: what lies in the storage location %q is not what was stored there, or is damaged%s", answer.What, answer.Location, reason),
	}}
}

// NotFound returns the answer about a missing object.
func NotFound(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: message,
	}}
}

// Gunzipped writes a compressed object. It fails with ErrTooLarge above limit bytes, and with ErrReplaced if the
// stored SHA-256 differs from digest, unless empty. It may fail after it has written.
func Gunzipped(key string, limit int64, digest string) func(context.Context, store.Ranger, io.Writer) error {
	return func(ctx context.Context, from store.Ranger, to io.Writer) error {
		stored, err := from.Get(ctx, key)
		if err != nil {
			return err
		}
		defer func() { _ = stored.Close() }()
		sum := sha256.New()
		compressed := bufio.NewReaderSize(io.TeeReader(stored, sum), checkedBytes)
		verify := func() error {
			if digest != "" && hex.EncodeToString(sum.Sum(nil)) != digest {
				return ErrReplaced
			}
			return nil
		}
		if _, err := compressed.Peek(checkedBytes); errors.Is(err, io.EOF) {
			if err := verify(); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
		plain, err := gzip.NewReader(compressed)
		if err != nil {
			return err
		}
		n, err := io.CopyBuffer(to, io.LimitReader(plain, limit+1), make([]byte, pieceBytes))
		if err != nil {
			return err
		}
		if n > limit {
			return ErrTooLarge
		}
		return verify() // gzip reads up to the end, for a further member
	}
}

// body is an answer's body. The header is sent with the first bytes.
type body struct {
	http.ResponseWriter
	control     *http.ResponseController
	contentType string
	prompt      bool // sends written bytes at once, and has no deadline while nothing is written
	begun       bool
}

func newBody(w http.ResponseWriter, answer *Answer) *body {
	return &body{ResponseWriter: w, control: http.NewResponseController(w), contentType: answer.ContentType, prompt: answer.Running != nil}
}

func (b *body) begin() {
	if !b.begun {
		b.begun = true
		b.Header().Set("Content-Type", b.contentType)
		b.WriteHeader(http.StatusOK)
	}
}

// Write implements io.Writer.
func (b *body) Write(p []byte) (int, error) {
	b.begin()
	// Without deadlines on the connection, only the seats bound the client.
	_ = b.control.SetWriteDeadline(time.Now().Add(takeTimeout))
	n, err := b.ResponseWriter.Write(p)
	if err == nil && b.prompt {
		err = b.control.Flush()
		_ = b.control.SetWriteDeadline(time.Time{})
	}
	return n, err
}

// close removes the deadline from the connection, which other requests use too.
func (b *body) close() {
	if b.begun {
		_ = b.control.SetWriteDeadline(time.Time{})
	}
}

// prompt bounds the time until a store begins to answer.
type prompt struct{ store.Ranger }

// Get implements store.Reader.
func (p prompt) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	return begin(ctx, func(ctx context.Context) (io.ReadCloser, error) { return p.Ranger.Get(ctx, key) })
}

// GetRange implements store.Ranger.
func (p prompt) GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	return begin(ctx, func(ctx context.Context) (io.ReadCloser, error) {
		return p.Ranger.GetRange(ctx, key, offset, length)
	})
}

func begin(ctx context.Context, open func(context.Context) (io.ReadCloser, error)) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(beginTimeout, func() { cancel(context.DeadlineExceeded) })
	content, err := open(ctx)
	if !late.Stop() && err == nil {
		_ = content.Close()
		err = context.DeadlineExceeded
	}
	if err != nil {
		if context.Cause(ctx) == context.DeadlineExceeded {
			err = fmt.Errorf("%w: it did not begin to answer within %s", store.ErrUnavailable, beginTimeout)
		}
		cancel(nil)
		return nil, err
	}
	return &opened{content, cancel}, nil
}

type opened struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (o *opened) Close() error {
	defer o.cancel(nil)
	return o.ReadCloser.Close()
}
