// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestRestoreIsHonestAboutLater: what the cluster takes, and then changes or deletes, is told: a token
// without its account, a rollout that a partition held, and what was made for one pod.
func TestRestoreIsHonestAboutLater(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "later")
	const owner = `ownerReferences: [{apiVersion: v1, kind: Pod, name: web-1-a, uid: of-pod, controller: true}]`
	ended, told := restoredFrom(t, ofOne(`{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: token, namespace: NS, annotations: {kubernetes.io/service-account.name: robot}}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: clerk, namespace: NS}}
---
{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: of-clerk, namespace: NS, annotations: {kubernetes.io/service-account.name: clerk}}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: canary, namespace: NS}, spec: {serviceName: canary, replicas: 3, ordinals: {start: 3}, updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 5}}, selector: {matchLabels: {app: c}}, template: {metadata: {labels: {app: c}}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: "example.com/c:2"}]}}}, status: {replicas: 3, currentRevision: canary-1, updateRevision: canary-2}}
---
{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: each, namespace: NS}, spec: {updateStrategy: {type: OnDelete}, selector: {matchLabels: {app: e}}, template: {metadata: {labels: {app: e}}, spec: {nodeSelector: {no: where}, containers: [{name: c, image: "example.com/c:2"}]}}}, status: {currentNumberScheduled: 3, updatedNumberScheduled: 1}}
---
{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: web-1, namespace: NS, uid: of-set}, spec: {replicas: 0, selector: {matchLabels: {app: w}}, template: {metadata: {labels: {app: w}}, spec: {containers: [{name: c, image: example.com/c}]}}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-1-a, namespace: NS, uid: of-pod, labels: {app: w}, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-1, uid: of-set, controller: true}]}, spec: {containers: [{name: c, image: example.com/c}]}}
---
{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: web-1-a-gpu-x, namespace: NS, annotations: {resource.kubernetes.io/pod-claim-name: gpu}, OWNER}, spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}}
---
{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: shared, namespace: NS}, spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}}`,
		"NS", namespace, "OWNER", owner), v1alpha1.RestoreSpec{})
	mustTell(t, ended, told, v1alpha1.RestorePhasePartiallyFailed)
	mustTellOf(t, told, map[string]string{
		"secrets " + namespace + "/token":                                "its account robot is not there, and Kubernetes deletes a token without an account",
		"statefulsets.apps " + namespace + "/canary":                     "a rollout from the revision canary-1 to canary-2 had not ended, or a partition held it",
		"daemonsets.apps " + namespace + "/each":                         "2 of its 3 pods were of an earlier template",
		"resourceclaims.resource.k8s.io " + namespace + "/web-1-a-gpu-x": "skip: the Pod web-1-a makes it",
	})
	if ended.Status.Errors != 1 {
		t.Errorf("there are %d errors:\n%s", ended.Status.Errors, told)
	}
	mustHave(t, ofOne(`{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: shared, namespace: NS}}
---
{apiVersion: v1, kind: Secret, metadata: {name: of-clerk, namespace: NS}}`, "NS", namespace))
	// It is true: all pods are of the newer template.
	labtest.Eventually(t, "a pod of the StatefulSet", func() error {
		pod, err := lab.Kube.CoreV1().Pods(namespace).Get(t.Context(), "canary-3", metav1.GetOptions{})
		if err == nil && pod.Spec.Containers[0].Image != "example.com/c:2" {
			t.Errorf("it has the image %s", pod.Spec.Containers[0].Image)
		}
		return err
	})
}

