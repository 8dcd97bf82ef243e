// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	holdfastclient "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned"
	holdfastinformers "github.com/holdfast-io/holdfast/pkg/generated/holdfast/informers/externalversions"
)

// reader makes a user that may view the system namespace, by the cluster's own
// role view, and returns a token.
func reader(t *testing.T) string {
	t.Helper()
	lab.create(t, `apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: holdfast}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: holdfast}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: reader, namespace: holdfast}]
`)
	token, err := lab.kube.CoreV1().ServiceAccounts(system).CreateToken(t.Context(), "reader", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return token.Status.Token
}

// replica is a client of one replica of the API server, past Service and
// kube-apiserver, which checks its certificate as kube-apiserver does.
func replica(t *testing.T, pod corev1.Pod, token string) holdfastclient.Interface {
	t.Helper()
	service, err := lab.kube.CoreV1().Secrets(system).Get(t.Context(), "holdfast-apiserver-tls", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := holdfastclient.NewForConfig(&rest.Config{
		Host:            "https://" + net.JoinHostPort(pod.Status.PodIP, "8443"),
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAData: service.Data["tls.crt"], ServerName: servingName},
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// uids are those of the backups that a client lists in the system namespace.
func uids(ctx context.Context, client holdfastclient.Interface) (map[string]string, error) {
	list, err := client.HoldfastV1alpha1().Backups(system).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	byName := map[string]string{}
	for _, b := range list.Items {
		byName[b.Name] = string(b.UID)
	}
	return byName, nil
}

// TestReplicas asks both replicas of the API server.
func TestReplicas(t *testing.T) {
	step("Both replicas of the API server answer, and say the same")
	lab.create(t, `{apiVersion: v1, kind: Namespace, metadata: {name: inn}}`)
	lab.create(t, backup("inn", "inn"))
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "inn")
	token := reader(t)
	replicas := lab.mustPods(t, "apiserver", 2)
	if replicas[0].Spec.NodeName == replicas[1].Spec.NodeName {
		t.Errorf("both replicas run on %s", replicas[0].Spec.NodeName)
	}
	for _, pod := range replicas {
		client := replica(t, pod, token)
		eventually(t, "the replica "+pod.Name+" lists what kube-apiserver lists", func(ctx context.Context) error {
			want, err := uids(ctx, lab.holdfast)
			if err != nil {
				return err
			}
			got, err := uids(ctx, client)
			if err == nil && (fmt.Sprint(got) != fmt.Sprint(want) || got["inn"] == "") {
				err = fmt.Errorf("%v, want %v", got, want)
			}
			return err
		})
		// It asks the cluster who we are, and what we may.
		if _, err := client.HoldfastV1alpha1().Backups("default").List(t.Context(), metav1.ListOptions{}); err == nil {
			t.Errorf("the replica %s lets a reader of the namespace %s list backups in another one", pod.Name, system)
		}
		fmt.Printf("%s on %s: lists the same backups as its twin\n", pod.Name, pod.Spec.NodeName)
	}
}

// screen is what a program prints while it runs.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// watching is a person's kubectl get backups -w.
type watching struct {
	out, complaints screen
	ended           chan struct{}
	err             error // once it has ended
}

func watch(ctx context.Context, t *testing.T) *watching {
	t.Helper()
	w := &watching{ended: make(chan struct{})}
	command := lab.command(ctx, "get", "backups", "-n", system, "-w")
	command.Stdout, command.Stderr = &w.out, &w.complaints
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		w.err = command.Wait()
		close(w.ended)
	}()
	return w
}

// awaitRow waits until the person sees a backup, or kubectl has ended.
func (w *watching) awaitRow(t *testing.T, backup string) {
	t.Helper()
	eventually(t, "kubectl get -w shows "+backup, func(context.Context) error {
		select {
		case <-w.ended:
			return nil
		default:
		}
		if !strings.Contains(w.out.String(), backup) {
			return fmt.Errorf("it shows\n%s", w.out.String())
		}
		return nil
	})
}

// watchAnew watches until a backup shows up that was created after the first list.
// A watch goes on from a list at the same replica only, and this lab's
// kube-apiserver picks one at random for each request; the other one says that the
// version has expired, and a person repeats the command.
func watchAnew(ctx context.Context, t *testing.T) *watching {
	t.Helper()
	for i := range 30 {
		w := watch(ctx, t)
		w.awaitRow(t, "AGE")
		name := fmt.Sprintf("pier-watched-%d", i)
		lab.create(t, backup(name, "pier"))
		w.awaitRow(t, name)
		select {
		case <-w.ended:
			if out := w.out.String(); w.err != nil || !strings.Contains(out, "Expired") {
				t.Fatalf("kubectl get -w ended by itself: %v\n%s%s", w.err, out, w.complaints.String())
			}
		default:
			return w
		}
	}
	t.Fatal("kubectl get -w never got the same replica twice")
	return nil
}

// exits records, by pod, with which code the containers of the system namespace
// end: the kubelet says so before it lets a pod go.
func exits(ctx context.Context, t *testing.T) *sync.Map {
	t.Helper()
	codes := &sync.Map{}
	factory := informers.NewSharedInformerFactoryWithOptions(lab.kube, 0, informers.WithNamespace(system))
	note := func(obj any) {
		pod, ok := obj.(*corev1.Pod)
		if !ok || len(pod.Status.ContainerStatuses) == 0 {
			return
		}
		if ended := pod.Status.ContainerStatuses[0].State.Terminated; ended != nil {
			codes.Store(pod.Name, ended.ExitCode)
		}
	}
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, obj any) { note(obj) }, DeleteFunc: note,
	}); err != nil {
		t.Fatal(err)
	}
	factory.StartWithContext(ctx)
	factory.WaitForCacheSyncWithContext(ctx)
	return codes
}

