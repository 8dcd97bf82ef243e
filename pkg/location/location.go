// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package location opens a StorageLocation's store with its credentials.
package location

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// ErrNoCredentials: a storage location's Secret does not exist.
var ErrNoCredentials = errors.New("there are no credentials")

// ErrForeign: the store is not one of Holdfast's.
var ErrForeign = errors.New("the store is Longhorn's, and Holdfast keeps no backups there")

const verifyTimeout = 30 * time.Second

// IsFinal reports whether a backup or restore can never use its location, though others may.
func IsFinal(err error) bool {
	return errors.Is(err, ErrForeign) || errors.Is(err, ErrNotAllowed) || errors.Is(err, store.ErrAsOf)
}

// Secrets reads the Secrets of one namespace, such as the credentials.
type Secrets interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Secret, error)
}

// Open opens the store of a location with Holdfast's backups; others fail with ErrForeign. The caller
// closes it.
func Open(ctx context.Context, secrets Secrets, location *enginev1alpha1.StorageLocation) (*store.Bucket, error) {
	if err := own(location); err != nil {
		return nil, err
	}
	return OpenAny(ctx, secrets, location)
}

// OpenAny opens a location's store in any format, and follows changes of the Secret. It fails with
// store.ErrOther if the store's id is not the status's. The caller closes it.
func OpenAny(ctx context.Context, secrets Secrets, location *enginev1alpha1.StorageLocation) (*store.Bucket, error) {
	bucket, err := OpenUnverified(ctx, secrets, location)
	if err != nil || location.Status.StoreID == "" || location.Spec.IsLonghorn() {
		return bucket, err
	}
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	if err := bucket.Expect(ctx, location.Status.StoreID); err != nil {
		return nil, errors.Join(err, bucket.Close())
	}
	return bucket, nil
}

// OpenUnverified is OpenAny without a check of the id.
func OpenUnverified(ctx context.Context, secrets Secrets, location *enginev1alpha1.StorageLocation) (*store.Bucket, error) {
	first, err := credentials(ctx, secrets, location)
	if err != nil {
		return nil, err
	}
	return store.OpenFollowing(ctx, &location.Spec, first, func(ctx context.Context) (map[string][]byte, error) {
		return credentials(ctx, secrets, location)
	})
}

// CheckClock fails with store.ErrClock if the clocks differ: then removals by age are unsafe.
func CheckClock(ctx context.Context, secrets Secrets, location *enginev1alpha1.StorageLocation, clock clock.PassiveClock) error {
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	bucket, err := Open(ctx, secrets, location)
	if err != nil {
		return err
	}
	defer bucket.Close()
	return bucket.CheckClock(ctx, clock)
}

// Defaults returns the sorted names of the default locations; the first is used.
func Defaults(locations []*enginev1alpha1.StorageLocation) []string {
	var names []string
	for _, location := range locations {
		if location.Spec.Default && location.Spec.IsWritten() {
			names = append(names, location.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Settings represents all that Open depends on.
func Settings(location *enginev1alpha1.StorageLocation) (string, error) {
	access := location.Spec
	// These need no other store.
	access.TrustedClusters, access.RecoveryKeys, access.Encryption, access.PollInterval, access.SyncRequest = nil, nil, nil, nil, nil
	access.Default, access.AllowedNamespaces = false, nil
	settings, err := json.Marshal(struct {
		enginev1alpha1.StorageLocationSpec
		StoreID string
	}{access, location.Status.StoreID})
	if err != nil {
		return "", fmt.Errorf("reading StorageLocation %s: %w", location.Name, err)
	}
	return string(settings), nil
}

// Credentials returns the location's Secret's content; nil without one. It fails like Open for foreign
// stores.
func Credentials(ctx context.Context, secrets Secrets, location *enginev1alpha1.StorageLocation) (map[string][]byte, error) {
	if err := own(location); err != nil {
		return nil, err
	}
	return credentials(ctx, secrets, location)
}

func own(location *enginev1alpha1.StorageLocation) error {
	if location.Spec.IsLonghorn() {
		return fmt.Errorf("storage location %q: %w", location.Name, ErrForeign)
	}
	return nil
}

func credentials(ctx context.Context, secrets Secrets, location *enginev1alpha1.StorageLocation) (map[string][]byte, error) {
	name := location.Spec.CredentialsSecret()
	if name == "" {
		return nil, nil
	}
	secret, err := secrets.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%w: the Secret %q that spec.%s.credentialsSecret names does not exist in the namespace %s: create it there with %s",
			ErrNoCredentials, name, location.Spec.Provider, enginev1alpha1.CredentialsNamespace(location.Namespace), store.SecretKeys(location.Spec.Provider))
	case err != nil:
		return nil, fmt.Errorf("reading the Secret %q of the storage location: %w", name, err)
	}
	return secret.Data, nil
}
