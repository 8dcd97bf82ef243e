// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/clustercache"
	"github.com/holdfast-io/holdfast/pkg/controllers/backupchange"
	"github.com/holdfast-io/holdfast/pkg/controllers/backupdeletion"
	"github.com/holdfast-io/holdfast/pkg/controllers/backupqueue"
	"github.com/holdfast-io/holdfast/pkg/controllers/backuprun"
	"github.com/holdfast-io/holdfast/pkg/controllers/clusteridentity"
	"github.com/holdfast-io/holdfast/pkg/controllers/expiry"
	"github.com/holdfast-io/holdfast/pkg/controllers/leftovers"
	"github.com/holdfast-io/holdfast/pkg/controllers/locks"
	noderestrictioncontroller "github.com/holdfast-io/holdfast/pkg/controllers/noderestriction"
	"github.com/holdfast-io/holdfast/pkg/controllers/repository"
	"github.com/holdfast-io/holdfast/pkg/controllers/restorerun"
	"github.com/holdfast-io/holdfast/pkg/controllers/run"
	"github.com/holdfast-io/holdfast/pkg/controllers/snapshotsweep"
	"github.com/holdfast-io/holdfast/pkg/controllers/storagelocation"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineclientset "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	holdfastclientset "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/noderestriction"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/restore/volumes"
	"github.com/holdfast-io/holdfast/pkg/runlog"
	"github.com/holdfast-io/holdfast/pkg/runlog/remote"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/pkg/volumefiles/reader"
)

// controllers are made in this order: later ones may use earlier ones. All run at once.
var controllers = []struct {
	name string
	new  func(context.Context, *controllerContext) (run func(context.Context), err error)
}{
	{"backupqueue", newBackupQueue},
	{"storagelocation", newStorageLocation},
	{"backuprun", newBackupRun},
	{"runretention", newRunRetention},
	{"restoreretention", newRestoreRetention},
	{"repository", newRepository},
	{"backupchange", newBackupChange},
	{"restorevolumes", newRestoreVolumes},
	{"restorerun", newRestoreRun},
	{"volumefiles", newVolumeFiles},
	{"backupdeletion", newBackupDeletion},
	{"leftovers", newLeftovers},
	{"expiry", newExpiry},
	{"locks", newLocks},
	{"clusteridentity", newClusterIdentity},
	{"index", newIndex},
	{"maintenance", newMaintenance},
	{"noderestriction", newNodeRestriction},
	{"snapshotsweep", newSnapshotSweep},
}

type controllerContext struct {
	*controllerOptions
	config   *rest.Config
	identity string
	leads    func(context.Context) error
	logs     *runlog.Logs
	plans    *remote.PlanServer
	files    *reader.Server

	kube        kubernetes.Interface
	engine      engineclient.EngineV1alpha1Interface
	client      rest.Interface
	served      *clustercache.Resources
	configMaps  corev1client.ConfigMapInterface
	credentials corev1client.SecretInterface
	events      events.EventRecorder

	cluster format.Cluster
	keys    []string

	records    engineinformers.Interface
	namespaces coreinformers.NamespaceInformer
	ledger     coreinformers.ConfigMapInformer
	published  coreinformers.ConfigMapInformer
	agents     *lease.Agents
	informers  []startable

	queue        *backupqueue.Controller
	locations    *storagelocation.Controller
	repositories *repository.Controller
	runs         *backuprun.Controller
	restores     *restorerun.Controller
	restoring    *restorerun.Executor
	volumes      *volumes.Volumes
	mover        *snapshots.Mover // nil without --snapshots: then the controller has no rights for it
}

type startable interface {
	StartWithContext(ctx context.Context)
	Shutdown()
}

type metadataInformers struct {
	metadatainformer.SharedInformerFactory
}

func (f metadataInformers) StartWithContext(ctx context.Context) { f.Start(ctx.Done()) }

// newControllerContext connects to the cluster. The caller ends the events.
func (o *controllerOptions) newControllerContext(ctx context.Context, config *rest.Config, identity string, leads func(context.Context) error, logs *runlog.Logs, planned *remote.PlanServer, files *reader.Server) (*controllerContext, error) {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	engine, err := engineclientset.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	reading := rest.CopyConfig(config)
	reading.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(reading)
	if err != nil {
		return nil, err
	}
	served, err := clustercache.NewResources(config)
	if err != nil {
		return nil, err
	}
	c := &controllerContext{
		controllerOptions: o, config: config, identity: identity, leads: leads, logs: logs, plans: planned, files: files,
		kube: kube, engine: engine.EngineV1alpha1(), client: client, served: served,
		configMaps:  kube.CoreV1().ConfigMaps(o.client.namespace),
		credentials: kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(o.client.namespace)),
	}
	if c.cluster, err = backuprun.Cluster(ctx, kube, o.client.namespace); err != nil {
		return nil, err
	}
	if c.cluster.Key, err = clusteridentity.Key(ctx, kube.CoreV1().Secrets(o.client.namespace)); err != nil {
		return nil, err
	}
	if c.keys, err = knownKeys(ctx, c.configMaps, c.cluster); err != nil {
		return nil, err
	}
	if o.snapshots {
		objects, err := dynamic.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		c.mover = snapshots.NewMover(snapshots.New(objects, c.cluster.UID, c.system()), kube, enginev1alpha1.SnapshotsNamespace(c.system()),
			func(ctx context.Context) (string, error) { return o.ownImage(ctx, kube) }, o.restorePullSecrets,
			func() []int { return c.agents.Limits() })
	}
	return c, c.newInformers(engine)
}

