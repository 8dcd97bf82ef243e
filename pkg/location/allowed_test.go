// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package location

import (
	"context"
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// TestAllowed: a location is for the namespaces that it names or selects. The default one is for
// all if it says nothing, and another one for the system namespace alone.
func TestAllowed(t *testing.T) {
	type names = enginev1alpha1.AllowedNamespaces
	gold := &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}
	for name, test := range map[string]struct {
		isDefault bool
		allowed   *names
		to        []string
		not       []string
	}{
		"the default":        {isDefault: true, to: []string{"holdfast", "shop", "golden"}},
		"another":            {to: []string{"holdfast"}, not: []string{"shop", "golden"}},
		"a default for some": {isDefault: true, allowed: &names{Names: []string{"shop"}}, to: []string{"holdfast", "shop"}, not: []string{"golden", "shopping"}},
		"for none":           {isDefault: true, allowed: &names{}, to: []string{"holdfast"}, not: []string{"shop", "golden"}},
		"for all":            {allowed: &names{Names: []string{"*"}}, to: []string{"holdfast", "shop", "golden"}},
		"by labels":          {allowed: &names{Selector: gold}, to: []string{"holdfast", "golden"}, not: []string{"shop", "gone"}},
		"by both":            {allowed: &names{Names: []string{"shop"}, Selector: gold}, to: []string{"shop", "golden"}, not: []string{"web"}},
		"by all labels":      {allowed: &names{Selector: &metav1.LabelSelector{}}, to: []string{"shop", "golden"}},
	} {
		location := &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: "there"}}
		location.Spec.Default, location.Spec.AllowedNamespaces = test.isDefault, test.allowed
		asked := func(namespace string) error {
			return Allowed(t.Context(), location, namespace, func(_ context.Context, name string) (map[string]string, error) {
				switch name {
				case "gone":
					return nil, errors.New("no such namespace")
				case "golden":
					return map[string]string{"tier": "gold"}, nil
				}
				return map[string]string{"tier": "tin"}, nil
			})
		}
		for _, namespace := range test.to {
			if err := asked(namespace); err != nil {
				t.Errorf("%s: %s: %v", name, namespace, err)
			}
		}
		for _, namespace := range test.not {
			err := asked(namespace)
			if namespace != "gone" && !errors.Is(err, ErrNotAllowed) || err == nil || !strings.Contains(err.Error(), namespace) {
				t.Errorf("%s: %s: %v", name, namespace, err)
			}
		}
	}
}
