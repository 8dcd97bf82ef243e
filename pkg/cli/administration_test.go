// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// created keeps the object of each request, and answers with it.
func created(to *[]string) func(*http.Request) any {
	return func(r *http.Request) any {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			return refusal{metav1.Status{Code: http.StatusBadRequest, Message: err.Error()}}
		}
		if object, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil); err == nil {
			if data, err = json.Marshal(object); err != nil {
				return refusal{metav1.Status{Code: http.StatusBadRequest, Message: err.Error()}}
			}
		}
		*to = append(*to, r.URL.RawQuery+" "+string(data))
		return json.RawMessage(data)
	}
}

// TestLocationIsCreatedWithItsSecret: flags make the spec, and a credentials file makes the Secret. No
// output has the credentials.
func TestLocationIsCreatedWithItsSecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(file, []byte("[default]\naws_access_key_id=wrong\n[profile offsite]\naws_access_key_id = AKID\naws_secret_access_key = s3cr3t=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var locations, secrets []string
	s := &server{answers: map[string]any{
		"POST " + engineOf + "storagelocations":              created(&locations),
		"POST /api/v1/namespaces/holdfast-locations/secrets": created(&secrets),
	}}
	args := []string{"location", "create", "offsite", "--bucket=backups", "--region=eu-central-1", "--prefix=a/b", "--default", "--allowed-namespaces=shop,blog", "--recovery-key=age1safe", "--encrypt-objects", "--credentials-file=" + file, "--profile=offsite"}
	stdout, stderr, code := run(t, s, append(args, "--dry-run=client", "-o=yaml")...)
	var made enginev1alpha1.StorageLocation
	if err := yaml.UnmarshalStrict([]byte(stdout), &made); err != nil || code != ExitOK || len(s.requests) != 0 {
		t.Fatalf("exit code %d, %v, %q: %s%s", code, err, s.requests, stdout, stderr)
	}
	if spec := made.Spec; made.Namespace != "holdfast" || spec.Provider != "s3" || spec.S3.Bucket != "backups" || spec.S3.Region != "eu-central-1" || spec.Prefix != "a/b" || !spec.Default || spec.S3.CredentialsSecret != "offsite" || len(spec.AllowedNamespaces.Names) != 2 || !spec.EncryptsObjects() || len(spec.RecoveryKeys) != 1 {
		t.Errorf("the location is %s", stdout)
	}
	out, stderr, code := run(t, s, args...)
	if code != ExitOK || len(locations) != 2 || !strings.HasPrefix(locations[0], "dryRun=All") || strings.HasPrefix(locations[1], "dryRun=All") || len(secrets) != 1 {
		t.Fatalf("exit code %d, %q %q, %s", code, locations, secrets, stderr)
	}
	encoded := base64.StdEncoding.EncodeToString([]byte("s3cr3t="))
	if !strings.Contains(secrets[0], `"secretAccessKey":"`+encoded+`"`) || strings.Contains(out+stdout+stderr, "s3cr3t") {
		t.Errorf("the Secret is %s, and the output %s%s", secrets[0], out, stderr)
	}
	for name, args := range map[string][]string{
		"neither":          {"location", "create", "x"},
		"no recovery key":  {"location", "create", "x", "--bucket=b", "--encrypt-objects"},
		"a folder with S3": {"location", "create", "x", "--path=/x", "--region=y"},
		"two stores":       {"location", "create", "x", "--bucket=b", "--path=/x"},
		"GCS with S3's":    {"location", "create", "x", "--provider=gcs", "--bucket=b", "--region=y"},
		"Azure's in S3":    {"location", "create", "x", "--bucket=b", "--container=backups"},
		"Azure, half":      {"location", "create", "x", "--provider=azure", "--container=backups"},
		"GCS, no bucket":   {"location", "create", "x", "--provider=gcs"},
		"no name":          {"location", "create", "--bucket=b"},
		"a role and keys":  {"location", "create", "x", "--bucket=b", "--role-arn=arn:aws:iam::111122223333:role/b", "--credentials-secret=c"},
		"half a lock":      {"location", "create", "x", "--bucket=b", "--lock-mode=governance"},
		"as of a day":      {"location", "create", "x", "--bucket=b", "--as-of=yesterday"},
		"a folder as of":   {"location", "create", "x", "--path=/x", "--as-of=2026-11-27T10:00:00Z"},
		"a folder's role":  {"location", "create", "x", "--path=/x", "--role-arn=arn:aws:iam::111122223333:role/b"},
	} {
		if _, stderr, code := run(t, s, args...); code != ExitUsage {
			t.Errorf("%s: exit code %d, %s", name, code, stderr)
		}
	}
	stdout, stderr, code = run(t, s, "location", "create", "x", "--bucket=b", "--role-arn=arn:aws:iam::111122223333:role/b", "--external-id=e1", "--dry-run=client", "-o=yaml")
	if code != ExitOK || !strings.Contains(stdout, "roleARN: arn:aws:iam::111122223333:role/b\n") || !strings.Contains(stdout, "externalID: e1\n") || strings.Contains(stdout, "credentialsSecret") {
		t.Errorf("with a role: exit code %d, %s%s", code, stdout, stderr)
	}
	stdout, stderr, code = run(t, s, "location", "create", "x", "--bucket=b", "--lock-mode=governance", "--lock-days=30", "--dry-run=client", "-o=yaml")
	if code != ExitOK || !strings.Contains(stdout, "lock:\n    days: 30\n    mode: governance\n") {
		t.Errorf("with a lock: exit code %d, %s%s", code, stdout, stderr)
	}
	stdout, stderr, code = run(t, s, "location", "create", "x", "--bucket=b", "--as-of=2026-11-27T10:00:00Z", "--dry-run=client", "-o=yaml")
	if code != ExitOK || !strings.Contains(stdout, `asOf: "2026-11-27T10:00:00Z"`) {
		t.Errorf("as of a time: exit code %d, %s%s", code, stdout, stderr)
	}
	secrets = nil
	account := filepath.Join(t.TempDir(), "account.json")
	if err := os.WriteFile(account, []byte(`{"type": "service_account", "private_key": "s3cr3t="}`), 0o600); err != nil {
		t.Fatal(err)
	}
	out, stderr, code = run(t, s, "location", "create", "google", "--provider=gcs", "--bucket=b", "--credentials-file="+account)
	if code != ExitOK || len(secrets) != 1 || !strings.Contains(secrets[0], `"serviceAccountKey"`) || !strings.Contains(secrets[0], `"name":"google"`) || strings.Contains(out+stderr, "s3cr3t") {
		t.Errorf("GCS: exit code %d, %q, %s%s", code, secrets, out, stderr)
	}
	if made := locations[len(locations)-1]; !strings.Contains(made, `"gcs":{"bucket":"b","credentialsSecret":"google"}`) {
		t.Errorf("GCS: the location is %s", made)
	}
	secrets = nil
	variables := filepath.Join(t.TempDir(), "azure.env")
	if err := os.WriteFile(variables, []byte("AZURE_CLOUD_NAME=AzurePublicCloud\nexport AZURE_STORAGE_ACCOUNT_ACCESS_KEY=\"s3cr3t=\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, stderr, code = run(t, s, "location", "create", "azure", "--storage-account=acc", "--container=backups", "--credentials-file="+variables)
	if code != ExitOK || len(secrets) != 1 || !strings.Contains(secrets[0], `"data":{"accountKey":"`+encoded+`"}`) || strings.Contains(out+stderr, "s3cr3t") {
		t.Errorf("Azure: exit code %d, %q, %s%s", code, secrets, out, stderr)
	}
	if made := locations[len(locations)-1]; !strings.Contains(made, `"azure":{"storageAccount":"acc","container":"backups","credentialsSecret":"azure"}`) || !strings.Contains(made, `"provider":"azure"`) {
		t.Errorf("Azure: the location is %s", made)
	}
	if _, stderr, code = run(t, s, "location", "create", "x", "--storage-account=acc", "--container=backups", "--credentials-file="+file); code != ExitFailed || strings.Contains(stderr, "s3cr3t") {
		t.Errorf("a file without credentials for Azure: exit code %d, %s", code, stderr)
	}
	_, stderr, code = run(t, s, "location", "create", "x", "--provider=gcs", "--bucket=b", "--credentials-file="+file)
	if code != ExitFailed || !strings.Contains(stderr, "service account") || strings.Contains(stderr, "s3cr3t") {
		t.Errorf("another file than an account's: exit code %d, %s", code, stderr)
	}
	_, stderr, code = run(t, s, "location", "create", "x", "--bucket=b", "--credentials-file="+file)
	if code != ExitFailed || !strings.Contains(stderr, "[default]") || strings.Contains(stderr, "wrong") {
		t.Errorf("an incomplete profile: exit code %d, %s", code, stderr)
	}
}

// TestLocationIsCheckedAnew: the result is the one of the request's generation, with the probe of an
// available location, and each failed step of it.
func TestLocationIsCheckedAnew(t *testing.T) {
	reads := 0
	probed := condition(enginev1alpha1.ConditionProbed, metav1.ConditionTrue, "Passed", "it was written; the clock: it agrees")
	of := func(status metav1.ConditionStatus, generation int64) *enginev1alpha1.StorageLocation {
		available := condition(enginev1alpha1.ConditionAvailable, status, "Reason", "because")
		available.ObservedGeneration = generation
		return &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "holdfast"}, Status: enginev1alpha1.StorageLocationStatus{StoreID: "s", Conditions: conditions(available, probed)},
			Spec: enginev1alpha1.StorageLocationSpec{RecoveryKeys: []string{"age1safe"}, Encryption: &enginev1alpha1.StorageEncryption{Objects: enginev1alpha1.ObjectEncryptionEnabled}}}
	}
	end := metav1.ConditionTrue
	s := &server{answers: map[string]any{
		"POST /apis/holdfast.io/v1alpha1/namespaces/holdfast/syncrequests": v1alpha1.SyncRequest{TypeMeta: typed("SyncRequest"), Status: v1alpha1.SyncRequestStatus{Generation: 3}},
		"GET " + engineOf + "storagelocations/default": func(*http.Request) any {
			if reads++; reads < 3 {
				return of(metav1.ConditionTrue, 2)
			}
			if reads > 3 {
				probed.ObservedGeneration = 3
			}
			return of(end, 3)
		},
	}}
	if stdout, stderr, code := run(t, s, "location", "check", "default"); code != ExitOK || reads != 4 || !strings.Contains(stdout, "True Reason: because") || !strings.Contains(stdout, "True Passed: it was written; the clock: it agrees") || !strings.Contains(stdout, "for the recovery keys age1safe") {
		t.Errorf("exit code %d after %d reads: %s%s", code, reads, stdout, stderr)
	}
	probed.Status, probed.Reason, probed.Message = metav1.ConditionFalse, "Failed", "delete the probe: the store denies access"
	if stdout, stderr, code := run(t, s, "location", "check", "default"); code != ExitFailed || !strings.Contains(stdout, "False Failed: delete the probe") || !strings.Contains(stdout, "remedy") || !strings.Contains(stderr, "the probe of the storage location default failed") {
		t.Errorf("a probe that failed: exit code %d: %s%s", code, stdout, stderr)
	}
	probed.ObservedGeneration = 2
	end, reads = metav1.ConditionFalse, 0
	if stdout, stderr, code := run(t, s, "location", "check", "default"); code != ExitFailed || !strings.Contains(stdout, "remedy") || !strings.Contains(stderr, "is not available") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	reads = -1000
	if _, stderr, code := run(t, s, "location", "check", "default", "--timeout=1s"); code != ExitTimeout {
		t.Errorf("without a result: exit code %d: %s", code, stderr)
	}
	end, reads, probed.ObservedGeneration = metav1.ConditionTrue, -1000, 2
	s.answers["GET "+engineOf+"storagelocations/default"] = func(*http.Request) any { return of(end, 3) }
	if _, stderr, code := run(t, s, "location", "check", "default", "--timeout=1s"); code != ExitTimeout || !strings.Contains(stderr, "has not probed it") {
		t.Errorf("without a probe: exit code %d: %s", code, stderr)
	}
}

// TestKeysAreExportedIntoAFile: only its owner may read it, an existing one stays, and each key is
// noted by the fingerprint of the exported key.
func TestKeysAreExportedIntoAFile(t *testing.T) {
	key := base64.RawURLEncoding.EncodeToString(slices.Repeat([]byte{7}, 32))
	secret := func(name string, data map[string][]byte) corev1.Secret {
		return corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "holdfast-repositories"}, Data: data}
	}
	var updates []string
	s := &server{answers: map[string]any{
		"GET /api/v1/namespaces/holdfast-repositories/secrets": corev1.SecretList{Items: []corev1.Secret{
			secret("shop.default.key", map[string][]byte{enginev1alpha1.KeySecretKey: []byte(key)}), secret("other", map[string][]byte{"a": []byte("b")}),
		}},
		"GET " + engineOf + "volumerepositories/shop.default": enginev1alpha1.VolumeRepository{ObjectMeta: metav1.ObjectMeta{Name: "shop.default", Namespace: "holdfast", ResourceVersion: "7"}},
		"PUT " + engineOf + "volumerepositories/shop.default": created(&updates),
	}}
	if _, stderr, code := run(t, s, "keys", "export"); code != ExitUsage || !strings.Contains(stderr, "--output-file") {
		t.Errorf("without a place: exit code %d, %s", code, stderr)
	}
	file := filepath.Join(t.TempDir(), "keys.yaml")
	stdout, stderr, code := run(t, s, "keys", "export", "--output-file="+file)
	if code != ExitOK || strings.Contains(stdout+stderr, base64.StdEncoding.EncodeToString([]byte(key))) {
		t.Fatalf("exit code %d, %s%s", code, stdout, stderr)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got corev1.Secret
	if err := yaml.Unmarshal(text, &got); err != nil || got.Name != "shop.default.key" || string(got.Data[enginev1alpha1.KeySecretKey]) != key || strings.Contains(string(text), "other") {
		t.Errorf("%v: %s", err, text)
	}
	sum := sha256.Sum256([]byte(key))
	if want := hex.EncodeToString(sum[:16]); len(updates) != 1 || !strings.Contains(updates[0], want) {
		t.Errorf("noted %q, want the fingerprint %s", updates, want)
	}
	if _, stderr, code := run(t, s, "keys", "export", "--output-file="+file); code != ExitFailed || len(updates) != 1 {
		t.Errorf("an existing file: exit code %d, %s, %q", code, stderr, updates)
	}
	if stdout, _, code := run(t, s, "keys", "export", "--stdout"); code != ExitOK || !strings.Contains(stdout, "shop.default.key") {
		t.Errorf("to the output: exit code %d, %s", code, stdout)
	}
}

