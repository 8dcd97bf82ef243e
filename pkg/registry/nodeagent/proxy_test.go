// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	engineclientset "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
)

const recordsPath = "/apis/engine.holdfast.io/v1alpha1/namespaces/holdfast/"

// proxied is a Proxy between an agent and a cluster that answers at some paths.
type proxied struct {
	*httptest.Server
	mux *http.ServeMux
	// account that asks, if it is not that of the agents.
	account string
}

// newProxied serves to whoever says of which nodes their token is.
func newProxied(t *testing.T, secrets ...runtime.Object) *proxied {
	t.Helper()
	p := &proxied{mux: http.NewServeMux()}
	cluster := httptest.NewServer(p.mux)
	t.Cleanup(cluster.Close)
	config := &rest.Config{Host: cluster.URL, BearerToken: "the server's own"}
	engine, err := engineclientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &Proxy{SystemNamespace: "holdfast", Records: engine.EngineV1alpha1(), Secrets: kubefake.NewClientset(secrets...).CoreV1(), Transport: transport}
	infos := &genericapirequest.RequestInfoFactory{APIPrefixes: sets.NewString("apis", "api"), GrouplessAPIPrefixes: sets.NewString("api")}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, err := infos.NewRequestInfo(r)
		if err != nil || info.Resource != "nodeagents" || info.Subresource != "proxy" {
			t.Errorf("%s is %+v, %v", r.URL, info, err)
		}
		requester := &user.DefaultInfo{Name: "system:serviceaccount:holdfast-agents:" + cmp.Or(r.Header.Get("Account"), "holdfast-node-agent"), Extra: map[string][]string{}}
		if nodes := r.Header["Nodes"]; nodes != nil {
			requester.Extra[serviceaccount.NodeNameKey] = nodes
		}
		ctx := genericapirequest.WithUser(genericapirequest.WithRequestInfo(r.Context(), info), requester)
		handler, err := proxy.Connect(ctx, info.Name, nil, answering{w})
		if err != nil {
			answering{w}.Error(err)
			return
		}
		handler.ServeHTTP(w, r.WithContext(ctx))
	}))
	t.Cleanup(p.Close)
	return p
}

type answering struct{ http.ResponseWriter }

func (a answering) Object(int, runtime.Object) { panic("not used") }

func (a answering) Error(err error) {
	status := apierrors.APIStatus(nil)
	code, message := http.StatusInternalServerError, err.Error()
	if s, ok := err.(apierrors.APIStatus); ok {
		status = s
		code, message = int(status.Status().Code), status.Status().Message
	}
	http.Error(a, message, code)
}

// ask asks with the token of those nodes.
func (p *proxied) ask(ctx context.Context, path string, nodes ...string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+v1alpha1.NodeAgentProxyPath("one")+path, nil)
	if err != nil {
		return nil, err
	}
	if nodes != nil {
		request.Header["Nodes"] = nodes
	}
	request.Header.Set("Authorization", "Bearer the agent's")
	request.Header.Set("Impersonate-User", "admin")
	request.Header.Set("Account", p.account)
	return http.DefaultClient.Do(request)
}

