// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package virtual_test

import (
	"cmp"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
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
	// As for a type of ours: nothing but its version, and the fields of its definition.
	scheme.AddKnownTypes(examplev1.SchemeGroupVersion, &examplev1.Pod{}, &examplev1.PodList{})
	metav1.AddToGroupVersion(scheme, examplev1.SchemeGroupVersion)
	utilruntime.Must(scheme.SetVersionPriority(examplev1.SchemeGroupVersion))
	utilruntime.Must(podResource.AddFieldLabels(scheme))
}

// podResource is defined as CONTRIBUTING.md says.
var podResource = virtual.Resource[*examplev1.Pod]{
	GroupResource: pods.GroupResource(),
	Singular:      "pod",
	ShortNames:    []string{"po"},
	Categories:    []string{"all-virtual"},
	Namespaced:    true,
	Object:        &examplev1.Pod{},
	List:          &examplev1.PodList{},
	Fields: map[string]func(*examplev1.Pod) string{
		"spec.nodeName": func(p *examplev1.Pod) string { return p.Spec.NodeName },
	},
	Columns: []virtual.Column[*examplev1.Pod]{
		virtual.Name[*examplev1.Pod](),
		virtual.Number("Generation", "Its generation.", func(p *examplev1.Pod) int32 { return int32(p.Generation) }),
		virtual.Text("Node", "Its node.", func(p *examplev1.Pod) string { return p.Spec.NodeName }),
		virtual.Wide(virtual.Timed("Age", "Its age.", func(p *examplev1.Pod, now time.Time) string {
			return virtual.Since(&p.CreationTimestamp, now)
		})),
	},
	Compare: func(a, b *examplev1.Pod) int { return -cmp.Compare(a.Name, b.Name) },
}

type podLog = logstore.Log[*examplev1.Pod]

func newPodLog(options logstore.Options) *podLog {
	options.Resource, options.Namespaced = pods.GroupResource(), true
	return logstore.New(func() *examplev1.Pod { return &examplev1.Pod{} }, options)
}

func readOnly(t *testing.T, s storage.Interface) rest.Storage {
	t.Helper()
	face, err := podResource.ReadOnly(s)
	if err != nil {
		t.Fatal(err)
	}
	return face
}

// pod makes a pod with a uid, by which client-go's detector orders lists.
func pod(namespace, name, node string) *examplev1.Pod {
	return &examplev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name), Labels: map[string]string{"node": node}},
		Spec:       examplev1.PodSpec{NodeName: node},
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
	group := genericapiserver.NewDefaultAPIGroupInfo(examplev1.GroupName, scheme, metav1.ParameterCodec, codecs)
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
