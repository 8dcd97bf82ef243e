// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/hack/lab/binaries"
	"github.com/holdfast-io/holdfast/hack/lab/controlplane"
	"github.com/holdfast-io/holdfast/hack/lab/csi"
	"github.com/holdfast-io/holdfast/hack/lab/holdfast"
	"github.com/holdfast-io/holdfast/hack/lab/kubectl"
	"github.com/holdfast-io/holdfast/hack/lab/node"
	"github.com/holdfast-io/holdfast/hack/lab/process"
	"github.com/holdfast-io/holdfast/hack/lab/s3"
	"github.com/holdfast-io/holdfast/hack/lab/workdir"
)

const loopback = "127.0.0.1"

// dirFlag is the lab's folder, which every command but build has.
func dirFlag(c *cobra.Command) *string {
	return c.Flags().String("dir", ".lab", "folder of the lab; everything that it writes is in there")
}

// sourceFlag is for commands that build.
func sourceFlag(c *cobra.Command) *string {
	return c.Flags().String("source", "", "folder of the lab's Go module (default: hack/lab of the repository that this is run in)")
}

func buildCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "build",
		Short: "Build etcd, the Kubernetes programs, kubectl and the S3 server from Go modules",
		Args:  cobra.NoArgs,
	}
	bin := c.Flags().String("bin", ".lab/bin", "folder for the programs")
	kubernetes := c.Flags().String("kubernetes", "", "version of Kubernetes, of those that hack/lab has a module's file for (default: the newest)")
	snapshots := c.Flags().Bool("snapshots", false, "build the CSI driver and the sidecars of lab csi up --snapshots, and nothing else")
	source := sourceFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		b, err := builder(c, *bin, *source)
		if err != nil {
			return err
		}
		if *snapshots {
			if err := b.CSI(c.Context()); err != nil {
				return err
			}
			return b.Sidecars(c.Context())
		}
		b.Kubernetes = *kubernetes
		return b.All(c.Context())
	}
	return c
}

func builder(c *cobra.Command, bin, source string) (binaries.Builder, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return binaries.Builder{}, err
	}
	if source == "" {
		if source, err = binaries.FindSource(); err != nil {
			return binaries.Builder{}, err
		}
	}
	return binaries.Builder{Source: source, Bin: bin, Out: c.OutOrStdout()}, nil
}

func upCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "up",
		Short: "Start a control plane; does nothing when it runs already",
		Args:  cobra.NoArgs,
	}
	dirPath := dirFlag(c)
	binPath := c.Flags().String("bin", ".lab/bin", "folder of the programs that lab build made")
	nodeCount := c.Flags().Int("nodes", 0, "real nodes, which run containers; needs root")
	routing := c.Flags().Bool("aggregator-routing", true, "with nodes: kube-apiserver sends aggregated requests straight to the endpoints of a Service, and not to its ClusterIP")
	auditObjects := c.Flags().Bool("audit-objects", false, "write what was written of the queue's records to the audit log, beside that it was")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *nodeCount < 0 || *nodeCount > node.Max {
			return fmt.Errorf("--nodes is %d; give 0 to %d", *nodeCount, node.Max)
		}
		dir, unlock, err := openLocked(c.Context(), *dirPath)
		if err != nil {
			return err
		}
		defer unlock()
		bin, err := filepath.Abs(*binPath)
		if err != nil {
			return err
		}
		out := c.OutOrStdout()
		running, err := controlplane.Running(dir)
		if err != nil {
			return err
		}
		if running {
			state, err := dir.State()
			if err != nil {
				return err
			}
			if len(state.Nodes) != *nodeCount {
				return fmt.Errorf("the lab in %s is up with %d nodes, not %d; stop it first with `lab down --dir %s`", dir, len(state.Nodes), *nodeCount, dir)
			}
			fmt.Fprintf(out, "the lab in %s is up already\n", dir)
			return status(c, dir)
		}
		// What a crash left.
		if err := down(c.Context(), dir); err != nil {
			return err
		}
		start := time.Now()
		if err := up(c.Context(), dir, bin, *nodeCount, *auditObjects, *routing, func(line string) { fmt.Fprintln(out, line) }); err != nil {
			// Also after an interrupt, which has ended the command's context.
			return errors.Join(err, down(context.WithoutCancel(c.Context()), dir))
		}
		fmt.Fprintf(out, "ready in %.1f s\n", time.Since(start).Seconds())
		return status(c, dir)
	}
	return c
}

