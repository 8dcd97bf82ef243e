// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package validation_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
)

// TestSnapshotsThatAreOn: where snapshots are on, a backup may ask for them, and whether their data is moved.
func TestSnapshotsThatAreOn(t *testing.T) {
	yes, no := true, false
	for _, test := range []struct {
		volumes, move *bool
		on            bool
		want          []string
	}{
		{volumes: &yes, on: true},
		{volumes: &yes, move: &yes, on: true},
		{move: &yes, on: true},
		{volumes: &no, move: &no, on: true},
		{move: &no, on: true},
		{volumes: &yes, move: &no, on: true},
		{volumes: &no, move: &no},
		{volumes: &yes, want: []string{"spec.snapshotVolumes"}},
		{volumes: &yes, move: &yes, want: []string{"spec.snapshotVolumes", "spec.snapshotMoveData"}},
	} {
		var got []string
		for _, err := range validation.ValidateBackupSpec(&v1alpha1.BackupSpec{SnapshotVolumes: test.volumes, SnapshotMoveData: test.move}, validation.Options{Snapshots: test.on}, field.NewPath("spec")) {
			got = append(got, err.Field)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%+v: refused are %q", test, got)
		}
	}
}

// TestTimeoutsOfSnapshots: they have an effect where snapshots are on, and none is negative.
func TestTimeoutsOfSnapshots(t *testing.T) {
	spec := &v1alpha1.BackupSpec{CSISnapshotTimeout: v1alpha1.Duration{Duration: time.Hour}, ItemOperationTimeout: v1alpha1.Duration{Duration: time.Hour}}
	for on, want := range map[bool]int{false: 2, true: 0} {
		if warnings := validation.BackupWarnings(spec, validation.Options{Snapshots: on}, field.NewPath("spec")); len(warnings) != want {
			t.Errorf("snapshots %t: %q", on, warnings)
		}
	}
	spec.ItemOperationTimeout.Duration = 24 * time.Hour
	if warnings := validation.BackupWarnings(spec, validation.Options{Snapshots: true}, nil); len(warnings) != 1 || !strings.Contains(warnings[0], "limits the upload") {
		t.Errorf("a day for the upload: %q", warnings)
	}
	spec.CSISnapshotTimeout.Duration, spec.ItemOperationTimeout.Duration = -1, -1
	if errs := validation.ValidateBackupSpec(spec, validation.Options{Snapshots: true}, field.NewPath("spec")); len(errs) != 2 {
		t.Errorf("negative ones: %v", errs)
	}
}

