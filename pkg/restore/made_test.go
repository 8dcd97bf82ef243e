// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestLookAtMade: claims that are not bound and pods that are on no node are warnings, with the
// reason that Kubernetes gives. What is well, or waits for a consumer, is not.
func TestLookAtMade(t *testing.T) {
	event := func(name, uid, kind, reason, message string) map[string]any {
		return obj("v1", "Event", "a", name, with(uid, "involvedObject", "uid"), with(kind, "type"), with(reason, "reason"), with(message, "message"),
			with("2026-01-02T03:04:05Z", "lastTimestamp"))
	}
	claim := obj("v1", "PersistentVolumeClaim", "a", "data", with("fast", "spec", "storageClassName"))
	lone := obj("v1", "Pod", "a", "lone", with([]any{map[string]any{"name": "c", "image": "app"}}, "spec", "containers"))
	web := obj("apps/v1", "Deployment", "a", "web")
	controlled := func(kind, name, uid string) func(map[string]any) {
		return with([]any{map[string]any{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": true}}, "metadata", "ownerReferences")
	}
	// happen is what the cluster does of what the restore has made, by its uid.
	for name, test := range map[string]struct {
		object map[string]any
		happen func(s *fakeServer, uid string)
		says   string
	}{
		"a claim that is bound": {claim, func(s *fakeServer, _ string) {
			with("Bound", "status", "phase")(s.objects["persistentvolumeclaims/a/data"])
		}, ""},
		"a claim that waits for its consumer": {claim, func(s *fakeServer, _ string) {
			s.objects["storageclasses.storage.k8s.io//fast"] = obj("storage.k8s.io/v1", "StorageClass", "", "fast", with("WaitForFirstConsumer", "volumeBindingMode"))
		}, ""},
		"a claim whose class is not there": {claim, func(s *fakeServer, uid string) {
			s.objects["events/a/1"] = event("1", uid, "Warning", "ProvisioningFailed", "storageclass fast not found")
			s.objects["events/a/2"] = event("2", uid, "Normal", "Later", "nothing")
			s.objects["events/a/3"] = event("3", "another", "Warning", "Other", "of another one")
		}, "it is not bound: ProvisioningFailed: storageclass fast not found"},
		"a claim that nothing is said of": {claim, func(*fakeServer, string) {}, "it is not bound: no event says why"},
		"a pod on a node": {lone, func(s *fakeServer, _ string) {
			with("Pending", "status", "phase")(s.objects["pods/a/lone"])
			with("node-1", "spec", "nodeName")(s.objects["pods/a/lone"])
		}, ""},
		"a pod that no scheduler looks at": {lone, func(s *fakeServer, _ string) {
			with("Pending", "status", "phase")(s.objects["pods/a/lone"])
		}, ""},
		"a pod on no node": {lone, func(s *fakeServer, _ string) {
			with("Pending", "status", "phase")(s.objects["pods/a/lone"])
			with([]any{map[string]any{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}}, "status", "conditions")(s.objects["pods/a/lone"])
		}, "it is on no node: pod lone: Unschedulable: no room"},
		"a Deployment with a pod on no node": {web, func(s *fakeServer, uid string) {
			with(int64(1), "status", "replicas")(s.objects["deployments.apps/a/web"])
			s.objects["replicasets.apps/a/web-1"] = obj("apps/v1", "ReplicaSet", "a", "web-1", controlled("Deployment", "web", uid))
			s.objects["pods/a/web-1-x"] = obj("v1", "Pod", "a", "web-1-x", controlled("ReplicaSet", "web-1", "old-ReplicaSet-a-web-1"), with("Pending", "status", "phase"),
				with([]any{map[string]any{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}}, "status", "conditions"))
		}, "1 of its pods are on no node: pod web-1-x: Unschedulable: no room"},
		"a Deployment that may have no pods": {web, func(s *fakeServer, _ string) {
			with([]any{map[string]any{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"}}, "status", "conditions")(s.objects["deployments.apps/a/web"])
		}, "it has no pods: FailedCreate: exceeded quota"},
		"a Deployment that nobody works on": {web, func(*fakeServer, string) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t)
			s.add("namespaces", obj("v1", "Namespace", "", "a"))
			s.add("serviceaccounts", obj("v1", "ServiceAccount", "a", "default"))
			happened := false
			s.fault = func(r *http.Request) (int, bool) { // the first look comes after the last write
				for key, object := range s.objects {
					if created := s.created[key] > 0; created && !happened && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/namespaces/a/") {
						happened = true
						test.happen(s, object["metadata"].(map[string]any)["uid"].(string))
						break
					}
				}
				return 0, false
			}
			ended := s.run(t.Context(), backupOf(t, test.object), request("r", v1alpha1.RestoreSpec{}), func(d *Dependencies) { d.Look = 10 * time.Millisecond })
			if want(t, ended, v1alpha1.RestorePhaseCompleted, test.says); (test.says != "") != (ended.Status.Warnings > 0) || !happened {
				results, _ := told(t, ended)
				t.Errorf("happened: %t, warnings: %v", happened, results.Warnings)
			}
		})
	}
}