func (c *controllerContext) newInformers(engine engineclientset.Interface) error {
	system := c.controllerOptions.client.namespace
	engineFactory := enginefactory.NewSharedInformerFactoryWithOptions(engine, 0, enginefactory.WithNamespace(system),
		enginefactory.WithTransform(clustercache.Trimmed))
	objects := informers.NewSharedInformerFactoryWithOptions(c.kube, 0, informers.WithTransform(clustercache.Named))
	ledger := clustercache.ConfigMap(c.kube, system, records.LedgerName)
	published := clustercache.ConfigMap(c.kube, system, clusteridentity.ConfigMapName)
	agentLeases := informers.NewSharedInformerFactoryWithOptions(c.kube, 0, informers.WithNamespace(enginev1alpha1.AgentsNamespace(system)), informers.WithTransform(clustercache.Trimmed),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = lease.AgentLabels }))
	// Only the names of nodes matter; the rest is large and changes often.
	names, err := metadata.NewForConfig(c.config)
	if err != nil {
		return err
	}
	nodes := metadatainformer.NewSharedInformerFactoryWithOptions(names, 0, metadatainformer.WithTransform(clustercache.Named))
	c.agents, err = lease.NewAgents(agentLeases.Coordination().V1().Leases().Informer(),
		nodes.ForResource(corev1.SchemeGroupVersion.WithResource("nodes")).Informer(), clock.RealClock{})
	if err != nil {
		return err
	}
	c.agents.RegisterMetrics()
	c.records = engineFactory.Engine().V1alpha1()
	c.namespaces, c.ledger, c.published = objects.Core().V1().Namespaces(), ledger.Core().V1().ConfigMaps(), published.Core().V1().ConfigMaps()
	c.informers = []startable{agentLeases, metadataInformers{nodes}, engineFactory, objects, ledger, published}
	return nil
}

func (c *controllerContext) checkLocation(ctx context.Context, name string) error {
	return c.locations.Check(ctx, cache.ObjectName{Namespace: c.system(), Name: name})
}

func (c *controllerContext) holdLocation(ctx context.Context, name string, reason error) (*enginev1alpha1.StorageLocation, error) {
	return c.locations.Hold(ctx, cache.ObjectName{Namespace: c.system(), Name: name}, reason)
}

func (c *controllerContext) ensureRepository(ctx context.Context, namespace, location string) error {
	return repository.EnsureRecord(ctx, c.engine.VolumeRepositories(c.system()), namespace, location)
}

func (c *controllerContext) system() string { return c.controllerOptions.client.namespace }

func newBackupQueue(_ context.Context, c *controllerContext) (run func(context.Context), err error) {
	c.queue, err = backupqueue.New(backupqueue.Config{
		Namespace:         c.system(),
		Limits:            c.limits,
		Identity:          c.identity,
		Leads:             c.leads,
		Runs:              c.engine.BackupRuns(c.system()),
		Restores:          c.engine.RestoreRuns(c.system()),
		ConfigMaps:        c.configMaps,
		Events:            c.events,
		Clock:             clock.RealClock{},
		Snapshots:         c.mover != nil,
		RunInformer:       c.records.BackupRuns(),
		RestoreInformer:   c.records.RestoreRuns(),
		LocationInformer:  c.records.StorageLocations(),
		NamespaceInformer: c.namespaces,
		LedgerInformer:    c.ledger,
	})
	return func(ctx context.Context) { c.queue.Run(ctx, c.runs, c.restores) }, err
}

func newStorageLocation(ctx context.Context, c *controllerContext) (run func(context.Context), err error) {
	c.locations, err = storagelocation.New(storagelocation.Config{
		Locations:        c.engine,
		Secrets:          c.credentials,
		ClusterUID:       c.cluster.UID,
		Identity:         c.identity,
		Before:           lease.Before(ctx),
		Events:           c.events,
		Clock:            clock.RealClock{},
		LocationInformer: c.records.StorageLocations(),
	})
	return c.locations.Run, err
}

