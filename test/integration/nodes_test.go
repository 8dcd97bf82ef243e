// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestNodeAgents: what kubectl says of an agent follows the ConfigMap, the node's labels
// and the work, without a restart, and of a node without an agent what one would do; and an
// agent that was killed is shown so within a minute.
func TestNodeAgents(t *testing.T) {
	show := func(node, want string) {
		t.Helper()
		labtest.Eventually(t, "the agent of "+node, func() error {
			stdout, stderr, err := lab.TryKubectl(t, "", "get", "hfn", node, "-o", "wide", "--no-headers")
			if err != nil { // it may not be shown yet
				return fmt.Errorf("%w: %s", err, stderr)
			}
			row := strings.Join(strings.Fields(stdout), " ")
			if !strings.HasPrefix(row, node+" "+want) {
				return fmt.Errorf("it is %q, not %q", row, want)
			}
			return nil
		})
	}
	problem := func(node, want string) {
		t.Helper()
		labtest.Eventually(t, "the problem of "+node, func() error {
			if row := lab.Kubectl(t, "get", "hfn", node, "-o", "wide", "--no-headers"); !strings.Contains(row, want) {
				return fmt.Errorf("it is not %q: %s", want, row)
			}
			return nil
		})
	}
	const configMap = "holdfast-node-agent"
	configMaps := lab.Kube.CoreV1().ConfigMaps(labtest.System)
	configure := func(concurrency string) {
		t.Helper()
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: configMap}, Data: map[string]string{"config.json": `{"loadConcurrency": ` + concurrency + `}`}}
		_, err := configMaps.Update(t.Context(), object, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			_, err = configMaps.Create(t.Context(), object, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	label := func(ctx context.Context, node, value string) {
		t.Helper()
		patch := []byte(`{"metadata": {"labels": {"size": ` + value + `}}}`)
		if _, err := lab.Kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		label(context.Background(), labtest.Node, "null")
		label(context.Background(), labtest.Unattended, "null")
		if err := configMaps.Delete(context.Background(), configMap, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})

	show(labtest.Node, "True 1 default 0 0 -")
	show(labtest.Unattended, "False 1 default 0 0 -")
	problem(labtest.Unattended, "no agent runs on this node")

	t.Log("the ConfigMap and the labels")
	rules := func(global int) string {
		return fmt.Sprintf(`{"globalConfig": %d, "perNodeConfig": [{"nodeSelector": {"matchLabels": {"size": "large"}}, "number": 3}]}`, global)
	}
	configure(rules(2))
	show(labtest.Node, "True 2 globalConfig 0 0 -")
	show(labtest.Unattended, "False 2 globalConfig 0 0 -")
	label(t.Context(), labtest.Node, `"large"`)
	show(labtest.Node, "True 3 perNodeConfig[0] 0 0 -")
	show(labtest.Unattended, "False 2 globalConfig 0 0 -")
	if list := lab.Kubectl(t, "get", "nodeagents", "-l", "size=large", "--field-selector", "status.limit=3", "-o", "name"); list != "nodeagent.holdfast.io/"+labtest.Node+"\n" {
		t.Errorf("by its label and limit there is %q", list)
	}
	configure(`{"globalConfig": 0, "perNodeConfig": []}`)
	show(labtest.Node, "True 2 globalConfig 0 0 -") // as before; the rules are right, and there are none
	problem(labtest.Node, "globalConfig: must be")
	show(labtest.Unattended, "False 1 default 0 0 -") // an agent that starts now has no before
	problem(labtest.Unattended, "globalConfig: must be")
	label(t.Context(), labtest.Unattended, `"large"`)
	configure(rules(1))
	show(labtest.Unattended, "False 3 perNodeConfig[0] 0 0 -")
	label(t.Context(), labtest.Node, `"small"`)

	t.Log("the work")
	var namespaces, large []string
	for range 2 {
		namespace := lab.Namespace(t, "large")
		_, folder := lab.PodWithClaim(t, namespace, labtest.Node)
		file := filepath.Join(folder, "large.img")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		// Reading its zeros takes longer than this test.
		if err := os.Truncate(file, 1<<40); err != nil {
			t.Fatal(err)
		}
		namespaces, large = append(namespaces, namespace), append(large, file)
	}
	backup := lab.Create(t, labtest.System, labtest.Name("large"), v1alpha1.BackupSpec{IncludedNamespaces: namespaces, DefaultVolumesToFsBackup: new(true)})
	show(labtest.Node, "True 1 globalConfig 1 1 ")
	problem(labtest.Node, "0 restores, 1 backups")
	labtest.Eventually(t, "the throughput", func() error {
		agent, err := lab.Holdfast.HoldfastV1alpha1().NodeAgents().Get(t.Context(), labtest.Node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if status := agent.Status; status.BytesPerSecond == 0 || status.WaitingSince == nil || status.Version == "" {
			return fmt.Errorf("the status is %+v", status)
		}
		return nil
	})
	label(t.Context(), labtest.Node, `"large"`)
	show(labtest.Node, "True 3 perNodeConfig[0] 2 0 ")

	t.Log("the end of the agent")
	lab.Kill(t, labtest.Agent)
	killed := time.Now()
	show(labtest.Node, "False 3 perNodeConfig[0] 2 0 ")
	problem(labtest.Node, "the agent of this node gives no sign of life")
	agent, err := lab.Holdfast.HoldfastV1alpha1().NodeAgents().Get(t.Context(), labtest.Node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	configure(rules(4))
	label(t.Context(), labtest.Node, "null")
	show(labtest.Node, "False 4 globalConfig 2 0 ") // what it would have now
	label(t.Context(), labtest.Node, `"large"`)
	silent := meta.FindStatusCondition(agent.Status.Conditions, v1alpha1.ConditionAgentReady)
	if took := silent.LastTransitionTime.Sub(killed); took > time.Minute {
		t.Errorf("it was shown as there for %s after it was killed", took)
	}
	for _, file := range large {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	lab.Start(t, labtest.Agent)
	show(labtest.Node, "True 3 perNodeConfig[0] 0 0 ")
	lab.AwaitCompleted(t, backup.Name) // the volumes were begun anew
}
