// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/format"
	restoring "github.com/holdfast-io/holdfast/pkg/restore"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/runlog"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// manifestIn has kubectl create the objects of a manifest in a namespace, as people do.
func manifestIn(t *testing.T, namespace, manifest string) {
	t.Helper()
	if _, stderr, err := lab.TryKubectl(t, manifest, "apply", "-n", namespace, "-f", "-"); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
}

// backedUp makes a backup of namespaces, and loses them.
func backedUp(t *testing.T, namespaces ...string) *v1alpha1.Backup {
	t.Helper()
	name := labtest.Name("objects")
	lab.Backup(t, name, namespaces...)
	backup := lab.AwaitCompleted(t, name)
	lose(t, namespaces...)
	return backup
}

// newNamespaces does what controllers do in each new namespace with a label, until the test ends.
func newNamespaces(t *testing.T, selector string, do func(ctx context.Context, namespace string) error) {
	t.Helper()
	watching, err := lab.Kube.CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	var working sync.WaitGroup
	working.Go(func() {
		for event := range watching.ResultChan() {
			if namespace, ok := event.Object.(*corev1.Namespace); ok && event.Type == "ADDED" {
				err := do(context.Background(), namespace.Name)
				if err != nil && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) { // the test may have ended before
					t.Error(err)
				}
			}
		}
	})
	t.Cleanup(func() { watching.Stop(); working.Wait() })
}

