// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"context"
	"fmt"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Stored returns where a shown backup is stored, and the digests of its files if its metadata is read. It is false
// if the backup is not stored or not shown any more.
func (p *Projector) Stored(backup *v1alpha1.Backup) (location, storeName string, digests catalog.Digests, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := nameOf(backup)
	stored, location, storeName, digests := p.stores.catalog.Find(key.Namespace, key.Name)
	if stored != nil && stored.UID == backup.UID {
		return location, storeName, digests, true
	}
	for _, run := range []*enginev1alpha1.BackupRun{p.runs.byBackup.Get(key), p.runs.unread[key].run} {
		if run != nil && run.Status.Stored && run.AsBackup().UID == backup.UID {
			return run.Spec.Backup.StorageLocation, run.Name, catalog.Digests{}, true
		}
	}
	return "", "", catalog.Digests{}, false
}

// Use returns the open store of a location. The caller calls done.
func (p *Projector) Use(ctx context.Context, location string) (from store.Ranger, done func(), err error) {
	opened, done, err := p.stores.refresher.Use(ctx, location)
	if err != nil {
		return nil, nil, err
	}
	from, ok := opened.(store.Ranger)
	if !ok {
		done()
		return nil, nil, fmt.Errorf("the store of the location %q can't be read in parts", location)
	}
	return from, done, nil
}

// MayKnow reports whether the requester may learn a store's errors.
func (p *Projector) MayKnow(ctx context.Context) bool { return p.stores.mayListAll(ctx, "backups") }
