// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package protection

import (
	"cmp"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	domain "github.com/holdfast-io/holdfast/pkg/schedule"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

const (
	// newest bounds the backups of a selection that are asked, the newest first.
	newest = 3
	// selections bounds the asked selections, the ones with the newest backups first.
	selections = 30
	holders    = 5              // backups with data of a claim that are asked
	usual      = 36 * time.Hour // the allowed age of the last good backup without an annotation or a schedule
)

// backup is a good one of this cluster: ended, stored and restorable.
type backup struct {
	types.NamespacedName
	uid     types.UID
	started time.Time // newer objects are not in it
	of      *scope
}

// reference returns a Backup for Stores.Stored.
func (b *backup) reference() *v1alpha1.Backup {
	return &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: b.Name, UID: b.uid}}
}

type scope struct {
	key        string
	namespaces *selection.Namespaces
	backups    []*backup // the newest last
}

// scopes has all good backups, by selection. It is safe for concurrent use.
type scopes struct {
	mu     sync.RWMutex
	byKey  map[string]*scope
	byName map[types.NamespacedName]*backup
	byUID  map[types.UID]*backup
}

func newScopes() *scopes {
	return &scopes{byKey: map[string]*scope{}, byName: map[types.NamespacedName]*backup{}, byUID: map[types.UID]*backup{}}
}

func (s *scopes) set(name types.NamespacedName, of *v1alpha1.Backup) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.byName[name]
	good := of != nil && isGood(of)
	if was != nil && good && was.uid == of.UID && was.started.Equal(of.Status.StartTimestamp.Time) {
		return false
	}
	if was != nil {
		delete(s.byName, name)
		delete(s.byUID, was.uid)
		if was.of.backups = slices.DeleteFunc(was.of.backups, func(b *backup) bool { return b == was }); len(was.of.backups) == 0 {
			delete(s.byKey, was.of.key)
		}
	}
	if !good {
		return was != nil
	}
	key := scopeKey(&of.Spec)
	in := s.byKey[key]
	if in == nil {
		namespaces, errs := selection.ParseNamespaces(of.Spec.IncludedNamespaces, of.Spec.ExcludedNamespaces, nil)
		if len(errs) > 0 {
			return was != nil
		}
		in = &scope{key: key, namespaces: namespaces}
		s.byKey[key] = in
	}
	made := &backup{NamespacedName: name, uid: of.UID, started: of.Status.StartTimestamp.Time, of: in}
	s.byName[name], s.byUID[of.UID] = made, made
	at, _ := slices.BinarySearchFunc(in.backups, made, func(a, b *backup) int { return newerFirst(b, a) })
	in.backups = slices.Insert(in.backups, at, made)
	return true
}

// find returns the good backup with a uid, or nil.
func (s *scopes) find(uid types.UID) *backup {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byUID[uid]
}

// isGood reports whether a backup counts by its object. The catalogue knows more.
func isGood(of *v1alpha1.Backup) bool {
	status := &of.Status
	return (status.Phase == v1alpha1.BackupPhaseCompleted || status.Phase == v1alpha1.BackupPhasePartiallyFailed) &&
		status.StartTimestamp != nil && status.Origin != nil && status.Origin.Trust == v1alpha1.BackupTrustOwn &&
		!meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionMetadataReplaced)
}

// scopeKey returns a key of the selection's words.
func scopeKey(spec *v1alpha1.BackupSpec) string {
	only := v1alpha1.BackupSpec{
		IncludedNamespaces: spec.IncludedNamespaces, ExcludedNamespaces: spec.ExcludedNamespaces,
		IncludedResources: spec.IncludedResources, ExcludedResources: spec.ExcludedResources, IncludeClusterResources: spec.IncludeClusterResources,
		IncludedClusterScopedResources: spec.IncludedClusterScopedResources, ExcludedClusterScopedResources: spec.ExcludedClusterScopedResources,
		IncludedNamespaceScopedResources: spec.IncludedNamespaceScopedResources, ExcludedNamespaceScopedResources: spec.ExcludedNamespaceScopedResources,
		LabelSelector: spec.LabelSelector, OrLabelSelectors: spec.OrLabelSelectors, IncludeReferenced: spec.IncludeReferenced,
	}
	encoded, err := json.Marshal(&only)
	if err != nil {
		return err.Error()
	}
	return string(encoded)
}

func newerFirst(a, b *backup) int {
	return cmp.Or(b.started.Compare(a.started), cmp.Compare(a.uid, b.uid))
}

type recent struct {
	namespaces *selection.Namespaces
	backups    []*backup
}

type reach struct {
	exact    map[string][]*recent
	patterns []*recent
}

