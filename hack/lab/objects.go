// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/hack/lab/csi"
	"github.com/holdfast-io/holdfast/hack/lab/node"
	"github.com/holdfast-io/holdfast/hack/lab/registry"
	"github.com/holdfast-io/holdfast/hack/lab/s3"
	"github.com/holdfast-io/holdfast/hack/lab/workdir"
)

func imageCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "image",
		Short: "Give an image that is made of a static program to the registry of the nodes",
		Args:  cobra.NoArgs,
	}
	dirPath := dirFlag(c)
	binary := c.Flags().String("binary", "bin/holdfast", "the program, built with CGO_ENABLED=0")
	name := c.Flags().String("name", "ghcr.io/holdfast-io/holdfast:dev", "name and tag of the image")
	c.RunE = func(c *cobra.Command, _ []string) error {
		dir, unlock, err := openLocked(c.Context(), *dirPath)
		if err != nil {
			return err
		}
		defer unlock()
		if err := node.PushProgram(c.Context(), dir, *binary, *name); err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "the nodes can pull %s\n", *name)
		return nil
	}
	return c
}

// registryCommand is for those who push images by other means.
func registryCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "registry",
		Short: "Print the address of the registry that the nodes pull all images from, whatever their names",
		Args:  cobra.NoArgs,
	}
	dirPath := dirFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		dir, err := workdir.Open(*dirPath)
		if err != nil {
			return err
		}
		address, err := node.Registry(dir)
		if err != nil {
			return err
		}
		fmt.Fprintln(c.OutOrStdout(), address)
		return nil
	}
	serve := &cobra.Command{
		Use:    registry.ServeCommand,
		Short:  "Serve the registry, until it is stopped",
		Args:   cobra.NoArgs,
		Hidden: true,
	}
	address := serve.Flags().String("port", "", "address and port to listen on")
	serve.RunE = func(c *cobra.Command, _ []string) error { return registry.Serve(c.Context(), *address) }
	c.AddCommand(serve)
	return c
}

func csiCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "csi",
		Short: "Run a CSI driver, for the nodes of a lab or for snapshots",
		Args:  cobra.NoArgs,
	}
	up := &cobra.Command{
		Use:   "up",
		Short: "Build and start the driver, anew when it runs already; it goes with the lab",
		Args:  cobra.NoArgs,
	}
	dirPath := dirFlag(up)
	source := sourceFlag(up)
	snapshots := up.Flags().Bool("snapshots", false, "also build and start snapshot-controller, csi-snapshotter and csi-provisioner, so that claims and VolumeSnapshots get what they ask for")
	qps := up.Flags().Int("qps", 50, "requests of each of these to the API server in a second; their own default is 5")
	up.RunE = func(c *cobra.Command, _ []string) error {
		dir, unlock, err := openLocked(c.Context(), *dirPath)
		if err != nil {
			return err
		}
		defer unlock()
		state, err := dir.Running()
		if err != nil {
			return err
		}
		b, err := builder(c, state.Bin, *source)
		if err != nil {
			return err
		}
		if err := b.CSI(c.Context()); err != nil {
			return err
		}
		var with *csi.Snapshots
		if *snapshots {
			if err := b.Sidecars(c.Context()); err != nil {
				return err
			}
			with = &csi.Snapshots{Builder: b, QPS: *qps}
		}
		if err := csi.Up(c.Context(), dir, with); err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "every node has the driver %s; what it makes is in %s\n", csi.Driver, csi.Folder(dir))
		return nil
	}
	c.AddCommand(up)
	return c
}

func s3Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "s3",
		Short: "Run an S3 server in a lab",
		Args:  cobra.NoArgs,
	}
	c.AddCommand(s3UpCommand(), s3DownCommand())
	return c
}

func s3UpCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "up",
		Short: "Build and start the server, and say where it and its keys are; does nothing when it runs already",
		Args:  cobra.NoArgs,
	}
	dirPath := dirFlag(c)
	source := sourceFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		dir, unlock, err := openLocked(c.Context(), *dirPath)
		if err != nil {
			return err
		}
		defer unlock()
		state, err := dir.Running()
		if err != nil {
			return err
		}
		b, err := builder(c, state.Bin, *source)
		if err != nil {
			return err
		}
		if err := b.S3(c.Context()); err != nil {
			return err
		}
		server, err := s3.Up(c.Context(), dir)
		if err != nil {
			return err
		}
		out := c.OutOrStdout()
		fmt.Fprintf(out, "endpoint    %s\n", server.Endpoint)
		fmt.Fprintf(out, "credentials %s\n", server.Credentials)
		fmt.Fprintf(out, "buckets     %s\n", server.Buckets)
		return nil
	}
	return c
}

func s3DownCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "down",
		Short: "Stop the S3 server; its buckets stay until the lab goes",
		Args:  cobra.NoArgs,
	}
	dirPath := dirFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		dir, unlock, err := openLocked(c.Context(), *dirPath)
		if err != nil {
			return err
		}
		defer unlock()
		return s3.Down(c.Context(), dir)
	}
	return c
}
