// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/spec3"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

const (
	api      = "/apis/holdfast.io/v1alpha1"
	asTable  = "application/json;as=Table;v=v1;g=meta.k8s.io"
	manifest = "apiVersion: holdfast.io/v1alpha1\nkind: Backup\nmetadata: {name: %s, namespace: %s}\nspec: %s\n"
)

// resources are those of holdfast.io that are in namespaces.
var resources = []string{"backupqueues", "backups", "backupvolumes", "restores", "schedules", "volumebackups"}

// TestDiscovery: no verb deletes what holds data, so that no controller of the cluster does.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	_, lists, err := lab.Kube.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, list := range lists {
		if list.GroupVersion != v1alpha1.SchemeGroupVersion.String() {
			continue
		}
		for _, r := range list.APIResources {
			got = append(got, fmt.Sprintf("%s %s %s %s namespaced=%t %v %v", r.Name, r.SingularName, r.Kind, r.ShortNames, r.Namespaced, r.Verbs, r.Categories))
		}
	}
	slices.Sort(got)
	want := []string{
		"backupobjects backupobject BackupObject [hfo] namespaced=true [list] []",
		"backupqueues backupqueue BackupQueueEntry [hfq bq] namespaced=true [get list watch] [holdfast]",
		"backups backup Backup [hfb] namespaced=true [create get list patch update watch] [holdfast]",
		"backups/cancel backup BackupCancellation [] namespaced=true [create] []",
		"backups/deletion backup BackupDeletion [] namespaced=true [create] []",
		"backups/expiration backup BackupExpiration [] namespaced=true [create] []",
		"backups/log backup Backup [] namespaced=true [get] []",
		"backups/manifest backup Backup [] namespaced=true [get] []",
		"backups/objects backup Backup [] namespaced=true [get] []",
		"backups/plan backup Backup [] namespaced=true [create] []",
		"backups/results backup Backup [] namespaced=true [get] []",
		"backupvolumes backupvolume BackupVolume [hfv] namespaced=true [get list watch] [holdfast]",
		"backupvolumes/deletion backupvolume VolumeDeletion [] namespaced=true [create] []",
		"maintenancerequests maintenancerequest MaintenanceRequest [] namespaced=true [create] []",
		"nodeagents nodeagent NodeAgent [hfn] namespaced=false [get list watch] [holdfast-admin]",
		"nodeagents/proxy nodeagent NodeAgent [] namespaced=false [get] []",
		"protections protection Protection [hfp] namespaced=true [get list] [holdfast]",
		"restores restore Restore [hfr] namespaced=true [create get list patch update watch] [holdfast]",
		"restores/cancel restore RestoreCancellation [] namespaced=true [create] []",
		"restores/log restore Restore [] namespaced=true [get] []",
		"restores/plan restore Restore [] namespaced=true [get] []",
		"restores/results restore Restore [] namespaced=true [get] []",
		"schedules schedule Schedule [hfs] namespaced=true [create delete deletecollection get list patch update watch] [holdfast]",
		"schedules/trigger schedule ScheduleTrigger [] namespaced=true [create] []",
		"syncrequests syncrequest SyncRequest [] namespaced=true [create] []",
		"volumebackups volumebackup VolumeBackup [hfvb] namespaced=true [get list] [holdfast]",
		"volumebackups/content volumebackup VolumeBackup [] namespaced=true [get] []",
		"volumebackups/deletion volumebackup VolumeDeletion [] namespaced=true [create] []",
		"volumebackups/files volumebackup VolumeBackup [] namespaced=true [get] []",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("discovery (-want +got):\n%s", diff)
	}
	for _, name := range []string{"hfb", "backups", "hfq", "bq", "backupqueue", "hfv", "hfvb", "hfn", "hfs", "hfr", "hfp"} {
		lab.Kubectl(t, "get", name, "-A")
	}
	// What an administrator may look at beside has a category of its own: kubectl fails for
	// one of which something may not be listed.
	for _, want := range []string{"storagelocation.engine.holdfast.io/default", "nodeagent.holdfast.io/"} {
		if got := lab.Kubectl(t, "get", "holdfast,holdfast-admin", "-A"); !strings.Contains(got, want) {
			t.Errorf("kubectl get holdfast,holdfast-admin -A prints no %s:\n%s", want, got)
		}
	}
	ann, namespace := labtest.Name("ann"), lab.Namespace(t, "categories")
	lab.Grant(t, ann, "view", namespace)
	lab.Create(t, namespace, "mine", v1alpha1.BackupSpec{})
	if got := lab.Kubectl(t, "get", "holdfast", "-n", namespace, "--as="+ann); !strings.Contains(got, "backup.holdfast.io/mine") {
		t.Errorf("kubectl get holdfast prints for a tenant\n%s", got)
	}
}

