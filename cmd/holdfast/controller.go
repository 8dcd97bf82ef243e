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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/backuprun"
	"github.com/holdfast-io/holdfast/pkg/controllers/clusteridentity"
	"github.com/holdfast-io/holdfast/pkg/controllers/expiry"
	"github.com/holdfast-io/holdfast/pkg/controllers/run"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/hostpath"
	"github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/maintenance"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/restore"
	"github.com/holdfast-io/holdfast/pkg/runlog"
	"github.com/holdfast-io/holdfast/pkg/runlog/remote"
	"github.com/holdfast-io/holdfast/pkg/volumefiles"
	"github.com/holdfast-io/holdfast/pkg/volumefiles/reader"
)

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

// config returns the client configuration. The server's priority and fairness limits requests, not the client.
func (o *clientOptions) config(role string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("finding the cluster: %w (set --kubeconfig outside of a pod)", err)
	}
	config.QPS = -1
	config.UserAgent = fmt.Sprintf("holdfast-%s/%s", role, version)
	return config, nil
}

type controllerOptions struct {
	client           clientOptions
	serving          *servingOptions
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
	// restoreImage is for the containers that wait for volumes in tenants' namespaces; empty is this process's.
	// restorePullSecrets are Secrets there.
	restoreImage       string
	restorePullSecrets []string
	resume             bool
	snapshots          bool
	moveData           bool
	maintenance        maintenanceOptions
	expiry             expiryOptions
}

type expiryOptions struct {
	interval time.Duration
	keepLast bool
	percent  int
}

func (o *expiryOptions) addFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&o.interval, "expiry-interval", expiry.DefaultInterval, "Time between searches for expired backups, which are then deleted. 0 disables expiry.")
	flags.BoolVar(&o.keepLast, "keep-last-backup", true, "Keep the last good backup of each existing namespace, even if it has expired.")
	flags.IntVar(&o.percent, "max-expired-percent", expiry.DefaultPercent, "Maximum percentage of a storage location's backups that may expire within an hour; ten backups always may. If more have expired, none is deleted until an administrator accepts that. 100 means no bound.")
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
		serving:          newServingOptions(8444),
		limits:           records.DefaultLimits,
		runRetention:     run.DefaultRetention,
		restoreRetention: run.DefaultRestoreRetention,
		restoreWorkers:   restore.DefaultWorkers,
		volumeTimeout:    backuprun.DefaultVolumeTimeout,
		backupTimeout:    backuprun.DefaultTimeout,
		hookTime:         backup.DefaultHookTime,
		agentTimeout:     lease.DefaultAgentTimeout,
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
	flags.IPVar(&options.advertise, "advertise-address", nil, "Address at which the API server reads the logs of running backups and restores, and the files of volume backups, from this process: the pod's own. If empty, only stored logs are shown, and no files.")
	flags.IntVar(&options.limits[queue.Backup], "concurrent-backups", options.limits[queue.Backup], "Maximum number of concurrent backups. Overlapping backups never run at once.")
	flags.IntVar(&options.limits[queue.Restore], "concurrent-restores", options.limits[queue.Restore], "Maximum number of concurrent restores, besides backups. A restore never runs with a backup or another restore of the namespaces that it writes to.")
	flags.DurationVar(&options.runRetention, "run-retention", options.runRetention, "Time that the record of a backup is kept after its result is stored.")
	flags.DurationVar(&options.restoreRetention, "restore-retention", options.restoreRetention, "Time that the record of a restore is kept after its end. The record of a stored restore is kept for an hour at most; later the restore is listed from its store.")
	flags.IntVar(&options.restoreWorkers, "restore-workers", options.restoreWorkers, "Number of objects that a restore writes at once.")
	flags.DurationVar(&options.volumeTimeout, "pod-volume-timeout", options.volumeTimeout, "Maximum time for the backup of one volume, from its start. Also how long an agent may start and finish no volume while volumes wait for it.")
	flags.DurationVar(&options.backupTimeout, "backup-timeout", options.backupTimeout, "Maximum time for a backup, from its start. Then the remaining volumes are given up, no more hooks run, and the backup ends PartiallyFailed. 0 means no limit.")
	flags.DurationVar(&options.hookTime, "hook-time-per-namespace", options.hookTime, "Maximum total time for the hooks of one namespace in a backup or restore. Other namespaces may have to wait as long.")
	flags.DurationVar(&options.agentTimeout, "node-agent-timeout", options.agentTimeout, "Time that a node may lack an agent before the waiting volumes of backups are given up.")
	flags.IntVar(&options.blockWorkers, "item-block-worker-count", options.blockWorkers, "Number of groups of pods with hooks that each backup handles at once, from the pre hooks to the post hooks. Pods that share volumes are one group.")
	flags.StringSliceVar(&options.hostPathRoots, "host-path-roots", nil, "Folders of the nodes, separated by commas. Persistent volumes of type hostPath below them are backed up, by agents with the same flag; others are omitted.")
	flags.StringVar(&options.restoreImage, "restore-image", "", "Image of the containers that wait in restored pods for their volumes, and of the pods that hold restored claims. Its entrypoint is holdfast, of this version. Empty is the image of the controller's own pod.")
	flags.StringSliceVar(&options.restorePullSecrets, "restore-image-pull-secrets", nil, "Names of Secrets, separated by commas, by which nodes may pull that image. They are looked for in the namespace of each restored pod.")
	flags.BoolVar(&options.resume, "resume-in-progress", true, "Resume backups that a stopped controller was executing: they start again, and keep uploaded volumes. Otherwise they fail.")
	flags.BoolVar(&options.snapshots, "snapshots", false, "Make snapshots of volumes by the cluster's CSI drivers, and delete the snapshots that no backup needs. The controller needs the ClusterRole holdfast-snapshots, and a namespace with the ending -snapshots.")
	flags.BoolVar(&options.moveData, "default-snapshot-move-data", true, "Move the data of snapshots into the storage location, for backups that leave snapshotMoveData out. If false, their snapshots stay in the storage of their volumes, and are no second copies.")
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
		errs = append(errs, fmt.Errorf("--pod-volume-timeout must be positive and at most %s (maintenance protects running uploads for that long), got %s", maintenance.MaxUpload, o.volumeTimeout))
	}
	if o.backupTimeout < 0 {
		errs = append(errs, fmt.Errorf("--backup-timeout must not be negative, but is %s", o.backupTimeout))
	}
	if o.hookTime <= 0 {
		errs = append(errs, fmt.Errorf("--hook-time-per-namespace must be positive, but is %s", o.hookTime))
	}
	if o.agentTimeout < lease.MinAgentTimeout {
		errs = append(errs, fmt.Errorf("--node-agent-timeout must be at least %s (an agent without a connection stops within that time), got %s", lease.MinAgentTimeout, o.agentTimeout))
	}
	for _, name := range o.restorePullSecrets {
		for _, problem := range validation.IsDNS1123Subdomain(name) {
			errs = append(errs, fmt.Errorf("--restore-image-pull-secrets must be names of Secrets, but has %q: %s", name, problem))
		}
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
	o.serving.AddRoute(servedRoute{Prefix: remote.Prefix, Certificate: shown.Certificate, Key: shown.Key, Handler: shown})
	planned := remote.NewPlanServer(shown.MayAsk)
	o.serving.AddRoute(servedRoute{Prefix: remote.PlanPrefix, Certificate: shown.Certificate, Key: shown.Key, Handler: planned})
	files := &reader.Server{MayAsk: shown.MayAsk, SystemNamespace: o.client.namespace}
	o.serving.AddRoute(servedRoute{Prefix: volumefiles.Path, Certificate: shown.Certificate, Key: shown.Key, Handler: files})
	stopped, err := o.serving.Start(ctx, o.client.kubeconfig)
	if err != nil {
		return err
	}
	defer func() { cancel(); <-stopped }()

	// A restarted container must differ from the former process.
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	identity := fmt.Sprintf("%s_%d_%s", host, os.Getpid(), uuid.NewString()[:8])
	leases := kube.CoordinationV1().Leases(o.client.namespace)
	leads := func(ctx context.Context) error { return lease.Leads(ctx, leases, identity) }
	return lease.Lead(ctx, leases, identity, clock.RealClock{}, func(ctx context.Context) error {
		var publishing sync.WaitGroup
		defer publishing.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if o.advertise != nil && o.serving.Port() != 0 {
			address := net.JoinHostPort(o.advertise.String(), strconv.Itoa(o.serving.Port()))
			publishing.Go(func() { shown.Publish(ctx, kube.CoreV1().Secrets(o.client.namespace), address, leads) })
		}
		return o.work(ctx, config, identity, leads, logs, planned, files)
	})
}

