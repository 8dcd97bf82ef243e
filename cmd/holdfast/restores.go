// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"k8s.io/client-go/discovery"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/controllers/clusteridentity"
	"github.com/holdfast-io/holdfast/pkg/controllers/restorerun"
	"github.com/holdfast-io/holdfast/pkg/encryption"
	"github.com/holdfast-io/holdfast/pkg/queue"
)

func newRestoreRun(ctx context.Context, c *controllerContext) (run func(context.Context), err error) {
	c.restoring = &restorerun.Executor{
		Config:     c.config,
		Kube:       c.kube,
		Client:     c.client,
		Discovery:  discovery.ToDiscoveryInterfaceWithContext(c.kube.Discovery()),
		Secrets:    c.credentials,
		Decryption: encryption.Stored(c.kube.CoreV1().Secrets(c.system())),
		Locations:  c.records.StorageLocations().Lister().StorageLocations(c.system()),
		Runs:       c.engine,
		Namespace:  c.system(),
		Cluster:    c.cluster,
		Keys:       c.keys,
		Clock:      clock.RealClock{},
		HookTime:   c.hookTime,
		Workers:    c.restoreWorkers,
		Volumes:    c.volumes,
		Logs:       c.logs,

		Successions: clusteridentity.NewSuccessions(c.configMaps),
	}
	if c.mover != nil {
		c.restoring.Snapshots = c.mover.Client
	}
	c.plans.LeadRestores(ctx, c.restoring.Plan)
	c.restores, err = restorerun.New(restorerun.Config{
		Namespace:    c.system(),
		Workers:      c.limits[queue.Restore] + queue.PlanSlots,
		Identity:     c.identity,
		Leads:        c.leads,
		Queue:        c.queue,
		Engine:       c.engine,
		ConfigMaps:   c.configMaps,
		Executor:     c.restoring,
		HoldLocation: c.holdLocation,
		Events:       c.events,
		Clock:        clock.RealClock{},
		RunInformer:  c.records.RestoreRuns(),
	})
	return c.restores.Run, err
}
