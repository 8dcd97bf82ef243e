// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/graph"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

const (
	terminatingTimeout = 2 * time.Minute
	accountTimeout     = 30 * time.Second
	endpointsTimeout   = 2 * time.Minute
	pollInterval       = 500 * time.Millisecond
)

var (
	namespaceKind = &kind{version: "v1", resource: "namespaces", kind: "Namespace"}
	accountKind   = &kind{version: "v1", resource: "serviceaccounts", kind: "ServiceAccount", namespaced: true}
	slicesKind    = &kind{group: "discovery.k8s.io", version: "v1", resource: "endpointslices", kind: "EndpointSlice", namespaced: true}
)

// onces are waits that run once each, and keep their result.
type onces struct {
	mu    sync.Mutex
	known map[string]*onceWait
}

type onceWait struct {
	once sync.Once
	err  error
}

func (o *onces) do(key string, wait func() error) error {
	o.mu.Lock()
	if o.known == nil {
		o.known = map[string]*onceWait{}
	}
	w := o.known[key]
	if w == nil {
		w = &onceWait{}
		o.known[key] = w
	}
	o.mu.Unlock()
	w.once.Do(func() { w.err = wait() })
	return w.err
}

func (o *onces) started(key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known[key] != nil
}

// namespaces are the restore's targets. Each is looked at once, and its deletion awaited once.
type namespaces struct {
	onces
	mu sync.Mutex
	// new were missing at the first look; full hold objects of the backup.
	new, full map[string]bool
}

func (n *namespaces) fresh(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return name != "" && n.new[name]
}

func (n *namespaces) isInhabited(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.full[name]
}

func (n *namespaces) inhabited(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.full == nil {
		n.full = map[string]bool{}
	}
	n.full[name] = true
	delete(n.new, name)
}

// await returns when an object's namespace exists. For a namespace, it returns when none of its
// name is being deleted.
func (n *namespaces) await(ctx context.Context, e *execution, item *manifest.Item, about subject) error {
	switch {
	case isNamespace(item):
		return n.do("/"+about.name, func() error { _, err := n.settled(ctx, e, about.name); return err })
	case about.namespace == "":
		return nil
	}
	err := n.do(about.namespace, func() error { return n.ensure(ctx, e, about.namespace) })
	if err == nil && item.APIGroup == "" && item.KindName == "Pod" && !e.spec.PlanOnly {
		err = e.accounts.do(about.namespace, func() error { return e.awaitAccount(ctx, about.namespace) })
	}
	return err
}

// settled waits for the end of a namespace's deletion, and returns the namespace, or nil.
func (n *namespaces) settled(ctx context.Context, e *execution, name string) (*unstructured.Unstructured, error) {
	var waiting *waits.Wait
	defer func() { waiting.End() }()
	for deadline := e.Clock.Now().Add(terminatingTimeout); ; {
		live, err := e.reader.get(ctx, namespaceKind, "", name)
		switch {
		case err != nil:
			return nil, fmt.Errorf("find the namespace %s: %w", name, err)
		case live == nil:
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.new == nil {
				n.new = map[string]bool{}
			}
			n.new[name] = true
			return nil, nil
		case live.GetDeletionTimestamp() == nil:
			return live, nil
		case e.Clock.Now().After(deadline) || e.spec.PlanOnly:
			return nil, fmt.Errorf("the namespace %s is being deleted: see what its conditions say that it waits for, and restore this again when it is gone", name)
		}
		if waiting == nil {
			waiting = waits.For(ctx, name, "")
		}
		waiting.Set(fmt.Sprintf("the namespace %s to be gone, which is being deleted%s", name, whyThere(live)))
		if err := sleep(ctx, pollInterval); err != nil {
			return nil, err
		}
	}
}

func whyThere(namespace *unstructured.Unstructured) string {
	conditions, _, _ := unstructured.NestedSlice(namespace.Object, "status", "conditions")
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		if message, _ := condition["message"].(string); condition["status"] == "True" && message != "" {
			return ": " + message
		}
	}
	return ""
}

