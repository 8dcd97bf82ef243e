// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// unansweredTime is the least time for questions to a cluster that does not answer.
const unansweredTime = 10 * time.Minute

const skew = time.Minute // between the clocks of the storage and the controller

// Volume is a claim's volume that a backup cuts.
type Volume struct {
	Backup types.UID
	Place

	Namespace, Claim string
	ClaimUID         types.UID
	Driver, Handle   string // in the claim's PersistentVolume
	Class            string
	// Moved says that the data is moved, so the stored snapshot is deleted after the backup.
	Moved bool
	// KeepLocal, unless 0, keeps it all the same, while it is among so many newest of the claim.
	KeepLocal int32
	// Size in bytes, StorageClass and Nodes, where the volume can be used, are for a Mover.
	Size         int64
	StorageClass string
	Nodes        *corev1.VolumeNodeAffinity
	Device       bool
	// Attempt is the backup's attempt if hooks enclose the cut, else 0. Another attempt can't use the cut, since
	// the pod has resumed.
	Attempt int32
	// Try is 2 for the second exposure, preferably on another node than Avoid.
	Try   int32
	Avoid string
	Since time.Time // the backup's start; an earlier cut is not its own
	// Timeout limits the time until the cut, ReadyTimeout the time from the cut until volumes can be made from it.
	Timeout, ReadyTimeout time.Duration
}

// Taken is a cut. Its stored snapshot is safe: its content is Retain, and held.
type Taken struct {
	Snapshot, Content, Handle string // Snapshot is in the claim's namespace
	Time                      time.Time
	Size                      int64 // the least of a volume from the snapshot in bytes, or 0 if unknown
	Ready                     bool
}

var errTimeout = errors.New("the time for the snapshot is over")

// Cut returns the cut of a volume, made now or earlier. It reads it from the content, since the VolumeSnapshot
// learns of it later. It reports passing failures in words, and waits until the timeout. Then it deletes the
// VolumeSnapshot. When ctx ends, it leaves it. With an error, Taken has the name of the content, if there may be one:
// a later cut of the driver makes it a stored snapshot.
func (c *Client) Cut(ctx context.Context, v Volume, report func(string)) (Taken, error) {
	limited, cancel := context.WithTimeoutCause(ctx, v.Timeout, errTimeout)
	defer cancel()
	w := &cutting{Client: c, v: &v, report: report}
	taken, err := w.wait(limited)
	switch {
	case err == nil:
		return taken, nil
	case ctx.Err() != nil:
		return Taken{}, context.Cause(ctx)
	case errors.Is(err, errTimeout):
		if taken, err = w.end(ctx); err == nil {
			return taken, nil
		}
	}
	if w.uid != "" {
		taken = Taken{Content: contentName(w.uid)}
	}
	return taken, fmt.Errorf("the snapshot of the claim %s/%s by the driver %s, class %s: %w", v.Namespace, v.Claim, v.Driver, v.Class, err)
}

type cutting struct {
	*Client
	v        *Volume
	report   func(string)
	uid      types.UID
	snapshot *VolumeSnapshot
	content  *VolumeSnapshotContent
	said     string // why there is no cut yet
}

func (w *cutting) say(format string, args ...any) {
	words := fmt.Sprintf(format, args...)
	if words != w.said && w.report != nil {
		w.report(words)
	}
	w.said = words
}

// wait fails with errTimeout.
func (w *cutting) wait(ctx context.Context) (Taken, error) {
	pause := time.Duration(0)
	for {
		var taken Taken
		var done bool
		err := error(nil)
		if w.uid == "" {
			err = w.create(ctx)
		}
		if err == nil {
			taken, done, err = w.look(ctx)
		}
		switch {
		case ctx.Err() != nil && !done:
			return Taken{}, context.Cause(ctx)
		case err != nil && passing(err):
			w.say("the cluster does not answer as it should: %v", err)
		case err != nil || done:
			return taken, err
		}
		if !w.pause(ctx, &pause, w.lastPause) {
			return Taken{}, context.Cause(ctx)
		}
	}
}

