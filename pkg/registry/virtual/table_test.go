// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package virtual_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
)

// at is a time from now on, as the tests of tables have it.
func at(d time.Duration) *metav1.Time { at := metav1.NewTime(time.Now().Add(d)); return &at }

func created(name string) examplev1.Pod {
	return examplev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "7", Generation: 2, CreationTimestamp: *at(-90 * time.Second)}}
}

func TestTables(t *testing.T) { synctest.Test(t, testTables) }

func testTables(t *testing.T) {
	remaining := int64(3)
	a, b := created("a"), created("b")
	b.Spec.NodeName = "n"
	rowA, rowB := []any{"a", int64(2), "-", "90s"}, []any{"b", int64(2), "n", "90s"}
	cases := map[string]struct {
		obj, options runtime.Object
		columns      int
		rows         [][]any
		meta         metav1.ListMeta
	}{
		"an empty list has its columns": {
			obj:     &examplev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}},
			columns: 4, rows: [][]any{}, meta: metav1.ListMeta{ResourceVersion: "9"},
		},
		"a list keeps its order": {
			obj:     &examplev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "more", RemainingItemCount: &remaining}, Items: []examplev1.Pod{a, b}},
			options: &metav1.TableOptions{},
			columns: 4, rows: [][]any{rowA, rowB},
			meta: metav1.ListMeta{ResourceVersion: "9", Continue: "more", RemainingItemCount: &remaining},
		},
		"one object": {
			obj: &a, options: &metav1.TableOptions{},
			columns: 4, rows: [][]any{rowA}, meta: metav1.ListMeta{ResourceVersion: "7"},
		},
		"without headers": {
			obj: &a, options: &metav1.TableOptions{NoHeaders: true},
			columns: 0, rows: [][]any{rowA}, meta: metav1.ListMeta{ResourceVersion: "7"},
		},
	}
	for name, c := range cases {
		got, err := podResource.ConvertToTable(t.Context(), c.obj, c.options)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(got.ColumnDefinitions) != c.columns || !reflect.DeepEqual(got.ListMeta, c.meta) {
			t.Errorf("%s: %d columns and %+v, want %d and %+v", name, len(got.ColumnDefinitions), got.ListMeta, c.columns, c.meta)
		}
		rows := [][]any{}
		for _, row := range got.Rows {
			rows = append(rows, row.Cells)
			if row.Object.Object == nil {
				t.Error(name + ": a row has no object, of which kubectl needs the metadata")
			}
		}
		if !reflect.DeepEqual(rows, c.rows) {
			t.Errorf("%s: rows %v, want %v", name, rows, c.rows)
		}
		if c.columns > 0 && len(c.rows) > 0 && len(c.rows[0]) != c.columns {
			t.Errorf("%s: %d cells for %d columns", name, len(c.rows[0]), c.columns)
		}
		if encoded, err := json.Marshal(got); err != nil || strings.Contains(string(encoded), `"rows":null`) {
			t.Errorf("%s: rows must be a list: %s, %v", name, encoded, err)
		}
	}
}

