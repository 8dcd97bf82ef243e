// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/pkg/format"
)

// maxTexts bounds the texts of each kind in the results. Further ones are
// counted, and are in the log.
const maxTexts = 10_000

// maxText bounds one, since it may repeat what others have written.
const maxText = 2 << 10

// subject is what a finding is about. The zero value is the backup as a whole.
type subject struct {
	resource  schema.GroupResource
	namespace string
	name      string
}

func (s subject) String() string {
	text := s.resource.String()
	switch {
	case s.namespace != "" && s.name != "":
		text += " " + s.namespace + "/" + s.name
	case s.namespace != "" || s.name != "":
		text += " " + s.namespace + s.name
	}
	return text
}

// toldIn is the namespace whose readers may be told what is about the subject, for a backup whose
// home is a namespace: they may read of the backup itself, and of the namespace.
func (s subject) toldIn(home string) string {
	if s == (subject{}) || s.resource == namespacesResource && s.name == home {
		return home
	}
	return s.namespace
}

func (s subject) attrs() []slog.Attr {
	var attrs []slog.Attr
	for _, attr := range []slog.Attr{
		slog.String("resource", s.resource.String()),
		slog.String("namespace", s.namespace),
		slog.String("name", s.name),
	} {
		if attr.Value.String() != "" {
			attrs = append(attrs, attr)
		}
	}
	return attrs
}

// findings collects what went wrong, into the backup's results and its log. It
// is safe for concurrent use.
type findings struct {
	log    *logbook
	logger klog.Logger
	// home is the namespace of the backup.
	home string

	mu       sync.Mutex
	results  format.Results
	errors   int32
	warnings int32
	// told are the first errors and warnings, for the backup's status.
	toldErrors, toldWarnings format.Told
	// secrets counts the Secrets of Holdfast's own namespaces that were left out.
	secrets map[string]int
}

// fail records that the backup lacks something that was asked for.
func (f *findings) fail(about subject, text string) {
	f.logger.Info("Part of the backup failed", "about", about.String(), "error", text)
	f.record(&f.results.Errors, &f.errors, &f.toldErrors, slog.LevelError, about, text)
}

// warn records what the user should know, although nothing that was asked for is
// missing.
func (f *findings) warn(about subject, text string) {
	f.record(&f.results.Warnings, &f.warnings, &f.toldWarnings, slog.LevelWarn, about, text)
}

func (f *findings) record(messages *format.Messages, count *int32, told *format.Told, level slog.Level, about subject, text string) {
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "..."
	}
	f.log.write(level, text, about.attrs()...)
	f.mu.Lock()
	defer f.mu.Unlock()
	full := text
	if about != (subject{}) {
		full = about.String() + ": " + text
	}
	told.Add(about.toldIn(f.home), full)
	*count++
	if *count > maxTexts {
		return
	}
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

// leaveOut records a Secret of Holdfast's own namespaces.
func (f *findings) leaveOut(about subject) {
	f.log.write(slog.LevelInfo, secretsLeftOut, about.attrs()...)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.secrets == nil {
		f.secrets = map[string]int{}
	}
	f.secrets[about.namespace]++
}

// leftOut says what leaveOut has recorded; empty if there is nothing.
func (f *findings) leftOut() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.secrets) == 0 {
		return ""
	}
	var counts []string
	for _, namespace := range slices.Sorted(maps.Keys(f.secrets)) {
		counts = append(counts, fmt.Sprintf("%d of the namespace %s", f.secrets[namespace], namespace))
	}
	return secretsLeftOut + ": " + strings.Join(counts, ", ")
}

// message is what came of the backup in one line; empty if there are neither errors nor warnings.
func (f *findings) message() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return format.Findings(&f.toldErrors, &f.toldWarnings)
}

// counts gives the number of errors and warnings so far.
func (f *findings) counts() (errors, warnings int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.errors, f.warnings
}

// maxTold is how much of several texts fits into an Event.
const maxTold = 800

// told are texts in one line, as many as fit, and how many do not.
func told(all []string) string {
	told := ""
	for i, text := range all {
		if i > 0 && len(told)+len(text) > maxTold {
			return fmt.Sprintf("%s; and %d more", told, len(all)-i)
		}
		if i > 0 {
			told += "; "
		}
		told += text
	}
	return told
}
