// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

const (
	// copies begins the names of namespaces that restores make, each its own.
	copies = "restored-"
	// mostRestores bounds them: each leaves a namespace.
	mostRestores = 40
	// again is how many restores are made a second time, when the bad time is over.
	again = 2
)

// restore restores a backup that was shown as stored, and is not to be deleted, into a namespace
// of its own, and cancels one in five.
func (c *cluster) restore(ctx context.Context, random *rand.Rand) {
	c.mu.Lock()
	var from *made
	for _, m := range c.created {
		if m.stored && !m.deleted && m.namespace != "" && (from == nil || m.name > from.name) {
			from = m
		}
	}
	n := c.restores
	if from != nil && n < mostRestores {
		c.restores++
	}
	c.mu.Unlock()
	if from == nil || n >= mostRestores {
		return
	}
	restore := &v1alpha1.Restore{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", c.name, n)},
		Spec: v1alpha1.RestoreSpec{
			BackupName:       from.name,
			NamespaceMapping: map[string]string{from.namespace: fmt.Sprintf("%s%d", copies, n)},
		},
	}
	_, err := c.Holdfast.HoldfastV1alpha1().Restores(labtest.System).Create(ctx, restore, metav1.CreateOptions{})
	if err == nil && random.IntN(5) == 0 {
		pause(ctx, between(random, 0, soon))
		err = c.Holdfast.HoldfastV1alpha1().RESTClient().Post().Namespace(labtest.System).
			Resource("restores").Name(restore.Name).SubResource("cancel").Body(&v1alpha1.RestoreCancellation{}).Do(ctx).Error()
	}
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.refused++
	}
}

func (c *cluster) restoreRuns(ctx context.Context) ([]enginev1alpha1.RestoreRun, error) {
	list, err := c.Engine.EngineV1alpha1().RestoreRuns(labtest.System).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// restoresEnded says which restore has not ended.
func (c *cluster) restoresEnded(ctx context.Context) error {
	runs, err := c.restoreRuns(ctx)
	for i := range runs {
		if !runs[i].Status.Phase.Ended() {
			return fmt.Errorf("the restore %s is %q", runs[i].Name, runs[i].Status.Phase)
		}
	}
	return err
}

// target is the namespace that a restore writes to.
func target(run *enginev1alpha1.RestoreRun) string {
	for _, namespace := range run.Spec.Restore.NamespaceMapping {
		return namespace
	}
	return ""
}

// checkRestores checks that each restore has told the truth: one that has completed has brought
// all of its own cluster's ConfigMaps, as it marks them, and any other says what is wrong; that
// nothing was created twice; and that a second restore writes nothing.
func (c *cluster) checkRestores(t *testing.T, mark int64) {
	t.Helper()
	runs, err := c.restoreRuns(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	phases, attempts, repeated := map[v1alpha1.RestorePhase]int{}, 0, 0
	for i := range runs {
		run := &runs[i]
		status := &run.Status
		phases[status.Phase]++
		attempts += max(int(status.Attempts)-1, 0)
		if status.Phase != v1alpha1.RestorePhaseCompleted {
			if status.Errors == 0 && status.FailureReason == "" && len(status.ValidationErrors) == 0 {
				t.Errorf("cluster %s: the restore %s is %s, and does not say why", c.name, run.Name, status.Phase)
			}
			if status.Phase == v1alpha1.RestorePhaseCancelled {
				continue
			}
			t.Logf("cluster %s: the restore %s is %s: %s %v", c.name, run.Name, status.Phase, status.FailureReason, status.ValidationErrors)
			continue
		}
		versions, err := c.copied(t, run)
		if err != nil {
			t.Errorf("cluster %s: the restore %s has completed, and %v", c.name, run.Name, err)
			continue
		}
		// The attacked bucket gives nothing any more.
		of := c.created[run.Spec.Backup.UID]
		if repeated++; repeated <= again && of != nil && !of.deleted && of.location != before {
			c.repeat(t, run, versions)
		}
	}
	created := map[string]int{}
	for _, event := range c.WritesSince(t, mark) {
		if ref := event.ObjectRef; event.Verb == "create" && ref != nil && strings.HasPrefix(ref.Namespace, copies) && event.ResponseStatus != nil && event.ResponseStatus.Code == 201 {
			created[ref.Resource+" "+ref.Namespace+"/"+ref.Name]++
		}
	}
	for object, times := range created {
		if times > 1 && strings.HasPrefix(object, "configmaps ") {
			t.Errorf("cluster %s: %s was created %d times", c.name, object, times)
		}
	}
	t.Logf("cluster %s: of %d restores: %v; %d times another process went on with one", c.name, len(runs), phases, attempts)
}

// copied says what is wrong with what a restore has brought, or gives the versions of it.
func (c *cluster) copied(t *testing.T, run *enginev1alpha1.RestoreRun) (map[string]string, error) {
	t.Helper()
	list, err := c.Kube.CoreV1().ConfigMaps(target(run)).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	versions := map[string]string{}
	for _, o := range list.Items {
		if !strings.HasPrefix(o.Name, "settings-") {
			continue
		}
		versions[o.Name] = o.ResourceVersion
		if got := o.Annotations["holdfast.io/restore-uid"]; got != string(run.UID) {
			return nil, fmt.Errorf("%s is of the restore %q", o.Name, got)
		}
		if o.Data["cluster"] != c.name {
			return nil, fmt.Errorf("%s is of cluster %q", o.Name, o.Data["cluster"])
		}
	}
	if len(versions) != configMaps {
		return nil, fmt.Errorf("there are %d ConfigMaps of %d", len(versions), configMaps)
	}
	return versions, nil
}

// repeat makes a restore a second time.
func (c *cluster) repeat(t *testing.T, first *enginev1alpha1.RestoreRun, versions map[string]string) {
	t.Helper()
	spec := first.Spec.Restore
	spec.BackupName, spec.ExistingResourcePolicy = first.Spec.Backup.Name, v1alpha1.ExistingResourceUpdate
	second := &enginev1alpha1.RestoreRun{
		ObjectMeta: metav1.ObjectMeta{Name: first.Name + "-again"},
		Spec:       *first.Spec.DeepCopy(),
	}
	second.Spec.RestoreRef.Name, second.Spec.Restore, second.Spec.Cancellation = second.Name, spec, nil
	runs := c.Engine.EngineV1alpha1().RestoreRuns(labtest.System)
	c.must(t, func() error { _, err := runs.Create(t.Context(), second, metav1.CreateOptions{}); return err })
	err := labtest.Await(t.Context(), second.Name, func() (err error) {
		if second, err = runs.Get(t.Context(), second.Name, metav1.GetOptions{}); err == nil && !second.Status.Phase.Ended() {
			err = fmt.Errorf("it is %q", second.Status.Phase)
		}
		return err
	})
	if err != nil || second.Status.Phase != v1alpha1.RestorePhaseCompleted {
		t.Errorf("cluster %s: the second restore of %s: %v, %+v", c.name, first.Name, err, second.Status)
		return
	}
	after, err := c.copied(t, first)
	if err != nil || fmt.Sprint(after) != fmt.Sprint(versions) {
		t.Errorf("cluster %s: after the second restore of %s: %v, and %v became %v", c.name, first.Name, err, versions, after)
	}
}
