// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package streamed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/pkg/runlog/remote"
)

const (
	// followTries bounds the requests for a followed log, one each followInterval. Together they outlast a
	// takeover by another controller.
	followTries    = 60
	followInterval = time.Second
)

// Logs are the logs of executed runs.
type Logs interface {
	Copy(ctx context.Context, uid types.UID, follow bool, to io.Writer) error
}

// Running is an executed run: its executor has the log.
type Running struct {
	Logs   Logs
	UID    types.UID
	Follow bool
}

// sendRunning sends a run's log. If it fails, it has sent nothing, and the error is for the API. A log that breaks
// off later says so in its last line; a complete one says how the run ended.
func (s *Streams) sendRunning(ctx context.Context, w http.ResponseWriter, answer *Answer) error {
	leave, err := s.seat(ctx, answer)
	if err != nil {
		return err
	}
	defer leave()
	to := newBody(w, answer)
	defer to.close()
	running := answer.Running
	err = running.Logs.Copy(ctx, running.UID, running.Follow, to)
	switch {
	case err == nil:
		to.begin()
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case to.begun:
		klog.FromContext(ctx).Info("A log breaks off", "what", answer.What, "err", err)
		slog.New(slog.NewTextHandler(to, nil)).Error(
			"the log breaks off here: what it is of was stopped, or the controller that wrote it is gone; follow it again for what the next one does")
		return nil
	case errors.Is(err, remote.ErrNotExecuted):
		return apierrors.NewServiceUnavailable(fmt.Sprintf("%s is not written just now: it ends, or another controller is about to go on with it; ask again", answer.What))
	}
	reason := ""
	if s.Stores.MayKnow(ctx) {
		reason = ": " + err.Error()
	}
	return apierrors.NewServiceUnavailable(fmt.Sprintf("%s can't be read while it is written%s; it is stored when it has ended", answer.What, reason))
}

func isPassing(err error) bool { return apierrors.IsServiceUnavailable(err) }
