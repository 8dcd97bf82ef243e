// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// AuditMark is the end of the audit log now.
func (l *Lab) AuditMark(t *testing.T) int64 {
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
func (l *Lab) WritesSince(t *testing.T, mark int64) []auditv1.Event {
	t.Helper()
	file, err := os.Open(l.auditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Seek(mark, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	var writes []auditv1.Event
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return writes // what is behind the last end of line is not written in full yet
		}
		if err != nil {
			t.Fatal(err)
		}
		var event auditv1.Event
		if err := json.Unmarshal(line, &event); err != nil {
			t.Fatalf("reading the audit log: %v", err)
		}
		if slices.Contains([]string{"get", "list", "watch"}, event.Verb) || event.ObjectRef == nil || event.ObjectRef.Resource == "leases" {
			continue
		}
		writes = append(writes, event)
	}
}

func (l *Lab) auditLog() string { return filepath.Join(l.Dir, "logs", "audit.log") }
