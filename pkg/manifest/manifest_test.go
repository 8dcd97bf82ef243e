// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	stdgzip "compress/gzip"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"pgregory.net/rapid"
)

var kinds = []Item{
	{APIVersion: "v1", KindName: "Pod", Resource: "pods"},
	{APIGroup: "apps", APIVersion: "v1", KindName: "Deployment", Resource: "deployments"},
	{APIGroup: "apps", APIVersion: "v1", KindName: "ReplicaSet", Resource: "replicasets"},
	{APIGroup: "example.com", APIVersion: "v1", KindName: "Widget", Resource: "widgets"},
	{APIGroup: "apiextensions.k8s.io", APIVersion: "v1", KindName: "CustomResourceDefinition", Resource: "customresourcedefinitions"},
}

// drawItems draws items with identities and uids of their own, in any order.
func drawItems(t *rapid.T, label string) []*Item {
	seen, count := sets.New[string](), 0
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *Item {
		item := rapid.SampledFrom(kinds).Draw(t, "kind")
		item.Namespace = rapid.SampledFrom([]string{"", "a", "a-b", "b"}).Draw(t, "namespace")
		item.Name = rapid.SampledFrom([]string{"widgets.example.com", "x", "y-0", "ü", "z"}).Draw(t, "name")
		count++
		item.UID = fmt.Sprint(count)
		item.OwnerUIDs = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string { return fmt.Sprint(rapid.IntRange(1, 12).Draw(t, "owner")) }), 0, 3).Draw(t, "owners")
		item.SHA256 = rapid.SampledFrom([]string{"one", "other"}).Draw(t, "digest")
		item.Labels = rapid.SampledFrom([]map[string]string{nil, {"app": "<ü>"}}).Draw(t, "labels")
		return &item
	}), 0, 12).Filter(func(items []*Item) bool {
		seen.Clear()
		for _, item := range items {
			if seen.Has(item.String()) {
				return false
			}
			seen.Insert(item.String())
		}
		return true
	}).Draw(t, label)
}

func build(t interface{ Fatal(...any) }, items []*Item) *Manifest {
	m := New()
	for _, item := range items {
		if added, err := m.Add(item); !added || err != nil {
			t.Fatal(item, added, err)
		}
	}
	return m
}

func collect(t interface{ Fatal(...any) }, sequence Sequence) []*Item {
	var items []*Item
	for item, err := range sequence {
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, item)
	}
	return items
}

func encode(t interface{ Fatal(...any) }, items []*Item) []byte {
	w := Writer{Comment: "uid"}
	for _, item := range items {
		if err := w.Add(item); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	n, err := w.WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatal(n, b.Len(), err)
	}
	return b.Bytes()
}

var ignoreManifest = cmpopts.IgnoreFields(Item{}, "Manifest")

// What was added is in the set, once; owners and children are each other's inverse; and a
// custom resource knows its definition.
func TestGraph(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		items := drawItems(t, "items")
		m := build(t, items)
		want := sets.New[string]()
		for _, item := range items {
			want.Insert(item.String())
			other := *item
			if added, err := m.Add(&other); added || !errors.Is(err, ItemAlreadyExists) {
				t.Fatal(added, err)
			}
			for _, owner := range item.Owners() {
				if !slices.Contains(owner.Children(), item) || !slices.Contains(item.OwnerUIDs, owner.UID) {
					t.Fatalf("%s is no child of its owner %s", item, owner)
				}
			}
			for _, child := range item.Children() {
				if !slices.Contains(child.Owners(), item) {
					t.Fatalf("%s does not own its child %s", item, child)
				}
			}
			for _, uid := range item.OwnerUIDs {
				if owner := m.Index[uid]; owner != nil && !slices.Contains(item.Owners(), owner) {
					t.Fatalf("%s lacks its owner %s", item, owner)
				}
			}
			definition := m.Kinds["apiextensions.k8s.io/v1/CustomResourceDefinition"][""]["widgets.example.com"]
			if item.APIGroup != "example.com" {
				definition = nil
			}
			if item.Kind() != definition {
				t.Fatalf("the kind of %s is %v, not %v", item, item.Kind(), definition)
			}
		}
		if !m.Set().Equal(want) || m.Set().Len() != len(items) {
			t.Fatalf("the set is %v, not %v", m.Set(), want)
		}
	})
}

// A diff that is applied to the one manifest gives the other.
func TestDiff(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := build(t, drawItems(t, "a")), build(t, drawItems(t, "b"))
		patched := map[string]string{}
		for item := range a.Items() {
			patched[item.String()] = item.SHA256
		}
		for pair, err := range Diff(a.Sequence(), b.Sequence()) {
			switch {
			case err != nil:
				t.Fatal(err)
			case pair.B == nil:
				delete(patched, pair.A.String())
			default:
				patched[pair.B.String()] = pair.B.SHA256
				if pair.A != nil && pair.A.SHA256 == pair.B.SHA256 {
					t.Fatalf("%s is the same in both", pair.A)
				}
			}
		}
		want := map[string]string{}
		for item := range b.Items() {
			want[item.String()] = item.SHA256
		}
		if diff := cmp.Diff(want, patched); diff != "" {
			t.Fatal(diff)
		}
	})
}

