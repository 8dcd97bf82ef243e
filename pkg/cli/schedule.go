// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

func (t *tool) scheduleCommand() *cobra.Command {
	var wait bool
	var timeout time.Duration
	run := t.named(schedules, "run", "Make a schedule's backup now", func(ctx context.Context, name string) error {
		return t.trigger(ctx, name, wait, timeout)
	})
	run.Flags().BoolVarP(&wait, "wait", "w", false, "Wait for the end, and show the progress.")
	run.Flags().DurationVar(&timeout, "timeout", 0, "Maximum time to wait. Default: no limit.")
	command := group("schedule", "Create, pause and run schedules",
		t.createScheduleCommand(),
		t.getCommand(schedules, "List schedules", true),
		t.named(schedules, "pause", "Pause a schedule", func(ctx context.Context, name string) error { return t.pause(ctx, name, true) }),
		t.named(schedules, "resume", "Resume a schedule", func(ctx context.Context, name string) error { return t.pause(ctx, name, false) }),
		run,
	)
	command.Aliases = []string{"schedules"}
	return command
}

func (t *tool) pause(ctx context.Context, name string, paused bool) error {
	client, namespace, err := t.client()
	if err != nil {
		return err
	}
	did := "resumed"
	if paused {
		did = "paused"
	}
	all := client.HoldfastV1alpha1().Schedules(namespace)
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		schedule, err := all.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if schedule.Spec.Paused == paused {
			did += " before: unchanged"
			return nil
		}
		schedule.Spec.Paused = paused
		_, err = all.Update(ctx, schedule, metav1.UpdateOptions{})
		return err
	}); err != nil {
		return err
	}
	fmt.Fprintf(t.Out, "schedule.%s/%s %s\n", v1alpha1.GroupName, name, did)
	return nil
}

func (t *tool) trigger(ctx context.Context, name string, wait bool, timeout time.Duration) error {
	client, namespace, err := t.client()
	if err != nil {
		return err
	}
	raw, err := answer(ctx, client.HoldfastV1alpha1().RESTClient().Post().Namespace(namespace).Resource(schedules).Name(name).SubResource("trigger").
		Body(&v1alpha1.ScheduleTrigger{TypeMeta: typed("ScheduleTrigger")}))
	if err != nil {
		return err
	}
	status := metav1.Status{}
	if err := json.Unmarshal(raw, &status); err != nil {
		return fmt.Errorf("the answer can't be read: %w", err)
	}
	fmt.Fprintln(t.Out, status.Message)
	if !wait {
		return nil
	}
	if status.Details == nil || status.Details.Name == "" {
		return fmt.Errorf("the answer names no backup to wait for: %s", raw)
	}
	return await(ctx, t, ofBackup, namespace, status.Details.Name, timeout)
}

func (t *tool) createScheduleCommand() *cobra.Command {
	var creation createFlags
	var template backupFlags
	var cron, zone string
	var paused bool
	var keep v1alpha1.ScheduleKeep
	command := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a schedule",
		Example: `  # Each night at 2, kept as 7 daily and 4 weekly backups
  kubectl holdfast schedule create nightly --schedule "0 2 * * *" --time-zone Europe/Berlin --keep-daily 7 --keep-weekly 4 -n shop`,
		Args: func(command *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 0 && creation.file == "" {
				return usage("got %d names, want one: %s", len(args), command.UseLine())
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			if err := creation.check(); err != nil {
				return err
			}
			_, namespace, err := t.client()
			if err != nil {
				return err
			}
			schedule := &v1alpha1.Schedule{}
			if err := creation.read(command.Context(), t.In, schedule); err != nil {
				return err
			}
			if err := template.apply(&schedule.Spec.Template.BackupSpec); err != nil {
				return err
			}
			if cron != "" {
				schedule.Spec.Schedule = cron
			}
			if schedule.Spec.Schedule == "" {
				return usage("set --schedule, such as --schedule \"0 2 * * *\"")
			}
			if zone != "" {
				schedule.Spec.TimeZone = zone
			}
			if paused {
				schedule.Spec.Paused = true
			}
			if keep != (v1alpha1.ScheduleKeep{}) {
				schedule.Spec.Keep = &keep
			}
			creation.meta(&schedule.ObjectMeta, args, namespace, "schedule")
			return create(command.Context(), t, ofSchedule, &creation, schedule)
		},
	}
	flags := command.Flags()
	creation.addTo(flags, false)
	template.addTo(flags)
	flags.StringVar(&cron, "schedule", "", "When: five fields of cron, or @daily and the like.")
	flags.StringVar(&zone, "time-zone", "", "Time zone of the schedule, such as Europe/Berlin. Default: UTC.")
	flags.BoolVar(&paused, "paused", false, "Create it paused.")
	flags.Int32Var(&keep.Last, "keep-last", 0, "Number of the last backups to keep.")
	flags.Int32Var(&keep.Daily, "keep-daily", 0, "Number of days: the last backup of each is kept.")
	flags.Int32Var(&keep.Weekly, "keep-weekly", 0, "Number of weeks: the last backup of each is kept.")
	flags.Int32Var(&keep.Monthly, "keep-monthly", 0, "Number of months: the last backup of each is kept.")
	flags.Int32Var(&keep.Yearly, "keep-yearly", 0, "Number of years: the last backup of each is kept.")
	return command
}
