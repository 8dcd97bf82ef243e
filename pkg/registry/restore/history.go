// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Once its record is deleted, an ended restore is shown by its name in the store. That name ends in a digest of
// its uid, so it is unique, and the short name is free again. A stored restore never changes, so it is read once.

const (
	// maxPast bounds a location's shown restores, and maxPastBytes their metadata.
	maxPast      = 10_000
	maxPastBytes = 64 << 20
	// maxPastNames bounds the remembered names of older restores and other objects.
	maxPastNames = 100_000
	// pastReads are read at once, pastsAtOnce before they are shown.
	pastReads   = 16
	pastsAtOnce = 1000
)

type past struct {
	restore *v1alpha1.Restore      // nil if the object is no restore, or older than the shown ones
	claims  *v1alpha1.BackupOrigin // from format.DecodeRestore, or Own if this server has seen the record
	digests map[string]string      // of its other objects, by the last segments of their keys; none in old metadata
	bytes   int64
	missing bool
}

// Judge returns the worth of claims in a location, and whether their object is listed in the named namespace; see
// package catalog.
type Judge func(location string, claims *v1alpha1.BackupOrigin) (origin v1alpha1.BackupOrigin, home bool)

// JudgeAgain moves restores of a namespace, or all if empty, to where they belong by now.
func (p *Publisher) JudgeAgain(namespace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judgeAgainLocked(namespace)
}

func (p *Publisher) judgeAgainLocked(namespace string) {
	for _, of := range p.past {
		for name, e := range of {
			if e.restore != nil && (namespace == "" || e.claims.Namespace == namespace) {
				p.showPastLocked(name)
			}
		}
	}
}

// SetLocations sets all locations, each with its store's identity. Restores of other stores are hidden.
func (p *Publisher) SetLocations(stores map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.stores
	p.stores = maps.Clone(stores)
	for location, of := range p.past {
		if is, ok := stores[location]; ok && is == before[location] {
			continue
		}
		delete(p.past, location)
		for name := range of {
			p.showPastLocked(name)
		}
	}
}

// ReadStore lists the restores in a location's store, one request per thousand, and reads each new one. A location
// that shows no restores has no new ones. A restore is hidden when two successive listings lack it: one may be of
// a folder that is not mounted.
func (p *Publisher) ReadStore(ctx context.Context, location, of string, from store.Reader) error {
	before, err := p.known(location, of)
	if err != nil {
		return err
	}
	listed, err := pastNames(ctx, from)
	if errors.Is(err, store.ErrDenied) {
		klog.FromContext(ctx).Info("The restores of a location can't be listed, and are not shown when their records are gone", "location", location, "reason", store.Reason(err))
		return nil
	}
	if err != nil {
		return err
	}
	var fresh []string
	for name := range listed {
		if before[name] == nil {
			fresh = append(fresh, name)
		}
	}
	slices.Sort(fresh)
	if room := max(0, maxPastNames-len(before)); len(fresh) > room {
		klog.FromContext(ctx).Info("A location has more restores than are looked at when their records are gone", "location", location, "restores", len(listed), "most", maxPastNames)
		fresh = fresh[:room]
	}
	var row atomic.Int32 // readings that the store did not answer
	for names := range slices.Chunk(fresh, pastsAtOnce) {
		found, readErr := readPasts(ctx, from, names, &row)
		err = cmp.Or(err, readErr)
		if err := p.addPast(ctx, location, of, names, found); err != nil {
			return err
		}
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	now, knownErr := p.knownLocked(location, of)
	if knownErr != nil {
		return knownErr
	}
	for name, e := range before {
		if !listed[name] && e.missing {
			delete(now, name)
			p.showPastLocked(name)
		}
		e.missing = !listed[name]
	}
	return err
}

// readPasts reads restores, and fails if pastReads in a row are not answered. Other errors affect only their
// restore, until the next listing.
func readPasts(ctx context.Context, from store.Reader, names []string, row *atomic.Int32) ([]*past, error) {
	found := make([]*past, len(names))
	var group errgroup.Group
	group.SetLimit(pastReads)
	for i, name := range names {
		group.Go(func() (err error) {
			if ctx.Err() != nil || row.Load() >= pastReads {
				return nil
			}
			found[i], err = readPast(ctx, from, name)
			if errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
				row.Add(1)
				return err
			}
			row.Store(0)
			if err != nil && !errors.Is(err, store.ErrNotFound) { // else it is being written
				klog.FromContext(ctx).V(2).Info("A restore can't be read from its store", "restore", name, "reason", store.Reason(err))
			}
			return nil
		})
	}
	return found, group.Wait()
}

