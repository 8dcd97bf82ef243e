// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"bufio"
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
)

const (
	// PlanPrefix begins the paths of plans.
	PlanPrefix = "/plans/"
	// PlanTimeout bounds a plan: less than a request to kube-apiserver.
	PlanTimeout = 25 * time.Second

	backupsPath  = PlanPrefix + "backups"
	objectsPath  = PlanPrefix + "backups/objects"
	restoresPath = PlanPrefix + "restores"

	// maxAtOnce bounds plans' cost for cluster and controller.
	maxAtOnce = 2
	// patience bounds the wait for earlier plans.
	patience = 5 * time.Second
	// maxRequest is about as large as etcd takes: a run is a record.
	maxRequest = 2 << 20
	// maxAnswer far exceeds a plan's rows.
	maxAnswer  = 4 << 20
	pieceBytes = 32 << 10
)

// ErrBusy says that other plans are being computed.
var ErrBusy = errors.New("other plans are computed: try again in a moment")

// PlanServer is an http.Handler for PlanPrefix. The leading controller, which may read the cluster's
// objects, plans backups and restores. It answers while this process leads.
type PlanServer struct {
	// MayAsk reports whether a request is the API server's.
	MayAsk func(*http.Request) bool

	mu       sync.Mutex
	planners map[string]planner
	places   chan struct{}
}

type planner struct {
	leading context.Context
	// read fails if the request can't be read, plan if the answer can't be written.
	read func(request io.Reader) (plan func(ctx context.Context, to io.Writer) error, err error)
}

// NewPlanServer returns a PlanServer that does not lead.
func NewPlanServer(mayAsk func(*http.Request) bool) *PlanServer {
	return &PlanServer{MayAsk: mayAsk, planners: map[string]planner{}, places: make(chan struct{}, maxAtOnce)}
}

// planObject is a line of the plan with all objects. The last line has the plan.
type planObject struct {
	Object *v1alpha1.PlannedRelated `json:"object,omitempty"`
	Plan   *v1alpha1.BackupPlan     `json:"plan,omitempty"`
}

// LeadBackups serves plans of backups until ctx ends. each may be nil, and gets each object.
func (s *PlanServer) LeadBackups(ctx context.Context, plan func(ctx context.Context, run *enginev1alpha1.BackupRun, each func(v1alpha1.PlannedRelated) error) *v1alpha1.BackupPlan) {
	lead(ctx, s, backupsPath, func(ctx context.Context, run *enginev1alpha1.BackupRun, to *json.Encoder) error {
		return to.Encode(plan(ctx, run, nil))
	})
	lead(ctx, s, objectsPath, func(ctx context.Context, run *enginev1alpha1.BackupRun, to *json.Encoder) error {
		return to.Encode(planObject{Plan: plan(ctx, run, func(object v1alpha1.PlannedRelated) error { return to.Encode(planObject{Object: &object}) })})
	})
}

// LeadRestores serves plans of restores until ctx ends.
func (s *PlanServer) LeadRestores(ctx context.Context, plan func(context.Context, *enginev1alpha1.RestoreRun) *v1alpha1.RestorePlan) {
	lead(ctx, s, restoresPath, func(ctx context.Context, run *enginev1alpha1.RestoreRun, to *json.Encoder) error {
		return to.Encode(plan(ctx, run))
	})
}

func lead[Run any](ctx context.Context, s *PlanServer, path string, plan func(context.Context, *Run, *json.Encoder) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.planners[path] = planner{leading: ctx, read: func(request io.Reader) (func(context.Context, io.Writer) error, error) {
		run := new(Run)
		err := json.NewDecoder(request).Decode(run)
		return func(ctx context.Context, to io.Writer) error { return plan(ctx, run, json.NewEncoder(to)) }, err
	}}
}

