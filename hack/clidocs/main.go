// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Command clidocs writes the reference of kubectl holdfast from its commands: one page of Markdown, and
// with -man a man page for each command.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/holdfast-io/holdfast/pkg/cli"
)

func main() {
	page := flag.String("page", "", "file for the page of Markdown")
	man := flag.String("man", "", "folder for the man pages")
	flag.Parse()
	root := command()
	if *page != "" {
		if err := os.WriteFile(*page, reference(root), 0o644); err != nil {
			log.Fatal(err)
		}
	}
	if *man != "" {
		if err := manPages(root, *man); err != nil {
			log.Fatal(err)
		}
	}
}

// command returns the command with defaults that do not depend on this machine.
func command() *cobra.Command {
	root := cli.New("", genericiooptions.NewTestIOStreamsDiscard())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	root.DisableAutoGenTag = true
	home, err := os.UserHomeDir()
	if err != nil {
		log.Fatal(err)
	}
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		f.DefValue = strings.ReplaceAll(f.DefValue, home, "$HOME")
	})
	return root
}

// reference returns the page of all commands and flags.
func reference(root *cobra.Command) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# The commands of kubectl holdfast\nThis page is written by `make generate` from the commands. [cli.md](cli.md) introduces them.\n")
	var each func(c *cobra.Command)
	each = func(c *cobra.Command) {
		if c.Runnable() && !c.HasAvailableSubCommands() {
			section(&b, c)
		}
		for _, below := range c.Commands() {
			if below.IsAvailableCommand() && below.Name() != "help" {
				each(below)
			}
		}
	}
	each(root)
	fmt.Fprintf(&b, "\n## Flags of all commands\n```\n%s```\n", root.PersistentFlags().FlagUsagesWrapped(100))
	return b.Bytes()
}

func section(b *bytes.Buffer, c *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n", c.CommandPath())
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	if strings.Contains(text, "\n\t") { // an indented block is code in both
		text = strings.ReplaceAll(text, "\n\t", "\n    ")
	}
	fmt.Fprintf(b, "%s\n\n```\n%s\n```\n", strings.TrimSpace(text), c.UseLine())
	if c.Example != "" {
		fmt.Fprintf(b, "\n```\n%s\n```\n", strings.TrimRight(c.Example, "\n"))
	}
	c.InitDefaultHelpFlag()
	c.Flags().Lookup("help").Hidden = true
	if flags := c.NonInheritedFlags(); flags.HasAvailableFlags() {
		fmt.Fprintf(b, "\n```\n%s```\n", flags.FlagUsagesWrapped(100))
	}
}

// manPages writes a page for each command. Their date is SOURCE_DATE_EPOCH, or today.
func manPages(root *cobra.Command, folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return doc.GenManTreeFromOpts(root, doc.GenManTreeOptions{
		Header: &doc.GenManHeader{Section: "1", Source: "Holdfast", Manual: "kubectl holdfast"},
		Path:   filepath.Clean(folder),
		// Names of files have no spaces.
		CommandSeparator: "-",
	})
}
