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

// services are other servers' API services. They tell what a missing resource was.
type services struct {
	aggregated map[string]bool
	// registered has those that the API server registers at its start.
	registered map[string]bool
	unknown    bool
}

func service(r resource) string { return r.Version + "." + r.Group }

func (s *services) undefined(r resource) bool {
	return s.aggregated[service(r)] || s.registered[service(r)]
}

// isBuiltIn reports a group of Kubernetes or Holdfast, whose definitions are not backed up.
func isBuiltIn(group string) bool {
	return ownGroups.Has(group) || scheme.Scheme.IsGroupRegistered(group) || group == crdsResource.Group || group == apiServicesResource.Group
}

// readServices reads the API services if selected resources depend on them, before one can vanish.
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

// vanished reports a resource that is no longer served. If its definition was deleted, so were its
// objects; otherwise the backup may lack them.
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

// warnOfExcluded warns of excluding words without a match: a misspelt one includes a namespace that was
// to stay out.
func (c *collector) warnOfExcluded() {
	for _, word := range c.spec.ExcludedNamespaces {
		pattern, err := selection.ParsePattern(word)
		if err != nil {
			continue
		}
		matches := func(name string) bool { return pattern.Match(name) }
		if !slices.ContainsFunc(slices.Collect(maps.Keys(c.existing)), matches) {
			c.findings.warn(subject{namespacesResource, "", ""}, fmt.Sprintf("the backup excludes %q, which no namespace matches", word))
		}
	}
}

func (c *collector) warnOfNothing() {
	if errors, _ := c.findings.counts(); errors == 0 && c.progress.Objects().ItemsBackedUp == 0 {
		c.findings.warn(subject{}, "the backup is empty: no object of the cluster is in the namespaces, of the resources and with the labels that it asks for")
	}
}
