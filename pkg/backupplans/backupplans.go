// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backupplans lets the API server have a backup planned by the controller that leads. The
// API server may not read the cluster's objects, and the controller may: it runs backups. They talk
// as for the logs of what runs, see package remote: only the API server can ask, and nothing is
// written. The API server decides how much of a plan its reader sees.
package backupplans

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/runlog/remote"
)

const (
	// Path is where plans are asked for.
	Path = "/backup-plans/"
	// Timeout is how long a plan may take: less than a request to kube-apiserver.
	Timeout = 25 * time.Second

	// maxAtOnce bounds what plans cost the cluster and the controller.
	maxAtOnce = 2
	// patience is how long one waits for those before it.
	patience = 5 * time.Second
	// maxRequest is as large as etcd takes, about: a run is a record.
	maxRequest = 2 << 20
	// maxAnswer is far more than the rows of a plan take.
	maxAnswer = 4 << 20
)

// ErrBusy says that as many plans are computed as may be at once.
var ErrBusy = errors.New("other plans are computed: try again in a moment")

// Plan plans the backup that a run stands for.
type Plan func(ctx context.Context, run *enginev1alpha1.BackupRun) *v1alpha1.BackupPlan

// Server is an http.Handler for Path. It answers while this process leads.
type Server struct {
	// MayAsk reports whether a request is of the API server.
	MayAsk func(*http.Request) bool

	mu   sync.Mutex
	plan Plan
	// leading is the context of the process's term.
	leading context.Context
	places  chan struct{}
}

// NewServer returns a Server that does not lead.
func NewServer(mayAsk func(*http.Request) bool) *Server {
	return &Server{MayAsk: mayAsk, places: make(chan struct{}, maxAtOnce)}
}

// Lead has the server answer with what plan computes until ctx ends.
func (s *Server) Lead(ctx context.Context, plan Plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leading, s.plan = ctx, plan
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if !s.MayAsk(request) {
		http.Error(w, "only the API server may ask", http.StatusUnauthorized)
		return
	}
	s.mu.Lock()
	leading, plan := s.leading, s.plan
	s.mu.Unlock()
	if plan == nil || leading.Err() != nil {
		http.Error(w, "this process does not lead", http.StatusNotFound)
		return
	}
	var run enginev1alpha1.BackupRun
	if err := json.NewDecoder(io.LimitReader(request.Body, maxRequest)).Decode(&run); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	waited := time.NewTimer(patience)
	defer waited.Stop()
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	case <-waited.C:
		http.Error(w, ErrBusy.Error(), http.StatusTooManyRequests)
		return
	case <-request.Context().Done():
		return
	}
	// Its requests are the leader's, and end with the one that asked.
	ctx, cancel := context.WithTimeout(leading, Timeout)
	defer cancel()
	defer context.AfterFunc(request.Context(), cancel)()
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(plan(ctx, &run)); err != nil {
		klog.FromContext(ctx).V(2).Info("A plan could not be sent", "err", err)
	}
}

// Client asks the controller that leads.
type Client struct{ Remote *remote.Client }

// Plan has a backup planned that has no record. It fails with remote.ErrUnreachable or ErrBusy if that
// can't be now.
func (c *Client) Plan(ctx context.Context, run *enginev1alpha1.BackupRun) (*v1alpha1.BackupPlan, error) {
	body, err := json.Marshal(run)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout+patience)
	defer cancel()
	response, err := c.Remote.Do(ctx, http.MethodPost, Path, bytes.NewReader(body), Timeout+patience)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusTooManyRequests:
		return nil, ErrBusy
	case http.StatusNotFound:
		return nil, fmt.Errorf("%w: another controller begins to lead, or has no plans yet", remote.ErrUnreachable)
	default:
		return nil, fmt.Errorf("%w: it answers %s", remote.ErrUnreachable, response.Status)
	}
	plan := &v1alpha1.BackupPlan{}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(plan); err != nil {
		return nil, fmt.Errorf("%w: its plan breaks off: %w", remote.ErrUnreachable, err)
	}
	return plan, nil
}
