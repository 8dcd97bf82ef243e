// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/clustercache"
	"github.com/holdfast-io/holdfast/pkg/controllers/backupdeletion"
	"github.com/holdfast-io/holdfast/pkg/controllers/backupexpiration"
	"github.com/holdfast-io/holdfast/pkg/controllers/backupqueue"
	"github.com/holdfast-io/holdfast/pkg/controllers/backuprun"
	"github.com/holdfast-io/holdfast/pkg/controllers/clusteridentity"
	"github.com/holdfast-io/holdfast/pkg/controllers/expiry"
	"github.com/holdfast-io/holdfast/pkg/controllers/leftovers"
	"github.com/holdfast-io/holdfast/pkg/controllers/repository"
	"github.com/holdfast-io/holdfast/pkg/controllers/runretention"
	"github.com/holdfast-io/holdfast/pkg/controllers/storagelocation"
	"github.com/holdfast-io/holdfast/pkg/controllers/volumedeletion"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/hostpath"
	"github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/liveness"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/maintenance"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/restore"
	"github.com/holdfast-io/holdfast/pkg/runlog"
	"github.com/holdfast-io/holdfast/pkg/runlog/remote"
	"github.com/holdfast-io/holdfast/pkg/serving"
)

// clientOptions say how a role reaches the cluster.
type clientOptions struct {
	kubeconfig string
	namespace  string
}

func (o *clientOptions) addFlags(flags *pflag.FlagSet) {
	o.namespace = "holdfast"
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "Kubeconfig file of the cluster. Empty means the pod's own service account.")
	flags.StringVar(&o.namespace, "namespace", o.namespace, "The system namespace: where Holdfast's records live.")
}

func (o *clientOptions) validate() error {
	if o.namespace == "" {
		return errors.New("--namespace must not be empty")
	}
	return nil
}

// config is the configuration of the role's clients. The server's priority and
// fairness bounds their requests, so they have no limit of their own.
func (o *clientOptions) config(role string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("finding the cluster: %w (set --kubeconfig outside of a pod)", err)
	}
	config.QPS = -1
	config.UserAgent = fmt.Sprintf("holdfast-%s/%s", role, version)
	return config, nil
}

// controllerOptions are the flags of the controller.
type controllerOptions struct {
	client           clientOptions
	serving          *serving.Options
	advertise        net.IP
	limits           queue.Slots
	runRetention     time.Duration
	restoreRetention time.Duration
	restoreWorkers   int
	volumeTimeout    time.Duration
	backupTimeout    time.Duration
	hookTime         time.Duration
	agentTimeout     time.Duration
	blockWorkers     int
	hostPathRoots    []string
	resume           bool
	maintenance      maintenanceOptions
	expiry           expiryOptions
}

// expiryOptions are the controller's flags about backups that have expired.
type expiryOptions struct {
	interval time.Duration
	keepLast bool
	percent  int
}

func (o *expiryOptions) addFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&o.interval, "expiry-interval", expiry.DefaultInterval, "How often backups are looked for that have expired, and are then deleted. 0 is never.")
	flags.BoolVar(&o.keepLast, "keep-last-backup", true, "Keep the last good backup of each namespace that exists, also when it has expired.")
	flags.IntVar(&o.percent, "max-expired-percent", expiry.DefaultPercent, "How many of a storage location's backups may expire within an hour, in percent, and ten in any case. When more have expired, none is deleted until somebody accepts that. 100 is no bound.")
}

func (o *expiryOptions) validate() error {
	var errs []error
	if o.interval != 0 && o.interval < time.Second {
		errs = append(errs, fmt.Errorf("--expiry-interval must be 0 or at least 1s, but is %s", o.interval))
	}
	if o.percent < 0 || o.percent > 100 {
		errs = append(errs, fmt.Errorf("--max-expired-percent must be from 0 to 100, but is %d", o.percent))
	}
	return errors.Join(errs...)
}