// get is an answer, whose body the test closes.
func (p *proxied) get(t *testing.T, path string, nodes ...string) *http.Response {
	t.Helper()
	response, err := p.ask(t.Context(), path, nodes...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

// read is the status of an answer, and what it says.
func (p *proxied) read(t *testing.T, path string, nodes ...string) (int, string) {
	t.Helper()
	response := p.get(t, path, nodes...)
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// TestProxyIsOfOneNode: who has another node's token, or none of a node, reads nothing, and
// the agent of the node reads nothing but records.
func TestProxyIsOfOneNode(t *testing.T) {
	p := newProxied(t)
	p.mux.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) { t.Errorf("the cluster is asked for %s", r.URL) })
	uploads := recordsPath + "volumeuploads"
	for _, one := range []struct {
		path, why string
		nodes     []string
	}{
		{uploads, "this one names none", nil},
		{uploads, "this one names none", []string{""}},
		{uploads, "this one names none", []string{"one", "two"}},
		{uploads, "the agent of node two reads only", []string{"two"}},
		{uploads + "/a", "the agent of node two reads only", []string{"two"}},
		{uploads + "/a/secrets", "the agent of node two reads only", []string{"two"}},
		{"", "nothing else", []string{"one"}},
		{"/api/v1/namespaces/holdfast-locations/secrets/credentials", "nothing else", []string{"one"}},
		{recordsPath + "backupruns", "nothing else", []string{"one"}},
		{strings.Replace(uploads, "/holdfast/", "/other/", 1), "nothing else", []string{"one"}},
		{strings.Replace(uploads, "v1alpha1", "v1", 1), "nothing else", []string{"one"}},
	} {
		if code, body := p.read(t, one.path, one.nodes...); code != http.StatusForbidden || !strings.Contains(body, one.why) {
			t.Errorf("%q with %q: got %d %s, want a refusal that says %q", one.path, one.nodes, code, body, one.why)
		}
	}
	p.account = "another"
	if code, body := p.read(t, uploads, "one"); code != http.StatusForbidden || !strings.Contains(body, "only node agents") {
		t.Errorf("another account of the node: got %d %s", code, body)
	}
}

// TestProxyLists: lists and watches are those of the node, whatever is asked for, come as they
// go, and are read by the server's own account.
func TestProxyLists(t *testing.T) {
	p := newProxied(t)
	next, asked := make(chan string), make(chan string, 1)
	p.mux.HandleFunc(recordsPath+"volumerestores", func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Query().Encode()
		if got := r.Header.Values("Authorization"); !slices.Equal(got, []string{"Bearer the server's own"}) || r.Header.Get("Impersonate-User") != "" || r.Header.Get("Nodes") != "" {
			t.Errorf("it is asked with %v", r.Header)
		}
		w.(http.Flusher).Flush() // as a watch does
		for line := range next {
			fmt.Fprintln(w, line)
			w.(http.Flusher).Flush()
		}
	})
	response := p.get(t, recordsPath+"volumerestores?watch=true&resourceVersion=7&labelSelector=a%3Db&labelSelector=", "one")
	if got, want := <-asked, "labelSelector=engine.holdfast.io%2Fnode%3Done&resourceVersion=7&watch=true"; got != want {
		t.Errorf("it asks for %s, want %s", got, want)
	}
	lines := bufio.NewScanner(response.Body)
	for _, want := range []string{"first", "second"} {
		next <- want // the answer goes on
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("it says %q, %v", lines.Text(), lines.Err())
		}
	}
	var watching sync.WaitGroup
	for range mostOpen - 1 {
		watching.Go(func() {
			response, err := p.ask(t.Context(), recordsPath+"volumerestores?watch=true", "one")
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			if _, err := io.Copy(io.Discard, response.Body); err != nil {
				t.Error(err)
			}
		})
		<-asked
	}
	if code, body := p.read(t, recordsPath+"volumerestores", "one"); code != http.StatusTooManyRequests {
		t.Errorf("one more is answered with %d %s", code, body)
	}
	close(next)
	watching.Wait()
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("at the end it says %q, %v", lines.Text(), lines.Err())
	}
	p.mux.HandleFunc(recordsPath+"volumeuploads", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "expired", http.StatusGone)
	})
	if code, body := p.read(t, recordsPath+"volumeuploads", "one"); code != http.StatusGone || body != "expired\n" {
		t.Errorf("an error is %d %s", code, body)
	}
}

