// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// maintained are the repositories of some namespaces, whose maintenance comes to different ends.
var maintained = struct{ key, store, memory, node, evicted, deleted, killed string }{
	"ends-key", "ends-store", "ends-memory", "ends-node", "ends-evicted", "ends-deleted", "ends-killed",
}

// TestMaintenanceEnds: real Jobs that end in all ways but the good one, side by side. Each is
// told as what it was, in the record and as an event, and the next period works.
func TestMaintenanceEnds(t *testing.T) {
	m := maintained
	all := []string{m.key, m.store, m.memory, m.node, m.evicted, m.deleted, m.killed}
	step("Seven repositories")
	var objects strings.Builder
	for _, namespace := range all {
		fmt.Fprintf(&objects, `{apiVersion: v1, kind: Namespace, metadata: {name: %s}}
---
`, namespace)
	}
	lab.create(t, objects.String())
	objects.Reset()
	for i, namespace := range all {
		lab.must(t, "wait", "--for=create", "--timeout=60s", "-n", namespace, "serviceaccount/default")
		fmt.Fprintf(&objects, `apiVersion: v1
kind: Pod
metadata: {name: pod, namespace: %s}
spec:
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  nodeSelector: {kubernetes.io/hostname: %s}
  containers:
  - name: pause
    image: holdfast.io/lab-pause:dev
    volumeMounts: [{name: scratch, mountPath: /scratch}]
  volumes: [{name: scratch, emptyDir: {}}]
---
`, namespace, nodes[i%len(nodes)])
	}
	lab.create(t, objects.String())
	for _, namespace := range all {
		lab.must(t, "wait", "--for=condition=Ready", "--timeout=120s", "-n", namespace, "pod/pod")
	}
	lab.create(t, backup("ends", all...))
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "ends")

	step("What keeps them from being maintained")
	var mend []func()
	key := exchangeKey(t, m.key)
	lab.create(t, fmt.Sprintf(`apiVersion: v1
kind: ConfigMap
metadata: {name: holdfast-repo-maintenance, namespace: %s}
data:
  %s-%s-kopia: '{"podResources": {"memoryLimit": "8Mi"}}'
  %s-%s-kopia: '{"loadAffinity": [{"nodeSelector": {"matchLabels": {"kubernetes.io/hostname": %q}}}]}'
`, system, m.memory, location, m.node, location, nodes[1]))
	lab.mustShow(t, "cordon", nodes[1])
	mend = append(mend,
		func() { exchangeKey(t, m.key, key...) },
		func() { lab.mustShow(t, "delete", "configmap", "-n", system, "holdfast-repo-maintenance") },
		func() { lab.mustShow(t, "uncordon", nodes[1]) })
	t.Cleanup(func() { _, _ = lab.kubectl(context.Background(), "", "uncordon", nodes[1]) })

	// Those that are to end in their middle are stopped there: they wait for the store until
	// all of them are.
	server, err := lab.process("s3")
	if err != nil {
		t.Fatal(err)
	}
	signal(t, server.PID, syscall.SIGSTOP)
	t.Cleanup(func() { _ = syscall.Kill(server.PID, syscall.SIGCONT) })
	held := []string{m.evicted, m.deleted, m.killed}
	for _, namespace := range append(slices.Clone(held), m.store) {
		every(t, namespace, "5s")
	}
	pods := map[string]corev1.Pod{}
	for _, namespace := range append(slices.Clone(held), m.store) {
		pods[namespace] = maintaining(t, namespace)
	}
	for _, namespace := range held {
		for _, pid := range processes(t, pods[namespace]) {
			signal(t, pid, syscall.SIGSTOP)
		}
	}
	cut := []string{"FORWARD", "-s", pods[m.store].Status.PodIP, "-d", "10.88.0.1", "-p", "tcp", "--dport", server.port()[strings.LastIndex(server.port(), ":")+1:], "-j", "REJECT", "--reject-with", "tcp-reset"}
	netns := "--net=/run/netns/hflab-" + strconv.Itoa(slices.Index(nodes, pods[m.store].Spec.NodeName))
	filter := func(how string) {
		t.Helper()
		if out, err := exec.Command("nsenter", append([]string{netns, "iptables", how}, cut...)...).CombinedOutput(); err != nil {
			t.Fatalf("iptables %s: %v\n%s", how, err, out)
		}
	}
	filter("-I")
	mend = append(mend, func() { filter("-D") })
	signal(t, server.PID, syscall.SIGCONT)
	for _, namespace := range []string{m.key, m.memory, m.node} {
		every(t, namespace, "5s")
	}

	step("The controller is killed in the middle")
	controller := lab.mustPods(t, "controller", 1)[0]
	kill(t, controller)
	eventually(t, "the controller has begun anew", func(ctx context.Context) error {
		pod, err := lab.kube.CoreV1().Pods(system).Get(ctx, controller.Name, metav1.GetOptions{})
		if err == nil && (pod.Status.ContainerStatuses[0].RestartCount == controller.Status.ContainerStatuses[0].RestartCount || !pod.Status.ContainerStatuses[0].Ready) {
			err = fmt.Errorf("it says %+v", pod.Status.ContainerStatuses[0])
		}
		return err
	})
	for _, pid := range processes(t, pods[m.killed]) {
		signal(t, pid, syscall.SIGCONT)
	}
	survived := ended(t, m.killed, 1, "")
	if run := survived.Status.RecentMaintenance[0]; run.Job != pods[m.killed].Labels[batchv1.JobNameLabel] {
		t.Errorf("%s was maintained by %s, and %s was at it when the controller was killed", m.killed, run.Job, pods[m.killed].Labels[batchv1.JobNameLabel])
	}

	step("One is evicted, and one's Job is deleted")
	// The process is told to stop, and does, as soon as it goes on.
	evicted := pods[m.evicted]
	if err := lab.kube.CoreV1().Pods(evicted.Namespace).EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: evicted.Name, Namespace: evicted.Namespace}}); err != nil {
		t.Fatal(err)
	}
	lab.mustShow(t, "delete", "job", "-n", evicted.Namespace, pods[m.deleted].Labels[batchv1.JobNameLabel], "--cascade=background", "--wait=false")
	eventually(t, "the Job says that its pod is to go", func(ctx context.Context) error {
		job, err := lab.kube.BatchV1().Jobs(evicted.Namespace).Get(ctx, evicted.Labels[batchv1.JobNameLabel], metav1.GetOptions{})
		if err == nil && (job.Status.Terminating == nil || *job.Status.Terminating == 0) {
			err = fmt.Errorf("it says %+v", job.Status)
		}
		return err
	})
	for _, namespace := range []string{m.evicted, m.deleted} {
		for _, pid := range processes(t, pods[namespace]) {
			signal(t, pid, syscall.SIGCONT)
		}
	}

	step("Each is told as what it was")
	for _, of := range []struct{ namespace, want string }{
		{m.key, "the key does not open the repository"},
		{m.store, "connection re"}, // refused, or reset
		{m.evicted, "EvictionByEvictionAPI: Eviction API: evicting"},
		{m.deleted, "somebody deleted the Job before it had ended"},
		{m.memory, "OOM"},
		{m.node, "it had not begun after 45s: Unschedulable: 0/2 nodes are available: "},
	} {
		ended(t, of.namespace, 1, of.want)
	}

	step("The next period works")
	for _, how := range mend {
		how()
	}
	for _, namespace := range all {
		every(t, namespace, "5s")
	}
	for _, namespace := range all {
		eventually(t, namespace+" is maintained", func(ctx context.Context) error {
			record, err := repositoryOf(ctx, namespace)
			if err == nil && (record.Status.RecentMaintenance[0].Result != enginev1alpha1.MaintenanceSucceeded || record.Status.Message != "" || record.Status.LastMaintenanceTime == nil) {
				err = fmt.Errorf("it says %+v", record.Status)
			}
			return err
		})
		every(t, namespace, "1000h")
	}
	lab.mustShow(t, "get", "hfrepo", "-n", system)
}

