// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	holdfastclientset "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned"
	holdfastfactory "github.com/holdfast-io/holdfast/pkg/generated/holdfast/informers/externalversions"
	holdfastlisters "github.com/holdfast-io/holdfast/pkg/generated/holdfast/listers/holdfast/v1alpha1"
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
func replica(t *testing.T, pod corev1.Pod, token string) holdfastclientset.Interface {
	t.Helper()
	encoded, err := lab.kubectl(t.Context(), "", "get", "apiservice", "v1alpha1.holdfast.io", "-o", "jsonpath={.spec.caBundle}")
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		t.Fatal(err)
	}
	client, err := holdfastclientset.NewForConfig(&rest.Config{
		Host:            "https://" + net.JoinHostPort(pod.Status.PodIP, "8443"),
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAData: trusted, ServerName: servingName},
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// uids are those of the backups that a client lists in the system namespace.
func uids(ctx context.Context, client holdfastclientset.Interface) (map[string]string, error) {
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

// serving is the pod of the replica that serves, by its Lease.
func serving(ctx context.Context) (string, error) {
	lease, err := lab.kube.CoordinationV1().Leases(system).Get(ctx, "holdfast-apiserver", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	pod, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
	return pod, nil
}

// addresses are those of the API server's Service.
func addresses(ctx context.Context) ([]string, error) {
	found, err := lab.kube.DiscoveryV1().EndpointSlices(system).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=holdfast-apiserver"})
	if err != nil {
		return nil, err
	}
	var all []string
	for _, slice := range found.Items {
		for _, endpoint := range slice.Endpoints {
			all = append(all, endpoint.Addresses...)
		}
	}
	return all, nil
}

// TestReplicas asks both replicas of the API server.
func TestReplicas(t *testing.T) {
	step("One replica of the API server serves, and is the only address of the Service")
	lab.create(t, `{apiVersion: v1, kind: Namespace, metadata: {name: inn}}`)
	lab.create(t, backup("inn", "inn"))
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "inn")
	token := reader(t)
	replicas := lab.mustPods(t, "apiserver", 2)
	if replicas[0].Spec.NodeName == replicas[1].Spec.NodeName {
		t.Errorf("both replicas run on %s", replicas[0].Spec.NodeName)
	}
	leader, err := serving(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range replicas {
		client := replica(t, pod, token)
		if pod.Name != leader {
			err := client.HoldfastV1alpha1().RESTClient().Get().Namespace(system).Resource("backups").MaxRetries(0).Do(t.Context()).Error()
			if !apierrors.IsServiceUnavailable(err) {
				t.Errorf("the replica %s, which does not serve, answers %v, want 503", pod.Name, err)
			}
			continue
		}
		at, err := addresses(t.Context())
		if err != nil || len(at) != 1 || at[0] != pod.Status.PodIP {
			t.Errorf("the Service has the addresses %v %v, want %s", at, err, pod.Status.PodIP)
		}
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
		fmt.Printf("%s on %s serves\n", pod.Name, pod.Spec.NodeName)
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

// listCounter counts the lists that a client got, be they answered by a watch.
type listCounter struct{ lists atomic.Int64 }

func (c *listCounter) wrap(inner http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		response, err := inner.RoundTrip(request)
		query := request.URL.Query()
		if err == nil && response.StatusCode == http.StatusOK && (query.Get("watch") == "" || query.Get("sendInitialEvents") == "true") {
			c.lists.Add(1)
		}
		return response, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// transitions is how often the API server's Lease has passed to another replica.
func transitions(t *testing.T) int32 {
	t.Helper()
	lease, err := lab.kube.CoordinationV1().Leases(system).Get(t.Context(), "holdfast-apiserver", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ptr.Deref(lease.Spec.LeaseTransitions, 0)
}

// public are clients that go on whatever happens to the API server.
type public struct {
	// lists is how many were answered.
	lists    atomic.Int64
	informed *listCounter
	backups  holdfastlisters.BackupNamespaceLister
	failures sync.Map
	stop     context.CancelFunc
	clients  sync.WaitGroup
}

// admit lets in a client that lists without a pause, and an informer, both of the backups of
// the system namespace. Each list that is answered must have what was there before, and the
// informer must see nothing vanish. Patience is how long a list may take that is then given up, without
// a failure; zero means that all must be answered.
func admit(t *testing.T, before map[string]string, patience time.Duration) *public {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	p := &public{informed: &listCounter{}, stop: stop}
	t.Cleanup(func() { stop(); p.clients.Wait() })
	list := func() (map[string]string, error) {
		if patience == 0 {
			return uids(ctx, lab.holdfast)
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return uids(ctx, lab.holdfast)
	}
	p.clients.Go(func() {
		for ctx.Err() == nil {
			listed, err := list()
			switch {
			case ctx.Err() != nil:
				return
			case err != nil && patience > 0:
				continue
			case err != nil:
				p.failures.Store(err.Error(), true)
			}
			for name, uid := range before {
				if err == nil && listed[name] != uid {
					p.failures.Store(fmt.Sprintf("backup %s has uid %q, want %s", name, listed[name], uid), true)
				}
			}
			p.lists.Add(1)
		}
	})
	config := rest.CopyConfig(lab.config)
	config.Wrap(p.informed.wrap)
	client, err := holdfastclientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	factory := holdfastfactory.NewSharedInformerFactoryWithOptions(client, 0, holdfastfactory.WithNamespace(system))
	informer := factory.Holdfast().V1alpha1().Backups()
	if _, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(obj any) { p.failures.Store(fmt.Sprintf("the informer saw a backup vanish: %v", obj), true) },
	}); err != nil {
		t.Fatal(err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.Informer().HasSynced) {
		t.Fatal("the informer does not get its first list")
	}
	p.backups = informer.Lister().Backups(system)
	return p
}

// leave ends the clients, and fails if they have seen what must not be.
func (p *public) leave(t *testing.T, what string) {
	t.Helper()
	p.stop()
	p.clients.Wait()
	p.failures.Range(func(failure, _ any) bool {
		t.Errorf("during %s: %v", what, failure)
		return true
	})
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

	people := admit(t, before, 0)
	// A person who watches.
	person := watch(t.Context(), t)
	person.awaitRow(t, "AGE")
	lab.create(t, backup("pier-watched", "pier"))
	person.awaitRow(t, "pier-watched")
	if text := person.out.String(); !strings.Contains(text, "pier-watched") {
		t.Fatalf("kubectl get -w ended by itself:\n%s%s", text, person.complaints.String())
	}

	old := lab.mustPods(t, "apiserver", 2)
	codes := exits(t.Context(), t)
	listed, terms := people.informed.lists.Load(), transitions(t)
	lab.mustShow(t, "rollout", "restart", "-n", system, "deployment/holdfast-apiserver")
	lab.create(t, backup("pier-meanwhile", "pier"))
	person.awaitRow(t, "pier-meanwhile")
	lab.mustShow(t, "rollout", "status", "-n", system, "deployment/holdfast-apiserver", "--timeout=180s")
	for _, pod := range old {
		lab.must(t, "wait", "--for=delete", "--timeout=120s", "-n", system, "pod/"+pod.Name)
	}
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "pier-meanwhile")
	eventually(t, "the informer sees the new backup's end", func(context.Context) error {
		b, err := people.backups.Get("pier-meanwhile")
		if err == nil && b.Status.Phase != v1alpha1.BackupPhaseCompleted {
			err = fmt.Errorf("it is %s", b.Status.Phase)
		}
		return err
	})

	listed, terms = people.informed.lists.Load()-listed, transitions(t)-terms
	fmt.Printf("%d lists during the rollout; the informer listed %d times in %d hand-overs\n", people.lists.Load(), listed, terms)
	if listed > int64(terms) {
		t.Errorf("the informer listed %d times in %d hand-overs, want once in each at most", listed, terms)
	}
	if people.lists.Load() < 100 {
		t.Errorf("only %d lists were made, so this shows nothing", people.lists.Load())
	}
	people.leave(t, "the rollout")
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

// replaced waits until another replica serves than the one that did, is the Service's
// only address, and answers kube-apiserver's clients. It returns how long after since
// each of that was so.
func replaced(t *testing.T, before string, since time.Time) (led, listed time.Duration) {
	t.Helper()
	eventually(t, "another replica serves than "+before, func(ctx context.Context) error {
		leader, err := serving(ctx)
		if err != nil {
			return err
		}
		if leader == before || leader == "" {
			return fmt.Errorf("%q holds the Lease", leader)
		}
		pods, err := lab.pods(ctx, "apiserver")
		if err != nil {
			return err
		}
		at, err := addresses(ctx)
		i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Name == leader })
		if err == nil && (i < 0 || len(at) != 1 || at[0] != pods[i].Status.PodIP) {
			err = fmt.Errorf("the Service has the addresses %v, which are not that of %s", at, leader)
		}
		return err
	})
	led = time.Since(since)
	eventually(t, "backups are listed", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := uids(ctx, lab.holdfast)
		return err
	})
	return led, time.Since(since)
}

// TestServingReplicaEnds kills the replica that serves, and then takes the node away
// under its successor without a word.
func TestServingReplicaEnds(t *testing.T) {
	pods := lab.mustPods(t, "apiserver", 2)
	before, err := uids(t.Context(), lab.holdfast)
	if err != nil {
		t.Fatal(err)
	}
	// The Lease of 13 s expires, which is looked at every half second, and the next replica, which has read
	// everything, serves. kube-apiserver then needs its own probe of the new address, for which it has 5 s,
	// and the machine may be busy. Three Leases are no expiry of one Lease.
	within := func(what string, took time.Duration) {
		t.Helper()
		fmt.Printf("%s after %s\n", what, took.Round(10*time.Millisecond))
		if took > 39*time.Second {
			t.Errorf("%s after %s, want about 14 s: the Lease lasts 13 s", what, took)
		}
	}
	leads := func(pod corev1.Pod) func(context.Context) error {
		return func(ctx context.Context) error {
			leader, err := serving(ctx)
			if err == nil && leader != pod.Name {
				err = fmt.Errorf("%q serves", leader)
			}
			return err
		}
	}
	// The first node is the way to ClusterIPs, so it is the second one that dies, and the replica on the
	// first one that is killed before. If it does not serve, the other one makes way.
	first := podOn(t, pods, nodes[0])
	if leads(first)(t.Context()) != nil {
		lab.must(t, "delete", "-n", system, "pod/"+podOn(t, pods, nodes[1]).Name)
		eventually(t, "the replica on "+nodes[0]+" serves", leads(first))
		lab.mustShow(t, "rollout", "status", "-n", system, "deployment/holdfast-apiserver", "--timeout=180s")
		pods = lab.mustPods(t, "apiserver", 2)
	}
	people := admit(t, before, time.Second)

	step("The replica that serves is killed")
	kill(t, first)
	led, listed := replaced(t, first.Name, time.Now())
	within("killed: replaced", led)
	within("killed: backups are listed", listed)

	step("The node of the replica that serves is gone")
	second := podOn(t, pods, nodes[1])
	if err := leads(second)(t.Context()); err != nil {
		t.Fatal(err)
	}
	device := func(state string) {
		if out, err := exec.Command("ip", "link", "set", "hflab-1", state).CombinedOutput(); err != nil {
			t.Errorf("ip link set %s: %v %s", state, err, out)
		}
	}
	device("down")
	t.Cleanup(func() {
		device("up")
		// The test's own context has ended.
		if _, err := lab.kubectl(context.Background(), "", "wait", "--for=condition=Ready", "--timeout=120s", "node/"+nodes[1]); err != nil {
			t.Error(err)
		}
	})
	led, listed = replaced(t, second.Name, time.Now())
	within("its node gone: replaced", led)
	if os.Getenv("AGGREGATOR_ROUTING") == "false" {
		// kube-apiserver may go on with a connection to the node, until its own probes fail.
		fmt.Printf("its node gone: backups are listed after %s\n", listed.Round(10*time.Millisecond))
	} else {
		within("its node gone: backups are listed", listed)
	}
	after, err := uids(t.Context(), lab.holdfast)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("the list was %v, and is %v", before, after)
	}
	fmt.Printf("%d lists were answered; the informer listed %d times\n", people.lists.Load(), people.informed.lists.Load())
	people.leave(t, "the ends of two replicas")
}
