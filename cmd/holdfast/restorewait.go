// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/restorewait"
)

// newRestoreWaitCommand returns the command of a restored pod's init container. It needs no
// cluster, and logs only what it waits for.
func newRestoreWaitCommand() *cobra.Command {
	var (
		dir, terminationLog string
		volumes             []string
		timeout             time.Duration
	)
	command := &cobra.Command{
		Use:   restorewait.Command,
		Short: "Wait until the volumes of a restored pod are complete",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if len(volumes) == 0 || timeout <= 0 {
				return errors.New("--volume must name a volume, and --timeout be more than nothing")
			}
			err := restorewait.Waiting{Dir: dir, Volumes: volumes, Timeout: timeout, Clock: clock.RealClock{}, Out: os.Stderr}.Wait(command.Context())
			if err != nil {
				// Shown in the pod's status. The file may be missing.
				if file, failed := os.OpenFile(terminationLog, os.O_WRONLY|os.O_TRUNC, 0); failed == nil {
					fmt.Fprintln(file, err)
					file.Close()
				}
			}
			return err
		},
	}
	flags := command.Flags()
	flags.StringArrayVar(&volumes, "volume", nil, "Name of a volume of the pod to wait for. May be repeated.")
	flags.DurationVar(&timeout, "timeout", restorewait.DefaultTimeout, "Maximum time to wait.")
	flags.StringVar(&dir, "dir", restorewait.Dir, "Folder with the agent's results of the volumes.")
	flags.StringVar(&terminationLog, "termination-log", "/dev/termination-log", "File for the message of a failed wait.")
	return command
}
