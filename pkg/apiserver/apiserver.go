// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apiserver joins the aggregated API server: its configuration, and the
// resources of holdfast.io that it serves.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/clustercache"
	schedulecontroller "github.com/holdfast-io/holdfast/pkg/controllers/schedule"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	generatedopenapi "github.com/holdfast-io/holdfast/pkg/generated/openapi"
	clusteridentity "github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/leadership"
	"github.com/holdfast-io/holdfast/pkg/liveness"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/registry/backup"
	"github.com/holdfast-io/holdfast/pkg/registry/backupqueue"
	"github.com/holdfast-io/holdfast/pkg/registry/backupvolume"
	"github.com/holdfast-io/holdfast/pkg/registry/locationstatus"
	"github.com/holdfast-io/holdfast/pkg/registry/nodeagent"
	"github.com/holdfast-io/holdfast/pkg/registry/projection"
	"github.com/holdfast-io/holdfast/pkg/registry/requests"
	"github.com/holdfast-io/holdfast/pkg/registry/restore"
	"github.com/holdfast-io/holdfast/pkg/registry/schedule"
	"github.com/holdfast-io/holdfast/pkg/registry/streamed"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
	"github.com/holdfast-io/holdfast/pkg/registry/volumebackup"
	"github.com/holdfast-io/holdfast/pkg/registry/volumedeletion"
	"github.com/holdfast-io/holdfast/pkg/runlog/remote"
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
}{&backup.Resource, &backupqueue.Resource, &backupvolume.Resource, &volumebackup.Resource, &nodeagent.Resource, &schedule.Resource, &restore.Resource}

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
	metadata  metadata.Interface
	informers informers.SharedInformerFactory
	transport http.RoundTripper
}

