// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/runlog"
)

func newLogbook(clock clock.PassiveClock) *logbook { return &logbook{runlog.New(clock)} }

// A log that grows too long loses lines about objects, but no error, and says so.
func TestLogIsBounded(t *testing.T) {
	log := newLogbook(clocktesting.NewFakeClock(start))
	random := rand.New(rand.NewPCG(1, 2))
	line := make([]byte, 4096)
	for range 2 * runlog.MaxBytes / len(line) {
		for i := range line {
			line[i] = byte(random.Uint32())
		}
		log.write(slog.LevelInfo, fmt.Sprintf("%x", line))
	}
	log.write(slog.LevelWarn, "the end is near")
	compressed := log.close()
	if len(compressed) > runlog.MaxBytes {
		t.Errorf("the log has %d bytes", len(compressed))
	}
	plain, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(plain)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	last := lines[len(lines)-2:]
	if !strings.Contains(last[0], "the end is near") || !strings.Contains(last[1], "lines were left out") {
		t.Errorf("the log ends with %q", last)
	}
	log.write(slog.LevelError, "after the end")
	if again := log.close(); !bytes.Equal(again, compressed) {
		t.Error("a closed log has changed")
	}
}

// The texts of results are bounded, their counts exact.
func TestResultsAreBounded(t *testing.T) {
	f := &findings{log: newLogbook(clocktesting.NewFakeClock(start)), logger: klog.Background()}
	for i := range maxTexts + 10 {
		f.warn(subject{podsResource, "shop", fmt.Sprint(i)}, "text")
	}
	f.warn(subject{}, "text")
	if _, warnings := f.counts(); warnings != maxTexts+11 || f.Results.Warnings.Count() != maxTexts {
		t.Errorf("%d warnings with %d texts", warnings, f.Results.Warnings.Count())
	}
}
