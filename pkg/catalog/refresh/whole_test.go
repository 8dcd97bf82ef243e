// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// TestNotWhole: metadata that names what is not there, or is another one, is no whole
// backup, whatever its phase.
func TestNotWhole(t *testing.T) {
	for name, test := range map[string]struct {
		lists []string // what is named, and what is there
		whole bool
	}{
		"whole":    {[]string{"uid", "uid"}, true},
		"another":  {[]string{"uid", "other"}, false},
		"longer":   {[]string{"uid", "uid and more"}, false},
		"is gone":  {[]string{"uid"}, false},
		"not said": {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, refresh.Options{Interval: interval})
				f.location("default")
				stamp := metav1.Unix(1_700_000_000, 0)
				key := format.PodVolumeBackupsKey("a")
				contents := format.Contents{}
				for i, mark := range test.lists {
					var list bytes.Buffer
					if err := format.WriteEmptyList(&list); err != nil {
						t.Fatal(err)
					}
					content := format.Mark(list.Bytes(), types.UID(mark))
					if i == 0 {
						contents.Set(key, format.NewContent(content))
					} else {
						f.write("default", key, content)
					}
				}
				backup := &v1alpha1.Backup{}
				backup.Namespace, backup.Name, backup.UID, backup.CreationTimestamp = system, "a", "uid-of-a", stamp
				backup.Status = v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &stamp, CompletionTimestamp: &stamp}
				metadata, err := format.EncodeBackup(backup, contents, format.Cluster{SystemNamespace: system, UID: "cluster"})
				if err != nil {
					t.Fatal(err)
				}
				f.write("default", format.MetadataKey("a"), metadata)
				f.setLocations("default")
				f.run()
				settle()
				got := f.catalog.Backups()[0]
				if whole := got.Status.Phase == v1alpha1.BackupPhaseCompleted; whole != test.whole || got.UID != "uid-of-a" {
					t.Errorf("got %+v", got)
				}
				if !test.whole && !strings.Contains(got.Status.FailureReason, "not whole") {
					t.Errorf("the reason is %q", got.Status.FailureReason)
				}
				if complete := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionComplete); complete == nil || complete.Reason != string(got.Status.Phase) {
					t.Errorf("the conditions are %+v", got.Status.Conditions)
				}
				if _, shown := got.Annotations[format.AnnotationContents]; shown {
					t.Error("the contents are shown")
				}
			})
		})
	}
}

// TestReplacedByVelero: Velero writes metadata without looking whether there is some.
// Ours is found by its copy, and served as long as all that it names is there.
func TestReplacedByVelero(t *testing.T) {
	for name, test := range map[string]struct {
		phase, volumes string // of Velero's metadata, and of the list of volumes
		want           string // the uid that is listed, if any
		says           string
	}{
		"replaced":             {"Completed", "ours", "uid-of-a", "all of its objects"},
		"while Velero works":   {"InProgress", "ours", "uid-of-a", "all of its objects"},
		"with what it names":   {"Completed", "theirs, which is longer", "of-velero", "not all objects are left"},
		"and is not finished":  {"InProgress", "theirs, which is longer", "", ""},
		"Velero's from before": {"Completed", "", "of-velero", ""},
		// As Velero keeps annotations when it writes the metadata of a backup again.
		"by a changed copy": {"changed", "ours", "uid-of-a", "all of its objects"},
		// Nobody knows whether it is whole.
		"a copy that names nothing": {"Completed", "unnamed", "of-velero", ""},
		// Nor whose it is.
		"a copy that nobody signed": {"Completed", "unsigned", "of-velero", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, refresh.Options{Interval: interval})
				f.location("default")
				stamp := metav1.Unix(1_700_000_000, 0)
				var list bytes.Buffer
				if err := format.WriteEmptyList(&list); err != nil {
					t.Fatal(err)
				}
				contents := format.Contents{}
				if test.volumes != "unnamed" {
					contents.Set(format.PodVolumeBackupsKey("a"), format.NewContent(format.Mark(list.Bytes(), "ours")))
				}
				backup := &v1alpha1.Backup{}
				backup.Namespace, backup.Name, backup.UID, backup.CreationTimestamp = system, "a", "uid-of-a", stamp
				backup.Status = v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &stamp, CompletionTimestamp: &stamp}
				cluster := madeBy(t, "here")
				if test.volumes == "unsigned" {
					cluster.Key = nil
				}
				ours, err := format.EncodeBackup(backup, contents, cluster)
				if err != nil {
					t.Fatal(err)
				}
				if test.volumes != "" {
					f.write("default", format.CopyKey("a"), ours)
					f.write("default", format.PodVolumeBackupsKey("a"), format.Mark(list.Bytes(), types.UID(test.volumes)))
				}
				theirs := []byte(`{"apiVersion":"velero.io/v1","kind":"Backup","metadata":{"name":"a","uid":"of-velero"},"status":{"phase":"` + test.phase + `"}}`)
				if test.phase == "changed" {
					theirs = bytes.Replace(ours, []byte(`"spec":{`), []byte(`"spec":{"unknown":1,`), 1)
				}
				f.write("default", format.MetadataKey("a"), theirs)
				f.setLocations("default")
				f.run()
				settle()
				backups := f.catalog.Backups()
				if test.want == "" {
					if len(backups) != 0 {
						t.Errorf("listed is %+v", backups[0])
					}
					return
				}
				if len(backups) != 1 || string(backups[0].UID) != test.want || backups[0].Status.Phase != v1alpha1.BackupPhaseCompleted {
					t.Fatalf("listed are %+v", backups)
				}
				said := ""
				for _, condition := range backups[0].Status.Conditions {
					if condition.Type == catalog.ConditionMetadataReplaced {
						said = condition.Message
					}
				}
				if !strings.Contains(said, test.says) || (said == "") != (test.says == "") {
					t.Errorf("it says %q, want %q", said, test.says)
				}
				warned := slices.ContainsFunc(f.refresher.Replacements(), func(text string) bool {
					return strings.Contains(text, `"default"`) && strings.Contains(text, "of 1 backups")
				})
				if warned != (test.says != "") {
					t.Errorf("the warnings are %q, and %q", f.refresher.Replacements(), f.refresher.Warnings())
				}
			})
		})
	}
}
