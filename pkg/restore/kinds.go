// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/selection"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

const (
	// servedTimeout bounds the time until a created definition's kind is served: five seconds with
	// several API servers.
	servedTimeout  = time.Minute
	servedInterval = 100 * time.Millisecond
)

// Discovery discovers the cluster's kinds.
type Discovery interface {
	ServerGroupsAndResourcesWithContext(ctx context.Context) ([]*metav1.APIGroup, []*metav1.APIResourceList, error)
	ServerResourcesForGroupVersionWithContext(ctx context.Context, groupVersion string) (*metav1.APIResourceList, error)
}

// kinds is safe for concurrent use.
type kinds struct {
	discovery Discovery

	mu sync.Mutex
	// served has each kind's versions, the preferred one first.
	served map[schema.GroupKind][]*kind
	called selection.Called
	failed map[schema.GroupVersion]error
}

func discover(ctx context.Context, client Discovery) (*kinds, error) {
	groups, lists, err := client.ServerGroupsAndResourcesWithContext(ctx)
	k := &kinds{discovery: client, served: map[schema.GroupKind][]*kind{}, called: selection.Called{}}
	var partial *discovery.ErrGroupDiscoveryFailed
	switch {
	case errors.As(err, &partial):
		k.failed = partial.Groups
	case err != nil:
		return nil, fmt.Errorf("discover what the cluster serves: %w", err)
	}
	preferred := map[string]string{}
	for _, group := range groups {
		preferred[group.Name] = group.PreferredVersion.GroupVersion
	}
	for _, first := range []bool{true, false} {
		for _, list := range lists {
			gv, err := schema.ParseGroupVersion(list.GroupVersion)
			if err != nil {
				return nil, fmt.Errorf("discover what the cluster serves: %w", err)
			}
			if (preferred[gv.Group] == list.GroupVersion) == first {
				k.add(gv, list.APIResources)
			}
		}
	}
	return k, nil
}

func (k *kinds) add(gv schema.GroupVersion, resources []metav1.APIResource) {
	for _, r := range resources {
		if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "create") {
			continue
		}
		gk := schema.GroupKind{Group: gv.Group, Kind: r.Kind}
		if slices.ContainsFunc(k.served[gk], func(known *kind) bool { return known.version == gv.Version }) {
			continue
		}
		k.called.Add(schema.GroupResource{Group: gv.Group, Resource: r.Name}, append([]string{r.SingularName, r.Kind}, r.ShortNames...)...)
		k.served[gk] = append(k.served[gk], &kind{
			group: gv.Group, version: gv.Version, resource: r.Name, kind: r.Kind, namespaced: r.Namespaced,
			status: slices.ContainsFunc(resources, func(sub metav1.APIResource) bool { return sub.Name == r.Name+"/status" }),
		})
	}
}

func (k *kinds) serves(group string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for gk := range k.served {
		if gk.Group == group {
			return true
		}
	}
	return false
}

func (k *kinds) promise(definition *unstructured.Unstructured) {
	text := func(fields ...string) string {
		value, _, _ := unstructured.NestedString(definition.Object, append([]string{"spec"}, fields...)...)
		return value
	}
	gk := schema.GroupKind{Group: text("group"), Kind: text("names", "kind")}
	k.mu.Lock()
	defer k.mu.Unlock()
	for version, status := range servedVersions(definition) {
		if !slices.ContainsFunc(k.served[gk], func(known *kind) bool { return known.version == version }) {
			k.served[gk] = append(k.served[gk], &kind{
				group: gk.Group, version: version, resource: text("names", "plural"), kind: gk.Kind, namespaced: text("scope") != "Cluster", status: status, promised: true,
			})
		}
	}
}

// servedVersions returns a CustomResourceDefinition's served versions, and whether each has a
// status subresource.
func servedVersions(definition *unstructured.Unstructured) map[string]bool {
	names := map[string]bool{}
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for _, version := range versions {
		version, _ := version.(map[string]any)
		name, _ := version["name"].(string)
		if served, _ := version["served"].(bool); served {
			_, status, _ := unstructured.NestedMap(version, "subresources", "status")
			names[name] = status
		}
	}
	return names
}

// find returns an item's kind, in its version if served, else in the preferred one.
func (k *kinds) find(item *manifest.Item) (*kind, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	versions := k.served[schema.GroupKind{Group: item.APIGroup, Kind: item.KindName}]
	for _, served := range versions {
		if served.version == item.APIVersion {
			return served, nil
		}
	}
	if err := k.failed[schema.GroupVersion{Group: item.APIGroup, Version: item.APIVersion}]; err != nil {
		return nil, fmt.Errorf("what the cluster serves of %s can't be found out: %w", item.GroupKind(), err)
	}
	if len(versions) == 0 {
		return nil, notServed(item)
	}
	return versions[0], nil
}

// best returns the version among the backup's that the server prefers. It returns "" if the server
// serves the item's own or none, or its group is unknown.
func (k *kinds) best(item *manifest.Item, versions []string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	served := k.served[schema.GroupKind{Group: item.APIGroup, Kind: item.KindName}]
	if k.failed[schema.GroupVersion{Group: item.APIGroup, Version: item.APIVersion}] != nil ||
		slices.ContainsFunc(served, func(known *kind) bool { return known.version == item.APIVersion }) {
		return ""
	}
	for _, known := range served {
		if slices.Contains(versions, known.version) {
			return known.version
		}
	}
	return ""
}

// awaitServed waits until a kind is served; without a name, until anything of the version is.
func (k *kinds) awaitServed(ctx context.Context, gv schema.GroupVersion, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, servedTimeout, fmt.Errorf("%s is not served %s after what defines it was created", strings.TrimPrefix(name+" of "+gv.String(), " of "), servedTimeout))
	defer cancel()
	waiting := waits.ForAnyone(ctx, fmt.Sprintf("the cluster to serve %s", strings.TrimPrefix(name+" of "+gv.String(), " of ")))
	defer waiting.End()
	for {
		list, err := k.discovery.ServerResourcesForGroupVersionWithContext(ctx, gv.String())
		if err == nil && slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return name == "" || r.Name == name }) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.add(gv, list.APIResources)
			return nil
		}
		if err != nil && !apierrors.IsNotFound(err) && !passing(err) && !unreached(err) {
			return err
		}
		if sleep(ctx, servedInterval) != nil {
			return context.Cause(ctx)
		}
	}
}