// TestRestoreOfNewbornDefaults: pitfall 19. What people have set on the account default, and on the
// accounts that another controller makes in each namespace, is back, whoever is first to create them.
// What a controller keeps there itself stays as it writes it.
func TestRestoreOfNewbornDefaults(t *testing.T) {
	t.Parallel()
	core := lab.Kube.CoreV1()
	label := labtest.Name("builders")
	newNamespaces(t, "builds="+label, func(ctx context.Context, namespace string) error {
		as := metav1.CreateOptions{FieldManager: "openshift-controller-manager"}
		secret := labtest.Name("builder-dockercfg")
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "builder"}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: secret}}}
		_, err := core.ServiceAccounts(namespace).Create(ctx, account, as)
		if apierrors.IsAlreadyExists(err) {
			_, err = core.ServiceAccounts(namespace).Patch(ctx, "builder", types.StrategicMergePatchType, []byte(`{"imagePullSecrets":[{"name":"`+secret+`"}]}`), metav1.PatchOptions{FieldManager: as.FieldManager})
		}
		bundle := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mesh-ca"}, Data: map[string]string{"root.pem": "of " + secret}}
		if _, e := core.ConfigMaps(namespace).Create(ctx, bundle, as); !apierrors.IsAlreadyExists(e) {
			err = errors.Join(err, e)
		}
		return err
	})
	var namespaces []string
	for range 6 {
		namespace := lab.Namespace(t, "newborn")
		namespaces = append(namespaces, namespace)
		if _, err := core.Namespaces().Patch(t.Context(), namespace, types.MergePatchType, []byte(`{"metadata":{"labels":{"builds":"`+label+`"}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		labtest.Eventually(t, "the accounts", func() error {
			_, err := core.ServiceAccounts(namespace).Get(t.Context(), "default", metav1.GetOptions{})
			if err == nil {
				_, err = core.ConfigMaps(namespace).Get(t.Context(), "mesh-ca", metav1.GetOptions{})
			}
			return err
		})
		for _, change := range []struct{ name, patch string }{
			{"default", `{"metadata":{"labels":{"team":"blue"},"annotations":{"eks.amazonaws.com/role-arn":"arn:aws:iam::000000000000:role/app"}},"imagePullSecrets":[{"name":"pull"}],"automountServiceAccountToken":false}`},
			{"builder", `{"metadata":{"labels":{"team":"blue"}},"secrets":[{"name":"push"}]}`},
		} {
			if _, err := core.ServiceAccounts(namespace).Patch(t.Context(), change.name, types.StrategicMergePatchType, []byte(change.patch), metav1.PatchOptions{FieldManager: "kubectl-patch"}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := core.ConfigMaps(namespace).Patch(t.Context(), "mesh-ca", types.MergePatchType, []byte(`{"data":{"note":"mine"}}`), metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
			t.Fatal(err)
		}
	}
	backup := backedUp(t, namespaces...)
	run := restored(t, restoreRun(backup, labtest.Name("newborn"), v1alpha1.RestoreSpec{}))
	plan := want(t, run, v1alpha1.RestorePhaseCompleted)
	if run.Status.Warnings > 0 {
		results, _ := told(t, run)
		t.Errorf("warnings: %+v", results.Warnings)
	}
	updated := 0
	for _, o := range plan.Items {
		if o.Action == "update" {
			updated++
		}
	}
	t.Logf("%d of the objects were there first", updated)
	for _, namespace := range namespaces {
		account, err := core.ServiceAccounts(namespace).Get(t.Context(), "default", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken || len(account.ImagePullSecrets) != 1 || account.ImagePullSecrets[0].Name != "pull" ||
			account.Labels["team"] != "blue" || account.Annotations["eks.amazonaws.com/role-arn"] == "" {
			t.Errorf("default in %s: %+v", namespace, account)
		}
		labtest.Eventually(t, "the account builder in "+namespace, func() error {
			account, err := core.ServiceAccounts(namespace).Get(t.Context(), "builder", metav1.GetOptions{})
			if err == nil && (account.Labels["team"] != "blue" || len(account.Secrets) != 1 || account.Secrets[0].Name != "push" || len(account.ImagePullSecrets) != 1) {
				err = fmt.Errorf("it is %+v", account)
			}
			return err
		})
		bundle, err := core.ConfigMaps(namespace).Get(t.Context(), "mesh-ca", metav1.GetOptions{})
		if keys := slices.Sorted(maps.Keys(bundle.Data)); err != nil || !slices.Equal(keys, []string{"note", "root.pem"}) || bundle.Data["note"] != "mine" {
			t.Errorf("mesh-ca in %s: %+v, %v", namespace, bundle, err)
		}
	}
}

// restoredHere restores objects, as a backup of another cluster holds them, and returns the phase and
// the log. Each has a namespace, which it is made in.
func restoredHere(t *testing.T, spec v1alpha1.RestoreSpec, manifest string) (v1alpha1.RestorePhase, string) {
	t.Helper()
	now := metav1.Now()
	var tarball bytes.Buffer
	w, err := archive.NewWriter(&tarball, now.Time, "objects")
	if err != nil {
		t.Fatal(err)
	}
	for i, document := range strings.Split(manifest, "\n---\n") {
		raw, err := yaml.YAMLToJSON([]byte(document))
		if err != nil {
			t.Fatal(err)
		}
		o := &unstructured.Unstructured{}
		if err := o.UnmarshalJSON(raw); err != nil {
			t.Fatal(err)
		}
		if o.GetUID() == "" {
			o.SetUID(types.UID(fmt.Sprintf("old-%d", i)))
		}
		if raw, err = o.MarshalJSON(); err != nil {
			t.Fatal(err)
		}
		resource, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		if o.GetKind() == "Endpoints" {
			resource.Resource = "endpoints"
		}
		if _, err := w.WriteItem(archive.Item{Resource: resource.GroupResource(), Version: o.GroupVersionKind().Version, Namespace: o.GetNamespace(), Name: o.GetName()}, bytes.TrimSpace(raw)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	name := labtest.Name("objects")
	made := &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: labtest.System, Name: name, UID: "objects", CreationTimestamp: now}}
	made.Status = v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &now, CompletionTimestamp: &now}
	metadata, err := format.EncodeBackup(made, format.Contents{}, format.Cluster{SystemNamespace: labtest.System})
	if err != nil {
		t.Fatal(err)
	}
	bucket := storetest.Memory(t)
	for key, content := range map[string][]byte{format.TarballKey(name): tarball.Bytes(), format.MetadataKey(name): metadata} {
		if err := bucket.Put(t.Context(), key, content); err != nil {
			t.Fatal(err)
		}
	}
	backup, err := source.Open(t.Context(), bucket, format.Place{StoreName: name, Location: "default", SystemNamespace: labtest.System, Now: now.Time}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(lab.Config)
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	run := &enginev1alpha1.RestoreRun{ObjectMeta: metav1.ObjectMeta{Namespace: labtest.System, Name: name, UID: types.UID(name)}}
	run.Spec.RestoreRef = v1alpha1.BackupReference{Namespace: labtest.System, Name: name}
	run.Spec.Restore = spec
	log := runlog.New(clock.RealClock{})
	ended := restoring.Run(t.Context(), restoring.Request{Run: run, SystemNamespace: labtest.System}, restoring.Dependencies{
		Backup: backup, Writer: client, Reader: client, Discovery: discovery.ToServerResourcesInterfaceWithContext(lab.Kube.Discovery()), Clock: clock.RealClock{}, Log: log, Look: restoring.DefaultLook,
	})
	var compressed bytes.Buffer
	if err := log.Copy(t.Context(), &compressed, false); err != nil {
		t.Fatal(err)
	}
	unzipped, err := gzip.NewReader(&compressed)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(unzipped)
	if err != nil {
		t.Fatal(err)
	}
	return ended.Status.Phase, string(text)
}

// TestRestoreOfNamesakes: what has the names and labels of the cluster's own objects is a person's,
// unless something proves that the cluster makes it; and what the cluster was to make, and has not, is
// told.
func TestRestoreOfNamesakes(t *testing.T) {
	t.Parallel()
	core := lab.Kube.CoreV1()
	namespace := lab.Namespace(t, "namesakes")
	role := labtest.Name("copied-role")
	t.Cleanup(func() {
		_ = lab.Kube.RbacV1().ClusterRoles().Delete(context.Background(), role, metav1.DeleteOptions{})
	})
	manifestIn(t, namespace, `apiVersion: v1
kind: ServiceAccount
metadata: {name: ci}
secrets: [{name: ci-token-deploy}]
imagePullSecrets: [{name: ci-dockercfg-mirror}]
---
apiVersion: v1
kind: Secret
type: kubernetes.io/service-account-token
metadata: {name: ci-token-deploy, annotations: {kubernetes.io/service-account.name: ci}}
---
apiVersion: v1
kind: Secret
type: kubernetes.io/service-account-token
metadata: {name: ci-token-bcdfg, annotations: {kubernetes.io/service-account.name: ci}}
---
apiVersion: v1
kind: Secret
type: kubernetes.io/dockerconfigjson
metadata: {name: ci-dockercfg-mirror}
stringData: {.dockerconfigjson: '{"auths":{"mirror.example":{"username":"x","password":"y"}}}'}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: openshift-service-ca.crt}
data: {service-ca.crt: mine}
---
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: outside, labels: {endpoints.kubernetes.io/managed-by: endpoint-controller}, annotations: {endpoints.kubernetes.io/last-change-trigger-time: "2026-01-01T00:00:00Z"}}
subsets: [{addresses: [{ip: 192.0.2.7}], ports: [{port: 80}]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: outside-by-hand, labels: {endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io, kubernetes.io/service-name: outside}}
addressType: IPv4
endpoints: [{addresses: [192.0.2.8]}]
ports: [{port: 80, name: ""}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: copied, labels: {kubernetes.io/bootstrapping: rbac-defaults}}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: `+role+`, labels: {kubernetes.io/bootstrapping: rbac-defaults, app: mine}}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: copied}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: `+role+`}
---
apiVersion: v1
kind: Pod
metadata: {name: once}
spec:
  serviceAccountName: ci
  nodeName: `+labtest.Unattended+`
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: example.com/c, volumeMounts: [{name: ci-token-deploy, mountPath: /t}]}]
  volumes: [{name: ci-token-deploy, secret: {secretName: ci-token-deploy}}]
