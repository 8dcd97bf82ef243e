// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/backupqueue"
	"github.com/holdfast-io/holdfast/pkg/controllers/clusteridentity"
	"github.com/holdfast-io/holdfast/pkg/controllers/restorerun"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/restore/volumes"
	"github.com/holdfast-io/holdfast/pkg/runlog"
)

// restoreDependencies are what the controller of restores shares with the others.
type restoreDependencies struct {
	config       *rest.Config
	kube         kubernetes.Interface
	engine       engineclient.EngineV1alpha1Interface
	records      engineinformers.Interface
	client       rest.Interface
	cluster      format.Cluster
	keys         []string
	identity     string
	leads        func(context.Context) error
	queue        *backupqueue.Controller
	configMaps   coreclient.ConfigMapInterface
	credentials  coreclient.SecretInterface
	holdLocation func(ctx context.Context, name string, reason error) (*enginev1alpha1.StorageLocation, error)
	recorder     events.EventRecorder
	volumes      *volumes.Volumes
	logs         *runlog.Logs
}

// restores makes the controller that executes restores.
func (o *controllerOptions) restores(d restoreDependencies) (*restorerun.Controller, error) {
	return restorerun.New(restorerun.Config{
		Namespace:  o.client.namespace,
		Workers:    o.limits[queue.Restore] + queue.PlanSlots,
		Identity:   d.identity,
		Leads:      d.leads,
		Queue:      d.queue,
		Engine:     d.engine,
		ConfigMaps: d.configMaps,
		Executor: &restorerun.Executor{
			Config:    d.config,
			Kube:      d.kube,
			Client:    d.client,
			Discovery: discovery.ToDiscoveryInterfaceWithContext(d.kube.Discovery()),
			Secrets:   d.credentials,
			Locations: d.records.StorageLocations().Lister().StorageLocations(o.client.namespace),
			Runs:      d.engine,
			Namespace: o.client.namespace,
			Cluster:   d.cluster,
			Keys:      d.keys,
			Clock:     clock.RealClock{},
			HookTime:  o.hookTime,
			Workers:   o.restoreWorkers,
			Volumes:   d.volumes,
			Logs:      d.logs,

			Successions: clusteridentity.NewSuccessions(d.configMaps),
		},
		HoldLocation: d.holdLocation,
		Events:       d.recorder,
		Clock:        clock.RealClock{},
		RunInformer:  d.records.RestoreRuns(),
	})
}
