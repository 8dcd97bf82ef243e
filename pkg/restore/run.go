// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/graph"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/runlog"
	"github.com/holdfast-io/holdfast/pkg/selection"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

// DefaultHookTime bounds the hooks of a restore.
const DefaultHookTime = time.Hour

// DefaultWorkers is how many objects are written at once.
const DefaultWorkers = 16

const maxReads = 16

// Request is one restore to execute.
type Request struct {
	Run *enginev1alpha1.RestoreRun
	// SystemNamespace has Holdfast's records: a restore of another is a tenant's.
	SystemNamespace string
}

// tenant reports whether only the requester's rights apply.
func (r *Request) tenant() bool { return r.Run.Spec.RestoreRef.Namespace != r.SystemNamespace }

// StoreName is the restore's name in the store.
func (r *Request) StoreName() string {
	return format.RestoreStoreName(r.Run.Spec.RestoreRef.Namespace, r.Run.Spec.RestoreRef.Name, r.SystemNamespace, r.Run.UID)
}

// Dependencies are what a restore works with.
type Dependencies struct {
	Backup *source.Backup
	// Writer makes requests to the root of the API server with the restore's rights: its
	// requester's, or the administrators' account's.
	Writer    rest.Interface
	Reader    rest.Interface
	Discovery Discovery
	// Allowed asks for a right of the requester, in tenants' restores.
	Allowed func(ctx context.Context, right Right) (bool, error)
	Volumes Volumes
	// Snapshots makes claims from kept snapshots. Optional.
	Snapshots StoredSnapshots
	// Succeed gives a new namespace the history of the continued one. Optional.
	Succeed func(ctx context.Context, of identity.Succession) error
	Hooks   Hooks
	// ClusterUID is this cluster's uid. Volumes of other clusters are not created.
	ClusterUID string
	// Look bounds the final look at new objects; zero is none.
	Look time.Duration
	// Modifiers is the content of the spec's ConfigMap, or nil.
	Modifiers map[string]string
	Clock     clock.PassiveClock
	Progress  *Progress
	// Log is the restore's log; Run closes it, and others may read it. Optional.
	Log      *runlog.Log
	HookTime time.Duration
	// Continues reports whether the present namespace is the backup's of this uid, or continues it.
	// Nil takes all for the same.
	Continues func(ctx context.Context, namespace string, uid types.UID) (bool, error)
	Workers   int
}

// Right is a right that a user may have.
type Right struct {
	Verb, Group, Resource, Subresource, Namespace, Name string
}

// Progress counts the objects of a restore. It is safe for concurrent use.
type Progress struct {
	total atomic.Int64
	done  [len(actionNames)]atomic.Int64
}

// Objects returns the counts so far, without objects left out by a rule.
func (p *Progress) Objects() v1alpha1.RestoreProgress {
	count := func(actions ...action) (sum int64) {
		for _, a := range actions {
			sum += p.done[a].Load()
		}
		return sum
	}
	progress := v1alpha1.RestoreProgress{
		TotalItems:     p.total.Load() - count(actionLeave),
		ItemsCreated:   count(actionCreate, actionRecreate),
		ItemsUpdated:   count(actionUpdate),
		ItemsUnchanged: count(actionSkip),
		ItemsDiffering: count(actionConflict),
		ItemsFailed:    count(actionRefused, actionError),
	}
	progress.ItemsRestored = progress.ItemsCreated + progress.ItemsUpdated + progress.ItemsUnchanged
	return progress
}

// Refused says why a restore did not begin: nothing was written.
type Refused struct{ Reasons []string }

func (r *Refused) Error() string { return strings.Join(r.Reasons, "; ") }

// Run executes a restore and returns when it or ctx has ended. Failed objects are in the results.
// An error says why not everything was tried; Refused, that nothing was. Any process may call it
// again for the same restore, also while another still works: no object is created twice.
func Run(ctx context.Context, request Request, deps Dependencies) *Ended {
	e := newExecution(ctx, request, deps)
	err := e.contain(func() error { return e.run(ctx) })
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return e.end(err)
}

