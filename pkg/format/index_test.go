// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestIndexKeys(t *testing.T) {
	digest := strings.Repeat("0a", 32)
	for key, want := range map[string]int64{IndexHeadKey("here", 1): 1, IndexHeadKey("here", 1<<62): 1 << 62} {
		if uid, number, d, ok := ParseIndexKey(key); !ok || uid != "here" || number != want || d != "" || !strings.HasPrefix(key, "metadata/holdfast/") {
			t.Errorf("%s: %s %d %s %v", key, uid, number, d, ok)
		}
	}
	if uid, _, d, ok := ParseIndexKey(IndexSegmentKey("here", digest)); !ok || uid != "here" || d != digest {
		t.Errorf("a segment: %s %s %v", uid, d, ok)
	}
	if IndexHeadKey("here", 9) >= IndexHeadKey("here", 10) {
		t.Error("heads are not listed in the order of their numbers")
	}
	for _, key := range []string{"", IndexesPrefix, IndexPrefix("here"), IndexPrefix("a/b") + "head-0000000000000001", IndexPrefix("here") + "head-f000000000000001", IndexPrefix("here") + "segment-x", "head-0000000000000001"} {
		if _, _, _, ok := ParseIndexKey(key); ok {
			t.Errorf("%q is a key of an index", key)
		}
	}
}

func TestIndexHead(t *testing.T) {
	key, err := NewSigningKey(bytes.NewReader(make([]byte, 32)))
	if err != nil {
		t.Fatal(err)
	}
	want := IndexHead{Segments: []IndexSegment{NewIndexSegment([]byte("x"), 1, 2)}, Boundaries: []string{"a", "b"}}
	data, err := EncodeIndexHead(want, []byte("newest\nof all"), Cluster{UID: "here", Key: key})
	if err != nil {
		t.Fatal(err)
	}
	got, newest, err := DecodeIndexHead(data, "here")
	want.ClusterUID, want.PublicKey = "here", key.PublicKey()
	if diff := cmp.Diff(&want, got); diff != "" || string(newest) != "newest\nof all" || err != nil {
		t.Errorf("%s %q %v", diff, newest, err)
	}
	if _, _, err := DecodeIndexHead(data, "there"); err == nil {
		t.Error("it is of another cluster, too")
	}
	for i := range data {
		changed := bytes.Clone(data)
		changed[i] ^= 1
		if _, _, err := DecodeIndexHead(changed, "here"); err == nil {
			t.Fatalf("byte %d, %q, can be changed", i, data[i])
		}
		if _, _, err := DecodeIndexHead(data[:i], "here"); err == nil {
			t.Fatalf("it can be cut at %d", i)
		}
	}
	if _, err := EncodeIndexHead(want, nil, Cluster{UID: "here"}); err == nil {
		t.Error("it needs no key")
	}
}
