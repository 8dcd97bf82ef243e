// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestRestoreBesideDefaults: a class that was the default of a lost cluster is not a second default
// beside the one that this cluster has. What names no class gets this cluster's, and that is told.
func TestRestoreBesideDefaults(t *testing.T) {
	namespace := lab.Namespace(t, "defaults")
	words := []string{"NS", namespace}
	const classes = `{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: NS-here, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}, provisioner: example.com/x, volumeBindingMode: WaitForFirstConsumer}
---
{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: NS-here, annotations: {ingressclass.kubernetes.io/is-default-class: "true"}}, spec: {controller: example.com/x}}`
	const texts = `{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: NS-there, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}, provisioner: example.com/x, volumeBindingMode: WaitForFirstConsumer}
---
{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: NS-there, annotations: {ingressclass.kubernetes.io/is-default-class: "true"}}, spec: {controller: example.com/x}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: without, namespace: NS}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: none, namespace: NS}, spec: {storageClassName: "", accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
---
{apiVersion: v1, kind: PersistentVolume, metadata: {name: NS-kept}, spec: {capacity: {storage: 1Gi}, accessModes: [ReadOnlyMany], persistentVolumeReclaimPolicy: Retain, nfs: {server: nfs.example.com, path: /kept}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: kept, namespace: NS}, spec: {volumeName: NS-kept, accessModes: [ReadOnlyMany], resources: {requests: {storage: 1Gi}}}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: without, namespace: NS}, spec: {defaultBackend: {service: {name: site, port: {number: 80}}}}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: old, namespace: NS, annotations: {kubernetes.io/ingress.class: nginx}}, spec: {defaultBackend: {service: {name: site, port: {number: 80}}}}}`
	createAll(t, ofOne(classes, words...))
	t.Cleanup(func() {
		_, _, _ = lab.TryKubectl(t, "", "delete", "storageclass,ingressclass", namespace+"-there", "--ignore-not-found")
		_, _, _ = lab.TryKubectl(t, "", "delete", "persistentvolume", namespace+"-kept", "--ignore-not-found", "--wait=false")
	})
	ended, told := restoredFrom(t, ofOne(texts, words...), v1alpha1.RestoreSpec{IncludeClusterResources: new(true)})
	mustTell(t, ended, told, v1alpha1.RestorePhaseCompleted)
	mustTellOf(t, told, map[string]string{
		"storageclasses.storage.k8s.io " + namespace + "-there":    "it was the default one, and is not any more, since this cluster has the default " + namespace + "-here",
		"ingressclasses.networking.k8s.io " + namespace + "-there": "it was the default one",
		"persistentvolumeclaims " + namespace + "/without":         "it names no class, and this cluster gives it its default one, " + namespace + "-here",
		"ingresses.networking.k8s.io " + namespace + "/without":    "it names no class",
	})
	for _, object := range []string{"persistentvolumeclaims " + namespace + "/none", "ingresses.networking.k8s.io " + namespace + "/old"} {
		if isTold(told, object, "it names no class") {
			t.Errorf("it is told of %s", object)
		}
	}
	mustHave(t, ofOne(`{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: NS-here, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: without, namespace: NS}, spec: {storageClassName: NS-here}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: none, namespace: NS}, spec: {storageClassName: ""}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: without, namespace: NS}, spec: {ingressClassName: NS-here}}`, words...))
	class, err := lab.Kube.StorageV1().StorageClasses().Get(t.Context(), namespace+"-there", metav1.GetOptions{})
	if err != nil || class.Annotations["storageclass.kubernetes.io/is-default-class"] != "" {
		t.Errorf("the restored class is %+v, %v", class, err)
	}
	labtest.Eventually(t, "the claim to be bound that keeps its volume of no class", func() error {
		claim, err := lab.Kube.CoreV1().PersistentVolumeClaims(namespace).Get(t.Context(), "kept", metav1.GetOptions{})
		if err == nil && claim.Status.Phase != "Bound" {
			err = fmt.Errorf("it is %s, of the class %q", claim.Status.Phase, *claim.Spec.StorageClassName)
		}
		return err
	})
	// A second restore finds all of it, and has nothing to write.
	if ended, told = restoredFrom(t, ofOne(texts, words...), v1alpha1.RestoreSpec{IncludeClusterResources: new(true)}); strings.Contains(told, "it names no class") || ended.Status.Errors > 0 {
		t.Errorf("it is %+v\n%s", ended.Status, told)
	}
}

// TestRestoreOfOldProfiles: a seccomp profile that only an annotation names is told of, in a pod and in
// a template: no version that is served obeys it. An AppArmor profile is in force as it was.
func TestRestoreOfOldProfiles(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "profiles")
	const ofPod = `annotations: {seccomp.security.alpha.kubernetes.io/pod: runtime/default, container.apparmor.security.beta.kubernetes.io/c: localhost/tight}`
	const spec = `spec: {automountServiceAccountToken: false, terminationGracePeriodSeconds: 0, containers: [{name: c, image: example.com/c}]}`
	ended, told := restoredFrom(t, ofOne(`{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: NS, OFPOD}, SPEC}
---
{apiVersion: v1, kind: Pod, metadata: {name: both, namespace: NS, OFPOD}, spec: {securityContext: {seccompProfile: {type: RuntimeDefault}}, terminationGracePeriodSeconds: 0, containers: [{name: c, image: example.com/c}]}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: NS}, spec: {replicas: 1, selector: {matchLabels: {app: d}}, template: {metadata: {labels: {app: d}, OFPOD}, SPEC}}}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: j, namespace: NS}, spec: {schedule: "1 1 1 1 *", jobTemplate: {spec: {template: {metadata: {annotations: {container.seccomp.security.alpha.kubernetes.io/c: localhost/mine.json}}, spec: {restartPolicy: Never, containers: [{name: c, image: example.com/c}]}}}}}}`,
		"NS", namespace, "OFPOD", ofPod, "SPEC", spec), v1alpha1.RestoreSpec{})
	mustTell(t, ended, told, v1alpha1.RestorePhaseCompleted)
	mustTellOf(t, told, map[string]string{
		"pods " + namespace + "/p":             "its pods' annotation seccomp.security.alpha.kubernetes.io/pod names the seccomp profile runtime/default",
		"deployments.apps " + namespace + "/d": "its pods' annotation seccomp.security.alpha.kubernetes.io/pod",
		"cronjobs.batch " + namespace + "/j":   "its pods' annotation container.seccomp.security.alpha.kubernetes.io/c names the seccomp profile localhost/mine.json",
	})
	if isTold(told, "pods "+namespace+"/both", "its pods' annotation") {
		t.Errorf("a pod that has the field is told of:\n%s", told)
	}
	labtest.Eventually(t, "AppArmor's profile in all pods", func() error {
		pods, err := lab.Kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			context := pod.Spec.Containers[0].SecurityContext
			if context == nil || context.AppArmorProfile == nil || *context.AppArmorProfile.LocalhostProfile != "tight" {
				return fmt.Errorf("%s has %+v", pod.Name, context)
			}
		}
		if len(pods.Items) != 3 {
			return fmt.Errorf("there are %d pods", len(pods.Items))
		}
		return nil
	})
}
