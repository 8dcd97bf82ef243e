// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/clustercache"
	"github.com/holdfast-io/holdfast/pkg/controllers/nodelimit"
	"github.com/holdfast-io/holdfast/pkg/controllers/volumework"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	engineclientset "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/hostpath"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/repository"
)

type nodeAgentOptions struct {
	client        clientOptions
	serving       *servingOptions
	node          string
	hostPodsDir   string
	hostPathRoots []string // mounted at the node's paths
	cacheDir      string
	cacheLimit    string
	configMap     string
	memory        string
	fullReadEvery time.Duration
}

const leastCache = 64 << 20 // three packs of 20 MB

func newNodeAgentCommand() *cobra.Command {
	options := &nodeAgentOptions{
		serving:     newServingOptions(8445),
		node:        os.Getenv("NODE_NAME"),
		hostPodsDir: "/host_pods",
		cacheLimit:  "1Gi",

		fullReadEvery: 7 * 24 * time.Hour,
	}
	command := &cobra.Command{
		Use:   "node-agent",
		Short: "Move the data of the volumes of one node",
		RunE: func(command *cobra.Command, _ []string) error {
			if err := options.validate(); err != nil {
				return err
			}
			return options.run(command.Context())
		},
	}
	flags := command.Flags()
	options.client.addFlags(flags)
	options.serving.AddFlags(flags)
	flags.StringVar(&options.node, "node-name", options.node, "Name of the node. Default: the environment variable NODE_NAME.")
	flags.StringVar(&options.hostPodsDir, "host-pods-dir", options.hostPodsDir, "The kubelet's folder of pods, as mounted here.")
	flags.StringSliceVar(&options.hostPathRoots, "host-path-roots", nil, "Folders of the node, separated by commas, each mounted here at the same path. Only below them are persistent volumes of type hostPath read and written. Default: none.")
	flags.StringVar(&options.cacheDir, "cache-dir", options.cacheDir, "Folder for the cache of repositories. The next agent of the node may reuse it. Empty means no cache.")
	flags.StringVar(&options.cacheLimit, "cache-limit", options.cacheLimit, "Maximum size of the cache for all repositories, as a quantity of at least 64Mi. The data unread for longest makes room.")
	flags.StringVar(&options.memory, "memory-limit", options.memory, "Maximum memory, as a quantity of at least 256Mi. Default: 90 % of the container's limit, if it has one. The environment variable GOMEMLIMIT takes precedence.")
	flags.DurationVar(&options.fullReadEvery, "full-read-every", options.fullReadEvery, "Maximum time after which an upload reads all files of a volume again, even if they seem unchanged. It is up to a quarter shorter for some volumes, to spread the load. 0 means never.")
	flags.StringVar(&options.configMap, "node-agent-configmap", options.configMap, "Name of a ConfigMap in the system namespace with the number of volumes that each node moves at once. Without it, each node moves one.")
	return role(command)
}

func (o *nodeAgentOptions) validate() error {
	errs := append(o.serving.Validate(), o.client.validate())
	if o.node == "" {
		errs = append(errs, errors.New("--node-name must be set, or the environment variable NODE_NAME"))
	}
	if o.configMap != "" {
		for _, problem := range validation.IsDNS1123Subdomain(o.configMap) {
			errs = append(errs, fmt.Errorf("--node-agent-configmap must be the name of a ConfigMap, but is %q: %s", o.configMap, problem))
		}
	}
	if limit, err := resource.ParseQuantity(o.cacheLimit); err != nil || limit.Value() < leastCache {
		errs = append(errs, fmt.Errorf("--cache-limit must be a quantity of at least %dMi, but is %q", leastCache>>20, o.cacheLimit))
	}
	if o.fullReadEvery < 0 {
		errs = append(errs, fmt.Errorf("--full-read-every must not be negative, but is %s", o.fullReadEvery))
	}
	if !filepath.IsAbs(o.hostPodsDir) {
		errs = append(errs, fmt.Errorf("--host-pods-dir must be an absolute path, but is %q", o.hostPodsDir))
	}
	if err := hostpath.Roots(o.hostPathRoots).Validate(); err != nil {
		errs = append(errs, fmt.Errorf("--host-path-roots: %w", err))
	}
	return errors.Join(errs...)
}

func (o *nodeAgentOptions) run(ctx context.Context) error {
	if os.Getenv("GOGC") == "" {
		// Most of the heap is Kopia's long-lived buffers; by default garbage could grow to as much.
		debug.SetGCPercent(30)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	limit, err := memoryLimit(o.memory, cgroups)
	if err != nil {
		return err
	}
	config, err := o.client.config("node-agent")
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	engine, err := engineclientset.NewForConfig(config)
	if err != nil {
		return err
	}
	own, err := engineclientset.NewForConfig(o.proxied(config))
	if err != nil {
		return err
	}
	metadata, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	stopped, err := o.serving.Start(ctx, o.client.kubeconfig)
	if err != nil {
		return err
	}
	defer func() { cancel(); <-stopped }()

	broadcaster := newBroadcaster(kube)
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return err
	}
	defer broadcaster.Shutdown()

	report := &agentReport{clock: clock.RealClock{}}
	identity := "holdfast-node-agent-" + uuid.NewString()[:8]
	return lease.HoldNode(ctx, kube.CoordinationV1().Leases(enginev1alpha1.AgentsNamespace(o.client.namespace)), o.node, identity, clock.RealClock{}, report.text, func(ctx context.Context) error {
		return o.work(ctx, identity, limit, kube, metadata, engine, own, broadcaster, report)
	})
}

