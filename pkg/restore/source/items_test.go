// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// labelled are objects with many labels, no two of which have the same.
func labelled(count, labels int) []object {
	var objects []object
	for i := range count {
		var extra strings.Builder
		for j := range labels {
			fmt.Fprintf(&extra, `,"l%d-%d":"v"`, i, j)
		}
		objects = append(objects, object{resource: "configmaps", namespace: "shop", name: fmt.Sprintf("labelled-%04d", i), kind: "ConfigMap",
			extra: fmt.Sprintf(`,"labels":{%s}`, strings.TrimPrefix(extra.String(), ","))})
	}
	return objects
}

// TestWhatIsWrittenIntoLabels: no backup of ours is refused for it, whose objects are not too many
// and not too large.
func TestWhatIsWrittenIntoLabels(t *testing.T) {
	// The longest names that there are, and no two in one namespace.
	c := collector{}
	for i := range 100 {
		of := func(length int) string { return fmt.Sprintf("%0*d", length, i) }
		check(t, c.add(&manifest.Item{APIVersion: "v1", KindName: "ConfigMap", Resource: "configmaps", Namespace: of(63), Name: of(253), UID: of(36), SHA256: of(64)}))
	}
	if each := (c.bytes + 99) / 100; each > plainBytes+100 {
		t.Errorf("an object takes %d bytes", each)
	}

	const count, room = 1000, 50_000
	c = collector{room: room}
	for i := range count {
		labels := map[string]string{}
		for j := range 10 {
			labels[fmt.Sprintf("l%d-%d", i, j)] = "v"
		}
		check(t, c.add(&manifest.Item{APIVersion: "v1", KindName: "ConfigMap", Resource: "configmaps", Namespace: "shop", Name: fmt.Sprint(i), Labels: labels,
			OwnerUIDs: []string{"x"}, References: []manifest.Reference{{KindName: "Secret", Name: "s"}}}))
	}
	if c.bytes > room+5000+count*plainBytes || c.shortened == 0 || c.shortened == count {
		t.Errorf("they take %d bytes, %d of them without labels", c.bytes, c.shortened)
	}
	first, last := c.items[0], c.items[count-1]
	if len(first.Labels) != 10 || first.Shortened || last.Labels != nil || last.OwnerUIDs != nil || last.References != nil || !last.Shortened {
		t.Errorf("the first is %+v, the last %+v", first, last)
	}

	bucket := storetest.Memory(t)
	objects := append(labelled(1, maxExtras+1), some(3)...)
	write(t, bucket, "b", false, objects...)
	b, err := Open(t.Context(), bucket, placeOf("b"), "")
	check(t, err)
	if len(b.Items) != len(objects) || !strings.Contains(strings.Join(b.Warnings, "; "), "references of 1 objects are not known") {
		t.Errorf("%d objects, with the warnings %q", len(b.Items), b.Warnings)
	}
}
