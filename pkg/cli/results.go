// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/pkg/format"
)

func (t *tool) resultsCommand(resource string) *cobra.Command {
	var output string
	command := t.named(resource, "results", "Print the errors and warnings", func(ctx context.Context, name string) error {
		switch output {
		case "json":
			return t.stream(ctx, resource, name, "results", nil, t.Out)
		case "":
		default:
			return usage("--output %q: want json", output)
		}
		results, err := t.results(ctx, resource, name)
		if err != nil {
			return err
		}
		if results.Errors.Count()+results.Warnings.Count() == 0 {
			fmt.Fprintln(t.Out, "No errors and no warnings.")
			return nil
		}
		printMessages(t.Out, "Errors", results.Errors, -1)
		printMessages(t.Out, "Warnings", results.Warnings, -1)
		return nil
	})
	command.Flags().StringVarP(&output, "output", "o", "", "Output format: json. Default: text.")
	return command
}

func (t *tool) results(ctx context.Context, resource, name string) (format.Results, error) {
	var answer bytes.Buffer
	if err := t.stream(ctx, resource, name, "results", nil, &answer); err != nil {
		return format.Results{}, err
	}
	results := format.Results{}
	if err := json.Unmarshal(answer.Bytes(), &results); err != nil {
		return results, fmt.Errorf("the results of %s can't be read: %w", name, err)
	}
	return results, nil
}

// printMessages prints at most limit messages by namespace; all if negative.
func printMessages(to io.Writer, title string, messages format.Messages, limit int) {
	count := messages.Count()
	if count == 0 {
		return
	}
	fmt.Fprintf(to, "%s (%d):\n", title, count)
	print := func(where string, texts []string) {
		for _, text := range texts {
			if limit == 0 {
				return
			}
			limit--
			fmt.Fprintf(to, "  %s%s\n", where, text)
		}
	}
	print("", messages.Velero)
	print("cluster: ", messages.Cluster)
	for _, namespace := range slices.Sorted(maps.Keys(messages.Namespaces)) {
		print(namespace+": ", messages.Namespaces[namespace])
	}
	if limit == 0 {
		fmt.Fprintln(to, "  All of them: the command results.")
	}
}
