// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorewait

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"k8s.io/utils/clock"
)

const (
	// DefaultTimeout is a pod's default wait: its volumes may be the last of many, and the restore
	// reports failures. A pod that is not restarted fails for good.
	DefaultTimeout = 48 * time.Hour
	// lookInterval is the poll interval, sayInterval the least time between outputs.
	lookInterval = 200 * time.Millisecond
	sayInterval  = time.Second
)

// Waiting is a pod's wait for its volumes.
type Waiting struct {
	// Dir is the folder of the messages.
	Dir     string
	Volumes []string
	Timeout time.Duration
	Clock   clock.Clock
	// Out gets what is waited for, when it changes.
	Out io.Writer
}

// Wait returns when all volumes are complete. The error names an incomplete one, and why.
func (w Waiting) Wait(ctx context.Context) error {
	begin := w.Clock.Now()
	said, saidAt := "", time.Time{}
	for {
		missing, err := w.look()
		if err != nil || len(missing) == 0 {
			return err
		}
		now := w.Clock.Now()
		text := strings.Join(missing, ", ")
		if text != said && now.Sub(saidAt) >= sayInterval {
			said, saidAt = text, now
			fmt.Fprintln(w.Out, "waiting for the restore of volumes:", text)
		}
		if now.Sub(begin) >= w.Timeout {
			return fmt.Errorf("gave up after %s: these volumes were not restored: %s", w.Timeout, text)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("was told to stop, and these volumes were not restored yet: %s", text)
		case <-w.Clock.After(lookInterval):
		}
	}
}

func (w Waiting) look() (missing []string, err error) {
	root, err := os.OpenRoot(w.Dir)
	if err != nil {
		return nil, fmt.Errorf("the folder in which the agent says what became of the volumes: %w", err)
	}
	defer root.Close()
	for _, volume := range w.Volumes {
		said := read(root, volume)
		if why, isFailed := strings.CutPrefix(said, failed); isFailed {
			return nil, fmt.Errorf("volume %s could not be restored: %s", volume, why)
		}
		if said != complete {
			missing = append(missing, volume)
		}
	}
	return missing, nil
}
