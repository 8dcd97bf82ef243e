// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	holdfastclientset "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestBadInput: it is refused at once, with an error that names the field.
func TestBadInput(t *testing.T) {
	t.Parallel()
	existing := labtest.Name("existing")
	lab.Backup(t, existing, "default")
	for name, test := range map[string]struct {
		backup string // name and spec
		fields []string
		code   int
	}{
		"unknown field":         {`unknown {includedNamespace: [default]}`, []string{"spec.includedNamespace"}, http.StatusBadRequest},
		"unknown nested field":  {`unknown {labelSelector: {matchLabel: {a: b}}}`, []string{"spec.labelSelector.matchLabel"}, http.StatusBadRequest},
		"wrong type":            {`wrong {includedNamespaces: default}`, []string{"includedNamespaces"}, http.StatusBadRequest},
		"bad operator":          {`bad {labelSelector: {matchExpressions: [{key: a, operator: Like, values: [b]}]}}`, []string{"spec.labelSelector.matchExpressions[0].operator"}, http.StatusUnprocessableEntity},
		"bad label value":       {`bad {labelSelector: {matchLabels: {a: "not a value"}}}`, []string{"spec.labelSelector.matchLabels"}, http.StatusUnprocessableEntity},
		"bad second selector":   {`bad {orLabelSelectors: [{}, {matchExpressions: [{key: "", operator: Exists}]}]}`, []string{"spec.orLabelSelectors[1].matchExpressions[0].key"}, http.StatusUnprocessableEntity},
		"both selectors":        {`bad {labelSelector: {matchLabels: {a: b}}, orLabelSelectors: [{matchLabels: {a: c}}]}`, []string{"spec.orLabelSelectors"}, http.StatusUnprocessableEntity},
		"bad wildcard":          {`bad {includedNamespaces: [default, "a[b"]}`, []string{"spec.includedNamespaces[1]"}, http.StatusUnprocessableEntity},
		"bad excluded wildcard": {`bad {excludedNamespaces: ["a[b"]}`, []string{"spec.excludedNamespaces[0]"}, http.StatusUnprocessableEntity},
		"name of no namespace":  {`bad {includedNamespaces: [No_Namespace]}`, []string{"spec.includedNamespaces[0]"}, http.StatusUnprocessableEntity},
		"old and new filters":   {`bad {includedResources: [pods], includedNamespaceScopedResources: [pods]}`, []string{"spec.includedNamespaceScopedResources"}, http.StatusUnprocessableEntity},
		"missing location":      {`bad {storageLocation: nowhere}`, []string{"spec.storageLocation", "nowhere"}, http.StatusUnprocessableEntity},
		"cloud snapshots":       {`bad {snapshotVolumes: true}`, []string{"spec.snapshotVolumes"}, http.StatusUnprocessableEntity},
		"negative time to live": {`bad {ttl: -1h}`, []string{"spec.ttl"}, http.StatusUnprocessableEntity},
		"several at once":       {`bad {snapshotVolumes: true, ttl: -1h, storageLocation: nowhere}`, []string{"spec.snapshotVolumes", "spec.ttl", "spec.storageLocation"}, http.StatusUnprocessableEntity},
		"policies of a Secret":  {`bad {resourcePolicy: {kind: Secret, name: x}}`, []string{"spec.resourcePolicy.kind"}, http.StatusUnprocessableEntity},
		"nearly Velero's":       {`bad {uploaderConfig: {parallelFiles: 4}}`, []string{"spec.uploaderConfig.parallelFiles"}, http.StatusBadRequest},
		"snapshots to move":     {`bad {snapshotMoveData: true}`, []string{"spec.snapshotMoveData"}, http.StatusUnprocessableEntity},
		"a pattern in an order": {`bad {orderedResources: {pods: "a/*"}}`, []string{"spec.orderedResources[pods]"}, http.StatusUnprocessableEntity},
		"existing name":         {existing + ` {}`, []string{"metadata.name", existing}, http.StatusConflict},
		"name too long":         {strings.Repeat("n", 64) + ` {}`, []string{"metadata.name"}, http.StatusUnprocessableEntity},
		"name with a dot":       {`a.b {}`, []string{"metadata.name"}, http.StatusUnprocessableEntity},
		"no name":               {`"" {}`, []string{"name"}, http.StatusUnprocessableEntity},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backup, spec, _ := strings.Cut(test.backup, " ")
			body := fmt.Sprintf(manifest, backup, labtest.System, spec)
			// What kubectl sends, whose own check of unknown fields has another wording, and
			// what all others do.
			for _, validation := range []string{metav1.FieldValidationStrict, ""} {
				status := create(t, body, validation)
				if int(status.Code) != test.code {
					t.Errorf("validated as %q it is answered with %d, not %d: %s", validation, status.Code, test.code, status.Message)
				}
				var causes []string
				if status.Details != nil {
					for _, cause := range status.Details.Causes {
						causes = append(causes, cause.Field)
					}
				}
				for _, field := range test.fields {
					if !strings.Contains(status.Message, field) && !slices.Contains(causes, field) {
						t.Errorf("%q is not named in %q, nor in %q", field, status.Message, causes)
					}
				}
			}
			// And so do people see it.
			lab.Refused(t, body, []string{"create", "-f", "-"})
		})
	}
	lab.AwaitCompleted(t, existing)
	lab.AwaitRunGone(t, existing)
	// Also when nothing but the store knows the name.
	if status := create(t, fmt.Sprintf(manifest, existing, labtest.System, "{}"), ""); status.Reason != metav1.StatusReasonAlreadyExists {
		t.Errorf("the name of a stored backup is answered with %q: %s", status.Reason, status.Message)
	}
}

