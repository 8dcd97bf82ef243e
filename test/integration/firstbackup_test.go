// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// stand is what a provisioner, a scheduler and a kubelet do for the claims of a namespace.
type stand struct {
	lab       *labtest.Lab
	namespace string
	// generation tells the volumes of a lost namespace from later ones.
	generation string
	// folders are those of the claims' volumes in pods.
	folders map[string]string
	// warnings is how many a restore has.
	warnings int32
}

func (s *stand) volume(claim string) string { return s.namespace + "-" + claim + s.generation }

// provision makes a persistent volume for each claim that has none.
func (s *stand) provision(t *testing.T) error {
	claims, err := s.lab.Kube.CoreV1().PersistentVolumeClaims(s.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, claim := range claims.Items {
		if claim.Status.Phase == corev1.ClaimBound {
			continue
		}
		_, err := s.lab.Kube.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: s.volume(claim.Name)},
			Spec: corev1.PersistentVolumeSpec{
				Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				StorageClassName:              ptr.Deref(claim.Spec.StorageClassName, ""),
				PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/unused"}},
				ClaimRef:                      &corev1.ObjectReference{Namespace: s.namespace, Name: claim.Name, UID: claim.UID},
				NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{labtest.Node}}},
				}}}},
			},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

// start runs each pod that is on no node, as soon as its claims are bound.
func (s *stand) start(t *testing.T) error {
	pods := s.lab.Kube.CoreV1().Pods(s.namespace)
	list, err := pods.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
			continue
		}
		volumes := filepath.Join(s.lab.Dir, "pods", string(pod.UID), "volumes")
		if err := os.MkdirAll(filepath.Join(volumes, "kubernetes.io~empty-dir", "holdfast-restore"), 0o755); err != nil {
			return err
		}
		bound := true
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim == nil {
				continue
			}
			claim, err := s.lab.Kube.CoreV1().PersistentVolumeClaims(s.namespace).Get(t.Context(), v.PersistentVolumeClaim.ClaimName, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if bound = bound && claim.Status.Phase == corev1.ClaimBound; !bound {
				break
			}
			folder := filepath.Join(volumes, labtest.FolderPlugin, claim.Spec.VolumeName)
			if err := os.MkdirAll(folder, 0o755); err != nil {
				return err
			}
			if _, known := s.folders[claim.Name]; !known {
				s.folders[claim.Name] = folder
			}
		}
		if !bound {
			continue
		}
		binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: labtest.Node}}
		if err := pods.Bind(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			return err
		}
		live, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		live.Status.Phase = corev1.PodRunning
		live.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: live.Spec.Containers[0].Name, Image: "holdfast", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		}}
		if _, err := pods.UpdateStatus(t.Context(), live, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// run makes a pod with the claims data and more, and waits until it runs.
func (s *stand) run(t *testing.T) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64),
			Containers:                    []corev1.Container{{Name: "web", Image: "example.com/web"}},
		},
	}
	for _, name := range []string{"data", "more"} {
		_, err := s.lab.Kube.CoreV1().PersistentVolumeClaims(s.namespace).Create(t.Context(), &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kept": name}},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new(string),
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	if _, err := s.lab.Kube.CoreV1().Pods(s.namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, "the pod to run", func() error {
		if err := s.provision(t); err != nil {
			return err
		}
		if err := s.start(t); err != nil {
			return err
		}
		live, err := s.lab.Kube.CoreV1().Pods(s.namespace).Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil && live.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("it is %s", live.Status.Phase)
		}
		return err
	})
}

// fill puts files into the volumes, and returns what is in each.
func (s *stand) fill(t *testing.T) map[string]map[string]string {
	t.Helper()
	files := map[string]map[string]string{}
	for claim, folder := range s.folders {
		fill(t, folder)
		if err := os.WriteFile(filepath.Join(folder, "whose"), []byte(claim), 0o600); err != nil {
			t.Fatal(err)
		}
		files[claim] = tree(t, folder)
	}
	return files
}

