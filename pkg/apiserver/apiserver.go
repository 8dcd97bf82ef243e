// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apiserver joins the aggregated API server: its configuration, and the
// resources of holdfast.io that it serves.
package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apiserver/servingcert"
	engineclientset "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
	generatedopenapi "github.com/holdfast-io/holdfast/pkg/generated/openapi"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/registry/backup"
	"github.com/holdfast-io/holdfast/pkg/registry/backupqueue"
	"github.com/holdfast-io/holdfast/pkg/registry/backupvolume"
	"github.com/holdfast-io/holdfast/pkg/registry/nodeagent"
	"github.com/holdfast-io/holdfast/pkg/registry/projection"
	"github.com/holdfast-io/holdfast/pkg/registry/restore"
	"github.com/holdfast-io/holdfast/pkg/registry/schedule"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
	"github.com/holdfast-io/holdfast/pkg/registry/volumebackup"
)

var (
	// Scheme knows the types that the server speaks.
	Scheme = runtime.NewScheme()
	// Codecs encode them.
	Codecs = serializer.NewCodecFactory(Scheme)
)

// definitions are those of the resources that are served.
var definitions = []interface {
	AddFieldLabels(*runtime.Scheme) error
}{&backup.Resource, &backupqueue.Resource, &backupvolume.Resource, &volumebackup.Resource, &backup.ObjectResource, &nodeagent.Resource, &schedule.Resource, &restore.Resource}

// streams are the subresources whose answers may take long: see package streamed, and the
// watches of the nodes' agents.
var streams = []string{"log", "manifest", "plan", "proxy", "results"}

// withoutProtobuf offers what a serializer offers, except protobuf: the types
// have no such form, and a client that prefers it would be refused.
type withoutProtobuf struct{ runtime.NegotiatedSerializer }

func (s withoutProtobuf) SupportedMediaTypes() []runtime.SerializerInfo {
	return slices.DeleteFunc(slices.Clone(s.NegotiatedSerializer.SupportedMediaTypes()), func(info runtime.SerializerInfo) bool {
		return info.MediaType == runtime.ContentTypeProtobuf
	})
}

func init() {
	utilruntime.Must(v1alpha1.AddToScheme(Scheme))
	utilruntime.Must(Scheme.SetVersionPriority(v1alpha1.SchemeGroupVersion))
	for _, resource := range definitions {
		utilruntime.Must(resource.AddFieldLabels(Scheme))
	}
	// A patch is applied to what is stored, which the library takes to have a version that
	// is nobody's. It is the one that is served.
	Scheme.AddKnownTypes(schema.GroupVersion{Group: v1alpha1.GroupName, Version: runtime.APIVersionInternal},
		&v1alpha1.Schedule{}, &v1alpha1.ScheduleList{}, &v1alpha1.Backup{}, &v1alpha1.BackupList{}, &v1alpha1.Restore{}, &v1alpha1.RestoreList{})
	unversioned := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(Scheme, unversioned)
	Scheme.AddUnversionedTypes(unversioned,
		&metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
}

// Config is the configuration of a Server.
type Config struct {
	Generic *genericapiserver.RecommendedConfig
	Extra   ExtraConfig
}

// ExtraConfig is what is Holdfast's own.
type ExtraConfig struct {
	// SystemNamespace is where the records live.
	SystemNamespace string
	// PollInterval is how often the stores are listed for backups of other makers.
	// Zero lists them once.
	PollInterval time.Duration
	// CacheDir is where what is read of the stores is kept; empty if it is not.
	CacheDir string
	// ForeignBytes is as catalog.SetForeignBytes has it.
	ForeignBytes int64
	// Limits are how many backups may wait.
	Limits backup.Limits
	// RestoreLimits are how many restores may wait or run.
	RestoreLimits restore.Limits
	// BackupTTL is how long a backup is kept that does not say so.
	BackupTTL time.Duration
	// MaxBackupTTL is how long a backup may be kept at most; zero is no limit.
	MaxBackupTTL time.Duration
	// SchedulesPerNamespace is how many a namespace may have; zero is no limit.
	SchedulesPerNamespace int
	// VolumeDeletionsPerNamespace is how many may be under way at once; zero is no limit.
	VolumeDeletionsPerNamespace int
	// NodeAgentConfigMap is the name of the ConfigMap in the system namespace that says how
	// much the node agents move at once; empty if there is to be none.
	NodeAgentConfigMap string
	// AdvertiseAddress and Port are where kube-apiserver reaches this replica. Without
	// an address, the EndpointSlice of the Service is left to others.
	AdvertiseAddress net.IP
	Port             int
	// Certificate is what is served with if it is made here, or nil.
	Certificate *servingcert.Certificate
}

// CompletedConfig is a Config with its defaults, made by Complete.
type CompletedConfig struct {
	generic genericapiserver.CompletedConfig
	extra   ExtraConfig
	client  *completedClients
}

type completedClients struct {
	kube      kubernetes.Interface
	engine    engineclientset.Interface
	metadata  metadata.Interface
	informers informers.SharedInformerFactory
	transport http.RoundTripper
}

// Server serves holdfast.io.
type Server struct {
	generic   *genericapiserver.GenericAPIServer
	projector *projection.Projector
	leader    *lease.Election
	// starts start the informers, and what follows from them.
	starts []func(context.Context)
	// broadcaster writes events.
	broadcaster events.EventBroadcaster
}

// Complete fills in what follows from the rest.
func (c *Config) Complete() (CompletedConfig, error) {
	kube, err := kubernetes.NewForConfig(c.Generic.ClientConfig)
	if err != nil {
		return CompletedConfig{}, fmt.Errorf("making a client of the cluster: %w", err)
	}
	engine, err := engineclientset.NewForConfig(c.Generic.ClientConfig)
	if err != nil {
		return CompletedConfig{}, fmt.Errorf("making a client of the records: %w", err)
	}
	metadata, err := metadata.NewForConfig(c.Generic.ClientConfig)
	if err != nil {
		return CompletedConfig{}, fmt.Errorf("making a client of the nodes: %w", err)
	}
	transport, err := clientrest.TransportFor(c.Generic.ClientConfig)
	if err != nil {
		return CompletedConfig{}, fmt.Errorf("making a client for the agents: %w", err)
	}
	c.Generic.LongRunningFunc = genericfilters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString(streams...))
	namer := openapi.NewDefinitionNamer(Scheme)
	c.Generic.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(generatedopenapi.GetOpenAPIDefinitions, namer)
	c.Generic.OpenAPIConfig.Info.Title = "Holdfast"
	c.Generic.OpenAPIConfig.Info.Version = v1alpha1.SchemeGroupVersion.Version
	c.Generic.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, namer)
	c.Generic.OpenAPIV3Config.Info.Title = "Holdfast"
	c.Generic.OpenAPIV3Config.Info.Version = v1alpha1.SchemeGroupVersion.Version
	c.Generic.OpenAPIV3Config.PostProcessSpec = describeRefusedPatch
	return CompletedConfig{
		generic: c.Generic.Complete(),
		extra:   c.Extra,
		client:  &completedClients{kube: kube, engine: engine, metadata: metadata, informers: c.Generic.SharedInformerFactory, transport: transport},
	}, nil
}

