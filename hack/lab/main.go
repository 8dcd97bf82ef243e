// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Command lab gives people and tests a real Kubernetes on this machine: etcd
// and the control plane from Go modules, on loopback, as any user; and as
// root also nodes that run containers. See README.md beside it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "lab",
		Short:         "A real Kubernetes on this machine, for people and tests",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(buildCommand(), upCommand(), downCommand(), statusCommand(), holdfastCommand(), imageCommand(), registryCommand(), s3Command(), csiCommand())
	return root
}