// A table of up to 10,000 is whole and in its order, whatever its limit, as the pages of it could
// not be. Longer ones come in pages by names, and so does what programs list.
func TestTablesAreWhole(t *testing.T) {
	log := newPodLog(logstore.Options{})
	log.SetReady()
	served, err := podResource.ReadOnly(log)
	if err != nil {
		t.Fatal(err)
	}
	add := func(from, to int) {
		var pods []*examplev1.Pod
		for i := from; i < to; i++ {
			pods = append(pods, pod("a", fmt.Sprintf("p%05d", i), "n"))
		}
		if _, err := log.Apply(pods...); err != nil {
			t.Fatal(err)
		}
	}
	list := func(ctx context.Context, limit int64, next string) *examplev1.PodList {
		got, err := served.List(genericapirequest.WithNamespace(ctx, "a"), &internalversion.ListOptions{Limit: limit, Continue: next})
		if err != nil {
			t.Fatal(err)
		}
		return got.(*examplev1.PodList)
	}
	want := func(what string, got *examplev1.PodList, count int, first, last string, more bool) {
		t.Helper()
		if len(got.Items) != count || got.Items[0].Name != first || got.Items[count-1].Name != last || (got.Continue != "") != more {
			t.Errorf("%s: %d from %s to %s, more: %v; want %d from %s to %s, more: %v", what, len(got.Items), got.Items[0].Name, got.Items[len(got.Items)-1].Name, got.Continue != "", count, first, last, more)
		}
	}
	table := virtual.AsTable(t.Context())
	add(0, 700)
	want("a table of 700", list(table, 500, ""), 700, "p00699", "p00000", false)
	page := list(t.Context(), 500, "")
	want("a program's page", page, 500, "p00000", "p00499", true)
	want("its next", list(t.Context(), 500, page.Continue), 200, "p00500", "p00699", false)
	add(700, 10_001)
	page = list(table, 500, "")
	want("a page of a table of 10,001", page, 500, "p00000", "p00499", true)
	want("its next", list(table, 500, page.Continue), 500, "p00500", "p00999", true)
	want("a table of 10,001 without a limit", list(table, 0, ""), 10_001, "p10000", "p00000", false)
}

// Whoever asks for a table says so as kubectl does.
func TestRequestsForTables(t *testing.T) {
	for accept, want := range map[string]bool{
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json": true,
		"application/json": false,
	} {
		got := false
		handler := virtual.MarkTables(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = virtual.IsTable(r.Context()) }))
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		request.Header.Set("Accept", accept)
		if handler.ServeHTTP(httptest.NewRecorder(), request); got != want {
			t.Errorf("%s: it is a table: %v, want %v", accept, got, want)
		}
	}
}

func TestTablesOfTheWrongKind(t *testing.T) {
	for _, obj := range []runtime.Object{&metav1.PartialObjectMetadata{}, &metav1.PartialObjectMetadataList{Items: []metav1.PartialObjectMetadata{{}}}, &metav1.Status{}} {
		if got, err := podResource.ConvertToTable(t.Context(), obj, nil); err == nil {
			t.Errorf("a %T became %+v", obj, got)
		}
	}
}

func TestTimes(t *testing.T) {
	now := time.Now()
	at := func(d time.Duration) *metav1.Time { at := metav1.NewTime(now.Add(d)); return &at }
	for name, c := range map[string]struct {
		at                *metav1.Time
		age, since, until string
	}{
		"no time":         {nil, "<unknown>", "", ""},
		"the zero time":   {&metav1.Time{}, "<unknown>", "", ""},
		"now":             {at(0), "0s", "0s", "0s ago"},
		"a while ago":     {at(-5 * time.Minute), "5m", "5m", "5m ago"},
		"in a while":      {at(29 * 24 * time.Hour), "<invalid>", "<invalid>", "in 29d"},
		"a moment to run": {at(time.Second), "0s", "0s", "in 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			age, since, until := virtual.Age(c.at, now), virtual.Since(c.at, now), virtual.Until(c.at, now)
			if age != c.age || since != c.since || until != c.until {
				t.Errorf("Age %q, Since %q, Until %q; want %q, %q, %q", age, since, until, c.age, c.since, c.until)
			}
		})
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0", 1: "1", 1023: "1023", 1024: "1.0Ki", 1536: "1.5Ki",
		1023 * 1024: "1023.0Ki", 1<<20 - 1: "1.0Mi", 1 << 20: "1.0Mi", 1288490189: "1.2Gi", 1<<40 - 1: "1.0Ti",
		math.MaxInt64: "8.0Ei",
	} {
		if got := virtual.Bytes(n); got != want {
			t.Errorf("Bytes(%d) is %q, want %q", n, got, want)
		}
	}
}
