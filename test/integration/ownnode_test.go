// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"slices"
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
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/volumework"
	engineclientset "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

const (
	agentsNamespace = labtest.System + "-agents"
	agentAccount    = "holdfast-node-agent"
)

// agentConfig is the configuration of an agent's clients, by a token that is bound to a pod
// on the node, or to none.
func agentConfig(t *testing.T, node string) *rest.Config {
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
	return config
}

func clientsOf(t *testing.T, config *rest.Config) (kubernetes.Interface, engineclientset.Interface) {
	t.Helper()
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := engineclientset.NewForConfig(config)
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
	held, err := lab.Kube.CoordinationV1().Leases(agentsNamespace).Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: lease.AgentLease(node)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		for _, err := range []error{
			uploads.Delete(ctx, name, metav1.DeleteOptions{}), restores.Delete(ctx, name, metav1.DeleteOptions{}),
			lab.Kube.CoordinationV1().Leases(agentsNamespace).Delete(ctx, held.Name, metav1.DeleteOptions{}),
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
	write := func(t *testing.T, kube kubernetes.Interface, engine engineclientset.Interface) map[string]error {
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
			held, err := leases.Get(t.Context(), lease.AgentLease(node), metav1.GetOptions{})
			if err != nil {
				return err
			}
			held.Spec.RenewTime = new(metav1.NowMicro())
			_, err = leases.Update(t.Context(), held, metav1.UpdateOptions{})
			return err
		})
		answers["removing the Lease"] = leases.Delete(t.Context(), lease.AgentLease(node), metav1.DeleteOptions{})
		_, answers["making the Lease"] = leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: lease.AgentLease(node)}}, metav1.CreateOptions{})
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
		kube, engine := clientsOf(t, agentConfig(t, labtest.Node))
		refused(t, write(t, kube, engine), "the agent of node "+labtest.Node+" writes only the")
	})
	t.Run("of none", func(t *testing.T) {
		kube, engine := clientsOf(t, agentConfig(t, ""))
		answers := write(t, kube, engine)
		_, answers["an event"] = kube.EventsV1().Events(labtest.System).Create(t.Context(), event(agentAccount), metav1.CreateOptions{})
		refused(t, answers, "this one names none")
	})
	t.Run("of the node", func(t *testing.T) {
		kube, engine := clientsOf(t, agentConfig(t, node))
		for what, err := range write(t, kube, engine) {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		phase := func(phase enginev1alpha1.VolumePhase) error {
			return retried(func() error {
				record, err := uploads.Get(t.Context(), name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				record.Status.Phase = phase
				_, err = engine.EngineV1alpha1().VolumeUploads(labtest.System).UpdateStatus(t.Context(), record, metav1.UpdateOptions{})
				return err
			})
		}
		if err := phase(enginev1alpha1.VolumePhaseFailed); err != nil {
			t.Error(err)
		}
		refused(t, map[string]error{"work that is done": phase(enginev1alpha1.VolumePhaseNew)}, "stays so")
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

// TestAgentsReadTheirNodes: by its token an agent reads the records of its own node and the
// Secrets of their work, through the API server; and it reads no others, neither there nor
// at kube-apiserver, and nobody reads them there whose token names no node.
func TestAgentsReadTheirNodes(t *testing.T) {
	t.Parallel()
	const node = labtest.Unattended
	records := lab.Engine.EngineV1alpha1()
	name := labtest.Name("read")
	repository := enginev1alpha1.RepositoryName(name, "default")
	keys := lab.Kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(labtest.System))
	made := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	made(keys.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: enginev1alpha1.KeySecretName(repository)}, StringData: map[string]string{enginev1alpha1.KeySecretKey: "a key"},
	}, metav1.CreateOptions{}))
	made(records.VolumeRepositories(labtest.System).Create(t.Context(), &enginev1alpha1.VolumeRepository{
		ObjectMeta: metav1.ObjectMeta{Name: repository}, Spec: enginev1alpha1.VolumeRepositorySpec{VolumeNamespace: name, BackupStorageLocation: "default"},
	}, metav1.CreateOptions{}))
	create := func(name, node string) {
		t.Helper()
		// Nobody works on them: there is no such pod, and no agent has that identity.
		record, err := records.VolumeUploads(labtest.System).Create(t.Context(), &enginev1alpha1.VolumeUpload{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{enginev1alpha1.LabelNode: node}},
			Spec: enginev1alpha1.VolumeUploadSpec{
				Node: node, Pod: enginev1alpha1.PodReference{Namespace: "default", Name: "web", UID: "none"}, Volume: "data",
				BackupStorageLocation: "default", Repository: repository,
			},
		}, metav1.CreateOptions{})
		made(record, err)
		t.Cleanup(func() {
			if err := records.VolumeUploads(labtest.System).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		if err := records.VolumeRepositories(labtest.System).Delete(context.Background(), repository, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := keys.Delete(context.Background(), enginev1alpha1.KeySecretName(repository), metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	own, elsewhere := name+"-own", name+"-elsewhere"
	create(own, node)
	create(elsewhere, labtest.Node)
	// through is what a client reads that asks for what is of a node.
	through := func(config *rest.Config, node string) engineclientset.Interface {
		config = rest.CopyConfig(config)
		config.Host += v1alpha1.NodeAgentProxyPath(node)
		_, engine := clientsOf(t, config)
		return engine
	}
	secretsOf := func(engine engineclientset.Interface, record string) error {
		_, err := volumework.Secrets(engine.EngineV1alpha1().RESTClient(), labtest.System)(t.Context(), "volumeuploads", record)
		return err
	}

	config := agentConfig(t, node)
	agent := through(config, node)
	uploads := agent.EngineV1alpha1().VolumeUploads(labtest.System)
	list, err := uploads.List(t.Context(), metav1.ListOptions{LabelSelector: enginev1alpha1.LabelNode + "=" + labtest.Node})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, record := range list.Items {
		names = append(names, record.Name)
		if record.Spec.Node != node {
			t.Errorf("it lists %s of node %s", record.Name, record.Spec.Node)
		}
	}
	if !slices.Contains(names, own) {
		t.Errorf("it lists %q without %s", names, own)
	}
	if _, err := uploads.Get(t.Context(), own, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := uploads.Get(t.Context(), elsewhere, metav1.GetOptions{}); !apierrors.IsNotFound(err) || apierrors.IsUnexpectedServerError(err) {
		t.Errorf("of another node's record it reads %v", err)
	}
	watching, err := uploads.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	create(name+"-elsewhere-too", labtest.Node)
	create(name+"-own-too", node)
	for event := range watching.ResultChan() {
		record, ok := event.Object.(*enginev1alpha1.VolumeUpload)
		if !ok || record.Spec.Node != node {
			t.Fatalf("it sees %+v", event)
		}
		if record.Name == name+"-own-too" {
			break
		}
	}
	secrets, err := volumework.Secrets(agent.EngineV1alpha1().RESTClient(), labtest.System)(t.Context(), "volumeuploads", own)
	if err != nil || len(secrets) != 1 || secrets[0].Name != enginev1alpha1.KeySecretName(repository) || string(secrets[0].Data[enginev1alpha1.KeySecretKey]) != "a key" {
		t.Errorf("the Secrets of its work are %v, %v", len(secrets), err)
	}
	if err := secretsOf(agent, elsewhere); !apierrors.IsNotFound(err) {
		t.Errorf("of another node's record it gets the Secrets: %v", err)
	}
	if err := retried(func() error {
		record, err := records.VolumeUploads(labtest.System).Get(t.Context(), own, metav1.GetOptions{})
		if err != nil {
			return err
		}
		record.Status.Phase = enginev1alpha1.VolumePhaseFailed
		_, err = records.VolumeUploads(labtest.System).UpdateStatus(t.Context(), record, metav1.UpdateOptions{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := secretsOf(agent, own); !apierrors.IsConflict(err) || !strings.Contains(fmt.Sprint(err), "needs no Secret") {
		t.Errorf("of work that is done it gets the Secrets: %v", err)
	}

	kube, direct := clientsOf(t, config)
	refused := func(what string, err error, why string) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(fmt.Sprint(err), why) {
			t.Errorf("%s: got %v, want a refusal that says %q", what, err, why)
		}
	}
	_, err = direct.EngineV1alpha1().VolumeUploads(labtest.System).List(t.Context(), metav1.ListOptions{})
	refused("the records, at kube-apiserver", err, "cannot list")
	_, err = direct.EngineV1alpha1().VolumeRestores(labtest.System).List(t.Context(), metav1.ListOptions{})
	refused("the records, at kube-apiserver", err, "cannot list")
	_, err = kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(labtest.System)).Get(t.Context(), enginev1alpha1.KeySecretName(repository), metav1.GetOptions{})
	refused("a key, at kube-apiserver", err, "cannot get")
	_, err = kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(labtest.System)).Get(t.Context(), "any", metav1.GetOptions{})
	refused("credentials, at kube-apiserver", err, "cannot get")
	for who, one := range map[string]struct {
		config *rest.Config
		why    string
	}{
		"the agent of another node": {agentConfig(t, labtest.Node), "the agent of node " + labtest.Node + " reads only"},
		"a token of no node":        {agentConfig(t, ""), "this one names none"},
		"an administrator":          {lab.Config, "only node agents read here"},
	} {
		other := through(one.config, node)
		_, err := other.EngineV1alpha1().VolumeUploads(labtest.System).List(t.Context(), metav1.ListOptions{})
		refused(who, err, one.why)
		raw := other.EngineV1alpha1().RESTClient().Get().Namespace(labtest.System).Resource("volumeuploads").Name(name + "-own-too").SubResource("secrets")
		refused(who, raw.Do(t.Context()).Error(), one.why)
	}
}
