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
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

const (
	// secretsTimeout is how long the API server may be away when its answer is needed: a
	// replica takes another one's place in a small part of that.
	secretsTimeout  = 2 * time.Minute
	secretsInterval = time.Second
)

// Secrets reads the Secrets that the work of a record needs, as the API server gives them to
// the record's node and to nobody else: see nodeagents/proxy. The client is one of the
// records by that path.
func Secrets(client rest.Interface, namespace string) func(ctx context.Context, resource, record string) ([]corev1.Secret, error) {
	return func(ctx context.Context, resource, record string) ([]corev1.Secret, error) {
		var list corev1.SecretList
		var last error
		err := wait.PollUntilContextTimeout(ctx, secretsInterval, secretsTimeout, true, func(ctx context.Context) (bool, error) {
			result := client.Get().Namespace(namespace).Resource(resource).Name(record).SubResource("secrets").Do(ctx)
			raw, _ := result.Raw()
			switch err := result.Error(); { // which Raw does not read
			case err == nil:
				return true, json.Unmarshal(raw, &list)
			case isGone(err), apierrors.IsForbidden(err):
				return false, err
			case ctx.Err() == nil:
				last = err
				klog.FromContext(ctx).Info("The Secrets of volume work can't be read; it will be tried again", "resource", resource, "record", record, "err", err)
			}
			return false, nil
		})
		if err != nil && last != nil && wait.Interrupted(err) {
			err = fmt.Errorf("the API server has not given them within %s: %w", secretsTimeout, last)
		}
		return list.Items, err
	}
}

// isGone reports whether the record of a request does not exist. A path that nobody serves
// says nothing of it: the API server may be an older one.
func isGone(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}
