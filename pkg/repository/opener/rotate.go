// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package opener

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/recovery"
	"github.com/holdfast-io/holdfast/pkg/repository"
)

const mostFormer = 10

// KeySecrets changes the Secrets of repositories' keys.
type KeySecrets interface {
	location.Secrets
	Update(ctx context.Context, secret *corev1.Secret, options metav1.UpdateOptions) (*corev1.Secret, error)
}

// Rotate gives a repository a new random key. The caller holds the Lease of its maintenance.
//
// At any time a key of the Secret opens the repository, and Keys returns them all: the Secret gets
// the new key first, and makes it the key when the repository has it. A repetition continues with
// it. Former keys stay, since a paused process may write the old format again. With recovery keys,
// the store first gets the new key, encrypted for them and signed.
func Rotate(ctx context.Context, secrets location.Secrets, keys KeySecrets, stored *enginev1alpha1.StorageLocation, namespace string, cluster format.Cluster) error {
	where, err := Where(ctx, secrets, stored)
	if err != nil {
		return err
	}
	name := enginev1alpha1.RepositoryName(namespace, stored.Name)
	key, others, err := Keys(ctx, keys, name)
	if err != nil {
		return err
	}
	secret, err := keys.Get(ctx, enginev1alpha1.KeySecretName(name), metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the key of the repository: %w", err)
	}
	next := repository.Key(strings.TrimSpace(string(secret.Data[enginev1alpha1.NextKeySecretKey])))
	if next == "" {
		next = repository.NewKey()
		changed := secret.DeepCopy()
		changed.Data[enginev1alpha1.NextKeySecretKey] = []byte(next)
		if secret, err = keys.Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("store the next key of the repository: %w", err)
		}
	}
	if len(stored.Spec.RecoveryKeys) > 0 {
		bucket, err := location.Open(ctx, secrets, stored)
		if err != nil {
			return err
		}
		of := recovery.Repository{Cluster: cluster, VolumeNamespace: namespace, Location: stored.Name}
		if err := errors.Join(recovery.Keep(ctx, bucket, of, next, stored.Spec.RecoveryKeys), bucket.Close()); err != nil {
			return err
		}
	}
	// The present key first; after a paused process a former one may fit.
	err = repository.ErrWrongKey
	for _, from := range append([]repository.Key{key}, others...) {
		if err = repository.ChangeKey(ctx, where, namespace, from, next); !errors.Is(err, repository.ErrWrongKey) {
			break
		}
	}
	if err != nil {
		return err
	}
	opened, err := repository.Open(ctx, where, namespace, next, repository.Options{})
	if err != nil {
		return fmt.Errorf("open the repository with its new key, which stays beside the old one in the Secret %s: %w", secret.Name, err)
	}
	if err := opened.Close(ctx); err != nil {
		return err
	}
	changed := secret.DeepCopy()
	former := append([]string{string(key)}, strings.Split(string(secret.Data[enginev1alpha1.FormerKeysSecretKey]), "\n")...)
	former = slices.DeleteFunc(former, func(one string) bool { return one == "" || one == string(next) })
	changed.Data[enginev1alpha1.FormerKeysSecretKey] = []byte(strings.Join(former[:min(len(former), mostFormer)], "\n"))
	changed.Data[enginev1alpha1.KeySecretKey] = []byte(next)
	delete(changed.Data, enginev1alpha1.NextKeySecretKey)
	if _, err = keys.Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("the repository has its new key, which is in the Secret %s as %s; making it the key there failed, so do it again: %w", secret.Name, enginev1alpha1.NextKeySecretKey, err)
	}
	return nil
}
