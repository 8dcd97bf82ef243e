// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// decoders of what a cluster signs give what its key has signed, and nil for what they refuse or
// find another key in.
var decoders = []func(data []byte) any{
	func(data []byte) any {
		change := aChange()
		got, err := DecodeExpiration(data, change.StoreName, change.UID, change.Number)
		if err != nil || got.PublicKey != key.PublicKey() {
			return nil
		}
		return *got
	},
	func(data []byte) any {
		head, newest, err := DecodeIndexHead(data, cluster.UID)
		if err != nil || head.PublicKey != key.PublicKey() {
			return nil
		}
		return [...]any{*head, string(newest)}
	},
	func(data []byte) any {
		restore, contents, origin, err := DecodeRestore(data)
		if err != nil || origin.Trust != "" || origin.PublicKey != key.PublicKey() {
			return nil
		}
		return [...]any{*restore, contents, *origin}
	},
	func(data []byte) any {
		wrapped, err := DecodeWrappedKey(aWrappedKey().Key(), data)
		if err != nil || wrapped.PublicKey != key.PublicKey() {
			return nil
		}
		return *wrapped
	},
}

// signed is what the key has signed, in the order of the decoders.
func signed(tb testing.TB) (all [][]byte) {
	tb.Helper()
	add := func(data []byte, err error) {
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, data)
	}
	add(EncodeExpiration(aChange(), cluster))
	add(EncodeIndexHead(IndexHead{Segments: []IndexSegment{NewIndexSegment([]byte("x"), 1, 2)}, Boundaries: []string{"a", "b"}}, []byte("newest\nof all"), cluster))
	add(EncodeRestore(&v1alpha1.Restore{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "back", UID: "u", Annotations: map[string]string{"team": "a"}},
		Spec:       v1alpha1.RestoreSpec{BackupName: "daily"},
		Status:     v1alpha1.RestoreStatus{Phase: v1alpha1.RestorePhaseCompleted},
	}, Contents{"restore-x-logs.gz": NewContent([]byte("log"))}, cluster))
	add(EncodeWrappedKey(aWrappedKey(), cluster))
	return all
}

// signedAnew is a document with a change that our key has signed, as one of a later release.
func signedAnew(tb testing.TB, data []byte, change func(document map[string]any)) []byte {
	tb.Helper()
	var document map[string]any
	if err := json.Unmarshal(data, &document); err != nil {
		tb.Fatal(err)
	}
	annotations := document["metadata"].(map[string]any)["annotations"].(map[string]any)
	delete(annotations, AnnotationSignature)
	change(document)
	plain, err := json.Marshal(document)
	if err != nil {
		tb.Fatal(err)
	}
	if annotations[AnnotationSignature], err = key.sign(plain); err != nil {
		tb.Fatal(err)
	}
	if data, err = json.Marshal(document); err != nil {
		tb.Fatal(err)
	}
	return data
}

// Whatever lies where one of these is read is refused, or is of the kind and within the bounds;
// and what our key stands in is what we have signed, and where.
func FuzzDecoders(f *testing.F) {
	documents := signed(f)
	var originals []any
	for i, data := range documents {
		originals = append(originals, decoders[i](data))
		if originals[i] == nil {
			f.Fatalf("%s is refused", data)
		}
		f.Add(data, uint(len(data)/2), byte(1))
		f.Add(bytes.TrimSuffix(data, []byte("}")), uint(0), byte(' '^'\t'))
	}
	for _, seed := range []string{
		`{"uid":"u","clusterUID":"c"}`,
		`{"uid":"u","storeName":"shop.daily","snapshots":["a"],"requestedAt":"2026-11-22T00:00:00Z"}`,
		`{"request":"r","backups":[{"uid":"u","storeName":"shop.daily"}]}`,
		`{"items":[{"apiVersion":"v1","kind":"Pod","name":"a","action":"update","diff":{"a":[null]}}]}`,
		`null`, `{"uid":"u","storeName":"../daily"}`, "{}\n",
	} {
		f.Add([]byte(seed), uint(0), byte(0))
		f.Add(compress(f, seed), uint(12), byte(0x80))
	}
	f.Fuzz(func(t *testing.T, data []byte, at uint, mask byte) {
		inputs := [][]byte{data}
		for _, document := range documents {
			changed := bytes.Clone(document)
			changed[at%uint(len(changed))] ^= mask
			inputs = append(inputs, changed)
		}
		for _, input := range inputs {
			for i, decode := range decoders {
				if got := decode(input); got != nil && !reflect.DeepEqual(got, originals[i]) {
					t.Errorf("%s passes for what was signed, as %+v", input, got)
				}
			}
		}
		if owner, err := DecodeOwner(data); err == nil && owner.UID == "" {
			t.Errorf("nobody owns %s", data)
		}
		if removal, err := DecodeRemoval(data); err == nil && (removal.UID == "" || ValidateStoreName(removal.StoreName) != nil) {
			t.Errorf("removed is %+v", removal)
		}
		if removal, err := DecodeVolumeRemoval(data); err == nil {
			for _, of := range removal.Backups {
				if of.UID == "" || ValidateStoreName(of.StoreName) != nil {
					t.Errorf("removed are volumes of %+v", of)
				}
			}
		}
		for _, content := range [][]byte{data, compress(t, string(data))} {
			_, _ = ReadRestorePlan(bytes.NewReader(content)) // must not panic nor hang
		}
	})
}

// Nothing is decoded that is longer than its kind is ever read.
func TestDecodersAreBounded(t *testing.T) {
	for i, data := range signed(t) {
		for _, longer := range [][]byte{
			append(bytes.Clone(data), bytes.Repeat([]byte(" "), max(MaxMetadataBytes, MaxExpirationBytes))...),
			append(bytes.Repeat([]byte(" "), max(MaxMetadataBytes, MaxExpirationBytes)), data...),
		} {
			if decoders[i](longer) != nil {
				t.Errorf("decoder %d takes %d bytes", i, len(longer))
			}
		}
	}
	long := bytes.Repeat([]byte(" "), MaxRemovalBytes)
	if _, err := DecodeRemoval(append(long, `{"uid":"u","storeName":"daily"}`...)); err == nil {
		t.Error("a removal may have any length")
	}
	if _, err := DecodeVolumeRemoval(append(long, `{"backups":[]}`...)); err == nil {
		t.Error("a removal of volumes may have any length")
	}
}
