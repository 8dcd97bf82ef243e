// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const queuePause = 250 * time.Millisecond

func (t *tool) queueCommand() *cobra.Command {
	var o output
	var watching bool
	command := &cobra.Command{
		Use: "queue", Short: "Show what runs, what waits, and for what",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if !watching {
				return t.get(command.Context(), "backupqueues", nil, o)
			}
			if o.format != "" && o.format != "wide" {
				return usage("--watch shows a table: leave out --output, or use kubectl get backupqueue --watch")
			}
			return t.watchQueue(command.Context(), o)
		},
	}
	o.addTo(command, true)
	command.Flags().BoolVarP(&watching, "watch", "w", false, "Show each change, in place on a terminal.")
	return command
}

func (t *tool) watchQueue(ctx context.Context, o output) error {
	client, namespace, err := t.client()
	if err != nil {
		return err
	}
	if o.allNamespaces {
		namespace = metav1.NamespaceAll
	}
	queue := client.HoldfastV1alpha1().BackupQueueEntries(namespace)
	inPlace := isTerminal(t.Out)
	for ctx.Err() == nil {
		list, err := queue.List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return stopped(ctx, err)
		}
		changes, err := queue.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		if err != nil {
			return stopped(ctx, err)
		}
		for open := true; open && ctx.Err() == nil; {
			if err := t.picture(ctx, inPlace, o); err != nil {
				changes.Stop()
				return stopped(ctx, err)
			}
			select {
			case <-ctx.Done():
			case _, open = <-changes.ResultChan():
				for timer := time.After(queuePause); open; {
					select {
					case _, open = <-changes.ResultChan():
						continue
					case <-timer:
					case <-ctx.Done():
					}
					break
				}
			}
		}
		changes.Stop()
	}
	return nil
}

func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (t *tool) picture(ctx context.Context, inPlace bool, o output) error {
	var text bytes.Buffer
	inner := *t
	inner.Out, inner.ErrOut = &text, &text
	if err := inner.get(ctx, "backupqueues", nil, o); err != nil {
		return err
	}
	shown := strings.TrimRight(text.String(), "\n")
	if inPlace {
		fmt.Fprint(t.Out, "\x1b[H\x1b[2J")
		shown = fit(t.Out, shown)
	}
	fmt.Fprintf(t.Out, "%s\n%s\n", time.Now().Format(time.DateTime), shown)
	return nil
}

func (t *tool) topCommand() *cobra.Command {
	var o output
	command := &cobra.Command{
		Use: "top", Short: "Show each node's agent: places, what runs and waits, throughput",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			client, _, err := t.client()
			if err != nil {
				return err
			}
			return t.getFrom(command.Context(), client.HoldfastV1alpha1().RESTClient(), metav1.NamespaceAll, "nodeagents", nil, o)
		},
	}
	o.addTo(command, false)
	return command
}

func (t *tool) versionCommand() *cobra.Command {
	var clientOnly bool
	command := &cobra.Command{
		Use: "version", Short: "Print the versions of this command and of the agents",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			fmt.Fprintln(t.Out, "Client:", t.version)
			if clientOnly {
				return nil
			}
			client, _, err := t.client()
			if err != nil {
				return err
			}
			agents, err := client.HoldfastV1alpha1().NodeAgents().List(command.Context(), metav1.ListOptions{})
			if apierrors.IsForbidden(err) { // a tenant may not list them
				fmt.Fprintln(t.Out, "Agents: not known: you may not list nodeagents")
				return nil
			}
			if err != nil {
				return err
			}
			counts := map[string]int{}
			for _, agent := range agents.Items {
				counts[agent.Status.Version]++
			}
			for _, version := range slices.Sorted(maps.Keys(counts)) {
				fmt.Fprintf(t.Out, "Agents: %s (%d)\n", version, counts[version])
			}
			return nil
		},
	}
	command.Flags().BoolVar(&clientOnly, "client", false, "Print the version of this command only.")
	return command
}
