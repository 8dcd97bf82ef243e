// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// A change is listed with the folder of its backup, however many folders lie between them.
func TestAChangeIsNotPartedFromItsFolder(t *testing.T) {
	s := storetest.Memory(t)
	put := func(key string) {
		if err := s.Put(t.Context(), key, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	const others = 2500
	for i := range others {
		put(format.OwnerKey(fmt.Sprintf("prod.n%04d", i)))
	}
	put(format.OwnerKey("prod"))
	put(format.OwnerKey("q"))
	change := format.ExpirationKey("prod", "01234567-89ab-cdef-0123-456789abcdef", 1)
	put(change)
	// Nobody knows whether there is a folder yet.
	put(format.ExpirationKey("none", "01234567-89ab-cdef-0123-456789abcdef", 1))

	l := &refresh.VeleroLayout{Location: "default", SystemNamespace: "holdfast", Clock: clock.RealClock{}}
	found, position := 0, ""
	for {
		var shard refresh.Shard
		for shard = range l.List(t.Context(), ranged{s}, position) {
			break // a poll lists one
		}
		for _, entry := range shard.Entries {
			found++
			if want := entry.Name == "prod"; slices.Contains(entry.Beside, change) != want {
				t.Errorf("beside %s lie %q", entry.Name, entry.Beside)
			}
		}
		if position = shard.Position; position == "" {
			break
		}
	}
	if found != others+2 {
		t.Errorf("%d entries", found)
	}
}
