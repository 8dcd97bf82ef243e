// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

const (
	// recountTimeout bounds the time until a quota counts that a pod has ended.
	recountTimeout = 15 * time.Second
	quotaInterval  = time.Second
)

// patience bounds the retries of a pod that a quota refuses because of this restore's holders.
type patience struct{ until time.Time }

func (p *patience) makesRoom(ctx context.Context, e *execution, k *kind, about subject, refusal error) (bool, error) {
	if k.name() != podKind.name() || !apierrors.IsForbidden(refusal) || !strings.Contains(refusal.Error(), "exceeded quota") {
		return false, nil
	}
	if _, held := e.heldIn.Load(about.namespace); !held {
		return false, nil
	}
	holders, err := e.reader.labelled(ctx, podKind, about.namespace, enginev1alpha1.LabelRestore+"="+string(e.request.Run.UID))
	if err != nil {
		return false, err
	}
	now := e.Clock.Now()
	if len(holders) > 0 || p.until.IsZero() {
		p.until = now.Add(recountTimeout)
	}
	return !now.After(p.until), nil
}
