// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

// ago is a time whose age reads the same for half an hour.
func ago(hours int) metav1.Time {
	return metav1.NewTime(time.Now().Add(-time.Duration(hours)*time.Hour - 30*time.Minute))
}

// sent is a manifest as the server sends it.
func sent(t *testing.T, items ...manifest.Item) string {
	t.Helper()
	var text strings.Builder
	for _, item := range items {
		if err := json.NewEncoder(&text).Encode(item); err != nil {
			t.Fatal(err)
		}
	}
	return text.String()
}

func storedItem(kind, namespace, name, uid, digest string, owners ...string) manifest.Item {
	return manifest.Item{APIVersion: "v1", KindName: kind, Namespace: namespace, Name: name, UID: uid, SHA256: digest, OwnerUIDs: owners}
}

// shopItems are the objects of a small application.
func shopItems() []manifest.Item {
	web := storedItem("Pod", "shop", "web-1-a", "5", "p", "4")
	web.References = []manifest.Reference{
		{KindName: "PersistentVolumeClaim", Namespace: "shop", Name: "data"}, {KindName: "Secret", Namespace: "shop", Name: "key"},
	}
	claim := storedItem("PersistentVolumeClaim", "shop", "data", "6", "c")
	claim.References = []manifest.Reference{{KindName: "PersistentVolume", Name: "pv-1"}}
	return []manifest.Item{
		storedItem("Namespace", "", "shop", "1", "n"), storedItem("PersistentVolume", "", "pv-1", "2", "v"),
		storedItem("Deployment", "shop", "web", "3", "d"), storedItem("ReplicaSet", "shop", "web-1", "4", "r", "3"),
		web, claim, storedItem("Secret", "shop", "key", "7", "s"), storedItem("ConfigMap", "shop", `odd"name`, "8", "m"),
	}
}

func found(backup string, hours int, phase v1alpha1.BackupPhase, uid, digest string) v1alpha1.BackupObject {
	return v1alpha1.BackupObject{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: v1alpha1.BackupObjectSpec{
		APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: types.UID(uid), SHA256: strings.Repeat(digest, 32),
		Images: []string{"nginx:1.27", "sidecar"}, Backup: backup, BackupPhase: phase, BackupTimestamp: ago(hours),
	}}
}

// table is a table of the server. A column of a name that ends in "+" is for -o wide.
func table(columns string, rows ...[]any) *metav1.Table {
	of := &metav1.Table{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "Table"}}
	for _, name := range strings.Fields(columns) {
		column := metav1.TableColumnDefinition{Name: strings.TrimSuffix(name, "+"), Type: "string"}
		if column.Name != name {
			column.Priority = 1
		}
		of.ColumnDefinitions = append(of.ColumnDefinitions, column)
	}
	for _, row := range rows {
		raw, _ := json.Marshal(metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: row[0].(string)}})
		of.Rows = append(of.Rows, metav1.TableRow{Cells: row[1:], Object: runtime.RawExtension{Raw: raw}})
	}
	return of
}

