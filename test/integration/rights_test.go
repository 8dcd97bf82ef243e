// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/holdfast-io/holdfast/pkg/cli"
	"github.com/holdfast-io/holdfast/pkg/noderestriction"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// right is that an account may do something: a verb on a resource somewhere.
type right struct {
	account, place, verb string
	// group and resource may be "*"; a resource has its subresource behind a slash. A
	// path is a resource that begins with a slash.
	group, resource string
	// name is of the one object that is meant; empty: all.
	name string
}

func (r right) String() string {
	resource, sub, _ := strings.Cut(r.resource, "/")
	if resource == "" {
		return fmt.Sprintf("%s, in %s: %s %s", r.account, r.place, r.verb, r.resource)
	}
	if r.group != "" {
		resource += "." + r.group
	}
	if sub != "" {
		resource += "/" + sub
	}
	if r.name != "" {
		resource += " (" + r.name + ")"
	}
	return fmt.Sprintf("%s, in %s: %s %s", r.account, r.place, r.verb, resource)
}

// everywhere is the place of rights that hold in all namespaces and outside of them.
const everywhere = "cluster"

// accounts are those of the roles, and the namespaces of their pods: all service accounts that
// there are in Holdfast's namespaces, but for those that Kubernetes makes in each.
var accounts = map[string]string{
	"holdfast-controller":       labtest.System,
	"holdfast-apiserver":        labtest.System,
	"holdfast-node-agent":       labtest.System + "-agents",
	"holdfast-repo-maintenance": labtest.System + "-maintenance",
	"holdfast-restore":          labtest.System,
}

// impersonator is the role by which the controller acts for others; it is in the table of
// the accounts.
const impersonator = "holdfast-impersonator"

