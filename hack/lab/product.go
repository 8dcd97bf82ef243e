// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/hack/lab/holdfast"
	"github.com/holdfast-io/holdfast/hack/lab/jobs"
	"github.com/holdfast-io/holdfast/hack/lab/workdir"
)

func holdfastCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "holdfast",
		Short: "Run Holdfast in a lab",
		Args:  cobra.NoArgs,
	}
	c.AddCommand(holdfastUpCommand(), holdfastDownCommand(), holdfastRestartCommand(), holdfastJobsCommand())
	return c
}

func holdfastUpCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "up",
		Short: "Register and start Holdfast's API server, controller and agents; what runs of them is stopped first",
		Args:  cobra.NoArgs,
	}
	dirPath := dirFlag(c)
	binary := c.Flags().String("holdfast", "bin/holdfast", "the holdfast program")
	artifacts := c.Flags().String("artifacts", "artifacts", "folder of the manifests")
	apiserver := c.Flags().String("apiserver-flags", "", "more flags for the API server, separated by spaces")
	controller := c.Flags().String("controller-flags", "", "more flags for the controller, separated by spaces")
	agent := c.Flags().String("agent-flags", "", "more flags for each agent, separated by spaces")
	agents := c.Flags().Int("agents", 1, "number of agents, each for a Node object of its own; with real nodes, each of them has one")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *agents < 0 {
			return fmt.Errorf("--agents is %d; give 0 or more", *agents)
		}
		dir, unlock, err := openLocked(c.Context(), *dirPath)
		if err != nil {
			return err
		}
		defer unlock()
		config := holdfast.Config{
			Dir:             dir,
			APIServerFlags:  strings.Fields(*apiserver),
			ControllerFlags: strings.Fields(*controller),
			AgentFlags:      strings.Fields(*agent),
			Agents:          *agents,
		}
		if config.Binary, err = filepath.Abs(*binary); err != nil {
			return err
		}
		if config.Artifacts, err = filepath.Abs(*artifacts); err != nil {
			return err
		}
		own, err := os.Executable()
		if err != nil {
			return err
		}
		config.JobRunner = []string{own, "holdfast", jobsUse, "--dir", string(dir), "--holdfast", config.Binary}
		out := c.OutOrStdout()
		fmt.Fprintf(out, "starting holdfast in %s\n", dir)
		start := time.Now()
		if err := holdfast.Up(c.Context(), config); err != nil {
			// Also after an interrupt, which has ended the command's context.
			return errors.Join(err, holdfast.Down(context.WithoutCancel(c.Context()), dir))
		}
		fmt.Fprintf(out, "ready in %.1f s\n", time.Since(start).Seconds())
		fmt.Fprintf(out, "store       %s\n", dir.Path("store"))
		fmt.Fprintf(out, "pod volumes %s\n", dir.Path("pods"))
		return status(c, dir)
	}
	return c
}

func holdfastDownCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "down",
		Short: "Stop Holdfast and unregister its API; records and stores stay",
		Args:  cobra.NoArgs,
	}
	dirPath := dirFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		dir, unlock, err := openLocked(c.Context(), *dirPath)
		if err != nil {
			return err
		}
		defer unlock()
		return holdfast.Down(c.Context(), dir)
	}
	return c
}

func holdfastRestartCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "restart {apiserver|controller|jobs|agent-N}",
		Short: "End one process of Holdfast and start it again with the same arguments",
		Args:  cobra.ExactArgs(1),
	}
	dirPath := dirFlag(c)
	kill := c.Flags().Bool("kill", false, "end it with SIGKILL instead of SIGTERM")
	c.RunE = func(c *cobra.Command, args []string) error {
		dir, unlock, err := openLocked(c.Context(), *dirPath)
		if err != nil {
			return err
		}
		defer unlock()
		return holdfast.Restart(c.Context(), dir, args[0], *kill)
	}
	return c
}

const jobsUse = "run-jobs"

// holdfastJobsCommand is what `lab holdfast up` starts in a lab without nodes.
func holdfastJobsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:    jobsUse,
		Short:  "Run the pods of maintenance Jobs as processes, until it is stopped",
		Args:   cobra.NoArgs,
		Hidden: true,
	}
	dirPath := dirFlag(c)
	binary := c.Flags().String("holdfast", "bin/holdfast", "the holdfast program")
	c.RunE = func(c *cobra.Command, _ []string) error {
		dir, err := workdir.Open(*dirPath)
		if err != nil {
			return err
		}
		return (&jobs.Runner{Dir: dir, Binary: *binary, Log: c.OutOrStdout()}).Run(c.Context())
	}
	return c
}
