// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const (
	backups       = "backups"
	restores      = "restores"
	schedules     = "schedules"
	volumeBackups = "volumebackups"
)

func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	command := &cobra.Command{Use: use, Short: short, Args: knownCommand, RunE: help}
	command.AddCommand(commands...)
	return command
}

func knownCommand(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("unknown command %q: see %s --help", args[0], command.CommandPath())
	}
	return nil
}

func help(command *cobra.Command, _ []string) error { return command.Help() }

func (t *tool) backupCommand() *cobra.Command {
	deletion := t.deleteCommand()
	command := group("backup", "Create, read, keep and delete backups",
		t.createBackupCommand(),
		t.getCommand(backups, "List backups", true),
		t.named(backups, "describe", "Show a backup: what it holds, what it lacks, and why", t.describeBackup),
		t.logsCommand(backups),
		t.resultsCommand(backups),
		t.named(backups, "cancel", "Cancel a backup that waits or runs", func(ctx context.Context, name string) error {
			return t.ask(ctx, backups, name, "cancel", &v1alpha1.BackupCancellation{TypeMeta: typed("BackupCancellation")})
		}),
		deletion,
		t.holdCommand(),
		t.named(backups, "release", "Release a backup that is held", func(ctx context.Context, name string) error {
			return t.ask(ctx, backups, name, "expiration", &v1alpha1.BackupExpiration{TypeMeta: typed("BackupExpiration"), Hold: new(false)})
		}),
		t.extendCommand(),
		t.treeCommand(),
		t.diffCommand(),
		t.downloadCommand(),
	)
	command.Aliases = []string{"backups"}
	return command
}

