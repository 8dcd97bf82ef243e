// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runlog is the log of a backup or a restore: lines of logfmt, compressed as they
// come, in bounded memory. It can be read while it is written.
//
// Who reads gets a gzip stream whose end says how the log ended: one that is cut off is of
// a log that is not complete.
package runlog

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const (
	// MaxBytes bounds a compressed log in memory. A line takes about ten bytes, so this is
	// more than half a million of them, and a third of that if each is read as it comes.
	MaxBytes = 8 << 20
	// reservedBytes are for warnings and errors, when lines about objects have filled it.
	reservedBytes = 1 << 20
	// maxIncluded bounds what another log takes of this one, compressed.
	maxIncluded = 1 << 20
	// pace is how often a reader has what was written since made readable, which costs a few
	// bytes each time.
	pace = 500 * time.Millisecond
	// Heartbeat is how often a reader is sent something that means nothing when there is
	// nothing else, so that one can tell a log without news from a writer that is gone.
	Heartbeat = 5 * time.Second
)

// nothing is an empty block of a compressed stream. It may come after a flush.
var nothing = []byte{0, 0, 0, 0xff, 0xff}

// Log is the log of one run. It holds at most MaxBytes, and says at its end how many lines
// it had to leave out. It is safe for concurrent use.
type Log struct {
	clock clock.PassiveClock

	mu         sync.Mutex
	buffer     bytes.Buffer // nothing is read from it, so that its bytes stay where they are
	compressed *gzip.Writer
	handler    slog.Handler
	leftOut    int
	// readable is how many bytes of the buffer are whole blocks, and flushed is true if they
	// hold all lines.
	readable int
	flushed  bool
	// over is true when nothing comes any more, and ended if the log is complete.
	over, ended bool
	// changed is closed at the next change, if somebody waits for one.
	changed chan struct{}
}

// compressors are kept, for what one allocates is far more than what most logs take.
var compressors = sync.Pool{New: func() any {
	compressor, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed) // the level is valid
	return compressor
}}

// releaseLocked gives up what no line needs any more.
func (l *Log) releaseLocked() {
	l.compressed.Reset(io.Discard) // so that it keeps nothing of the log
	compressors.Put(l.compressed)
	l.compressed, l.handler = nil, nil
}

// New returns an empty log.
func New(clock clock.PassiveClock) *Log {
	l := &Log{clock: clock}
	l.compressed = compressors.Get().(*gzip.Writer)
	l.compressed.Reset(&l.buffer)
	l.handler = slog.NewTextHandler(l.compressed, &slog.HandlerOptions{Level: slog.LevelInfo})
	return l
}

// Write adds a line. After the end it is dropped.
func (l *Log) Write(level slog.Level, message string, attrs ...slog.Attr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := MaxBytes
	if level < slog.LevelWarn {
		limit -= reservedBytes
	}
	if l.over || l.buffer.Len() > limit {
		l.leftOut++
		return
	}
	l.writeLocked(level, message, attrs...)
}

func (l *Log) writeLocked(level slog.Level, message string, attrs ...slog.Attr) {
	record := slog.NewRecord(l.clock.Now().UTC(), level, message, 0)
	record.AddAttrs(attrs...)
	_ = l.handler.Handle(context.Background(), record) // a buffer takes everything
	l.flushed = false
	l.tellLocked()
}

// Include adds the lines of another log, given what that was at its end: the first ones, so that
// there is room for more, and those left out are counted. After the end they are dropped.
func (l *Log) Include(ended []byte) {
	if len(ended) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	lines, err := gzip.NewReader(bytes.NewReader(ended))
	if err != nil || l.over {
		return
	}
	full := l.buffer.Len() + maxIncluded
	for from := bufio.NewReader(lines); ; {
		line, err := from.ReadBytes('\n')
		if err != nil {
			break
		}
		if l.buffer.Len() > full {
			l.leftOut++
			continue
		}
		_, _ = l.compressed.Write(line) // a buffer takes everything
	}
	l.flushed = false
	l.tellLocked()
}

func (l *Log) tellLocked() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// End completes the log, and gives its compressed content.
func (l *Log) End() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		if l.leftOut > 0 {
			l.writeLocked(slog.LevelWarn, "the log was too long: lines were left out", slog.Int("lines", l.leftOut))
		}
		_ = l.compressed.Close() // a buffer takes everything
		l.releaseLocked()
		l.over, l.ended, l.flushed, l.readable = true, true, true, l.buffer.Len()
		l.tellLocked()
	}
	return l.buffer.Bytes()
}

// Break ends a log that will not be completed. One that has ended stays as it is.
func (l *Log) Break() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.flushLocked()
		l.releaseLocked()
		l.over = true
		l.tellLocked()
	}
}

func (l *Log) flushLocked() {
	if !l.flushed {
		_ = l.compressed.Flush() // a buffer takes everything
		l.flushed, l.readable = true, l.buffer.Len()
	}
}

// from gives what is readable beyond an offset, whether that is all that there will be, and
// a channel that is closed when there is more.
func (l *Log) from(offset int) (content []byte, over bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.flushLocked()
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
	}
	return l.buffer.Bytes()[offset:l.readable], l.over, l.changed
}

// Copy writes the compressed log so far, and with follow what comes, until the log is over
// or ctx ends.
func (l *Log) Copy(ctx context.Context, to io.Writer, follow bool) error {
	for offset := 0; ; {
		content, over, changed := l.from(offset)
		if len(content) > 0 {
			if _, err := to.Write(content); err != nil {
				return err
			}
			offset += len(content)
		}
		if over || !follow {
			return nil
		}
		if err := l.await(ctx, to, changed); err != nil {
			return err
		}
	}
}

// await waits for more, and then for more of that, since lines come in crowds.
func (l *Log) await(ctx context.Context, to io.Writer, changed <-chan struct{}) error {
	beat := time.NewTicker(Heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-beat.C:
			if _, err := to.Write(nothing); err != nil {
				return err
			}
			continue
		case <-changed:
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pace):
			return nil
		}
	}
}

// Logs are those of the runs that this process executes. It is safe for concurrent use, and
// nil keeps none.
type Logs struct {
	mu   sync.Mutex
	logs map[types.UID]*Log
}

// Begin begins the log of a run. end is to be called when nobody writes to it any more.
func (l *Logs) Begin(uid types.UID, clock clock.PassiveClock) (log *Log, end func()) {
	log = New(clock)
	if l == nil {
		return log, log.Break
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.logs == nil {
		l.logs = map[types.UID]*Log{}
	}
	l.logs[uid] = log
	return log, func() {
		log.Break()
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.logs[uid] == log {
			delete(l.logs, uid)
		}
	}
}

// Get returns the log of a run, or nil if it is not executed here.
func (l *Logs) Get(uid types.UID) *Log {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.logs[uid]
}
