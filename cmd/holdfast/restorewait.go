// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/blockdevice"
	"github.com/holdfast-io/holdfast/pkg/restorewait"
)

// newRestoreWaitCommand returns the command of a restored pod's init container. It needs no cluster, and logs only
// what it waits for.
func newRestoreWaitCommand() *cobra.Command {
	var (
		dir, terminationLog string
		volumes             []string
		timeout             time.Duration
		device              string
		writable            bool
	)
	command := &cobra.Command{
		Use:   restorewait.Command,
		Short: "Wait until the volumes of a restored pod are complete",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if len(volumes) == 0 || timeout <= 0 {
				return errors.New("--volume must name a volume, and --timeout be more than nothing")
			}
			waiting := restorewait.Waiting{Dir: dir, Volumes: volumes, Timeout: timeout, Clock: clock.RealClock{}, Out: os.Stderr}
			err := serveDevice(command.Context(), dir, device, writable, waiting.Wait)
			if err != nil {
				// For the pod's status. The file may be missing.
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
	flags.StringVar(&device, "device", "", "Path of a block device that agents use meanwhile, by a socket in --dir. Default: none.")
	flags.BoolVar(&writable, "writable", false, "Let agents write to --device.")
	flags.StringVar(&dir, "dir", restorewait.Dir, "Folder with the agent's results of the volumes.")
	flags.StringVar(&terminationLog, "termination-log", "/dev/termination-log", "File for the message of a failed wait.")
	return command
}

// serveDevice serves a block device, if any, until wait returns.
func serveDevice(ctx context.Context, dir, device string, writable bool, wait func(context.Context) error) error {
	if device == "" {
		return wait(ctx)
	}
	serving, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() {
		defer stop()
		served <- blockdevice.Serve(serving, dir, device, writable)
	}()
	err := wait(serving)
	stop()
	return cmp.Or(<-served, err) // without a server, the wait has no reason of its own
}