// What is read is what was written, in order, in whichever it came; any reader of gzip and
// JSON reads it, and each item is found by three reads.
func TestDocument(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		items := drawItems(t, "items")
		checkDocument(t, items, encode(t, items), items)
	})
}

// So it is with many members, of which items came in two orders.
func TestLargeDocument(t *testing.T) {
	var items []*Item
	for i := range 6000 {
		item := kinds[i%3]
		item.Namespace, item.Name, item.UID = fmt.Sprint("n", i%7), fmt.Sprintf("o%06d", (i*7919)%6000), fmt.Sprint(i)
		item.SHA256 = strings.Repeat("ab", 32)
		items = append(items, &item)
	}
	for name, order := range map[string]func(a, b *Item) int{"ordered": Compare, "unordered": func(a, b *Item) int { return Compare(b, a) }} {
		t.Run(name, func(t *testing.T) {
			slices.SortFunc(items, order)
			document := encode(t, items)
			checkDocument(t, items, document, items[:50])
			if members := bytes.Count(document, []byte{0x1f, 0x8b, 8}); members < 10 {
				t.Errorf("there are only %d members", members)
			}
		})
	}
}

// However many members there are, and in whichever order their items came, the document is the
// same.
func TestMembersAreMerged(t *testing.T) {
	var ordered []*Item
	for i := range 4 * 2 * mergeWidth { // of which some four fill a member
		item := kinds[0]
		item.Name, item.UID, item.Annotations = fmt.Sprintf("o%06d", i), fmt.Sprint(i), map[string]string{"a": strings.Repeat("b", memberBytes/4)}
		ordered = append(ordered, &item)
	}
	want := encode(t, ordered)
	reversed := slices.Clone(ordered)
	slices.Reverse(reversed)
	var shuffled []*Item
	for i := range ordered {
		shuffled = append(shuffled, ordered[i*7919%len(ordered)])
	}
	for name, items := range map[string][]*Item{
		"reversed": reversed, "shuffled": shuffled, "two lists": slices.Concat(ordered[100:], ordered[:100]),
	} {
		if !bytes.Equal(encode(t, items), want) {
			t.Errorf("%s, it is another document", name)
		}
	}
}

