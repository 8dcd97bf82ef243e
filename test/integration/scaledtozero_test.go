// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestScaledToZero: a StatefulSet stands at zero for longer than its backups are kept. Neither
// their expiry nor a schedule's keep deletes the last one that holds its data, a restore that
// names no backup names that one, and it brings the data back. It goes when a newer one has them.
func TestScaledToZero(t *testing.T) {
	lab.Reconfigure(t, "--expiry-interval=1s --concurrent-backups=2 --run-retention=1s --max-expired-percent=100")
	namespace := lab.Namespace(t, "scaled")
	const ttl = 8 * time.Second
	labels := map[string]string{"app": "db"}
	_, err := lab.Kube.AppsV1().StatefulSets(namespace).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: new(int64),
					Containers:                    []corev1.Container{{Name: "db", Image: "example.com/db", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
				},
			},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new(string),
					Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
				},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const claim = "data-db-0"
	// run waits until the pod of the StatefulSet runs, and returns the folder of its volume.
	run := func() string {
		s := &stand{lab: lab, namespace: namespace, folders: map[string]string{}}
		labtest.Eventually(t, "the pod db-0 to run", func() error {
			if err := s.provision(t); err != nil {
				return err
			}
			if err := s.start(t); err != nil {
				return err
			}
			pod, err := lab.Kube.CoreV1().Pods(namespace).Get(t.Context(), "db-0", metav1.GetOptions{})
			if err == nil && (pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil) {
				err = fmt.Errorf("it is %s", pod.Status.Phase)
			}
			return err
		})
		return s.folders[claim]
	}
	folder := run()
	t.Cleanup(func() {
		lab.TryKubectl(t, "", "delete", "persistentvolume", namespace+"-"+claim, "--wait=false", "--ignore-not-found")
	})
	fill(t, folder)
	want := tree(t, folder)

	lab.TryKubectl(t, fmt.Sprintf(scheduleManifest, "nightly", namespace, fmt.Sprintf("{schedule: '%s', keep: {last: 1}, template: {ttl: %s}}", dueAgo(72*time.Hour), ttl)), "create", "-f", "-")
	var last *v1alpha1.ScheduledBackup
	// due has a backup of the schedule made, and waits until it is stored.
	due := func(schedule string, since time.Time) *v1alpha1.Backup {
		lab.Kubectl(t, "patch", "schedule", "nightly", "-n", namespace, "--type=merge", fmt.Sprintf(`-p={"spec":{"schedule":%q}}`, schedule))
		beginIn(t, namespace, "nightly", since)
		s := awaitSchedule(t, namespace, "nightly", "its backup", func(s *v1alpha1.Schedule) bool {
			is := s.Status.LastBackup
			return is != nil && (last == nil || is.Name != last.Name) && is.Phase == v1alpha1.BackupPhaseCompleted
		})
		last = s.Status.LastBackup
		lab.AwaitRunGone(t, namespace+"."+last.Name)
		return lab.AwaitPhase(t, namespace, last.Name, v1alpha1.BackupPhaseCompleted)
	}
	full := due(dueAgo(72*time.Hour), time.Now().AddDate(-2, 0, 0))
	if v := full.Status.Volumes; v == nil || v.Completed != 1 {
		t.Fatalf("the volumes of the first backup are %+v", v)
	}

	lab.Kubectl(t, "scale", "statefulset", "db", "-n", namespace, "--replicas=0")
	labtest.Eventually(t, "the end of the pod", func() error {
		pods, err := lab.Kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=db"})
		if err == nil && len(pods.Items) > 0 {
			err = errors.New("it is there")
		}
		return err
	})
	empty := due(dueAgo(48*time.Hour), time.Now().AddDate(0, -2, 0))
	if v := empty.Status.Volumes; v == nil || v.Completed != 0 || v.LeftOut != 1 {
		t.Fatalf("the volumes of the second backup are %+v", v)
	}
	labtest.Eventually(t, "the event that the data are kept", func() error {
		out := lab.Kubectl(t, "get", "events", "-n", namespace, "--field-selector", "involvedObject.name="+full.Name+",reason=ExpiryKept")
		if !strings.Contains(out, "the newest data of "+namespace+"/"+claim) {
			return fmt.Errorf("there is %s", out)
		}
		return nil
	})
	awaitSchedule(t, namespace, "nightly", "that it has looked for what to delete", func(s *v1alpha1.Schedule) bool {
		return meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.ConditionPruned)
	})
	if _, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(t.Context(), full.Name, metav1.GetOptions{}); err != nil {
		t.Fatalf("the backup with the data: %v", err)
	}

	for _, spec := range []string{"{}", "{scheduleName: nightly}"} {
		lab.Refused(t, fmt.Sprintf(restoreManifest, "unnamed", namespace, spec), []string{"create", "-f", "-"}, full.Name, claim, "spec.backupName")
	}
	restores := lab.Holdfast.HoldfastV1alpha1().Restores(namespace)
	restore, err := restores.Create(t.Context(), &v1alpha1.Restore{
		ObjectMeta: metav1.ObjectMeta{Name: "again"}, Spec: v1alpha1.RestoreSpec{VolumesOnly: true, ExistingVolumePolicy: v1alpha1.ExistingVolumeOverwrite},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if restore.Status.Backup == nil || restore.Status.Backup.Name != full.Name {
		t.Errorf("a restore of volumes takes %+v, want %s", restore.Status.Backup, full.Name)
	}
	holder := &stand{lab: lab, namespace: namespace, folders: map[string]string{}}
	labtest.Eventually(t, "the restore to end", func() error {
		if err := holder.start(t); err != nil {
			return err
		}
		live, err := restores.Get(t.Context(), "again", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if restore = live; !meta.IsStatusConditionTrue(live.Status.Conditions, v1alpha1.ConditionComplete) {
			return fmt.Errorf("it is %s: %+v", live.Status.Phase, live.Status.Conditions)
		}
		return nil
	})
	if restore.Status.Phase != v1alpha1.RestorePhaseCompleted || restore.Status.Errors > 0 {
		t.Fatalf("the restore is %+v", restore.Status)
	}
	if diff := cmp.Diff(want, tree(t, holder.folders[claim])); diff != "" {
		t.Errorf("the files (-before +after):\n%s", diff)
	}

	lab.Kubectl(t, "scale", "statefulset", "db", "-n", namespace, "--replicas=1")
	folder = run()
	fill(t, folder)
	if err := os.WriteFile(filepath.Join(folder, "newer"), []byte("newer"), 0o600); err != nil {
		t.Fatal(err)
	}
	if v := due(dueAgo(24*time.Hour), time.Now().AddDate(0, 0, -15)).Status.Volumes; v == nil || v.Completed != 1 {
		t.Fatalf("the volumes of the third backup are %+v", v)
	}
	for _, name := range []string{full.Name, empty.Name} {
		labtest.Eventually(t, "the end of "+name, func() error {
			_, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(t.Context(), name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("it is there: %v", err)
		})
	}
}