`)
	name := labtest.Name("namesakes")
	lab.Backup(t, name, namespace)
	backup := lab.AwaitCompleted(t, name)
	lose(t, namespace)
	if err := lab.Kube.RbacV1().ClusterRoles().Delete(t.Context(), role, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	want(t, restored(t, restoreRun(backup, labtest.Name("namesakes"), v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted)
	for _, secret := range []string{"ci-token-deploy", "ci-token-bcdfg"} {
		labtest.Eventually(t, "the token "+secret, func() error {
			found, err := core.Secrets(namespace).Get(t.Context(), secret, metav1.GetOptions{})
			if err == nil && len(found.Data) != 3 {
				err = fmt.Errorf("it has %d fields", len(found.Data))
			}
			return err
		})
	}
	account, err := core.ServiceAccounts(namespace).Get(t.Context(), "ci", metav1.GetOptions{})
	if err != nil || len(account.Secrets) != 1 || account.Secrets[0].Name != "ci-token-deploy" || len(account.ImagePullSecrets) != 1 {
		t.Errorf("the account: %+v, %v", account, err)
	}
	pod, err := core.Pods(namespace).Get(t.Context(), "once", metav1.GetOptions{})
	if err != nil || len(pod.Spec.Volumes) != 1 || len(pod.Spec.Containers[0].VolumeMounts) != 1 {
		t.Errorf("the pod: %+v, %v", pod, err)
	}
	if ca, err := core.ConfigMaps(namespace).Get(t.Context(), "openshift-service-ca.crt", metav1.GetOptions{}); err != nil || ca.Data["service-ca.crt"] != "mine" {
		t.Errorf("the certificates: %v, %v", ca, err)
	}
	slice, err := lab.Kube.DiscoveryV1().EndpointSlices(namespace).Get(t.Context(), "outside-by-hand", metav1.GetOptions{})
	if err != nil || slice.Endpoints[0].Addresses[0] != "192.0.2.8" {
		t.Errorf("the slice: %+v, %v", slice, err)
	}
	if stdout := lab.Kubectl(t, "get", "endpoints", "outside", "-n", namespace, "-o", "jsonpath={.subsets[0].addresses[0].ip}"); stdout != "192.0.2.7" {
		t.Errorf("the endpoints are %q", stdout)
	}
	if _, err := lab.Kube.RbacV1().Roles(namespace).Get(t.Context(), "copied", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := lab.Kube.RbacV1().ClusterRoles().Get(t.Context(), role, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}

	phase, log := restoredHere(t, v1alpha1.RestoreSpec{IncludeClusterResources: new(true)}, `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:of-an-older-version", labels: {kubernetes.io/bootstrapping: rbac-defaults}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: edit, labels: {kubernetes.io/bootstrapping: rbac-defaults}}`)
	if phase != v1alpha1.RestorePhaseCompleted || !strings.Contains(log, "clusterroles.rbac.authorization.k8s.io were left to the cluster, which makes them itself, and are not there: system:of-an-older-version: ") {
		t.Errorf("it is %s: %s", phase, log)
	}
}

