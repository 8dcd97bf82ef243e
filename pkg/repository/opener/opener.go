// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package opener opens the repository of a VolumeRepository record with its location, credentials
// and key. Shared keeps repositories open.
package opener

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/repository"
)

// ErrNoRepository: the repository is not in the store.
var ErrNoRepository = errors.New("there is no repository in the store")

// ErrNoKey: the Secret with a repository's key is missing, or lacks the key.
var ErrNoKey = errors.New("the repository has no key")

// OpenAt opens the repository of a namespace at a location, without a record: a backup may be older
// than the cluster. It fails with ErrNoRepository if there is none. The caller closes it.
func OpenAt(ctx context.Context, secrets, keys location.Secrets, stored *enginev1alpha1.StorageLocation, namespace string, options repository.Options) (*repository.Repository, error) {
	where, err := Where(ctx, secrets, stored)
	if err != nil {
		return nil, err
	}
	key, others, err := Keys(ctx, keys, enginev1alpha1.RepositoryName(namespace, stored.Name))
	var opened *repository.Repository
	if err == nil {
		options.Others = others
		opened, err = repository.Open(ctx, where, namespace, key, options)
	}
	if errors.Is(err, ErrNoKey) || errors.Is(err, repository.ErrNotInitialized) {
		exists, existsErr := repository.Exists(ctx, where, namespace)
		switch {
		case existsErr != nil:
			err = existsErr
		case !exists:
			err = ErrNoRepository
		}
	}
	return opened, err
}

// Where returns the store of a location's repositories, with current credentials.
func Where(ctx context.Context, secrets location.Secrets, stored *enginev1alpha1.StorageLocation) (repository.Location, error) {
	read := func(ctx context.Context) (map[string][]byte, error) {
		return location.Credentials(ctx, secrets, stored)
	}
	first, err := read(ctx)
	return repository.Location{Spec: stored.Spec, Secret: first, StoreID: stored.Status.StoreID, Again: read}, err
}

// Key reads the key of a repository. It fails with ErrNoKey if there is none.
func Key(ctx context.Context, keys location.Secrets, name string) (repository.Key, error) {
	key, _, err := Keys(ctx, keys, name)
	return key, err
}

// Keys reads the key of a repository, and others that may open it during a change.
func Keys(ctx context.Context, keys location.Secrets, name string) (key repository.Key, others []repository.Key, err error) {
	secretName := enginev1alpha1.KeySecretName(name)
	secret, err := keys.Get(ctx, secretName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil, fmt.Errorf("%w: the Secret %s does not exist", ErrNoKey, secretName)
	}
	if err != nil {
		return "", nil, fmt.Errorf("read the key of VolumeRepository %s: %w", name, err)
	}
	// Velero trims passwords, too.
	key = repository.Key(strings.TrimSpace(string(secret.Data[enginev1alpha1.KeySecretKey])))
	if key == "" {
		return "", nil, fmt.Errorf("%w: the Secret %s lacks %s", ErrNoKey, secretName, enginev1alpha1.KeySecretKey)
	}
	for _, data := range []string{enginev1alpha1.NextKeySecretKey, enginev1alpha1.FormerKeysSecretKey} {
		for line := range strings.Lines(string(secret.Data[data])) {
			if other := strings.TrimSpace(line); other != "" {
				others = append(others, repository.Key(other))
			}
		}
	}
	return key, others, nil
}
