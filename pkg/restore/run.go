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

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
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

// DefaultHookTime is how long the hooks of a restore may take in all.
const DefaultHookTime = time.Hour

// DefaultWorkers is how many objects of a restore are written at once.
const DefaultWorkers = 16

// maxReads is how many single objects are read from the store at once.
const maxReads = 16

// Request is one restore to execute.
type Request struct {
	// Run is the record. It is not changed.
	Run *engine.RestoreRun
	// SystemNamespace is where Holdfast's records lie: a restore of any other namespace is a
	// tenant's.
	SystemNamespace string
}

// tenant reports whether the restore may do no more than its requester.
func (r *Request) tenant() bool { return r.Run.Spec.RestoreRef.Namespace != r.SystemNamespace }

// StoreName is the restore's name in the store.
func (r *Request) StoreName() string {
	return format.RestoreStoreName(r.Run.Spec.RestoreRef.Namespace, r.Run.Spec.RestoreRef.Name, r.SystemNamespace, r.Run.UID)
}

// Dependencies are what a restore works with.
type Dependencies struct {
	Backup *source.Backup
	// Writer acts with the rights of the restore: those of its requester, or of the account
	// for the administrators' restores. It makes requests to the root of the API server.
	Writer rest.Interface
	// Reader acts as the controller, to find out what is there.
	Reader    rest.Interface
	Discovery Discovery
	// Allowed asks whether the requester of the restore has a right. Only tenants' restores
	// ask.
	Allowed func(ctx context.Context, right Right) (bool, error)
	Volumes Volumes
	// Succeed gives a namespace that the restore has made the history of the one that it continues;
	// nil if this restore gives none.
	Succeed func(ctx context.Context, of identity.Succession) error
	// Hooks runs commands in restored pods; nil if none are to be run.
	Hooks Hooks
	// ClusterUID is the uid of this cluster. Volumes of other clusters are not created.
	ClusterUID string
	// Look bounds how long the restore looks, after its last write, whether what it has made
	// works. Zero is not at all.
	Look time.Duration
	// Modifiers is the content of the ConfigMap that the spec names, or nil.
	Modifiers map[string]string
	Clock     clock.PassiveClock
	Progress  *Progress
	// Log is that of the restore, which is ended here; others may read it meanwhile. Optional.
	Log *runlog.Log
	// HookTime is how long the hooks of pods may take in all. Default an hour.
	HookTime time.Duration
	// Continues reports whether a namespace of the backup, which had this uid, or one that it
	// vouches for, is the one that has its name now. Nil takes all for the same.
	Continues func(ctx context.Context, namespace string, uid types.UID) (bool, error)
	// Workers is how many objects are written at once. Default 16.
	Workers int
}

// Right is what somebody may be allowed to do.
type Right struct {
	Verb, Group, Resource, Subresource, Namespace, Name string
}

// Progress is how far a restore is. It is safe for concurrent use.
type Progress struct {
	// total are the objects to restore.
	total atomic.Int64
	// done are those that are done, by what became of each.
	done [len(actionNames)]atomic.Int64
}