func checkDocument(t interface {
	Fatal(...any)
	Fatalf(string, ...any)
}, items []*Item, document []byte, find []*Item,
) {
	want := slices.SortedFunc(slices.Values(items), Compare)
	if diff := cmp.Diff(want, collect(t, Read(bytes.NewReader(document))), ignoreManifest, cmpopts.EquateEmpty()); diff != "" {
		t.Fatal(diff)
	}
	r, err := stdgzip.NewReader(bytes.NewReader(document))
	if err != nil || r.Comment != "uid" {
		t.Fatal(r, err)
	}
	var whole struct {
		Version int
		Items   []*Item
		Index   []json.RawMessage
	}
	decoder := json.NewDecoder(r)
	if err := decoder.Decode(&whole); err != nil {
		t.Fatal(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		t.Fatal("there is more than one JSON value")
	}
	if diff := cmp.Diff(want, whole.Items, ignoreManifest, cmpopts.EquateEmpty()); diff != "" || whole.Version != Version {
		t.Fatal(whole.Version, diff)
	}
	reads := 0
	ranges := func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
		reads++
		return io.NopCloser(io.NewSectionReader(bytes.NewReader(document), offset, length)), nil
	}
	index, err := ReadIndex(context.Background(), ranges, int64(len(document)))
	if err != nil || reads > 1 {
		t.Fatal(reads, err)
	}
	if diff := cmp.Diff(want, collect(t, index.Read(context.Background(), index.Kinds()...)), ignoreManifest, cmpopts.EquateEmpty()); diff != "" {
		t.Fatal(diff)
	}
	if kinds := index.Kinds(); len(kinds) > 1 {
		some := []string{kinds[0], kinds[len(kinds)-1]}
		of := slices.DeleteFunc(slices.Clone(want), func(i *Item) bool { return !slices.Contains(some, i.GroupKind()) })
		if diff := cmp.Diff(of, collect(t, index.Read(context.Background(), some...)), ignoreManifest, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	}
	for _, item := range find {
		for _, name := range []string{item.Name, item.Name + "0"} {
			reads = 0
			found, err := index.Find(context.Background(), item.GroupKind(), item.Namespace, name)
			if err != nil || reads > 1 {
				t.Fatal(reads, err)
			}
			if name == item.Name && cmp.Diff(item, found, ignoreManifest, cmpopts.EquateEmpty()) != "" || name != item.Name && found != nil {
				t.Fatalf("%s is found as %v", item, found)
			}
		}
	}
}

// An item that is as large as its object likes loses what makes it so.
func TestLargeItems(t *testing.T) {
	item := kinds[0]
	item.Name, item.Annotations, item.OwnerUIDs = "x", map[string]string{"a": strings.Repeat("b", 1<<20)}, []string{"1"}
	got := collect(t, Read(bytes.NewReader(encode(t, []*Item{&item}))))
	if len(got) != 1 || !got[0].Unannotated || got[0].Annotations != nil || got[0].Shortened || len(got[0].OwnerUIDs) != 1 || got[0].Name != "x" {
		t.Errorf("it is %+v", got)
	}
	item.OwnerUIDs = []string{strings.Repeat("1", maxItemBytes)}
	// Nothing else has the original.
	for size, kept := range map[int]bool{maxItemBytes / 2: true, maxItemBytes: false} {
		item.Original = fmt.Appendf(nil, "{%q:%q}", "spec", strings.Repeat("o", size))
		got := collect(t, Read(bytes.NewReader(encode(t, []*Item{&item}))))
		if len(got) != 1 || !got[0].Unannotated || !got[0].Shortened || got[0].Annotations != nil || got[0].OwnerUIDs != nil || (got[0].Original != nil) != kept {
			t.Errorf("with an original of %d bytes it is %.200v", size, got)
		}
	}
}

// However much the objects have in their annotations, and in what else they like, all items
// hold no more than a budget and little for each beyond it; none is missing, and owners and
// references go last.
func TestBudget(t *testing.T) {
	const count, budget, least = 4000, 512 << 10, 100
	w := Writer{Comment: "uid", budget: budget}
	random := rand.NewChaCha8([32]byte{})
	noise := func(size int) string {
		b := make([]byte, size)
		_, _ = random.Read(b) // never fails
		return hex.EncodeToString(b)
	}
	var items []*Item
	for i := range count {
		item := kinds[i%3]
		item.Namespace, item.Name, item.UID = fmt.Sprint("n", i%7), fmt.Sprintf("o%06d", (i*7919)%count), fmt.Sprint(i)
		item.SHA256, item.Annotations = noise(32), map[string]string{"a": noise(1500)}
		item.OwnerUIDs, item.References = []string{fmt.Sprint(i / 2), noise(100)}, []Reference{{KindName: "Secret", Name: "s"}}
		items = append(items, &item)
		if err := w.Add(&item); err != nil {
			t.Fatal(err)
		}
	}
	if w.held < budget || w.held > budget+count*least {
		t.Fatalf("%d bytes are held", w.held)
	}
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	whole, unannotated, shortened := 0, 0, 0
	var written []*Item
	read := map[string]*Item{}
	for _, item := range collect(t, Read(bytes.NewReader(b.Bytes()))) {
		read[item.String()] = item
	}
	for _, item := range items { // as they were added, each begins to do without what the one before had
		want := *item
		switch got := read[item.String()]; {
		case got == nil:
			t.Fatalf("%s is missing", item)
		case got.Shortened:
			shortened++
			want.Annotations, want.Unannotated, want.Shortened = nil, true, true
			want.Labels, want.OwnerUIDs, want.References = nil, nil, nil
		case got.Unannotated && shortened == 0:
			unannotated++
			want.Annotations, want.Unannotated = nil, true
		case unannotated+shortened == 0:
			whole++
		default:
			t.Fatalf("%s is whole behind ones that are not", item)
		}
		written = append(written, &want)
	}
	if whole < 100 || unannotated < 100 || shortened < 100 {
		t.Fatalf("%d are whole, %d without annotations, %d without all", whole, unannotated, shortened)
	}
	checkDocument(t, written, b.Bytes(), written[count-50:])
	if m, all := build(t, written), build(t, items); !m.Set().Equal(all.Set()) || len(m.Index) != count || len(m.Index[fmt.Sprint(whole)].Owners()) != 1 {
		t.Error("the graph is not whole")
	}
}

// What no reader would read is not written.
func TestLargerThanWhatIsRead(t *testing.T) {
	var index, plain Writer
	item := kinds[0]
	item.Name = "x"
	if err := plain.Add(&item); err != nil {
		t.Fatal(err)
	}
	plain.plain = MaxBytes - memberBytes
	for i := range maxIndexBytes >> 16 {
		item.KindName = fmt.Sprint(strings.Repeat("K", 1<<16), i)
		if err := index.Add(&item); err != nil {
			t.Fatal(err)
		}
	}
	for name, w := range map[string]*Writer{"plain": &plain, "index": &index} {
		if _, err := w.WriteTo(io.Discard); err == nil || !strings.Contains(err.Error(), "larger than what is read") {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
}

// A document that is cut short or damaged anywhere is an error, or what it says is what was
// written.
func TestDamage(t *testing.T) {
	var items []*Item
	for i := range 300 {
		item := kinds[i%5]
		item.Name, item.UID = fmt.Sprintf("o%06d", i), fmt.Sprint(i)
		items = append(items, &item)
	}
	document := encode(t, items)
	for length := range len(document) - footerBytes {
		var err error
		for _, err = range Read(bytes.NewReader(document[:length])) {
			if err != nil {
				break
			}
		}
		if !errors.Is(err, ErrFormat) {
			t.Fatalf("of %d bytes of %d the error is %v", length, len(document), err)
		}
	}
	for _, other := range []string{"", "{}", `{"version":2,"items":[` + "\n],\"index\":[]}\n", `{"version":1,"items":[` + "\n{}\n],\"index\":[]}\n", `{"version":1,"items":[` + "\n" + strings.Repeat("x", maxLine) + "\n],\"index\":[]}\n"} {
		var b bytes.Buffer
		w := stdgzip.NewWriter(&b)
		_, _ = io.WriteString(w, other)
		_ = w.Close()
		if err := read(&b, func(*Item) bool { return true }); !errors.Is(err, ErrFormat) {
			t.Errorf("of %.40q the error is %v", other, err)
		}
	}
}

// What decompresses to far more than a manifest has, in lines or without, is refused before
// it has taken much time or memory.
func TestBombs(t *testing.T) {
	const kind = "apps/v1/Deployment"
	zip := func(text ...string) []byte {
		var b bytes.Buffer
		w := stdgzip.NewWriter(&b)
		for _, part := range text {
			_, _ = io.WriteString(w, part)
		}
		_ = w.Close()
		return b.Bytes()
	}
	item := kinds[1]
	item.Name = "x"
	whole, err := json.Marshal(&item)
	if err != nil {
		t.Fatal(err)
	}
	for name, member := range map[string][]byte{
		"empty lines":   zip(strings.Repeat("\n", 64<<20)),
		"separators":    zip(strings.Repeat(",\n", 32<<20)),
		"one line":      zip(strings.Repeat(" ", 64<<20)),
		"the same item": zip(string(whole), strings.Repeat(",\n"+string(whole), 500_000)),
	} {
		document := zip("{\"version\":1,\"items\":[\n")
		entry := indexEntry{kind, "/a", int64(len(document)), int64(len(member))}
		index, err := json.Marshal([]indexEntry{entry})
		if err != nil {
			t.Fatal(err)
		}
		document = append(document, member...)
		at := int64(len(document))
		document = append(document, zip("\n", itemsEnd, string(index), "}\n")...)
		document = append(document, footer(at)...)
		found, err := ReadIndex(t.Context(), func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
			return io.NopCloser(io.NewSectionReader(bytes.NewReader(document), offset, length)), nil
		}, int64(len(document)))
		if err != nil {
			t.Fatal(name, err)
		}
		if _, err := found.Find(t.Context(), kind, "", "y"); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: Find: %v", name, err)
		}
		count := 0
		for _, err = range found.Read(t.Context(), kind) {
			count++
		}
		if !errors.Is(err, ErrFormat) || count > 2 {
			t.Errorf("%s: Read of the kind: %d items, %v", name, count, err)
		}
		if name == "the same item" {
			continue // Compare finds that
		}
		for _, err = range Read(bytes.NewReader(document)) {
		}
		if !errors.Is(err, ErrFormat) {
			t.Errorf("%s: Read: %v", name, err)
		}
	}
	// An index of entries that are none is refused at its first.
	document := zip("{\"version\":1,\"items\":[\n")
	at := int64(len(document))
	document = append(document, zip("\n", itemsEnd, "[", strings.Repeat("{},", 2<<20), "{}]}\n")...)
	document = append(document, footer(at)...)
	if _, err := ReadIndex(t.Context(), func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(bytes.NewReader(document), offset, length)), nil
	}, int64(len(document))); !errors.Is(err, ErrFormat) {
		t.Errorf("an index of nothing: %v", err)
	}
}

