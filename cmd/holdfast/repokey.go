// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
	"github.com/holdfast-io/holdfast/pkg/liveness"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
)

// repoKeyOptions are the flags of what an administrator does with a repository's key, with
// their own rights.
type repoKeyOptions struct {
	client   clientOptions
	repoName string
	location string
}

func newRepoKeyCommand() *cobra.Command {
	options := &repoKeyOptions{}
	command := &cobra.Command{
		Use:   "repo-key",
		Short: "Print the key of a repository, or give it another one",
	}
	flags := command.PersistentFlags()
	options.client.addFlags(flags)
	flags.StringVar(&options.repoName, "repo-name", "", "Namespace whose volumes the repository holds.")
	flags.StringVar(&options.location, "backup-storage-location", "", "Name of the storage location that the repository lies in.")
	command.AddCommand(role(&cobra.Command{
		Use:   "export",
		Short: "Print the key, with which Kopia opens the repository, to be kept where the cluster's loss does not take it along",
		RunE: func(command *cobra.Command, _ []string) error {
			return options.run(command.Context(), func(ctx context.Context, kube kubernetes.Interface, _ engineclient.Interface) error {
				key, err := opener.Key(ctx, kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(options.client.namespace)), options.repository())
				if err == nil {
					_, err = fmt.Println(string(key))
				}
				return err
			})
		},
	}), role(&cobra.Command{
		Use:   "rotate",
		Short: "Give the repository a new random key, which the Secret then has",
		RunE: func(command *cobra.Command, _ []string) error {
			return options.run(command.Context(), options.rotate)
		},
	}))
	return command
}

func (o *repoKeyOptions) repository() string {
	return enginev1alpha1.RepositoryName(o.repoName, o.location)
}

func (o *repoKeyOptions) run(ctx context.Context, do func(context.Context, kubernetes.Interface, engineclient.Interface) error) error {
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
	config, err := o.client.config("repo-key")
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	engine, err := engineclient.NewForConfig(config)
	if err != nil {
		return err
	}
	return do(ctx, kube, engine)
}

// rotate changes the key while nobody maintains the repository.
func (o *repoKeyOptions) rotate(ctx context.Context, kube kubernetes.Interface, engine engineclient.Interface) error {
	stored, err := engine.EngineV1alpha1().StorageLocations(o.client.namespace).Get(ctx, o.location, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the storage location: %w", err)
	}
	leases := kube.CoordinationV1().Leases(enginev1alpha1.MaintenanceNamespace(o.client.namespace))
	err = liveness.Exclusively(ctx, leases, o.repository(), "holdfast-repo-key-"+uuid.NewString()[:8], clock.RealClock{}, func(ctx context.Context) error {
		return opener.Rotate(ctx, kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(o.client.namespace)),
			kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(o.client.namespace)), stored, o.repoName)
	})
	if errors.Is(err, liveness.ErrHeld) {
		return fmt.Errorf("the repository is being maintained, try again when that has ended: %w", err)
	}
	if err == nil {
		fmt.Println("the repository", o.repository(), "has a new key; export it, and keep it where you keep the others")
	}
	return err
}
