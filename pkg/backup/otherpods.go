// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// maxTries bounds the pods through which one claim is read, in case of a common cause, as a full store.
const maxTries = 3

type access struct {
	pod          enginev1alpha1.PodReference
	node, volume string
}

// await waits for submitted volumes, and reads failed claims through other pods.
func (p *podVolumes) await(ctx context.Context, volumes []*format.Volume) error {
	for {
		if err := p.mover.Wait(ctx, volumes); err != nil {
			return err
		}
		var again []*format.Volume
		for _, volume := range volumes {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if next := p.readThroughAnother(ctx, volume); next != nil {
				again = append(again, next)
			}
		}
		if volumes = again; len(again) == 0 {
			return nil
		}
	}
}

func (p *podVolumes) readThroughAnother(ctx context.Context, failed *format.Volume) *format.Volume {
	if failed.Status.Phase != enginev1alpha1.VolumePhaseFailed || failed.ClaimName == "" || failed.Snapshot != nil {
		return nil
	}
	of := p.claims[types.NamespacedName{Namespace: failed.Pod.Namespace, Name: failed.ClaimName}]
	var nodes []string
	for tried := failed; tried != nil; tried = tried.Instead {
		nodes = append(nodes, tried.Node)
	}
	if len(of.others) == 0 || len(nodes) >= maxTries {
		return nil
	}
	// The node may be the cause.
	i := max(0, slices.IndexFunc(of.others, func(a access) bool { return !slices.Contains(nodes, a.node) }))
	other := of.others[i]
	of.others = slices.Delete(of.others, i, i+1)

	next := *failed
	next.Pod, next.Node, next.Name = other.pod, other.node, other.volume
	next.Status, next.Instead = enginev1alpha1.VolumeUploadStatus{}, failed
	about := subject{podsResource, failed.Pod.Namespace, failed.Pod.Name}
	if err := p.submit(ctx, &next); err != nil {
		p.log.write(slog.LevelWarn, fmt.Sprintf("volume %s could not be handed over to node %s instead, for pod %s: %v", failed.Name, other.node, other.pod.Name, err), about.attrs()...)
		return nil
	}
	p.log.write(slog.LevelWarn, fmt.Sprintf("volume %s could not be uploaded: %s: its claim is read through pod %s on node %s instead", failed.Name, failed.Status.Message, other.pod.Name, other.node), about.attrs()...)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.submitted[slices.Index(p.submitted, failed)] = &next
	return &next
}

func whyFailed(volume *format.Volume) string {
	text := volume.Status.Message
	for before := volume.Instead; before != nil; before = before.Instead {
		text += fmt.Sprintf("; and through pod %s on node %s: %s", before.Pod.Name, before.Node, before.Status.Message)
	}
	return text
}
