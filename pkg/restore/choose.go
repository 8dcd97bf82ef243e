// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/graph"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

func (e *execution) choose(ctx context.Context) (items, others []*manifest.Item, err error) {
	e.readCalled(ctx)
	c, err := e.newChooser()
	if err != nil {
		return nil, nil, err
	}
	chosen := map[*manifest.Item]bool{}
	e.named = map[*manifest.Item]bool{}
	for _, item := range e.Backup.Items {
		switch {
		case !c.wants(item):
		case c.isOwn(item):
			c.own++
		case object.SkipItem(item) == "":
			chosen[item] = true
			if e.request.tenant() && c.names(item) {
				e.named[item] = true
			}
		}
	}
	if c.own > 0 {
		e.report.warn(subject{}, fmt.Sprintf("%d objects of Holdfast's own namespaces are left out: install it, and set its storage locations anew", c.own))
	}
	c.reportMissing(chosen)
	c.addNeeded(e.Backup.Items, chosen)
	for _, item := range e.Backup.Items {
		if chosen[item] {
			items = append(items, item)
		} else {
			others = append(others, item)
		}
	}
	return items, others, nil
}

func (c *chooser) reportMissing(chosen map[*manifest.Item]bool) {
	namespaces := map[string]bool{}
	for item := range chosen {
		delete(c.objects, [3]string{resourceOf(item), item.Namespace, item.Name})
		namespaces[item.Namespace] = true
		if isNamespace(item) {
			namespaces[item.Name] = true
		}
	}
	c.reportWords(chosen)
	for o := range c.objects {
		c.e.report.fail(subject{o[0], o[1], o[2]}, "the backup does not hold it, or it is never restored")
	}
	for _, namespace := range c.namespaces.Explicit() {
		if !namespaces[namespace] && len(c.e.spec.Objects) == 0 {
			c.e.report.fail(subject{"namespaces", "", namespace}, "the backup holds nothing of it that the restore takes")
		}
	}
}

type chooser struct {
	e          *execution
	namespaces *selection.Namespaces
	resources  *selection.Resources
	selectors  []labels.Selector
	objects    map[[3]string]bool
	// named are the namespaces of named objects: only these get the objects' needs.
	named map[string]bool
	// follows says that labels choose the objects, whose needs come along.
	follows bool
	own     int
}

func (c *chooser) isOwn(item *manifest.Item) bool {
	about := c.e.subject(item)
	own := enginev1alpha1.OwnNamespaces(c.e.request.SystemNamespace)
	return slices.Contains(own, about.namespace) || isNamespace(item) && slices.Contains(own, about.name)
}

func (e *execution) newChooser() (*chooser, error) {
	c := &chooser{e: e, objects: map[[3]string]bool{}, named: map[string]bool{}}
	spec := e.spec
	namespaces, errs := selection.ParseNamespaces(spec.IncludedNamespaces, spec.ExcludedNamespaces, nil)
	resources, more := selection.ParseResources(selection.ResourceLists{
		IncludedResources: spec.IncludedResources, ExcludedResources: spec.ExcludedResources, IncludeClusterResources: spec.IncludeClusterResources,
	}, namespaces, nil)
	if err := append(errs, more...).ToAggregate(); err != nil {
		return nil, &Refused{Reasons: []string{err.Error()}}
	}
	c.namespaces, c.resources = namespaces, resources.Bind(e.called.Resolve)
	from := spec.OrLabelSelectors
	if spec.LabelSelector != nil {
		from = []*metav1.LabelSelector{spec.LabelSelector}
	}
	for _, selector := range from {
		parsed, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			return nil, &Refused{Reasons: []string{"a label selector: " + err.Error()}}
		}
		c.selectors = append(c.selectors, parsed)
	}
	c.follows = len(c.selectors) > 0 && len(spec.Objects) == 0 && ptr.Deref(spec.IncludeReferenced, true)
	for _, o := range spec.Objects {
		resource := o.Resource
		if gr, ok := e.called.Resolve(resource); ok {
			resource = gr.String()
		}
		c.objects[[3]string{resource, o.Namespace, o.Name}] = true
		c.named[o.Namespace] = true
	}
	return c, nil
}

func (c *chooser) wants(item *manifest.Item) bool {
	if c.e.spec.VolumesOnly && !c.e.hasData(item) {
		return false
	}
	if c.e.leavesVolumes() && isVolume(item) {
		return false
	}
	if len(c.e.spec.Objects) > 0 {
		return c.objects[[3]string{resourceOf(item), item.Namespace, item.Name}]
	}
	gr := schema.GroupResource{Group: item.APIGroup, Resource: item.Resource}
	if isNamespace(item) {
		return c.namespaces.Match(item.Name) && c.resources.IncludedRelated(gr, false)
	}
	if item.Namespace != "" && !c.namespaces.Match(item.Namespace) || !c.resources.Included(gr, item.Namespace != "") {
		return false
	}
	if item.Namespace == "" && c.e.spec.IncludeClusterResources == nil && (c.e.request.tenant() || !c.namespaces.All()) {
		return false
	}
	if len(c.selectors) == 0 {
		return true
	}
	for _, selector := range c.selectors {
		if selector.Matches(labels.Set(item.Labels)) {
			return true
		}
	}
	return false
}

