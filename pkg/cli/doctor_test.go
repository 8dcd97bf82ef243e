// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/scheme"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files of testdata")

const (
	engineOf = "/apis/engine.holdfast.io/v1alpha1/namespaces/holdfast/"
	allOf    = "/apis/holdfast.io/v1alpha1/"
)

// bundleUntil returns a certificate that ends so long from now.
func bundleUntil(t *testing.T, left time.Duration) []byte {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(left - 90*24*time.Hour), NotAfter: time.Now().Add(left)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func conditions(of ...metav1.Condition) []metav1.Condition { return of }

func condition(name string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: name, Status: status, Reason: reason, Message: message}
}

func lease(name string, age time.Duration) coordinationv1.Lease {
	return coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: new("a"), RenewTime: &metav1.MicroTime{Time: time.Now().Add(-age)}}}
}

func forbidden(what string) func(*http.Request) any {
	return func(*http.Request) any {
		return refusal{metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: what + " is forbidden"}}
	}
}

// reviews answers reviews of the caller's own rights.
func reviews(allowed func(authorizationv1.ResourceAttributes) bool) func(*http.Request) any {
	return func(r *http.Request) any {
		review := &authorizationv1.SelfSubjectAccessReview{}
		data, err := io.ReadAll(r.Body)
		if err == nil {
			_, _, err = scheme.Codecs.UniversalDeserializer().Decode(data, nil, review)
		}
		if err != nil {
			return refusal{metav1.Status{Status: metav1.StatusFailure, Code: http.StatusBadRequest, Message: err.Error()}}
		}
		review.SetGroupVersionKind(authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"))
		review.Status.Allowed = allowed(*review.Spec.ResourceAttributes)
		return review
	}
}

const (
	reviewsPath = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	servicePath = "GET /apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.holdfast.io"
	podsPath    = "POST /api/v1/namespaces/holdfast/pods"
)

// healthy answers as an installation in which nothing is wrong.
func healthy(t *testing.T) map[string]any {
	t.Helper()
	return map[string]any{
		"GET /version": apimachineryversion.Info{GitVersion: "v1.36.1", Major: "1", Minor: "36"},
		servicePath: map[string]any{
			"spec":   map[string]any{"service": map[string]any{"namespace": "holdfast", "name": "holdfast-apiserver"}, "caBundle": bundleUntil(t, 60*24*time.Hour+time.Hour)},
			"status": map[string]any{"conditions": conditions(condition("Available", metav1.ConditionTrue, "Passed", "all checks passed"))},
		},
		"GET /apis/holdfast.io/v1alpha1": metav1.APIResourceList{GroupVersion: "holdfast.io/v1alpha1"},
		reviewsPath:                      reviews(func(authorizationv1.ResourceAttributes) bool { return true }),
		"GET /apis/coordination.k8s.io/v1/namespaces/holdfast/leases": coordinationv1.LeaseList{Items: []coordinationv1.Lease{lease("holdfast-apiserver", time.Second), lease("holdfast-controller", time.Second)}},
		"GET /api/v1/namespaces/holdfast/pods": corev1.PodList{Items: []corev1.Pod{
			{ObjectMeta: metav1.ObjectMeta{Name: "holdfast-controller-x", Namespace: "holdfast", Labels: map[string]string{"app.kubernetes.io/component": "controller"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "registry.example.com:5000/holdfast:v1"}}}},
		}},
		"GET /api/v1/namespaces/holdfast-agents/pods": corev1.PodList{},
		"GET " + engineOf + "storagelocations": enginev1alpha1.StorageLocationList{Items: []enginev1alpha1.StorageLocation{{
			ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "holdfast"}, Spec: enginev1alpha1.StorageLocationSpec{Default: true, RecoveryKeys: []string{"age1"}},
			Status: enginev1alpha1.StorageLocationStatus{StoreID: "s", Conditions: conditions(condition(enginev1alpha1.ConditionAvailable, metav1.ConditionTrue, "Reachable", "the store answers"), condition(enginev1alpha1.ConditionSynced, metav1.ConditionTrue, "Listed", ""))},
		}}},
		"GET " + engineOf + "volumerepositories": enginev1alpha1.VolumeRepositoryList{Items: []enginev1alpha1.VolumeRepository{{
			ObjectMeta: metav1.ObjectMeta{Name: "shop.default", Namespace: "holdfast"},
			Status:     enginev1alpha1.VolumeRepositoryStatus{Conditions: conditions(condition(enginev1alpha1.ConditionReady, metav1.ConditionTrue, "Ready", ""), condition(enginev1alpha1.ConditionKeyBackedUp, metav1.ConditionTrue, "Wrapped", ""))},
		}}},
		"GET " + allOf + "nodeagents": v1alpha1.NodeAgentList{Items: []v1alpha1.NodeAgent{{
			ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1alpha1.NodeAgentStatus{Version: "v1", Conditions: conditions(condition(v1alpha1.ConditionAgentReady, metav1.ConditionTrue, "Alive", ""))},
		}}},
		"GET " + of + "schedules":    v1alpha1.ScheduleList{Items: []v1alpha1.Schedule{{ObjectMeta: metav1.ObjectMeta{Name: "nightly", Namespace: "shop"}}}},
		"GET " + of + "backupqueues": v1alpha1.BackupQueueEntryList{},
		podsPath: func(*http.Request) any {
			return refusal{metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden,
				Message: `pods "check" is forbidden: pod does not have "kubernetes.io/config.mirror" annotation, node "check" can only create mirror pods`}}
		},
	}
}

