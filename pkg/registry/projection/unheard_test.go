// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestNoController shows that what has not ended says that no controller is heard of, and no more
// when one is: also one that is created meanwhile, which is in no queue yet.
func TestNoController(t *testing.T) {
	f := newFixture(t)
	f.Observe(f.run("shop", "new", enginev1alpha1.BackupRunStatus{}, "shop"))
	f.Observe(f.run("shop", "queued", queued(1), "shop"))
	f.Observe(f.run("shop", "running", enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseInProgress, Message: "waits for a volume"}, "shop"))
	ended := metav1.Now()
	f.Observe(f.run("shop", "ended", enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseFailed, FailureReason: "why", CompletionTimestamp: &ended}, "shop"))
	f.mustPublish()
	want := func(name, complete, queued string) {
		t.Helper()
		conditions := f.backup("shop", name).Status.Conditions
		if got := meta.FindStatusCondition(conditions, v1alpha1.ConditionComplete); got == nil || got.Message != complete {
			t.Errorf("%s: the condition Complete is %+v, want %q", name, got, complete)
		}
		if got := meta.FindStatusCondition(conditions, v1alpha1.ConditionQueued); queued != "" && (got == nil || got.Reason != queued) {
			t.Errorf("%s: the condition Queued is %+v, want %q", name, got, queued)
		}
	}
	const unheard = "no controller was heard of since noon"
	told := ""
	f.Subscribe(Subscriber{Unheard: func(message string) { told = message }})
	f.setUnheard(unheard)
	f.Observe(f.run("shop", "later", enginev1alpha1.BackupRunStatus{}, "shop"))
	f.mustPublish()
	for _, name := range []string{"new", "queued", "later"} {
		want(name, unheard, v1alpha1.ReasonNoController)
	}
	want("running", unheard, "")
	want("ended", "why", "")
	if told != unheard {
		t.Errorf("restores are told %q", told)
	}
	f.setUnheard("")
	f.mustPublish()
	want("new", "", "New")
	want("running", "waits for a volume", "")
	if entry, ok := f.Queue.GetObject("shop", "queued"); !ok || entry.Status.Message == unheard {
		t.Errorf("the entry is %+v", entry)
	}
}
