// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

func bufferedLogger(t *testing.T) (klog.Logger, func() string) {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	return logger, logger.GetSink().(ktesting.Underlier).GetBuffer().String
}

// TestEachWarningIsLogged: a message has room for a few, and the log names the others.
func TestEachWarningIsLogged(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	for i := range 7 {
		if err := syscall.Mkfifo(filepath.Join(dir, fmt.Sprint("pipe-", i)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	logger, logged := bufferedLogger(t)
	result, err := Upload(klog.NewContext(t.Context(), logger), s.client(t), UploadRequest{Path: dir, Source: web}, new(Progress))
	must(t, err)
	if text := result.Warnings.String(); !strings.HasSuffix(text, "; and 2 more, which the log of the node's agent names") {
		t.Errorf("the message is %q", text)
	}
	for i := range 7 {
		if name := fmt.Sprintf(`file="pipe-%d"`, i); strings.Count(logged(), name) != 1 {
			t.Errorf("%s is not once in the log:\n%s", name, logged())
		}
	}
}

// TestTheLogOfWarningsHasABound: a volume can't fill the log.
func TestTheLogOfWarningsHasABound(t *testing.T) {
	logger, logged := bufferedLogger(t)
	n := notes{logger: logger}
	for i := range warningsLogged + 10 {
		n.add(fmt.Sprint(i), "vanished")
	}
	if lines := strings.Count(logged(), "\n"); lines != warningsLogged+1 || n.warnings().Count != warningsLogged+10 {
		t.Errorf("%d lines of %d warnings", lines, n.warnings().Count)
	}
}
