// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"encoding/json"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// TestRequesterKeepsExtras: what an authorizer may take rights from is recorded, and no claim to be a
// schedule is.
func TestRequesterKeepsExtras(t *testing.T) {
	ctx := genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "ann", Extra: map[string][]string{
		"scopes.example.com": {"backup"}, recorded.ExtraScheduleUID: {"forged"}, recorded.ExtraSchedule: {"forged/too"},
	}})
	got, err := requester(ctx)
	want := enginev1alpha1.Requester{Username: "ann", Extra: map[string][]string{"scopes.example.com": {"backup"}}}
	if diff := gocmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

// TestOtherWordsTakeNothingOver: who writes a duration in other words changes the text, and not as whom
// the backups are asked for.
func TestOtherWordsTakeNothingOver(t *testing.T) {
	was := &v1alpha1.Schedule{}
	was.Spec.Template.TTL = v1alpha1.Duration{Duration: 90 * time.Minute}
	after := was.DeepCopy()
	if err := json.Unmarshal([]byte(`"90m"`), &after.Spec.Template.TTL); err != nil {
		t.Fatal(err)
	}
	if equality.Semantic.DeepEqual(was.Spec, after.Spec) {
		t.Error("the text does not change")
	}
	if asksOtherwise("restore", was, after) {
		t.Error("90m is another time than 1h30m0s")
	}
	after.Spec.Template.TTL.Duration = time.Hour
	if !asksOtherwise("restore", was, after) {
		t.Error("an hour is the same time as 1h30m0s")
	}
}

// TestAnnotationsOfBackupsTakeOver: a user that chooses the class of the backups' snapshots is their user. Other
// annotations take nothing over.
func TestAnnotationsOfBackupsTakeOver(t *testing.T) {
	const class = v1alpha1.AnnotationSnapshotClassOf + "ebs.csi.aws.com"
	for name, test := range map[string]struct {
		was, is map[string]string
		want    bool
	}{
		"none":      {},
		"another":   {is: map[string]string{"note": "a", "velero.io/csi-volumesnapshot-class": "a"}},
		"the same":  {was: map[string]string{class: "a"}, is: map[string]string{class: "a", "note": "b"}},
		"a class":   {is: map[string]string{class: "a"}, want: true},
		"a new one": {was: map[string]string{class: "a"}, is: map[string]string{class: "b"}, want: true},
		"no more":   {was: map[string]string{class: "a"}, want: true},
	} {
		was, is := &v1alpha1.Schedule{}, &v1alpha1.Schedule{}
		was.Annotations, is.Annotations = test.was, test.is
		if got := asksOtherwise("restore", was, is); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