// TestRestoreOfServicesElsewhere: pitfall 11. What only a cluster decides about a Service, its families
// of addresses and its ports, is this cluster's where this cluster refuses the backup's.
func TestRestoreOfServicesElsewhere(t *testing.T) {
	t.Parallel()
	core := lab.Kube.CoreV1()
	namespace := lab.Namespace(t, "services")
	const taken = 31997
	_, err := core.Services(namespace).Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "thief"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80, NodePort: taken}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	manifest := strings.ReplaceAll(`apiVersion: v1
kind: Service
metadata: {name: prefer, namespace: NAMESPACE}
spec: {type: ClusterIP, clusterIP: 10.96.4.10, clusterIPs: [10.96.4.10, "fd00:10:96::aa"], ipFamilies: [IPv4, IPv6], ipFamilyPolicy: PreferDualStack, selector: {app: x}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: six, namespace: NAMESPACE}
spec: {type: ClusterIP, clusterIP: "fd00:10:96::ab", clusterIPs: ["fd00:10:96::ab"], ipFamilies: [IPv6], ipFamilyPolicy: SingleStack, selector: {app: x}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: NAMESPACE}
spec: {clusterIP: None, clusterIPs: [None], ipFamilies: [IPv4, IPv6], ipFamilyPolicy: RequireDualStack, selector: {app: x}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: both, namespace: NAMESPACE, annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"spec":{"healthCheckNodePort":31997,"ports":[{"nodePort":31997},{"nodePort":40000}]}}'}}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 31997, clusterIPs: ["fd00::1", 10.96.4.11], clusterIP: "fd00::1", ipFamilies: [IPv6, IPv4], ipFamilyPolicy: RequireDualStack, selector: {app: x}, ports: [{name: a, port: 80, nodePort: 31997}, {name: b, port: 81, nodePort: 40000}]}
---
apiVersion: v1
kind: Service
metadata: {name: hc, namespace: NAMESPACE, annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"spec":{"healthCheckNodePort":31997}}'}}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, allocateLoadBalancerNodePorts: false, healthCheckNodePort: 31997, selector: {app: x}, ports: [{port: 80}]}`, "NAMESPACE", namespace)
	phase, log := restoredHere(t, v1alpha1.RestoreSpec{}, manifest)
	if phase != v1alpha1.RestorePhaseCompleted {
		t.Errorf("it is %s: %s", phase, log)
	}
	for name, left := range map[string]string{"prefer": "spec.ipFamilies", "six": "spec.ipFamilies", "headless": "spec.ipFamilies, spec.ipFamilyPolicy", "hc": "spec.healthCheckNodePort", "both": "spec.ports[1].nodePort"} {
		if !slices.ContainsFunc(strings.Split(log, "\n"), func(line string) bool {
			return strings.Contains(line, "level=WARN") && strings.Contains(line, "services "+namespace+"/"+name) && strings.Contains(line, "not as in the backup: "+left)
		}) {
			t.Errorf("there is no warning of %s: %s", name, log)
		}
		service, err := core.Services(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Error(err)
			continue
		}
		spec := service.Spec
		if len(spec.ClusterIPs) != 1 || len(spec.IPFamilies) != 1 || spec.IPFamilies[0] != corev1.IPv4Protocol || (spec.ClusterIP == corev1.ClusterIPNone) != (name == "headless") ||
			spec.HealthCheckNodePort == taken || len(spec.Ports) == 2 && (spec.Ports[0].NodePort == taken || spec.Ports[1].NodePort == 40000) {
			t.Errorf("%s is %+v", name, spec)
		}
	}
	// Where they are there, they are left alone.
	before, err := core.Services(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, policy := range []v1alpha1.ExistingResourcePolicy{v1alpha1.ExistingResourceNone, v1alpha1.ExistingResourceRecreate} {
		if phase, log := restoredHere(t, v1alpha1.RestoreSpec{ExistingResourcePolicy: policy}, manifest); phase != v1alpha1.RestorePhaseCompleted {
			t.Errorf("a second one is %s: %s", phase, log)
		}
	}
	for _, service := range before.Items {
		if after, err := core.Services(namespace).Get(t.Context(), service.Name, metav1.GetOptions{}); err != nil || after.UID != service.UID || after.ResourceVersion != service.ResourceVersion {
			t.Errorf("it was written: %+v, %v", after, err)
		}
	}
}

