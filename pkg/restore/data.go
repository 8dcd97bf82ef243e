// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/graph"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/restore/volumes"
)

// Volumes restores the data of claims: a volumes.Restorer, except in tests.
type Volumes interface {
	Claim(ctx context.Context, claim volumes.Claim) error
	// Hold and Pod are for a pod's volumes without a claim.
	Hold(ctx context.Context, pod *unstructured.Unstructured, data []format.Volume) error
	Pod(ctx context.Context, namespace, name string, data []format.Volume) error
	Counts() v1alpha1.RestoreVolumesProgress
	// Warnings has one for each volume with complete data that has some.
	Warnings() []string
}

// leavesVolumes reports whether the spec leaves out volumes and their data. Claims come back empty
// then, as in Velero.
func (e *execution) leavesVolumes() bool { return !ptr.Deref(e.spec.RestorePVs, true) }

func (e *execution) volumeOf(item *manifest.Item) *source.Volume {
	if item.APIGroup != "" || item.KindName != "PersistentVolumeClaim" {
		return nil
	}
	return e.volumes[types.NamespacedName{Namespace: item.Namespace, Name: item.Name}]
}

func (e *execution) hasData(item *manifest.Item) bool {
	return e.volumeOf(item) != nil && !e.keepsData[item]
}

func (e *execution) keepData(claim *manifest.Item) {
	e.keepsData[claim] = true
	e.report.info(e.subject(claim), "its data stays as it is, since the claim exists")
}

func (e *execution) bytesOf(item *manifest.Item) int64 {
	if !e.hasData(item) {
		return 0
	}
	return e.volumeOf(item).Status.Progress.TotalBytes
}

// holdBack prevents the creation of users of a claim without data: their writes to the empty volume
// would be taken for it.
func (e *execution) holdBack(claim *manifest.Item) {
	e.indexItems()
	ofPod := slices.ContainsFunc(claim.OwnerUIDs, func(uid string) bool { return e.byUID[uid] != nil && e.byUID[uid].KindName == "Pod" })
	e.holdBackUsers(manifest.Reference{KindName: claim.KindName, Namespace: claim.Namespace, Name: claim.Name}, ofPod)
}

// holdBackUsers does so for a claim's users, their owners, which would make them anew, and objects
// that may use it. A claim made by a pod has only that pod.
func (e *execution) holdBackUsers(claim manifest.Reference, ofPod bool) {
	e.indexItems()
	uses, mayUse := "uses the claim "+claim.Namespace+"/"+claim.Name, "may use the claim "+claim.Namespace+"/"+claim.Name
	users := slices.Clone(e.users[claim])
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(users) > 0 {
		user := users[len(users)-1]
		users = users[:len(users)-1]
		if strings.HasPrefix(e.held[user], "uses") || user.Name == claim.Name && user.Namespace == claim.Namespace && user.KindName == claim.KindName {
			continue
		}
		e.held[user] = uses
		for _, owner := range user.OwnerUIDs {
			if owner := e.byUID[owner]; owner != nil {
				users = append(users, owner)
			}
		}
	}
	if ofPod {
		return
	}
	for _, suspect := range e.suspects[claim.Namespace] {
		if e.held[suspect] == "" {
			e.held[suspect] = mayUse
		}
	}
}

func (e *execution) indexItems() {
	e.index.Do(func() {
		e.suspects = graph.Suspects(e.Backup.Items)
		e.byUID, e.users = map[string]*manifest.Item{}, map[manifest.Reference][]*manifest.Item{}
		for _, item := range e.Backup.Items {
			if item.UID != "" {
				e.byUID[item.UID] = item
			}
			for _, reference := range item.References {
				if reference.KindName == claimKind.kind {
					e.users[reference] = append(e.users[reference], item)
				}
			}
		}
	})
}

func (e *execution) heldBack(item *manifest.Item) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held[item] == "" {
		return ""
	}
	return fmt.Sprintf("it %s, whose data is not there, and would start without: see what is wrong with that, and restore this again", e.held[item])
}