// TestKeysStatus: a key that is only in the cluster makes the exit code 1.
func TestKeysStatus(t *testing.T) {
	repository := func(name string, status metav1.ConditionStatus, reason string) enginev1alpha1.VolumeRepository {
		return enginev1alpha1.VolumeRepository{ObjectMeta: metav1.ObjectMeta{Name: name + ".default"}, Spec: enginev1alpha1.VolumeRepositorySpec{VolumeNamespace: name, BackupStorageLocation: "default"},
			Status: enginev1alpha1.VolumeRepositoryStatus{KeyFingerprint: "f-" + name, Conditions: conditions(condition(enginev1alpha1.ConditionKeyBackedUp, status, reason, ""))}}
	}
	list := &enginev1alpha1.VolumeRepositoryList{Items: []enginev1alpha1.VolumeRepository{repository("shop", metav1.ConditionTrue, "Wrapped")}}
	s := &server{answers: map[string]any{"GET " + engineOf + "volumerepositories": list}}
	if stdout, stderr, code := run(t, s, "keys", "status"); code != ExitOK || !strings.Contains(stdout, "f-shop") {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
	list.Items = append(list.Items, repository("blog", metav1.ConditionFalse, "NotExported"))
	if stdout, stderr, code := run(t, s, "keys", "status"); code != ExitFailed || !strings.Contains(stdout, "NotExported") || !strings.Contains(stderr, "of 2 keys, 1 ") {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
}

// probed is the dry run that asks whether snapshots are on.
const probed = "POST /apis/holdfast.io/v1alpha1/namespaces/holdfast/schedules"

const veleroConfigMaps = "/api/v1/namespaces/velero/configmaps"

// velerosObjects answers with Velero's objects of testdata, as a server without snapshots.
func velerosObjects(t *testing.T) map[string]any {
	t.Helper()
	text, err := os.ReadFile("testdata/velero.yaml")
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]any{probed: func(*http.Request) any {
		return refusal{metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity,
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Field: "spec.template.storageLocation"}, {Field: "spec.template.snapshotVolumes"}}}}}
	}}
	var plugins []any
	lists := map[string][]any{"backupstoragelocations": {}, "schedules": {}, "backups": {}}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		kind := object["kind"].(string)
		if kind == "ConfigMap" {
			metadata := object["metadata"].(map[string]any)
			answers["GET "+veleroConfigMaps+"/"+metadata["name"].(string)] = object
			if metadata["labels"] != nil {
				plugins = append(plugins, object)
			}
			continue
		}
		resource := strings.ToLower(kind) + "s"
		lists[resource] = append(lists[resource], object)
	}
	answers["GET "+veleroConfigMaps] = map[string]any{"apiVersion": "v1", "kind": "ConfigMapList", "items": plugins}
	for resource, items := range lists {
		answers["GET /apis/velero.io/v1/namespaces/velero/"+resource] = map[string]any{"apiVersion": "velero.io/v1", "kind": "List", "items": items}
	}
	return answers
}

