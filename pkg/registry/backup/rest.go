// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backup serves backups: created as a run's record, read from memory.
package backup

import (
	"cmp"
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/storage/names"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

var resource = Resource.GroupResource

// REST creates, gets, lists and watches backups.
type REST = recorded.REST[*v1alpha1.Backup, *enginev1alpha1.BackupRun]

// Config is the configuration of a REST.
type Config struct {
	Scheme          *runtime.Scheme
	Log             *logstore.Log[*v1alpha1.Backup]
	SystemNamespace string // of the records
	Runs            engineclient.BackupRunInterface
	Locations       location.Known
	NamespaceUID    func(ctx context.Context, name string) (types.UID, error) // of the namespace with this name
	// MayUse fails with location.ErrNotAllowed if a namespace may not use a storage location.
	MayUse func(ctx context.Context, location, namespace string) error
	// Authorizer decides on every namespace that a request touches.
	Authorizer authorizer.Authorizer
	Observe    func(*enginev1alpha1.BackupRun) // puts a written or read run into the log
	// Load counts the records of a namespace's backups, always with the coming ones.
	Load   func(namespace string, coming sets.Set[string]) records.Load
	Stored func(namespace string) int // backups of a namespace; nil counts none
	Limits Limits
	// LastData returns the existing claims whose newest data only this good backup holds. Optional.
	LastData func(ctx context.Context, backup *v1alpha1.Backup) ([]types.NamespacedName, error)
	TTL      time.Duration // the default, or DefaultTTL
	MaxTTL   time.Duration // outside the system namespace; zero is no limit
	Options  validation.Options
}

// NewREST returns the storage of the backups resource.
func NewREST(config Config) (*REST, error) {
	return recorded.NewREST(recorded.Config[*v1alpha1.Backup, *enginev1alpha1.BackupRun]{
		Resource: &Resource,
		Kind:     newKind(config),
		Log:      config.Log,
		Records:  config.Runs,
		Observe:  config.Observe,
	})
}

func newKind(config Config) *kind {
	return &kind{
		ObjectTyper:     config.Scheme,
		NameGenerator:   names.SimpleNameGenerator,
		systemNamespace: config.SystemNamespace,
		locations:       config.Locations,
		namespaceUID:    config.NamespaceUID,
		mayUse:          config.MayUse,
		authorizer:      config.Authorizer,
		defaultTTL:      cmp.Or(config.TTL, DefaultTTL),
		maxTTL:          config.MaxTTL,
		options:         config.Options,
		lastData:        config.LastData,
		quota:           newQuota(config),
		stored:          config.Stored,
		maxStored:       config.Limits.Stored,
	}
}