// Server serves holdfast.io.
type Server struct {
	generic   *genericapiserver.GenericAPIServer
	projector *projection.Projector
	engine    engineinformers.SharedInformerFactory
	ledger    informers.SharedInformerFactory
	published informers.SharedInformerFactory
	leads     informers.SharedInformerFactory
	leases    informers.SharedInformerFactory
	nodes     metadatainformer.SharedInformerFactory
	limits    informers.SharedInformerFactory
	agents    *nodeagent.Publisher
	leader    *leadership.Leader
	schedules *schedule.Publisher
	restores  *restore.Publisher
	// broadcaster writes the events of schedules.
	broadcaster events.EventBroadcaster
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
	var server Server
	c.generic.BuildHandlerChainFunc = func(handler http.Handler, config *genericapiserver.Config) http.Handler {
		return genericapiserver.DefaultBuildHandlerChain(&fence{
			handler: toldDeletes{strictFields{virtual.MarkTables(handler)}, Codecs}, enter: server.enter, longRunning: config.LongRunningFunc, serializer: Codecs,
		}, config)
	}
	generic, err := c.generic.New("holdfast-apiserver", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, err
	}
	engine := engineinformers.NewSharedInformerFactoryWithOptions(c.client.engine, 0,
		engineinformers.WithNamespace(c.extra.SystemNamespace), engineinformers.WithTransform(clustercache.Trimmed))
	ledger := clustercache.ConfigMap(c.client.kube, c.extra.SystemNamespace, records.LedgerName)
	published := clustercache.ConfigMap(c.client.kube, c.extra.SystemNamespace, clusteridentity.Name)
	leads := clustercache.Lease(c.client.kube, c.extra.SystemNamespace, liveness.LeaderLease)
	working, err := liveness.NewLeader(leads.Coordination().V1().Leases().Informer(), clock.RealClock{})
	if err != nil {
		return nil, err
	}
	// The rest of a namespace is for admission.
	if err := c.client.informers.Core().V1().Namespaces().Informer().SetTransform(clustercache.Trimmed); err != nil {
		return nil, err
	}
	schedules, err := schedule.NewPublisher(engine.Engine().V1alpha1().ScheduleEntries().Informer(), clock.RealClock{})
	if err != nil {
		return nil, err
	}
	var projector *projection.Projector
	restores, err := restore.NewPublisher(c.extra.SystemNamespace, engine.Engine().V1alpha1().RestoreRuns().Informer(), c.client.informers.Core().V1().Namespaces().Informer(),
		func(ctx context.Context) { projector.Warn(ctx, "restores") })
	if err != nil {
		return nil, err
	}
	var statuses *locationstatus.Writer
	var room garbage
	projector, err = projection.New(projection.Config{
		SystemNamespace: c.extra.SystemNamespace,
		PollInterval:    c.extra.PollInterval,
		CacheDir:        c.extra.CacheDir,
		ForeignBytes:    c.extra.ForeignBytes,
		Secrets:         c.client.kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(c.extra.SystemNamespace)),
		Authorizer:      c.generic.Authorization.Authorizer,
		Clock:           clock.RealClock{},
		Runs:            engine.Engine().V1alpha1().BackupRuns(),
		Restores:        engine.Engine().V1alpha1().RestoreRuns(),
		Changes:         engine.Engine().V1alpha1().ExpirationChanges(),
		Deletions:       engine.Engine().V1alpha1().VolumeDeletions(),
		Locations:       engine.Engine().V1alpha1().StorageLocations(),
		Repositories:    engine.Engine().V1alpha1().VolumeRepositories(),
		Namespaces:      c.client.informers.Core().V1().Namespaces(),
		Ledger:          ledger.Core().V1().ConfigMaps().Informer(),
		Identity:        published.Core().V1().ConfigMaps().Informer(),
		OnRefreshed:     func() { statuses.Changed(); room.allow(projector.Resting()) },
		OnBackup:        schedules.OnBackup,
		Leader:          working,
		OnRestores:      restores.Queued,
		OnUnheard:       restores.SetUnheard,
		Past:            restores,
	})
	if err != nil {
		return nil, err
	}
	restores.SetJudge(projector.Judge)

	leases := informers.NewSharedInformerFactoryWithOptions(c.client.kube, 0,
		informers.WithNamespace(enginev1alpha1.AgentsNamespace(c.extra.SystemNamespace)), informers.WithTransform(clustercache.Trimmed),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = liveness.AgentLabels }))
	// Of nodes only names and labels matter, and the rest is large and changes all the time.
	nodes := metadatainformer.NewSharedInformerFactoryWithOptions(c.client.metadata, 0, metadatainformer.WithTransform(clustercache.Named))
	limits := clustercache.ConfigMap(c.client.kube, c.extra.SystemNamespace, c.extra.NodeAgentConfigMap)
	var limiting cache.SharedIndexInformer
	if c.extra.NodeAgentConfigMap != "" {
		limiting = limits.Core().V1().ConfigMaps().Informer()
	}
	agents, err := nodeagent.NewPublisher(leases.Coordination().V1().Leases().Informer(),
		nodes.ForResource(corev1.SchemeGroupVersion.WithResource("nodes")).Informer(), limiting, clock.RealClock{})
	if err != nil {
		return nil, err
	}

	namespaceUID := namespaceUIDs(c.client.kube.CoreV1().Namespaces())
	seenNamespaceUID := func(_ context.Context, name string) (types.UID, error) {
		namespace, err := c.client.informers.Core().V1().Namespaces().Lister().Get(name)
		if err != nil {
			return "", err
		}
		return namespace.UID, nil
	}
	labelsOf := location.LabelsOf(c.client.kube.CoreV1())
	locations := location.Known{
		Lister: engine.Engine().V1alpha1().StorageLocations().Lister().StorageLocations(c.extra.SystemNamespace),
		Live:   c.client.engine.EngineV1alpha1().StorageLocations(c.extra.SystemNamespace),
	}
	mayUse := func(ctx context.Context, name, namespace string) error {
		record, err := locations.Get(ctx, name)
		if err != nil {
			return err
		}
		return location.Allowed(ctx, record, namespace, labelsOf)
	}
	backups, err := backup.NewREST(backup.Config{
		Scheme:          Scheme,
		Log:             projector.Backups,
		SystemNamespace: c.extra.SystemNamespace,
		Runs:            c.client.engine.EngineV1alpha1().BackupRuns(c.extra.SystemNamespace),
		Locations:       locations,
		Authorizer:      c.generic.Authorization.Authorizer,
		Observe:         projector.Observe,
		Load:            projector.Load,
		Limits:          c.extra.Limits,
		TTL:             c.extra.BackupTTL,
		MaxTTL:          c.extra.MaxBackupTTL,
		Stored:          projector.StoredIn,
		NamespaceUID:    namespaceUID,
		MayUse:          mayUse,
		LastData:        lastData(projector.LastData, c.client.metadata),
	})
	if err != nil {
		return nil, err
	}
	restoreREST, err := restore.NewREST(restore.Config{
		Scheme:          Scheme,
		SystemNamespace: c.extra.SystemNamespace,
		Publisher:       restores,
		Runs:            c.client.engine.EngineV1alpha1().RestoreRuns(c.extra.SystemNamespace),
		Backups:         backups,
		BackupsReady:    projector.Ready,
		HeldClaims:      projector.HeldClaims,
		NamespaceUID:    namespaceUID,
		MayUse:          mayUse,
		Authorizer:      c.generic.Authorization.Authorizer,
		Limits:          c.extra.RestoreLimits,
	})
	if err != nil {
		return nil, err
	}
	scheduleREST, err := schedule.NewREST(schedule.Config{
		Scheme:          Scheme,
		SystemNamespace: c.extra.SystemNamespace,
		Publisher:       schedules,
		Entries:         c.client.engine.EngineV1alpha1().ScheduleEntries(c.extra.SystemNamespace),
		NamespaceUID:    namespaceUID,
		Backups:         backups,
		Authorizer:      c.generic.Authorization.Authorizer,
		Limit:           c.extra.SchedulesPerNamespace,
		Clock:           clock.RealClock{},
	})
	if err != nil {
		return nil, err
	}
	asking := asking{loopback: generic.LoopbackClientConfig, schedules: schedules}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: c.client.kube.EventsV1()})
	recorder := broadcaster.NewRecorder(Scheme, "holdfast-apiserver")
	statuses = locationstatus.New(locationstatus.Config{
		Records: c.client.engine.EngineV1alpha1().StorageLocations(c.extra.SystemNamespace),
		Lister:  engine.Engine().V1alpha1().StorageLocations().Lister().StorageLocations(c.extra.SystemNamespace),
		State:   projector.State,
		Events:  recorder,
		Clock:   clock.RealClock{},
	})
	scheduling := schedulecontroller.Config{
		RestoreUser:      enginev1alpha1.RestoreUser(c.extra.SystemNamespace),
		Schedules:        schedules,
		Backups:          asking,
		Entries:          c.client.engine.EngineV1alpha1().ScheduleEntries(c.extra.SystemNamespace),
		NamespaceUID:     seenNamespaceUID,
		LiveNamespaceUID: namespaceUID,
		Ready:            func() bool { return projector.Ready() == nil },
		Events:           recorder,
		Clock:            clock.RealClock{},
	}
	queue, err1 := backupqueue.Resource.ReadOnly(projector.Queue)
	volumes, err2 := backupvolume.Resource.ReadOnly(projector.Volumes)
	volumeBackups, err3 := volumebackup.Resource.ListOnly(projector.VolumeBackups)
	nodeAgents, err4 := nodeagent.Resource.ReadOnly(agents.Log)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	stores := healthz.NamedCheck("holdfast-stores", func(*http.Request) error { return projector.Ready() })
	if err := generic.AddReadyzChecks(stores); err != nil {
		return nil, err
	}
	answers := &streamed.Streams{Stores: projector, SystemNamespace: c.extra.SystemNamespace}
	running := &remote.Client{Secrets: c.client.kube.CoreV1().Secrets(c.extra.SystemNamespace)}
	contents := backup.Contents{Backups: backups, Streams: answers, Stored: projector.Stored, Judge: projector.Judge, Running: running}
	restored := restore.Contents{Restores: restoreREST, Streams: answers, SystemNamespace: c.extra.SystemNamespace, Digest: restores.Digest, Running: running}
	deletions := volumedeletion.Config{
		Ready:   projector.Ready,
		History: projector.VolumeHistory,
		Backup:  projector.Backups.GetObject,
		AllowsDeletion: func(location string) bool {
			record, err := engine.Engine().V1alpha1().StorageLocations().Lister().StorageLocations(c.extra.SystemNamespace).Get(location)
			return err == nil && record.Spec.AllowsDeletion()
		},
		Deletions:  c.client.engine.EngineV1alpha1().VolumeDeletions(c.extra.SystemNamespace),
		Observe:    projector.ObserveVolumeDeletion,
		Authorizer: c.generic.Authorization.Authorizer,
		Clock:      clock.RealClock{},

		SystemNamespace: c.extra.SystemNamespace,
		Limit:           c.extra.VolumeDeletionsPerNamespace,
		Load:            projector.LoadOfVolumeDeletions,
	}
	group := genericapiserver.NewDefaultAPIGroupInfo(v1alpha1.GroupName, Scheme, metav1.ParameterCodec, Codecs)
	group.NegotiatedSerializer = input{withoutProtobuf{Codecs}}
	group.VersionedResourcesStorageMap[v1alpha1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"backups":          backups,
		"backups/cancel":   backup.NewCancelREST(backups, clock.RealClock{}),
		"backups/deletion": backup.NewDeletionREST(backups, clock.RealClock{}),
		"backups/log":      contents.Log(),
		"backups/manifest": contents.Manifest(),
		"backups/objects":  contents.Objects(),
		"backups/results":  contents.Results(),
		"backupqueues":     queue,
		"backupvolumes":    volumes,
		"volumebackups":    volumeBackups,
		"nodeagents":       nodeAgents,
		"nodeagents/proxy": &nodeagent.Proxy{
			SystemNamespace: c.extra.SystemNamespace, Records: c.client.engine.EngineV1alpha1(),
			Secrets: c.client.kube.CoreV1(), Transport: c.client.transport,
		},
		"backupvolumes/deletion": volumedeletion.NewHistoryREST(deletions),
		"volumebackups/deletion": volumedeletion.NewREST(deletions, volumeBackups),
		"backups/expiration": backup.NewExpirationREST(backup.ExpirationConfig{
			Backups: backups, Changes: c.client.engine.EngineV1alpha1().ExpirationChanges(c.extra.SystemNamespace),
			Observe: projector.ObserveChange, Clock: clock.RealClock{},
			SystemNamespace: c.extra.SystemNamespace, MaxTTL: c.extra.MaxBackupTTL,
		}),
		"maintenancerequests": requests.NewMaintenance(c.extra.SystemNamespace, c.client.engine.EngineV1alpha1().VolumeRepositories(c.extra.SystemNamespace), clock.RealClock{}),
		"syncrequests":        requests.NewSync(c.extra.SystemNamespace, c.client.engine.EngineV1alpha1().StorageLocations(c.extra.SystemNamespace), projector.Awaits, clock.RealClock{}),
		"schedules":           scheduleREST,
		"restores":            restoreREST,
		"restores/cancel":     restore.NewCancelREST(restoreREST, clock.RealClock{}),
		"restores/log":        restored.Log(),
		"restores/plan":       restored.Plan(),
		"restores/results":    restored.Results(),
		"schedules/trigger":   schedule.NewTriggerREST(scheduleREST, asking.trigger),
	}
	if err := generic.InstallAPIGroup(&group); err != nil {
		return nil, err
	}
	logs := []interface {
		Version() uint64
		Begin(version uint64)
	}{projector.Backups, projector.Queue, projector.Volumes, projector.VolumeBackups, agents.Log, schedules.Log, restores.Log}
	leader := leadership.New(leadership.Config{
		Leases:   c.client.kube.CoordinationV1().Leases(c.extra.SystemNamespace),
		Name:     serviceName,
		Identity: identity(),
		Clock:    clock.RealClock{},
		Issued: func() uint64 {
			var issued uint64
			for _, log := range logs {
				issued = max(issued, log.Version())
			}
			return issued
		},
		Begin: func(version uint64) {
			for _, log := range logs {
				log.Begin(version)
			}
		},
		Lead: func(ctx context.Context, term *leadership.Term) {
			var running sync.WaitGroup
			defer running.Wait()
			scheduling := scheduling
			scheduling.Leads = term.Holds
			scheduler := schedulecontroller.New(scheduling)
			schedules.Notify(scheduler.Changed)
			running.Go(func() { scheduler.Run(ctx) })
			running.Go(func() { statuses.Run(ctx) })
			if c.extra.AdvertiseAddress != nil {
				address{
					slices: c.client.kube.DiscoveryV1().EndpointSlices(c.extra.SystemNamespace),
					ip:     c.extra.AdvertiseAddress, port: c.extra.Port,
				}.advertise(ctx, term.Holds)
			}
		},
	})
	server = Server{generic: generic, projector: projector, engine: engine, ledger: ledger, published: published, leads: leads,
		leases: leases, nodes: nodes, limits: limits, agents: agents, schedules: schedules, restores: restores, broadcaster: broadcaster, leader: leader}
	return &server, nil
}

