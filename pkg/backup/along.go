// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/holdfast-io/holdfast/pkg/manifest"
)

// along collects what written objects refer to in their namespace, as accounts and Secrets. The sink's
// mu guards it.
type along struct {
	written sets.Set[manifest.Reference]
	// reasons says why an object is wanted; "" once read.
	reasons map[manifest.Reference]string
}

func newAlong() *along {
	return &along{sets.New[manifest.Reference](), map[manifest.Reference]string{}}
}

// note records references. Claims come with their pods.
func (a *along) note(item *manifest.Item) {
	if item.Namespace == "" {
		return
	}
	a.written.Insert(manifest.Reference{APIGroup: item.APIGroup, KindName: item.KindName, Namespace: item.Namespace, Name: item.Name})
	for _, r := range item.References {
		others := item.KindName == "RoleBinding" && r.KindName == "ServiceAccount" // may serve more accounts
		everywhere := r.KindName == "ConfigMap" && r.Name == "kube-root-ca.crt"    // exists in each namespace
		if r.Namespace != item.Namespace || others || everywhere || r.APIGroup == "" && (r.KindName == "PersistentVolumeClaim" || r.KindName == "Pod") {
			continue
		}
		if _, known := a.reasons[r]; !known {
			a.reasons[r] = fmt.Sprintf("the %s %s names it", item.KindName, itemName(item.Namespace, item.Name))
		}
	}
}

func (s *sink) wantedAlong() map[manifest.Reference]map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[manifest.Reference]map[string]string{}
	for r, reason := range s.along.reasons {
		if reason == "" || s.along.written.Has(r) {
			continue
		}
		s.along.reasons[r] = ""
		of := manifest.Reference{APIGroup: r.APIGroup, KindName: r.KindName, Namespace: r.Namespace}
		if wanted[of] == nil {
			wanted[of] = map[string]string{}
		}
		wanted[of][r.Name] = reason
	}
	return wanted
}

func (s *sink) hasAlong(r manifest.Reference) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.along.written.Has(r)
}

func (c *collector) readAlong(ctx context.Context) error {
	if c.sink.along == nil {
		return nil
	}
	for bound := sets.New[string](); ; {
		wanted := c.sink.wantedAlong()
		for of, names := range wanted {
			if err := c.readNamed(ctx, of, names); err != nil {
				return err
			}
		}
		accounts := c.sink.accounts()
		if len(wanted) == 0 && bound.HasAll(accounts.UnsortedList()...) {
			return nil
		}
		if err := c.readBindings(ctx, accounts.Difference(bound)); err != nil {
			return err
		}
		bound = bound.Union(accounts)
	}
}

func (c *collector) readNamed(ctx context.Context, of manifest.Reference, names map[string]string) error {
	i := slices.IndexFunc(c.discovered.resources, func(r resource) bool { return r.Group == of.APIGroup && r.kind == of.KindName && r.namespaced })
	if i < 0 {
		return nil
	}
	r := c.discovered.resources[i]
	queries := []query{{resource: r, namespace: of.Namespace}}
	if len(names) <= manyGets {
		queries = nil
		for name := range names {
			queries = append(queries, query{resource: r, namespace: of.Namespace, name: name})
		}
		slices.SortFunc(queries, func(a, b query) int { return cmp.Compare(a.name, b.name) })
	}
	for _, q := range queries {
		if err := c.readReasoned(ctx, q, func(h *head, _ []byte) string { return names[h.Metadata.Name] }); err != nil {
			return err
		}
	}
	return nil
}

func (c *collector) readBindings(ctx context.Context, accounts sets.Set[string]) error {
	r, found := c.discovered.find(schema.GroupResource{Group: rbacv1.GroupName, Resource: "rolebindings"})
	if !found || len(accounts) == 0 {
		return nil
	}
	namespaces := sets.New[string]()
	for account := range accounts {
		namespace, _, _ := strings.Cut(account, "/")
		namespaces.Insert(namespace)
	}
	for _, namespace := range sets.List(namespaces) {
		err := c.readReasoned(ctx, query{resource: r, namespace: namespace}, func(h *head, raw []byte) string {
			var binding struct {
				Subjects []rbacv1.Subject `json:"subjects"`
			}
			if err := decode(raw, &binding); err != nil {
				c.findings.fail(subject{r.GroupResource(), namespace, h.Metadata.Name}, err.Error())
				return ""
			}
			for _, who := range binding.Subjects {
				who.Namespace = cmp.Or(who.Namespace, namespace)
				if account := accountOf(who, accounts); account != "" {
					return "it binds " + account
				}
			}
			return ""
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *collector) readReasoned(ctx context.Context, q query, reasonOf func(*head, []byte) string) error {
	gr := q.resource.GroupResource()
	if !c.wanted.Included(gr, true) || !c.inScope(q.namespace) {
		return nil
	}
	err := c.lister.list(ctx, q, visitor{page: func(int64) {}, object: func(raw []byte) error {
		h, err := headOf(raw)
		if err != nil {
			c.findings.fail(subject{gr, q.namespace, ""}, err.Error())
			return nil
		}
		about := subject{gr, h.Metadata.Namespace, h.Metadata.Name}
		reason := reasonOf(h, raw)
		if reason == "" || c.sink.hasAlong(manifest.Reference{APIGroup: q.resource.Group, KindName: q.resource.kind, Namespace: about.namespace, Name: about.name}) {
			return nil
		}
		if gr == secretsResource && c.own.Has(about.namespace) {
			c.findings.leaveOut(about)
			return nil
		}
		if why := h.whyLeftOut(); why != "" {
			c.leaveOut(about, why)
			return nil
		}
		return c.add(q.resource, h, raw, reason)
	}})
	var fatal visitError
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &fatal):
		return fatal.error
	default:
		c.lacks(subject{gr, q.namespace, q.name}, fmt.Sprintf("look for what objects in the backup need of it: list it: %v", err))
	}
	return nil
}
