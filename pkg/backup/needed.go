// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/holdfast-io/holdfast/pkg/manifest"
)

var (
	serviceAccountsResource     = schema.GroupResource{Resource: "serviceaccounts"}
	clusterRoleBindingsResource = schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterrolebindings"}
	clusterRolesResource        = schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterroles"}
)

// neededKinds are cluster-scoped kinds included with objects that refer to them, in reading order.
var neededKinds = []struct {
	schema.GroupKind
	schema.GroupResource
}{
	{schema.GroupKind{Group: rbacv1.GroupName, Kind: "ClusterRole"}, clusterRolesResource},
	{schema.GroupKind{Group: "scheduling.k8s.io", Kind: "PriorityClass"}, schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}},
	{schema.GroupKind{Group: "node.k8s.io", Kind: "RuntimeClass"}, schema.GroupResource{Group: "node.k8s.io", Resource: "runtimeclasses"}},
	{schema.GroupKind{Group: "storage.k8s.io", Kind: "StorageClass"}, schema.GroupResource{Group: "storage.k8s.io", Resource: "storageclasses"}},
	{schema.GroupKind{Group: "networking.k8s.io", Kind: "IngressClass"}, schema.GroupResource{Group: "networking.k8s.io", Resource: "ingressclasses"}},
}

type needs struct {
	reasons               map[schema.GroupResource]map[string]string
	accounts, definitions sets.Set[string]
}

func newNeeds() needs {
	return needs{map[schema.GroupResource]map[string]string{}, sets.New[string](), sets.New[string]()}
}

func (n needs) note(r resource, item *manifest.Item) {
	switch r.GroupResource() {
	case serviceAccountsResource:
		n.accounts.Insert(itemName(item.Namespace, item.Name))
	case crdsResource:
		n.definitions.Insert(item.Name)
	}
	for _, reference := range item.References {
		for _, kind := range neededKinds {
			if reference.APIGroup != kind.GroupKind.Group || reference.KindName != kind.Kind {
				continue
			}
			n.add(kind.GroupResource, reference.Name, fmt.Sprintf("the %s %s refers to it", item.KindName, itemName(item.Namespace, item.Name)))
		}
	}
}

func (n needs) add(gr schema.GroupResource, name, reason string) {
	if n.reasons[gr] == nil {
		n.reasons[gr] = map[string]string{}
	}
	if _, known := n.reasons[gr][name]; !known {
		n.reasons[gr][name] = reason
	}
}

func (s *sink) need(gr schema.GroupResource, name, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.needs.add(gr, name, reason)
}

func (s *sink) missing(gr schema.GroupResource) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	missing := map[string]string{}
	for name, reason := range s.needs.reasons[gr] {
		if !s.seen[gr].Has(name) {
			missing[name] = reason
		}
	}
	return missing
}

func (s *sink) defines(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.needs.definitions.Has(name)
}

func (s *sink) accounts() sets.Set[string] {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.needs.accounts.Clone()
}

// readNeeded takes cluster-scoped objects that others need, and bindings of their service accounts, by
// one list for each kind.
func (c *collector) readNeeded(ctx context.Context) error {
	accounts := c.sink.accounts()
	every := func(gr schema.GroupResource) bool { return c.wanted.Included(gr, false) && len(c.selectors) == 0 }
	some := func(gr schema.GroupResource) bool { return c.wanted.IncludedRelated(gr, false) && !every(gr) }
	bindings := c.wanted.IncludedRelated(clusterRoleBindingsResource, false)
	if len(accounts) > 0 && (some(clusterRoleBindingsResource) || !bindings && some(clusterRolesResource)) {
		err := c.readSome(ctx, clusterRoleBindingsResource, func(h *head, raw []byte) string {
			var binding struct {
				Subjects []rbacv1.Subject `json:"subjects"`
				RoleRef  rbacv1.RoleRef   `json:"roleRef"`
			}
			if err := decode(raw, &binding); err != nil {
				c.findings.fail(subject{clusterRoleBindingsResource, "", h.Metadata.Name}, err.Error())
				return ""
			}
			for _, who := range binding.Subjects {
				account := accountOf(who, accounts)
				if account == "" {
					continue
				}
				if bindings {
					return "it binds " + account
				}
				c.sink.need(clusterRolesResource, binding.RoleRef.Name, "it is bound to "+account)
			}
			return ""
		})
		if err != nil {
			return err
		}
	}
	for _, kind := range neededKinds {
		missing := c.sink.missing(kind.GroupResource)
		if len(missing) == 0 || !c.wanted.IncludedRelated(kind.GroupResource, false) {
			continue
		}
		if err := c.readSome(ctx, kind.GroupResource, func(h *head, _ []byte) string { return missing[h.Metadata.Name] }); err != nil {
			return err
		}
	}
	return nil
}

// accountOf describes the account that a binding's subject means, or returns "". It may be a user, or
// the group of a namespace's accounts, but not of all accounts or users.
func accountOf(who rbacv1.Subject, accounts sets.Set[string]) string {
	switch who.Kind {
	case rbacv1.ServiceAccountKind:
		if name := itemName(who.Namespace, who.Name); accounts.Has(name) {
			return "the service account " + name
		}
	case rbacv1.UserKind:
		user, ok := strings.CutPrefix(who.Name, "system:serviceaccount:")
		if name := strings.Replace(user, ":", "/", 1); ok && accounts.Has(name) {
			return "the service account " + name
		}
	case rbacv1.GroupKind:
		namespace, ok := strings.CutPrefix(who.Name, "system:serviceaccounts:")
		for account := range accounts {
			if ok && strings.HasPrefix(account, namespace+"/") {
				return "the service accounts of " + namespace
			}
		}
	}
	return ""
}

func (c *collector) readSome(ctx context.Context, gr schema.GroupResource, reasonOf func(*head, []byte) string) error {
	r, found := c.discovered.find(gr)
	if !found || r.namespaced {
		return nil
	}
	err := c.lister.list(ctx, query{resource: r}, visitor{page: func(int64) {}, object: func(raw []byte) error {
		h, err := headOf(raw)
		if err != nil {
			c.findings.fail(subject{gr, "", ""}, err.Error())
			return nil
		}
		reason := reasonOf(h, raw)
		if reason == "" {
			return nil
		}
		return c.addRelated(r, h, raw, reason)
	}})
	var fatal visitError
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &fatal):
		return fatal.error
	default:
		c.findings.fail(subject{gr, "", ""}, fmt.Sprintf("look for what objects in the backup need of it: list it: %v", err))
	}
	return nil
}
