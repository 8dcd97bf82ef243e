// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const (
	describedMessages = 10
	describedVolumes  = 50
)

type field struct{ name, value string }

func printFields(to io.Writer, fields ...field) error {
	writer := printers.GetNewTabWriter(to)
	for _, f := range fields {
		if f.value != "" {
			fmt.Fprintf(writer, "%s:\t%s\n", f.name, f.value)
		}
	}
	return writer.Flush()
}

func at(t *metav1.Time) string {
	if t == nil {
		return ""
	}
	since := time.Since(t.Time)
	if since < 0 {
		return fmt.Sprintf("%s (in %s)", t.UTC().Format(time.RFC3339), duration.HumanDuration(-since))
	}
	return fmt.Sprintf("%s (%s ago)", t.UTC().Format(time.RFC3339), duration.HumanDuration(since))
}

func took(start, end *metav1.Time) string {
	if start == nil || end == nil {
		return ""
	}
	return duration.HumanDuration(end.Sub(start.Time))
}

func words(label string, included, excluded []string) field {
	text := strings.Join(included, ", ")
	if len(excluded) > 0 {
		text = strings.TrimSpace(cmp.Or(text, "all") + ", without " + strings.Join(excluded, ", "))
	}
	return field{label, text}
}

func selectorText(one *metav1.LabelSelector, any []*metav1.LabelSelector) string {
	var parts []string
	if one != nil {
		parts = append(parts, metav1.FormatLabelSelector(one))
	}
	for _, selector := range any {
		parts = append(parts, metav1.FormatLabelSelector(selector))
	}
	return strings.Join(parts, " or ")
}