// TestRights asks the cluster what each account may do, and compares the answer
// with the table in docs/security.md, in both directions.
func TestRights(t *testing.T) {
	t.Parallel()
	documented := documentedRights(t, "account")
	granted := sets.New[right]()
	all, err := lab.Kube.CoreV1().ServiceAccounts(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, account := range all.Items {
		if account.Namespace != labtest.System && !strings.HasPrefix(account.Namespace, labtest.System+"-") {
			continue
		}
		// Who is not in the table has no rights.
		granted.Insert(rightsOf(t, account.Name, account.Namespace)...)
		if account.Name != "default" {
			found[account.Name] = account.Namespace
		}
	}
	if !maps.Equal(found, accounts) {
		t.Errorf("the service accounts are %v, and these are asked about: %v", found, accounts)
	}
	if compare(t, documented, granted) {
		askForEach(t, documented)
	}
}

// TestTrustBundlesAreRestored: an administrator's restore may create the authorities of any signer,
// in a Kubernetes that has ClusterTrustBundles: 1.37 does, and 1.34 does not.
func TestTrustBundlesAreRestored(t *testing.T) {
	t.Parallel()
	resources := lab.Kubectl(t, "api-resources", "--api-group=certificates.k8s.io", "--output=name")
	if !strings.Contains(resources, "clustertrustbundles") {
		return
	}
	authority, err := os.ReadFile(filepath.Join(lab.Dir, "pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := json.Marshal(map[string]any{
		"apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle",
		"metadata": map[string]any{"name": "example.com:mesh:a"},
		"spec":     map[string]any{"signerName": "example.com/mesh", "trustBundle": string(authority)},
	})
	if err != nil {
		t.Fatal(err)
	}
	restore := impersonated("holdfast-restore", labtest.System).UserName
	if _, stderr, err := lab.TryKubectl(t, string(bundle), "create", "--dry-run=server", "--as="+restore, "-f", "-"); err != nil {
		t.Errorf("%v: %s", err, stderr)
	}
}

// TestNodeRestrictionIsSeenByOneCommand: by a command of docs/security.md an administrator sees that
// nodes can create mirror pods only. Nothing is created.
func TestNodeRestrictionIsSeenByOneCommand(t *testing.T) {
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	command := "run check -n holdfast-agents --image=none --dry-run=server --as=system:node:check --as-group=system:nodes"
	if !strings.Contains(string(page), "    kubectl "+command+"\n") {
		t.Errorf("docs/security.md does not have the command %q", command)
	}
	lab.Refused(t, "", strings.Fields(command), "can only create mirror pods")
}

// TestNodeRestrictionIsOff: the controller's account finds out whether the plugin is on. Without it an
// event says so, the doctor too, and backups go on.
func TestNodeRestrictionIsOff(t *testing.T) {
	const controllerAccount = "holdfast-controller"
	off := lab.KubeAPIServer(t, "--enable-admission-plugins=")
	for path, want := range map[string]noderestriction.State{lab.KubeconfigOf(controllerAccount): noderestriction.On, off(controllerAccount): noderestriction.Off} {
		config, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := noderestriction.Check(t.Context(), config, labtest.System); got != want {
			t.Errorf("with %s: got %s, %v, want %s", path, got, err, want)
		}
	}
	stdout, _, code := plugin(t, "", "doctor", "--kubeconfig="+off(""))
	if code != cli.ExitFailed || !strings.Contains(strings.Join(strings.Fields(stdout), " "), "its admission plugin NodeRestriction is off") {
		t.Errorf("the doctor ends with %d: %s", code, stdout)
	}

	told := func() (notes []string) {
		list, err := lab.Kube.EventsV1().Events(labtest.System).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=NodeRestrictionOff"})
		if err != nil {
			t.Fatal(err)
		}
		for _, event := range list.Items {
			notes = append(notes, event.Note)
		}
		return notes
	}
	if notes := told(); len(notes) > 0 {
		t.Errorf("told with the plugin: %q", notes)
	}
	lab.Reconfigure(t, "--kubeconfig="+off(controllerAccount))
	labtest.Eventually(t, "the event", func() error {
		if notes := told(); len(notes) != 1 || !strings.Contains(notes[0], "lacks the admission plugin NodeRestriction") {
			return fmt.Errorf("got %q", notes)
		}
		return nil
	})
	name := labtest.Name("unrestricted")
	lab.Backup(t, name, lab.Namespace(t, "unrestricted"))
	lab.AwaitCompleted(t, name)
}

// TestRoles compares what people may do with the other table in docs/security.md.
func TestRoles(t *testing.T) {
	t.Parallel()
	granted := sets.New[right]()
	add := func(role, place string, rules []rbacv1.PolicyRule) {
		for _, rule := range rules {
			found := sets.New[right]()
			addRules(found, rule.Verbs, rule.APIGroups, rule.Resources, rule.ResourceNames, rule.NonResourceURLs)
			for r := range found {
				r.account, r.place = role, place
				// Of the cluster's own roles, what they have from us.
				if strings.HasPrefix(role, "holdfast-") || strings.HasSuffix(r.group, "holdfast.io") {
					granted.Insert(r)
				}
			}
		}
	}
	clusterRoles, err := lab.Kube.RbacV1().ClusterRoles().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range clusterRoles.Items {
		if accounts[role.Name] == "" && role.Name != impersonator {
			add(role.Name, "where it is bound", role.Rules)
		}
	}
	roles, err := lab.Kube.RbacV1().Roles(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range roles.Items {
		if accounts[role.Name] == "" && role.Name != impersonator {
			add(role.Name, role.Namespace, role.Rules)
		}
	}
	compare(t, documentedRights(t, "role"), granted)
}

// TestOperators binds somebody as docs/security.md says, and has them do what the pages say that
// an operator does. They read no Secret, and run no pod.
func TestOperators(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	binding := regexp.MustCompile(`(?s)\n( +for n in [^\n]*; do\n.*?\n +done\n +kubectl create clusterrolebinding holdfast-operators[^\n]*)`).FindStringSubmatch(string(page))
	if binding == nil {
		t.Fatal("docs/security.md does not say how to bind operators")
	}
	kubectl := lab.Command(t.Context())
	bind := exec.CommandContext(t.Context(), "bash", "-o", "errexit", "-c", binding[1])
	bind.Env = append(kubectl.Env, "PATH="+filepath.Dir(kubectl.Path)+":"+os.Getenv("PATH"))
	if output, err := bind.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", binding[1], err, output)
	}
	as := []string{"--as=" + labtest.Name("otto"), "--as-group=backup-operators", "--as-group=system:authenticated"}
	labtest.Eventually(t, "the rights of operators", func() error {
		_, stderr, err := lab.TryKubectl(t, "", append([]string{"get", "nodeagents"}, as...)...)
		if err != nil {
			return fmt.Errorf("%w: %s", err, stderr)
		}
		return nil
	})
	backup := labtest.Name("of-an-operator")
	lab.Backup(t, backup, "default")
	lab.AwaitCompleted(t, backup)
	for _, command := range []string{
		"get hfb -A -o wide", "get backupqueue -A", "get hfr -A", "get hfs -A", "get hfv -A", "get volumebackups -A", "get holdfast -A", "get holdfast-admin -n holdfast",
		"get storagelocations -n holdfast", "get volumerepositories -n holdfast -o wide", "get volumeuploads -n holdfast", "get backupruns -n holdfast",
		"get nodeagents -o wide", "get configmap -n holdfast holdfast-identity", "get lease,endpointslices -n holdfast",
		"get events,pods -n holdfast", "get events,pods -n holdfast-agents", "get events,pods,jobs -n holdfast-maintenance",
		"describe hfb -n holdfast " + backup, "get --raw " + api + "/namespaces/holdfast/backups/" + backup + "/log", "get --raw " + api + "/namespaces/holdfast/backups/" + backup + "/results",
		"annotate storagelocation default -n holdfast --dry-run=server holdfast.io/sync-request=now",
	} {
		if _, stderr, err := lab.TryKubectl(t, "", append(strings.Fields(command), as...)...); err != nil {
			t.Errorf("kubectl %s: %v: %s", command, err, stderr)
		}
	}
	for question, want := range map[string]string{
		"get pods --subresource=log -n holdfast": "yes", "get pods --subresource=log -n holdfast-agents": "yes", "get pods --subresource=log -n holdfast-maintenance": "yes",
		"patch configmaps/holdfast-node-agent -n holdfast": "yes", "update configmaps/holdfast-repo-maintenance -n holdfast": "yes",
		"create maintenancerequests.holdfast.io -n holdfast": "yes", "create secrets -n holdfast-locations": "yes",
		"patch configmaps/holdfast-queue -n holdfast": "no", "create pods -n holdfast-agents": "no", "create pods --subresource=exec -n holdfast": "no",
		"get secrets -n holdfast": "no", "get secrets -n holdfast-locations": "no", "list secrets -n holdfast-repositories": "no", "get secrets -A": "no",
		"get pods -A": "no", "get backups.holdfast.io --subresource=manifest -A": "no", "create backups.holdfast.io --subresource=deletion -A": "no", "create restores.holdfast.io -n holdfast": "no",
	} {
		// For no, the exit code is 1.
		if stdout, stderr, _ := lab.TryKubectl(t, "", append(append([]string{"auth", "can-i"}, strings.Fields(question)...), as...)...); strings.TrimSpace(stdout) != want {
			t.Errorf("whether operators may %s: %s%s, want %s", question, stdout, stderr, want)
		}
	}
}

func compare(t *testing.T, documented, granted sets.Set[right]) bool {
	t.Helper()
	for _, r := range sorted(granted.Difference(documented)) {
		t.Errorf("docs/security.md does not list: %s", r)
	}
	for _, r := range sorted(documented.Difference(granted)) {
		t.Errorf("docs/security.md lists what the cluster refuses: %s", r)
	}
	return documented.Equal(granted)
}

func sorted(rights sets.Set[right]) []right {
	return slices.SortedFunc(maps.Keys(rights), func(a, b right) int { return strings.Compare(a.String(), b.String()) })
}

// documentedRights are those in a table of docs/security.md: that whose first column
// has the title.
func documentedRights(t *testing.T, title string) sets.Set[right] {
	t.Helper()
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	found := sets.New[right]()
	inTable := false
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.ReplaceAll(strings.TrimSpace(cells[i]), "`", "")
		}
		switch {
		case len(cells) < 4:
			inTable = false
		case cells[1] == "where":
			inTable = cells[0] == title
		case !inTable || strings.HasPrefix(cells[0], "---"):
		default:
			for what := range strings.SplitSeq(cells[2], ", ") {
				what, name, _ := strings.Cut(strings.TrimSuffix(what, ")"), " (")
				resource, group := what, ""
				if !strings.HasPrefix(what, "/") {
					var sub string
					resource, sub, _ = strings.Cut(what, "/")
					resource, group, _ = strings.Cut(resource, ".")
					resource = strings.TrimSuffix(resource+"/"+sub, "/")
				}
				for verb := range strings.SplitSeq(cells[3], " ") {
					for who := range strings.SplitSeq(cells[0], ", ") {
						found.Insert(right{who, cells[1], verb, group, resource, name})
					}
				}
			}
		}
	}
	if len(found) == 0 {
		t.Fatalf("docs/security.md has no table of the rights of each %s", title)
	}
	return found
}

