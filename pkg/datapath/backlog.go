// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// Class of work: a lower class runs first.
type Class int

const (
	// ClassRestore runs first: a user waits for it.
	ClassRestore Class = iota
	// ClassBackup waits for restores, but not for ever.
	ClassBackup

	classes = iota
)

// restoresInRow is how many restores may pass a waiting backup.
const restoresInRow = 3

// Work is what a Manager runs.
type Work struct {
	// Key identifies the work: a manager has one of a key.
	Key   string
	Class Class
	Run   string
	// Asked is when the work was requested; the run's earliest work is first. Records have whole
	// seconds, so Name breaks ties.
	Asked time.Time
	Name  string
	// Do must end soon after its context.
	Do func(context.Context)
}

type job struct {
	Work
	cancel context.CancelCauseFunc
}

// backlog orders waiting work: restores before backups, and a backup after restoresInRow restores
// that passed it. Within a class the runs take turns; within a run, requests are in order.
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

// inOrder compares work of one run by its records, not by arrival: a restart keeps the order.
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
