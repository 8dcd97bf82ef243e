// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reader reads the files of volume backups in the controller that leads, for the API
// server. docs/design/files.md has its bounds.
package reader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/volumefiles"
)

const (
	// atOnce is how many answers are given at once, perNamespace how many of one namespace. Each
	// takes about 25 MB: a piece of a file, plain and as stored.
	atOnce       = 4
	perNamespace = 2
	// patience bounds a request's wait for others.
	patience = 5 * time.Second
	// taken is how long the API server may take for a piece, longest for an answer, so that slow
	// clients keep no places: they ask for the rest. kube-apiserver ends an answer after a minute.
	taken      = time.Minute
	longest    = 2 * time.Minute
	pieceBytes = 256 << 10
)

// Source reads volume backups. Its errors for the caller are Problems.
type Source interface {
	// List returns a page of a folder.
	List(ctx context.Context, request *volumefiles.Request) (*v1alpha1.VolumeFileList, error)
	// Copy calls begin with the number of bytes, and then writes them.
	Copy(ctx context.Context, request *volumefiles.Request, begin func(size int64), to io.Writer) error
}

// Server is an http.Handler for volumefiles.Path, while this process leads.
type Server struct {
	// MayAsk reports whether a request is the API server's.
	MayAsk func(*http.Request) bool
	// SystemNamespace may take all places.
	SystemNamespace string

	mu     sync.Mutex
	source Source
	// leading is the context of the process's term.
	leading context.Context
	// places counts the answers by namespace, and all under "". freed is closed when one ends.
	places map[string]int
	freed  chan struct{}
}

// Lead has the server answer with a source until ctx ends.
func (s *Server) Lead(ctx context.Context, source Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leading, s.source = ctx, source
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, httpRequest *http.Request) {
	if !s.MayAsk(httpRequest) {
		http.Error(w, "only the API server may ask", http.StatusUnauthorized)
		return
	}
	s.mu.Lock()
	leading, source := s.leading, s.source
	s.mu.Unlock()
	if source == nil || leading.Err() != nil {
		refuse(w, &volumefiles.Problem{Code: http.StatusServiceUnavailable, Message: "another controller begins to lead: try again"})
		return
	}
	request := &volumefiles.Request{}
	if err := json.NewDecoder(io.LimitReader(httpRequest.Body, volumefiles.MaxRequest)).Decode(request); err != nil {
		refuse(w, &volumefiles.Problem{Code: http.StatusBadRequest, Message: err.Error()})
		return
	}
	// Its requests are the leader's, and end with the one that asked.
	ctx, cancel := context.WithTimeout(leading, longest)
	defer cancel()
	defer context.AfterFunc(httpRequest.Context(), cancel)()
	leave, err := s.enter(ctx, request.Namespace)
	if err != nil {
		refuse(w, err)
		return
	}
	defer leave()
	if request.Kind == volumefiles.Folder {
		list, err := source.List(ctx, request)
		if err != nil {
			refuse(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(list); err != nil {
			klog.FromContext(ctx).V(2).Info("A list of files could not be sent", "err", err)
		}
		return
	}
	to := &paced{ResponseWriter: w, control: http.NewResponseController(w), ends: time.Now().Add(longest)}
	err = source.Copy(ctx, request, to.begin, to)
	switch {
	case err == nil && to.left == 0:
	case err != nil && !to.begun:
		refuse(w, err)
	default:
		klog.FromContext(ctx).Info("The content of a file breaks off", "location", request.StorageLocation, "backup", request.StoreName, "volume", request.Volume, "missingBytes", to.left, "err", err)
		panic(http.ErrAbortHandler) // what was sent must not look whole
	}
	_ = to.control.SetWriteDeadline(time.Time{})
}

func refuse(w http.ResponseWriter, err error) {
	problem, ok := errors.AsType[*volumefiles.Problem](err)
	if !ok {
		problem = &volumefiles.Problem{Code: http.StatusServiceUnavailable, Message: "the volume backup can't be read at the moment", Detail: err.Error()}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(problem.Code)
	_ = json.NewEncoder(w).Encode(problem)
}

// enter takes a place for a namespace until leave is called.
func (s *Server) enter(ctx context.Context, namespace string) (leave func(), err error) {
	waited := time.NewTimer(patience)
	defer waited.Stop()
	for {
		s.mu.Lock()
		if s.places == nil {
			s.places, s.freed = map[string]int{}, make(chan struct{})
		}
		freed := s.freed
		full := s.places[""] >= atOnce
		if !full && (s.places[namespace] < perNamespace || namespace == s.SystemNamespace) {
			s.places[""]++
			s.places[namespace]++
			s.mu.Unlock()
			return func() { s.leave(namespace) }, nil
		}
		s.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-waited.C:
			message := fmt.Sprintf("%d files of volumes of the namespace %s are being read already: wait for one to end", perNamespace, namespace)
			if full {
				message = fmt.Sprintf("%d files of volumes are being read already: try again", atOnce)
			}
			return nil, &volumefiles.Problem{Code: http.StatusTooManyRequests, Message: message}
		}
	}
}

func (s *Server) leave(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range []string{"", namespace} {
		if s.places[of]--; s.places[of] == 0 {
			delete(s.places, of)
		}
	}
	close(s.freed)
	s.freed = make(chan struct{})
}

// paced is an answer of a known size, whose pieces are taken in time.
type paced struct {
	http.ResponseWriter
	control *http.ResponseController
	ends    time.Time
	begun   bool
	left    int64
}

func (p *paced) begin(size int64) {
	p.begun, p.left = true, size
	p.Header().Set("Content-Type", "application/octet-stream")
	p.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	p.WriteHeader(http.StatusOK)
}

func (p *paced) Write(b []byte) (int, error) {
	deadline := time.Now().Add(taken)
	if deadline.After(p.ends) {
		deadline = p.ends
	}
	_ = p.control.SetWriteDeadline(deadline)
	n, err := p.ResponseWriter.Write(b)
	p.left -= int64(n)
	return n, err
}
