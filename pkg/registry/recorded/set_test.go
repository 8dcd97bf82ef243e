// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package recorded

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

func run(name, uid, version string) *enginev1alpha1.BackupRun {
	return &enginev1alpha1.BackupRun{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), ResourceVersion: version}}
}

func content(s *Set[string, *enginev1alpha1.BackupRun]) string {
	var all []string
	for key, run := range s.All() {
		all = append(all, key+"="+string(run.UID)+"@"+run.ResourceVersion)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// An informer and answers to writes report the versions of a record in any order: the newest
// counts, and a deleted record does not come back.
func TestSet(t *testing.T) {
	prefix := ""
	s := NewSet(func(run *enginev1alpha1.BackupRun) string { return prefix + run.Name })
	observe := func(step, name, uid, version, before string, kept bool, want string) {
		t.Helper()
		known, got := s.Observe(run(name, uid, version))
		was := ""
		if known != nil {
			was = known.ResourceVersion
		}
		if got != kept || was != before || content(s) != want {
			t.Errorf("%s: kept %v, before %q, content %q; want %v, %q, %q", step, got, was, content(s), kept, before, want)
		}
	}
	observe("new", "a", "1", "5", "", true, "a=1@5")
	observe("older", "a", "1", "4", "5", false, "a=1@5")
	observe("the same", "a", "1", "5", "5", false, "a=1@5")
	observe("newer, with more digits", "a", "1", "10", "5", true, "a=1@10")
	observe("another record of that name", "a", "2", "7", "", true, "a=2@7")
	if s.Delete(run("a", "1", "11")) || content(s) != "a=2@7" {
		t.Errorf("the deletion of the first record leaves %q", content(s))
	}
	observe("a late answer", "a", "1", "12", "", false, "a=2@7")
	if known := s.Known(run("a", "1", "")); known != nil {
		t.Errorf("of the deleted record %v is known", known)
	}
	prefix = "moved/"
	if moved := s.Rekey(); len(moved) != 1 || moved["a"] == nil || content(s) != "moved/a=2@7" {
		t.Errorf("%v moved, and there is %q", moved, content(s))
	}
	if !s.Delete(run("a", "2", "8")) || s.Len() != 0 {
		t.Errorf("the deletion leaves %q", content(s))
	}
}

// After a gap an informer reports two records of one name as one change, and a deletion by a
// tombstone.
func TestHandler(t *testing.T) {
	var told []string
	handler := Handler(func(run *enginev1alpha1.BackupRun) { told = append(told, "+"+string(run.UID)) },
		func(run *enginev1alpha1.BackupRun) { told = append(told, "-"+string(run.UID)) })
	handler.OnAdd(run("a", "1", "1"), true)
	handler.OnUpdate(run("a", "1", "1"), run("a", "1", "2"))
	handler.OnUpdate(run("a", "1", "2"), run("a", "2", "3"))
	handler.OnDelete(cache.DeletedFinalStateUnknown{Key: "a", Obj: run("a", "2", "3")})
	handler.OnDelete(cache.DeletedFinalStateUnknown{Key: "a"})
	if got := strings.Join(told, " "); got != "+1 +1 -1 +2 -2" {
		t.Errorf("told %q", got)
	}
}
