// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/hack/lab/csi"
	"github.com/holdfast-io/holdfast/hack/lab/node"
	"github.com/holdfast-io/holdfast/hack/lab/s3"
)

func imageCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "image",
		Short: "Give an image to every node: one that is made of a static program, or an archive",
		Args:  cobra.NoArgs,
	}
	dirPath := dirFlag(c)
	binary := c.Flags().String("binary", "bin/holdfast", "the program, built with CGO_ENABLED=0")
	name := c.Flags().String("name", "ghcr.io/holdfast-io/holdfast:dev", "name and tag of the image")
	archive := c.Flags().String("archive", "", "an archive of images that have names, such as that of make image, instead of a program")
	c.RunE = func(c *cobra.Command, _ []string) error {
		dir, unlock, err := openLocked(c.Context(), *dirPath)
		if err != nil {
			return err
		}
		defer unlock()
		if *archive != "" {
			if err := node.Import(c.Context(), dir, *archive); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "every node has the images in %s\n", *archive)
			return nil
		}
		if err := node.ImportProgram(c.Context(), dir, *binary, *name); err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "every node has %s\n", *name)
		return nil
	}
	return c
}

func csiCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "csi",
		Short: "Run a CSI driver for the nodes of a lab",
		Args:  cobra.NoArgs,
	}
	up := &cobra.Command{
		Use:   "up",
		Short: "Build and start the driver, anew when it runs already; it goes with the lab",
		Args:  cobra.NoArgs,
	}
	dirPath := dirFlag(up)
	source := sourceFlag(up)
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
		if err := csi.Up(c.Context(), dir); err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "every node has the driver %s\n", csi.Driver)
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
