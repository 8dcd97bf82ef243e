// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"log/slog"

	"github.com/holdfast-io/holdfast/pkg/runlog"
)

// logbook is the backup's own log.
type logbook struct{ *runlog.Log }

// write adds a line.
func (l *logbook) write(level slog.Level, message string, attrs ...slog.Attr) {
	l.Write(level, message, attrs...)
}

// close ends the log and gives its compressed content. Later lines are dropped.
func (l *logbook) close() []byte { return l.End() }
