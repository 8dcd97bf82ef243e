// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package restore serves restores: created as a run's record, read from memory.
//
// Creation checks what a restore may read; its writes have its creator's rights, and are checked when it runs. A
// restore reads a backup of its own namespace that its creator may get, and only namespaces in which the creator
// may create restores. Restoring one namespace into another takes the right to read the first one's Secrets. In
// the system namespace, the right to create restores suffices.
package restore

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// REST creates, gets, lists and watches restores.
type REST = recorded.REST[*v1alpha1.Restore, *enginev1alpha1.RestoreRun]

// Backups are the backups that can be restored.
type Backups interface {
	rest.Getter
	rest.Lister
}

// Config is the configuration of a REST.
type Config struct {
	Scheme          *runtime.Scheme
	SystemNamespace string
	Publisher       *Publisher
	Runs            engineclient.RestoreRunInterface
	Backups         Backups
	// BackupsReady fails while not all backups are known.
	BackupsReady func() error
	HeldClaims   func(namespace, name string) []types.NamespacedName // claims whose data a backup holds; optional
	NamespaceUID func(ctx context.Context, name string) (types.UID, error)
	// MayUse fails with location.ErrNotAllowed if a namespace may not use a storage location.
	MayUse func(ctx context.Context, location, namespace string) error
	// Authorizer decides on every namespace that a request touches.
	Authorizer authorizer.Authorizer
	Limits     Limits
	// Plan has a restore planned by a process that may read the cluster. There is no record of it. Optional.
	Plan func(ctx context.Context, run *enginev1alpha1.RestoreRun) (*v1alpha1.RestorePlan, error)
}

// NewREST returns the storage of the restores resource.
func NewREST(config Config) (*REST, error) {
	var planned func(context.Context, *v1alpha1.Restore, *enginev1alpha1.RestoreRun) (*v1alpha1.Restore, error)
	if config.Plan != nil {
		planned = (&planner{plan: config.Plan, backups: config.Backups, authorizer: config.Authorizer}).planned
	}
	return recorded.NewREST(recorded.Config[*v1alpha1.Restore, *enginev1alpha1.RestoreRun]{
		Resource: &Resource,
		Kind: &kind{
			ObjectTyper:     config.Scheme,
			NameGenerator:   names.SimpleNameGenerator,
			systemNamespace: config.SystemNamespace,
			backups:         config.Backups,
			ready:           config.BackupsReady,
			heldClaims:      config.HeldClaims,
			namespaceUID:    config.NamespaceUID,
			mayUse:          config.MayUse,
			authorizer:      config.Authorizer,
			sameNamespace:   config.Publisher.sameNamespace,
			quota:           newQuota(config),
		},
		Log:     config.Publisher.Log,
		Records: config.Runs,
		Observe: config.Publisher.Observe,
		Planned: planned,
	})
}
