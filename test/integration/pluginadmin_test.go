// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/cli"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestLocationsOfThePlugin: a location is created, listed and checked by the plugin, and the CRD
// refuses a wrong one before anything is written.
func TestLocationsOfThePlugin(t *testing.T) {
	t.Parallel()
	name, folder := labtest.Name("plugin"), t.TempDir()
	create := []string{"location", "create", name, "--path", folder}
	must(t, "", append(create, "--dry-run=server", "-o", "yaml"), "path: "+folder)
	must(t, "", create, "storagelocation.engine.holdfast.io/"+name+" created")
	t.Cleanup(func() {
		if err := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	must(t, "", []string{"location", "check", name}, "True Reachable", "True Passed: ")
	must(t, "", []string{"location", "get"}, name, "PROVIDER")
	must(t, "", []string{"location", "get", name, "-o", "name"}, "storagelocation.engine.holdfast.io/"+name)
	must(t, "", []string{"__complete", "location", "check", name[:3]}, name)

	file := filepath.Join(folder, "credentials")
	if err := os.WriteFile(file, []byte("[default]\naws_access_key_id=a\naws_secret_access_key=b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := labtest.Name("refused")
	if _, stderr, code := plugin(t, "", "location", "create", other, "--bucket", "b", "--prefix", "/wrong/", "--credentials-file", file); code != cli.ExitFailed || !strings.Contains(stderr, "prefix") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if _, err := lab.Kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(labtest.System)).Get(t.Context(), other, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Secret of a refused location: %v", err)
	}
	if _, stderr, code := plugin(t, labtest.Name("sam"), "location", "create", other, "--path", folder); code != cli.ExitFailed || !strings.Contains(stderr, "forbidden") {
		t.Errorf("a stranger: exit code %d, %s", code, stderr)
	}
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	if stdout, stderr, code := plugin(t, "", "location", "check", name); code != cli.ExitFailed || !strings.Contains(stdout, "remedy:") {
		t.Errorf("without its folder: exit code %d, %s%s", code, stdout, stderr)
	}
}

// TestProbeOfThePlugin: the controller probes a store, which the client can't reach, and the command
// shows its answer: a store without conditional writes, and one that refuses a deletion.
func TestProbeOfThePlugin(t *testing.T) {
	t.Parallel()
	var refuses, ignores atomic.Bool
	spec, secret := storetest.FakeS3(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if ignores.Load() {
				r.Header.Del("If-None-Match")
			}
			if refuses.Load() && r.Method == http.MethodDelete {
				w.WriteHeader(http.StatusForbidden)
				_, _ = io.WriteString(w, "<Error><Code>AccessDenied</Code></Error>")
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	name, locations := labtest.Name("probed"), lab.Engine.EngineV1alpha1().StorageLocations(labtest.System)
	spec.S3.CredentialsSecret, spec.Prefix = name, "below/it"
	if _, err := lab.Kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(labtest.System)).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: secret}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := locations.Create(t.Context(), &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := locations.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	probes := func() (keys []string) {
		for object, err := range storetest.Open(t, spec, secret).List(t.Context(), format.HoldfastPrefix+"probes/", store.ListOptions{Recursive: true}) {
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, object.Key)
		}
		return keys
	}
	t.Log(must(t, "", []string{"location", "check", name}, "True Reachable", "True Passed: an object was created", "clock: it agrees"))
	refuses.Store(true)
	stdout, stderr, code := plugin(t, "", "location", "check", name)
	if code != cli.ExitFailed || !strings.Contains(stdout, "lack the right s3:DeleteObject") || !strings.Contains(stdout, "remedy:") || len(probes()) != 1 {
		t.Errorf("exit code %d, %q, %s%s", code, probes(), stdout, stderr)
	}
	refuses.Store(false)
	ignores.Store(true)
	if stdout, stderr, code := plugin(t, "", "location", "check", name); code != cli.ExitFailed || !strings.Contains(stdout, "the store took it") || len(probes()) != 0 {
		t.Errorf("exit code %d, %q, %s%s", code, probes(), stdout, stderr)
	}
	ignores.Store(false)
	must(t, "", []string{"location", "check", name}, "True Passed: ")
}

// TestKeysOfThePlugin: an exported key counts as backed up, and a user without the right gets none.
func TestKeysOfThePlugin(t *testing.T) {
	t.Parallel()
	namespace, file := lab.Namespace(t, "keys"), filepath.Join(t.TempDir(), "keys.yaml")
	name := unsafeRepository(t, lab, namespace)
	if stdout, _, code := plugin(t, "", "keys", "status"); code != cli.ExitFailed || !strings.Contains(stdout, namespace) {
		t.Errorf("exit code %d, %s", code, stdout)
	}
	if _, stderr, code := plugin(t, labtest.Name("sam"), "keys", "export", name, "--output-file", file); code != cli.ExitFailed || !strings.Contains(stderr, "forbidden") {
		t.Errorf("a stranger: exit code %d, %s", code, stderr)
	}
	must(t, "", []string{"keys", "export", name, "--output-file", file})
	awaitKey(t, lab, name, enginev1alpha1.ReasonKeyExported)
	stdout, stderr, err := lab.TryKubectl(t, "", "create", "--dry-run=client", "-f", file, "-o", "name")
	if err != nil || !strings.Contains(stdout, "secret/"+enginev1alpha1.KeySecretName(name)) {
		t.Errorf("kubectl reads the file as %q, %s: %v", stdout, stderr, err)
	}
}

// veleroCRDs are the kinds of Velero that a migration reads, with any fields.
const veleroCRDs = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: PLURAL.velero.io}
spec:
  group: velero.io
  scope: Namespaced
  names: {plural: PLURAL, kind: KIND, listKind: KINDList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// TestMigrationFromVelero: Velero's objects of the unit test are taken over in a cluster that has
// them. Schedules come paused, and a second call changes nothing.
func TestMigrationFromVelero(t *testing.T) {
	t.Parallel()
	lab := lab.Another(t)
	for kind, plural := range map[string]string{"BackupStorageLocation": "backupstoragelocations", "Schedule": "schedules", "Backup": "backups"} {
		manifest := strings.NewReplacer("PLURAL", plural, "KIND", kind).Replace(veleroCRDs)
		if _, stderr, err := lab.TryKubectl(t, manifest, "apply", "-f", "-"); err != nil {
			t.Fatal(stderr)
		}
		lab.Kubectl(t, "wait", "--for=condition=Established", "crd/"+plural+".velero.io", "--timeout=30s")
	}
	lab.Kubectl(t, "create", "namespace", "velero")
	labtest.Eventually(t, "Velero's objects to be accepted", func() error {
		if _, stderr, err := lab.TryKubectl(t, "", "apply", "-f", "../../pkg/cli/testdata/velero.yaml"); err != nil {
			return errors.New(stderr)
		}
		return nil
	})
	// The lab has a default location: the one of Velero with this name stays out.
	stdout, stderr, code := pluginIn(t, lab, "", "migrate", "velero", "--dry-run=server")
	if code != cli.ExitFailed || !strings.Contains(stdout, "schedule.holdfast.io/nightly created (server dry run)") || !strings.Contains(stderr, "spec.provider example.com/tape is not converted") {
		t.Errorf("a dry run: exit code %d, %s%s", code, stdout, stderr)
	}
	stdout, stderr, _ = pluginIn(t, lab, "", "migrate", "velero", "--yes")
	for _, want := range []string{"schedule.holdfast.io/nightly created", "schedule.holdfast.io/paused created", "configmap/policies created", "storagelocation.engine.holdfast.io/azure created", "storagelocation.engine.holdfast.io/google created", "storagelocation.engine.holdfast.io/keyed created", "storagelocation.engine.holdfast.io/default exists, and stays as it is"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("without %q: %s%s", want, stdout, stderr)
		}
	}
	made, err := lab.Holdfast.HoldfastV1alpha1().Schedules(labtest.System).Get(t.Context(), "nightly", metav1.GetOptions{})
	if err != nil || !made.Spec.Paused || made.Spec.Template.ResourcePolicy == nil || made.Labels["team"] != "a" {
		t.Errorf("the schedule is %+v, %v", made, err)
	}
	location, err := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System).Get(t.Context(), "azure", metav1.GetOptions{})
	if want := (enginev1alpha1.AzureLocation{StorageAccount: "account", Container: "velero", Endpoint: "https://account.blob.core.chinacloudapi.cn", CredentialsSecret: "azure"}); err != nil || location.Spec.Azure == nil || *location.Spec.Azure != want || location.Spec.Prefix != "cluster-a" {
		t.Errorf("the location is %+v, %v", location, err)
	}
	if stdout, _, _ := pluginIn(t, lab, "", "migrate", "velero", "--yes"); strings.Contains(stdout, " created") || !strings.Contains(stdout, "schedule.holdfast.io/nightly exists") {
		t.Errorf("the second call: %s", stdout)
	}
}

// TestBundle: the archive of a real cluster has the records and no planted secret, and a tenant's
// says what the tenant may not see.
func TestBundle(t *testing.T) {
	t.Parallel()
	const planted = "pl4nt3d-s3cr3t"
	namespace, tenant := lab.Namespace(t, "bundle"), labtest.Name("ann")
	lab.Grant(t, tenant, "edit", namespace)
	lab.Kubectl(t, "create", "secret", "generic", "planted", "-n", namespace, "--from-literal=a="+planted)
	secrets := lab.Kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(labtest.System))
	name := labtest.Name("planted")
	if _, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"a": planted}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := secrets.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	must(t, tenant, []string{"backup", "create", "b", "-n", namespace, "--annotations", "note=" + planted, "--wait"})
	manifest := "apiVersion: holdfast.io/v1alpha1\nkind: Schedule\nmetadata: {name: hooked, namespace: " + namespace + "}\nspec: {schedule: '0 2 * * *', paused: true, template: {hooks: {resources: [{name: h, pre: [{exec: {command: [sh, " + planted + "]}}]}]}}}\n"
	if _, stderr, err := lab.TryKubectl(t, manifest, "create", "-f", "-"); err != nil {
		t.Fatal(stderr)
	}
	for user, want := range map[string]map[string]string{
		"":     {"objects/backups.yaml": "name: b", "objects/records/storagelocations.yaml": "name: default", "doctor.txt": "Locations:", "LEFT-OUT.txt": "Secrets"},
		tenant: {"objects/backups-of-the-namespace-" + namespace + ".yaml": "name: b", "LEFT-OUT.txt": "records/storagelocations: you may not read it"},
	} {
		path := filepath.Join(t.TempDir(), "bundle.tar.gz")
		must(t, user, []string{"bundle", "-n", namespace, "--output-file", path}, path)
		files := archived(t, path)
		for file, text := range files {
			if strings.Contains(text, planted) {
				t.Errorf("%s has the planted secret", file)
			}
		}
		for file, text := range want {
			if !strings.Contains(files["holdfast-bundle/"+file], text) {
				t.Errorf("%s lacks %q: %.2000s", file, text, files["holdfast-bundle/"+file])
			}
		}
	}
}

// archived returns the files of a tar.gz.
func archived(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	zipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(zipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(text)
	}
}
