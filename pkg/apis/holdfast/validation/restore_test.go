// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

func TestValidateRestore(t *testing.T) {
	type spec = v1alpha1.RestoreSpec
	object := func(resource, namespace, name string) spec {
		return spec{Objects: []v1alpha1.RestoreObject{{Resource: resource, Namespace: namespace, Name: name}}}
	}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	many := func(n int) (words []string) {
		for i := range n {
			words = append(words, fmt.Sprint("n", i))
		}
		return words
	}
	mapping := func(n int) map[string]string {
		words := map[string]string{}
		for i := range n {
			words[fmt.Sprint("n", i)] = fmt.Sprint("m", i)
		}
		return words
	}
	exec := v1alpha1.RestoreResourceHook{Exec: &v1alpha1.ExecRestoreHook{Command: []string{"load"}}}
	paths := func(paths ...string) spec {
		return spec{Paths: paths, Objects: object("persistentvolumeclaims", "shop", "data").Objects, VolumesOnly: true, ExistingVolumePolicy: v1alpha1.ExistingVolumeOverwrite}
	}
	hooks := func(hooks ...v1alpha1.RestoreResourceHook) spec {
		return spec{Hooks: v1alpha1.RestoreHooks{Resources: []v1alpha1.RestoreResourceHookSpec{{Name: "db", PostHooks: hooks}}}}
	}
	for name, c := range map[string]struct {
		spec   spec
		fields []string
	}{
		"nothing":               {spec{}, nil},
		"a backup":              {spec{BackupName: "daily@other", BackupNamespace: "shop"}, nil},
		"all of it":             {spec{ScheduleName: "nightly", IncludedNamespaces: []string{"a", "b*"}, ExcludedNamespaces: []string{"bc"}, IncludedResources: []string{"configmaps", "deployments.apps"}, ExcludedResources: []string{"pods"}, IncludeClusterResources: new(true), LabelSelector: selector, NamespaceMapping: map[string]string{"a": "b", "b": "a"}, StorageClassMapping: map[string]string{"slow": "fast"}, ExistingResourcePolicy: "recreate", ExistingVolumePolicy: "overwrite", RestoreStatus: &v1alpha1.RestoreStatusSpec{IncludedResources: []string{"*"}}, ResourceModifier: &v1alpha1.RestoreModifier{Kind: "configmap", Name: "rules"}, PlanOnly: true}, nil},
		"two ways to a backup":  {spec{BackupName: "a", ScheduleName: "b"}, []string{"spec.scheduleName"}},
		"no namespace":          {spec{BackupNamespace: "A"}, []string{"spec.backupNamespace"}},
		"bad words":             {spec{IncludedNamespaces: []string{"a["}, ExcludedResources: []string{"*"}}, []string{"spec.includedNamespaces[0]", "spec.excludedResources[0]"}},
		"two selectors":         {spec{LabelSelector: selector, OrLabelSelectors: []*metav1.LabelSelector{selector, nil}}, []string{"spec.orLabelSelectors", "spec.orLabelSelectors[1]"}},
		"an object":             {object("deployments.apps", "shop", "web"), nil},
		"a role":                {object("clusterroles.rbac.authorization.k8s.io", "", "system:node"), nil},
		"an object by its kind": {object("Deployment", "shop", "web"), nil},
		"no resource":           {object("apps/Deployment", "shop", "web"), []string{"spec.objects[0].resource"}},
		"all resources":         {object("*", "shop", "web"), []string{"spec.objects[0].resource"}},
		"no name":               {object("configmaps", "shop", ""), []string{"spec.objects[0].name"}},
		"no path":               {object("configmaps", "..", "../x"), []string{"spec.objects[0].namespace", "spec.objects[0].name"}},
		"objects and words":     {spec{Objects: object("configmaps", "a", "b").Objects, IncludedResources: []string{"pods"}, ExcludedResources: []string{"jobs"}, LabelSelector: selector}, []string{"spec.includedResources", "spec.excludedResources", "spec.labelSelector"}},
		"one namespace of two":  {spec{NamespaceMapping: map[string]string{"a": "c", "b": "c"}}, []string{"spec.namespaceMapping[b]"}},
		"a pattern mapped":      {spec{NamespaceMapping: map[string]string{"*": "c"}}, []string{"spec.namespaceMapping[*]"}},
		"no class":              {spec{StorageClassMapping: map[string]string{"a": ""}}, []string{"spec.storageClassMapping[a]"}},
		"keeps nothing":         {spec{VolumesOnly: true, ExistingVolumePolicy: "keep"}, []string{"spec.existingVolumePolicy"}},
		"keeps":                 {spec{ExistingVolumePolicy: "keep"}, nil},
		"replaces":              {spec{VolumesOnly: true, ExistingVolumePolicy: "replace"}, nil},
		"policies":              {spec{ExistingResourcePolicy: "replace", ExistingVolumePolicy: "recreate"}, []string{"spec.existingResourcePolicy", "spec.existingVolumePolicy"}},
		"no volumes of volumes": {spec{VolumesOnly: true, RestorePVs: new(false)}, []string{"spec.restorePVs"}},
		"status":                {spec{RestoreStatus: &v1alpha1.RestoreStatusSpec{ExcludedResources: []string{""}}}, []string{"spec.restoreStatus.excludedResources[0]"}},
		"a modifier":            {spec{ResourceModifier: &v1alpha1.RestoreModifier{Kind: "Secret", Name: "A B"}}, []string{"spec.resourceModifier.kind", "spec.resourceModifier.name"}},

		"hooks": {hooks(exec, v1alpha1.RestoreResourceHook{Init: &v1alpha1.InitRestoreHook{InitContainers: []runtime.RawExtension{{Raw: []byte(`{"name":"i","image":"i"}`)}}}}), nil},
		"bad hooks": {hooks(v1alpha1.RestoreResourceHook{}, v1alpha1.RestoreResourceHook{Exec: &v1alpha1.ExecRestoreHook{OnError: "Retry", ExecTimeout: v1alpha1.Duration{Duration: -1}, WaitTimeout: v1alpha1.Duration{Duration: 5 * time.Hour}}},
			v1alpha1.RestoreResourceHook{Init: &v1alpha1.InitRestoreHook{InitContainers: []runtime.RawExtension{{Raw: []byte(`{"images":"i"}`)}, {Raw: []byte(`{"image":"i"}`)}}}}),
			[]string{"spec.hooks.resources[0].postHooks[0]", "spec.hooks.resources[0].postHooks[1].exec.command", "spec.hooks.resources[0].postHooks[1].exec.onError", "spec.hooks.resources[0].postHooks[1].exec.execTimeout", "spec.hooks.resources[0].postHooks[1].exec.waitTimeout", "spec.hooks.resources[0].postHooks[2].init.initContainers[0]", "spec.hooks.resources[0].postHooks[2].init.initContainers[1].name"}},
		"paths":                 {paths("db/users.dat", "logs", "..data/x"), nil},
		"bad paths":             {paths("/etc", "../x", "a/../../b", "a/../b", ".", "", "a\x00"), []string{"spec.paths[0]", "spec.paths[1]", "spec.paths[2]", "spec.paths[3]", "spec.paths[4]", "spec.paths[5]", "spec.paths[6]"}},
		"paths of a short name": {spec{Paths: []string{"a"}, Objects: object("PVC", "shop", "data").Objects, VolumesOnly: true, ExistingVolumePolicy: v1alpha1.ExistingVolumeOverwrite}, nil},
		"paths of anything":     {spec{Paths: []string{"a"}, Objects: object("pods", "a", "b").Objects}, []string{"spec.objects", "spec.volumesOnly", "spec.existingVolumePolicy"}},
		"no hooks":              {spec{Hooks: v1alpha1.RestoreHooks{Resources: []v1alpha1.RestoreResourceHookSpec{{}}}}, []string{"spec.hooks.resources[0].name", "spec.hooks.resources[0].postHooks"}},
		"images":                {spec{ImageMapping: map[string]string{"docker.io/library": "mirror:5000/library", "a": "", "b/": "c"}}, []string{"spec.imageMapping[a]", "spec.imageMapping[b/]"}},

		"many words":        {spec{IncludedResources: many(1001), IncludedNamespaces: []string{"["}}, []string{"spec.includedResources"}},
		"many objects":      {spec{Objects: make([]v1alpha1.RestoreObject, 1001)}, []string{"spec.objects"}},
		"many mappings":     {spec{NamespaceMapping: mapping(1001), StorageClassMapping: mapping(101)}, []string{"spec.namespaceMapping", "spec.storageClassMapping"}},
		"much text":         {spec{BackupName: strings.Repeat("b", 33<<10)}, []string{"spec"}},
		"much text, mapped": {spec{NamespaceMapping: map[string]string{"a": strings.Repeat("b", 33<<10)}}, []string{"spec"}},
	} {
		t.Run(name, func(t *testing.T) {
			restore := &v1alpha1.Restore{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "back"}, Spec: c.spec}
			var got []string
			for _, err := range ValidateRestore(restore) {
				got = append(got, err.Field)
			}
			got = slices.Compact(got)
			if !slices.Equal(got, c.fields) {
				t.Errorf("refused for %q, not for %q: %v", got, c.fields, ValidateRestore(restore))
			}
		})
	}
	bad := &v1alpha1.Restore{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a.b", Labels: map[string]string{"a b": ""}}}
	if errs := ValidateRestore(bad); len(errs) != 2 {
		t.Errorf("bad metadata: %v", errs)
	}
}

// TestRestoreFrom: a restore names one of two places of the data, or none.
func TestRestoreFrom(t *testing.T) {
	for value, good := range map[string]bool{"local": true, "moved": true, "": false, "Moved": false} {
		restore := &v1alpha1.Restore{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "shop", Annotations: map[string]string{"holdfast.io/restore-from": value}}, Spec: v1alpha1.RestoreSpec{BackupName: "b"}}
		if errs := ValidateRestore(restore); good != (len(errs) == 0) || !good && errs[0].Field != "metadata.annotations[holdfast.io/restore-from]" {
			t.Errorf("%q: %v", value, errs)
		}
	}
}