// New builds the server. It reads nothing yet.
func (c CompletedConfig) New() (*Server, error) {
	server := &Server{}
	c.generic.BuildHandlerChainFunc = func(handler http.Handler, config *genericapiserver.Config) http.Handler {
		return genericapiserver.DefaultBuildHandlerChain(&fence{
			handler: toldDeletes{strictFields{virtual.MarkTables(handler)}, Codecs}, enter: server.enter, longRunning: config.LongRunningFunc, serializer: Codecs,
		}, config)
	}
	var err error
	if server.generic, err = c.generic.New("holdfast-apiserver", genericapiserver.NewEmptyDelegate()); err != nil {
		return nil, err
	}
	shared, err := c.newContext(server)
	if err != nil {
		return nil, err
	}
	for _, part := range parts {
		if err := part.new(shared); err != nil {
			return nil, fmt.Errorf("making the %s: %w", part.name, err)
		}
	}
	group := genericapiserver.NewDefaultAPIGroupInfo(v1alpha1.GroupName, Scheme, metav1.ParameterCodec, Codecs)
	group.NegotiatedSerializer = input{withoutProtobuf{Codecs}}
	group.VersionedResourcesStorageMap[v1alpha1.SchemeGroupVersion.Version] = shared.storage
	return server, server.generic.InstallAPIGroup(&group)
}

// precedence is how long a replica that has read the records, but not yet the stores,
// lets others go first in the election: longer than these need to take over what is
// given back to them.
const precedence = 4 * lease.RetryPeriod

// awaitCandidacy waits until this replica should take part in the election, and reports
// false if ctx ended before that. One that is Ready does; and one that could serve live
// work does if the others don't make use of their precedence.
func (s *Server) awaitCandidacy(ctx context.Context) bool {
	await := func(ctx context.Context, check func() error) bool {
		return wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(context.Context) (bool, error) {
			return check() == nil, nil
		}) == nil
	}
	if !await(ctx, s.projector.Queue.ReadinessCheck) || !await(ctx, s.projector.Backups.ReadinessCheck) {
		return false
	}
	waiting, cancel := context.WithTimeout(ctx, precedence)
	defer cancel()
	await(waiting, s.projector.Ready)
	return ctx.Err() == nil
}

// identity names this process, and no other one that ever ran.
func identity() string {
	host, err := os.Hostname()
	if err != nil {
		host = serviceName
	}
	return host + "_" + uuid.NewString()[:8]
}

// enter lets a request in.
func (s *Server) enter() (*lease.Term, bool) {
	return s.leader.Enter()
}

// Run serves until ctx ends. Discovery answers at once; a resource answers 503 while
// another replica serves, or none does yet, since the records have not been read. /readyz
// says yes when the stores have been read, too, and kube-apiserver trusts the certificate.
func (s *Server) Run(ctx context.Context) error {
	var projecting sync.WaitGroup
	s.generic.AddPostStartHookOrDie("holdfast-projection", func(hook genericapiserver.PostStartHookContext) error {
		for _, start := range s.starts {
			start(hook)
		}
		projecting.Go(func() { s.projector.Run(hook) })
		return s.broadcaster.StartRecordingToSinkWithContext(hook)
	})
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var leading sync.WaitGroup
	leading.Go(func() {
		defer stop()
		if s.awaitCandidacy(ctx) {
			s.leader.Run(ctx)
		}
	})
	err := s.generic.PrepareRun().RunWithContext(ctx)
	stop()
	leading.Wait()
	awaitLast(&projecting)
	return err
}

// namespaceUIDs finds out which namespace has a name now. That costs a request for each
// creation, and an informer may not have heard yet that the namespace was removed and made anew:
// what its new owner creates would be its predecessor's for good.
func namespaceUIDs(namespaces corev1client.NamespaceInterface) func(context.Context, string) (types.UID, error) {
	return func(ctx context.Context, name string) (types.UID, error) {
		namespace, err := namespaces.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return namespace.UID, nil
	}
}

// lastWrite is how long what was read may take to be written at the end.
const lastWrite = 10 * time.Second

// awaitLast lets what runs write at its end what it has read, unless a disk that hangs keeps it.
func awaitLast(running *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() {
		running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(lastWrite):
	}
}
