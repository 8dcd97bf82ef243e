// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/apiserver/servingcert"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

const (
	ownAPIService = "v1alpha1.holdfast.io"
	ownDNSName    = "holdfast-apiserver.holdfast.svc"
)

func apiServices(t *testing.T, config *rest.Config) dynamic.ResourceInterface {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client.Resource(servingcert.APIServices)
}

// bundle is the caBundle of an APIService.
func bundle(ctx context.Context, services dynamic.ResourceInterface, name string) ([]byte, error) {
	object, err := services.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	text, _, err := unstructured.NestedString(object.Object, "spec", "caBundle")
	if err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(text)
}

func certificatesIn(bundle []byte) (n int) {
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		n++
	}
	return n
}

func caBundlePatch(t *testing.T, bundle []byte) []byte {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"caBundle": base64.StdEncoding.EncodeToString(bundle)}})
	if err != nil {
		t.Fatal(err)
	}
	return patch
}

// selfMade is an API server without certificate files.
type selfMade struct {
	address string
	process *exec.Cmd
}

// startSelfMade starts one beside the lab's, until the test ends.
func startSelfMade(t *testing.T, address string) *selfMade {
	t.Helper()
	path, args := lab.Invocation(t, labtest.APIServer)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	args = slices.DeleteFunc(args, func(arg string) bool {
		return strings.HasPrefix(arg, "--tls-") || strings.HasPrefix(arg, "--audit-log-path")
	})
	output, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	s := &selfMade{address: address, process: exec.CommandContext(t.Context(), path, append(args, "--secure-port="+port)...)}
	s.process.Stdout, s.process.Stderr = output, output
	s.process.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			content, _ := os.ReadFile(output.Name())
			t.Logf("the API server at %s:\n%s", address, content[max(0, len(content)-8<<10):])
		}
	})
	return s
}

func (s *selfMade) kill() {
	// It fails once it has ended.
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
}

// trusted asks the server whether it is ready, as one who trusts the caBundle and nothing else.
func (s *selfMade) trusted(ctx context.Context, services dynamic.ResourceInterface) error {
	content, err := bundle(ctx, services, ownAPIService)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(content)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: ownDNSName}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+s.address+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return err
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// TestTheServersOwnCertificate starts API servers without certificate files: each adds its
// certificate to the APIService and is ready then; one that is killed leaves nothing to its
// successor; and two do not disturb each other, nor the certificates of others in the bundle.
func TestTheServersOwnCertificate(t *testing.T) {
	services := apiServices(t, lab.Config)
	before, err := bundle(t.Context(), services, ownAPIService)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := services.Patch(context.Background(), ownAPIService, types.MergePatchType, caBundlePatch(t, before), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	})
	awaitTrusted := func(what string, want int, servers ...*selfMade) {
		t.Helper()
		labtest.Eventually(t, what, func() error {
			content, err := bundle(t.Context(), services, ownAPIService)
			if err != nil {
				return err
			}
			if n := certificatesIn(content) - certificatesIn(before); n != want {
				return fmt.Errorf("the bundle has %d certificates of theirs, want %d", n, want)
			}
			for _, s := range servers {
				if err := s.trusted(t.Context(), services); err != nil {
					return err
				}
			}
			return nil
		})
	}
	first, second := startSelfMade(t, freeAddress(t)), startSelfMade(t, freeAddress(t))
	awaitTrusted("two servers that start at once", 2, first, second)
	first.kill()
	again := startSelfMade(t, first.address)
	awaitTrusted("a server after it was killed", 2, again, second)
	if _, err := services.Patch(t.Context(), ownAPIService, types.MergePatchType, caBundlePatch(t, before), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitTrusted("two servers whose certificates somebody has removed", 2, again, second)
	lab.Kubectl(t, "get", "backups.holdfast.io", "-n", labtest.System)
}

// TestRightsOnTheAPIService: the API server's account may change the caBundle of its own
// APIService, and nothing else of it or of any other.
func TestRightsOnTheAPIService(t *testing.T) {
	t.Parallel()
	config := rest.CopyConfig(lab.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + labtest.System + ":holdfast-apiserver"}
	services := apiServices(t, config)
	// The account may write an object that it has read, so a patch is applied here.
	patch := func(name, patch string) error {
		object, err := apiServices(t, lab.Config).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var changes map[string]any
		if err := json.Unmarshal([]byte(patch), &changes); err != nil {
			return err
		}
		merge(object.Object, changes)
		_, err = services.Update(t.Context(), object, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	now, err := bundle(t.Context(), apiServices(t, lab.Config), ownAPIService)
	if err != nil {
		t.Fatal(err)
	}
	if err := patch(ownAPIService, string(caBundlePatch(t, append(now, now...)))); err != nil {
		t.Errorf("the caBundle: %v", err)
	}
	for what, change := range map[string]string{
		"another Service":    `{"spec":{"service":{"name":"other","namespace":"default"}}}`,
		"another priority":   `{"spec":{"groupPriorityMinimum":9000}}`,
		"no verification":    `{"spec":{"insecureSkipTLSVerify":true,"caBundle":null}}`,
		"no Service":         `{"spec":{"service":null,"caBundle":null}}`,
		"an annotation":      `{"metadata":{"annotations":{"cert-manager.io/inject-ca-from":"shop/evil"}}}`,
		"a label":            `{"metadata":{"labels":{"kube-aggregator.kubernetes.io/automanaged":"true"}}}`,
		"an owner":           `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"gone","uid":"gone"}]}}`,
		"another one beside": `{"spec":{"versionPriority":1},"metadata":{"finalizers":["example.com/stay"]}}`,
	} {
		if err := patch(ownAPIService, change); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "writes its certificates") {
			t.Errorf("%s: got %v, want a refusal by the policy", what, err)
		}
	}
	if err := patch("v1.apps", `{"spec":{"versionPriority":1}}`); !apierrors.IsForbidden(err) {
		t.Errorf("another APIService: got %v, want a refusal", err)
	}
	if _, err := services.List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a list of all: got %v, want a refusal", err)
	}
	if err := services.Delete(t.Context(), ownAPIService, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); !apierrors.IsForbidden(err) {
		t.Errorf("a deletion: got %v, want a refusal", err)
	}
}

