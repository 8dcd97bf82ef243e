// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/cli"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// terminal is a program on a terminal of 80 columns. It is safe for concurrent use.
type terminal struct {
	keys    *os.File
	command *exec.Cmd
	// read is closed when all that the program wrote has been read.
	read chan struct{}

	mu      sync.Mutex
	written bytes.Buffer
}

// onTerminal starts kubectl holdfast on a terminal of its own.
func onTerminal(t *testing.T, args ...string) *terminal {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keys.Close() })
	if err := unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	screen, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	if err := unix.IoctlSetWinsize(int(keys.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	on := &terminal{keys: keys, read: make(chan struct{}), command: lab.Command(t.Context(), append([]string{"holdfast"}, args...)...)}
	on.command.Env = append(on.command.Environ(), "PATH="+lab.Bin()+":"+os.Getenv("PATH"), "TERM=xterm")
	on.command.Stdin, on.command.Stdout, on.command.Stderr = screen, screen, screen
	on.command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := on.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(on.read)
		for piece := make([]byte, 4096); ; {
			n, err := keys.Read(piece)
			on.mu.Lock()
			on.written.Write(piece[:n])
			on.mu.Unlock()
			if err != nil { // no program has the terminal open any more
				return
			}
		}
	}()
	return on
}

// all returns what was written to the terminal, and the last picture of it.
func (on *terminal) all() (written, picture string) {
	on.mu.Lock()
	defer on.mu.Unlock()
	written = strings.ReplaceAll(on.written.String(), "\r", "")
	return written, written[strings.LastIndex(written, "\x1b[2J")+1:]
}

// await waits until the last picture has each of the words.
func (on *terminal) await(t *testing.T, words ...string) (picture string) {
	t.Helper()
	labtest.Eventually(t, fmt.Sprintf("the terminal to show %q", words), func() error {
		var written string
		written, picture = on.all()
		for _, word := range words {
			if !strings.Contains(picture, word) {
				return fmt.Errorf("it shows %q, of %q", picture, written)
			}
		}
		return nil
	})
	return picture
}

// end waits for the end of the program and for all of its output, and returns its exit code.
func (on *terminal) end(t *testing.T) int {
	t.Helper()
	if err := on.command.Wait(); on.command.ProcessState == nil {
		t.Fatal(err)
	}
	select {
	case <-on.read:
	case <-t.Context().Done():
	}
	return on.command.ProcessState.ExitCode()
}

// TestQuestionsOnATerminal: Ctrl-C ends a question, nothing was done then, and the same question can be
// asked again.
func TestQuestionsOnATerminal(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "questions")
	must(t, "", []string{"backup", "create", "kept", "-n", namespace, "--wait"})
	restore := "restore create back --from kept"
	for _, asked := range [][2]string{{"backup delete kept", "Type its name to go on: "}, {restore, "[y/N] "}, {restore, "[y/N] "}} {
		args, question := strings.Fields(asked[0]), asked[1]
		asking := onTerminal(t, append(args, "-n", namespace)...)
		asking.await(t, question)
		if _, err := asking.keys.WriteString("\x03"); err != nil {
			t.Fatal(err)
		}
		code := asking.end(t)
		if written, _ := asking.all(); code != cli.ExitFailed || !strings.Contains(written, "\nerror: stopped: nothing was changed") {
			t.Errorf("%q: Ctrl-C ends with %d and %q", args, code, written)
		}
	}
	must(t, "", []string{"backup", "get", "kept", "-n", namespace}, "Completed")
	if stdout := must(t, "", []string{"restore", "get", "-n", namespace}); strings.Contains(stdout, "back ") {
		t.Errorf("there are restores:\n%s", stdout)
	}
}

// TestPluginOnATerminal: the queue is redrawn in place and never wraps, bars show what there is, and
// Ctrl-C says what goes on.
func TestPluginOnATerminal(t *testing.T) {
	t.Parallel()
	held := lab.Hold(t, labtest.Name("live"))
	queue := onTerminal(t, "queue", "-A", "-w")
	queue.await(t, "POS", held.Name, "Running")

	next := labtest.Name("next")
	waiting := onTerminal(t, "backup", "create", next, "-n", labtest.System, "--include-namespaces", held.Namespace, "--wait")
	picture := queue.await(t, held.Name, next, "Queued")
	for line := range strings.Lines(picture) {
		if width := len([]rune(strings.TrimRight(line, "\n"))); width > 80 {
			t.Errorf("a line has %d columns: %q", width, line)
		}
	}
	if _, err := queue.keys.WriteString("\x03"); err != nil || queue.end(t) != 0 {
		t.Errorf("Ctrl-C ends the queue with %v, %v", queue.command.ProcessState, err)
	}

	waiting.await(t, "objects ", held.Name)
	if _, err := waiting.keys.WriteString("\x03"); err != nil || waiting.end(t) == 0 {
		t.Errorf("Ctrl-C ends the wait with %v, %v", waiting.command.ProcessState, err)
	}
	if written, _ := waiting.all(); !strings.Contains(written, "goes on") {
		t.Errorf("Ctrl-C says %q", written)
	}
	held.Release(t)
	lab.AwaitPhase(t, labtest.System, next, v1alpha1.BackupPhaseCompleted, v1alpha1.BackupPhasePartiallyFailed)

	namespace := lab.Namespace(t, "bars")
	done := onTerminal(t, "backup", "create", "done", "-n", namespace, "--wait")
	if code := done.end(t); code != 0 {
		t.Errorf("the exit code is %d", code)
	}
	if written := done.await(t, "backup done ended: Completed"); !strings.Contains(written, "objects ") || strings.Contains(written, "volumes") {
		t.Errorf("without a volume it shows %q", written)
	}
}
