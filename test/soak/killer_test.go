// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// How long a process is paused: for a moment, or until others take it for dead.
const (
	shortPause = 2 * time.Second
	longPause  = 40 * time.Second
)

// harm counts what was done to the processes, by role.
type harm struct {
	mu     sync.Mutex
	kills  map[string]int
	pauses map[string]int
	// deaths are ends of processes that were only paused: they had lost their Lease.
	deaths map[string]int
	// maintained and failed are how many maintenances of repositories came to their end.
	maintained, failed int
}

func (h *harm) count(of map[string]int, role string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	of[roleOf(role)]++
}

// maintenance is the role of the processes that maintain repositories. None of them runs all the time.
const maintenance = "maintenance"

// roleOf is apiserver, controller, agent or maintenance.
func roleOf(process string) string { return strings.SplitN(process, "-", 2)[0] }

// enough reports whether each role was killed often enough.
func (h *harm) enough(least int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, process := range processes {
		if h.kills[roleOf(process)] < least {
			return false
		}
	}
	return !long() || h.kills[maintenance] >= least
}

func (h *harm) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	describe := func(of map[string]int) string {
		var parts []string
		for _, role := range slices.Sorted(maps.Keys(of)) {
			parts = append(parts, fmt.Sprintf("%s %d", role, of[role]))
		}
		return strings.Join(parts, ", ")
	}
	return fmt.Sprintf("kills: %s; pauses: %s; ended after a pause: %s; maintenances to their end: %d, and %d failed",
		describe(h.kills), describe(h.pauses), describe(h.deaths), h.maintained, h.failed)
}

// processes are those of each cluster.
var processes = []string{labtest.APIServer, labtest.Controller, labtest.AnotherController, labtest.Agent}

const (
	// soon is when a process is struck that may have done nothing yet.
	soon = 4 * time.Second
	// most is how many backups end at most before one that may do its work is struck,
	// and patience how long that is waited for.
	most     = 6
	patience = time.Minute
)

// moment waits until a process is to be struck, and reports whether ctx goes on. Of
// four times, one is soon. The others are when some backups have ended since: whoever
// was started, or has to take over what another one left, has then done so.
func moment(ctx context.Context, c *cluster, random *rand.Rand) bool {
	if random.IntN(4) == 0 {
		return pause(ctx, between(random, 0, soon))
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for enough := c.progress() + 1 + random.IntN(most); c.progress() < enough; {
		if !pause(ctx, 50*time.Millisecond) {
			return errors.Is(ctx.Err(), context.DeadlineExceeded)
		}
	}
	return true
}

// harass kills and pauses a process at random until ctx ends, and leaves it running.
func (h *harm) harass(ctx context.Context, c *cluster, process string, random *rand.Rand) error {
	for moment(ctx, c, random) {
		signal := syscall.SIGKILL
		if random.IntN(4) == 0 {
			signal = syscall.SIGSTOP
		}
		if !c.Running(process) {
			signal = 0 // it has ended by itself, late
		} else if err := c.Signal(process, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("%s: %w", process, err)
		}
		switch signal {
		case 0:
			h.count(h.deaths, process)
		case syscall.SIGSTOP:
			h.count(h.pauses, process)
			longest := shortPause
			if random.IntN(4) == 0 {
				longest = longPause
			}
			pause(ctx, between(random, 0, longest))
			if err := c.Signal(process, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("%s: %w", process, err)
			}
			continue // if it has lost its Lease, it ends soon
		case syscall.SIGKILL:
			h.count(h.kills, process)
		}
		if roleOf(process) == labtest.Controller {
			// No other one lives for long enough to see that it has expired.
			if err := c.DeleteLeaseOf(context.WithoutCancel(ctx), process); err != nil {
				return err
			}
		}
		// Also when the time is up: it is to run then.
		if err := c.Restart(context.WithoutCancel(ctx), process); err != nil {
			return err
		}
	}
	if c.Running(process) {
		return nil
	}
	return c.Restart(context.WithoutCancel(ctx), process)
}

// maintain has the repository of a cluster at a location maintained again and again until ctx
// ends, beside all that uses it, and kills most of the processes that do.
func (h *harm) maintain(ctx context.Context, c *cluster, location string, random *rand.Rand) error {
	for pause(ctx, between(random, 0, soon)) {
		killed, err := c.maintain(ctx, location, between(random, 0, 2*soon))
		h.mu.Lock()
		switch {
		case killed:
			h.kills[maintenance]++
		case err != nil:
			h.failed++ // the weather is bad, or there is no repository yet
		default:
			h.maintained++
		}
		h.mu.Unlock()
		if !killed {
			continue
		}
		if err := c.freeRepository(context.WithoutCancel(ctx), location); err != nil {
			return err
		}
	}
	return nil
}

// maintain maintains the repository of a cluster at a location, and kills the process if it has not
// ended by then.
func (c *cluster) maintain(ctx context.Context, location string, until time.Duration) (killed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, until)
	defer cancel()
	_, err = c.Run(ctx, c.maintenanceOf(location)...)
	return err != nil && ctx.Err() != nil, err
}

// maintenanceOf are the arguments of the program for the repository of a cluster at a location.
func (c *cluster) maintenanceOf(location string) []string {
	return []string{"repo-maintenance", "--kubeconfig=" + c.KubeconfigOf("holdfast-repo-maintenance"), "--termination-log=" + os.DevNull,
		"--repo-name=" + c.files, "--backup-storage-location=" + location}
}

// freeRepository deletes the Lease that a maintenance had which was killed, so that nobody waits a
// minute for its end. A Job of the cluster may have it instead.
func (c *cluster) freeRepository(ctx context.Context, location string) error {
	namespace := enginev1alpha1.MaintenanceNamespace(labtest.System)
	jobs, err := c.Kube.BatchV1().Jobs(namespace).List(ctx, metav1.ListOptions{})
	if err != nil || slices.ContainsFunc(jobs.Items, func(job batchv1.Job) bool { return len(job.Status.Conditions) == 0 }) {
		return err
	}
	err = c.Kube.CoordinationV1().Leases(namespace).Delete(ctx, enginev1alpha1.RepositoryName(c.files, location), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return err
}
