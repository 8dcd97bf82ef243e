// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"net/http"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	"github.com/holdfast-io/holdfast/pkg/clustercache"
	schedulecontroller "github.com/holdfast-io/holdfast/pkg/controllers/schedule"
	"github.com/holdfast-io/holdfast/pkg/encryption"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	clusteridentity "github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/registry/backup"
	"github.com/holdfast-io/holdfast/pkg/registry/nodeagent"
	"github.com/holdfast-io/holdfast/pkg/registry/projection"
	"github.com/holdfast-io/holdfast/pkg/registry/protection"
	"github.com/holdfast-io/holdfast/pkg/registry/requests"
	"github.com/holdfast-io/holdfast/pkg/registry/restore"
	"github.com/holdfast-io/holdfast/pkg/registry/schedule"
	"github.com/holdfast-io/holdfast/pkg/registry/streamed"
	"github.com/holdfast-io/holdfast/pkg/registry/volumebackup"
	"github.com/holdfast-io/holdfast/pkg/runlog/remote"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/pkg/volumefiles"
)

// parts are made in this order: a later one may use an earlier one.
var parts = []struct {
	name string
	new  func(*serverContext) error
}{
	{"certificate", newCertificate},
	{"projection", newProjection},
	{"backups", newBackups},
	{"volumes", newVolumes},
	{"restores", newRestores},
	{"schedules", newSchedules},
	{"protections", newProtections},
	{"locationstatus", newLocationStatus},
	{"nodeagents", newNodeAgents},
	{"requests", newRequests},
	{"leader", newLeader},
}

type serverContext struct {
	*Server
	extra  ExtraConfig
	client *completedClients

	engine       engineclient.EngineV1alpha1Interface
	records      engineinformers.Interface
	authorizer   authorizer.Authorizer
	recorder     events.EventRecorder
	locations    location.Known
	namespaceUID func(ctx context.Context, name string) (types.UID, error)
	streams      *streamed.Streams
	runlogs      *remote.Client

	storage map[string]rest.Storage // resources and subresources, by name
	logs    []termLog               // share a term

	// Set when they are made.
	backups    *backup.REST
	schedules  *schedule.Publisher
	statuses   *projection.StatusWriter
	scheduling schedulecontroller.Config // of the controller, which runs for a term
}

// termLog is a log whose versions grow from term to term.
type termLog interface {
	Version() uint64
	Begin(version uint64)
}

func (c CompletedConfig) newContext(server *Server) (*serverContext, error) {
	factory := enginefactory.NewSharedInformerFactoryWithOptions(c.client.engine, 0,
		enginefactory.WithNamespace(c.extra.SystemNamespace), enginefactory.WithTransform(clustercache.Trimmed))
	server.broadcaster = events.NewBroadcaster(&events.EventSinkImpl{Interface: c.client.kube.EventsV1()})
	s := &serverContext{
		Server: server, extra: c.extra, client: c.client,
		engine: c.client.engine.EngineV1alpha1(), records: factory.Engine().V1alpha1(), authorizer: c.generic.Authorization.Authorizer,
		recorder:     server.broadcaster.NewRecorder(Scheme, "holdfast-apiserver"),
		runlogs:      &remote.Client{Secrets: c.client.kube.CoreV1().Secrets(c.extra.SystemNamespace)},
		namespaceUID: namespaceUIDs(c.client.kube.CoreV1().Namespaces()),
		storage:      map[string]rest.Storage{},
	}
	s.start(factory.StartWithContext)
	s.locations = location.Known{
		Lister: s.records.StorageLocations().Lister().StorageLocations(s.system()),
		Live:   s.engine.StorageLocations(s.system()),
	}
	// Admission needs the rest of a namespace.
	return s, c.client.informers.Core().V1().Namespaces().Informer().SetTransform(clustercache.Trimmed)
}

func (s *serverContext) system() string { return s.extra.SystemNamespace }

func (s *serverContext) start(f func(context.Context)) { s.starts = append(s.starts, f) }

