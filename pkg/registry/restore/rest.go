// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package restore serves restores: created as a run's record, read from memory.
//
// What a restore may do is decided when it is created, by its creator's rights, and again
// when it runs, since it writes with these rights. Here it is decided what it may read: a
// restore reads a backup of its own namespace, which its creator may get, and of that only
// namespaces in which they may create restores. What they restore from one namespace into
// another is from a namespace whose Secrets they may read. In the system namespace, the
// right to create restores is the administrator's, and nothing more is asked.
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

// Backups are those that can be restored.
type Backups interface {
	rest.Getter
	rest.Lister
}

// Config is what a REST needs.
type Config struct {
	Scheme *runtime.Scheme
	// SystemNamespace is where the records live.
	SystemNamespace string
	Publisher       *Publisher
	Runs            engineclient.RestoreRunInterface
	Backups         Backups
	// BackupsReady fails while not all backups are known.
	BackupsReady func() error
	// HeldClaims are the claims whose data a backup holds. Nil knows of none.
	HeldClaims func(namespace, name string) []types.NamespacedName
	// NamespaceUID finds out which namespace has a name.
	NamespaceUID func(ctx context.Context, name string) (types.UID, error)
	// MayUse fails with location.ErrNotAllowed if a namespace may not use a storage location.
	MayUse func(ctx context.Context, location, namespace string) error
	// Authorizer decides on every namespace that a request touches.
	Authorizer authorizer.Authorizer
	// Limits are how many restores may wait or run.
	Limits Limits
}

// NewREST returns the storage of the restores resource.
func NewREST(config Config) (*REST, error) {
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
	})
}
