// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package table prints objects as the tables that kubectl shows.
package table

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"
)

// Convertor prints objects of type T. It implements rest.TableConvertor.
type Convertor[T runtime.Object] struct {
	// Columns are the table's columns; those with a priority show up with -o wide.
	Columns []metav1.TableColumnDefinition
	// Cells are an object's cells, one for each column, at an instant.
	Cells func(obj T, now time.Time) []any
	// Compare orders the rows of a whole list. Nil keeps the list's order. A page of
	// a list is ordered by itself.
	Compare func(a, b T) int
	// Clock gives the instant; the real one if nil.
	Clock clock.PassiveClock
}

var _ rest.TableConvertor = &Convertor[runtime.Object]{}

// ConvertToTable implements rest.TableConvertor.
func (c *Convertor[T]) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{Rows: []metav1.TableRow{}} // null is not a list of rows
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		table.ColumnDefinitions = c.Columns
	}
	var items []T
	if meta.IsListType(obj) {
		list, err := meta.ListAccessor(obj)
		if err != nil {
			return nil, err
		}
		table.ResourceVersion, table.Continue, table.RemainingItemCount = list.GetResourceVersion(), list.GetContinue(), list.GetRemainingItemCount()
		err = meta.EachListItem(obj, func(item runtime.Object) error {
			typed, ok := item.(T)
			if !ok {
				return fmt.Errorf("a list of %T holds a %T", *new(T), item)
			}
			items = append(items, typed)
			return nil
		})
		if err != nil {
			return nil, err
		}
		if c.Compare != nil {
			slices.SortStableFunc(items, c.Compare)
		}
	} else {
		typed, ok := obj.(T)
		if !ok {
			return nil, fmt.Errorf("%T can't be shown as a %T", obj, *new(T))
		}
		accessor, err := meta.Accessor(obj)
		if err != nil {
			return nil, err
		}
		table.ResourceVersion = accessor.GetResourceVersion()
		items = append(items, typed)
	}
	now := time.Now()
	if c.Clock != nil {
		now = c.Clock.Now()
	}
	for _, item := range items {
		table.Rows = append(table.Rows, metav1.TableRow{Cells: c.Cells(item, now), Object: runtime.RawExtension{Object: item}})
	}
	return table, nil
}

// Column is a column of strings that is always shown.
func Column(name, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "string", Description: description}
}

// Name is the column of the object's name.
func Name() metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name", Description: "Name of the object."}
}

// Number is a column of integers that is always shown.
func Number(name, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "integer", Description: description}
}

// Wide makes a column show up with -o wide only.
func Wide(column metav1.TableColumnDefinition) metav1.TableColumnDefinition {
	column.Priority = 1
	return column
}

// Age is the time since t, as kubectl prints it.
func Age(t *metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

// Since is like Age, and a dash for no time.
func Since(t *metav1.Time, now time.Time) string {
	if t.IsZero() {
		return None
	}
	return Age(t, now)
}

// Until is the time until t, as in "in 29d", or how long ago it was.
func Until(t *metav1.Time, now time.Time) string {
	switch {
	case t.IsZero():
		return None
	case t.After(now):
		return "in " + duration.HumanDuration(t.Sub(now))
	}
	return duration.HumanDuration(now.Sub(t.Time)) + " ago"
}

// None is the cell of a value that an object does not have.
const None = "-"

// Text is s, and a dash for no text.
func Text(s string) string {
	if s == "" {
		return None
	}
	return s
}

// Bytes is a size in binary units with one digit after the point, as in 1.2Gi.
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
