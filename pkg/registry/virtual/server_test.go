// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package virtual_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/compatibility"
	restclient "k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/common"

	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
)

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
	pods   = examplev1.SchemeGroupVersion.WithResource("pods")
)

func init() {
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
	scheme.AddKnownTypes(example.SchemeGroupVersion, &example.PodList{})
	scheme.AddKnownTypes(examplev1.SchemeGroupVersion, &examplev1.PodList{})
	utilruntime.Must(scheme.AddFieldLabelConversionFunc(examplev1.SchemeGroupVersion.WithKind("Pod"),
		func(label, value string) (string, string, error) {
			switch label {
			case "metadata.name", "metadata.namespace", "spec.nodeName":
				return label, value, nil
			}
			return "", "", fmt.Errorf("%q can't be selected", label)
		}))
}

type podLog = logstore.Log[*example.Pod]

func newPodLog(options logstore.Options) *podLog {
	options.Resource, options.Namespaced = pods.GroupResource(), true
	return logstore.New(func() *example.Pod { return &example.Pod{} }, options)
}

func podResource() virtual.Resource {
	return virtual.Resource{
		GroupResource: pods.GroupResource(),
		Singular:      "pod",
		ShortNames:    []string{"po"},
		Categories:    []string{"all-virtual"},
		Namespaced:    true,
		New:           func() runtime.Object { return &example.Pod{} },
		NewList:       func() runtime.Object { return &example.PodList{} },
		Attrs: func(obj runtime.Object) (labels.Set, fields.Set, error) {
			p := obj.(*example.Pod)
			return p.Labels, fields.Set{"metadata.name": p.Name, "metadata.namespace": p.Namespace, "spec.nodeName": p.Spec.NodeName}, nil
		},
		Table: rest.NewDefaultTableConvertor(pods.GroupResource()),
	}
}

func readOnly(t *testing.T, s storage.Interface) rest.Storage {
	t.Helper()
	face, err := virtual.NewReadOnly(podResource(), s)
	if err != nil {
		t.Fatal(err)
	}
	return face
}

// pod makes a pod with a uid, by which client-go's detector orders lists.
func pod(namespace, name, node string) *example.Pod {
	return &example.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name), Labels: map[string]string{"node": node}},
		Spec:       example.PodSpec{NodeName: node},
	}
}

// server is an address behind which API servers can be replaced.
type server struct {
	*httptest.Server
	current  atomic.Pointer[genericapiserver.GenericAPIServer]
	requests atomic.Int64 // since the last replacement
}

func newServer(t *testing.T, pods rest.Storage) *server {
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		s.current.Load().Handler.ServeHTTP(w, r)
	}))
	s.replace(t, pods)
	t.Cleanup(func() {
		s.CloseClientConnections() // or Close waits for watches
		s.Close()
	})
	return s
}

func (s *server) config() *restclient.Config { return &restclient.Config{Host: s.URL} }

// replace starts a new API server that serves pods, and cuts all connections to
// the one before.
func (s *server) replace(t *testing.T, storage rest.Storage) {
	t.Helper()
	config := genericapiserver.NewRecommendedConfig(codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.ExternalAddress = "127.0.0.1:443"
	config.LoopbackClientConfig = s.config()
	config.Authentication.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: "somebody"}}, true, nil
	})
	config.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	config.SkipOpenAPIInstallation = true
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, openapi.NewDefinitionNamer(scheme))
	running, err := config.Complete().New("test", genericapiserver.NewEmptyDelegate())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(running.Destroy)
	group := genericapiserver.NewDefaultAPIGroupInfo(example.GroupName, scheme, metav1.ParameterCodec, codecs)
	group.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{"pods": storage}
	if err := running.InstallAPIGroup(&group); err != nil {
		t.Fatal(err)
	}
	s.current.Store(running)
	s.requests.Store(0)
	s.CloseClientConnections()
}

// definitions is the least that the API server asks for: the types have no fields.
func definitions(common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	return map[string]common.OpenAPIDefinition{
		examplev1.Pod{}.OpenAPIModelName():     {},
		examplev1.PodList{}.OpenAPIModelName(): {},
	}
}
