// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

const planTimeout = 10 * time.Minute

func (t *tool) restoreCommand() *cobra.Command {
	var all bool
	plan := t.named(restores, "plan", "Print the plan of a restore: what is written, and what is not", func(ctx context.Context, name string) error {
		read, err := t.plan(ctx, name)
		if err != nil {
			return err
		}
		return printPlan(t.Out, read, all)
	})
	plan.Flags().BoolVar(&all, "all", false, "Print each object, also those that stay as they are.")
	command := group("restore", "Plan, create and read restores",
		t.createRestoreCommand(),
		plan,
		t.getCommand(restores, "List restores", true),
		t.named(restores, "describe", "Show a restore: what it wrote, what is missing, and why", t.describeRestore),
		t.logsCommand(restores),
		t.resultsCommand(restores),
		t.named(restores, "cancel", "Cancel a restore that waits or runs", func(ctx context.Context, name string) error {
			return t.ask(ctx, restores, name, "cancel", &v1alpha1.RestoreCancellation{TypeMeta: typed("RestoreCancellation")})
		}),
	)
	command.Aliases = []string{"restores"}
	return command
}

func (t *tool) plan(ctx context.Context, name string) (format.RestorePlan, error) {
	var answer bytes.Buffer
	if err := t.stream(ctx, restores, name, "plan", nil, &answer); err != nil {
		return format.RestorePlan{}, err
	}
	plan := format.RestorePlan{}
	if err := json.Unmarshal(answer.Bytes(), &plan); err != nil {
		return plan, fmt.Errorf("the plan of %s can't be read: %w", name, err)
	}
	return plan, nil
}

// printPlan prints counts of actions, and each object that changes or needs a decision.
func printPlan(to io.Writer, plan format.RestorePlan, all bool) error {
	counts := map[string]int{}
	writer := printers.GetNewTabWriter(to)
	for i := range plan.Items {
		item := &plan.Items[i]
		if counts[item.Action]++; counts[item.Action] == 1 && len(counts) == 1 {
			fmt.Fprintln(writer, "ACTION\tNAMESPACE\tOBJECT\tDATA\tREASON")
		}
		if item.Action == "skip" && !all {
			continue
		}
		data := "-"
		if item.Bytes > 0 {
			data = strings.TrimSpace(human(item.Bytes))
		}
		fmt.Fprintf(writer, "%s\t%s\t%s/%s\t%s\t%s\n", item.Action, cmp.Or(item.Namespace, "-"), item.Kind, item.Name, data, cmp.Or(item.Reason, "-"))
	}
	if err := writer.Flush(); err != nil {
		return err
	}
	if len(plan.Items) == 0 {
		fmt.Fprintln(to, "The plan has no objects.")
		return nil
	}
	var parts []string
	for _, action := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", action, counts[action]))
	}
	fmt.Fprintf(to, "%d objects: %s\n", len(plan.Items), strings.Join(parts, ", "))
	return nil
}

type restoreFlags struct {
	selection
	from, fromNamespace, fromSchedule, into  string
	mapping, classes, images                 map[string]string
	existing, existingVolumes, modifier      string
	paths                                    []string
	persistentVolumes, nodePorts, referenced optionalBool
	volumesOnly, planOnly                    bool
}

