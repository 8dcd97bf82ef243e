// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package soak lets two clusters back up into one store, under the same names,
// while their processes are killed and paused and the network to the store is bad,
// at random and for as long as a flag says. In the second half an attacker with the writer's keys
// deletes and overwrites the objects of a locked bucket. Then each store must be whole, and the
// locked one as of before the attack: nothing that was shown as stored may be missing, or another
// cluster's. Nothing may have run twice, and restores must have told the truth. `make soak` runs it for
// long, `make test` for seconds.
package soak

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

var (
	duration = flag.Duration("soak.duration", 20*time.Second, "how long the bad time lasts at least")
	kills    = flag.Int("soak.kills", 2, "how often each role is killed at least, in both clusters together")
)

// long reports whether the campaign is one of minutes, and no test of many.
func long() bool { return *duration >= time.Minute }

// slots is how many backups may run at once in a cluster.
const slots = 6

var labs []*labtest.Lab

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(labtest.MainOf(m, 2, labtest.Options{
		Root:           "../..",
		APIServerFlags: "--backupstore-poll-interval=2s",
		// Two controllers, of which one works.
		ControllerFlags: "--concurrent-backups=6 --run-retention=2s",
	}, func(started []*labtest.Lab) { labs = started }))
}
