// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

type findFlags struct {
	selector, objectNamespace, backup, image string
	clusterScoped, allNamespaces             bool
	limit                                    int
	format                                   string
}

func (f *findFlags) addTo(flags *pflag.FlagSet) {
	flags.StringVarP(&f.selector, "selector", "l", "", "Only objects that had these labels.")
	flags.StringVar(&f.objectNamespace, "object-namespace", "", "Namespace of the object. Default: the namespace of the backups.")
	flags.StringVar(&f.image, "image", "", "Only pods and workloads with a container of this image, such as nginx:1.27 or nginx.")
	flags.BoolVar(&f.clusterScoped, "cluster-scoped", false, "The object is in no namespace.")
	flags.BoolVarP(&f.allNamespaces, "all-namespaces", "A", false, "Search the backups of all namespaces.")
	flags.IntVar(&f.limit, "limit", 500, "Maximum number of entries, newest first.")
	flags.StringVarP(&f.format, "output", "o", "", "Output format: wide, json or yaml. Default: a table.")
}

// find reads the entries of an object, KIND/NAME or KIND, newest backup first.
func (t *tool) find(ctx context.Context, object string, f *findFlags) (*v1alpha1.BackupObjectList, error) {
	client, namespace, err := t.client()
	if err != nil {
		return nil, err
	}
	if f.allNamespaces {
		namespace = metav1.NamespaceAll
	}
	kind, name, named := strings.Cut(object, "/")
	if kind == "" && (f.image == "" || named) || named && name == "" {
		return nil, usage("%q: want KIND/NAME, such as deployment/web, or KIND", object)
	}
	switch f.format {
	case "", "wide", "json", "yaml":
	default:
		return nil, usage("output %q is unknown: use wide, json or yaml", f.format)
	}
	selected := fields.Set{}
	if kind != "" {
		selected["kind"] = kind
	}
	if f.image != "" {
		selected["image"] = f.image
	}
	if named {
		selected["name"] = name
	}
	if of := cmp.Or(f.objectNamespace, namespace); f.clusterScoped {
		selected["namespace"] = ""
	} else if of != metav1.NamespaceAll {
		selected["namespace"] = of
	}
	if f.backup != "" {
		selected["backup"] = f.backup
	}
	all := &v1alpha1.BackupObjectList{TypeMeta: typed("BackupObjectList")}
	options := metav1.ListOptions{LabelSelector: f.selector, FieldSelector: selected.AsSelector().String()}
	for {
		options.Limit = int64(max(f.limit-len(all.Items), 1))
		page, err := client.HoldfastV1alpha1().BackupObjects(namespace).List(ctx, options)
		if err != nil {
			return nil, err
		}
		all.Items = append(all.Items, page.Items...)
		if options.Continue = page.Continue; options.Continue == "" {
			return all, nil
		}
		if len(all.Items) >= f.limit {
			fmt.Fprintf(t.ErrOut, "There are more; raise --limit to see them.\n")
			return all, nil
		}
	}
}

func (t *tool) tellNotFound(f *findFlags) error {
	if f.allNamespaces {
		fmt.Fprintln(t.ErrOut, "No backup holds it.")
		return nil
	}
	_, namespace, err := t.client()
	if err != nil {
		return err
	}
	about := cmp.Or(f.objectNamespace, namespace)
	if f.clusterScoped {
		about = "no namespace"
	}
	_, err = fmt.Fprintf(t.ErrOut, "No backup of the namespace %s holds it, as an object of %s. Search all namespaces by -A, and cluster-scoped objects by --cluster-scoped.\n", namespace, about)
	return err
}

