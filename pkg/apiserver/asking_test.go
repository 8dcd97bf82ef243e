// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// TestSchedulesAskWithAllThatTheirRequesterHad: an authorizer may take rights from the extras of a user, as
// from a token's scope. No recorded extra makes a backup one of a schedule.
func TestSchedulesAskWithAllThatTheirRequesterHad(t *testing.T) {
	var asked http.Header
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Header
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"apiVersion":"holdfast.io/v1alpha1","kind":"Backup","metadata":{"name":"b"}}`))
	}))
	defer server.Close()
	a := asking{loopback: &rest.Config{Host: server.URL}}
	by := enginev1alpha1.Requester{Username: "ann", Extra: map[string][]string{"scopes.example.com": {"read", "backup"}, recorded.ExtraScheduleUID: {"forged"}, recorded.ExtraSchedule: {"forged"}}}
	backup := &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "b"}}
	nightly := &v1alpha1.Schedule{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "nightly", UID: "uid-of-nightly"}}
	if err := a.Create(t.Context(), by, nightly, backup); err != nil {
		t.Fatal(err)
	}
	const prefix = "Impersonate-Extra-"
	if scopes := asked.Values(prefix + "scopes.example.com"); len(scopes) != 2 || asked.Get("Impersonate-User") != "ann" {
		t.Errorf("it was asked with %v", asked)
	}
	if by := asked.Values(prefix + "Holdfast.io%2fschedule-Uid"); len(by) != 1 || by[0] != "uid-of-nightly" {
		t.Errorf("the schedule is %q of %v", by, asked)
	}
	asked = nil
	if err := a.Delete(t.Context(), by, nightly, "b", "uid-of-b"); err != nil {
		t.Fatal(err)
	}
	if by := asked.Values(prefix + "Holdfast.io%2fschedule"); len(by) != 1 || by[0] != "shop/nightly" {
		t.Errorf("the deletion is caused by %q of %v", by, asked)
	}
}
