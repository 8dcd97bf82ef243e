// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench measures Holdfast in a lab that runs: what it costs the cluster,
// the controller, the API server and a node. It prints counts, and ratios against
// Velero, Kopia or a limit. Only a count can make it fail, never a time: times
// depend on the machine and on what else it does.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "bench",
		Short:         "Measure Holdfast in a lab",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	var dir, results string
	root.PersistentFlags().StringVar(&dir, "dir", "", "the lab's folder")
	root.PersistentFlags().StringVar(&results, "results", "", "file that rows are appended to, and read from")
	measuring := func(use, short string, measure func(context.Context, *lab) ([]row, error)) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				l, err := openLab(dir)
				if err != nil {
					return err
				}
				rows, err := measure(c.Context(), l)
				if err != nil {
					return fmt.Errorf("%s: %w", use, err)
				}
				return appendRows(results, rows)
			},
		}
	}

	var queued int
	queue := measuring("queue", "Drain a queue of tiny backups, and count the writes", func(ctx context.Context, l *lab) ([]row, error) {
		return measureQueue(ctx, l, queued)
	})
	queue.Flags().IntVar(&queued, "queued", 200, "how many backups")

	var lists listOptions
	list := measuring("list", "List and watch a long queue", func(ctx context.Context, l *lab) ([]row, error) {
		return measureList(ctx, l, lists)
	})
	list.Flags().IntVar(&lists.queued, "queued", 10000, "how many backups")
	list.Flags().IntVar(&lists.drained, "drained", 500, "how many of them to wait for while the queue is watched")
	list.Flags().StringVar(&lists.kubectl, "kubectl", "kubectl", "the program kubectl")

	var objects int
	object := measuring("objects", "Back up one namespace of many ConfigMaps", func(ctx context.Context, l *lab) ([]row, error) {
		return measureObjects(ctx, l, objects)
	})
	object.Flags().IntVar(&objects, "objects", 20000, "how many ConfigMaps")

	var restored int
	restore := measuring("restore", "Restore many ConfigMaps and Secrets, twice", func(ctx context.Context, l *lab) ([]row, error) {
		return measureRestore(ctx, l, restored)
	})
	restore.Flags().IntVar(&restored, "objects", 10000, "how many objects")

	var v volumeOptions
	volume := measuring("volume", "Upload a volume through the agent, and by Kopia's command", func(ctx context.Context, l *lab) ([]row, error) {
		return measureVolume(ctx, l, v)
	})
	volume.Flags().StringVar(&v.scratch, "scratch", "", "folder for files and repositories, best in memory")
	volume.Flags().StringVar(&v.kopia, "kopia", "", "Kopia's command, of the version that Holdfast has; needed")
	volume.PreRunE = func(*cobra.Command, []string) error {
		if v.kopia == "" { // any that is in PATH may be of another version
			return errors.New("--kopia is missing: name Kopia's command, or run `hack/bench.sh volume`, which builds it")
		}
		return nil
	}
	volume.Flags().StringVar(&v.pods, "pods", "", "the agent's folder of pods, in the file system of --scratch")
	volume.Flags().IntVar(&v.rounds, "rounds", 5, "how often")

	reading := func(use, short string, measure func(benchmarks) ([]row, error)) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				found, err := readBenchmarks(c.InOrStdin(), c.OutOrStdout())
				if err != nil {
					return err
				}
				rows, err := measure(found)
				if err != nil {
					return err
				}
				return appendRows(results, rows)
			},
		}
	}
	plan := reading("plan", "Read what the benchmarks of pkg/queue print", measurePlan)
	far := reading("far", "Read what BenchmarkFarStore and BenchmarkVolumes of pkg/datapath print", measureFar)
	files := reading("files", "Read what BenchmarkFiles, BenchmarkPeakMemory and BenchmarkFreedSlot of pkg/datapath print", measureFiles)

	claims := reading("claims", "Read what BenchmarkClaims of test/e2e prints", measureClaims)

	served := reading("served", "Read what BenchmarkMillion of pkg/manifest and BenchmarkObject of pkg/stored print", measureServed)

	catalogue := reading("catalogue", "Read what the benchmarks of pkg/catalog/refresh and pkg/registry/volumebackup print", measureCatalogue)

	largeRestore := reading("large-restore", "Read what BenchmarkLarge of pkg/restore/source prints", measureLargeRestore)

	maintenance := reading("maintenance", "Read what BenchmarkMaintenance and BenchmarkReclaimed of pkg/repository print", measureMaintenance)

	stores := reading("stores", "Read what BenchmarkProviders of hack/stores and BenchmarkIdleLocation of test/integration print", measureStores)

	snapshots := reading("snapshots", "Read what BenchmarkSnapshots of test/snapshots/backups prints", measureSnapshots)

	table := &cobra.Command{
		Use: "table", Short: "Print the rows", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return printTable(c.OutOrStdout(), results) },
	}
	engine := reading("engine", "Read what BenchmarkTarball, BenchmarkManyKinds and BenchmarkManyPods of pkg/backup print", measureEngine)

	var custom int
	customs := &cobra.Command{
		Use: "custom", Short: "Keep volume backups as custom resources, and read what BenchmarkMillion of pkg/registry/volumebackup prints", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			found, err := readBenchmarks(c.InOrStdin(), c.OutOrStdout())
			if err != nil {
				return err
			}
			l, err := openLab(dir)
			if err != nil {
				return err
			}
			rows, err := l.measureCustom(c.Context(), found, custom)
			if err != nil {
				return fmt.Errorf("custom: %w", err)
			}
			return appendRows(results, rows)
		},
	}
	customs.Flags().IntVar(&custom, "objects", 100000, "how many custom resources")

	var plugins pluginOptions
	plugin := &cobra.Command{
		Use: "plugin", Short: "Measure kubectl holdfast and plans, and read what BenchmarkFind, BenchmarkPage and BenchmarkFiles print", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			found, err := readBenchmarks(c.InOrStdin(), c.OutOrStdout())
			if err != nil {
				return err
			}
			l, err := openLab(dir)
			if err != nil {
				return err
			}
			rows, err := l.measurePlugin(c.Context(), found, plugins)
			if err != nil {
				return fmt.Errorf("plugin: %w", err)
			}
			return appendRows(results, rows)
		},
	}
	plugin.Flags().StringVar(&plugins.program, "plugin", "kubectl-holdfast", "the program kubectl-holdfast")
	plugin.Flags().IntVar(&plugins.objects, "objects", 20000, "how many objects to plan a backup of")
	plugin.Flags().IntVar(&plugins.backups, "backups", 10000, "how many backups there are for status")

	root.AddCommand(plan, queue, list, object, engine, restore, largeRestore, claims, volume, far, files, served, catalogue, customs, maintenance, plugin, stores, snapshots, table)
	return root
}