// TestVelerosObjectsAreTakenOver: what is created, and which fields are named.
func TestVelerosObjectsAreTakenOver(t *testing.T) {
	s := &server{answers: velerosObjects(t)}
	stdout, stderr, code := run(t, s, "migrate", "velero", "-o=yaml")
	if code != ExitFailed {
		t.Errorf("exit code %d: an object is refused", code)
	}
	golden(t, "migrated.yaml", stdout)
	golden(t, "migrated.txt", stderr)
	for _, request := range s.requests {
		if !strings.HasPrefix(request, "GET ") && request != probed+"?dryRun=All" || strings.Contains(request, "/secrets") {
			t.Errorf("it makes the request %s", request)
		}
	}
	if want := "GET " + veleroConfigMaps + "?labelSelector=velero.io%2Fplugin-config"; !slices.Contains(s.requests, want) {
		t.Errorf("without %s: %q", want, s.requests)
	}
	resumed, _, _ := run(t, s, "migrate", "velero", "-o=yaml", "--resume")
	if strings.Count(stdout, "paused: true") != 2 || strings.Count(resumed, "paused: true") != 1 {
		t.Errorf("with --resume: %s", resumed)
	}
	if _, stderr, code := run(t, s, "migrate", "velero"); code != ExitUsage || !strings.Contains(stderr, "--yes") {
		t.Errorf("without an answer: exit code %d, %s", code, stderr)
	}
	s.answers["GET "+veleroConfigMaps] = forbidden("configmaps")
	withheld, stderr, _ := run(t, s, "migrate", "velero", "-o=yaml")
	if withheld != stdout || !strings.Contains(stderr, "configmaps:\n") || strings.Contains(stderr, "storageClassMapping") {
		t.Errorf("without the right to list ConfigMaps: %s%s", withheld, stderr)
	}
}

