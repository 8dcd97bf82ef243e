// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// TestExecSaysWhatDidNotRun: a command may be asked for again if nobody has begun it, whatever
// the answer that says so looks like.
func TestExecSaysWhatDidNotRun(t *testing.T) {
	const status = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"not now","reason":"ServiceUnavailable","code":503}`
	for name, test := range map[string]struct {
		code   int // 0 is that nobody listens, and -1 that the connection breaks
		body   string
		notRun bool
	}{
		"nobody listens":          {0, "", true},
		"too many requests":       {http.StatusTooManyRequests, "Too many requests, please try again later.", true},
		"the server shuts down":   {http.StatusServiceUnavailable, status, true},
		"the server has a fault":  {http.StatusInternalServerError, "boom", false},
		"the connection breaks":   {-1, "", false},
		"the container is wrong":  {http.StatusBadRequest, "no such container", false},
		"somebody may not run it": {http.StatusForbidden, "you may not", false},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if test.code < 0 {
					panic(http.ErrAbortHandler)
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(test.code)
				_, _ = io.WriteString(w, test.body)
			}))
			defer server.Close()
			if test.code == 0 {
				server.Close()
			}
			config := &rest.Config{Host: server.URL}
			client := &Client{Kube: kubernetes.NewForConfigOrDie(config), Config: config}
			_, err := client.Exec(t.Context(), enginev1alpha1.PodReference{Namespace: "shop", Name: "db"}, "c", []string{"freeze"})
			if _, notRun := errors.AsType[NotRunError](err); err == nil || notRun != test.notRun {
				t.Errorf("%v (%T)", err, err)
			}
		})
	}
}

func TestOutputIsBounded(t *testing.T) {
	var b bounded
	if _, err := io.Copy(&b, strings.NewReader(strings.Repeat("x", 3*maxOutput))); err != nil {
		t.Fatal(err)
	}
	if text := b.text(); len(text) > maxOutput+40 || !strings.HasSuffix(text, "... and 8192 bytes more") {
		t.Errorf("%d bytes, ends with %q", len(text), text[len(text)-30:])
	}
}

// TestIdleWords: what a word for resources of hooks means that is no pod is told, and so is one that
// leaves all pods out.
func TestIdleWords(t *testing.T) {
	words := Words{Name: "db", IncludedResources: []string{"pods", "Pod", "PO", "po*", "*", "deployments"}, ExcludedResources: []string{"secrets", "Pods"}}
	told := strings.Join(words.Idle(), "\n")
	for _, text := range []string{`have "deployments" in includedResources, which applies to nothing`, `have "secrets" in excludedResources, which applies to nothing`, `have "Pods" in excludedResources, so that they never run`} {
		if !strings.Contains(told, text) {
			t.Errorf("%q is not told: %s", text, told)
		}
	}
	if strings.Count(told, "\n") != 2 {
		t.Errorf("told is %s", told)
	}
}
