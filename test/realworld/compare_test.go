// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package realworld

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// difference is what one object lacks, has besides, or has otherwise after the restore.
type difference struct {
	// Operator is whose object it is, empty for those outside of all namespaces that are of none.
	Operator string `json:"-"`
	// Object is a kind and a name.
	Object string `json:"object"`
	// Field is a path. It is empty if the object itself is lost or added.
	Field string `json:"field,omitempty"`
	// Change is "lost X", "added X" or "X, now Y".
	Change string `json:"change"`
	// Why explains it. It is for people to write.
	Why string `json:"why"`
}

// compare tells how what is there after a restore differs from what was there before.
func compare(before, after snapshot) (found []difference) {
	names := maps.Clone(before.objects)
	maps.Copy(names, after.objects)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		was, existed := before.objects[name]
		is, exists := after.objects[name]
		d := difference{Operator: names[name].operator, Object: strings.TrimPrefix(name, names[name].operator+": ")}
		switch {
		case !exists:
			d.Change = "lost"
			found = append(found, d)
		case !existed:
			d.Change = "added"
			found = append(found, d)
		default:
			differ("", was.content, is.content, func(field, change string) {
				d.Field, d.Change = field, change
				found = append(found, d)
			})
		}
	}
	return found
}

// differ tells where two values differ, as deep as both have the same form.
func differ(path string, was, is any, tell func(field, change string)) {
	switch was := was.(type) {
	case map[string]any:
		is, ok := is.(map[string]any)
		if !ok {
			break
		}
		keys := maps.Clone(was)
		maps.Copy(keys, is)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			field := path + "." + key
			if path == "" {
				field = key
			}
			if strings.ContainsAny(key, "./") {
				field = path + "[" + key + "]"
			}
			differElement(field, was, is, key, tell)
		}
		return
	case []any:
		is, ok := is.([]any)
		if !ok {
			break
		}
		wasNamed, isNamed := named(was), named(is)
		if wasNamed == nil || isNamed == nil {
			if len(was) != len(is) {
				break
			}
			for i := range was {
				differ(fmt.Sprintf("%s[%d]", path, i), was[i], is[i], tell)
			}
			return
		}
		keys := maps.Clone(wasNamed)
		maps.Copy(keys, isNamed)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			differElement(path+"["+key+"]", wasNamed, isNamed, key, tell)
		}
		return
	}
	if !reflect.DeepEqual(was, is) {
		tell(path, shown(was)+", now "+shown(is))
	}
}

func differElement(field string, was, is map[string]any, key string, tell func(field, change string)) {
	before, existed := was[key]
	after, exists := is[key]
	switch {
	case !exists:
		tell(field, "lost "+shown(before))
	case !existed:
		tell(field, "added "+shown(after))
	default:
		differ(field, before, after, tell)
	}
}

// named are the elements of a list by their names or types, or nil if they have none.
func named(list []any) map[string]any {
	for _, key := range []string{"name", "type"} {
		found := map[string]any{}
		for _, element := range list {
			if fields, ok := element.(map[string]any); ok {
				if name, ok := fields[key].(string); ok {
					found[name] = element
				}
			}
		}
		if len(found) == len(list) {
			return found
		}
	}
	return nil
}

// What is another one each time, in golden files.
var (
	aUID     = regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`)
	aTime    = regexp.MustCompile(`\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	anIP     = regexp.MustCompile(`\b10\.90\.\d+\.\d+\b`)
	aToken   = regexp.MustCompile(`"ZXlK[A-Za-z0-9+/=]+"`)
	aBundle  = regexp.MustCompile(`"(LS0tLS1CRUdJTi|-----BEGIN CERT)[^"]+"`)
	aPort    = regexp.MustCompile(`\b3[0-2]\d\d\d\b`)
	aVersion = regexp.MustCompile(`\bv1\.3\d\.\d+\b`)
)

// settled is a text with a word in capitals for all that is another one each time.
func settled(text string) string {
	text = aUID.ReplaceAllString(text, "UID")
	text = aTime.ReplaceAllString(text, "TIME")
	text = anIP.ReplaceAllString(text, "IP")
	text = aToken.ReplaceAllString(text, "TOKEN")
	text = aBundle.ReplaceAllString(text, "CERTIFICATE")
	text = aVersion.ReplaceAllString(text, "VERSION")
	return aPort.ReplaceAllString(text, "PORT")
}

// shown is a value for people, no longer than a line.
func shown(value any) string {
	text := settled(string(encoded(value)))
	const most = 120
	if len(text) > most {
		cut := most
		for !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut] + "…"
	}
	return text
}

// TestDiffer: what is compared is told as deep as both sides have the same form.
func TestDiffer(t *testing.T) {
	was := map[string]any{
		"same": "a", "lost": 1.0, "other": "x", "map": map[string]any{"example.com/key": true, "kept": false},
		"named":    []any{map[string]any{"name": "a", "v": 1.0}, map[string]any{"name": "b"}},
		"unnamed":  []any{"a", "b"},
		"uid":      "1f0e1f7a-9b1c-4b57-8d5c-0123456789ab",
		"shorter":  []any{"a", "b"},
		"reshaped": map[string]any{"a": "b"},
	}
	is := map[string]any{
		"same": "a", "other": "y", "map": map[string]any{"example.com/key": false, "kept": false},
		"named":    []any{map[string]any{"name": "c"}, map[string]any{"name": "a", "v": 2.0}},
		"unnamed":  []any{"a", "c"},
		"uid":      "2f0e1f7a-9b1c-4b57-8d5c-0123456789ab",
		"shorter":  []any{"a"},
		"reshaped": "a",
	}
	var found []string
	differ("", was, is, func(field, change string) { found = append(found, field+": "+change) })
	want := []string{
		"lost: lost 1", "map[example.com/key]: true, now false", "named[a].v: 1, now 2", `named[b]: lost {"name":"b"}`, `named[c]: added {"name":"c"}`,
		`other: "x", now "y"`, `reshaped: {"a":"b"}, now "a"`, `shorter: ["a","b"], now ["a"]`, `uid: "UID", now "UID"`, `unnamed[1]: "b", now "c"`,
	}
	if !slices.Equal(found, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(found, "\n"), strings.Join(want, "\n"))
	}
}
