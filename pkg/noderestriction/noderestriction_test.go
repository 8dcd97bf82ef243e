// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// TestAnswers: each answer of kube-apiserver is understood. The request is a dry run as a node, and
// there is one.
func TestAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		code    int
		message string
		want    State
		err     string
	}{
		"it is created":        {http.StatusCreated, "", Off, ""},
		"NodeRestriction":      {http.StatusForbidden, `pods "check" is forbidden: pod does not have "kubernetes.io/config.mirror" annotation, node "check" can only create mirror pods`, On, ""},
		"PodSecurity":          {http.StatusForbidden, `pods "check" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false`, Off, ""},
		"a webhook":            {http.StatusForbidden, `admission webhook "validate.kyverno.svc-fail" denied the request: image none`, Off, ""},
		"a webhook, by nature": {http.StatusBadRequest, `admission webhook "a.example.com" does not support dry run`, Off, ""},
		"a policy":             {http.StatusUnprocessableEntity, `pods "check" is forbidden: ValidatingAdmissionPolicy 'images' with binding 'images' denied request: image none`, Off, ""},
		"a quota":              {http.StatusForbidden, `pods "check" is forbidden: exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1`, Off, ""},
		"no right to act":      {http.StatusForbidden, `users "system:node:check" is forbidden: User "ann" cannot impersonate resource "users" in API group "" at the cluster scope`, Unknown, "cannot impersonate"},
		"no namespace":         {http.StatusNotFound, `namespaces "holdfast" not found`, Unknown, "not found"},
		"an outage":            {http.StatusServiceUnavailable, `etcd is away`, Unknown, "etcd is away"},
	} {
		t.Run(name, func(t *testing.T) {
			requests := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests++
				if r.Method != http.MethodPost || r.URL.Path != "/api/v1/namespaces/holdfast/pods" || r.URL.Query().Get("dryRun") != "All" || r.Header.Get("Impersonate-User") != "system:node:check" || r.Header.Get("Impersonate-Group") != "system:nodes" {
					t.Errorf("got %s %s as %v", r.Method, r.URL, r.Header)
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(test.code)
				var answer any = map[string]any{"apiVersion": "v1", "kind": "Pod"}
				if test.code >= 300 {
					answer = &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(test.code), Message: test.message}
				}
				if err := json.NewEncoder(w).Encode(answer); err != nil {
					t.Error(err)
				}
			}))
			defer server.Close()
			got, err := Check(t.Context(), &rest.Config{Host: server.URL}, "holdfast")
			if got != test.want || (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %s, %v", got, err)
			}
			if requests != 1 {
				t.Errorf("%d requests", requests)
			}
		})
	}
}
