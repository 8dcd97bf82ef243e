// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manifest is the graph of a backup's objects: identity, owners, references, reason, and
// position of the bytes. It is read without the tarball. The types follow Velero's design
// (design/graph-manifest.md in its repository), which was not built; docs/format.md lists the
// differences. It is sorted by kind, namespace and name, so two are compared in one pass and one item
// is found by three reads.
package manifest

import (
	"cmp"
	"encoding/json"
	"iter"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
)

// ItemAlreadyExists means that an item has this identity.
const ItemAlreadyExists = constantError("the manifest has such an item already")

type constantError string

func (e constantError) Error() string { return string(e) }

// Item is an object of a backup.
type Item struct {
	// APIGroup is empty for the core group; APIVersion is the version alone.
	APIGroup   string `json:"group,omitempty"`
	APIVersion string `json:"version"`
	KindName   string `json:"kind"`
	// Resource is the name in paths, such as deployments.
	Resource string `json:"resource"`
	// Namespace is empty if cluster-scoped.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`

	Labels map[string]string `json:"labels,omitempty"`
	// Annotations omit those with the object's content.
	Annotations map[string]string `json:"annotations,omitempty"`
	OwnerUIDs   []string          `json:"owners,omitempty"`
	// References are objects that it needs or is about, without owning them.
	References []Reference `json:"references,omitempty"`
	// Images are a workload's, but see HasImages.
	Images Images `json:"images,omitempty"`

	// Size in bytes and SHA256 in hexadecimal are of the object's JSON. In an encrypted backup, SHA256
	// is an HMAC with the cluster's key: see package encryption.
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"`
	Place  Place  `json:"place,omitzero"`
	// Reason says why the object was taken, unless the spec selects it.
	Reason string `json:"reason,omitempty"`
	// Original is a JSON merge patch (RFC 7386) from the stored to the original object.
	Original json.RawMessage `json:"original,omitempty"`
	// Unannotated means that annotations were too large.
	Unannotated bool `json:"unannotated,omitempty"`
	// Shortened means that labels, owners, references and images are omitted too, and perhaps the
	// original.
	Shortened bool `json:"shortened,omitempty"`

	Manifest *Manifest `json:"-"`
}

// Place is an object's first copy: a gzip member begins Member bytes into the tarball, and the tar
// header Offset bytes into its content.
type Place struct {
	Member int64 `json:"member"`
	Offset int64 `json:"offset"`
}

// Reference is another object.
type Reference struct {
	APIGroup  string `json:"group,omitempty"`
	KindName  string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// GroupKind returns the kind as in the resource list: apps/v1/Deployment, or v1/Pod in the core group.
func (i *Item) GroupKind() string {
	if i.APIGroup == "" {
		return i.APIVersion + "/" + i.KindName
	}
	return i.APIGroup + "/" + i.APIVersion + "/" + i.KindName
}

// key is NAMESPACE/NAME, etcd's order, in which most items come.
func (i *Item) key() string { return i.Namespace + "/" + i.Name }

// String returns the identity in sets: GROUP/NAMESPACE/VERSION/KIND/NAME.json, perhaps with empty
// parts.
func (i *Item) String() string {
	return strings.Join([]string{i.APIGroup, i.Namespace, i.APIVersion, i.KindName, i.Name}, "/") + ".json"
}

// Compare orders items as in a manifest.
func Compare(a, b *Item) int {
	if a.APIGroup == b.APIGroup && a.APIVersion == b.APIVersion && a.KindName == b.KindName && a.Namespace == b.Namespace {
		return cmp.Compare(a.Name, b.Name) // usual, without making strings
	}
	return cmp.Or(cmp.Compare(a.GroupKind(), b.GroupKind()), cmp.Compare(a.key(), b.key()))
}

// Namespaces are a kind's items by namespace, perhaps "", and name.
type Namespaces map[string]map[string]*Item

// Manifest is a graph in memory.
type Manifest struct {
	Kinds map[string]Namespaces
	// Index has items by uid, if any.
	Index map[string]*Item
	// children are items by their owner's uid.
	children map[string][]*Item
}

// New returns an empty manifest.
func New() *Manifest {
	return &Manifest{Kinds: map[string]Namespaces{}, Index: map[string]*Item{}, children: map[string][]*Item{}}
}

// Add adds an item, or fails with ItemAlreadyExists for its identity or uid.
func (m *Manifest) Add(item *Item) (bool, error) {
	kind := item.GroupKind()
	if m.Kinds[kind][item.Namespace][item.Name] != nil || item.UID != "" && m.Index[item.UID] != nil {
		return false, ItemAlreadyExists
	}
	if m.Kinds[kind] == nil {
		m.Kinds[kind] = Namespaces{}
	}
	if m.Kinds[kind][item.Namespace] == nil {
		m.Kinds[kind][item.Namespace] = map[string]*Item{}
	}
	m.Kinds[kind][item.Namespace][item.Name] = item
	if item.UID != "" {
		m.Index[item.UID] = item
	}
	for _, owner := range sets.New(item.OwnerUIDs...).UnsortedList() {
		m.children[owner] = append(m.children[owner], item)
	}
	item.Manifest = m
	return true, nil
}

// Items yields all items in order.
func (m *Manifest) Items() iter.Seq[*Item] {
	return func(yield func(*Item) bool) {
		for _, kind := range sortedKeys(m.Kinds) {
			var items []*Item
			for _, names := range m.Kinds[kind] {
				for _, item := range names {
					items = append(items, item)
				}
			}
			slices.SortFunc(items, Compare)
			for _, item := range items {
				if !yield(item) {
					return
				}
			}
		}
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// Set returns all items' identities.
func (m *Manifest) Set() sets.Set[string] {
	set := sets.New[string]()
	for item := range m.Items() {
		set.Insert(item.String())
	}
	return set
}

// Owners returns the item's owners in the manifest, in order.
func (i *Item) Owners() []*Item {
	var owners []*Item
	for _, uid := range sets.List(sets.New(i.OwnerUIDs...)) {
		if owner := i.Manifest.Index[uid]; owner != nil {
			owners = append(owners, owner)
		}
	}
	slices.SortFunc(owners, Compare)
	return owners
}

// Children returns the items that this one owns, in order.
func (i *Item) Children() []*Item {
	if i.UID == "" {
		return nil
	}
	return slices.SortedFunc(slices.Values(i.Manifest.children[i.UID]), Compare)
}

// Kind returns the item of the kind's CustomResourceDefinition, or nil.
func (i *Item) Kind() *Item {
	if i.APIGroup == "" {
		return nil
	}
	for kind, namespaces := range i.Manifest.Kinds {
		if strings.HasPrefix(kind, "apiextensions.k8s.io/") && strings.HasSuffix(kind, "/CustomResourceDefinition") {
			if definition := namespaces[""][i.Resource+"."+i.APIGroup]; definition != nil {
				return definition
			}
		}
	}
	return nil
}
