// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
)

// Fields that nobody knows are refused, unless the client says otherwise itself.
func TestUnknownFieldsAreRefused(t *testing.T) {
	var got string
	handler := genericapifilters.WithRequestInfo(strictFields{http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got = r.URL.RawQuery
	})}, &genericapirequest.RequestInfoFactory{APIPrefixes: sets.NewString("apis"), GrouplessAPIPrefixes: sets.NewString()})
	for _, test := range []struct{ method, address, want string }{
		{"POST", resources, "fieldValidation=Strict"},
		{"POST", resources + "?dryRun=All", "dryRun=All&fieldValidation=Strict"},
		{"POST", resources + "?fieldValidation=", "fieldValidation=Strict"},
		{"POST", resources + "/mine/cancel", "fieldValidation=Strict"},
		{"PUT", resources + "/mine", "fieldValidation=Strict"},
		{"PATCH", resources + "/mine?fieldManager=me", "fieldManager=me&fieldValidation=Strict"},
		{"POST", resources + "?fieldValidation=Warn", "fieldValidation=Warn"},
		{"PATCH", resources + "/mine?fieldValidation=Ignore", "fieldValidation=Ignore"},
		{"GET", resources + "?limit=1", "limit=1"},
		{"DELETE", resources + "/mine", ""},
		{"POST", "/apis/other.io/v1/namespaces/shop/others", ""},
		{"POST", "/healthz", ""},
	} {
		request := httptest.NewRequest(test.method, test.address, nil)
		before := request.URL.String()
		handler.ServeHTTP(httptest.NewRecorder(), request)
		if got != test.want {
			t.Errorf("%s %s is handled as %q, not %q", test.method, test.address, got, test.want)
		}
		if request.URL.String() != before {
			t.Errorf("%s %s was changed for whoever asked", test.method, test.address)
		}
	}
}

// strictly decodes an object as the server does that of a request.
func strictly(t *testing.T, data string) (runtime.Object, error) {
	t.Helper()
	serializer := input{withoutProtobuf{Codecs}}
	info, ok := runtime.SerializerInfoForMediaType(serializer.SupportedMediaTypes(), runtime.ContentTypeYAML)
	if !ok {
		t.Fatal("there is no serializer")
	}
	object, _, err := serializer.DecoderToVersion(info.StrictSerializer, v1alpha1.SchemeGroupVersion).Decode([]byte(data), nil, nil)
	return object, err
}

// velerosBackup is what Velero has written of a backup.
func velerosBackup(t *testing.T) string {
	t.Helper()
	file, err := os.Open("../restore/source/testdata/velero-store.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	plain, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	for entries := tar.NewReader(plain); ; {
		header, err := entries.Next()
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(header.Name, "backups/v-shop/velero-backup.json") {
			data, err := io.ReadAll(entries)
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		}
	}
}

const (
	velerosSchedule = `{apiVersion: velero.io/v1, kind: Schedule, metadata: {name: nightly, namespace: velero, generation: 3, resourceVersion: "735", uid: 37b8e9b2},
spec: {schedule: 0 1 * * *, paused: false, skipImmediately: false, useOwnerReferencesInBackup: false, template: {csiSnapshotTimeout: 0s, hooks: {},
  includedNamespaces: ["*"], itemOperationTimeout: 0s, metadata: {labels: {app: shop}}, snapshotMoveData: false, ttl: 0s, volumeSnapshotLocations: [default]}},
status: {lastBackup: "2026-11-22T01:00:14Z", lastSkipped: "2026-11-22T00:01:14Z", phase: Enabled}}`
	velerosRestore = `{apiVersion: velero.io/v1, kind: Restore, metadata: {name: again, namespace: velero, finalizers: [restores.velero.io/external-resources-finalizer]},
spec: {backupName: v-shop, excludedResources: [nodes, events, events.events.k8s.io, backups.velero.io], hooks: {}, includedNamespaces: ["*"], itemOperationTimeout: 4h0m0s},
status: {completionTimestamp: "2026-11-22T00:01:15Z", hookStatus: {}, phase: Completed, progress: {itemsRestored: 35, totalItems: 35}, startTimestamp: "2026-11-22T00:01:14Z",
  restoreItemOperationsAttempted: 1, warnings: 3}}`
)

// TestVelerosManifestsMoveOver by their apiVersion, as Velero gives them out, with all that
// it has filled in.
func TestVelerosManifestsMoveOver(t *testing.T) {
	for name, manifest := range map[string]string{"a backup": velerosBackup(t), "a schedule": velerosSchedule, "a restore": velerosRestore} {
		moved := strings.Replace(manifest, "velero.io/v1", v1alpha1.SchemeGroupVersion.String(), 1)
		object, err := strictly(t, moved)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var errs field.ErrorList
		switch object := object.(type) {
		case *v1alpha1.Backup:
			errs = validation.ValidateBackup(object, validation.Options{})
		case *v1alpha1.Schedule:
			errs = validation.ValidateSchedule(object)
			errs = append(errs, validation.ValidateBackupSpec(&object.Spec.Template.BackupSpec, validation.Options{}, nil)...)
			if object.Spec.Template.Metadata.Labels["app"] != "shop" {
				t.Errorf("%s has lost its labels", name)
			}
		case *v1alpha1.Restore:
			errs = validation.ValidateRestore(object)
		}
		if len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
		}
		// Only what the status says is not looked at.
		if _, err := strictly(t, strings.ReplaceAll(moved, "includedNamespaces", "includedNamespace")); err == nil || !strings.Contains(err.Error(), "includedNamespace\"") {
			t.Errorf("%s with a misspelt field: %v", name, err)
		} else if strings.Contains(err.Error(), "status") {
			t.Errorf("%s is refused for its status: %v", name, err)
		}
	}
}

