// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumework

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

const (
	// refusedTimeout is how long a just started API server, which knows no rights yet, may refuse.
	refusedTimeout = 2 * time.Minute
	// secretsInterval is the first interval; it doubles up to secretsMost.
	secretsInterval = time.Second
	secretsMost     = 15 * time.Second
	secretsTry      = 15 * time.Second
)

// Secrets reads the Secrets for a record's work. The API server gives them only to the record's node,
// see nodeagents/proxy, at the client's path. While no API server answers, it waits until ctx ends: the
// work has not failed, and no other could begin.
func Secrets(client rest.Interface, namespace string) func(ctx context.Context, resource, record string) ([]corev1.Secret, error) {
	ask := func(ctx context.Context, resource, record string) ([]corev1.Secret, error) {
		ctx, cancel := context.WithTimeout(ctx, secretsTry)
		defer cancel()
		result := client.Get().Namespace(namespace).Resource(resource).Name(record).SubResource("secrets").Do(ctx)
		raw, _ := result.Raw()
		if err := result.Error(); err != nil { // Raw ignores it
			return nil, err
		}
		var list corev1.SecretList
		err := json.Unmarshal(raw, &list)
		return list.Items, err
	}
	return func(ctx context.Context, resource, record string) ([]corev1.Secret, error) {
		var refused time.Time // since when
		var why error
		for interval := secretsInterval; ; interval = min(2*interval, secretsMost) {
			secrets, err := ask(ctx, resource, record)
			switch {
			case err == nil, isGone(err), apierrors.IsConflict(err):
				return secrets, err
			case !apierrors.IsForbidden(err) && !apierrors.IsInternalError(err):
				refused = time.Time{}
			case refused.IsZero():
				refused = time.Now()
			case time.Since(refused) >= refusedTimeout:
				return nil, err
			}
			if ctx.Err() == nil {
				why = err
			}
			klog.FromContext(ctx).Info("Volume work waits for the API server to give it its Secrets", "resource", resource, "record", record, "err", err)
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("%w, while it waited for its Secrets: %w", context.Cause(ctx), why)
			case <-time.After(interval):
			}
		}
	}
}

// isGone reports a missing record. An unserved path does not say so: the API server may be older.
func isGone(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}