// work runs the controllers until ctx ends, and waits for their stop. lease.Fence stops requests of a process that
// wakes up after another took over.
func (o *controllerOptions) work(ctx context.Context, config *rest.Config, identity string, leads func(context.Context) error, logs *runlog.Logs, planned *remote.PlanServer, files *reader.Server) error {
	config = rest.CopyConfig(config)
	config.Wrap(lease.Fence)
	c, err := o.newControllerContext(ctx, config, identity, leads, logs, planned, files)
	if err != nil {
		return err
	}
	broadcaster := newBroadcaster(c.kube)
	// Also for work that continues after the stop.
	if err := broadcaster.StartRecordingToSinkWithContext(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	defer broadcaster.Shutdown()
	c.events = broadcaster.NewRecorder(scheme.Scheme, "holdfast-controller")

	var runs []func(context.Context)
	for _, controller := range controllers {
		run, err := controller.new(ctx, c)
		if err != nil {
			return fmt.Errorf("the controller %s: %w", controller.name, err)
		}
		runs = append(runs, run)
	}
	for _, factory := range c.informers {
		factory.StartWithContext(ctx)
	}
	klog.FromContext(ctx).Info("Controllers start", "identity", identity, "concurrentBackups", o.limits[queue.Backup], "concurrentRestores", o.limits[queue.Restore])
	var running sync.WaitGroup
	for _, run := range runs {
		running.Go(func() { run(ctx) })
	}
	running.Go(func() {
		c.agents.Run(ctx, c.kube.CoordinationV1().Leases(enginev1alpha1.AgentsNamespace(o.client.namespace)))
	})
	running.Wait()
	for _, factory := range c.informers {
		factory.Shutdown()
	}
	return nil
}

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