// await waits until a restore in the system namespace has ended. It fails unless that is
// Completed, with as many warnings as there are to be.
func (s *stand) await(t *testing.T, name string) {
	t.Helper()
	restores := s.lab.Holdfast.HoldfastV1alpha1().Restores(labtest.System)
	var restore *v1alpha1.Restore
	labtest.Eventually(t, "the restore to end", func() error {
		if err := s.provision(t); err != nil {
			return err
		}
		if err := s.start(t); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
		live, err := restores.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		restore = live
		if !meta.IsStatusConditionTrue(live.Status.Conditions, v1alpha1.ConditionComplete) {
			return fmt.Errorf("it is %s: %+v", live.Status.Phase, live.Status.Conditions)
		}
		return nil
	})
	if restore.Status.Phase != v1alpha1.RestorePhaseCompleted || restore.Status.Warnings != s.warnings || restore.Status.Errors > 0 {
		t.Fatalf("the restore is %+v\n%s", restore.Status, s.lab.Kubectl(t, "get", "--raw", "/apis/holdfast.io/v1alpha1/namespaces/"+labtest.System+"/restores/"+name+"/results"))
	}
}

// TestFirstBackupComesBack: a backup whose spec is empty, of a namespace with two claims, brings
// objects and data back when the namespace is lost. The restore names no backup and no object,
// and neither has a warning.
func TestFirstBackupComesBack(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "first")
	before := &stand{lab: lab, namespace: namespace, folders: map[string]string{}}
	before.run(t)
	want := before.fill(t)

	name := "first"
	lab.Create(t, namespace, name, v1alpha1.BackupSpec{})
	backup := lab.AwaitPhase(t, namespace, name, v1alpha1.BackupPhaseCompleted)
	for try := 2; try < 6 && backup.Status.Warnings > 0 && strings.Contains(backup.Status.Message, "its definition was deleted while the backup was made"); try++ {
		// Another test has deleted its own definitions just then.
		name = fmt.Sprint("first-", try)
		lab.Create(t, namespace, name, v1alpha1.BackupSpec{})
		backup = lab.AwaitPhase(t, namespace, name, v1alpha1.BackupPhaseCompleted)
	}
	if v := backup.Status.Volumes; v == nil || v.Total != 2 || v.Completed != 2 || backup.Status.Warnings+backup.Status.Errors > 0 {
		t.Fatalf("the backup is %+v, with the volumes %+v", backup.Status, v)
	}
	lab.AwaitRunGone(t, namespace+"."+name)

	lose(t, namespace)
	for claim := range before.folders {
		if err := lab.Kube.CoreV1().PersistentVolumes().Delete(t.Context(), before.volume(claim), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	restores := lab.Holdfast.HoldfastV1alpha1().Restores(labtest.System)
	restore, err := restores.Create(t.Context(), &v1alpha1.Restore{
		ObjectMeta: metav1.ObjectMeta{Name: labtest.Name("first")}, Spec: v1alpha1.RestoreSpec{BackupNamespace: namespace},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.TryKubectl(t, "", "delete", "namespace", namespace, "--wait=false", "--ignore-not-found") })
	after := &stand{lab: lab, namespace: namespace, generation: "-again", folders: map[string]string{}}
	after.await(t, restore.Name)
	for claim := range want {
		if diff := cmp.Diff(want[claim], tree(t, after.folders[claim])); diff != "" {
			t.Errorf("the files of %s (-before +after):\n%s", claim, diff)
		}
		live, err := lab.Kube.CoreV1().PersistentVolumeClaims(namespace).Get(t.Context(), claim, metav1.GetOptions{})
		if err != nil || live.Status.Phase != corev1.ClaimBound || live.Labels["kept"] != claim {
			t.Errorf("the claim %s is %+v (%v)", claim, live, err)
		}
	}
	if _, err := lab.Kube.CoreV1().ConfigMaps(namespace).Get(t.Context(), "settings", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := lab.Kube.CoreV1().Pods(namespace).Get(t.Context(), "web", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	holders, err := lab.Kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: enginev1alpha1.LabelRestore})
	if err != nil {
		t.Fatal(err)
	}
	for _, holder := range holders.Items { // no kubelet confirms their end
		if holder.DeletionTimestamp == nil {
			t.Errorf("the pod %s is left", holder.Name)
		}
	}
}
