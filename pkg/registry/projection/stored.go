// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

// loadedInterval is how often the start asks whether every store has been read.
const loadedInterval = 50 * time.Millisecond

// stores are the stores as this server knows them.
type stores struct {
	catalog   *catalog.Catalog
	refresher *refresh.Refresher
	// secrets hold their credentials.
	secrets location.Secrets
	// authorizer tells who may be told of them.
	authorizer authorizer.Authorizer
	// complete is true when every store has been read once, or does not count any more.
	complete atomic.Bool
}

// set says which stores there are, and whom each of them trusts.
func (s *stores) set(records []*enginev1alpha1.StorageLocation) error {
	locations := make([]refresh.Location, 0, len(records))
	trusted := map[string][]enginev1alpha1.TrustedCluster{}
	for _, record := range records {
		trusted[record.Name] = record.Spec.TrustedClusters
		access := record.Spec
		access.TrustedClusters = nil // which need no other store
		settings, err := json.Marshal(access)
		if err != nil {
			return fmt.Errorf("reading StorageLocation %s: %w", record.Name, err)
		}
		locations = append(locations, refresh.Location{
			Name:     record.Name,
			Store:    identity(&record.Spec),
			Settings: string(settings),
			Open: func(ctx context.Context) (refresh.Store, error) {
				return location.Open(ctx, s.secrets, record)
			},
		})
	}
	s.catalog.SetTrustedClusters(trusted)
	s.refresher.SetLocations(locations)
	return nil
}

// awaitStores waits until what is stored has been read as far as can be.
func (p *Projector) awaitStores(ctx context.Context) {
	for !p.stores.refresher.Loaded() {
		select {
		case <-ctx.Done():
			return
		case <-p.Clock.After(loadedInterval):
		}
	}
	p.Backups.SetReady()
	p.Volumes.SetReady()
	p.VolumeBackups.SetReady()
	p.stores.complete.Store(true)
}

// Ready returns nil once everything can be served: the records, and what is in the
// stores, except those that have yielded nothing for as long as a request may take.
// Live work is served before that.
func (p *Projector) Ready() error {
	if !p.stores.complete.Load() {
		return errors.New("the records, or the backups of some storage location, have not been read yet")
	}
	return nil
}

// setLocations tells of the stores that there are.
func (p *Projector) setLocations() error {
	records, err := p.Locations.Lister().StorageLocations(p.SystemNamespace).List(labels.Everything())
	if err != nil {
		return err
	}
	if err := p.stores.set(records); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range p.runs.unread {
		p.askedLocked(u.run.Spec.Backup.StorageLocation) // which may be none any more
	}
	return nil
}

// identity tells stores apart: two records with the same one mean the same store.
func identity(spec *enginev1alpha1.StorageLocationSpec) string {
	switch {
	case spec.Filesystem != nil:
		return fmt.Sprintf("filesystem %q %q", spec.Filesystem.Path, spec.Prefix)
	case spec.S3 != nil:
		return fmt.Sprintf("s3 %q %q %q", spec.S3.Endpoint, spec.S3.Bucket, spec.Prefix)
	}
	return string(spec.Provider)
}

// storedChanged commits what changed in the catalogue.
func (p *Projector) storedChanged(changes catalog.Changes) {
	p.mu.Lock()
	for _, backup := range changes.Backups.Set {
		p.projectLocked(backupKey{Namespace: backup.Namespace, Name: backup.Name})
	}
	for _, key := range changes.Backups.Gone {
		p.projectLocked(key)
	}
	p.mu.Unlock()
	commit(p.Volumes, changes.Volumes)
	commit(p.VolumeBackups, changes.VolumeBackups)
}

// commit applies the change of one kind of object to its log.
func commit[T logstore.Object](log *logstore.Log[T], delta catalog.Delta[T]) {
	for _, key := range delta.Gone {
		log.Remove(key.Namespace, key.Name)
	}
	for _, object := range delta.Set {
		replace(log, object)
	}
}

// replace commits an object.
func replace[T logstore.Object](log *logstore.Log[T], object T) {
	if _, err := log.Apply(object); err != nil {
		utilruntime.HandleError(err)
	}
}

// incomplete is all that is said of the stores to those who may not list everything.
const incomplete = "what is shown may be incomplete or out of date: not every storage location could be read"

// warn adds a Warning to an answer for each store that the catalogue does not
// know the present state of. The names of the stores, what is wrong with them and how
// much they hold are the business of those who may list the resource everywhere.
func (s *stores) warn(resource string) func(context.Context) {
	return func(ctx context.Context) {
		texts := s.refresher.Warnings()
		if len(texts) > 0 && !s.mayListAll(ctx, resource) {
			texts = []string{incomplete}
		}
		for _, text := range texts {
			warning.AddWarning(ctx, "", text)
		}
	}
}

func (s *stores) mayListAll(ctx context.Context, resource string) bool {
	requester, ok := genericapirequest.UserFrom(ctx)
	if !ok || s.authorizer == nil {
		return false
	}
	decision, _, err := s.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: requester, Verb: "list", ResourceRequest: true,
		APIGroup: v1alpha1.GroupName, APIVersion: v1alpha1.SchemeGroupVersion.Version, Resource: resource,
	})
	return err == nil && decision == authorizer.DecisionAllow
}

func available(location *enginev1alpha1.StorageLocation) bool {
	return meta.IsStatusConditionTrue(location.Status.Conditions, enginev1alpha1.ConditionAvailable)
}
