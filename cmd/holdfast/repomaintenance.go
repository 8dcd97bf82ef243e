// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	engineclientset "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
	"github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/maintenance"
)

// repoMaintenanceOptions are the flags of a maintenance. The first three are Velero's.
type repoMaintenanceOptions struct {
	client         clientOptions
	repoNames      []string
	repoType       string
	location       string
	terminationLog string
	dryRun         bool
	acceptMissing  bool
	verify         bool
	onlyVerify     bool
	repoTimeout    time.Duration
}

func newRepoMaintenanceCommand() *cobra.Command {
	options := &repoMaintenanceOptions{terminationLog: "/dev/termination-log"}
	command := &cobra.Command{
		Use:   "repo-maintenance",
		Short: "Maintain repositories, and end",
		RunE: func(command *cobra.Command, _ []string) error {
			message, err := options.run(command.Context())
			if message == "" && err != nil {
				message = err.Error()
			}
			options.end(command.Context(), message)
			return err
		},
	}
	flags := command.Flags()
	flags.BoolVar(&options.dryRun, "dry-run", false, "Only report how many snapshots of deleted backups would be removed.")
	flags.BoolVar(&options.acceptMissing, "accept-missing-backups", false, "Remove the snapshots of backups that are missing from the store, however many are missing.")
	flags.BoolVar(&options.verify, "verify", false, "Also read every pack. Otherwise a full maintenance reads a share of them.")
	options.addFlags(flags)
	flags.StringVar(&options.terminationLog, "termination-log", options.terminationLog, "File for the termination message. A missing file is not created.")
	return role(command)
}

func newRepoCommand() *cobra.Command {
	command := &cobra.Command{Use: "repo", Short: "What is about single repositories"}
	command.AddCommand(newRepoVerifyCommand())
	return command
}

func newRepoVerifyCommand() *cobra.Command {
	options := &repoMaintenanceOptions{onlyVerify: true}
	command := &cobra.Command{
		Use:   "verify",
		Short: "Read every pack of repositories, and say what the store has lost",
		RunE: func(command *cobra.Command, _ []string) error {
			_, err := options.run(command.Context())
			return err
		},
	}
	options.addFlags(command.Flags())
	return role(command)
}

func (o *repoMaintenanceOptions) addFlags(flags *pflag.FlagSet) {
	o.client.addFlags(flags)
	flags.StringArrayVar(&o.repoNames, "repo-name", nil, "Namespace of the repository's volumes. May be repeated: each repository is handled, even if others fail.")
	flags.DurationVar(&o.repoTimeout, "repo-timeout", 0, "Maximum time for each repository. 0 means no limit.")
	flags.StringVar(&o.repoType, "repo-type", enginev1alpha1.RepositoryTypeKopia, "Kind of the repositories: kopia.")
	flags.StringVar(&o.location, "backup-storage-location", "", "Name of the repositories' storage location.")
}

func (o *repoMaintenanceOptions) validate() error {
	errs := []error{o.client.validate()}
	if len(o.repoNames) == 0 {
		errs = append(errs, errors.New("--repo-name must be set"))
	}
	for _, name := range o.repoNames {
		for _, problem := range validation.IsDNS1123Label(name) {
			errs = append(errs, fmt.Errorf("--repo-name must be the name of a namespace, but is %q: %s", name, problem))
		}
	}
	if o.repoType != enginev1alpha1.RepositoryTypeKopia {
		errs = append(errs, fmt.Errorf("--repo-type must be %s, but is %q", enginev1alpha1.RepositoryTypeKopia, o.repoType))
	}
	if o.location == "" {
		errs = append(errs, errors.New("--backup-storage-location must be set"))
	}
	return errors.Join(errs...)
}

// run maintains the repositories one by one, prints a line for each, and returns the termination message. A stop
// is no failure.
func (o *repoMaintenanceOptions) run(ctx context.Context) (message string, err error) {
	if err := o.validate(); err != nil {
		return "", err
	}
	config, err := o.client.config("repo-maintenance")
	if err != nil {
		return "", err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	engine, err := engineclientset.NewForConfig(config)
	if err != nil {
		return "", err
	}
	published, err := kube.CoreV1().ConfigMaps(o.client.namespace).Get(ctx, identity.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("finding out which cluster this is: %w", err)
	}
	own := identity.Of(published)
	maintainer := &maintenance.Maintainer{
		Namespace:     o.client.namespace,
		Identity:      "holdfast-repo-maintenance-" + uuid.NewString()[:8],
		Engine:        engine.EngineV1alpha1(),
		Secrets:       kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(o.client.namespace)),
		Keys:          kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(o.client.namespace)),
		Leases:        kube.CoordinationV1().Leases(enginev1alpha1.MaintenanceNamespace(o.client.namespace)),
		ClusterUID:    own.UID,
		PublicKeys:    own.Keys,
		DryRun:        o.dryRun,
		AcceptMissing: o.acceptMissing,
		Verify:        o.verify,
		OnlyVerify:    o.onlyVerify,
		Clock:         clock.RealClock{},
	}
	var results []maintenance.Result
	slices.Sort(o.repoNames)
	for _, name := range slices.Compact(o.repoNames) {
		result := withTimeout(ctx, o.repoTimeout, func(ctx context.Context) maintenance.Result { return maintainer.Maintain(ctx, name, o.location) })
		fmt.Println(result)
		// In case it is killed.
		if results = append(results, result); len(results) > 1 {
			o.end(ctx, maintenance.Message(results))
		}
	}
	if o.onlyVerify {
		return "", errors.Join(maintenance.Failed(results), maintenance.Lost(results))
	}
	return maintenance.Message(results), maintenance.Failed(results)
}

func withTimeout(ctx context.Context, limit time.Duration, maintain func(context.Context) maintenance.Result) maintenance.Result {
	if limit == 0 {
		return maintain(ctx)
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	result := maintain(limited)
	if result.Cancelled && ctx.Err() == nil {
		result.Cancelled, result.Error = false, fmt.Sprintf("it had not ended after %s", limit)
	}
	return result
}

func (o *repoMaintenanceOptions) end(ctx context.Context, message string) {
	file, err := os.OpenFile(o.terminationLog, os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err == nil {
		_, err = file.WriteString(message)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Writing the message to end with failed")
	}
}
