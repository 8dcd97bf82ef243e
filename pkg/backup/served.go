// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/holdfast-io/holdfast/pkg/selection"
)

// services are the API services of a cluster that are not local, by version and group. They tell
// whose word it is that a resource is no longer there.
type services struct {
	// aggregated are those that another server stands for.
	aggregated map[string]bool
	// registered are those that the API server registers of its own when it starts.
	registered map[string]bool
	// unknown is true if they could not be read.
	unknown bool
}

// service is the name of the API service of a resource.
func service(r resource) string { return r.Version + "." + r.Group }

// undefined reports whether a resource is known to have no definition: another server stands for
// it, or the API server itself.
func (s *services) undefined(r resource) bool {
	return s.aggregated[service(r)] || s.registered[service(r)]
}

// isBuiltIn reports whether a group is one of Kubernetes itself, or of Holdfast: none of its
// resources has a definition that belongs into a backup.
func isBuiltIn(group string) bool {
	return ownGroups.Has(group) || scheme.Scheme.IsGroupRegistered(group) || group == crdsResource.Group || group == apiServicesResource.Group
}

// readServices reads the API services, if the backup reads resources that depend on them. When
// one has vanished it is too late to find out what it was.
func (c *collector) readServices(ctx context.Context, selected []resource) error {
	r, found := c.discovered.find(apiServicesResource)
	if !found || !slices.ContainsFunc(selected, func(r resource) bool { return !isBuiltIn(r.Group) }) {
		return nil
	}
	c.services = services{aggregated: map[string]bool{}, registered: map[string]bool{}}
	err := c.lister.list(ctx, query{resource: r}, visitor{page: func(int64) {}, object: func(raw []byte) error {
		var read struct {
			Metadata struct {
				Name   string            `json:"name"`
				Labels map[string]string `json:"labels"`
			} `json:"metadata"`
			Spec struct {
				Service *struct{} `json:"service"`
			} `json:"spec"`
		}
		if err := decode(raw, &read); err != nil {
			return err
		}
		switch {
		case read.Spec.Service != nil:
			c.services.aggregated[read.Metadata.Name] = true
		case read.Metadata.Labels["kube-aggregator.kubernetes.io/automanaged"] == "onstart":
			c.services.registered[read.Metadata.Name] = true
		}
		return nil
	}})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	c.services.unknown = err != nil
	return nil
}

// vanished makes a finding of a resource that discovery had when the backup began, and that the
// server now says it does not serve. The objects of a definition that was deleted meanwhile are
// gone with it. All others may still be there, and the backup lacks them.
func (c *collector) vanished(ctx context.Context, about subject, r resource, cause error) error {
	text := fmt.Sprintf("the cluster served it when the backup began, and no longer does: the backup has none of its objects: %v", cause)
	definitions, found := c.discovered.find(crdsResource)
	if !found || isBuiltIn(r.Group) || c.services.unknown || c.services.undefined(r) {
		c.lacks(about, text)
		return nil
	}
	_, err := c.lister.get(ctx, definitions, "", r.GroupResource().String())
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case apierrors.IsNotFound(err):
		c.findings.warn(about, "its definition was deleted while the backup was made, and all its objects with it")
	default:
		c.lacks(about, text)
	}
	return nil
}

// warnOfExcluded says which words leave out no namespace that exists. A misspelt one leaves in
// what it was to keep out of the store. All namespaces have been read.
func (c *collector) warnOfExcluded() {
	for _, word := range c.spec.ExcludedNamespaces {
		pattern, err := selection.ParsePattern(word)
		if err != nil {
			continue // the API server refuses it
		}
		matches := func(name string) bool { return pattern.Match(name) }
		if !slices.ContainsFunc(slices.Collect(maps.Keys(c.existing)), matches) {
			c.findings.warn(subject{namespacesResource, "", ""}, fmt.Sprintf("the backup excludes %q, which no namespace matches", word))
		}
	}
}

// warnOfNothing says that a backup holds no object at all. That of a backup which lacks something
// is told already.
func (c *collector) warnOfNothing() {
	if errors, _ := c.findings.counts(); errors == 0 && c.progress.Objects().ItemsBackedUp == 0 {
		c.findings.warn(subject{}, "the backup is empty: no object of the cluster is in the namespaces, of the resources and with the labels that it asks for")
	}
}
