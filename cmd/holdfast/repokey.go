// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/backuprun"
	"github.com/holdfast-io/holdfast/pkg/controllers/clusteridentity"
	repositorycontroller "github.com/holdfast-io/holdfast/pkg/controllers/repository"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineclientset "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
)

// repoKeyOptions are the flags for commands about repositories' keys, with the administrator's rights.
type repoKeyOptions struct {
	client   clientOptions
	repoName string
	location string
	all      bool
	recovery recoverOptions
}

type keyClients struct {
	kube   kubernetes.Interface
	engine engineclientset.Interface
}

func newRepoKeyCommand() *cobra.Command {
	options := &repoKeyOptions{}
	command := &cobra.Command{
		Use:   "repo-key",
		Short: "Print the key of a repository, give it another one, or get keys back from a store",
	}
	flags := command.PersistentFlags()
	options.client.addFlags(flags)
	flags.StringVar(&options.repoName, "repo-name", "", "Namespace of the repository's volumes.")
	flags.StringVar(&options.location, "backup-storage-location", "", "Name of the repository's storage location.")
	export := &cobra.Command{
		Use:   "export",
		Short: "Print the key, with which Kopia opens the repository, to be kept where the cluster's loss does not take it along",
		RunE: func(command *cobra.Command, _ []string) error {
			if options.all {
				return options.exportAll(command.Context())
			}
			return options.run(command.Context(), options.export)
		},
	}
	export.Flags().BoolVar(&options.all, "all", false, "Print the Secrets with the keys of all repositories, as kubectl create takes them in another cluster.")
	recovered := &cobra.Command{
		Use:   "recover",
		Short: "Print the Secrets with the keys that are in a store, encrypted for a recovery key, as kubectl create takes them in another cluster",
		RunE: func(command *cobra.Command, _ []string) error {
			return options.recover(command.Context())
		},
	}
	options.recovery.addFlags(recovered.Flags())
	command.AddCommand(role(export), role(&cobra.Command{
		Use:   "rotate",
		Short: "Give the repository a new random key, which the Secret then has",
		RunE: func(command *cobra.Command, _ []string) error {
			return options.run(command.Context(), options.rotate)
		},
	}), role(recovered))
	return command
}

func (o *repoKeyOptions) repository() string {
	return enginev1alpha1.RepositoryName(o.repoName, o.location)
}

func (o *repoKeyOptions) run(ctx context.Context, do func(context.Context, keyClients) error) error {
	errs := []error{o.client.validate()}
	for _, problem := range validation.IsDNS1123Label(o.repoName) {
		errs = append(errs, fmt.Errorf("--repo-name must be the name of a namespace, but is %q: %s", o.repoName, problem))
	}
	if o.location == "" {
		errs = append(errs, errors.New("--backup-storage-location must be set"))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	clients, err := o.clients()
	if err != nil {
		return err
	}
	return do(ctx, clients)
}

func (o *repoKeyOptions) clients() (clients keyClients, err error) {
	config, err := o.client.config("repo-key")
	if err != nil {
		return clients, err
	}
	if clients.kube, err = kubernetes.NewForConfig(config); err != nil {
		return clients, err
	}
	clients.engine, err = engineclientset.NewForConfig(config)
	return clients, err
}

func (o *repoKeyOptions) keys(clients keyClients) corev1client.SecretInterface {
	return clients.kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(o.client.namespace))
}

func (o *repoKeyOptions) export(ctx context.Context, clients keyClients) error {
	key, err := opener.Key(ctx, o.keys(clients), o.repository())
	if err != nil {
		return err
	}
	if _, err := fmt.Println(string(key)); err != nil {
		return err
	}
	return o.exported(ctx, clients, o.repository(), o.repoName, key)
}

