// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
)

// Proxy serves nodeagents/proxy: the records and Secrets of a node, only to its agent. A right can't name a node
// or a label, so agents have none to them. This server reads them for the node in the agent's token, which
// kube-apiserver sets. The paths are kube-apiserver's, for any client whose host ends with
// v1alpha1.NodeAgentProxyPath:
//
//	apis/engine.holdfast.io/v1alpha1/namespaces/SYSTEM/volumeuploads   lists and watches the node's
//	.../volumeuploads/NAME                                             one of them
//	.../volumeuploads/NAME/secrets                                     a SecretList: what its work needs
//
// The same holds for volumerestores. The Secrets are the repository's key and the location's credentials, until
// the record is done.
//
// The name proxy lets answers take longer than a minute in kube-apiserver, as watches do.
type Proxy struct {
	SystemNamespace string
	// Records and Secrets have this server's own rights.
	Records   engineclient.EngineV1alpha1Interface
	Secrets   corev1client.SecretsGetter
	Transport http.RoundTripper // for the requests of Records

	mu sync.Mutex
	// open are the open requests by node, guarded by mu: the library bounds no watches.
	open map[string]int
}

const agentAccount = "holdfast-node-agent" // in the agents' namespace

// mostOpen bounds a node's open requests: its agent has two watches, and reads the Secrets for all new work at
// once.
const mostOpen = 100

var (
	_ rest.Storage         = &Proxy{}
	_ rest.Connecter       = &Proxy{}
	_ rest.StorageMetadata = &Proxy{}
)

// New implements rest.Storage.
func (p *Proxy) New() runtime.Object { return &v1alpha1.NodeAgent{} }

// Destroy implements rest.Storage.
func (p *Proxy) Destroy() {}

// ConnectMethods implements rest.Connecter.
func (p *Proxy) ConnectMethods() []string { return []string{http.MethodGet} }

// NewConnectOptions implements rest.Connecter: the subresource has paths.
func (p *Proxy) NewConnectOptions() (runtime.Object, bool, string) { return nil, true, "" }

// ProducesMIMETypes implements rest.StorageMetadata.
func (p *Proxy) ProducesMIMETypes(string) []string { return []string{runtime.ContentTypeJSON} }

// ProducesObject implements rest.StorageMetadata.
func (p *Proxy) ProducesObject(string) any { return "" }

// Connect implements rest.Connecter.
func (p *Proxy) Connect(ctx context.Context, node string, _ runtime.Object, responder rest.Responder) (http.Handler, error) {
	if err := p.isAgentOf(ctx, node); err != nil {
		return nil, err
	}
	info, ok := genericapirequest.RequestInfoFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("the request has no path"))
	}
	group := enginev1alpha1.SchemeGroupVersion
	below := []string{"nodeagents", node, "proxy", "apis", group.Group, group.Version, "namespaces", p.SystemNamespace}
	path := info.Parts
	if len(path) <= len(below) || !slices.Equal(path[:len(below)], below) || !slices.Contains([]string{"volumeuploads", "volumerestores"}, path[len(below)]) {
		return nil, apierrors.NewForbidden(v1alpha1.Resource("nodeagents"), node, fmt.Errorf("an agent reads the volumeuploads and volumerestores of its node here, and nothing else"))
	}
	resource, path := path[len(below)], path[len(below)+1:]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.enter(node) {
			responder.Error(apierrors.NewTooManyRequests(fmt.Sprintf("%d requests of node %s are being answered already", mostOpen, node), 1))
			return
		}
		defer p.leave(node)
		var answer any
		var err error
		switch {
		case len(path) == 0:
			p.list(node, resource, w, r, responder)
			return
		case len(path) == 1:
			answer, _, err = p.record(ctx, node, resource, path[0])
		case len(path) == 2 && path[1] == "secrets":
			answer, err = p.secrets(ctx, node, resource, path[0])
		default:
			err = apierrors.NewNotFound(enginev1alpha1.Resource(resource), path[0])
		}
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			// This server's account lacks the right, not the agent's.
			err = apierrors.NewInternalError(err)
		}
		if err != nil {
			responder.Error(err)
			return
		}
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			klog.FromContext(ctx).V(2).Info("An agent was not answered", "node", node, "err", err)
		}
	}), nil
}

func (p *Proxy) enter(node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[node] >= mostOpen {
		return false
	}
	if p.open == nil {
		p.open = map[string]int{}
	}
	p.open[node]++
	return true
}

func (p *Proxy) leave(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[node]--; p.open[node] == 0 {
		delete(p.open, node)
	}
}

