// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
)

// What becomes of a field of Velero's, in the words of docs/velero.md.
const (
	honoured = "honoured"
	noEffect = "no effect"
	warned   = "a warning"
	refused  = "refused"
)

// velerosField is a field that Velero 1.18.1 has, as testdata/velero-fields.txt lists it.
type velerosField struct{ kind, path, is string }

func velerosFields(t *testing.T) (fields []velerosField) {
	t.Helper()
	list, err := os.ReadFile("testdata/velero-fields.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		if words := strings.Fields(line); !strings.HasPrefix(line, "#") {
			fields = append(fields, velerosField{words[0], words[1], words[2]})
		}
	}
	return fields
}

// documented returns the rows of the tables in docs/velero.md: for each field of a kind, or
// for what it lies in, the text of the other column.
func documented(t *testing.T) map[string]map[string]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/velero.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]map[string]string{}
	var kinds []string
	code := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(string(page)) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			kinds = nil
			for _, word := range code.FindAllStringSubmatch(heading, -1) {
				kinds = append(kinds, word[1])
				rows[word[1]] = map[string]string{}
			}
		}
		cells := strings.Split(line, "|")
		if len(cells) != 4 {
			continue
		}
		for _, word := range code.FindAllStringSubmatch(cells[1], -1) {
			for _, kind := range kinds {
				rows[kind][word[1]] = cells[2]
			}
		}
	}
	return rows
}

// rowOf returns the row of a field, or of the innermost field around it that has one.
func rowOf(rows map[string]string, path string) (string, bool) {
	for {
		if row, ok := rows[path]; ok {
			return row, true
		}
		last := strings.LastIndex(path, ".")
		if last < 0 {
			return "", false
		}
		path = strings.TrimSuffix(path[:last], "[]")
	}
}

// values are what each field is tried with, as JSON, and what becomes of it. Those that are
// not here are tried with a value of their type, and are honoured.
var values = map[string]map[string]string{
	"Backup metadata.labels":                                    {`{"a": "b"}`: noEffect},
	"Backup snapshotVolumes":                                    {"false": honoured, "true": refused},
	"Backup snapshotMoveData":                                   {"false": honoured, "true": refused},
	"Backup volumeGroupSnapshotLabelKey":                        {`"velero.io/volume-group"`: noEffect, `"group"`: warned},
	"Backup volumeSnapshotLocations":                            {`["default"]`: noEffect, `["aws"]`: warned},
	"Backup datamover":                                          {`"velero"`: noEffect, `"other"`: warned},
	"Backup csiSnapshotTimeout":                                 {`"10m0s"`: noEffect, `"0s"`: noEffect, `"1h"`: warned},
	"Backup itemOperationTimeout":                               {`"4h0m0s"`: noEffect, `"1h"`: warned},
	"Backup defaultVolumesToRestic":                             {"true": honoured, "false": warned},
	"Backup uploaderConfig.parallelFilesUpload":                 {"4": warned},
	"Backup resourcePolicy":                                     {`{"apiGroup": null, "kind": "configmap", "name": "x"}`: honoured, `{"kind": "Secret", "name": "x"}`: refused},
	"Backup hooks.resources[].pre[].exec.onError":               {`"Continue"`: honoured, `"Fail"`: honoured},
	"Backup hooks.resources[].post[].exec.onError":              {`"Continue"`: honoured, `"Fail"`: honoured},
	"Backup hooks.resources[].includedResources":                {`["pods"]`: honoured},
	"Backup orderedResources":                                   {`{"pods": "a/b,a/c"}`: honoured},
	"Backup orLabelSelectors":                                   {`[{"matchLabels": {"a": "b"}}]`: honoured},
	"Restore orLabelSelectors":                                  {`[{"matchLabels": {"a": "b"}}]`: honoured},
	"Restore itemOperationTimeout":                              {`"4h0m0s"`: noEffect, `"1h"`: warned},
	"Restore existingResourcePolicy":                            {`"none"`: honoured, `"update"`: honoured},
	"Restore resourceModifier":                                  {`{"apiGroup": null, "kind": "ConfigMap", "name": "x"}`: honoured, `{"apiGroup": "", "kind": "configmap", "name": "x"}`: honoured, `{"kind": "Secret", "name": "x"}`: refused},
	"Restore scheduleName":                                      {`"nightly"`: honoured},
	"Restore hooks.resources[].includedResources":               {`["pods"]`: honoured},
	"Restore hooks.resources[].postHooks[].exec.onError":        {`"Continue"`: honoured, `"Fail"`: honoured},
	"Restore hooks.resources[].postHooks[].init.initContainers": {`[{"name": "a", "image": "b"}]`: honoured},
	"Restore hooks.resources[].postHooks[].init.timeout":        {`"1m"`: noEffect},
	"Restore uploaderConfig.writeSparseFiles":                   {"true": honoured, "false": warned},
	"Restore uploaderConfig.parallelFilesDownload":              {"8": warned},
	"Schedule schedule":                                         {`"0 1 * * *"`: honoured, `"@every 24h"`: refused},
	"Schedule useOwnerReferencesInBackup":                       {"false": noEffect, "true": refused},
	"Schedule skipImmediately":                                  {"false": noEffect, "true": noEffect},
	"Schedule template.metadata.labels":                         {`{"a": "b"}`: honoured},
}

var ofType = map[string]string{
	"string": `"x"`, "bool": "true", "int": "1", "duration": `"1h0m0s"`, "map": `{"a": "b"}`, "list": `["x"]`,
	"selector": `{"matchLabels": {"a": "b"}}`, "reference": `{"kind": "configmap", "name": "x"}`,
}