func newBackupRun(ctx context.Context, c *controllerContext) (run func(context.Context), err error) {
	executor := &backuprun.Executor{
		Discovery:     c.served,
		Client:        c.client,
		Secrets:       c.credentials,
		Locations:     c.records.StorageLocations().Lister().StorageLocations(c.system()),
		Cluster:       c.cluster,
		Clock:         clock.RealClock{},
		Pods:          &backuprun.PodsClient{Kube: c.kube, Config: c.config},
		Kube:          c.kube,
		BlockWorkers:  c.blockWorkers,
		HookTime:      c.hookTime,
		Timeout:       c.backupTimeout,
		HostPathRoots: c.hostPathRoots,
		Leads:         c.leads,
		Logs:          c.logs,
	}
	var mover backuprun.Mover
	if c.mover != nil {
		mover, executor.SnapshotClasses, executor.KeepSnapshots = c.mover, c.mover.Classes, !c.moveData
	}
	c.plans.LeadBackups(ctx, executor.Plan)
	c.runs, err = backuprun.New(backuprun.Config{
		Mover:            mover,
		Namespace:        c.system(),
		ClusterUID:       c.cluster.UID,
		Workers:          c.limits[queue.Backup],
		Identity:         c.identity,
		VolumeTimeout:    c.volumeTimeout,
		Timeout:          c.backupTimeout,
		AgentTimeout:     c.agentTimeout,
		ResumeInProgress: c.resume,
		Agents:           c.agents,
		Leads:            c.leads,
		Queue:            c.queue,
		Engine:           c.engine,
		ConfigMaps:       c.configMaps,
		Executor:         executor,
		HoldLocation:     c.holdLocation,
		Events:           c.events,
		Clock:            clock.RealClock{},
		RunInformer:      c.records.BackupRuns(),
		LocationInformer: c.records.StorageLocations(),
		VolumeInformer:   c.records.VolumeUploads(),
	})
	return c.runs.Run, err
}

func newRunRetention(_ context.Context, c *controllerContext) (func(context.Context), error) {
	controller, err := run.NewBackupRetention(c.engine, c.records.BackupRuns(), clock.RealClock{}, c.runRetention)
	return controller.Run, err
}

func newRestoreRetention(_ context.Context, c *controllerContext) (func(context.Context), error) {
	controller, err := run.NewRestoreRetention(c.engine, c.records.RestoreRuns(), clock.RealClock{}, c.restoreRetention)
	return controller.Run, err
}

func newRepository(_ context.Context, c *controllerContext) (run func(context.Context), err error) {
	c.repositories, err = repository.New(repository.Config{
		Namespace:          c.system(),
		Cluster:            c.cluster,
		Repositories:       c.engine,
		Secrets:            c.credentials,
		Keys:               c.kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(c.system())),
		Events:             c.events,
		Clock:              clock.RealClock{},
		RepositoryInformer: c.records.VolumeRepositories(),
		LocationInformer:   c.records.StorageLocations(),
	})
	return c.repositories.Run, err
}

func newBackupChange(_ context.Context, c *controllerContext) (run func(context.Context), err error) {
	var leave func(ctx context.Context, namespace, claim string, isOf func(backup types.UID, at snapshots.Place) bool) error
	if c.mover != nil {
		leave = c.mover.LeaveLocal
	}
	controller, err := backupchange.New(backupchange.Config{
		LeaveSnapshots:    leave,
		Namespace:         c.system(),
		Cluster:           c.cluster,
		Keys:              c.keys,
		Engine:            c.engine,
		Secrets:           c.credentials,
		EnsureRepository:  c.ensureRepository,
		Events:            c.events,
		Clock:             clock.RealClock{},
		ChangeInformer:    c.records.BackupChanges(),
		LocationInformer:  c.records.StorageLocations(),
		FormerExpirations: c.records.ExpirationChanges(),
		FormerDeletions:   c.records.VolumeDeletions(),
	})
	return controller.Run, err
}

func newRestoreVolumes(_ context.Context, c *controllerContext) (run func(context.Context), err error) {
	c.volumes, err = c.restoreVolumes(c.config, c.kube, c.engine, c.records, c.repositories, c.agents)
	return c.volumes.Run, err
}