// TestRollout rolls the API server out while people list and watch.
func TestRollout(t *testing.T) {
	step("The API server is rolled out while clients list and watch")
	lab.create(t, `{apiVersion: v1, kind: Namespace, metadata: {name: pier}}`)
	lab.create(t, backup("pier-before", "pier"))
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "pier-before")
	awaitStored(t, "pier-before")
	before, err := uids(t.Context(), lab.holdfast)
	if err != nil {
		t.Fatal(err)
	}

	var clients sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer func() { stop(); clients.Wait() }()
	var lists atomic.Int64
	var failures sync.Map
	// A client that lists without a pause.
	clients.Go(func() {
		for ctx.Err() == nil {
			listed, err := uids(ctx, lab.holdfast)
			if ctx.Err() != nil {
				return
			}
			for name, uid := range before {
				if err == nil && listed[name] != uid {
					err = fmt.Errorf("backup %s has uid %q, want %s", name, listed[name], uid)
				}
			}
			if err != nil {
				failures.Store(err.Error(), true)
			}
			lists.Add(1)
		}
	})
	// An informer, which must see nothing vanish.
	factory := holdfastinformers.NewSharedInformerFactoryWithOptions(lab.holdfast, 0, holdfastinformers.WithNamespace(system))
	informer := factory.Holdfast().V1alpha1().Backups()
	if _, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(obj any) { failures.Store(fmt.Sprintf("the informer saw a backup vanish: %v", obj), true) },
	}); err != nil {
		t.Fatal(err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.Informer().HasSynced) {
		t.Fatal("the informer does not get its first list")
	}
	// A person who watches.
	person := watchAnew(ctx, t)

	old := lab.mustPods(t, "apiserver", 2)
	codes := exits(ctx, t)
	lab.mustShow(t, "rollout", "restart", "-n", system, "deployment/holdfast-apiserver")
	lab.create(t, backup("pier-meanwhile", "pier"))
	person.awaitRow(t, "pier-meanwhile")
	lab.mustShow(t, "rollout", "status", "-n", system, "deployment/holdfast-apiserver", "--timeout=180s")
	for _, pod := range old {
		lab.must(t, "wait", "--for=delete", "--timeout=120s", "-n", system, "pod/"+pod.Name)
	}
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "pier-meanwhile")
	eventually(t, "the informer sees the new backup's end", func(context.Context) error {
		b, err := informer.Lister().Backups(system).Get("pier-meanwhile")
		if err == nil && b.Status.Phase != v1alpha1.BackupPhaseCompleted {
			err = fmt.Errorf("it is %s", b.Status.Phase)
		}
		return err
	})

	fmt.Printf("%d lists during the rollout\n", lists.Load())
	if lists.Load() < 100 {
		t.Errorf("only %d lists were made, so this shows nothing", lists.Load())
	}
	failures.Range(func(failure, _ any) bool {
		t.Errorf("during the rollout: %v", failure)
		return true
	})
	// The replica that it watched is gone, and has told it so.
	eventually(t, "kubectl get -w has ended", func(context.Context) error {
		select {
		case <-person.ended:
			return nil
		default:
			return fmt.Errorf("it still watches a replica that is gone:\n%s", person.out.String())
		}
	})
	if out := person.out.String(); person.err != nil || person.complaints.String() != "" || !strings.Contains(out, "pier-meanwhile") {
		t.Errorf("kubectl get -w ended with %v:\n%s%s", person.err, out, person.complaints.String())
	}
	for _, pod := range old {
		eventually(t, "it is known how "+pod.Name+" ended", func(context.Context) error {
			if _, ok := codes.Load(pod.Name); !ok {
				return errors.New("it is not known yet")
			}
			return nil
		})
		if code, _ := codes.Load(pod.Name); code != int32(0) {
			t.Errorf("the process of %s ended with exit code %v, want 0: it did not stop when it was told to", pod.Name, code)
		}
	}
}
