// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	holdfastclientset "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// replica is one of two API servers, asked past kube-apiserver.
type replica struct {
	role   string
	host   string
	http   *http.Client // keeps its connection, as kube-apiserver does
	client holdfastclientset.Interface
}

func replicaOf(t *testing.T, role string) replica {
	t.Helper()
	config := rest.CopyConfig(lab.Config)
	config.Host = "https://" + lab.Address(t, role)
	config.CAData, config.CAFile = nil, filepath.Join(lab.Dir, "pki", "holdfast-ca.crt")
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	client, err := holdfastclientset.NewForConfigAndClient(config, transport)
	if err != nil {
		t.Fatal(err)
	}
	return replica{role: role, host: config.Host, http: transport, client: client}
}

const systemBackups = "/apis/holdfast.io/v1alpha1/namespaces/" + labtest.System + "/backups"

// status asks once, without the patience of a client.
func (r replica) status(ctx context.Context, method, path, body string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, method, r.host+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := r.http.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return 0, err
	}
	if response.StatusCode == http.StatusServiceUnavailable && response.Header.Get("Retry-After") == "" {
		return 0, fmt.Errorf("%s %s: 503 without Retry-After", method, path)
	}
	return response.StatusCode, nil
}

func (r replica) want(t *testing.T, status int, method, path, body string) {
	t.Helper()
	if got, err := r.status(t.Context(), method, path, body); err != nil || got != status {
		t.Errorf("%s: %s %s: %d %v, want %d", r.role, method, path, got, err, status)
	}
}

// awaitServing waits until a replica serves, and says how long that took.
func (r replica) awaitServing(t *testing.T, why string) {
	t.Helper()
	begin := time.Now()
	labtest.Eventually(t, "the "+r.role+" to serve", func() error {
		status, err := r.status(t.Context(), http.MethodGet, systemBackups+"?limit=1", "")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("it answers %d", status)
		}
		return err
	})
	t.Logf("%s: the %s serves after %s", why, r.role, time.Since(begin).Round(10*time.Millisecond))
}

