// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

func parse(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	encoded, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(encoded); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return o
}

func newRules(t testing.TB, spec v1alpha1.RestoreSpec, modifiers map[string]string, facts Facts) *Rules {
	t.Helper()
	var m *Modifiers
	if modifiers != nil {
		var err error
		if m, err = ParseModifiers(modifiers); err != nil {
			t.Fatal(err)
		}
	}
	r, err := NewRules(&spec, m, facts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// owned finds the owners named in a map of uids.
func owned(uids map[types.UID]types.UID) Owners {
	return func(owner metav1.OwnerReference) (types.UID, bool) {
		uid, ok := uids[owner.UID]
		return uid, ok
	}
}

// TestImages: the longest word counts, up to the end of a part, wherever containers are.
func TestImages(t *testing.T) {
	rules := newRules(t, v1alpha1.RestoreSpec{ImageMapping: map[string]string{
		"docker.io": "mirror.local", "docker.io/library": "mirror.local/official", "app:1": "app:2", "data": "mirror.local/data",
	}}, nil, Facts{})
	o := parse(t, `{apiVersion: batch/v1, kind: CronJob, metadata: {name: nightly, namespace: shop}, spec: {jobTemplate: {spec: {template: {spec: {
	  initContainers: [{name: a, image: "docker.io/library/nginx@sha256:1"}],
	  containers: [{name: b, image: "docker.io/x/y:1"}, {name: c, image: "docker.io.evil/x"}, {name: d, image: "app:1"}, {name: e, image: "app:10"}, {name: f}],
	  volumes: [{name: v, image: {reference: "data:1"}}]}}}}}}`)
	desired, _, err := rules.Desired(t.Context(), o, schema.GroupResource{Group: "batch", Resource: "cronjobs"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := parse(t, `{apiVersion: batch/v1, kind: CronJob, metadata: {name: nightly, namespace: shop}, spec: {jobTemplate: {spec: {template: {spec: {
	  initContainers: [{name: a, image: "mirror.local/official/nginx@sha256:1"}],
	  containers: [{name: b, image: "mirror.local/x/y:1"}, {name: c, image: "docker.io.evil/x"}, {name: d, image: "app:2"}, {name: e, image: "app:10"}, {name: f}],
	  volumes: [{name: v, image: {reference: "mirror.local/data:1"}}]}}}}}}`)
	if diff := cmp.Diff(want.Object["spec"], desired.Object["spec"]); diff != "" {
		t.Error(diff)
	}
}

func TestDesired(t *testing.T) {
	for name, test := range map[string]struct {
		spec      v1alpha1.RestoreSpec
		facts     Facts
		modifiers string
		owners    map[types.UID]types.UID
		resource  string
		object    string
		want      string
		warnings  []string // parts of them
		err       string
	}{
		"pitfall 22 and 23: what the server gives is left out": {
			resource: "configmaps",
			object: `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: shop, generateName: a-, uid: u1, resourceVersion: "5", generation: 3,
			  creationTimestamp: "2026-01-01T00:00:00Z", selfLink: /x, managedFields: [{manager: m, operation: Update}], labels: {l: v}, annotations: {n: v, holdfast.io/restore-uid: old}}, data: {k: v}}`,
			want: `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: shop, labels: {l: v}, annotations: {n: v}}, data: {k: v}}`,
		},
		"pitfall 25: finalizers are left out, and strangers' are named": {
			resource: "widgets.example.com",
			object:   `{apiVersion: example.com/v1, kind: Widget, metadata: {name: a, namespace: shop, finalizers: [example.com/cleanup, finalizer.example.com, foregroundDeletion]}, status: {phase: Ready}}`,
			want:     `{apiVersion: example.com/v1, kind: Widget, metadata: {name: a, namespace: shop}}`,
			warnings: []string{"finalizer example.com/cleanup", "finalizer finalizer.example.com"},
		},
		"Holdfast's policy against removal keeps its guard": {
			resource: "validatingadmissionpolicies.admissionregistration.k8s.io",
			object:   `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: holdfast-removal, finalizers: [holdfast.io/removal, example.com/cleanup]}}`,
			want:     `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: holdfast-removal, finalizers: [holdfast.io/removal]}}`,
			warnings: []string{"finalizer example.com/cleanup"},
		},
		"pitfall 1: owners are rewritten, and unknown ones left out with their name": {
			resource: "configmaps", owners: map[types.UID]types.UID{"o1": "new", "o3": ""},
			object: `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: shop, ownerReferences: [
			  {apiVersion: apps/v1, kind: Deployment, name: web, uid: o1, controller: true}, {apiVersion: v1, kind: Pod, name: gone, uid: o2}, {apiVersion: v1, kind: Pod, name: later, uid: o3}]}}`,
			want: `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: shop, ownerReferences: [
			  {apiVersion: apps/v1, kind: Deployment, name: web, uid: new, controller: true}]}}`,
			warnings: []string{"Pod gone"},
		},
		"pitfall 11: addresses and allotted ports of a Service are left out": {
			resource: "services",
			object: `{apiVersion: v1, kind: Service, metadata: {name: a, namespace: shop}, spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], healthCheckNodePort: 31000, type: NodePort,
			  ports: [{port: 80, protocol: TCP, nodePort: 30080}]}, status: {loadBalancer: {}}}`,
			want: `{apiVersion: v1, kind: Service, metadata: {name: a, namespace: shop}, spec: {type: NodePort, ports: [{port: 80, protocol: TCP}]}}`,
		},
		"pitfall 11: a port that somebody asked for stays, and so does a Service without address": {
			resource: "services",
			object: `{apiVersion: v1, kind: Service, metadata: {name: a, namespace: shop, managedFields: [{manager: helm, operation: Update, fieldsType: FieldsV1,
			    fieldsV1: {"f:spec": {"f:ports": {'k:{"port":80,"protocol":"TCP"}': {"f:nodePort": {}}}}}}]}, spec: {clusterIP: None,
			  ports: [{port: 80, protocol: TCP, nodePort: 30080}, {port: 81, protocol: TCP, nodePort: 30081}]}}`,
			want: `{apiVersion: v1, kind: Service, metadata: {name: a, namespace: shop}, spec: {clusterIP: None, ports: [{port: 80, protocol: TCP, nodePort: 30080}, {port: 81, protocol: TCP}]}}`,
		},
		"pitfall 7: a claim with data loses its binding and its source, and gets another class": {
			resource: "persistentvolumeclaims", spec: v1alpha1.RestoreSpec{StorageClassMapping: map[string]string{"old": "new"}},
			facts: Facts{TakesNewVolume: func(namespace, name string) bool { return namespace == "shop" && name == "data" }, KeepsVolume: func(string, string) bool { return true }},
			object: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop, finalizers: [kubernetes.io/pvc-protection], annotations: {
			  pv.kubernetes.io/bind-completed: "yes", volume.kubernetes.io/selected-node: n1, volume.kubernetes.io/storage-provisioner: p, mine: v}},
			  spec: {storageClassName: old, volumeName: pv1, dataSource: {kind: VolumeSnapshot, name: s}, accessModes: [ReadWriteOnce]}, status: {phase: Bound}}`,
			want: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop, annotations: {mine: v}}, spec: {storageClassName: new, accessModes: [ReadWriteOnce]}}`,
		},
		"a claim loses by what Velero finds its snapshot": {
			resource: "persistentvolumeclaims",
			object: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop, labels: {velero.io/backup-name: b, velero.io/volume-snapshot-name: s, app: shop},
			  annotations: {velero.io/volume-snapshot-name: s, velero.io/data-upload-name: velero/u, backup.velero.io/must-include-additional-items: "true", mine: v}}, spec: {accessModes: [ReadWriteOnce]}}`,
			want: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop, labels: {app: shop}, annotations: {mine: v}}, spec: {accessModes: [ReadWriteOnce]}}`,
		},
		"pitfall 8: claimRef and volumeName stay paired": {
			resource: "persistentvolumeclaims", facts: Facts{KeepsVolume: func(namespace, name string) bool { return namespace == "shop" && name == "data" }},
			object: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop}, spec: {volumeName: pv1}}`,
			want:   `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop}, spec: {volumeName: pv1}}`,
		},
		"pitfall 8: a volume waits for the claim that will be": {
			resource: "persistentvolumes",
			object:   `{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv1, annotations: {pv.kubernetes.io/bound-by-controller: "yes"}}, spec: {claimRef: {kind: PersistentVolumeClaim, namespace: shop, name: data, uid: u, resourceVersion: "1"}}}`,
			want:     `{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv1}, spec: {claimRef: {kind: PersistentVolumeClaim, namespace: shop, name: data}}}`,
		},
		"pitfall 19: tokens are minted anew": {
			resource: "secrets",
			object: `{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: mine, namespace: shop, annotations: {kubernetes.io/service-account.name: bob, kubernetes.io/service-account.uid: u}},
			  data: {token: eA==, ca.crt: eA==, namespace: eA==}}`,
			want: `{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: mine, namespace: shop, annotations: {kubernetes.io/service-account.name: bob}}}`,
		},
		"pitfall 19: a service account keeps its secrets, whatever they are called": {
			resource: "serviceaccounts",
			object:   `{apiVersion: v1, kind: ServiceAccount, metadata: {name: bob, namespace: shop}, secrets: [{name: bob-token-x1}, {name: mine}], imagePullSecrets: [{name: registry}, {name: bob-dockercfg-2}]}`,
			want:     `{apiVersion: v1, kind: ServiceAccount, metadata: {name: bob, namespace: shop}, secrets: [{name: bob-token-x1}, {name: mine}], imagePullSecrets: [{name: registry}, {name: bob-dockercfg-2}]}`,
		},
		"pitfall 19: a service account loses what the cluster makes anew for it": {
			resource: "serviceaccounts", facts: Facts{Remade: func(namespace, _ string) bool { return namespace == "shop" }},
			object: `{apiVersion: v1, kind: ServiceAccount, metadata: {name: bob, namespace: shop}, secrets: [{name: bob-token-x1}, {name: mine}], imagePullSecrets: [{name: registry}, {name: bob-dockercfg-2}]}`,
			want:   `{apiVersion: v1, kind: ServiceAccount, metadata: {name: bob, namespace: shop}, secrets: [{name: mine}], imagePullSecrets: [{name: registry}]}`,
		},
		"a pod loses what the admission computes, and the Secret that the cluster makes anew": {
			resource: "pods", facts: Facts{Remade: func(string, string) bool { return true }},
			object: `{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop}, spec: {serviceAccountName: bob, imagePullSecrets: [{name: bob-dockercfg-x}, {name: mine}], priorityClassName: high, priority: 5, preemptionPolicy: Never, runtimeClassName: r, overhead: {cpu: 1m}, containers: [{name: c}]}}`,
			want:   `{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop}, spec: {serviceAccountName: bob, imagePullSecrets: [{name: mine}], priorityClassName: high, runtimeClassName: r, containers: [{name: c}]}}`,
		},
		"a pod keeps the tokens that somebody gave it": {
			resource: "pods",
			object: `{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop}, spec: {serviceAccountName: bob, volumes: [{name: bob-token-mine, secret: {secretName: bob-token-mine}}, {name: kube-api-access-2, projected: {}}, {name: bob-token-abcde, secret: {secretName: bob-token-abcde}}],
			  containers: [{name: c, volumeMounts: [{name: bob-token-mine, mountPath: /t}, {name: kube-api-access-2, mountPath: /u}, {name: bob-token-abcde, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}]}]}}`,
			want: `{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop}, spec: {serviceAccountName: bob, volumes: [{name: bob-token-mine, secret: {secretName: bob-token-mine}}, {name: kube-api-access-2, projected: {}}],
			  containers: [{name: c, volumeMounts: [{name: bob-token-mine, mountPath: /t}, {name: kube-api-access-2, mountPath: /u}]}]}}`,
		},
		"a pod that takes no token keeps what is called like one": {
			resource: "pods",
			object:   `{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop}, spec: {automountServiceAccountToken: false, volumes: [{name: kube-api-access-x, projected: {}}], containers: [{name: c, volumeMounts: [{name: kube-api-access-x, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}]}]}}`,
			want:     `{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop}, spec: {automountServiceAccountToken: false, volumes: [{name: kube-api-access-x, projected: {}}], containers: [{name: c, volumeMounts: [{name: kube-api-access-x, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}]}]}}`,
		},
		"a ReplicaSet keeps its place in the history": {
			resource: "replicasets.apps",
			object:   `{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: a, namespace: shop, annotations: {deployment.kubernetes.io/revision: "4"}}}`,
			want:     `{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: a, namespace: shop, annotations: {deployment.kubernetes.io/revision: "4"}}}`,
		},
		"a time zone that is in a schedule": {
			resource: "cronjobs.batch",
			object:   `{apiVersion: batch/v1, kind: CronJob, metadata: {name: a, namespace: shop}, spec: {schedule: "CRON_TZ=Europe/Paris  5 1 * * *"}}`,
			want:     `{apiVersion: batch/v1, kind: CronJob, metadata: {name: a, namespace: shop}, spec: {timeZone: Europe/Paris, schedule: "5 1 * * *"}}`,
			warnings: []string{"the time zone Europe/Paris in it"},
		},
		"a time zone that is in a schedule, and in its field": {
			resource: "cronjobs.batch",
			object:   `{apiVersion: batch/v1, kind: CronJob, metadata: {name: a, namespace: shop}, spec: {timeZone: Etc/UTC, schedule: "TZ=Europe/Paris 5 1 * * *"}}`,
			want:     `{apiVersion: batch/v1, kind: CronJob, metadata: {name: a, namespace: shop}, spec: {timeZone: Etc/UTC, schedule: "TZ=Europe/Paris 5 1 * * *"}}`,
		},
		"an APIService is not taken for the server's": {
			resource: "apiservices.apiregistration.k8s.io",
			object:   `{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.e, labels: {kube-aggregator.kubernetes.io/automanaged: onstart}}, spec: {service: {name: s}}}`,
			want:     `{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.e}, spec: {service: {name: s}}}`,
		},
		"pitfall 17: a lone pod loses what was decided about it and put into it": {
			resource: "pods",
			object: `{apiVersion: v1, kind: Pod, metadata: {name: lone, namespace: shop, annotations: {sidecar.istio.io/status: '{"initContainers":["istio-init"],"containers":["istio-proxy"],"volumes":["istio-envoy"]}'}},
			  spec: {nodeName: n1, priority: 5, serviceAccountName: bob, volumes: [{name: kube-api-access-x, projected: {}}, {name: istio-envoy, emptyDir: {}}, {name: data, emptyDir: {}}],
			  initContainers: [{name: istio-init}], containers: [{name: app, volumeMounts: [{name: kube-api-access-x, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}, {name: data}]}, {name: istio-proxy}]}, status: {phase: Running}}`,
			want: `{apiVersion: v1, kind: Pod, metadata: {name: lone, namespace: shop}, spec: {serviceAccountName: bob, volumes: [{name: data, emptyDir: {}}], containers: [{name: app, volumeMounts: [{name: data}]}]}}`,
		},
		"a pod that was restored before does not wait for that again": {
			resource: "pods",
			object: `{apiVersion: v1, kind: Pod, metadata: {name: lone, namespace: shop, labels: {engine.holdfast.io/waits-for-restore: r, app: a}},
			  spec: {volumes: [{name: data, emptyDir: {}}, {name: holdfast-restore, emptyDir: {}}, {name: holdfast-restore-2, emptyDir: {}}],
			  initContainers: [{name: holdfast-restore-wait, args: [restore-wait, --volume=data], volumeMounts: [{name: holdfast-restore-2, mountPath: /holdfast-restore}, {name: holdfast-restore-2, mountPath: /tokens}]},
			    {name: holdfast-restore-wait-2, args: [its-own]}],
			  containers: [{name: app, args: [restore-wait], volumeMounts: [{name: data}, {name: holdfast-restore}]}]}}`,
			want: `{apiVersion: v1, kind: Pod, metadata: {name: lone, namespace: shop, labels: {app: a}},
			  spec: {volumes: [{name: data, emptyDir: {}}, {name: holdfast-restore, emptyDir: {}}], initContainers: [{name: holdfast-restore-wait-2, args: [its-own]}],
			  containers: [{name: app, args: [restore-wait], volumeMounts: [{name: data}, {name: holdfast-restore}]}]}}`,
		},
		"what waits by another name does not either, and what others mount of it stays": {
			resource: "pods",
			object: `{apiVersion: v1, kind: Pod, metadata: {name: lone, namespace: shop},
			  spec: {volumes: [{name: told, emptyDir: {}}, {name: shared, emptyDir: {}}, {name: claim, persistentVolumeClaim: {claimName: c}}],
			  initContainers: [{name: one, args: [restore-wait], volumeMounts: [{name: told, mountPath: /holdfast-restore}, {name: told, mountPath: /tokens}]},
			    {name: two, args: [restore-wait], volumeMounts: [{name: shared, mountPath: /holdfast-restore}]}, {name: three, args: [restore-wait], volumeMounts: [{name: claim, mountPath: /holdfast-restore}]},
			    {name: holdfast-restore-wait, args: [restore-wait], volumeMounts: [{name: told-not, mountPath: /elsewhere}]}],
			  containers: [{name: app, volumeMounts: [{name: shared, mountPath: /shared}]}]}}`,
			want: `{apiVersion: v1, kind: Pod, metadata: {name: lone, namespace: shop},
			  spec: {volumes: [{name: shared, emptyDir: {}}, {name: claim, persistentVolumeClaim: {claimName: c}}],
			  initContainers: [{name: holdfast-restore-wait, args: [restore-wait], volumeMounts: [{name: told-not, mountPath: /elsewhere}]}],
			  containers: [{name: app, volumeMounts: [{name: shared, mountPath: /shared}]}]}}`,
		},
		"pitfall 24: a Job that had begun does not run again by itself": {
			resource: "jobs.batch",
			object: `{apiVersion: batch/v1, kind: Job, metadata: {name: j, namespace: shop, labels: {controller-uid: u, mine: v}}, spec: {selector: {matchLabels: {controller-uid: u}},
			  template: {metadata: {labels: {controller-uid: u, batch.kubernetes.io/controller-uid: u, job-name: j}}}}, status: {startTime: "2026-01-01T00:00:00Z"}}`,
			want:     `{apiVersion: batch/v1, kind: Job, metadata: {name: j, namespace: shop, labels: {mine: v}}, spec: {suspend: true, template: {metadata: {labels: {job-name: j}}}}}`,
			warnings: []string{"suspended"},
		},
		"pitfall 25: subjects of bindings follow their namespaces": {
			resource: "rolebindings.rbac.authorization.k8s.io", spec: v1alpha1.RestoreSpec{NamespaceMapping: map[string]string{"shop": "copy"}},
			object: `{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: b, namespace: shop}, roleRef: {kind: Role, name: r}, subjects: [{kind: ServiceAccount, name: bob, namespace: shop}, {kind: ServiceAccount, name: eve, namespace: other}, {kind: User, name: u}]}`,
			want:   `{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: b, namespace: copy}, roleRef: {kind: Role, name: r}, subjects: [{kind: ServiceAccount, name: bob, namespace: copy}, {kind: ServiceAccount, name: eve, namespace: other}, {kind: User, name: u}]}`,
		},
		"pitfall 25: what still names the old namespace is said": {
			resource: "configmaps", spec: v1alpha1.RestoreSpec{NamespaceMapping: map[string]string{"shop": "copy"}},
			object:   `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: shop}, data: {url: "http://db.shop.svc:80", other: shop}}`,
			want:     `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: copy}, data: {url: "http://db.shop.svc:80", other: shop}}`,
			warnings: []string{"still names shop, at data.url"},
		},
		"a namespace gets its new name": {
			resource: "namespaces", spec: v1alpha1.RestoreSpec{NamespaceMapping: map[string]string{"shop": "copy"}},
			object: `{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {kubernetes.io/metadata.name: shop, team: a}}, spec: {finalizers: [kubernetes]}}`,
			want:   `{apiVersion: v1, kind: Namespace, metadata: {name: copy, labels: {team: a}}}`,
		},
		"a modifier changes what meets its conditions": {
			resource: "deployments.apps",
			modifiers: `
