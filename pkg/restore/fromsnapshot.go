// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
)

// A backup may keep a claim's data as a snapshot in the storage of its volume. A new claim is made
// from it: a VolumeSnapshot in its namespace is its source until it is bound. Moved data, if any,
// is used when the snapshot can't be.

// StoredSnapshots offers stored snapshots as sources of new claims. It is a snapshots.Client,
// except in tests.
type StoredSnapshots interface {
	Locate(ctx context.Context, w snapshots.Wanted) (snapshots.Found, error)
	Offer(ctx context.Context, w snapshots.Wanted, found snapshots.Found) (snapshot string, err error)
	Confirm(ctx context.Context, w snapshots.Wanted) (size int64, err error)
	Withdraw(ctx context.Context, w snapshots.Wanted) (gone bool, err error)
}

const onlyNew = "its data is a snapshot in the storage of its volume, from which only a new claim is made"

// inStorage reports whether an object is a claim whose data is only a snapshot in its volume's
// storage.
func (e *execution) inStorage(item *manifest.Item) bool {
	volume := e.volumeOf(item)
	return e.hasData(item) && volume.Problem == "" && volume.InStorage()
}

// hasLocal reports whether an object is a claim with moved data and a snapshot that stays, unless
// the restore asks for the moved data.
func (e *execution) hasLocal(item *manifest.Item) bool {
	volume := e.volumeOf(item)
	return e.hasData(item) && volume.Problem == "" && volume.Snapshot != nil && volume.Snapshot.Cut != nil && !volume.Snapshot.Kept &&
		e.request.Run.Spec.Annotations[v1alpha1.AnnotationRestoreFrom] != v1alpha1.RestoreFromMoved
}

// noteSource notes that a claim of this restore, maybe of an earlier process, is made from the
// snapshot beside its moved data.
func (e *execution) noteSource(item *manifest.Item, about subject, claim *unstructured.Unstructured) {
	if !e.hasLocal(item) {
		return
	}
	wanted := e.wanted(item, about)
	if name, _, _ := unstructured.NestedString(claim.Object, "spec", "dataSource", "name"); name == wanted.OfferName() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.fromLocal[item] = true
	}
}

func (e *execution) isFromLocal(item *manifest.Item) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fromLocal[item]
}

func (e *execution) wanted(item *manifest.Item, about subject) snapshots.Wanted {
	of := e.volumeOf(item).Snapshot
	return snapshots.Wanted{
		Handle: of.Cut.Handle, Driver: of.Driver, Size: of.Cut.Size, Backup: e.Backup.Metadata.UID, Origin: item.Namespace, ClaimUID: types.UID(item.UID),
		Restore: e.request.Run.UID, Namespace: about.namespace, Claim: about.name,
	}
}

func (e *execution) locate(ctx context.Context, item *manifest.Item, about subject, desired *unstructured.Unstructured) (found snapshots.Found, err error) {
	switch {
	case e.Snapshots == nil:
		return found, errors.New("its data is a snapshot in the storage of its volume, and this controller uses none: start it with --snapshots")
	case len(e.spec.Paths) > 0:
		return found, errors.New("its data is a snapshot in the storage of its volume, and only the whole is restored: leave out paths")
	case item.UID == "":
		return found, errors.New("its data is a snapshot in the storage of its volume, and the backup does not have the uid of the claim: restore it with the backup's manifest")
	}
	found, err = e.Snapshots.Locate(ctx, e.wanted(item, about))
	switch {
	case err != nil && e.hasLocal(item):
		return found, err
	case errors.Is(err, snapshots.ErrNoRecord):
		return found, fmt.Errorf("its data is a snapshot in the storage of its volume: %w; an administrator may restore it by its handle (docs/snapshots.md#snapshots-without-a-record), else choose a backup that has moved the data", err)
	case err != nil:
		return found, fmt.Errorf("its data is a snapshot in the storage of its volume: %w", err)
	case found.ByHandle && e.hasLocal(item): // the moved data needs no trust
		return found, snapshots.ErrNoRecord
	}
	if found.ByHandle {
		if found.Mode, err = e.modeOf(ctx, item); err != nil {
			return found, err
		}
	}
	mode, _, _ := unstructured.NestedString(desired.Object, "spec", "volumeMode")
	if of := cmp.Or(mode, string(corev1.PersistentVolumeFilesystem)); found.Mode != "" && of != found.Mode {
		return found, fmt.Errorf("its data is a snapshot of a volume of the mode %s, and the claim has the mode %s: leave its mode as it was", found.Mode, of)
	}
	name, named, _ := unstructured.NestedString(desired.Object, "spec", "storageClassName")
	switch {
	case !named: // the cluster gives it its default one
		defaults, err := e.defaultsOf(ctx, classKind)
		if err != nil {
			return found, err
		}
		if len(defaults) == 0 {
			return found, fmt.Errorf("its data is a snapshot of the driver %s, it names no StorageClass, and the cluster has no default one: make one of the driver the default", found.Driver)
		}
		name = defaults[0].GetName()
	case name == "":
		return found, fmt.Errorf("its data is a snapshot of the driver %s, and its StorageClass is empty: name one of the driver by a resource modifier", found.Driver)
	}
	driver := ""
	err = e.pages(ctx, classKind, "", "metadata.name="+name, func(raw json.RawMessage) error { // get is another right
		var class storagev1.StorageClass
		err := json.Unmarshal(raw, &class)
		if class.Name == name {
			driver = class.Provisioner
		}
		return err
	})
	if err != nil {
		return found, fmt.Errorf("read the StorageClass %s: %w", name, err)
	}
	if driver == "" {
		driver = e.plannedClass(name)
	}
	if driver == "" {
		return found, fmt.Errorf("its data is a snapshot of the driver %s, and there is no StorageClass %s: create it, or map it to one of the driver by storageClassMapping", found.Driver, name)
	}
	if driver != found.Driver {
		return found, fmt.Errorf("its data is a snapshot of the driver %s, and the StorageClass %s is of %s: map it to one of the driver by storageClassMapping", found.Driver, name, driver)
	}
	return found, nil
}