func newControllerCommand() *cobra.Command {
	options := &controllerOptions{
		serving:          serving.NewOptions(8444),
		limits:           records.DefaultLimits,
		runRetention:     runretention.DefaultRetention,
		restoreRetention: runretention.DefaultRestoreRetention,
		restoreWorkers:   restore.DefaultWorkers,
		volumeTimeout:    backuprun.DefaultVolumeTimeout,
		backupTimeout:    backuprun.DefaultTimeout,
		hookTime:         backup.DefaultHookTime,
		agentTimeout:     liveness.DefaultAgentTimeout,
		blockWorkers:     backup.DefaultBlockWorkers,
	}
	command := &cobra.Command{
		Use:   "controller",
		Short: "Run the queue and the backups",
		RunE: func(command *cobra.Command, _ []string) error {
			if err := options.validate(); err != nil {
				return err
			}
			return options.run(command.Context())
		},
	}
	flags := command.Flags()
	options.client.addFlags(flags)
	options.maintenance.addFlags(flags)
	options.expiry.addFlags(flags)
	options.serving.AddFlags(flags)
	flags.IPVar(&options.advertise, "advertise-address", nil, "The address at which the API server reaches this process, to show the logs of backups and restores that run: a pod's own. Empty shows logs when they are stored.")
	flags.IntVar(&options.limits[queue.Backup], "concurrent-backups", options.limits[queue.Backup], "How many backups may run at once. Backups that overlap never do.")
	flags.IntVar(&options.limits[queue.Restore], "concurrent-restores", options.limits[queue.Restore], "How many restores may run at once, besides backups. A restore never runs together with a backup or another restore of the namespaces that it writes to.")
	flags.DurationVar(&options.runRetention, "run-retention", options.runRetention, "How long the record of a backup is kept after its result is stored.")
	flags.DurationVar(&options.restoreRetention, "restore-retention", options.restoreRetention, "How long the record of a restore is kept after its end. That of a stored one is kept for an hour at most: then it is listed from its store.")
	flags.IntVar(&options.restoreWorkers, "restore-workers", options.restoreWorkers, "How many objects of a restore are written at once.")
	flags.DurationVar(&options.volumeTimeout, "pod-volume-timeout", options.volumeTimeout, "How long the backup of one volume may take from its start. As long may the agent of a node begin and end no volume, of backups and restores, while others wait for it.")
	flags.DurationVar(&options.backupTimeout, "backup-timeout", options.backupTimeout, "How long a backup may take from its start. The volumes that are not uploaded then are given up, no more hooks run, and it ends PartiallyFailed, so that others which overlap it may start. 0 is no limit.")
	flags.DurationVar(&options.hookTime, "hook-time-per-namespace", options.hookTime, "How long the hooks of one namespace may run in all, in one backup or restore. Others may have to wait for as long.")
	flags.DurationVar(&options.agentTimeout, "node-agent-timeout", options.agentTimeout, "How long a node may be without an agent before the volumes of backups that wait for it are given up.")
	flags.IntVar(&options.blockWorkers, "item-block-worker-count", options.blockWorkers, "How many groups of pods with hooks, pods that share volumes being one group, each backup takes at once: from the pre hooks until the volumes are read and the post hooks have run.")
	flags.StringSliceVar(&options.hostPathRoots, "host-path-roots", nil, "Folders of the nodes, separated by commas. Persistent volumes of type hostPath that lie below one are backed up, by agents that have the same flag; others are left out.")
	flags.BoolVar(&options.resume, "resume-in-progress", true, "Go on with backups that another controller was executing when it stopped: anew, with the volumes that are uploaded. Else they have failed.")
	return role(command)
}

