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

// maxTexts bounds the results' texts of each kind. More are counted and logged.
const maxTexts = 10_000

// maxText bounds a text, which may repeat other programs' output.
const maxText = 2 << 10

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

// toldIn returns the namespace whose readers may see findings about the subject: its own, or home for
// the backup itself.
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

type findings struct {
	log    *logbook
	logger klog.Logger
	home   string

	mu sync.Mutex
	format.FoundSoFar
}

func (f *findings) soFar() format.FoundSoFar {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.FoundSoFar
}

func (f *findings) adopt(earlier format.FoundSoFar) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.FoundSoFar = earlier
}

func (f *findings) fail(about subject, text string) {
	f.logger.Info("Part of the backup failed", "about", about.String(), "error", text)
	f.record(&f.Results.Errors, &f.Errors, &f.ToldErrors, slog.LevelError, about, text)
}

func (f *findings) warn(about subject, text string) {
	f.record(&f.Results.Warnings, &f.Warnings, &f.ToldWarnings, slog.LevelWarn, about, text)
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

func (f *findings) leaveOut(about subject) {
	f.log.write(slog.LevelInfo, secretsLeftOut, about.attrs()...)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.SecretsLeftOut == nil {
		f.SecretsLeftOut = map[string]int{}
	}
	f.SecretsLeftOut[about.namespace]++
}

func (f *findings) leftOut() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.SecretsLeftOut) == 0 {
		return ""
	}
	var counts []string
	for _, namespace := range slices.Sorted(maps.Keys(f.SecretsLeftOut)) {
		counts = append(counts, fmt.Sprintf("%d of the namespace %s", f.SecretsLeftOut[namespace], namespace))
	}
	return secretsLeftOut + ": " + strings.Join(counts, ", ")
}

func (f *findings) message() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return format.Findings(&f.ToldErrors, &f.ToldWarnings)
}

func (f *findings) counts() (errors, warnings int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Errors, f.Warnings
}

const maxTold = 800

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
