// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
	"pgregory.net/rapid"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
)

// plan computes the plan of a restore against a fake server.
func (s *fakeServer) plan(ctx context.Context, backup *source.Backup, request Request, change ...func(*Dependencies)) *v1alpha1.RestorePlan {
	deps := Dependencies{Backup: backup, Writer: s.client, Reader: s.client, Discovery: s, Clock: clock.RealClock{}}
	for _, c := range change {
		c(&deps)
	}
	return Plan(ctx, request, deps)
}

// counted are the objects of a restore's plan as the plan of a dry run counts them.
func counted(plan format.RestorePlan) map[string]int64 {
	counts := map[string]int64{}
	for _, o := range plan.Items {
		counts[plural(o.Kind)+" "+o.Namespace+" "+o.Action]++
	}
	return counts
}

// TestDryRunIsThePlan: of random clusters and policies, the plan of a dry run has the counts, errors and
// warnings that a restore with planOnly has, and the decisions of the restore. It writes nothing.
func TestDryRunIsThePlan(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newFakeServer(t)
		defer s.server.Close()
		objects := []map[string]any{obj("v1", "Namespace", "", "a")}
		if rapid.Bool().Draw(rt, "namespace exists") {
			s.add("namespaces", obj("v1", "Namespace", "", "a"))
		}
		kinds := []string{"ConfigMap", "Secret", "ServiceAccount", "PersistentVolumeClaim", "Pod"}
		backedUp := []string{}
		for i := range rapid.IntRange(1, 20).Draw(rt, "objects") {
			kind, name := rapid.SampledFrom(kinds).Draw(rt, "kind"), fmt.Sprintf("o-%02d", i)
			objects = append(objects, obj("v1", kind, "a", name, with("backup", "data", "n")))
			switch rapid.SampledFrom([]string{"missing", "equal", "differs"}).Draw(rt, "live") {
			case "equal":
				s.add(plural(kind), obj("v1", kind, "a", name, with("backup", "data", "n")))
			case "differs":
				s.add(plural(kind), obj("v1", kind, "a", name, with("live", "data", "n")))
			}
			if kind == "PersistentVolumeClaim" && rapid.Bool().Draw(rt, "data") {
				backedUp = append(backedUp, name)
			}
		}
		if rapid.Bool().Draw(rt, "a kind that is not served") {
			objects = append(objects, obj("old.example.com/v1", "Gone", "a", "g"))
		}
		backup := backupOf(t, objects...)
		for _, claim := range backedUp {
			backup.Volumes = append(backup.Volumes, source.Volume{Volume: format.Volume{Pod: enginev1alpha1.PodReference{Namespace: "a", Name: "p"}, ClaimName: claim}})
		}
		spec := v1alpha1.RestoreSpec{
			ExistingResourcePolicy: rapid.SampledFrom([]v1alpha1.ExistingResourcePolicy{"none", "update", "recreate"}).Draw(rt, "objects that exist"),
			ExistingVolumePolicy:   rapid.SampledFrom([]v1alpha1.ExistingVolumePolicy{"none", "keep", "overwrite", "replace"}).Draw(rt, "volumes that exist"),
		}
		plan := s.plan(t.Context(), backup, request("dry", spec))
		if s.writes > 0 {
			rt.Fatalf("the plan of the dry run made %d writes", s.writes)
		}
		spec.PlanOnly = true
		ended := s.run(t.Context(), backup, request("plan", spec))
		_, want := told(t, ended)
		got := map[string]int64{}
		for _, of := range plan.Objects {
			got[of.Resource+" "+of.Namespace+" "+of.Action] = of.Count
		}
		for key, count := range got { // the fake server's plural of a kind that it does not serve
			if rest, ok := strings.CutPrefix(key, "gones.old.example.com"); ok {
				delete(got, key)
				got["gones"+rest] = count
			}
		}
		if diff := cmp.Diff(counted(want), got); diff != "" {
			rt.Errorf("the objects (-planOnly +dry run):\n%s", diff)
		}
		var refused *Refused
		if reasons := errors.As(ended.Err, &refused); reasons != (len(plan.Refused) > 0) || reasons && !slices.Equal(refused.Reasons, plan.Refused) {
			rt.Errorf("refused is %v, not %v", plan.Refused, ended.Err)
		}
		if plan.Errors != ended.Status.Errors || plan.Warnings != ended.Status.Warnings || len(plan.Problems) != int(plan.Errors+plan.Warnings) || plan.TotalItems != int64(len(want.Items)) || !plan.Complete {
			rt.Errorf("the plan is %+v, and the restore %+v", plan, ended.Status)
		}
		if len(plan.Refused) == 0 && len(plan.Volumes) != len(backedUp) {
			rt.Errorf("of %d volumes the plan has %+v", len(backedUp), plan.Volumes)
		}
	})
}

