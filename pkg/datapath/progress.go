// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"
)

// Progress counts the bytes, files and calls of one upload or restore. The zero value is ready, and
// safe for concurrent use.
type Progress struct {
	done, total           atomic.Int64
	filesDone, totalFiles atomic.Int64
	calls                 calls
	all                   *atomic.Int64
}

// Done returns the moved bytes, including those that needed no moving.
func (p *Progress) Done() int64 { return p.done.Load() }

// Add counts bytes as moved.
func (p *Progress) Add(bytes int64) {
	p.done.Add(bytes)
	if p.all != nil {
		p.all.Add(bytes)
	}
}

// AddFile counts a file as moved.
func (p *Progress) AddFile() { p.addFiles(1) }

func (p *Progress) addFiles(n int64) { p.filesDone.Add(n) }

// Files returns the moved files, and the known total.
func (p *Progress) Files() (done, total int64) {
	done = p.filesDone.Load()
	return done, max(p.totalFiles.Load(), done)
}

// SetTotal sets the bytes and files to move.
func (p *Progress) SetTotal(bytes, files int64) {
	p.total.Store(bytes)
	p.totalFiles.Store(files)
}

// Total returns the known bytes to move, never less than Done.
func (p *Progress) Total() int64 { return max(p.total.Load(), p.done.Load()) }

// Warnings are problems that did not end the work.
type Warnings struct {
	Count int
	// First has a few, each naming a file.
	First []string
}

// String is empty without warnings.
func (w Warnings) String() string {
	if w.Count == 0 {
		return ""
	}
	text := strings.Join(w.First, "; ")
	if more := w.Count - len(w.First); more > 0 {
		text += fmt.Sprintf("; and %d more, which the log of the node's agent names", more)
	}
	return text
}

const (
	warningsKept   = 5
	warningsTold   = 10_000
	warningsLogged = 1000
)

type notes struct {
	logger klog.Logger

	mu    sync.Mutex
	count int
	seen  map[string]bool
	first []string
}

func (n *notes) add(path, problem string) { n.insert(warningsKept, path, problem) }

// addFirst adds a warning about the whole volume before others.
func (n *notes) addFirst(path, problem string) { n.insert(0, path, problem) }

func (n *notes) insert(at int, path, problem string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	note := fmt.Sprintf("%q %s", path, problem)
	if n.seen[note] {
		return
	}
	if n.seen == nil {
		n.seen = map[string]bool{}
	}
	if len(n.seen) < warningsTold {
		n.seen[note] = true
	}
	n.count++
	switch {
	case n.count <= warningsLogged:
		n.logger.Info("A warning about a file of a volume", "file", path, "problem", problem)
	case n.count == warningsLogged+1:
		n.logger.Info("The further warnings about files of the volume are not logged", "logged", warningsLogged)
	}
	if at = min(at, len(n.first)); at < warningsKept {
		n.first = slices.Insert(n.first, at, note)
		n.first = n.first[:min(len(n.first), warningsKept)]
	}
}

func (n *notes) vanished(path string) { n.add(path, "vanished before it was read") }

func (n *notes) warnings() Warnings {
	n.mu.Lock()
	defer n.mu.Unlock()
	return Warnings{Count: n.count, First: n.first}
}
