// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package runlog

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

// plain decompresses what there is, and gives the error at its end.
func plain(t *testing.T, compressed []byte) (string, error) {
	t.Helper()
	from, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(from)
	return string(text), err
}

// Whoever reads sees all lines so far, and by the end of the stream whether they are all.
func TestLogIsReadWhileItIsWritten(t *testing.T) {
	log := New(clock.RealClock{})
	so := func() (string, error) {
		t.Helper()
		var read bytes.Buffer
		if err := log.Copy(t.Context(), &read, false); err != nil {
			t.Fatal(err)
		}
		return plain(t, read.Bytes())
	}
	if text, err := so(); text != "" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("an empty log is read as %q, %v", text, err)
	}
	for _, line := range []string{"first", "second", "third"} {
		log.Write(slog.LevelInfo, line)
		if text, err := so(); !strings.Contains(text, line) || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("after %q it is read as %q, %v", line, text, err)
		}
	}
	before, _ := so()
	ended := log.End()
	if text, err := so(); text != before || err != nil {
		t.Errorf("the complete log is read as %q, %v", text, err)
	}
	if text, err := plain(t, ended); text != before || err != nil {
		t.Errorf("what is stored is %q, %v", text, err)
	}
	log.Break()
	if _, err := so(); err != nil {
		t.Errorf("a complete log was broken: %v", err)
	}
}

// What a log includes comes before its own lines, as it was, also to those who read already.
func TestInclude(t *testing.T) {
	other, log := New(clock.RealClock{}), New(clock.RealClock{})
	other.Write(slog.LevelWarn, "theirs")
	theirs := other.End()
	var early bytes.Buffer
	if err := log.Copy(t.Context(), &early, false); err != nil {
		t.Fatal(err)
	}
	log.Include(nil, MaxIncluded)
	log.Include(theirs, MaxIncluded)
	early.Reset()
	if err := log.Copy(t.Context(), &early, false); err != nil {
		t.Fatal(err)
	}
	if text, _ := plain(t, early.Bytes()); !strings.Contains(text, "theirs") {
		t.Errorf("before there is more, it is read as %q", text)
	}
	log.Write(slog.LevelInfo, "ours")
	ended := log.End()
	log.Include(theirs, MaxIncluded)
	text, err := plain(t, ended)
	if line, _ := plain(t, theirs); err != nil || !strings.HasPrefix(text, line) || !strings.Contains(text[len(line):], "ours") || strings.Count(text, "theirs") != 1 {
		t.Errorf("it is read as %q, %v", text, err)
	}
	if !bytes.HasPrefix(ended, early.Bytes()) {
		t.Error("who has read of it before can't go on")
	}
}

// However much a log includes, there is room for its own lines, and it says what is missing.
func TestIncludeLeavesRoom(t *testing.T) {
	other, log := New(clock.RealClock{}), New(clock.RealClock{})
	random := rand.NewChaCha8([32]byte{})
	output := make([]byte, 4<<10)
	var lines int
	for ; other.buffer.Len() < MaxIncluded*3/2; lines++ {
		_, _ = random.Read(output)
		other.Write(slog.LevelInfo, "theirs", slog.String("output", base64.RawStdEncoding.EncodeToString(output)))
	}
	log.Include(other.End(), MaxIncluded)
	if got := log.buffer.Len(); got > MaxIncluded+MaxIncluded/4 {
		t.Errorf("it takes %d bytes", got)
	}
	log.Write(slog.LevelInfo, "ours")
	text, err := plain(t, log.End())
	if err != nil || !strings.Contains(text, "msg=ours\n") {
		t.Errorf("its own line is left out: %v", err)
	}
	theirs := strings.Count(text, "msg=theirs")
	if want := fmt.Sprintf("msg=\"the log was too long: lines were left out\" lines=%d\n", lines-theirs); theirs == 0 || theirs == lines || !strings.HasSuffix(text, want) {
		t.Errorf("it has %d of %d lines, and ends with %q", theirs, lines, text[len(text)-200:])
	}
}

// received is what a follower has got so far.
type received struct {
	mu    sync.Mutex
	bytes []byte
}

func (r *received) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytes = append(r.bytes, p...)
	return len(p), nil
}

func (r *received) content() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.bytes)
}

// A follower gets what comes, hears of a log without news too, and is let go at the end.
func TestFollow(t *testing.T) {
	for name, end := range map[string]func(*Log){"ended": func(l *Log) { l.End() }, "broken": (*Log).Break} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := New(clock.RealClock{})
				var got received
				done := make(chan struct{})
				go func() { defer close(done); _ = log.Copy(t.Context(), &got, true) }()
				log.Write(slog.LevelInfo, "first")
				time.Sleep(time.Second)
				synctest.Wait()
				if text, _ := plain(t, got.content()); !strings.Contains(text, "first") {
					t.Errorf("after a second it has %q", text)
				}
				length := len(got.content())
				time.Sleep(3 * Heartbeat)
				synctest.Wait()
				if len(got.content()) <= length {
					t.Error("nothing was heard of a log without news")
				}
				log.Write(slog.LevelInfo, "second")
				end(log)
				<-done
				text, err := plain(t, got.content())
				if !strings.Contains(text, "first") || !strings.Contains(text, "second") || (err == nil) != (name == "ended") {
					t.Errorf("it ends with %q, %v", text, err)
				}
			})
		})
	}
}

// Of two attempts the later one is shown, whenever the earlier one lets go.
func TestTheLaterAttemptIsShown(t *testing.T) {
	var logs Logs
	_, end := logs.Begin("u", clock.RealClock{})
	later, endLater := logs.Begin("u", clock.RealClock{})
	end()
	if logs.Get("u") != later {
		t.Error("the later attempt's log is not shown")
	}
	endLater()
	if logs.Get("u") != nil {
		t.Error("the log of what is not executed any more is kept")
	}
	log, end := (*Logs)(nil).Begin("u", clock.RealClock{})
	log.Write(slog.LevelInfo, "line")
	end()
}