func (o *controllerOptions) validate() error {
	errs := append(o.serving.Validate(), o.client.validate())
	for class, limit := range o.limits {
		if limit < 1 {
			errs = append(errs, fmt.Errorf("--concurrent-%ss must be at least 1, but is %d", queue.Class(class), limit))
		}
	}
	if o.blockWorkers < 1 {
		errs = append(errs, fmt.Errorf("--item-block-worker-count must be at least 1, but is %d", o.blockWorkers))
	}
	if o.runRetention < 0 {
		errs = append(errs, fmt.Errorf("--run-retention must not be negative, but is %s", o.runRetention))
	}
	if o.restoreRetention < 0 {
		errs = append(errs, fmt.Errorf("--restore-retention must not be negative, but is %s", o.restoreRetention))
	}
	if o.restoreWorkers < 1 || o.restoreWorkers > 256 {
		errs = append(errs, fmt.Errorf("--restore-workers must be from 1 to 256, but is %d", o.restoreWorkers))
	}
	if o.volumeTimeout <= 0 || o.volumeTimeout > maintenance.MaxUpload {
		errs = append(errs, fmt.Errorf("--pod-volume-timeout must be positive and at most %s, for which the maintenance of a repository spares what an upload may rely on, but is %s", maintenance.MaxUpload, o.volumeTimeout))
	}
	if o.backupTimeout < 0 {
		errs = append(errs, fmt.Errorf("--backup-timeout must not be negative, but is %s", o.backupTimeout))
	}
	if o.hookTime <= 0 {
		errs = append(errs, fmt.Errorf("--hook-time-per-namespace must be positive, but is %s", o.hookTime))
	}
	if o.agentTimeout < liveness.MinAgentTimeout {
		errs = append(errs, fmt.Errorf("--node-agent-timeout must be at least %s, in which an agent without a connection stops, but is %s", liveness.MinAgentTimeout, o.agentTimeout))
	}
	if err := hostpath.Roots(o.hostPathRoots).Validate(); err != nil {
		errs = append(errs, fmt.Errorf("--host-path-roots: %w", err))
	}
	return errors.Join(append(errs, o.maintenance.validate(), o.expiry.validate())...)
}

func (o *controllerOptions) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	config, err := o.client.config("controller")
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	logs := &runlog.Logs{}
	shown, err := remote.NewServer(logs, time.Now())
	if err != nil {
		return err
	}
	o.serving.AddRoute(serving.Route{Prefix: remote.Prefix, Certificate: shown.Certificate, Key: shown.Key, Handler: shown})
	stopped, err := o.serving.Start(ctx, o.client.kubeconfig)
	if err != nil {
		return err
	}
	defer func() { cancel(); <-stopped }()

	// A restarted container must not be taken for the process before it.
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	identity := fmt.Sprintf("%s_%d_%s", host, os.Getpid(), uuid.NewString()[:8])
	leases := kube.CoordinationV1().Leases(o.client.namespace)
	leads := func(ctx context.Context) error { return liveness.Leads(ctx, leases, identity) }
	return liveness.Lead(ctx, leases, identity, clock.RealClock{}, func(ctx context.Context) error {
		var publishing sync.WaitGroup
		defer publishing.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if o.advertise != nil && o.serving.Port() != 0 {
			address := net.JoinHostPort(o.advertise.String(), strconv.Itoa(o.serving.Port()))
			publishing.Go(func() { shown.Publish(ctx, kube.CoreV1().Secrets(o.client.namespace), address, leads) })
		}
		return o.work(ctx, config, identity, leads, logs)
	})
}

