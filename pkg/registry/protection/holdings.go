// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package protection

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/stored"
)

// id is a UUID, or the digest of another uid.
type id [16]byte

func idOf(uid string) (made id) {
	if plain := strings.ReplaceAll(uid, "-", ""); len(plain) == 2*len(made) && len(uid) == 36 {
		if _, err := hex.Decode(made[:], []byte(plain)); err == nil {
			return made
		}
	}
	sum := sha256.Sum256([]byte(uid))
	copy(made[:], sum[:])
	return made
}

func compareIDs(a, b id) int { return bytes.Compare(a[:], b[:]) }

const (
	readers                   = 2               // manifests at once
	readTimeout               = 5 * time.Minute // of a manifest
	retryPause, maxRetryPause = 5 * time.Second, 5 * time.Minute
)

// Stores gives access to stored backups.
type Stores interface {
	// Stored returns where a backup is stored, and the digests of its files, or false.
	Stored(backup *v1alpha1.Backup) (location, storeName string, digests catalog.Digests, ok bool)
	// Use returns the open store of a location. The caller calls done.
	Use(ctx context.Context, location string) (from store.Ranger, done func(), err error)
}

// holding is the knowledge of a backup's manifest.
type holding struct {
	known    bool // ids are the sorted uids of its workloads and claims
	ids      []id
	queued   bool // or being read
	failures int  // the next attempt is due at retryAt
	retryAt  time.Time
}

// holdings has the uids in the manifests of backups: 16 bytes for each. A manifest is read once, in full, and
// compared with the signed digest.
type holdings struct {
	stores  Stores
	clock   clock.PassiveClock
	changed func() // called when a manifest was read, or could not be
	queue   chan *backup

	mu sync.Mutex
	of map[types.UID]*holding // by the backups' uids; guarded by mu
}

func newHoldings(stores Stores, clock clock.PassiveClock, changed func()) *holdings {
	return &holdings{stores: stores, clock: clock, changed: changed, queue: make(chan *backup, 1024), of: map[types.UID]*holding{}}
}

// answer says whether a backup holds an object.
type answer int

const (
	unread answer = iota
	failed        // unread after an attempt
	holds
	lacks
)

func (h *holdings) ask(b *backup, of id) answer {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := h.of[b.uid]
	switch {
	case found == nil, !found.known && found.failures == 0:
		return unread
	case !found.known:
		return failed
	}
	if _, ok := slices.BinarySearchFunc(found.ids, of, compareIDs); ok {
		return holds
	}
	return lacks
}

// want has unknown manifests read, if there is room, and forgets unused ones.
func (h *holdings) want(wanted []*backup, used map[types.UID]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.clock.Now()
	for uid, found := range h.of {
		if !used[uid] && !found.queued {
			delete(h.of, uid)
		}
	}
	for _, b := range wanted {
		found := h.of[b.uid]
		if found == nil {
			found = &holding{}
			h.of[b.uid] = found
		}
		if found.known || found.queued || now.Before(found.retryAt) {
			continue
		}
		select {
		case h.queue <- b:
			found.queued = true
		default: // a later call wants it again
			return
		}
	}
}

func (h *holdings) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for range readers {
		running.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case b := <-h.queue:
					h.read(ctx, b)
				}
			}
		})
	}
}

func (h *holdings) read(ctx context.Context, b *backup) {
	ids, err := h.manifest(ctx, b)
	if ctx.Err() != nil {
		return
	}
	h.mu.Lock()
	found := h.of[b.uid]
	found.queued = false
	switch {
	case err == nil, errors.Is(err, stored.ErrManifest), errors.Is(err, manifest.ErrFormat):
		// A manifest with another digest proves nothing.
		found.known, found.ids = true, ids
	default:
		found.retryAt = h.clock.Now().Add(min(retryPause<<min(found.failures, 10), maxRetryPause))
		found.failures++
	}
	h.mu.Unlock()
	h.changed()
}

var errNoDigest = errors.New("the digest of its manifest is not known yet")

// manifest returns the uids of the workloads and claims in a backup.
func (h *holdings) manifest(ctx context.Context, b *backup) ([]id, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	location, storeName, digests, ok := h.stores.Stored(b.reference())
	if !ok || digests.Manifest == "" {
		return nil, errNoDigest
	}
	from, done, err := h.stores.Use(ctx, location)
	if err != nil {
		return nil, err
	}
	defer done()
	var ids []id
	for item, err := range (stored.Backup{Store: from, StoreName: storeName, ManifestDigest: digests.Manifest}).Items(ctx) {
		if err != nil {
			return nil, fmt.Errorf("reading the manifest of the backup %s: %w", b.NamespacedName, err)
		}
		if of := kindOf(item); of != nil && item.UID != "" && (!of.bare || len(item.OwnerUIDs) == 0) {
			ids = append(ids, idOf(item.UID))
		}
	}
	slices.SortFunc(ids, compareIDs)
	return slices.Clip(ids), nil
}

func kindOf(item *manifest.Item) *kind {
	for _, of := range kinds {
		if item.KindName == of.name && item.APIGroup == of.resource.Group {
			return of
		}
	}
	return nil
}
