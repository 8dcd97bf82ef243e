// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
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
				metadata, err := format.EncodeBackup(backup, contents, format.Cluster{SystemNamespace: system})
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
				if _, shown := got.Annotations[format.AnnotationContents]; shown {
					t.Error("the contents are shown")
				}
			})
		})
	}
}
