// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"context"
	"log/slog"
	"sync"

	"github.com/klauspost/compress/gzip"
	"k8s.io/utils/clock"
)

const (
	// maxLogBytes bounds the compressed log of a backup in memory. A line takes
	// about ten bytes, so this is more than half a million of them.
	maxLogBytes = 8 << 20
	// Warnings and errors still fit when the lines about objects have filled it.
	reservedLogBytes = 1 << 20
)

// logbook is the backup's own log: lines of logfmt, compressed as they come. It
// holds at most maxLogBytes, and says at its end how many lines it had to leave
// out. It is safe for concurrent use.
type logbook struct {
	mu         sync.Mutex
	clock      clock.PassiveClock
	buffer     bytes.Buffer
	compressed *gzip.Writer
	handler    slog.Handler
	leftOut    int
	closed     bool
}

func newLogbook(clock clock.PassiveClock) *logbook {
	l := &logbook{clock: clock}
	l.compressed, _ = gzip.NewWriterLevel(&l.buffer, gzip.BestSpeed) // the level is valid
	l.handler = slog.NewTextHandler(l.compressed, &slog.HandlerOptions{Level: slog.LevelInfo})
	return l
}

// write adds a line.
func (l *logbook) write(level slog.Level, message string, attrs ...slog.Attr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := maxLogBytes
	if level < slog.LevelWarn {
		limit -= reservedLogBytes
	}
	if l.closed || l.buffer.Len() > limit {
		l.leftOut++
		return
	}
	l.writeLocked(level, message, attrs...)
}

func (l *logbook) writeLocked(level slog.Level, message string, attrs ...slog.Attr) {
	record := slog.NewRecord(l.clock.Now().UTC(), level, message, 0)
	record.AddAttrs(attrs...)
	_ = l.handler.Handle(context.Background(), record) // a buffer takes everything
}

// close ends the log and gives its compressed content. Later lines are dropped.
func (l *logbook) close() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		if l.leftOut > 0 {
			l.writeLocked(slog.LevelWarn, "the log was too long: lines were left out", slog.Int("lines", l.leftOut))
		}
		_ = l.compressed.Close() // a buffer takes everything
		l.closed = true
	}
	return l.buffer.Bytes()
}