// golden compares a text with a file, and the width of its lines.
func golden(t *testing.T, name, got string) {
	t.Helper()
	goldenOfAnyWidth(t, name, got)
	for line := range strings.Lines(got) {
		if len(line) > width+1 && !strings.HasPrefix(strings.TrimSpace(line), "kubectl ") {
			t.Errorf("the line has %d columns, and %d are allowed: %s", len(line)-1, width, line)
		}
	}
}

func goldenOfAnyWidth(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got:\n%s\nwant:\n%s", name, got, want)
	}
}

// TestDoctorFindsNothingWrong: a healthy installation has the exit code 0, and each part says what
// was seen.
func TestDoctorFindsNothingWrong(t *testing.T) {
	s := &server{answers: healthy(t)}
	stdout, stderr, code := run(t, s, "doctor")
	if code != ExitOK || stderr != "" {
		t.Errorf("exit code %d, %q", code, stderr)
	}
	golden(t, "doctor-healthy.txt", stdout)
	for _, request := range s.requests {
		if !strings.HasPrefix(request, "GET ") && !strings.HasPrefix(request, reviewsPath) && request != podsPath+"?dryRun=All" {
			t.Errorf("doctor makes the request %s, which is no read", request)
		}
	}
	stdout, _, code = run(t, s, "doctor", "-o=json")
	var found report
	if err := json.Unmarshal([]byte(stdout), &found); err != nil || code != ExitOK || !found.Healthy || len(found.Sections) != 10 {
		t.Errorf("exit code %d, %v: %s", code, err, stdout)
	}
}