func (e *execution) modeOf(ctx context.Context, item *manifest.Item) (string, error) {
	content, err := e.Backup.Object(ctx, item)
	if err != nil {
		return "", fmt.Errorf("read which mode it had: %w", err)
	}
	mode, _, err := unstructured.NestedString(content.Object, "spec", "volumeMode")
	return cmp.Or(mode, string(corev1.PersistentVolumeFilesystem)), err
}

func from(found snapshots.Found) string {
	text := fmt.Sprintf("its data is the snapshot %s of the driver %s", found.Handle, found.Driver)
	if found.ByHandle {
		text += ", which only the backup names: the cluster has no VolumeSnapshotContent of it"
	}
	return text
}

// noteClass notes the driver of a StorageClass that a plan creates.
func (e *execution) noteClass(item *manifest.Item, desired *unstructured.Unstructured) {
	if item.APIGroup != classKind.group || item.KindName != classKind.kind {
		return
	}
	driver, _, _ := unstructured.NestedString(desired.Object, "provisioner")
	e.mu.Lock()
	defer e.mu.Unlock()
	e.classes[desired.GetName()] = driver
}

func (e *execution) plannedClass(name string) (driver string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.classes[name]
}

func (e *execution) planSnapshot(ctx context.Context, item *manifest.Item, about subject, desired *unstructured.Unstructured) (string, error) {
	local := e.hasLocal(item)
	if !local && !e.inStorage(item) {
		return "", nil
	}
	found, err := e.locate(ctx, item, about, desired)
	switch {
	case err != nil && local && ctx.Err() == nil:
		return insteadOf(err), nil
	case err != nil:
		return "", err
	}
	return from(found), nil
}

func insteadOf(why error) string {
	return "its data is read from the storage location, and not from its snapshot: " + why.Error()
}

// fromSnapshot returns a claim with its snapshot as its source. It returns other objects, and a
// claim with moved data if that fails, unchanged.
func (e *execution) fromSnapshot(ctx context.Context, item *manifest.Item, about subject, desired *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	local := e.hasLocal(item)
	if !local && !e.inStorage(item) {
		return desired, nil
	}
	claim, err := e.withSource(ctx, item, about, desired)
	if err != nil && local && ctx.Err() == nil {
		e.report.info(about, insteadOf(err))
		return desired, nil
	}
	return claim, err
}

func (e *execution) withSource(ctx context.Context, item *manifest.Item, about subject, desired *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	found, err := e.locate(ctx, item, about, desired)
	if err != nil {
		return nil, err
	}
	source, err := e.Snapshots.Offer(ctx, e.wanted(item, about), found)
	if err != nil {
		return nil, err
	}
	if found.ByHandle {
		size, err := e.Snapshots.Confirm(ctx, e.wanted(item, about))
		if err != nil {
			e.withdraw(ctx, item, about)
			return nil, fmt.Errorf("the driver %s does not confirm the snapshot %s, which only the backup names: %w", found.Driver, found.Handle, err)
		}
		found.Size = max(found.Size, size)
	}
	e.report.info(about, from(found))
	claim := desired.DeepCopy()
	unstructured.RemoveNestedField(claim.Object, "spec", "dataSourceRef")
	unstructured.RemoveNestedField(claim.Object, "spec", "selector")
	unstructured.RemoveNestedField(claim.Object, "spec", "volumeName")
	size, _, _ := unstructured.NestedString(claim.Object, "spec", "resources", "requests", "storage")
	if asked, err := resource.ParseQuantity(size); err != nil || asked.Value() < found.Size {
		size = resource.NewQuantity(found.Size, resource.BinarySI).String()
	}
	return claim, errors.Join(
		unstructured.SetNestedField(claim.Object, size, "spec", "resources", "requests", "storage"),
		unstructured.SetNestedMap(claim.Object, map[string]any{"apiGroup": snapshots.Version.Group, "kind": "VolumeSnapshot", "name": source}, "spec", "dataSource"))
}

// withdraw deletes the source of a bound claim. The sweep repeats that after the restore.
func (e *execution) withdraw(ctx context.Context, item *manifest.Item, about subject) {
	for range attempts {
		gone, err := e.Snapshots.Withdraw(ctx, e.wanted(item, about))
		if err != nil {
			klog.FromContext(ctx).Info("Deleting the source of a claim failed; the sweep of snapshots does it later", "claim", klog.KRef(about.namespace, about.name), "err", err)
		}
		if gone || err != nil || sleep(ctx, pollInterval) != nil {
			return
		}
	}
}
