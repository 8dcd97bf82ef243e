// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var at = time.Date(2026, 8, 1, 12, 0, 0, 123456789, time.FixedZone("elsewhere", 3600))

var items = []Item{
	{Resource: schema.GroupResource{Resource: "namespaces"}, Version: "v1", Name: "shop"},
	{Resource: schema.GroupResource{Group: "apps", Resource: "deployments"}, Version: "v1", Namespace: "shop", Name: "web"},
	{Resource: schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}, Version: "v1", Name: "system:node..x"},
	// Too long for the plain form of tar.
	{Resource: schema.GroupResource{Group: strings.Repeat("g", 200) + ".example.com", Resource: "widgets"}, Version: "v1beta1", Namespace: "shop", Name: strings.Repeat("n", 253)},
}

func write(t testing.TB, at time.Time) []byte {
	t.Helper()
	var tarball bytes.Buffer
	w, err := NewWriter(&tarball, at, "b")
	if err != nil {
		t.Fatal(err)
	}
	for i, item := range items {
		if _, err := w.WriteItem(item, fmt.Appendf(nil, `{"n":%d}`, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return tarball.Bytes()
}

// The layout is Velero's: the version first, then only files, each item twice.
func TestLayout(t *testing.T) {
	plain, err := gzip.NewReader(bytes.NewReader(write(t, at)))
	if err != nil {
		t.Fatal(err)
	}
	reader := tar.NewReader(plain)
	var got []string
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag != tar.TypeReg || header.Mode != 0o755 || header.Uid != 0 || header.Uname != "" || !header.ModTime.Equal(at.Truncate(time.Second)) {
			t.Errorf("%s has the header %+v", header.Name, header)
		}
		got = append(got, header.Name+" "+string(content))
	}
	long := "resources/widgets." + strings.Repeat("g", 200) + ".example.com"
	name := "namespaces/shop/" + strings.Repeat("n", 253) + ".json"
	want := []string{
		"metadata/version 1.1.0\n",
		`resources/namespaces/cluster/shop.json {"n":0}`,
		`resources/namespaces/v1-preferredversion/cluster/shop.json {"n":0}`,
		`resources/deployments.apps/namespaces/shop/web.json {"n":1}`,
		`resources/deployments.apps/v1-preferredversion/namespaces/shop/web.json {"n":1}`,
		`resources/clusterroles.rbac.authorization.k8s.io/cluster/system:node..x.json {"n":2}`,
		`resources/clusterroles.rbac.authorization.k8s.io/v1-preferredversion/cluster/system:node..x.json {"n":2}`,
		long + "/" + name + ` {"n":3}`,
		long + "/v1beta1-preferredversion/" + name + ` {"n":3}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the tarball (-want +got):\n%s", diff)
	}
}

func TestSameItemsGiveSameBytes(t *testing.T) {
	if !bytes.Equal(write(t, at), write(t, at)) {
		t.Error("two tarballs of the same items differ")
	}
}

func TestReaderGivesBackWhatWasWritten(t *testing.T) {
	reader, err := NewReader(bytes.NewReader(write(t, at)))
	if err != nil {
		t.Fatal(err)
	}
	for i, item := range items {
		for _, versioned := range []bool{false, true} {
			entry, err := reader.Next()
			if err != nil {
				t.Fatal(err)
			}
			want := item
			if !versioned {
				want.Version = ""
			}
			if entry.Item != want || entry.Versioned != versioned || entry.Preferred != versioned {
				t.Errorf("got %+v, not %+v", entry, want)
			}
			content, err := io.ReadAll(reader)
			if want := fmt.Sprintf(`{"n":%d}`, i); err != nil || string(content) != want || entry.Size != int64(len(want)) {
				t.Errorf("%s: %q, %v", entry.Path, content, err)
			}
		}
	}
	if _, err := reader.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last entry: %v", err)
	}
}

func tarball(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var buffer bytes.Buffer
	compressed := gzip.NewWriter(&buffer)
	w := tar.NewWriter(compressed)
	for _, header := range headers {
		if err := w.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), compressed.Close()); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func TestReaderRefusesPathsThatLeaveTheTarball(t *testing.T) {
	for _, path := range []string{"resources/pods/namespaces/../../../../etc/passwd.json", "../x.json", "/resources/pods/cluster/x.json", "resources/pods/cluster/.."} {
		reader, err := NewReader(bytes.NewReader(tarball(t, tar.Header{Name: path, Typeflag: tar.TypeReg})))
		if err != nil {
			t.Fatal(err)
		}
		if entry, err := reader.Next(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s was read as %+v, %v", path, entry, err)
		}
	}
}

// Whatever else a tarball holds is skipped; Velero's may hold folders, further
// versions and files of later formats.
func TestReaderSkipsWhatIsNoItem(t *testing.T) {
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg} }
	reader, err := NewReader(bytes.NewReader(tarball(t,
		file("metadata/version"), file("metadata/other"), tar.Header{Name: "resources/", Typeflag: tar.TypeDir},
		tar.Header{Name: "resources/pods/cluster/link.json", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		file("resources/pods/namespaces/a.json"), file("resources/pods/cluster/a/b.json"), file("resources/pods/cluster/a.yaml"), file("resources/pods/cluster/.json"),
		file("resources/pods/namespaces//a.json"), file("resources/pods/v1-preferredversion/namespaces//a.json"),
		file("resources/pods/namespaces/./a.json"), file("resources//cluster/a.json"), file("resources/pods//cluster/a.json"), file("resources/pods/cluster/...json"),
		file("./resources/hpas.autoscaling/v1/namespaces/shop/h.json"),
	)))
	if err != nil {
		t.Fatal(err)
	}
	entry, err := reader.Next()
	want := Item{Resource: schema.GroupResource{Group: "autoscaling", Resource: "hpas"}, Version: "v1", Namespace: "shop", Name: "h"}
	if err != nil || entry.Item != want || !entry.Versioned || entry.Preferred {
		t.Errorf("got %+v, %v", entry, err)
	}
	if entry, err := reader.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("got %+v, %v", entry, err)
	}
}

func TestReaderOfBrokenTarballs(t *testing.T) {
	whole := write(t, at)
	if _, err := NewReader(strings.NewReader("not gzip")); err == nil {
		t.Error("what is not gzip was opened")
	}
	reader, err := NewReader(bytes.NewReader(whole[:len(whole)/2]))
	for err == nil {
		_, err = reader.Next()
	}
	if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error("half a tarball ended like a whole one")
	}
}

// What a reader refuses is not written: a backup must not be Completed and
// unreadable.
func TestNothingIsWrittenThatReadersRefuse(t *testing.T) {
	w, err := NewWriter(io.Discard, at, "b")
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 1000)
	w.tar = tar.NewWriter(&meter{w: io.Discard, left: 10_000})
	written := 0
	for err == nil && written < 10 {
		if _, err = w.WriteItem(items[0], content); err == nil {
			written++
		}
	}
	if !errors.Is(err, ErrTooLarge) || written != 3 {
		t.Errorf("%d items were written: %v", written, err)
	}
	if err := w.Close(); err == nil {
		t.Error("a tarball that lacks an item was ended")
	}

	// Objects that are almost nothing when they are compressed, as a tenant can make them.
	var tarball bytes.Buffer
	if w, err = NewWriter(&tarball, at, "b"); err != nil {
		t.Fatal(err)
	}
	content = bytes.Repeat([]byte("x"), 1<<20)
	const count = 300
	for i := range count {
		item := items[0]
		item.Name = fmt.Sprint("bomb-", i)
		if err := w.Add(item, content, func(Position) {}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Add(items[0], make([]byte, MaxObjectBytes+1), func(Position) {}); !errors.Is(err, ErrItem) {
		t.Errorf("a huge object: %v", err)
	}
	w.left = 0
	if err := w.Add(items[0], nil, func(Position) {}); !errors.Is(err, ErrTooMany) {
		t.Errorf("one too many: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	reader, err := NewReader(&tarball)
	read := 0
	for err == nil {
		if _, err = reader.Next(); err == nil {
			read++
			_, err = io.Copy(io.Discard, reader)
		}
	}
	if !errors.Is(err, io.EOF) || read != 2*count {
		t.Errorf("%d copies were read: %v", read, err)
	}
}

func TestLimitIsAnError(t *testing.T) {
	limited := &limitedReader{r: strings.NewReader("12345"), left: 3}
	if got, err := io.ReadAll(limited); string(got) != "123" || !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestItemsThatCannotBeAPath(t *testing.T) {
	w, err := NewWriter(io.Discard, at, "b")
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(*Item){
		func(i *Item) { i.Name = "" },
		func(i *Item) { i.Name = ".." },
		func(i *Item) { i.Name = "a/b" },
		func(i *Item) { i.Namespace = ".." },
		func(i *Item) { i.Version = "" },
		func(i *Item) { i.Resource.Resource = "" },
		func(i *Item) { i.Resource.Group = "../x" },
		func(i *Item) { i.Resource.Group = ".." },
		func(i *Item) { i.Name = "a%b" },
		func(i *Item) { i.Namespace = "a%b" },
	} {
		item := items[1]
		change(&item)
		if _, err := w.WriteItem(item, nil); !errors.Is(err, ErrItem) {
			t.Errorf("%+v: %v", item, err)
		}
	}
	if _, err := w.WriteItem(items[1], []byte("{}")); err != nil {
		t.Errorf("after refused items: %v", err)
	}
}

// What an item costs must not grow unnoticed: a backup has hundreds of thousands.
func TestAllocationsPerItem(t *testing.T) {
	w, err := NewWriter(io.Discard, at, "b")
	if err != nil {
		t.Fatal(err)
	}
	content := bytes.Repeat([]byte("x"), 1024)
	const limit = 16 // two headers of archive/tar, and two paths
	if got := testing.AllocsPerRun(1000, func() {
		if _, err := w.WriteItem(items[1], content); err != nil {
			t.Fatal(err)
		}
	}); got > limit {
		t.Errorf("an item takes %v allocations, more than %d", got, limit)
	}
}

func FuzzReader(f *testing.F) {
	f.Add(write(f, at))
	f.Add([]byte{0x1f, 0x8b})
	f.Fuzz(func(t *testing.T, data []byte) {
		reader, err := NewReader(bytes.NewReader(data))
		for err == nil {
			var entry Entry
			if entry, err = reader.Next(); err == nil && containsParent(entry.Path) {
				t.Errorf("the path %q leaves the tarball", entry.Path)
			}
		}
	})
}

// BenchmarkAdd adds items of 1 KB like those of Kubernetes. The ratio is of the tarball, where each item lies twice.
func BenchmarkAdd(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	contents := make([][]byte, 256)
	text := make([]byte, 256)
	for i := range contents {
		for at := range text {
			text[at] = byte(random.Uint32())
		}
		contents[i] = fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c-%d","namespace":"shop","uid":"%016x","managedFields":[{"manager":"kubectl","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{".":{},"f:text":{}}}}]},"data":{"text":"%x"}}`, i, random.Uint64(), text)
	}
	counted := &countingWriter{}
	w, err := NewWriter(counted, at, "b")
	if err != nil {
		b.Fatal(err)
	}
	raw := 0
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		content := contents[i%len(contents)]
		item := items[1]
		item.Name = fmt.Sprintf("c-%d", i)
		if err := w.Add(item, content, func(Position) {}); err != nil {
			b.Fatal(err)
		}
		raw += len(content)
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(raw / b.N))
	b.ReportMetric(float64(counted.bytes)/float64(raw), "stored/raw")
}