// TestDoctorNamesWhatIsWrong: each fault has a line with its remedy, and the exit code is 1.
func TestDoctorNamesWhatIsWrong(t *testing.T) {
	answers := healthy(t)
	// Half a minute more, so that an age reads the same on a slow machine.
	ago := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: time.Now().Add(-d - 30*time.Second)} }
	answers[servicePath] = map[string]any{
		"spec":   map[string]any{"service": map[string]any{"namespace": "holdfast"}, "caBundle": bundleUntil(t, 5*24*time.Hour+time.Hour)},
		"status": map[string]any{"conditions": conditions(condition("Available", metav1.ConditionFalse, "MissingEndpoints", "endpoints for service/holdfast-apiserver in \"holdfast\" have no addresses"))},
	}
	answers[reviewsPath] = reviews(func(of authorizationv1.ResourceAttributes) bool {
		return of.Resource != "backups" || of.Subresource == ""
	})
	answers["GET /apis/coordination.k8s.io/v1/namespaces/holdfast/leases"] = coordinationv1.LeaseList{Items: []coordinationv1.Lease{lease("holdfast-apiserver", time.Second), lease("holdfast-controller", time.Hour+time.Minute+30*time.Second)}}
	answers["GET /api/v1/namespaces/holdfast-agents/pods"] = corev1.PodList{Items: []corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-x", Namespace: "holdfast-agents", Labels: map[string]string{"app.kubernetes.io/component": "node-agent"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "holdfast:v0"}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{RestartCount: 7, LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled", FinishedAt: *ago(15 * time.Minute)}}}}},
	}}}
	answers["GET "+engineOf+"storagelocations"] = enginev1alpha1.StorageLocationList{Items: []enginev1alpha1.StorageLocation{
		{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "holdfast"}, Status: enginev1alpha1.StorageLocationStatus{Conditions: conditions(condition(enginev1alpha1.ConditionAvailable, metav1.ConditionFalse, enginev1alpha1.ReasonOtherStore, "the location has had the store with the id s until now"))}},
		{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "holdfast"}, Spec: enginev1alpha1.StorageLocationSpec{RecoveryKeys: []string{"age1"}}, Status: enginev1alpha1.StorageLocationStatus{StoreID: "s", Conditions: conditions(
			condition(enginev1alpha1.ConditionAvailable, metav1.ConditionTrue, "Reachable", "the store answers"), condition(enginev1alpha1.ConditionBackupsMissing, metav1.ConditionTrue, "BackupsMissing", "20 of 30 backups are missing from the store"),
			condition(enginev1alpha1.ConditionExpiryFrozen, metav1.ConditionTrue, "TooMany", "15 backups have expired at once"))}},
		{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "holdfast"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "holdfast"}, Spec: enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderFilesystem, RecoveryKeys: []string{"age1"}}, Status: enginev1alpha1.StorageLocationStatus{StoreID: "t", Conditions: conditions(
			condition(enginev1alpha1.ConditionAvailable, metav1.ConditionFalse, enginev1alpha1.ReasonUnreachable, "the folder of the storage location does not exist: make or mount it"),
			condition(enginev1alpha1.ConditionBackupsLeftOut, metav1.ConditionTrue, enginev1alpha1.ReasonTooManyFolders, "more than 100000 folders below backups hold no finished backup"))}},
	}}
	answers["GET "+engineOf+"volumerepositories"] = enginev1alpha1.VolumeRepositoryList{Items: []enginev1alpha1.VolumeRepository{{
		ObjectMeta: metav1.ObjectMeta{Name: "shop.a", Namespace: "holdfast"},
		Status: enginev1alpha1.VolumeRepositoryStatus{Conditions: conditions(condition(enginev1alpha1.ConditionReady, metav1.ConditionFalse, enginev1alpha1.ReasonKeyMissing, "its key is missing"),
			condition(enginev1alpha1.ConditionKeyBackedUp, metav1.ConditionFalse, enginev1alpha1.ReasonKeyNotExported, "the key is in this cluster only, and the data can't be read without"))},
	}}}
	answers["GET "+allOf+"nodeagents"] = v1alpha1.NodeAgentList{Items: []v1alpha1.NodeAgent{
		{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1alpha1.NodeAgentStatus{Version: "v2", Conditions: conditions(condition(v1alpha1.ConditionAgentReady, metav1.ConditionTrue, "Alive", ""))}},
		{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Status: v1alpha1.NodeAgentStatus{Version: "v1", Conditions: conditions(condition(v1alpha1.ConditionAgentReady, metav1.ConditionTrue, "Alive", ""))}},
		{ObjectMeta: metav1.ObjectMeta{Name: "n3"}, Status: v1alpha1.NodeAgentStatus{Conditions: conditions(condition(v1alpha1.ConditionAgentReady, metav1.ConditionFalse, "NoAgent", "no agent runs on this node: its volumes are neither backed up nor restored"))}},
	}}
	answers["GET "+of+"schedules"] = v1alpha1.ScheduleList{Items: []v1alpha1.Schedule{
		{ObjectMeta: metav1.ObjectMeta{Name: "paused", Namespace: "shop"}, Spec: v1alpha1.ScheduleSpec{Paused: true}},
		{ObjectMeta: metav1.ObjectMeta{Name: "late", Namespace: "shop"}, Status: v1alpha1.ScheduleStatus{NextDueTimestamp: ago(2 * time.Hour)}},
		{ObjectMeta: metav1.ObjectMeta{Name: "refused", Namespace: "shop"}, Status: v1alpha1.ScheduleStatus{Conditions: conditions(condition(v1alpha1.ConditionScheduled, metav1.ConditionFalse, v1alpha1.ScheduleReasonForbidden, "ann may not create backups"))}},
	}}
	answers["GET "+of+"backupqueues"] = v1alpha1.BackupQueueEntryList{Items: []v1alpha1.BackupQueueEntry{
		{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "shop"}, Spec: v1alpha1.BackupQueueEntrySpec{StorageLocation: "a"}, Status: v1alpha1.BackupQueueEntryStatus{State: v1alpha1.QueueStateQueued, Reason: v1alpha1.QueueReasonStorageUnavailable, Message: "the storage location a is not available"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "y", Namespace: "shop"}, Status: v1alpha1.BackupQueueEntryStatus{State: v1alpha1.QueueStateQueued, Reason: v1alpha1.QueueReasonNextToStart, Since: ago(20 * time.Minute)}},
	}}
	answers[podsPath] = &corev1.Pod{}
	stdout, stderr, code := run(t, &server{answers: answers}, "doctor")
	if code != ExitFailed || !strings.Contains(stderr, "errors and") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
	golden(t, "doctor-wrong.txt", stdout)
}

