// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/pkg/manifest"
)

func (t *tool) items(ctx context.Context, backup, kind string, each func(*manifest.Item)) error {
	parameters := map[string]string{"format": "ndjson"}
	if kind != "" {
		parameters["kind"] = kind
	}
	reader, writer := io.Pipe()
	go func() { writer.CloseWithError(t.stream(ctx, backups, backup, "manifest", parameters, writer)) }()
	defer reader.Close()
	decoder := json.NewDecoder(reader)
	for {
		item := &manifest.Item{}
		if err := decoder.Decode(item); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("the manifest of %s can't be read: %w", backup, err)
		}
		if item.KindName != "" && item.Name != "" {
			each(item)
		}
	}
}

func label(item *manifest.Item) string { return item.KindName + "/" + item.Name }

func (t *tool) treeCommand() *cobra.Command {
	var output, kind string
	command := t.named(backups, "tree", "Draw the objects of a backup: who owns what, and what needs what", func(ctx context.Context, name string) error {
		draw, ok := map[string]func(io.Writer, []*manifest.Item){"": drawTree, "dot": drawDot, "mermaid": drawMermaid}[output]
		if !ok {
			return usage("--output %q: want dot or mermaid", output)
		}
		var all []*manifest.Item
		if err := t.items(ctx, name, kind, func(item *manifest.Item) { all = append(all, item) }); err != nil {
			return err
		}
		slices.SortFunc(all, manifest.Compare)
		draw(t.Out, all)
		return nil
	})
	command.Flags().StringVarP(&output, "output", "o", "", "Output format: dot or mermaid. Default: a tree.")
	command.Flags().StringVar(&kind, "kind", "", "Only objects of this kind, such as Deployment.")
	return command
}

func byUID(all []*manifest.Item) map[string]*manifest.Item {
	found := map[string]*manifest.Item{}
	for _, item := range all {
		if item.UID != "" {
			found[item.UID] = item
		}
	}
	return found
}

func drawTree(to io.Writer, all []*manifest.Item) {
	known, children := byUID(all), map[*manifest.Item][]*manifest.Item{}
	var roots []*manifest.Item
	for _, item := range all {
		owned := false
		for _, uid := range item.OwnerUIDs {
			if owner := known[uid]; owner != nil && owner != item {
				children[owner], owned = append(children[owner], item), true
			}
		}
		if !owned {
			roots = append(roots, item)
		}
	}
	drawn := map[*manifest.Item]bool{}
	var draw func(item *manifest.Item, first, rest string)
	draw = func(item *manifest.Item, first, rest string) {
		var needs []string
		for _, reference := range item.References {
			needs = append(needs, reference.KindName+"/"+reference.Name)
		}
		text := label(item)
		if len(needs) > 0 {
			text += "  needs " + strings.Join(needs, ", ")
		}
		fmt.Fprintln(to, first+text)
		if drawn[item] {
			return
		}
		drawn[item] = true
		for i, child := range children[item] {
			if i == len(children[item])-1 {
				draw(child, rest+"└─ ", rest+"   ")
			} else {
				draw(child, rest+"├─ ", rest+"│  ")
			}
		}
	}
	namespace, begun := "", false
	slices.SortStableFunc(roots, func(a, b *manifest.Item) int { return cmp.Compare(a.Namespace, b.Namespace) })
	for _, root := range roots {
		if !begun || root.Namespace != namespace {
			namespace, begun = root.Namespace, true
			fmt.Fprintln(to, cmp.Or(namespace, "(cluster)"))
		}
		draw(root, "  ", "  ")
	}
	for _, item := range all {
		if !drawn[item] { // owners in a circle
			draw(item, "  ", "  ")
		}
	}
}

// edges calls owns for each owner and owned item, and needs for each item and reference.
func edges(all []*manifest.Item, owns, needs func(from, to string)) {
	known := byUID(all)
	for _, item := range all {
		for _, uid := range item.OwnerUIDs {
			if owner := known[uid]; owner != nil {
				owns(path(owner.Namespace, owner.KindName, owner.Name), path(item.Namespace, item.KindName, item.Name))
			}
		}
		for _, reference := range item.References {
			needs(path(item.Namespace, item.KindName, item.Name), path(reference.Namespace, reference.KindName, reference.Name))
		}
	}
}

