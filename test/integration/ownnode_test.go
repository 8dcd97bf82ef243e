// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
	"github.com/holdfast-io/holdfast/pkg/liveness"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

const (
	agentsNamespace = labtest.System + "-agents"
	agentAccount    = "holdfast-node-agent"
)

// agentClients are the clients of an agent, by a token that is bound to a pod on the
// node, or to none.
func agentClients(t *testing.T, node string) (kubernetes.Interface, engineclient.Interface) {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if node != "" {
		pod, err := lab.Kube.CoreV1().Pods(agentsNamespace).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: labtest.Name("agent")},
			Spec: corev1.PodSpec{
				NodeName: node, ServiceAccountName: agentAccount, TerminationGracePeriodSeconds: new(int64),
				AutomountServiceAccountToken: new(bool),
				Containers:                   []corev1.Container{{Name: "agent", Image: "example.com/agent"}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := lab.Kube.CoreV1().Pods(agentsNamespace).Delete(context.Background(), pod.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
	token, err := lab.Kube.CoreV1().ServiceAccounts(agentsNamespace).CreateToken(t.Context(), agentAccount, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(lab.Config)
	config.BearerToken = token.Status.Token
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := engineclient.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return kube, engine
}

// TestAgentsKeepToTheirNodes: what an agent may write, by its account's rights, it may
// write only of its own node.
func TestAgentsKeepToTheirNodes(t *testing.T) {
	t.Parallel()
	const node = labtest.Unattended // no agent there writes anything meanwhile
	uploads, restores := lab.Engine.EngineV1alpha1().VolumeUploads(labtest.System), lab.Engine.EngineV1alpha1().VolumeRestores(labtest.System)
	name := labtest.Name("own")
	meta := metav1.ObjectMeta{Name: name, Labels: map[string]string{enginev1alpha1.LabelNode: node}}
	pod := enginev1alpha1.PodReference{Namespace: "default", Name: "web", UID: "none"}
	_, err := uploads.Create(t.Context(), &enginev1alpha1.VolumeUpload{ObjectMeta: meta, Spec: enginev1alpha1.VolumeUploadSpec{
		Node: node, Pod: pod, Volume: "data", BackupStorageLocation: "default", Repository: "none",
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = restores.Create(t.Context(), &enginev1alpha1.VolumeRestore{ObjectMeta: meta, Spec: enginev1alpha1.VolumeRestoreSpec{
		Node: node, Pod: pod, Volume: "data", BackupStorageLocation: "default", Repository: "none", SnapshotID: "none",
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := lab.Kube.CoordinationV1().Leases(agentsNamespace).Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: liveness.AgentLease(node)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		for _, err := range []error{
			uploads.Delete(ctx, name, metav1.DeleteOptions{}), restores.Delete(ctx, name, metav1.DeleteOptions{}),
			lab.Kube.CoordinationV1().Leases(agentsNamespace).Delete(ctx, lease.Name, metav1.DeleteOptions{}),
		} {
			if err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	})
	event := func(controller string) *eventsv1.Event {
		return &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: labtest.Name("event")}, EventTime: metav1.NowMicro(), Type: corev1.EventTypeWarning, Reason: "Test", Action: "Test",
			ReportingController: controller, ReportingInstance: "test",
			Regarding: corev1.ObjectReference{APIVersion: "engine.holdfast.io/v1alpha1", Kind: "VolumeUpload", Namespace: labtest.System, Name: name},
		}
	}

	// write does all that an agent writes, of the node.
	write := func(t *testing.T, kube kubernetes.Interface, engine engineclient.Interface) map[string]error {
		leases := kube.CoordinationV1().Leases(agentsNamespace)
		answers := map[string]error{}
		answers["the upload"] = retried(func() error {
			record, err := uploads.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			record.Spec.Node = labtest.Node // the status is not where to say that
			record.Status.Message = labtest.Name("written")
			_, err = engine.EngineV1alpha1().VolumeUploads(labtest.System).UpdateStatus(t.Context(), record, metav1.UpdateOptions{})
			return err
		})
		answers["the restore"] = retried(func() error {
			record, err := restores.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			record.Status.Message = labtest.Name("written")
			_, err = engine.EngineV1alpha1().VolumeRestores(labtest.System).UpdateStatus(t.Context(), record, metav1.UpdateOptions{})
			return err
		})
		answers["renewing the Lease"] = retried(func() error {
			lease, err := leases.Get(t.Context(), liveness.AgentLease(node), metav1.GetOptions{})
			if err != nil {
				return err
			}
			lease.Spec.RenewTime = new(metav1.NowMicro())
			_, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{})
			return err
		})
		answers["removing the Lease"] = leases.Delete(t.Context(), liveness.AgentLease(node), metav1.DeleteOptions{})
		_, answers["making the Lease"] = leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: liveness.AgentLease(node)}}, metav1.CreateOptions{})
		return answers
	}
	refused := func(t *testing.T, answers map[string]error, why string) {
		t.Helper()
		for what, err := range answers {
			if !apierrors.IsForbidden(err) || !strings.Contains(fmt.Sprint(err), why) {
				t.Errorf("%s: got %v, want a refusal that says %q", what, err, why)
			}
		}
	}

	t.Run("of another node", func(t *testing.T) {
		kube, engine := agentClients(t, labtest.Node)
		refused(t, write(t, kube, engine), "the agent of node "+labtest.Node+" writes only the")
	})
	t.Run("of none", func(t *testing.T) {
		kube, engine := agentClients(t, "")
		answers := write(t, kube, engine)
		_, answers["an event"] = kube.EventsV1().Events(labtest.System).Create(t.Context(), event(agentAccount), metav1.CreateOptions{})
		refused(t, answers, "this one names none")
	})
	t.Run("of the node", func(t *testing.T) {
		kube, engine := agentClients(t, node)
		for what, err := range write(t, kube, engine) {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		events := kube.EventsV1().Events(labtest.System)
		if _, err := events.Create(t.Context(), event(agentAccount), metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
		_, err := events.Create(t.Context(), event("holdfast-controller"), metav1.CreateOptions{})
		refused(t, map[string]error{"an event of the controller": err}, "say that they are an agent's")
	})
}

// retried tries again when somebody else has written the object meanwhile.
func retried(write func() error) error {
	for {
		if err := write(); !apierrors.IsConflict(err) {
			return err
		}
	}
}
