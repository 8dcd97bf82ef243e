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
		"metadata/version 1.2.0\n",
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
	var other bytes.Buffer
	w, err := NewWriter(&other, at, "c")
	if err != nil {
		t.Fatal(err)
	}
	for i, item := range items {
		if _, err := w.WriteItem(item, fmt.Appendf(nil, `{"n":%d}`, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil || bytes.Equal(other.Bytes(), write(t, at)) {
		t.Errorf("the tarballs of two backups are the same, %v", err)
	}
}

func TestReaderGivesBackWhatWasWritten(t *testing.T) {
	whole := write(t, at)
	reader, err := NewReader(bytes.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	for i, item := range items {
		for _, versioned := range []bool{false, true} {
			entry, err := reader.Next()
			if err != nil {
				t.Fatal(err)
			}
			want, path := item, item.appendPath(nil, item.Version+preferredSuffix)
			if !versioned {
				want.Version, path = "", item.appendPath(nil, "")
			}
			if entry.Path != string(path) {
				t.Errorf("%+v lies at %s", want, entry.Path)
			}
			if there, err := NewReaderAt(bytes.NewReader(whole), entry.Offset); err != nil {
				t.Error(err)
			} else if again, err := there.Next(); err != nil || again != entry {
				t.Errorf("at %d lies %+v, %v, not %+v", entry.Offset, again, err, entry)
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
		file("resources"), file("resources/pods"), file("resources/pods/a.json"), file("plugins/pods/cluster/a.json"),
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
	const count = 160 // twice as many copies of 1 MiB: more than ratioFrom
	w.left = count
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

// An object is read by itself from where it lies, and nothing else is taken for it.
func TestReadObject(t *testing.T) {
	random := rand.NewChaCha8([32]byte{})
	contents, positions := make([][]byte, len(items)), make([]Position, len(items))
	var buffer bytes.Buffer
	w, err := NewWriter(&buffer, at, "b")
	if err != nil {
		t.Fatal(err)
	}
	for i, item := range items {
		contents[i] = make([]byte, memberBytes*2/5)
		if _, err := random.Read(contents[i]); err != nil {
			t.Fatal(err)
		}
		if err := w.Add(item, contents[i], func(at Position) { positions[i] = at }); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	whole := buffer.Bytes()
	for i, item := range items {
		at, size := positions[i], int64(len(contents[i]))
		bytesOf, err := PartBytes(at.Offset, size)
		if err != nil {
			t.Fatal(err)
		}
		part := whole[at.Member:min(at.Member+bytesOf, int64(len(whole)))]
		if got, err := ReadObject(bytes.NewReader(part), at.Offset, item, size); err != nil || !bytes.Equal(got, contents[i]) {
			t.Errorf("%+v: %d bytes, %v", item, len(got), err)
		}
		another := item
		another.Name += "x"
		for name, read := range map[string]func() ([]byte, error){
			"another object": func() ([]byte, error) { return ReadObject(bytes.NewReader(part), at.Offset, another, size) },
			"a shorter one":  func() ([]byte, error) { return ReadObject(bytes.NewReader(part), at.Offset, item, size-1) },
			"a longer one":   func() ([]byte, error) { return ReadObject(bytes.NewReader(part), at.Offset, item, size+1) },
			"another place":  func() ([]byte, error) { return ReadObject(bytes.NewReader(part), at.Offset+blockBytes, item, size) },
			"a cut part":     func() ([]byte, error) { return ReadObject(bytes.NewReader(part[:len(part)/9]), at.Offset, item, size) },
			"no gzip":        func() ([]byte, error) { return ReadObject(bytes.NewReader(part[1:]), at.Offset, item, size) },
			"after its end":  func() ([]byte, error) { return ReadObject(bytes.NewReader(part), 1<<30, item, size) },
		} {
			if got, err := read(); !errors.Is(err, ErrPlace) {
				t.Errorf("%s: %d bytes, %v", name, len(got), err)
			}
		}
	}
	if positions[len(items)-1].Member == positions[0].Member {
		t.Error("all are in one member")
	}
}

// What lies behind something else is not where it should be.
func TestObjectBehindAFolder(t *testing.T) {
	item := Item{Resource: schema.GroupResource{Resource: "pods"}, Namespace: "shop", Name: "x"}
	part := tarball(t, tar.Header{Name: "resources/", Typeflag: tar.TypeDir}, tar.Header{Name: "resources/pods/namespaces/shop/x.json", Typeflag: tar.TypeReg})
	if _, err := ReadObject(bytes.NewReader(part), blockBytes, item, 0); err != nil {
		t.Error(err)
	}
	if _, err := ReadObject(bytes.NewReader(part), 0, item, 0); !errors.Is(err, ErrPlace) {
		t.Errorf("it is read before it begins: %v", err)
	}
}

// A manifest may say anything: no more is read than an object can have.
func TestPartsAreBounded(t *testing.T) {
	for place, ok := range map[[2]int64]bool{
		{0, 0}: true, {4 * MaxObjectBytes, MaxObjectBytes}: true,
		{-1, 0}: false, {0, -1}: false, {4*MaxObjectBytes + 1, 0}: false, {0, MaxObjectBytes + 1}: false,
	} {
		got, err := PartBytes(place[0], place[1])
		if ok && (err != nil || got < place[0]+place[1]) || !ok && (!errors.Is(err, ErrPlace) || got != 0) {
			t.Errorf("%d bytes from %d: %d bytes are read, %v", place[1], place[0], got, err)
		}
	}
}

func TestLimitIsAnError(t *testing.T) {
	limited := &limitedReader{r: strings.NewReader("12345"), left: 3}
	if got, err := io.ReadAll(limited); string(got) != "123" || !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %q, %v", got, err)
	}
}

// What decompresses to far more than a backup does is not read to its end.
func TestBombsAreAnError(t *testing.T) {
	for name, c := range map[string]struct {
		read, compressed int64
		want             error
	}{
		"not much yet":      {ratioFrom, 0, nil},
		"much alike":        {maxRatio << 21, 1 << 21, nil},
		"far too much":      {maxRatio<<21 + 1, 1 << 21, ErrBomb},
		"from the start on": {ratioFrom + 1, 0, ErrBomb},
	} {
		in := &countingReader{r: strings.NewReader("12345"), read: c.compressed}
		limited := &limitedReader{r: in, left: MaxBytes, read: c.read, in: in}
		n, err := limited.Read(make([]byte, 3))
		if !errors.Is(err, c.want) || err == nil && (n != 3 || limited.read != c.read+3 || limited.left != MaxBytes-3 || in.read != c.compressed+3) {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
	}
	reader, err := NewReader(bytes.NewReader(write(t, at)))
	if err == nil {
		_, err = reader.Next()
	}
	if err != nil || reader.plain.in == nil || reader.plain.in.read == 0 || reader.plain.left >= MaxBytes {
		t.Errorf("a reader counts %+v, %v", reader.plain, err)
	}
}

var errFull = errors.New("it is full")

// full takes so many writes.
type full struct{ left int }

func (f *full) Write(p []byte) (int, error) {
	if f.left--; f.left < 0 {
		return 0, errFull
	}
	return len(p), nil
}

// A tarball whose store fails is never ended well, whichever part is lost.
func TestFailuresAreTold(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789"), memberBytes/50)
	written := func(store *full) (placed int, err error) {
		w, err := NewWriter(store, at, "b")
		for i := 0; err == nil && i < 8; i++ {
			item := items[0]
			item.Name = fmt.Sprint("c", i)
			err = w.Add(item, content, func(Position) { placed++ })
		}
		if closing := w.Close(); err == nil || closing == nil {
			err = closing
		}
		return placed, err
	}
	store := &full{left: 1000}
	if placed, err := written(store); err != nil || placed != 8 {
		t.Fatalf("%d objects: %v", placed, err)
	}
	for writes := range 1000 - store.left {
		if placed, err := written(&full{left: writes}); !errors.Is(err, errFull) {
			t.Errorf("after %d writes, and with %d objects: %v", writes, placed, err)
		}
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
		if err == nil { // no member ends behind the header of what has no content
			item.Name = fmt.Sprint("empty-", i)
			err = w.Add(item, nil, func(Position) {})
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