// TestDoctorOfATenant: parts that the caller may not see are named, and are no findings.
func TestDoctorOfATenant(t *testing.T) {
	answers := healthy(t)
	for request := range answers {
		if strings.Contains(request, "/holdfast") && !strings.HasPrefix(request, "GET "+allOf) || strings.Contains(request, "nodeagents") || request == servicePath {
			answers[request] = forbidden(request)
		}
	}
	answers["GET /apis/holdfast.io/v1alpha1"] = metav1.APIResourceList{GroupVersion: "holdfast.io/v1alpha1"}
	answers[reviewsPath] = reviews(func(of authorizationv1.ResourceAttributes) bool {
		return of.Namespace == "shop" && slices.Contains([]string{"get", "list", "watch"}, of.Verb) && !slices.Contains([]string{"plan", "files", "content"}, of.Subresource)
	})
	stdout, stderr, code := run(t, &server{answers: answers}, "doctor")
	if code != ExitOK {
		t.Errorf("exit code %d, %q", code, stderr)
	}
	golden(t, "doctor-tenant.txt", stdout)

	answers[reviewsPath] = reviews(func(authorizationv1.ResourceAttributes) bool { return false })
	if stdout, _, code := run(t, &server{answers: answers}, "doctor"); code != ExitFailed || !strings.Contains(stdout, "you may not see backups in the namespace shop") {
		t.Errorf("without rights: exit code %d, %s", code, stdout)
	}
}

// TestDoctorWithoutHoldfast: a cluster without Holdfast is told from one whose API is down.
func TestDoctorWithoutHoldfast(t *testing.T) {
	answers := map[string]any{"GET /version": apimachineryversion.Info{GitVersion: "v1.33.0"}, reviewsPath: reviews(func(authorizationv1.ResourceAttributes) bool { return true }), podsPath: healthy(t)[podsPath]}
	stdout, _, code := run(t, &server{answers: answers}, "doctor")
	for _, want := range []string{"Holdfast is not installed here", "Holdfast needs Kubernetes 1.34.0 or later"} {
		if code != ExitFailed || !strings.Contains(stdout, want) {
			t.Errorf("exit code %d without %q: %s", code, want, stdout)
		}
	}
}

// TestDoctorAsksForTheRolesOfTheManifests: the rights that doctor asks for are those of the roles.
func TestDoctorAsksForTheRolesOfTheManifests(t *testing.T) {
	file, err := os.Open("../../artifacts/rbac/users.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	want := map[string]sets.Set[string]{}
	for decoder := utilyaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		var role rbacv1.ClusterRole
		if err := decoder.Decode(&role); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		want[role.Name] = sets.New[string]()
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					want[role.Name].Insert(fmt.Sprint(rule.APIGroups[0], verb, resource))
				}
			}
		}
	}
	got := map[string]sets.Set[string]{}
	for _, role := range peopleRoles {
		got[role.name] = sets.New[string]()
		for _, rule := range role.rules {
			for _, resource := range rule.resources {
				for _, verb := range rule.verbs {
					got[role.name].Insert(fmt.Sprint(rule.group, verb, resource))
				}
			}
		}
	}
	if !maps.EqualFunc(got, want, func(a, b sets.Set[string]) bool { return a.Equal(b) }) {
		t.Errorf("doctor asks for %v, and the manifests grant %v", got, want)
	}
}