// newCertificate keeps a self-made certificate trusted.
func newCertificate(s *serverContext) error {
	certificate := s.extra.Certificate
	if certificate == nil {
		return nil
	}
	s.start(func(ctx context.Context) { go certificate.Run(ctx) })
	return s.generic.AddReadyzChecks(healthz.NamedCheck("holdfast-certificate", func(*http.Request) error { return certificate.Ready() }))
}

func (s *serverContext) configMap(name string) cache.SharedIndexInformer {
	factory := clustercache.ConfigMap(s.client.kube, s.system(), name)
	s.start(factory.StartWithContext)
	return factory.Core().V1().ConfigMaps().Informer()
}

func (s *serverContext) seenNamespaceUID(_ context.Context, name string) (types.UID, error) {
	namespace, err := s.client.informers.Core().V1().Namespaces().Lister().Get(name)
	if err != nil {
		return "", err
	}
	return namespace.UID, nil
}

// mayUse fails with location.ErrNotAllowed if a namespace may not use a storage location.
func (s *serverContext) mayUse(ctx context.Context, name, namespace string) error {
	record, err := s.locations.Get(ctx, name)
	if err != nil {
		return err
	}
	return location.Allowed(ctx, record, namespace, location.LabelsOf(s.client.kube.CoreV1()))
}

// newProjection makes the projection and its catalogue, to which the other parts subscribe.
func newProjection(s *serverContext) error {
	leads := clustercache.Lease(s.client.kube, s.system(), lease.LeaderLease)
	s.start(leads.StartWithContext)
	working, err := lease.NewLeaderWatch(leads.Coordination().V1().Leases().Informer(), clock.RealClock{})
	if err != nil {
		return err
	}
	var taken *snapshots.Records // readiness does not wait for them
	if s.extra.Snapshots {
		taken = snapshots.NewRecords(s.client.metadata)
		s.start(func(ctx context.Context) { go taken.Run(ctx) })
	}
	s.projector, err = projection.New(projection.Config{
		SystemNamespace: s.system(),
		PollInterval:    s.extra.PollInterval,
		CacheDir:        s.extra.CacheDir,
		ForeignBytes:    s.extra.ForeignBytes,
		Secrets:         s.client.kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(s.system())),
		Authorizer:      s.authorizer,
		Clock:           clock.RealClock{},
		Runs:            s.records.BackupRuns(),
		Restores:        s.records.RestoreRuns(),
		Changes:         s.records.BackupChanges(),
		Locations:       s.records.StorageLocations(),
		Repositories:    s.records.VolumeRepositories(),
		Namespaces:      s.client.informers.Core().V1().Namespaces(),
		Ledger:          s.configMap(records.LedgerName),
		Identity:        s.configMap(clusteridentity.Name),
		Leader:          working,
		Snapshots:       taken,

		FormerExpirations: s.records.ExpirationChanges(),
		FormerDeletions:   s.records.VolumeDeletions(),
	})
	if err != nil {
		return err
	}
	var room garbage
	s.projector.Subscribe(projection.Subscriber{Refreshed: func() { room.allow(s.projector.Resting()) }})
	s.streams = &streamed.Streams{Stores: s.projector, SystemNamespace: s.system()}
	s.logs = append(s.logs, s.projector.Backups, s.projector.Queue, s.projector.Volumes, s.projector.VolumeBackups)
	s.storage["backupqueues"], err = backup.QueueResource.ReadOnly(s.projector.Queue)
	if err != nil {
		return err
	}
	return s.generic.AddReadyzChecks(healthz.NamedCheck("holdfast-stores", func(*http.Request) error { return s.projector.Ready() }))
}

