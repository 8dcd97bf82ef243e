// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

func (t *tool) keysCommand() *cobra.Command {
	return group("keys", "Keep the repositories' keys outside of the cluster", t.keysStatusCommand(), t.keysExportCommand(), t.keysRotateCommand())
}

func (t *tool) keysStatusCommand() *cobra.Command {
	var system string
	command := &cobra.Command{
		Use: "status", Short: "Show whether each repository's key is kept outside of the cluster",
		Long: "Show whether each repository's key is kept outside of the cluster. The exit code is 1\nif one is not.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return t.keysStatus(command.Context(), system) },
	}
	systemFlag(command, &system)
	return command
}

func (t *tool) keysStatus(ctx context.Context, system string) error {
	all, err := t.clients()
	if err != nil {
		return err
	}
	_, _ = all.findSystem(ctx, &system) // else the default
	list, err := all.engine.EngineV1alpha1().VolumeRepositories(system).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(list.Items) == 0 {
		fmt.Fprintln(t.ErrOut, "There are no repositories, and so no keys, yet.")
		return nil
	}
	missing := 0
	writer := printers.GetNewTabWriter(t.Out)
	fmt.Fprintln(writer, "NAMESPACE\tLOCATION\tKEY\tFINGERPRINT\tMESSAGE")
	for _, of := range list.Items {
		key := conditionOf(of.Status.Conditions, enginev1alpha1.ConditionKeyBackedUp)
		if key.Status != metav1.ConditionTrue {
			missing++
		}
		fmt.Fprintf(writer, "%s\t%s\t%s\t%s\t%s\n", of.Spec.VolumeNamespace, of.Spec.BackupStorageLocation, cmp.Or(key.Reason, "-"), cmp.Or(of.Status.KeyFingerprint, "-"), cmp.Or(key.Message, "-"))
	}
	if err := writer.Flush(); err != nil {
		return err
	}
	if missing > 0 {
		return fmt.Errorf("of %d keys, %d are in this cluster only, or are not known yet: name recovery keys in the storage locations, or run kubectl holdfast keys export", len(list.Items), missing)
	}
	return nil
}

// keysRotateCommand prints the command of the program holdfast. The plugin gets none of the store's credentials,
// which a rotation needs.
func (t *tool) keysRotateCommand() *cobra.Command {
	var system string
	command := &cobra.Command{
		Use: "rotate NAMESPACE.LOCATION", Short: "Show the command that gives a repository another key",
		Long: `Show the command of the program holdfast that gives a repository another key. This
plugin can't: a rotation opens the repository in its store, with the store's
credentials, which the plugin never reads. No request to the API does it either,
since each exported key is outdated after a rotation. So it takes the rights to the
Secrets themselves. The exit code is 2.`,
		Example: `  kubectl holdfast keys rotate shop.default`,
		Args:    oneName,
		RunE: func(command *cobra.Command, args []string) error {
			namespace, location, ok := strings.Cut(args[0], ".")
			if !ok || namespace == "" || location == "" {
				return usage("%q: want the name of a repository, NAMESPACE.LOCATION: kubectl holdfast keys status lists them", args[0])
			}
			kubeconfig := "$HOME/.kube/config"
			if of := t.flags.KubeConfig; of != nil && *of != "" {
				kubeconfig = *of
			}
			given := ""
			if system != "" && system != defaultSystem {
				given = " --namespace=" + system
			}
			return usage("nothing was rotated: this needs the store's credentials, which this plugin doesn't read. Run the program holdfast where it reaches the store:\n\n"+
				"  holdfast repo-key rotate --repo-name=%s --backup-storage-location=%s%s --kubeconfig=%q\n\n"+
				"Then keep the new key outside of the cluster, unless its storage location has recovery keys:\n\n"+
				"  kubectl holdfast keys export %s --output-file %s.yaml", namespace, location, given, kubeconfig, args[0], args[0])
		},
	}
	systemFlag(command, &system)
	return command
}

type exportFlags struct {
	system, file string
	stdout       bool
}

