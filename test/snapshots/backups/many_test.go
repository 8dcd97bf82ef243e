// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backups

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
	"github.com/holdfast-io/holdfast/test/snapshots/kubelet"
)

// manyClaims is the number of claims whose snapshots are made at once. HOLDFAST_BENCH_CLAIMS sets another.
const manyClaims = 100

// atOnce is how many volumes the agent reads at once. It stands for a cluster of some nodes: it decides how many volumes
// are made from snapshots at a time.
const atOnce = 8

// moveAtOnce sets the limit of the agent until the benchmark ends.
func moveAtOnce(b *testing.B, limit int) {
	b.Helper()
	maps := lab.Kube.CoreV1().ConfigMaps(labtest.System)
	_, err := maps.Create(b.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "holdfast-node-agent"},
		Data:       map[string]string{"config.json": fmt.Sprintf(`{"loadConcurrency": {"globalConfig": %d}}`, limit)},
	}, metav1.CreateOptions{})
	must(b, err)
	b.Cleanup(func() { must(b, maps.Delete(context.Background(), "holdfast-node-agent", metav1.DeleteOptions{})) })
	await(b, "the agent to take the limit up", func() error {
		agent, err := lab.Holdfast.HoldfastV1alpha1().NodeAgents().Get(b.Context(), labtest.Node, metav1.GetOptions{})
		if err == nil && agent.Status.Limit != int32(limit) {
			err = fmt.Errorf("its limit is %d", agent.Status.Limit)
		}
		return err
	})
}

// claimsAtOnce returns the number of claims of a benchmark.
func claimsAtOnce(b *testing.B) int {
	text := os.Getenv("HOLDFAST_BENCH_CLAIMS")
	if text == "" {
		return manyClaims
	}
	claims, err := strconv.Atoi(text)
	must(b, err)
	return claims
}

// manyIdle makes claims that no pod uses.
func manyIdle(b *testing.B, claims int) (namespace string) {
	namespace = lab.Namespace(b, "many")
	for i := range claims {
		claim(b, namespace, fmt.Sprint("idle-", i), "x")
	}
	return namespace
}

// withSidecars runs a benchmark with sidecars at the QPS of their default and of most drivers' manifests.
func withSidecars(b *testing.B, run func(b *testing.B, name string)) {
	for _, qps := range []int{5, 50} {
		name := fmt.Sprint("qps=", qps)
		b.Run(name, func(b *testing.B) {
			must(b, startSidecars(qps))
			for b.Loop() {
				run(b, strings.ReplaceAll(name, "=", "-"))
			}
			b.ReportMetric(0, "ns/op")
		})
	}
	must(b, startSidecars(50))
}

// BenchmarkSnapshots moves the data of many claims at once. It fails if anything is left in the cluster or the
// storage, as the others do.
func BenchmarkSnapshots(b *testing.B) {
	runMovers(b)
	moveAtOnce(b, atOnce)
	claims := claimsAtOnce(b)
	namespace := manyIdle(b, claims)
	withSidecars(b, func(b *testing.B, name string) { measureMany(b, namespace, name, claims) })
}

