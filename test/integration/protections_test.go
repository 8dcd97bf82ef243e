// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// workload is a manifest of one without pods: kind, name, annotations.
const workload = `apiVersion: apps/v1
kind: %s
metadata: {name: %s, annotations: %s}
spec:
  %s
  selector: {matchLabels: {app: x}}
  template:
    metadata: {labels: {app: x}}
    spec: {containers: [{name: main, image: example.com/none}]}
`

// TestProtections: a developer sees which workloads and claims have a good backup, by the real kubectl
// and the plugin, and is told no name of an administrator's backup or schedule.
func TestProtections(t *testing.T) {
	t.Parallel()
	ann, namespace, bare := labtest.Name("ann"), lab.Namespace(t, "protected"), lab.Namespace(t, "bare")
	for _, of := range []string{namespace, bare} {
		lab.Grant(t, ann, "edit", of)
	}
	create := func(in, kind, name, annotations string) {
		t.Helper()
		more := "replicas: 0"
		if kind == "StatefulSet" {
			more += "\n  serviceName: none"
		}
		if _, stderr, err := lab.TryKubectl(t, fmt.Sprintf(workload, kind, name, annotations, more), "create", "-n", in, "-f", "-"); err != nil {
			t.Fatalf("creating %s: %v: %s", name, err, stderr)
		}
	}
	states := func(in string) map[string]string {
		t.Helper()
		list, err := lab.Holdfast.HoldfastV1alpha1().Protections(in).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, p := range list.Items {
			all[p.Name] = string(p.Status.Protected)
		}
		return all
	}
	await := func(in string, want map[string]string) {
		t.Helper()
		labtest.Eventually(t, fmt.Sprintf("the protections of %s to be %v", in, want), func() error {
			if got := states(in); fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("they are %v", got)
			}
			return nil
		})
	}

	pod, folder := lab.PodWithClaim(t, namespace, labtest.Node)
	fill(t, folder)
	create(namespace, "Deployment", "web", "{}")
	create(namespace, "Deployment", "strict", "{"+v1alpha1.AnnotationRPO+": 1s}")
	if _, err := lab.Kube.CoreV1().PersistentVolumeClaims(namespace).Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "unused"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new("none"),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	create(bare, "Deployment", "alone", "{}")
	none := string(v1alpha1.ProtectionNone)
	podRow := "pod." + pod.Name
	await(namespace, map[string]string{"deployment.web": none, "deployment.strict": none, podRow: none, "persistentvolumeclaim.data": none, "persistentvolumeclaim.unused": none})

	// An administrator's backup, whose name a tenant is not told.
	audit, drill := labtest.Name("stocktaking"), labtest.Name("drill")
	if _, err := lab.Holdfast.HoldfastV1alpha1().Schedules(labtest.System).Create(t.Context(), &v1alpha1.Schedule{
		ObjectMeta: metav1.ObjectMeta{Name: drill},
		Spec:       v1alpha1.ScheduleSpec{Schedule: "0 3 * * *", Paused: true, Template: v1alpha1.ScheduleTemplate{BackupSpec: v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lab.Create(t, labtest.System, audit, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}})
	lab.AwaitCompleted(t, audit)
	create(namespace, "StatefulSet", "young", "{}")
	await(namespace, map[string]string{
		"deployment.web": "Yes", "deployment.strict": "Late", podRow: "Yes", "statefulset.young": none,
		"persistentvolumeclaim.data": "Yes", "persistentvolumeclaim.unused": none,
	})
	await(bare, map[string]string{"deployment.alone": none})
	labtest.Eventually(t, "the schedule", func() error {
		if table := lab.Kubectl(t, "get", "hfp", "-A", "--field-selector=metadata.namespace="+namespace); !strings.Contains(table, labtest.System+"/"+drill) || !strings.Contains(table, labtest.System+"/"+audit) {
			return fmt.Errorf("an administrator sees %s", table)
		}
		return nil
	})
	table := lab.Kubectl(t, "get", "protections", "-n", namespace, "--as="+ann, "-o", "wide")
	for _, want := range []string{"another backup", "another schedule", none, "Late", "1s Annotation", "36h0m0s Schedule"} {
		if !strings.Contains(table, want) {
			t.Errorf("kubectl prints no %s: %s", want, table)
		}
	}
	for _, path := range []string{"/protections", "/protections/deployment.web"} {
		for _, accept := range []string{"application/json", asTable} {
			answer := lab.RequestAs(t, ann, http.MethodGet, api+"/namespaces/"+namespace+path, accept)
			if answer.Code != http.StatusOK {
				t.Errorf("%s is answered with %d: %s", path, answer.Code, answer.Body)
			}
			mustNotContain(t, "what ann is told", string(answer.Body), []string{audit, drill})
		}
	}
	if answer := lab.RequestAs(t, ann, http.MethodGet, api+"/protections", ""); answer.Code != http.StatusForbidden {
		t.Errorf("a list of all namespaces is answered with %d", answer.Code)
	}

	// By the plugin, what is unprotected comes first.
	got := must(t, ann, []string{"protection", "-n", namespace}, "another backup")
	if strings.Index(got, "statefulset.young") > strings.Index(got, "deployment.web") {
		t.Errorf("the unprotected ones do not come first: %s", got)
	}
	must(t, "", []string{"protection", "-A", "-o", "json"}, `"ProtectionList"`, audit, "deployment.alone")
	must(t, ann, []string{"status", "-n", namespace}, "Protections: 2 of 6 workloads and claims are unprotected, 1 late")

	// A deployment made anew is another one, and a backup that is deleted protects nothing.
	lab.Kubectl(t, "delete", "deployment", "web", "-n", namespace)
	create(namespace, "Deployment", "web", "{}")
	labtest.Eventually(t, "the Deployment that was made anew", func() error {
		if got := states(namespace)["deployment.web"]; got != none {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
	must(t, "", []string{"backup", "delete", audit, "-n", labtest.System, "--yes"})
	await(namespace, map[string]string{
		"deployment.web": none, "deployment.strict": none, podRow: none, "statefulset.young": none,
		"persistentvolumeclaim.data": none, "persistentvolumeclaim.unused": none,
	})
	lab.Kubectl(t, "delete", "schedule", drill, "-n", labtest.System)
}