func impersonated(account, namespace string) rest.ImpersonationConfig {
	return rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":" + account,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
}

// commonRights are what every service account may, as one of a namespace with this name.
func commonRights(t *testing.T) (namespace string, rights sets.Set[right]) {
	t.Helper()
	namespace = labtest.Name("nowhere")
	rights = rules(t, impersonated("default", namespace), namespace)
	for of := range rights {
		if !strings.HasPrefix(of.resource, "/") && !commonResources.Has(of.resource) {
			t.Errorf("every service account has a right that Kubernetes gives to none: %s", of)
		}
	}
	return namespace, rights
}

// commonResources are what Kubernetes lets every service account ask about itself, or read.
var commonResources = sets.New("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews", "clustertrustbundles")

// rightsOf are the rights of a service account in all namespaces, without those
// that every service account has.
func rightsOf(t *testing.T, account, namespace string) []right {
	t.Helper()
	all, err := lab.Kube.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	plain, common := commonRights(t)
	wide := rules(t, impersonated(account, namespace), plain).Difference(common)
	var found []right
	add := func(place string, rights sets.Set[right]) {
		for r := range rights {
			r.account, r.place = account, place
			found = append(found, r)
		}
	}
	add(everywhere, wide)
	for _, n := range all.Items {
		add(n.Name, rules(t, impersonated(account, namespace), n.Name).Difference(common).Difference(wide))
	}
	return found
}