// What Velero can be asked for and Holdfast does not do is refused.
func TestWhatIsNotDoneIsRefused(t *testing.T) {
	for _, test := range []struct{ manifest, was, asked, field string }{
		{velerosBackup(t), `"snapshotMoveData": false`, `"snapshotMoveData": true`, "spec.snapshotMoveData"},
		{velerosSchedule, "useOwnerReferencesInBackup: false", "useOwnerReferencesInBackup: true", "spec.useOwnerReferencesInBackup"},
	} {
		moved := strings.Replace(test.manifest, "velero.io/v1", v1alpha1.SchemeGroupVersion.String(), 1)
		object, err := strictly(t, strings.Replace(moved, test.was, test.asked, 1))
		if err != nil {
			t.Fatal(err)
		}
		var errs field.ErrorList
		switch object := object.(type) {
		case *v1alpha1.Backup:
			errs = validation.ValidateBackup(object, validation.Options{})
		case *v1alpha1.Schedule:
			errs = validation.ValidateSchedule(object)
		}
		if len(errs) != 1 || errs[0].Field != test.field {
			t.Errorf("%s is answered with %v", test.asked, errs)
		}
	}
}

// What a patch says of the status is taken out of it, whatever kind of patch it is; the rest
// stays as it was sent.
func TestPatchesWithoutStatus(t *testing.T) {
	var got string
	var length int64
	handler := genericapifilters.WithRequestInfo(strictFields{http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		got, length = string(body), r.ContentLength
	})}, &genericapirequest.RequestInfoFactory{APIPrefixes: sets.NewString("apis"), GrouplessAPIPrefixes: sets.NewString()})
	large := `{"spec":"` + strings.Repeat("x", maxPatch) + `","status":{}}`
	for name, test := range map[string]struct{ address, sent, want string }{
		"merge":                     {resources + "/mine", `{"spec":{"paused":true},"status":{"phase":"Enabled"}}`, `{"spec":{"paused":true}}`},
		"removal":                   {resources + "/mine", `{"status":null}`, `{}`},
		"apply":                     {resources + "/mine", "spec:\n  paused: true\nstatus:\n  lastBackup: x\n", `{"spec":{"paused":true}}`},
		"JSON patch":                {resources + "/mine", `[{"op":"add","path":"/status/phase","value":"x"},{"op":"test","path":"/status","value":1},{"op":"remove","path":"/spec/statuses"}]`, `[{"op":"test","path":"/status","value":1},{"op":"remove","path":"/spec/statuses"}]`},
		"no status":                 {resources + "/mine", "spec: {paused: true} # as it was", "spec: {paused: true} # as it was"},
		"a status that is nested":   {resources + "/mine", `{"spec":{"status":1}}`, `{"spec":{"status":1}}`},
		"what can't be read":        {resources + "/mine", `{"status":`, `{"status":`},
		"too large to be looked at": {resources + "/mine", large, large},
		"another group":             {"/apis/other.io/v1/namespaces/shop/others/mine", `{"status":{}}`, `{"status":{}}`},
	} {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPatch, test.address, strings.NewReader(test.sent)))
		if got != test.want || length != int64(len(test.want)) {
			t.Errorf("%s: %.200q is handled as %.200q, of %d bytes", name, test.sent, got, length)
		}
	}
}

// What a field's own decoder refuses is said with the field's path.
func TestUnreadableFieldsAreNamed(t *testing.T) {
	for field, manifest := range map[string]string{
		"spec.ttl": `{kind: Backup, spec: {ttl: 30d}}`,
		"spec.hooks.resources[1].pre[0].exec.timeout": `{kind: Backup, spec: {hooks: {resources: [{name: a}, {name: b, pre: [{exec: {timeout: 5}}]}]}}}`,
		"spec.template.ttl":                           `{kind: Schedule, spec: {template: {ttl: often}}}`,
		"metadata.creationTimestamp":                  `{kind: Backup, metadata: {creationTimestamp: today}}`,
	} {
		_, err := strictly(t, strings.Replace(manifest, "{kind", "{apiVersion: "+v1alpha1.SchemeGroupVersion.String()+", kind", 1))
		if err == nil || !strings.HasPrefix(err.Error(), field+": ") {
			t.Errorf("%s is answered with %v", manifest, err)
		}
		if err != nil && strings.HasSuffix(err.Error(), ": want hours, minutes or seconds, such as 720h") != strings.HasPrefix(field, "spec.") {
			t.Errorf("%s is answered with %v", manifest, err)
		}
	}
	if _, err := strictly(t, `{apiVersion: `+v1alpha1.SchemeGroupVersion.String()+`, kind: Backup, spec: {includedNamespaces: shop}}`); err == nil || !strings.Contains(err.Error(), "includedNamespaces") {
		t.Errorf("another type is answered with %v", err)
	}
}