func (p *Publisher) addPast(ctx context.Context, location, of string, names []string, found []*past) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	now, err := p.knownLocked(location, of)
	if err != nil {
		return err
	}
	for i, name := range names {
		if found[i] != nil && now[name] == nil {
			now[name] = found[i]
		}
	}
	older := tooOld(now, maxPast, maxPastBytes)
	for _, name := range older {
		now[name] = &past{}
		p.showPastLocked(name)
	}
	if len(older) > 0 {
		klog.FromContext(ctx).Info("A location has more restores than are shown when their records are gone; the oldest are not", "location", location, "older", len(older))
	}
	for _, name := range names {
		p.showPastLocked(name)
	}
	return nil
}

func tooOld(known map[string]*past, most int, mostBytes int64) []string {
	var names []string
	for name, e := range known {
		if e.restore != nil {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(known[b].restore.CreationTimestamp.Compare(known[a].restore.CreationTimestamp.Time), cmp.Compare(a, b))
	})
	bytes := int64(0)
	for i, name := range names {
		if bytes += known[name].bytes; i >= most || bytes > mostBytes {
			return names[i:]
		}
	}
	return nil
}

func (p *Publisher) known(location, of string) (map[string]*past, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, err := p.knownLocked(location, of)
	return maps.Clone(known), err
}

func (p *Publisher) knownLocked(location, of string) (map[string]*past, error) {
	if is, ok := p.stores[location]; !ok || is != of {
		return nil, fmt.Errorf("the storage location %q was changed or removed meanwhile", location)
	}
	if p.past[location] == nil {
		p.past[location] = map[string]*past{}
	}
	return p.past[location], nil
}

func pastNames(ctx context.Context, from store.Reader) (map[string]bool, error) {
	names := map[string]bool{}
	for object, err := range from.List(ctx, format.RestoresPrefix, store.ListOptions{}) {
		if err != nil {
			return nil, err
		}
		if name, ok := format.RestoreStoreNameOf(object.Key); ok && object.IsFolder {
			names[name] = true
		}
	}
	return names, nil
}

// readPast reads a restore. Another object is no error, and is not read again.
func readPast(ctx context.Context, from store.Reader, storeName string) (*past, error) {
	content, err := from.Get(ctx, format.RestoreMetadataKey(storeName))
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }()
	data, err := io.ReadAll(io.LimitReader(content, format.MaxMetadataBytes+1))
	if err != nil {
		return nil, err
	}
	restore, contents, claims, err := format.DecodeRestore(data)
	if err == nil && !restore.Status.Phase.Ended() {
		err = fmt.Errorf("it has the phase %q", restore.Status.Phase)
	}
	if err == nil && !format.IsRestoreStoreName(storeName, restore) {
		err = fmt.Errorf("it is of the restore %s/%s with the uid %q", restore.Namespace, restore.Name, restore.UID)
	}
	if err != nil {
		klog.FromContext(ctx).Info("What lies in a store as a restore is none", "restore", storeName, "reason", err.Error())
		return &past{}, nil
	}
	digests := make(map[string]string, len(contents))
	for name, content := range contents {
		digests[name] = content.SHA256
	}
	return &past{restore: restore, claims: claims, digests: digests, bytes: int64(len(data))}, nil
}

