// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"math"
	"runtime/debug"

	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/volumefiles/reader"
)

// indexShare bounds the indexes of read repositories to a share of the memory, within leastIndexes and
// mostIndexes.
const (
	indexShare   = 8
	leastIndexes = 64 << 20
	mostIndexes  = 1 << 30
)

func indexMemory() int64 {
	limit := debug.SetMemoryLimit(-1)
	if limit == math.MaxInt64 {
		return mostIndexes
	}
	return min(max(limit/indexShare, leastIndexes), mostIndexes)
}

func newVolumeFiles(ctx context.Context, c *controllerContext) (run func(context.Context), err error) {
	files := reader.New(reader.Config{
		Namespace:    c.system(),
		Secrets:      c.credentials,
		Keys:         c.kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(c.system())),
		Locations:    c.records.StorageLocations().Lister().StorageLocations(c.system()),
		Repositories: c.records.VolumeRepositories().Lister().VolumeRepositories(c.system()),
		Readable:     c.repositories.Readable,
		Continues:    c.restoring.Continues,
		Indexes:      indexMemory(),
		Clock:        clock.RealClock{},
	})
	c.files.Lead(ctx, files)
	return files.Run, nil
}
