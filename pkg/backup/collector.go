// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/hostpath"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// maxNamespaceLists bounds the lists by namespace. For more, one list of the cluster is filtered.
const maxNamespaceLists = 10

type collector struct {
	spec          *v1alpha1.BackupSpec
	namespaces    *selection.Namespaces
	wanted        *selection.Resources
	selectors     []labels.Selector
	discovered    *discovered
	policies      policies
	order         order
	lister        *lister
	mover         Volumes
	snapshots     snapshotClasses
	hostPathRoots hostpath.Roots
	workers       int
	hooks         *hooks
	blockWorkers  int
	contain       func(func() error) error

	sink     *sink
	findings *findings
	log      *logbook
	progress *Progress

	// own are Holdfast's namespaces, whose Secrets are in no backup.
	own sets.Set[string]
	// readNamespaces sets these. existing has all namespaces with uids, labelled the ones excluded by label.
	// chosen has the ones to read, listed the ones to list; "" is all.
	existing map[string]types.UID
	labelled sets.Set[string]
	chosen   []string
	listed   []string
	partly   bool
	// leaving are claims requested through terminating pods.
	leaving []leavingVolume
	// ofLabelled maps claims to pods excluded by label.
	ofLabelled map[types.NamespacedName]string
	services   services
	planned    *planned
}

// secretsLeftOut depends on the namespace, so no label or name can mislead it.
const secretsLeftOut = "left out: Secrets of Holdfast's own namespaces open the store and the repositories, so no backup holds them: keep copies elsewhere"

func ownNamespaces(system string) sets.Set[string] {
	return sets.New(enginev1alpha1.OwnNamespaces(system)...)
}

// visit takes an object. Its error ends the backup.
type visit func(ctx context.Context, r resource, h *head, raw []byte) error

