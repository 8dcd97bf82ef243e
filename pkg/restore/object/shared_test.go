// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestBoth: what serves the namespace of the backup serves the mapped one besides, or is told of where
// it can serve only one.
func TestBoth(t *testing.T) {
	for name, test := range map[string]struct{ resource, object, want, single string }{
		"a binding": {"clusterrolebindings.rbac.authorization.k8s.io", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: a}, subjects: [{kind: Group, name: "system:serviceaccounts:shop"}, {kind: User, name: bob}]}`,
			`{subjects: [{kind: Group, name: "system:serviceaccounts:shop"}, {kind: User, name: bob}, {kind: Group, name: "system:serviceaccounts:shop-copy"}]}`, ""},
		"a role": {"clusterroles.rbac.authorization.k8s.io", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: a}, rules: [{resources: [namespaces], resourceNames: [shop], verbs: [get]}]}`,
			`{rules: [{resources: [namespaces], resourceNames: [shop], verbs: [get]}, {resources: [namespaces], resourceNames: [shop-copy], verbs: [get]}]}`, ""},
		"a policy": {"networkpolicies.networking.k8s.io", `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a, namespace: other}, spec: {ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}}]}]}}`,
			`{spec: {ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}}, {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop-copy}}}]}]}}`, ""},
		"a route": {"httproutes.gateway.networking.k8s.io", `{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: a, namespace: other}, spec: {rules: [{backendRefs: [{name: s, namespace: shop}]}]}}`,
			`{spec: {rules: [{backendRefs: [{name: s, namespace: shop}]}]}}`, "spec.rules[0].backendRefs[s].namespace"},
		"a webhook": {"validatingwebhookconfigurations.admissionregistration.k8s.io", `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: a}, webhooks: [{name: w, clientConfig: {service: {namespace: shop}}, namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [shop]}]}}]}`,
			`{webhooks: [{name: w, clientConfig: {service: {namespace: shop}}, namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [shop, shop-copy]}]}}]}`, "webhooks[w].clientConfig.service.namespace"},
		"nothing of it": {"clusterroles.rbac.authorization.k8s.io", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: a}, rules: [{resources: [nodes], resourceNames: [shop], verbs: [get]}]}`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			rules, resource := newRules(t, v1alpha1.RestoreSpec{NamespaceMapping: map[string]string{"shop": "shop-copy"}}, nil, Facts{}), schema.ParseGroupResource(test.resource)
			live := parse(t, test.object)
			if serves := rules.Names(live, resource); serves != (test.want != "") {
				t.Fatalf("it serves the namespace: %t", serves)
			}
			if test.want == "" {
				return
			}
			mapped, _, err := rules.Desired(t.Context(), live.DeepCopy(), resource, nil)
			if err != nil {
				t.Fatal(err)
			}
			unmapped, _, err := rules.Unmapped().Desired(t.Context(), live.DeepCopy(), resource, nil)
			if err != nil {
				t.Fatal(err)
			}
			both, single := Both(unmapped, mapped)
			for field, value := range parse(t, `{apiVersion: v1, kind: X, `+strings.TrimPrefix(test.want, "{")).Object {
				if diff := cmp.Diff(value, both.Object[field]); diff != "" && field != "apiVersion" && field != "kind" {
					t.Error(diff)
				}
			}
			if got := strings.Join(single, ", "); got != test.single {
				t.Errorf("single is %q, not %q", got, test.single)
			}
			if d := Compare(both, both, nil, ""); d.Action != Equal {
				t.Errorf("it is %+v", d)
			}
		})
	}
}
