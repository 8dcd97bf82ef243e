// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/graph"
)

// Each cluster has its own default classes. A restored one beside them would change the result for
// others, and two default IngressClasses serve nothing.

var defaultMarks = map[string][]string{
	"storageclasses.storage.k8s.io":                 {"storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"},
	"ingressclasses.networking.k8s.io":              {"ingressclass.kubernetes.io/is-default-class"},
	"volumesnapshotclasses.snapshot.storage.k8s.io": {"snapshot.storage.kubernetes.io/is-default-class"},
}

// classOf is the field of an object's class, the former annotation for it, and the class.
var classOf = map[string]struct {
	field, old string
	class      *kind
}{
	"persistentvolumeclaims":      {"storageClassName", "volume.beta.kubernetes.io/storage-class", classKind},
	"ingresses.networking.k8s.io": {"ingressClassName", "kubernetes.io/ingress.class", &kind{group: "networking.k8s.io", version: "v1", resource: "ingressclasses", kind: "IngressClass"}},
}

func isDefaultClass(class *unstructured.Unstructured, marks []string) bool {
	return slices.ContainsFunc(marks, func(mark string) bool { return class.GetAnnotations()[mark] == "true" })
}

// defaultsOf returns the cluster's default classes. The newest is first, and counts.
func (e *execution) defaultsOf(ctx context.Context, k *kind) (found []*unstructured.Unstructured, err error) {
	err = e.reader.each(ctx, k, "", func(raw []byte) error {
		class, err := parseItem(k, raw)
		if err == nil && isDefaultClass(class, defaultMarks[k.name()]) {
			found = append(found, class)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find the default among the %s: %w", k.name(), err)
	}
	slices.SortFunc(found, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(b.GetCreationTimestamp().Compare(a.GetCreationTimestamp().Time), cmp.Compare(a.GetName(), b.GetName()))
	})
	return found, nil
}

// settleDefaults fits an object to the cluster's default classes, and returns a warning.
func (e *execution) settleDefaults(ctx context.Context, k *kind, about subject, desired *unstructured.Unstructured) (warning string, err error) {
	if marks := defaultMarks[k.name()]; isDefaultClass(desired, marks) {
		others, err := e.defaultsOf(ctx, k)
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(others, func(class *unstructured.Unstructured) bool { return class.GetName() == desired.GetName() }) {
			return "", nil // it is one already
		}
		i := slices.IndexFunc(others, func(class *unstructured.Unstructured) bool {
			return !e.isOurs(class) && class.Object["driver"] == desired.Object["driver"]
		})
		if i < 0 {
			return "", nil
		}
		annotations := desired.GetAnnotations()
		for _, mark := range marks {
			delete(annotations, mark)
		}
		desired.SetAnnotations(annotations)
		return fmt.Sprintf("it was the default one, and is not any more, since this cluster has the default %s", others[i].GetName()), nil
	}
	names, ok := classOf[k.name()]
	if !ok || desired.GetAnnotations()[names.old] != "" {
		return "", nil
	}
	if _, named, _ := unstructured.NestedString(desired.Object, "spec", names.field); named {
		return "", nil
	}
	defaults, err := e.defaultsOf(ctx, names.class)
	if err != nil || len(defaults) == 0 {
		return "", err
	}
	live, err := e.seen(ctx, k, about)
	if err != nil || live != nil && !e.isOurs(live) {
		return "", err
	}
	if volume, keeps, _ := unstructured.NestedString(desired.Object, "spec", "volumeName"); keeps && volume != "" {
		// Its volume has no class either, and would not fit a claim with one.
		return "", unstructured.SetNestedField(desired.Object, "", "spec", names.field)
	}
	return fmt.Sprintf("it names no class, and this cluster gives it its default one, %s", defaults[0].GetName()), nil
}

// lacksAccount says why a token can't be restored: Kubernetes deletes one without its account.
func (e *execution) lacksAccount(ctx context.Context, item *manifest.Item, about subject, secret *unstructured.Unstructured) (string, error) {
	if item.APIGroup != "" || item.KindName != "Secret" || secret.Object["type"] != string(corev1.SecretTypeServiceAccountToken) {
		return "", nil
	}
	name := secret.GetAnnotations()[corev1.ServiceAccountNameKey]
	if name == "" || name == "default" || e.spec.PlanOnly && e.restores("ServiceAccount", item.Namespace, name) {
		return "", nil
	}
	account, err := e.seen(ctx, accountKind, subject{accountKind.resource, about.namespace, name})
	if err != nil {
		return "", fmt.Errorf("find its account: %w", err)
	}
	if account != nil {
		return "", nil
	}
	return fmt.Sprintf("its account %s is not there, and Kubernetes deletes a token without an account: restore the account with it", name), nil
}

func (e *execution) restores(kind, namespace, name string) bool {
	return slices.ContainsFunc(e.graph.Nodes, func(node graph.Node) bool {
		return node.Item != nil && node.Item.APIGroup == "" && node.Item.KindName == kind && node.Item.Namespace == namespace && node.Item.Name == name
	})
}
