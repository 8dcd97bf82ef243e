// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/index/local"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh/layout"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh/longhorn"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// loadedInterval is how often the start asks whether every store has been read.
const loadedInterval = 50 * time.Millisecond

// stores are the stores as this server knows them.
type stores struct {
	catalog   *catalog.Catalog
	refresher *refresh.Refresher
	// secrets hold their credentials.
	secrets location.Secrets
	// cacheDir is a folder for what is read of them; empty if it is not kept.
	cacheDir string
	// authorizer tells who may be told of them.
	authorizer authorizer.Authorizer
	// past are the restores in them; nil if they are not shown.
	past PastRestores
	// complete is true when every store has been read once, or does not count any more.
	complete atomic.Bool
}

// set says which stores there are, and whom each of them trusts.
func (s *stores) set(records []*enginev1alpha1.StorageLocation) error {
	locations := make([]refresh.Location, 0, len(records))
	trusted := map[string][]enginev1alpha1.TrustedCluster{}
	stores := map[string]string{}
	for _, record := range records {
		trusted[record.Name] = record.Spec.TrustedClusters
		settings, err := location.Settings(record)
		if err != nil {
			return err
		}
		var interval *time.Duration
		if record.Spec.PollInterval != nil {
			interval = &record.Spec.PollInterval.Duration
		}
		locations = append(locations, refresh.Location{
			Interval: interval,
			Asked:    Asked(record),
			Accepted: acceptedLoss(record),
			Known:    known(record),
			Name:     record.Name,
			Store:    identity(&record.Spec),
			Settings: settings,
			Open: func(ctx context.Context) (refresh.Store, error) {
				return location.OpenAny(ctx, s.secrets, record)
			},
			Layout:  layoutOf(&record.Spec),
			Indexed: !record.Spec.IsLonghorn(),
			Cache:   s.cache(record),
			Beside:  s.restores(record),
		})
		stores[record.Name] = identity(&record.Spec)
	}
	changed := s.catalog.SetTrustedClusters(trusted)
	if s.past != nil {
		s.past.SetLocations(stores)
		if changed {
			s.past.JudgeAgain("")
		}
	}
	s.refresher.SetLocations(locations)
	return nil
}

// cache keeps what is read of a location on disk; nil without a folder for it.
func (s *stores) cache(record *enginev1alpha1.StorageLocation) refresh.Cache {
	cluster := s.catalog.ClusterUID()
	if s.cacheDir == "" || cluster == "" {
		return nil
	}
	return local.New(s.cacheDir, record.Name+" "+identity(&record.Spec), cluster, clock.RealClock{})
}

// restores reads those in a location; nil if that has none.
func (s *stores) restores(record *enginev1alpha1.StorageLocation) func(context.Context, store.Reader) error {
	if s.past == nil || record.Spec.IsLonghorn() {
		return nil
	}
	return func(ctx context.Context, from store.Reader) error {
		return s.past.ReadStore(ctx, record.Name, identity(&record.Spec), from)
	}
}

// layoutOf is how a store is laid out, if it is not Holdfast's.
func layoutOf(spec *enginev1alpha1.StorageLocationSpec) layout.Layout {
	if !spec.IsLonghorn() {
		return nil
	}
	return &longhorn.Layout{TrustNamespaces: trustsNamespaces(spec), Clock: clock.RealClock{}}
}

func trustsNamespaces(spec *enginev1alpha1.StorageLocationSpec) bool {
	return spec.Longhorn != nil && spec.Longhorn.TrustNamespaces
}

// Asked is what a location asks for.
func Asked(record *enginev1alpha1.StorageLocation) refresh.Asked {
	return refresh.Asked{Generation: record.Generation, Request: record.Annotations[enginev1alpha1.AnnotationSync]}
}

// acceptedLoss is until when losses are accepted; zero if they are not. What can't be read
// accepts nothing.
func acceptedLoss(record *enginev1alpha1.StorageLocation) time.Time {
	accepted, err := time.Parse(time.RFC3339, record.Annotations[enginev1alpha1.AnnotationAcceptLoss])
	if err != nil {
		return time.Time{}
	}
	return accepted
}

// known is what a former process has written down of a location.
func known(record *enginev1alpha1.StorageLocation) (known refresh.Known) {
	if record.Status.Catalogue != nil {
		known.Backups = int(record.Status.Catalogue.Backups)
	}
	missing := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionBackupsMissing)
	if missing != nil && missing.Status == metav1.ConditionTrue {
		known.Suspicious = missing.LastTransitionTime.Time
	}
	return known
}

// Judge says what claims are worth in a location, see catalog.Judge.
func (p *Projector) Judge(location string, claims *v1alpha1.BackupOrigin) (v1alpha1.BackupOrigin, bool) {
	return p.stores.catalog.Judge(location, claims)
}

// Resting is as that of the catalogue.
func (p *Projector) Resting() int64 { return p.stores.catalog.Resting() }

// State is how well the catalogue knows a location; false if it is none.
func (p *Projector) State(location string) (refresh.State, bool) {
	return p.stores.refresher.State(location)
}

// Warn adds a Warning to an answer that lists a resource for each store of which the present state
// is not known.
func (p *Projector) Warn(ctx context.Context, resource string) { p.stores.warn(resource)(ctx) }

// Awaits reports whether the listing that a location asks for is yet to begin.
func (p *Projector) Awaits(record *enginev1alpha1.StorageLocation) bool {
	return p.stores.refresher.Awaits(record.Name, Asked(record))
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
// What was read of a store of Longhorn's is forgotten when it is not trusted any more, even
// while it can't be asked.
func identity(spec *enginev1alpha1.StorageLocationSpec) string {
	if spec.IsLonghorn() {
		own := *spec
		own.Format = ""
		return fmt.Sprintf("longhorn %t %s", trustsNamespaces(spec), identity(&own))
	}
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
	if _, err := p.Volumes.Update(changes.Volumes.Set, changes.Volumes.Gone, changes.Named...); err != nil {
		utilruntime.HandleError(err)
	}
	if len(changes.Volumes.Set) > 0 { // a part of the lists, and not an empty one
		p.Volumes.Open()
		p.VolumeBackups.Open()
	}
}

// replace commits an object. over is as for Log.Update.
func replace[T logstore.Object](log *logstore.Log[T], object T, over ...T) {
	if _, err := log.Update([]T{object}, nil, over...); err != nil {
		utilruntime.HandleError(err)
	}
}

// incomplete is all that is said of the stores to those who may not list everything.
const incomplete = "what is shown may be incomplete or out of date: not every storage location could be read"

// warn adds a Warning to an answer for each store that the catalogue does not
// know the present state of. The names of the stores, what is wrong with them, what others
// do in them and how much they hold are the business of those who may list the resource
// everywhere.
func (s *stores) warn(resource string) func(context.Context) {
	return func(ctx context.Context) {
		texts, replacements := s.refresher.Warnings(), append(s.refresher.Replacements(), s.refresher.LeftOuts()...)
		switch {
		case len(texts)+len(replacements) == 0:
		case s.mayListAll(ctx, resource):
			texts = append(texts, replacements...)
		case len(texts) > 0:
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
