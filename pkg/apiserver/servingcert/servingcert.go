// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package servingcert makes the certificate of an aggregated API server, kept in memory without a Secret.
// kube-apiserver trusts it because the server adds it to spec.caBundle of its own APIService. Each process makes
// another one.
package servingcert

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// APIServices is the resource with the bundles.
var APIServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

const (
	fieldManager = "holdfast-apiserver"
	pause        = time.Second     // the least between two writes, in case another program undoes each
	retry        = 5 * time.Second // after a failure
)

// Config names the owner of a certificate.
type Config struct {
	Client     dynamic.Interface
	APIService string
	DNSName    string // kube-apiserver's name for the server: NAME.NAMESPACE.svc of its Service
	Replica    string // this process's name among the running ones, kept over restarts
	Clock      clock.Clock
}

// Certificate is a certificate that Run renews. It implements dynamiccertificates.CertKeyContentProvider and
// dynamiccertificates.Notifier.
type Certificate struct {
	Config
	changed chan struct{}
	written time.Time

	mu        sync.Mutex
	rotation  rotation
	problem   error
	listeners []dynamiccertificates.Listener
}

var (
	_ dynamiccertificates.CertKeyContentProvider = &Certificate{}
	_ dynamiccertificates.Notifier               = &Certificate{}
)

// New makes a first certificate. It is trusted once Run has added it to the bundle.
func New(c Config) (*Certificate, error) {
	first, err := newPair(c.DNSName, c.Replica, c.Clock.Now())
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	return &Certificate{
		Config:   c,
		changed:  make(chan struct{}, 1),
		rotation: rotation{dnsName: c.DNSName, replica: c.Replica, serving: first},
		problem:  fmt.Errorf("APIService %s has not been read yet", c.APIService),
	}, nil
}

// Name implements dynamiccertificates.CertKeyContentProvider.
func (c *Certificate) Name() string { return "self-made certificate of APIService " + c.APIService }

// CurrentCertKeyContent implements dynamiccertificates.CertKeyContentProvider.
func (c *Certificate) CurrentCertKeyContent() (certificate, key []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rotation.serving.pem, c.rotation.serving.key
}

// AddListener implements dynamiccertificates.Notifier.
func (c *Certificate) AddListener(listener dynamiccertificates.Listener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listeners = append(c.listeners, listener)
}

// Ready returns why kube-apiserver can't trust the certificate, or nil.
func (c *Certificate) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}

// Run keeps the certificate in the bundle, and renews it, until ctx ends. It leaves it there: another replica may
// be reading the bundle.
func (c *Certificate) Run(ctx context.Context) {
	client := c.Client.Resource(APIServices)
	one := fields.OneTermEqualSelector(metav1.ObjectNameField, c.APIService).String()
	var synced atomic.Bool
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = one
			list, err := client.List(ctx, options)
			if err != nil && !synced.Load() {
				c.report(fmt.Errorf("reading APIService %s: %w", c.APIService, err))
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = one
			return client.Watch(ctx, options)
		},
	}, c.Client), &unstructured.Unstructured{}, 0, cache.Indexers{})
	// It fails only for a stopped informer.
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { c.notice() },
		UpdateFunc: func(any, any) { c.notice() },
		DeleteFunc: func(any) { c.notice() },
	})
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return
	}
	synced.Store(true)
	for ctx.Err() == nil {
		again, err := c.reconcile(ctx, client, informer.GetStore())
		wait := max(0, again.Sub(c.Clock.Now()))
		if err != nil {
			wait = retry
			if ctx.Err() == nil && !errors.Is(err, errMissing) && !apierrors.IsConflict(err) {
				klog.FromContext(ctx).Error(err, "Writing the API server's certificate into its APIService failed; it will be tried again")
			}
		}
		timer := c.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C():
		case <-c.changed:
		}
		timer.Stop()
	}
}

var errMissing = errors.New("the cluster has no such APIService: apply Holdfast's manifests again")

// reconcile does the next step, and returns when the next is due without a change.
func (c *Certificate) reconcile(ctx context.Context, client dynamic.ResourceInterface, store cache.Store) (again time.Time, err error) {
	found, exists, err := store.GetByKey(c.APIService)
	if err == nil && !exists {
		err = errMissing
	}
	var bundle []byte
	if err == nil {
		bundle, err = bundleOf(found.(*unstructured.Unstructured))
	}
	if err != nil {
		err = fmt.Errorf("APIService %s: %w", c.APIService, err)
		c.report(err)
		return again, err
	}
	want, changed, again, err := c.step(bundle)
	if err == nil && changed {
		now := c.Clock.Now()
		if early := c.written.Add(pause); now.Before(early) {
			again = early
		} else {
			err = c.write(ctx, client, found.(*unstructured.Unstructured), want)
			// After a conflict the watch shows the newer object at once.
			if !apierrors.IsConflict(err) {
				c.written = now
			}
		}
	}
	switch {
	case c.trusted(bundle):
		c.report(nil) // also if the next one is not written yet
	case err != nil:
		c.report(err)
	default:
		c.report(fmt.Errorf("spec.caBundle of APIService %s does not have the certificate yet", c.APIService))
	}
	return again, err
}

// write replaces the bundle, unless another replica has changed it.
func (c *Certificate) write(ctx context.Context, client dynamic.ResourceInterface, seen *unstructured.Unstructured, bundle []byte) error {
	object := seen.DeepCopy()
	if err := unstructured.SetNestedField(object.Object, base64.StdEncoding.EncodeToString(bundle), "spec", "caBundle"); err != nil {
		return err
	}
	if _, err := client.Update(ctx, object, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("adding the server's certificate to spec.caBundle of APIService %s (give one by --tls-cert-file if the server may not): %w", c.APIService, err)
	}
	return nil
}

// step advances the rotation, and tells the server of a new certificate.
func (c *Certificate) step(bundle []byte) (want []byte, changed bool, again time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.rotation.serving
	want, changed, again, err = c.rotation.step(c.Clock.Now(), bundle)
	if c.rotation.serving != before {
		for _, listener := range c.listeners {
			listener.Enqueue()
		}
	}
	return want, changed, again, err
}

func (c *Certificate) trusted(bundle []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rotation.inBundle(bundle)
}

func (c *Certificate) report(problem error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.problem = problem
}

func (c *Certificate) notice() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func bundleOf(object *unstructured.Unstructured) ([]byte, error) {
	text, _, err := unstructured.NestedString(object.Object, "spec", "caBundle")
	if err != nil {
		return nil, err
	}
	bundle, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("spec.caBundle: %w", err)
	}
	return bundle, nil
}