version: v1
resourceModifierRules:
- conditions: {groupResource: deployments.apps, resourceNameRegex: "^we", namespaces: [shop], labelSelector: {matchLabels: {app: web}}, matches: [{path: /spec/replicas, value: "3"}]}
  patches: [{operation: replace, path: /spec/replicas, value: "1"}, {operation: add, path: /metadata/labels/n, value: "\"1\""}]
- conditions: {groupResource: "*", matches: [{path: /spec/replicas, value: "7"}]}
  patches: [{operation: remove, path: /spec}]
- conditions: {groupResource: deployments.apps}
  mergePatches: [{patchData: "metadata: {annotations: {a: b}}"}]
- conditions: {groupResource: deployments.apps}
  strategicPatches: [{patchData: "spec: {template: {spec: {containers: [{name: b, image: new}]}}}"}]
`,
			object: `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {replicas: 3, template: {spec: {containers: [{name: a, image: i}, {name: b, image: i}]}}}}`,
			want:   `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop, labels: {app: web, "n": "1"}, annotations: {a: b}}, spec: {replicas: 1, template: {spec: {containers: [{name: a, image: i}, {name: b, image: new}]}}}}`,
		},
		"each modifier's conditions look at the object without the others": {
			resource: "configmaps",
			modifiers: `