func TestValidateBackup(t *testing.T) {
	yes, no := true, false
	good := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "shop"}}
	bad := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "not a value!"}}
	cases := map[string]struct {
		change func(*v1alpha1.Backup)
		errs   []string // field and type
	}{
		"nothing set": {change: func(*v1alpha1.Backup) {}},
		"everything that we use": {change: func(b *v1alpha1.Backup) {
			b.Spec = v1alpha1.BackupSpec{
				IncludedNamespaces: []string{"shop", "web-*", "?", "[ab]"}, ExcludedNamespaces: []string{"web-test*"},
				IncludedResources: []string{"*"}, ExcludedResources: []string{"events.events.k8s.io"}, IncludeClusterResources: &no,
				LabelSelector: good, SnapshotVolumes: &no, DefaultVolumesToFsBackup: &yes, TTL: v1alpha1.Duration{Duration: time.Hour}, StorageLocation: "default",
			}
		}},
		"no name":             {func(b *v1alpha1.Backup) { b.Name = "" }, []string{"metadata.name: Required value"}},
		"a name with a dot":   {func(b *v1alpha1.Backup) { b.Name = "a.b" }, []string{"metadata.name: Invalid value"}},
		"a name that is long": {func(b *v1alpha1.Backup) { b.Name = string(slices.Repeat([]byte("a"), 64)) }, []string{"metadata.name: Invalid value"}},
		"no namespace":        {func(b *v1alpha1.Backup) { b.Namespace = "" }, []string{"metadata.namespace: Required value"}},
		"a bad label":         {func(b *v1alpha1.Backup) { b.Labels = map[string]string{"a": "not a value!"} }, []string{"metadata.labels: Invalid value"}},
		"a bad wildcard":      {func(b *v1alpha1.Backup) { b.Spec.IncludedNamespaces = []string{"a", "b["} }, []string{"spec.includedNamespaces[1]: Invalid value"}},
		"an empty word":       {func(b *v1alpha1.Backup) { b.Spec.IncludedNamespaces = []string{""} }, []string{"spec.includedNamespaces[0]: Invalid value"}},
		"all excluded":        {func(b *v1alpha1.Backup) { b.Spec.ExcludedNamespaces = []string{"*"} }, []string{"spec.excludedNamespaces[0]: Invalid value"}},
		"in and out": {func(b *v1alpha1.Backup) {
			b.Spec.IncludedNamespaces, b.Spec.ExcludedNamespaces = []string{"a"}, []string{"a"}
		}, []string{"spec.excludedNamespaces[0]: Invalid value"}},
		"a bad selector": {func(b *v1alpha1.Backup) { b.Spec.LabelSelector = bad }, []string{"spec.labelSelector.matchLabels: Invalid value"}},
		"a bad operator": {func(b *v1alpha1.Backup) {
			b.Spec.LabelSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Sometimes"}}}
		}, []string{"spec.labelSelector.matchExpressions[0].operator: Invalid value"}},
		"one of several is bad":  {func(b *v1alpha1.Backup) { b.Spec.OrLabelSelectors = []*metav1.LabelSelector{good, bad} }, []string{"spec.orLabelSelectors[1].matchLabels: Invalid value"}},
		"one of several is null": {func(b *v1alpha1.Backup) { b.Spec.OrLabelSelectors = []*metav1.LabelSelector{nil} }, []string{"spec.orLabelSelectors[0]: Required value"}},
		"both selectors": {func(b *v1alpha1.Backup) {
			b.Spec.LabelSelector, b.Spec.OrLabelSelectors = good, []*metav1.LabelSelector{good}
		}, []string{"spec.orLabelSelectors: Forbidden"}},
		"cloud snapshots": {func(b *v1alpha1.Backup) { b.Spec.SnapshotVolumes = &yes }, []string{"spec.snapshotVolumes: Invalid value"}},
		"policies and order": {change: func(b *v1alpha1.Backup) {
			b.Spec.ResourcePolicy = &v1alpha1.ResourcePolicyReference{APIGroup: new(string), Kind: "ConfigMap", Name: "mine"}
			b.Spec.OrderedResources = map[string]string{"pods": "shop/a, shop/b,", "clusterroles.rbac.authorization.k8s.io": "system:node"}
		}},
		"bad policies and order": {func(b *v1alpha1.Backup) {
			group := "apps"
			b.Spec.ResourcePolicy = &v1alpha1.ResourcePolicyReference{APIGroup: &group, Kind: "Secret", Name: "a/b"}
			b.Spec.OrderedResources = map[string]string{"": "x", "po*": "x", "pods": "a/b/c", "cm": "shop/*", "pv": "/x"}
		}, []string{
			"spec.orderedResources[]: Invalid value", "spec.orderedResources[cm]: Invalid value", "spec.orderedResources[po*]: Invalid value", "spec.orderedResources[pods]: Invalid value",
			"spec.orderedResources[pv]: Invalid value",
			"spec.resourcePolicy.apiGroup: Invalid value", "spec.resourcePolicy.kind: Unsupported value", "spec.resourcePolicy.name: Invalid value",
		}},
		"hooks": {change: func(b *v1alpha1.Backup) {
			b.Spec.Hooks.Resources = []v1alpha1.BackupResourceHookSpec{{Name: "db", IncludedResources: []string{"pods"}, LabelSelector: good,
				Pre:  []v1alpha1.BackupResourceHook{{Exec: &v1alpha1.ExecHook{Command: []string{"sync"}, OnError: "Continue"}}},
				Post: []v1alpha1.BackupResourceHook{{Exec: &v1alpha1.ExecHook{Command: []string{"sync"}, Timeout: v1alpha1.Duration{Duration: time.Hour}}}}}}
		}},
		"bad hooks": {func(b *v1alpha1.Backup) {
			b.Spec.Hooks.Resources = []v1alpha1.BackupResourceHookSpec{
				{LabelSelector: bad, IncludedNamespaces: []string{""}},
				{Name: "x", Pre: []v1alpha1.BackupResourceHook{{}, {Exec: &v1alpha1.ExecHook{OnError: "Shrug", Timeout: v1alpha1.Duration{Duration: -1}}}}},
			}
		}, []string{
			"spec.hooks.resources[0].includedNamespaces[0]: Invalid value", "spec.hooks.resources[0].labelSelector.matchLabels: Invalid value",
			"spec.hooks.resources[0].name: Required value", "spec.hooks.resources[0]: Required value",
			"spec.hooks.resources[1].pre[0].exec: Required value", "spec.hooks.resources[1].pre[1].exec.command: Required value",
			"spec.hooks.resources[1].pre[1].exec.onError: Unsupported value", "spec.hooks.resources[1].pre[1].exec.timeout: Invalid value",
		}},
		"a negative ttl": {func(b *v1alpha1.Backup) { b.Spec.TTL.Duration = -time.Second }, []string{"spec.ttl: Invalid value"}},
		"a bad location": {func(b *v1alpha1.Backup) { b.Spec.StorageLocation = "No/Name" }, []string{"spec.storageLocation: Invalid value"}},
		"several things": {func(b *v1alpha1.Backup) { b.Name, b.Spec.TTL.Duration, b.Spec.LabelSelector = "", -1, bad }, []string{
			"metadata.name: Required value", "spec.labelSelector.matchLabels: Invalid value", "spec.ttl: Invalid value"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			backup := &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "daily"}}
			c.change(backup)
			before := backup.DeepCopy()
			var got []string
			for _, err := range validation.ValidateBackup(backup, validation.Options{}) {
				got = append(got, err.Field+": "+err.Type.String())
			}
			if slices.Sort(got); !slices.Equal(got, c.errs) {
				t.Errorf("errors %q, want %q", got, c.errs)
			}
			if !slices.Equal(before.Spec.IncludedNamespaces, backup.Spec.IncludedNamespaces) {
				t.Error("validation changed the backup")
			}
		})
	}
}

