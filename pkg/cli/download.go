// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-io/holdfast/pkg/manifest"
)

func (t *tool) downloadCommand() *cobra.Command {
	output, of := "yaml", ""
	command := &cobra.Command{
		Use: "download NAME KIND[/OBJECT]...", Short: "Print objects of a backup as they are stored",
		Long: "Print objects of a backup as they are stored, to look at them or to apply them. A Secret needs the right to get it.",
		Example: "  # One object\n  kubectl holdfast backup download before-upgrade deployment/web -n shop\n" +
			"  # All ConfigMaps of one of the backup's namespaces\n  kubectl holdfast backup download weekly configmaps --object-namespace shop -n holdfast",
		ValidArgsFunction: t.completeNames(backups),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage("want the name of a backup, and at least one KIND or KIND/OBJECT")
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			if output != "yaml" && output != "json" {
				return usage("--output %q: want yaml or json", output)
			}
			for _, wanted := range args[1:] {
				kind, name, single := strings.Cut(wanted, "/")
				if kind == "" || single && name == "" {
					return usage("%q: want KIND or KIND/OBJECT", wanted)
				}
				var found []*manifest.Item
				if err := t.items(command.Context(), args[0], kind, func(item *manifest.Item) {
					if (name == "" || item.Name == name) && (of == "" || item.Namespace == of) {
						found = append(found, item)
					}
				}); err != nil {
					return err
				}
				if len(found) == 0 {
					return fmt.Errorf("backup %s shows no %s to you: see kubectl holdfast backup tree %[1]s", args[0], wanted)
				}
				for _, item := range found {
					if err := t.printStored(command.Context(), args[0], item, output); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
	command.Flags().StringVarP(&output, "output", "o", output, "Output format: yaml or json.")
	command.Flags().StringVar(&of, "object-namespace", "", "Only objects of this namespace. Default: all of the backup.")
	return command
}

// printStored prints an object of a backup, after it has read all.
func (t *tool) printStored(ctx context.Context, backup string, item *manifest.Item, output string) error {
	kind := item.KindName
	if item.APIGroup != "" {
		kind += "." + item.APIGroup
	}
	var content bytes.Buffer
	if err := t.stream(ctx, backups, backup, "objects", map[string]string{"kind": kind, "namespace": item.Namespace, "name": item.Name}, &content); err != nil {
		return fmt.Errorf("reading %s of backup %s: %w", label(item), backup, err)
	}
	if output == "json" {
		_, err := fmt.Fprintln(t.Out, strings.TrimSpace(content.String()))
		return err
	}
	text, err := yaml.JSONToYAML(content.Bytes())
	if err != nil {
		return fmt.Errorf("%s of backup %s can't be read: %w", label(item), backup, err)
	}
	_, err = fmt.Fprintf(t.Out, "---\n%s", text)
	return err
}
