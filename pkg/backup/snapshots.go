// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
)

// snapshotClasses has the cluster's classes of snapshots. Off: the controller makes no snapshots.
type snapshotClasses struct {
	on  bool
	all []snapshots.VolumeSnapshotClass
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
	found := snapshotClasses{on: true}
	err := retried(ctx, e.Retry, func() (err error) {
		found.all, err = e.SnapshotClasses(ctx)
		return err
	})
	if err != nil {
		return snapshotClasses{}, fmt.Errorf("read the cluster's VolumeSnapshotClasses: %w", err)
	}
	return found, nil
}

// chooseSnapshot decides whether a bound claim's data is read from a snapshot: by its volume policy,
// else by the spec. An unset spec asks for drivers only whose class has Velero's label. A driver
// without any class goes the way of the files, unless the policy wants a snapshot. A volume that is
// deleted with its pod is scratch space.
func (p *podVolumes) chooseSnapshot(key types.NamespacedName, of *claim, volume *persistentVolume) {
	byPolicy := of.action == snapshotAction
	if !p.snapshots.on || !byPolicy && of.action != noAction || of.unusable != "" {
		return
	}
	if !byPolicy && (of.scratch || !ptr.Deref(p.spec.SnapshotVolumes, p.snapshots.labelled(volume.driver))) {
		return
	}
	why := p.snapshots.whyNot(of, volume)
	if !byPolicy && why != "" {
		of.noSnapshot = why
		return
	}
	fail := func(why string) {
		of.unusable, of.known, of.snapshotFailed, of.missed = why, true, true, true
		p.findings.fail(subject{claimsResource, key.Namespace, key.Name}, "no snapshot is made of the claim: "+why)
	}
	switch {
	case why != "":
		fail(why + ", or have a volume policy name the action " + string(filesAction))
		return
	case volume.claim != of.uid:
		fail("its persistent volume is bound to another claim")
		return
	case of.block:
		fail("it is a block device, and only files can be read from its snapshot")
		return
	}
	class, err := snapshots.Class(volume.driver, snapshots.Wishes{}, p.snapshots.all)
	if err != nil {
		fail(err.Error())
		return
	}
	of.snapshot = &format.SnapshotSource{
		Driver: volume.driver, Handle: volume.handle, Class: class.Name, StorageClass: volume.storageClass, Nodes: volume.nodes,
	}
}

// whyNot says why no volume can be made from a snapshot of a claim, or returns "".
func (c snapshotClasses) whyNot(of *claim, volume *persistentVolume) string {
	switch {
	case volume.driver == "":
		return "its persistent volume " + of.volume + " is of no CSI driver: move it to one"
	case volume.storageClass == "":
		return "its persistent volume " + of.volume + " has no StorageClass, by which a volume is made from the snapshot: give it one"
	case !slices.ContainsFunc(c.all, func(class snapshots.VolumeSnapshotClass) bool { return class.Driver == volume.driver }):
		return "there is no VolumeSnapshotClass of the driver " + volume.driver + ": create one"
	}
	return ""
}

// warnOfNoSnapshot warns of claims that the spec wants snapshots of, and whose data is not in the backup
// either way.
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

// cutUnused hands over the claims with snapshots that no pod has given: their volumes need no pod.
func (p *podVolumes) cutUnused(ctx context.Context) {
	for _, key := range p.sortedClaims() {
		of := p.claims[key]
		if of.snapshot == nil || of.taken || of.refused || of.unusable != "" || of.excluded && of.action == noAction {
			continue
		}
		if _, labelled := p.ofLabelled[key]; labelled && !of.mounted && of.action == noAction {
			continue
		}
		if to := p.handOverVolume(ctx, &heldPod{ref: enginev1alpha1.PodReference{Namespace: key.Namespace}}, heldVolume{claim: key.Name, cut: true}, false); to != nil {
			p.mu.Lock()
			p.submitted = append(p.submitted, to)
			p.mu.Unlock()
		}
	}
}

// awaitCut waits until hooks may let go of volumes: snapshots are cut, and other data is read.
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

// cuts reports whether a pod's volume is read from a snapshot of its claim. A pod that wants otherwise
// wins over the spec: its files are asked for, or our annotation leaves it out. A volume policy wins
// over both.
func (p *podVolumes) cuts(pod *corev1.Pod, volume *corev1.Volume, otherwise bool) bool {
	of := p.claims[types.NamespacedName{Namespace: pod.Namespace, Name: claimOf(pod, volume)}]
	if of == nil || of.snapshot == nil {
		return false
	}
	return of.action == snapshotAction || !otherwise
}
