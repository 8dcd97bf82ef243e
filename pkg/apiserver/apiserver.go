// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apiserver assembles the aggregated API server of holdfast.io.
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
	"github.com/holdfast-io/holdfast/pkg/registry/nodeagent"
	"github.com/holdfast-io/holdfast/pkg/registry/projection"
	"github.com/holdfast-io/holdfast/pkg/registry/protection"
	"github.com/holdfast-io/holdfast/pkg/registry/restore"
	"github.com/holdfast-io/holdfast/pkg/registry/schedule"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
	"github.com/holdfast-io/holdfast/pkg/registry/volumebackup"
)

var (
	// Scheme knows the server's types.
	Scheme = runtime.NewScheme()
	// Codecs encode them.
	Codecs = serializer.NewCodecFactory(Scheme)
)

var definitions = []interface {
	AddFieldLabels(*runtime.Scheme) error
}{&backup.Resource, &backup.QueueResource, &volumebackup.VolumeResource, &volumebackup.Resource, &backup.ObjectResource, &protection.Resource, &nodeagent.Resource, &schedule.Resource, &restore.Resource}

// streams are the subresources with long answers, and the node agents' watches.
var streams = []string{"content", "files", "log", "manifest", "plan", "proxy", "results"}

// withoutProtobuf offers no protobuf: the types have no such form, so clients that prefer it would be refused.
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
	// The library applies a patch to the internal version, which is the served one here.
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

// ExtraConfig is Holdfast's own configuration.
type ExtraConfig struct {
	SystemNamespace             string
	PollInterval                time.Duration  // for other makers' backups; zero lists the stores once
	CacheDir                    string         // of read contents; empty for none
	ForeignBytes                int64          // as in catalog.SetForeignBytes
	Limits                      backup.Limits  // of waiting backups
	RestoreLimits               restore.Limits // of unfinished restores
	BackupTTL                   time.Duration  // the default
	MaxBackupTTL                time.Duration  // zero is no limit
	Snapshots                   bool           // accepts backups with snapshots
	SchedulesPerNamespace       int            // zero is no limit
	VolumeDeletionsPerNamespace int            // unfinished; zero is no limit
	NodeAgentConfigMap          string         // in the system namespace with the agents' limits; empty for none
	// AdvertiseAddress and Port are for kube-apiserver. Without an address, the Service's EndpointSlice is not
	// written.
	AdvertiseAddress net.IP
	Port             int
	Certificate      *servingcert.Certificate // the self-made one, or nil
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
	generic     *genericapiserver.GenericAPIServer
	projector   *projection.Projector
	leader      *lease.Election
	starts      []func(context.Context) // start the informers, and the parts that depend on them
	broadcaster events.EventBroadcaster
}

// Complete sets the defaults.
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

// precedence is how long a replica without the stores lets others go first in the election, to take over a
// returned Lease.
const precedence = 4 * lease.RetryPeriod

// awaitCandidacy waits until this replica should take part in the election: it is Ready, or can serve live work
// and no other uses its precedence. It returns false if ctx ends first.
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

// identity returns a name that no other process has ever had.
func identity() string {
	host, err := os.Hostname()
	if err != nil {
		host = serviceName
	}
	return host + "_" + uuid.NewString()[:8]
}

func (s *Server) enter() (*lease.Term, bool) {
	return s.leader.Enter()
}

// Run serves until ctx ends. Discovery answers at once. A resource answers 503 while this replica does not serve,
// or has not read the records. /readyz also needs the stores, and kube-apiserver's trust in the certificate.
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

// namespaceUIDs returns the reader of a namespace's present uid, with a request for each creation. An informer may
// not know that a namespace was recreated, and would give the new owner's objects to the old namespace.
func namespaceUIDs(namespaces corev1client.NamespaceInterface) func(context.Context, string) (types.UID, error) {
	return func(ctx context.Context, name string) (types.UID, error) {
		namespace, err := namespaces.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return namespace.UID, nil
	}
}

const lastWrite = 10 * time.Second // of read contents

// awaitLast waits for the last writes, unless a disk hangs.
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
