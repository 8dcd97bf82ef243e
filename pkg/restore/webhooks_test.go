// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestWebhooksComeLast: proof 6, pitfall 2. A webhook that refuses what it can't be asked about is
// created when its Service has an endpoint that is ready, after all that it might refuse; so no
// create is refused.
func TestWebhooksComeLast(t *testing.T) {
	const slice, hook = "endpointslices.discovery.k8s.io/ops/hook-1", "validatingwebhookconfigurations.admissionregistration.k8s.io//hook"
	s := newFakeServer(t)
	s.kinds = append(s.kinds, metav1.APIResourceList{GroupVersion: "admissionregistration.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "validatingwebhookconfigurations", Kind: "ValidatingWebhookConfiguration"}}})
	slices, created := 0, 0
	s.fault = func(r *http.Request) (int, bool) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/endpointslices"):
			if slices++; slices < 3 {
				s.objects[slice] = obj("discovery.k8s.io/v1", "EndpointSlice", "ops", "hook-1", with([]any{map[string]any{"addresses": []any{"10.0.0.1"}, "conditions": map[string]any{"ready": slices == 2}}}, "endpoints"))
			}
		case r.Method != http.MethodPost:
		case strings.HasSuffix(r.URL.Path, "/configmaps"):
			if created++; s.objects[hook] != nil {
				t.Error("the webhook would refuse it")
			}
		case strings.HasSuffix(r.URL.Path, "/validatingwebhookconfigurations"):
			if slices < 2 || created != 50 {
				t.Errorf("it comes after %d objects, and %d looks at its endpoints", created, slices)
			}
		}
		return 0, false
	}
	webhook := obj("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "", "hook", with([]any{map[string]any{
		"name": "hook.example.com", "failurePolicy": "Fail", "clientConfig": map[string]any{"service": map[string]any{"namespace": "ops", "name": "hook"}},
	}}, "webhooks"))
	objects := append(configMaps("a", 50), webhook, obj("v1", "Namespace", "", "ops"), obj("v1", "Service", "ops", "hook", with(map[string]any{"app": "hook"}, "spec", "selector")))
	want(t, s.run(t.Context(), backupOf(t, objects...), request("r", holdfast.RestoreSpec{})), holdfast.RestorePhaseCompleted)
	if s.objects[hook] == nil {
		t.Error("the webhook is not there")
	}
}