// precedence is how long a replica that has read the records, but not yet the stores,
// lets others go first in the election: longer than these need to take over what is
// given back to them.
const precedence = 4 * leadership.RetryPeriod

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
func (s *Server) enter() (*leadership.Term, bool) {
	return s.leader.Enter()
}

// Run serves until ctx ends. Discovery answers at once; a resource answers 503 while
// another replica serves, or none does yet, since the records have not been read. /readyz
// says yes when the stores have been read, too.
func (s *Server) Run(ctx context.Context) error {
	var projecting sync.WaitGroup
	s.generic.AddPostStartHookOrDie("holdfast-projection", func(hook genericapiserver.PostStartHookContext) error {
		s.engine.StartWithContext(hook)
		s.ledger.StartWithContext(hook)
		s.published.StartWithContext(hook)
		s.leads.StartWithContext(hook)
		s.leases.StartWithContext(hook)
		s.nodes.Start(hook.Done())
		s.limits.StartWithContext(hook)
		projecting.Go(func() { s.projector.Run(hook) })
		go s.agents.Run(hook)
		go s.schedules.Run(hook)
		go s.restores.Run(hook)
		return s.broadcaster.StartRecordingToSinkWithContext(hook)
	})
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var leading sync.WaitGroup
	var lost error
	leading.Go(func() {
		defer stop()
		if s.awaitCandidacy(ctx) {
			lost = s.leader.Run(ctx)
		}
	})
	err := s.generic.PrepareRun().RunWithContext(ctx)
	stop()
	leading.Wait()
	awaitLast(&projecting)
	return errors.Join(err, lost)
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
