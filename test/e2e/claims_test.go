// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const (
	// manyClaims is how many Deployments there are, each with a claim of 10 MB.
	manyClaims = 100
	// manyPatience is for steps of which each takes a minute or two.
	manyPatience = 8 * time.Minute
)

// notes is the first container of each Deployment: it makes ten files of 1 MB where there are
// none, and else notes whether they are whole.
const notes = `cd /data
if [ -f sums ]; then
  if sha256sum -c sums >/dev/null 2>&1; then echo whole >>log; else echo broken >>log; fi
else
  for i in 0 1 2 3 4 5 6 7 8 9; do head -c 1000000 /dev/urandom >$i; done
  sha256sum ? >sums
  echo empty >>log
fi`

// BenchmarkClaims backs many Deployments with claims up, deletes their namespace and restores
// it, on two nodes. Every file has to be as before, and every first container has to find them
// so.
func BenchmarkClaims(b *testing.B) {
	step(fmt.Sprintf("%d Deployments, each with a claim of 10 MB", manyClaims))
	storageClasses(b, 2*manyClaims, "many") // the first volumes belong to the claims that are lost
	var objects strings.Builder
	objects.WriteString("apiVersion: v1\nkind: Namespace\nmetadata: {name: many}\n---\n")
	for i := range manyClaims {
		fmt.Fprintf(&objects, `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: web-%[1]d, namespace: many}
spec: {accessModes: [ReadWriteOnce], storageClassName: many, resources: {requests: {storage: 1Gi}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web-%[1]d, namespace: many}
spec:
  selector: {matchLabels: {app: web-%[1]d}}
  template:
    metadata: {labels: {app: web-%[1]d, part: many}}
    spec:
      terminationGracePeriodSeconds: 1
      initContainers:
      - {name: notes, image: "holdfast.io/lab-busybox:dev", command: [sh, -euc, %[2]q], volumeMounts: [{name: data, mountPath: /data}]}
      containers:
      - {name: app, image: "holdfast.io/lab-busybox:dev", command: [sleep, "1000000"]}
      volumes: [{name: data, persistentVolumeClaim: {claimName: web-%[1]d}}]
---
`, i, notes)
	}
	begun := time.Now()
	lab.create(b, objects.String())
	await(b, "all pods are ready", func(ctx context.Context) error { return manyReady(ctx, nil) })
	started := time.Since(begun)
	before := manyFiles(b)

	step("A backup of them")
	begun = time.Now()
	lab.create(b, backup("many", "many"))
	await(b, "the backup is complete", func(ctx context.Context) error {
		live, err := lab.holdfast.HoldfastV1alpha1().Backups(system).Get(ctx, "many", metav1.GetOptions{})
		if err == nil && !meta.IsStatusConditionTrue(live.Status.Conditions, v1alpha1.ConditionSucceeded) {
			err = fmt.Errorf("it is %s with %d errors", live.Status.Phase, live.Status.Errors)
		}
		return err
	})
	saved := time.Since(begun)

	step("Their namespace is lost, and restored")
	lab.must(b, "delete", "namespace", "many", "--timeout=300s")
	begun = time.Now()
	lab.create(b, "apiVersion: holdfast.io/v1alpha1\nkind: Restore\nmetadata: {name: many, namespace: holdfast}\nspec: {backupName: many}\n")
	var (
		completed, data time.Duration
		most            = map[string]float64{}
	)
	await(b, "the restore is complete and all pods are ready", func(ctx context.Context) error {
		live, err := lab.holdfast.HoldfastV1alpha1().Restores(system).Get(ctx, "many", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if volumes := live.Status.Volumes; data == 0 && volumes != nil && volumes.Completed == manyClaims {
			data = time.Since(begun)
		}
		ended := meta.IsStatusConditionTrue(live.Status.Conditions, v1alpha1.ConditionComplete)
		if ended && completed == 0 {
			completed = time.Since(begun)
			if live.Status.Phase != v1alpha1.RestorePhaseCompleted {
				_ = lab.show(ctx, "get", "--raw", "/apis/holdfast.io/v1alpha1/namespaces/holdfast/restores/many/results")
				b.Fatalf("the restore is %s with %d errors (%s)", live.Status.Phase, live.Status.Errors, live.Status.FailureReason)
			}
		}
		if err := manyReady(ctx, most); err != nil || ended {
			return err
		}
		return fmt.Errorf("the restore is %s, %+v", live.Status.Phase, live.Status.Volumes)
	})
	ready := time.Since(begun)

	after := manyFiles(b)
	for claim, files := range before {
		if !maps.Equal(files, after[claim]) {
			b.Errorf("the files of %s differ", claim)
		}
	}
	list, err := lab.kube.CoreV1().PersistentVolumeClaims("many").List(b.Context(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for _, claim := range list.Items {
		if log, err := os.ReadFile(filepath.Join(lab.path("nodes", "volumes", claim.Spec.VolumeName), "log")); err != nil || string(log) != "empty\nwhole\n" {
			b.Errorf("the first container of %s has seen %q, %v", claim.Name, log, err)
		}
	}
	b.ReportMetric(manyClaims, "claims")
	b.ReportMetric(started.Seconds(), "started-s")
	b.ReportMetric(saved.Seconds(), "backup-s")
	b.ReportMetric(data.Seconds(), "data-s")
	b.ReportMetric(completed.Seconds(), "completed-s")
	b.ReportMetric(ready.Seconds(), "ready-s")
	for what, count := range most {
		b.ReportMetric(count, what)
	}
}

// await waits for what takes minutes, and tells whoever watches how far it is.
func await(b *testing.B, what string, condition func(ctx context.Context) error) {
	b.Helper()
	var last error
	begun := time.Now()
	told := begun
	err := wait.PollUntilContextTimeout(b.Context(), 500*time.Millisecond, manyPatience, true, func(ctx context.Context) (bool, error) {
		err := condition(ctx)
		if err != nil && ctx.Err() == nil {
			if last = err; time.Since(told) > 5*time.Second {
				told = time.Now()
				fmt.Printf("%4.0f s: %v\n", time.Since(begun).Seconds(), err)
			}
		}
		return err == nil, nil
	})
	if err != nil {
		b.Fatalf("gave up waiting until %s: %v", what, last)
	}
}

// manyFiles are the digests of the files of each claim, by their names.
func manyFiles(b *testing.B) map[string]map[string]string {
	b.Helper()
	list, err := lab.kube.CoreV1().PersistentVolumeClaims("many").List(b.Context(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	if len(list.Items) != manyClaims {
		b.Errorf("there are %d claims", len(list.Items))
	}
	all := map[string]map[string]string{}
	for _, claim := range list.Items {
		folder := lab.path("nodes", "volumes", claim.Spec.VolumeName)
		entries, err := os.ReadDir(folder)
		if err != nil {
			b.Fatal(err)
		}
		files := map[string]string{}
		for _, entry := range entries {
			content, err := os.ReadFile(filepath.Join(folder, entry.Name()))
			if err != nil {
				b.Fatal(err)
			}
			if entry.Name() != "log" { // the first containers write it
				files[entry.Name()] = fmt.Sprintf("%x", sha256.Sum256(content))
			}
		}
		if len(files) != 11 {
			b.Errorf("claim %s has the files %v", claim.Name, files)
		}
		all[claim.Name] = files
	}
	return all
}

// manyReady is nil if the pod of each Deployment is ready. It notes how many holders and
// volumes there are at most at once.
func manyReady(ctx context.Context, most map[string]float64) error {
	pods, err := lab.kube.CoreV1().Pods("many").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	ready, holders, running := 0, 0, 0
	for _, pod := range pods.Items {
		if pod.Labels[enginev1alpha1.LabelRestore] != "" {
			if holders++; pod.Status.Phase == corev1.PodRunning {
				running++
			}
			continue
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				ready++
			}
		}
	}
	if most != nil {
		records, err := lab.engine.EngineV1alpha1().VolumeRestores(system).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		writing := 0
		for _, record := range records.Items {
			if record.Status.Phase == enginev1alpha1.VolumePhaseInProgress {
				writing++
			}
		}
		for what, count := range map[string]int{"holders": holders, "holders-running": running, "writing": writing} {
			most[what] = max(most[what], float64(count))
		}
	}
	if ready != manyClaims {
		return fmt.Errorf("%d pods are ready; %d hold claims, of which %d run", ready, holders, running)
	}
	return nil
}
