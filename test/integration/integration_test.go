// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package integration tests Holdfast as a whole, in a lab: its API server, its
// controller and an agent, with kubectl and with the clients that users have.
//
// Tests that stop processes or fill the queue come one after another; those that
// call t.Parallel follow when all of them have ended, side by side.
package integration

import (
	"fmt"
	"os"
	"testing"

	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// slots is how many backups may run at once.
const slots = 2

var lab *labtest.Lab

func TestMain(m *testing.M) {
	if os.Getenv(informersVariable) != "" {
		runInformers()
		return
	}
	os.Exit(labtest.Main(m, labtest.Options{
		Root:           "../..",
		APIServerFlags: fmt.Sprintf("--backupstore-poll-interval=1s --waiting-backups-per-namespace=%d", waitingPerNamespace),
		// The record of a backup goes soon, so that tests see it pass to the store.
		ControllerFlags: "--concurrent-backups=2 --run-retention=2s",
	}, func(l *labtest.Lab) { lab = l }))
}
