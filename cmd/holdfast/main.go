// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Command holdfast backs up Kubernetes: one binary, a role per subcommand.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	genericapiserver "k8s.io/apiserver/pkg/server"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	"k8s.io/component-base/version/verflag"
	"k8s.io/klog/v2"
)

func main() {
	if err := newCommand().ExecuteContext(genericapiserver.SetupSignalContext()); err != nil {
		fmt.Fprintln(os.Stderr, "holdfast:", err)
		logs.FlushLogs()
		os.Exit(1)
	}
	logs.FlushLogs()
}

func newCommand() *cobra.Command {
	command := &cobra.Command{
		Use:           "holdfast",
		Short:         "Holdfast backs up Kubernetes: objects and volume data, into object storage",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	command.AddCommand(newAPIServerCommand(), newControllerCommand(), newNodeAgentCommand())
	return command
}

// role makes the command of a role: logging and version flags, then its own.
func role(command *cobra.Command) *cobra.Command {
	config := logsapi.NewLoggingConfiguration()
	logsapi.AddFlags(config, command.Flags())
	verflag.AddFlags(command.Flags())
	command.Flags().SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	command.Args = cobra.NoArgs
	run := command.RunE
	command.RunE = func(command *cobra.Command, args []string) error {
		verflag.PrintAndExitIfRequested()
		if err := logsapi.ValidateAndApply(config, nil); err != nil {
			return err
		}
		command.SetContext(klog.NewContext(command.Context(), klog.Background().WithName(command.Name())))
		return run(command, args)
	}
	return command
}
