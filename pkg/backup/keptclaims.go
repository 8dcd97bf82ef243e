// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
)

// A claim whose snapshot is kept names it for Velero's restore, and is written after the cut:
// docs/design/snapshots.md, "For Velero". Holdfast's restores read the list of volumes.

// holdKept keeps back claims whose snapshots are kept, until writeKept.
func (p *podVolumes) holdKept(objects []*object) (now []*object) {
	for _, o := range objects {
		of := p.claims[types.NamespacedName{Namespace: o.item.Namespace, Name: o.item.Name}]
		if o.GroupResource() != claimsResource || of == nil || of.snapshot == nil || !of.snapshot.Kept || p.planned != nil {
			now = append(now, o)
			continue
		}
		p.sink.expect(o)
		p.mu.Lock()
		p.kept = append(p.kept, o)
		p.mu.Unlock()
	}
	return now
}

// writeKept writes these claims when their snapshots are cut. An uncut one is not named: Velero would
// wait for ever.
func (p *podVolumes) writeKept(ctx context.Context) error {
	if len(p.kept) == 0 {
		return nil
	}
	var kept []*format.Volume
	of := map[types.NamespacedName]*format.Volume{}
	for _, volume := range p.submitted {
		if volume.Snapshot != nil && volume.Snapshot.Kept {
			kept = append(kept, volume)
			of[types.NamespacedName{Namespace: volume.Pod.Namespace, Name: volume.ClaimName}] = volume
		}
	}
	_ = p.mover.Cut(ctx, kept) // the backup's end waits for all cuts, and tells of errors
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var all batch
	for _, o := range p.kept {
		with := []*object{o}
		volume := of[types.NamespacedName{Namespace: o.item.Namespace, Name: o.item.Name}]
		if volume != nil && volume.Snapshot.Cut != nil && (!volume.Status.Phase.Done() || volume.Status.Phase == enginev1alpha1.VolumePhaseCompleted) {
			var err error
			if with, err = p.withSnapshot(o, volume); err != nil {
				return fmt.Errorf("describe the snapshot of the claim %s/%s: %w", o.item.Namespace, o.item.Name, err)
			}
		}
		p.progress.found.Add(int64(len(with) - 1))
		all.objects = append(all.objects, with...)
	}
	p.kept = nil
	return p.write(&all)
}

var (
	snapshotsResource = schema.GroupResource{Group: snapshots.Version.Group, Resource: snapshots.Snapshots.Resource}
	contentsResource  = schema.GroupResource{Group: snapshots.Version.Group, Resource: snapshots.Contents.Resource}
)

func (p *podVolumes) withSnapshot(o *object, volume *format.Volume) ([]*object, error) {
	ofSnapshot, served := p.discovered.find(snapshotsResource)
	ofContent, also := p.discovered.find(contentsResource)
	if !served || !also {
		return []*object{o}, nil
	}
	snapshot, content := format.StoredSnapshot(volume, p.claims[types.NamespacedName{Namespace: o.item.Namespace, Name: o.item.Name}].block)
	claim, err := naming(o, snapshot.GetName())
	if err != nil {
		return nil, err
	}
	all := []*object{claim}
	for _, of := range []struct {
		resource
		*unstructured.Unstructured
	}{{ofContent, content}, {ofSnapshot, snapshot}} {
		raw, err := json.Marshal(of.Object)
		if err != nil {
			return nil, err
		}
		made, err := objectOf(of.resource, raw, nil, "the claim "+itemName(o.item.Namespace, o.item.Name)+" is made from it")
		if err != nil {
			return nil, err
		}
		all = append(all, made)
	}
	return all, nil
}

// naming returns a claim with its snapshot's name, which the original lacks.
func naming(o *object, snapshot string) (*object, error) {
	var claim map[string]any
	if err := decode(o.stored, &claim); err != nil {
		return nil, err
	}
	original := map[string]any{}
	if o.item.Original != nil {
		if err := decode(o.item.Original, &original); err != nil {
			return nil, err
		}
	}
	at := []string{"metadata", "annotations", format.AnnotationSnapshotOfClaim}
	before, _, _ := unstructured.NestedFieldNoCopy(claim, at...)
	if err := unstructured.SetNestedField(original, before, at...); err != nil {
		return nil, err
	}
	if err := unstructured.SetNestedField(claim, snapshot, at...); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(claim)
	if err != nil {
		return nil, err
	}
	undo, err := json.Marshal(original)
	if err != nil {
		return nil, err
	}
	return objectOf(o.resource, raw, undo, o.item.Reason)
}

func objectOf(r resource, raw []byte, original json.RawMessage, reason string) (*object, error) {
	h, err := headOf(raw)
	if err != nil {
		return nil, err
	}
	h.original = original
	o, _, err := newObject(nil, r, h, raw, reason)
	return o, err
}
