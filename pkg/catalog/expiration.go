// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"encoding/hex"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// MaxChanges bounds a backup's changes that are read, and the keys kept for a folder.
const MaxChanges = 100

const crowdMark = ".expiration-*"

// Crowd stands for a store name's changes with too many keys, by the sum of all.
func Crowd(storeName string, sum []byte) string {
	return format.BackupsPrefix + storeName + crowdMark + hex.EncodeToString(sum)
}

// IsCrowd reports whether a key is a Crowd.
func IsCrowd(key string) bool { return strings.Contains(key, crowdMark) }

func changed(key string) (storeName string, ok bool) {
	if IsCrowd(key) {
		storeName, _, _ = strings.Cut(strings.TrimPrefix(key, format.BackupsPrefix), crowdMark)
		return storeName, true
	}
	storeName, _, _, ok = format.ParseExpirationKey(key)
	return storeName, ok
}

// ObserveChanges takes the listed keys of expiration changes, or a Crowd, of entries whose names holds
// (nil: all) accepts, after ObserveListing. It returns the store names of backups with new changes.
func (c *Catalog) ObserveChanges(location string, holds func(name string) bool, keys []string) []string {
	byBackup := map[string][]string{}
	for _, key := range keys {
		if storeName, ok := changed(key); ok {
			byBackup[storeName] = append(byBackup[storeName], key)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var read []string
	for storeName, e := range c.locations[location] {
		if holds != nil && !holds(storeName) {
			continue
		}
		e.changesListed = byBackup[storeName]
		if e.backup != nil && e.claims != nil && !slices.Equal(e.changesRead, changesOf(e.changesListed, e.backup.UID)) {
			read = append(read, storeName)
		}
	}
	slices.Sort(read)
	return read
}

// Changes returns a backup's listed keys of expiration changes.
func (c *Catalog) Changes(location, storeName string, backup types.UID) []string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e := c.locations[location][storeName]
	if e == nil {
		return nil
	}
	return changesOf(e.changesListed, backup)
}

// changesOf returns a backup's newest changes, or all Crowds, which may have some.
func changesOf(keys []string, backup types.UID) []string {
	if slices.ContainsFunc(keys, IsCrowd) {
		crowds := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return !IsCrowd(key) })
		slices.Sort(crowds)
		return crowds
	}
	newest := format.NewestFirst(slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
		_, uid, _, _ := format.ParseExpirationKey(key)
		return uid != backup
	}))
	return newest[:min(len(newest), MaxChanges)]
}

// applyChangesLocked applies and returns the newest valid expiration change, or nil. A known key of the
// backup's cluster must have signed it.
func (c *Catalog) applyChangesLocked(e *entry, backup *v1alpha1.Backup) *format.Expiration {
	status := &backup.Status
	status.Expiration, status.Hold, status.ExpirationChanges = e.expiration, nil, 0
	newest := format.Newest(e.changes, func(change *format.Expiration) bool {
		if e.claims.Trust != "" || change.ClusterUID != e.claims.ClusterUID {
			return false
		}
		if change.PublicKey == e.claims.PublicKey {
			return true
		}
		verdict := c.trust.judge(e.location, &v1alpha1.BackupOrigin{ClusterUID: change.ClusterUID, PublicKey: change.PublicKey})
		return verdict.own || len(verdict.grants) > 0
	})
	if newest == nil {
		return nil
	}
	status.Expiration, status.ExpirationChanges = newest.Expiration, newest.Number
	if hold := newest.Hold; hold != nil {
		status.Hold = &v1alpha1.BackupHold{Requester: hold.Requester, Timestamp: hold.Timestamp, Reason: hold.Reason}
	}
	return newest
}