// ServeHTTP implements http.Handler.
func (s *PlanServer) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if !s.MayAsk(request) {
		http.Error(w, "only the API server may ask", http.StatusUnauthorized)
		return
	}
	s.mu.Lock()
	planner, known := s.planners[request.URL.Path]
	s.mu.Unlock()
	if !known || planner.leading.Err() != nil {
		http.Error(w, "this process does not lead", http.StatusNotFound)
		return
	}
	plan, err := planner.read(io.LimitReader(request.Body, maxRequest))
	if err != nil {
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
	// Its requests are the leader's, and end with the request.
	ctx, cancel := context.WithTimeout(planner.leading, PlanTimeout)
	defer cancel()
	defer context.AfterFunc(request.Context(), cancel)()
	w.Header().Set("Content-Type", "application/json")
	out := bufio.NewWriterSize(w, pieceBytes)
	if err := errors.Join(plan(ctx, out), out.Flush()); err != nil {
		klog.FromContext(ctx).V(2).Info("A plan could not be sent", "err", err)
	}
}

// PlanClient asks the leading controller. The API server decides how much its reader sees.
type PlanClient struct{ Remote *Client }

// Backup returns the plan of a backup without a record. It fails with ErrUnreachable or ErrBusy if that
// can't be now.
func (c *PlanClient) Backup(ctx context.Context, run *enginev1alpha1.BackupRun) (*v1alpha1.BackupPlan, error) {
	return ask[v1alpha1.BackupPlan](ctx, c, backupsPath, run)
}

// Restore returns the plan of a restore without a record. It fails as Backup.
func (c *PlanClient) Restore(ctx context.Context, run *enginev1alpha1.RestoreRun) (*v1alpha1.RestorePlan, error) {
	return ask[v1alpha1.RestorePlan](ctx, c, restoresPath, run)
}

// BackupObjects is Backup, and gives each object of the plan to each as it comes.
func (c *PlanClient) BackupObjects(ctx context.Context, run *enginev1alpha1.BackupRun, each func(v1alpha1.PlannedRelated) error) (*v1alpha1.BackupPlan, error) {
	ctx, cancel := context.WithTimeout(ctx, PlanTimeout+patience)
	defer cancel()
	answer, err := c.answer(ctx, objectsPath, run)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Close() }()
	for lines := json.NewDecoder(answer); ; {
		var line planObject
		if err := lines.Decode(&line); err != nil {
			return nil, fmt.Errorf("%w: its plan breaks off: %w", ErrUnreachable, err)
		}
		if line.Plan != nil {
			return line.Plan, nil
		}
		if line.Object == nil {
			continue
		}
		if err := each(*line.Object); err != nil {
			return nil, err
		}
	}
}

func ask[Plan any](ctx context.Context, c *PlanClient, path string, run any) (*Plan, error) {
	ctx, cancel := context.WithTimeout(ctx, PlanTimeout+patience)
	defer cancel()
	answer, err := c.answer(ctx, path, run)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Close() }()
	plan := new(Plan)
	if err := json.NewDecoder(io.LimitReader(answer, maxAnswer)).Decode(plan); err != nil {
		return nil, fmt.Errorf("%w: its plan breaks off: %w", ErrUnreachable, err)
	}
	return plan, nil
}

func (c *PlanClient) answer(ctx context.Context, path string, run any) (io.ReadCloser, error) {
	body, err := json.Marshal(run)
	if err != nil {
		return nil, err
	}
	response, err := c.Remote.Do(ctx, http.MethodPost, path, bytes.NewReader(body), PlanTimeout+patience)
	if err != nil {
		return nil, err
	}
	switch response.StatusCode {
	case http.StatusOK:
		return response.Body, nil
	case http.StatusTooManyRequests:
		err = ErrBusy
	case http.StatusNotFound:
		err = fmt.Errorf("%w: another controller begins to lead, or has no plans yet", ErrUnreachable)
	default:
		err = fmt.Errorf("%w: it answers %s", ErrUnreachable, response.Status)
	}
	_ = response.Body.Close()
	return nil, err
}