// merge applies a merge patch.
func merge(into, changes map[string]any) {
	for key, change := range changes {
		inner, isMap := change.(map[string]any)
		switch {
		case change == nil:
			delete(into, key)
		case isMap:
			of, found := into[key].(map[string]any)
			if !found {
				of = map[string]any{}
				into[key] = of
			}
			merge(of, inner)
		case key == "groupPriorityMinimum" || key == "versionPriority":
			into[key] = int64(change.(float64))
		default:
			into[key] = change
		}
	}
}

// listening lets the server of a test take up another certificate.
type listening func()

func (l listening) Enqueue() { l() }

// TestRenewalLosesNoRequest renews a certificate while requests pass kube-apiserver without a
// pause: none fails.
func TestRenewalLosesNoRequest(t *testing.T) {
	namespace := lab.Namespace(t, "renewal")
	address := freeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	group := namespace + ".example.com"
	name := "v1." + group
	config := rest.CopyConfig(lab.Config)
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	services := client.Resource(servingcert.APIServices)

	// It is made as if 60 days ago, so that the renewal is now, to which kube-apiserver's clock agrees.
	const age = 60 * 24 * time.Hour
	clock := clocktesting.NewFakeClock(time.Now().Add(-age))
	own, err := servingcert.New(servingcert.Config{Client: client, APIService: name, DNSName: "server." + namespace + ".svc", Replica: address, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	var switched atomic.Int32
	own.AddListener(listening(func() { switched.Add(1) }))
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		ErrorLog:     log.New(io.Discard, "", 0),
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // HTTP/1.1, which can close a connection
		TLSConfig: &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			pair, err := tls.X509KeyPair(own.CurrentCertKeyContent())
			return &pair, err
		}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			switch r.URL.Path {
			case "/apis/" + group + "/v1":
				fmt.Fprintf(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"%s/v1","resources":[{"name":"things","singularName":"thing","namespaced":false,"kind":"Thing","verbs":["list"]}]}`, group)
			case "/apis/" + group + "/v1/things":
				// The next request needs another connection, and so another look at the certificate.
				w.Header().Set("Connection", "close")
				fmt.Fprintf(w, `{"kind":"ThingList","apiVersion":"%s/v1","metadata":{},"items":[]}`, group)
			default:
				w.WriteHeader(http.StatusNotFound)
			}
		}),
	}
	go server.ServeTLS(listener, "", "")
	defer server.Close()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "server"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeExternalName, ExternalName: "localhost", Ports: []corev1.ServicePort{{Port: 443}},
	}}
	if _, err := lab.Kube.CoreV1().Services(namespace).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var number int64
	if _, err := fmt.Sscan(port, &number); err != nil {
		t.Fatal(err)
	}
	_, err = services.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"group": group, "version": "v1", "groupPriorityMinimum": int64(100), "versionPriority": int64(10),
			"service": map[string]any{"name": "server", "namespace": namespace, "port": number},
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		// An APIService without its server stops the deletion of every namespace.
		if err := services.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { own.Run(ctx); close(ended) }()
	defer func() { stop(); <-ended }()

	things := client.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "things"})
	request := func() error {
		_, err := things.List(ctx, metav1.ListOptions{})
		return err
	}
	labtest.Eventually(t, "a first answer", func() error {
		clock.Step(50 * time.Millisecond) // for pauses between writes
		return errors.Join(own.Ready(), request())
	})
	var requests, failed atomic.Int32
	var last atomic.Value
	asking, asked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(asked)
		for {
			select {
			case <-asking:
				return
			default:
			}
			requests.Add(1)
			if err := request(); err != nil {
				failed.Add(1)
				last.Store(err.Error())
			}
		}
	}()
	await := func(what string, count int, switches int32) {
		t.Helper()
		labtest.Eventually(t, what, func() error {
			clock.Step(50 * time.Millisecond)
			content, err := bundle(ctx, services, name)
			if err != nil {
				return err
			}
			if n := certificatesIn(content); n != count || switched.Load() != switches {
				return fmt.Errorf("%d certificates after %d switches", n, switched.Load())
			}
			return nil
		})
		// Some requests with what is there now.
		for n := requests.Load(); requests.Load() < n+20; time.Sleep(time.Millisecond) {
		}
	}
	clock.Step(age)
	await("a second certificate", 2, 0)
	clock.Step(31 * time.Second)
	await("the switch", 2, 1)
	clock.Step(31 * time.Second)
	await("the end of the first certificate", 1, 1)
	close(asking)
	<-asked
	if failed.Load() > 0 {
		t.Errorf("%d of %d requests failed; the last one: %v", failed.Load(), requests.Load(), last.Load())
	}
	t.Logf("%d requests", requests.Load())
}