func (t *tool) keysExportCommand() *cobra.Command {
	var f exportFlags
	command := &cobra.Command{
		Use: "export [NAMESPACE.LOCATION...]", Short: "Write the Secrets with the repositories' keys into a file, to be kept outside of the cluster",
		Long: `Write the Secrets with the repositories' keys into a new file that only you may
read, as kubectl create takes them in another cluster. Each exported key is noted
in its VolumeRepository.

You need the right to get and list Secrets in the namespace of the keys, and to
get and update VolumeRepositories.`,
		Example: `  kubectl holdfast keys export --output-file keys.yaml
  kubectl holdfast keys export shop.default --stdout | age -r age1... >shop.age`,
		RunE: func(command *cobra.Command, args []string) error { return t.keysExport(command.Context(), &f, args) },
	}
	command.Flags().StringVar(&f.file, "output-file", "", "New file for the keys. An existing one is not changed.")
	command.Flags().BoolVar(&f.stdout, "stdout", false, "Print the keys, on a terminal too.")
	systemFlag(command, &f.system)
	return command
}

func (t *tool) keysExport(ctx context.Context, f *exportFlags, names []string) error {
	if (f.file == "") == !f.stdout {
		return usage("set one of --output-file and --stdout: keys are printed only on demand")
	}
	all, err := t.clients()
	if err != nil {
		return err
	}
	_, _ = all.findSystem(ctx, &f.system) // else the default
	secrets, err := all.keySecrets(ctx, f.system, names)
	if err != nil {
		return err
	}
	if len(secrets) == 0 {
		return errors.New("there are no repositories, and so no keys, yet")
	}
	var text bytes.Buffer
	for _, secret := range secrets {
		of := corev1.Secret{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Name: secret.Name, Namespace: secret.Namespace, Labels: secret.Labels},
			Type:       secret.Type, Data: secret.Data,
		}
		document, err := yaml.Marshal(of)
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "---\n%s", document)
	}
	if f.stdout {
		if _, err := t.Out.Write(text.Bytes()); err != nil {
			return err
		}
	} else if err := writeNew(f.file, text.Bytes()); err != nil {
		return err
	}
	// Only written keys count as exported.
	var errs []error
	for _, secret := range secrets {
		errs = append(errs, all.noteExport(ctx, f.system, &secret))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the keys are written; noting that in the cluster failed, so the condition %s does not change: %w", enginev1alpha1.ConditionKeyBackedUp, err)
	}
	fmt.Fprintf(t.ErrOut, "%s exported. Keep them where the loss of this cluster does not take them along.\n", counted(len(secrets), "key"))
	return nil
}

// keySecrets returns the Secrets with the keys of repositories; of all, without names.
func (c *clients) keySecrets(ctx context.Context, system string, names []string) (found []corev1.Secret, err error) {
	of := c.kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(system))
	if len(names) == 0 {
		list, err := of.List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		return slices.DeleteFunc(list.Items, func(secret corev1.Secret) bool {
			_, _, ok := repositoryOf(&secret)
			return !ok
		}), nil
	}
	for _, name := range names {
		secret, err := of.Get(ctx, enginev1alpha1.KeySecretName(name), metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		if _, _, ok := repositoryOf(secret); !ok {
			return nil, fmt.Errorf("the Secret %s has no key %s: want the name of a repository, NAMESPACE.LOCATION", secret.Name, enginev1alpha1.KeySecretKey)
		}
		found = append(found, *secret)
	}
	return found, nil
}

// repositoryOf returns the repository and the key in a Secret, or false.
func repositoryOf(secret *corev1.Secret) (name, key string, ok bool) {
	name, isKey := strings.CutSuffix(secret.Name, enginev1alpha1.KeySecretName(""))
	key = strings.TrimSpace(string(secret.Data[enginev1alpha1.KeySecretKey]))
	return name, key, isKey && key != "" && strings.Contains(name, ".")
}

// noteExport records that the key in a Secret was exported. It ignores a missing record.
func (c *clients) noteExport(ctx context.Context, system string, secret *corev1.Secret) error {
	name, key, _ := repositoryOf(secret)
	namespace, _, _ := strings.Cut(name, ".")
	fingerprint, err := format.KeyFingerprint(key, namespace)
	if err != nil {
		return err
	}
	records := c.engine.EngineV1alpha1().VolumeRepositories(system)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		record, err := records.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil || record.Annotations[enginev1alpha1.AnnotationKeyExported] == fingerprint {
			return err
		}
		metav1.SetMetaDataAnnotation(&record.ObjectMeta, enginev1alpha1.AnnotationKeyExported, fingerprint)
		_, err = records.Update(ctx, record, metav1.UpdateOptions{})
		return err
	})
}

// writeNew writes a new file that only its owner may read.
func writeNew(path string, data []byte) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}
