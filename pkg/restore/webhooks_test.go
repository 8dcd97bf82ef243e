// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
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
	want(t, s.run(t.Context(), backupOf(t, objects...), request("r", v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted)
	if s.objects[hook] == nil {
		t.Error("the webhook is not there")
	}
}

// webhooksAwaited shortens how long webhooks are waited for, and gives a server one of which refuses
// what is(request) says.
func webhooksAwaited(t *testing.T, is func(r *http.Request) bool) *fakeServer {
	timeout, last, denied, interval := webhookTimeout, webhookEndTimeout, deniedEndTimeout, webhookInterval
	webhookTimeout, webhookEndTimeout, deniedEndTimeout, webhookInterval = 50*time.Millisecond, 60*time.Millisecond, 60*time.Millisecond, 5*time.Millisecond
	t.Cleanup(func() {
		webhookTimeout, webhookEndTimeout, deniedEndTimeout, webhookInterval = timeout, last, denied, interval
	})
	s := newFakeServer(t)
	s.faultText = `Internal error occurred: failed calling webhook "check.example.com": failed to call webhook: Post "https://hook.ops.svc:443/": dial tcp 10.0.0.1:443: connect: connection refused`
	s.fault = func(r *http.Request) (int, bool) {
		if is(r) {
			return http.StatusInternalServerError, false
		}
		return 0, false
	}
	return s
}

// TestWebhookForAMomentAway: a webhook that does not answer for a moment costs no object.
func TestWebhookForAMomentAway(t *testing.T) {
	away := 0
	s := webhooksAwaited(t, func(r *http.Request) bool {
		if r.Method != http.MethodPost || strings.HasSuffix(r.URL.Path, "/secrets") {
			return false
		}
		away++
		return away < 4
	})
	backup := backupOf(t, obj("v1", "Namespace", "", "a"), obj("v1", "ConfigMap", "a", "c"), obj("v1", "Secret", "a", "s"))
	ended := s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{}))
	want(t, ended, v1alpha1.RestorePhaseCompleted)
	if ended.Status.Warnings > 0 || s.get("configmaps", "a", "c") == nil {
		t.Errorf("the restore is %+v", ended.Status)
	}
}

// TestWebhookOfTheRestore: a webhook whose pods come back with the restore refuses what comes before
// them. That is written when all else is there, with what needs it.
func TestWebhookOfTheRestore(t *testing.T) {
	var s *fakeServer
	const hook = "deployments.apps/a/hook"
	s = webhooksAwaited(t, func(r *http.Request) bool {
		return r.Method == http.MethodPost && slices.ContainsFunc([]string{"/configmaps", "/customresourcedefinitions"}, func(kind string) bool { return strings.HasSuffix(r.URL.Path, kind) }) && s.objects[hook] == nil
	})
	backup := backupOf(t, obj("v1", "Namespace", "", "a"), obj("v1", "ConfigMap", "a", "c"), obj("v1", "ConfigMap", "a", "d"), obj("apps/v1", "Deployment", "a", "hook"),
		definition("example.com", "Widget"), obj("example.com/v1", "Widget", "a", "w"))
	ended := s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{}))
	want(t, ended, v1alpha1.RestorePhaseCompleted)
	if p := ended.Status.Progress; ended.Status.Warnings > 0 || p.ItemsCreated != 6 || p.ItemsRestored != p.TotalItems {
		t.Errorf("the restore is %+v, %+v", ended.Status, ended.Status.Progress)
	}
}

// TestDeniedForAMoment: what admission denies, since what it looks at comes later in the restore, is
// written at the end. What it goes on denying is an error each.
func TestDeniedForAMoment(t *testing.T) {
	const param = "deployments.apps/a/params"
	s := webhooksAwaited(t, func(*http.Request) bool { return false })
	s.faultText = `configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: failed to configure binding: no params found`
	s.fault = func(r *http.Request) (int, bool) {
		if r.Method == http.MethodPost && (strings.HasSuffix(r.URL.Path, "/configmaps") && s.objects[param] == nil || strings.HasSuffix(r.URL.Path, "/secrets")) {
			return http.StatusForbidden, false
		}
		return 0, false
	}
	backup := backupOf(t, obj("v1", "Namespace", "", "a"), obj("v1", "ConfigMap", "a", "c"), obj("v1", "Secret", "a", "s"), obj("apps/v1", "Deployment", "a", "params"))
	ended := s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{}))
	want(t, ended, v1alpha1.RestorePhasePartiallyFailed, "denied request")
	if ended.Status.Errors != 1 || s.get("configmaps", "a", "c") == nil {
		t.Errorf("the restore is %+v", ended.Status)
	}
}

// TestWebhookThatIsGone: one that never answers is waited for twice, by all that it refuses, and each
// of these is an error.
func TestWebhookThatIsGone(t *testing.T) {
	s := webhooksAwaited(t, func(r *http.Request) bool {
		return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/configmaps")
	})
	began := time.Now()
	ended := s.run(t.Context(), backupOf(t, append(configMaps("a", 100), obj("v1", "Secret", "a", "s"))...), request("r", v1alpha1.RestoreSpec{}))
	want(t, ended, v1alpha1.RestorePhasePartiallyFailed, "the webhook check.example.com has not answered for 50ms, and for 60ms at the end of the restore: see why")
	if ended.Status.Errors != 100 || s.get("secrets", "a", "s") == nil {
		t.Errorf("the restore is %+v", ended.Status)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}
