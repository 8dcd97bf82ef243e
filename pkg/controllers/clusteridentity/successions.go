// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package clusteridentity

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/retry"

	"github.com/holdfast-io/holdfast/pkg/identity"
)

// succeedBackoff bounds attempts: the API server may be unavailable, or the ConfigMap missing until
// restored.
var succeedBackoff = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 9, Cap: 5 * time.Second}

// Successions writes into the ConfigMap which namespaces continue others. It is safe for concurrent
// use, and batches writes.
type Successions struct {
	configMaps corev1client.ConfigMapInterface

	mu      sync.Mutex
	waiting []identity.Succession

	writing sync.Mutex
}

// NewSuccessions returns Successions of the system namespace with these ConfigMaps.
func NewSuccessions(configMaps corev1client.ConfigMapInterface) *Successions {
	return &Successions{configMaps: configMaps}
}

// Add records a succession, and returns when it is written. It is idempotent.
func (s *Successions) Add(ctx context.Context, of identity.Succession) error {
	s.mu.Lock()
	s.waiting = append(s.waiting, of)
	s.mu.Unlock()
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	batch := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	// Another caller may have taken this one, and failed.
	return s.write(ctx, append(batch, of))
}

func (s *Successions) write(ctx context.Context, all []identity.Succession) error {
	var refused error
	mayPass := func(err error) bool { return ctx.Err() == nil && !apierrors.IsForbidden(err) }
	err := retry.OnError(succeedBackoff, mayPass, func() error {
		stored, err := s.configMaps.Get(ctx, identity.Name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading the ConfigMap %s: %w", identity.Name, err)
		}
		changed, err := identity.Succeed(stored, all...)
		if refused = err; err != nil || !changed {
			return nil
		}
		if _, err = s.configMaps.Update(ctx, stored, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("writing the ConfigMap %s: %w", identity.Name, err)
		}
		return nil
	})
	return errors.Join(err, refused)
}
