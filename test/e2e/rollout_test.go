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

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()

	// A client that lists without pause.
	var lists atomic.Int64
	var failures sync.Map
	clients.Go(func() {
		for ctx.Err() == nil {
			listed, err := uids(ctx, lab.holdfast)
			for name, uid := range before {
				if err == nil && listed[name] != uid {
					err = fmt.Errorf("backup %s has uid %q, want %s", name, listed[name], uid)
				}
			}
			if ctx.Err() != nil {
				return
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
	_, err = informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(obj any) { failures.Store(fmt.Sprintf("the informer saw a backup vanish: %v", obj), true) },
	})
	if err != nil {
		t.Fatal(err)
	}
	factory.StartWithContext(ctx)
	defer func() { stop(); factory.Shutdown() }()
	if !cache.WaitForCacheSync(ctx.Done(), informer.Informer().HasSynced) {
		t.Fatal("the informer does not get its first list")
	}
	// A person who watches.
	watching := lab.command(ctx, "get", "backups", "-n", system, "-w")
	var seen, complaint bytes.Buffer
	watching.Stdout, watching.Stderr = &seen, &complaint
	watched := make(chan error, 1)
	if err := watching.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { watched <- watching.Wait() }()

	old := lab.mustPods(t, "apiserver", 2)
	lab.mustShow(t, "rollout", "restart", "-n", system, "deployment/holdfast-apiserver")
	lab.create(t, backup("pier-meanwhile", "pier"))
	lab.mustShow(t, "rollout", "status", "-n", system, "deployment/holdfast-apiserver", "--timeout=180s")
	eventually(t, "the old replicas are gone", func(ctx context.Context) error {
		for _, pod := range old {
			if _, err := lab.kube.CoreV1().Pods(system).Get(ctx, pod.Name, metav1.GetOptions{}); err == nil {
				return errors.New(pod.Name + " is there")
			}
		}
		return nil
	})
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "pier-meanwhile")
	eventually(t, "the informer sees the new backup's end", func(context.Context) error {
		b, err := informer.Lister().Backups(system).Get("pier-meanwhile")
		if err == nil && b.Status.Phase != v1alpha1.BackupPhaseCompleted {
			err = fmt.Errorf("it is %s", b.Status.Phase)
		}
		return err
	})
	stop()
	fmt.Println("kubectl get -w ended:", <-watched, "with", seen.String(), complaint.String())
	fmt.Printf("%d lists during the rollout\n", lists.Load())
	if lists.Load() < 100 {
		t.Errorf("only %d lists were made, so this shows nothing", lists.Load())
	}
	failures.Range(func(failure, _ any) bool {
		t.Errorf("during the rollout: %v", failure)
		return true
	})
	if !strings.Contains(seen.String(), "pier-before") {
		t.Errorf("kubectl get -w printed:\n%s", seen.String())
	}
}
