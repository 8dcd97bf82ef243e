// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// maxIndexBytes bounds the stored claims and persistent volumes kept until all pods are known. Memory
// is about twice as much.
var maxIndexBytes = 16 << 20

// listAgainTimeout leaves time for single reads.
var listAgainTimeout = readAgainTimeout / 2

const (
	// manyFrozenGets is the least number of persistent volumes for which a list is used while pods may
	// be frozen.
	manyFrozenGets = 100
	frozenGets     = 4
)

const withClaim = "what the backup has of it is from before the pre hooks of its pod: "

type heldKey struct {
	resource schema.GroupResource
	name     types.NamespacedName
}

func (o *object) key() heldKey {
	return heldKey{o.GroupResource(), types.NamespacedName{Namespace: o.item.Namespace, Name: o.item.Name}}
}

func (o *object) size() int { return len(o.stored) + len(o.item.Original) }

func (k heldKey) subject() subject { return subject{k.resource, k.name.Namespace, k.name.Name} }

// hold keeps a claim or persistent volume until it is known whether its pod has pre hooks. If the spec
// orders it or too much is kept, it writes it now.
func (p *podVolumes) hold(r resource, h *head, raw []byte, reason string) error {
	if slices.Contains(p.order[r.GroupResource()], itemName(h.Metadata.Namespace, h.Metadata.Name)) {
		return p.add(r, h, raw, reason)
	}
	o, _, err := newObject(nil, r, h, raw, reason)
	if err != nil {
		return err
	}
	p.progress.found.Add(1)
	if p.indexBytes+o.size() > maxIndexBytes {
		p.indexFull = true
		return p.write(&batch{objects: []*object{o}})
	}
	p.indexBytes += o.size()
	p.index = append(p.index, o)
	return nil
}

// releaseIndex runs once all pods are known. It moves objects of pods with pre hooks to them, and
// writes the rest.
func (p *podVolumes) releaseIndex() error {
	of := map[heldKey]*heldPod{}
	for _, pod := range p.held {
		if len(pod.pre) == 0 {
			continue
		}
		for _, name := range pod.claims {
			claim := types.NamespacedName{Namespace: pod.ref.Namespace, Name: name}
			of[heldKey{claimsResource, claim}] = pod
			if volume := p.claims[claim].volume; volume != "" {
				of[heldKey{persistentVolumesResource, types.NamespacedName{Name: volume}}] = pod
			}
		}
	}
	if p.indexFull && len(of) > 0 {
		p.log.write(slog.LevelInfo, "of some claims and persistent volumes the backup has what was read before any hook: too much of them is in memory")
	}
	var now batch
	for _, o := range p.index {
		var kept *object
		switch pod := of[o.key()]; {
		case pod == nil:
		case p.keep(&kept, o):
			pod.belongings = append(pod.belongings, kept)
			continue
		default:
			p.findings.warn(o.key().subject(), withClaim+tooMuchHeld)
		}
		now.objects = append(now.objects, o)
	}
	p.index = nil
	now.objects = p.holdKept(now.objects)
	return p.write(&now)
}

// readBelongingsAgain reads claims and persistent volumes of pods with pre hooks, claims first. On
// failure the earlier ones stay.
func (p *podVolumes) readBelongingsAgain(ctx context.Context, block block) error {
	lists := map[query]map[string]**object{}
	for _, pod := range block {
		if len(pod.pre) == 0 {
			continue
		}
		for i, o := range pod.belongings {
			q := query{resource: o.resource, namespace: o.item.Namespace}
			if lists[q] == nil {
				lists[q] = map[string]**object{}
			}
			lists[q][o.item.Name] = &pod.belongings[i]
		}
	}
	listCtx, stop := context.WithTimeout(ctx, listAgainTimeout)
	defer stop()
	for _, q := range slices.SortedFunc(maps.Keys(lists), func(a, b query) int {
		return cmp.Or(cmp.Compare(a.resource.Resource, b.resource.Resource), cmp.Compare(a.namespace, b.namespace))
	}) {
		wanted, many := lists[q], manyGets
		if q.namespace == "" {
			many = manyFrozenGets
		}
		if len(wanted) > many {
			whole, err := p.search(listCtx, q, func() int { return len(wanted) }, func(h *head, raw []byte) error {
				if at := wanted[h.Metadata.Name]; at != nil {
					p.replace(at, h, raw)
					delete(wanted, h.Metadata.Name)
				}
				return nil
			})
			if whole && err == nil {
				for _, at := range wanted {
					p.stays(*at, "it is gone")
				}
				continue
			}
		}
		var group errgroup.Group
		group.SetLimit(frozenGets)
		for name, at := range wanted {
			group.Go(func() error {
				return p.contain(func() error {
					p.readBelongingAgain(ctx, q, name, at)
					return nil
				})
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
	return nil
}

func (p *podVolumes) readBelongingAgain(ctx context.Context, q query, name string, at **object) {
	raw, err := p.lister.get(ctx, q.resource, q.namespace, name)
	var h *head
	if err == nil {
		h, err = headOf(raw)
	}
	switch {
	case err == nil:
		p.replace(at, h, raw)
	case apierrors.IsNotFound(err):
		p.stays(*at, "it is gone")
	case errors.Is(context.Cause(ctx), errNotReadInTime):
		p.findings.warn((*at).key().subject(), withClaim+errNotReadInTime.Error())
	case ctx.Err() != nil:
	default:
		p.findings.warn((*at).key().subject(), fmt.Sprintf("%sread it: %v", withClaim, err))
	}
}

// replace takes the new object, unless it has another uid or would be left out.
func (p *podVolumes) replace(at **object, h *head, raw []byte) {
	before := *at
	about := before.key().subject()
	if string(h.Metadata.UID) != before.item.UID {
		p.stays(before, "it is gone")
		return
	}
	if why := h.whyLeftOut(); why != "" {
		p.stays(before, "now it would be "+why)
		return
	}
	var err error
	if about.resource == claimsResource {
		raw, err = storedClaim(h, raw)
	}
	var again *object
	if err == nil {
		again, _, err = newObject(nil, before.resource, h, raw, before.item.Reason)
	}
	switch {
	case err != nil:
		p.findings.warn(about, fmt.Sprintf("%sread it: %v", withClaim, err))
	case !p.keep(at, again):
		p.findings.warn(about, withClaim+tooMuchHeld)
	}
}

func (p *podVolumes) stays(o *object, why string) {
	p.log.write(slog.LevelInfo, withClaim+why, o.key().subject().attrs()...)
}
