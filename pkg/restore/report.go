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
	// maxTexts bounds the texts of each kind in the results. Further ones are counted, and
	// are in the log.
	maxTexts = 10_000
	// maxTextBytes bounds each of them, and maxResultsBytes all of them as JSON, which nobody
	// reads if it is longer.
	maxTextBytes    = 4 << 10
	maxResultsBytes = format.MaxSideFileBytes / 2
	// maxPlanBytes bounds the compressed plan of a restore in memory. A line takes some ten
	// bytes.
	maxPlanBytes = 16 << 20
)

// report collects what becomes of a restore: its log, its results and its plan, compressed
// as they come, and bounded. It is safe for concurrent use.
type report struct {
	log *runlog.Log

	mu   sync.Mutex
	plan document
	// unplanned are the objects that the plan had no room for.
	unplanned int

	results format.Results
	// room is how many more bytes of JSON these may have.
	room             int
	errors, warnings int32
	// toldErrors and toldWarnings are the first of them, for the restore's status; home is its
	// namespace.
	toldErrors, toldWarnings format.Told
	home                     string
}

// document is compressed as it is written.
type document struct {
	bytes.Buffer
	gzip *gzip.Writer
	// lines are those that were written.
	lines int
}

// subject is what a finding is about, as it is called in the cluster. The zero value is the
// restore as a whole.
type subject struct {
	// resource is plural.group.
	resource, namespace, name string
}

func (s subject) String() string {
	if s.namespace == "" {
		return s.resource + " " + s.name
	}
	return s.resource + " " + s.namespace + "/" + s.name
}

// toldIn is the namespace whose readers may be told what is about the subject, for a restore whose
// home is a namespace: they may read of the restore itself, and of the namespace.
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
	r.plan.gzip, _ = gzip.NewWriterLevel(&r.plan.Buffer, gzip.BestSpeed) // the level is valid
	_, _ = r.plan.gzip.Write([]byte(`{"items":[`))                       // a buffer takes everything
	return r
}

// info adds a line to the log.
func (r *report) info(about subject, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(slog.LevelInfo, about, text)
}

// fail records that something that was asked for is not there.
func (r *report) fail(about subject, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record(&r.results.Errors, &r.errors, &r.toldErrors, slog.LevelError, about, text)
}

// warn records that something is there, and differs.
func (r *report) warn(about subject, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record(&r.results.Warnings, &r.warnings, &r.toldWarnings, slog.LevelWarn, about, text)
}

func (r *report) record(messages *format.Messages, count *int32, told *format.Told, level slog.Level, about subject, text string) {
	if len(text) > maxTextBytes { // an answer of the API server can repeat what it refuses
		text = strings.ToValidUTF8(text[:maxTextBytes], "") + "..."
	}
	r.write(level, about, text)
	full := text
	if about != (subject{}) {
		full = about.String() + ": " + text
	}
	told.Add(about.toldIn(r.home), full)
	encoded, _ := json.Marshal([]string{about.namespace, about.String(), text}) // all strings have JSON
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

// planned adds an object to the plan.
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

// message is what came of the restore in one line; empty if there are neither errors nor warnings.
func (r *report) message() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return format.Findings(&r.toldErrors, &r.toldWarnings)
}

// counts gives the number of errors and warnings so far.
func (r *report) counts() (errors, warnings int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.errors, r.warnings
}

// end ends log and plan, and gives their compressed content. Nothing may be added after it.
func (r *report) end() (log, plan []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unplanned > 0 {
		r.record(&r.results.Warnings, &r.warnings, &r.toldWarnings, slog.LevelWarn, subject{}, fmt.Sprintf("the plan was too long: %d objects are not in it", r.unplanned))
	}
	_, _ = r.plan.gzip.Write([]byte("\n]}\n"))
	_ = r.plan.gzip.Close() // a buffer takes everything
	return r.log.End(), r.plan.Bytes()
}
