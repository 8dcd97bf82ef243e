// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

// PlanLimits bound a plan.
type PlanLimits struct {
	Objects int64
	Rows    int
}

// DefaultPlanLimits bound a user's plan. Rows take some 200 KB.
var DefaultPlanLimits = PlanLimits{Objects: 200_000, Rows: 500}

// maxLeftOutNames bounds the memory for counting each omitted object once.
const maxLeftOutNames = 50_000

var errTooManyPlanned = errors.New("the backup has more objects than a plan counts")

// Plan computes the contents of a backup that runs now, by the code and with the rights of Run:
// docs/design/plans.md. It writes nothing, hands over no volume and runs no hook; it reviews whether
// hooks may run. Of deps it needs no Store, Volumes and Remover, and of Hooks only Allowed.
//
// A plan of a backup that would fail, is too large or takes longer than ctx is not Complete, and says
// why. If each is not nil, it gets each object. If each fails, the plan ends.
func Plan(ctx context.Context, request Request, deps Dependencies, limits PlanLimits, each func(v1alpha1.PlannedRelated) error) *v1alpha1.BackupPlan {
	request.Backup = request.Backup.DeepCopy()
	request.Backup.Status.StartTimestamp = &metav1.Time{Time: deps.Clock.Now()}
	planned := &planned{
		limits: limits, each: each, counts: map[plannedKey]int64{}, left: map[subject]string{},
		hooks: map[string]*v1alpha1.PlannedHooks{}, refused: map[string]string{},
	}
	deps.Volumes, deps.Hooks, deps.Progress = plannedVolumes{}, plannedHooks{deps.Hooks, planned}, nil
	e := newExecution(ctx, request, deps)
	e.log.Log, e.findings.logger = nil, klog.Logger{} // a plan's findings are in the plan
	var volumes *podVolumes
	failure := e.contain(func() error {
		collector, err := e.newCollector(ctx)
		if err != nil {
			return err
		}
		collector.planned, collector.lister.metadataOnly = planned, decidesNothing
		collector.writeTo(plannedTarball{planned}, plannedGraph{planned})
		if volumes, err = collector.collect(ctx); err != nil {
			return err
		}
		collector.warnOfNothing()
		return volumes.await(ctx, slices.Clone(volumes.submitted))
	})
	return planned.plan(e, volumes, whyIncomplete(ctx, failure, limits))
}

func whyIncomplete(ctx context.Context, failure error, limits PlanLimits) string {
	switch {
	case failure == nil:
		return ""
	case errors.Is(failure, errTooManyPlanned):
		return fmt.Sprintf("the backup has more than %d objects, and the plan ends there: name fewer namespaces or resources", limits.Objects)
	case ctx.Err() != nil:
		return "the cluster was not read in the time that a plan may take, and the plan has what was read until then: name fewer namespaces or resources"
	}
	return "the backup would fail: " + failure.Error()
}

// decidesNothing reports whether content decides neither if objects are taken nor what others are.
func decidesNothing(r resource) bool {
	gr := r.GroupResource()
	switch gr {
	case nodesResource, apiServicesResource:
		return false
	case crdsResource: // the Services that they name are not taken
		return true
	}
	return !(subject{resource: gr}).isEvent() && !manifest.HasReferences(schema.GroupKind{Group: r.Group, Kind: r.kind})
}

type plannedKey struct{ resource, namespace string }

// planned gathers a plan; nil gathers nothing.
type planned struct {
	limits PlanLimits
	each   func(v1alpha1.PlannedRelated) error

	mu      sync.Mutex
	total   int64
	counts  map[plannedKey]int64
	along   []v1alpha1.PlannedRelated
	related int64
	// left has omitted objects' reasons; hooks and refused are by namespace.
	left    map[subject]string
	hooks   map[string]*v1alpha1.PlannedHooks
	refused map[string]string
}

func (p *planned) leaveOut(about subject, why string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.left) < maxLeftOutNames {
		p.left[about] = why
	}
}

func (p *planned) hooked(held []*heldPod) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pod := range held {
		if len(pod.pre)+len(pod.post) == 0 {
			continue
		}
		of := p.hooks[pod.ref.Namespace]
		if of == nil {
			of = &v1alpha1.PlannedHooks{Namespace: pod.ref.Namespace}
			p.hooks[pod.ref.Namespace] = of
		}
		of.Pods++
		of.Pre += int32(len(pod.pre))
		of.Post += int32(len(pod.post))
	}
}

// plannedTarball accepts the same as archive.Writer.
type plannedTarball struct{ *planned }

// Add implements tarball.
func (p plannedTarball) Add(item archive.Item, content []byte, placed func(archive.Position)) error {
	if err := item.Check(len(content)); err != nil {
		return err
	}
	p.mu.Lock()
	full := p.total == p.limits.Objects
	if !full {
		p.total++
	}
	p.mu.Unlock()
	if full {
		return errTooManyPlanned
	}
	placed(archive.Position{})
	return nil
}

// Close implements tarball.
func (p plannedTarball) Close() error { return nil }

type plannedGraph struct{ *planned }

// Add implements graph.
func (p plannedGraph) Add(item *manifest.Item) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	resource := schema.GroupResource{Group: item.APIGroup, Resource: item.Resource}.String()
	p.counts[plannedKey{resource, item.Namespace}]++
	object := v1alpha1.PlannedRelated{Resource: resource, Namespace: item.Namespace, Name: item.Name, Reason: item.Reason}
	if item.Reason != itself {
		if p.related++; len(p.along) < p.limits.Rows {
			p.along = append(p.along, object)
		}
	}
	if p.each == nil {
		return nil
	}
	return p.each(object)
}

