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

// TestPodSecurity: the system namespace admits no pod that the restricted policy
// refuses. The agents mount the kubelet's folder of pods, so they run in a namespace of
// their own, with what they need and no more.
func TestPodSecurity(t *testing.T) {
	step("The restricted policy holds for all pods but the agents")
	for _, namespace := range []string{system, "holdfast-locations", "holdfast-repositories"} {
		for _, command := range []string{
			"run intruder --image=holdfast.io/lab-busybox:dev --dry-run=server -n " + namespace, // as root
			"run intruder --image=holdfast.io/lab-busybox:dev --privileged --dry-run=server -n " + namespace,
		} {
			if _, err := lab.kubectl(t.Context(), "", strings.Fields(command)...); err == nil || !strings.Contains(err.Error(), `violates PodSecurity "restricted`) {
				t.Errorf("%s: %v", command, err)
			}
		}
	}
	for _, component := range []string{"apiserver", "controller"} {
		pods, err := lab.pods(t.Context(), component)
		if err != nil || len(pods) == 0 || pods[0].Namespace != system {
			t.Errorf("pods of the component %s: %v, %v", component, pods, err)
		}
	}

	heard := &warnings{}
	config := rest.CopyConfig(lab.config)
	config.WarningHandlerWithContext = heard
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	const restricted = `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`
	_, err = client.CoreV1().Namespaces().Patch(t.Context(), agentsNamespace, types.MergePatchType, []byte(restricted), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
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
		t.Error("others than the agents of both nodes run beside them")
	}
	for _, excess := range []string{"privileged", "host namespaces", "allowPrivilegeEscalation", "seccomp"} {
		if strings.Contains(agents, excess) {
			t.Errorf("the agents have more rights than they need: %s", excess)
		}
	}
}

// TestSecretsOfOthers asks for Secrets with the rights of the running pods' accounts.
func TestSecretsOfOthers(t *testing.T) {
	step("The API server reads no Secrets but those of its work, and the agents none by themselves")
	ask := func(account, namespace, secret string) error {
		_, err := lab.kubectl(t.Context(), "", "get", "secret", secret, "-n", namespace, "--as=system:serviceaccount:"+account)
		return err
	}
	const apiserver, agent = system + ":holdfast-apiserver", agentsNamespace + ":holdfast-node-agent"
	if err := ask(apiserver, "holdfast-locations", "bucket"); err != nil {
		t.Error(err)
	}
	for _, refused := range [][3]string{
		{apiserver, system, "holdfast-signing-key"}, {agent, system, "holdfast-signing-key"}, {agent, "holdfast-locations", "bucket"},
		{agent, system, "holdfast-encryption-key"},
	} {
		if err := ask(refused[0], refused[1], refused[2]); err == nil || !strings.Contains(err.Error(), "Forbidden") {
			t.Errorf("%s asks for the Secret %s: %v", refused[0], refused[2], err)
		}
	}
}