// Fail ends a restore that can't begin or continue.
func Fail(ctx context.Context, request Request, clock clock.PassiveClock, reason error) *Ended {
	return newExecution(ctx, request, Dependencies{Clock: clock}).end(reason)
}

type execution struct {
	Dependencies
	request   Request
	spec      *v1alpha1.RestoreSpec
	planned   *planned
	logger    klog.Logger
	report    *report
	writer    *cluster
	reader    *cluster
	kinds     *kinds
	rules     *object.Rules
	called    selection.Called
	modifiers *object.Modifiers
	// later are owners restored after what they own, by both uids in the backup; mending says that
	// they are set.
	later   map[[2]string]bool
	mending bool
	here    *existing

	volumes map[types.NamespacedName]*source.Volume
	// scratch are volumes without a claim, by the pod's uid in the backup.
	scratch       map[types.UID][]*source.Volume
	graph         *graph.Graph
	outcomes      []action
	groups        map[listKey]int
	namespaces    namespaces
	unknown       unknownFields
	webhooks      webhooks
	heldIn        sync.Map
	templates     sync.Map
	byName        itemsByName
	left          map[*kind][]subject
	ownNamespaces ownNamespaces
	restored      map[types.UID]bool
	// named are items that a tenant's restore asks for by name or kind.
	named            map[*manifest.Item]bool
	forbiddenObjects forbiddenObjects
	accounts         onces
	rights           sync.Map
	// byUID are the items by uid, users by the claims they use, and suspects, which may use any, by
	// namespace; index makes them.
	index sync.Once
	byUID map[string]*manifest.Item
	users map[manifest.Reference][]*manifest.Item

	suspects map[string][]*manifest.Item
	hooks    *podHooks
	reads    chan struct{}

	mu sync.Mutex
	// uids maps uids of the backup to the cluster's; "" is a missing owner.
	uids map[types.UID]types.UID
	made map[types.UID]bool
	// definitions are restored kinds' versions by definition, defined their groups.
	definitions map[string][]string
	defined     map[string]bool
	// ofPods are claims left to Kubernetes, with the reason.
	ofPods map[*manifest.Item]string
	// kept are claims, by name in the backup, that keep their volume.
	kept map[types.NamespacedName]bool
	// keepsData are existing claims whose data stays, fixed once objects are restored.
	keepsData map[*manifest.Item]bool
	// fromLocal are claims made from a snapshot beside their moved data.
	fromLocal map[*manifest.Item]bool
	// classes are the drivers of the StorageClasses that a plan creates, by name.
	classes map[string]string
	// sparedVolumes are unfilled volumes without a claim, by the pod's uid in the backup and name.
	sparedVolumes map[types.NamespacedName]bool
	// held are items that use a claim without data, with its name.
	held map[*manifest.Item]string
	// empty are claims that come back empty by the spec.
	empty format.Told
}

func newExecution(ctx context.Context, request Request, deps Dependencies) *execution {
	if deps.HookTime <= 0 {
		deps.HookTime = DefaultHookTime
	}
	if deps.Workers < 1 {
		deps.Workers = DefaultWorkers
	}
	if deps.Progress == nil {
		deps.Progress = &Progress{}
	}
	if deps.Log == nil {
		deps.Log = runlog.New(deps.Clock)
	}
	e := &execution{
		Dependencies:  deps,
		request:       request,
		spec:          &request.Run.Spec.Restore,
		logger:        klog.LoggerWithValues(klog.FromContext(ctx), "restore", request.StoreName()),
		report:        newReport(deps.Log, request.Run.Spec.RestoreRef.Namespace, request.SystemNamespace),
		writer:        &cluster{client: deps.Writer},
		reader:        &cluster{client: deps.Reader},
		groups:        map[listKey]int{},
		reads:         make(chan struct{}, maxReads),
		uids:          map[types.UID]types.UID{},
		made:          map[types.UID]bool{},
		definitions:   map[string][]string{},
		defined:       map[string]bool{},
		kept:          map[types.NamespacedName]bool{},
		keepsData:     map[*manifest.Item]bool{},
		fromLocal:     map[*manifest.Item]bool{},
		classes:       map[string]string{},
		sparedVolumes: map[types.NamespacedName]bool{},
		held:          map[*manifest.Item]string{},
		left:          map[*kind][]subject{},
		empty:         format.NewTold(request.Run.Spec.RestoreRef.Namespace, request.SystemNamespace),
	}
	e.writer.warned = e.unknown.tell(e.report)
	e.writer.awaits = func(ctx context.Context, err error) bool { return e.webhooks.await(ctx, e.Clock.Now, err) }
	e.reader.awaits = e.writer.awaits
	e.here = &existing{cluster: e.writer, lists: map[listKey]*listing{}}
	return e
}

