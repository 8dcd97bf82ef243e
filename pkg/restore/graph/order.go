// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-io/holdfast/pkg/manifest"
)

// Order orders items. others are the remaining items of the backup: a claim's users may be known
// only by pods that controllers make. hasData reports whether a claim's data is restored.
func Order(items, others []*manifest.Item, hasData func(*manifest.Item) bool) *Graph {
	if !slices.ContainsFunc(items, hasData) {
		others = nil // keeps single objects of large backups fast
	}
	b := newBuilder(items, others, hasData)
	for i := range items {
		b.place(int32(i))
	}
	for _, item := range others {
		b.users(item, -1)
	}
	b.suspects()
	b.join()
	return b.finish()
}

const (
	rbacGroup       = "rbac.authorization.k8s.io"
	admissionGroup  = "admissionregistration.k8s.io"
	extensionsGroup = "apiextensions.k8s.io"
	aggregatorGroup = "apiregistration.k8s.io"
	flowGroup       = "flowcontrol.apiserver.k8s.io"
	snapshotGroup   = "snapshot.storage.k8s.io"
)

type builder struct {
	items   []*manifest.Item
	others  []*manifest.Item
	hasData func(*manifest.Item) bool

	nodes []Node
	edges []edge

	// byName has restored items in any version, byUID all items.
	byName map[manifest.Reference]int32
	byUID  map[string]place
	finals bool

	joints   map[joint]int32
	services map[int32]int32 // nodes that wait for ready Services
	served   map[schema.GroupKind]int32
	apis     map[schema.GroupVersion]int32
}

type edge struct {
	before, after int32
	strength      Strength
}

// place is an item and its node; -1 if it is not restored.
type place struct {
	item *manifest.Item
	node int32
}

// joint is a rule's node, without an object.
type joint struct {
	of        string
	namespace string
}

// The joints, per namespace or for the cluster.
const (
	accounts   = "accounts"
	foundation = "foundation" // all that workloads rely on
	workloads  = "workloads"
	classes    = "classes" // storage classes and the like
	contents   = "contents"
	levels     = "levels"
	data       = "data"
	last       = "last" // all but the final objects
)

func newBuilder(items, others []*manifest.Item, hasData func(*manifest.Item) bool) *builder {
	b := &builder{
		items: items, others: others, hasData: hasData,
		nodes: make([]Node, len(items)), byName: make(map[manifest.Reference]int32, len(items)),
		byUID: make(map[string]place, len(items)+len(others)), joints: map[joint]int32{},
		services: map[int32]int32{}, served: map[schema.GroupKind]int32{}, apis: map[schema.GroupVersion]int32{},
	}
	for _, item := range others {
		if item.UID != "" {
			b.byUID[item.UID] = place{item, -1}
		}
	}
	for i, item := range items {
		b.nodes[i].Item = item
		b.finals = b.finals || sortOf(item) == final
		b.byName[manifest.Reference{APIGroup: item.APIGroup, KindName: item.KindName, Namespace: item.Namespace, Name: item.Name}] = int32(i)
		if item.UID != "" {
			b.byUID[item.UID] = place{item, int32(i)}
		}
	}
	return b
}

func (b *builder) add(before, after int32, strength Strength) {
	if before >= 0 && after >= 0 && before != after {
		b.edges = append(b.edges, edge{before, after, strength})
	}
}

func (b *builder) joint(of, namespace string) int32 {
	at := joint{of, namespace}
	node, ok := b.joints[at]
	if !ok {
		node = b.node(Node{})
		b.joints[at] = node
	}
	return node
}

func (b *builder) node(n Node) int32 {
	b.nodes = append(b.nodes, n)
	return int32(len(b.nodes) - 1)
}

func (b *builder) find(group, kind, namespace, name string) int32 {
	if node, ok := b.byName[manifest.Reference{APIGroup: group, KindName: kind, Namespace: namespace, Name: name}]; ok {
		return node
	}
	return -1
}

func (b *builder) place(node int32) {
	item := b.items[node]
	s := sortOf(item)
	owned := b.owners(node)
	if item.Namespace != "" {
		b.add(b.find("", "Namespace", "", item.Namespace), node, Needs)
	}
	b.references(node)
	b.users(item, node)
	switch s {
	case account:
		b.feeds(node, accounts, item.Namespace, owned)
		b.feeds(node, foundation, item.Namespace, owned)
	case secret:
		// The token of a missing account is deleted.
		b.add(b.joint(accounts, item.Namespace), node, Rule)
		b.feeds(node, foundation, item.Namespace, owned)
	case base:
		b.feeds(node, foundation, item.Namespace, owned)
	case class:
		b.feeds(node, classes, "", owned)
	case workload, ordinary:
		if item.Namespace != "" {
			b.add(b.joint(foundation, item.Namespace), node, Rule)
		} else if !builtIn(item.APIGroup) {
			b.add(b.joint(classes, ""), node, Rule)
		}
		if s == workload {
			b.feeds(node, workloads, item.Namespace, owned)
		}
	}
	b.kind(node)
	if gate := b.gate(item); gate >= 0 {
		b.add(gate, node, Needs)
	}
}

