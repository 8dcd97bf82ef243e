// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// OrphanAge is how long a content without its VolumeSnapshot is left to snapshot-controller.
	OrphanAge = 10 * time.Second
	// StuckAge is the age of a deletion that raises an alert.
	StuckAge = time.Hour
	// MissingAge is how long a store must lack a backup. Holdfast's own deletions don't wait for it, and a store that
	// was exchanged is noticed sooner.
	MissingAge = 24 * time.Hour
	// So many snapshots, or one of so many, may leave at once for lack of their backups.
	few, oneOf = 10, 20
	atOnce     = 8 // snapshots that a sweep forgets
)

// Fate is the state of a backup with snapshots.
type Fate int

const (
	// Unknown: its location was not read. Its snapshots stay.
	Unknown Fate = iota
	// Live: its run has not ended.
	Live
	// Stored: its store has it, or may have it.
	Stored
	// Failed: its record says that it has no result.
	Failed
	// Missing: its store was read, and lacks it.
	Missing
)

// State is the state of a content.
type State string

// States of a content.
const (
	StateKept    State = "kept"
	StateLeaving State = "leaving"
	StateStuck   State = "stuck"
	StateDoubt   State = "doubt"
)

// View is the input of a sweep. The contents are listed first, then the VolumeSnapshots, then the runs: objects
// that a later list lacks were deleted.
type View struct {
	ClusterUID string
	Now        time.Time
	Contents   []VolumeSnapshotContent
	Snapshots  []VolumeSnapshot
	Fates      map[types.UID]Fate
	Since      map[types.UID]time.Time // when an earlier sweep first saw that an object leaves, by uid
	Missing    map[types.UID]time.Time // when an earlier sweep first missed a backup
}

// Decision is the result of Decide.
type Decision struct {
	Forget  []*VolumeSnapshotContent // with their stored snapshots
	Release []*VolumeSnapshot        // their contents stay, or they have none
	Orphans []*VolumeSnapshotContent // without labels; the sweep may not delete them: their class said Retain
	Doubted []types.UID              // backups that too many snapshots have lost at once: these stay
	States  map[State]int
	Since   map[types.UID]time.Time
	Missing map[types.UID]time.Time
	Soon    bool // an object is too young to be judged
}

// Decide decides what leaves. It is a pure function.
func Decide(v View) Decision {
	d := &decider{View: v, snapshots: map[types.UID]*VolumeSnapshot{}, newest: map[string]int{}}
	d.States = map[State]int{StateKept: 0, StateLeaving: 0, StateStuck: 0, StateDoubt: 0}
	d.Decision.Since, d.Decision.Missing = map[types.UID]time.Time{}, map[types.UID]time.Time{}
	for i := range v.Snapshots {
		if of := &v.Snapshots[i]; d.ours(of.Labels) && ownName.MatchString(of.Name) {
			d.snapshots[of.UID] = of
		}
	}
	for i := range v.Contents {
		if of := &v.Contents[i]; d.ours(of.Labels) {
			d.see(of.Labels)
		}
	}
	d.contents()
	d.bare()
	return d.Decision
}

type decider struct {
	View
	Decision
	snapshots map[types.UID]*VolumeSnapshot
	// newest has the newest attempt that has cut a claim between hooks, by contents, which tenants can't change.
	newest map[string]int
}

func (d *decider) ours(labels map[string]string) bool { return labels[LabelCluster] == d.ClusterUID }

func attempt(labels map[string]string) (of string, number int) {
	number, _ = strconv.Atoi(labels[LabelAttempt])
	return labels[LabelBackup] + "/" + labels[LabelClaim], number
}

func (d *decider) see(labels map[string]string) {
	of, number := attempt(labels)
	d.newest[of] = max(d.newest[of], number)
}

func (d *decider) spoiled(labels map[string]string) bool {
	of, number := attempt(labels)
	return number > 0 && number < d.newest[of]
}

