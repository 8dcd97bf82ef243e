// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

func repositoryOf(namespace string) *enginev1alpha1.VolumeRepository {
	return &enginev1alpha1.VolumeRepository{Spec: enginev1alpha1.VolumeRepositorySpec{VolumeNamespace: namespace, BackupStorageLocation: "default"}}
}

// Documents of Velero's documentation are read; what a repository has of its own goes first.
func TestSettings(t *testing.T) {
	read, err := settings{}.update(map[string]string{
		"global": `{"podResources": {"cpuRequest": "100m", "cpuLimit": "200m", "memoryRequest": "100Mi", "memoryLimit": "200Mi"}, "keepLatestMaintenanceJobs": 1,
			"priorityClassName": "low", "podLabels": {"a": "b", "ours": "changed"}, "podAnnotations": {"c": "d"},
			"loadAffinity": [
				{"nodeSelector": {"matchExpressions": [{"key": "cloud.google.com/machine-family", "operator": "In", "values": ["e2"]}]}},
				{"nodeSelector": {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-central1-a"]}]}}]}`,
		"shop-default-kopia": `{"podResources": {"memoryLimit": "4Gi"}, "loadAffinity": [{"nodeSelector": {"matchLabels": {"disk": "fast"}}}], "priorityClassName": "high"}`,
	})
	if err != nil {
		t.Fatal(err)
	}
	if global := read.of(repositoryOf("other")); global.parsed.CPULimit.String() != "200m" || *global.Keep != 1 || len(global.terms) != 2 {
		t.Errorf("for most it is %+v", global)
	}
	own := read.of(repositoryOf("shop"))
	if own.parsed.MemoryLimit.String() != "4Gi" || !own.parsed.CPURequest.IsZero() || *own.Keep != 1 || own.PriorityClass != "low" {
		t.Errorf("for shop it is %+v", own)
	}
	pod := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"ours": "stays"}}}
	pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}}
	own.apply(&pod)
	term := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0]
	if term.Key != "disk" || term.Values[0] != "fast" || pod.Spec.Affinity.PodAffinity == nil || pod.Labels["ours"] != "stays" || pod.Labels["a"] != "b" || pod.Annotations["c"] != "d" || pod.Spec.PriorityClassName != "low" {
		t.Errorf("the pod is %+v", pod)
	}
}

// A key with a mistake stays as it was, others change, and somebody is told.
func TestInvalidSettings(t *testing.T) {
	recorder := events.NewFakeRecorder(10)
	c := &Controller{Config: Config{Events: recorder}}
	c.configured(&corev1.ConfigMap{Data: map[string]string{"global": `{"keepLatestMaintenanceJobs": 1}`, "shop-default-kopia": `{"keepLatestMaintenanceJobs": 2}`}})
	for name, wrong := range map[string]string{
		"no JSON": `{`, "an unknown field": `{"keep": 1}`, "a negative number": `{"keepLatestMaintenanceJobs": -1}`,
		"no quantity": `{"podResources": {"cpuLimit": "x"}}`, "a limit below the request": `{"podResources": {"cpuRequest": "2", "cpuLimit": "1"}}`,
		"no selector": `{"loadAffinity": [{"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}]}`,
	} {
		c.configured(&corev1.ConfigMap{Data: map[string]string{"global": `{"keepLatestMaintenanceJobs": 5}`, "shop-default-kopia": wrong, "new-default-kopia": wrong}})
		if own, global, fresh := c.setting(repositoryOf("shop")), c.setting(repositoryOf("other")), c.setting(repositoryOf("new")); *own.Keep != 2 || *global.Keep != 5 || *fresh.Keep != 5 {
			t.Errorf("%s: %+v, %+v, %+v", name, own, global, fresh)
		}
		select {
		case said := <-recorder.Events:
			if !strings.Contains(said, "InvalidMaintenance") || !strings.Contains(said, "shop-default-kopia") {
				t.Errorf("%s: %s", name, said)
			}
		default:
			t.Errorf("%s: there is no event", name)
		}
	}
	c.configured(nil)
	if none := c.setting(repositoryOf("shop")); none.Keep != nil {
		t.Errorf("without a ConfigMap it is %+v", none)
	}
}