// feeds puts an item before a joint, unless another object owns it: the owner may come after the
// joint.
func (b *builder) feeds(node int32, of, namespace string, owned bool) {
	if !owned {
		b.add(node, b.joint(of, namespace), Rule)
	}
}

func (b *builder) owners(node int32) bool {
	owned := false
	for _, uid := range b.items[node].OwnerUIDs {
		owner, ok := b.byUID[uid]
		if !ok || owner.node < 0 || owner.node == node {
			continue
		}
		owned = true
		if b.items[node].KindName == "ControllerRevision" && b.items[node].APIGroup == "apps" {
			// Controllers adopt existing revisions, and make new ones otherwise. So revisions come
			// first, without owner.
			b.add(node, owner.node, Data)
		}
		b.add(owner.node, node, Owns)
	}
	return owned
}

func (b *builder) references(node int32) {
	item := b.items[node]
	for _, r := range item.References {
		target, ok := b.byName[r]
		if !ok {
			continue
		}
		switch {
		case item.APIGroup == "" && item.KindName == "PersistentVolume" && r.KindName == "PersistentVolumeClaim":
			// The claim refers to the volume, and comes after it.
		case item.APIGroup == "" && item.KindName == "ServiceAccount" && r.KindName == "Secret":
			// Secrets come after accounts, because of tokens.
		case item.APIGroup == extensionsGroup:
			// The objects need the converting service, not the definition.
		case r.KindName == "PersistentVolumeClaim" && r.APIGroup == "" && b.hasData(b.items[target]):
		default:
			b.add(target, node, Refers)
		}
	}
	if item.APIGroup == rbacGroup && item.KindName == "ClusterRoleBinding" {
		// Operators have their rights when they start.
		for _, r := range item.References {
			if r.KindName == "ServiceAccount" && len(item.OwnerUIDs) == 0 {
				b.add(node, b.joint(foundation, r.Namespace), Rule)
			}
		}
	}
}

const maxDepth = 16

func (b *builder) users(item *manifest.Item, node int32) {
	for _, r := range item.References {
		if r.APIGroup != "" || r.KindName != "PersistentVolumeClaim" || item.KindName == "PersistentVolume" || item.KindName == "PersistentVolumeClaim" {
			continue
		}
		claim := b.find("", "PersistentVolumeClaim", r.Namespace, r.Name)
		if claim >= 0 && b.hasData(b.items[claim]) {
			b.behind(claim, place{item, node}, 0)
		}
	}
}

// behind puts a user and its owners after a claim. A pod that owns the claim made it, and comes
// first.
func (b *builder) behind(claim int32, user place, depth int) {
	for _, owner := range b.items[claim].OwnerUIDs {
		if user.item.UID == owner && user.item.UID != "" && user.item.KindName == "Pod" {
			return
		}
	}
	b.add(claim, user.node, Data)
	if depth == maxDepth {
		return
	}
	for _, uid := range user.item.OwnerUIDs {
		if owner, ok := b.byUID[uid]; ok && owner.item != user.item {
			b.behind(claim, owner, depth+1)
		}
	}
}

// Suspects returns, by namespace, items that may use any claim there: workloads with references
// dropped for lack of room, and objects of other groups beside them, which may own them.
func Suspects(of ...[]*manifest.Item) map[string][]*manifest.Item {
	suspects := map[string][]*manifest.Item{}
	for _, items := range of {
		for _, item := range items {
			if item.Shortened && item.Namespace != "" && (sortOf(item) == workload || !builtIn(item.APIGroup)) {
				suspects[item.Namespace] = nil
			}
		}
	}
	if len(suspects) == 0 {
		return nil
	}
	for _, items := range of {
		for _, item := range items {
			if found, ok := suspects[item.Namespace]; ok && (item.Shortened && sortOf(item) == workload || !builtIn(item.APIGroup)) {
				suspects[item.Namespace] = append(found, item)
			}
		}
	}
	return suspects
}

// suspects puts these items after the data of all claims in their namespace, except claims made by
// pods.
func (b *builder) suspects() {
	suspects := Suspects(b.items, b.others)
	if len(suspects) == 0 {
		return
	}
	for node, item := range b.items {
		if _, ok := suspects[item.Namespace]; !ok || item.APIGroup != "" || item.KindName != "PersistentVolumeClaim" || !b.hasData(item) {
			continue
		}
		if !slices.ContainsFunc(item.OwnerUIDs, func(uid string) bool { return b.byUID[uid].item != nil && b.byUID[uid].item.KindName == "Pod" }) {
			b.add(int32(node), b.joint(data, item.Namespace), Data)
		}
	}
	for namespace, items := range suspects {
		joint, ok := b.joints[joint{data, namespace}]
		for _, item := range items {
			if ok {
				b.add(joint, b.find(item.APIGroup, item.KindName, item.Namespace, item.Name), Data)
			}
		}
	}
}