// TestRestoreOfNamesInPlaces: names of a mapped namespace follow it wherever the API has a field for
// them, and what only looks so is told.
func TestRestoreOfNamesInPlaces(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "places")
	target := lab.Namespace(t, "places-copy")
	words := []string{"NS", namespace, "COPY", target}
	ended, told := restoredFrom(t, ofOne(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: NS}, spec: {replicas: 0, selector: {matchLabels: {app: w}}, template: {metadata: {labels: {app: w}}, spec: {affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, namespaces: [NS, other], labelSelector: {matchLabels: {app: w}}}]}, podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: zone, namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}}}]}}, containers: [{name: c, image: example.com/c}]}}}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: own, namespace: NS}, spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [NS, other]}]}}]}]}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: from, namespace: NS}, spec: {storageClassName: "", accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, dataSourceRef: {apiGroup: example.com, kind: Image, name: gone}}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: own, namespace: NS}, rules: [{apiGroups: [""], resources: [namespaces], resourceNames: [NS], verbs: [get]}, {apiGroups: [""], resources: [secrets], resourceNames: [NS], verbs: [get]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: own, namespace: NS}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: own}, subjects: [{kind: Group, apiGroup: rbac.authorization.k8s.io, name: "system:serviceaccounts:NS"}]}
---
{apiVersion: flowcontrol.apiserver.k8s.io/v1, kind: FlowSchema, metadata: {name: NS}, spec: {priorityLevelConfiguration: {name: global-default}, matchingPrecedence: 9000, rules: [{subjects: [{kind: ServiceAccount, serviceAccount: {name: robot, namespace: NS}}, {kind: Group, group: {name: "system:serviceaccounts:NS"}}], resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], namespaces: [NS]}]}]}}
---
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: NS}, webhooks: [{name: check.NS.example.com, failurePolicy: Ignore, sideEffects: None, admissionReviewVersions: [v1], namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}, clientConfig: {caBundle: "", service: {name: hook, namespace: NS}}, matchConditions: [{name: mine, expression: "request.namespace == 'NS'"}], rules: [{apiGroups: [example.com], apiVersions: [v1], operations: [CREATE], resources: [things]}]}]}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: peers, namespace: NS}, data: {seeds: "db-0.db.NS.svc.cluster.local,db-1.db.NS.svc"}}`, words...),
		v1alpha1.RestoreSpec{IncludeClusterResources: new(true), NamespaceMapping: map[string]string{namespace: target}})
	t.Cleanup(func() {
		_, _, _ = lab.TryKubectl(t, "", "delete", "flowschema,validatingwebhookconfiguration", namespace, "--ignore-not-found")
	})
	mustTell(t, ended, told, v1alpha1.RestorePhaseCompleted, "matchConditions", "peers")
	mustHave(t, ofOne(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: COPY}, spec: {template: {spec: {affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{namespaces: [COPY, other]}]}, podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{podAffinityTerm: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: COPY}}}}]}}}}}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: own, namespace: COPY}, spec: {ingress: [{from: [{namespaceSelector: {matchExpressions: [{values: [COPY, other]}]}}]}]}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: own, namespace: COPY}, rules: [{resources: [namespaces], resourceNames: [COPY]}, {resources: [secrets], resourceNames: [NS]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: own, namespace: COPY}, subjects: [{name: "system:serviceaccounts:COPY"}]}
---
{apiVersion: flowcontrol.apiserver.k8s.io/v1, kind: FlowSchema, metadata: {name: NS}, spec: {rules: [{subjects: [{serviceAccount: {name: robot, namespace: COPY}}, {group: {name: "system:serviceaccounts:COPY"}}], resourceRules: [{namespaces: [COPY]}]}]}}
---
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: NS}, webhooks: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: COPY}}, clientConfig: {service: {namespace: COPY}}}]}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: peers, namespace: COPY}, data: {seeds: "db-0.db.NS.svc.cluster.local,db-1.db.NS.svc"}}`, words...))
}