// create posts a backup to the system namespace, and returns why it was refused. How its
// fields are to be validated may be empty, which says nothing of it.
func create(t *testing.T, body, validation string) metav1.Status {
	t.Helper()
	request := lab.Holdfast.HoldfastV1alpha1().RESTClient().Post().Namespace(labtest.System).Resource("backups")
	if validation != "" {
		request.Param("fieldValidation", validation)
	}
	err := request.SetHeader("Content-Type", "application/yaml").Body([]byte(body)).Do(t.Context()).Error()
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		t.Fatalf("creating %s: %v", body, err)
	}
	return status.Status()
}

// as is a client of another user.
func as(t *testing.T, user string) holdfastclientset.Interface {
	t.Helper()
	config := rest.CopyConfig(lab.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	client, err := holdfastclientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestTenant: who may edit a namespace backs it up and sees its backups, and
// reaches nothing else.
func TestTenant(t *testing.T) {
	t.Parallel()
	user, own, foreign := labtest.Name("ann"), lab.Namespace(t, "own"), lab.Namespace(t, "foreign")
	lab.Grant(t, user, "edit", own)
	ann := []string{"--as=" + user}
	kubectl := func(args ...string) []string { return append(slices.Clone(ann), args...) }
	makes := func(namespace, name, spec string) (string, []string) {
		return fmt.Sprintf(manifest, name, namespace, spec), kubectl("create", "-f", "-")
	}

	body, args := makes(own, "mine", "{}")
	if _, stderr, err := lab.TryKubectl(t, body, args...); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	lab.Kubectl(t, kubectl("wait", "-n", own, "--for=condition=Succeeded", "--timeout=120s", "backup/mine")...)
	for _, resource := range resources {
		lab.Kubectl(t, kubectl("get", resource, "-n", own)...)
		lab.Refused(t, "", kubectl("get", resource, "-n", foreign), "Forbidden", foreign)
		lab.Refused(t, "", kubectl("get", resource, "-A"), "Forbidden", "cluster scope")
	}
	backup, err := as(t, user).HoldfastV1alpha1().Backups(own).Get(t.Context(), "mine", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := backup.Spec.IncludedNamespaces; len(got) != 1 || got[0] != own || backup.Status.Requester != user {
		t.Errorf("the backup includes %v, and was asked for by %q", got, backup.Status.Requester)
	}
	// The records, and the store's whereabouts, are none of their business.
	for _, resource := range []string{"backupruns", "volumeuploads", "volumerepositories", "storagelocations"} {
		lab.Refused(t, "", kubectl("get", resource+".engine.holdfast.io", "-n", labtest.System), "Forbidden")
	}
	for name, test := range map[string]struct {
		namespace, spec string
		want            []string
	}{
		"another namespace":            {own, fmt.Sprintf("{includedNamespaces: [%s, %s]}", own, foreign), []string{foreign, "spec.includedNamespaces"}},
		"only another namespace":       {own, fmt.Sprintf("{includedNamespaces: [%s]}", foreign), []string{foreign, "spec.includedNamespaces"}},
		"a namespace not yet there":    {own, "{includedNamespaces: [of-tomorrow]}", []string{"of-tomorrow", "spec.includedNamespaces"}},
		"a pattern":                    {own, fmt.Sprintf(`{includedNamespaces: ["%s*"]}`, own), []string{"all namespaces", own + "*"}},
		"all namespaces":               {own, `{includedNamespaces: ["*"]}`, []string{"all namespaces"}},
		"cluster-scoped resources":     {own, "{includeClusterResources: true}", []string{"all namespaces", "cluster-scoped"}},
		"named cluster-scoped kinds":   {own, "{includedClusterScopedResources: [nodes]}", []string{"all namespaces", "cluster-scoped"}},
		"a backup elsewhere":           {foreign, "{}", []string{foreign}},
		"a backup as an administrator": {labtest.System, "{}", []string{labtest.System}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body, args := makes(test.namespace, labtest.Name("refused"), test.spec)
			lab.Refused(t, body, args, append(test.want, "Forbidden", user)...)
			lab.Refused(t, body, append(args, "--dry-run=server"), "Forbidden")
		})
	}
}

// TestViewer: who may look at a namespace sees its backups and makes none.
func TestViewer(t *testing.T) {
	t.Parallel()
	user, namespace := labtest.Name("eve"), lab.Namespace(t, "viewed")
	lab.Grant(t, user, "view", namespace)
	if _, err := as(t, user).HoldfastV1alpha1().Backups(namespace).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	_, err := as(t, user).HoldfastV1alpha1().Backups(namespace).Create(t.Context(), &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Name: "refused"}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("creating a backup: %v", err)
	}
}

// TestRevokedRight: a right counts at the moment of the request.
func TestRevokedRight(t *testing.T) {
	t.Parallel()
	user, own, second := labtest.Name("ann"), lab.Namespace(t, "own"), lab.Namespace(t, "second")
	inOwn, inSecond := lab.Grant(t, user, "edit", own), lab.Grant(t, user, "edit", second)
	backups := as(t, user).HoldfastV1alpha1().Backups(own)
	try := func(namespaces ...string) error {
		_, err := backups.Create(t.Context(), &v1alpha1.Backup{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "both-"},
			Spec:       v1alpha1.BackupSpec{IncludedNamespaces: namespaces},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	labtest.Eventually(t, "the rights to be known", func() error { return try(own, second) })
	revoke := func(namespace, binding string) {
		t.Helper()
		if err := lab.Kube.RbacV1().RoleBindings(namespace).Delete(context.Background(), binding, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(namespace string, namespaces ...string) {
		t.Helper()
		labtest.Eventually(t, "the refusal in "+namespace, func() error {
			if err := try(namespaces...); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), namespace) {
				return fmt.Errorf("the answer is %v", err)
			}
			return nil
		})
	}
	revoke(second, inSecond)
	refused(second, own, second)
	if err := try(own); err != nil {
		t.Errorf("the own namespace alone: %v", err)
	}
	revoke(own, inOwn)
	refused(own, own)
	if _, err := backups.List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("listing: %v", err)
	}
}