// TestPlannedVolumes: the plan says what becomes of the data of each claim that the backup has data of.
func TestPlannedVolumes(t *testing.T) {
	for name, c := range map[string]struct {
		spec    v1alpha1.RestoreSpec
		exists  bool
		problem string
		want    v1alpha1.RestoredData
		reason  string
	}{
		"a new claim":             {want: v1alpha1.RestoredDataWritten, reason: "the claim is created"},
		"kept":                    {spec: v1alpha1.RestoreSpec{ExistingVolumePolicy: v1alpha1.ExistingVolumeKeep}, exists: true, want: v1alpha1.RestoredDataKept, reason: "existingVolumePolicy is keep"},
		"overwritten":             {spec: v1alpha1.RestoreSpec{ExistingVolumePolicy: v1alpha1.ExistingVolumeOverwrite}, exists: true, want: v1alpha1.RestoredDataOverwritten, reason: "overwrite"},
		"replaced":                {spec: v1alpha1.RestoreSpec{ExistingVolumePolicy: v1alpha1.ExistingVolumeReplace}, exists: true, want: v1alpha1.RestoredDataReplaced, reason: "replace"},
		"data that can't be read": {problem: "it was backed up as CSISnapshot", want: v1alpha1.RestoredDataNone, reason: "CSISnapshot"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t)
			s.add("namespaces", obj("v1", "Namespace", "", "a"))
			if c.exists {
				s.add("persistentvolumeclaims", obj("v1", "PersistentVolumeClaim", "a", "data"))
			}
			backup := backupOf(t, obj("v1", "PersistentVolumeClaim", "a", "data"))
			volume := source.Volume{Volume: format.Volume{Pod: enginev1alpha1.PodReference{Namespace: "a", Name: "p"}, ClaimName: "data"}, Problem: c.problem}
			volume.Status.Progress.TotalBytes = 7
			backup.Volumes = append(backup.Volumes, volume)
			plan := s.plan(t.Context(), backup, request("dry", c.spec))
			if len(plan.Volumes) != 1 {
				t.Fatalf("the plan is %+v", plan)
			}
			if got := plan.Volumes[0]; got.Namespace != "a" || got.Claim != "data" || got.Bytes != 7 || got.Data != c.want || !strings.Contains(got.Reason, c.reason) {
				t.Errorf("the volume is %+v", got)
			}
		})
	}
}

// TestPlansAreBounded: lists of a plan end, and count the rest. A plan that takes too long says so, and
// so does one that can't begin.
func TestPlansAreBounded(t *testing.T) {
	s := newFakeServer(t)
	s.add("namespaces", obj("v1", "Namespace", "", "a"))
	objects := configMaps("a", maxPlanRows+30)
	for _, o := range objects[1:] {
		live := obj("v1", "ConfigMap", "a", o["metadata"].(map[string]any)["name"].(string), with(strings.Repeat("x", 9), "data", "n"))
		s.add("configmaps", live)
	}
	plan := s.plan(t.Context(), backupOf(t, objects...), request("dry", v1alpha1.RestoreSpec{}))
	if len(plan.Problems) != maxPlanRows || plan.Omitted == nil || plan.Omitted.Problems != 30 || plan.Warnings != maxPlanRows+30 || plan.TotalItems != maxPlanRows+31 {
		t.Errorf("the plan has %d problems of %d, %+v", len(plan.Problems), plan.Warnings, plan.Omitted)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if plan := s.plan(ended, backupOf(t, objects...), request("dry", v1alpha1.RestoreSpec{})); plan.Complete || !strings.Contains(plan.Message, "planOnly") {
		t.Errorf("the plan is %+v", plan)
	}
	if plan := Unplanned(t.Context(), errors.New(strings.Repeat("é", 1000))); plan.Complete || len(plan.Message) > maxPlanText+4 {
		t.Errorf("the plan is %+v", plan)
	}
	if plan := Unplanned(t.Context(), &Refused{Reasons: []string{"no"}}); !plan.Complete || !slices.Equal(plan.Refused, []string{"no"}) {
		t.Errorf("the plan is %+v", plan)
	}
}