// An index names members that lie in the document, one behind the other and in order.
func TestIndexesThatAreNone(t *testing.T) {
	const first = `{"kind":"a","first":"/a","at":10,"size":5}`
	entry := func(kind, first string, at, size int64) string {
		encoded, err := json.Marshal(indexEntry{kind, first, at, size})
		if err != nil {
			t.Fatal(err)
		}
		return string(encoded)
	}
	for name, c := range map[string]struct {
		encoded string
		entries int // or -1
	}{
		"none":                   {`[]`, 0},
		"one":                    {`[` + first + `]`, 1},
		"up to its end":          {`[` + first + `,` + entry("a", "/b", 15, 85) + `]`, 2},
		"of two kinds":           {`[` + first + `,` + entry("b", "/a", 20, 5) + `]`, 2},
		"as large as one may be": {`[` + entry("a", "/a", 10, maxIndexBytes) + `]`, 1},
		"larger":                 {`[` + entry("a", "/a", 10, maxIndexBytes+1) + `]`, -1},
		"beyond its end":         {`[` + first + `,` + entry("a", "/b", 15, 2*maxIndexBytes) + `]`, -1},
		"across the one before":  {`[` + first + `,` + entry("a", "/b", 14, 5) + `]`, -1},
		"before the beginning":   {`[` + entry("a", "/a", -1, 5) + `]`, -1},
		"empty":                  {`[` + entry("a", "/a", 10, 0) + `]`, -1},
		"of less than nothing":   {`[` + entry("a", "/a", 10, -5) + `]`, -1},
		"of no kind":             {`[` + entry("", "/a", 10, 5) + `]`, -1},
		"twice the same":         {`[` + first + `,` + entry("a", "/a", 20, 5) + `]`, -1},
		"names in no order":      {`[` + entry("a", "/b", 10, 5) + `,` + entry("a", "/a", 20, 5) + `]`, -1},
		"kinds in no order":      {`[` + entry("b", "/a", 10, 5) + `,` + entry("a", "/b", 20, 5) + `]`, -1},
		"no list":                {`{"a":` + first + `}`, -1},
		"nothing":                {``, -1},
		"no entries":             {`["a"]`, -1},
		"without an end":         {`[` + first, -1},
	} {
		end := int64(100)
		if strings.HasPrefix(name, "as large") || name == "larger" {
			end = 10 + maxIndexBytes + 1
		}
		members, err := decodeIndex(c.encoded, end)
		if (err != nil) != (c.entries < 0) || len(members) != max(0, c.entries) {
			t.Errorf("%s: %v, %v", name, members, err)
		}
	}
}

