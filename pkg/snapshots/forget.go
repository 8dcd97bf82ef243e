// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// patience is how long Forget waits for others, such as the driver.
	patience = 5 * time.Second
	// nudgeAfter is the age of a deletion that is nudged.
	nudgeAfter = time.Minute
)

// Forget deletes a content, its VolumeSnapshot and the stored snapshot. It returns in words what a
// deletion waits for that others have not ended within seconds, and nothing if the content is
// deleted. It may be repeated at any time:
//
//   - Only a recorded cut is deleted, or one that has just failed for good. An answer of the
//     driver may be under way otherwise, and its snapshot would leak.
//   - The VolumeSnapshot is deleted first, while the content is Retain. If others have begun to delete
//     the content, Retain would leak the stored snapshot, and Delete is set at once.
//   - One patch, of the version that was read, sets Delete and the annotation by which csi-snapshotter
//     deletes a content whose VolumeSnapshot was deleted. Without the annotation it never does.
//   - A deletion that hangs is nudged: the sidecar looks anew at a content that changes.
func (c *Client) Forget(ctx context.Context, content string, uid types.UID) (waitsFor string, err error) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	f := &forgetting{Client: c}
	pause := time.Duration(0)
	for {
		found, err := get[VolumeSnapshotContent](limited, c.objects.Resource(Contents), content)
		if err == nil && (found == nil || found.UID != uid) {
			return "", nil
		}
		if err == nil {
			waitsFor, err = f.step(limited, found)
		}
		switch {
		case limited.Err() != nil:
			if ctx.Err() != nil {
				return waitsFor, ctx.Err()
			}
			return waitsOr(waitsFor), nil
		case err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err):
			return waitsFor, fmt.Errorf("forget the VolumeSnapshotContent %s: %w", content, err)
		}
		if !c.pause(limited, &pause) {
			return waitsOr(waitsFor), nil
		}
	}
}

func waitsOr(words string) string {
	if words == "" {
		return "the cluster"
	}
	return words
}

// forgetting is one call of Forget.
type forgetting struct {
	*Client
	// nudged is the version of a content after a nudge. A change of it is the driver's next answer.
	nudged string
}

// step does what may be done now, and says what is to be waited for.
func (f *forgetting) step(ctx context.Context, content *VolumeSnapshotContent) (string, error) {
	in := f.objects.Resource(Snapshots).Namespace(content.Spec.Ref.Namespace)
	snapshot, err := get[VolumeSnapshot](ctx, in, content.Spec.Ref.Name)
	if err != nil {
		return "", err
	}
	bound := snapshot != nil && (snapshot.UID == content.Spec.Ref.UID || content.Spec.Ref.UID == "")
	deleting := content.DeletionTimestamp != nil
	switch {
	case deleting: // no step can keep it any more
	case bound && snapshot.DeletionTimestamp != nil:
		return "the deletion of the VolumeSnapshot", nil
	case bound && !content.cut():
		return f.uncut(content), nil
	case bound && content.Spec.Policy != Retain:
		_, err := f.patch(ctx, content, map[string]any{}, map[string]any{"deletionPolicy": Retain})
		return "", err
	case bound:
		return "the deletion of the VolumeSnapshot", remove(ctx, in, snapshot.Name, snapshot.UID)
	case content.beingCreated() || content.Status.Handle == "":
		failed, err := f.justFailed(ctx, content)
		if err != nil || !failed {
			return f.uncut(content), err
		}
	}
	if err := f.yield(ctx, content); err != nil {
		return "", err
	}
	if bound && snapshot.DeletionTimestamp == nil {
		if err := remove(ctx, in, snapshot.Name, snapshot.UID); err != nil {
			return "", err
		}
	}
	if !deleting {
		return "the driver to delete the stored snapshot", remove(ctx, f.objects.Resource(Contents), content.Name, content.UID)
	}
	if f.nudged == "" && time.Since(content.DeletionTimestamp.Time) > nudgeAfter {
		err = f.nudge(ctx, content)
	}
	return strings.TrimSuffix("the driver to delete the stored snapshot: "+content.message(), ": "), err
}

// yield makes the deletion of a content delete its stored snapshot. A change of the content since it
// was read is a conflict. A missing content is left to the next look.
func (c *Client) yield(ctx context.Context, content *VolumeSnapshotContent) error {
	if content.Spec.Policy == Delete && content.Annotations[annotationBeingDeleted] != "" {
		return nil
	}
	changed, err := c.patch(ctx, content, map[string]any{"annotations": map[string]string{annotationBeingDeleted: "yes"}}, map[string]any{"deletionPolicy": Delete})
	switch {
	case err == nil:
		*content = *changed
	case apierrors.IsNotFound(err):
		return nil
	}
	return err
}

