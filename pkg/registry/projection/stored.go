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
	"github.com/holdfast-io/holdfast/pkg/catalog/index"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh/longhorn"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const loadedInterval = 50 * time.Millisecond

type stores struct {
	catalog   *catalog.Catalog
	refresher *refresh.Refresher
	secrets   location.Secrets
	// cacheDir has the read contents; empty for none.
	cacheDir   string
	authorizer authorizer.Authorizer
	// past are the restores in them, or nil.
	past     PastRestores
	complete atomic.Bool // every store has been read once, or no longer counts
}

func (s *stores) set(records []*enginev1alpha1.StorageLocation) error {
	locations := make([]refresh.Location, 0, len(records))
	trusted := map[string][]enginev1alpha1.TrustedCluster{}
	stores, past := map[string]string{}, map[string]bool{}
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
		if record.Spec.AsOf() != nil {
			past[record.Name] = true
		}
	}
	s.catalog.SetPast(past)
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

func (s *stores) cache(record *enginev1alpha1.StorageLocation) refresh.Cache {
	cluster := s.catalog.ClusterUID()
	if s.cacheDir == "" || cluster == "" {
		return nil
	}
	return index.NewLocalCache(s.cacheDir, record.Name+" "+identity(&record.Spec), cluster, clock.RealClock{})
}

func (s *stores) restores(record *enginev1alpha1.StorageLocation) func(context.Context, store.Reader) error {
	if s.past == nil || !record.Spec.IsWritten() { // the location that is written shows them
		return nil
	}
	return func(ctx context.Context, from store.Reader) error {
		return s.past.ReadStore(ctx, record.Name, identity(&record.Spec), from)
	}
}

func layoutOf(spec *enginev1alpha1.StorageLocationSpec) refresh.Layout {
	if !spec.IsLonghorn() {
		return nil
	}
	return &longhorn.Layout{TrustNamespaces: trustsNamespaces(spec), Clock: clock.RealClock{}}
}

func trustsNamespaces(spec *enginev1alpha1.StorageLocationSpec) bool {
	return spec.Longhorn != nil && spec.Longhorn.TrustNamespaces
}

// Asked returns a location's requests to the catalogue.
func Asked(record *enginev1alpha1.StorageLocation) refresh.Asked {
	return refresh.Asked{Generation: record.Generation, Request: record.Annotations[enginev1alpha1.AnnotationSync]}
}

// acceptedLoss returns until when losses are accepted; zero if they are not or it is unreadable.
func acceptedLoss(record *enginev1alpha1.StorageLocation) time.Time {
	accepted, err := time.Parse(time.RFC3339, record.Annotations[enginev1alpha1.AnnotationAcceptLoss])
	if err != nil {
		return time.Time{}
	}
	return accepted
}

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

// Judge returns the worth of claims in a location; see catalog.Judge.
func (p *Projector) Judge(location string, claims *v1alpha1.BackupOrigin) (v1alpha1.BackupOrigin, bool) {
	return p.stores.catalog.Judge(location, claims)
}

// Resting is the catalogue's Resting.
func (p *Projector) Resting() int64 { return p.stores.catalog.Resting() }

// State returns how well the catalogue knows a location, or false.
func (p *Projector) State(location string) (refresh.State, bool) {
	return p.stores.refresher.State(location)
}

// Warn adds a Warning to the answer for each store whose present state is unknown.
func (p *Projector) Warn(ctx context.Context, resource string) { p.stores.warn(resource)(ctx) }

// Awaits reports whether the listing that a location asks for has not begun.
func (p *Projector) Awaits(record *enginev1alpha1.StorageLocation) bool {
	return p.stores.refresher.Awaits(record.Name, Asked(record))
}

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

// Ready returns nil once the records and the stores can be served. A store without an answer within a request's
// time does not count.
func (p *Projector) Ready() error {
	if !p.stores.complete.Load() {
		return errors.New("the records, or the backups of some storage location, have not been read yet")
	}
	return nil
}

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
		p.askedLocked(u.run.Spec.Backup.StorageLocation) // it may not exist any more
	}
	return nil
}

// identity returns a store's identity. For Longhorn's stores it includes the trust, so that contents without trust
// are forgotten.
func identity(spec *enginev1alpha1.StorageLocationSpec) string {
	if spec.IsLonghorn() {
		own := *spec
		own.Format = ""
		return fmt.Sprintf("longhorn %t %s", trustsNamespaces(spec), identity(&own))
	}
	if at := spec.AsOf(); at != nil {
		now := *spec
		now.S3 = now.S3.DeepCopy()
		now.S3.AsOf = nil
		return fmt.Sprintf("as of %s %s", at.UTC().Format(time.RFC3339), identity(&now))
	}
	switch {
	case spec.Filesystem != nil:
		return fmt.Sprintf("filesystem %q %q", spec.Filesystem.Path, spec.Prefix)
	case spec.S3 != nil:
		return fmt.Sprintf("s3 %q %q %q", spec.S3.Endpoint, spec.S3.Bucket, spec.Prefix)
	case spec.GCS != nil:
		return fmt.Sprintf("gcs %q %q %q", spec.GCS.Endpoint, spec.GCS.Bucket, spec.Prefix)
	case spec.Azure != nil:
		return fmt.Sprintf("azure %q %q %q %q", spec.Azure.Endpoint, spec.Azure.StorageAccount, spec.Azure.Container, spec.Prefix)
	}
	return string(spec.Provider)
}

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

func replace[T logstore.Object](log *logstore.Log[T], object T, over ...T) {
	if _, err := log.Update([]T{object}, nil, over...); err != nil {
		utilruntime.HandleError(err)
	}
}

// incomplete is all that users learn of the stores if they may not list everything.
const incomplete = "what is shown may be incomplete or out of date: not every storage location could be read"

// warn returns a function that adds a Warning for each store of unknown state. Only users that may list the
// resource everywhere learn the stores' names, errors and contents.
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
