// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

const (
	bindLook = time.Second
	// skew is how much the clocks of API servers may differ.
	skew = time.Minute
	// bindPatience bounds the time of a binding without a pod.
	bindPatience = 3 * time.Second
)

// provisioned returns when a claim is bound whose volume is made with its data, as from a snapshot.
// If it waits for its first pod, a holder is that.
func (r *Restorer) provisioned(ctx context.Context, claim Claim, live *corev1.PersistentVolumeClaim) (err error) {
	text := claimText(claim)
	name := r.recordName(string(live.UID))
	r.mu.Lock()
	w := &work{about: text, uid: live.UID, submitted: r.Clock.Now()}
	r.works[name] = w
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if ctx.Err() != nil {
			return // another process goes on
		}
		if w.status.Phase = enginev1alpha1.VolumePhaseCompleted; err != nil {
			w.status.Phase, w.status.Message = enginev1alpha1.VolumePhaseFailed, err.Error()
		}
	}()
	waiting := waits.For(ctx, claim.Namespace, text+": its turn, after other claims of the restore")
	defer waiting.End()
	select {
	case r.slots <- struct{}{}:
		waiting.Set(text + ": its volume is made from the snapshot")
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	limited, cancel := context.WithTimeout(ctx, r.VolumeTimeout)
	defer cancel()
	bound, err := r.bound(limited, claim, live, bindPatience)
	if err == nil && !bound {
		err = r.holdUntilBound(limited, claim, live)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && !errors.Is(err, errRemade):
		err = fmt.Errorf("its volume was not made from the snapshot: %w: delete the claim, and restore again", err)
	}
	return errors.Join(err, r.release(ctx, live))
}

func (r *Restorer) holdUntilBound(ctx context.Context, claim Claim, live *corev1.PersistentVolumeClaim) error {
	for {
		holding, stop := context.WithCancelCause(ctx)
		held := make(chan error, 1)
		go func() {
			_, err := r.hold(holding, claim, live)
			if err != nil {
				stop(err) // no claim is bound without a pod
			}
			held <- err
		}()
		bound, err := r.bound(holding, claim, live, startTimeout)
		stop(nil)
		why := <-held
		_, slow := errors.AsType[notStartedError](why)
		switch {
		case bound:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("not within %s: %w", r.VolumeTimeout, cmp.Or(why, ctx.Err()))
		case err != nil && context.Cause(holding) != why: // else it is the end of hold
			return err
		case errors.Is(why, errPodGone): // its node was drained
		case why != nil && !slow: // the volume may take longer than the start of a pod
			return why
		}
	}
}

const (
	// annotationFound is on volumes that were there, and that Kubernetes has bound to a claim. A CSI
	// driver's provisioner creates a volume as the claim's.
	annotationFound = "pv.kubernetes.io/bound-by-controller"
	// annotationMadeBy names the driver whose provisioner has made a volume.
	annotationMadeBy = "pv.kubernetes.io/provisioned-by"
)

// madeFor fails if a claim is bound to a volume that is not made from its source: Kubernetes may find
// one for it, and then ignores the source.
func (r *Restorer) madeFor(ctx context.Context, claim Claim, live *corev1.PersistentVolumeClaim) error {
	volume, err := r.Kube.CoreV1().PersistentVolumes().Get(ctx, live.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("%w: its volume: %w", errUnread, err)
	}
	by := volume.Annotations[annotationMadeBy]
	switch of := claim.Data.Snapshot; {
	case volume.CreationTimestamp.Time.Before(live.CreationTimestamp.Add(-skew)):
		return fmt.Errorf("it was bound to the volume %s, which is older, and holds something else", volume.Name)
	case metav1.HasAnnotation(volume.ObjectMeta, annotationFound):
		return fmt.Errorf("it was bound to the volume %s, which was there before, and holds something else", volume.Name)
	case of != nil && by != "" && by != of.Driver:
		return fmt.Errorf("it was bound to the volume %s, which %s has made, and the snapshot is of %s", volume.Name, by, of.Driver)
	}
	return nil
}

func (r *Restorer) bound(ctx context.Context, claim Claim, of *corev1.PersistentVolumeClaim, patience time.Duration) (bool, error) {
	for since := r.Clock.Now(); ; {
		live, err := r.live(ctx, claim)
		bound := err == nil && live.UID == of.UID && live.Status.Phase == corev1.ClaimBound
		if bound {
			err = r.madeFor(ctx, claim, live)
		}
		switch {
		case err != nil && ctx.Err() == nil && errors.Is(err, errUnread): // it is asked again
		case err != nil:
			return false, err
		case live.Status.Phase == corev1.ClaimLost:
			return false, errors.New("its volume is lost")
		case live.UID != of.UID:
			return false, errRemade
		case bound:
			return true, nil
		}
		if r.Clock.Since(since) >= patience {
			return false, nil
		}
		select {
		case <-r.Clock.After(bindLook):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}
