// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runlog is the log of a backup or restore: logfmt, compressed at once, in bounded memory,
// readable while written. A reader gets a gzip stream; a cut off one is of an incomplete log.
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
	// MaxBytes bounds a compressed log: half a million lines, or a third of that with a reader.
	MaxBytes = 8 << 20
	// reservedBytes are for warnings and errors once other lines fill the log.
	reservedBytes = 1 << 20
	// MaxIncluded, for Include, leaves most of a log to its own lines.
	MaxIncluded = 1 << 20
	// pace is how often a reader flushes new lines, at the cost of a few bytes.
	pace = 500 * time.Millisecond
	// Heartbeat is the time between empty blocks to an idle reader: they distinguish a quiet log from a
	// dead writer.
	Heartbeat = 5 * time.Second
)

// nothing is an empty block of a compressed stream, valid after a flush.
var nothing = []byte{0, 0, 0, 0xff, 0xff}

// Log is one run's log, of at most MaxBytes. Its end has the number of omitted lines. It is safe for
// concurrent use.
type Log struct {
	clock clock.PassiveClock

	mu         sync.Mutex
	buffer     bytes.Buffer // not read from, so its bytes stay in place
	compressed *gzip.Writer
	handler    slog.Handler
	leftOut    int
	// readable is the length of whole blocks; flushed is true if they have all lines.
	readable int
	flushed  bool
	// over is true after the last line, ended if the log is complete.
	over, ended bool
	// changed is closed at the next change, if a reader waits.
	changed chan struct{}
}

// compressors are reused: they are larger than most logs.
var compressors = sync.Pool{New: func() any {
	compressor, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
	return compressor
}}

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

// Write adds a line. After the end it does nothing.
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
	_ = l.handler.Handle(context.Background(), record)
	l.flushed = false
	l.tellLocked()
}

// Include adds another log's first lines, from its End or Copy, up to a number of compressed bytes, and
// counts the others. After the end it does nothing.
func (l *Log) Include(ended []byte, most int) {
	if len(ended) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	lines, err := gzip.NewReader(bytes.NewReader(ended))
	if err != nil || l.over {
		return
	}
	full := l.buffer.Len() + most
	for from := bufio.NewReader(lines); ; {
		line, err := from.ReadBytes('\n')
		if err != nil {
			break
		}
		if l.buffer.Len() > full {
			l.leftOut++
			continue
		}
		_, _ = l.compressed.Write(line)
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

// End completes the log, and returns its compressed content.
func (l *Log) End() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		if l.leftOut > 0 {
			l.writeLocked(slog.LevelWarn, "the log was too long: lines were left out", slog.Int("lines", l.leftOut))
		}
		_ = l.compressed.Close()
		l.releaseLocked()
		l.over, l.ended, l.flushed, l.readable = true, true, true, l.buffer.Len()
		l.tellLocked()
	}
	return l.buffer.Bytes()
}

// Break ends an incomplete log. It does not change an ended one.
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
		_ = l.compressed.Flush()
		l.flushed, l.readable = true, l.buffer.Len()
	}
}

// from returns the content after an offset, whether that is all, and a channel that is closed on
// changes.
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

// Copy writes the compressed log, and with follow later lines until the log is over or ctx ends.
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

// Logs are the logs of this process's runs. It is safe for concurrent use; nil keeps none.
type Logs struct {
	mu   sync.Mutex
	logs map[types.UID]*Log
}

// Begin begins a run's log. end is called after the last line.
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

// Get returns a run's log, or nil if it is not executed here.
func (l *Logs) Get(uid types.UID) *Log {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.logs[uid]
}