// AwaitReady waits until volumes can be made from a cut: some storages copy for hours. The limit counts from the
// cut.
func (c *Client) AwaitReady(ctx context.Context, v Volume, taken Taken, report func(string)) (Taken, error) {
	said, pause, begun := "", time.Duration(0), time.Now()
	for !taken.Ready {
		words, content, err := "the storage has not finished it", (*VolumeSnapshotContent)(nil), error(nil)
		content, err = get[VolumeSnapshotContent](ctx, c.objects.Resource(Contents), taken.Content)
		switch {
		case err == nil && content == nil:
			err = final("the VolumeSnapshotContent %s is gone: keep tools from removing its finalizers", taken.Content)
		case err == nil && !v.Moved && content.Labels[LabelMoved] != "":
			err = final("the VolumeSnapshotContent %s leaves: an earlier attempt of the backup has failed with it: back up again", content.Name)
		case err == nil && content.Status.Ready:
			taken.Ready, taken.Size = true, max(taken.Size, content.Status.Size)
			return taken, nil
		case err == nil && content.message() != "":
			words = content.message()
		case err != nil:
			words = err.Error()
		}
		if over := time.Since(taken.Time) > v.ReadyTimeout; over && (err == nil || time.Since(begun) > unansweredTime) {
			err = final("it was cut, and was not ready to use within %s: %s: if the storage shows it as ready, restart the driver's csi-snapshotter", v.ReadyTimeout, words)
		}
		if err != nil && !passing(err) {
			return taken, fmt.Errorf("the snapshot of the claim %s/%s by the driver %s, class %s: %w", v.Namespace, v.Claim, v.Driver, v.Class, err)
		}
		if words != said && report != nil && ctx.Err() == nil {
			report(words)
		}
		if said = words; !c.pause(ctx, &pause, c.lastReadyPause) {
			return taken, context.Cause(ctx)
		}
	}
	return taken, nil
}

// finalError has a status, so it is not passing.
type finalError struct{ error }

func (e finalError) Status() metav1.Status { return metav1.Status{Reason: metav1.StatusReasonInvalid} }

func (e finalError) Unwrap() error { return e.error }

func final(format string, args ...any) error { return finalError{fmt.Errorf(format, args...)} }

func (w *cutting) create(ctx context.Context) error {
	in := w.objects.Resource(Snapshots).Namespace(w.v.Namespace)
	created, err := in.Create(ctx, w.snapshotOf(w.v), metav1.CreateOptions{})
	switch {
	case err == nil:
		w.uid = created.GetUID()
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("create a VolumeSnapshot: %w: are the namespace, and the CRDs of external-snapshotter, in the cluster?", err)
	case !apierrors.IsAlreadyExists(err):
		return fmt.Errorf("create a VolumeSnapshot: %w", err)
	}
	found, err := get[VolumeSnapshot](ctx, in, w.v.name())
	if err != nil || found == nil { // deleted meanwhile: the next look creates it
		return err
	}
	for label, want := range w.labels(w.v) {
		if found.Labels[label] != want && label != part(labelStoreID, 0) {
			return final("the VolumeSnapshot %s is not the backup's: its label %s is %q, want %q: delete it, and back up again", found.Name, label, found.Labels[label], want)
		}
	}
	if found.Spec.Source.Claim != w.v.Claim {
		return final("the VolumeSnapshot %s is not the backup's: it is of the claim %q: delete it, and back up again", found.Name, found.Spec.Source.Claim)
	}
	w.uid = found.UID
	return nil
}

// look returns the cut if there is one. It reads the VolumeSnapshot first, so it sees each cut that was recorded
// before a deletion.
func (w *cutting) look(ctx context.Context) (taken Taken, done bool, err error) {
	if w.uid == "" {
		return taken, false, nil
	}
	snapshot, err := get[VolumeSnapshot](ctx, w.objects.Resource(Snapshots).Namespace(w.v.Namespace), w.v.name())
	if err != nil {
		return taken, false, err
	}
	if snapshot != nil && (snapshot.UID != w.uid || snapshot.DeletionTimestamp != nil) {
		snapshot = nil
	}
	content, err := get[VolumeSnapshotContent](ctx, w.objects.Resource(Contents), contentName(w.uid))
	if err != nil {
		return taken, false, err
	}
	if content != nil {
		if content, err = w.keep(ctx, content); err != nil {
			return taken, false, err
		}
	}
	w.snapshot, w.content = snapshot, content
	switch {
	case content != nil && content.cut() && content.held() && content.Spec.Policy == Retain:
		taken, err = w.taken(content)
		return taken, true, err
	case content != nil && content.DeletionTimestamp != nil && !(content.held() && content.beingCreated()):
		return taken, false, final("the VolumeSnapshotContent %s of the VolumeSnapshot %s was deleted before it was cut: keep tools, as of GitOps, from deleting it", content.Name, w.v.name())
	case content == nil && snapshot == nil:
		return taken, false, final("the VolumeSnapshot %s was deleted before it was cut: keep tools, as of GitOps, from deleting it", w.v.name())
	case content == nil && snapshot.Status != nil && snapshot.Status.Error.message() != "":
		w.say("%s", snapshot.Status.Error.message())
	case content == nil || !content.held():
		w.say("the VolumeSnapshot was not taken up: is snapshot-controller running?")
	case content.message() != "":
		w.say("%s", content.message())
	default:
		w.say("the driver has not answered: is its csi-snapshotter running?")
	}
	return taken, false, nil
}