// work runs the controllers until ctx ends, and returns when all have stopped. None of their
// requests leaves a process that was paused, and wakes up when another one has its work: it
// would else go on for a moment, and have an agent upload a volume of a backup that has ended.
func (o *controllerOptions) work(ctx context.Context, config *rest.Config, identity string, leads func(context.Context) error, logs *runlog.Logs) error {
	config = rest.CopyConfig(config)
	config.Wrap(liveness.Fence)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	engine, err := engineclient.NewForConfig(config)
	if err != nil {
		return err
	}
	reading := rest.CopyConfig(config)
	reading.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(reading)
	if err != nil {
		return err
	}
	served, err := clustercache.NewResources(config)
	if err != nil {
		return err
	}
	cluster, err := backuprun.Cluster(ctx, kube, o.client.namespace)
	if err != nil {
		return err
	}
	configMaps := kube.CoreV1().ConfigMaps(o.client.namespace)
	if cluster.Key, err = clusteridentity.Key(ctx, kube.CoreV1().Secrets(o.client.namespace)); err != nil {
		return err
	}
	engineFactory := engineinformers.NewSharedInformerFactoryWithOptions(engine, 0, engineinformers.WithNamespace(o.client.namespace),
		engineinformers.WithTransform(clustercache.Trimmed))
	objects := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithTransform(clustercache.Named))
	ledger := clustercache.ConfigMap(kube, o.client.namespace, records.LedgerName)
	published := clustercache.ConfigMap(kube, o.client.namespace, clusteridentity.ConfigMapName)
	agentsNamespace := enginev1alpha1.AgentsNamespace(o.client.namespace)
	agentLeases := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(agentsNamespace), informers.WithTransform(clustercache.Trimmed),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = liveness.AgentLabels }))
	// Of nodes only the names matter, and the rest is large and changes all the time.
	names, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	nodes := metadatainformer.NewSharedInformerFactoryWithOptions(names, 0, metadatainformer.WithTransform(clustercache.Named))
	agents, err := liveness.NewAgents(agentLeases.Coordination().V1().Leases().Informer(),
		nodes.ForResource(corev1.SchemeGroupVersion.WithResource("nodes")).Informer(), clock.RealClock{})
	if err != nil {
		return err
	}
	agents.RegisterMetrics()
	engineRecords := engineFactory.Engine().V1alpha1()
	credentials := kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(o.client.namespace))
	keys := kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(o.client.namespace))

	broadcaster := newBroadcaster(kube)
	// Also of what goes on for a while when the process is told to stop.
	if err := broadcaster.StartRecordingToSinkWithContext(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	defer broadcaster.Shutdown()
	recorder := broadcaster.NewRecorder(scheme.Scheme, "holdfast-controller")

	theQueue, err := backupqueue.New(backupqueue.Config{
		Namespace:         o.client.namespace,
		Limits:            o.limits,
		Identity:          identity,
		Leads:             leads,
		Runs:              engine.EngineV1alpha1().BackupRuns(o.client.namespace),
		Restores:          engine.EngineV1alpha1().RestoreRuns(o.client.namespace),
		ConfigMaps:        configMaps,
		Events:            recorder,
		Clock:             clock.RealClock{},
		RunInformer:       engineRecords.BackupRuns(),
		RestoreInformer:   engineRecords.RestoreRuns(),
		LocationInformer:  engineRecords.StorageLocations(),
		NamespaceInformer: objects.Core().V1().Namespaces(),
		LedgerInformer:    ledger.Core().V1().ConfigMaps(),
	})
	if err != nil {
		return err
	}
	locations, err := storagelocation.New(storagelocation.Config{
		Locations:        engine.EngineV1alpha1(),
		Secrets:          credentials,
		ClusterUID:       cluster.UID,
		Identity:         identity,
		Before:           liveness.Before(ctx),
		Events:           recorder,
		Clock:            clock.RealClock{},
		LocationInformer: engineRecords.StorageLocations(),
	})
	if err != nil {
		return err
	}
	checkLocation := func(ctx context.Context, name string) error {
		return locations.Check(ctx, cache.ObjectName{Namespace: o.client.namespace, Name: name})
	}
	holdLocation := func(ctx context.Context, name string, reason error) (*enginev1alpha1.StorageLocation, error) {
		return locations.Hold(ctx, cache.ObjectName{Namespace: o.client.namespace, Name: name}, reason)
	}
	runs, err := backuprun.New(backuprun.Config{
		Namespace:        o.client.namespace,
		ClusterUID:       cluster.UID,
		Workers:          o.limits[queue.Backup],
		Identity:         identity,
		VolumeTimeout:    o.volumeTimeout,
		Timeout:          o.backupTimeout,
		AgentTimeout:     o.agentTimeout,
		ResumeInProgress: o.resume,
		Agents:           agents,
		Leads:            leads,
		Queue:            theQueue,
		Engine:           engine.EngineV1alpha1(),
		ConfigMaps:       configMaps,
		Executor: &backuprun.Executor{
			Discovery:     served,
			Client:        client,
			Secrets:       credentials,
			Locations:     engineRecords.StorageLocations().Lister().StorageLocations(o.client.namespace),
			Cluster:       cluster,
			Clock:         clock.RealClock{},
			Pods:          &backuprun.PodsClient{Kube: kube, Config: config},
			Kube:          kube,
			BlockWorkers:  o.blockWorkers,
			HookTime:      o.hookTime,
			Timeout:       o.backupTimeout,
			HostPathRoots: o.hostPathRoots,
			Leads:         leads,
			Logs:          logs,
		},
		HoldLocation:     holdLocation,
		Events:           recorder,
		Clock:            clock.RealClock{},
		RunInformer:      engineRecords.BackupRuns(),
		LocationInformer: engineRecords.StorageLocations(),
		VolumeInformer:   engineRecords.VolumeUploads(),
	})
	if err != nil {
		return err
	}
	retention, err := runretention.New(engine.EngineV1alpha1(), engineRecords.BackupRuns(), clock.RealClock{}, o.runRetention)
	if err != nil {
		return err
	}
	restoreRetention, err := runretention.NewRestores(engine.EngineV1alpha1(), engineRecords.RestoreRuns(), clock.RealClock{}, o.restoreRetention)
	if err != nil {
		return err
	}
	repositories, err := repository.New(repository.Config{
		Namespace:          o.client.namespace,
		Cluster:            cluster,
		Repositories:       engine.EngineV1alpha1(),
		Secrets:            credentials,
		Keys:               keys,
		Events:             recorder,
		Clock:              clock.RealClock{},
		RepositoryInformer: engineRecords.VolumeRepositories(),
		LocationInformer:   engineRecords.StorageLocations(),
	})
	if err != nil {
		return err
	}
	known, err := knownKeys(ctx, configMaps, cluster)
	if err != nil {
		return err
	}
	expirations, err := backupexpiration.New(backupexpiration.Config{
		Namespace:        o.client.namespace,
		Cluster:          cluster,
		Keys:             known,
		Changes:          engine.EngineV1alpha1().ExpirationChanges(o.client.namespace),
		Secrets:          credentials,
		Events:           recorder,
		Clock:            clock.RealClock{},
		ChangeInformer:   engineRecords.ExpirationChanges(),
		LocationInformer: engineRecords.StorageLocations(),
	})
	if err != nil {
		return err
	}
	restoredVolumes, err := o.restoreVolumes(config, kube, engine.EngineV1alpha1(), engineRecords, repositories, agents)
	if err != nil {
		return err
	}
	restores, err := o.restores(restoreDependencies{
		config: config, kube: kube, engine: engine.EngineV1alpha1(), records: engineRecords, client: client, cluster: cluster, keys: known,
		identity: identity, leads: leads, queue: theQueue, configMaps: configMaps, credentials: credentials, holdLocation: holdLocation, recorder: recorder, volumes: restoredVolumes, logs: logs,
	})
	if err != nil {
		return err
	}
	deletions, err := backupdeletion.New(backupdeletion.Config{
		Namespace:  o.client.namespace,
		Runs:       engine.EngineV1alpha1(),
		Restores:   engine.EngineV1alpha1(),
		Changes:    engine.EngineV1alpha1(),
		Secrets:    credentials,
		ClusterUID: cluster.UID,
		Keys:       known,
		EnsureRepository: func(ctx context.Context, namespace, location string) error {
			return repository.EnsureRecord(ctx, engine.EngineV1alpha1().VolumeRepositories(o.client.namespace), namespace, location)
		},
		CheckLocation:      checkLocation,
		Events:             recorder,
		Clock:              clock.RealClock{},
		RunInformer:        engineRecords.BackupRuns(),
		LocationInformer:   engineRecords.StorageLocations(),
		RepositoryInformer: engineRecords.VolumeRepositories(),
		ChangeInformer:     engineRecords.ExpirationChanges(),
	})
	if err != nil {
		return err
	}
	volumeDeletions, err := volumedeletion.New(volumedeletion.Config{
		Namespace: o.client.namespace,
		Cluster:   cluster,
		Keys:      known,
		Deletions: engine.EngineV1alpha1().VolumeDeletions(o.client.namespace),
		Changes:   engine.EngineV1alpha1().ExpirationChanges(o.client.namespace),
		Restores:  engine.EngineV1alpha1().RestoreRuns(o.client.namespace),
		Secrets:   credentials,
		EnsureRepository: func(ctx context.Context, namespace, location string) error {
			return repository.EnsureRecord(ctx, engine.EngineV1alpha1().VolumeRepositories(o.client.namespace), namespace, location)
		},
		Events:           recorder,
		Clock:            clock.RealClock{},
		DeletionInformer: engineRecords.VolumeDeletions(),
		LocationInformer: engineRecords.StorageLocations(),
	})
	if err != nil {
		return err
	}
	backups, err := expiry.NewBackups(config)
	if err != nil {
		return err
	}
	tidying, err := leftovers.New(leftovers.Config{
		Namespace:        o.client.namespace,
		ClusterUID:       cluster.UID,
		Runs:             engine.EngineV1alpha1().BackupRuns(o.client.namespace),
		Restores:         engine.EngineV1alpha1().RestoreRuns(o.client.namespace),
		Secrets:          credentials,
		Events:           recorder,
		Clock:            clock.RealClock{},
		LocationInformer: engineRecords.StorageLocations(),
	})
	if err != nil {
		return err
	}
	expiries, err := expiry.New(expiry.Config{
		Namespace: o.client.namespace,
		Interval:  o.expiry.interval,
		KeepLast:  o.expiry.keepLast,
		Percent:   o.expiry.percent,
		CheckClock: func(ctx context.Context, record *enginev1alpha1.StorageLocation) error {
			return location.CheckClock(ctx, credentials, record, clock.RealClock{})
		},
		Backups:           backups,
		Engine:            engine.EngineV1alpha1(),
		Events:            recorder,
		Clock:             clock.RealClock{},
		NamespaceInformer: objects.Core().V1().Namespaces(),
		LocationInformer:  engineRecords.StorageLocations(),
	})
	if err != nil {
		return err
	}
	identities, err := clusteridentity.New(cluster, configMaps, published.Core().V1().ConfigMaps().Informer(), clock.RealClock{})
	if err != nil {
		return err
	}
	indexes, err := newIndexes(o.client.namespace, cluster, known, credentials, engineRecords)
	if err != nil {
		return err
	}
	maintenances, startJobs, stopJobs, err := o.maintenance.controller(kube, engine.EngineV1alpha1(), engineRecords, o.client.namespace, recorder)
	if err != nil {
		return err
	}
	startJobs(ctx)
	defer stopJobs()
	engineFactory.StartWithContext(ctx)
	objects.StartWithContext(ctx)
	ledger.StartWithContext(ctx)
	agentLeases.StartWithContext(ctx)
	nodes.Start(ctx.Done())
	published.StartWithContext(ctx)
	klog.FromContext(ctx).Info("Controllers start", "identity", identity, "concurrentBackups", o.limits[queue.Backup], "concurrentRestores", o.limits[queue.Restore])
	var running sync.WaitGroup
	for _, run := range []func(context.Context){runs.Run, restores.Run, retention.Run, restoreRetention.Run, locations.Run, repositories.Run, deletions.Run, identities.Run, maintenances.Run, expiries.Run, tidying.Run, expirations.Run, volumeDeletions.Run, restoredVolumes.Run, indexes.Run} {
		running.Go(func() { run(ctx) })
	}
	running.Go(func() { theQueue.Run(ctx, runs, restores) })
	running.Go(func() { agents.Run(ctx, kube.CoordinationV1().Leases(agentsNamespace)) })
	running.Wait()
	agentLeases.Shutdown()
	nodes.Shutdown()
	engineFactory.Shutdown()
	objects.Shutdown()
	ledger.Shutdown()
	published.Shutdown()
	return nil
}

// knownKeys are the public keys that the cluster has signed with.
func knownKeys(ctx context.Context, configMaps corev1client.ConfigMapInterface, cluster format.Cluster) ([]string, error) {
	published, err := configMaps.Get(ctx, clusteridentity.ConfigMapName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("reading who the cluster is: %w", err)
	}
	keys := []string{cluster.Key.PublicKey()}
	if was := identity.Of(published); err == nil && was.UID == cluster.UID {
		keys = append(keys, was.Keys...)
	}
	return keys, nil
}
