// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/ptr"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// Discovery is the needed part of a discovery client.
type Discovery interface {
	ServerPreferredResourcesWithContext(ctx context.Context) ([]*metav1.APIResourceList, error)
}

type resource struct {
	schema.GroupVersionResource
	kind                string
	namespaced          bool
	apiVersion, listKey string
}

func newResource(gv schema.GroupVersion, served *metav1.APIResource) resource {
	return resource{
		GroupVersionResource: gv.WithResource(served.Name),
		kind:                 served.Kind,
		namespaced:           served.Namespaced,
		apiVersion:           gv.String(),
		listKey:              gv.String() + "/" + served.Kind,
	}
}

var (
	namespacesResource        = schema.GroupResource{Resource: "namespaces"}
	nodesResource             = schema.GroupResource{Resource: "nodes"}
	persistentVolumesResource = schema.GroupResource{Resource: "persistentvolumes"}
	claimsResource            = schema.GroupResource{Resource: "persistentvolumeclaims"}
	podsResource              = schema.GroupResource{Resource: "pods"}
	secretsResource           = schema.GroupResource{Resource: "secrets"}
	crdsResource              = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	apiServicesResource       = schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}
)

// readingOrder puts objects before those that refer to them, and pods before all else, so that their
// volumes upload meanwhile.
var readingOrder = []schema.GroupResource{namespacesResource, persistentVolumesResource, claimsResource, podsResource}

// ownGroups are never backed up, except intent: Holdfast's other objects are computed, and a restored
// run would start again.
var ownGroups = sets.New(v1alpha1.GroupName, enginev1alpha1.GroupName)

// intent are resources of ownGroups that users write.
var intent = sets.New(v1alpha1.Resource("schedules"))

// onlyByName are backed up only if named: a volume snapshot is tied to its storage system.
var onlyByName = sets.New(
	schema.GroupResource{Group: "snapshot.storage.k8s.io", Resource: "volumesnapshots"},
	schema.GroupResource{Group: "snapshot.storage.k8s.io", Resource: "volumesnapshotcontents"},
)

// cohabiting are served in two groups, and read in the first included one.
var cohabiting = map[string][2]string{
	"daemonsets":      {"apps", "extensions"},
	"deployments":     {"apps", "extensions"},
	"events":          {"", "events.k8s.io"},
	"networkpolicies": {"networking.k8s.io", "extensions"},
	"replicasets":     {"apps", "extensions"},
}

type discovered struct {
	resources []resource
	words     selection.Called
	// others are words for resources that can't be backed up.
	others sets.Set[string]
	failed map[string]error
}

// discover returns resources that can be listed, read, created and deleted. It omits a failed group, as
// of a stopped aggregated API server. An error is for discovery as a whole.
func discover(ctx context.Context, client Discovery) (*discovered, error) {
	lists, err := client.ServerPreferredResourcesWithContext(ctx)
	d := &discovered{words: selection.Called{}, others: sets.New[string](), failed: map[string]error{}}
	var partial *discovery.ErrGroupDiscoveryFailed
	switch {
	case errors.As(err, &partial):
		for gv, cause := range partial.Groups {
			if gv.Group != enginev1alpha1.GroupName {
				d.failed[gv.Group] = cause
			}
		}
	case err != nil:
		return nil, fmt.Errorf("discover the cluster's resources: %w", err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("discover the cluster's resources: %w", err)
		}
		d.add(gv, list.APIResources)
	}
	slices.SortStableFunc(d.resources, func(a, b resource) int { return cmp.Compare(rank(a), rank(b)) })
	return d, nil
}

func rank(r resource) int {
	if i := slices.Index(readingOrder, r.GroupResource()); i >= 0 {
		return i
	}
	return len(readingOrder)
}

func (d *discovered) add(gv schema.GroupVersion, served []metav1.APIResource) {
	// The client does not keep the server's order.
	for _, r := range slices.SortedFunc(slices.Values(served), func(a, b metav1.APIResource) int { return cmp.Compare(a.Name, b.Name) }) {
		if strings.Contains(r.Name, "/") {
			continue
		}
		backedUp := (!ownGroups.Has(gv.Group) || intent.Has(gv.WithResource(r.Name).GroupResource())) && sets.New(r.Verbs...).HasAll("list", "get", "create", "delete")
		found := newResource(gv, &r)
		if backedUp {
			d.resources = append(d.resources, found)
		}
		names := append([]string{r.SingularName, r.Kind}, r.ShortNames...)
		if backedUp {
			d.words.Add(found.GroupResource(), names...)
			continue
		}
		other := selection.Called{}
		other.Add(found.GroupResource(), names...)
		d.others.Insert(slices.Collect(maps.Keys(other))...)
	}
}

