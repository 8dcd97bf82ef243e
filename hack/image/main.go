// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Command image makes the container image of Holdfast out of static programs, one for each
// architecture, without a container engine. The same programs make the same image.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run makes an image as the flags say, and prints its name and digest.
func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	var programs []Program
	flags.Func("program", "ARCHITECTURE=FILE: the program for one architecture of Linux, such as amd64=bin/holdfast; one flag for each", func(value string) error {
		architecture, path, found := strings.Cut(value, "=")
		if !found || architecture == "" || path == "" {
			return errors.New("want ARCHITECTURE=FILE")
		}
		content, err := os.ReadFile(path)
		programs = append(programs, Program{Architecture: architecture, Content: content})
		return err
	})
	image := flags.String("name", "", "name and tag of the image, such as ghcr.io/holdfast-io/holdfast:v1.0.0")
	revision := flags.String("revision", "", "the commit that the programs were built from")
	created := flags.Int64("created", 0, "when the image was made, in seconds since 1970: the time of the commit, so that two builds are equal")
	archive := flags.String("archive", "", "file for the image as an OCI archive, which `ctr images import`, `docker load` and `podman load` read")
	push := flags.Bool("push", false, "push the image to its registry, with the credentials of `docker login`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	tag, err := name.NewTag(*image, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("--name is %q: %w; give one like ghcr.io/holdfast-io/holdfast:v1.0.0", *image, err)
	}
	if *archive == "" && !*push {
		return errors.New("nothing would come of the image: give --archive or --push")
	}
	slices.SortFunc(programs, func(a, b Program) int { return strings.Compare(a.Architecture, b.Architecture) })
	index, err := Build(programs, Labels{Version: tag.TagStr(), Revision: *revision, Created: time.Unix(*created, 0).UTC()})
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	if *archive != "" {
		if err := Save(*archive, tag, index); err != nil {
			return err
		}
	}
	if *push {
		if err := remote.WriteIndex(tag, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("push %s: %w", tag, err)
		}
	}
	_, err = fmt.Fprintf(out, "%s@%s\n", tag, digest)
	return err
}
