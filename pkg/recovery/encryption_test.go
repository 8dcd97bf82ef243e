// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/encryption"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// late is a store in which another writer is a moment earlier.
type late struct{ *storetest.Faulty }

func (l late) Create(ctx context.Context, key string, content []byte) error {
	return errors.Join(l.Faulty.Create(ctx, key, content), store.ErrExists)
}

// The keys that decrypt a cluster's backups lie in the store for each recovery key, once, beside
// those of the repositories; nobody else reads them.
func TestEncryptionKeysAreKept(t *testing.T) {
	st := storetest.NewFaulty(storetest.Memory(t), clock.RealClock{})
	private, public := pair(t)
	stranger, _ := pair(t)
	of := aRepository(t)
	keys := must[encryption.Keys](t)(encryption.NewKeys())
	former := must[encryption.Keys](t)(encryption.NewKeys())
	keys = keys.With(former)
	keep(t, st, of, "a repository's", public)
	for range 2 {
		if err := KeepEncryptionKeys(t.Context(), st, of.Cluster, "default", keys, []string{public}); err != nil {
			t.Fatal(err)
		}
	}
	if got := st.Count(storetest.Create); got != 2 {
		t.Errorf("%d objects were created", got)
	}
	found, spoilt := find(t, st)
	if len(found) != 2 || len(spoilt) != 0 {
		t.Fatalf("found: %+v, %v", found, spoilt)
	}
	at := slices.IndexFunc(found, func(wrapped format.WrappedKey) bool { return wrapped.DecryptsBackups() })
	if at < 0 || !strings.HasPrefix(found[at].Key(), "metadata/holdfast/keys/cluster/encryption.key/") {
		t.Fatalf("found: %+v", found)
	}
	got, err := UnwrapEncryptionKeys(&found[at], []age.Identity{stranger, private})
	if err != nil || string(got.Text()) != string(keys.Text()) {
		t.Errorf("it is %v, %v", got, err)
	}
	if got, err := UnwrapEncryptionKeys(&found[at], []age.Identity{stranger}); !errors.Is(err, ErrOtherIdentity) || len(got.Public()) != 0 {
		t.Errorf("a stranger reads %v, %v", got, err)
	}
	// Others in its place are not taken for it.
	forged := found[at]
	forged.Encrypted = must[string](t)(encrypt(string(former.Text()), must[[]age.Recipient](t)(recipients([]string{public}))))
	if got, err := UnwrapEncryptionKeys(&forged, []age.Identity{private}); err == nil {
		t.Errorf("of another key it gives %v", got)
	}
	// Another backup, that begins at the same moment, may be first.
	another := aRepository(t)
	another.Cluster.UID = "another"
	if err := KeepEncryptionKeys(t.Context(), late{st}, another.Cluster, "default", keys, []string{public}); err != nil {
		t.Error(err)
	}
	st.Inject(storetest.Fault{Operation: storetest.Get, Err: store.ErrUnavailable})
	if err := KeepEncryptionKeys(t.Context(), st, of.Cluster, "default", keys, []string{public}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("of a store that fails: %v", err)
	}
}
