// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package servingcert

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
)

const name = "v1alpha1.holdfast.io"

// cluster has one APIService.
func cluster() *fake.FakeDynamicClient {
	service := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"group": "holdfast.io"},
	}}
	return fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{APIServices: "APIServiceList"}, service)
}

func run(t *testing.T, client dynamic.Interface, replica string) *Certificate {
	t.Helper()
	c, err := New(Config{Client: client, APIService: name, DNSName: dnsName, Replica: replica, Clock: clock.RealClock{}})
	if err != nil {
		t.Fatal(err)
	}
	go c.Run(t.Context())
	return c
}

func bundleIn(t *testing.T, client dynamic.Interface) [][]byte {
	t.Helper()
	object, err := client.Resource(APIServices).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := bundleOf(object)
	if err != nil {
		t.Fatal(err)
	}
	return blocks(bundle)
}

// wipe replaces the bundle.
func wipe(t *testing.T, client dynamic.Interface, bundle []byte) {
	t.Helper()
	object, err := client.Resource(APIServices).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := unstructured.SetNestedField(object.Object, base64.StdEncoding.EncodeToString(bundle), "spec", "caBundle"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Resource(APIServices).Update(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// listener counts how often the server is told of another certificate.
type listener struct{ told atomic.Int32 }

func (l *listener) Enqueue() { l.told.Add(1) }

// TestTwoReplicas starts two at once: both are ready, with one write each, and stay through a
// renewal and a bundle that somebody wipes.
func TestTwoReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := cluster()
		one, two := run(t, client, "one:8443"), run(t, client, "two:8443")
		told := &listener{}
		one.AddListener(told)
		time.Sleep(10 * time.Second)
		if err := errors.Join(one.Ready(), two.Ready()); err != nil {
			t.Fatal(err)
		}
		if n := len(bundleIn(t, client)); n != 2 {
			t.Fatalf("the bundle has %d certificates, want 2", n)
		}
		wipe(t, client, nil)
		time.Sleep(10 * time.Second)
		if err := errors.Join(one.Ready(), two.Ready()); err != nil || len(bundleIn(t, client)) != 2 {
			t.Fatalf("what was wiped is not back: %v", err)
		}
		before, _ := one.CurrentCertKeyContent()
		time.Sleep(renewal + time.Hour)
		after, _ := one.CurrentCertKeyContent()
		if string(before) == string(after) || told.told.Load() != 1 {
			t.Errorf("it was renewed: %t; the server was told %d times, want once", string(before) != string(after), told.told.Load())
		}
		if err := errors.Join(one.Ready(), two.Ready()); err != nil || len(bundleIn(t, client)) != 2 {
			t.Errorf("after the renewal: %d certificates, %v", len(bundleIn(t, client)), err)
		}
	})
}

// TestSomebodyElseWrites: one who takes each write back is not answered more than once a second.
func TestSomebodyElseWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := cluster()
		var writes atomic.Int32
		client.PrependReactor("update", "apiservices", func(clienttesting.Action) (bool, runtime.Object, error) {
			writes.Add(1) // and those of wipe
			return false, nil, nil
		})
		c := run(t, client, "one:8443")
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			wipe(t, client, ofAnother(t))
		}
		if n := writes.Load() - 100; n > 12 {
			t.Errorf("%d writes in 10 s", n)
		}
		time.Sleep(10 * time.Second)
		if err := c.Ready(); err != nil || len(bundleIn(t, client)) != 2 {
			t.Errorf("beside another certificate: %d certificates, %v", len(bundleIn(t, client)), err)
		}
	})
}

// TestWhyItIsNotReady: what keeps kube-apiserver from trusting the server is said, and mended as
// soon as it can be.
func TestWhyItIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := cluster()
		var forbidden atomic.Bool
		forbidden.Store(true)
		client.PrependReactor("update", "apiservices", func(clienttesting.Action) (bool, runtime.Object, error) {
			if forbidden.Load() {
				return true, nil, apierrors.NewForbidden(APIServices.GroupResource(), name, errors.New("no right"))
			}
			return false, nil, nil
		})
		c := run(t, client, "one:8443")
		says := func(want string) {
			t.Helper()
			if err := c.Ready(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want an error that says %q", err, want)
			}
		}
		time.Sleep(time.Minute)
		says("no right")
		says("--tls-cert-file")
		forbidden.Store(false)
		time.Sleep(10 * time.Second)
		if err := c.Ready(); err != nil {
			t.Error(err)
		}
		// A renewal that can't be written leaves the server trusted.
		forbidden.Store(true)
		time.Sleep(renewal + time.Hour)
		if err := c.Ready(); err != nil {
			t.Error(err)
		}
		if err := client.Resource(APIServices).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		says("apply Holdfast's manifests")
	})
}
