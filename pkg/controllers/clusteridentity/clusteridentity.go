// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package clusteridentity creates the key that signs a cluster's backups, and publishes its public
// half.
//
//   - Concurrent processes agree on one key: it is created once, never changed, and read back.
//   - The private key stays in its Secret and the process. The public ConfigMap is restored when deleted.
//   - If the Secret is lost, the ConfigMap keeps earlier public keys, so old backups stay trusted.
package clusteridentity

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/location"
)

const (
	ConfigMapName = identity.Name
	SecretName    = "holdfast-signing-key"
	// SecretKey is the key in the Secret's data: 32 bytes.
	SecretKey = "ed25519-seed"

	firstRetry = time.Second
	lastRetry  = time.Minute
)

// Secrets reads and creates Secrets of the system namespace.
type Secrets interface {
	location.Secrets
	Create(ctx context.Context, secret *corev1.Secret, options metav1.CreateOptions) (*corev1.Secret, error)
}

// Key returns the key that signs the cluster's backups, and creates a missing one.
func Key(ctx context.Context, secrets Secrets) (*format.SigningKey, error) {
	secret, err := secrets.Get(ctx, SecretName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		secret, err = create(ctx, secrets)
	}
	return parse(secret, err)
}

// Stored is Key, but fails without a key.
func Stored(ctx context.Context, secrets location.Secrets) (*format.SigningKey, error) {
	return parse(secrets.Get(ctx, SecretName, metav1.GetOptions{}))
}

func parse(secret *corev1.Secret, err error) (*format.SigningKey, error) {
	if err != nil {
		return nil, fmt.Errorf("the Secret %s with the key that signs backups: %w", SecretName, err)
	}
	key, err := format.ParseSigningKey(secret.Data[SecretKey])
	if err != nil {
		return nil, fmt.Errorf("the Secret %s: %s: %w: bring it back, or remove it to have another made", SecretName, SecretKey, err)
	}
	return key, nil
}

func create(ctx context.Context, secrets Secrets) (*corev1.Secret, error) {
	key, err := format.NewSigningKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	_, err = secrets.Create(ctx, &corev1.Secret{
		// A backup with the key would let its readers forge others.
		ObjectMeta: metav1.ObjectMeta{Name: SecretName, Labels: map[string]string{format.LabelExclude: "true"}},
		Type:       corev1.SecretTypeOpaque,
		Immutable:  new(true),
		Data:       map[string][]byte{SecretKey: key.Seed()},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	// Another process may have been first.
	return secrets.Get(ctx, SecretName, metav1.GetOptions{})
}

// Controller maintains the ConfigMap with the cluster's identity.
type Controller struct {
	own        identity.Identity
	configMaps corev1client.ConfigMapInterface
	queue      *loop.Loop[string]
}

// New returns a Controller. The informer has only the ConfigMap identity.Name.
func New(cluster format.Cluster, configMaps corev1client.ConfigMapInterface, informer cache.SharedIndexInformer, clock clock.WithTicker) (*Controller, error) {
	c := &Controller{
		own:        identity.Identity{UID: cluster.UID, Keys: []string{cluster.Key.PublicKey()}},
		configMaps: configMaps,
		queue:      loop.New[string](loop.Config{Controller: "clusteridentity", FirstRetry: firstRetry, LastRetry: lastRetry, Clock: clock}),
	}
	c.queue.Add(identity.Name)
	return c, c.queue.Watch(informer, loop.OnChange(func(_, _ *corev1.ConfigMap) { c.queue.Add(identity.Name) }))
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, c.publish) }

// publish reads the cluster, since the informer may lag.
func (c *Controller) publish(ctx context.Context, _ string) error {
	stored, err := c.configMaps.Get(ctx, identity.Name, metav1.GetOptions{})
	absent := apierrors.IsNotFound(err)
	if absent {
		stored, err = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: identity.Name}}, nil
	}
	if err != nil {
		return fmt.Errorf("reading the ConfigMap %s: %w", identity.Name, err)
	}
	before := identity.Of(stored)
	if !c.own.Publish(stored) {
		return nil
	}
	if absent {
		_, err = c.configMaps.Create(ctx, stored, metav1.CreateOptions{})
	} else {
		_, err = c.configMaps.Update(ctx, stored, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing the ConfigMap %s: %w", identity.Name, err)
	}
	klog.FromContext(ctx).Info("The cluster's identity is published", "configMap", identity.Name, "clusterUID", c.own.UID, "publicKey", c.own.Keys[0], "knownBefore", len(before.Keys))
	return nil
}
