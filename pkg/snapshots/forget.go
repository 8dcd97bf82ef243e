// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

const (
	patience   = 5 * time.Second // with others, such as the driver
	nudgeAfter = time.Minute
)

// Forget deletes a content, its VolumeSnapshot and the stored snapshot. waitsFor says in words what it still waits
// for after some seconds; it is empty if the content is deleted. Forget may be repeated at any time, even while
// the driver cuts. See docs/design/snapshots.md#forgetting.
func (c *Client) Forget(ctx context.Context, content string, uid types.UID) (waitsFor string, err error) {
	return c.forget(ctx, content, uid, func(*VolumeSnapshotContent) bool { return true })
}

// forget is Forget, as long as the content is still to be forgotten by its newest version.
func (c *Client) forget(ctx context.Context, content string, uid types.UID, still func(*VolumeSnapshotContent) bool) (waitsFor string, err error) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	f := &forgetting{Client: c}
	pause := time.Duration(0)
	for {
		found, err := get[VolumeSnapshotContent](limited, c.objects.Resource(Contents), content)
		if err == nil && (found == nil || found.UID != uid || !still(found)) {
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
		if !c.pause(limited, &pause, c.lastPause) {
			return waitsOr(waitsFor), nil
		}
	}
}

// Leave has the sweep forget a kept cut when its backup has ended.
func (c *Client) Leave(ctx context.Context, content string) error {
	for pause := time.Duration(0); ; {
		found, err := get[VolumeSnapshotContent](ctx, c.objects.Resource(Contents), content)
		if err == nil && (found == nil || found.Labels[LabelCluster] != c.clusterUID || found.Labels[LabelMoved] != "") {
			return nil
		}
		if err == nil {
			_, err = c.patch(ctx, found, map[string]any{"labels": map[string]string{LabelMoved: "true"}}, nil)
		}
		if err == nil || !passing(err) || !c.pause(ctx, &pause, c.lastPause) {
			return err
		}
	}
}

// LeaveLocal is Leave of the snapshots beside a claim's deleted data, in the backups that isOf reports. It may be
// repeated.
func (c *Client) LeaveLocal(ctx context.Context, namespace, claim string, isOf func(backup types.UID, at Place) bool) error {
	selector := LabelCluster + "=" + c.clusterUID + "," + LabelVolume + "=" + VolumeLabel(namespace, claim) + "," + LabelKeepLocal
	contents, err := list[VolumeSnapshotContent](ctx, c.objects.Resource(Contents), selector)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the snapshots of the claim %s/%s: %w", namespace, claim, err)
	}
	var failures []error
	for i := range contents {
		of := &contents[i]
		if !isOf(types.UID(of.Labels[LabelBackup]), PlaceOf(of.Labels)) {
			continue
		}
		if err := c.Leave(ctx, of.Name); err != nil {
			failures = append(failures, fmt.Errorf("have the VolumeSnapshotContent %s forgotten: %w", of.Name, err))
		}
	}
	return errors.Join(failures...)
}

// Discard begins to forget all snapshots of a backup deleted from its place. A copy elsewhere has none. It waits
// for no driver: the sweep ends it, by the policy Delete, which only this package sets on a held content.
func (c *Client) Discard(ctx context.Context, backup types.UID, isOf func(Place) bool) error {
	contents, err := list[VolumeSnapshotContent](ctx, c.objects.Resource(Contents), LabelCluster+"="+c.clusterUID+","+LabelBackup+"="+string(backup))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the snapshots of the deleted backup: %w", err)
	}
	var failures []error
	for i := range contents {
		if !isOf(PlaceOf(contents[i].Labels)) {
			continue
		}
		waitsFor, err := (&forgetting{Client: c}).step(ctx, &contents[i])
		if err == nil && contents[i].Spec.Policy != Delete {
			var left *VolumeSnapshotContent
			if left, err = get[VolumeSnapshotContent](ctx, c.objects.Resource(Contents), contents[i].Name); left != nil {
				err = errors.New("it waits for " + waitsFor)
			}
		}
		if err != nil && !apierrors.IsNotFound(err) {
			failures = append(failures, fmt.Errorf("forget the VolumeSnapshotContent %s: %w", contents[i].Name, err))
		}
	}
	return errors.Join(failures...)
}

