// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	holdfastclientset "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned"
)

// newCheckCommand returns the command of `helm test`: it succeeds when the API serves backups to an ordinary
// client.
func newCheckCommand() *cobra.Command {
	var client clientOptions
	var timeout time.Duration
	command := &cobra.Command{
		Use:   "check",
		Short: "Wait until the cluster's API serves backups, and end",
		RunE: func(command *cobra.Command, _ []string) error {
			if err := client.validate(); err != nil {
				return err
			}
			config, err := client.config("check")
			if err != nil {
				return err
			}
			config.Timeout = 10 * time.Second // of each attempt
			holdfast, err := holdfastclientset.NewForConfig(config)
			if err != nil {
				return err
			}
			return check(command.Context(), holdfast, client.namespace, timeout, command.OutOrStdout())
		},
	}
	client.addFlags(command.Flags())
	command.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "Maximum time to wait.")
	return role(command)
}

// check lists a namespace's backups until that succeeds, and prints their number.
func check(ctx context.Context, holdfast holdfastclientset.Interface, namespace string, timeout time.Duration, out io.Writer) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, time.Second, timeout, true, func(ctx context.Context) (bool, error) {
		backups, err := holdfast.HoldfastV1alpha1().Backups(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			if ctx.Err() == nil { // else it is about the end of the time
				last = err
			}
			return false, nil
		}
		fmt.Fprintf(out, "the API serves holdfast.io: %d backups in %s\n", len(backups.Items), namespace)
		return true, nil
	})
	if err == nil {
		return nil
	}
	return fmt.Errorf("the API did not list the backups of %s within %s: %w; see kubectl get apiservice v1alpha1.holdfast.io -o yaml, and the logs of the API server's pods", namespace, timeout, errors.Join(last, err))
}