// rules are what the cluster says that a user may do in a namespace, without account
// and place.
func rules(t *testing.T, user rest.ImpersonationConfig, namespace string) sets.Set[right] {
	t.Helper()
	config := rest.CopyConfig(lab.Config)
	config.Impersonate = user
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	review, err := client.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if review.Status.Incomplete {
		t.Fatalf("the rights of %s are not known: %s", user.UserName, review.Status.EvaluationError)
	}
	found := sets.New[right]()
	for _, rule := range review.Status.ResourceRules {
		addRules(found, rule.Verbs, rule.APIGroups, rule.Resources, rule.ResourceNames, nil)
	}
	for _, rule := range review.Status.NonResourceRules {
		addRules(found, rule.Verbs, nil, nil, nil, rule.NonResourceURLs)
	}
	return found
}

// addRules adds what a rule allows, one by one.
func addRules(to sets.Set[right], verbs, groups, resources, names, paths []string) {
	if len(names) == 0 {
		names = []string{""}
	}
	for _, verb := range verbs {
		for _, path := range paths {
			to.Insert(right{verb: verb, resource: path})
		}
		for _, group := range groups {
			for _, resource := range resources {
				for _, name := range names {
					to.Insert(right{verb: verb, group: group, resource: resource, name: name})
				}
			}
		}
	}
}