// contain turns a panic into an error: a failure in one restore must not end the others.
func (e *execution) contain(do func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("a bug in Holdfast: panic: %v: please report it with the stack in the controller's log", reason)
			e.logger.Error(err, "A restore panicked", "stack", string(debug.Stack()))
		}
	}()
	return do()
}

type task struct {
	node    int32
	content *unstructured.Unstructured
}

// loop walks along the graph. An object is released when its predecessors are done or given up;
// released objects are read together, in the order of the tarball.
type loop struct {
	e     *execution
	tasks chan task
	// waits go on without a worker.
	waits sync.WaitGroup

	mu       sync.Mutex
	changed  chan struct{}
	progress *graph.Progress
	ready    []int32
	// busy counts nodes that are ready or in work. again are nodes to retry when it is zero; passed
	// are nodes in again that hold no successor.
	busy   int
	again  []int32
	passed map[int32]bool
}

func (e *execution) restoreAll(ctx context.Context) error {
	l := &loop{e: e, tasks: make(chan task), changed: make(chan struct{}, 1), passed: map[int32]bool{}}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var working sync.WaitGroup
	for range e.Workers {
		working.Go(func() {
			for t := range l.tasks {
				if err := e.contain(func() error { e.one(ctx, l, t); return nil }); err != nil {
					cancel(err)
				}
			}
		})
	}
	var first []int32
	l.progress, first = e.graph.Start()
	l.release(ctx, first)
	err := l.feed(ctx)
	close(l.tasks)
	if err != nil {
		cancel(err)
	}
	working.Wait()
	l.waits.Wait()
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

func (l *loop) release(ctx context.Context, nodes []int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy += len(nodes)
	for _, i := range nodes {
		node := &l.e.graph.Nodes[i]
		if node.Wait == "" {
			l.ready = append(l.ready, i)
			continue
		}
		l.wait(ctx, i, node.Item, func(ctx context.Context) error { return l.e.await(ctx, node) })
	}
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func (l *loop) wait(ctx context.Context, i int32, item *manifest.Item, until func(context.Context) error) {
	l.waits.Go(func() {
		if err := l.e.contain(func() error { return until(ctx) }); err != nil && ctx.Err() == nil {
			l.e.report.fail(l.e.subject(item), err.Error())
		}
		l.done(ctx, i)
	})
}

// done is called once for each node.
func (l *loop) done(ctx context.Context, i int32) {
	if l.e.graph.Nodes[i].Wait == "" {
		l.e.Progress.done[l.e.outcomes[i]].Add(1)
	}
	l.mu.Lock()
	l.busy--
	var released []int32
	if !l.passed[i] {
		released = l.progress.Done(i)
	}
	l.mu.Unlock()
	l.release(ctx, released)
}

// postpone retries a node when nothing else is left. With hold, its successors wait for it.
func (l *loop) postpone(ctx context.Context, i int32, hold bool) {
	l.mu.Lock()
	l.busy--
	l.again = append(l.again, i)
	var released []int32
	if !hold {
		l.passed[i] = true
		released = l.progress.Done(i)
	}
	l.mu.Unlock()
	l.release(ctx, released)
}

func (l *loop) take(ctx context.Context) ([]int32, error) {
	for {
		l.mu.Lock()
		if l.busy == 0 && len(l.again) > 0 {
			l.ready, l.again = l.again, nil
			l.busy = len(l.ready)
			l.e.webhooks.finish()
		}
		ready, finished := l.ready, l.progress.Finished() && l.busy == 0
		l.ready = nil
		l.mu.Unlock()
		if len(ready) > 0 || finished {
			return ready, nil
		}
		select {
		case <-l.changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// readTimeout bounds the time in which the store returns no object.
const readTimeout = 10 * time.Minute

func (l *loop) feed(ctx context.Context) error {
	failures := 0
	var since time.Time
	var waiting *waits.Wait
	defer func() { waiting.End() }()
	for {
		ready, err := l.take(ctx)
		if err != nil || len(ready) == 0 {
			return err
		}
		wanted := make(map[*manifest.Item]int32, len(ready))
		for _, i := range ready {
			wanted[l.e.graph.Nodes[i].Item] = i
		}
		failed := error(nil)
		for o, err := range l.e.Backup.ObjectsOf(ctx, slices.Collect(maps.Keys(wanted))) {
			if o.Item == nil {
				failed = err
				break
			}
			i := wanted[o.Item]
			delete(wanted, o.Item)
			failures = 0
			waiting.End()
			waiting = nil
			if err != nil {
				l.e.decided(i, actionError, l.e.subject(o.Item), err.Error(), nil)
				l.done(ctx, i)
				continue
			}
			select {
			case l.tasks <- task{i, o.Content}:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if len(wanted) == 0 {
			continue
		}
		if failures++; failures == 1 {
			since = l.e.Clock.Now()
		}
		if failed == nil || l.e.Clock.Since(since) > readTimeout || errors.Is(failed, source.ErrRefused) {
			if failed == nil {
				failed = errors.New("the backup does not hold what its manifest says")
			}
			return failed
		}
		l.e.report.info(subject{}, fmt.Sprintf("reading the backup is tried again: %v", failed))
		if waiting == nil {
			waiting = waits.ForAnyone(ctx, "its storage location, which does not give the objects of the backup")
		}
		if err := sleep(ctx, min(time.Second<<min(failures, 5), 30*time.Second)); err != nil {
			return err
		}
		l.mu.Lock()
		l.busy -= len(wanted)
		l.mu.Unlock()
		l.release(ctx, slices.Sorted(maps.Values(wanted)))
	}
}

// Ended is the end of a restore, with its stored files.
type Ended struct {
	Status v1alpha1.RestoreStatus
	// Err is Refused, or says why not everything was tried, or is nil.
	Err error
	// Digests are the SHA-256 of its stored objects in hexadecimal, by the last segments of their
	// keys.
	Digests map[string]string
	// Replaced describes a foreign end that was overwritten in the store; mostly empty.
	Replaced string
	// files are the objects to store, except the metadata.
	files []file
	name  string
}

type file struct {
	key     string
	content []byte
}

func (e *execution) end(err error) *Ended {
	var refused *Refused
	if err != nil && !errors.Is(err, context.Canceled) {
		e.report.fail(subject{}, err.Error())
	}
	if e.Volumes != nil {
		for _, warning := range e.Volumes.Warnings() {
			e.report.warn(subject{}, warning)
		}
	}
	list := e.resourceList()
	log, plan := e.report.end()
	status := v1alpha1.RestoreStatus{Phase: v1alpha1.RestorePhaseCompleted}
	objects := e.Progress.Objects()
	status.Progress = &objects
	status.Errors, status.Warnings = e.report.counts()
	status.Message = e.report.message()
	status.CompletionTimestamp = &metav1.Time{Time: e.Clock.Now()}
	if e.Volumes != nil {
		if counts := e.Volumes.Counts(); counts.Total > 0 {
			status.Volumes = &counts
		}
	}
	status.HookStatus = e.hooks.counts()
	switch {
	case errors.As(err, &refused):
		status.Phase, status.ValidationErrors = v1alpha1.RestorePhaseFailedValidation, refused.Reasons
	case err != nil:
		status.Phase, status.FailureReason = v1alpha1.RestorePhaseFailed, err.Error()
	case status.Errors > 0:
		status.Phase = v1alpha1.RestorePhasePartiallyFailed
	}
	name := e.request.StoreName()
	return &Ended{Status: status, Err: err, name: name, files: []file{
		{format.RestoreLogKey(name), log},
		{format.RestorePlanKey(name), plan},
		{format.RestoreResourceListKey(name), list},
		{format.RestoreResultsKey(name), e.results()},
	}}
}