// An answer that fails or is not whole is an error: it does not say that an item is not there.
func TestPartsThatAreNotWhole(t *testing.T) {
	var items []*Item
	for i := range 3000 {
		item := kinds[1]
		item.Name, item.SHA256 = fmt.Sprintf("o%06d", i), strings.Repeat("ab", 32)
		items = append(items, &item)
	}
	document := encode(t, items)
	size := int64(len(document))
	whole := func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(bytes.NewReader(document), offset, length)), nil
	}
	index, err := ReadIndex(t.Context(), whole, size)
	if err != nil || len(index.members) < 3 {
		t.Fatalf("%d members, %v", len(index.members), err)
	}
	errAway := errors.New("the store is away")
	away := func(context.Context, int64, int64) (io.ReadCloser, error) { return nil, errAway }
	if _, err := ReadIndex(t.Context(), away, size); !errors.Is(err, errAway) {
		t.Errorf("the index: %v", err)
	}
	for name, found := range map[string]*Index{
		"away": {away, index.members},
		"cut short": {func(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
			return whole(ctx, offset, length-1)
		}, index.members},
		"elsewhere": {func(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
			return whole(ctx, offset+1, length)
		}, index.members},
		"of another kind": {whole, func() []indexEntry {
			members := slices.Clone(index.members)
			for i := range members {
				members[i].Kind = "z"
			}
			return members
		}()},
		"of an earlier kind": {whole, func() []indexEntry {
			members := slices.Clone(index.members)
			for i := range members {
				members[i].Kind = "a"
			}
			return members
		}()},
	} {
		if item, err := found.Find(t.Context(), found.members[0].Kind, "", "x"); err == nil {
			t.Errorf("%s: Find: %v", name, item)
		}
		var err error
		for _, err = range found.Read(t.Context(), found.Kinds()...) {
		}
		if err == nil {
			t.Errorf("%s: all are read", name)
		}
	}
	// Of some members the first ones come, each of them whole.
	last := index.members[len(index.members)-1]
	some := &Index{func(ctx context.Context, offset, _ int64) (io.ReadCloser, error) {
		return whole(ctx, offset, last.At-offset)
	}, index.members}
	for _, err = range some.Read(t.Context(), index.Kinds()...) {
	}
	if !errors.Is(err, ErrFormat) {
		t.Errorf("without the last member: %v", err)
	}

	for name, at := range map[string]int64{"before it": -1, "behind it": size - footerBytes + 1, "elsewhere": 1} {
		changed := append(bytes.Clone(document[:size-footerBytes]), footer(at)...)
		if _, err := ReadIndex(t.Context(), func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
			return io.NopCloser(io.NewSectionReader(bytes.NewReader(changed), offset, length)), nil
		}, size); !errors.Is(err, ErrFormat) {
			t.Errorf("an index %s: %v", name, err)
		}
	}
	for _, length := range []int64{0, footerBytes - 1, footerBytes, size - 1, size + 1} {
		if _, err := ReadIndex(t.Context(), whole, length); !errors.Is(err, ErrFormat) {
			t.Errorf("of %d bytes: %v", length, err)
		}
	}
	changed := bytes.Clone(document)
	changed[size-1] ^= 1
	if _, err := ReadIndex(t.Context(), func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(bytes.NewReader(changed), offset, length)), nil
	}, size); !errors.Is(err, ErrFormat) {
		t.Errorf("with another end: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	item := kinds[1]
	item.Name = "x"
	document := encode(f, []*Item{&item})
	f.Add(document)
	f.Add(document[:len(document)-footerBytes])
	f.Fuzz(func(t *testing.T, data []byte) {
		for item, err := range Read(bytes.NewReader(data)) {
			if err != nil && !errors.Is(err, ErrFormat) || err == nil && item.Name == "" {
				t.Fatal(item, err)
			}
		}
		index, err := ReadIndex(t.Context(), func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
			return io.NopCloser(io.NewSectionReader(bytes.NewReader(data), offset, length)), nil
		}, int64(len(data)))
		if err == nil {
			_, err = index.Find(t.Context(), "apps/v1/Deployment", "", "x")
		}
		if err == nil {
			for item, failed := range index.Read(t.Context(), index.Kinds()...) {
				if err = failed; err == nil && item.Name == "" {
					t.Fatal(item)
				}
			}
		}
		if err != nil && !errors.Is(err, ErrFormat) {
			t.Fatal(err)
		}
	})
}