func newBackups(s *serverContext) (err error) {
	s.backups, err = backup.NewREST(backup.Config{
		Scheme:          Scheme,
		Log:             s.projector.Backups,
		SystemNamespace: s.system(),
		Runs:            s.engine.BackupRuns(s.system()),
		Locations:       s.locations,
		Authorizer:      s.authorizer,
		Observe:         s.projector.Observe,
		Load:            s.projector.Load,
		Limits:          s.extra.Limits,
		TTL:             s.extra.BackupTTL,
		MaxTTL:          s.extra.MaxBackupTTL,
		Options:         validation.Options{Snapshots: s.extra.Snapshots},
		Stored:          s.projector.StoredIn,
		NamespaceUID:    s.namespaceUID,
		MayUse:          s.mayUse,
		LastData:        lastData(s.projector.LastData, s.client.metadata),
	})
	if err != nil {
		return err
	}
	contents := backup.Contents{Backups: s.backups, Streams: s.streams, Stored: s.projector.Stored, Judge: s.projector.Judge, Running: s.runlogs,
		Decryption: encryption.Stored(s.client.kube.CoreV1().Secrets(s.system()))}
	planner := &remote.PlanClient{Remote: s.runlogs}
	planning := &backup.PlanningREST{REST: s.backups, Plan: planner.Backup, Place: s.projector.PlannedPlace}
	s.storage["backups"] = planning
	s.storage["backups/plan"] = &backup.PlanObjectsREST{Planning: planning, Plan: planner.BackupObjects}
	s.storage["backups/cancel"] = backup.NewCancelREST(s.backups, clock.RealClock{})
	s.storage["backups/deletion"] = backup.NewDeletionREST(s.backups, clock.RealClock{})
	s.storage["backups/expiration"] = backup.NewExpirationREST(backup.ExpirationConfig{
		Backups: s.backups, Changes: s.engine.BackupChanges(s.system()), Former: s.engine.ExpirationChanges(s.system()), Observe: s.projector.ObserveChange,
		Clock: clock.RealClock{}, SystemNamespace: s.system(), MaxTTL: s.extra.MaxBackupTTL,
	})
	s.storage["backups/log"] = contents.Log()
	s.storage["backups/manifest"] = contents.Manifest()
	s.storage["backups/objects"] = contents.Objects()
	s.storage["backups/results"] = contents.Results()
	s.storage["backupobjects"] = backup.NewFindREST(&contents, clock.RealClock{})
	return nil
}

func newVolumes(s *serverContext) (err error) {
	if s.storage["backupvolumes"], err = volumebackup.VolumeResource.ReadOnly(s.projector.Volumes); err != nil {
		return err
	}
	volumeBackups, err := volumebackup.Resource.ListOnly(s.projector.VolumeBackups)
	if err != nil {
		return err
	}
	deletions := requests.VolumeDeletionConfig{
		Ready:   s.projector.Ready,
		History: s.projector.VolumeHistory,
		Backup:  s.projector.Backups.GetObject,
		AllowsDeletion: func(location string) bool {
			record, err := s.locations.Lister.Get(location)
			return err == nil && record.Spec.AllowsDeletion()
		},
		Changes:         s.engine.BackupChanges(s.system()),
		Observe:         s.projector.ObserveChange,
		Authorizer:      s.authorizer,
		Clock:           clock.RealClock{},
		SystemNamespace: s.system(),
		Limit:           s.extra.VolumeDeletionsPerNamespace,
		Load:            s.projector.LoadOfVolumeDeletions,
	}
	s.storage["backupvolumes/deletion"] = requests.NewHistoryDeletion(deletions)
	s.storage["volumebackups"] = volumeBackups
	s.storage["volumebackups/deletion"] = requests.NewVolumeDeletion(deletions, volumeBackups)
	files := volumebackup.Files{
		Streams: s.streams, VolumeBackups: volumeBackups, Reader: &volumefiles.Client{Remote: s.runlogs},
		Row: s.projector.VolumeBackups.Row,
	}
	s.storage["volumebackups/content"] = files.Content()
	s.storage["volumebackups/files"] = files.List()
	return nil
}