func (s *scopes) reach() *reach {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r := &reach{exact: map[string][]*recent{}}
	for _, of := range s.byKey {
		last := slices.Clone(of.backups[max(0, len(of.backups)-newest):])
		slices.Reverse(last)
		made := &recent{of.namespaces, last}
		if !of.namespaces.Exact() {
			r.patterns = append(r.patterns, made)
			continue
		}
		for _, name := range of.namespaces.Explicit() {
			r.exact[name] = append(r.exact[name], made)
		}
	}
	return r
}

// candidates returns the backups to ask for a namespace's objects, the newest first.
func (r *reach) candidates(namespace string) []*backup {
	in := slices.Clone(r.exact[namespace])
	for _, of := range r.patterns {
		if of.namespaces.Match(namespace) {
			in = append(in, of)
		}
	}
	if len(in) > selections {
		slices.SortFunc(in, func(a, b *recent) int { return newerFirst(a.backups[0], b.backups[0]) })
		in = in[:selections]
	}
	var all []*backup
	for _, of := range in {
		all = append(all, of.backups...)
	}
	slices.SortFunc(all, newerFirst)
	return all
}

// plan is a schedule's present selection.
type plan struct {
	name       types.NamespacedName
	namespaces *selection.Namespaces
	resources  *selection.Resources
	selectors  []labels.Selector // any of them; nil for all objects
	data       bool              // it takes the data of claims
	interval   time.Duration
}

// planOf returns nil for a schedule without a readable selection.
func planOf(of *v1alpha1.Schedule, systemNamespace string, now time.Time) *plan {
	timing, err := domain.Parse(of.Spec.Schedule, of.Spec.TimeZone, of.UID)
	if err != nil {
		return nil
	}
	spec := &of.Spec.Template.BackupSpec
	p := &plan{name: types.NamespacedName{Namespace: of.Namespace, Name: of.Name}, interval: timing.Interval(now)}
	p.data = spec.DefaultVolumesToFsBackup == nil || *spec.DefaultVolumesToFsBackup
	included := spec.IncludedNamespaces
	if len(included) == 0 && of.Namespace != systemNamespace {
		included = []string{of.Namespace}
	}
	namespaces, errs := selection.ParseNamespaces(included, spec.ExcludedNamespaces, nil)
	if len(errs) > 0 || p.interval <= 0 {
		return nil
	}
	resources, errs := selection.ParseResources(selection.ResourceLists{
		IncludedResources: spec.IncludedResources, ExcludedResources: spec.ExcludedResources, IncludeClusterResources: spec.IncludeClusterResources,
		IncludedNamespaceScopedResources: spec.IncludedNamespaceScopedResources, ExcludedNamespaceScopedResources: spec.ExcludedNamespaceScopedResources,
		IncludedClusterScopedResources: spec.IncludedClusterScopedResources, ExcludedClusterScopedResources: spec.ExcludedClusterScopedResources,
	}, namespaces, nil)
	if len(errs) > 0 {
		return nil
	}
	p.namespaces, p.resources = namespaces, resources.Bind(selection.WellKnown.Resolve)
	selectors := spec.OrLabelSelectors
	if spec.LabelSelector != nil {
		selectors = append([]*metav1.LabelSelector{spec.LabelSelector}, selectors...)
	}
	for _, of := range selectors {
		selector, err := metav1.LabelSelectorAsSelector(of)
		if err != nil {
			return nil
		}
		p.selectors = append(p.selectors, selector)
	}
	return p
}

// selects reports whether its own words select an object. Related objects are not known.
func (p *plan) selects(o *object) bool {
	if o.claims && !p.data || o.labels[format.LabelExclude] == "true" || !p.resources.Included(o.resource.GroupResource(), true) {
		return false
	}
	return len(p.selectors) == 0 || slices.ContainsFunc(p.selectors, func(s labels.Selector) bool { return s.Matches(labels.Set(o.labels)) })
}

type facts struct {
	// objects is the last good backup with the object, data with its data too; nil if unknown.
	objects, data *backup
	// objectsDoubt and dataDoubt: a newer one may, whose manifest is not read.
	objectsDoubt, dataDoubt bool
	schedule                *plan // with the shortest interval; nil if none selects it
}

type input struct {
	objects  []*object
	scopes   *scopes
	plans    []*plan
	excluded func(namespace string) bool               // by the namespace's label
	good     func(*backup) bool                        // by the catalogue and its store
	holders  func(namespace, claim string) []types.UID // with data of a claim, the newest first
	ask      func(*backup, id) answer
}

