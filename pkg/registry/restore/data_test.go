// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// A backup that was made while an application stood at zero is not taken in place of one with
// its data, and the refusal names what can be taken.
func TestTheNewestBackupLacksData(t *testing.T) {
	type spec = v1alpha1.RestoreSpec
	h := newHarness(t)
	h.stored(system, "full", "shop", "blog")
	h.stored(system, "scaled", "shop", "blog")
	claim := func(namespace, name string) types.NamespacedName {
		return types.NamespacedName{Namespace: namespace, Name: name}
	}
	h.held = map[string][]types.NamespacedName{
		"full":   {claim("shop", "data"), claim("blog", "posts")},
		"scaled": {claim("blog", "posts")},
	}
	object := func(resource, namespace, name string) []v1alpha1.RestoreObject {
		return []v1alpha1.RestoreObject{{Resource: resource, Namespace: namespace, Name: name}}
	}
	lacks := `the newest backup, "scaled" of 1970-01-01T00:16:41Z, lacks the data of shop/data (held by "full" of 1970-01-01T00:16:40Z), and "full" of 1970-01-01T00:16:40Z holds the data of all: set spec.backupName`
	for name, c := range map[string]struct {
		spec spec
		says string
	}{
		"everything":                 {spec{}, lacks},
		"the namespace":              {spec{IncludedNamespaces: []string{"shop"}}, lacks},
		"another namespace":          {spec{IncludedNamespaces: []string{"blog"}}, ""},
		"volumes only":               {spec{VolumesOnly: true, IncludedNamespaces: []string{"shop"}}, ""},
		"settings":                   {spec{IncludedResources: []string{"configmaps"}}, ""},
		"claims":                     {spec{IncludedResources: []string{"persistentvolumeclaims"}}, lacks},
		"claims by another name":     {spec{IncludedResources: []string{"PVC"}}, lacks},
		"settings by another name":   {spec{IncludedResources: []string{"ConfigMap"}}, ""},
		"the workload by another":    {spec{Objects: object("StatefulSet", "shop", "db")}, lacks},
		"a pattern":                  {spec{IncludedResources: []string{"*.apps"}}, lacks},
		"no volumes":                 {spec{RestorePVs: new(false)}, ""},
		"the claim":                  {spec{Objects: object("persistentvolumeclaims", "shop", "data")}, lacks},
		"another claim":              {spec{Objects: object("persistentvolumeclaims", "blog", "posts")}, ""},
		"the workload":               {spec{Objects: object("statefulsets.apps", "shop", "db")}, lacks},
		"a setting":                  {spec{Objects: object("configmaps", "shop", "x")}, ""},
		"the older one by its name":  {spec{BackupName: "full"}, ""},
		"the lesser one by its name": {spec{BackupName: "scaled"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if c.spec.VolumesOnly {
				for i := range h.backups {
					h.backups[i].Status.Volumes = &v1alpha1.BackupVolumesProgress{Total: 1, Completed: 1}
				}
				c.says = lacks
			}
			_, err := h.create(system, "back", c.spec, metav1.DryRunAll)
			if c.says != "" {
				expect(t, err, "Invalid", "spec.backupName", c.says)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}