// askForEach asks the cluster about every resource and subresource that it serves,
// with every verb, in our namespaces, one of somebody else, kube-system, and outside of
// namespaces. What the table allows must be allowed, and nothing else: this reads
// the table as RBAC does, wildcards included.
func askForEach(t *testing.T, documented sets.Set[right]) {
	_, lists, err := lab.Kube.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	type kind struct {
		group, resource string
		namespaced      bool
	}
	kinds := sets.New[kind]()
	for _, list := range lists {
		group, _, inGroup := strings.Cut(list.GroupVersion, "/")
		if !inGroup {
			group = ""
		}
		for _, served := range list.APIResources {
			kinds.Insert(kind{group, served.Name, served.Namespaced})
		}
	}
	for _, dangerous := range []string{"pods/exec", "pods/proxy", "pods/portforward", "services/proxy", "serviceaccounts/token"} {
		if !kinds.Has(kind{"", dangerous, true}) {
			t.Errorf("the cluster serves no %s: what can't be asked is not tested", dangerous)
		}
	}
	places := []string{"default", metav1.NamespaceSystem}
	for r := range documented {
		if r.place != everywhere && !slices.Contains(places, r.place) {
			places = append(places, r.place)
		}
	}

	_, common := commonRights(t)
	questions := make(chan right)
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() {
			for q := range questions {
				allowed, err := allows(t.Context(), q)
				switch {
				case err != nil:
					t.Errorf("%s: %v", q, err)
				case allowed && !covered(documented, common, q):
					t.Errorf("docs/security.md does not allow: %s", q)
				case !allowed && covered(documented, common, q):
					t.Errorf("docs/security.md allows what the cluster refuses: %s", q)
				}
			}
		})
	}
	asked := 0
	for account := range accounts {
		for k := range kinds {
			verbs := []string{"get", "create", "update", "patch", "delete"}
			if !strings.Contains(k.resource, "/") {
				verbs = append(verbs, "list", "watch", "deletecollection", "impersonate", "bind", "escalate")
			}
			for _, verb := range verbs {
				q := right{account: account, place: everywhere, verb: verb, group: k.group, resource: k.resource}
				questions <- q
				asked++
				if !k.namespaced {
					continue
				}
				for _, q.place = range places {
					questions <- q
					asked++
				}
			}
		}
	}
	close(questions)
	asking.Wait()
	t.Logf("%d questions about %d resources in %v", asked, len(kinds), places)
}

func allows(ctx context.Context, q right) (bool, error) {
	user := impersonated(q.account, accounts[q.account])
	resource, sub, _ := strings.Cut(q.resource, "/")
	attributes := &authorizationv1.ResourceAttributes{Verb: q.verb, Group: q.group, Resource: resource, Subresource: sub}
	if q.place != everywhere {
		attributes.Namespace = q.place
	}
	review, err := lab.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: user.UserName, Groups: user.Groups, ResourceAttributes: attributes},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

func covered(documented, common sets.Set[right], q right) bool {
	if common.Has(right{verb: q.verb, group: q.group, resource: q.resource}) {
		return true
	}
	for _, place := range []string{everywhere, q.place} {
		for _, group := range []string{"*", q.group} {
			_, sub, _ := strings.Cut(q.resource, "/")
			for _, resource := range []string{"*", "*/" + sub, q.resource} {
				if documented.Has(right{q.account, place, q.verb, group, resource, ""}) {
					return true
				}
			}
		}
	}
	return false
}