// decide returns the facts by uid, the backups whose manifests are needed next, and the asked ones.
func decide(in input) (decided map[types.UID]facts, wanted []*backup, used map[types.UID]bool) {
	decided = make(map[types.UID]facts, len(in.objects))
	used = map[types.UID]bool{}
	isGood, isWanted := map[types.UID]bool{}, map[types.UID]bool{}
	good := func(b *backup) bool {
		known, ok := isGood[b.uid]
		if !ok {
			known = in.good(b)
			isGood[b.uid] = known
		}
		return known
	}
	// last returns the newest candidate with an object. It wants only the first unread manifest that is readable.
	last := func(o *object, candidates []*backup) (last *backup, doubt bool) {
		asked := false
		for _, b := range candidates {
			if b.started.Before(o.created) || !good(b) {
				continue
			}
			used[b.uid] = true
			switch answer := in.ask(b, o.id); answer {
			case holds:
				return b, doubt
			case unread, failed:
				doubt = true
				if !asked && !isWanted[b.uid] {
					isWanted[b.uid] = true
					wanted = append(wanted, b)
				}
				asked = asked || answer == unread
			}
		}
		return nil, doubt
	}
	reach := in.scopes.reach()
	plans := map[string][]*plan{}
	candidates := map[string][]*backup{}
	for _, o := range in.objects {
		of, known := candidates[o.namespace]
		if !known {
			of = reach.candidates(o.namespace)
			candidates[o.namespace] = of
			if !in.excluded(o.namespace) {
				for _, p := range in.plans {
					if p.namespaces.Match(o.namespace) {
						plans[o.namespace] = append(plans[o.namespace], p)
					}
				}
			}
		}
		var f facts
		f.objects, f.objectsDoubt = last(o, of)
		if o.claims {
			var with []*backup
			for _, uid := range in.holders(o.namespace, o.name) {
				if b := in.scopes.find(uid); b != nil {
					with = append(with, b)
				}
			}
			slices.SortFunc(with, newerFirst)
			f.data, f.dataDoubt = last(o, with)
			if f.data != nil && (f.objects == nil || f.data.started.After(f.objects.started)) {
				f.objects = f.data
			}
		}
		for _, p := range plans[o.namespace] {
			if (f.schedule == nil || p.interval < f.schedule.interval) && p.selects(o) {
				f.schedule = p
			}
		}
		decided[o.uid] = f
	}
	return decided, wanted, used
}

type verdict struct {
	state       v1alpha1.ProtectionState
	expectation time.Duration
	by          string
	message     string
}

// judge decides whether an object is protected. known is false if there are no facts yet.
func judge(o *object, f facts, known bool, namespaceRPO string, now time.Time) verdict {
	v := verdict{expectation: usual, by: v1alpha1.ExpectedByDefault}
	if f.schedule != nil {
		v.expectation, v.by = f.schedule.interval+f.schedule.interval/2, v1alpha1.ExpectedBySchedule
	}
	note := ""
	for _, annotation := range []struct{ text, by string }{
		{namespaceRPO, v1alpha1.ExpectedByNamespaceAnnotation}, {o.rpo, v1alpha1.ExpectedByAnnotation},
	} {
		if annotation.text == "" {
			continue
		}
		if rpo, err := time.ParseDuration(annotation.text); err != nil || rpo <= 0 {
			note = "the annotation " + v1alpha1.AnnotationRPO + " is not a duration such as 24h, and is not followed"
			if annotation.by == v1alpha1.ExpectedByNamespaceAnnotation {
				note += ", in the namespace"
			}
		} else {
			v.expectation, v.by = rpo, annotation.by
		}
	}
	oldest, doubt := f.objects, f.objectsDoubt
	if o.claims {
		oldest, doubt = f.data, f.dataDoubt // a backup with the data has the object, too
	}
	lacking := "no good backup of this cluster is known to hold it"
	if f.objects != nil {
		lacking = "no good backup of this cluster is known to hold its data"
	}
	switch {
	case !known:
		v.state, v.message = v1alpha1.ProtectionUnknown, "it has not been looked at yet"
	case oldest != nil && now.Sub(oldest.started) <= v.expectation:
		v.state = v1alpha1.ProtectionYes
	case doubt:
		v.state, v.message = v1alpha1.ProtectionUnknown, "a backup may hold it, and its manifest has not been read yet"
	case oldest == nil:
		v.state, v.message = v1alpha1.ProtectionNone, lacking
	default:
		v.state, v.message = v1alpha1.ProtectionLate, "the last good backup is older than "+v1alpha1.Duration{Duration: v.expectation}.String()
	}
	if note != "" && v.message != "" {
		v.message += "; "
	}
	v.message += note
	return v
}

// expected reports whether an annotation or a schedule asks for backups of an object older than the expectation.
func (v *verdict) expected(o *object, now time.Time) bool {
	return v.by != v1alpha1.ExpectedByDefault && now.Sub(o.created) > v.expectation
}
