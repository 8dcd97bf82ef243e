// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// warnings collects the warnings that a server sends.
type warnings struct {
	mu    sync.Mutex
	texts []string
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (w *warnings) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

// TestPodSecurity asks which of the running pods the restricted policy would
// refuse: none but the agents, which mount the kubelet's folder of pods.
func TestPodSecurity(t *testing.T) {
	step("The restricted policy refuses the agents, and no other pod")
	heard := &warnings{}
	config := rest.CopyConfig(lab.config)
	config.WarningHandlerWithContext = heard
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	const restricted = `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`
	_, err = client.CoreV1().Namespaces().Patch(t.Context(), system, types.MergePatchType, []byte(restricted), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Fatal(err)
	}
	// The first warning says what the others are: a pod each, and what it does.
	t.Logf("kube-apiserver warns: %q", heard.texts)
	if len(heard.texts) < 2 || !slices.ContainsFunc(heard.texts, func(s string) bool { return strings.HasPrefix(s, "holdfast-node-agent-") }) {
		t.Fatal("no warning is about the agents: were the pods looked at?")
	}
	for _, text := range heard.texts[1:] {
		if !strings.HasPrefix(text, "holdfast-node-agent-") {
			t.Errorf("the restricted policy refuses %s", text)
		}
		if strings.Contains(text, "privileged") || strings.Contains(text, "host namespaces") {
			t.Errorf("an agent has more than it needs: %s", text)
		}
	}
}
