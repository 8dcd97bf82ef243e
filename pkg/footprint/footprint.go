// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package footprint estimates the memory of values.
package footprint

import (
	"reflect"
	"time"
)

// Of estimates the bytes that a value refers to. Shared memory counts each time.
func Of(value any) int { return sizeOf(reflect.ValueOf(value)) }

func sizeOf(v reflect.Value) int {
	size := 0
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			size = int(v.Type().Elem().Size()) + sizeOf(v.Elem())
		}
	case reflect.String:
		size = v.Len()
	case reflect.Slice:
		size = v.Len() * int(v.Type().Elem().Size())
		if refers(v.Type().Elem().Kind()) {
			for i := range v.Len() {
				size += sizeOf(v.Index(i))
			}
		}
	case reflect.Map:
		each := int(v.Type().Key().Size() + v.Type().Elem().Size())
		for entries := v.MapRange(); entries.Next(); {
			size += each + sizeOf(entries.Key()) + sizeOf(entries.Value())
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			break // it refers to a time zone
		}
		for i := range v.NumField() {
			size += sizeOf(v.Field(i))
		}
	}
	return size
}

func refers(kind reflect.Kind) bool {
	switch kind {
	case reflect.Pointer, reflect.String, reflect.Slice, reflect.Map, reflect.Struct:
		return true
	}
	return false
}
