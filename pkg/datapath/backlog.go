// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// Class orders work: lower classes run first.
type Class int

const (
	// ClassRestore runs first: a user waits for it.
	ClassRestore Class = iota
	// ClassBackup yields to at most restoresInRow restores.
	ClassBackup

	classes = iota
)

const restoresInRow = 3

// Work is what a Manager runs.
type Work struct {
	// Key is unique in a manager.
	Key   string
	Class Class
	Run   string
	// Asked orders a run's work; Name breaks ties within a second.
	Asked time.Time
	Name  string
	// Do must end soon after its context.
	Do func(context.Context)
}

type job struct {
	Work
	cancel context.CancelCauseFunc
}

// backlog gives restores first, but at most restoresInRow before a waiting backup. Within a class
// the runs take turns, each in the order of its requests.
type backlog struct {
	turns  [classes][]*run
	passed int
}

type run struct {
	name string
	jobs []*job
}

func (b *backlog) push(j *job) {
	turns := &b.turns[j.Class]
	i := slices.IndexFunc(*turns, func(r *run) bool { return r.name == j.Run })
	if i < 0 {
		i = len(*turns)
		*turns = append(*turns, &run{name: j.Run})
	}
	r := (*turns)[i]
	at, _ := slices.BinarySearchFunc(r.jobs, j, inOrder)
	r.jobs = slices.Insert(r.jobs, at, j)
}

// inOrder compares records, not arrival, so a restart keeps the order.
func inOrder(a, b *job) int {
	return cmp.Or(a.Asked.Compare(b.Asked), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Key, b.Key))
}

func (b *backlog) remove(j *job) {
	turns := &b.turns[j.Class]
	for i, r := range *turns {
		if r.name == j.Run {
			r.jobs = slices.DeleteFunc(r.jobs, func(other *job) bool { return other == j })
			if len(r.jobs) == 0 {
				*turns = slices.Delete(*turns, i, i+1)
			}
			return
		}
	}
}

func (b *backlog) pop() *job {
	restores, backups := len(b.turns[ClassRestore]), len(b.turns[ClassBackup])
	class := ClassRestore
	if restores == 0 || backups > 0 && b.passed >= restoresInRow {
		class = ClassBackup
	}
	if class == ClassRestore && backups > 0 {
		b.passed++
	} else {
		b.passed = 0
	}
	turns := &b.turns[class]
	if len(*turns) == 0 {
		return nil
	}
	r := (*turns)[0]
	j := r.jobs[0]
	r.jobs = r.jobs[1:]
	*turns = (*turns)[1:]
	if len(r.jobs) > 0 {
		*turns = append(*turns, r)
	}
	return j
}

func (b *backlog) lengths() (n [classes]int) {
	for class, turns := range b.turns {
		for _, r := range turns {
			n[class] += len(r.jobs)
		}
	}
	return n
}

func (b *backlog) oldest() (oldest time.Time) {
	for _, turns := range b.turns {
		for _, r := range turns {
			if first := r.jobs[0].Asked; oldest.IsZero() || first.Before(oldest) {
				oldest = first
			}
		}
	}
	return oldest
}