func path(namespace, kind, name string) string {
	return strings.TrimPrefix(namespace+"/"+kind+"/"+name, "/")
}

func drawDot(to io.Writer, all []*manifest.Item) {
	fmt.Fprintln(to, "digraph backup {\n  rankdir=LR;\n  node [shape=box];")
	for _, item := range all {
		fmt.Fprintf(to, "  %q [label=%q];\n", path(item.Namespace, item.KindName, item.Name), label(item))
	}
	edges(all,
		func(from, of string) { fmt.Fprintf(to, "  %q -> %q;\n", from, of) },
		func(from, of string) { fmt.Fprintf(to, "  %q -> %q [style=dashed];\n", from, of) })
	fmt.Fprintln(to, "}")
}

func drawMermaid(to io.Writer, all []*manifest.Item) {
	ids := map[string]string{}
	id := func(path string) string {
		if ids[path] == "" {
			ids[path] = fmt.Sprintf("n%d", len(ids))
			fmt.Fprintf(to, "  %s[\"%s\"]\n", ids[path], strings.ReplaceAll(path, `"`, "#quot;"))
		}
		return ids[path]
	}
	fmt.Fprintln(to, "graph LR")
	for _, item := range all {
		id(path(item.Namespace, item.KindName, item.Name))
	}
	edges(all,
		func(from, of string) { from, of = id(from), id(of); fmt.Fprintf(to, "  %s --> %s\n", from, of) },
		func(from, of string) { from, of = id(from), id(of); fmt.Fprintf(to, "  %s -.-> %s\n", from, of) })
}

func (t *tool) diffCommand() *cobra.Command {
	var kind string
	var object objectDiff
	command := &cobra.Command{
		Use: "diff OLD [NEW] [KIND/NAME]", Short: "Compare two backups, or one object in two backups or the cluster",
		Long: `Compare two backups: which objects were added, removed and changed. With KIND/NAME compare one object,
field by field. Values of Secrets are masked.`,
		Example: `  # The objects that differ
  kubectl holdfast backup diff monday tuesday -n shop
  # The fields of one object that differ
  kubectl holdfast backup diff monday tuesday deployment/web -n shop
  # The same, between a backup and the cluster
  kubectl holdfast backup diff monday deployment/web --live -n shop`,
		ValidArgsFunction: t.completeNames(backups),
		RunE: func(command *cobra.Command, args []string) error {
			args, of, err := object.split(args)
			if err != nil {
				return err
			}
			if of != "" {
				return object.run(command.Context(), t, args, of)
			}
			read := func(backup string) (manifest.Sequence, error) {
				var all []*manifest.Item
				if err := t.items(command.Context(), backup, kind, func(item *manifest.Item) { all = append(all, item) }); err != nil {
					return nil, err
				}
				slices.SortFunc(all, manifest.Compare)
				return func(yield func(*manifest.Item, error) bool) {
					for _, item := range all {
						if !yield(item, nil) {
							return
						}
					}
				}, nil
			}
			before, err := read(args[0])
			if err != nil {
				return err
			}
			after, err := read(args[1])
			if err != nil {
				return err
			}
			count := 0
			for pair, err := range manifest.Diff(before, after) {
				if err != nil {
					return err
				}
				count++
				sign, item := "~", pair.B
				switch {
				case pair.A == nil:
					sign = "+"
				case pair.B == nil:
					sign, item = "-", pair.A
				}
				fmt.Fprintln(t.Out, sign, path(item.Namespace, item.KindName, item.Name))
			}
			if count == 0 {
				fmt.Fprintln(t.ErrOut, "Both backups hold the same objects.")
			}
			return nil
		},
	}
	command.Flags().StringVar(&kind, "kind", "", "Only objects of this kind, such as Deployment.")
	object.addTo(command.Flags())
	return command
}
