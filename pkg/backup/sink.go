// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

// Progress counts a running backup's objects. It is safe for concurrent use.
type Progress struct {
	found, written atomic.Int64
}

// Objects returns the objects found and written so far. The first is an estimate, which may fall.
func (p *Progress) Objects() v1alpha1.BackupProgress {
	written := p.written.Load()
	return v1alpha1.BackupProgress{TotalItems: max(p.found.Load(), written), ItemsBackedUp: written}
}

// sink writes objects into the tarball and the manifest, each once, and keeps names for the resource
// list. It is safe for concurrent use.
type sink struct {
	log      *logbook
	progress *Progress

	mu       sync.Mutex
	archive  tarball
	manifest graph
	// digest computes objects' digests for the manifest; nil keeps theirs.
	digest func(content []byte) string
	list   format.ResourceList
	// seen are met names of resources that are being read or referred to.
	seen    map[schema.GroupResource]sets.Set[string]
	touched sets.Set[string]
	needs   needs
	// along is nil unless labels choose the objects.
	along  *along
	failed error
}

type tarball interface {
	Add(item archive.Item, content []byte, placed func(archive.Position)) error
	Close() error
}

type graph interface {
	Add(item *manifest.Item) error
}

func newSink(w tarball, items graph, log *logbook, progress *Progress) *sink {
	return &sink{
		log:      log,
		progress: progress,
		archive:  w,
		manifest: items,
		list:     format.ResourceList{},
		seen:     map[schema.GroupResource]sets.Set[string]{},
		touched:  sets.New[string](),
		needs:    newNeeds(),
	}
}

// meet reports whether the caller meets the object first, and must handle it.
func (s *sink) meet(r resource, namespace, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen[r.GroupResource()]
	if seen == nil {
		seen = sets.New[string]()
		s.seen[r.GroupResource()] = seen
	}
	key := itemName(namespace, name)
	if seen.Has(key) {
		return false
	}
	seen.Insert(key)
	return true
}

// forget frees the names of a read resource that nothing refers to.
func (s *sink) forget(r resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.seen, r.GroupResource())
}

type object struct {
	resource
	stored []byte
	item   *manifest.Item
}

func newObject(to []byte, r resource, h *head, raw []byte, reason string) (*object, []byte, error) {
	begin := len(to)
	to, err := appendContent(to, raw, h, r)
	if err != nil {
		return nil, to, err
	}
	stored := to[begin:]
	return &object{r, stored, describe(r, h, stored, reason)}, to, nil
}

// write adds objects side by side, and calls refused for those that can't be in a tarball. An error
// means that the tarball is broken.
func (s *sink) write(objects []*object, refused func(*object, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		switch err := s.writeLocked(o); {
		case errors.Is(err, archive.ErrItem):
			refused(o, err)
		case err != nil:
			return err
		}
	}
	return nil
}

func (s *sink) writeLocked(o *object) error {
	r, namespace, name := o.resource, o.item.Namespace, o.item.Name
	if s.digest != nil {
		o.item.SHA256 = s.digest(o.stored)
	}
	item := archive.Item{Resource: r.GroupResource(), Version: r.Version, Namespace: namespace, Name: name}
	err := s.archive.Add(item, o.stored, func(position archive.Position) {
		o.item.Place = manifest.Place(position)
		if err := s.manifest.Add(o.item); err != nil && s.failed == nil {
			s.failed = fmt.Errorf("describe the backup's objects: %w", err)
		}
	})
	if err != nil {
		return fmt.Errorf("store the backup's objects: %w", err)
	}
	if s.failed != nil {
		return s.failed
	}
	s.needs.note(r, o.item)
	if s.along != nil {
		s.along.note(o.item)
	}
	key := itemName(namespace, name)
	s.list[r.listKey] = append(s.list[r.listKey], key)
	if namespace != "" {
		s.touched.Insert(namespace)
	}
	s.progress.written.Add(1)
	attrs := subject{r.GroupResource(), namespace, name}.attrs()
	if o.item.Reason != itself {
		attrs = append(attrs, slog.String("reason", o.item.Reason))
	}
	s.log.write(slog.LevelInfo, "backed up", attrs...)
	return nil
}

// expect notes the needs of an object that is written last.
func (s *sink) expect(o *object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.needs.note(o.resource, o.item)
	if s.along != nil {
		s.along.note(o.item)
	}
	s.touched.Insert(o.item.Namespace)
}

func (s *sink) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.archive.Close(); err != nil {
		return err
	}
	return s.failed
}

func (s *sink) holds(r resource) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.list[r.listKey]) > 0
}

func (s *sink) touchedNamespaces() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sets.List(s.touched.Difference(s.seen[namespacesResource]))
}

func itemName(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

func describe(r resource, h *head, stored []byte, reason string) *manifest.Item {
	content := format.NewContent(stored)
	references, images := manifest.NeedsOf(schema.GroupKind{Group: r.Group, Kind: r.kind}, h.Metadata.Namespace, stored)
	item := &manifest.Item{
		APIGroup: r.Group, APIVersion: r.Version, KindName: r.kind, Resource: r.Resource,
		Namespace: h.Metadata.Namespace, Name: h.Metadata.Name, UID: string(h.Metadata.UID),
		Labels: h.Metadata.Labels, Annotations: h.Metadata.Annotations, OwnerUIDs: h.Metadata.Owners,
		References: references, Images: images,
		Size: content.Size, SHA256: content.SHA256, Reason: reason, Original: h.original,
	}
	// The annotation has a copy of the object. Other tools have their own, so a Secret keeps none.
	delete(item.Annotations, corev1.LastAppliedConfigAnnotation)
	if r.GroupResource() == secretsResource {
		item.Annotations = nil
	}
	return item
}