func newRestores(s *serverContext) error {
	publisher, err := restore.NewPublisher(s.system(), s.records.RestoreRuns().Informer(), s.client.informers.Core().V1().Namespaces().Informer(),
		s.projector.Judge, func(ctx context.Context) { s.projector.Warn(ctx, "restores") })
	if err != nil {
		return err
	}
	s.projector.Subscribe(projection.Subscriber{Restores: publisher.Queued, Unheard: publisher.SetUnheard, Past: publisher})
	s.start(func(ctx context.Context) { go publisher.Run(ctx) })
	s.logs = append(s.logs, publisher.Log)
	restores, err := restore.NewREST(restore.Config{
		Scheme:          Scheme,
		SystemNamespace: s.system(),
		Publisher:       publisher,
		Runs:            s.engine.RestoreRuns(s.system()),
		Backups:         s.backups,
		BackupsReady:    s.projector.Ready,
		HeldClaims:      s.projector.HeldClaims,
		NamespaceUID:    s.namespaceUID,
		MayUse:          s.mayUse,
		Authorizer:      s.authorizer,
		Limits:          s.extra.RestoreLimits,
		Plan:            (&remote.PlanClient{Remote: s.runlogs}).Restore,
	})
	if err != nil {
		return err
	}
	contents := restore.Contents{Restores: restores, Streams: s.streams, SystemNamespace: s.system(), Digest: publisher.Digest, Running: s.runlogs}
	s.storage["restores"] = restores
	s.storage["restores/cancel"] = restore.NewCancelREST(restores, clock.RealClock{})
	s.storage["restores/log"] = contents.Log()
	s.storage["restores/plan"] = contents.Plan()
	s.storage["restores/results"] = contents.Results()
	return nil
}

func newSchedules(s *serverContext) (err error) {
	s.schedules, err = schedule.NewPublisher(s.records.ScheduleEntries().Informer(), clock.RealClock{})
	if err != nil {
		return err
	}
	s.projector.Subscribe(projection.Subscriber{Backup: s.schedules.OnBackup})
	s.start(func(ctx context.Context) { go s.schedules.Run(ctx) })
	s.logs = append(s.logs, s.schedules.Log)
	schedules, err := schedule.NewREST(schedule.Config{
		Scheme:          Scheme,
		SystemNamespace: s.system(),
		Publisher:       s.schedules,
		Entries:         s.engine.ScheduleEntries(s.system()),
		NamespaceUID:    s.namespaceUID,
		Backups:         s.backups,
		Options:         validation.Options{Snapshots: s.extra.Snapshots},
		Authorizer:      s.authorizer,
		Limit:           s.extra.SchedulesPerNamespace,
		Clock:           clock.RealClock{},
	})
	if err != nil {
		return err
	}
	asking := asking{loopback: s.generic.LoopbackClientConfig, schedules: s.schedules}
	s.storage["schedules"] = schedules
	s.storage["schedules/trigger"] = schedule.NewTriggerREST(schedules, asking.trigger)
	s.scheduling = schedulecontroller.Config{
		RestoreUser:      enginev1alpha1.RestoreUser(s.system()),
		Schedules:        s.schedules,
		Backups:          asking,
		Entries:          s.engine.ScheduleEntries(s.system()),
		NamespaceUID:     s.seenNamespaceUID,
		LiveNamespaceUID: s.namespaceUID,
		Ready:            func() bool { return s.projector.Ready() == nil },
		Events:           s.recorder,
		Clock:            clock.RealClock{},
	}
	return nil
}

// newProtections shows protection. The server is ready without it.
func newProtections(s *serverContext) error {
	publisher := protection.New(protection.Config{
		SystemNamespace: s.system(),
		Metadata:        s.client.metadata,
		Namespaces:      s.client.informers.Core().V1().Namespaces().Lister(),
		Stores:          s.projector,
		Ready:           s.projector.Ready,
		IsGood:          s.projector.IsGood,
		Holders:         s.projector.Holders,
		Schedules:       s.schedules,
		Warn:            func(ctx context.Context) { s.projector.Warn(ctx, "protections") },
		Clock:           clock.RealClock{},
	})
	s.projector.Subscribe(projection.Subscriber{Backup: publisher.OnBackup})
	s.start(func(ctx context.Context) { go publisher.Run(ctx) })
	s.storage["protections"] = protection.NewREST(publisher)
	return nil
}

