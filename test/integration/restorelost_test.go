// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	restoring "github.com/holdfast-io/holdfast/pkg/restore"
)

// TestClaimsOfLostVolumes: a claim without data in the backup comes back for a new volume if its own is
// lost, used by a pod or by none, and a warning says so.
func TestClaimsOfLostVolumes(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "lost")
	words := []string{"NS", namespace}
	ended, told := restoredFrom(t, ofOne(`{apiVersion: v1, kind: PersistentVolume, metadata: {name: NS-pv}, spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], persistentVolumeReclaimPolicy: Delete, storageClassName: "", csi: {driver: d.example.com, volumeHandle: h1}, claimRef: {namespace: NS, name: from-snapshot}}, status: {phase: Bound}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: from-snapshot, namespace: NS, annotations: {pv.kubernetes.io/bind-completed: "yes", volume.kubernetes.io/storage-provisioner: d.example.com, volume.kubernetes.io/selected-node: lost}}, spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: NS-pv, resources: {requests: {storage: 1Gi}}, dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: lost}}, status: {phase: Bound}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: NS, annotations: {pv.kubernetes.io/bind-completed: "yes", pv.kubernetes.io/bound-by-controller: "yes"}}, spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: NS-unknown, resources: {requests: {storage: 1Gi}}}, status: {phase: Bound}}
---
{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: NS}, spec: {terminationGracePeriodSeconds: 0, automountServiceAccountToken: false, containers: [{name: c, image: example.com/c, volumeMounts: [{name: data, mountPath: /d}]}], volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]}}`, words...), v1alpha1.RestoreSpec{})
	mustTell(t, ended, told, v1alpha1.RestorePhaseCompleted)
	mustTellOf(t, told, map[string]string{
		"persistentvolumeclaims " + namespace + "/from-snapshot": "it comes back empty, since the backup does not hold its data",
		"persistentvolumeclaims " + namespace + "/data":          "it comes back empty, since the backup does not hold its data",
	})
	for _, name := range []string{"from-snapshot", "data"} {
		claim, err := lab.Kube.CoreV1().PersistentVolumeClaims(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		delete(claim.Annotations, "holdfast.io/restore-uid")
		if claim.Spec.VolumeName != "" || len(claim.Annotations) > 0 {
			t.Errorf("%s is restored with the volume %q and the annotations %v", name, claim.Spec.VolumeName, claim.Annotations)
		}
	}
}

// TestWebhookThatIsRestored: objects that a webhook of the cluster refuses, since what serves it is lost
// too, come back after its Deployment.
func TestWebhookThatIsRestored(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "hooked")
	words := []string{"NS", namespace}
	createAll(t, ofOne(`{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: NS}, webhooks: [{name: check.example.com, failurePolicy: Fail, sideEffects: None, admissionReviewVersions: [v1], timeoutSeconds: 2, namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}, clientConfig: {service: {name: hook, namespace: NS, path: /}}, rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps, secrets]}]}]}`, words...))
	hooks := lab.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		if err := hooks.Delete(context.Background(), namespace, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	// It stands for the webhook, which lets all pass once its Deployment runs.
	go func() {
		for ctx.Err() == nil {
			if _, err := lab.Kube.AppsV1().Deployments(namespace).Get(ctx, "hook", metav1.GetOptions{}); err == nil {
				_ = hooks.Delete(ctx, namespace, metav1.DeleteOptions{})
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	ended, told := restoredFrom(t, ofOne(`{apiVersion: v1, kind: Service, metadata: {name: hook, namespace: NS}, spec: {selector: {app: hook}, ports: [{port: 443}]}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: hook, namespace: NS}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: hook, namespace: NS}, spec: {replicas: 0, selector: {matchLabels: {app: hook}}, template: {metadata: {labels: {app: hook}}, spec: {serviceAccountName: hook, containers: [{name: c, image: example.com/c}]}}}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: words, namespace: NS}, data: {a: b}}
---
{apiVersion: v1, kind: Secret, metadata: {name: key, namespace: NS}, stringData: {a: b}}`, words...), v1alpha1.RestoreSpec{}, func(d *restoring.Dependencies) { d.Clock = quickClock{begin: time.Now()} })
	mustTell(t, ended, told, v1alpha1.RestorePhaseCompleted)
	if ended.Status.Errors+ended.Status.Warnings > 0 {
		t.Errorf("it is %+v\n%s", ended.Status, told)
	}
	mustHave(t, ofOne(`{apiVersion: v1, kind: ConfigMap, metadata: {name: words, namespace: NS}, data: {a: b}}
---
{apiVersion: v1, kind: Secret, metadata: {name: key, namespace: NS}}`, words...))
}