func TestReferences(t *testing.T) {
	for _, test := range []struct {
		kind, object string
		want         []string
	}{
		{"/Pod", `{"spec":{"serviceAccountName":"sa","priorityClassName":"high","runtimeClassName":"kata","imagePullSecrets":[{"name":"pull"}],
			"containers":[{"envFrom":[{"secretRef":{"name":"from"}},{"configMapRef":{"name":"from"}}],"env":[{"name":"a","valueFrom":{"secretKeyRef":{"name":"key"}}},{"name":"b","value":"x"}]}],
			"initContainers":[{"env":[{"name":"c","valueFrom":{"configMapKeyRef":{"name":"key"}}}]}],
			"volumes":[{"persistentVolumeClaim":{"claimName":"data"}},{"secret":{"secretName":"pull"}},{"configMap":{"name":"conf"}},{"projected":{"sources":[{"secret":{"name":"p"}},{"configMap":{"name":"p"}}]}}]}}`,
			[]string{"/ConfigMap/shop/conf", "/ConfigMap/shop/from", "/ConfigMap/shop/key", "/ConfigMap/shop/p", "/PersistentVolumeClaim/shop/data", "/Secret/shop/from", "/Secret/shop/key", "/Secret/shop/p", "/Secret/shop/pull", "/ServiceAccount/shop/sa", "node.k8s.io/RuntimeClass//kata", "scheduling.k8s.io/PriorityClass//high"}},
		{"apps/StatefulSet", `{"spec":{"serviceName":"db","template":{"spec":{"serviceAccountName":"sa"}},"volumeClaimTemplates":[{"spec":{"storageClassName":"fast"}}]}}`,
			[]string{"/Service/shop/db", "/ServiceAccount/shop/sa", "storage.k8s.io/StorageClass//fast"}},
		{"/Pod", `{"spec":{"volumes":[{"azureFile":{"secretName":"azure"}},{"rbd":{"secretRef":{"name":"rbd"}}},{"iscsi":{"secretRef":{"name":"iscsi"}}},{"flexVolume":{"secretRef":{"name":"flex"}}},
			{"cephfs":{"secretRef":{"name":"ceph"}}},{"scaleIO":{"secretRef":{"name":"scale"}}},{"storageos":{"secretRef":{"name":"os"}}},{"rbd":{}},{"csi":{"nodePublishSecretRef":{"name":"csi"}}}]}}`,
			[]string{"/Secret/shop/azure", "/Secret/shop/ceph", "/Secret/shop/csi", "/Secret/shop/flex", "/Secret/shop/iscsi", "/Secret/shop/os", "/Secret/shop/rbd", "/Secret/shop/scale"}},
		{"apps/Deployment", `{"spec":{"template":{"spec":{"serviceAccountName":"sa"}}}}`, []string{"/ServiceAccount/shop/sa"}},
		{"apps/ReplicaSet", `{"spec":{"template":{"spec":{"serviceAccountName":"sa"}}}}`, []string{"/ServiceAccount/shop/sa"}},
		{"apps/DaemonSet", `{"spec":{"template":{"spec":{"serviceAccountName":"sa"}}}}`, []string{"/ServiceAccount/shop/sa"}},
		{"batch/Job", `{"spec":{"template":{"spec":{"serviceAccountName":"sa"}}}}`, []string{"/ServiceAccount/shop/sa"}},
		{"/PodTemplate", `{"template":{"spec":{"serviceAccountName":"sa"}}}`, []string{"/ServiceAccount/shop/sa"}},
		{"/ReplicationController", `{"spec":{"template":{"spec":{"serviceAccountName":"sa"}}}}`, []string{"/ServiceAccount/shop/sa"}},
		{"/ReplicationController", `{"spec":{}}`, nil},
		{"batch/CronJob", `{"spec":{"jobTemplate":{"spec":{"template":{"spec":{"serviceAccountName":"sa"}}}}}}`, []string{"/ServiceAccount/shop/sa"}},
		{"/PersistentVolumeClaim", `{"spec":{"volumeName":"pv","storageClassName":"fast","dataSource":{"apiGroup":"snapshot.storage.k8s.io","kind":"VolumeSnapshot","name":"s"}}}`,
			[]string{"/PersistentVolume//pv", "snapshot.storage.k8s.io/VolumeSnapshot/shop/s", "storage.k8s.io/StorageClass//fast"}},
		{"/PersistentVolume", `{"spec":{"storageClassName":"fast","claimRef":{"namespace":"shop","name":"data"},"csi":{"nodeStageSecretRef":{"namespace":"csi","name":"s"}}}}`,
			[]string{"/PersistentVolumeClaim/shop/data", "/Secret/csi/s", "storage.k8s.io/StorageClass//fast"}},
		{"/PersistentVolumeClaim", `{"metadata":{"annotations":{"volume.beta.kubernetes.io/storage-class":"old"}},"spec":{}}`, []string{"storage.k8s.io/StorageClass//old"}},
		{"/PersistentVolume", `{"metadata":{"annotations":{"volume.beta.kubernetes.io/storage-class":"old"}},"spec":{}}`, []string{"storage.k8s.io/StorageClass//old"}},
		{"apps/StatefulSet", `{"spec":{"volumeClaimTemplates":[{"metadata":{"annotations":{"volume.beta.kubernetes.io/storage-class":"old"}}}]}}`, []string{"storage.k8s.io/StorageClass//old"}},
		{"/Pod", `{"spec":{"volumes":[{"ephemeral":{"volumeClaimTemplate":{"metadata":{"annotations":{"volume.beta.kubernetes.io/storage-class":"old"}}}}}]}}`, []string{"storage.k8s.io/StorageClass//old"}},
		{"/PersistentVolumeClaim", `{"spec":{"dataSource":{"kind":"PersistentVolumeClaim","name":"other"},"dataSourceRef":{"kind":"PersistentVolumeClaim","name":"other"}}}`, []string{"/PersistentVolumeClaim/shop/other"}},
		{"/PersistentVolumeClaim", `{"spec":{"dataSourceRef":{"apiGroup":"snapshot.storage.k8s.io","kind":"VolumeSnapshot","namespace":"bank","name":"s"}}}`, []string{"snapshot.storage.k8s.io/VolumeSnapshot/bank/s"}},
		{"/PersistentVolume", `{"spec":{"claimRef":{"namespace":"shop","name":"data"},"azureFile":{"secretName":"azure","secretNamespace":"ns"}}}`, []string{"/PersistentVolumeClaim/shop/data", "/Secret/ns/azure"}},
		{"/PersistentVolume", `{"spec":{"claimRef":{"namespace":"shop","name":"data"},"azureFile":{"secretName":"azure"}}}`, []string{"/PersistentVolumeClaim/shop/data", "/Secret/shop/azure"}},
		{"/PersistentVolume", `{"spec":{"rbd":{"secretRef":{"namespace":"ns","name":"rbd"}}}}`, []string{"/Secret/ns/rbd"}},
		{"/PersistentVolume", `{"spec":{"iscsi":{"secretRef":{"namespace":"ns","name":"iscsi"}}}}`, []string{"/Secret/ns/iscsi"}},
		{"/PersistentVolume", `{"spec":{"flexVolume":{"secretRef":{"namespace":"ns","name":"flex"}}}}`, []string{"/Secret/ns/flex"}},
		{"/PersistentVolume", `{"spec":{"cephfs":{"secretRef":{"namespace":"ns","name":"ceph"}}}}`, []string{"/Secret/ns/ceph"}},
		{"/PersistentVolume", `{"spec":{"scaleIO":{"secretRef":{"namespace":"ns","name":"scale"}}}}`, []string{"/Secret/ns/scale"}},
		{"/PersistentVolume", `{"spec":{"storageos":{"secretRef":{"namespace":"ns","name":"os"}}}}`, []string{"/Secret/ns/os"}},
		{"/PersistentVolume", `{"spec":{"storageos":{}}}`, nil},
		{"/ServiceAccount", `{"secrets":[{"name":"token"}],"imagePullSecrets":[{"name":"pull"}]}`, []string{"/Secret/shop/pull", "/Secret/shop/token"}},
		{"rbac.authorization.k8s.io/RoleBinding", `{"roleRef":{"kind":"ClusterRole","name":"edit"},"subjects":[{"kind":"ServiceAccount","name":"sa"},{"kind":"User","name":"me"},{"kind":"ServiceAccount","namespace":"bank","name":"sa"}]}`,
			[]string{"/ServiceAccount/bank/sa", "/ServiceAccount/shop/sa", "rbac.authorization.k8s.io/ClusterRole//edit"}},
		{"rbac.authorization.k8s.io/RoleBinding", `{"roleRef":{"kind":"Role","name":"own"}}`, []string{"rbac.authorization.k8s.io/Role/shop/own"}},
		{"rbac.authorization.k8s.io/ClusterRoleBinding", `{"roleRef":{"kind":"ClusterRole","name":"edit"},"subjects":[{"kind":"ServiceAccount","namespace":"bank","name":"sa"},{"kind":"Group","name":"us"}]}`,
			[]string{"/ServiceAccount/bank/sa", "rbac.authorization.k8s.io/ClusterRole//edit"}},
		{"networking.k8s.io/Ingress", `{"spec":{"defaultBackend":{"resource":{"kind":"ConfigMap","name":"page"}},"rules":[{"http":{"paths":[{"backend":{"resource":{"apiGroup":"k8s.example.com","kind":"StorageBucket","name":"static"}}}]}}]}}`,
			[]string{"/ConfigMap/shop/page", "k8s.example.com/StorageBucket/shop/static"}},
		{"networking.k8s.io/Ingress", `{"spec":{"ingressClassName":"nginx","tls":[{"secretName":"cert"}],"defaultBackend":{"service":{"name":"web"}},"rules":[{"http":{"paths":[{"backend":{"service":{"name":"api"}}}]}},{}]}}`,
			[]string{"/Secret/shop/cert", "/Service/shop/api", "/Service/shop/web", "networking.k8s.io/IngressClass//nginx"}},
		{"autoscaling/HorizontalPodAutoscaler", `{"spec":{"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"web"}}}`, []string{"apps/Deployment/shop/web"}},
		{"admissionregistration.k8s.io/ValidatingWebhookConfiguration", `{"webhooks":[{"clientConfig":{"service":{"namespace":"op","name":"hook"}}},{"clientConfig":{"url":"https://x"}}]}`, []string{"/Service/op/hook"}},
		{"admissionregistration.k8s.io/MutatingWebhookConfiguration", `{"webhooks":[{"clientConfig":{"service":{"namespace":"op","name":"hook"}}}]}`, []string{"/Service/op/hook"}},
		{"admissionregistration.k8s.io/ValidatingAdmissionPolicyBinding", `{"spec":{"policyName":"p"}}`, []string{"admissionregistration.k8s.io/ValidatingAdmissionPolicy//p"}},
		{"apiregistration.k8s.io/APIService", `{"spec":{"service":{"namespace":"op","name":"api"}}}`, []string{"/Service/op/api"}},
		{"apiextensions.k8s.io/CustomResourceDefinition", `{"spec":{"conversion":{"webhook":{"clientConfig":{"service":{"namespace":"op","name":"conv"}}}}}}`, []string{"/Service/op/conv"}},
		{"/ConfigMap", `{"spec":{"volumeName":"pv"}}`, nil},
		{"/Pod", `{"spec":7}`, nil},
	} {
		group, kind, _ := strings.Cut(test.kind, "/")
		var got []string
		for _, ref := range ReferencesOf(schema.GroupKind{Group: group, Kind: kind}, "shop", []byte(test.object)) {
			got = append(got, strings.Join([]string{ref.APIGroup, ref.KindName, ref.Namespace, ref.Name}, "/"))
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.kind, diff)
		}
	}
}