version: v1
resourceModifierRules:
- conditions: {groupResource: configmaps, matches: [{path: /data/k, value: v}]}
  mergePatches: [{patchData: "{metadata: {labels: {l: new}}, data: {k: w}}"}]
- conditions: {groupResource: configmaps, matches: [{path: /data/k, value: w}]}
  patches: [{operation: remove, path: /data}]
- conditions: {groupResource: configmaps, labelSelector: {matchLabels: {l: new}}}
  patches: [{operation: remove, path: /data}]
- conditions: {groupResource: configmaps, labelSelector: {matchLabels: {l: old}}, matches: [{path: /data/k, value: v}]}
  patches: [{operation: copy, from: /data/k, path: /data/x}]
`,
			object: `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: shop, labels: {l: old}}, data: {k: v}}`,
			want:   `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: shop, labels: {l: new}}, data: {k: w, x: w}}`,
		},
		"a test of a modifier that fails leaves out its rule alone, in any order of its patches": {
			resource: "configmaps",
			modifiers: `
version: v1
resourceModifierRules:
- conditions: {groupResource: configmaps}
  patches: [{operation: test, path: /data/k, value: other}, {operation: remove, path: /data/none}]
- conditions: {groupResource: configmaps}
  patches: [{operation: replace, path: /data/k, value: lost}, {operation: test, path: /data/none, value: other}]