// collect reads everything. A failed resource or object is a finding; an error is for the whole backup.
func (c *collector) collect(ctx context.Context) (*podVolumes, error) {
	if err := c.readNamespaces(ctx); err != nil {
		return nil, err
	}
	volumes := newPodVolumes(c)
	ordered := map[schema.GroupResource]visit{
		persistentVolumesResource: volumes.visitPersistentVolume,
		claimsResource:            volumes.visitClaim,
		podsResource:              volumes.visitPod,
	}
	selected := c.discovered.selected(c.spec, c.wanted)
	c.warnOfOrder(selected)
	if err := c.readServices(ctx, selected); err != nil {
		return nil, err
	}
	for _, r := range selected {
		if take := ordered[r.GroupResource()]; take != nil {
			if err := c.read(ctx, r, take); err != nil {
				return nil, err
			}
		}
		switch r.GroupResource() {
		case claimsResource:
			if err := volumes.settleClaims(ctx); err != nil {
				return nil, err
			}
			if err := volumes.takeClaimsOfVolumes(ctx); err != nil {
				return nil, err
			}
		case podsResource:
			if err := volumes.decideAll(ctx); err != nil {
				return nil, err
			}
		}
	}
	takeRest, err := volumes.takeBlocks(ctx)
	if err != nil {
		return nil, err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.contain(func() error { return takeRest(groupCtx) }) })
	readers, readersCtx := errgroup.WithContext(groupCtx)
	readers.SetLimit(c.workers)
	few := make([]batch, len(selected))
	for i, r := range selected {
		if gr := r.GroupResource(); gr != namespacesResource && ordered[gr] == nil {
			readers.Go(func() error {
				return c.contain(func() error { return c.readTogether(readersCtx, r, &few[i]) })
			})
		}
	}
	group.Go(func() error {
		if err := readers.Wait(); err != nil {
			return err
		}
		return c.contain(func() error { return c.writeAll(few) })
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	volumes.cutUnused(ctx)
	volumes.warnOfGroups()
	volumes.podsDone()
	volumes.warnOfNoSnapshot()
	volumes.warnOfNoData()
	if err := c.readAlong(ctx); err != nil {
		return nil, err
	}
	if err := c.readDefinitions(ctx, selected); err != nil {
		return nil, err
	}
	if err := c.readNeeded(ctx); err != nil {
		return nil, err
	}
	if err := c.readTouchedNamespaces(ctx); err != nil {
		return nil, err
	}
	return volumes, volumes.writeKept(ctx)
}

// readNamespaces decides which namespaces are read, and takes the ones selected by name. With label
// selectors in a backup of all namespaces, it takes one that matches, or has a matching object, as
// Velero.
func (c *collector) readNamespaces(ctx context.Context) error {
	r, found := c.discovered.find(namespacesResource)
	if !found {
		return errors.New("the cluster serves no namespaces: check the rights of the controller")
	}
	c.labelled = sets.New[string]()
	c.existing = map[string]types.UID{}
	var selected []string
	take := func(raw []byte) error {
		h, err := headOf(raw)
		if err != nil {
			return err
		}
		name := h.Metadata.Name
		if _, known := c.existing[name]; known {
			return nil
		}
		c.existing[name] = h.Metadata.UID
		if !c.namespaces.Match(name) {
			return nil
		}
		if h.Metadata.Labels[format.LabelExclude] == "true" {
			c.labelled.Insert(name)
			c.leaveOut(subject{namespacesResource, "", name}, h.whyLeftOut())
			return nil
		}
		selected = append(selected, name)
		byLabel := len(c.selectors) == 0 || !c.namespaces.All() || matchesAny(c.selectors, h.Metadata.Labels)
		if !c.wanted.Included(namespacesResource, false) || !byLabel {
			return nil
		}
		return c.addRelated(r, h, raw, itself)
	}
	visit := visitor{page: func(int64) {}, object: take}
	if err := c.readOrdered(ctx, r, []string{""}, func(query) visitor { return visit }); err != nil {
		return err
	}
	unread := map[string]error{}
	for _, q := range c.namespaceLists(r) {
		err := c.lister.list(ctx, q, visit)
		var fatal visitError
		switch {
		case err == nil:
		case ctx.Err() != nil || errors.As(err, &fatal):
			return fmt.Errorf("list the namespaces: %w", unwrapVisit(err))
		default:
			unread[q.name] = fmt.Errorf("list the namespaces: %w", err)
		}
	}
	c.partly = len(unread) > 0
	for name, err := range unread {
		if len(c.existing) == 0 {
			return err
		}
		c.lacks(subject{namespacesResource, "", name}, fmt.Sprintf("%v; the backup has nothing of those that could not be read", err))
	}
	for _, name := range c.namespaces.Explicit() {
		_, exists := c.existing[name]
		switch about := (subject{namespacesResource, "", name}); {
		case !exists && (unread[""] != nil || unread[name] != nil):
		case !exists:
			c.lacks(about, "the backup includes it, but it does not exist")
		case c.labelled.Has(name):
			c.findings.warn(about, "the backup includes it, but it has the label "+format.LabelExclude+"=true")
		case c.own.Has(name) && c.wanted.Included(secretsResource, true):
			c.findings.warn(subject{secretsResource, name, ""}, secretsLeftOut)
		}
	}
	if unread[""] == nil {
		for _, pattern := range c.namespaces.Idle(selected) {
			c.findings.warn(subject{namespacesResource, "", ""}, fmt.Sprintf("the backup includes %q, which no namespace matches that is not left out", pattern))
		}
		c.warnOfExcluded()
	}
	c.chosen, c.listed = selected, selected
	if len(selected) > maxNamespaceLists || c.namespaces.All() {
		c.listed = []string{""}
	}
	return nil
}

// namespaceLists returns a list for each of a few named namespaces: small backups are cheap in large
// clusters.
func (c *collector) namespaceLists(r resource) []query {
	names := c.namespaces.Explicit()
	if !c.namespaces.Exact() || len(names) > maxNamespaceLists {
		return []query{{resource: r}}
	}
	var lists []query
	for _, name := range names {
		lists = append(lists, query{resource: r, name: name})
	}
	return lists
}

func matchesAny(selectors []labels.Selector, set labels.Set) bool {
	for _, selector := range selectors {
		if selector.Matches(set) {
			return true
		}
	}
	return false
}

func (c *collector) read(ctx context.Context, r resource, take visit) error {
	if !related.Has(r.GroupResource()) {
		defer c.sink.forget(r)
	}
	namespaces := c.listed
	if !r.namespaced {
		namespaces = []string{""}
	}
	selectors := []string{""}
	if len(c.selectors) > 0 {
		selectors = nil
		for _, selector := range c.selectors {
			selectors = append(selectors, selector.String())
		}
	}
	if err := c.readOrdered(ctx, r, selectors, func(q query) visitor { return c.counted(ctx, q, take).visitor }); err != nil {
		return err
	}
	return c.readIn(ctx, r, namespaces, selectors, take)
}

func (c *collector) readIn(ctx context.Context, r resource, namespaces, selectors []string, take visit) error {
	for _, namespace := range namespaces {
		for _, selector := range selectors {
			q := query{resource: r, namespace: namespace, selector: selector}
			visit := c.counted(ctx, q, take)
			if r.namespaced && namespace == "" && !c.namespaces.All() {
				visit.tooLong = c.mostlyOthers
			}
			err := c.lister.list(ctx, q, visit.visitor)
			if errors.Is(err, errOthers) {
				return c.readIn(ctx, r, c.chosen, selectors, take)
			}
			if err != nil && visit.announced > 0 {
				c.progress.found.Add(-1)
			}
			if err := c.told(ctx, q, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// mostlyOthers reports whether a list of the cluster costs more than one of each chosen namespace. At
// most half of all are chosen then, and at least twice as many pages remain.
func (c *collector) mostlyOthers(remaining, limit int64) bool {
	chosen := int64(len(c.chosen))
	if limit == unknownPage {
		limit = pageSize
	}
	return 2*chosen <= int64(len(c.existing)) && remaining > 2*chosen*limit
}

// told turns a list's error into a finding, unless it is for the whole backup.
func (c *collector) told(ctx context.Context, q query, err error) error {
	about := subject{q.resource.GroupResource(), q.namespace, q.name}
	var fatal visitError
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &fatal):
		return fatal.error
	case apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
		return c.vanished(ctx, about, q.resource, err)
	default:
		c.lacks(about, fmt.Sprintf("list it: %v", err))
	}
	return nil
}

// lacks counts missing objects as one found.
func (c *collector) lacks(about subject, text string) {
	if ownGroups.Has(about.resource.Group) {
		// A broken API server of Holdfast must not fail every backup.
		c.findings.warn(about, text)
		return
	}
	c.progress.found.Add(1)
	c.findings.fail(about, text)
}

type counting struct {
	visitor
	announced int64
}

func (c *collector) counted(ctx context.Context, q query, take visit) *counting {
	filtered := q.resource.namespaced && q.namespace == ""
	counted := &counting{}
	counted.visitor = visitor{
		page: func(remaining int64) {
			if filtered && !c.namespaces.All() {
				return
			}
			c.progress.found.Add(remaining - counted.announced)
			counted.announced = remaining
		},
		object: func(raw []byte) error {
			if counted.announced > 0 {
				counted.announced--
				c.progress.found.Add(-1)
			}
			h, err := headOf(raw)
			if err != nil {
				c.lacks(subject{q.resource.GroupResource(), q.namespace, ""}, err.Error())
				return nil
			}
			namespace := h.Metadata.Namespace
			if filtered && !c.inScope(namespace) || !c.sink.meet(q.resource, namespace, h.Metadata.Name) {
				return nil
			}
			about := subject{q.resource.GroupResource(), namespace, h.Metadata.Name}
			if about.resource == secretsResource && c.own.Has(namespace) {
				c.findings.leaveOut(about)
				return nil
			}
			if reason := h.whyLeftOut(); reason != "" {
				c.leaveOut(about, reason)
				switch {
				case about.resource != podsResource:
				case h.unwanted():
					c.leavesOut(about, raw)
				default:
					c.leaves(about, raw)
				}
				return nil
			}
			if about.isEvent() && isOwnEvent(raw) {
				return nil
			}
			return take(ctx, q.resource, h, raw)
		},
	}
	return counted
}

func (c *collector) leaveOut(about subject, why string) {
	c.log.write(slog.LevelInfo, why, about.attrs()...)
	c.planned.leaveOut(about, why)
}

// inScope reports whether a namespace is read. If the list of namespaces broke off, unlisted ones are
// not: they may have the excluding label.
func (c *collector) inScope(namespace string) bool {
	_, exists := c.existing[namespace]
	return c.namespaces.Match(namespace) && !c.labelled.Has(namespace) && (exists || !c.partly)
}

const itself = ""

func (c *collector) add(r resource, h *head, raw []byte, reason string) error {
	var alone batch
	if err := c.addTo(&alone, r, h, raw, reason); err != nil {
		return err
	}
	return c.write(&alone)
}

type batch struct {
	objects []*object
	stored  []byte
}

// Similar objects compress better side by side. A batch is several times the compressor's window.
const (
	batchBytes   = 128 << 10
	batchObjects = pageSize
	// fewBytes bounds a batch that waits for all resources, to be written in order.
	fewBytes = 32 << 10
)

func (b *batch) full() bool { return len(b.stored) >= batchBytes || len(b.objects) >= batchObjects }

func (c *collector) readTogether(ctx context.Context, r resource, together *batch) error {
	err := c.read(ctx, r, func(_ context.Context, r resource, h *head, raw []byte) error {
		if err := c.addTo(together, r, h, raw, itself); err != nil || !together.full() {
			return err
		}
		return c.write(together)
	})
	if err != nil || cap(together.stored) <= fewBytes {
		return err
	}
	return c.write(together)
}

func (c *collector) addTo(b *batch, r resource, h *head, raw []byte, reason string) error {
	c.progress.found.Add(1)
	o, stored, err := newObject(b.stored, r, h, raw, reason)
	if err != nil {
		return err
	}
	b.objects, b.stored = append(b.objects, o), stored
	return nil
}

func (c *collector) write(b *batch) error {
	err := c.sink.write(b.objects, func(o *object, err error) {
		c.findings.fail(subject{o.GroupResource(), o.item.Namespace, o.item.Name}, err.Error())
	})
	clear(b.objects)
	b.objects, b.stored = b.objects[:0], b.stored[:0]
	if cap(b.stored) > 4*batchBytes {
		b.stored = nil
	}
	return err
}

func (c *collector) writeAll(batches []batch) error {
	for i := range batches {
		if err := c.write(&batches[i]); err != nil {
			return err
		}
	}
	return nil
}

var related = func() sets.Set[schema.GroupResource] {
	all := sets.New(namespacesResource, persistentVolumesResource, claimsResource, crdsResource, clusterRoleBindingsResource)
	for _, kind := range neededKinds {
		all.Insert(kind.GroupResource)
	}
	return all
}()

func (c *collector) addRelated(r resource, h *head, raw []byte, reason string) error {
	if !c.comesAlong(r, h) {
		return nil
	}
	return c.add(r, h, raw, reason)
}

func (c *collector) comesAlong(r resource, h *head) bool {
	if !c.wanted.IncludedRelated(r.GroupResource(), r.namespaced) || !c.sink.meet(r, h.Metadata.Namespace, h.Metadata.Name) {
		return false
	}
	if why := h.whyLeftOut(); why != "" {
		c.leaveOut(subject{r.GroupResource(), h.Metadata.Namespace, h.Metadata.Name}, why)
		return false
	}
	return true
}

func (c *collector) readDefinitions(ctx context.Context, selected []resource) error {
	definitions, found := c.discovered.find(crdsResource)
	if !found || !c.wanted.IncludedRelated(crdsResource, false) {
		return nil
	}
	for _, r := range selected {
		name := r.GroupResource().String()
		if isBuiltIn(r.Group) || !c.sink.holds(r) || c.sink.defines(name) {
			continue
		}
		h, raw, exists, err := c.get(ctx, definitions, "", name)
		if err != nil {
			return err
		}
		const lost = ": they can be restored only where there is one"
		switch about := (subject{crdsResource, "", name}); {
		case !exists:
			if !c.services.undefined(r) {
				c.findings.warn(about, "the definition of objects that are in the backup is gone"+lost)
			}
		case raw == nil:
		case h.Metadata.DeletionTimestamp != "":
			c.findings.warn(about, "the definition of objects that are in the backup is being deleted, and left out"+lost)
		default:
			if err := c.addRelated(definitions, h, raw, "it defines the kind of objects that were taken"); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *collector) readTouchedNamespaces(ctx context.Context) error {
	r, _ := c.discovered.find(namespacesResource)
	const reason = "objects in it were taken"
	missing := sets.New(c.sink.touchedNamespaces()...)
	if len(missing) > manyGets {
		whole, err := c.search(ctx, query{resource: r}, missing.Len, func(h *head, raw []byte) error {
			if !missing.Has(h.Metadata.Name) {
				return nil
			}
			missing.Delete(h.Metadata.Name)
			return c.addRelated(r, h, raw, reason)
		})
		if err != nil || whole {
			return err
		}
	}
	for _, name := range sets.List(missing) {
		h, raw, err := c.fetch(ctx, r, "", name, optional)
		if err != nil {
			return err
		}
		if raw == nil {
			continue
		}
		if err := c.addRelated(r, h, raw, reason); err != nil {
			return err
		}
	}
	return nil
}

const (
	expected = true
	optional = false
)

const notThere = "another object refers to it, but it does not exist"

// fetch reads a referenced object. An unreadable one is nil, with a finding; an error is for the whole
// backup.
func (c *collector) fetch(ctx context.Context, r resource, namespace, name string, expected bool) (*head, []byte, error) {
	h, raw, exists, err := c.get(ctx, r, namespace, name)
	if err == nil && !exists && expected {
		c.findings.warn(subject{r.GroupResource(), namespace, name}, notThere)
	}
	return h, raw, err
}

func (c *collector) get(ctx context.Context, r resource, namespace, name string) (h *head, raw []byte, exists bool, err error) {
	about := subject{r.GroupResource(), namespace, name}
	raw, err = c.lister.get(ctx, r, namespace, name)
	switch {
	case ctx.Err() != nil:
		return nil, nil, false, ctx.Err()
	case apierrors.IsNotFound(err):
		return nil, nil, false, nil
	case err != nil:
		c.lacks(about, fmt.Sprintf("read it: %v", err))
		return nil, nil, true, nil
	}
	if h, err = headOf(raw); err != nil {
		c.lacks(about, err.Error())
		return nil, nil, true, nil
	}
	return h, raw, true, nil
}

func unwrapVisit(err error) error {
	var fatal visitError
	if errors.As(err, &fatal) {
		return fatal.error
	}
	return err
}
