// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
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
	// The first warning says what follows: one for all pods that do the same, with
	// the name of the first one and the number of the others.
	fmt.Println(strings.Join(heard.texts, "\n"))
	if len(heard.texts) != 2 {
		t.Fatalf("%d warnings, want one about all pods and one about the agents", len(heard.texts))
	}
	agents := heard.texts[1]
	if !strings.HasPrefix(agents, "holdfast-node-agent-") || !strings.Contains(agents, "(and 1 other pod)") {
		t.Error("the policy refuses others than the agents of both nodes")
	}
	for _, excess := range []string{"privileged", "host namespaces", "allowPrivilegeEscalation", "seccomp"} {
		if strings.Contains(agents, excess) {
			t.Errorf("the agents have more rights than they need: %s", excess)
		}
	}
}