// restoreData returns when a claim's data is complete. created says that this restore created it.
func (e *execution) restoreData(ctx context.Context, item *manifest.Item, about subject, created bool) (err error) {
	defer func() {
		if err != nil {
			e.holdBack(item)
		}
	}()
	volume := e.volumeOf(item)
	if volume.Problem != "" {
		return errors.New("its data is not in the backup: " + volume.Problem)
	}
	fromSnapshot := e.inStorage(item) || e.isFromLocal(item)
	if !created {
		if err := e.spare(ctx, item, about); err != nil {
			return err
		}
	}
	if e.Volumes == nil {
		return errors.New("its data is not restored: this Holdfast restores no volumes")
	}
	e.heldIn.Store(about.namespace, true)
	claim := volumes.Claim{Namespace: about.namespace, Name: about.name, Data: volume.Volume, Paths: e.spec.Paths, Provisioned: fromSnapshot}
	if err := e.mayWrite(ctx, about.namespace); err != nil {
		return err
	}
	if pod := e.podOf(volume); pod != nil {
		select {
		case e.reads <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		content, err := e.Backup.Object(ctx, pod)
		<-e.reads
		if err != nil {
			return fmt.Errorf("read the pod that used it: %w", err)
		}
		raw, err := json.Marshal(content.Object)
		claim.Pod = &corev1.Pod{}
		if err == nil {
			err = json.Unmarshal(raw, claim.Pod)
		}
		if err != nil {
			return fmt.Errorf("read the pod that used it: %w", err)
		}
	}
	claim.Started = func(pod string) {
		e.report.fail(about, fmt.Sprintf("its data is complete, but the pod %s started on it before, and may have read a part of it or written between: restart the pod, or delete the claim and restore again", pod))
	}
	if e.fills(item) {
		claim.Used = func(ctx context.Context) error { return e.used(ctx, about) }
	}
	if !created && e.fills(item) {
		claim.Begin = func(ctx context.Context) error { return e.begin(ctx, item, about) }
	}
	if err := e.Volumes.Claim(ctx, claim); err != nil {
		if e.isFromLocal(item) && ctx.Err() == nil {
			err = fmt.Errorf("%w: its data is in the storage location too: for that, give the restore the annotation %s: %s", err, v1alpha1.AnnotationRestoreFrom, v1alpha1.RestoreFromMoved)
		}
		return err
	}
	again, err := e.complete(ctx, item, about)
	if fromSnapshot {
		e.withdraw(ctx, item, about)
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return ctx.Err()
	case again: // even weeks later, over the writes of its users
		return fmt.Errorf("its data is complete, but its annotation %s, by which a later restore would write all of it again, can't be removed: restore this again, or remove it by hand and restore what uses the claim: %w", format.AnnotationIncomplete, err)
	default:
		e.report.warn(about, fmt.Sprintf("its data is complete, but its annotation %s, by which a later restore would take it for a part, can't be removed: remove it by hand: %v", format.AnnotationIncomplete, err))
	}
	if len(claim.Paths) > 0 {
		e.report.info(about, "written into its volume: "+strings.Join(claim.Paths, ", "))
	}
	return nil
}

// mayWrite says why a tenant may not write files into a volume: the requester must be allowed to
// create pods, which could mount it.
func (e *execution) mayWrite(ctx context.Context, namespace string) error {
	if len(e.spec.Paths) == 0 || !e.request.tenant() {
		return nil
	}
	allowed, err := e.allowed(ctx, Right{Verb: "create", Resource: "pods", Namespace: namespace})
	if err == nil && !allowed {
		err = fmt.Errorf("the requester of the restore may not create pods in the namespace %s, which would have the volume", namespace)
	}
	return err
}

// podOf returns the pod that a volume was read through, or one that used the claim, or nil.
func (e *execution) podOf(volume *source.Volume) *manifest.Item {
	claim := manifest.Reference{KindName: "PersistentVolumeClaim", Namespace: volume.Pod.Namespace, Name: volume.ClaimName}
	for _, item := range e.Backup.Items {
		if item.APIGroup != "" || item.KindName != "Pod" || item.Namespace != volume.Pod.Namespace {
			continue
		}
		if item.Name == volume.Pod.Name || volume.Pod.Name == "" && slices.ContainsFunc(item.References, func(r manifest.Reference) bool {
			return r.APIGroup == claim.APIGroup && r.KindName == claim.KindName && r.Namespace == claim.Namespace && r.Name == claim.Name
		}) {
			return item
		}
	}
	return nil
}
