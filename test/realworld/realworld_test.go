// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package realworld

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// The restores that are compared.
const (
	inPlace = "in-place"
	mapped  = "mapped"
	newer   = "newer"
)

// TestRealWorld: what the most used charts and operators create comes back as it was. What does not is
// told of by a warning, or explained in a golden file.
func TestRealWorld(t *testing.T) {
	all := readOperators(t)
	rules := readExplanations(t)
	client, err := dynamic.NewForConfig(lab.Config)
	if err != nil {
		t.Fatal(err)
	}
	keepPods(t, lab, all)
	create(t, client, all)
	before := settledSnapshot(t, lab, all, operator.namespace)
	backup := backUp(t, all)
	lose(t, client, all)

	// Each restore begins where the one before has ended.
	restored := restore(t, lab, inPlace, v1alpha1.RestoreSpec{BackupName: backup.name, IncludedNamespaces: namespaces(all), IncludeClusterResources: new(true)})
	checkAll(t, inPlace, all, rules, backup, restored, compare(before, settledSnapshot(t, lab, all, operator.namespace)))

	mapping := map[string]string{}
	for _, o := range all {
		mapping[o.namespace()] = o.copied()
	}
	restored = restore(t, lab, mapped, v1alpha1.RestoreSpec{BackupName: backup.name, IncludedNamespaces: namespaces(all), NamespaceMapping: mapping, IncludeClusterResources: new(true)})
	checkAll(t, mapped, all, rules, backup, restored, compare(before, settledSnapshot(t, lab, all, operator.copied)))

	if *withNewer != "" {
		other := lab.AnotherOf(t, *withNewer)
		keepPods(t, other, all)
		trust(t, other)
		restored = restore(t, other, newer, v1alpha1.RestoreSpec{BackupName: backup.name, IncludedNamespaces: namespaces(all), IncludeClusterResources: new(true)})
		after := settledSnapshot(t, other, all, operator.namespace)
		differences := compare(before.withoutHashes(all, operator.namespace), after.withoutHashes(all, operator.namespace))
		// Each release has objects of its own.
		checkAll(t, newer, all, rules, backup, restored, slices.DeleteFunc(differences, func(d difference) bool { return d.Operator == "" }))
	}

	if *operators != "" || *withNewer == "" {
		return
	}
	for _, r := range rules.Rules {
		if !r.met {
			t.Errorf("%s: nothing meets this rule any more: %+v", explainedFile, *r)
		}
	}
	checkPage(t, table(t, all, rules))
}

// trust lets another cluster take the backups of this one for its own.
func trust(t *testing.T, other *labtest.Lab) {
	t.Helper()
	published, err := lab.Kube.CoreV1().ConfigMaps(labtest.System).Get(t.Context(), identity.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	trusted := enginev1alpha1.TrustedCluster{Name: "older", UID: published.Data[identity.ClusterUIDKey], PublicKey: strings.Fields(published.Data[identity.PublicKeysKey])[0]}
	_, err = other.Engine.EngineV1alpha1().StorageLocations(labtest.System).Create(t.Context(), &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Name: "older"},
		Spec: enginev1alpha1.StorageLocationSpec{
			Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: filepath.Join(lab.Dir, "store")},
			TrustedClusters: []enginev1alpha1.TrustedCluster{trusted},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	other.AwaitAvailable(t, "older", metav1.ConditionTrue)
}

func namespaces(all []operator) (names []string) {
	for _, o := range all {
		names = append(names, o.namespace())
	}
	return names
}

// run is a backup or a restore that has ended.
type run struct {
	name, phase string
	results     format.Results
}

// backUp backs the operators up, with all that is outside of namespaces. Data of claims is for other tests.
func backUp(t *testing.T, all []operator) run {
	t.Helper()
	name := labtest.Name("real-world")
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{
		IncludedNamespaces: namespaces(all), IncludeClusterResources: new(true), SnapshotVolumes: new(false), DefaultVolumesToFsBackup: new(false),
	})
	var found *v1alpha1.Backup
	labtest.Eventually(t, "the backup to end", func() (err error) {
		found, err = lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !found.Status.Phase.Ended() {
			err = fmt.Errorf("it is %s", found.Status.Phase)
		}
		return err
	})
	return run{name, string(found.Status.Phase), resultsOf(t, lab, "backups", name)}
}

