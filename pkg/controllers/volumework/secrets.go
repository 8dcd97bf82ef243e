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
	// refusedTimeout is for how long a refusal may be the mistake of a server that has just
	// started, and knows of no rights yet.
	refusedTimeout = 2 * time.Minute
	// secretsInterval is the time between two questions at first; it doubles up to secretsMost.
	secretsInterval = time.Second
	secretsMost     = 15 * time.Second
	// secretsTry is how long one of them may take.
	secretsTry = 15 * time.Second
)

// Secrets reads the Secrets that the work of a record needs, as the API server gives them to
// the record's node and to nobody else: see nodeagents/proxy. The client is one of the
// records by that path. While no API server answers, it waits, until ctx ends: the
// work has not failed, and other work of the node could not begin either.
func Secrets(client rest.Interface, namespace string) func(ctx context.Context, resource, record string) ([]corev1.Secret, error) {
	ask := func(ctx context.Context, resource, record string) ([]corev1.Secret, error) {
		ctx, cancel := context.WithTimeout(ctx, secretsTry)
		defer cancel()
		result := client.Get().Namespace(namespace).Resource(resource).Name(record).SubResource("secrets").Do(ctx)
		raw, _ := result.Raw()
		if err := result.Error(); err != nil { // which Raw does not read
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

// isGone reports whether the record of a request does not exist. A path that nobody serves
// says nothing of it: the API server may be an older one.
func isGone(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}
