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

// Progress counts the bytes and files of one upload or restore, and what it asks of the kernel. Its zero value is ready;
// it may be read at any time.
type Progress struct {
	done, total           atomic.Int64
	filesDone, totalFiles atomic.Int64
	calls                 calls
	// all counts what a manager's work has moved; nil outside of a manager.
	all *atomic.Int64
}

// Done returns the bytes moved so far, those that needed no moving included.
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

// Files returns the files moved so far, and those to move as far as is known.
func (p *Progress) Files() (done, total int64) {
	done = p.filesDone.Load()
	return done, max(p.totalFiles.Load(), done)
}

// SetTotal says how many bytes and files there are to move.
func (p *Progress) SetTotal(bytes, files int64) {
	p.total.Store(bytes)
	p.totalFiles.Store(files)
}

// Total returns the bytes to move as far as is known, never less than Done.
func (p *Progress) Total() int64 { return max(p.total.Load(), p.done.Load()) }

// Warnings are what went wrong without ending the work.
type Warnings struct {
	// Count of all of them.
	Count int
	// First few of them, each naming a file.
	First []string
}

// String is empty if there were none.
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
	// warningsKept is the length of Warnings.First.
	warningsKept = 5
	// warningsTold bounds the memory for telling repeated warnings apart.
	warningsTold = 10_000
	// warningsLogged is how many of the warnings of a volume are in the log.
	warningsLogged = 1000
)

// notes collects warnings, each file and problem once.
type notes struct {
	logger klog.Logger // of each of them; the zero value has none

	mu    sync.Mutex
	count int
	seen  map[string]bool
	first []string
}

func (n *notes) add(path, problem string) { n.insert(warningsKept, path, problem) }

// addFirst adds a warning about many files, or about none, which is told before those of single ones.
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