// TestRestoreOfHistories: definitions with two stored versions, Jobs and Services of others, and what
// was just being deleted come back as far as they were there.
func TestRestoreOfHistories(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "histories")
	words := []string{"NS", namespace, "GROUP", namespace + ".example.com"}
	dropKinds(t, "things."+namespace+".example.com")
	createAll(t, ofOne(`{apiVersion: v1, kind: Service, metadata: {name: taken, namespace: NS}, spec: {type: NodePort, selector: {app: x}, ports: [{port: 80, nodePort: 32717}]}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: fixed, namespace: NS}, immutable: true, data: {a: "1"}}
---
{apiVersion: v1, kind: ResourceQuota, metadata: {name: few, namespace: NS}, spec: {hard: {count/cronjobs.batch: "0"}}}`, words...))
	ended, told := restoredFrom(t, ofOne(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.GROUP}
spec: {group: GROUP, scope: Namespaced, names: {plural: things, singular: thing, kind: Thing, listKind: ThingList}, versions: [{name: v1beta1, served: true, storage: false, deprecated: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}, {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}
status: {storedVersions: [v1beta1, v1]}
---
{apiVersion: GROUP/v1beta1, kind: Thing, metadata: {name: older, namespace: NS}, spec: {size: 9007199254740993}}
---
{apiVersion: GROUP/v1, kind: Thing, metadata: {name: newer, namespace: NS, deletionTimestamp: "2026-01-02T03:04:05Z", deletionGracePeriodSeconds: 0, finalizers: [example.com/gone]}, spec: {}}
---
{apiVersion: v1, kind: Service, metadata: {name: balanced, namespace: NS, annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"apiVersion":"v1","kind":"Service","metadata":{"name":"balanced"},"spec":{"type":"LoadBalancer","ports":[{"port":80,"nodePort":32717}]}}'}}, spec: {type: LoadBalancer, selector: {app: x}, ports: [{port: 80, nodePort: 32717}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: headless, namespace: NS}, spec: {clusterIP: None, clusterIPs: [None], selector: {app: x}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: fixed, namespace: NS}, immutable: true, data: {a: "2"}}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: nightly, namespace: NS}, spec: {schedule: "1 1 1 1 *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: example.com/c}]}}}}}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: nightly-1, namespace: NS, ownerReferences: [{apiVersion: batch/v1, kind: CronJob, name: lost, uid: lost, controller: true}]}, spec: {selector: {matchLabels: {batch.kubernetes.io/controller-uid: old}}, template: {metadata: {labels: {batch.kubernetes.io/controller-uid: old, controller-uid: old, job-name: nightly-1, batch.kubernetes.io/job-name: nightly-1}}, spec: {restartPolicy: Never, containers: [{name: c, image: example.com/c}]}}}, status: {startTime: "2026-01-02T03:04:05Z", active: 1}}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: NS-polite}, value: 7, preemptionPolicy: Never}
---
{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: scale, namespace: NS}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: gone}, minReplicas: 1, maxReplicas: 3, metrics: [{type: External, external: {metric: {name: queue}, target: {type: Value, value: 1500m}}}]}}
---
{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: budget, namespace: NS}, spec: {maxUnavailable: 0, unhealthyPodEvictionPolicy: AlwaysAllow, selector: {}}}`, words...), v1alpha1.RestoreSpec{IncludeClusterResources: new(true)})
	t.Cleanup(func() {
		_, _, _ = lab.TryKubectl(t, "", "delete", "priorityclass", namespace+"-polite", "--ignore-not-found")
	})
	mustTell(t, ended, told, v1alpha1.RestorePhasePartiallyFailed, "exceeded quota: few", "its owner, the CronJob lost, is neither restored nor there", "its finalizer example.com/gone is left out")
	mustTellOf(t, told, map[string]string{
		"services " + namespace + "/balanced":    "not as in the backup: ",
		"configmaps " + namespace + "/fixed":     "it is there, and stays as it is, though it differs",
		"jobs.batch " + namespace + "/nightly-1": "it had begun",
	})
	if ended.Status.Errors != 1 {
		t.Errorf("there are %d errors:\n%s", ended.Status.Errors, told)
	}
	mustHave(t, ofOne(`{apiVersion: GROUP/v1, kind: Thing, metadata: {name: older, namespace: NS}, spec: {size: 9007199254740993}}
---
{apiVersion: GROUP/v1, kind: Thing, metadata: {name: newer, namespace: NS}}
---
{apiVersion: v1, kind: Service, metadata: {name: headless, namespace: NS}, spec: {clusterIP: None, clusterIPs: [None]}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: nightly-1, namespace: NS}, spec: {suspend: true}}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: NS-polite}, value: 7, preemptionPolicy: Never}
---
{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: scale, namespace: NS}, spec: {metrics: [{external: {target: {value: 1500m}}}]}}
---
{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: budget, namespace: NS}, spec: {maxUnavailable: 0, selector: {}}}`, words...))
}
