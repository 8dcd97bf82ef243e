// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	registrybackup "github.com/holdfast-io/holdfast/pkg/registry/backup"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// waitingPerNamespace is the limit in this lab.
const waitingPerNamespace = 20

func numbered(format string, n int) []string {
	words := make([]string, n)
	for i := range words {
		words[i] = fmt.Sprintf(format, i)
	}
	return words
}

// TestALargeRequestIsRefused: whoever may edit a namespace can't keep the servers busy
// with one request, dry or not.
func TestALargeRequestIsRefused(t *testing.T) {
	t.Parallel()
	user, own := labtest.Name("ann"), lab.Namespace(t, "own")
	lab.Grant(t, user, "edit", own)
	for _, options := range []metav1.CreateOptions{{}, {DryRun: []string{metav1.DryRunAll}}} {
		_, err := as(t, user).HoldfastV1alpha1().Backups(own).Create(t.Context(), &v1alpha1.Backup{
			ObjectMeta: metav1.ObjectMeta{Name: "large"},
			Spec: v1alpha1.BackupSpec{
				IncludedNamespaces: strings.Fields(strings.Repeat(own+" ", 100_000)),
				ExcludedNamespaces: numbered("other-%d", 100_000),
			},
		}, options)
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "must have at most 1000 items") || len(err.Error()) > 2000 {
			t.Errorf("answered %.2000v", err)
		}
	}
}

// TestARecordWrittenByHandIsBounded: the schema of the records knows the limits, too.
func TestARecordWrittenByHandIsBounded(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for _, key := range numbered("key-%d", 65) {
		many[key] = "a"
	}
	expressions := make([]metav1.LabelSelectorRequirement, 33)
	for i := range expressions {
		expressions[i] = metav1.LabelSelectorRequirement{Key: "a", Operator: metav1.LabelSelectorOpExists}
	}
	in := func(values int) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: numbered("v%d", values)}}}
	}
	for name, test := range map[string]struct {
		change func(*enginev1alpha1.BackupRunSpec)
		field  string // none: it is accepted
	}{
		"as much as may be": {change: func(spec *enginev1alpha1.BackupRunSpec) {
			spec.Labels = maps.Clone(many)
			delete(spec.Labels, "key-0")
			spec.Annotations = map[string]string{"a": strings.Repeat("a", 40_000)}
			spec.Backup.IncludedNamespaces, spec.Backup.ExcludedResources = numbered("n%d", 1000), numbered("r%d", 1000)
			spec.Backup.LabelSelector = in(100)
		}},
		"words":     {func(spec *enginev1alpha1.BackupRunSpec) { spec.Backup.IncludedNamespaces = numbered("n%d", 1001) }, "spec.backup.includedNamespaces"},
		"resources": {func(spec *enginev1alpha1.BackupRunSpec) { spec.Backup.ExcludedResources = numbered("n%d", 1001) }, "spec.backup.excludedResources"},
		"a long word": {func(spec *enginev1alpha1.BackupRunSpec) {
			spec.Backup.ExcludedNamespaces = []string{strings.Repeat("a", 254)}
		}, "spec.backup.excludedNamespaces[0]"},
		"labels":      {func(spec *enginev1alpha1.BackupRunSpec) { spec.Labels = many }, "spec.labels"},
		"annotations": {func(spec *enginev1alpha1.BackupRunSpec) { spec.Annotations = many }, "spec.annotations"},
		"long annotation": {func(spec *enginev1alpha1.BackupRunSpec) {
			spec.Annotations = map[string]string{"a": strings.Repeat("a", 50_000)}
		}, "spec.annotations"},
		"values": {func(spec *enginev1alpha1.BackupRunSpec) { spec.Backup.LabelSelector = in(101) }, "spec.backup.labelSelector"},
		"expressions": {func(spec *enginev1alpha1.BackupRunSpec) {
			spec.Backup.OrLabelSelectors = []*metav1.LabelSelector{in(1), {MatchExpressions: expressions}}
		}, "spec.backup.orLabelSelectors[1]"},
		"selectors": {func(spec *enginev1alpha1.BackupRunSpec) {
			for range 33 {
				spec.Backup.OrLabelSelectors = append(spec.Backup.OrLabelSelectors, in(1))
			}
		}, "spec.backup.orLabelSelectors"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := &enginev1alpha1.BackupRun{
				ObjectMeta: metav1.ObjectMeta{Name: labtest.Name("by-hand")},
				Spec:       enginev1alpha1.BackupRunSpec{BackupRef: v1alpha1.BackupReference{Namespace: labtest.System, Name: "by-hand"}},
			}
			test.change(&run.Spec)
			_, err := lab.Engine.EngineV1alpha1().BackupRuns(labtest.System).Create(t.Context(), run, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if test.field == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			status, ok := errors.AsType[*apierrors.StatusError](err)
			if !ok || !apierrors.IsInvalid(err) {
				t.Fatalf("answered %v", err)
			}
			if causes := status.Status().Details.Causes; len(causes) == 0 || causes[0].Field != test.field {
				t.Errorf("it names %v, want %s", causes, test.field)
			}
		})
	}
}

// TestWaitingBackupsAreLimited: of requests at the same time exactly as many are taken
// as may wait, and one more is when one of those is cancelled.
func TestWaitingBackupsAreLimited(t *testing.T) {
	held := lab.Hold(t, labtest.Name("limit"))
	user := labtest.Name("ann")
	lab.Grant(t, user, "edit", held.Namespace)
	backups := as(t, user).HoldfastV1alpha1().Backups(held.Namespace)
	const more = 10
	results := make(chan error, waitingPerNamespace+more)
	for range cap(results) {
		go func() {
			_, err := backups.Create(t.Context(), &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{GenerateName: "waits-"}}, metav1.CreateOptions{})
			results <- err
		}()
	}
	t.Cleanup(func() {
		runs := lab.Engine.EngineV1alpha1().BackupRuns(labtest.System)
		list, err := runs.List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, run := range list.Items {
			if run.Spec.BackupRef.Namespace == held.Namespace {
				if err := runs.Delete(context.Background(), run.Name, metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			}
		}
	})
	refused := 0
	for range cap(results) {
		err := <-results
		if err == nil {
			continue
		}
		refused++
		status, ok := errors.AsType[*apierrors.StatusError](err)
		if !ok || status.Status().Code != http.StatusForbidden || len(status.Status().Details.Causes) != 1 ||
			status.Status().Details.Causes[0].Type != registrybackup.CauseTooManyBackups {
			t.Errorf("answered %v", err)
		}
	}
	if refused != more {
		t.Errorf("%d of %d were refused, not %d", refused, cap(results), more)
	}
	body := fmt.Sprintf(manifest, "one-more", held.Namespace, "{}")
	lab.Refused(t, body, []string{"create", "-f", "-", "--as=" + user}, "--waiting-backups-per-namespace", fmt.Sprintf("at most %d may", waitingPerNamespace))

	list, err := backups.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != waitingPerNamespace {
		t.Fatalf("%d are listed, %v", len(list.Items), err)
	}
	if _, stderr, err := ask(t, held.Namespace, list.Items[0].Name, "cancel", "BackupCancellation"); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	lab.Create(t, held.Namespace, "one-more", v1alpha1.BackupSpec{})
}