// TestEmptyListHasColumns: a program that reads tables can't depend on there
// being something.
func TestEmptyListHasColumns(t *testing.T) {
	t.Parallel()
	want := map[string][]string{
		"backupqueues":  {"Pos", "Name", "Kind", "State", "Reason", "Blocked-By", "Since", "Namespaces*", "Conflict*", "Slots*", "Absent-Agents*", "Location*", "Requester*"},
		"backups":       {"Name", "Status", "Items", "Volumes", "Data", "Warnings", "Errors", "Expires", "Age", "Position*", "Took*", "Location*", "Requester*", "Origin*", "Reason*"},
		"backupvolumes": {"Name", "Last-Backup", "Age", "Size", "Backups", "Failures", "Locations*"},
		"nodeagents":    {"Name", "Ready", "Limit", "Rule", "Running", "Waiting", "Throughput", "Age", "Version*", "Waiting-Classes*", "Oldest-Wait*", "Problem*"},
		"protections":   {"Name", "Protected", "Objects", "Data", "Schedule", "Expected*", "Message*"},
		"restores":      {"Name", "Status", "Backup", "Items", "Volumes", "Warnings", "Errors", "Queue", "Age", "Created*", "Unchanged*", "Failed*", "Data*", "Took*", "Location*", "Requester*", "Origin*", "Reason*"},
		"schedules":     {"Name", "Schedule", "Zone", "Last-Backup", "Status", "Next", "Paused", "Why-Not", "Age", "Last-Success*", "Missed*", "Location*", "Requester*"},
		"volumebackups": {"Name", "Volume", "Backup", "Status", "Method", "Local", "Size", "New", "Age", "Pod*", "Node*", "Location*", "Snapshot*"},
	}
	for resource := range want {
		path := api + "/namespaces/of-nobody/" + resource
		if !slices.Contains(resources, resource) {
			path = api + "/" + resource + "?labelSelector=of%3Dnobody"
		}
		var response labtest.Response
		labtest.Eventually(t, resource+" to be served", func() error { // 429 until it can be
			if response = lab.Request(t, http.MethodGet, path, asTable); response.Code != http.StatusOK {
				return fmt.Errorf("%d: %s", response.Code, response.Body)
			}
			return nil
		})
		var table metav1.Table
		if err := json.Unmarshal(response.Body, &table); err != nil {
			t.Fatalf("%s: %v: %s", resource, err, response.Body)
		}
		var got []string
		for _, column := range table.ColumnDefinitions {
			if column.Description == "" {
				t.Errorf("%s: column %s has no description", resource, column.Name)
			}
			if column.Priority > 0 {
				column.Name += "*" // with -o wide only
			}
			got = append(got, column.Name)
		}
		if diff := cmp.Diff(want[resource], got); diff != "" {
			t.Errorf("columns of %s (-want +got):\n%s", resource, diff)
		}
		// Protections have no watch that could begin at a version.
		if len(table.Rows) != 0 || table.ResourceVersion == "" && resource != "protections" {
			t.Errorf("the empty list of %s has %d rows and resourceVersion %q", resource, len(table.Rows), table.ResourceVersion)
		}
	}
}

// TestExplain: kubectl explain has a text for every field, at every depth.
func TestExplain(t *testing.T) {
	t.Parallel()
	response := lab.Request(t, http.MethodGet, "/openapi/v3"+api, "application/json")
	var document spec3.OpenAPI
	if err := json.Unmarshal(response.Body, &document); err != nil {
		t.Fatalf("reading the OpenAPI document: %v", err)
	}
	fields := 0
	for name, schema := range document.Components.Schemas {
		if !strings.HasPrefix(name, "io.holdfast.") {
			continue
		}
		if schema.Description == "" {
			t.Errorf("%s has no description", name)
		}
		for field, property := range schema.Properties {
			fields++
			if property.Description == "" {
				t.Errorf("%s.%s has no description", name, field)
			}
		}
	}
	if fields < 80 {
		t.Errorf("the document describes only %d fields", fields)
	}
	// An open schema would switch off validation, and server-side apply of lists.
	for _, open := range []string{`"additionalProperties":true`, `"x-kubernetes-preserve-unknown-fields"`} {
		if strings.Contains(string(response.Body), open) {
			t.Errorf("the OpenAPI document contains %s", open)
		}
	}
	for _, path := range []string{
		"backups", "backups.spec", "backups.spec.labelSelector", "backups.status", "backups.status.conditions",
		"backups.status.progress", "backups.status.volumes", "backupqueues", "backupqueues.spec", "backupqueues.status",
		"backupqueues.status.blockers", "backupvolumes.spec", "backupvolumes.status", "backupvolumes.status.lastBackup",
		"volumebackups.spec", "volumebackups.spec.backup", "volumebackups.status", "nodeagents.status", "nodeagents.status.running",
		"protections.spec", "protections.status", "protections.status.objects", "protections.status.data.backup", "protections.status.schedule",
	} {
		text := lab.Kubectl(t, "explain", "--api-version=holdfast.io/v1alpha1", path)
		for _, missing := range []string{"<empty>", "<no description>"} {
			if strings.Contains(text, missing) {
				t.Errorf("kubectl explain %s prints\n%s", path, text)
			}
		}
	}
	for _, resource := range append([]string{"nodeagents"}, resources...) {
		text := lab.Kubectl(t, "explain", "--api-version=holdfast.io/v1alpha1", "--recursive", resource)
		if strings.Contains(text, "<empty>") || !strings.Contains(text, "creationTimestamp") {
			t.Errorf("kubectl explain --recursive %s prints\n%s", resource, text)
		}
	}
}