// TestRestoreOfAdmittedPods: what the admission had filled into a pod by a class or a LimitRange that
// has changed since is filled in anew.
func TestRestoreOfAdmittedPods(t *testing.T) {
	t.Parallel()
	core := lab.Kube.CoreV1()
	namespace, batch, kata := lab.Namespace(t, "admitted"), labtest.Name("batch"), labtest.Name("kata")
	classes := func(preemption, cpu, zone, limit string) {
		t.Helper()
		manifestIn(t, namespace, `apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: `+batch+`}
preemptionPolicy: `+preemption+`
value: 500
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: `+kata+`}
handler: h
overhead: {podFixed: {cpu: `+cpu+`}}
scheduling: {nodeSelector: {zone: `+zone+`}, tolerations: [{key: `+zone+`, operator: Exists}]}
---
apiVersion: v1
kind: LimitRange
metadata: {name: limits}
spec: {limits: [{type: Container, max: {cpu: `+limit+`}, default: {cpu: `+limit+`}, defaultRequest: {cpu: 10m}}]}
`)
	}
	remove := func() {
		_ = lab.Kube.SchedulingV1().PriorityClasses().Delete(context.Background(), batch, metav1.DeleteOptions{})
		_ = lab.Kube.NodeV1().RuntimeClasses().Delete(context.Background(), kata, metav1.DeleteOptions{})
	}
	t.Cleanup(remove)
	classes("Never", "10m", "a", "500m")
	labtest.Eventually(t, "the pods", func() error {
		_, stderr, err := lab.TryKubectl(t, `apiVersion: v1
kind: Pod
metadata: {name: by-priority}
spec: {priorityClassName: `+batch+`, nodeName: `+labtest.Unattended+`, terminationGracePeriodSeconds: 0, containers: [{name: c, image: example.com/c}]}
---
apiVersion: v1
kind: Pod
metadata: {name: by-runtime}
spec: {runtimeClassName: `+kata+`, terminationGracePeriodSeconds: 0, containers: [{name: c, image: example.com/c}]}
`, "apply", "-n", namespace, "-f", "-")
		if err != nil {
			err = fmt.Errorf("%w: %s", err, stderr)
		}
		return err
	})
	backup := backedUp(t, namespace)
	remove()
	if _, err := core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	classes("PreemptLowerPriority", "20m", "b", "200m")
	run := restored(t, restoreRun(backup, labtest.Name("admitted"), v1alpha1.RestoreSpec{ExcludedResources: []string{"limitranges", "priorityclasses.scheduling.k8s.io", "runtimeclasses.node.k8s.io"}}))
	want(t, run, v1alpha1.RestorePhaseCompleted, "not as in the backup: spec.nodeSelector[zone]", "not as in the backup: spec.containers[c].resources.limits.cpu")
	priority, err := core.Pods(namespace).Get(t.Context(), "by-priority", metav1.GetOptions{})
	if err != nil || *priority.Spec.PreemptionPolicy != corev1.PreemptLowerPriority || *priority.Spec.Priority != 500 || priority.Spec.Containers[0].Resources.Limits.Cpu().String() != "200m" {
		t.Errorf("by-priority: %+v, %v", priority, err)
	}
	runtime, err := core.Pods(namespace).Get(t.Context(), "by-runtime", metav1.GetOptions{})
	if err != nil || runtime.Spec.Overhead.Cpu().String() != "20m" || runtime.Spec.NodeSelector["zone"] != "b" {
		t.Errorf("by-runtime: %+v, %v", runtime, err)
	}
}

