// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// order is spec.orderedResources: objects to read before others of their resource. Later lists skip
// them.
type order map[schema.GroupResource][]string

func (d *discovered) orderOf(spec *v1alpha1.BackupSpec, findings *findings) order {
	ordered := order{}
	for _, word := range slices.Sorted(maps.Keys(spec.OrderedResources)) {
		gr, known := d.resolve(word)
		if !known {
			findings.warn(subject{}, fmt.Sprintf("orderedResources has %q, which the cluster does not serve", word))
			continue
		}
		for name := range strings.SplitSeq(spec.OrderedResources[word], ",") {
			if name = strings.TrimSpace(name); name != "" {
				ordered[gr] = append(ordered[gr], name)
			}
		}
	}
	return ordered
}

func (o order) places(gr schema.GroupResource) map[types.NamespacedName]int {
	places := map[types.NamespacedName]int{}
	for i, key := range o[gr] {
		places[objectName(key)] = i
	}
	return places
}

func objectName(key string) types.NamespacedName {
	if namespace, name, namespaced := strings.Cut(key, "/"); namespaced {
		return types.NamespacedName{Namespace: namespace, Name: name}
	}
	return types.NamespacedName{Name: key}
}

func (c *collector) warnOfOrder(selected []resource) {
	for gr := range c.order {
		if !slices.ContainsFunc(selected, func(r resource) bool { return r.GroupResource() == gr }) {
			c.findings.warn(subject{gr, "", ""}, "orderedResources has it, but the backup does not include it")
		}
	}
}

// readOrdered visits a resource's ordered objects, each by a list, since get is another right. Excluded
// ones are not requested, so that findings reveal nothing about them.
func (c *collector) readOrdered(ctx context.Context, r resource, selectors []string, visitorOf func(query) visitor) error {
	for _, key := range c.order[r.GroupResource()] {
		of := objectName(key)
		about := subject{r.GroupResource(), of.Namespace, of.Name}
		switch {
		case r.namespaced && of.Namespace == "":
			c.findings.warn(about, "orderedResources names it without its namespace: write namespace/name")
			continue
		case !r.namespaced && of.Namespace != "":
			c.findings.warn(about, "orderedResources names it with a namespace, and it has none")
			continue
		case r.namespaced && !c.inScope(of.Namespace), r.GroupResource() == namespacesResource && !c.namespaces.Match(of.Name):
			c.findings.warn(about, "orderedResources names it, but the backup does not include its namespace")
			continue
		}
		found := false
		for _, selector := range selectors {
			q := query{resource: r, namespace: of.Namespace, selector: selector, name: of.Name}
			visit := visitorOf(q)
			take := visit.object
			visit.object = func(raw []byte) error {
				found = true
				return take(raw)
			}
			if err := c.told(ctx, q, c.lister.list(ctx, q, visit)); err != nil {
				return err
			}
		}
		if !found {
			c.findings.warn(about, "orderedResources names it, but the backup does not find it")
		}
	}
	return nil
}