func (n *namespaces) ensure(ctx context.Context, e *execution, name string) error {
	if n.started("/" + name) {
		return n.do("/"+name, nil)
	}
	there, err := n.settled(ctx, e, name)
	switch {
	case err != nil:
		return err
	case there != nil:
		if e.isOurs(there) {
			e.succeed(ctx, name, e.former(name), there.GetUID())
		}
		return nil
	case e.request.tenant():
		return fmt.Errorf("the namespace %s does not exist, and only an administrator's restore creates namespaces", name)
	case e.spec.PlanOnly:
		return nil
	}
	bare := &unstructured.Unstructured{Object: map[string]any{}}
	bare.SetName(name)
	bare.SetAPIVersion("v1")
	bare.SetKind("Namespace")
	bare.SetAnnotations(map[string]string{object.AnnotationRestoreUID: string(e.request.Run.UID)})
	created, err := e.writer.create(ctx, namespaceKind, bare, false)
	switch {
	case err == nil:
		e.succeed(ctx, name, e.former(name), created.UID)
	case !apierrors.IsAlreadyExists(err):
		return fmt.Errorf("create the namespace %s: %w", name, err)
	default: // another client created it, or an answer was lost
		if there, err = n.settled(ctx, e, name); err != nil {
			return err
		}
		if there != nil && e.isOurs(there) {
			e.succeed(ctx, name, e.former(name), there.GetUID())
		}
	}
	e.report.warn(subject{resource: "namespaces", name: name}, "it was created without labels and annotations, since the restore does not include it")
	return nil
}

func (e *execution) awaitAccount(ctx context.Context, namespace string) error {
	waiting := waits.For(ctx, namespace, fmt.Sprintf("the ServiceAccount default in %s, without which no pod can be created", namespace))
	defer waiting.End()
	for deadline := e.Clock.Now().Add(accountTimeout); ; {
		page, _, err := e.reader.list(ctx, accountKind, namespace, "metadata.name=default", "")
		if err != nil {
			return fmt.Errorf("find the ServiceAccount default: %w", err)
		}
		if len(page) > 0 || e.Clock.Now().After(deadline) {
			return nil // creating a pod reports what is missing
		}
		if err := sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
}

func (e *execution) await(ctx context.Context, node *graph.Node) error {
	if e.spec.PlanOnly {
		return nil
	}
	about := e.subject(node.Item)
	switch node.Wait {
	case graph.WaitServed:
		if node.Item.APIGroup != extensionsGroup { // an APIService, called VERSION.GROUP
			version, group, _ := strings.Cut(about.name, ".")
			return e.kinds.awaitServed(ctx, schema.GroupVersion{Group: group, Version: version}, "")
		}
		return e.awaitServed(ctx, about.name)
	case graph.WaitReady:
		if err := e.awaitEndpoint(ctx, about.namespace, about.name); err != nil && ctx.Err() == nil {
			e.report.warn(about, err.Error())
		}
	}
	return nil
}

func (e *execution) define(content *unstructured.Unstructured) {
	if e.spec.PlanOnly {
		e.kinds.promise(content)
		return
	}
	group, _, _ := unstructured.NestedString(content.Object, "spec", "group")
	e.mu.Lock()
	defer e.mu.Unlock()
	e.defined[group] = true
	e.definitions[content.GetName()] = slices.Sorted(maps.Keys(servedVersions(content)))
}

func (e *execution) isDefined(group string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.defined[group]
}

func (e *execution) awaitServed(ctx context.Context, name string) error {
	e.mu.Lock()
	versions := e.definitions[name]
	e.mu.Unlock()
	plural, group, _ := strings.Cut(name, ".")
	for _, version := range versions {
		if err := e.kinds.awaitServed(ctx, schema.GroupVersion{Group: group, Version: version}, plural); err != nil {
			return err
		}
	}
	return nil
}

// awaitEndpoint waits until a Service answers, before the cluster depends on it.
func (e *execution) awaitEndpoint(ctx context.Context, namespace, name string) error {
	waiting := waits.For(ctx, namespace, fmt.Sprintf("a ready endpoint of the Service %s in %s, which a webhook or an aggregated API needs", name, namespace))
	defer waiting.End()
	for deadline := e.Clock.Now().Add(endpointsTimeout); ; {
		ready, err := e.hasEndpoint(ctx, namespace, name)
		if err != nil || ready {
			return err
		}
		if e.Clock.Now().After(deadline) {
			return fmt.Errorf("it has had no ready endpoint for %s: until it has, the requests to the cluster fail that go to it", endpointsTimeout)
		}
		if err := sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
}

func (e *execution) hasEndpoint(ctx context.Context, namespace, name string) (bool, error) {
	page, err := e.reader.labelled(ctx, slicesKind, namespace, "kubernetes.io/service-name="+name)
	if err != nil {
		return false, fmt.Errorf("find its endpoints: %w", err)
	}
	for _, raw := range page {
		var slice discoveryv1.EndpointSlice
		if err := json.Unmarshal(raw, &slice); err != nil {
			return false, err
		}
		for _, endpoint := range slice.Endpoints {
			if ptr.Deref(endpoint.Conditions.Ready, true) {
				return true, nil
			}
		}
	}
	return false, nil
}