func up(ctx context.Context, dir workdir.Dir, bin string, nodeCount int, auditObjects, routing bool, say func(string)) error {
	if err := binaries.Missing(bin, append([]string{"pause"}, binaries.Programs...)...); err != nil {
		return err
	}
	if err := dir.ClearLogs(); err != nil {
		return err
	}
	config := controlplane.Config{Dir: dir, Bin: bin, Address: loopback, Nodes: node.Names(nodeCount), AuditObjects: auditObjects, AggregatorRouting: routing}
	if nodeCount > 0 {
		config.Address = node.Address
		if err := node.Possible(dir, config.Nodes); err != nil {
			return err
		}
		// So that down knows what to undo, whatever happens from here.
		if err := dir.Save(workdir.State{Bin: bin, Address: config.Address, Nodes: config.Nodes}); err != nil {
			return err
		}
		if err := node.Prepare(ctx, dir, config.Nodes, say); err != nil {
			return err
		}
	}
	say(fmt.Sprintf("starting etcd and Kubernetes in %s", dir))
	if err := controlplane.Up(ctx, config); err != nil {
		return err
	}
	if nodeCount > 0 {
		if err := node.Up(ctx, dir, say); err != nil {
			return err
		}
	}
	state, err := dir.Running()
	if err != nil {
		return err
	}
	// Without it no pod can be created, and the controller that makes it may
	// have answered before it did.
	_, err = kubectl.New(dir, state).Run(ctx, "wait", "--for=create", "--timeout=60s", "--namespace=default", "serviceaccount/default")
	return err
}

// down works on any wreck, and does nothing where no lab is. The order is from
// those who use to those who are used; the folder is cleared last, and only if
// nothing failed: a mount of a node may be in it.
func down(ctx context.Context, dir workdir.Dir) error {
	for _, step := range []func(context.Context, workdir.Dir) error{holdfast.Stop, s3.Down, controlplane.Stop, csi.Detach, node.Down, csi.Down} {
		if err := step(ctx, dir); err != nil {
			return err
		}
	}
	return dir.Clear()
}

func downCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "down",
		Short: "Stop all that runs in a lab and remove its data, not its logs and programs",
		Args:  cobra.NoArgs,
	}
	dirPath := dirFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		dir, err := workdir.Open(*dirPath)
		if err != nil {
			return err
		}
		if _, err := dir.State(); errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(c.OutOrStdout(), "no lab in %s\n", dir)
			return nil
		}
		unlock, err := dir.Lock(c.Context())
		if err != nil {
			return err
		}
		defer unlock()
		if err := down(c.Context(), dir); err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "the lab in %s is down; its logs stay in %s\n", dir, dir.Path("logs"))
		return nil
	}
	return c
}

func statusCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Say what runs, where it listens, and where the kubeconfig is",
		Args:  cobra.NoArgs,
	}
	dirPath := dirFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		dir, err := workdir.Open(*dirPath)
		if err != nil {
			return err
		}
		return status(c, dir)
	}
	return c
}

func status(c *cobra.Command, dir workdir.Dir) error {
	out := c.OutOrStdout()
	state, err := dir.State()
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(out, "no lab in %s\n", dir)
		return nil
	}
	if err != nil {
		return err
	}
	all, err := process.List(dir.Run())
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, p := range all {
		how := "running"
		if !p.Running() {
			how = "ended"
		}
		fmt.Fprintf(w, "%s\t%s\tpid %d\t%s\t%s\n", p.Name, how, p.PID, p.Address(), p.Log)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "server      %s\n", state.Server)
	fmt.Fprintf(out, "kubectl     %s\n", filepath.Join(state.Bin, "kubectl"))
	fmt.Fprintf(out, "kubeconfig  %s\n", dir.Kubeconfig())
	return nil
}

// openLocked opens the folder and keeps other lab commands out of it.
func openLocked(ctx context.Context, path string) (workdir.Dir, func(), error) {
	dir, err := workdir.Open(path)
	if err != nil {
		return "", nil, err
	}
	unlock, err := dir.Lock(ctx)
	return dir, unlock, err
}
