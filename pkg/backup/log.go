// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"log/slog"

	"github.com/holdfast-io/holdfast/pkg/runlog"
)

type logbook struct{ *runlog.Log }

func (l *logbook) write(level slog.Level, message string, attrs ...slog.Attr) {
	if l.Log != nil { // a plan has none
		l.Write(level, message, attrs...)
	}
}

// close returns the compressed content. Later lines are dropped.
func (l *logbook) close() []byte { return l.End() }