func (f *restoreFlags) addTo(flags *pflag.FlagSet) {
	f.selection.addTo(flags)
	flags.StringVar(&f.from, "from", "", "Backup to restore. Default: the newest good one that holds all.")
	flags.StringVar(&f.fromNamespace, "from-namespace", "", "Namespace of the backup. Default: the restore's.")
	flags.StringVar(&f.fromSchedule, "from-schedule", "", "Schedule whose newest good backup is restored.")
	flags.StringVar(&f.into, "into", "", "Namespace to restore into. The backup, or --include-namespaces, must name one namespace.")
	flags.StringToStringVar(&f.mapping, "namespace-mappings", nil, "Namespaces by another name: OLD=NEW.")
	flags.StringToStringVar(&f.classes, "storage-class-mappings", nil, "Storage classes by another name: OLD=NEW.")
	flags.StringToStringVar(&f.images, "image-mappings", nil, "Prefixes of images: OLD=NEW.")
	flags.StringVar(&f.existing, "existing-resource-policy", "", "Objects that exist and differ: none, update or recreate. Default: none.")
	flags.StringVar(&f.existingVolumes, "existing-volume-policy", "", "Data that exists: none, keep, overwrite or replace. Default: none, which refuses.")
	flags.StringVar(&f.modifier, "resource-modifier-configmap", "", "ConfigMap with changes of objects.")
	flags.StringSliceVar(&f.paths, "path", nil, "Files or folders of volumes to restore.")
	f.persistentVolumes.addTo(flags, "restore-volumes", "Restore volumes with their data. Default: those that come back in this cluster.")
	f.nodePorts.addTo(flags, "preserve-nodeports", "Keep the node ports of Services.")
	f.referenced.addTo(flags, "include-referenced", "Include what chosen objects need. Default: true.")
	flags.BoolVar(&f.volumesOnly, "volumes-only", false, "Restore only the data of volumes.")
	flags.BoolVar(&f.planOnly, "plan-only", false, "Compute the plan, and write nothing.")
}

func (f *restoreFlags) apply(spec *v1alpha1.RestoreSpec, objects []v1alpha1.RestoreObject) error {
	set(&spec.IncludedNamespaces, f.includeNamespaces)
	set(&spec.ExcludedNamespaces, f.excludeNamespaces)
	set(&spec.IncludedResources, f.includeResources)
	set(&spec.ExcludedResources, f.excludeResources)
	set(&spec.Objects, objects)
	set(&spec.Paths, f.paths)
	text(&spec.BackupName, f.from)
	text(&spec.BackupNamespace, f.fromNamespace)
	text(&spec.ScheduleName, f.fromSchedule)
	text(&spec.ExistingResourcePolicy, v1alpha1.ExistingResourcePolicy(f.existing))
	text(&spec.ExistingVolumePolicy, v1alpha1.ExistingVolumePolicy(f.existingVolumes))
	entries(&spec.NamespaceMapping, f.mapping)
	entries(&spec.StorageClassMapping, f.classes)
	entries(&spec.ImageMapping, f.images)
	f.clusterResources.apply(&spec.IncludeClusterResources)
	f.persistentVolumes.apply(&spec.RestorePVs)
	f.nodePorts.apply(&spec.PreserveNodePorts)
	f.referenced.apply(&spec.IncludeReferenced)
	spec.VolumesOnly = spec.VolumesOnly || f.volumesOnly
	spec.PlanOnly = spec.PlanOnly || f.planOnly
	if f.modifier != "" {
		spec.ResourceModifier = &v1alpha1.RestoreModifier{Kind: "configmap", Name: f.modifier}
	}
	return f.selectors(&spec.LabelSelector, &spec.OrLabelSelectors)
}

func text[T ~string](to *T, from T) {
	if from != "" {
		*to = from
	}
}

func entries(to *map[string]string, from map[string]string) {
	if len(from) > 0 {
		*to = from
	}
}

func (o *optionalBool) apply(to **bool) {
	if o.value != nil {
		*to = o.value
	}
}

