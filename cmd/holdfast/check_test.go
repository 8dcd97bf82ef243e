// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	holdfastfake "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned/fake"
)

// TestCheck: an API that answers after a while is good, and one that never does is an error with
// its last answer.
func TestCheck(t *testing.T) {
	client := holdfastfake.NewSimpleClientset(&v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Name: "first", Namespace: "holdfast"}})
	refusals := 1
	client.PrependReactor("list", "backups", func(clienttesting.Action) (bool, runtime.Object, error) {
		refusals--
		return refusals >= 0, nil, errors.New("the server is currently unable to handle the request")
	})
	var out bytes.Buffer
	if err := check(t.Context(), client, "holdfast", time.Minute, &out); err != nil || !strings.Contains(out.String(), "1 backups in holdfast") {
		t.Errorf("got %v, and %q", err, out.String())
	}
	refusals = 1 << 30
	if err := check(t.Context(), client, "holdfast", 500*time.Millisecond, &out); err == nil || !strings.Contains(err.Error(), "unable to handle") {
		t.Errorf("got %v, want the last answer", err)
	}
}
