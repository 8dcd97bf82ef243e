// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// AuditMark is the end of the audit log now.
func (l *Lab) AuditMark(t testing.TB) int64 {
	t.Helper()
	info, err := os.Stat(l.auditLog())
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// WritesSince returns the requests that wrote something since the mark: objects
// of Holdfast, its records, and events. Leases, which are renewed whether
// anything happens or not, are not in there.
func (l *Lab) WritesSince(t testing.TB, mark int64) []auditv1.Event {
	t.Helper()
	events, _ := read(t, l.auditLog(), mark)
	return slices.DeleteFunc(events, func(event auditv1.Event) bool {
		return slices.Contains([]string{"get", "list", "watch"}, event.Verb) || event.ObjectRef == nil || event.ObjectRef.Resource == "leases"
	})
}

// Audited returns the audit log of Holdfast's own API server, read and as it is.
func (l *Lab) Audited(t testing.TB) ([]auditv1.Event, string) {
	t.Helper()
	return read(t, filepath.Join(l.Dir, "logs", "holdfast-audit.log"), 0)
}

// read reads an audit log from a mark on.
func read(t testing.TB, path string, mark int64) (events []auditv1.Event, text string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Seek(mark, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	all = all[:bytes.LastIndexByte(all, '\n')+1] // what is behind it is not written in full yet
	for line := range bytes.Lines(all) {
		var event auditv1.Event
		if err := json.Unmarshal(line, &event); err != nil {
			t.Fatalf("reading the audit log: %v", err)
		}
		events = append(events, event)
	}
	return events, string(all)
}

func (l *Lab) auditLog() string { return filepath.Join(l.Dir, "logs", "audit.log") }
