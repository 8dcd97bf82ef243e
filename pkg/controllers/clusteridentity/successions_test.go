// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package clusteridentity

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/holdfast-io/holdfast/pkg/identity"
)

// Many restores make namespaces at once, while others write the ConfigMap too: all are recorded,
// and what it holds besides stays.
func TestSuccessionsAreWrittenTogether(t *testing.T) {
	succeedBackoff.Duration = time.Millisecond // the bubbles of synctest know no mutexes
	kube := kubefake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: identity.Name}, Data: map[string]string{identity.ClusterUIDKey: "us"},
	})
	var updates atomic.Int32
	kube.PrependReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		if updates.Add(1)%2 == 1 {
			return true, nil, apierrors.NewConflict(corev1.Resource("configmaps"), identity.Name, nil)
		}
		return false, nil, nil
	})
	configMaps := kube.CoreV1().ConfigMaps(system)
	successions := NewSuccessions(configMaps)
	var working sync.WaitGroup
	for i := range 50 {
		working.Go(func() {
			of := identity.Succession{Namespace: fmt.Sprintf("n-%d", i), Former: "former", UID: types.UID(fmt.Sprint("uid-", i))}
			for range 2 {
				if err := successions.Add(t.Context(), of); err != nil {
					t.Error(err)
				}
			}
		})
	}
	working.Wait()
	stored, err := configMaps.Get(t.Context(), identity.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if of := identity.SuccessionsOf(stored); len(of) != 50 || !of.Same("n-7", "former", "uid-7") || stored.Data[identity.ClusterUIDKey] != "us" {
		t.Errorf("stored is %v", stored.Data)
	}
}

// What can't be written is an error, after a while if it may pass, at once if it can't.
func TestSuccessionsThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := kubefake.NewClientset()
		successions := NewSuccessions(kube.CoreV1().ConfigMaps(system))
		of := identity.Succession{Namespace: "shop", Former: "first", UID: "second"}
		if err := successions.Add(t.Context(), of); !apierrors.IsNotFound(err) {
			t.Errorf("without the ConfigMap: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		reads := len(kube.Actions())
		if err := successions.Add(ctx, of); err == nil || len(kube.Actions()) != reads+1 {
			t.Errorf("stopped: %v after %d requests", err, len(kube.Actions())-reads)
		}
		kube.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(corev1.Resource("configmaps"), identity.Name, nil)
		})
		reads = len(kube.Actions())
		if err := successions.Add(t.Context(), of); !apierrors.IsForbidden(err) || len(kube.Actions()) != reads+1 {
			t.Errorf("forbidden: %v after %d requests", err, len(kube.Actions())-reads)
		}
	})
}