func contentName(uid types.UID) string { return "snapcontent-" + string(uid) }

// keep makes a content Retain, labels and holds it, by one conditional write. If a content is not held and being
// deleted, its stored snapshot is deleted too: Retain would leak it.
func (w *cutting) keep(ctx context.Context, content *VolumeSnapshotContent) (*VolumeSnapshotContent, error) {
	if content.Spec.Ref.UID != w.uid || content.Spec.Source.Volume == "" {
		return nil, final("the VolumeSnapshotContent %s is not the backup's: its VolumeSnapshot is %s/%s, uid %q: delete it, and back up again", content.Name, content.Spec.Ref.Namespace, content.Spec.Ref.Name, content.Spec.Ref.UID)
	}
	switch {
	case content.held() || content.DeletionTimestamp == nil && !content.protected():
		return content, nil
	case content.DeletionTimestamp != nil:
		return content, w.yield(ctx, content)
	}
	metadata, labels := content.hold(), w.labels(w.v)
	labels[LabelVolume] = VolumeLabel(w.v.Namespace, w.v.Claim)
	metadata["labels"] = labels
	return w.patch(ctx, content, metadata, map[string]any{"deletionPolicy": Retain})
}

// taken checks that a cut is the backup's. Otherwise its content is left to the sweep.
func (w *cutting) taken(content *VolumeSnapshotContent) (Taken, error) {
	at := time.Unix(0, content.Status.Created)
	switch {
	case content.Spec.Driver != w.v.Driver || content.Spec.Source.Volume != w.v.Handle:
		return Taken{}, final("the VolumeSnapshotContent %s is of the volume %s of the driver %s, want the volume %s: the claim was replaced, so back up again", content.Name, content.Spec.Source.Volume, content.Spec.Driver, w.v.Handle)
	case !w.v.Moved && content.Labels[LabelMoved] != "":
		return Taken{}, final("the VolumeSnapshotContent %s leaves: an earlier attempt of the backup has failed with it: back up again", content.Name)
	case at.Before(w.v.Since.Add(-skew)):
		return Taken{}, final("the VolumeSnapshotContent %s was cut at %s, before the backup started at %s: it is not the backup's, or the storage's clock is slow", content.Name, at.UTC().Format(time.RFC3339), w.v.Since.UTC().Format(time.RFC3339))
	}
	return Taken{
		Snapshot: w.v.name(), Content: content.Name, Handle: content.Status.Handle, Time: at,
		Size: content.Status.Size, Ready: content.Status.Ready,
	}, nil
}

// end looks a last time, and frees the namespace if there is no cut.
func (w *cutting) end(ctx context.Context) (Taken, error) {
	timeout := fmt.Errorf("not cut within %s: %s", w.v.Timeout, w.said)
	if w.uid == "" {
		return Taken{}, timeout
	}
	taken, done, err := w.look(ctx)
	if done {
		return taken, err
	}
	if err == nil && w.snapshot != nil && w.snapshot.settled(w.content) {
		err = remove(ctx, w.objects.Resource(Snapshots).Namespace(w.v.Namespace), w.v.name(), w.uid, w.snapshot.ResourceVersion)
	}
	if err != nil {
		return Taken{}, fmt.Errorf("%w (and the VolumeSnapshot stays until the next sweep: %w)", timeout, err)
	}
	return Taken{}, timeout
}

// Release deletes the VolumeSnapshot of a recorded cut from the tenant's namespace. The content stays. A later Cut
// cuts anew.
func (c *Client) Release(ctx context.Context, content string) error {
	found, err := get[VolumeSnapshotContent](ctx, c.objects.Resource(Contents), content)
	switch {
	case err != nil:
		return err
	case found == nil || !found.cut() || !found.held() || found.Labels[LabelCluster] != c.clusterUID:
		return fmt.Errorf("release the VolumeSnapshotContent %s: it is missing, not cut, or has no finalizer %s, so its VolumeSnapshot stays", content, Finalizer)
	}
	return remove(ctx, c.objects.Resource(Snapshots).Namespace(found.Spec.Ref.Namespace), found.Spec.Ref.Name, found.Spec.Ref.UID, "")
}