// BenchmarkWriter says how much memory an item takes while a backup runs, and in the store.
func BenchmarkWriter(b *testing.B) {
	for b.Loop() {
		var w Writer
		for i := range 100_000 {
			item := kinds[0]
			item.Namespace, item.Name = fmt.Sprint("namespace-", i/1000), fmt.Sprintf("object-%06d", i)
			digest := sha256.Sum256([]byte(item.Name))
			item.UID, item.SHA256, item.Size = fmt.Sprintf("%x-%x-%x-%x-%x", digest[:4], digest[4:6], digest[6:8], digest[8:10], digest[10:16]), fmt.Sprintf("%x", digest), 1000
			item.Labels = map[string]string{"app": fmt.Sprint("app-", i%50)}
			if err := w.Add(&item); err != nil {
				b.Fatal(err)
			}
		}
		size, err := w.WriteTo(io.Discard)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(size)/100_000, "bytes/item")
	}
}

// What somebody else has written out of order is not compared.
func TestOrder(t *testing.T) {
	a, b := kinds[0], kinds[0]
	a.Name, b.Name = "a", "b"
	items := func(items ...*Item) Sequence {
		return func(yield func(*Item, error) bool) {
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
		}
	}
	for _, wrong := range [][]*Item{{&b, &a}, {&a, &a}} {
		var err error
		for _, err = range Diff(items(wrong...), items()) {
			if err != nil {
				break
			}
		}
		if !errors.Is(err, ErrFormat) {
			t.Errorf("the error is %v", err)
		}
	}
}
