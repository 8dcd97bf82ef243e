// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// Adopt makes contents for lost snapshots, to be discarded with their backup. It fails if another object of the
// cluster names one, or its driver has not answered. It skips one that its driver does not know. It may be
// repeated.
func (c *Client) Adopt(ctx context.Context, lost []Lost) error {
	if len(lost) == 0 {
		return nil
	}
	contents, err := list[VolumeSnapshotContent](ctx, c.objects.Resource(Contents), "")
	if err != nil {
		return fmt.Errorf("look for records of the backup's snapshots: %w", err)
	}
	classes, err := c.Classes(ctx)
	if err != nil {
		return fmt.Errorf("read the cluster's VolumeSnapshotClasses: %w", err)
	}
	named := map[[2]string]*VolumeSnapshotContent{}
	for i := range contents {
		of := &contents[i]
		if handle := cmp.Or(of.Status.Handle, of.Spec.Source.Snapshot); of.Labels[LabelBackup] == "" || of.Labels[LabelBackup] != string(lost[0].Backup) {
			named[[2]string{of.Spec.Driver, handle}] = of
		}
	}
	for _, l := range lost {
		if of := named[[2]string{l.Driver, l.Handle}]; of != nil {
			return fmt.Errorf("the snapshot %s of the driver %s is also in use by the VolumeSnapshotContent %s, which is not the backup's: delete that first", l.Handle, l.Driver, of.Name)
		}
	}
	var failures []error
	for _, l := range lost {
		l.Class, _ = Class(l.Driver, Wishes{}, classes)
		name, uid, err := c.Find(ctx, l)
		if err == nil {
			err = c.confirmed(ctx, name, uid)
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("the snapshot %s of the driver %s: %w", l.Handle, l.Driver, err))
		}
	}
	return errors.Join(failures...)
}

// confirmed waits some seconds for the driver's word on the snapshot of a content.
func (c *Client) confirmed(ctx context.Context, name string, uid types.UID) error {
	for pause, begun := time.Duration(0), time.Now(); ; {
		content, err := get[VolumeSnapshotContent](ctx, c.objects.Resource(Contents), name)
		switch {
		case err != nil:
			return err
		case content == nil || content.UID != uid:
			return nil
		case content.Status.Handle != "":
			return nil
		case isUnknown(content.message()):
			if err := c.drop(ctx, content); err != nil && !apierrors.IsConflict(err) {
				return err
			}
		case time.Since(begun) > patience:
			return errors.New(cmp.Or(content.message(), "its driver has not confirmed it: is its csi-snapshotter running?"))
		}
		if !c.pause(ctx, &pause, c.lastPause) {
			return context.Cause(ctx)
		}
	}
}

// isUnknown reports whether a driver has answered that it has no such snapshot. The second text is
// csi-snapshotter's.
func isUnknown(message string) bool {
	return strings.Contains(message, "code = NotFound") || strings.Contains(message, "can not find snapshot")
}

// drop deletes a content that Find has made for a missing snapshot. Without a confirmed handle, nothing else is
// deleted.
func (c *Client) drop(ctx context.Context, content *VolumeSnapshotContent) error {
	if content.DeletionTimestamp == nil {
		return remove(ctx, c.objects.Resource(Contents), content.Name, content.UID, content.ResourceVersion)
	}
	_, err := c.patch(ctx, content, map[string]any{"finalizers": []string{}}, nil)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
