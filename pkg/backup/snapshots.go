// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
)

// snapshotClasses has the cluster's classes. Off: no snapshots.
type snapshotClasses struct {
	on bool
	// keep leaves snapshots in their storage unless the spec or a policy says otherwise.
	keep bool
	all  []snapshots.VolumeSnapshotClass
	// ofBackup are the classes in the backup's annotations, by driver.
	ofBackup  map[string]string
	mayChoose func(ctx context.Context, namespace string) error
}

var errSnapshotsOff = errors.New("snapshotVolumes is true, and the controller makes no snapshots: start it with --snapshots, or leave the field out")

// readSnapshotClasses fails if the backup asks for snapshots that can't be had.
func (e *execution) readSnapshotClasses(ctx context.Context) (snapshotClasses, error) {
	wanted := e.request.Backup.Spec.SnapshotVolumes
	switch {
	case e.SnapshotClasses == nil && ptr.Deref(wanted, false):
		return snapshotClasses{}, errSnapshotsOff
	case e.SnapshotClasses == nil, wanted != nil && !*wanted && e.request.Backup.Spec.ResourcePolicy == nil:
		return snapshotClasses{}, nil
	}
	found := snapshotClasses{on: true, keep: e.KeepSnapshots, ofBackup: map[string]string{}, mayChoose: e.mayChooseClass()}
	for key, class := range e.request.Backup.Annotations {
		if driver, ok := strings.CutPrefix(key, v1alpha1.AnnotationSnapshotClassOf); ok {
			found.ofBackup[driver] = class
		}
	}
	err := retried(ctx, e.Retry, func() (err error) {
		found.all, err = e.SnapshotClasses(ctx)
		return err
	})
	switch {
	case apierrors.IsForbidden(err) && wanted == nil && e.request.Backup.Spec.ResourcePolicy == nil:
		e.findings.warn(subject{}, "no snapshots are made, and files are backed up in their place: the controller lacks the rights of the ClusterRole holdfast-snapshots: "+err.Error())
		return snapshotClasses{}, nil
	case err != nil:
		return snapshotClasses{}, fmt.Errorf("read the cluster's VolumeSnapshotClasses: %w", err)
	}
	return found, nil
}

func (e *execution) mayChooseClass() func(context.Context, string) error {
	answers := map[string]error{}
	return func(ctx context.Context, namespace string) error {
		if answer, known := answers[namespace]; known {
			return answer
		}
		answer := retried(ctx, e.Retry, func() error { return e.MayChooseClass(ctx, namespace) })
		if ctx.Err() == nil {
			answers[namespace] = answer
		}
		return answer
	}
}

// chooseSnapshot decides whether a bound claim is read from a snapshot: by its volume policy, else by
// the spec. An unset spec asks only for drivers whose class has Velero's label. Without a class, files
// are read, unless the policy wants a snapshot. A volume that is deleted with its pod is scratch space.
func (p *podVolumes) chooseSnapshot(ctx context.Context, key types.NamespacedName, of *claim, volume *persistentVolume) error {
	byPolicy := of.action == snapshotAction
	if !p.snapshots.on || !byPolicy && of.action != noAction || of.unusable != "" {
		return nil
	}
	if !byPolicy && (of.scratch || !ptr.Deref(p.spec.SnapshotVolumes, p.snapshots.labelled(volume.driver))) {
		return nil
	}
	of.classes.Backup = p.snapshots.ofBackup[volume.driver]
	why := p.snapshots.whyNot(of, volume)
	if !byPolicy && why != "" {
		of.noSnapshot = why
		return nil
	}
	fail := func(why string) {
		of.unusable, of.known, of.snapshotFailed, of.missed = why, true, true, true
		p.findings.fail(subject{claimsResource, key.Namespace, key.Name}, "no snapshot is made of the claim: "+why)
	}
	kept := !ptr.Deref(of.moveData, ptr.Deref(p.spec.SnapshotMoveData, !p.snapshots.keep))
	switch {
	case why != "":
		fail(why + ", or have a volume policy name the action " + string(filesAction))
		return nil
	case volume.claim != of.uid:
		fail("its persistent volume is bound to another claim")
		return nil
	case of.scratch && kept:
		fail("it belongs to its pod, and can't be made from a snapshot: move its data, by snapshotMoveData: true")
		return nil
	}
	class, err := p.snapshots.choose(ctx, key.Namespace, volume.driver, of.classes)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		fail(err.Error())
		return nil
	}
	of.snapshot = &format.SnapshotSource{
		Driver: volume.driver, Handle: volume.handle, Class: class, StorageClass: volume.storageClass, Nodes: volume.nodes, Kept: kept,
	}
	if !of.scratch { // Kubernetes makes such a claim for its pod, and not from a snapshot
		of.snapshot.KeepLocal = of.keepLocal
	}
	return nil
}

// choose returns a snapshot's class. Another than the cluster's may cost more, so the backup's
// requester needs the right to make VolumeSnapshots, also if the claim names it.
func (c snapshotClasses) choose(ctx context.Context, namespace, driver string, wishes snapshots.Wishes) (string, error) {
	class, err := snapshots.Class(driver, wishes, c.all)
	if err != nil {
		return "", err
	}
	if usual, err := snapshots.Class(driver, snapshots.Wishes{}, c.all); err == nil && usual.Name == class.Name {
		return class.Name, nil
	}
	if err := c.mayChoose(ctx, namespace); err != nil {
		return "", fmt.Errorf("a user has named the VolumeSnapshotClass %s, which takes a right: %w", class.Name, err)
	}
	return class.Name, nil
}