func TestThePathIsTheCallers(t *testing.T) {
	spec := &v1alpha1.BackupSpec{TTL: v1alpha1.Duration{Duration: -1}}
	errs := validation.ValidateBackupSpec(spec, validation.Options{}, field.NewPath("spec", "template"))
	if len(errs) != 1 || errs[0].Field != "spec.template.ttl" {
		t.Errorf("errors: %v", errs)
	}
}

// A request of megabytes is refused for its size alone, with an answer that repeats
// nothing of it.
func TestLimits(t *testing.T) {
	numbered := func(format string, n int) []string {
		words := make([]string, n)
		for i := range words {
			words[i] = fmt.Sprintf(format, i)
		}
		return words
	}
	labelled := func(n, size int) map[string]string {
		labels := map[string]string{}
		for _, key := range numbered("key-%d", n) {
			labels[key] = strings.Repeat("a", size)
		}
		return labels
	}
	expressions := func(n, values int) *metav1.LabelSelector {
		s := &metav1.LabelSelector{}
		for _, key := range numbered("key-%d", n) {
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: "In", Values: numbered("v%d", values)})
		}
		return s
	}
	cases := map[string]struct {
		change func(*v1alpha1.Backup)
		errs   []string // field and type
	}{
		"as much as may be": {change: func(b *v1alpha1.Backup) {
			b.Labels, b.Annotations = labelled(64, 63), labelled(64, 700)
			b.Spec.IncludedNamespaces, b.Spec.ExcludedNamespaces = numbered("namespace-%d", 1000), numbered("other-%d*", 32)
			b.Spec.LabelSelector = &metav1.LabelSelector{MatchLabels: labelled(32, 20), MatchExpressions: expressions(32, 1).MatchExpressions}
		}},
		"as many selectors as may be": {change: func(b *v1alpha1.Backup) {
			b.Spec.OrLabelSelectors = slices.Repeat([]*metav1.LabelSelector{expressions(1, 100)}, 32)
		}},
		"labels":      {func(b *v1alpha1.Backup) { b.Labels = labelled(65, 1) }, []string{"metadata.labels: Too many"}},
		"annotations": {func(b *v1alpha1.Backup) { b.Annotations = labelled(65, 1) }, []string{"metadata.annotations: Too many"}},
		"long annotations": {func(b *v1alpha1.Backup) { b.Annotations = labelled(2, 25000) },
			[]string{"metadata.annotations: Too long"}},
		"words": {func(b *v1alpha1.Backup) {
			b.Spec.IncludedNamespaces, b.Spec.ExcludedNamespaces = numbered("a%d", 1001), numbered("b%d", 1001)
			b.Spec.ExcludedResources, b.Spec.IncludedClusterScopedResources = numbered("c%d", 1001), numbered("d*%d", 33)
		}, []string{"spec.excludedNamespaces: Too many", "spec.excludedResources: Too many", "spec.includedClusterScopedResources: Forbidden",
			"spec.includedNamespaces: Too many"}},
		"words, in all": {func(b *v1alpha1.Backup) {
			b.Spec.IncludedNamespaces, b.Spec.ExcludedNamespaces = numbered("namespace-of-a-team-%d", 1000), numbered("other-namespace-%d", 1000)
		}, []string{"spec: Too long"}},
		"a million words": {func(b *v1alpha1.Backup) {
			b.Spec.IncludedNamespaces, b.Spec.ExcludedNamespaces = slices.Repeat([]string{"shop"}, 1e6), numbered("%d!", 1e6)
		}, []string{"spec: Too long", "spec.excludedNamespaces: Too many", "spec.includedNamespaces: Too many"}},
		"a long word": {func(b *v1alpha1.Backup) { b.Spec.IncludedResources = []string{strings.Repeat("a", 254)} }, []string{"spec.includedResources[0]: Too long"}},
		"many hooks": {func(b *v1alpha1.Backup) {
			many := make([]v1alpha1.BackupResourceHook, 17)
			b.Spec.Hooks.Resources = append(make([]v1alpha1.BackupResourceHookSpec, 16), v1alpha1.BackupResourceHookSpec{Pre: many, Post: many})
		}, []string{"spec.hooks.resources: Too many", "spec.hooks.resources[16].post: Too many", "spec.hooks.resources[16].pre: Too many"}},
		"a long hook": {func(b *v1alpha1.Backup) {
			b.Spec.Hooks.Resources = []v1alpha1.BackupResourceHookSpec{{Name: "x", Pre: []v1alpha1.BackupResourceHook{{Exec: &v1alpha1.ExecHook{Command: []string{strings.Repeat("x", 32<<10)}}}}}}
		}, []string{"spec: Too long"}},
		"selectors":      {func(b *v1alpha1.Backup) { b.Spec.OrLabelSelectors = make([]*metav1.LabelSelector, 33) }, []string{"spec.orLabelSelectors: Too many"}},
		"matched labels": {func(b *v1alpha1.Backup) { b.Spec.LabelSelector = &metav1.LabelSelector{MatchLabels: labelled(33, 1)} }, []string{"spec.labelSelector.matchLabels: Too many"}},
		"expressions": {func(b *v1alpha1.Backup) {
			b.Spec.OrLabelSelectors = []*metav1.LabelSelector{expressions(1, 1), expressions(33, 1), expressions(1, 101)}
		}, []string{"spec.orLabelSelectors[1].matchExpressions: Too many", "spec.orLabelSelectors[2].matchExpressions[0].values: Too many"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			backup := &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "daily"}}
			c.change(backup)
			var got []string
			for _, err := range validation.ValidateBackup(backup, validation.Options{}) {
				got = append(got, err.Field+": "+err.Type.String())
				if len(err.Error()) > 200 {
					t.Errorf("an error of %d bytes", len(err.Error()))
				}
			}
			if !slices.Equal(got, c.errs) {
				t.Errorf("errors %q, want %q", got, c.errs)
			}
		})
	}
}
