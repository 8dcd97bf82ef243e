// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/pkg/apiserver"
)

func newAPIServerCommand() *cobra.Command {
	options := apiserver.NewOptions()
	command := &cobra.Command{
		Use:   "apiserver",
		Short: "Serve holdfast.io: backups, the queue, volumes and their history",
		RunE: func(command *cobra.Command, _ []string) error {
			if err := options.Validate(); err != nil {
				return err
			}
			if os.Getenv("GOGC") == "" {
				debug.SetGCPercent(apiserver.GCPercent)
			}
			config, err := options.Config()
			if err != nil {
				return err
			}
			completed, err := config.Complete()
			if err != nil {
				return err
			}
			server, err := completed.New()
			if err != nil {
				return err
			}
			return server.Run(command.Context())
		},
	}
	options.AddFlags(command.Flags())
	return role(command)
}