// whyNot says why no volume can be made from a claim's snapshot, or returns "".
func (c snapshotClasses) whyNot(of *claim, volume *persistentVolume) string {
	switch {
	case volume.driver == "":
		return "its persistent volume " + of.volume + " is of no CSI driver: move it to one"
	case volume.storageClass == "":
		return "its persistent volume " + of.volume + " has no StorageClass, by which a volume is made from the snapshot: give it one"
	case of.classes == (snapshots.Wishes{}) && !slices.ContainsFunc(c.all, func(class snapshots.VolumeSnapshotClass) bool { return class.Driver == volume.driver }):
		return "there is no VolumeSnapshotClass of the driver " + volume.driver + ": create one"
	}
	return ""
}

// warnOfNoSnapshot warns of claims that the spec wants snapshots of, and whose data is in no form in
// the backup.
func (p *podVolumes) warnOfNoSnapshot() {
	for _, key := range p.sortedClaims() {
		of := p.claims[key]
		if of.noSnapshot == "" || of.taken || of.missed || of.excluded || of.unusable != "" {
			continue
		}
		if _, labelled := p.ofLabelled[key]; labelled && !of.mounted {
			continue
		}
		of.missed, of.unusable = true, "no snapshot is made of it: "+of.noSnapshot
		p.findings.warn(subject{claimsResource, key.Namespace, key.Name}, "the data of the claim is not backed up: "+of.unusable)
	}
}

func (c snapshotClasses) labelled(driver string) bool {
	return driver != "" && slices.ContainsFunc(c.all, func(class snapshots.VolumeSnapshotClass) bool {
		_, found := class.Labels[snapshots.LabelClass]
		return found && class.Driver == driver
	})
}

func (p *podVolumes) cutUnused(ctx context.Context) {
	for _, key := range p.sortedClaims() {
		of := p.claims[key]
		if of.snapshot == nil || of.taken || of.refused || of.unusable != "" || of.excluded && of.action == noAction {
			continue
		}
		if to := p.handOverVolume(ctx, &heldPod{ref: enginev1alpha1.PodReference{Namespace: key.Namespace}}, heldVolume{claim: key.Name, cut: true}, false); to != nil {
			p.mu.Lock()
			p.submitted = append(p.submitted, to)
			p.mu.Unlock()
		}
	}
}

// velerosGroupLabel is the label whose equal values make a group of claims in Velero. Another key in the spec is
// warned of when the backup is created.
const velerosGroupLabel = "velero.io/volume-group"

// warnOfGroups warns of claims that Velero would cut at one instant: here the cuts follow each other.
// Hooks of the one pod that uses the whole group are enough.
func (p *podVolumes) warnOfGroups() {
	type group struct{ namespace, driver, value string }
	groups := map[group][]*format.Volume{}
	for _, volume := range p.submitted {
		if value := volume.ClaimLabels[velerosGroupLabel]; volume.Snapshot != nil && value != "" {
			of := group{volume.Pod.Namespace, volume.Snapshot.Driver, value}
			groups[of] = append(groups[of], volume)
		}
	}
	for of, volumes := range groups {
		if !slices.ContainsFunc(volumes, func(volume *format.Volume) bool { return !volume.Hooked || volume.Pod != volumes[0].Pod }) {
			continue
		}
		slices.SortFunc(volumes, func(a, b *format.Volume) int { return cmp.Compare(a.ClaimName, b.ClaimName) })
		for _, volume := range volumes[1:] {
			p.findings.warn(subject{claimsResource, of.namespace, volume.ClaimName}, fmt.Sprintf("its snapshot is not from the same instant as the one of the claim %s, as their equal label %s=%s wants: groups of snapshots are not made, so freeze what writes to both by a hook of one pod", volumes[0].ClaimName, velerosGroupLabel, of.value))
		}
	}
}

// awaitCut waits until hooks may release volumes: snapshots are cut, and other data is read.
func (p *podVolumes) awaitCut(ctx context.Context, volumes []*format.Volume) error {
	var cut, read []*format.Volume
	for _, volume := range volumes {
		if volume.Snapshot != nil {
			cut = append(cut, volume)
		} else {
			read = append(read, volume)
		}
	}
	if len(cut) > 0 {
		if err := p.mover.Cut(ctx, cut); err != nil {
			return err
		}
		p.log.write(slog.LevelInfo, fmt.Sprintf("%s cut", format.Counted(int32(len(cut)), "snapshot")))
	}
	return p.await(ctx, read)
}

// cuts reports whether a pod's volume is read from its claim's snapshot. A pod that asks for its files,
// or excludes them by our annotation, wins over the spec; a volume policy wins over both.
func (p *podVolumes) cuts(pod *corev1.Pod, volume *corev1.Volume, otherwise bool) bool {
	of := p.claims[types.NamespacedName{Namespace: pod.Namespace, Name: claimOf(pod, volume)}]
	if of == nil || of.snapshot == nil {
		return false
	}
	return of.action == snapshotAction || !otherwise
}