// BenchmarkKept keeps the snapshots of many claims at once.
func BenchmarkKept(b *testing.B) {
	claims := claimsAtOnce(b)
	namespace := manyIdle(b, claims)
	for b.Loop() {
		measureKept(b, namespace, claims)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkFrozen measures how long hooks freeze pods.
func BenchmarkFrozen(b *testing.B) {
	h := newHooked(b, claimsAtOnce(b))
	withSidecars(b, h.measure)
}

// hooked is a namespace of pods with a claim and hooks each, and when its hooks began.
type hooked struct {
	namespace string
	pods      int

	mu      sync.Mutex
	frozen  map[string]time.Time
	periods []time.Duration
}

// newHooked makes the pods on the agent's node, and carries out their hooks.
func newHooked(b *testing.B, pods int) *hooked {
	h := &hooked{namespace: lab.Namespace(b, "hooked"), pods: pods, frozen: map[string]time.Time{}}
	certificate, err := tls.LoadX509KeyPair(filepath.Join(lab.Dir, "pki", "local.crt"), filepath.Join(lab.Dir, "pki", "local.key"))
	must(b, err)
	kubelet.Exec(b, lab.Kube, labtest.Node, certificate, h.ran)
	for i := range pods {
		name := fmt.Sprint("db-", i)
		claim(b, h.namespace, name, "x")
		hookedPod(b, h.namespace, name, name)
	}
	return h
}

// hookedPod makes a running pod with a claim on the agent's node, whose hooks are the commands freeze and thaw.
func hookedPod(t testing.TB, namespace, name, claim string) {
	t.Helper()
	pod, err := lab.Kube.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			"pre.hook.backup.holdfast.io/command": "freeze", "post.hook.backup.holdfast.io/command": "thaw",
		}},
		Spec: corev1.PodSpec{
			NodeName: labtest.Node, TerminationGracePeriodSeconds: new(int64),
			Volumes:    []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}},
			Containers: []corev1.Container{{Name: "db", Image: "example.com/db", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	pod.Status.Phase = corev1.PodRunning
	_, err = lab.Kube.CoreV1().Pods(namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	must(t, err)
}

// ran notes a hook of a pod.
func (h *hooked) ran(_, pod string, command []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if command[0] == "freeze" {
		h.frozen[pod] = time.Now()
		return
	}
	h.periods = append(h.periods, time.Since(h.frozen[pod]))
}

// measure backs up the pods with snapshots that are kept, since a pod is frozen until the cut, and deletes the backup.
func (h *hooked) measure(b *testing.B, name string) {
	h.mu.Lock()
	h.periods = nil
	h.mu.Unlock()
	lab.Create(b, h.namespace, name, keptSpec())
	await(b, "all pods to be backed up", func() error {
		backup, err := lab.Holdfast.HoldfastV1alpha1().Backups(h.namespace).Get(b.Context(), name, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case backup.Status.CompletionTimestamp == nil:
			return errors.New("the backup is " + string(backup.Status.Phase) + ": " + backup.Status.Message)
		case backup.Status.Phase != v1alpha1.BackupPhaseCompleted || backup.Status.Volumes.InStorage != int32(h.pods):
			b.Fatalf("the backup is %+v", backup.Status)
		}
		return nil
	})
	_, err := plugin(b, "backup", "delete", name, "-n", h.namespace, "--yes")
	must(b, err)
	await(b, "all snapshots to be deleted", func() error { return nothingLeft(b) })
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.Sort(h.periods)
	n := len(h.periods)
	if n != h.pods {
		b.Fatalf("%d pods were frozen and thawed, want %d", n, h.pods)
	}
	b.ReportMetric(float64(n), "pods")
	b.ReportMetric(h.periods[(n-1)/2].Seconds(), "frozen-p50-s")
	b.ReportMetric(h.periods[(n*99-1)/100].Seconds(), "frozen-p99-s")
}

// measureKept keeps snapshots of the claims of a namespace, and deletes the backup.
func measureKept(b *testing.B, namespace string, claims int) {
	mark, begun := lab.AuditMark(b), time.Now()
	lab.Create(b, namespace, "kept", keptSpec())
	await(b, "all claims to be cut", func() error {
		backup, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(b.Context(), "kept", metav1.GetOptions{})
		if err == nil && (backup.Status.Phase != v1alpha1.BackupPhaseCompleted || backup.Status.Volumes.InStorage != int32(claims)) {
			err = errors.New("the backup is " + string(backup.Status.Phase) + ": " + backup.Status.Message)
		}
		return err
	})
	completed := time.Since(begun)
	_, err := plugin(b, "backup", "delete", "kept", "-n", namespace, "--yes")
	must(b, err)
	await(b, "all snapshots to be deleted", func() error { return nothingLeft(b) })
	b.ReportMetric(float64(claims), "claims")
	b.ReportMetric(completed.Seconds(), "completed-s")
	b.ReportMetric(float64(ownWrites(b, mark))/float64(claims), "writes/claim")
}

// measureMany backs up the claims of a namespace.
func measureMany(b *testing.B, namespace, name string, claims int) {
	mark, begun := lab.AuditMark(b), time.Now()
	lab.Create(b, namespace, name, v1alpha1.BackupSpec{SnapshotVolumes: new(true)})
	cut := map[string]time.Time{}
	var first, firstCut, free time.Time
	await(b, "all claims to be uploaded", func() error {
		contents, err := objects.Resource(snapshots.Contents).List(b.Context(), metav1.ListOptions{LabelSelector: snapshots.LabelCluster})
		if err != nil {
			return err
		}
		for i := range contents.Items {
			if _, known := cut[contents.Items[i].GetName()]; known {
				continue
			}
			if handle, _, _ := unstructured.NestedString(contents.Items[i].Object, "status", "snapshotHandle"); handle != "" {
				cut[contents.Items[i].GetName()] = time.Now()
				if firstCut.IsZero() {
					firstCut = time.Now()
				}
			}
		}
		if first.IsZero() {
			uploads, err := lab.Engine.EngineV1alpha1().VolumeUploads(labtest.System).List(b.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for i := range uploads.Items {
				if uploads.Items[i].Status.Phase != "" {
					first = time.Now()
				}
			}
		}
		backup, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(b.Context(), name, metav1.GetOptions{})
		if err == nil && free.IsZero() && backup.Status.Phase == v1alpha1.BackupPhaseWaitingForPluginOperations {
			free = time.Now()
		}
		switch {
		case err != nil:
			return err
		case backup.Status.Phase == v1alpha1.BackupPhaseCompleted && backup.Status.Volumes.Completed == int32(claims):
			return nil
		case backup.Status.CompletionTimestamp != nil:
			b.Fatalf("the backup is %+v", backup.Status)
		}
		return errors.New("the backup is " + string(backup.Status.Phase) + ": " + backup.Status.Message)
	})
	completed := time.Since(begun)
	await(b, "all snapshots to be deleted", func() error { return nothingLeft(b) })
	last := begun
	for _, at := range cut {
		if at.After(last) {
			last = at
		}
	}
	if len(cut) != claims {
		b.Errorf("%d cuts were seen, want %d", len(cut), claims)
	}
	n := float64(claims)
	b.ReportMetric(n, "claims")
	b.ReportMetric(n/last.Sub(begun).Seconds(), "cuts/s")
	b.ReportMetric(first.Sub(firstCut).Seconds(), "first-upload-s")
	if !free.IsZero() {
		b.ReportMetric(free.Sub(begun).Seconds(), "namespace-free-s")
	}
	b.ReportMetric(completed.Seconds(), "completed-s")
	b.ReportMetric(float64(ownWrites(b, mark))/n, "writes/claim")
}

// ownWrites counts the writes of Holdfast's own accounts to the API server, without events.
func ownWrites(b *testing.B, mark int64) (writes int) {
	b.Helper()
	for _, event := range lab.WritesSince(b, mark) {
		of := event.User.Username
		ours := strings.HasPrefix(of, "system:serviceaccount:"+labtest.System+":") || strings.HasPrefix(of, "system:serviceaccount:"+enginev1alpha1.AgentsNamespace(labtest.System)+":")
		if ours && event.ObjectRef.Resource != "events" {
			writes++
		}
	}
	return writes
}

// await is labtest.Eventually for what takes minutes.
func await(t testing.TB, what string, condition func() error) {
	t.Helper()
	must(t, labtest.AwaitFor(t.Context(), 30*time.Minute, what, condition))
}
