// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestTheAPIServerKeepsToRequests: what the API server's account may update, it may update
// only to write down what was asked.
func TestTheAPIServerKeepsToRequests(t *testing.T) {
	t.Parallel()
	name, folder := lab.Location(t, "kept")
	config := rest.CopyConfig(lab.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + labtest.System + ":holdfast-apiserver"}
	client, err := engineclient.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	locations := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System)
	err = retried(func() error { // as an administrator may
		record, err := locations.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		record.Spec.PollInterval = &metav1.Duration{Duration: time.Hour}
		_, err = locations.Update(t.Context(), record, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	asked := &enginev1alpha1.Ask{Timestamp: metav1.Now()}

	for what, test := range map[string]struct {
		change  func(*enginev1alpha1.StorageLocationSpec)
		allowed bool
	}{
		"a request":       {func(spec *enginev1alpha1.StorageLocationSpec) { spec.SyncRequest = asked }, true},
		"another folder":  {func(spec *enginev1alpha1.StorageLocationSpec) { spec.Filesystem.Path = folder + "-elsewhere" }, false},
		"a field more":    {func(spec *enginev1alpha1.StorageLocationSpec) { spec.Prefix = "elsewhere" }, false},
		"a field removed": {func(spec *enginev1alpha1.StorageLocationSpec) { spec.PollInterval = nil }, false},
	} {
		err := retried(func() error {
			record, err := locations.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			test.change(&record.Spec)
			_, err = client.EngineV1alpha1().StorageLocations(labtest.System).Update(t.Context(), record, metav1.UpdateOptions{})
			return err
		})
		switch {
		case test.allowed && err != nil:
			t.Errorf("%s: %v", what, err)
		case !test.allowed && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "writes down what is asked")):
			t.Errorf("%s: got %v, want a refusal", what, err)
		}
	}
}