func (o *repoKeyOptions) exportAll(ctx context.Context) error {
	err := o.client.validate()
	if o.repoName != "" || o.location != "" {
		err = errors.Join(err, errors.New("--all is for all repositories: give it without --repo-name and --backup-storage-location"))
	}
	if err != nil {
		return err
	}
	clients, err := o.clients()
	if err != nil {
		return err
	}
	secrets, err := o.keys(clients).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("reading the keys of the repositories: %w", err)
	}
	var errs []error
	for _, secret := range secrets.Items {
		name, isKey := strings.CutSuffix(secret.Name, enginev1alpha1.KeySecretName(""))
		namespace, _, isName := strings.Cut(name, ".")
		if !isKey || !isName {
			continue
		}
		// The printed key, not the Secret's present one.
		key := repository.Key(strings.TrimSpace(string(secret.Data[enginev1alpha1.KeySecretKey])))
		err := opener.ErrNoKey
		if key != "" {
			err = printSecret(os.Stdout, keySecret(o.client.namespace, name, secret.Data))
		}
		if err == nil {
			err = o.exported(ctx, clients, name, namespace, key)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (o *repoKeyOptions) exported(ctx context.Context, clients keyClients, name, volumeNamespace string, key repository.Key) error {
	fingerprint, err := key.Fingerprint(volumeNamespace)
	if err == nil {
		err = o.annotate(ctx, clients, name, &fingerprint)
	}
	if err != nil {
		return fmt.Errorf("the key is printed; noting that down in the VolumeRepository failed, so its condition %s does not change: %w", enginev1alpha1.ConditionKeyBackedUp, err)
	}
	return nil
}

// annotate records which key was exported. It ignores a missing record.
func (o *repoKeyOptions) annotate(ctx context.Context, clients keyClients, name string, fingerprint *string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{enginev1alpha1.AnnotationKeyExported: fingerprint}}})
	if err != nil {
		return err
	}
	_, err = clients.engine.EngineV1alpha1().VolumeRepositories(o.client.namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func keySecret(system, repository string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: enginev1alpha1.KeysNamespace(system), Name: enginev1alpha1.KeySecretName(repository),
			Labels: map[string]string{repositorycontroller.LabelKey: "true", format.LabelExclude: "true"},
		},
		Type: corev1.SecretTypeOpaque,
		Data: data,
	}
}

func printSecret(out io.Writer, secret *corev1.Secret) error {
	text, err := yaml.Marshal(secret)
	if err == nil {
		_, err = fmt.Fprintf(out, "---\n%s", text)
	}
	return err
}

// rotate changes the key while holding the maintenance's Lease.
func (o *repoKeyOptions) rotate(ctx context.Context, clients keyClients) error {
	stored, err := clients.engine.EngineV1alpha1().StorageLocations(o.client.namespace).Get(ctx, o.location, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the storage location: %w", err)
	}
	var cluster format.Cluster
	if len(stored.Spec.RecoveryKeys) > 0 {
		if cluster, err = backuprun.Cluster(ctx, clients.kube, o.client.namespace); err != nil {
			return err
		}
		if cluster.Key, err = clusteridentity.Stored(ctx, clients.kube.CoreV1().Secrets(o.client.namespace)); err != nil {
			return err
		}
	}
	leases := clients.kube.CoordinationV1().Leases(enginev1alpha1.MaintenanceNamespace(o.client.namespace))
	err = lease.Exclusively(ctx, leases, o.repository(), "holdfast-repo-key-"+uuid.NewString()[:8], clock.RealClock{}, func(ctx context.Context) error {
		return opener.Rotate(ctx, clients.kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(o.client.namespace)), o.keys(clients), stored, o.repoName, cluster)
	})
	if errors.Is(err, lease.ErrHeld) {
		return fmt.Errorf("the repository is being maintained, try again when that has ended: %w", err)
	}
	if err != nil {
		return err
	}
	if len(stored.Spec.RecoveryKeys) > 0 {
		fmt.Println("the repository", o.repository(), "has a new key, which is in the store, encrypted for", strings.Join(stored.Spec.RecoveryKeys, ", "))
	} else {
		fmt.Println("the repository", o.repository(), "has a new key; export it, and keep it where you keep the others")
	}
	// The exported key is outdated. The controller notices the annotation.
	if err := o.annotate(ctx, clients, o.repository(), nil); err != nil {
		return fmt.Errorf("the key was rotated; telling the VolumeRepository failed, so its condition %s changes within an hour: %w", enginev1alpha1.ConditionKeyBackedUp, err)
	}
	return nil
}
