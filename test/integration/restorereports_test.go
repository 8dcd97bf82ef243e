// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// What people have reported about backups and restores, as objects. NS is the namespace of the test,
// and GROUP a group of its own.

const reportedDefinitions = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: flows.GROUP}
spec: {group: GROUP, scope: Namespaced, names: {plural: flows, singular: flow, kind: Flow, listKind: FlowList}, versions: [{name: v1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: bags.GROUP}
spec:
  group: GROUP
  scope: Namespaced
  names: {plural: bags, singular: bag, kind: Bag, listKind: BagList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        x-kubernetes-preserve-unknown-fields: true
        properties:
          port: {x-kubernetes-int-or-string: true}
          inner: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
          maybe: {type: string, nullable: true, default: "d"}
          filled: {type: object, properties: {a: {type: integer, default: 3}}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: parents.GROUP}
spec: {group: GROUP, scope: Cluster, names: {plural: parents, singular: parent, kind: Parent, listKind: ParentList}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}`

// reportedObjects come back with each field that they have here.
var reportedObjects = map[string]string{
	"values that codecs bend": `{apiVersion: GROUP/v1, kind: Bag, metadata: {name: a, namespace: NS, labels: {empty: ""}, annotations: {empty: "", multi: "a\nb\u2028c"}}, port: "80", maybe: null,
  inner: {apiVersion: v1, kind: Pod, metadata: {name: x, finalizers: [a.example.com/b], labels: {a: ""}}, spec: {containers: []}}, filled: {},
  big: 9007199254740993, least: -9223372036854775808, tenth: 0.1, tiny: 1.0e-300, huge: 1.0e+300, "yes": "yes", emptyMap: {}, emptyList: [],
  nested: {"a.b/c~1": {"": "", " ": [[], [{}], null]}, status: {kept: true}, metadata: {uid: kept}}, data: {k: v}, spec: null}`,
	"an operator's object with a status": `{apiVersion: GROUP/v1, kind: Flow, metadata: {name: paid, generateName: paid-, namespace: NS, finalizers: [work.example.com/archive], labels: {phase: Succeeded}}, spec: {do: charge-the-customer}}`,
	"endpoints that people write": `{apiVersion: v1, kind: Service, metadata: {name: outside, namespace: NS}, spec: {ports: [{name: db, port: 5432}]}}
---
{apiVersion: v1, kind: Endpoints, metadata: {name: outside, namespace: NS}, subsets: [{addresses: [{ip: 192.0.2.10}], ports: [{name: db, port: 5432}]}]}
---
{apiVersion: v1, kind: Service, metadata: {name: sliced, namespace: NS}, spec: {ports: [{name: db, port: 5432}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: sliced-1, namespace: NS, labels: {kubernetes.io/service-name: sliced, endpointslice.kubernetes.io/managed-by: staff}}, addressType: IPv4, endpoints: [{addresses: [192.0.2.11]}], ports: [{name: db, port: 5432, protocol: TCP}]}
---
{apiVersion: v1, kind: Service, metadata: {name: alias, namespace: NS}, spec: {type: ExternalName, externalName: db.example.com}}`,
	"what a Service may ask for": `{apiVersion: v1, kind: Service, metadata: {name: local, namespace: NS}, spec: {type: LoadBalancer, externalTrafficPolicy: Local, loadBalancerClass: example.com/lb, allocateLoadBalancerNodePorts: false, loadBalancerSourceRanges: [192.0.2.0/24], selector: {app: x}, ports: [{name: a, port: 80}, {name: b, port: 80, protocol: UDP}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: headless, namespace: NS}, spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {app: x}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: sticky, namespace: NS}, spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 77}}, internalTrafficPolicy: Local, externalIPs: [192.0.2.77], selector: {app: x}, ports: [{port: 80}]}}`,
	"jobs with selectors, zones and pauses": `{apiVersion: batch/v1, kind: Job, metadata: {name: manual, namespace: NS}, spec: {manualSelector: true, suspend: true, selector: {matchLabels: {mine: "yes", controller-uid: of-my-own}},
  template: {metadata: {labels: {mine: "yes", controller-uid: of-my-own}}, spec: {restartPolicy: Never, containers: [{name: c, image: example.com/c}]}}}}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: rarely, namespace: NS}, spec: {schedule: "0 0 31 1 *", timeZone: Europe/Paris, startingDeadlineSeconds: 86400, concurrencyPolicy: Forbid, jobTemplate: {spec: {ttlSecondsAfterFinished: 5, template: {spec: {restartPolicy: Never, containers: [{name: c, image: example.com/c}]}}}}}}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: paused, namespace: NS}, spec: {schedule: "0 0 31 2 *", suspend: true, jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: example.com/c}]}}}}}}`,
	"what can't be changed": `{apiVersion: v1, kind: ConfigMap, metadata: {name: fixed, namespace: NS}, immutable: true, data: {version: "1"}}