func (f *forgetting) uncut(content *VolumeSnapshotContent) string {
	if message := content.message(); message != "" {
		return "the end of the cut: " + message
	}
	return "the end of the cut: the driver has not answered"
}

// justFailed reports whether the driver has just refused the cut for good. Its sidecar then pauses
// for a second at least. Its next answer is asked for by a nudge, since the pause may have passed.
func (f *forgetting) justFailed(ctx context.Context, content *VolumeSnapshotContent) (bool, error) {
	if content.message() == "" || content.beingCreated() || content.Status.Handle != "" || content.Spec.Source.Volume == "" {
		return false, nil
	}
	if f.nudged == "" {
		return false, f.nudge(ctx, content)
	}
	return content.ResourceVersion != f.nudged, nil
}

func (f *forgetting) nudge(ctx context.Context, content *VolumeSnapshotContent) error {
	changed, err := f.patch(ctx, content, map[string]any{"annotations": map[string]string{AnnotationNudged: time.Now().UTC().Format(time.RFC3339Nano)}}, nil)
	if err == nil {
		f.nudged = changed.ResourceVersion
	}
	return err
}

// Lost is a stored snapshot without a content in this cluster, as after the loss of etcd.
type Lost struct {
	Backup              types.UID
	StoreName, Location string
	Claim               types.UID
	Driver, Handle      string
	Class               *VolumeSnapshotClass
}

// Find makes a content for a lost snapshot, unless its backup has one, to forget it. Forget waits
// until the driver has confirmed the handle: a sidecar that knows no handle deletes nothing. The new
// content names a VolumeSnapshot of the system namespace, where no tenant can create it and so bind
// the content. Drivers that want a secret to delete get the class's.
func (c *Client) Find(ctx context.Context, lost Lost) (content string, uid types.UID, err error) {
	known, err := list[VolumeSnapshotContent](ctx, c.objects.Resource(Contents), LabelBackup+"="+string(lost.Backup))
	if err != nil {
		return "", "", err
	}
	for i := range known {
		if known[i].Status.Handle == lost.Handle && known[i].Spec.Driver == lost.Driver {
			return known[i].Name, known[i].UID, nil
		}
	}
	of := name(lost.Driver, lost.Handle)
	annotations, labels := map[string]any{}, map[string]any{}
	for key, value := range c.labels(&Volume{Backup: lost.Backup, StoreName: lost.StoreName, Location: lost.Location, ClaimUID: lost.Claim}) {
		labels[key] = value
	}
	spec := map[string]any{
		"driver": lost.Driver, "deletionPolicy": Retain,
		"source":            map[string]any{"snapshotHandle": lost.Handle},
		"volumeSnapshotRef": map[string]any{"apiVersion": Version.String(), "kind": "VolumeSnapshot", "namespace": c.systemSpace, "name": of},
	}
	if lost.Class != nil {
		spec["volumeSnapshotClassName"] = lost.Class.Name
		secret, in := lost.Class.Parameters["csi.storage.k8s.io/snapshotter-secret-name"], lost.Class.Parameters["csi.storage.k8s.io/snapshotter-secret-namespace"]
		if strings.Contains(secret+in, "${") {
			return "", "", fmt.Errorf("find the snapshot %s of the driver %s: the VolumeSnapshotClass %s takes its secret from the name of each snapshot (%s in %s), so delete the snapshot in the storage by hand", lost.Handle, lost.Driver, lost.Class.Name, secret, in)
		}
		if secret != "" {
			annotations[annotationSecretName], annotations[annotationSecretNamespace] = secret, in
		}
	}
	contents := c.objects.Resource(Contents)
	made, err := contents.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": Version.String(), "kind": "VolumeSnapshotContent",
		"metadata": map[string]any{
			"name": of, "labels": labels, "annotations": annotations, "finalizers": []any{finalizerBound},
		},
		"spec": spec,
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		made, err = contents.Get(ctx, of, metav1.GetOptions{})
	}
	if err != nil {
		return "", "", fmt.Errorf("find the snapshot %s of the driver %s: %w", lost.Handle, lost.Driver, err)
	}
	if got := made.GetLabels()[LabelBackup]; got != string(lost.Backup) {
		return "", "", fmt.Errorf("find the snapshot %s of the driver %s: the VolumeSnapshotContent %s is of the backup %q, want %s", lost.Handle, lost.Driver, of, got, lost.Backup)
	}
	return of, made.GetUID(), nil
}