func (t *tool) describeBackup(ctx context.Context, name string) error {
	client, namespace, err := t.client()
	if err != nil {
		return err
	}
	backup, err := client.HoldfastV1alpha1().Backups(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	spec, status := &backup.Spec, &backup.Status
	state := backupProgress(backup)
	expires := at(status.Expiration)
	if status.Hold != nil {
		expires = fmt.Sprintf("held by %s since %s", cmp.Or(status.Hold.Requester, "an unknown user"), at(&status.Hold.Timestamp))
		if status.Hold.Reason != "" {
			expires += ": " + status.Hold.Reason
		}
	}
	volumes := ""
	if v := status.Volumes; v != nil {
		volumes = fmt.Sprintf("%d of %d complete, %s", v.Completed, v.Total+v.LeftOut, strings.TrimSpace(human(v.TotalBytes)))
		for _, of := range []struct {
			count int32
			text  string
		}{{v.Failed, "failed"}, {v.InStorage, "only as snapshots in their own storage, which are no second copies"}, {v.LeftOut, "wanted and left out"}, {v.Deleted, "deleted since"}} {
			if of.count > 0 {
				volumes += fmt.Sprintf(", %d %s", of.count, of.text)
			}
		}
	}
	origin := ""
	if o := status.Origin; o != nil && o.Trust != v1alpha1.BackupTrustOwn {
		origin = strings.TrimSpace(fmt.Sprintf("%s %s %s", o.Trust, o.Cluster, o.Message))
	}
	encrypted := ""
	if by := status.Encryption; by != nil {
		encrypted = fmt.Sprintf("for %s of its cluster, and the recovery keys %s", by.ClusterKey, strings.Join(by.RecoveryKeys, ", "))
	}
	if err := printFields(t.Out,
		field{"Name", backup.Name}, field{"Namespace", backup.Namespace}, field{"Phase", string(status.Phase)},
		field{"Message", state.message}, field{"Waits for", waits(state)},
		field{"Validation", strings.Join(status.ValidationErrors, "; ")},
		field{"Requester", status.Requester}, field{"Storage location", spec.StorageLocation}, field{"Origin", origin}, field{"Encrypted", encrypted},
		words("Namespaces", spec.IncludedNamespaces, spec.ExcludedNamespaces),
		words("Resources", spec.IncludedResources, spec.ExcludedResources),
		words("Namespaced resources", spec.IncludedNamespaceScopedResources, spec.ExcludedNamespaceScopedResources),
		words("Cluster resources", spec.IncludedClusterScopedResources, spec.ExcludedClusterScopedResources),
		field{"Selector", selectorText(spec.LabelSelector, spec.OrLabelSelectors)},
		field{"Created", at(&backup.CreationTimestamp)}, field{"Started", at(status.StartTimestamp)},
		field{"Ended", at(status.CompletionTimestamp)}, field{"Took", took(status.StartTimestamp, status.CompletionTimestamp)},
		field{"Expires", expires}, field{"Locked", t.locked(ctx, spec.StorageLocation)},
		field{"Objects", fmt.Sprintf("%d of %d", state.items, state.itemsTotal)}, field{"Volumes", volumes},
	); err != nil {
		return err
	}
	list, err := client.HoldfastV1alpha1().VolumeBackups(namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.backupUID=" + string(backup.UID), Limit: describedVolumes})
	if err != nil {
		fmt.Fprintln(t.Out, "\nThe volumes can't be listed:", err)
	} else if len(list.Items) > 0 {
		fmt.Fprintln(t.Out)
		writer := printers.GetNewTabWriter(t.Out)
		fmt.Fprintln(writer, "VOLUME\tSTATUS\tSIZE\tNEW\tMESSAGE")
		for _, volume := range list.Items {
			fmt.Fprintf(writer, "%s\t%s\t%s\t%s\t%s\n", volume.Spec.VolumeName, volume.Status.Phase, human(volume.Status.SizeBytes), human(volume.Status.IncrementalBytes), cmp.Or(volume.Status.Message, "-"))
		}
		if err := writer.Flush(); err != nil {
			return err
		}
		if list.Continue != "" {
			fmt.Fprintf(t.Out, "More: kubectl get volumebackups -n %s --field-selector spec.backupUID=%s\n", namespace, backup.UID)
		}
	}
	return t.describeResults(ctx, backups, name, state)
}

// locked returns until when a location's backups are locked; empty without a lock, or without the right to read
// the location.
func (t *tool) locked(ctx context.Context, location string) string {
	all, err := t.clients()
	if err != nil {
		return ""
	}
	var system string
	_, _ = all.findSystem(ctx, &system) // else the default
	record, err := all.engine.EngineV1alpha1().StorageLocations(system).Get(ctx, location, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return lockOf(record)
}

func lockOf(record *enginev1alpha1.StorageLocation) string {
	lock := record.Spec.Lock
	if lock == nil {
		return ""
	}
	text := fmt.Sprintf("for %d days, %s", lock.Days, lock.Mode)
	if until := record.LockedUntil(); until != nil {
		text += ", until at least " + at(until)
	}
	if said := conditionOf(record.Status.Conditions, enginev1alpha1.ConditionLocked); said.Status == metav1.ConditionFalse {
		text += fmt.Sprintf("; %s: %s", said.Reason, said.Message)
	}
	return text
}

func waits(state progress) string {
	if state.ended {
		return ""
	}
	return state.waits
}

func (t *tool) describeResults(ctx context.Context, resource, name string, state progress) error {
	if !state.ended || state.errorCount+state.warnings == 0 {
		return nil
	}
	fmt.Fprintln(t.Out)
	results, err := t.results(ctx, resource, name)
	if err != nil {
		fmt.Fprintln(t.Out, "The errors and warnings can't be read:", err)
		return nil
	}
	printMessages(t.Out, "Errors", results.Errors, describedMessages)
	printMessages(t.Out, "Warnings", results.Warnings, describedMessages)
	return nil
}

func (t *tool) describeRestore(ctx context.Context, name string) error {
	client, namespace, err := t.client()
	if err != nil {
		return err
	}
	restore, err := client.HoldfastV1alpha1().Restores(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	spec, status := &restore.Spec, &restore.Status
	state := restoreProgress(restore)
	from := spec.BackupName
	if b := status.Backup; b != nil {
		from = fmt.Sprintf("%s/%s in the storage location %s", b.Namespace, b.Name, b.StorageLocation)
	}
	objects := ""
	if p := status.Progress; p != nil {
		objects = fmt.Sprintf("%d of %d: %d created, %d updated, %d unchanged, %d differ and stay, %d failed", p.ItemsRestored, p.TotalItems, p.ItemsCreated, p.ItemsUpdated, p.ItemsUnchanged, p.ItemsDiffering, p.ItemsFailed)
	}
	volumes := ""
	if v := status.Volumes; v != nil {
		volumes = fmt.Sprintf("%d of %d complete, %d failed, %s of %s", v.Completed, v.Total, v.Failed, strings.TrimSpace(human(v.BytesDone)), strings.TrimSpace(human(v.TotalBytes)))
	}
	var mapping []string
	for was, is := range spec.NamespaceMapping {
		mapping = append(mapping, was+" as "+is)
	}
	slices.Sort(mapping)
	if err := printFields(t.Out,
		field{"Name", restore.Name}, field{"Namespace", restore.Namespace}, field{"Phase", string(status.Phase)},
		field{"Message", state.message}, field{"Waits for", waits(state)},
		field{"Validation", strings.Join(status.ValidationErrors, "; ")},
		field{"Requester", status.Requester}, field{"Backup", from},
		words("Namespaces", spec.IncludedNamespaces, spec.ExcludedNamespaces),
		field{"Mapped", strings.Join(mapping, ", ")},
		words("Resources", spec.IncludedResources, spec.ExcludedResources),
		field{"Selector", selectorText(spec.LabelSelector, spec.OrLabelSelectors)},
		field{"Created", at(&restore.CreationTimestamp)}, field{"Started", at(status.StartTimestamp)},
		field{"Ended", at(status.CompletionTimestamp)}, field{"Took", took(status.StartTimestamp, status.CompletionTimestamp)},
		field{"Objects", objects}, field{"Volumes", volumes},
	); err != nil {
		return err
	}
	return t.describeResults(ctx, restores, name, state)
}
