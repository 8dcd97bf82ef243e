// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestDecodePlain: what is read without encoding/json is what that reads, be the line ours or
// one that somebody has meddled with.
func TestDecodePlain(t *testing.T) {
	full := &Item{
		APIGroup: "apps", APIVersion: "v1", KindName: "Deployment", Resource: "deployments", Namespace: "shop", Name: "web", UID: "1-2",
		Labels: map[string]string{"app": "web", "empty": ""}, Annotations: map[string]string{"note": "<a & b>"}, OwnerUIDs: []string{"3", "4"},
		References: []Reference{{KindName: "Secret", Namespace: "shop", Name: "s"}, {APIGroup: "g", KindName: "K", Name: "n"}},
		Size:       123, SHA256: "ab", Place: Place{1 << 40, 0}, Reason: "related",
	}
	line, err := (&Writer{}).encode(full)
	if err != nil {
		t.Fatal(err)
	}
	if item, ok := decodePlain(line); !ok || !cmp.Equal(full, item, cmpopts.IgnoreFields(Item{}, "Manifest")) {
		t.Errorf("an item as nearly all are: %t %+v", ok, item)
	}
	tokens := []string{`{`, `}`, `[`, `]`, `,`, `:`, `"`, `\`, ` `, "\n", "\x00", "ü", "\x80", "\xff", `null`, `true`, `0`, `01`, `-1`, `1.5`, `1e3`, `9223372036854775808`, `999999999999999999`,
		`"name":"other"`, `"Name":"other"`, `"labels":{"a":"b"}`, `"labels":{}`, `"labels":null`, `"owners":["x"]`, `"owners":[]`, `"owners":[null]`, `"references":[{}]`, `"references":[{"kind":"K","kind":"L"}]`,
		`"place":{"member":2}`, `"place":{"offset":2,"x":1}`, `"size":7`, `"size":"7"`, `"original":{"a":1}`, `"shortened":true`, `"other":1`, `"a":"b"`}
	tokens = append(tokens, "")
	tried, plain := 0, 0
	for at := range line {
		for _, token := range tokens {
			for _, changed := range []string{
				string(line[:at]) + token + string(line[at:]), string(line[:at]) + token + "," + string(line[at:]), string(line[:at]) + token + string(line[at+1:]),
			} {
				tried++
				item, ok := decodePlain([]byte(changed))
				if !ok {
					continue
				}
				plain++
				var want Item
				if err := json.Unmarshal([]byte(changed), &want); err != nil {
					t.Fatalf("%s was read, and is no item: %v", changed, err)
				}
				if !reflect.DeepEqual(&want, item) {
					t.Fatalf("%s (-json +plain):\n%s", changed, cmp.Diff(&want, item, cmpopts.IgnoreFields(Item{}, "Manifest")))
				}
			}
		}
	}
	t.Logf("%d of %d lines were plain", plain, tried)
}