// proxied returns the client configuration for the API server's proxy for agents.
func (o *nodeAgentOptions) proxied(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Host = strings.TrimSuffix(config.Host, "/") + v1alpha1.NodeAgentProxyPath(o.node)
	return config
}

func (o *nodeAgentOptions) work(ctx context.Context, identity string, memory int64, kube kubernetes.Interface, metadata metadata.Interface, engine, own engineclientset.Interface, broadcaster events.EventBroadcaster, report *agentReport) error {
	records := enginefactory.NewSharedInformerFactoryWithOptions(engine, 0, enginefactory.WithNamespace(o.client.namespace),
		enginefactory.WithTransform(clustercache.Trimmed))
	work := enginefactory.NewSharedInformerFactoryWithOptions(own, 0, enginefactory.WithNamespace(o.client.namespace),
		enginefactory.WithTransform(clustercache.Trimmed))
	working, most := ctx, 0
	if memory > 0 {
		debug.SetMemoryLimit(memory)
		bound := datapath.NewMemory(memory)
		working, most = datapath.WithMemory(ctx, bound), bound.Volumes
		klog.FromContext(ctx).Info("The memory is bounded, and with it the volumes at once", "bytes", memory, "volumes", most)
	}
	manager := datapath.NewManager(working, 0) // starts nothing before all waiting work is known
	defer manager.Stop()
	recorder := broadcaster.NewRecorder(scheme.Scheme, "holdfast-node-agent")
	shared := volumework.Config{
		Node:               o.node,
		Identity:           identity,
		Namespace:          o.client.namespace,
		PodsDir:            o.hostPodsDir,
		HostPathRoots:      o.hostPathRoots,
		FullReadEvery:      o.fullReadEvery,
		Manager:            manager,
		Hung:               new(volumework.Hung),
		Secrets:            volumework.Secrets(own.EngineV1alpha1().RESTClient(), o.client.namespace),
		Options:            repository.Options{Cache: o.cache(ctx)},
		Events:             recorder,
		Clock:              clock.RealClock{},
		RepositoryInformer: records.Engine().V1alpha1().VolumeRepositories(),
		LocationInformer:   records.Engine().V1alpha1().StorageLocations(),
	}
	backups, err := volumework.NewUploads(shared, own.EngineV1alpha1(), engine.EngineV1alpha1(), work.Engine().V1alpha1().VolumeUploads())
	if err != nil {
		return err
	}
	restores, err := volumework.NewRestores(shared, own.EngineV1alpha1(), engine.EngineV1alpha1(), work.Engine().V1alpha1().VolumeRestores())
	if err != nil {
		return err
	}
	nodes := metadatainformer.NewFilteredMetadataInformer(metadata, corev1.SchemeGroupVersion.WithResource("nodes"), "", 0, cache.Indexers{},
		func(options *metav1.ListOptions) { options.FieldSelector = "metadata.name=" + o.node }).Informer()
	limits := nodelimit.Config{Nodes: nodes, SetLimit: manager.SetLimit, Most: most, Events: recorder}
	configMaps := clustercache.ConfigMap(kube, o.client.namespace, o.configMap)
	if o.configMap != "" {
		limits.ConfigMaps = configMaps.Core().V1().ConfigMaps().Informer()
	}
	limit, err := nodelimit.New(limits)
	if err != nil {
		return err
	}
	report.begin(manager.Load, limit.State)
	records.StartWithContext(ctx)
	work.StartWithContext(ctx)
	configMaps.StartWithContext(ctx)
	klog.FromContext(ctx).Info("Node agent starts", "node", o.node)
	var running sync.WaitGroup
	running.Go(func() { nodes.RunWithContext(ctx) })
	running.Go(func() { backups.Run(ctx) })
	running.Go(func() { restores.Run(ctx) })
	running.Go(func() {
		if cache.WaitForNamedCacheSyncWithContext(ctx, backups.HasSynced, restores.HasSynced) {
			limit.Run(ctx)
		}
	})
	running.Wait()
	records.Shutdown()
	work.Shutdown()
	configMaps.Shutdown()
	return nil
}

// cache returns the repositories' shared disk cache, or nil: it is optional.
func (o *nodeAgentOptions) cache(ctx context.Context) *repository.Cache {
	if o.cacheDir == "" {
		return nil
	}
	limit := resource.MustParse(o.cacheLimit)
	cache, err := repository.NewCache(o.cacheDir, limit.Value())
	if err != nil {
		klog.FromContext(ctx).Error(err, "Repositories are read without a cache on the disk", "folder", o.cacheDir)
		return nil
	}
	return cache
}