func (t *tool) deleteCommand() *cobra.Command {
	var yes, byHandle bool
	command := t.named(backups, "delete", "Delete a backup with its data, for good", func(ctx context.Context, name string) error {
		client, namespace, err := t.client()
		if err != nil {
			return err
		}
		backup, err := client.HoldfastV1alpha1().Backups(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := t.confirmName(ctx, yes, fmt.Sprintf("The backup %s in %s, %s, is deleted with the data of its volumes, for good.", name, namespace, backup.Status.Phase), name); err != nil {
			return err
		}
		// The uid ensures that it is the shown backup.
		return t.ask(ctx, backups, name, "deletion", &v1alpha1.BackupDeletion{
			TypeMeta: typed("BackupDeletion"), Preconditions: &v1alpha1.BackupDeletionPreconditions{UID: backup.UID}, SnapshotsByHandle: byHandle,
		})
	})
	command.Flags().BoolVarP(&yes, "yes", "y", false, "Do not ask.")
	command.Flags().BoolVar(&byHandle, "snapshots-by-handle", false, "Delete stored snapshots too that only the backup names, as after the loss of a cluster with the same storage.")
	return command
}

func (t *tool) holdCommand() *cobra.Command {
	var reason string
	command := t.named(backups, "hold", "Hold a backup: it neither expires nor can be deleted", func(ctx context.Context, name string) error {
		return t.ask(ctx, backups, name, "expiration", &v1alpha1.BackupExpiration{TypeMeta: typed("BackupExpiration"), Hold: new(true), Reason: reason})
	})
	command.Flags().StringVar(&reason, "reason", "", "Reason, which others see.")
	return command
}

func (t *tool) extendCommand() *cobra.Command {
	var until string
	var by time.Duration
	command := t.named(backups, "extend", "Change when a backup expires", func(ctx context.Context, name string) error {
		var at metav1.Time
		switch {
		case (until == "") == (by == 0):
			return usage("set one of --until and --for")
		case until != "":
			parsed, err := time.Parse(time.RFC3339, until)
			if err != nil {
				return usage("--until %q: want a time such as 2031-01-01T00:00:00Z", until)
			}
			at = metav1.NewTime(parsed)
		default:
			at = metav1.NewTime(time.Now().Add(by))
		}
		return t.ask(ctx, backups, name, "expiration", &v1alpha1.BackupExpiration{TypeMeta: typed("BackupExpiration"), Expiration: &at})
	})
	command.Flags().StringVar(&until, "until", "", "Time at which it expires, such as 2031-01-01T00:00:00Z.")
	command.Flags().DurationVar(&by, "for", 0, "Time from now after which it expires, such as 720h.")
	return command
}

func (t *tool) logsCommand(resource string) *cobra.Command {
	var follow bool
	command := t.named(resource, "logs", "Print the log", func(ctx context.Context, name string) error {
		parameters := map[string]string{}
		if follow {
			parameters["follow"] = "true"
		}
		return t.stream(ctx, resource, name, "log", parameters, t.Out)
	})
	command.Aliases = []string{"log"}
	command.Flags().BoolVarP(&follow, "follow", "f", false, "Continue until the end of the run.")
	return command
}

type createFlags struct {
	file, format, dryRun string
	wait                 bool
	timeout              time.Duration
	labels, annotations  map[string]string
}

func (f *createFlags) addTo(flags *pflag.FlagSet, waits bool) {
	flags.StringVarP(&f.file, "filename", "f", "", "File with the object, or - for the input. Flags change it.")
	flags.StringVarP(&f.format, "output", "o", "", "Output format: name, json or yaml.")
	flags.StringVar(&f.dryRun, "dry-run", "none", "Create nothing: client prints the object; server has it checked, and shows the plan.")
	flags.StringToStringVar(&f.labels, "labels", nil, "Labels of the object.")
	flags.StringToStringVar(&f.annotations, "annotations", nil, "Annotations of the object.")
	if waits {
		flags.BoolVarP(&f.wait, "wait", "w", false, "Wait for the end, and show the progress.")
		flags.DurationVar(&f.timeout, "timeout", 0, "Maximum time to wait. Default: no limit.")
	}
}

func (f *createFlags) check() error {
	switch f.dryRun {
	case "none", "client", "server":
	default:
		return usage("--dry-run %q: want none, client or server", f.dryRun)
	}
	switch f.format {
	case "", "name", "json", "yaml":
	default:
		return usage("--output %q: want name, json or yaml", f.format)
	}
	if f.wait && f.dryRun != "none" {
		return usage("--wait and --dry-run exclude each other")
	}
	return nil
}

func (f *createFlags) options() metav1.CreateOptions {
	options := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	if f.dryRun == "server" {
		options.DryRun = []string{metav1.DryRunAll}
	}
	return options
}

func (f *createFlags) read(ctx context.Context, in io.Reader, into any) error {
	if f.file == "" {
		return nil
	}
	var data []byte
	var err error
	if f.file == "-" {
		data, err = io.ReadAll(interruptible{in, ctx})
	} else {
		data, err = os.ReadFile(f.file)
	}
	if err != nil {
		return err
	}
	var is metav1.TypeMeta
	if want := reflect.TypeOf(into).Elem().Name(); yaml.Unmarshal(data, &is) == nil && is.Kind != "" && is.Kind != want {
		return fmt.Errorf("%s: it has the kind %s, want %s", f.file, is.Kind, want)
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		return fmt.Errorf("%s: %w", f.file, err)
	}
	return nil
}

func (f *createFlags) meta(meta *metav1.ObjectMeta, args []string, namespace, prefix string) {
	if len(args) > 0 {
		meta.Name = args[0]
	}
	if meta.Name == "" && meta.GenerateName == "" {
		meta.Name = prefix + "-" + time.Now().UTC().Format("20060102-150405")
	}
	if meta.Namespace == "" {
		meta.Namespace = namespace
	}
	for key, value := range f.labels {
		metav1.SetMetaDataLabel(meta, key, value)
	}
	for key, value := range f.annotations {
		metav1.SetMetaDataAnnotation(meta, key, value)
	}
}

type selection struct {
	includeNamespaces, excludeNamespaces, includeResources, excludeResources []string
	selector                                                                 string
	orSelectors                                                              []string
	clusterResources                                                         optionalBool
}

type optionalBool struct{ value *bool }

func (o *optionalBool) String() string {
	if o.value == nil {
		return ""
	}
	return fmt.Sprint(*o.value)
}

func (o *optionalBool) Set(text string) error {
	switch strings.ToLower(text) {
	case "true":
		o.value = new(true)
	case "false":
		o.value = new(false)
	default:
		return fmt.Errorf("want true or false")
	}
	return nil
}

func (o *optionalBool) Type() string { return "true|false" }

func (o *optionalBool) addTo(flags *pflag.FlagSet, name, help string) {
	flags.Var(o, name, help)
	flags.Lookup(name).NoOptDefVal = "true"
}

func (s *selection) addTo(flags *pflag.FlagSet) {
	flags.StringSliceVar(&s.includeNamespaces, "include-namespaces", nil, "Namespaces to include, by name or pattern.")
	flags.StringSliceVar(&s.excludeNamespaces, "exclude-namespaces", nil, "Namespaces to leave out.")
	flags.StringSliceVar(&s.includeResources, "include-resources", nil, "Resources to include, as in kubectl get. Default: all.")
	flags.StringSliceVar(&s.excludeResources, "exclude-resources", nil, "Resources to leave out.")
	flags.StringVarP(&s.selector, "selector", "l", "", "Only objects with these labels.")
	flags.StringArrayVar(&s.orSelectors, "or-selector", nil, "Only objects that match one of these selectors. Repeat the flag for each.")
	s.clusterResources.addTo(flags, "include-cluster-resources", "Include all cluster-scoped objects, or none. Default: those that others need.")
}

func set[T any](to *[]T, from []T) {
	if len(from) > 0 {
		*to = from
	}
}

func (s *selection) selectors(label **metav1.LabelSelector, or *[]*metav1.LabelSelector) error {
	if s.selector != "" {
		parsed, err := metav1.ParseToLabelSelector(s.selector)
		if err != nil {
			return usage("--selector: %v", err)
		}
		*label = parsed
	}
	for _, text := range s.orSelectors {
		parsed, err := metav1.ParseToLabelSelector(text)
		if err != nil {
			return usage("--or-selector: %v", err)
		}
		*or = append(*or, parsed)
	}
	return nil
}

type backupFlags struct {
	selection
	includeCluster, excludeCluster, includeNamespaced, excludeNamespaced []string
	ttl, cutTimeout, readyTimeout                                        time.Duration
	location, policies                                                   string
	volumes, referenced, snapshots, moveData                             optionalBool
	ordered                                                              map[string]string
}

func (f *backupFlags) addTo(flags *pflag.FlagSet) {
	f.selection.addTo(flags)
	flags.StringSliceVar(&f.includeCluster, "include-cluster-scoped-resources", nil, "Cluster-scoped resources to include.")
	flags.StringSliceVar(&f.excludeCluster, "exclude-cluster-scoped-resources", nil, "Cluster-scoped resources to leave out.")
	flags.StringSliceVar(&f.includeNamespaced, "include-namespace-scoped-resources", nil, "Namespaced resources to include.")
	flags.StringSliceVar(&f.excludeNamespaced, "exclude-namespace-scoped-resources", nil, "Namespaced resources to leave out.")
	flags.DurationVar(&f.ttl, "ttl", 0, "Time after which the backup expires. Default: the cluster's, 720h.")
	flags.StringVar(&f.location, "storage-location", "", "Storage location. Default: the cluster's default location.")
	flags.StringVar(&f.policies, "resource-policies-configmap", "", "ConfigMap with volume policies.")
	f.volumes.addTo(flags, "default-volumes-to-fs-backup", "Files of all volumes, or of those that pods name. Default: of all claims.")
	f.snapshots.addTo(flags, "snapshot-volumes", "Read the data of claims from snapshots by their CSI drivers. Default: if the driver's class is labelled for it.")
	f.moveData.addTo(flags, "snapshot-move-data", "Move the data of snapshots into the storage location. If false, they stay in the storage of their volumes, and are no second copies. Default: the controller's.")
	flags.DurationVar(&f.cutTimeout, "csi-snapshot-timeout", 0, "Time until a snapshot must be cut. Default: 10m.")
	flags.DurationVar(&f.readyTimeout, "item-operation-timeout", 0, "Time from its cut until a snapshot must be ready to use. Default: 4h.")
	f.referenced.addTo(flags, "include-referenced", "Include what selected objects need. Default: true.")
	flags.StringToStringVar(&f.ordered, "ordered-resources", nil, "Objects to take first: RESOURCE=NAME,NAME. Repeat the flag for each resource.")
}

func (f *backupFlags) apply(spec *v1alpha1.BackupSpec) error {
	set(&spec.IncludedNamespaces, f.includeNamespaces)
	set(&spec.ExcludedNamespaces, f.excludeNamespaces)
	set(&spec.IncludedResources, f.includeResources)
	set(&spec.ExcludedResources, f.excludeResources)
	set(&spec.IncludedClusterScopedResources, f.includeCluster)
	set(&spec.ExcludedClusterScopedResources, f.excludeCluster)
	set(&spec.IncludedNamespaceScopedResources, f.includeNamespaced)
	set(&spec.ExcludedNamespaceScopedResources, f.excludeNamespaced)
	f.clusterResources.apply(&spec.IncludeClusterResources)
	f.volumes.apply(&spec.DefaultVolumesToFsBackup)
	f.snapshots.apply(&spec.SnapshotVolumes)
	f.moveData.apply(&spec.SnapshotMoveData)
	f.referenced.apply(&spec.IncludeReferenced)
	if f.ttl != 0 {
		spec.TTL = v1alpha1.Duration{Duration: f.ttl}
	}
	if f.cutTimeout != 0 {
		spec.CSISnapshotTimeout = v1alpha1.Duration{Duration: f.cutTimeout}
	}
	if f.readyTimeout != 0 {
		spec.ItemOperationTimeout = v1alpha1.Duration{Duration: f.readyTimeout}
	}
	if f.location != "" {
		spec.StorageLocation = f.location
	}
	if f.policies != "" {
		spec.ResourcePolicy = &v1alpha1.ResourcePolicyReference{Kind: "configmap", Name: f.policies}
	}
	if len(f.ordered) > 0 {
		spec.OrderedResources = f.ordered
	}
	return f.selectors(&spec.LabelSelector, &spec.OrLabelSelectors)
}

func (t *tool) createBackupCommand() *cobra.Command {
	var flags createFlags
	var spec backupFlags
	var schedule string
	var showObjects bool
	command := &cobra.Command{
		Use:   "create [NAME]",
		Short: "Create a backup",
		Example: `  # The namespace shop, with the data of its claims
  kubectl holdfast backup create before-upgrade -n shop --wait
  # What the backup would hold, and what would become of its volumes
  kubectl holdfast backup create before-upgrade -n shop --dry-run=server
  # All objects that the backup would hold
  kubectl holdfast backup create before-upgrade -n shop --dry-run=server --show-objects
  # What a schedule would make now
  kubectl holdfast backup create --from-schedule nightly -n shop`,
		Args: func(command *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("got %d names, want one at most", len(args))
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			if err := flags.check(); err != nil {
				return err
			}
			ctx := command.Context()
			_, namespace, err := t.client()
			if err != nil {
				return err
			}
			if schedule != "" {
				if len(args) > 0 || flags.file != "" {
					return usage("--from-schedule names the backup itself: leave out NAME and --filename")
				}
				return t.trigger(ctx, schedule, flags.wait, flags.timeout)
			}
			backup := &v1alpha1.Backup{}
			if err := flags.read(command.Context(), t.In, backup); err != nil {
				return err
			}
			if err := spec.apply(&backup.Spec); err != nil {
				return err
			}
			flags.meta(&backup.ObjectMeta, args, namespace, "backup")
			if showObjects {
				if flags.dryRun != "server" || flags.format != "" {
					return usage("--show-objects needs --dry-run=server, and no --output")
				}
				return t.showPlannedObjects(ctx, backup)
			}
			return create(ctx, t, ofBackup, &flags, backup)
		},
	}
	flags.addTo(command.Flags(), true)
	spec.addTo(command.Flags())
	command.Flags().BoolVar(&showObjects, "show-objects", false, "With --dry-run=server, print all objects that the backup would hold.")
	command.Flags().StringVar(&schedule, "from-schedule", "", "Schedule whose next backup is made now.")
	_ = command.RegisterFlagCompletionFunc("from-schedule", t.completeNames(schedules))
	return command
}