// TestProxySecrets: of a record of the node that is not done an agent gets the Secrets that it
// needs, and of no other record anything.
func TestProxySecrets(t *testing.T) {
	secret := func(namespace, name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"a": "b"}}, Data: map[string][]byte{"of": []byte(namespace + name)}}
	}
	p := newProxied(t, secret("holdfast-repositories", "app.s3.key"), secret("holdfast-repositories", "other.s3.key"),
		secret("holdfast-locations", "account"), secret("holdfast-locations", "other"), secret("holdfast", "account"))
	serve := func(resource, name string, object any) {
		p.mux.HandleFunc(recordsPath+resource+"/"+name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(object); err != nil {
				t.Error(err)
			}
		})
	}
	upload := func(name, node, repository string, phase enginev1alpha1.VolumePhase) {
		serve("volumeuploads", name, &enginev1alpha1.VolumeUpload{
			Spec:   enginev1alpha1.VolumeUploadSpec{Node: node, Repository: repository},
			Status: enginev1alpha1.VolumeUploadStatus{Phase: phase},
		})
	}
	upload("new", "one", "app.s3", "")
	upload("runs", "one", "app.s3", enginev1alpha1.VolumePhaseInProgress)
	upload("completed", "one", "app.s3", enginev1alpha1.VolumePhaseCompleted)
	upload("failed", "one", "app.s3", enginev1alpha1.VolumePhaseFailed)
	upload("elsewhere", "two", "app.s3", enginev1alpha1.VolumePhaseInProgress)
	upload("keyless", "one", "keyless.s3", enginev1alpha1.VolumePhaseNew)
	upload("lost", "one", "gone.s3", enginev1alpha1.VolumePhaseNew)
	serve("volumerestores", "folder", &enginev1alpha1.VolumeRestore{Spec: enginev1alpha1.VolumeRestoreSpec{Node: "one", Repository: "other.folder"}})
	p.mux.HandleFunc(recordsPath+"volumeuploads/unreadable", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "this server may not", http.StatusForbidden)
	})
	repository := func(name, location string) {
		serve("volumerepositories", name, &enginev1alpha1.VolumeRepository{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: enginev1alpha1.VolumeRepositorySpec{BackupStorageLocation: location},
		})
	}
	repository("app.s3", "s3")
	repository("keyless.s3", "s3")
	repository("other.folder", "folder")
	serve("storagelocations", "s3", &enginev1alpha1.StorageLocation{Spec: enginev1alpha1.StorageLocationSpec{S3: &enginev1alpha1.S3Location{CredentialsSecret: "account"}}})
	serve("storagelocations", "folder", &enginev1alpha1.StorageLocation{Spec: enginev1alpha1.StorageLocationSpec{Filesystem: &enginev1alpha1.FilesystemLocation{}}})

	both := []string{"holdfast-repositories/app.s3.key", "holdfast-locations/account"}
	for path, want := range map[string][]string{
		"volumeuploads/new": both, "volumeuploads/runs": both, "volumeuploads/keyless": both[1:], "volumerestores/folder": nil,
	} {
		code, body := p.read(t, recordsPath+path+"/secrets", "one")
		var list corev1.SecretList
		if err := json.Unmarshal([]byte(body), &list); code != http.StatusOK || err != nil {
			t.Errorf("%s: %d %s", path, code, body)
			continue
		}
		var got []string
		for _, secret := range list.Items {
			got = append(got, secret.Namespace+"/"+secret.Name)
			if string(secret.Data["of"]) != secret.Namespace+secret.Name || secret.Labels != nil {
				t.Errorf("%s: it gets %+v", path, secret)
			}
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	for path, want := range map[string]int{
		"volumeuploads/completed/secrets": http.StatusConflict, "volumeuploads/failed/secrets": http.StatusConflict,
		"volumeuploads/unreadable/secrets": http.StatusInternalServerError,
		"volumeuploads/elsewhere/secrets":  http.StatusNotFound, "volumeuploads/elsewhere": http.StatusNotFound,
		"volumeuploads/none/secrets": http.StatusNotFound, "volumeuploads/lost/secrets": http.StatusNotFound,
		"volumeuploads/new/status": http.StatusNotFound, "volumeuploads/new/secrets/account": http.StatusNotFound,
		"volumerestores/new/secrets": http.StatusNotFound, "volumeuploads/completed": http.StatusOK,
	} {
		if code, body := p.read(t, recordsPath+path, "one"); code != want || strings.Contains(body, "holdfast-repositories") {
			t.Errorf("%s: %d %s, want %d", path, code, body, want)
		}
	}
}
