// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// TestDurationsKeepTheirText: durations come back as they were written, by every way that an object takes,
// and have the meaning of Kubernetes' own type.
func TestDurationsKeepTheirText(t *testing.T) {
	for _, text := range []string{"720h", "720h0m0s", "90m", "1h30m", "30m0s", "0", "0s", "1.5h", "+2h", "86400s"} {
		var d Duration
		var plain metav1.Duration
		if err := json.Unmarshal([]byte(`"`+text+`"`), &d); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if err := json.Unmarshal([]byte(`"`+text+`"`), &plain); err != nil || plain.Duration != d.Duration {
			t.Errorf("%s is %s, and for Kubernetes %s, %v", text, d.Duration, plain.Duration, err)
		}
		if got, err := json.Marshal(d); err != nil || string(got) != `"`+text+`"` {
			t.Errorf("%s becomes %s, %v", text, got, err)
		}
		spec := BackupSpec{TTL: d, Hooks: BackupHooks{Resources: []BackupResourceHookSpec{{Pre: []BackupResourceHook{{Exec: &ExecHook{Timeout: d}}}}}}}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&Backup{Spec: spec})
		if err != nil {
			t.Fatal(err)
		}
		if got := content["spec"].(map[string]any)["ttl"]; got != text {
			t.Errorf("for managers of fields %s is %v", text, got)
		}
		var back Backup
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &back); err != nil || back.Spec.TTL != d {
			t.Errorf("%s comes back as %+v, %v", text, back.Spec.TTL, err)
		}
		encoded, err := yaml.Marshal(spec.DeepCopy())
		if err != nil {
			t.Fatal(err)
		}
		var decoded BackupSpec
		if err := yaml.Unmarshal(encoded, &decoded); err != nil || decoded.TTL != d || decoded.Hooks.Resources[0].Pre[0].Exec.Timeout != d {
			t.Errorf("%s is in YAML %s: %v", text, encoded, err)
		}
	}
	for _, text := range []string{`"1d"`, `""`, `7`, `"x"`, `null`, `{}`} {
		if err := json.Unmarshal([]byte(text), new(metav1.Duration)); (json.Unmarshal([]byte(text), new(Duration)) == nil) != (err == nil) {
			t.Errorf("%s is taken, or not, otherwise than by Kubernetes: %v", text, err)
		}
	}
}

// TestDurationsAreEqualByValue: a text that is the usual one, or means something else by now, does not count.
func TestDurationsAreEqualByValue(t *testing.T) {
	var d Duration
	if err := json.Unmarshal([]byte(`"720h0m0s"`), &d); err != nil || d != (Duration{Duration: 720 * time.Hour}) {
		t.Errorf("the usual text becomes %+v, %v", d, err)
	}
	if err := json.Unmarshal([]byte(`"720h"`), &d); err != nil {
		t.Fatal(err)
	}
	if d.Duration = time.Hour; d.String() != "1h0m0s" {
		t.Errorf("an hour is written as %s", d)
	}
	long := `"` + strings.Repeat("0", maxDurationText) + `1h"`
	if err := json.Unmarshal([]byte(long), &d); err != nil || d != (Duration{Duration: time.Hour}) {
		t.Errorf("a long text becomes %+v, %v", d, err)
	}
}
