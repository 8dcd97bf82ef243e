// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
)

// LabelVolume is on each content that Cut holds. Its value is a VolumeLabel.
const LabelVolume = "engine.holdfast.io/volume"

// VolumeLabel returns a digest of a claim's name. Lists of stored backups have the names of claims, and not
// their uids.
func VolumeLabel(namespace, claim string) string {
	digest := sha256.Sum256([]byte(namespace + "\x00" + claim))
	return hex.EncodeToString(digest[:16])
}

// Records knows which stored snapshots the cluster has a record of. It follows the metadata of the
// VolumeSnapshotContents. It is safe for concurrent use.
type Records struct {
	client metadata.Interface

	mu sync.RWMutex
	// known is true while a watch follows a complete list.
	known    bool
	contents map[string]recordKey // by the content's name
	counts   map[recordKey]int    // of contents
}

var _ cache.TransformingStore = &Records{}

// recordKey is the common part of contents. With doubt, they may be records of the volume or not. Without a
// volume, they may be of any one in the backup.
type recordKey struct {
	cluster, backup, volume string
	beside, doubt           bool
}

// NewRecords returns Records that know nothing before Run.
func NewRecords(client metadata.Interface) *Records {
	return &Records{client: client, contents: map[string]recordKey{}, counts: map[recordKey]int{}}
}

// Run follows the contents until ctx ends. While the API is not served, or the right is missing, it asks
// again at growing intervals.
func (r *Records) Run(ctx context.Context) {
	resource := r.client.Resource(Contents)
	from := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			r.setKnown(false)
			if options.LabelSelector = LabelCluster; options.ResourceVersion == "0" {
				options.ResourceVersion = "" // an old list of a server's cache may lack contents
			}
			return resource.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = LabelCluster
			following, err := resource.Watch(ctx, options)
			r.setKnown(err == nil && (options.SendInitialEvents == nil || !*options.SendInitialEvents))
			if err != nil {
				return nil, err
			}
			return followed{following, r}, nil
		},
	}, r.client)
	cache.NewReflectorWithOptions(from, &metav1.PartialObjectMetadata{}, r, cache.ReflectorOptions{Name: "records of snapshots"}).RunWithContext(ctx)
}

// followed is a watch. The reflector stops it when it has ended.
type followed struct {
	watch.Interface
	records *Records
}

// Stop implements watch.Interface.
func (f followed) Stop() {
	f.Interface.Stop()
	f.records.setKnown(false)
}

func (r *Records) setKnown(known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = known
}

// Has reports whether a cluster has a record of a volume's snapshot in a backup, and whether that is known.
// The snapshot stays beside moved data, or in place of it.
func (r *Records) Has(cluster string, backup types.UID, namespace, claim string, beside bool) (found, known bool) {
	key := recordKey{cluster: cluster, backup: string(backup), volume: VolumeLabel(namespace, claim), beside: beside}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if !r.known {
		return false, false
	}
	if r.counts[key] > 0 {
		return true, true
	}
	key.beside, key.doubt = false, true
	doubt := r.counts[key]
	key.volume = ""
	return false, doubt+r.counts[key] == 0
}

// recordOf returns the key of a content that stays with its backup.
func recordOf(content *metav1.PartialObjectMetadata) (key recordKey, ok bool) {
	labels := content.Labels
	key = recordKey{cluster: labels[LabelCluster], backup: labels[LabelBackup], volume: labels[LabelVolume]}
	if key.volume == "" || !slices.Contains(content.Finalizers, Finalizer) {
		key.doubt = true
	} else {
		key.beside = labels[LabelKeepLocal] != ""
	}
	return key, labels[LabelMoved] == ""
}

// Transformer implements cache.TransformingStore. It drops all that is not used.
func (r *Records) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if of, ok := obj.(*metav1.PartialObjectMetadata); ok {
			trimmed := metav1.ObjectMeta{Name: of.Name, ResourceVersion: of.ResourceVersion}
			for _, label := range []string{LabelCluster, LabelBackup, LabelVolume, LabelMoved, LabelKeepLocal} {
				if value, ok := of.Labels[label]; ok {
					metav1.SetMetaDataLabel(&trimmed, label, value)
				}
			}
			if slices.Contains(of.Finalizers, Finalizer) {
				trimmed.Finalizers = []string{Finalizer}
			}
			of.ObjectMeta = trimmed
		}
		return obj, nil
	}
}

// Add implements cache.ReflectorStore.
func (r *Records) Add(obj any) error { return r.Update(obj) }

// Update implements cache.ReflectorStore.
func (r *Records) Update(obj any) error {
	content, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("a %T is no metadata of a VolumeSnapshotContent", obj)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.setLocked(content)
	return nil
}

func (r *Records) setLocked(content *metav1.PartialObjectMetadata) {
	r.deleteLocked(content.Name)
	if key, ok := recordOf(content); ok {
		r.contents[content.Name] = key
		r.counts[key]++
	}
}

func (r *Records) deleteLocked(name string) {
	key, ok := r.contents[name]
	if !ok {
		return
	}
	delete(r.contents, name)
	if r.counts[key]--; r.counts[key] == 0 {
		delete(r.counts, key)
	}
}

// Delete implements cache.ReflectorStore.
func (r *Records) Delete(obj any) error {
	content, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("a %T is no metadata of a VolumeSnapshotContent", obj)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deleteLocked(content.Name)
	return nil
}

// Replace implements cache.ReflectorStore. All contents are known from then on.
func (r *Records) Replace(list []any, _ string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.contents)
	clear(r.counts)
	for _, obj := range list {
		content, ok := obj.(*metav1.PartialObjectMetadata)
		if !ok {
			return fmt.Errorf("a %T is no metadata of a VolumeSnapshotContent", obj)
		}
		r.setLocked(content)
	}
	r.known = true
	return nil
}

// Resync implements cache.ReflectorStore.
func (r *Records) Resync() error { return nil }