func (t *tool) findCommand() *cobra.Command {
	var f findFlags
	command := &cobra.Command{
		Use: "find [KIND[/NAME]]", Short: "List the backups that hold an object, newest first",
		Example: `  # The backups of the namespace shop that hold the Secret key
  kubectl holdfast find secret/key -n shop
  # The backups that hold a workload with an image
  kubectl holdfast find --image nginx:1.27 -n shop
  # An administrator's backups
  kubectl holdfast find deployment/web -n holdfast --object-namespace shop`,
		Args: func(command *cobra.Command, args []string) error {
			if len(args) == 0 && f.image != "" {
				return nil
			}
			return oneObject(command, args)
		},
		RunE: func(command *cobra.Command, args []string) error {
			list, err := t.find(command.Context(), strings.Join(args, ""), &f)
			if err != nil {
				return err
			}
			if f.format == "json" || f.format == "yaml" {
				return t.printObject(list, "backupobjects", "", f.format, "")
			}
			if len(list.Items) == 0 {
				return t.tellNotFound(&f)
			}
			writer := printers.GetNewTabWriter(t.Out)
			header := "BACKUP\tSTATUS\tOBJECT\tVERSION\tAGE"
			if f.format == "wide" {
				header += "\tUID\tREASON\tIMAGES"
			}
			fmt.Fprintln(writer, header)
			for i := range list.Items {
				item := &list.Items[i]
				row := fmt.Sprintf("%s\t%s\t%s\t%s\t%s", t.backupOf(item, f.allNamespaces), item.Spec.BackupPhase, objectOf(item), version(item), age(item))
				if f.format == "wide" {
					row += fmt.Sprintf("\t%s\t%s\t%s", item.Spec.UID, cmp.Or(item.Spec.Reason, "-"), cmp.Or(strings.Join(item.Spec.Images, ","), "-"))
				}
				fmt.Fprintln(writer, row)
			}
			return writer.Flush()
		},
	}
	f.addTo(command.Flags())
	command.Flags().StringVar(&f.backup, "backup", "", "Search this backup only.")
	return command
}

// objectVersion is a version of an object, with its backups, newest first.
type objectVersion struct {
	newest  *v1alpha1.BackupObject
	backups []string
}

// versions folds equal versions, in the order of their newest backups.
func (t *tool) versions(list *v1alpha1.BackupObjectList, all bool) []*objectVersion {
	type key struct{ object, uid, digest string }
	found := map[key]*objectVersion{}
	var ordered []*objectVersion
	for i := range list.Items {
		item := &list.Items[i]
		k := key{objectOf(item) + " " + item.Spec.APIVersion, string(item.Spec.UID), item.Spec.SHA256}
		if found[k] == nil {
			found[k] = &objectVersion{newest: item}
			ordered = append(ordered, found[k])
		}
		found[k].backups = append(found[k].backups, t.backupOf(item, all))
	}
	return ordered
}

// shownBackups of a version fit into a table of 80 columns.
const shownBackups = 1

func (t *tool) historyCommand() *cobra.Command {
	var f findFlags
	command := &cobra.Command{
		Use: "history KIND/NAME", Short: "List the versions of an object in all backups, equal ones together",
		Args: oneObject,
		RunE: func(command *cobra.Command, args []string) error {
			if !strings.Contains(args[0], "/") {
				return usage("%q: want KIND/NAME, such as deployment/web", args[0])
			}
			list, err := t.find(command.Context(), args[0], &f)
			if err != nil {
				return err
			}
			if f.format == "json" || f.format == "yaml" {
				return t.printObject(list, "backupobjects", "", f.format, "")
			}
			versions := t.versions(list, f.allNamespaces)
			if len(versions) == 0 {
				return t.tellNotFound(&f)
			}
			writer := printers.GetNewTabWriter(t.Out)
			fmt.Fprintln(writer, "VERSION\tOBJECT\tLAST\tBACKUPS\tHELD BY")
			for _, of := range versions {
				names := slices.Clone(of.backups)
				if f.format != "wide" && len(names) > shownBackups {
					names = append(names[:shownBackups], fmt.Sprintf("and %d more", len(of.backups)-shownBackups))
				}
				fmt.Fprintf(writer, "%s\t%s\t%s\t%d\t%s\n", version(of.newest), objectOf(of.newest), age(of.newest), len(of.backups), strings.Join(names, ", "))
			}
			return writer.Flush()
		},
	}
	f.addTo(command.Flags())
	return command
}

func oneObject(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usage("got %d arguments, want one KIND/NAME", len(args))
	}
	return nil
}

func (t *tool) backupOf(item *v1alpha1.BackupObject, all bool) string {
	if all {
		return item.Namespace + "/" + item.Spec.Backup
	}
	return item.Spec.Backup
}

func objectOf(item *v1alpha1.BackupObject) string {
	return strings.TrimPrefix(item.Spec.Namespace+"/", "/") + item.Spec.Kind + "/" + item.Spec.Name
}

func version(item *v1alpha1.BackupObject) string {
	return cmp.Or(item.Spec.SHA256[:min(12, len(item.Spec.SHA256))], "-")
}

func age(item *v1alpha1.BackupObject) string {
	return duration.HumanDuration(time.Since(item.Spec.BackupTimestamp.Time))
}