// specWith returns a spec of a kind in which one field is set, beside those without which that
// one is not valid.
func specWith(t *testing.T, kind, path, value string) string {
	t.Helper()
	var spec any
	if err := json.Unmarshal([]byte(value), &spec); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Backward(strings.Split(path, ".")) {
		if of, ok := spec.(map[string]any); ok {
			complete(kind, name, of)
		}
		bare, list := strings.CutSuffix(name, "[]")
		if list {
			spec = []any{spec}
		}
		spec = map[string]any{bare: spec}
	}
	if kind == "Schedule" {
		setDefault(spec.(map[string]any), "schedule", "@daily")
	}
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// complete adds what the object in a field of hooks has to have.
func complete(kind, name string, of map[string]any) {
	exec := []any{map[string]any{"exec": map[string]any{"command": []any{"x"}}}}
	switch name {
	case "exec":
		setDefault(of, "command", []any{"x"})
	case "init":
		setDefault(of, "initContainers", []any{map[string]any{"name": "a", "image": "b"}})
	case "resources[]":
		setDefault(of, "name", "x")
		if kind == "Restore" {
			setDefault(of, "postHooks", exec)
		} else if of["post"] == nil {
			setDefault(of, "pre", exec)
		}
	}
}

func setDefault(of map[string]any, name string, value any) {
	if _, ok := of[name]; !ok {
		of[name] = value
	}
}

// becomes says what becomes of a spec of a kind.
func becomes(t *testing.T, kind, spec string) string {
	t.Helper()
	object, err := strictly(t, fmt.Sprintf(`{apiVersion: %s, kind: %s, metadata: {name: x, namespace: shop}, spec: %s}`, v1alpha1.SchemeGroupVersion, kind, spec))
	if err != nil {
		return fmt.Sprintf("not decoded: %v", err)
	}
	var errs field.ErrorList
	var warnings []string
	switch object := object.(type) {
	case *v1alpha1.Backup:
		errs, warnings = validation.ValidateBackup(object, validation.Options{}), validation.BackupWarnings(&object.Spec, validation.Options{}, nil)
	case *v1alpha1.Schedule:
		errs = append(validation.ValidateSchedule(object), validation.ValidateBackupSpec(&object.Spec.Template.BackupSpec, validation.Options{}, field.NewPath("spec", "template"))...)
		warnings = validation.BackupWarnings(&object.Spec.Template.BackupSpec, validation.Options{}, nil)
	case *v1alpha1.Restore:
		errs, warnings = validation.ValidateRestore(object), validation.RestoreWarnings(&object.Spec, nil)
	}
	switch {
	case len(errs) > 0 && errs[0].Detail == "":
		return fmt.Sprintf("refused without a reason: %v", errs)
	case len(errs) > 0:
		return refused
	case len(warnings) > 0:
		return warned
	}
	return honoured
}

// TestEveryFieldOfVelero: each field that Velero 1.18 has in its specs is honoured, has no
// effect, is accepted with a warning, or is refused with a reason, and docs/velero.md says
// which. None is an unknown field.
func TestEveryFieldOfVelero(t *testing.T) {
	rows, seen := documented(t), map[string]bool{}
	for _, f := range velerosFields(t) {
		of := f.kind + " " + f.path
		seen[of] = true
		row, ok := rowOf(rows[f.kind], f.path)
		if !ok {
			t.Errorf("docs/velero.md has no row for the field %s", of)
			continue
		}
		if f.kind == "BackupStorageLocation" {
			continue
		}
		tried := values[of]
		if tried == nil {
			tried = values[strings.Replace(of, "Schedule template.", "Backup ", 1)]
		}
		if tried == nil {
			tried = map[string]string{ofType[f.is]: honoured}
		}
		for value, want := range tried {
			got := becomes(t, f.kind, specWith(t, f.kind, f.path, value))
			if got == honoured && want == noEffect {
				got = noEffect // which can't be told from outside
			}
			if got != want {
				t.Errorf("%s: %s: %s, want %s", of, value, got, want)
			}
			if !strings.Contains(row, want) {
				t.Errorf("%s: %s: docs/velero.md does not say %q: %s", of, value, want, row)
			}
		}
	}
	for of := range values {
		if !seen[of] {
			t.Errorf("Velero has no field %s", of)
		}
	}
}

// What takes the place of a field of a BackupStorageLocation is a field of a StorageLocation.
func TestFieldsOfLocationsExist(t *testing.T) {
	code := regexp.MustCompile("`spec\\.([^`:]+)")
	for path, row := range documented(t)["BackupStorageLocation"] {
		found := code.FindAllStringSubmatch(row, -1)
		for _, word := range found {
			of := reflect.TypeFor[enginev1alpha1.StorageLocationSpec]()
			for name := range strings.SplitSeq(word[1], ".") {
				next, ok := fieldOf(of, name)
				if !ok {
					t.Errorf("%s: a StorageLocation has no spec.%s", path, word[1])
					break
				}
				of = next
			}
		}
		if len(found) == 0 && !strings.Contains(row, noEffect) && !strings.Contains(row, refused) {
			t.Errorf("%s: docs/velero.md names no field, and does not say why: %s", path, row)
		}
	}
}

// fieldOf returns the type of a struct's field by its name in JSON.
func fieldOf(of reflect.Type, name string) (reflect.Type, bool) {
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct {
		return nil, false
	}
	for f := range of.Fields() {
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name {
			return f.Type, true
		}
	}
	return nil, false
}