func (d *decider) contents() {
	var missing []*VolumeSnapshotContent
	all, surplus := 0, d.surplus()
	for i := range d.Contents {
		content := &d.Contents[i]
		if content.Labels[LabelCluster] == "" && content.Labels[LabelBackup] == "" {
			d.unlabelled(content)
			continue
		}
		if !d.ours(content.Labels) {
			continue
		}
		all++
		fate := d.Fates[types.UID(content.Labels[LabelBackup])]
		switch {
		case content.DeletionTimestamp != nil && !content.held(), content.held() && content.Spec.Policy == Delete, fate == Failed, d.spoiled(content.Labels),
			fate != Live && content.Labels[LabelMoved] != "", surplus[content.UID]:
			d.forget(content)
		case fate == Missing:
			missing = append(missing, content)
		case fate == Unknown:
			d.States[StateDoubt]++
			d.stillMissing(content)
			d.release(content)
		case fate == Stored:
			d.States[StateKept]++
			d.release(content)
		default:
			d.States[StateKept]++
		}
	}
	if len(missing) > few && len(missing)*oneOf > all {
		for _, content := range missing {
			d.States[StateDoubt]++
			d.stillMissing(content)
			if of := types.UID(content.Labels[LabelBackup]); !slices.Contains(d.Doubted, of) {
				d.Doubted = append(d.Doubted, of)
			}
		}
		return
	}
	for _, content := range missing {
		if of := types.UID(content.Labels[LabelBackup]); d.missing(of) < MissingAge {
			d.States[StateDoubt]++
			d.release(content)
			continue
		}
		d.forget(content)
	}
}

// surplus returns the contents beyond their claims' newest ones that stay beside moved data. See
// docs/design/snapshots.md#keeping.
func (d *decider) surplus() map[types.UID]bool {
	type source struct{ driver, handle string }
	type group struct{ claim, location string }
	offered, groups := map[source]bool{}, map[group][]*VolumeSnapshotContent{}
	for i := range d.Contents {
		content := &d.Contents[i]
		if content.Labels[LabelOfferCluster] == d.ClusterUID {
			offered[source{content.Spec.Driver, content.Spec.Source.Snapshot}] = true
		}
		if d.ours(content.Labels) && d.local(content) {
			of := group{content.Labels[LabelClaim], PlaceOf(content.Labels).Location}
			groups[of] = append(groups[of], content)
		}
	}
	surplus := map[types.UID]bool{}
	for _, contents := range groups {
		slices.SortFunc(contents, func(a, b *VolumeSnapshotContent) int {
			return cmp.Or(cmp.Compare(b.Status.Created, a.Status.Created), cmp.Compare(a.Name, b.Name))
		})
		most := keepLocal(contents[0].Labels)
		backups := map[string]bool{} // two attempts may have decided differently
		for _, content := range contents {
			backups[content.Labels[LabelBackup]] = true
			surplus[content.UID] = len(backups) > most && !offered[source{content.Spec.Driver, content.Status.Handle}]
		}
	}
	return surplus
}

func (d *decider) local(content *VolumeSnapshotContent) bool {
	return keepLocal(content.Labels) > 0 && content.Labels[LabelMoved] == "" &&
		content.cut() && content.held() && content.Spec.Policy == Retain && d.Fates[types.UID(content.Labels[LabelBackup])] == Stored
}

func keepLocal(labels map[string]string) int {
	number, _ := strconv.Atoi(labels[LabelKeepLocal])
	return number
}

// since returns how long an object is seen to leave.
func (d *decider) since(uid types.UID) time.Duration {
	return d.age(uid, d.View.Since, d.Decision.Since)
}

// missing returns how long a backup is seen to be missing.
func (d *decider) missing(backup types.UID) time.Duration {
	return d.age(backup, d.View.Missing, d.Decision.Missing)
}

// stillMissing has a backup that was missing before begin no new day, as long as it is not found.
func (d *decider) stillMissing(content *VolumeSnapshotContent) {
	of := types.UID(content.Labels[LabelBackup])
	if first, found := d.View.Missing[of]; found {
		d.Decision.Missing[of] = first
	}
}

func (d *decider) age(uid types.UID, before, after map[types.UID]time.Time) time.Duration {
	first, found := before[uid]
	if !found {
		first = d.Now
	}
	after[uid] = first
	return d.Now.Sub(first)
}

func (d *decider) forget(content *VolumeSnapshotContent) {
	age := d.since(content.UID)
	if content.DeletionTimestamp != nil {
		age = max(age, d.Now.Sub(content.DeletionTimestamp.Time))
	}
	if age > StuckAge {
		d.States[StateStuck]++
	} else {
		d.States[StateLeaving]++
	}
	d.Forget = append(d.Forget, content)
}

