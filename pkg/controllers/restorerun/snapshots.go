// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorerun

import (
	"context"
	"errors"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/restore"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
)

// snapshotsOf returns the stored snapshots that a restore may use, or nil. A tenant's restore uses
// those that the cluster has a record of. An administrator's may also use those that only the backup
// names, if its names are believed.
func (e *Executor) snapshotsOf(run *enginev1alpha1.RestoreRun, backup *source.Backup) (restore.StoredSnapshots, error) {
	if e.Snapshots == nil {
		return nil, nil
	}
	origin := backup.Metadata.Status.Origin
	if run.Spec.RestoreRef.Namespace == e.Namespace {
		record, err := e.location(run)
		if err != nil {
			return nil, err
		}
		if location.TrustsHandles(record, origin, e.Cluster.UID, e.Keys, backup.ListsSealed) {
			return snapshotsByHandle{e.Snapshots}, nil
		}
	}
	if e.own(origin) {
		return e.Snapshots, nil
	}
	return snapshotsOfOthers{}, nil
}

type snapshotsByHandle struct{ restore.StoredSnapshots }

// Locate implements restore.StoredSnapshots.
func (s snapshotsByHandle) Locate(ctx context.Context, w snapshots.Wanted) (snapshots.Found, error) {
	w.ByHandle = true
	return s.StoredSnapshots.Locate(ctx, w)
}

// snapshotsOfOthers are of backups that this cluster has not signed: it has no record of them, and
// their uids and handles may be anyone's.
type snapshotsOfOthers struct{ restore.StoredSnapshots }

// Locate implements restore.StoredSnapshots.
func (snapshotsOfOthers) Locate(context.Context, snapshots.Wanted) (snapshots.Found, error) {
	return snapshots.Found{}, errors.New("the backup is not this cluster's own: restore it there, or, if the storage is the same, set spec.trustSnapshotHandles of the storage location, " +
		"or trust the backup's cluster there with all namespaces, and have an administrator restore it")
}