func (t *tool) mapInto(ctx context.Context, spec *v1alpha1.RestoreSpec, namespace, into string) error {
	from := spec.IncludedNamespaces
	if len(from) == 0 && spec.BackupName != "" {
		client, _, err := t.client()
		if err != nil {
			return err
		}
		backup, err := client.HoldfastV1alpha1().Backups(cmp.Or(spec.BackupNamespace, namespace)).Get(ctx, spec.BackupName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if from = backup.Spec.IncludedNamespaces; len(from) == 0 {
			from = []string{backup.Namespace}
			if origin := backup.Status.Origin; origin != nil && origin.Namespace != "" {
				from = []string{origin.Namespace}
			}
		}
	}
	if len(from) != 1 || strings.ContainsAny(from[0], "*?[") {
		return usage("--into needs one namespace, got %q: name it with --include-namespaces, or use --namespace-mappings", from)
	}
	if from[0] != into {
		spec.NamespaceMapping = map[string]string{from[0]: into}
	}
	return nil
}

func objectsOf(args []string, namespace string) (name []string, objects []v1alpha1.RestoreObject, err error) {
	for _, arg := range args {
		kind, of, isObject := strings.Cut(arg, "/")
		switch {
		case !isObject && len(name) == 0:
			name = []string{arg}
		case !isObject:
			return nil, nil, usage("got a second name %q: objects are KIND/NAME", arg)
		case kind == "" || of == "" || strings.Contains(of, "/"):
			return nil, nil, usage("%q: want KIND/NAME, such as deployment/web", arg)
		default:
			objects = append(objects, v1alpha1.RestoreObject{Resource: kind, Namespace: namespace, Name: of})
		}
	}
	return name, objects, nil
}

func (t *tool) createRestoreCommand() *cobra.Command {
	var flags createFlags
	var spec restoreFlags
	var yes bool
	command := &cobra.Command{
		Use:   "create [NAME] [KIND/NAME...]",
		Short: "Create a restore; show its plan and ask first",
		Long: `Create a restore. The command has the plan computed first, shows it and asks. With --yes it
creates the restore at once. Where nobody can answer, and without --yes, it refuses.`,
		Example: `  # One Deployment, with all that it needs
  kubectl holdfast restore create --from before-upgrade deployment/web -n shop --wait
  # The namespace beside the present one
  kubectl holdfast restore create --from before-upgrade --into shop-before -n shop --yes`,
		RunE: func(command *cobra.Command, args []string) error {
			if err := flags.check(); err != nil {
				return err
			}
			ctx := command.Context()
			_, namespace, err := t.client()
			if err != nil {
				return err
			}
			restore := &v1alpha1.Restore{}
			if err := flags.read(command.Context(), t.In, restore); err != nil {
				return err
			}
			name, objects, err := objectsOf(args, namespace)
			if err != nil {
				return err
			}
			if err := spec.apply(&restore.Spec, objects); err != nil {
				return err
			}
			flags.meta(&restore.ObjectMeta, name, namespace, "restore")
			if spec.into != "" {
				if err := t.mapInto(ctx, &restore.Spec, restore.Namespace, spec.into); err != nil {
					return err
				}
			}
			writes := flags.dryRun == "none" && !restore.Spec.PlanOnly
			if writes && !yes {
				if err := t.askWithPlan(ctx, restore); err != nil {
					return err
				}
			}
			return create(ctx, t, ofRestore, &flags, restore)
		},
	}
	flags.addTo(command.Flags(), true)
	spec.addTo(command.Flags())
	command.Flags().BoolVarP(&yes, "yes", "y", false, "Do not compute a plan, and do not ask.")
	_ = command.RegisterFlagCompletionFunc("from", t.completeNames(backups))
	_ = command.RegisterFlagCompletionFunc("from-schedule", t.completeNames(schedules))
	return command
}

func (t *tool) askWithPlan(ctx context.Context, restore *v1alpha1.Restore) error {
	if !isTerminal(t.In) {
		return usage("the restore writes into the cluster, and the input is no terminal, so nobody can answer: add --yes, or --plan-only to see the plan")
	}
	client, _, err := t.client()
	if err != nil {
		return err
	}
	planned := restore.DeepCopy()
	planned.Spec.PlanOnly = true
	// A refused plan stays for a while, so the next one needs another name.
	planned.Name, planned.GenerateName = "", cmp.Or(restore.Name, strings.TrimSuffix(restore.GenerateName, "-"))+"-plan-"
	made, err := client.HoldfastV1alpha1().Restores(restore.Namespace).Create(ctx, planned, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		return err
	}
	inner := *t
	inner.Out = t.ErrOut
	if err := await(ctx, &inner, ofRestore, made.Namespace, made.Name, planTimeout); err != nil {
		return fmt.Errorf("the plan %s: %w", made.Name, err)
	}
	*t.flags.Namespace = restore.Namespace
	plan, err := t.plan(ctx, made.Name)
	if err != nil {
		return err
	}
	if err := printPlan(t.ErrOut, plan, false); err != nil {
		return err
	}
	return t.confirm(ctx, false, fmt.Sprintf("Restore into the cluster as %s/%s?", restore.Namespace, restore.Name))
}
