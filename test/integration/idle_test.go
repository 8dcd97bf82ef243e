// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// BenchmarkIdleLocation counts the requests to a store to which nobody writes, in ten minutes of one
// API server and one controller, and reports as many for a day. The hourly listings are not in it
// unless they fall into these minutes.
func BenchmarkIdleLocation(b *testing.B) {
	const settle, idle = time.Minute, 10 * time.Minute
	var reads, lists, writes atomic.Int64
	spec, secret := storetest.FakeS3(b, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method != http.MethodGet && r.Method != http.MethodHead:
				writes.Add(1)
			case r.URL.Query().Has("list-type"):
				lists.Add(1)
			default:
				reads.Add(1)
			}
			next.ServeHTTP(w, r)
		})
	})
	name, locations, secrets := labtest.Name("idle"), lab.Engine.EngineV1alpha1().StorageLocations(labtest.System), lab.Kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(labtest.System))
	spec.S3.CredentialsSecret, spec.PollInterval = name, &metav1.Duration{Duration: 5 * time.Minute} // as by default
	if _, err := secrets.Create(b.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: secret}, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	if _, err := locations.Create(b.Context(), &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := locations.Delete(context.WithoutCancel(b.Context()), name, metav1.DeleteOptions{}); err != nil {
			b.Error(err)
		}
		if err := secrets.Delete(context.WithoutCancel(b.Context()), name, metav1.DeleteOptions{}); err != nil {
			b.Error(err)
		}
	}()
	err := labtest.Await(b.Context(), "the location to be available", func() error {
		location, err := locations.Get(b.Context(), name, metav1.GetOptions{})
		if err == nil && !meta.IsStatusConditionTrue(location.Status.Conditions, enginev1alpha1.ConditionAvailable) {
			err = errors.New("it is not")
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		time.Sleep(settle)
		for _, count := range []*atomic.Int64{&reads, &lists, &writes} {
			count.Store(0)
		}
		time.Sleep(idle)
		day := float64(24 * time.Hour / idle)
		b.ReportMetric(day*float64(reads.Load()), "reads/day")
		b.ReportMetric(day*float64(lists.Load()), "lists/day")
		b.ReportMetric(day*float64(writes.Load()), "writes/day")
	}
	b.ReportMetric(0, "ns/op")
}