// TestRestoreOfRollouts: the ReplicaSets of a Deployment keep their places in its history, so that
// an undo goes to the one before, though another one is younger.
func TestRestoreOfRollouts(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "rollouts")
	undo := func() string {
		t.Helper()
		lab.Kubectl(t, "rollout", "undo", "deployment/web", "-n", namespace)
		return lab.Kubectl(t, "get", "deployment", "web", "-n", namespace, "-o", "jsonpath={.spec.template.spec.containers[0].image}")
	}
	settled := func(revision string) {
		t.Helper()
		labtest.Eventually(t, "revision "+revision, func() error {
			if got := lab.Kubectl(t, "get", "deployment", "web", "-n", namespace, "-o", `jsonpath={.metadata.annotations.deployment\.kubernetes\.io/revision}`); got != revision {
				return fmt.Errorf("it is %q", got)
			}
			return nil
		})
	}
	lab.Kubectl(t, "create", "deployment", "web", "-n", namespace, "--image=example.com/web:1", "--replicas=0")
	settled("1")
	for i, image := range []string{"2", "3"} {
		lab.Kubectl(t, "set", "image", "deployment/web", "web=example.com/web:"+image, "-n", namespace)
		settled(fmt.Sprint(i + 2))
	}
	for i, to := range []string{"2", "1"} {
		lab.Kubectl(t, "rollout", "undo", "deployment/web", "-n", namespace, "--to-revision="+to)
		settled(fmt.Sprint(i + 4))
	}
	backup := backedUp(t, namespace)
	want(t, restored(t, restoreRun(backup, labtest.Name("rollouts"), v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted)
	settled("5")
	history := strings.Fields(lab.Kubectl(t, "rollout", "history", "deployment/web", "-n", namespace))
	for _, revision := range []string{"3", "4", "5"} {
		if !slices.Contains(history, revision) {
			t.Errorf("the history lacks %s: %q", revision, history)
		}
	}
	if image := undo(); image != "example.com/web:2" {
		t.Errorf("an undo goes to %s", image)
	}
}

// TestRestoreOfRolloutsOfAnotherVersion: a ReplicaSet is named by a hash, which each version of
// Kubernetes computes in its own way. A Deployment that has no replicas comes back with one ReplicaSet of
// its template all the same. One that is paused gets its ReplicaSet from the backup: nobody makes another.
func TestRestoreOfRolloutsOfAnotherVersion(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "other-hash")
	const replicaSets = `
{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: NAME-before, labels: {app: NAME, pod-template-hash: before}}, spec: {replicas: 0, selector: {matchLabels: {app: NAME, pod-template-hash: before}}, template: {metadata: {labels: {app: NAME, pod-template-hash: before}}, spec: {containers: [{name: c, image: "example.com/c:1"}]}}}}
---
{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: NAME-older, labels: {app: NAME, pod-template-hash: older}}, spec: {replicas: COUNT, selector: {matchLabels: {app: NAME, pod-template-hash: older}}, template: {metadata: {labels: {app: NAME, pod-template-hash: older}}, spec: {containers: [{name: c, image: "example.com/c:2"}]}}}}
---
`
	const owner = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: NAME}, spec: {replicas: COUNT, strategy: {type: Recreate}, selector: {matchLabels: {app: NAME}}, template: {metadata: {labels: {app: NAME}}, spec: {containers: [{name: c, image: "example.com/c:1"}]}}}}`
	sets := func(name string) (names []string) {
		t.Helper()
		found, err := lab.Kube.AppsV1().ReplicaSets(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil {
			t.Fatal(err)
		}
		for _, set := range found.Items {
			if metav1.GetControllerOf(&set) != nil {
				names = append(names, set.Name)
			}
		}
		return names
	}
	settled := func(name, revision string, count int) {
		t.Helper()
		labtest.Eventually(t, name+" to be settled", func() error {
			found, err := lab.Kube.AppsV1().Deployments(namespace).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got := found.Annotations["deployment.kubernetes.io/revision"]; got != revision || len(sets(name)) != count || found.Status.ObservedGeneration != found.Generation {
				return fmt.Errorf("it has the revision %q of %s, and the ReplicaSets %q", got, revision, sets(name))
			}
			return nil
		})
	}
	for name, count := range map[string]string{"none": "0", "paused": "2"} {
		// The controller takes the two that there are for its own.
		manifestIn(t, namespace, ofOne(replicaSets+owner, "NAME", name, "COUNT", count))
		settled(name, "1", 2)
		lab.Kubectl(t, "set", "image", "deployment/"+name, "c=example.com/c:2", "-n", namespace)
		settled(name, "2", 2)
	}
	lab.Kubectl(t, "rollout", "pause", "deployment/paused", "-n", namespace)
	backup := backedUp(t, namespace)
	want(t, restored(t, restoreRun(backup, labtest.Name("other-hash"), v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted)
	settled("none", "2", 2)
	settled("paused", "2", 2)
	if slices.Contains(sets("none"), "none-older") || !slices.Contains(sets("paused"), "paused-older") {
		t.Errorf("there are %q and %q", sets("none"), sets("paused"))
	}
	lab.Kubectl(t, "rollout", "undo", "deployment/none", "-n", namespace)
	if image := lab.Kubectl(t, "get", "deployment", "none", "-n", namespace, "-o", "jsonpath={.spec.template.spec.containers[0].image}"); image != "example.com/c:1" {
		t.Errorf("an undo goes to %s", image)
	}
}

// TestRestoreOfFullAnnotations: an object whose annotations are as long as they may be comes back as it was.
func TestRestoreOfFullAnnotations(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "annotated")
	notes := map[string]string{"note": strings.Repeat("x", 256<<10-len("note"))}
	if _, err := lab.Kube.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "full", Annotations: notes}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	backup := backedUp(t, namespace)
	want(t, restored(t, restoreRun(backup, labtest.Name("annotated"), v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted)
	if found, err := lab.Kube.CoreV1().ConfigMaps(namespace).Get(t.Context(), "full", metav1.GetOptions{}); err != nil || !maps.Equal(found.Annotations, notes) {
		t.Errorf("it is %v", err)
	}
}
