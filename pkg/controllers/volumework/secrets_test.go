// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumework

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest/fake"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// TestSecrets: while no API server gives an answer it is asked again, and so for a while when it
// refuses one; what it does not have, or nobody needs, it is not asked for again.
func TestSecrets(t *testing.T) {
	status := func(err *apierrors.StatusError) string {
		said := err.Status()
		said.APIVersion, said.Kind = "v1", "Status"
		text, _ := json.Marshal(said)
		return string(text)
	}
	resource := enginev1alpha1.Resource("volumeuploads")
	answers := map[string]struct {
		code int
		body string
	}{
		"given":     {http.StatusOK, `{"items": [{"metadata": {"name": "key"}, "data": {"a": "Yg=="}}]}`},
		"away":      {http.StatusServiceUnavailable, "service unavailable"},
		"older":     {http.StatusNotFound, "404 page not found"},
		"gone":      {http.StatusNotFound, status(apierrors.NewNotFound(resource, "r"))},
		"broken":    {http.StatusOK, `{"items": [`},
		"done":      {http.StatusConflict, status(apierrors.NewConflict(resource, "r", fmt.Errorf("it is Completed")))},
		"forbidden": {http.StatusForbidden, status(apierrors.NewForbidden(resource, "r", fmt.Errorf("it may not")))},
		"internal":  {http.StatusInternalServerError, status(apierrors.NewInternalError(fmt.Errorf("it can't")))},
	}
	for _, one := range []struct {
		name, answers, want string
		after               time.Duration // in seconds
	}{
		{"given at once", "given", "", 0},
		{"after others", "away older away forbidden broken given", "", 1 + 2 + 4 + 8 + 15},
		{"gone", "away gone", `"r" not found`, 1},
		{"done", "away done", "it is Completed", 1},
		{"refused", "forbidden", "it may not", 1 + 2 + 4 + 8 + 7*15},
		{"refused by a server that can't", "internal", "it can't", 1 + 2 + 4 + 8 + 7*15},
		{"refused for a while", "forbidden forbidden forbidden forbidden forbidden forbidden forbidden forbidden away forbidden given", "", 1 + 2 + 4 + 8 + 6*15},
		{"never", "away", "deadline exceeded, while it waited for its Secrets: the server is currently unable", 3600},
		{"never by an older one", "older", "deadline exceeded, while it waited for its Secrets: the server could not find", 3600},
	} {
		t.Run(one.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				next := strings.Fields(one.answers)
				client := &fake.RESTClient{
					GroupVersion: enginev1alpha1.SchemeGroupVersion, NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
					Client: fake.CreateHTTPClient(func(r *http.Request) (*http.Response, error) {
						if want := "/namespaces/holdfast/volumeuploads/r/secrets"; !strings.HasSuffix(r.URL.Path, want) {
							t.Errorf("it asks for %s, want %s", r.URL.Path, want)
						}
						answer := answers[next[0]]
						if len(next) > 1 {
							next = next[1:]
						}
						header := http.Header{"Content-Type": {"application/json"}}
						return &http.Response{StatusCode: answer.code, Header: header, Body: io.NopCloser(strings.NewReader(answer.body)), Request: r}, nil
					}),
				}
				begin := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				secrets, err := Secrets(client, "holdfast")(ctx, "volumeuploads", "r")
				if took := time.Since(begin); took != one.after*time.Second {
					t.Errorf("it took %s, want %s", took, one.after*time.Second)
				}
				if one.want == "" && (err != nil || len(secrets) != 1 || secrets[0].Name != "key" || string(secrets[0].Data["a"]) != "b") {
					t.Errorf("it gave %v, %v", secrets, err)
				}
				if one.want != "" && (err == nil || !strings.Contains(err.Error(), one.want)) {
					t.Errorf("it gave %v, %v, want %q", secrets, err, one.want)
				}
			})
		})
	}
}

// TestWhatIsGone: a record is not taken for gone, and what was stored for it removed, because
// nobody serves its path.
func TestWhatIsGone(t *testing.T) {
	for _, one := range []struct {
		err  error
		want bool
	}{
		{apierrors.NewNotFound(enginev1alpha1.Resource("volumeuploads"), "r"), true},
		{apierrors.NewGenericServerResponse(http.StatusNotFound, "get", enginev1alpha1.Resource("volumeuploads"), "r", "404 page not found", 0, true), false},
		{context.Canceled, false},
		{nil, false},
	} {
		if got := isGone(one.err); got != one.want {
			t.Errorf("%v: %t", one.err, got)
		}
	}
}
