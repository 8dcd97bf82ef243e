// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
)

// skips says why an object is not restored, or returns "". Objects left to the cluster are noted,
// for a check at the end.
func (e *execution) skips(ctx context.Context, k *kind, item *manifest.Item, about subject, content *unstructured.Unstructured) (why string, err error) {
	resource := schema.GroupResource{Group: item.APIGroup, Resource: item.Resource}
	if item.APIGroup == "apps" && item.KindName == "Deployment" {
		e.templates.Store(types.UID(item.UID), object.TemplateToMake(content))
	}
	why = e.rules.Skip(content, resource)
	switch {
	case why == object.ForService && item.KindName == "Endpoints" && len(content.GetManagedFields()) == 0:
		// Only the Service tells whether a user has copied them.
		person, err := e.isWithoutSelector(ctx, item)
		if err != nil {
			return "", err
		}
		if person {
			why = ""
		}
	case item.APIGroup == "rbac.authorization.k8s.io" && object.IsBootstrapped(content):
		live, err := e.seen(ctx, k, about)
		if err != nil {
			return "", fmt.Errorf("find out whether the cluster has it: %w", err)
		}
		if live != nil && object.IsBootstrapped(live) || strings.HasPrefix(item.Name, "system:") {
			why = object.ByServer
		}
	}
	if why == object.ByServer || why == object.ForService && item.KindName == "Endpoints" {
		e.mu.Lock()
		e.left[k] = append(e.left[k], about)
		e.mu.Unlock()
	}
	return why, nil
}

type itemsByName struct {
	once sync.Once
	of   map[manifest.Reference]*manifest.Item
}

func (n *itemsByName) find(items []*manifest.Item, kind, namespace, name string) *manifest.Item {
	n.once.Do(func() {
		n.of = map[manifest.Reference]*manifest.Item{}
		for _, item := range items {
			if item.APIGroup == "" && (item.KindName == "Service" || item.KindName == "Secret") {
				n.of[manifest.Reference{KindName: item.KindName, Namespace: item.Namespace, Name: item.Name}] = item
			}
		}
	})
	return n.of[manifest.Reference{KindName: kind, Namespace: namespace, Name: name}]
}

func (e *execution) isWithoutSelector(ctx context.Context, endpoints *manifest.Item) (bool, error) {
	service := e.byName.find(e.Backup.Items, "Service", endpoints.Namespace, endpoints.Name)
	if service == nil {
		return false, nil
	}
	content, err := e.Backup.Object(ctx, service)
	if err != nil {
		return false, err
	}
	selector, _, _ := unstructured.NestedMap(content.Object, "spec", "selector")
	return len(selector) == 0, nil
}

func (e *execution) isOpenShift() bool { return e.kinds.serves("image.openshift.io") }

func (e *execution) isRemade(ctx context.Context, namespace, name string) bool {
	if !e.isOpenShift() {
		return false
	}
	secret := e.byName.find(e.Backup.Items, "Secret", namespace, name)
	if secret == nil {
		return true
	}
	content, err := e.Backup.Object(ctx, secret)
	return err == nil && object.IsMadeForAccount(content)
}

// tellOfLeft warns of objects left to the cluster that are missing at the end.
func (e *execution) tellOfLeft(ctx context.Context) error {
	left := e.left
	if e.spec.PlanOnly {
		return nil
	}
	for deadline := time.Now().Add(e.Look); ; {
		missing := map[*kind][]subject{}
		for k, subjects := range left {
			there, err := e.namesOf(ctx, k, subjects)
			if err != nil {
				return fmt.Errorf("find out whether the cluster has what was left to it: %w", err)
			}
			for _, about := range subjects {
				if !there[about] {
					missing[k] = append(missing[k], about)
				}
			}
		}
		if left = missing; len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			break
		}
		if err := sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(left), func(a, b *kind) int { return cmp.Compare(a.name(), b.name()) }) {
		var names []string
		for _, about := range left[k] {
			names = append(names, strings.TrimPrefix(about.namespace+"/"+about.name, "/"))
		}
		slices.Sort(names)
		e.report.warn(subject{}, fmt.Sprintf("%s were left to the cluster, which makes them itself, and are not there: %s: restore what they belong to, or create them by hand from the backup", k.name(), listed(names)))
	}
	return nil
}

func (e *execution) namesOf(ctx context.Context, k *kind, subjects []subject) (map[subject]bool, error) {
	there, listed := map[subject]bool{}, map[string]bool{}
	for _, about := range subjects {
		if listed[about.namespace] {
			continue
		}
		listed[about.namespace] = true
		err := e.reader.each(ctx, k, about.namespace, func(raw []byte) error {
			var o metav1.PartialObjectMetadata
			err := json.Unmarshal(raw, &o)
			there[subject{about.resource, o.Namespace, o.Name}] = true
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return there, nil
}
