// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package location opens the store of a StorageLocation with the
// credentials that the record names.
package location

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// ErrNoCredentials: the Secret that a storage location names does not exist.
var ErrNoCredentials = errors.New("there are no credentials")

// Secrets reads the Secrets of one namespace: here that of the credentials. The client
// of a namespace does.
type Secrets interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Secret, error)
}

// Open opens the store of a location. The caller closes it.
func Open(ctx context.Context, secrets Secrets, location *enginev1alpha1.StorageLocation) (*store.Bucket, error) {
	credentials, err := Credentials(ctx, secrets, location)
	if err != nil {
		return nil, err
	}
	return store.Open(ctx, &location.Spec, credentials)
}

// Credentials is the content of the Secret that a location names; nil if it
// names none.
func Credentials(ctx context.Context, secrets Secrets, location *enginev1alpha1.StorageLocation) (map[string][]byte, error) {
	s3 := location.Spec.S3
	if s3 == nil || s3.CredentialsSecret == "" {
		return nil, nil
	}
	name := s3.CredentialsSecret
	secret, err := secrets.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%w: the Secret %q that spec.s3.credentialsSecret names does not exist in the namespace %s: create it there with the keys %s and %s",
			ErrNoCredentials, name, enginev1alpha1.CredentialsNamespace(location.Namespace), store.SecretAccessKeyID, store.SecretSecretAccessKey)
	case err != nil:
		return nil, fmt.Errorf("reading the Secret %q of the storage location: %w", name, err)
	}
	return secret.Data, nil
}