- conditions: {groupResource: configmaps}
  patches: [{operation: test, path: /data/k, value: v}, {operation: add, path: /data/l, value: w}]
`,
			object: `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: shop}, data: {k: v}}`,
			want:   `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: shop}, data: {k: v, l: w}}`,
		},
		"an error of a modifier keeps the object back": {
			resource:  "configmaps",
			modifiers: `{version: v1, resourceModifierRules: [{conditions: {groupResource: configmaps}, patches: [{operation: remove, path: /data/none}]}]}`,
			object:    `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: shop}, data: {k: v}}`,
			err:       "resourceModifierRules[0]",
		},
		"a modifier makes no other object of it": {
			resource:  "configmaps",
			modifiers: `{version: v1, resourceModifierRules: [{conditions: {groupResource: configmaps}, mergePatches: [{patchData: '{"metadata": {"namespace": "kube-system"}}'}]}]}`,
			object:    `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: shop}, data: {k: v}}`,
			err:       "and not replace it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var modifiers map[string]string
			if test.modifiers != "" {
				modifiers = map[string]string{"rules.yaml": test.modifiers}
			}
			rules := newRules(t, test.spec, modifiers, test.facts)
			got, warnings, err := rules.Desired(t.Context(), parse(t, test.object), schema.ParseGroupResource(test.resource), owned(test.owners))
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error %v, want one with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(parse(t, test.want).Object, got.Object); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
			if len(warnings) != len(test.warnings) {
				t.Errorf("warnings %q, want %q", warnings, test.warnings)
			}
			for i := range min(len(warnings), len(test.warnings)) {
				if !strings.Contains(warnings[i], test.warnings[i]) {
					t.Errorf("warning %q, want one with %q", warnings[i], test.warnings[i])
				}
			}
		})
	}
}

func TestCompare(t *testing.T) {
	const deployment = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop, uid: u, resourceVersion: "7"%s}, spec: %s}`
	object := func(metadata, spec string) string {
		return strings.Replace(strings.Replace(deployment, "%s", metadata, 1), "%s", spec, 1)
	}
	for name, test := range map[string]struct {
		live, desired, served             string
		policy                            v1alpha1.ExistingResourcePolicy
		action                            Action
		differs, besides, kept, immutable []string
		patch                             string // without the preconditions
	}{
		"proof 7: defaults, labels and what controllers apply make no difference": {
			live: object(`, labels: {a: b, more: x}, annotations: {deployment.kubernetes.io/revision: "4"}, managedFields: [{manager: injector, operation: Apply, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"sidecar"}': {".": {}, "f:name": {}, "f:image": {}}}}}}}}]`,
				`{replicas: 2, progressDeadlineSeconds: 600, template: {metadata: {annotations: {kubectl.kubernetes.io/restartedAt: now}}, spec: {dnsPolicy: ClusterFirst, containers: [{name: sidecar, image: s, imagePullPolicy: Always}, {name: a, image: i, imagePullPolicy: Always, ports: [{containerPort: 80, protocol: TCP}]}]}}}`),
			desired: object(`, labels: {a: b, engine.holdfast.io/waits-for-restore: r}, annotations: {holdfast.io/restore-uid: r}`, `{replicas: 2, paused: null, template: {metadata: {}, spec: {containers: [{name: a, image: i, ports: [{containerPort: 80}]}]}}}`),
			served:  object("", `{replicas: 2, progressDeadlineSeconds: 600, template: {metadata: {}, spec: {dnsPolicy: ClusterFirst, containers: [{name: sidecar, image: s, imagePullPolicy: Always}, {name: a, image: i, imagePullPolicy: Always, ports: [{containerPort: 80, protocol: TCP}]}]}}}`),
			policy:  v1alpha1.ExistingResourceUpdate, action: Equal,
		},
		"what was added since is named": {
			live:    object("", `{replicas: 2, paused: true, template: {spec: {hostNetwork: true, containers: [{name: a, image: i, env: [{name: X, value: "1"}]}, {name: miner, image: m}]}}}`),
			desired: object("", `{replicas: 2, template: {spec: {containers: [{name: a, image: i}]}}}`),
			served:  object("", `{replicas: 2, template: {spec: {containers: [{name: a, image: i}]}}}`),
			action:  Keep, besides: []string{"spec.paused", "spec.template.spec.containers[a].env[X]", "spec.template.spec.containers[miner]", "spec.template.spec.hostNetwork"},
		},
		"what was added since is removed, but for the server's own": {
			live:    object("", `{replicas: 2, paused: true, progressDeadlineSeconds: 600, template: {spec: {terminationGracePeriodSeconds: 1, nodeSelector: {gpu: "yes"}, securityContext: {runAsUser: 0}, containers: [{name: a, image: i}, {name: miner, image: m}]}}}`),
			desired: object("", `{replicas: 2, template: {spec: {containers: [{name: a, image: i}]}}}`),
			served:  object("", `{replicas: 2, progressDeadlineSeconds: 600, template: {spec: {terminationGracePeriodSeconds: 30, securityContext: {}, containers: [{name: a, image: i}]}}}`),
			policy:  v1alpha1.ExistingResourceUpdate, action: Update,
			besides: []string{"spec.paused", "spec.template.spec.containers[miner]", "spec.template.spec.nodeSelector", "spec.template.spec.securityContext.runAsUser", "spec.template.spec.terminationGracePeriodSeconds"},
			patch:   `{"spec":{"paused":null,"template":{"spec":{"containers":[{"image":"i","name":"a"}],"nodeSelector":null,"securityContext":{"runAsUser":null},"terminationGracePeriodSeconds":null}}}}`,
		},
		"what was applied with kubectl was added by a person": {
			live:    object(`, managedFields: [{manager: kubectl, operation: Apply, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:paused": {}}}}, {manager: kube-controller-manager, operation: Update, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:minReadySeconds": {}}}}]`, `{replicas: 2, paused: true, minReadySeconds: 3}`),
			desired: object("", `{replicas: 2}`),
			served:  object("", `{replicas: 2, minReadySeconds: 3}`),
			policy:  v1alpha1.ExistingResourceRecreate, action: Update, besides: []string{"spec.paused"}, patch: `{"spec":{"paused":null}}`,
		},
		"a definition keeps what objects may have": {
			live:    `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: c, uid: u, resourceVersion: "7"}, spec: {names: {singular: w}, versions: [{name: v1, schema: {a: x, b: x}}, {name: v2}]}}`,
			desired: `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: c}, spec: {names: {}, versions: [{name: v1, schema: {a: x}}]}}`,
			served:  `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: c}, spec: {names: {singular: w}, versions: [{name: v1, schema: {a: x}}]}}`,
			policy:  v1alpha1.ExistingResourceUpdate, action: Keep, besides: []string{"spec.versions[v1].schema.b", "spec.versions[v2]"},
			kept: []string{"spec.versions[v1].schema.b (objects of its kind may have it)", "spec.versions[v2] (objects of its kind may have it)"},
		},
		"a definition gets what it lacks": {
			live:    `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: c, uid: u, resourceVersion: "7"}, spec: {versions: [{name: v1, schema: {a: x}}]}}`,
			desired: `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: c}, spec: {versions: [{name: v1, schema: {b: x}}]}}`,
			served:  `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: c}, spec: {versions: [{name: v1, schema: {b: x}}]}}`,
			policy:  v1alpha1.ExistingResourceUpdate, action: Update, differs: []string{"spec.versions[v1].schema.b"}, besides: []string{"spec.versions[v1].schema.a"}, kept: []string{"spec.versions[v1].schema.a (objects of its kind may have it)"},
			patch: `{"spec":{"versions":[{"name":"v1","schema":{"a":"x","b":"x"}}]}}`,
		},
		"what can't be removed is named, or the object recreated": {
			live: `{apiVersion: v1, kind: ConfigMap, metadata: {name: c, uid: u, resourceVersion: "7"}, immutable: true, data: {a: "1", b: "2"}}`, desired: `{apiVersion: v1, kind: ConfigMap, metadata: {name: c}, immutable: true, data: {a: "1"}}`,
			policy: v1alpha1.ExistingResourceRecreate, action: Recreate, besides: []string{"data.b"}, immutable: []string{"data.b"},
		},
		"none keeps what differs": {
			live: object("", "{replicas: 2}"), desired: object("", "{replicas: 3}"), action: Keep, differs: []string{"spec.replicas"},
		},
		"proof 8: update changes what differs, and no more": {
			live:    object(`, annotations: {theirs: x}, managedFields: [{manager: flux, operation: Apply, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"theirs"}': {".": {}, "f:name": {}, "f:image": {}}}}}}}}]`, `{replicas: 2, template: {spec: {containers: [{name: a, image: i, env: [{name: X, value: "1"}]}, {name: theirs, image: t}]}}}`),
			desired: object("", `{replicas: 2, template: {spec: {containers: [{name: a, image: new, env: [{name: X, value: "1"}]}]}}}`),
			policy:  v1alpha1.ExistingResourceUpdate, action: Update, differs: []string{"spec.template.spec.containers[a].image"},
			patch: `{"spec":{"template":{"spec":{"containers":[{"env":[{"name":"X","value":"1"}],"image":"new","name":"a"},{"image":"t","name":"theirs"}]}}}}`,
		},
		"pitfall 10: a field that can't be changed is named": {
			live: object("", "{replicas: 2, selector: {matchLabels: {a: b}}}"), desired: object("", "{replicas: 3, selector: {matchLabels: {a: c}}}"),
			policy: v1alpha1.ExistingResourceUpdate, action: Conflict, differs: []string{"spec.replicas", "spec.selector.matchLabels.a"}, immutable: []string{"spec.selector.matchLabels.a"},
		},
		"recreate for what can't be changed": {
			live: object("", "{selector: {matchLabels: {a: b}}}"), desired: object("", "{selector: {matchLabels: {a: c}}}"),
			policy: v1alpha1.ExistingResourceRecreate, action: Recreate, differs: []string{"spec.selector.matchLabels.a"}, immutable: []string{"spec.selector.matchLabels.a"},
		},
		"what a HorizontalPodAutoscaler sets makes no difference": {
			live:    object(`, managedFields: [{manager: kube-controller-manager, operation: Update, subresource: scale, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:replicas": {}}}}]`, `{replicas: 9}`),
			desired: object("", `{replicas: 3}`), policy: v1alpha1.ExistingResourceUpdate, action: Equal,
		},
		"what a person scales makes one": {
			live:    object(`, managedFields: [{manager: kubectl, operation: Update, subresource: scale, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:replicas": {}}}}]`, `{replicas: 0}`),
			desired: object("", `{replicas: 3}`), policy: v1alpha1.ExistingResourceUpdate, action: Update, differs: []string{"spec.replicas"}, patch: `{"spec":{"replicas":3}}`,
		},
		"pitfall 10: what somebody applies, and what an autoscaler sets, is theirs": {
			live: object(`, managedFields: [{manager: keda, operation: Update, subresource: scale, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:replicas": {}}}},
			  {manager: flux, operation: Apply, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"a"}': {"f:image": {}}}}}}}}]`,
				`{replicas: 9, template: {spec: {containers: [{name: a, image: theirs}]}}}`),
			desired: object("", `{replicas: 3, template: {spec: {containers: [{name: a, image: i}]}}}`),
			policy:  v1alpha1.ExistingResourceUpdate, action: Keep,
			differs: []string{"spec.replicas", "spec.template.spec.containers[a].image"},
			kept:    []string{"spec.replicas (managed by keda)", "spec.template.spec.containers[a].image (managed by flux)"},
		},
		"what belongs together is replaced together": {
			live:    object("", "{strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1}}, template: {spec: {volumes: [{name: v, hostPath: {path: /x}}]}}}"),
			desired: object("", "{strategy: {type: Recreate}, template: {spec: {volumes: [{name: v, emptyDir: {}}]}}}"),
			policy:  v1alpha1.ExistingResourceUpdate, action: Update, differs: []string{"spec.strategy.type", "spec.template.spec.volumes[v].emptyDir"},
			patch: `{"spec":{"strategy":{"rollingUpdate":null,"type":"Recreate"},"template":{"spec":{"volumes":[{"emptyDir":{},"name":"v"}]}}}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var served *unstructured.Unstructured
			if test.served != "" {
				served = parse(t, test.served)
			}
			live := parse(t, test.live)
			before := live.DeepCopy()
			got := Compare(live, parse(t, test.desired), served, test.policy)
			if diff := cmp.Diff(before.Object, live.Object); diff != "" {
				t.Errorf("the live object was changed:\n%s", diff)
			}
			if got.Action != test.action || !slices.Equal(got.Differs, test.differs) || !slices.Equal(got.Besides, test.besides) || !slices.Equal(got.Kept, test.kept) || !slices.Equal(got.Immutable, test.immutable) {
				t.Errorf("got %s, differs %q, besides %q, kept %q, immutable %q\nwant %s, %q, %q, %q, %q", got.Action, got.Differs, got.Besides, got.Kept, got.Immutable, test.action, test.differs, test.besides, test.kept, test.immutable)
			}
			if test.patch == "" {
				if got.Patch != nil {
					t.Errorf("patch %s", got.Patch)
				}
				return
			}
			var patch map[string]any
			if err := json.Unmarshal(got.Patch, &patch); err != nil {
				t.Fatal(err)
			}
			metadata := patch["metadata"].(map[string]any)
			if metadata["uid"] != "u" || metadata["resourceVersion"] != "7" {
				t.Errorf("the patch has the preconditions %v", metadata)
			}
			delete(metadata, "uid")
			delete(metadata, "resourceVersion")
			if len(metadata) == 0 {
				delete(patch, "metadata")
			}
			encoded, _ := json.Marshal(patch)
			if string(encoded) != test.patch {
				t.Errorf("patch %s\nwant  %s", encoded, test.patch)
			}
		})
	}
}

// A modifier whose patches copy an object into itself again and again would take all memory.
func TestModifierThatGrows(t *testing.T) {
	var patches string
	for i := range 14 { // 16 MB
		patches += fmt.Sprintf(", {operation: copy, from: /data, path: /data/x%d}", i)
	}
	rules := newRules(t, v1alpha1.RestoreSpec{}, map[string]string{"rules.yaml": `{version: v1, resourceModifierRules: [{conditions: {groupResource: configmaps}, patches: [` + patches[2:] + `]}]}`}, Facts{})
	content := `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: shop}, data: {k: ` + strings.Repeat("v", 1000) + `}}`
	_, _, err := rules.Desired(t.Context(), parse(t, content), schema.GroupResource{Resource: "configmaps"}, owned(nil))
	if err == nil || !strings.Contains(err.Error(), "resourceModifierRules[0]") {
		t.Errorf("it is an object: %v", err)
	}
}

// ending is a context that ends after it was asked so many times.
type ending struct {
	context.Context
	left int
}

func (e *ending) Err() error {
	if e.left--; e.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestModifiersObeyTheirContext: a long list of patches ends when the restore is to end, between two
// rules and between two patches of a rule.
func TestModifiersObeyTheirContext(t *testing.T) {
	long := func(text string) string { return strings.Repeat(", "+text, 20)[2:] }
	for name, rules := range map[string]string{
		"rules":          long(`{conditions: {groupResource: configmaps}, patches: [{operation: add, path: /data/b, value: c}]}`),
		"conditions":     long(`{conditions: {groupResource: configmaps, matches: [{path: /data/k, value: other}]}, patches: [{operation: add, path: /data/b, value: c}]}`),
		"merge patches":  `{conditions: {groupResource: configmaps}, mergePatches: [` + long(`{patchData: '{"data": {"b": "c"}}'}`) + `]}`,
		"strategic ones": `{conditions: {groupResource: configmaps}, strategicPatches: [` + long(`{patchData: '{"data": {"b": "c"}}'}`) + `]}`,
	} {
		t.Run(name, func(t *testing.T) {
			rules := newRules(t, v1alpha1.RestoreSpec{}, map[string]string{"rules.yaml": `{version: v1, resourceModifierRules: [` + rules + `]}`}, Facts{})
			content := `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: shop}, data: {k: v}}`
			for left, want := range map[int]error{10: context.Canceled, 100: nil} {
				ctx := &ending{t.Context(), left}
				if _, _, err := rules.Desired(ctx, parse(t, content), schema.GroupResource{Resource: "configmaps"}, owned(nil)); !errors.Is(err, want) {
					t.Errorf("with a context that ends at the question %d it gives %v", left, err)
				}
			}
		})
	}
}

// TestCompareKinds: what was added since makes a difference in all kinds, whatever sort of field it
// is, and what Kubernetes or a controller gives makes none. A pair is the live object and the
// desired one.
func TestCompareKinds(t *testing.T) {
	const kube = `managedFields: [{manager: kube-controller-manager, operation: Update, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:claimRef": {}, "f:volumeName": {}}}}]`
	for name, test := range map[string]struct {
		live, desired string
		besides       []string
		differs       []string
	}{
		"ConfigMap":          {live: `{kind: ConfigMap, data: {keep: a, extra: x}}`, desired: `{kind: ConfigMap, data: {keep: a}}`, besides: []string{"data.extra"}},
		"ConfigMap, none":    {live: `{kind: ConfigMap, data: {extra: x}}`, desired: `{kind: ConfigMap}`, besides: []string{"data"}},
		"Secret":             {live: `{kind: Secret, type: Opaque, data: {a.b: x}}`, desired: `{kind: Secret, type: Opaque}`, besides: []string{"data"}},
		"Service":            {live: `{kind: Service, spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], selector: {app: web, version: "2"}, ports: [{port: 80, nodePort: 30000}, {port: 81}]}}`, desired: `{kind: Service, spec: {selector: {app: web}, ports: [{port: 80}]}}`, besides: []string{"spec.ports[81/TCP]", "spec.selector.version"}},
		"NetworkPolicy":      {live: `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{}]}}`, desired: `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, spec: {podSelector: {}, policyTypes: [Ingress]}}`, besides: []string{"spec.ingress"}},
		"a peer":             {live: `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, spec: {podSelector: {}, ingress: [{from: [{podSelector: {}, namespaceSelector: {}}]}]}}`, desired: `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}}`, besides: []string{"spec.ingress[0].from[0].namespaceSelector"}},
		"Role":               {live: `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, rules: [{apiGroups: [""]}, {apiGroups: ["*"]}]}`, desired: `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, rules: [{apiGroups: [""]}]}`, differs: []string{"rules"}},
		"more subjects":      {live: `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, subjects: [{kind: User, name: a}, {kind: User, name: b}]}`, desired: `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, subjects: [{kind: User, name: a}]}`, differs: []string{"subjects"}},
		"fewer subjects":     {live: `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding}`, desired: `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, subjects: [{kind: User, name: a}]}`, differs: []string{"subjects"}},
		"only live subjects": {live: `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, subjects: [{kind: User, name: a}]}`, desired: `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding}`, besides: []string{"subjects"}},
		"aggregated":         {live: `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, aggregationRule: {}, rules: [{apiGroups: [x]}]}`, desired: `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, aggregationRule: {}, rules: []}`},
		"custom":             {live: `{apiVersion: example.com/v1, kind: Widget, spec: {list: [{a: 1, b: 2}]}, more: x}`, desired: `{apiVersion: example.com/v1, kind: Widget, spec: {list: [{a: 1}]}}`, besides: []string{"more", "spec.list[0].b"}},
		"nothing":            {live: `{apiVersion: example.com/v1, kind: Widget, spec: {none: null}, status: {a: b}}`, desired: `{apiVersion: example.com/v1, kind: Widget, spec: {}}`},
		"a claim":            {live: `{kind: PersistentVolumeClaim, metadata: {annotations: {pv.kubernetes.io/bind-completed: "yes"}}, spec: {volumeName: v, storageClassName: fast, volumeMode: Filesystem}}`, desired: `{kind: PersistentVolumeClaim, spec: {}}`},
		"a volume":           {live: `{kind: PersistentVolume, metadata: {` + kube + `}, spec: {claimRef: {name: c, uid: u}, nfs: {server: s}}}`, desired: `{kind: PersistentVolume, spec: {claimRef: {name: c}, nfs: {server: s}}}`},
		"an account":         {live: `{kind: ServiceAccount, secrets: [{name: a}], imagePullSecrets: [{name: b}]}`, desired: `{kind: ServiceAccount}`},
		"a token":            {live: `{kind: Secret, type: kubernetes.io/service-account-token, data: {ca.crt: x, token: y}}`, desired: `{kind: Secret, type: kubernetes.io/service-account-token}`},
		"a pod": {live: `{kind: Pod, spec: {nodeName: n, priority: 0, preemptionPolicy: PreemptLowerPriority, serviceAccountName: default, tolerations: [{key: k}], volumes: [{name: kube-api-access-abc, projected: {}}, {name: more, hostPath: {}}],
			containers: [{name: a, resources: {requests: {cpu: 1}}, volumeMounts: [{name: kube-api-access-abc, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}]}]}}`, desired: `{kind: Pod, spec: {containers: [{name: a}]}}`, besides: []string{"spec.volumes[more]"}},
		"a Job":                {live: `{apiVersion: batch/v1, kind: Job, spec: {selector: {a: b}, template: {metadata: {labels: {controller-uid: u, x: y, more: z}}}}}`, desired: `{apiVersion: batch/v1, kind: Job, spec: {template: {metadata: {labels: {x: y}}}}}`, besides: []string{"spec.template.metadata.labels.more"}},
		"a Job without labels": {live: `{apiVersion: batch/v1, kind: Job, spec: {template: {metadata: {labels: {controller-uid: u, batch.kubernetes.io/job-name: j}}}}}`, desired: `{apiVersion: batch/v1, kind: Job, spec: {template: {}}}`},
		"a webhook":            {live: `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, webhooks: [{name: a, clientConfig: {url: u, caBundle: eA==}}]}`, desired: `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, webhooks: [{name: a, clientConfig: {url: u}}]}`},
		"an injected certificate": {live: `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {annotations: {cert-manager.io/inject-ca-from: x/y}}, webhooks: [{name: a, clientConfig: {url: u, caBundle: eA==}}]}`,
			desired: `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {annotations: {cert-manager.io/inject-ca-from: x/y}}, webhooks: [{name: a, clientConfig: {url: u, caBundle: eQ==}}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			object := func(content string) *unstructured.Unstructured {
				o := parse(t, content)
				if o.GetAPIVersion() == "" {
					o.SetAPIVersion("v1")
				}
				o.SetName("a")
				return o
			}
			got := Compare(object(test.live), object(test.desired), nil, v1alpha1.ExistingResourceNone)
			if !slices.Equal(got.Differs, test.differs) || !slices.Equal(got.Besides, test.besides) {
				t.Errorf("it differs in %q, and has besides %q; want %q and %q", got.Differs, got.Besides, test.differs, test.besides)
			}
			if equal := len(test.differs)+len(test.besides) == 0; equal != (got.Action == Equal) {
				t.Errorf("it is %s", got.Action)
			}
			if (got.Probe != nil) != (len(test.besides) > 0) {
				t.Errorf("the server is asked %s", got.Probe)
			}
		})
	}
}

// TestMark: the annotations of a restore are left out where the object's own leave no room.
func TestMark(t *testing.T) {
	for free, want := range map[int]int{0: 1, 59: 2, 60: 2, 200: 3} {
		o := parse(t, `{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop, uid: u-of-the-object}, spec: {containers: [{name: c}]}}`)
		o.SetAnnotations(map[string]string{"n": strings.Repeat("x", maxAnnotations-1-free)})
		desired, _, err := newRules(t, v1alpha1.RestoreSpec{}, nil, Facts{RestoreUID: "00000000-0000-0000-0000-000000000000"}).Desired(t.Context(), o, schema.GroupResource{Resource: "pods"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for name, value := range desired.GetAnnotations() {
			size += len(name) + len(value)
		}
		if size > maxAnnotations || len(desired.GetAnnotations()) != want {
			t.Errorf("with %d bytes free there are %d annotations of %d bytes", free, len(desired.GetAnnotations()), size)
		}
	}
}
