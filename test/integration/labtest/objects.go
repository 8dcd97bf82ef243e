// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// Namespace makes a namespace with a ConfigMap in it, and returns its name. It
// goes with the test.
func (l *Lab) Namespace(t testing.TB, prefix string) string {
	t.Helper()
	name := Name(prefix)
	namespaces := l.Kube.CoreV1().Namespaces()
	if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := namespaces.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"greeting": "hello from " + name}}
	if _, err := l.Kube.CoreV1().ConfigMaps(name).Create(t.Context(), settings, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The pods of the test would be refused before.
	Eventually(t, "the service account of "+name, func() error {
		_, err := l.Kube.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	return name
}

// Bind binds a user to a ClusterRole in a namespace, and returns the binding's name.
func (l *Lab) Bind(t testing.TB, user, role, namespace string) string {
	t.Helper()
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: Name("grant")},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if _, err := l.Kube.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return binding.Name
}

// Grant is Bind, and waits until the user may list backups there. What was bound
// before holds then, too.
func (l *Lab) Grant(t testing.TB, user, role, namespace string) string {
	t.Helper()
	binding := l.Bind(t, user, role, namespace)
	Eventually(t, "the rights of "+user, func() error {
		review, err := l.Kube.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Verb: "list", Group: "holdfast.io", Resource: "backups",
			}},
		}, metav1.CreateOptions{})
		if err == nil && !review.Status.Allowed {
			err = fmt.Errorf("%s", review.Status.Reason)
		}
		return err
	})
	return binding
}

// Pod makes a Running pod called web, on a node, with an emptyDir called scratch,
// and returns the folder in which the kubelet would make that volume.
func (l *Lab) Pod(t testing.TB, namespace, node string) (pod *corev1.Pod, folder string) {
	t.Helper()
	pod = l.pod(t, namespace, node, corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	return pod, l.volumeFolder(t, pod, "kubernetes.io~empty-dir", "scratch")
}

// FolderPlugin names a plugin of the kubelet whose volumes are plain folders. Of those of the kubelet's
// own that provide persistent volumes an agent wants a mount.
const FolderPlugin = "example.com~folder"

// PodWithClaim is like Pod, with the volume content of the claim data.
func (l *Lab) PodWithClaim(t testing.TB, namespace, node string) (pod *corev1.Pod, folder string) {
	t.Helper()
	pod = l.podWithClaim(t, namespace, node, corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/unused"}})
	return pod, l.volumeFolder(t, pod, FolderPlugin, namespace+"-data")
}

// PodWithHostPath is like PodWithClaim, with a persistent volume of type hostPath, for which
// the kubelet makes no folder, but for what else each pod has.
func (l *Lab) PodWithHostPath(t testing.TB, namespace, node string) (pod *corev1.Pod, folder string) {
	t.Helper()
	folder = filepath.Join(l.hostPaths(), namespace)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	pod = l.podWithClaim(t, namespace, node, corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}})
	l.volumeFolder(t, pod, "kubernetes.io~projected", "kube-api-access")
	return pod, folder
}

func (l *Lab) podWithClaim(t testing.TB, namespace, node string, source corev1.PersistentVolumeSource) *corev1.Pod {
	t.Helper()
	volume := namespace + "-data"
	capacity := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	volumes, claims := l.Kube.CoreV1().PersistentVolumes(), l.Kube.CoreV1().PersistentVolumeClaims(namespace)
	_, err := volumes.Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volume},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      capacity,
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        source,
			ClaimRef:                      &corev1.ObjectReference{Namespace: namespace, Name: "data"},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := volumes.Delete(context.Background(), volume, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	_, err = claims.Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: new(string),
			VolumeName:       volume,
			Resources:        corev1.VolumeResourceRequirements{Requests: capacity},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	Eventually(t, "the claim to be bound", func() error {
		claim, err := claims.Get(t.Context(), "data", metav1.GetOptions{})
		if err == nil && claim.Status.Phase != corev1.ClaimBound {
			err = fmt.Errorf("it is %s", claim.Status.Phase)
		}
		return err
	})
	return l.pod(t, namespace, node, corev1.Volume{Name: "content", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}})
}

// pod makes a pod as it would be when a kubelet ran it. Its deletion does not
// wait for one.
func (l *Lab) pod(t testing.TB, namespace, node string, volume corev1.Volume) *corev1.Pod {
	t.Helper()
	pods := l.Kube.CoreV1().Pods(namespace)
	pod, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.PodSpec{
			NodeName:                      node,
			TerminationGracePeriodSeconds: new(int64),
			Volumes:                       []corev1.Volume{volume},
			Containers: []corev1.Container{{
				Name: "web", Image: "example.com/web",
				VolumeMounts: []corev1.VolumeMount{{Name: volume.Name, MountPath: "/content"}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.Phase = corev1.PodRunning
	if pod, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return pod
}

func (l *Lab) volumeFolder(t testing.TB, pod *corev1.Pod, plugin, name string) string {
	t.Helper()
	folder := filepath.Join(l.Dir, "pods", string(pod.UID), "volumes", plugin, name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	return folder
}

// Location makes a storage location in a folder of its own, and returns its name
// and the folder. It goes with the test, the folder with the lab.
func (l *Lab) Location(t testing.TB, prefix string) (name, folder string) {
	t.Helper()
	name = Name(prefix)
	folder = filepath.Join(l.Dir, "store-"+name)
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	locations := l.Engine.EngineV1alpha1().StorageLocations(System)
	_, err := locations.Create(t.Context(), &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: enginev1alpha1.StorageLocationSpec{
			AllowedNamespaces: &enginev1alpha1.AllowedNamespaces{Names: []string{"*"}},
			Provider:          enginev1alpha1.StorageProviderFilesystem,
			Filesystem:        &enginev1alpha1.FilesystemLocation{Path: folder},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := locations.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	l.AwaitAvailable(t, name, metav1.ConditionTrue)
	return name, folder
}

// Trust makes a storage location trust these clusters.
func (l *Lab) Trust(t testing.TB, location string, clusters ...enginev1alpha1.TrustedCluster) {
	t.Helper()
	locations := l.Engine.EngineV1alpha1().StorageLocations(System)
	Eventually(t, location+" to trust another cluster", func() error {
		record, err := locations.Get(t.Context(), location, metav1.GetOptions{})
		if err != nil {
			return err
		}
		record.Spec.TrustedClusters = clusters
		_, err = locations.Update(t.Context(), record, metav1.UpdateOptions{})
		return err
	})
}

// AwaitAvailable waits until a storage location says whether it is available.
func (l *Lab) AwaitAvailable(t testing.TB, location string, want metav1.ConditionStatus) metav1.Condition {
	t.Helper()
	var found metav1.Condition
	Eventually(t, fmt.Sprintf("the condition Available=%s of location %s", want, location), func() error {
		record, err := l.Engine.EngineV1alpha1().StorageLocations(System).Get(t.Context(), location, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range record.Status.Conditions {
			if condition.Type == enginev1alpha1.ConditionAvailable && condition.Status == want {
				found = condition
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", record.Status.Conditions)
	})
	return found
}