func waitsOr(words string) string {
	if words == "" {
		return "the cluster"
	}
	return words
}

type forgetting struct {
	*Client
	nudged bool
}

func (f *forgetting) step(ctx context.Context, content *VolumeSnapshotContent) (string, error) {
	deleting := content.DeletionTimestamp != nil
	switch {
	case !deleting && !content.protected():
		return "snapshot-controller to protect the VolumeSnapshotContent", nil
	case !deleting && content.Spec.Source.Snapshot != "" && content.Status.Handle == "":
		return "the driver to confirm the stored snapshot", nil // a sidecar without the handle deletes nothing
	}
	if err := f.yield(ctx, content); err != nil {
		return "", err
	}
	in := f.objects.Resource(Snapshots).Namespace(content.Spec.Ref.Namespace)
	snapshot, err := get[VolumeSnapshot](ctx, in, content.Spec.Ref.Name)
	if err != nil {
		return "", err
	}
	if snapshot != nil && snapshot.UID == content.Spec.Ref.UID && snapshot.DeletionTimestamp == nil {
		if err := remove(ctx, in, snapshot.Name, snapshot.UID, ""); err != nil {
			return "", err
		}
	}
	waitsFor := "the driver to delete the stored snapshot"
	if content.beingCreated() {
		waitsFor = "the end of the cut"
	}
	if message := content.message(); message != "" {
		waitsFor += ": " + message
	}
	switch {
	case !deleting:
		err = remove(ctx, f.objects.Resource(Contents), content.Name, content.UID, "")
	case content.held() && !content.protected() && !content.beingCreated() && content.Status.Handle == "":
		others := slices.DeleteFunc(slices.Clone(content.Finalizers), func(finalizer string) bool { return finalizer == Finalizer })
		_, err = f.patch(ctx, content, map[string]any{"finalizers": others}, nil)
	case !f.nudged && time.Since(content.DeletionTimestamp.Time) > nudgeAfter:
		err = f.nudge(ctx, content)
	}
	return waitsFor, err
}

// yield holds a content, and has it delete its stored snapshot. It fails with a conflict if the content has
// changed, and ignores a missing one.
func (c *Client) yield(ctx context.Context, content *VolumeSnapshotContent) error {
	metadata := content.hold()
	if content.Spec.Policy == Delete && content.Annotations[annotationBeingDeleted] != "" && len(metadata) == 0 {
		return nil
	}
	metadata["annotations"] = map[string]string{annotationBeingDeleted: "yes"}
	changed, err := c.patch(ctx, content, metadata, map[string]any{"deletionPolicy": Delete})
	switch {
	case err == nil:
		*content = *changed
	case apierrors.IsNotFound(err):
		return nil
	}
	return err
}

func (f *forgetting) nudge(ctx context.Context, content *VolumeSnapshotContent) error {
	_, err := f.patch(ctx, content, map[string]any{"annotations": map[string]string{AnnotationNudged: time.Now().UTC().Format(time.RFC3339Nano)}}, nil)
	f.nudged = err == nil
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

// Find makes a content for a lost snapshot, unless its backup has one, so that Forget can delete it. It names a
// VolumeSnapshot of the system namespace, where no tenant can create it and so bind the content. Some drivers want
// the class's secret.
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
	for key, value := range c.labels(&Volume{Backup: lost.Backup, Place: Place{StoreName: lost.StoreName, Location: lost.Location}, ClaimUID: lost.Claim}) {
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
			"name": of, "labels": labels, "annotations": annotations, "finalizers": []any{finalizerBound, Finalizer},
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
