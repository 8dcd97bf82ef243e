// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package table_test

import (
	"cmp"
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/table"
)

var (
	now       = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	convertor = &table.Convertor[*v1alpha1.Backup]{
		Columns: []metav1.TableColumnDefinition{table.Name(), table.Number("Errors", "Number of errors."), table.Wide(table.Column("Age", "Its age."))},
		Cells: func(backup *v1alpha1.Backup, now time.Time) []any {
			return []any{backup.Name, int64(backup.Status.Errors), table.Age(&backup.CreationTimestamp, now)}
		},
		Compare: func(a, b *v1alpha1.Backup) int { return -cmp.Compare(a.Name, b.Name) },
		Clock:   clocktesting.NewFakePassiveClock(now),
	}
)

func backup(name string) v1alpha1.Backup {
	return v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "7", CreationTimestamp: metav1.NewTime(now.Add(-90 * time.Second))}}
}

func TestTables(t *testing.T) {
	remaining := int64(3)
	a, b := backup("a"), backup("b")
	cases := map[string]struct {
		obj, options runtime.Object
		columns      int
		rows         [][]any
		meta         metav1.ListMeta
	}{
		"an empty list has its columns": {
			obj:     &v1alpha1.BackupList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}},
			columns: 3, rows: [][]any{}, meta: metav1.ListMeta{ResourceVersion: "9"},
		},
		"a list is ordered": {
			obj:     &v1alpha1.BackupList{ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "more", RemainingItemCount: &remaining}, Items: []v1alpha1.Backup{a, b}},
			options: &metav1.TableOptions{},
			columns: 3, rows: [][]any{{"b", int64(0), "90s"}, {"a", int64(0), "90s"}},
			meta: metav1.ListMeta{ResourceVersion: "9", Continue: "more", RemainingItemCount: &remaining},
		},
		"one object": {
			obj: &a, options: &metav1.TableOptions{},
			columns: 3, rows: [][]any{{"a", int64(0), "90s"}}, meta: metav1.ListMeta{ResourceVersion: "7"},
		},
		"without headers": {
			obj: &a, options: &metav1.TableOptions{NoHeaders: true},
			columns: 0, rows: [][]any{{"a", int64(0), "90s"}}, meta: metav1.ListMeta{ResourceVersion: "7"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := convertor.ConvertToTable(t.Context(), c.obj, c.options)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.ColumnDefinitions) != c.columns || !reflect.DeepEqual(got.ListMeta, c.meta) {
				t.Errorf("%d columns and %+v, want %d and %+v", len(got.ColumnDefinitions), got.ListMeta, c.columns, c.meta)
			}
			rows := [][]any{}
			for _, row := range got.Rows {
				rows = append(rows, row.Cells)
				if row.Object.Object == nil {
					t.Error("a row has no object, of which kubectl needs the metadata")
				}
			}
			if !reflect.DeepEqual(rows, c.rows) {
				t.Errorf("rows %v, want %v", rows, c.rows)
			}
			if c.columns > 0 && len(c.rows) > 0 && len(c.rows[0]) != c.columns {
				t.Errorf("%d cells for %d columns", len(c.rows[0]), c.columns)
			}
			if encoded, err := json.Marshal(got); err != nil || strings.Contains(string(encoded), `"rows":null`) {
				t.Errorf("rows must be a list: %s, %v", encoded, err)
			}
		})
	}
}

// What is shown is a cache's, and others read it too.
func TestTheListIsNotReordered(t *testing.T) {
	list := &v1alpha1.BackupList{Items: []v1alpha1.Backup{backup("a"), backup("b")}}
	if _, err := convertor.ConvertToTable(t.Context(), list, nil); err != nil {
		t.Fatal(err)
	}
	if list.Items[0].Name != "a" {
		t.Error("the list that was given has changed")
	}
}

func TestTablesOfTheWrongKind(t *testing.T) {
	for _, obj := range []runtime.Object{&v1alpha1.VolumeBackup{}, &v1alpha1.VolumeBackupList{Items: []v1alpha1.VolumeBackup{{}}}, &metav1.Status{}} {
		if got, err := convertor.ConvertToTable(t.Context(), obj, nil); err == nil {
			t.Errorf("a %T became %+v", obj, got)
		}
	}
}

func TestTimes(t *testing.T) {
	at := func(d time.Duration) *metav1.Time { at := metav1.NewTime(now.Add(d)); return &at }
	for name, c := range map[string]struct {
		at                *metav1.Time
		age, since, until string
	}{
		"no time":         {nil, "<unknown>", "-", "-"},
		"the zero time":   {&metav1.Time{}, "<unknown>", "-", "-"},
		"now":             {at(0), "0s", "0s", "0s ago"},
		"a while ago":     {at(-5 * time.Minute), "5m", "5m", "5m ago"},
		"in a while":      {at(29 * 24 * time.Hour), "<invalid>", "<invalid>", "in 29d"},
		"a moment to run": {at(time.Second), "0s", "0s", "in 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			age, since, until := table.Age(c.at, now), table.Since(c.at, now), table.Until(c.at, now)
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
		if got := table.Bytes(n); got != want {
			t.Errorf("Bytes(%d) is %q, want %q", n, got, want)
		}
	}
}

func TestText(t *testing.T) {
	if table.Text("") != table.None || table.Text("a") != "a" {
		t.Errorf("Text: %q, %q", table.Text(""), table.Text("a"))
	}
}
