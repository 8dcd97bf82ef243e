// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"slices"
)

// Class of work: a lower one goes first.
type Class int

const (
	// ClassRestore goes first: someone waits for it.
	ClassRestore Class = iota
	// ClassBackup waits for restores, but not for ever.
	ClassBackup

	classes = iota
)

// restoresInRow is how many restores may pass a waiting backup.
const restoresInRow = 3

// job is work that waits or runs.
type job struct {
	key    string
	class  Class
	work   func(context.Context)
	cancel context.CancelFunc // set once it runs
}

// lanes orders waiting work: first come, first served within a class, restores
// before backups, and a backup after restoresInRow restores that passed it.
type lanes struct {
	queues [classes][]*job
	passed int // restores since a backup had its turn, or none waited
}

func (l *lanes) push(j *job) { l.queues[j.class] = append(l.queues[j.class], j) }

func (l *lanes) remove(j *job) {
	l.queues[j.class] = slices.DeleteFunc(l.queues[j.class], func(other *job) bool { return other == j })
}

// pop takes the next job, or nil if there is none.
func (l *lanes) pop() *job {
	restores, backups := len(l.queues[ClassRestore]), len(l.queues[ClassBackup])
	class := ClassRestore
	if restores == 0 || backups > 0 && l.passed >= restoresInRow {
		class = ClassBackup
	}
	if class == ClassRestore && backups > 0 {
		l.passed++
	} else {
		l.passed = 0
	}
	if len(l.queues[class]) == 0 {
		return nil
	}
	j := l.queues[class][0]
	l.queues[class] = l.queues[class][1:]
	return j
}

func (l *lanes) lengths() (n [classes]int) {
	for class, queue := range l.queues {
		n[class] = len(queue)
	}
	return n
}