---
{apiVersion: v1, kind: Secret, metadata: {name: fixed, namespace: NS}, immutable: true, data: {version: MQ==}}
---
{apiVersion: v1, kind: Secret, type: helm.sh/release.v1, metadata: {name: sh.helm.release.v1.app.v3, namespace: NS, labels: {owner: helm, name: app, version: "3", status: deployed}}, data: {release: SDRzSQ==}}`,
	"a static volume of a file server": `{apiVersion: v1, kind: PersistentVolume, metadata: {name: NS-share, labels: {of: NS}}, spec: {capacity: {storage: 5Gi}, accessModes: [ReadWriteMany], persistentVolumeReclaimPolicy: Retain, nfs: {server: nfs.example.com, path: /share}, claimRef: {namespace: NS, name: share}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: share, namespace: NS}, spec: {accessModes: [ReadWriteMany], storageClassName: "", volumeName: NS-share, resources: {requests: {storage: 5Gi}}}}`,
	"claims of a StatefulSet that owns them, larger than its template": `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data-db-0, namespace: NS, labels: {app: db, mine: "yes"}}, spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 2Gi}}}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: NS}, spec: {serviceName: db, replicas: 2, podManagementPolicy: Parallel, persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Delete}, selector: {matchLabels: {app: db}},
  template: {metadata: {labels: {app: db}}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: db, image: example.com/db, volumeMounts: [{name: data, mountPath: /data}]}]}},
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Gi}}}}]}}`,
	"claims made from what is gone": `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: from-snapshot, namespace: NS}, spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Gi}}, dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: gone}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: from-populator, namespace: NS}, spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Gi}}, dataSourceRef: {apiGroup: pop.example.com, kind: Image, name: gone}}}`,
	"pods with ephemeral volumes": `{apiVersion: v1, kind: Pod, metadata: {name: scratch, namespace: NS}, spec: {terminationGracePeriodSeconds: 0, automountServiceAccountToken: false, containers: [{name: c, image: example.com/c, volumeMounts: [{name: work, mountPath: /w}]}],
  volumes: [{name: work, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Gi}}}}}}]}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: NS}, spec: {selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: example.com/c, volumeMounts: [{name: work, mountPath: /w}]}],
  volumes: [{name: work, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Gi}}}}}}]}}}}`,
}

// oddNames are names that RBAC allows.
var oddNames = []string{"a b", "a:b:c", "ünï✓", "x?y#z&q=1", `back\slash`, "...", "-", "日本", "*", "A.B", strings.Repeat("long", 60)}

// TestRestoreOfReportedObjects: what people have reported to be lost, refused or changed by restores
// is back as it was.
func TestRestoreOfReportedObjects(t *testing.T) {
	t.Parallel()
	namespace, long := lab.Namespace(t, "reports"), lab.Namespace(t, "reports-"+strings.Repeat("n", 50))
	group := namespace + ".example.com"
	words := []string{"NS", namespace, "GROUP", group}
	createAll(t, ofOne(reportedDefinitions, words...))
	all := []string{ofOne(`{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: CLAIM, namespace: LONG}, spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Gi}}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: POD, namespace: LONG}, spec: {terminationGracePeriodSeconds: 0, automountServiceAccountToken: false, containers: [{name: c, image: example.com/c, volumeMounts: [{name: VOLUME, mountPath: /d}]}], volumes: [{name: VOLUME, persistentVolumeClaim: {claimName: CLAIM}}]}}`,
		"LONG", long, "CLAIM", strings.Repeat("c", 253), "POD", strings.Repeat("p", 253), "VOLUME", strings.Repeat("v", 63))}
	for _, text := range reportedObjects {
		all = append(all, ofOne(text, words...))
	}
	for _, name := range oddNames {
		all = append(all, fmt.Sprintf(`{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: %[1]q, namespace: %[2]s}, rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: %[1]q, namespace: %[2]s}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: %[1]q}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: staff}]}`, name, namespace))
	}
	reported := strings.Join(all, "\n---\n")
	createAll(t, reported)
	parent := ofOne(`{apiVersion: GROUP/v1, kind: Parent, metadata: {name: p}}`, words...)
	createAll(t, parent)
	owner, err := at(t, parseAll(t, parent)[0]).Get(t.Context(), "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	child := ofOne(`{apiVersion: v1, kind: ConfigMap, metadata: {name: child, namespace: NS, ownerReferences: [{apiVersion: GROUP/v1, kind: Parent, name: p, uid: UID, controller: true, blockOwnerDeletion: true}]}}`, append(words, "UID", string(owner.GetUID()))...)
	createAll(t, child)
	flow := parseAll(t, ofOne(reportedObjects["an operator's object with a status"], words...))[0]
	if _, err := at(t, flow).Patch(t.Context(), "paid", types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	core := lab.Kube.CoreV1()
	labtest.Eventually(t, "the claims of the StatefulSet, of the pods and of the static volume", func() error {
		claims, err := core.PersistentVolumeClaims(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		owned, bound := 0, 0
		for _, claim := range claims.Items {
			owned += len(claim.OwnerReferences)
			if claim.Status.Phase == corev1.ClaimBound {
				bound++
			}
		}
		if owned < 4 || bound < 1 {
			return fmt.Errorf("%d are owned, and %d bound", owned, bound)
		}
		return nil
	})
	name := labtest.Name("reports")
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace, long}, DefaultVolumesToFsBackup: new(false)})
	backup := lab.AwaitCompleted(t, name)

	if _, err := at(t, flow).Patch(t.Context(), "paid", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	lose(t, namespace, long)
	for _, o := range parseAll(t, parent+"\n---\n"+ofOne(`{apiVersion: v1, kind: PersistentVolume, metadata: {name: NS-share}}`, words...)) {
		if err := at(t, o).Delete(t.Context(), o.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		labtest.Eventually(t, "the end of "+o.GetName(), func() error {
			if _, err := at(t, o).Get(t.Context(), o.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there: %w", err)
			}
			return nil
		})
	}
	createAll(t, parent) // which a backup of namespaces does not hold
	run := restored(t, restoreRun(backup, labtest.Name("reports"), v1alpha1.RestoreSpec{RestoreStatus: &v1alpha1.RestoreStatusSpec{IncludedResources: []string{"flows"}}}))
	want(t, run, v1alpha1.RestorePhaseCompleted, "its finalizer work.example.com/archive is left out")
	for _, o := range parseAll(t, reported) {
		o.SetFinalizers(nil) // their controllers add them
		o.SetGenerateName("")
		mustHaveAll(t, o)
	}
	mustHave(t, ofOne(`{apiVersion: GROUP/v1, kind: Flow, metadata: {name: paid, namespace: NS}, status: {phase: Succeeded}}`, words...))
	owner, err = at(t, parseAll(t, parent)[0]).Get(t.Context(), "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found, err := core.ConfigMaps(namespace).Get(t.Context(), "child", metav1.GetOptions{})
	if err != nil || len(found.OwnerReferences) != 1 || found.OwnerReferences[0].UID != owner.GetUID() || !*found.OwnerReferences[0].Controller || !*found.OwnerReferences[0].BlockOwnerDeletion {
		t.Errorf("the owner has the uid %s: %+v, %v", owner.GetUID(), found, err)
	}
	labtest.Eventually(t, "claims of the pods that there are", func() error {
		pods, err := core.Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		claims, err := core.PersistentVolumeClaims(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, claim := range claims.Items {
			if owner := metav1.GetControllerOf(&claim); owner != nil && owner.Kind == "Pod" && !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.UID == owner.UID }) {
				return fmt.Errorf("%s is of a pod that is not there", claim.Name)
			}
		}
		if share, err := core.PersistentVolumeClaims(namespace).Get(t.Context(), "share", metav1.GetOptions{}); err != nil || share.Status.Phase != corev1.ClaimBound {
			return fmt.Errorf("share is %s: %w", share.Status.Phase, err)
		}
		return nil
	})
}

// TestRestoreOfWhatIsRefused: what the cluster refuses is an error that says why, and only itself. What it
// refuses for a moment, since what it looks at comes later, is written.
func TestRestoreOfWhatIsRefused(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "refused")
	words := []string{"NS", namespace}
	kind := func(name, schema string) string {
		return ofOne(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: LOWERs.NS.example.com}
spec: {group: NS.example.com, scope: Namespaced, names: {plural: LOWERs, singular: LOWER, kind: KIND, listKind: KINDList}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: SCHEMA}}]}`,
			"LOWER", strings.ToLower(name), "KIND", name, "SCHEMA", schema)
	}
	createAll(t, ofOne(strings.Join([]string{
		kind("Gate", "{type: object, properties: {spec: {type: object, properties: {width: {type: integer}}}}}"),
		kind("Door", "{type: object, properties: {spec: {type: object, required: [hinge], properties: {size: {type: integer, minimum: 5}, hinge: {type: string}}}}}"),
		kind("Roof", "{type: object, x-kubernetes-preserve-unknown-fields: true}"), `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: NS}
spec:
  failurePolicy: Fail
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: ["*"], operations: [CREATE], resources: [configmaps]}], namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}}
  validations: [{expression: "object.metadata.name == 'kube-root-ca.crt' || has(object.metadata.labels) && 'team' in object.metadata.labels", message: "a label team is needed"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: NS}
spec: {policyName: NS, validationActions: [Deny]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: NS-params}
spec:
  failurePolicy: Fail
  paramKind: {apiVersion: apps/v1, kind: Deployment}
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: ["*"], operations: [CREATE], resources: [secrets]}], namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}}
  validations: [{expression: "params.spec.replicas == 0"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: NS-params}
spec: {policyName: NS-params, validationActions: [Deny], paramRef: {name: params, namespace: NS, parameterNotFoundAction: Deny}}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: NS}, value: 5}`}, "\n---\n"), words...))
	labtest.Eventually(t, "the policies to be asked", func() error {
		dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
		_, noLabel := lab.Kube.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}, dry)
		_, noParams := lab.Kube.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}, dry)
		if noLabel == nil || noParams == nil {
			return fmt.Errorf("they allow it: %v, %v", noLabel, noParams)
		}
		return nil
	})
	for _, kind := range []string{"Gate", "Door", "Roof"} { // when they are served
		at(t, parseAll(t, ofOne(`{apiVersion: NS.example.com/v1, kind: KIND, metadata: {name: a, namespace: NS}}`, "KIND", kind, "NS", namespace))[0])
	}
	ended, told := restoredFrom(t, ofOne(`{apiVersion: NS.example.com/v1alpha1, kind: Gate, metadata: {name: a, namespace: NS}, spec: {size: 1}}
---
{apiVersion: NS.example.com/v1, kind: Door, metadata: {name: a, namespace: NS}, spec: {size: 1}}
---
{apiVersion: NS.example.com/v1alpha1, kind: Roof, metadata: {name: a, namespace: NS}, spec: {size: 1}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: without, namespace: NS}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: with, namespace: NS, labels: {team: a}}}
---
{apiVersion: v1, kind: Secret, metadata: {name: of-params, namespace: NS}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: params, namespace: NS}, spec: {replicas: 0, selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: example.com/c, envFrom: [{secretRef: {name: of-params}}, {configMapRef: {name: without}}]}]}}}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: site, namespace: NS, annotations: {kubernetes.io/ingress.class: nginx}}, spec: {ingressClassName: nginx-v2, defaultBackend: {service: {name: site, port: {number: 80}}}}}`, words...), v1alpha1.RestoreSpec{})
	mustTell(t, ended, told, v1alpha1.RestorePhasePartiallyFailed, "refuses it in "+namespace+".example.com/v1: convert it by hand", "spec.hinge: Required value", "a label team is needed", "kubernetes.io/ingress.class")
	if ended.Status.Errors != 4 {
		t.Errorf("there are %d errors:\n%s", ended.Status.Errors, told)
	}
	mustHave(t, ofOne(`{apiVersion: NS.example.com/v1, kind: Roof, metadata: {name: a, namespace: NS}, spec: {size: 1}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: with, namespace: NS, labels: {team: a}}}
---
{apiVersion: v1, kind: Secret, metadata: {name: of-params, namespace: NS}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: params, namespace: NS}, spec: {replicas: 0}}`, words...))
}