func newLocationStatus(s *serverContext) error {
	s.statuses = projection.NewStatusWriter(projection.StatusConfig{
		Records: s.engine.StorageLocations(s.system()),
		Lister:  s.locations.Lister,
		State:   s.projector.State,
		Events:  s.recorder,
		Clock:   clock.RealClock{},
	})
	s.projector.Subscribe(projection.Subscriber{Refreshed: s.statuses.Changed})
	return nil
}

func newNodeAgents(s *serverContext) error {
	leases := informers.NewSharedInformerFactoryWithOptions(s.client.kube, 0,
		informers.WithNamespace(enginev1alpha1.AgentsNamespace(s.system())), informers.WithTransform(clustercache.Trimmed),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = lease.AgentLabels }))
	s.start(leases.StartWithContext)
	// The rest is large and changes all the time.
	nodes := metadatainformer.NewSharedInformerFactoryWithOptions(s.client.metadata, 0, metadatainformer.WithTransform(clustercache.Named))
	s.start(func(ctx context.Context) { nodes.Start(ctx.Done()) })
	var limits cache.SharedIndexInformer
	if s.extra.NodeAgentConfigMap != "" {
		limits = s.configMap(s.extra.NodeAgentConfigMap)
	}
	publisher, err := nodeagent.NewPublisher(leases.Coordination().V1().Leases().Informer(),
		nodes.ForResource(corev1.SchemeGroupVersion.WithResource("nodes")).Informer(), limits, clock.RealClock{})
	if err != nil {
		return err
	}
	s.start(func(ctx context.Context) { go publisher.Run(ctx) })
	s.logs = append(s.logs, publisher.Log)
	s.storage["nodeagents/proxy"] = &nodeagent.Proxy{
		SystemNamespace: s.system(), Records: s.engine, Secrets: s.client.kube.CoreV1(), Transport: s.client.transport,
	}
	s.storage["nodeagents"], err = nodeagent.Resource.ReadOnly(publisher.Log)
	return err
}

func newRequests(s *serverContext) error {
	s.storage["maintenancerequests"] = requests.NewMaintenance(s.system(), s.engine.VolumeRepositories(s.system()), clock.RealClock{})
	s.storage["syncrequests"] = requests.NewSync(s.system(), s.engine.StorageLocations(s.system()), s.projector.Awaits, clock.RealClock{})
	return nil
}

func newLeader(s *serverContext) error {
	s.leader = lease.NewElection(lease.ElectionConfig{
		Leases:   s.client.kube.CoordinationV1().Leases(s.system()),
		Name:     serviceName,
		Identity: identity(),
		Clock:    clock.RealClock{},
		Issued: func() uint64 {
			var issued uint64
			for _, log := range s.logs {
				issued = max(issued, log.Version())
			}
			return issued
		},
		Begin: func(version uint64) {
			for _, log := range s.logs {
				log.Begin(version)
			}
		},
		Lead: s.lead,
	})
	return nil
}

func (s *serverContext) lead(ctx context.Context, term *lease.Term) {
	var running sync.WaitGroup
	defer running.Wait()
	scheduling := s.scheduling
	scheduling.Leads = term.Holds
	scheduler := schedulecontroller.New(scheduling)
	s.schedules.Notify(scheduler.Changed)
	running.Go(func() { scheduler.Run(ctx) })
	running.Go(func() { s.statuses.Run(ctx) })
	if s.extra.AdvertiseAddress != nil {
		address{
			slices: s.client.kube.DiscoveryV1().EndpointSlices(s.system()),
			ip:     s.extra.AdvertiseAddress, port: s.extra.Port,
		}.advertise(ctx, term.Holds)
	}
}