func (c *chooser) names(item *manifest.Item) bool {
	return len(c.e.spec.Objects) > 0 || slices.ContainsFunc(c.e.spec.IncludedResources, func(word string) bool {
		return !selection.IsPattern(word) && c.e.called.Means(word, schema.GroupResource{Group: item.APIGroup, Resource: item.Resource})
	})
}

// addNeeded adds the needs of chosen objects: cluster-scoped objects, and, for named objects or
// labels, objects in their namespaces. Objects in other namespaces exist, or belong to others.
func (c *chooser) addNeeded(all []*manifest.Item, chosen map[*manifest.Item]bool) {
	unscoped := c.e.spec.IncludeClusterResources != nil && !*c.e.spec.IncludeClusterResources && len(c.e.spec.Objects) == 0
	if c.e.spec.VolumesOnly || unscoped && !c.follows {
		return
	}
	byName, byUID := map[manifest.Reference]*manifest.Item{}, map[string]*manifest.Item{}
	var left []*manifest.Item
	for _, item := range all {
		if chosen[item] {
			left = append(left, item)
		}
		if item.Namespace != "" && !c.named[item.Namespace] && (!c.follows || !c.namespaces.Match(item.Namespace)) {
			continue // never added, and most of a large backup
		}
		byName[manifest.Reference{APIGroup: item.APIGroup, KindName: item.KindName, Namespace: item.Namespace, Name: item.Name}] = item
		if item.UID != "" {
			byUID[item.UID] = item
		}
	}
	claims := c.claimsOfSets(all, byName)
	add := func(item *manifest.Item) {
		if item == nil || chosen[item] || object.SkipItem(item) != "" || c.isOwn(item) || c.e.leavesVolumes() && isVolume(item) {
			return
		}
		if isNamespace(item) && len(c.named) > 0 && !c.named[item.Name] {
			return
		}
		gr := schema.GroupResource{Group: item.APIGroup, Resource: item.Resource}
		if unscoped && item.Namespace == "" || c.follows && item.Namespace != "" && !c.resources.Included(gr, true) {
			return
		}
		if c.resources.IncludedRelated(gr, item.Namespace != "") {
			chosen[item] = true
			left = append(left, item)
		}
	}
	for len(left) > 0 {
		item := left[len(left)-1]
		left = left[:len(left)-1]
		for _, reference := range item.References {
			add(byName[reference])
		}
		for _, claim := range claims[item] {
			add(claim)
		}
		if item.APIGroup != "" {
			add(byName[manifest.Reference{APIGroup: extensionsGroup, KindName: "CustomResourceDefinition", Name: item.Resource + "." + item.APIGroup}])
		}
		if item.Namespace != "" {
			add(byName[manifest.Reference{KindName: "Namespace", Name: item.Namespace}])
		}
		for _, owner := range item.OwnerUIDs {
			if len(c.e.spec.Objects) > 0 {
				add(byUID[owner])
			}
		}
	}
}

// claimsOfSets returns the claims of StatefulSets, which refer to none: chosen sets would start on
// empty volumes.
func (c *chooser) claimsOfSets(all []*manifest.Item, byName map[manifest.Reference]*manifest.Item) map[*manifest.Item][]*manifest.Item {
	if len(c.e.spec.Objects) == 0 && !c.follows {
		return nil
	}
	claims := map[*manifest.Item][]*manifest.Item{}
	for _, item := range all {
		if item.APIGroup != "" || item.KindName != "PersistentVolumeClaim" {
			continue
		}
		for _, name := range graph.SetsOf(item.Name) {
			if set := byName[manifest.Reference{APIGroup: "apps", KindName: "StatefulSet", Namespace: item.Namespace, Name: name}]; set != nil {
				claims[set] = append(claims[set], item)
				break
			}
		}
	}
	return claims
}

func (e *execution) warnOfNoData(claim *manifest.Item, a action, about subject, desired *unstructured.Unstructured) {
	if claim.APIGroup != "" || claim.KindName != "PersistentVolumeClaim" || a != actionCreate && a != actionRecreate || e.volumeOf(claim) != nil {
		return
	}
	bound := slices.ContainsFunc(claim.References, func(r manifest.Reference) bool { return r.APIGroup == "" && r.KindName == "PersistentVolume" })
	if volume, _, _ := unstructured.NestedString(desired.Object, "spec", "volumeName"); !bound || volume != "" {
		return
	}
	e.warnOfEmptyClaim(claim, about)
}

func (e *execution) warnOfEmptyClaim(claim *manifest.Item, about subject) {
	if e.leavesVolumes() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.empty.Add(about.namespace, about.namespace+"/"+about.name)
		e.report.info(about, "it comes back empty, since restorePVs is false")
		return
	}
	reason := e.Backup.NotTaken[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}]
	e.report.warn(about, "it comes back empty, since the backup does not hold its data: "+cmp.Or(reason, "no pod that used it was backed up with it"))
}