// rememberLocked shows a restore with a deleted record as its store has it.
func (p *Publisher) rememberLocked(run *enginev1alpha1.RestoreRun) {
	location := run.Spec.Backup.StorageLocation
	ref := run.Spec.RestoreRef
	name := format.RestoreStoreName(ref.Namespace, ref.Name, p.systemNamespace, run.UID)
	if of := p.past[location]; of != nil && run.Status.Stored && run.Status.Phase.Ended() && of[name] == nil {
		of[name] = &past{restore: run.AsRestore(), digests: run.Status.Digests, claims: &v1alpha1.BackupOrigin{
			Trust: v1alpha1.BackupTrustOwn, Namespace: ref.Namespace, NamespaceUID: run.Spec.NamespaceUID, Name: ref.Name,
		}}
	}
	p.showPastLocked(name)
}

// showPastLocked shows a stored restore only where it belongs. A record takes precedence, then the first location
// by name.
func (p *Publisher) showPastLocked(storeName string) {
	shown := map[types.NamespacedName]bool{}
	for _, location := range slices.Sorted(maps.Keys(p.past)) {
		e := p.past[location][storeName]
		if e == nil || e.restore == nil || p.judge == nil || p.records.Get(e.restore.UID) != nil {
			continue
		}
		restore := p.pastOf(location, storeName, e)
		if at := (types.NamespacedName{Namespace: restore.Namespace, Name: restore.Name}); !shown[at] {
			shown[at] = true
			if _, err := p.Log.Apply(restore); err != nil {
				utilruntime.HandleError(err)
			}
		}
	}
	for at := range p.shownPast[storeName] {
		if !shown[at] {
			p.Log.Remove(at.Namespace, at.Name)
		}
	}
	if p.shownPast[storeName] = shown; len(shown) == 0 {
		delete(p.shownPast, storeName)
	}
}

func (p *Publisher) pastOf(location, storeName string, e *past) *v1alpha1.Restore {
	from := e.restore
	origin, home := *e.claims, false
	if origin.Trust == v1alpha1.BackupTrustOwn {
		present, exists := p.namespaces[origin.Namespace]
		home = !exists || p.sameNamespaceLocked(origin.Namespace, origin.NamespaceUID, present)
	} else {
		origin, home = p.judge(location, e.claims)
	}
	origin.ClaimedRequester = from.Status.Requester
	at := types.NamespacedName{Namespace: p.systemNamespace, Name: storeName}
	if name, ok := strings.CutPrefix(storeName, from.Namespace+"."); ok && home && from.Namespace != p.systemNamespace && name != "" {
		at = types.NamespacedName{Namespace: from.Namespace, Name: name}
	}
	restore := &v1alpha1.Restore{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: at.Namespace, Name: at.Name, UID: from.UID, CreationTimestamp: from.CreationTimestamp,
			Labels: maps.Clone(from.Labels), Annotations: maps.Clone(from.Annotations),
		},
		Spec:   *from.Spec.DeepCopy(),
		Status: *from.Status.DeepCopy(),
	}
	status := &restore.Status
	status.QueuePosition, status.Origin = 0, &origin
	if origin.Trust != v1alpha1.BackupTrustOwn && origin.Trust != v1alpha1.BackupTrustTrusted {
		status.Requester = ""
	}
	if status.Backup == nil {
		status.Backup = &v1alpha1.RestoredBackup{}
	}
	status.Backup.StorageLocation = location // as it is named here
	status.Conditions = endConditions(restore)
	return restore
}

// Digest returns the SHA-256 of an ended restore's object by its key, or "" if it has none.
func (p *Publisher) Digest(restore *v1alpha1.Restore, key string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if run := p.records.Get(restore.UID); run != nil && run.Status.Digests != nil {
		return run.Status.Digests[path.Base(key)]
	}
	if e := p.past[storageLocation(restore)][storeNameOf(restore, p.systemNamespace)]; e != nil {
		return e.digests[path.Base(key)]
	}
	return ""
}

func storeNameOf(restore *v1alpha1.Restore, systemNamespace string) string {
	if restore.Status.Origin != nil { // shown by that name
		return format.StoreName(restore.Namespace, restore.Name, systemNamespace)
	}
	return format.RestoreStoreName(restore.Namespace, restore.Name, systemNamespace, restore.UID)
}
