// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package architecture

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// impersonationRules are those that the component gives the controller, by the kind of the role.
func impersonationRules(t *testing.T) map[string][]rbacv1.PolicyRule {
	t.Helper()
	file, err := os.ReadFile("../../artifacts/components/constrained-impersonation/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var component struct {
		Patches []struct {
			Target struct{ Kind, Name string }
			Patch  string
		}
	}
	if err := yaml.UnmarshalStrict(file, &struct {
		APIVersion, Kind string
		Patches          any
	}{}); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(file, &component); err != nil {
		t.Fatal(err)
	}
	rules := map[string][]rbacv1.PolicyRule{}
	for _, patch := range component.Patches {
		var operations []struct {
			Op, Path string
			Value    []rbacv1.PolicyRule
		}
		if err := yaml.UnmarshalStrict([]byte(patch.Patch), &operations); err != nil {
			t.Fatal(err)
		}
		if patch.Target.Name != "holdfast-impersonator" || len(operations) != 1 || operations[0].Op != "replace" || operations[0].Path != "/rules" {
			t.Fatalf("it patches %+v by %+v", patch.Target, operations)
		}
		rules[patch.Target.Kind] = operations[0].Value
	}
	return rules
}

// TestConstrainedImpersonation asks the filter of a kube-apiserver that has it what the controller may
// do as others by the rules of the component, which are all that it has.
func TestConstrainedImpersonation(t *testing.T) {
	rules := impersonationRules(t)
	allows := func(rules []rbacv1.PolicyRule, a authorizer.Attributes) bool {
		has := func(list []string, value string) bool {
			return slices.Contains(list, value) || slices.Contains(list, "*")
		}
		resource := a.GetResource()
		if a.GetSubresource() != "" {
			resource += "/" + a.GetSubresource()
		}
		return a.IsResourceRequest() && slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool {
			return slices.Contains(rule.Verbs, a.GetVerb()) && has(rule.APIGroups, a.GetAPIGroup()) && has(rule.Resources, resource) &&
				(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, a.GetName()))
		})
	}
	const controller = "system:serviceaccount:holdfast:holdfast-controller"
	rbac := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser().GetName() == controller && (allows(rules["ClusterRole"], a) || a.GetNamespace() == "holdfast" && allows(rules["Role"], a)) {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	})
	var actsAs user.Info
	handler := impersonation.WithConstrainedImpersonation(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		actsAs, _ = genericapirequest.UserFrom(r.Context())
	}), rbac, scheme.Codecs.WithoutConversion())
	asController := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r.WithContext(genericapirequest.WithUser(r.Context(), &user.DefaultInfo{Name: controller})))
	})
	chain := genericapifilters.WithRequestInfo(asController, &genericapirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")})

	const pods, custom = "/api/v1/namespaces/shop/pods", "/apis/example.com/v1/namespaces/shop/things"
	ann := http.Header{"Impersonate-User": {"ann"}, "Impersonate-Uid": {"7"}, "Impersonate-Group": {"shop", "developers", "a", "b", "c"}, "Impersonate-Extra-Scopes.example.com%2fscope": {"read"}}
	restore := http.Header{"Impersonate-User": {"system:serviceaccount:holdfast:holdfast-restore"}}
	for name, test := range map[string]struct {
		as           http.Header
		method, path string
		may          bool
	}{
		"a requester gets":                       {ann, "GET", custom + "/a", true},
		"a requester lists":                      {ann, "GET", pods, true},
		"a requester creates":                    {ann, "POST", custom, true},
		"a requester patches":                    {ann, "PATCH", pods + "/a", true},
		"a requester deletes":                    {ann, "DELETE", pods + "/a", true},
		"a requester's hook":                     {ann, "POST", pods + "/a/exec", true},
		"a requester updates":                    {ann, "PUT", pods + "/a", false},
		"a requester watches":                    {ann, "GET", pods + "?watch=1", false},
		"a requester deletes all":                {ann, "DELETE", pods, false},
		"the account of restores creates":        {restore, "POST", custom, true},
		"the account of restores updates":        {restore, "PUT", pods + "/a", false},
		"a member of system:masters":             {http.Header{"Impersonate-User": {"root"}, "Impersonate-Group": {"system:masters"}}, "GET", pods + "/a", false},
		"a node":                                 {http.Header{"Impersonate-User": {"system:node:n"}}, "GET", pods + "/a", false},
		"a node by its group":                    {http.Header{"Impersonate-User": {"system:node:n"}, "Impersonate-Group": {"system:nodes"}}, "GET", pods + "/a", false},
		"another account":                        {http.Header{"Impersonate-User": {"system:serviceaccount:kube-system:deployer"}}, "GET", pods + "/a", false},
		"another account, as a requester is":     {http.Header{"Impersonate-User": {"system:serviceaccount:shop:ci"}, "Impersonate-Uid": {"7"}, "Impersonate-Group": {"system:serviceaccounts"}}, "GET", pods + "/a", false},
		"an account of the name, in another one": {http.Header{"Impersonate-User": {"system:serviceaccount:shop:holdfast-restore"}}, "GET", pods + "/a", false},
	} {
		t.Run(name, func(t *testing.T) {
			actsAs = nil
			request := httptest.NewRequest(test.method, test.path, nil)
			request.Header = test.as.Clone()
			recorder := httptest.NewRecorder()
			chain.ServeHTTP(recorder, request)
			if may := recorder.Code == http.StatusOK && actsAs != nil; may != test.may {
				t.Fatalf("it is answered with %d: %s", recorder.Code, recorder.Body)
			}
			if test.may && actsAs.GetName() != test.as.Get("Impersonate-User") {
				t.Errorf("it acts as %v", actsAs)
			}
		})
	}
}