func described() map[string]any {
	backup := &v1alpha1.Backup{TypeMeta: typed("Backup"), ObjectMeta: metav1.ObjectMeta{Name: "nightly", Namespace: "shop", UID: "u1", CreationTimestamp: ago(40)}}
	backup.Spec = v1alpha1.BackupSpec{
		StorageLocation: "default", IncludedNamespaces: []string{"shop"}, ExcludedResources: []string{"events"},
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
	}
	started, ended, expires := ago(39), ago(38), metav1.NewTime(time.Now().Add(30*24*time.Hour+30*time.Minute))
	backup.Status = v1alpha1.BackupStatus{
		Phase: v1alpha1.BackupPhasePartiallyFailed, StartTimestamp: &started, CompletionTimestamp: &ended, Expiration: &expires, Requester: "ann",
		Progress: &v1alpha1.BackupProgress{TotalItems: 12, ItemsBackedUp: 11}, Errors: 2, Warnings: 1,
		Volumes:    &v1alpha1.BackupVolumesProgress{Total: 3, Completed: 1, Failed: 2, LeftOut: 2, Deleted: 2, TotalBytes: 5 << 30},
		Message:    "1 object and 2 volumes failed",
		Encryption: &v1alpha1.BackupEncryption{ClusterKey: "age1cluster", RecoveryKeys: []string{"age1safe", "age1vault"}},
	}
	waiting := &v1alpha1.Backup{TypeMeta: typed("Backup"), ObjectMeta: metav1.ObjectMeta{Name: "waiting", Namespace: "shop", UID: "u2", CreationTimestamp: ago(40)}}
	waiting.Status = v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseQueued, Conditions: []metav1.Condition{
		{Type: v1alpha1.ConditionQueued, Status: metav1.ConditionTrue, Reason: "Blocked", Message: "it waits for shop/nightly, which has the namespace shop too"},
	}, Hold: &v1alpha1.BackupHold{Requester: "ann", Timestamp: ago(40), Reason: "audit"}}
	restore := &v1alpha1.Restore{TypeMeta: typed("Restore"), ObjectMeta: metav1.ObjectMeta{Name: "back", Namespace: "shop", CreationTimestamp: ago(40)}}
	restore.Spec = v1alpha1.RestoreSpec{BackupName: "nightly", NamespaceMapping: map[string]string{"shop": "shop-2", "blog": "blog-2"}}
	restore.Status = v1alpha1.RestoreStatus{
		Phase: v1alpha1.RestorePhaseCompleted, StartTimestamp: &started, CompletionTimestamp: &ended, Requester: "ann",
		Backup:   &v1alpha1.RestoredBackup{Namespace: "shop", Name: "nightly", StorageLocation: "default"},
		Progress: &v1alpha1.RestoreProgress{TotalItems: 5, ItemsRestored: 5, ItemsCreated: 4, ItemsUnchanged: 1},
		Volumes:  &v1alpha1.RestoreVolumesProgress{Total: 1, Completed: 1, TotalBytes: 5 << 20, BytesDone: 5 << 20},
	}
	volume := func(name, phase, message string) v1alpha1.VolumeBackup {
		return v1alpha1.VolumeBackup{Spec: v1alpha1.VolumeBackupSpec{VolumeName: name}, Status: v1alpha1.VolumeBackupStatus{Phase: phase, SizeBytes: 5 << 30, IncrementalBytes: 3 << 20, Message: message}}
	}
	return map[string]any{
		"GET " + of + "backups/nightly": backup,
		"GET " + of + "backups/waiting": waiting,
		"GET " + of + "restores/back":   restore,
		"GET " + of + "volumebackups": func(r *http.Request) any {
			list := v1alpha1.VolumeBackupList{TypeMeta: typed("VolumeBackupList")}
			if r.URL.Query().Get("fieldSelector") == "spec.backupUID=u1" {
				list.Items = []v1alpha1.VolumeBackup{volume("data", "Completed", ""), volume("logs", "Failed", "the node is gone")}
				list.Continue = "more"
			}
			return list
		},
		"GET " + of + "backups/nightly/results": format.Results{
			Errors:   format.Messages{Namespaces: map[string][]string{"shop": {"volume logs: the node is gone"}}, Cluster: []string{"crds: forbidden"}},
			Warnings: format.Messages{Velero: []string{"no CSI driver"}},
		},
	}
}

var instant = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)

