// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// quiet is how long nothing may be written until what was asked for has settled:
// events are sent behind the work that they tell of.
const quiet = 3 * time.Second

// write is one kind of request that changes something.
type write struct{ verb, resource, user string }

// writes counts requests.
type writes map[write]int

func (w writes) total() int {
	sum := 0
	for _, n := range w {
		sum += n
	}
	return sum
}

// of counts the requests for a resource, whatever the verb, the user and the answer.
func (w writes) of(resource string) int {
	sum := 0
	for k, n := range w {
		if name, _, _ := strings.Cut(k.resource, " "); name == resource {
			sum += n
		}
	}
	return sum
}

// print lists the writes, the most frequent first, and what that is per backup.
func (w writes) print(out io.Writer, backups int) {
	keys := make([]write, 0, len(w))
	for k := range w {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b write) int {
		return cmp.Or(cmp.Compare(w[b], w[a]), strings.Compare(fmt.Sprint(a), fmt.Sprint(b)))
	})
	for _, k := range keys {
		fmt.Fprintf(out, "  %6d  %5.2f per backup  %-7s %-40s %s\n", w[k], float64(w[k])/float64(backups), k.verb, k.resource, k.user)
	}
}

// counts reports whether an audited request is one of Holdfast's writes: of
// anybody on its objects, and of its own users on events. Leases are left out: one
// is renewed every two seconds, whether there are backups or not. So are storage
// locations: it is we who take the store away and give it back.
func counts(event *auditv1.Event) bool {
	if event.Stage != auditv1.StageResponseComplete || event.ObjectRef == nil {
		return false
	}
	switch event.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
	default:
		return false
	}
	group := event.ObjectRef.APIGroup
	if group == "coordination.k8s.io" || event.ObjectRef.Resource == "storagelocations" {
		return false
	}
	return group == "holdfast.io" || strings.HasSuffix(group, ".holdfast.io") ||
		strings.HasPrefix(event.User.Username, "system:serviceaccount:"+namespace) // and of the agents' namespace
}

func (l *lab) auditLog() string { return filepath.Join(l.dir, "logs", "audit.log") }

// auditSize is where the audit log ends now.
func (l *lab) auditSize() (int64, error) {
	info, err := os.Stat(l.auditLog())
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// writesSince waits until Holdfast is quiet, and counts what was written since the
// audit log had a size.
func (l *lab) writesSince(ctx context.Context, offset int64) (writes, error) {
	file, err := os.Open(l.auditLog())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return nil, err
	}
	reader, found := auditReader{lines: bufio.NewReader(file)}, writes{}
	last, since := -1, time.Now()
	err = wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		if err := reader.count(found); err != nil {
			return false, fmt.Errorf("%s: %w", l.auditLog(), err)
		}
		if n := found.total(); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) >= quiet, nil
	})
	if err != nil {
		return nil, fmt.Errorf("waiting until Holdfast writes nothing more: %w", err)
	}
	return found, nil
}

// auditReader reads a log that grows.
type auditReader struct {
	lines   *bufio.Reader
	partial []byte // a line that is not complete yet
}

// count adds the writes that came since it was called last.
func (r *auditReader) count(found writes) error {
	for {
		line, err := r.lines.ReadBytes('\n')
		r.partial = append(r.partial, line...)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var event auditv1.Event
		err = json.Unmarshal(r.partial, &event)
		r.partial = r.partial[:0]
		if err != nil {
			return err
		}
		if !counts(&event) {
			continue
		}
		resource := strings.TrimSuffix(event.ObjectRef.Resource+"."+event.ObjectRef.APIGroup, ".")
		if event.ObjectRef.Subresource != "" {
			resource += "/" + event.ObjectRef.Subresource
		}
		if event.ObjectRef.Resource == "configmaps" {
			resource += "/" + event.ObjectRef.Name
		}
		if event.ResponseStatus != nil && event.ResponseStatus.Code >= 400 {
			resource += fmt.Sprintf(" (%d)", event.ResponseStatus.Code)
		}
		found[write{event.Verb, resource, event.User.Username}]++
	}
}
