// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// aWrappedKey is one as its cluster encodes it.
func aWrappedKey() WrappedKey {
	return WrappedKey{
		ClusterUID: cluster.UID, VolumeNamespace: "shop", Location: "default", Fingerprint: strings.Repeat("0a", 16),
		RecoveryKeys: []string{"age1a", "age1b"}, Encrypted: "-----BEGIN AGE ENCRYPTED FILE-----\n",
	}
}

// What is written is read, by who looks where it lies, and nothing else is.
func TestWrappedKeyRoundTrip(t *testing.T) {
	want := aWrappedKey()
	want.PublicKey = key.PublicKey()
	given := want
	given.RecoveryKeys = []string{"age1b", "age1a"}
	data, err := EncodeWrappedKey(given, cluster)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeWrappedKey(given.Key(), data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Errorf("it comes back otherwise (-want +got):\n%s", diff)
	}
	for name, c := range map[string]struct {
		key  string
		data []byte
	}{
		"another namespace's key":  {strings.Replace(want.Key(), "/shop/", "/bank/", 1), data},
		"another cluster's key":    {strings.Replace(want.Key(), cluster.UID, "other", 1), data},
		"another namespace":        {strings.Replace(want.Key(), "/shop/", "/bank/", 1), bytes.Replace(data, []byte(`"shop"`), []byte(`"bank"`), 1)},
		"another key of age in it": {want.Key(), bytes.Replace(data, []byte("ENCRYPTED"), []byte("ENCRYPTDE"), 1)},
		"the end of it is missing": {want.Key(), data[:len(data)-4]},
		"nothing":                  {want.Key(), nil},
		"too much":                 {want.Key(), append(slices.Clone(data), bytes.Repeat([]byte(" "), MaxWrappedKeyBytes)...)},
		"it is of another kind":    {want.Key(), signedAnew(t, data, func(document map[string]any) { document["kind"] = "Backup" })},
		"it is of another version": {want.Key(), signedAnew(t, data, func(document map[string]any) { document["apiVersion"] = "holdfast.io/v2" })},
	} {
		if got, err := DecodeWrappedKey(c.key, c.data); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for name, change := range map[string]func(*WrappedKey){
		"a namespace that leads elsewhere": func(w *WrappedKey) { w.VolumeNamespace = "../shop" },
		"no fingerprint":                   func(w *WrappedKey) { w.Fingerprint = "" },
		"for nobody":                       func(w *WrappedKey) { w.RecoveryKeys = nil },
		"nothing":                          func(w *WrappedKey) { w.Encrypted = "" },
		"too much":                         func(w *WrappedKey) { w.Encrypted = strings.Repeat("x", MaxWrappedKeyBytes) },
	} {
		wrapped := aWrappedKey()
		change(&wrapped)
		if data, err := EncodeWrappedKey(wrapped, cluster); err == nil {
			t.Errorf("%s: %s", name, data)
		}
	}
}

// The keys that decrypt backups are not taken for a repository's, nor the other way round.
func TestWrappedEncryptionKeyRoundTrip(t *testing.T) {
	want := aWrappedKey()
	want.PublicKey, want.VolumeNamespace = key.PublicKey(), ""
	data, err := EncodeWrappedKey(want, cluster)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeWrappedKey(want.Key(), data)
	if diff := cmp.Diff(&want, got); err != nil || diff != "" || !got.DecryptsBackups() {
		t.Errorf("it comes back otherwise: %v (-want +got):\n%s", err, diff)
	}
	for name, change := range map[string]func(map[string]any){
		"a repository's kind": func(document map[string]any) { document["kind"] = "WrappedRepositoryKey" },
		"a namespace":         func(document map[string]any) { document["spec"].(map[string]any)["volumeNamespace"] = "shop" },
	} {
		if got, err := DecodeWrappedKey(want.Key(), signedAnew(t, data, change)); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
