// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestUnprotectedComesFirst: what has no backup is listed before what has one, from all pages.
func TestUnprotectedComesFirst(t *testing.T) {
	row := func(name string, state v1alpha1.ProtectionState) v1alpha1.Protection {
		p := v1alpha1.Protection{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: v1alpha1.ProtectionSpec{Kind: "PersistentVolumeClaim"}, Status: v1alpha1.ProtectionStatus{Protected: state}}
		if state == v1alpha1.ProtectionYes {
			p.Status.Objects = &v1alpha1.ProtectedBy{Backup: v1alpha1.BackupReference{Namespace: "shop", Name: "own"}, Timestamp: metav1.NewTime(time.Now().Add(-time.Hour))}
			p.Status.Data = &v1alpha1.ProtectedBy{Timestamp: p.Status.Objects.Timestamp}
			p.Status.Schedule = &v1alpha1.ProtectingSchedule{Namespace: "holdfast", Name: "nightly"}
		}
		return p
	}
	s := &server{answers: map[string]any{
		"GET /apis/holdfast.io/v1alpha1/namespaces/shop/protections": &v1alpha1.ProtectionList{TypeMeta: typed("ProtectionList"), Items: []v1alpha1.Protection{
			row("a", v1alpha1.ProtectionYes), row("b", v1alpha1.ProtectionLate), row("c", v1alpha1.ProtectionNone), row("d", v1alpha1.ProtectionUnknown),
		}},
	}}
	stdout, stderr, code := run(t, s, "protection")
	var names []string
	for line := range strings.Lines(stdout) {
		names = append(names, strings.Fields(line)[0])
	}
	if got := strings.Join(names, " "); code != ExitOK || got != "NAME c d b a" || !strings.Contains(stdout, "own (60m)") || !strings.Contains(stdout, "another backup (60m)") || !strings.Contains(stdout, "holdfast/nightly") {
		t.Errorf("exit code %d: %s %s", code, stdout, stderr)
	}
	if stdout, _, code = run(t, s, "protection", "-o", "json"); code != ExitOK || strings.Index(stdout, `"c"`) > strings.Index(stdout, `"a"`) || !strings.Contains(stdout, `"kind": "ProtectionList"`) {
		t.Errorf("as JSON, exit code %d: %s", code, stdout)
	}
	if _, _, code = run(t, s, "protection", "-o", "name"); code != ExitUsage {
		t.Errorf("an unknown format has the exit code %d", code)
	}
}
