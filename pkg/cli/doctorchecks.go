// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/utils/ptr"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/noderestriction"
)

const (
	// As the alert HoldfastCertificateExpires.
	certificateEnds = 21 * 24 * time.Hour
	// A Lease of a live process is renewed every few seconds.
	leaseIsOld = time.Minute
	// As the alert HoldfastQueueStuck.
	queueIsStuck = 5 * time.Minute
	// A due backup is requested within seconds.
	scheduleIsLate = 10 * time.Minute
	oldestServer   = "1.34.0"
	shownNames     = 5
)

type apiService struct {
	Spec struct {
		Service  *struct{ Namespace, Name string } `json:"service"`
		CABundle []byte                            `json:"caBundle"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

func apiServiceName() string {
	return v1alpha1.SchemeGroupVersion.Version + "." + v1alpha1.GroupName
}

// findSystem sets the namespace of Holdfast, and returns the APIService. Without the right to read it, the default
// counts.
func (c *clients) findSystem(ctx context.Context, system *string) (*apiService, error) {
	raw, err := c.raw(ctx, "/apis/apiregistration.k8s.io/v1/apiservices/"+apiServiceName())
	service := &apiService{}
	if err == nil {
		err = json.Unmarshal(raw, service)
	}
	if *system == "" {
		*system = defaultSystem
		if err == nil && service.Spec.Service != nil && service.Spec.Service.Namespace != "" {
			*system = service.Spec.Service.Namespace
		}
	}
	return service, err
}

func (d *doctor) checkAPI(ctx context.Context, s *reportPart) {
	about := "apiservice/" + apiServiceName()
	service, err := d.findSystem(ctx, &d.system)
	pods := fmt.Sprintf("kubectl get pods -n %s -l app.kubernetes.io/component=apiserver", d.system)
	if apierrors.IsNotFound(err) {
		s.add(severe, about, "this cluster does not have it, so Holdfast is not installed here", "Install Holdfast as docs/install.md says, or choose another cluster with --context.", "")
		return
	}
	_, served := d.raw(ctx, "/apis/"+v1alpha1.SchemeGroupVersion.String())
	d.serves = served == nil
	s.Checked = v1alpha1.SchemeGroupVersion.String() + " is served"
	if served != nil {
		s.Checked = ""
		s.add(severe, v1alpha1.SchemeGroupVersion.String(), fmt.Sprintf("the API does not answer: %v", served), "Look at the pods of the API server, and at their logs.", pods)
	}
	if s.unseen(err, "read "+about) {
		return
	}
	if available := conditionOf(service.Status.Conditions, "Available"); available.Status != metav1.ConditionTrue {
		s.add(severe, about, fmt.Sprintf("it is not available, %s: %s", cmp.Or(available.Reason, "Unknown"), cmp.Or(available.Message, "kube-apiserver has not checked it yet")), "Look at the pods of the API server. kube-apiserver must reach their port 8443 (docs/install.md, Networks).", pods)
	}
	d.checkCertificates(s, about, service.Spec.CABundle)
}

func (d *doctor) checkCertificates(s *reportPart, about string, bundle []byte) {
	var newest *x509.Certificate
	for rest := bundle; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			s.add(doubtful, about, fmt.Sprintf("a certificate of spec.caBundle can't be read: %v", err), "Remove it from spec.caBundle.", "kubectl edit "+about)
			continue
		}
		if newest == nil || certificate.NotAfter.After(newest.NotAfter) {
			newest = certificate
		}
	}
	remedy := "The API server renews its own certificate: look into its log. Renew one from elsewhere as docs/install.md says."
	command := fmt.Sprintf("kubectl logs -n %s -l app.kubernetes.io/component=apiserver --tail=50", d.system)
	switch now := d.now(); {
	case newest == nil:
		s.add(severe, about, "spec.caBundle has no certificate, so kube-apiserver trusts no API server", "The API server adds its certificate when it is ready: look into its log.", command)
	case newest.NotAfter.Before(now):
		s.add(severe, about, fmt.Sprintf("the newest certificate of spec.caBundle has expired %s ago", duration.HumanDuration(now.Sub(newest.NotAfter))), remedy, command)
	case newest.NotAfter.Sub(now) < certificateEnds:
		s.add(doubtful, about, fmt.Sprintf("the newest certificate of spec.caBundle expires in %s", duration.HumanDuration(newest.NotAfter.Sub(now))), remedy, command)
	default:
		s.Checked = strings.TrimPrefix(s.Checked+"; ", "; ") + fmt.Sprintf("the newest trusted certificate is %s old and expires in %s",
			duration.HumanDuration(now.Sub(newest.NotBefore)), duration.HumanDuration(newest.NotAfter.Sub(now)))
	}
}

type rule struct {
	group     string
	verbs     []string
	resources []string
}

// peopleRoles are the rules of artifacts/rbac/users.yaml, and a part of the operator's.
var peopleRoles = []struct {
	name, grant string
	rules       []rule
}{
	{"holdfast-view", "view", []rule{
		{v1alpha1.GroupName, []string{"get", "list", "watch"}, []string{"backups", "backupqueues", "backupvolumes", "restores", "schedules"}},
		{v1alpha1.GroupName, []string{"get", "list"}, []string{"volumebackups"}},
		{v1alpha1.GroupName, []string{"list"}, []string{"backupobjects"}},
		{v1alpha1.GroupName, []string{"get", "list"}, []string{"protections"}},
		{v1alpha1.GroupName, []string{"get"}, []string{"backups/log", "backups/results", "backups/manifest", "backups/objects", "restores/log", "restores/results"}},
	}},
	{"holdfast-edit", "edit", []rule{
		{v1alpha1.GroupName, []string{"create"}, []string{"backups", "backups/cancel", "backups/plan", "restores", "restores/cancel", "schedules/trigger"}},
		{v1alpha1.GroupName, []string{"update", "patch"}, []string{"backups", "restores"}},
		{v1alpha1.GroupName, []string{"get"}, []string{"restores/plan", "volumebackups/files", "volumebackups/content"}},
		{v1alpha1.GroupName, []string{"create", "update", "patch", "delete", "deletecollection"}, []string{"schedules"}},
	}},
	{"holdfast-admin", "holdfast-admin", []rule{
		{v1alpha1.GroupName, []string{"create"}, []string{"backups/deletion", "backups/expiration"}},
		{v1alpha1.GroupName, []string{"create"}, []string{"backupvolumes/deletion", "volumebackups/deletion"}},
	}},
}

type permission struct {
	namespace, group, verb, resource string
}

func (p permission) String() string { return p.verb + " " + p.resource }

// permitted returns the missing permissions.
func (c *clients) permitted(ctx context.Context, wanted []permission) (missing []permission, err error) {
	allowed := make([]bool, len(wanted))
	var group errgroup.Group
	group.SetLimit(8)
	for i, p := range wanted {
		group.Go(func() error {
			resource, subresource, _ := strings.Cut(p.resource, "/")
			review, err := c.kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: p.namespace, Group: p.group, Verb: p.verb, Resource: resource, Subresource: subresource,
				}},
			}, metav1.CreateOptions{})
			if err == nil {
				allowed[i] = review.Status.Allowed
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for i, p := range wanted {
		if !allowed[i] {
			missing = append(missing, p)
		}
	}
	return missing, nil
}

func few[T fmt.Stringer](all []T) string {
	var names []string
	for _, of := range all[:min(shownNames, len(all))] {
		names = append(names, of.String())
	}
	text := strings.Join(names, ", ")
	if more := len(all) - shownNames; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func (d *doctor) checkRights(ctx context.Context, s *reportPart) {
	var may []string
	for _, role := range peopleRoles {
		var wanted []permission
		for _, rule := range role.rules {
			for _, resource := range rule.resources {
				for _, verb := range rule.verbs {
					wanted = append(wanted, permission{d.namespace, rule.group, verb, resource})
				}
			}
		}
		missing, err := d.permitted(ctx, wanted)
		if s.unseen(err, "ask for your own rights") {
			return
		}
		about := "clusterrole/" + role.name
		switch {
		case len(missing) == 0:
			may = append(may, role.name)
		case len(missing) < len(wanted):
			s.add(doubtful, about, fmt.Sprintf("in the namespace %s you have a part of its rights, without: %s", d.namespace, few(missing)),
				"Apply the roles of this version, artifacts/rbac/users.yaml. With a role of your own, add what is missing.", "")
		case role.name == "holdfast-view":
			s.add(severe, about, fmt.Sprintf("you may not see backups in the namespace %s", d.namespace), "Ask an administrator for a role there, or name another namespace with -n.",
				fmt.Sprintf("kubectl create rolebinding holdfast -n %s --clusterrole=%s --user=YOU", d.namespace, role.grant))
		}
	}
	operator := []permission{
		{d.system, enginev1alpha1.GroupName, "list", "storagelocations"}, {d.system, enginev1alpha1.GroupName, "create", "storagelocations"},
		{d.system, enginev1alpha1.GroupName, "list", "volumerepositories"}, {d.system, v1alpha1.GroupName, "create", "syncrequests"},
		{d.system, "coordination.k8s.io", "list", "leases"}, {d.system, "", "get", "pods/log"}, {"", v1alpha1.GroupName, "list", "nodeagents"},
	}
	missing, err := d.permitted(ctx, operator)
	if s.unseen(err, "ask for your own rights") {
		return
	}
	if len(missing) == 0 {
		may = append(may, "holdfast-operator")
	} else if len(missing) < len(operator) {
		s.add(notable, "role/holdfast-operator", "you have a part of its rights, without: "+few(missing), "To run Holdfast, ask for all of it (docs/security.md).", "")
	}
	if len(may) > 0 {
		s.Checked = fmt.Sprintf("in the namespace %s you have the rights of %s", d.namespace, strings.Join(may, ", "))
	}
}

func (d *doctor) checkProcesses(ctx context.Context, s *reportPart) {
	var seen []string
	leases, err := d.kube.CoordinationV1().Leases(d.system).List(ctx, metav1.ListOptions{})
	if !s.unseen(err, "list leases in "+d.system) {
		for _, component := range []string{"apiserver", "controller"} {
			name, about := "holdfast-"+component, "lease/holdfast-"+component
			command := fmt.Sprintf("kubectl get pods -n %s -l app.kubernetes.io/component=%s", d.system, component)
			remedy := "Look at its pods, and at their logs."
			i := slices.IndexFunc(leases.Items, func(of coordinationv1.Lease) bool { return of.Name == name })
			switch {
			case i < 0:
				s.add(severe, about, "it is missing: no "+component+" has worked here", remedy, command)
			case leases.Items[i].Spec.RenewTime == nil || ptr.Deref(leases.Items[i].Spec.HolderIdentity, "") == "":
				s.add(severe, about, "nobody holds it: no "+component+" works", remedy, command)
			default:
				age := d.now().Sub(leases.Items[i].Spec.RenewTime.Time)
				if age > leaseIsOld {
					s.add(severe, about, fmt.Sprintf("it was renewed %s ago: no %s works", duration.HumanDuration(age), component), remedy, command)
				} else {
					seen = append(seen, "the "+component+" works")
				}
			}
		}
	}
	for _, namespace := range []string{d.system, enginev1alpha1.AgentsNamespace(d.system)} {
		pods, err := d.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=holdfast"})
		if s.unseen(err, "list pods in "+namespace) {
			continue
		}
		if len(pods.Items) > 0 {
			seen = append(seen, counted(len(pods.Items), "pod")+" in "+namespace)
		}
		for i := range pods.Items {
			d.checkPod(s, &pods.Items[i])
		}
	}
	s.Checked = strings.Join(seen, "; ")
}

func (d *doctor) checkPod(s *reportPart, pod *corev1.Pod) {
	component := pod.Labels["app.kubernetes.io/component"]
	for _, container := range pod.Spec.Containers {
		if _, tag, found := strings.Cut(container.Image[strings.LastIndex(container.Image, "/")+1:], ":"); found && component != "" {
			d.sawVersion("image of "+component, tag)
		}
	}
	about := fmt.Sprintf("pod/%s in %s", pod.Name, pod.Namespace)
	logs := fmt.Sprintf("kubectl logs -n %s %s --previous --tail=50", pod.Namespace, pod.Name)
	for _, status := range pod.Status.ContainerStatuses {
		switch {
		case status.State.Waiting != nil && status.State.Waiting.Reason != "ContainerCreating":
			s.add(severe, about, fmt.Sprintf("its container waits, %s: %s", status.State.Waiting.Reason, status.State.Waiting.Message), "Look at its events.",
				fmt.Sprintf("kubectl describe pod -n %s %s", pod.Namespace, pod.Name))
			return
		case status.LastTerminationState.Terminated != nil && d.now().Sub(status.LastTerminationState.Terminated.FinishedAt.Time) < time.Hour:
			ended := status.LastTerminationState.Terminated
			remedy := "Its last output says why."
			if ended.Reason == "OOMKilled" {
				remedy = "Raise its memory limit: docs/performance.md says how much it needs."
			}
			s.add(doubtful, about, fmt.Sprintf("it was restarted %s ago, %s, %s in all", duration.HumanDuration(d.now().Sub(ended.FinishedAt.Time)), ended.Reason, counted(int(status.RestartCount), "time")), remedy, logs)
			return
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionFalse && d.now().Sub(condition.LastTransitionTime.Time) > leaseIsOld {
			s.add(severe, about, fmt.Sprintf("it is not ready, %s: %s", condition.Reason, condition.Message), "Look at its events and its log.",
				fmt.Sprintf("kubectl describe pod -n %s %s", pod.Namespace, pod.Name))
		}
	}
}

// conditionOf returns a condition, or an empty one.
func conditionOf(conditions []metav1.Condition, name string) metav1.Condition {
	return ptr.Deref(meta.FindStatusCondition(conditions, name), metav1.Condition{})
}

func (d *doctor) sawVersion(component, version string) {
	if version != "" && !slices.Contains(d.versions[component], version) {
		d.versions[component] = append(d.versions[component], version)
	}
}

// locationRemedies are by the reason.
var locationRemedies = map[string]string{
	enginev1alpha1.ReasonUnreachable:  "Check the network and the endpoint. Backups wait, and start by themselves when the store answers.",
	enginev1alpha1.ReasonOtherStore:   "Mount or name the right store. To give up the former one, see docs/install.md, Which store it is.",
	enginev1alpha1.ReasonAccessDenied: "Write valid credentials into its Secret, and check the rights on the bucket.",
	enginev1alpha1.ReasonNoSuchBucket: "Create the bucket or the container, or correct its name in the spec; for S3, the region too.",
	enginev1alpha1.ReasonClockSkew:    "Set the clock of the nodes, or of the store.",
	enginev1alpha1.ReasonInvalid:      "Correct the spec, or its Secret.",
}

func locationRemedy(of *enginev1alpha1.StorageLocation, reason string) string {
	if reason == enginev1alpha1.ReasonUnreachable && of.Spec.Provider == enginev1alpha1.StorageProviderFilesystem {
		return "Make or mount the folder, in each of Holdfast's pods. Backups wait, and start by themselves when it is there."
	}
	return cmp.Or(locationRemedies[reason], "Read the message.")
}

func (d *doctor) checkLocations(ctx context.Context, s *reportPart) {
	list, err := d.engine.EngineV1alpha1().StorageLocations(d.system).List(ctx, metav1.ListOptions{})
	if s.unseen(err, "list storagelocations in "+d.system) {
		return
	}
	if len(list.Items) == 0 {
		s.add(severe, "storagelocations", "there is none, so no backup can be stored", "Create one.", "kubectl holdfast location create NAME --help")
		return
	}
	var defaults, available []string
	for i := range list.Items {
		of := &list.Items[i]
		if of.Spec.Default {
			defaults = append(defaults, of.Name)
		}
		if d.checkLocation(s, of) {
			available = append(available, of.Name)
		}
	}
	set := "kubectl patch storagelocation NAME -n " + d.system + ` --type=merge -p '{"spec":{"default":true}}'`
	switch len(defaults) {
	case 1:
	case 0:
		s.add(doubtful, "storagelocations", "none is the default, so each backup must name one", "Make one the default.", set)
	default:
		s.add(doubtful, "storagelocations", strings.Join(defaults, ", ")+" are all marked as default, and the first one is used", "Keep one default.", strings.Replace(set, "true", "false", 1))
	}
	s.Checked = fmt.Sprintf("%d of %s available", len(available), counted(len(list.Items), "location"))
}

func (d *doctor) checkLocation(s *reportPart, of *enginev1alpha1.StorageLocation) bool {
	about := "storagelocation/" + of.Name
	describe := fmt.Sprintf("kubectl describe storagelocation %s -n %s", of.Name, of.Namespace)
	state := conditionOf(of.Status.Conditions, enginev1alpha1.ConditionAvailable)
	switch {
	case state.Status == "":
		s.add(severe, about, "no controller has checked it yet", "Look at the controller's pod and its log.", describe)
		return false
	case state.Status != metav1.ConditionTrue:
		s.add(severe, about, fmt.Sprintf("it is not available, %s: %s", state.Reason, state.Message), locationRemedy(of, state.Reason),
			fmt.Sprintf("kubectl holdfast location check %s", of.Name))
	case of.Status.StoreID == "" && !of.Spec.IsLonghorn():
		s.add(notable, about, "its store has no id: "+state.Message, "Another store in its place would not be noticed. Let the credentials write, unless it is only read.", "")
	}
	if probed := conditionOf(of.Status.Conditions, enginev1alpha1.ConditionProbed); probed.Status == metav1.ConditionFalse {
		s.add(severe, about, "its last probe failed: "+probed.Message, "Give the credentials the rights that it names, or use another store, then check it again.",
			fmt.Sprintf("kubectl holdfast location check %s", of.Name))
	}
	for name, remedy := range map[string]string{
		enginev1alpha1.ConditionClonedCluster:    "Another cluster uses the store: see docs/install.md, Copies of a cluster.",
		enginev1alpha1.ConditionExpiryFrozen:     "The message says how to accept it, once you know the reason.",
		enginev1alpha1.ConditionBackupsMissing:   "Bring the store back, or accept the loss: see docs/catalogue.md, When backups are missing.",
		enginev1alpha1.ConditionMetadataReplaced: "Another writer uses the store: see docs/format.md, Together with Velero.",
		enginev1alpha1.ConditionBackupsLeftOut:   "Trust their cluster, or raise --foreign-backups-memory: see docs/catalogue.md, Backups that others write.",
	} {
		if condition := conditionOf(of.Status.Conditions, name); condition.Status == metav1.ConditionTrue {
			if condition.Reason == enginev1alpha1.ReasonTooManyFolders {
				remedy = "See who may write to the store, and remove these folders: see docs/runbooks.md, HoldfastTooManyFolders."
			}
			level := severe
			if name == enginev1alpha1.ConditionMetadataReplaced || name == enginev1alpha1.ConditionBackupsLeftOut {
				level = doubtful
			}
			s.add(level, about, name+": "+condition.Message, remedy, describe)
		}
	}
	if condition := conditionOf(of.Status.Conditions, enginev1alpha1.ConditionSynced); condition.Status == metav1.ConditionFalse && state.Status == metav1.ConditionTrue {
		level := doubtful
		if condition.Reason == enginev1alpha1.ReasonLoading {
			level = notable
		}
		s.add(level, about, fmt.Sprintf("the lists may be old, %s: %s", condition.Reason, condition.Message), "Wait for the next poll, or ask for one.",
			fmt.Sprintf("kubectl holdfast location check %s", of.Name))
	}
	if condition := conditionOf(of.Status.Conditions, enginev1alpha1.ConditionLocked); condition.Status == metav1.ConditionFalse && state.Status == metav1.ConditionTrue {
		level := severe
		if condition.Reason == enginev1alpha1.ReasonLockPending {
			level = notable
		}
		s.add(level, about, fmt.Sprintf("not all objects are locked as spec.lock says, %s: %s", condition.Reason, condition.Message), "See docs/lock.md, and docs/runbooks.md, HoldfastLocksNotExtended.", describe)
	}
	slices.SortStableFunc(s.Findings, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.About, b.About), cmp.Compare(a.Problem, b.Problem))
	})
	return state.Status == metav1.ConditionTrue
}

var repositoryRemedies = map[string]string{
	enginev1alpha1.ReasonKeyMissing:  "Bring the Secret with its key back from your copy: see docs/install.md, The repositories' keys.",
	enginev1alpha1.ReasonKeyMismatch: "The Secret has another key than the repository: bring the right one back from your copy.",
	enginev1alpha1.ReasonDamaged:     "See docs/maintenance.md for a damaged repository.",
}

func (d *doctor) checkRepositories(ctx context.Context, s *reportPart) {
	list, err := d.engine.EngineV1alpha1().VolumeRepositories(d.system).List(ctx, metav1.ListOptions{})
	if s.unseen(err, "list volumerepositories in "+d.system) {
		return
	}
	safe := 0
	for _, of := range list.Items {
		about := "volumerepository/" + of.Name
		describe := fmt.Sprintf("kubectl describe volumerepository %s -n %s", of.Name, of.Namespace)
		condition := func(name string) metav1.Condition {
			return conditionOf(of.Status.Conditions, name)
		}
		if ready := condition(enginev1alpha1.ConditionReady); ready.Status == metav1.ConditionFalse {
			s.add(severe, about, fmt.Sprintf("it can't be used, %s: %s", ready.Reason, ready.Message), cmp.Or(repositoryRemedies[ready.Reason], "Read the message."), describe)
		}
		switch key := condition(enginev1alpha1.ConditionKeyBackedUp); key.Status {
		case metav1.ConditionTrue:
			safe++
		case metav1.ConditionFalse:
			s.add(doubtful, about, fmt.Sprintf("its key is not backed up, %s: %s", key.Reason, key.Message), "Name recovery keys in the storage location, or export the keys.", "kubectl holdfast keys export --output-file keys.yaml")
		default:
			s.add(notable, about, "whether its key is backed up is not known yet", "Wait for the controller to look at it.", describe)
		}
		if damaged := condition(enginev1alpha1.ConditionDamaged); damaged.Status == metav1.ConditionTrue {
			s.add(severe, about, "its store has lost data: "+damaged.Message, "See docs/maintenance.md for lost data.", describe)
		}
		if maintained := condition(enginev1alpha1.ConditionMaintained); maintained.Status == metav1.ConditionFalse {
			s.add(doubtful, about, fmt.Sprintf("it is not maintained, %s: %s", maintained.Reason, maintained.Message), "See docs/maintenance.md.", describe)
		}
	}
	s.Checked = fmt.Sprintf("the keys of %d of %s are backed up", safe, strings.Replace(counted(len(list.Items), "repository"), "repositorys", "repositories", 1))
	locations, err := d.engine.EngineV1alpha1().StorageLocations(d.system).List(ctx, metav1.ListOptions{})
	if err != nil {
		return // named above
	}
	for _, of := range locations.Items {
		if len(of.Spec.RecoveryKeys) == 0 && !of.Spec.IsLonghorn() {
			s.add(notable, "storagelocation/"+of.Name, "it has no recovery keys, so the key of each new repository must be exported", "Name a recovery key: see docs/install.md, A recovery key.", "")
		}
	}
}

func (d *doctor) checkAgents(ctx context.Context, s *reportPart) {
	list, err := d.holdfast.HoldfastV1alpha1().NodeAgents().List(ctx, metav1.ListOptions{})
	if s.unseen(err, "list nodeagents") {
		return
	}
	ready := 0
	pods := fmt.Sprintf("kubectl get pods -n %s -o wide", enginev1alpha1.AgentsNamespace(d.system))
	for _, agent := range list.Items {
		about := "nodeagent/" + agent.Name
		if condition := conditionOf(agent.Status.Conditions, v1alpha1.ConditionAgentReady); condition.Status != metav1.ConditionTrue {
			level := severe
			if condition.Reason == "NoAgent" {
				level = doubtful
			}
			s.add(level, about, cmp.Or(condition.Message, condition.Reason), "Look at the agent's pod on this node. A node without volumes to back up needs none.", pods)
			continue
		}
		ready++
		d.sawVersion("agents", agent.Status.Version)
		if condition := conditionOf(agent.Status.Conditions, v1alpha1.ConditionAgentConfigured); condition.Status == metav1.ConditionFalse {
			s.add(doubtful, about, "its ConfigMap is wrong: "+condition.Message, "Correct it as docs/node-agent.md says.", "kubectl edit configmap holdfast-node-agent -n "+d.system)
		}
	}
	if len(list.Items) == 0 {
		s.NotChecked = append(s.NotChecked, "no node is known")
		return
	}
	s.Checked = fmt.Sprintf("%d of %s with a ready agent", ready, counted(len(list.Items), "node"))
}

func (d *doctor) checkSchedules(ctx context.Context, s *reportPart) {
	namespace, text := d.scope()
	list, err := d.holdfast.HoldfastV1alpha1().Schedules(namespace).List(ctx, metav1.ListOptions{})
	if s.unseen(err, "list schedules in "+text) {
		return
	}
	paused := 0
	for _, of := range list.Items {
		about := fmt.Sprintf("schedule/%s in %s", of.Name, of.Namespace)
		if of.Spec.Paused {
			paused++
			s.add(notable, about, "it is paused: it makes no backups", "Resume it when it should.", fmt.Sprintf("kubectl holdfast schedule resume %s -n %s", of.Name, of.Namespace))
			continue
		}
		describe := fmt.Sprintf("kubectl describe schedule.%s %s -n %s", v1alpha1.GroupName, of.Name, of.Namespace)
		if due := of.Status.NextDueTimestamp; due != nil && d.now().Sub(due.Time) > scheduleIsLate {
			s.add(severe, about, fmt.Sprintf("a backup was due %s ago, and was not requested", duration.HumanDuration(d.now().Sub(due.Time))), "Schedules run in the API server: look at its pods and its log.", describe)
		}
		if condition := conditionOf(of.Status.Conditions, v1alpha1.ConditionScheduled); condition.Status == metav1.ConditionFalse {
			remedy := "Read the message: the next backup is requested when it is due."
			if condition.Reason == v1alpha1.ScheduleReasonForbidden {
				remedy = "Grant the user the right, or change the spec as another user, who then takes the schedule over."
			}
			s.add(severe, about, fmt.Sprintf("its last backup was not made, %s: %s", condition.Reason, condition.Message), remedy, describe)
		}
		if condition := conditionOf(of.Status.Conditions, v1alpha1.ConditionPruned); condition.Status == metav1.ConditionFalse {
			s.add(doubtful, about, "its old backups stay: "+condition.Message, "Grant its user the role holdfast-admin, which may delete backups.", describe)
		}
	}
	s.Checked = fmt.Sprintf("%s in %s, of them paused: %d", counted(len(list.Items), "schedule"), text, paused)
}

func (d *doctor) checkQueue(ctx context.Context, s *reportPart) {
	namespace, text := d.scope()
	list, err := d.holdfast.HoldfastV1alpha1().BackupQueueEntries(namespace).List(ctx, metav1.ListOptions{})
	if s.unseen(err, "list backupqueues in "+text) {
		return
	}
	counts := map[v1alpha1.QueueState]int{}
	asked := false
	for _, of := range list.Items {
		counts[of.Status.State]++
		kind := strings.ToLower(cmp.Or(of.Spec.Kind, "Backup"))
		about := fmt.Sprintf("%s/%s in %s", kind, of.Name, of.Namespace)
		show := fmt.Sprintf("kubectl holdfast queue -n %s", of.Namespace)
		waits := time.Duration(0)
		if of.Status.Since != nil {
			waits = d.now().Sub(of.Status.Since.Time)
		}
		switch reason := of.Status.Reason; {
		case reason == v1alpha1.QueueReasonStorageUnavailable:
			s.add(severe, about, "it waits for its storage location: "+of.Status.Message, "It starts by itself when the location is available.", fmt.Sprintf("kubectl holdfast location check %s", cmp.Or(of.Spec.StorageLocation, "NAME")))
		case reason == v1alpha1.QueueReasonAgentAbsent:
			s.add(severe, about, "its volumes wait for agents: "+of.Status.Message, "Look at the agents' pods on these nodes.", fmt.Sprintf("kubectl get pods -n %s -o wide", enginev1alpha1.AgentsNamespace(d.system)))
		case of.Status.State == v1alpha1.QueueStateReady && waits > queueIsStuck, of.Status.State == v1alpha1.QueueStateQueued && reason == v1alpha1.QueueReasonNextToStart && waits > queueIsStuck:
			s.add(severe, about, fmt.Sprintf("nothing stands in its way, and it has not started for %s", duration.HumanDuration(waits)), "Look at the controller's pod and its log.", show)
		case of.Status.State == v1alpha1.QueueStateQueued && !asked && kind == "backup":
			asked = true // it is the same for all
			backup, err := d.holdfast.HoldfastV1alpha1().Backups(of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
			if err != nil {
				continue // it has ended, or may not be seen
			}
			if queued := conditionOf(backup.Status.Conditions, v1alpha1.ConditionQueued); queued.Reason == v1alpha1.ReasonNoController {
				s.add(severe, about, queued.Message, "Look at the controller's pod and its log, or ask an administrator to.", show)
			}
		}
	}
	s.Checked = fmt.Sprintf("in %s: %d running, %d ready, %d waiting", text, counts[v1alpha1.QueueStateRunning], counts[v1alpha1.QueueStateReady], counts[v1alpha1.QueueStateQueued])
}

// checkNodeRestriction creates a pod as a node, in a dry run, as docs/security.md advises.
func (d *doctor) checkNodeRestriction(ctx context.Context, s *reportPart) {
	if d.config.Impersonate.UserName != "" {
		s.NotChecked = append(s.NotChecked, "the check of NodeRestriction acts as a node, so it does not go with --as")
		return
	}
	missing, err := d.permitted(ctx, []permission{{"", "", "impersonate", "users"}, {"", "", "impersonate", "groups"}})
	if s.unseen(err, "ask for your own rights") {
		return
	}
	if len(missing) > 0 {
		s.NotChecked = append(s.NotChecked, "you may not act as a node, which the check of NodeRestriction needs: docs/security.md has the command")
		return
	}
	switch state, err := noderestriction.Check(ctx, d.config, d.system); state {
	case noderestriction.Off:
		s.add(severe, "kube-apiserver", "its admission plugin NodeRestriction is off: a node could create pods in any namespace, and so read other nodes' volumes", "Add NodeRestriction to --enable-admission-plugins of kube-apiserver (docs/security.md).", "")
	case noderestriction.On:
		s.Checked = "NodeRestriction is on: nodes can create mirror pods only"
	case noderestriction.Unknown:
		s.NotChecked = append(s.NotChecked, fmt.Sprintf("whether NodeRestriction is on: %v", err))
	}
}

func (d *doctor) checkVersions(s *reportPart, kubernetes *apimachineryversion.Info) {
	texts := []string{"Kubernetes " + kubernetes.GitVersion, "this command " + d.t.version}
	for _, component := range slices.Sorted(maps.Keys(d.versions)) {
		versions := slices.Sorted(slices.Values(d.versions[component]))
		texts = append(texts, component+" "+strings.Join(versions, ", "))
		if len(versions) > 1 {
			s.add(doubtful, component, "there are several versions: "+strings.Join(versions, ", "), "Wait for the end of the rollout. If it stays, look at its pods.",
				"kubectl get pods -A -l app.kubernetes.io/name=holdfast -o wide")
		}
	}
	s.Checked = strings.Join(texts, "; ")
	if parsed, err := utilversion.ParseGeneric(kubernetes.GitVersion); err == nil && parsed.LessThan(utilversion.MustParseGeneric(oldestServer)) {
		s.add(severe, "kube-apiserver", "Holdfast needs Kubernetes "+oldestServer+" or later, and this is "+kubernetes.GitVersion, "Upgrade Kubernetes.", "")
	}
	images := map[string]string{}
	for component, versions := range d.versions {
		if strings.HasPrefix(component, "image of ") && len(versions) == 1 {
			images[versions[0]] = component
		}
	}
	if len(images) > 1 {
		s.add(doubtful, "images", "the components have different images: "+strings.Join(slices.Sorted(maps.Keys(images)), ", "), "Apply the manifests of one version to all.", "")
	}
	if agents := d.versions["agents"]; len(agents) == 1 && agents[0] != d.t.version {
		s.add(notable, "kubectl-holdfast", fmt.Sprintf("this command is of version %s, and the agents are of version %s", d.t.version, agents[0]), "Install the command of the same version.", "")
	}
}