// isAgentOf refuses requests without the token of an agent's pod on the node.
func (p *Proxy) isAgentOf(ctx context.Context, node string) error {
	refuse := func(why string) error {
		return apierrors.NewForbidden(v1alpha1.Resource("nodeagents"), node, fmt.Errorf("%s", why))
	}
	requester, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return refuse("nobody knows who asks")
	}
	switch own := requester.GetExtra()[serviceaccount.NodeNameKey]; {
	case requester.GetName() != serviceaccount.MakeUsername(enginev1alpha1.AgentsNamespace(p.SystemNamespace), agentAccount):
		return refuse("only node agents read here")
	case len(own) != 1 || own[0] == "":
		return refuse("a node agent needs the token of its pod, which names the node; this one names none")
	case own[0] != node:
		return refuse(fmt.Sprintf("the agent of node %s reads only the records of that node", own[0]))
	}
	return nil
}

func (p *Proxy) list(node, resource string, w http.ResponseWriter, r *http.Request, responder rest.Responder) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		responder.Error(apierrors.NewBadRequest(fmt.Sprintf("the query can't be read: %v", err)))
		return
	}
	query.Set("labelSelector", labels.Set{enginev1alpha1.LabelNode: enginev1alpha1.NodeLabel(node)}.String())
	to := p.Records.RESTClient().Get().Namespace(p.SystemNamespace).Resource(resource).URL()
	to.RawQuery = query.Encode()
	proxy := httputil.ReverseProxy{
		Transport:     p.Transport,
		FlushInterval: -1, // at once
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL, r.Out.Host = to, ""
			// None of the agent's headers, which could impersonate.
			r.Out.Header = http.Header{"Accept": {runtime.ContentTypeJSON}}
			r.Out.Body, r.Out.ContentLength, r.Out.Trailer = nil, 0, nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) {
			responder.Error(apierrors.NewServiceUnavailable(fmt.Sprintf("the records can't be read now: %v", err)))
		},
	}
	defer func() {
		// A broken proxied answer panics, which is logged as an error. An agent that has left needs none.
		if broken := recover(); broken != nil && (broken != http.ErrAbortHandler || context.Cause(r.Context()) != context.Canceled) {
			panic(broken)
		}
	}()
	proxy.ServeHTTP(w, r)
}

type work struct {
	Spec struct {
		Node       string `json:"node"`
		Repository string `json:"repository"`
	} `json:"spec"`
	Status struct {
		Phase enginev1alpha1.VolumePhase `json:"phase"`
	} `json:"status"`
}

// record reads a record of the node. Another node's record is not found.
func (p *Proxy) record(ctx context.Context, node, resource, name string) (json.RawMessage, work, error) {
	var of work
	result := p.Records.RESTClient().Get().Namespace(p.SystemNamespace).Resource(resource).Name(name).Do(ctx)
	raw, _ := result.Raw()
	if err := result.Error(); err != nil { // Raw ignores it
		return nil, of, err
	}
	if err := json.Unmarshal(raw, &of); err != nil {
		return nil, of, fmt.Errorf("read %s %s: %w", resource, name, err)
	}
	if of.Spec.Node != node {
		return nil, of, apierrors.NewNotFound(enginev1alpha1.Resource(resource), name)
	}
	return raw, of, nil
}

// secrets returns the existing Secrets for a record's work. It reads them anew: a user may have changed them.
func (p *Proxy) secrets(ctx context.Context, node, resource, name string) (*corev1.SecretList, error) {
	_, of, err := p.record(ctx, node, resource, name)
	if err != nil {
		return nil, err
	}
	if of.Status.Phase.Done() {
		return nil, apierrors.NewConflict(enginev1alpha1.Resource(resource), name, fmt.Errorf("it is %s, and needs no Secret any more", of.Status.Phase))
	}
	repository, err := p.Records.VolumeRepositories(p.SystemNamespace).Get(ctx, of.Spec.Repository, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	location, err := p.Records.StorageLocations(p.SystemNamespace).Get(ctx, repository.Spec.BackupStorageLocation, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	list := &corev1.SecretList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "SecretList"}, Items: []corev1.Secret{}}
	add := func(namespace, name string) error {
		secret, err := p.Secrets.Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			list.Items = append(list.Items, corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: secret.Data})
		} else if !apierrors.IsNotFound(err) {
			return fmt.Errorf("read the Secret %s of namespace %s: %w", name, namespace, err)
		}
		return nil
	}
	if err := add(enginev1alpha1.KeysNamespace(p.SystemNamespace), enginev1alpha1.KeySecretName(repository.Name)); err != nil {
		return nil, err
	}
	if name := location.Spec.CredentialsSecret(); name != "" {
		if err := add(enginev1alpha1.CredentialsNamespace(p.SystemNamespace), name); err != nil {
			return nil, err
		}
	}
	return list, nil
}