// list lists the system namespace's backups.
func (r replica) list(t *testing.T) *v1alpha1.BackupList {
	t.Helper()
	list, err := r.client.HoldfastV1alpha1().Backups(labtest.System).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// wantLater fails the test unless nothing that one replica lists is older than what
// the one before it has listed.
func wantLater(t *testing.T, before, after *v1alpha1.BackupList) {
	t.Helper()
	version := func(meta interface{ GetResourceVersion() string }) uint64 {
		n, err := strconv.ParseUint(meta.GetResourceVersion(), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if version(after) <= version(before) {
		t.Errorf("the list has version %s, after %s", after.ResourceVersion, before.ResourceVersion)
	}
	known := map[string]v1alpha1.Backup{}
	for _, b := range after.Items {
		known[b.Name] = b
	}
	for _, was := range before.Items {
		if is, ok := known[was.Name]; !ok || is.UID != was.UID || version(&is) < version(&was) {
			t.Errorf("backup %s is there: %t, with uid %s and version %s, after %s and %s", was.Name, ok, is.UID, is.ResourceVersion, was.UID, was.ResourceVersion)
		}
	}
}

// TestReplicas: of two API servers one serves, whatever happens to them.
func TestReplicas(t *testing.T) {
	namespace := lab.Namespace(t, "replicas")
	name := labtest.Name("replicas")
	lab.Backup(t, name, namespace)
	lab.AwaitCompleted(t, name)
	lab.StartAnother(t, labtest.AnotherAPIServer)
	first, second := replicaOf(t, labtest.APIServer), replicaOf(t, labtest.AnotherAPIServer)
	first.awaitServing(t, "at the start")
	// The tests that follow have the first one alone.
	t.Cleanup(func() {
		if err := lab.Signal(labtest.APIServer, syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	})

	t.Log("the standby answers for its health and discovery, and for nothing else")
	manifest := fmt.Sprintf(`{"apiVersion": "holdfast.io/v1alpha1", "kind": "Backup", "metadata": {"name": %q}, "spec": {"includedNamespaces": [%q]}}`, name+"-refused", namespace)
	for path, status := range map[string]int{
		"/readyz":                                  http.StatusOK,
		"/apis/holdfast.io/v1alpha1":               http.StatusOK,
		systemBackups:                              http.StatusServiceUnavailable,
		systemBackups + "?watch=1":                 http.StatusServiceUnavailable,
		systemBackups + "/" + name:                 http.StatusServiceUnavailable,
		"/apis/holdfast.io/v1alpha1/volumebackups": http.StatusServiceUnavailable,
		"/apis/holdfast.io/v1alpha1/nodeagents":    http.StatusServiceUnavailable,
	} {
		second.want(t, status, http.MethodGet, path, "")
	}
	second.want(t, http.StatusServiceUnavailable, http.MethodPost, systemBackups, manifest)
	if _, err := lab.Engine.EngineV1alpha1().BackupRuns(labtest.System).Get(t.Context(), name+"-refused", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the standby has taken a backup on: %v", err)
	}

	t.Log("the first one is paused, with a watch and connections that outlive that")
	before := first.list(t)
	watching, err := first.client.HoldfastV1alpha1().Backups(labtest.System).Watch(t.Context(), metav1.ListOptions{ResourceVersion: before.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	if err := lab.Signal(labtest.APIServer, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		status int
		err    error
	}
	asked := make(chan answer, 1)
	go func() {
		status, err := first.status(t.Context(), http.MethodGet, systemBackups, "")
		asked <- answer{status, err}
	}()
	second.awaitServing(t, "paused")
	after := second.list(t)
	wantLater(t, before, after)
	old, err := second.client.HoldfastV1alpha1().Backups(labtest.System).Watch(t.Context(), metav1.ListOptions{ResourceVersion: before.ResourceVersion})
	if err == nil {
		event := <-old.ResultChan()
		old.Stop()
		if err = apierrors.FromObject(event.Object); event.Type != watch.Error {
			t.Errorf("a watch from the first one's version begins with %s", event.Type)
		}
	}
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("a watch from the first one's version: %v, want 410", err)
	}
	second.want(t, http.StatusCreated, http.MethodPost, systemBackups, strings.Replace(manifest, name+"-refused", name+"-meanwhile", 1))

	t.Log("the first one goes on, and knows")
	if err := lab.Signal(labtest.APIServer, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := <-asked; got.status == http.StatusOK {
		t.Error("the first one answers a list that it got while it was paused")
	}
	first.want(t, http.StatusServiceUnavailable, http.MethodGet, systemBackups, "")
	for event := range watching.ResultChan() {
		if event.Type != watch.Error {
			t.Errorf("the first one's watch has %s %v", event.Type, event.Object)
		}
	}
	second.want(t, http.StatusOK, http.MethodGet, systemBackups, "")

	t.Log("the second one is told to stop")
	before = second.list(t)
	watching, err = second.client.HoldfastV1alpha1().Backups(labtest.System).Watch(t.Context(), metav1.ListOptions{ResourceVersion: before.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	if err := lab.Signal(labtest.AnotherAPIServer, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for event := range watching.ResultChan() {
		if event.Type == watch.Error {
			t.Errorf("its watch ends with %v", event.Object)
		}
	}
	first.awaitServing(t, "handed over")
	wantLater(t, before, first.list(t))

	t.Log("the first one is killed")
	lab.AwaitEnd(t, labtest.AnotherAPIServer)
	lab.Start(t, labtest.AnotherAPIServer)
	second = replicaOf(t, labtest.AnotherAPIServer)
	before = first.list(t)
	if err := lab.Signal(labtest.APIServer, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second.awaitServing(t, "killed")
	wantLater(t, before, second.list(t))
	lab.AwaitKilled(t, labtest.APIServer)
	lab.Start(t, labtest.APIServer)
}
