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

	// As many as are expected, whose labels do not all have room, or do.
	const count = 1000
	fill := func(most int64) *collector {
		c := &collector{expected: count, most: most}
		for i := range count {
			labels := map[string]string{}
			for j := range 10 {
				labels[fmt.Sprintf("l%d-%d", i, j)] = "v"
			}
			check(t, c.add(&manifest.Item{APIVersion: "v1", KindName: "ConfigMap", Resource: "configmaps", Namespace: "shop", Name: fmt.Sprint(i), Labels: labels,
				OwnerUIDs: []string{"x"}, References: []manifest.Reference{{KindName: "Secret", Name: "s"}}}))
		}
		return c
	}
	whole := fill(1 << 30)
	if whole.shortened > 0 || whole.bytes < count*plainBytes {
		t.Fatalf("with room for all %d items are without labels, and take %d bytes", whole.shortened, whole.bytes)
	}
	if c := fill(whole.bytes + plainBytes); c.shortened > 0 {
		t.Errorf("%d items are without labels, though all have room", c.shortened)
	}
	const most = count*plainBytes + 5000
	short := fill(most)
	if short.bytes > most+5000 || short.shortened == 0 || short.shortened == count {
		t.Errorf("they take %d bytes, %d of them without labels", short.bytes, short.shortened)
	}
	without := 0
	for i, item := range short.items {
		switch {
		case !item.Shortened && len(item.Labels) == 10 && len(item.OwnerUIDs) == 1 && len(item.References) == 1:
		case item.Shortened && item.Labels == nil && item.OwnerUIDs == nil && item.References == nil && i > 0:
			without++
		default:
			t.Errorf("item %d is %+v", i, item)
		}
	}
	if without != short.shortened {
		t.Errorf("%d are without labels, and %d counted", without, short.shortened)
	}

	bucket := storetest.Memory(t)
	objects := append(labelled(1, maxExtras+1), some(3)...)
	write(t, bucket, "b", false, objects...)
	b, err := Open(t.Context(), bucket, placeOf("b"), "", nil)
	check(t, err)
	if len(b.Items) != len(objects) || !strings.Contains(strings.Join(b.Warnings, "; "), "references of 1 objects are not known") {
		t.Errorf("%d objects, with the warnings %q", len(b.Items), b.Warnings)
	}
}
