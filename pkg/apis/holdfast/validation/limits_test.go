// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// longWords calls try once for each text of a type, in a value in which that is the only one, and
// is long.
func longWords(of reflect.Type, path string, try func(path string, value reflect.Value)) {
	in := func(inner reflect.Type, path string, put func(inner reflect.Value) reflect.Value) {
		longWords(inner, path, func(path string, value reflect.Value) { try(path, put(value)) })
	}
	if of == reflect.TypeFor[v1alpha1.Duration]() {
		return // a long text is not kept when it is read: TestDurationsAreEqualByValue
	}
	switch of.Kind() {
	case reflect.String:
		value := reflect.New(of).Elem()
		value.SetString(strings.Repeat("a", maxSpecSize+1))
		try(path, value)
	case reflect.Pointer:
		in(of.Elem(), path, func(inner reflect.Value) reflect.Value {
			value := reflect.New(of.Elem())
			value.Elem().Set(inner)
			return value
		})
	case reflect.Slice:
		if of.Elem().Kind() == reflect.Uint8 { // JSON
			try(path, reflect.ValueOf([]byte(strings.Repeat(" ", maxSpecSize+1))).Convert(of))
			return
		}
		in(of.Elem(), path+"[]", func(inner reflect.Value) reflect.Value { return reflect.Append(reflect.Zero(of), inner) })
	case reflect.Map:
		for _, key := range []bool{true, false} {
			side, name := of.Elem(), path+"[]"
			if key {
				side, name = of.Key(), path+"[key]"
			}
			in(side, name, func(inner reflect.Value) reflect.Value {
				value := reflect.MakeMap(of)
				if key {
					value.SetMapIndex(inner, reflect.Zero(of.Elem()))
				} else {
					value.SetMapIndex(reflect.Zero(of.Key()), inner)
				}
				return value
			})
		}
	case reflect.Struct:
		for i := range of.NumField() {
			if f := of.Field(i); f.IsExported() && f.Type.Kind() != reflect.Interface {
				in(f.Type, path+"."+f.Name, func(inner reflect.Value) reflect.Value {
					value := reflect.New(of).Elem()
					value.Field(i).Set(inner)
					return value
				})
			}
		}
	}
}

// TestEveryWordIsBounded: whatever text of a spec is long, it is refused for its size, before
// anybody looks at what it says, by an answer that does not repeat it. What is added to the specs
// can't be forgotten.
func TestEveryWordIsBounded(t *testing.T) {
	count := 0
	check := func(path string, errs field.ErrorList) {
		t.Helper()
		count++
		if len(errs) == 0 {
			t.Errorf("%s may be as long as it likes", path)
		} else if text := errs.ToAggregate().Error(); len(text) > 1000 {
			t.Errorf("%s is refused with %d bytes: %.200s", path, len(text), text)
		}
	}
	longWords(reflect.TypeFor[v1alpha1.BackupSpec](), "Backup.spec", func(path string, value reflect.Value) {
		check(path, ValidateBackupLimits(&v1alpha1.Backup{Spec: value.Interface().(v1alpha1.BackupSpec)}))
	})
	longWords(reflect.TypeFor[v1alpha1.RestoreSpec](), "Restore.spec", func(path string, value reflect.Value) {
		check(path, ValidateRestoreLimits(&v1alpha1.Restore{Spec: value.Interface().(v1alpha1.RestoreSpec)}))
	})
	if count < 70 {
		t.Errorf("there are %d texts in the specs", count)
	}
	schedule := &v1alpha1.Schedule{}
	schedule.Annotations = map[string]string{"a": strings.Repeat("a", maxAnnotationsSize)}
	check("Schedule.metadata.annotations", ValidateSchedule(schedule))
}