// live reports whether a run still works with an object of these labels.
func (d *decider) live(labels map[string]string) bool {
	return d.Fates[types.UID(labels[LabelBackup])] == Live && !d.spoiled(labels)
}

// unlabelled judges a content whose labels a stopped controller has not set: no backup refers to it.
func (d *decider) unlabelled(content *VolumeSnapshotContent) {
	if !ownName.MatchString(content.Spec.Ref.Name) || content.Spec.Source.Volume == "" {
		return
	}
	of := d.snapshots[content.Spec.Ref.UID]
	switch {
	case of != nil && d.live(of.Labels):
	case of != nil:
		d.forget(content)
	case content.Spec.Policy != Delete:
		d.Orphans = append(d.Orphans, content)
	case d.since(content.UID) < OrphanAge:
		d.Soon = true
	default:
		d.forget(content)
	}
}

func (d *decider) release(content *VolumeSnapshotContent) {
	if of := d.snapshots[content.Spec.Ref.UID]; of != nil && of.DeletionTimestamp == nil && content.cut() && content.held() {
		d.Release = append(d.Release, of)
	}
}

// bare has VolumeSnapshots without content deleted when their backups have ended.
func (d *decider) bare() {
	with := map[types.UID]bool{}
	for i := range d.Contents {
		with[d.Contents[i].Spec.Ref.UID] = true
	}
	for i := range d.View.Snapshots {
		of := &d.View.Snapshots[i]
		if d.snapshots[of.UID] == nil || with[of.UID] || of.DeletionTimestamp != nil || d.live(of.Labels) {
			continue
		}
		if d.since(of.UID) < OrphanAge {
			d.Soon = true
			continue
		}
		if !of.settled(nil) {
			continue
		}
		d.Release = append(d.Release, of)
	}
}

// Look lists the input of a sweep. Without the API there is none.
func (c *Client) Look(ctx context.Context) (contents []VolumeSnapshotContent, snapshots []VolumeSnapshot, err error) {
	if served, err := c.Served(ctx); err != nil || !served {
		return nil, nil, err
	}
	if contents, err = list[VolumeSnapshotContent](ctx, c.objects.Resource(Contents), ""); err != nil {
		return nil, nil, err
	}
	contents = slices.DeleteFunc(contents, func(content VolumeSnapshotContent) bool {
		return content.Labels[LabelCluster] != c.clusterUID && !strings.HasPrefix(content.Spec.Ref.Name, prefix)
	})
	snapshots, err = list[VolumeSnapshot](ctx, c.objects.Resource(Snapshots), LabelCluster+"="+c.clusterUID)
	return contents, snapshots, err
}

// Sweep carries out a decision, and returns what the deletions wait for, by content.
func (c *Client) Sweep(ctx context.Context, d Decision) (waiting map[string]string, err error) {
	waiting = map[string]string{}
	var mu sync.Mutex
	var working sync.WaitGroup
	var failures []error
	free := make(chan struct{}, atOnce)
	do := func(work func() error) {
		free <- struct{}{}
		working.Go(func() {
			defer func() { <-free }()
			if err := work(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failures = append(failures, err)
			}
		})
	}
	for _, content := range d.Forget {
		do(func() error {
			// A content without labels may have become the record of a backup that has been stored since the look.
			waits, err := c.forget(ctx, content.Name, content.UID, func(now *VolumeSnapshotContent) bool {
				return now.Labels[LabelBackup] == content.Labels[LabelBackup]
			})
			if waits != "" {
				mu.Lock()
				defer mu.Unlock()
				waiting[content.Name] = waits
			}
			return err
		})
	}
	for _, of := range d.Release {
		do(func() error {
			err := remove(ctx, c.objects.Resource(Snapshots).Namespace(of.Namespace), of.Name, of.UID, of.ResourceVersion)
			if err != nil {
				return fmt.Errorf("delete the VolumeSnapshot %s/%s: %w", of.Namespace, of.Name, err)
			}
			return nil
		})
	}
	working.Wait()
	return waiting, errors.Join(failures...)
}