func newBackupDeletion(_ context.Context, c *controllerContext) (run func(context.Context), err error) {
	var discard func(ctx context.Context, backup types.UID, isOf func(snapshots.Place) bool) error
	var adopt func(ctx context.Context, lost []snapshots.Lost) error
	if c.mover != nil {
		discard, adopt = c.mover.Discard, c.mover.Adopt
	}
	controller, err := backupdeletion.New(backupdeletion.Config{
		DiscardSnapshots:   discard,
		AdoptSnapshots:     adopt,
		Namespace:          c.system(),
		Runs:               c.engine,
		Restores:           c.engine,
		Changes:            c.engine,
		Secrets:            c.credentials,
		ClusterUID:         c.cluster.UID,
		Keys:               c.keys,
		EnsureRepository:   c.ensureRepository,
		CheckLocation:      c.checkLocation,
		Events:             c.events,
		Clock:              clock.RealClock{},
		RunInformer:        c.records.BackupRuns(),
		LocationInformer:   c.records.StorageLocations(),
		RepositoryInformer: c.records.VolumeRepositories(),
		ChangeInformer:     c.records.BackupChanges(),
		FormerInformer:     c.records.ExpirationChanges(),
	})
	return controller.Run, err
}

func newLeftovers(_ context.Context, c *controllerContext) (run func(context.Context), err error) {
	controller, err := leftovers.New(leftovers.Config{
		Namespace:        c.system(),
		ClusterUID:       c.cluster.UID,
		Runs:             c.engine.BackupRuns(c.system()),
		Restores:         c.engine.RestoreRuns(c.system()),
		Secrets:          c.credentials,
		Events:           c.events,
		Clock:            clock.RealClock{},
		LocationInformer: c.records.StorageLocations(),
	})
	return controller.Run, err
}

func newExpiry(_ context.Context, c *controllerContext) (run func(context.Context), err error) {
	backups, err := expiry.NewBackups(c.config)
	if err != nil {
		return nil, err
	}
	controller, err := expiry.New(expiry.Config{
		Namespace: c.system(),
		Interval:  c.expiry.interval,
		KeepLast:  c.expiry.keepLast,
		Percent:   c.expiry.percent,
		CheckClock: func(ctx context.Context, record *enginev1alpha1.StorageLocation) error {
			return location.CheckClock(ctx, c.credentials, record, clock.RealClock{})
		},
		Backups:           backups,
		Engine:            c.engine,
		Events:            c.events,
		Clock:             clock.RealClock{},
		NamespaceInformer: c.namespaces,
		LocationInformer:  c.records.StorageLocations(),
	})
	return controller.Run, err
}

func newLocks(_ context.Context, c *controllerContext) (run func(context.Context), err error) {
	clients, err := holdfastclientset.NewForConfig(c.config)
	if err != nil {
		return nil, err
	}
	controller, err := locks.New(locks.Config{
		Namespace:          c.system(),
		ClusterUID:         c.cluster.UID,
		Locations:          c.engine,
		Backups:            clients.HoldfastV1alpha1().Backups(metav1.NamespaceAll),
		Secrets:            c.credentials,
		Clock:              clock.RealClock{},
		LocationInformer:   c.records.StorageLocations(),
		RepositoryInformer: c.records.VolumeRepositories(),
	})
	return controller.Run, err
}

func newClusterIdentity(_ context.Context, c *controllerContext) (run func(context.Context), err error) {
	controller, err := clusteridentity.New(c.cluster, c.configMaps, c.published.Informer(), clock.RealClock{})
	return controller.Run, err
}

func newIndex(_ context.Context, c *controllerContext) (run func(context.Context), err error) {
	indexes, err := newIndexes(c.system(), c.cluster, c.keys, c.credentials, c.records)
	return indexes.Run, err
}

func newMaintenance(_ context.Context, c *controllerContext) (run func(context.Context), err error) {
	controller, factories, err := c.maintenance.controller(c.kube, c.engine, c.records, c.system(), c.events)
	c.informers = append(c.informers, factories...)
	return controller.Run, err
}

func newNodeRestriction(_ context.Context, c *controllerContext) (func(context.Context), error) {
	return noderestrictioncontroller.New(noderestrictioncontroller.Config{
		Namespace: c.system(),
		Check: func(ctx context.Context) (noderestriction.State, error) {
			return noderestriction.Check(ctx, c.config, c.system())
		},
		Events: c.events,
		Clock:  clock.RealClock{},
	}).Run, nil
}

// newSnapshotSweep returns no work without --snapshots, as for mover.
func newSnapshotSweep(_ context.Context, c *controllerContext) (func(context.Context), error) {
	if c.mover == nil {
		return func(context.Context) {}, nil
	}
	controller, err := snapshotsweep.New(snapshotsweep.Config{
		Namespace:        c.system(),
		ClusterUID:       c.cluster.UID,
		Snapshots:        c.mover.Client,
		Mover:            c.mover,
		Runs:             c.engine.BackupRuns(c.system()),
		Restores:         c.engine.RestoreRuns(c.system()),
		Secrets:          c.credentials,
		Events:           c.events,
		Clock:            clock.RealClock{},
		RunInformer:      c.records.BackupRuns(),
		LocationInformer: c.records.StorageLocations(),
	})
	if err != nil {
		return nil, err
	}
	return controller.Run, nil
}
