// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	engineclientset "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestTheAPIServerKeepsToRequests: what the API server's account may update, it may update
// only to write down what was asked.
func TestTheAPIServerKeepsToRequests(t *testing.T) {
	t.Parallel()
	name, _ := lab.Location(t, "kept")
	config := rest.CopyConfig(lab.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + labtest.System + ":holdfast-apiserver"}
	client, err := engineclientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	patch := func(client engineclientset.Interface, patch string) error {
		_, err := client.EngineV1alpha1().StorageLocations(labtest.System).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	// As people write it, and no program.
	if err := patch(lab.Engine, `{"metadata":{"annotations":{"team":"a"}},"spec":{"pollInterval":"60m","default":false,"prefix":"","trustedClusters":[]}}`); err != nil {
		t.Fatal(err)
	}
	if _, err := lab.Holdfast.HoldfastV1alpha1().SyncRequests(labtest.System).Create(t.Context(), &v1alpha1.SyncRequest{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("a syncrequest: %v", err)
	}
	if err := patch(client, `{"spec":{"syncRequest":{"timestamp":"2026-01-01T00:00:00Z"}}}`); err != nil {
		t.Errorf("a request: %v", err)
	}
	for what, change := range map[string]string{
		"another folder":        `{"spec":{"filesystem":{"path":"/elsewhere"}}}`,
		"another prefix":        `{"spec":{"prefix":"elsewhere"}}`,
		"a field removed":       `{"spec":{"pollInterval":null}}`,
		"the acceptance":        `{"metadata":{"annotations":{"holdfast.io/accept-loss-until":"2027-01-01T00:00:00Z"}}}`,
		"an annotation removed": `{"metadata":{"annotations":null}}`,
		"an owner":              `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"gone","uid":"gone"}]}}`,
	} {
		if err := patch(client, change); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "writes down what is asked") {
			t.Errorf("%s: got %v, want a refusal", what, err)
		}
	}
}