// restore carries out a restore, whose name begins so.
func restore(t *testing.T, in *labtest.Lab, prefix string, spec v1alpha1.RestoreSpec) run {
	t.Helper()
	labtest.Eventually(t, "the backup to be listed", func() error {
		_, err := in.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), spec.BackupName, metav1.GetOptions{})
		return err
	})
	restores := in.Holdfast.HoldfastV1alpha1().Restores(labtest.System)
	name := labtest.Name(prefix)
	if _, err := restores.Create(t.Context(), &v1alpha1.Restore{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var found *v1alpha1.Restore
	labtest.Eventually(t, "the restore "+name+" to end", func() (err error) {
		found, err = restores.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !found.Status.Phase.Ended() {
			err = fmt.Errorf("it is %s: %s", found.Status.Phase, found.Status.Message)
		}
		return err
	})
	if found.Status.FailureReason != "" || len(found.Status.ValidationErrors) > 0 {
		t.Fatalf("the restore is %+v", found.Status)
	}
	return run{name, string(found.Status.Phase), resultsOf(t, in, "restores", name)}
}

func resultsOf(t *testing.T, in *labtest.Lab, resource, name string) (results format.Results) {
	t.Helper()
	answer, err := in.Holdfast.HoldfastV1alpha1().RESTClient().Get().Namespace(labtest.System).Resource(resource).Name(name).
		SubResource("results").Param("follow", "true").DoRaw(t.Context())
	if err == nil {
		err = json.Unmarshal(answer, &results)
	}
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// checkAll compares how a restore has ended, and what differs after it, with the golden files.
func checkAll(t *testing.T, mode string, all []operator, rules *explanations, backup, restored run, differences []difference) {
	t.Helper()
	found := map[string]golden{}
	for _, d := range differences {
		if !rules.explain(mode, d) {
			g := found[d.Operator]
			g.Differences = append(g.Differences, d)
			found[d.Operator] = g
		}
	}
	whole := found[""]
	errs, warnings := split(all, restored.results.Errors), split(all, restored.results.Warnings)
	backedUp := split(all, backup.results.Warnings)
	for _, o := range all {
		g := found[o.name]
		g.Warnings = warnings[o.name]
		for _, text := range errs[o.name] {
			g.Warnings = append(g.Warnings, "error: "+text)
		}
		for _, text := range backedUp[o.name] {
			g.Warnings = append(g.Warnings, "backup: "+text)
		}
		check(t, o.name, mode, g)
	}
	// With some of the operators the rest is another one.
	if *operators != "" {
		for _, d := range whole.Differences {
			t.Logf("of no operator: %s %s: %s", d.Object, d.Field, d.Change)
		}
		t.Logf("of no operator: %q, %q", errs[""], warnings[""])
		return
	}
	whole.Backup = &ending{Phase: backup.phase, Errors: split(all, backup.results.Errors)[""], Warnings: backedUp[""]}
	whole.Restore = &ending{Phase: restored.phase, Errors: errs[""], Warnings: warnings[""]}
	check(t, "", mode, whole)
}

// split gives the texts by operator. Those that name none of its objects are under an empty name.
func split(all []operator, messages format.Messages) map[string][]string {
	found := map[string][]string{}
	add := func(operator, text string) {
		for _, o := range all {
			text = strings.NewReplacer(o.namespace(), namespaceWord, o.copied(), "$(COPY)").Replace(text)
		}
		found[operator] = append(found[operator], settled(text))
	}
	for _, text := range slices.Concat(messages.Velero, messages.Cluster) {
		whose := ""
		for _, o := range all {
			for _, object := range slices.Concat(o.cluster, o.definitions) {
				if strings.Contains(text, " "+object.GetName()+":") {
					whose = o.name
				}
			}
			if strings.Contains(text, " "+o.namespace()+":") || strings.Contains(text, " "+o.copied()+":") {
				whose = o.name
			}
		}
		add(whose, text)
	}
	for namespace, texts := range messages.Namespaces {
		whose := ""
		for _, o := range all {
			if namespace == o.namespace() || namespace == o.copied() {
				whose = o.name
			}
		}
		for _, text := range texts {
			add(whose, text)
		}
	}
	for _, texts := range found {
		slices.Sort(texts)
	}
	return found
}
