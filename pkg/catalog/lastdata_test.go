// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// A newer backup takes the place of an older one for those claims only whose data it holds.
func TestLastData(t *testing.T) {
	none := func(v1alpha1.BackupReference) bool { return false }
	kept := func(c *Content) { c.Volumes[0].Method = MethodInStorage }
	for name, test := range map[string]struct {
		newer   func(*Content)
		older   func(*Content)
		going   func(v1alpha1.BackupReference) bool
		shop    types.UID
		missing bool
		// copied are copies in the location offsite.
		copied     bool
		unrecorded string
		want       string
	}{
		"another newer one":            {want: "[]"},
		"one claim is left out":        {newer: func(c *Content) { c.Volumes = c.Volumes[:1] }, want: "[shop/db]"},
		"no volume, as at zero":        {newer: func(c *Content) { c.Volumes = nil }, want: "[shop/data shop/db]"},
		"a volume failed":              {newer: func(c *Content) { c.Volumes[0] = failed(c.Volumes[0]) }, want: "[shop/data]"},
		"a newer one in its storage":   {newer: kept, want: "[shop/data]"},
		"both in their storage":        {newer: kept, older: kept, want: "[]"},
		"an older one in its storage":  {older: kept, want: "[]"},
		"the older one is copied":      {newer: func(c *Content) { c.Volumes = nil }, copied: true, want: "[]"},
		"a copy of one in its storage": {newer: func(c *Content) { c.Volumes = c.Volumes[1:] }, older: kept, copied: true, want: "[shop/data]"},
		"copies of both":               {newer: kept, older: kept, copied: true, want: "[]"},
		"the newer one has no record":  {newer: kept, older: kept, unrecorded: "new", want: "[shop/data]"},
		"neither has a record":         {newer: kept, older: kept, unrecorded: "old new", want: "[]"},
		"the older one has no record":  {newer: kept, older: kept, unrecorded: "old", want: "[]"},
		"moved data needs no record":   {older: kept, unrecorded: "new", want: "[]"},
		"the newer one failed":         {newer: func(c *Content) { c.Backup.Status.Phase = v1alpha1.BackupPhaseFailed }, want: "[shop/data shop/db]"},
		"its metadata was replaced":    {newer: func(c *Content) { c.Replaced = "it was replaced" }, want: "[shop/data shop/db]"},
		"its volumes can't be read":    {newer: func(c *Content) { c.VolumesError = "cut" }, want: "[shop/data shop/db]"},
		"of another cluster":           {newer: func(c *Content) { ofTheirs(c.Backup.Status.Origin) }, want: "[shop/data shop/db]"},
		"the newer one is going":       {going: func(b v1alpha1.BackupReference) bool { return b.Name == "new" }, want: "[shop/data shop/db]"},
		"the newer one is missed":      {missing: true, want: "[shop/data shop/db]"},
		"the namespace is gone":        {newer: func(c *Content) { c.Volumes = nil }, shop: "-", want: "[]"},
		"the namespace is made anew":   {newer: func(c *Content) { c.Volumes = nil }, shop: "anew", want: "[shop/data shop/db]"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCatalog(nil)
			switch test.shop {
			case "":
				c.SetNamespaces(map[string]types.UID{"shop": "uid-of-shop"})
			case "-":
			default:
				c.SetNamespaces(map[string]types.UID{"shop": test.shop})
			}
			content := func(storeName string, age int) Content {
				return Content{Backup: stored("default", storeName, age), Volumes: []Volume{claim("shop", "data", int64(age), age), claim("shop", "db", int64(100+age), age)}}
			}
			older := content("old", 20)
			if test.older != nil {
				test.older(&older)
			}
			c.Put("default", "old", older, minute(0))
			newer := content("new", 10)
			if test.newer != nil {
				test.newer(&newer)
			}
			c.Put("default", "new", newer, minute(0))
			if test.copied {
				for storeName, copied := range map[string]Content{"old": older, "new": newer} {
					backup := *copied.Backup
					backup.Spec.StorageLocation = "offsite"
					copied.Backup = &backup
					c.Put("offsite", storeName, copied, minute(0))
				}
			}
			if test.missing {
				c.Observe("default", []string{"old"}, minute(1), minute(1))
			}
			going := none
			if test.going != nil {
				going = test.going
			}
			unrecorded := func(v OwnVolume) bool {
				return slices.ContainsFunc(strings.Fields(test.unrecorded), func(name string) bool { return stored("default", name, 0).UID == v.Backup })
			}
			if got := fmt.Sprint(c.LastData(system, "old", going, unrecorded)); got != test.want {
				t.Errorf("the older one holds the last data of %s, not %s", got, test.want)
			}
			if got := fmt.Sprint(c.HeldClaims(system, "old")); got != "[shop/data shop/db]" {
				t.Errorf("it holds %s", got)
			}
		})
	}
}
