// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package virtual

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

// Column is a column of a table.
type Column[T logstore.Object] struct {
	Definition metav1.TableColumnDefinition
	Cell       func(obj T, now time.Time) any
}

// Name returns the column of the object's name.
func Name[T logstore.Object]() Column[T] {
	column := Text("Name", "Name of the object.", func(obj T) string { return obj.GetName() })
	column.Definition.Format = "name"
	return column
}

// Text returns a column of strings, with a dash for "".
func Text[T logstore.Object](name, description string, get func(T) string) Column[T] {
	return Timed(name, description, func(obj T, _ time.Time) string { return get(obj) })
}

// Timed returns a column of strings that change with time, with a dash for "".
func Timed[T logstore.Object](name, description string, get func(obj T, now time.Time) string) Column[T] {
	return Column[T]{
		Definition: metav1.TableColumnDefinition{Name: name, Type: "string", Description: description},
		Cell: func(obj T, now time.Time) any {
			if text := get(obj, now); text != "" {
				return text
			}
			return "-"
		},
	}
}

// Number returns a column of integers.
func Number[T logstore.Object](name, description string, get func(T) int32) Column[T] {
	return Column[T]{
		Definition: metav1.TableColumnDefinition{Name: name, Type: "integer", Description: description},
		Cell:       func(obj T, _ time.Time) any { return int64(get(obj)) },
	}
}

// Wide returns a column that only -o wide shows.
func Wide[T logstore.Object](column Column[T]) Column[T] {
	column.Definition.Priority = 1
	return column
}

var _ rest.TableConvertor = &Resource[logstore.Object]{}

// ConvertToTable implements rest.TableConvertor.
func (r *Resource[T]) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{Rows: []metav1.TableRow{}} // null is not a list of rows
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		for _, column := range r.Columns {
			table.ColumnDefinitions = append(table.ColumnDefinitions, column.Definition)
		}
	}
	var items []T
	add := func(item runtime.Object) error {
		typed, ok := item.(T)
		if !ok {
			return fmt.Errorf("a %T is none of the %s", item, r.GroupResource)
		}
		items = append(items, typed)
		return nil
	}
	if meta.IsListType(obj) {
		list, err := meta.ListAccessor(obj)
		if err != nil {
			return nil, err
		}
		table.ResourceVersion, table.Continue, table.RemainingItemCount = list.GetResourceVersion(), list.GetContinue(), list.GetRemainingItemCount()
		if err := meta.EachListItem(obj, add); err != nil {
			return nil, err
		}
	} else {
		if err := add(obj); err != nil {
			return nil, err
		}
		table.ResourceVersion = items[0].GetResourceVersion()
	}
	now := time.Now()
	for _, item := range items {
		table.Rows = append(table.Rows, metav1.TableRow{Cells: r.cells(item, now), Object: runtime.RawExtension{Object: item}})
	}
	return table, nil
}

func (r *Resource[T]) cells(obj T, now time.Time) []any {
	cells := make([]any, len(r.Columns))
	for i, column := range r.Columns {
		cells[i] = column.Cell(obj, now)
	}
	return cells
}

// Age returns the time since t, as kubectl prints it.
func Age(t *metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

// Since is like Age, and "" for no time.
func Since(t *metav1.Time, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return Age(t, now)
}

// Until returns the time until t, as in "in 29d", or how long ago it was; "" for no time.
func Until(t *metav1.Time, now time.Time) string {
	switch {
	case t.IsZero():
		return ""
	case t.After(now):
		return "in " + duration.HumanDuration(t.Sub(now))
	}
	return Age(t, now) + " ago"
}

// Bytes returns a size in binary units with one digit after the point, as 1.2Gi.
func Bytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d", n)
	}
	value, prefixes := float64(n)/unit, "KMGTPE"
	const rounds = unit - 0.05 // to the unit, at one digit
	for value >= rounds && len(prefixes) > 1 {
		value, prefixes = value/unit, prefixes[1:]
	}
	return fmt.Sprintf("%.1f%ci", value, prefixes[0])
}
