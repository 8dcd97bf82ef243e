// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/runlog"
)

const (
	maxTexts = 10_000
	// maxTextBytes bounds each text, maxResultsBytes all as JSON: a longer file can't be read.
	maxTextBytes    = 4 << 10
	maxResultsBytes = format.MaxSideFileBytes / 2
	// maxPlanBytes bounds the compressed plan in memory; a line takes about ten bytes.
	maxPlanBytes = 16 << 20
)

// report collects the log, the results and the plan of a restore, bounded. It is safe for
// concurrent use.
type report struct {
	log *runlog.Log

	mu        sync.Mutex
	plan      document
	unplanned int

	results          format.Results
	room             int
	errors, warnings int32
	// toldErrors and toldWarnings are the first, for the status; home is the restore's namespace.
	toldErrors, toldWarnings format.Told
	home                     string
	// told is given each error and warning. Optional.
	told func(about subject, isError bool, text string)
}

type document struct {
	bytes.Buffer
	gzip  *gzip.Writer
	lines int
}

// subject is the object of a finding, as called in the cluster; the zero value is the restore.
type subject struct {
	resource, namespace, name string
}

func (s subject) String() string {
	if s.namespace == "" {
		return s.resource + " " + s.name
	}
	return s.resource + " " + s.namespace + "/" + s.name
}

// toldIn returns the namespace whose readers may see findings about the subject, for a restore in
// home: its own, or home for the restore itself.
func (s subject) toldIn(home string) string {
	if s == (subject{}) || s.resource == "namespaces" && s.name == home {
		return home
	}
	return s.namespace
}

func newReport(log *runlog.Log, namespace, systemNamespace string) *report {
	r := &report{
		log: log, room: maxResultsBytes, home: namespace,
		toldErrors: format.NewTold(namespace, systemNamespace), toldWarnings: format.NewTold(namespace, systemNamespace),
	}
	r.plan.gzip, _ = gzip.NewWriterLevel(&r.plan.Buffer, gzip.BestSpeed)
	_, _ = r.plan.gzip.Write([]byte(`{"items":[`))
	return r
}

func (r *report) info(about subject, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(slog.LevelInfo, about, text)
}

func (r *report) fail(about subject, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record(&r.results.Errors, &r.errors, &r.toldErrors, slog.LevelError, about, text)
}

func (r *report) warn(about subject, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record(&r.results.Warnings, &r.warnings, &r.toldWarnings, slog.LevelWarn, about, text)
}

func (r *report) record(messages *format.Messages, count *int32, told *format.Told, level slog.Level, about subject, text string) {
	if len(text) > maxTextBytes { // an error of the API server can repeat the object
		text = strings.ToValidUTF8(text[:maxTextBytes], "") + "..."
	}
	r.write(level, about, text)
	if r.told != nil {
		r.told(about, level == slog.LevelError, text)
	}
	full := text
	if about != (subject{}) {
		full = about.String() + ": " + text
	}
	told.Add(about.toldIn(r.home), full)
	encoded, _ := json.Marshal([]string{about.namespace, about.String(), text})
	if *count++; *count > maxTexts || len(encoded) > r.room {
		return
	}
	r.room -= len(encoded)
	if about == (subject{}) {
		messages.Velero = append(messages.Velero, text)
		return
	}
	text = full
	if about.namespace == "" {
		messages.Cluster = append(messages.Cluster, text)
		return
	}
	if messages.Namespaces == nil {
		messages.Namespaces = map[string][]string{}
	}
	messages.Namespaces[about.namespace] = append(messages.Namespaces[about.namespace], text)
}

func (r *report) write(level slog.Level, about subject, text string) {
	if about == (subject{}) {
		r.log.Write(level, text)
		return
	}
	r.log.Write(level, text, slog.String("object", about.String()))
}

func (r *report) planned(entry format.PlannedObject) {
	line, err := json.Marshal(entry)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil || r.plan.Len() > maxPlanBytes {
		r.unplanned++
		return
	}
	separator := ",\n"
	if r.plan.lines == 0 {
		separator = "\n"
	}
	r.plan.lines++
	_, _ = r.plan.gzip.Write(append([]byte(separator), line...))
}

func (r *report) message() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return format.Findings(&r.toldErrors, &r.toldWarnings)
}

func (r *report) counts() (errors, warnings int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.errors, r.warnings
}

// end ends log and plan, and returns their compressed content. Nothing may be added later.
func (r *report) end() (log, plan []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unplanned > 0 {
		r.record(&r.results.Warnings, &r.warnings, &r.toldWarnings, slog.LevelWarn, subject{}, fmt.Sprintf("the plan was too long: %d objects are not in it", r.unplanned))
	}
	_, _ = r.plan.gzip.Write([]byte("\n]}\n"))
	_ = r.plan.gzip.Close()
	return r.log.End(), r.plan.Bytes()
}
