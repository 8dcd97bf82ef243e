// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-holdfast is the kubectl plugin: kubectl holdfast.
package main

import (
	"context"
	"os"
	"os/signal"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // Auth plugins of clouds and OIDC, as in kubectl.

	"github.com/holdfast-io/holdfast/pkg/cli"
)

var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := cli.Run(ctx, version, os.Args[1:], genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	stop()
	os.Exit(code)
}