type plannedVolumes struct{}

// Submit implements Volumes.
func (plannedVolumes) Submit(context.Context, *format.Volume) error { return nil }

// Cut implements Volumes.
func (plannedVolumes) Cut(context.Context, []*format.Volume) error { return nil }

// Wait implements Volumes.
func (plannedVolumes) Wait(_ context.Context, volumes []*format.Volume) error {
	for _, volume := range volumes {
		volume.Status.Phase = enginev1alpha1.VolumePhaseCompleted
	}
	return nil
}

type plannedHooks struct {
	asked Hooks
	*planned
}

// Allowed implements Hooks.
func (h plannedHooks) Allowed(ctx context.Context, namespace string) error {
	err := h.asked.Allowed(ctx, namespace)
	if err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.refused[namespace] = err.Error()
	}
	return err
}

// Pending implements Hooks.
func (plannedHooks) Pending(context.Context, []enginev1alpha1.PodReference) error { return nil }

// Exec implements Hooks.
func (plannedHooks) Exec(context.Context, enginev1alpha1.PodReference, string, []string) (string, error) {
	return "", nil
}

func (p *planned) plan(e *execution, volumes *podVolumes, incomplete string) *v1alpha1.BackupPlan {
	p.mu.Lock()
	defer p.mu.Unlock()
	plan := &v1alpha1.BackupPlan{Complete: incomplete == "", TotalItems: p.total, Along: p.along}
	var omitted v1alpha1.PlanOmissions
	omitted.Along = p.related - int64(len(p.along))
	for key, count := range p.counts {
		plan.Objects = append(plan.Objects, v1alpha1.PlannedObjects{Resource: key.resource, Namespace: key.namespace, Count: count})
	}
	slices.SortFunc(plan.Objects, func(a, b v1alpha1.PlannedObjects) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Resource, b.Resource))
	})
	plan.LeftOut = p.leftOut(e.findings)
	for _, namespace := range slices.Sorted(maps.Keys(p.hooks)) {
		of := p.hooks[namespace]
		of.Message = p.refused[namespace]
		of.Allowed = of.Message == ""
		plan.Hooks = append(plan.Hooks, *of)
	}
	if plan.Complete {
		plan.Volumes = volumes.plannedVolumes()
	}
	plan.Errors, plan.Warnings = e.findings.counts()
	plan.Message = cmp.Or(incomplete, e.findings.message())
	plan.Objects, omitted.Objects = cut(plan.Objects, p.limits.Rows)
	plan.LeftOut, omitted.LeftOut = cut(plan.LeftOut, p.limits.Rows)
	plan.Volumes, omitted.Volumes = cut(plan.Volumes, p.limits.Rows)
	if omitted != (v1alpha1.PlanOmissions{}) {
		plan.Omitted = &omitted
	}
	return plan
}

func cut[T any](list []T, most int) ([]T, int64) {
	if len(list) <= most {
		return list, 0
	}
	return list[:most], int64(len(list) - most)
}

func (p *planned) leftOut(findings *findings) []v1alpha1.PlannedLeftOut {
	type key struct{ resource, namespace, reason string }
	counts := map[key]int64{}
	for about, why := range p.left {
		counts[key{about.resource.String(), about.namespace, why}]++
	}
	for namespace, count := range findings.SecretsLeftOut {
		counts[key{secretsResource.String(), namespace, secretsLeftOut}] = int64(count)
	}
	var rows []v1alpha1.PlannedLeftOut
	for of, count := range counts {
		rows = append(rows, v1alpha1.PlannedLeftOut{Resource: of.resource, Namespace: of.namespace, Count: count, Reason: of.reason})
	}
	slices.SortFunc(rows, func(a, b v1alpha1.PlannedLeftOut) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Reason, b.Reason))
	})
	return rows
}

func (p *podVolumes) plannedVolumes() []v1alpha1.PlannedVolume {
	var rows []v1alpha1.PlannedVolume
	for _, volume := range p.inOrder() {
		why := "the pod runs on the node " + volume.Node + " and mounts it"
		if volume.ClaimName == "" {
			why = "the pod or the spec asks for this volume without a claim"
		}
		method := v1alpha1.VolumeMethodFiles
		if of := volume.Snapshot; of != nil {
			method, why = v1alpha1.VolumeMethodSnapshot, "the driver "+of.Driver+" makes a snapshot of the class "+of.Class+", and its files are read"
			switch {
			case of.KeepLocal > 0:
				why += fmt.Sprintf("; the claim's newest %d stay in its storage", of.KeepLocal)
			case of.Kept:
				why = "the driver " + of.Driver + " makes a snapshot of the class " + of.Class + ", which stays in its storage"
			}
		}
		rows = append(rows, v1alpha1.PlannedVolume{
			Namespace: volume.Pod.Namespace, Claim: volume.ClaimName, Pod: volume.Pod.Name, Volume: volume.Name,
			Bytes: volume.Capacity, Method: method, Reason: why,
		})
	}
	for _, key := range p.sortedClaims() {
		of := p.claims[key]
		if of.taken && !of.lost {
			continue
		}
		row := v1alpha1.PlannedVolume{Namespace: key.Namespace, Claim: key.Name, Method: v1alpha1.VolumeMethodNone, Reason: of.whyNotTaken()}
		if kept := p.persistentVolumes[of.volume]; kept != nil {
			row.Bytes = kept.capacity
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b v1alpha1.PlannedVolume) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Volume, b.Volume))
	})
	return rows
}