func (b *builder) kind(node int32) {
	item := b.items[node]
	switch (schema.GroupKind{Group: item.APIGroup, Kind: item.KindName}) {
	case schema.GroupKind{Kind: "PersistentVolumeClaim"}:
		b.claim(node)
	case schema.GroupKind{Kind: "Endpoints"}:
		// A Service without a selector has hand-written Endpoints.
		b.add(node, b.find("", "Service", item.Namespace, item.Name), Rule)
	case schema.GroupKind{Group: snapshotGroup, Kind: "VolumeSnapshotContent"}:
		b.add(node, b.joint(contents, ""), Rule)
	case schema.GroupKind{Group: snapshotGroup, Kind: "VolumeSnapshot"}:
		b.add(b.joint(contents, ""), node, Rule)
	case schema.GroupKind{Group: flowGroup, Kind: "PriorityLevelConfiguration"}:
		b.add(node, b.joint(levels, ""), Rule)
	case schema.GroupKind{Group: flowGroup, Kind: "FlowSchema"}:
		b.add(b.joint(levels, ""), node, Rule)
	case schema.GroupKind{Group: aggregatorGroup, Kind: "APIService"}:
		for _, r := range item.References {
			b.add(b.ready(r), node, Rule)
		}
	}
	if sortOf(item) == final {
		b.add(b.joint(last, ""), node, Rule)
		for _, r := range item.References {
			b.add(b.ready(r), node, Rule)
		}
	} else if b.finals {
		b.add(node, b.joint(last, ""), Rule)
	}
}

// SetsOf returns the possible StatefulSets of a claim TEMPLATE-SET-ORDINAL, the longest name first.
func SetsOf(claim string) (sets []string) {
	end := strings.LastIndexByte(claim, '-')
	if end < 0 || end == len(claim)-1 || strings.Trim(claim[end+1:], "0123456789") != "" {
		return nil
	}
	for at := range end {
		if claim[at] == '-' {
			sets = append(sets, claim[at+1:end])
		}
	}
	return sets
}

// claim puts a claim before the StatefulSet in its name.
func (b *builder) claim(node int32) {
	item := b.items[node]
	for _, name := range SetsOf(item.Name) {
		set := b.find("apps", "StatefulSet", item.Namespace, name)
		if set < 0 {
			continue
		}
		if b.hasData(item) {
			b.behind(node, place{b.items[set], set}, 0)
		} else {
			b.add(node, set, Data) // the set would make the claim anew
		}
	}
}

// ready returns the node that waits for a restored Service, or -1.
func (b *builder) ready(r manifest.Reference) int32 {
	if r.APIGroup != "" || r.KindName != "Service" {
		return -1
	}
	service, ok := b.byName[r]
	if !ok {
		return -1
	}
	node, ok := b.services[service]
	if !ok {
		node = b.node(Node{Item: b.items[service], Wait: WaitReady})
		b.services[service] = node
		b.add(service, node, Needs)
		b.add(b.joint(workloads, r.Namespace), node, Rule)
	}
	return node
}

// gate returns the node that waits until the item's kind is served, or -1 if the kind is not
// restored.
func (b *builder) gate(item *manifest.Item) int32 {
	if builtIn(item.APIGroup) {
		return -1
	}
	gk := schema.GroupKind{Group: item.APIGroup, Kind: item.KindName}
	if node, ok := b.served[gk]; ok {
		return node
	}
	definition := b.find(extensionsGroup, "CustomResourceDefinition", "", item.Resource+"."+item.APIGroup)
	if definition < 0 {
		definition = b.find(aggregatorGroup, "APIService", "", item.APIVersion+"."+item.APIGroup)
	}
	node := int32(-1)
	if definition >= 0 {
		node = b.node(Node{Item: b.items[definition], Wait: WaitServed})
		b.add(definition, node, Needs)
		for _, r := range b.items[definition].References {
			b.add(b.ready(r), node, Rule)
		}
	}
	b.served[gk] = node
	return node
}

func (b *builder) join() {
	for at, node := range b.joints {
		switch at.of {
		case accounts:
			b.add(b.find("", "Namespace", "", at.namespace), node, Needs)
		case foundation:
			b.add(b.find("", "Namespace", "", at.namespace), node, Needs)
			if classes, ok := b.joints[joint{classes, ""}]; ok {
				b.add(classes, node, Rule)
			}
		}
	}
}
