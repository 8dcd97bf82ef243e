// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"strings"
	"testing"
)

// TestModifiersAreBounded: many rules and conditions, each of which looks at every object, don't take hours.
func TestModifiersAreBounded(t *testing.T) {
	rule := "- conditions: {groupResource: configmaps, matches: [" + strings.Repeat("{path: /a, value: b}, ", 100) + "]}\n  mergePatches: [{patchData: '{}'}]\n"
	parse := func(rules string) error {
		_, err := ParseModifiers(map[string]string{"rules": "version: v1\nresourceModifierRules:\n" + rules})
		return err
	}
	if err := parse(strings.Repeat(rule, 10)); err != nil {
		t.Error(err)
	}
	if err := parse(strings.Replace(rule, "matches: [", "matches: [{path: /a, value: b}, ", 1)); err == nil || !strings.Contains(err.Error(), "101 entries: 100 is the most") {
		t.Errorf("too many conditions: %v", err)
	}
	if err := parse(strings.Repeat("- conditions: {groupResource: a}\n  mergePatches: [{patchData: '{}'}]\n", 1001)); err == nil || !strings.Contains(err.Error(), "1001 resourceModifierRules: 1000 is the most") {
		t.Errorf("too many rules: %v", err)
	}
}
