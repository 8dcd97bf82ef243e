// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
)

// A namespace that was made anew is another one from its first moment, and each look at it is
// one request.
func TestNamespaceUIDs(t *testing.T) {
	kube := kubefake.NewClientset()
	namespaces := kube.CoreV1().Namespaces()
	uidOf := namespaceUIDs(namespaces)
	for _, want := range []types.UID{"first", "second"} {
		shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", UID: want}}
		if _, err := namespaces.Create(t.Context(), shop, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		kube.ClearActions()
		if got, err := uidOf(t.Context(), "shop"); err != nil || got != want {
			t.Errorf("it is %q, want %q (%v)", got, want, err)
		}
		if actions := kube.Actions(); len(actions) != 1 || !actions[0].Matches("get", "namespaces") {
			t.Errorf("that took %v", actions)
		}
		if err := namespaces.Delete(t.Context(), "shop", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := uidOf(t.Context(), "shop"); !apierrors.IsNotFound(err) {
		t.Errorf("of one that is gone: %v", err)
	}
}
