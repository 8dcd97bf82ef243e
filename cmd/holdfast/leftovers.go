// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/leftovers"
	engineclientset "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
	"github.com/holdfast-io/holdfast/pkg/identity"
)

type leftoversOptions struct {
	client   clientOptions
	location string
}

func newLeftoversCommand() *cobra.Command {
	options := &leftoversOptions{}
	command := &cobra.Command{
		Use:   "leftovers",
		Short: "Print what the controller would remove from a storage location, since nobody needs it, and remove nothing",
		RunE:  func(command *cobra.Command, _ []string) error { return options.run(command.Context()) },
	}
	flags := command.Flags()
	options.client.addFlags(flags)
	flags.StringVar(&options.location, "backup-storage-location", "", "Name of the storage location.")
	return role(command)
}

func (o *leftoversOptions) run(ctx context.Context) error {
	err := o.client.validate()
	if o.location == "" {
		err = errors.Join(err, errors.New("--backup-storage-location must be set"))
	}
	if err != nil {
		return err
	}
	config, err := o.client.config("leftovers")
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	clientset, err := engineclientset.NewForConfig(config)
	if err != nil {
		return err
	}
	engine := clientset.EngineV1alpha1()
	published, err := kube.CoreV1().ConfigMaps(o.client.namespace).Get(ctx, identity.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("finding out which cluster this is: %w", err)
	}
	record, err := engine.StorageLocations(o.client.namespace).Get(ctx, o.location, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the storage location: %w", err)
	}
	lines := json.NewEncoder(os.Stdout)
	lines.SetEscapeHTML(false)
	var failed error
	err = leftovers.List(ctx, leftovers.Config{
		Namespace: o.client.namespace, ClusterUID: identity.Of(published).UID,
		Runs: engine.BackupRuns(o.client.namespace), Restores: engine.RestoreRuns(o.client.namespace),
		Secrets: kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(o.client.namespace)),
	}, record, func(leftover leftovers.Leftover) { failed = errors.Join(failed, lines.Encode(leftover)) })
	return errors.Join(err, failed)
}
