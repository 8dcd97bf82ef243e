// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apiserver joins the aggregated API server: its configuration, and the
// resources of holdfast.io that it serves.
package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/install"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	generatedopenapi "github.com/holdfast-io/holdfast/pkg/generated/openapi"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/registry/backup"
	"github.com/holdfast-io/holdfast/pkg/registry/backupqueue"
	"github.com/holdfast-io/holdfast/pkg/registry/backupvolume"
	"github.com/holdfast-io/holdfast/pkg/registry/projection"
	"github.com/holdfast-io/holdfast/pkg/registry/volumebackup"
)

var (
	// Scheme knows the types that the server speaks.
	Scheme = runtime.NewScheme()
	// Codecs encode them.
	Codecs = serializer.NewCodecFactory(Scheme)
)

// withoutProtobuf offers what a serializer offers, except protobuf: the types
// have no such form, and a client that prefers it would be refused.
type withoutProtobuf struct{ runtime.NegotiatedSerializer }

func (s withoutProtobuf) SupportedMediaTypes() []runtime.SerializerInfo {
	return slices.DeleteFunc(slices.Clone(s.NegotiatedSerializer.SupportedMediaTypes()), func(info runtime.SerializerInfo) bool {
		return info.MediaType == runtime.ContentTypeProtobuf
	})
}

func init() {
	install.Install(Scheme)
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
	// Limits are how many backups may wait.
	Limits backup.Limits
}

// CompletedConfig is a Config with its defaults, made by Complete.
type CompletedConfig struct {
	generic genericapiserver.CompletedConfig
	extra   ExtraConfig
	client  *completedClients
}

type completedClients struct {
	kube      kubernetes.Interface
	engine    engineclient.Interface
	informers informers.SharedInformerFactory
}

// Server serves holdfast.io.
type Server struct {
	generic   *genericapiserver.GenericAPIServer
	projector *projection.Projector
	engine    engineinformers.SharedInformerFactory
	settings  informers.SharedInformerFactory
}

// Complete fills in what follows from the rest.
func (c *Config) Complete() (CompletedConfig, error) {
	kube, err := kubernetes.NewForConfig(c.Generic.ClientConfig)
	if err != nil {
		return CompletedConfig{}, fmt.Errorf("making a client of the cluster: %w", err)
	}
	engine, err := engineclient.NewForConfig(c.Generic.ClientConfig)
	if err != nil {
		return CompletedConfig{}, fmt.Errorf("making a client of the records: %w", err)
	}
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
		client:  &completedClients{kube: kube, engine: engine, informers: c.Generic.SharedInformerFactory},
	}, nil
}

// New builds the server. It reads nothing yet.
func (c CompletedConfig) New() (*Server, error) {
	generic, err := c.generic.New("holdfast-apiserver", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, err
	}
	engine := engineinformers.NewSharedInformerFactoryWithOptions(c.client.engine, 0,
		engineinformers.WithNamespace(c.extra.SystemNamespace))
	settings := informers.NewSharedInformerFactoryWithOptions(c.client.kube, 0,
		informers.WithNamespace(c.extra.SystemNamespace),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, records.SettingsName).String()
		}))
	projector, err := projection.New(projection.Config{
		Scheme:          Scheme,
		SystemNamespace: c.extra.SystemNamespace,
		PollInterval:    c.extra.PollInterval,
		Secrets:         c.client.kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(c.extra.SystemNamespace)),
		Authorizer:      c.generic.Authorization.Authorizer,
		Clock:           clock.RealClock{},
		Runs:            engine.Engine().V1alpha1().BackupRuns(),
		Locations:       engine.Engine().V1alpha1().BackupStorageLocations(),
		Namespaces:      c.client.informers.Core().V1().Namespaces(),
		Settings:        settings.Core().V1().ConfigMaps().Informer(),
	})
	if err != nil {
		return nil, err
	}

	backups, err := backup.NewREST(backup.Config{
		Scheme:          Scheme,
		Log:             projector.Backups,
		SystemNamespace: c.extra.SystemNamespace,
		Runs:            c.client.engine.EngineV1alpha1().BackupRuns(c.extra.SystemNamespace),
		Locations:       engine.Engine().V1alpha1().BackupStorageLocations().Lister().BackupStorageLocations(c.extra.SystemNamespace),
		Authorizer:      c.generic.Authorization.Authorizer,
		Observe:         projector.Observe,
		Load:            projector.Load,
		Limits:          c.extra.Limits,
	})
	if err != nil {
		return nil, err
	}
	queue, err := backupqueue.NewREST(projector.Queue)
	if err != nil {
		return nil, err
	}
	volumes, err := backupvolume.NewREST(projector.Volumes)
	if err != nil {
		return nil, err
	}
	volumeBackups, err := volumebackup.NewREST(projector.VolumeBackups)
	if err != nil {
		return nil, err
	}
	stores := healthz.NamedCheck("holdfast-stores", func(*http.Request) error { return projector.Ready() })
	if err := generic.AddReadyzChecks(stores); err != nil {
		return nil, err
	}
	group := genericapiserver.NewDefaultAPIGroupInfo(holdfast.GroupName, Scheme, metav1.ParameterCodec, Codecs)
	group.NegotiatedSerializer = withoutProtobuf{Codecs}
	group.VersionedResourcesStorageMap[v1alpha1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"backups":          backups,
		"backups/cancel":   backup.NewCancelREST(backups, clock.RealClock{}),
		"backups/deletion": backup.NewDeletionREST(backups, clock.RealClock{}),
		"backupqueues":     queue,
		"backupvolumes":    volumes,
		"volumebackups":    volumeBackups,
	}
	if err := generic.InstallAPIGroup(&group); err != nil {
		return nil, err
	}
	return &Server{generic: generic, projector: projector, engine: engine, settings: settings}, nil
}

// Run serves until ctx ends. Discovery answers at once; a resource answers 429
// until the records are there. /readyz says yes when the stores have been read, too.
func (s *Server) Run(ctx context.Context) error {
	s.generic.AddPostStartHookOrDie("holdfast-projection", func(hook genericapiserver.PostStartHookContext) error {
		s.engine.StartWithContext(hook)
		s.settings.StartWithContext(hook)
		go s.projector.Run(hook)
		return nil
	})
	return s.generic.PrepareRun().RunWithContext(ctx)
}