// Objects are the counts so far. What a rule leaves out is not to be restored.
func (p *Progress) Objects() holdfast.RestoreProgress {
	count := func(actions ...action) (sum int64) {
		for _, a := range actions {
			sum += p.done[a].Load()
		}
		return sum
	}
	progress := holdfast.RestoreProgress{
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

// Refused is why a restore was not begun: nothing was written.
type Refused struct{ Reasons []string }

func (r *Refused) Error() string { return strings.Join(r.Reasons, "; ") }

// Run executes a restore and returns when it has ended, or ctx has. What could not be
// restored is in the results. The error is why not everything was tried: of type Refused if
// nothing was.
//
// It may be called again for the same restore, by any process, also while another one has
// not noticed yet that it leads no more. Each object is created at most once, since its name
// is taken then, and that it was by this restore is written on it.
func Run(ctx context.Context, request Request, deps Dependencies) *Ended {
	e := newExecution(ctx, request, deps)
	err := e.contain(func() error { return e.run(ctx) })
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return e.end(err)
}

// Fail ends a restore that can't be begun, or not be gone on with.
func Fail(ctx context.Context, request Request, clock clock.PassiveClock, reason error) *Ended {
	return newExecution(ctx, request, Dependencies{Clock: clock}).end(reason)
}

// execution is one restore under way.
type execution struct {
	Dependencies
	request Request
	spec    *holdfast.RestoreSpec
	logger  klog.Logger
	report  *report
	writer  *cluster
	reader  *cluster
	kinds   *kinds
	rules   *object.Rules
	// called are what the resources of the backup may be called.
	called selection.Called
	// modifiers are those that the spec names, or nil.
	modifiers *object.Modifiers
	// later are the owners that come after what they own, by the uids of both in the backup;
	// mending is set when they are added.
	later   map[[2]string]bool
	mending bool
	here    *existing

	// volumes are those of the backup, by the claims there.
	volumes map[types.NamespacedName]*source.Volume
	// scratch are those without a claim, by the uids that their pods had.
	scratch map[types.UID][]*source.Volume
	graph   *graph.Graph
	// outcomes are, by node, what became of its object.
	outcomes []action
	// groups counts the items of each kind in each namespace.
	groups     map[listKey]int
	namespaces namespaces
	unknown    unknownFields
	webhooks   webhooks
	// heldIn are the namespaces in which pods of this restore hold claims.
	heldIn sync.Map
	// templates are the digests of the pod templates of Deployments, by their uids.
	templates sync.Map
	// byName finds Services and Secrets of the backup.
	byName itemsByName
	// left are the objects that are left to the cluster, by their kinds.
	left map[*kind][]subject
	// ownNamespaces are those that this restore has made.
	ownNamespaces ownNamespaces
	// restored are the items to restore, by their uids.
	restored map[types.UID]bool
	// named are the items that a tenant's restore asks for by name, or whose kind it asks for.
	named            map[*manifest.Item]bool
	forbiddenObjects forbiddenObjects
	accounts         onces
	rights           sync.Map
	// byUID are the items by their uids, users by the claims that they use, and suspects, which may
	// use any, by their namespaces, once index is made: only a restore that misses data, or has
	// hooks in pods of Deployments, needs them.
	index sync.Once
	byUID map[string]*manifest.Item
	users map[manifest.Reference][]*manifest.Item

	suspects map[string][]*manifest.Item
	hooks    *podHooks
	// reads bounds how many pods are read at once to restore the data of their claims.
	reads chan struct{}

	mu sync.Mutex
	// uids are those of the objects that are there, by what they were in the backup; "" for
	// an owner that is not.
	uids map[types.UID]types.UID
	// made are those, by their uids in the backup, that this restore has made.
	made map[types.UID]bool
	// definitions are the versions of the kinds that this restore has brought, by the names of
	// their definitions, and defined their groups.
	definitions map[string][]string
	defined     map[string]bool
	// ofPods are the claims that Kubernetes makes for pods, and why each is left to it.
	ofPods map[*manifest.Item]string
	// kept are the claims, by their names in the backup, that go on naming their volume.
	kept map[types.NamespacedName]bool
	// keepsData are claims that exist, whose data stays as it is. Read only once objects are
	// restored.
	keepsData map[*manifest.Item]bool
	// sparedVolumes are volumes without a claim that are not filled, by the uid that their pod
	// had and their name.
	sparedVolumes map[types.NamespacedName]bool
	// held are the items that use a claim whose data is missing, which is named.
	held map[*manifest.Item]string
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
		sparedVolumes: map[types.NamespacedName]bool{},
		held:          map[*manifest.Item]string{},
		left:          map[*kind][]subject{},
	}
	e.writer.warned = e.unknown.tell(e.report)
	e.writer.awaits = func(ctx context.Context, err error) bool { return e.webhooks.await(ctx, e.Clock.Now, err) }
	e.reader.awaits = e.writer.awaits
	e.here = &existing{cluster: e.writer, lists: map[listKey]*listing{}}
	return e
}

// contain turns a panic into an error: what goes wrong in one restore must not end the
// process, and with it all others that run.
func (e *execution) contain(do func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("a bug in Holdfast: panic: %v: please report it with the stack in the controller's log", reason)
			e.logger.Error(err, "A restore panicked", "stack", string(debug.Stack()))
		}
	}()
	return do()
}

// task is an object to restore.
type task struct {
	node    int32
	content *unstructured.Unstructured
}

// loop walks along the graph. Each object is released when those before it are done: there,
// or given up. Objects are read as the tarball has them, all that are released in one go.
type loop struct {
	e     *execution
	tasks chan task
	// waits are those that go on without a worker.
	waits sync.WaitGroup

	mu       sync.Mutex
	changed  chan struct{}
	progress *graph.Progress
	ready    []int32
	// busy counts the nodes that are ready or worked on, and again are those that are tried once
	// more when there are none. Passed are those of them that nothing waits for any more.
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

// release has nodes restored, or waited for.
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

// wait goes on with a node when what it waits for has come true, or will not.
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

// postpone has a node tried once more when nothing else is left to do. With hold, what comes after it
// waits for that.
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

// take gives what is ready; none when all is done.
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

// readTimeout is how long the store may fail to give even one object.
const readTimeout = 10 * time.Minute

// feed reads objects and hands them to the workers, until all is done.
func (l *loop) feed(ctx context.Context) error {
	failures := 0
	var since time.Time // the first of them
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
		l.busy -= len(wanted) // they are released anew
		l.mu.Unlock()
		l.release(ctx, slices.Sorted(maps.Values(wanted)))
	}
}

// Ended is how a restore ended, and what is to be stored of it.
type Ended struct {
	Status holdfast.RestoreStatus
	// Refused, or why not everything was tried, or nil.
	Err error
	// Digests are those of its objects in the store, by the last segments of their keys, once it
	// is stored: SHA-256 in hexadecimal.
	Digests map[string]string
	// Replaced says what was in the store instead of the end, and was overwritten; mostly empty.
	Replaced string
	// files are the content of the objects in the store, but for that of the metadata.
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
	status := holdfast.RestoreStatus{Phase: holdfast.RestorePhaseCompleted}
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
		status.Phase, status.ValidationErrors = holdfast.RestorePhaseFailedValidation, refused.Reasons
	case err != nil:
		status.Phase, status.FailureReason = holdfast.RestorePhaseFailed, err.Error()
	case status.Errors > 0:
		status.Phase = holdfast.RestorePhasePartiallyFailed
	}
	name := e.request.StoreName()
	return &Ended{Status: status, Err: err, name: name, files: []file{
		{format.RestoreLogKey(name), log},
		{format.RestorePlanKey(name), plan},
		{format.RestoreResourceListKey(name), list},
		{format.RestoreResultsKey(name), e.results()},
	}}
}