func (d *discovered) resolve(word string) (schema.GroupResource, bool) {
	return d.words.Resolve(word)
}

func (d *discovered) find(gr schema.GroupResource) (resource, bool) {
	i := slices.IndexFunc(d.resources, func(r resource) bool { return r.GroupResource() == gr })
	if i < 0 {
		return resource{}, false
	}
	return d.resources[i], true
}

func (d *discovered) selected(spec *v1alpha1.BackupSpec, wanted *selection.Resources) []resource {
	named := sets.New[schema.GroupResource]()
	for _, word := range includedWords(spec) {
		if gr, ok := d.resolve(word); ok {
			named.Insert(gr)
		}
	}
	taken := sets.New[string]()
	var selected []resource
	for _, r := range d.resources {
		gr := r.GroupResource()
		if !wanted.Included(gr, r.namespaced) || onlyByName.Has(gr) && !named.Has(gr) {
			continue
		}
		if groups, ok := cohabiting[gr.Resource]; ok && (gr.Group == groups[0] || gr.Group == groups[1]) {
			if taken.Has(gr.Resource) {
				continue
			}
			taken.Insert(gr.Resource)
		}
		selected = append(selected, r)
	}
	return selected
}

type list struct {
	words               []string
	namespaced, cluster bool
}

// report warns of words that match nothing and of groups that discovery could not read.
//
// It is an error if all included words of a list match nothing, except cluster-scoped words, which come
// beside others. A failed group is an error only if named, so that a broken aggregated API does not
// fail every backup.
func (d *discovered) report(spec *v1alpha1.BackupSpec, findings *findings) {
	missed := sets.New[string]()
	for i, of := range []list{
		{spec.IncludedResources, true, ptr.Deref(spec.IncludeClusterResources, true)},
		{spec.IncludedNamespaceScopedResources, true, false},
		clusterScopedList: {spec.IncludedClusterScopedResources, false, true},
	} {
		var idle []string
		for _, word := range of.words {
			switch {
			case d.stands(word, of):
			case d.failed[schema.ParseGroupResource(word).Group] != nil:
				missed.Insert(schema.ParseGroupResource(word).Group)
			default:
				idle = append(idle, word)
			}
		}
		record := findings.warn
		if i != clusterScopedList && len(idle) == len(of.words) {
			record = findings.fail
		}
		for _, word := range idle {
			record(subject{}, fmt.Sprintf("the backup includes %q, which %s", word, d.whyIdle(word, of)))
		}
	}
	for _, of := range []list{
		{spec.ExcludedResources, true, true},
		{spec.ExcludedNamespaceScopedResources, true, false},
		{spec.ExcludedClusterScopedResources, false, true},
	} {
		for _, word := range of.words {
			if !d.stands(word, of) && !d.others.Has(strings.ToLower(word)) && !selection.AddedByVelero(word) && d.failed[schema.ParseGroupResource(word).Group] == nil {
				findings.warn(subject{}, fmt.Sprintf("the backup excludes %q, which %s", word, d.whyIdle(word, of)))
			}
		}
	}
	for _, group := range slices.Sorted(maps.Keys(d.failed)) {
		text := fmt.Sprintf("the resources of the API group %s can't be discovered, and are not backed up: %v", group, d.failed[group])
		if missed.Has(group) {
			findings.fail(subject{}, text)
		} else {
			findings.warn(subject{}, text)
		}
	}
}

func (d *discovered) stands(word string, in list) bool {
	return slices.ContainsFunc(d.resources, func(r resource) bool {
		inScope := in.namespaced && r.namespaced || in.cluster && !r.namespaced || r.GroupResource() == namespacesResource
		return inScope && d.words.Means(word, r.GroupResource())
	})
}

func (d *discovered) whyIdle(word string, in list) string {
	switch elsewhere := d.stands(word, list{namespaced: true, cluster: true}); {
	case elsewhere && in.namespaced:
		return "is cluster-scoped, and only namespace-scoped resources are taken here"
	case elsewhere:
		return "is namespace-scoped, and only cluster-scoped resources are taken here"
	case selection.IsPattern(word):
		return "no resource matches that the cluster serves"
	case d.others.Has(strings.ToLower(word)):
		return "can't be backed up: it is computed, or Holdfast's own"
	}
	return "the cluster does not serve"
}

const clusterScopedList = 2

func includedWords(spec *v1alpha1.BackupSpec) []string {
	return slices.Concat(spec.IncludedResources, spec.IncludedNamespaceScopedResources, spec.IncludedClusterScopedResources)
}
