// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Command holdfast backs up Kubernetes: one binary, a role per subcommand.
package main

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
	genericapiserver "k8s.io/apiserver/pkg/server"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	"k8s.io/klog/v2"
)

// version is set by the linker. It must not be component-base's, which the API server's library takes for
// Kubernetes's version, and selects feature gates by.
var version = "unknown"

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
		Version:       version,
	}
	command.AddCommand(newAPIServerCommand(), newControllerCommand(), newNodeAgentCommand(), newRepoMaintenanceCommand(), newRepoKeyCommand(), newRepoCommand(), newLeftoversCommand(), newRestoreWaitCommand(), newCheckCommand())
	return command
}

func role(command *cobra.Command) *cobra.Command {
	config := logsapi.NewLoggingConfiguration()
	logsapi.AddFlags(config, command.Flags())
	command.Flags().SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	command.Args = cobra.NoArgs
	run := command.RunE
	command.RunE = func(command *cobra.Command, args []string) error {
		if err := logsapi.ValidateAndApply(config, nil); err != nil {
			return err
		}
		if memory, err := memoryLimit("", cgroups); err == nil && memory > 0 {
			debug.SetMemoryLimit(memory) // a role's flag may change it
		}
		command.SetContext(klog.NewContext(command.Context(), klog.Background().WithName(command.Name())))
		return run(command, args)
	}
	return command
}