// TestSnapshotsOfVelerosSchedules: the server says whether snapshots stay in a schedule. None is taken over whose
// backups would hold no volume for the lack of them.
func TestSnapshotsOfVelerosSchedules(t *testing.T) {
	const off, on, silent = "off", "on", "silent"
	answers := velerosObjects(t)
	probes := map[string]any{
		off: answers[probed],
		on: func(*http.Request) any {
			return refusal{metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity,
				Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Field: "spec.template.storageLocation"}}}}}
		},
		silent: forbidden("schedules"),
	}
	const moved = `{"defaultVolumesToFsBackup":false,"snapshotVolumes":true,"snapshotMoveData":true,"itemOperationTimeout":"1h"}`
	for name, test := range map[string]struct {
		server, template string
		want, never      []string
		refused          bool
	}{
		"on":                       {server: on, template: moved, want: []string{"snapshotVolumes: true", "snapshotMoveData: true"}, never: []string{"left out", "itemOperationTimeout has no effect", "not known", "not set"}},
		"not known":                {server: silent, template: moved, want: []string{"snapshotVolumes: true", "snapshotMoveData: true", "is not known: schedules is forbidden"}, never: []string{"left out", "itemOperationTimeout has no effect"}},
		"off":                      {server: off, template: moved, want: []string{"s: it is refused", "snapshots.enabled", "--snapshots", "remove defaultVolumesToFsBackup: false"}, never: []string{"kind: Schedule"}, refused: true},
		"off, moved alone":         {server: off, template: `{"defaultVolumesToFsBackup":false,"snapshotMoveData":true}`, want: []string{"it is refused"}, refused: true},
		"off, and Velero's is too": {server: off, template: `{"defaultVolumesToFsBackup":false,"snapshotVolumes":false,"snapshotMoveData":true}`, want: []string{"spec.template.snapshotMoveData is left out", "snapshotVolumes: false"}, never: []string{"snapshotMoveData: true"}},
		"off, files by default":    {server: off, template: `{"snapshotVolumes":true}`, want: []string{"spec.template.snapshotVolumes is left out", "spec.template.defaultVolumesToFsBackup is not set in s. "}, never: []string{"snapshotVolumes: true", "snapshotMoveData is not set"}},
		"off, files":               {server: off, template: `{"defaultVolumesToFsBackup":true,"snapshotVolumes":true}`, want: []string{"spec.template.snapshotVolumes is left out", "defaultVolumesToFsBackup: true"}, never: []string{"not set"}},
		"off, files by restic":     {server: off, template: `{"defaultVolumesToFsBackup":false,"defaultVolumesToRestic":true,"snapshotVolumes":true}`, want: []string{"spec.template.snapshotVolumes is left out"}, never: []string{"not set"}},
		"off, by Velero's default": {server: off, template: `{"defaultVolumesToFsBackup":false}`, want: []string{"spec.template.defaultVolumesToFsBackup is false, and snapshots are off"}},
		"on, by Velero's default":  {server: on, template: `{}`, want: []string{"spec.template.defaultVolumesToFsBackup is not set in s. ", "spec.template.snapshotMoveData is not set in s. "}, never: []string{"snapshots are off"}},
	} {
		t.Run(name, func(t *testing.T) {
			answers[probed] = probes[test.server]
			answers["GET /apis/velero.io/v1/namespaces/velero/backupstoragelocations"] = map[string]any{"apiVersion": "velero.io/v1", "kind": "List", "items": []any{}}
			answers["GET /apis/velero.io/v1/namespaces/velero/schedules"] = map[string]any{"apiVersion": "velero.io/v1", "kind": "List", "items": []any{map[string]any{
				"apiVersion": "velero.io/v1", "kind": "Schedule", "metadata": map[string]any{"name": "s"}, "spec": map[string]any{"schedule": "@daily", "template": json.RawMessage(test.template)},
			}}}
			stdout, stderr, code := run(t, &server{answers: answers}, "migrate", "velero", "-o=yaml")
			text := strings.Join(strings.Fields(stdout+stderr), " ")
			for _, want := range test.want {
				if !strings.Contains(text, want) {
					t.Errorf("without %q: %s%s", want, stdout, stderr)
				}
			}
			for _, never := range test.never {
				if strings.Contains(text, never) {
					t.Errorf("with %q: %s%s", never, stdout, stderr)
				}
			}
			if refused := code == ExitFailed; refused != test.refused {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// TestEveryFieldOfVelerosLocations: each field of docs/velero.md is taken over or named.
func TestEveryFieldOfVelerosLocations(t *testing.T) {
	fields, err := os.ReadFile("../apiserver/testdata/velero-fields.txt")
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]struct{ value, want string }{
		"provider":                {`"tape"`, "spec.provider tape"},
		"config":                  {`{"kmsKeyId":"k","region":"here"}`, "spec.config.kmsKeyId"},
		"credential":              {`{"name":"cloud","key":"file"}`, "spec.credential"},
		"objectStorage.bucket":    {`"b1"`, "bucket: b1"},
		"objectStorage.prefix":    {`"p1"`, "prefix: p1"},
		"objectStorage.caCert":    {`"Y2E="`, "caBundle: Y2E="},
		"objectStorage.caCertRef": {`{"name":"ca","key":"k"}`, "spec.objectStorage.caCertRef"},
		"default":                 {`true`, "default: true"},
		"accessMode":              {`"ReadOnly"`, "spec.accessMode"},
		"backupSyncPeriod":        {`"7m0s"`, "pollInterval: 7m0s"},
		"validationFrequency":     {`"1m0s"`, "spec.validationFrequency"},
	}
	for line := range strings.Lines(string(fields)) {
		path, found := strings.CutPrefix(line, "BackupStorageLocation ")
		if !found {
			continue
		}
		path = strings.Fields(path)[0]
		of, ok := values[path]
		if !ok {
			t.Errorf("the field %s is not tried", path)
			continue
		}
		value := any(json.RawMessage(of.value))
		names := strings.Split(path, ".")
		for _, name := range slices.Backward(names) {
			value = map[string]any{name: value}
		}
		spec := value.(map[string]any)
		if spec["provider"] == nil {
			spec["provider"] = "aws"
		}
		answers := velerosObjects(t)
		answers["GET /apis/velero.io/v1/namespaces/velero/backupstoragelocations"] = map[string]any{"apiVersion": "velero.io/v1", "kind": "BackupStorageLocationList", "items": []any{map[string]any{"apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": map[string]any{"name": "default"}, "spec": spec}}}
		stdout, stderr, _ := run(t, &server{answers: answers}, "migrate", "velero", "-o=yaml")
		if !strings.Contains(stdout+stderr, of.want) {
			t.Errorf("%s: want %q in %s%s", path, of.want, stdout, stderr)
		}
	}
}

// TestNoSecretIsInABundle: secrets in Secrets, environments, annotations, hooks, URLs and messages
// are not in the archive, and it says what it lacks.
func TestNoSecretIsInABundle(t *testing.T) {
	const planted = "pl4nt3d-s3cr3t"
	answers := healthy(t)
	plant := map[string]string{"note": planted, "kubectl.kubernetes.io/last-applied-configuration": planted}
	answers["GET /api/v1/namespaces/holdfast-locations/secrets"] = corev1.SecretList{Items: []corev1.Secret{{Data: map[string][]byte{"a": []byte(planted)}}}}
	answers["GET /api/v1/namespaces/holdfast/pods"] = corev1.PodList{Items: []corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "holdfast", Annotations: plant}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Env: []corev1.EnvVar{{Name: "TOKEN", Value: planted}}}}},
	}}}
	answers["GET /api/v1/namespaces/holdfast/pods/p/log"] = "dial https://user:" + planted + "@store/ failed\n"
	answers["GET "+engineOf+"storagelocations"] = enginev1alpha1.StorageLocationList{Items: []enginev1alpha1.StorageLocation{{
		ObjectMeta: metav1.ObjectMeta{Name: "default", Annotations: plant}, Spec: enginev1alpha1.StorageLocationSpec{S3: &enginev1alpha1.S3Location{Endpoint: "https://user:" + planted + "@store"}},
		Status: enginev1alpha1.StorageLocationStatus{Conditions: conditions(condition(enginev1alpha1.ConditionAvailable, metav1.ConditionFalse, "Unreachable", "https://user:"+planted+"@store does not answer"))},
	}}}
	answers["GET "+allOf+"backups"] = v1alpha1.BackupList{Items: []v1alpha1.Backup{{
		ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "shop", Annotations: plant},
		Spec:       v1alpha1.BackupSpec{Hooks: v1alpha1.BackupHooks{Resources: []v1alpha1.BackupResourceHookSpec{{Name: "h", Pre: []v1alpha1.BackupResourceHook{{Exec: &v1alpha1.ExecHook{Command: []string{"sh", planted}}}}}}}},
		Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseFailed},
	}}}
	answers["GET "+of+"backups/b/log"] = "the log of b\n"
	answers["GET "+allOf+"schedules"] = forbidden("schedules")
	s := &server{answers: answers}
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	stdout, stderr, code := run(t, s, "bundle", "--output-file="+path)
	if code != ExitOK || !strings.Contains(stdout, path) {
		t.Fatalf("exit code %d, %s%s", code, stdout, stderr)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the archive: %v, %v", info, err)
	}
	files := unpacked(t, path)
	for name, text := range files {
		if strings.Contains(text, planted) || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(planted))) {
			t.Errorf("%s has the secret: %s", name, text)
		}
	}
	for name, want := range map[string]string{
		"doctor.txt": "Locations: wrong", "doctor.json": `"healthy"`, "objects/backups.yaml": "name: b", "runs/backups/shop/b.log": "the log of b", "logs/holdfast/p.c.log": "dial https://(left out)@store",
		"objects/pods-of-holdfast.yaml": "TOKEN", "objects/schedules-of-the-namespace-shop.yaml": "nightly", "LEFT-OUT.txt": "Secrets and ConfigMaps",
	} {
		if !strings.Contains(files["holdfast-bundle/"+name], want) {
			t.Errorf("%s lacks %q: %s", name, want, files["holdfast-bundle/"+name])
		}
	}
	for _, request := range s.requests {
		if strings.Contains(request, "/secrets") || strings.Contains(request, "/configmaps") {
			t.Errorf("it makes the request %s", request)
		}
	}
	if _, stderr, code := run(t, s, "bundle", "--output-file="+path); code != ExitFailed {
		t.Errorf("an existing file: exit code %d, %s", code, stderr)
	}
}

// unpacked returns the files of an archive.
func unpacked(t *testing.T, path string) map[string]string {
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
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(fmt.Errorf("%s: %w", header.Name, err))
		}
		files[header.Name] = string(text)
	}
}