// repositoryOf is the record of a namespace's repository.
func repositoryOf(ctx context.Context, namespace string) (*enginev1alpha1.VolumeRepository, error) {
	return lab.engine.EngineV1alpha1().VolumeRepositories(system).Get(ctx, enginev1alpha1.RepositoryName(namespace, location), metav1.GetOptions{})
}

// every says how often a namespace's repository is maintained.
func every(t *testing.T, namespace, frequency string) {
	t.Helper()
	lab.must(t, "patch", "volumerepositories.engine.holdfast.io", enginev1alpha1.RepositoryName(namespace, location), "-n", system,
		"--type=merge", "-p", `{"spec":{"maintenanceFrequency":"`+frequency+`"}}`)
}

// maintaining waits for the pod that maintains a namespace's repository, until its process runs.
func maintaining(t *testing.T, namespace string) (pod corev1.Pod) {
	t.Helper()
	eventually(t, namespace+" is being maintained", func(ctx context.Context) error {
		record, err := repositoryOf(ctx, namespace)
		if err != nil {
			return err
		}
		list, err := lab.kube.CoreV1().Pods(enginev1alpha1.MaintenanceNamespace(system)).List(ctx, metav1.ListOptions{LabelSelector: "engine.holdfast.io/repository-uid=" + string(record.UID)})
		if err != nil {
			return err
		}
		i := slices.IndexFunc(list.Items, func(p corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
		if i < 0 {
			return fmt.Errorf("of %d pods none runs, and the record says %+v", len(list.Items), record.Status)
		}
		pod = list.Items[i]
		return nil
	})
	return pod
}

// ended waits until so many maintenances of a namespace's repository have ended, all alike: with
// a message, of which an event tells, or well. It has it maintained no more.
func ended(t *testing.T, namespace string, count int, message string) (record *enginev1alpha1.VolumeRepository) {
	t.Helper()
	eventually(t, "the maintenance of "+namespace+" has ended", func(ctx context.Context) (err error) {
		if record, err = repositoryOf(ctx, namespace); err == nil && len(record.Status.RecentMaintenance) < count {
			err = fmt.Errorf("it says %+v", record.Status)
		}
		return err
	})
	every(t, namespace, "1000h")
	recent := record.Status.RecentMaintenance
	first := recent[len(recent)-1]
	fmt.Printf("%s: %s %s\n", namespace, first.Result, first.Message)
	if failed := first.Result == enginev1alpha1.MaintenanceFailed; failed != (message != "") || failed && !strings.Contains(first.Message, message) {
		t.Errorf("the record of %s tells of %+v, want %q", namespace, recent, message)
	}
	if message == "" || t.Failed() {
		return record
	}
	if recent[0].Result == enginev1alpha1.MaintenanceFailed && record.Status.Message != recent[0].Message {
		t.Errorf("%s says %q", namespace, record.Status.Message)
	}
	eventually(t, "an event tells of "+namespace, func(ctx context.Context) error {
		events, err := lab.kube.EventsV1().Events(system).List(ctx, metav1.ListOptions{FieldSelector: "reason=MaintenanceFailed,regarding.name=" + record.Name})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			if strings.Contains(event.Note, message) {
				return nil
			}
		}
		return fmt.Errorf("%d events don't", len(events.Items))
	})
	return record
}

// exchangeKey puts something into the place of the key of a namespace's repository, and returns
// what was there.
func exchangeKey(t *testing.T, namespace string, key ...byte) (before []byte) {
	t.Helper()
	secrets := lab.kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(system))
	secret, err := secrets.Get(t.Context(), enginev1alpha1.KeySecretName(enginev1alpha1.RepositoryName(namespace, location)), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before = secret.Data[enginev1alpha1.KeySecretKey]
	if len(key) == 0 {
		key = []byte("another one")
	}
	secret.Data[enginev1alpha1.KeySecretKey] = key
	if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return before
}
