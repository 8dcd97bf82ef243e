// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/printers"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	holdfastclientset "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned"
)

const lastBackups = 5

func (t *tool) statusCommand() *cobra.Command {
	var all bool
	command := &cobra.Command{
		Use: "status", Short: "Show one screen: agents, locations, queue, last backups, and what is wrong",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return t.status(command.Context(), all) },
	}
	command.Flags().BoolVarP(&all, "all-namespaces", "A", false, "All namespaces.")
	return command
}

func (t *tool) status(ctx context.Context, all bool) error {
	c, err := t.clients()
	if err != nil {
		return err
	}
	client, namespace := c.holdfast, c.namespace
	if all {
		namespace = metav1.NamespaceAll
	}
	var wrong []string
	fmt.Fprintf(t.Out, "Agents:  %s\n", agentsText(ctx, client, &wrong))
	fmt.Fprintf(t.Out, "Locations: %s\n", locationsText(ctx, &c, &wrong))
	queue, err := client.HoldfastV1alpha1().BackupQueueEntries(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	counts := map[v1alpha1.QueueState]int{}
	for _, entry := range queue.Items {
		counts[entry.Status.State]++
		if reason := entry.Status.Reason; reason == v1alpha1.QueueReasonStorageUnavailable || reason == v1alpha1.QueueReasonAgentAbsent {
			wrong = append(wrong, fmt.Sprintf("%s %s/%s waits: %s", entry.Spec.Kind, entry.Namespace, entry.Name, entry.Status.Message))
		}
	}
	fmt.Fprintf(t.Out, "Queue:   %d running, %d ready, %d waiting\n", counts[v1alpha1.QueueStateRunning], counts[v1alpha1.QueueStateReady], counts[v1alpha1.QueueStateQueued])
	if err := t.scheduleStatus(ctx, client, namespace, &wrong); err != nil {
		return err
	}
	fmt.Fprintf(t.Out, "Protections: %s\n", protectionText(ctx, client, namespace))
	newest, err := lastOf(ctx, client, namespace)
	if err != nil {
		return err
	}
	if all {
		fmt.Fprintln(t.Out, "\nLast backups:")
	} else {
		fmt.Fprintf(t.Out, "\nLast backups of the namespace %s:\n", namespace)
	}
	if len(newest) == 0 {
		fmt.Fprintln(t.Out, "  none: kubectl holdfast backup create NAME, or status -A for all namespaces")
	}
	writer := printers.GetNewTabWriter(t.Out)
	for _, backup := range newest {
		state := backupProgress(&backup)
		fmt.Fprintf(writer, "  %s/%s\t%s\t%s\n", backup.Namespace, backup.Name, state, at(&backup.CreationTimestamp))
		if state.ended && !state.completed {
			wrong = append(wrong, fmt.Sprintf("backup %s/%s is %s: %s", backup.Namespace, backup.Name, state.phase, state.message))
		}
	}
	if err := writer.Flush(); err != nil {
		return err
	}
	printWrong(t.Out, wrong)
	return nil
}

func printWrong(to io.Writer, wrong []string) {
	if len(wrong) == 0 {
		fmt.Fprintln(to, "\nNothing is wrong.")
		return
	}
	fmt.Fprintln(to, "\nWrong:")
	for _, text := range wrong {
		fmt.Fprintln(to, "  "+text)
	}
}

func agentsText(ctx context.Context, client holdfastclientset.Interface, wrong *[]string) string {
	agents, err := client.HoldfastV1alpha1().NodeAgents().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Sprintf("not known: %v", err) // a tenant may not list them
	}
	ready := 0
	for _, agent := range agents.Items {
		if condition := meta.FindStatusCondition(agent.Status.Conditions, v1alpha1.ConditionAgentReady); condition != nil && condition.Status != metav1.ConditionTrue {
			*wrong = append(*wrong, fmt.Sprintf("the agent of node %s is not ready: %s", agent.Name, condition.Message))
			continue
		}
		ready++
	}
	return fmt.Sprintf("%d of %d ready", ready, len(agents.Items))
}

func locationsText(ctx context.Context, c *clients, wrong *[]string) string {
	var system string
	_, _ = c.findSystem(ctx, &system) // else the default
	locations, err := c.engine.EngineV1alpha1().StorageLocations(system).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Sprintf("not known: %v", err) // a tenant may not list them
	}
	available, locks := 0, ""
	for i := range locations.Items {
		location := &locations.Items[i]
		if until := location.LockedUntil(); until != nil {
			locks += fmt.Sprintf("; %s is locked until at least %s", location.Name, at(until))
		}
		if locked := conditionOf(location.Status.Conditions, enginev1alpha1.ConditionLocked); locked.Status == metav1.ConditionFalse && locked.Reason != enginev1alpha1.ReasonLockPending {
			*wrong = append(*wrong, fmt.Sprintf("not all objects of the storage location %s are locked, %s: %s", location.Name, locked.Reason, locked.Message))
		}
		condition := conditionOf(location.Status.Conditions, enginev1alpha1.ConditionAvailable)
		if condition.Status == metav1.ConditionTrue {
			available++
			continue
		}
		*wrong = append(*wrong, fmt.Sprintf("the storage location %s is not available, %s: %s", location.Name, cmp.Or(condition.Reason, "not checked yet"), cmp.Or(condition.Message, "see kubectl holdfast doctor")))
	}
	return fmt.Sprintf("%d of %d available%s", available, len(locations.Items), locks)
}

func (t *tool) scheduleStatus(ctx context.Context, client holdfastclientset.Interface, namespace string, wrong *[]string) error {
	list, err := client.HoldfastV1alpha1().Schedules(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	paused := 0
	for _, schedule := range list.Items {
		if schedule.Spec.Paused {
			paused++
			continue
		}
		if condition := meta.FindStatusCondition(schedule.Status.Conditions, v1alpha1.ConditionScheduled); condition != nil && condition.Status == metav1.ConditionFalse {
			*wrong = append(*wrong, fmt.Sprintf("schedule %s/%s makes no backups, %s: %s", schedule.Namespace, schedule.Name, condition.Reason, condition.Message))
		}
	}
	fmt.Fprintf(t.Out, "Schedules: %d, of them paused: %d\n", len(list.Items), paused)
	return nil
}

// lastOf returns the newest backups, the newest first. Pages are ordered by name, so it reads all.
func lastOf(ctx context.Context, client holdfastclientset.Interface, namespace string) (newest []v1alpha1.Backup, err error) {
	for options := (metav1.ListOptions{Limit: 500}); ; {
		page, err := client.HoldfastV1alpha1().Backups(namespace).List(ctx, options)
		if err != nil {
			return nil, err
		}
		newest = append(newest, page.Items...)
		slices.SortStableFunc(newest, func(a, b v1alpha1.Backup) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
		newest = slices.Clone(newest[:min(lastBackups, len(newest))])
		if options.Continue = page.Continue; options.Continue == "" {
			return newest, nil
		}
	}
}