// TestOutputs compares each table and picture with a golden file. Lines for people have at most 80
// columns; those with -o are for programs and wide terminals.
func TestOutputs(t *testing.T) {
	later := shopItems()
	later[2].SHA256, later[6] = "d2", storedItem("Secret", "shop", "other", "9", "o")
	protection := func(namespace, name string, state v1alpha1.ProtectionState, data bool) v1alpha1.Protection {
		p := v1alpha1.Protection{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1alpha1.ProtectionSpec{Kind: "Deployment"}, Status: v1alpha1.ProtectionStatus{
			Protected: state, Expectation: v1alpha1.Duration{Duration: 36 * time.Hour}, ExpectedBy: v1alpha1.ExpectedBySchedule,
		}}
		if data {
			p.Spec.Kind = "PersistentVolumeClaim"
		}
		if state == v1alpha1.ProtectionNone {
			p.Status.Message = "no schedule selects it"
			return p
		}
		p.Status.Objects = &v1alpha1.ProtectedBy{Backup: v1alpha1.BackupReference{Namespace: namespace, Name: "nightly"}, Timestamp: ago(20)}
		p.Status.Schedule = &v1alpha1.ProtectingSchedule{Namespace: "holdfast", Name: "all"}
		if data && state == v1alpha1.ProtectionYes {
			p.Status.Data = p.Status.Objects
		}
		return p
	}
	protections := func(namespaces ...string) *v1alpha1.ProtectionList {
		list := &v1alpha1.ProtectionList{TypeMeta: typed("ProtectionList")}
		for _, namespace := range namespaces {
			list.Items = append(list.Items, protection(namespace, "deployment.web", v1alpha1.ProtectionYes, false), protection(namespace, "pvc.data", v1alpha1.ProtectionYes, true),
				protection(namespace, "pvc.logs", v1alpha1.ProtectionLate, true), protection(namespace, "deployment.new", v1alpha1.ProtectionNone, false))
		}
		return list
	}
	queued := table("Pos Name Kind State Reason Blocked-By Since Location+",
		[]any{"shop", "", "nightly", "Backup", "Running", "", "", "2m", "default"}, []any{"shop", "1", "hourly", "Backup", "Queued", "Conflict", "nightly", "40s", "default"})
	finds := &v1alpha1.BackupObjectList{TypeMeta: typed("BackupObjectList"), Items: []v1alpha1.BackupObject{
		found("nightly-5", 10, v1alpha1.BackupPhaseCompleted, "u2", "ab"), found("nightly-4", 20, v1alpha1.BackupPhasePartiallyFailed, "u1", "cd"), found("nightly-3", 30, v1alpha1.BackupPhaseCompleted, "u1", "ab"),
		found("nightly-2", 40, v1alpha1.BackupPhaseCompleted, "u1", "ab"), found("nightly-1", 72, v1alpha1.BackupPhaseCompleted, "u1", "ab"), found("nightly-0", 96, v1alpha1.BackupPhaseCompleted, "u1", "ab"),
	}}
	folder := &fakeVolume{folders: map[string][]v1alpha1.VolumeFile{"/": nil, "/etc": {
		entry("app.conf", v1alpha1.VolumeFileTypeFile, 1234), entry("conf.d", v1alpha1.VolumeFileTypeFolder, 0), entry("current", v1alpha1.VolumeFileTypeLink, 0), entry("e\x1b[2Jvil", v1alpha1.VolumeFileTypeFile, 1),
	}}}
	s := &server{answers: map[string]any{
		"GET " + of + "backups/monday/manifest":  sent(t, shopItems()...),
		"GET " + of + "backups/tuesday/manifest": sent(t, later...),
		"GET " + of + "backupobjects":            finds,
		"GET " + allOf + "backupobjects":         finds,
		"GET " + of + "protections":              protections("shop"),
		"GET " + allOf + "protections":           protections("blog", "shop"),
		"GET " + of + "backupqueues":             queued,
		"GET " + allOf + "backupqueues":          queued,
		"GET " + allOf + "nodeagents":            table("Name Ready Limit Running Waiting Throughput Age Version+", []any{"", "node-1", "True", 4, 1, 0, "45 MiB/s", "9d", "v1"}, []any{"", "node-2", "False", 4, 0, 2, "", "9d", "v1"}),
		"GET " + of + "volumebackups/nightly:data/files": func(r *http.Request) any {
			at := r.URL.Query().Get("path")
			of, _ := folder.find(at)
			return v1alpha1.VolumeFileList{Path: at, File: of, Items: folder.folders[at]}
		},
	}}
	for path, answer := range described() {
		s.answers[path] = answer
	}
	for name, args := range map[string]string{
		"tree.txt":             "backup tree monday",
		"tree.dot":             "backup tree monday -o dot",
		"tree.mermaid":         "backup tree monday -o mermaid",
		"diff.txt":             "backup diff monday tuesday",
		"find.txt":             "find deployment/web",
		"find-wide.txt":        "find deployment/web -A -o wide",
		"history.txt":          "history deployment/web",
		"history-wide.txt":     "history deployment/web -o wide",
		"protection.txt":       "protection",
		"protection-wide.txt":  "protection -A -o wide",
		"queue.txt":            "queue",
		"queue-wide.txt":       "queue -A -o wide",
		"top.txt":              "top",
		"files.txt":            "files ls nightly:data:/etc",
		"files-name.txt":       "files ls nightly:data:/etc -o name",
		"files-json.txt":       "files ls nightly:data:/etc -o json",
		"describe-backup.txt":  "backup describe nightly",
		"describe-waiting.txt": "backup describe waiting",
		"describe-restore.txt": "restore describe back",
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := run(t, s, strings.Fields(args)...)
			if code != ExitOK || stderr != "" {
				t.Errorf("kubectl holdfast %s: exit code %d, %s", args, code, stderr)
			}
			stdout = instant.ReplaceAllString(stdout, "TIME")
			if strings.Contains(args, " -o ") || strings.Contains(args, "describe") {
				goldenOfAnyWidth(t, "outputs/"+name, stdout)
			} else {
				golden(t, "outputs/"+name, stdout)
			}
		})
	}
}
