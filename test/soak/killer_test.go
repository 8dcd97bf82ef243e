// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

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
}

func (h *harm) count(of map[string]int, role string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	of[roleOf(role)]++
}

// roleOf is apiserver, controller or agent.
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
	return true
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
	return fmt.Sprintf("kills: %s; pauses: %s; ended after a pause: %s", describe(h.kills), describe(h.pauses), describe(h.deaths))
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