// TestRestoreOfSets: the revisions of a StatefulSet and a DaemonSet come back, and an undo goes where it
// went before.
func TestRestoreOfSets(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "sets")
	manifestIn(t, namespace, `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: r}
spec: {serviceName: r, replicas: 1, selector: {matchLabels: {k: s}}, template: {metadata: {labels: {k: s}}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: "example.com/c:1"}]}}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: r}
spec: {selector: {matchLabels: {k: d}}, template: {metadata: {labels: {k: d}}, spec: {nodeSelector: {no: where}, terminationGracePeriodSeconds: 0, containers: [{name: c, image: "example.com/c:1"}]}}}
`)
	history := func(count int) string {
		t.Helper()
		var found []string
		labtest.Eventually(t, "the revisions", func() error {
			list, err := lab.Kube.AppsV1().ControllerRevisions(namespace).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			found = nil
			for _, revision := range list.Items {
				if owner := metav1.GetControllerOf(&revision); owner != nil {
					found = append(found, fmt.Sprintf("%s %d %s", owner.Kind, revision.Revision, revision.Name))
				}
			}
			if len(found) != count {
				return fmt.Errorf("there are %q", found)
			}
			return nil
		})
		slices.Sort(found)
		return strings.Join(found, "\n")
	}
	history(2)
	for i, image := range []string{"2", "3"} {
		lab.Kubectl(t, "set", "image", "sts/r", "ds/r", "c=example.com/c:"+image, "-n", namespace)
		history(2*i + 4)
	}
	before := history(6)
	backup := backedUp(t, namespace)
	want(t, restored(t, restoreRun(backup, labtest.Name("sets"), v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted)
	if after := history(6); after != before {
		t.Errorf("the revisions are\n%s\nand were\n%s", after, before)
	}
	for _, kind := range []string{"sts", "ds"} {
		lab.Kubectl(t, "rollout", "undo", kind+"/r", "-n", namespace)
		if image := lab.Kubectl(t, "get", kind, "r", "-n", namespace, "-o", "jsonpath={.spec.template.spec.containers[0].image}"); image != "example.com/c:2" {
			t.Errorf("an undo of %s goes to %s", kind, image)
		}
	}
}