// TestBackupsAreNotChanged: a backup is created, and nothing more.
func TestBackupsAreNotChanged(t *testing.T) {
	t.Parallel()
	name := labtest.Name("settled")
	lab.Backup(t, name, lab.Namespace(t, "settled-ns"))
	before := lab.AwaitCompleted(t, name)
	lab.AwaitRunGone(t, name)
	const refused = "MethodNotAllowed"
	const stays = "a backup stays as it was asked for"
	changed := fmt.Sprintf(manifest, name, labtest.System, "{ttl: 1h}")
	lab.Refused(t, changed, []string{"apply", "--server-side", "-f", "-"}, "spec.ttl", stays, "backups/"+name+"/expiration")
	lab.Refused(t, changed, []string{"replace", "-f", "-"}, "spec.ttl", "spec.includedNamespaces", stays, "create another one")
	in := []string{"-n", labtest.System}
	lab.Refused(t, "", append(in, "patch", "backup", name, "--type=merge", "-p", `{"spec":{"ttl":"1h"}}`), "spec.ttl", stays)
	lab.Refused(t, "", append(in, "label", "backup", name, "a=b"), "metadata.labels", stays)
	lab.Refused(t, "", append(in, "annotate", "backup", name, "a=b"), "metadata.annotations", stays)
	lab.Refused(t, "", append(in, "delete", "backup", name), refused)
	lab.Refused(t, "", append(in, "delete", "backups", "--all"), refused)
	for _, path := range []string{"/backups", "/backups/" + name, "/backups/" + name + "/status"} {
		for _, method := range []string{http.MethodPut, http.MethodPatch, http.MethodDelete} {
			response := lab.Request(t, method, api+"/namespaces/"+labtest.System+path, "")
			if response.Code < 400 || response.Code >= 500 || method == http.MethodDelete && response.Code != http.StatusMethodNotAllowed && response.Code != http.StatusNotFound {
				t.Errorf("%s %s is answered with %d: %s", method, path, response.Code, response.Body)
			}
		}
	}
	after := lab.AwaitCompleted(t, name)
	if diff := cmp.Diff(before.Spec, after.Spec); diff != "" {
		t.Errorf("the backup was changed:\n%s", diff)
	}
	if before.UID != after.UID || !before.CreationTimestamp.Equal(&after.CreationTimestamp) {
		t.Errorf("the backup was %s of %s, and is %s of %s", before.UID, before.CreationTimestamp, after.UID, after.CreationTimestamp)
	}
}

// TestDryRunWritesNothing: it is answered as the request would be.
func TestDryRunWritesNothing(t *testing.T) {
	t.Parallel()
	name := labtest.Name("imagined")
	file := []string{"create", "--dry-run=server", "-f", "-"}
	out, stderr, err := lab.TryKubectl(t, fmt.Sprintf(manifest, name, labtest.System, "{includedNamespaces: [default]}"), append(file, "-o", "yaml")...)
	if err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	for _, filledIn := range []string{"storageLocation: default", "ttl: 720h0m0s", "phase: New", "uid: "} {
		if !strings.Contains(out, filledIn) {
			t.Errorf("%q is not in\n%s", filledIn, out)
		}
	}
	lab.Refused(t, fmt.Sprintf(manifest, name, labtest.System, "{storageLocation: nowhere}"), file, "spec.storageLocation")

	if _, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("reading the backup: %v", err)
	}
	if _, err := lab.Engine.EngineV1alpha1().BackupRuns(labtest.System).Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("reading its record: %v", err)
	}
}
