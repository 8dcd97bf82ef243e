// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package index

import (
	"crypto/sha256"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// asRead leaves out what the catalogue computes.
var asRead = cmpopts.IgnoreUnexported(catalog.Volume{}, catalog.Rows{})

func decodeAll(t testing.TB, data []byte) []Entry {
	t.Helper()
	segment, err := Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	var entries []Entry
	for entry, err := range segment.Entries(func(string) bool { return true }) {
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, entry)
	}
	return entries
}

// What is encoded is decoded, whatever it is.
func TestInverse(t *testing.T) {
	text := rapid.OneOf(rapid.SampledFrom([]string{"", "a", "data", "0123456789abcdef", "0123456789ABCDEF", "abc"}), rapid.String())
	instant := rapid.Custom(func(t *rapid.T) metav1.Time {
		if rapid.Bool().Draw(t, "none") {
			return metav1.Time{}
		}
		return metav1.Unix(rapid.Int64Range(-1<<36, 1<<36).Draw(t, "seconds"), rapid.Int64Range(0, 1e9-1).Draw(t, "nanoseconds"))
	})
	volume := rapid.Custom(func(t *rapid.T) (v catalog.Volume) {
		fields := reflect.ValueOf(&v).Elem()
		for i := range fields.NumField() {
			field, name := fields.Field(i), fields.Type().Field(i).Name
			if !field.CanSet() {
				continue
			}
			switch into := field.Addr().Interface().(type) {
			case *metav1.Time:
				*into = instant.Draw(t, name)
			default:
				switch {
				case field.Kind() == reflect.String:
					field.SetString(text.Draw(t, name))
				case field.CanInt():
					field.SetInt(rapid.Int64().Draw(t, name))
				case field.Kind() == reflect.Bool:
					field.SetBool(rapid.Bool().Draw(t, name))
				default:
					t.Fatalf("the test knows no %s of %s", field.Type(), name)
				}
			}
		}
		return v
	})
	entry := rapid.Custom(func(t *rapid.T) Entry {
		at := metav1.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "created"), 0)
		return Entry{StoreName: text.Draw(t, "store name"), Content: catalog.Content{
			Backup: &v1alpha1.Backup{
				ObjectMeta: metav1.ObjectMeta{Name: "a", UID: types.UID("of it"), CreationTimestamp: at},
				Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, Origin: &v1alpha1.BackupOrigin{PublicKey: "k"}, Expiration: &at},
			},
			Volumes:     rapid.SliceOfN(volume, 0, 20).Draw(t, "volumes"),
			Digests:     catalog.Digests{Log: rapid.String().Draw(t, "log"), Manifest: "m"},
			Changes:     []format.Expiration{{StoreName: "a", Number: rapid.Int64().Draw(t, "number"), Timestamp: at}},
			ChangesRead: []string{"a", "b"},
			Versions:    map[string]string{"x": "y"},
		}}
	})
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(entry, 0, 5).Draw(t, "entries")
		data, err := Encode(want)
		if err != nil {
			t.Fatal(err)
		}
		segment, err := Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		var got []Entry
		for entry, err := range segment.Entries(func(string) bool { return true }) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, entry)
		}
		if diff := cmp.Diff(want, got, asRead, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

// No field of a volume is forgotten.
func TestEveryFieldHasAColumn(t *testing.T) {
	var full catalog.Volume
	fields := reflect.ValueOf(&full).Elem()
	for i := range fields.NumField() {
		switch field := fields.Field(i); {
		case !field.CanSet():
		case field.Type() == reflect.TypeFor[metav1.Time]():
			field.Set(reflect.ValueOf(metav1.Unix(int64(i)+1, 0)))
		case field.Kind() == reflect.String:
			field.SetString(fmt.Sprint("value ", i))
		case field.CanInt():
			field.SetInt(int64(i) + 1)
		case field.Kind() == reflect.Bool:
			field.SetBool(true)
		default:
			t.Errorf("the test knows no %s of %s", field.Type(), fields.Type().Field(i).Name)
		}
	}
	data, err := Encode([]Entry{{StoreName: "a", Content: catalog.Content{Volumes: []catalog.Volume{full}}}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(full, decodeAll(t, data)[0].Content.Volumes[0], asRead); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// many makes backups with volumes each, as they are mostly.
func many(backups, volumes int) []Entry {
	entries := make([]Entry, backups)
	start := time.Unix(1_800_000_000, 0)
	for i := range entries {
		name, at := fmt.Sprintf("daily-%05d", i), start.Add(time.Duration(i)*time.Hour)
		content := catalog.Content{Backup: &v1alpha1.Backup{
			ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: name, UID: format.DerivedUID("backup", name), CreationTimestamp: metav1.NewTime(at)},
			Spec:       v1alpha1.BackupSpec{IncludedNamespaces: []string{"*"}},
			Status: v1alpha1.BackupStatus{
				Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &metav1.Time{Time: at}, CompletionTimestamp: &metav1.Time{Time: at.Add(time.Minute)},
				Origin: &v1alpha1.BackupOrigin{ClusterUID: "here", PublicKey: "key"},
			},
		}}
		for j := range volumes {
			claim := fmt.Sprintf("data-%d", j)
			content.Volumes = append(content.Volumes, catalog.Volume{
				Namespace: fmt.Sprintf("team-%d", j%100), ClaimName: claim, PodName: "pod-" + claim, PodVolume: "data", Node: fmt.Sprintf("node-%d", j%10),
				SnapshotID: fmt.Sprintf("%x", sha256.Sum256([]byte(name+claim)))[:32],
				SizeBytes:  int64(j) << 30, BytesDone: int64(j) << 30, IncrementalBytes: int64(i*j) << 10,
				Start: metav1.NewTime(at.Add(time.Duration(j) * time.Second)), Completion: metav1.NewTime(at.Add(time.Duration(j+5) * time.Second)), State: v1alpha1.VolumeBackupCompleted,
			})
		}
		entries[i] = Entry{StoreName: name, Content: content}
	}
	return entries
}

// The size of an index is known, and so what it costs to fetch: it does not grow unseen.
func TestSize(t *testing.T) {
	data, err := Encode(many(20, 1000))
	if err != nil {
		t.Fatal(err)
	}
	if perRow := float64(len(data)) / 20_000; perRow > 30 {
		t.Errorf("%.1f bytes a row", perRow)
	} else {
		t.Logf("%.1f bytes a row", perRow)
	}
}

func FuzzDecode(f *testing.F) {
	good, err := Encode(many(2, 3))
	if err != nil {
		f.Fatal(err)
	}
	z, err := compressor()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte(header))
	f.Add(z.EncodeAll(make([]byte, 1<<20), []byte(header))) // a bomb
	f.Add(z.EncodeAll([]byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0}, []byte(header)))
	f.Fuzz(func(t *testing.T, data []byte) {
		segment, err := Decode(data)
		if err != nil {
			return
		}
		for _, err := range segment.Entries(func(string) bool { return true }) {
			if err != nil {
				return
			}
		}
	})
}

// The bytes below are those of the body, so that what they say is met beneath the compression.
func FuzzDecodeBody(f *testing.F) {
	e := newEncoder()
	for _, entry := range many(2, 3) {
		if err := e.add(&entry); err != nil {
			f.Fatal(err)
		}
	}
	body, err := e.body()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Add([]byte{0, 1, 0, 0})
	f.Fuzz(func(t *testing.T, body []byte) {
		segment, err := decodeBody(body)
		if err != nil {
			return
		}
		for _, err := range segment.Entries(func(string) bool { return true }) {
			if err != nil {
				return
			}
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	data, err := Encode(many(100, 1000))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		decodeAll(b, data)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/row")
}