type countingWriter struct{ bytes int }

func (w *countingWriter) Write(p []byte) (int, error) {
	w.bytes += len(p)
	return len(p), nil
}

// A tarball of several gzip members that is cut short between two of them is no whole one,
// whoever reads it; and each object lies where WriteItem says.
func TestCutBetweenMembers(t *testing.T) {
	var tarball bytes.Buffer
	w, err := NewWriter(&tarball, at, "b")
	if err != nil {
		t.Fatal(err)
	}
	content := bytes.Repeat([]byte("0123456789"), 10_000)
	positions := make([]Position, 30)
	for i := range positions {
		item := Item{Resource: schema.GroupResource{Resource: "configmaps"}, Version: "v1", Namespace: "shop", Name: fmt.Sprint("c", i)}
		if i%10 == 9 {
			positions[i], err = w.WriteItem(item, content)
		} else {
			err = w.Add(item, content, func(position Position) { positions[i] = position })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	cuts := 0
	for i, position := range positions {
		plain, err := gzip.NewReader(bytes.NewReader(tarball.Bytes()[position.Member:]))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, plain, position.Offset); err != nil {
			t.Fatal(err)
		}
		if header, err := tar.NewReader(plain).Next(); err != nil || header.Name != fmt.Sprintf("resources/configmaps/namespaces/shop/c%d.json", i) {
			t.Fatalf("at %+v there is %+v, %v", position, header, err)
		}
		if position.Member == 0 || positions[i-1].Member == position.Member {
			continue
		}
		cuts++
		if plain, err = gzip.NewReader(bytes.NewReader(tarball.Bytes()[:position.Member])); err != nil {
			t.Fatal(err)
		}
		reader := tar.NewReader(plain)
		for err == nil {
			if _, err = reader.Next(); err == nil {
				_, err = io.Copy(io.Discard, reader)
			}
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut at %d the error is %v", position.Member, err)
		}
	}
	if cuts < 4 {
		t.Errorf("there are only %d members", cuts)
	}
}
