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
	for _, key := range []string{"", IndexesPrefix, IndexPrefix("here"), IndexPrefix("a/b") + "head-0000000000000001", IndexPrefix("here") + "head-f000000000000001", IndexPrefix("here") + "segment-x", "head-0000000000000001", "here/head-0000000000000001"} {
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
	for name, cluster := range map[string]Cluster{"key": {UID: "here"}, "uid": {Key: key}} {
		if _, err := EncodeIndexHead(want, nil, cluster); err == nil {
			t.Errorf("it needs no %s", name)
		}
	}
}

// What our key has signed is a head only with the kind, the version and the names of one.
func TestIndexHeadsAreNoOtherDocuments(t *testing.T) {
	data, err := EncodeIndexHead(IndexHead{Segments: []IndexSegment{NewIndexSegment([]byte("x"), 1, 2)}}, nil, cluster)
	if err != nil {
		t.Fatal(err)
	}
	line := bytes.TrimSuffix(data, []byte("\n"))
	spec := func(document map[string]any) map[string]any { return document["spec"].(map[string]any) }
	for name, change := range map[string]func(map[string]any){
		"kind":    func(document map[string]any) { document["kind"] = "BackupExpiration" },
		"version": func(document map[string]any) { document["apiVersion"] = "holdfast.io/v2" },
		"types":   func(document map[string]any) { spec(document)["boundaries"] = "a" },
		"segments": func(document map[string]any) {
			spec(document)["segments"].([]any)[0].(map[string]any)["sha256"] = "../../backups/x"
		},
	} {
		if head, _, err := DecodeIndexHead(append(signedAnew(t, line, change), '\n'), cluster.UID); err == nil {
			t.Errorf("with another %s it is %+v", name, head)
		}
	}
	if _, _, err := DecodeIndexHead(append(signedAnew(t, line, func(map[string]any) {}), '\n'), cluster.UID); err != nil {
		t.Error(err)
	}
	if _, _, err := DecodeIndexHead(line, cluster.UID); err == nil {
		t.Error("it needs no end of its line")
	}
}

// Nothing is written that is not read.
func TestIndexHeadsAreBounded(t *testing.T) {
	segments := make([]IndexSegment, MaxIndexSegments+1)
	for i := range segments {
		segments[i] = NewIndexSegment(nil, i, i)
	}
	head := IndexHead{Segments: segments[1:]}
	empty, err := EncodeIndexHead(head, nil, cluster)
	if err != nil {
		t.Fatal(err)
	}
	// The longest: the line says its size with seven more digits.
	newest := make([]byte, MaxIndexHeadBytes-len(empty)-7)
	longest, err := EncodeIndexHead(head, newest, cluster)
	if err != nil || len(longest) != MaxIndexHeadBytes {
		t.Fatalf("%d bytes: %v", len(longest), err)
	}
	if got, _, err := DecodeIndexHead(longest, cluster.UID); err != nil || len(got.Segments) != MaxIndexSegments {
		t.Error(err)
	}
	if _, err := EncodeIndexHead(head, append(newest, 0), cluster); err == nil {
		t.Error("one of more bytes is written")
	}
	if _, err := EncodeIndexHead(IndexHead{Segments: segments}, nil, cluster); err == nil {
		t.Error("one of more segments is written")
	}
	line := bytes.TrimSuffix(empty, []byte("\n"))
	more := signedAnew(t, line, func(document map[string]any) {
		spec := document["spec"].(map[string]any)
		spec["segments"] = append(spec["segments"].([]any), spec["segments"].([]any)[0])
	})
	if _, _, err := DecodeIndexHead(append(more, '\n'), cluster.UID); err == nil {
		t.Error("one of more segments is read")
	}
	short, err := EncodeIndexHead(IndexHead{Boundaries: []string{"a"}}, nil, cluster)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("a", maxIndexDocumentBytes-len(short)+2) // as long as a line may be, without its end
	longest, err = EncodeIndexHead(IndexHead{Boundaries: []string{long}}, nil, cluster)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := DecodeIndexHead(longest, cluster.UID); err != nil || len(longest) != maxIndexDocumentBytes+1 {
		t.Errorf("a line of %d bytes: %v", len(longest)-1, err)
	}
	if _, err := EncodeIndexHead(IndexHead{Boundaries: []string{long + "a"}}, nil, cluster); err == nil {
		t.Error("one with a longer line is written")
	}
}

func TestIndexSegment(t *testing.T) {
	segment := NewIndexSegment([]byte("all"), 2, 3)
	if segment.Size != 3 || segment.Entries != 2 || segment.Rows != 3 || !segment.Bears([]byte("all")) || segment.Bears([]byte("aLl")) {
		t.Errorf("%+v", segment)
	}
}
