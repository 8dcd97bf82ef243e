// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/backupqueue"
	"github.com/holdfast-io/holdfast/pkg/controllers/backuprun"
	"github.com/holdfast-io/holdfast/pkg/controllers/restorerun"
	"github.com/holdfast-io/holdfast/pkg/controllers/run"
	"github.com/holdfast-io/holdfast/pkg/controllers/storagelocation"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/queue"
)

var (
	errDead    = errors.New("this process is dead")
	errTimeout = errors.New("the request timed out")
)

// process is a controller process, which works once it is elected: the queue, the
// executors, and the retention of records.
type process struct {
	world   *world
	name    string
	watches []int
	stop    context.CancelFunc
	stopped chan struct{}

	mu     sync.Mutex
	random *rand.Rand
	// closed, if set, holds requests back until it is closed: the process is paused,
	// and was so from paused until resumed.
	closed          chan struct{}
	paused, resumed time.Time
	dead            bool
	// held is since when its informers see nothing, or did when they were released.
	held, released time.Time
	// knew and read are what its queue knew at least when it sent its last change of
	// the ledger: by its informers all that had happened before the one, and of the runs
	// that it let start, which it had read, all before the other.
	knew, read time.Time
}

// launch starts a process. Nothing else happens while its informers start, since
// the fake forgets what is deleted between a list and a watch.
func (w *world) launch() *process {
	w.Helper()
	synctest.Wait()
	w.launched++
	ctx, stop := context.WithCancel(klog.NewContext(w.Context(), klog.Logger{}))
	p := &process{
		world: w, name: fmt.Sprintf("process-%d", w.launched), stop: stop, stopped: make(chan struct{}),
		random: rand.New(rand.NewPCG(w.seed, uint64(w.launched))),
	}
	w.referee.launched(p)
	leases := linkedLeases{w.Kube.CoordinationV1().Leases(system), link{p, "lease"}}
	leads := func(ctx context.Context) error { return lease.Leads(ctx, leases, p.name) }
	recorded := enginefactory.NewSharedInformerFactory(w.Cluster, 0)
	objects := informers.NewSharedInformerFactory(w.Kube, 0)
	records := recorded.Engine().V1alpha1()
	configMaps := w.Kube.CoreV1().ConfigMaps(system)
	queue, err := backupqueue.New(backupqueue.Config{
		Namespace: system, Limits: queue.Slots{limit, limit}, Identity: p.name, Leads: leads,
		Runs:       linkedRuns{w.EngineV1alpha1().BackupRuns(system), link{p, queuePart}},
		Restores:   linkedRestores{w.EngineV1alpha1().RestoreRuns(system), link{p, queuePart}},
		ConfigMaps: linkedConfigMaps{configMaps, link{p, queuePart}},
		Events:     &events.FakeRecorder{}, Clock: clock.RealClock{},
		RunInformer: records.BackupRuns(), RestoreInformer: records.RestoreRuns(), LocationInformer: records.StorageLocations(),
		NamespaceInformer: objects.Core().V1().Namespaces(), LedgerInformer: objects.Core().V1().ConfigMaps(),
	})
	if err != nil {
		w.Fatal(err)
	}
	locations, err := storagelocation.NewWithCheck(storagelocation.Config{
		Locations: linkedEngine{w.EngineV1alpha1(), link{p, "locations"}}, Identity: p.name,
		Events: &events.FakeRecorder{}, Clock: clock.RealClock{}, LocationInformer: records.StorageLocations(),
	}, p.checkLocation)
	if err != nil {
		w.Fatal(err)
	}
	hold := func(ctx context.Context, name string, reason error) (*enginev1alpha1.StorageLocation, error) {
		return locations.Hold(ctx, cache.ObjectName{Namespace: system, Name: name}, reason)
	}
	executor, err := backuprun.New(backuprun.Config{
		ResumeInProgress: true,
		Namespace:        system, Workers: limit, Identity: p.name, VolumeTimeout: time.Hour, AgentTimeout: time.Hour, Agents: noVolumes{}, Leads: leads, Queue: counting{queue, w.referee},
		Engine:     linkedEngine{w.EngineV1alpha1(), link{p, "executor"}},
		ConfigMaps: linkedConfigMaps{configMaps, link{p, "executor"}},
		Executor:   work{p}, HoldLocation: hold,
		Events: &events.FakeRecorder{}, Clock: clock.RealClock{},
		RunInformer: records.BackupRuns(), LocationInformer: records.StorageLocations(),
		VolumeInformer: records.VolumeUploads(),
	})
	if err != nil {
		w.Fatal(err)
	}
	restores, err := restorerun.New(restorerun.Config{
		Namespace: system, Workers: limit, Identity: p.name, Leads: leads, Queue: counting{queue, w.referee},
		Engine:     linkedEngine{w.EngineV1alpha1(), link{p, "restorer"}},
		ConfigMaps: linkedConfigMaps{configMaps, link{p, "restorer"}},
		Executor:   restoring{p}, HoldLocation: hold,
		Events: &events.FakeRecorder{}, Clock: clock.RealClock{},
		RunInformer: records.RestoreRuns(),
	})
	if err != nil {
		w.Fatal(err)
	}
	retention, err := run.NewBackupRetention(linkedEngine{w.EngineV1alpha1(), link{p, "retention"}}, records.BackupRuns(), clock.RealClock{}, kept)
	if err != nil {
		w.Fatal(err)
	}
	restoreRetention, err := run.NewRestoreRetention(linkedEngine{w.EngineV1alpha1(), link{p, "retention"}}, records.RestoreRuns(), clock.RealClock{}, kept)
	if err != nil {
		w.Fatal(err)
	}
	before := w.Watches()
	recorded.StartWithContext(ctx)
	objects.StartWithContext(ctx)
	recorded.WaitForCacheSync(ctx.Done())
	objects.WaitForCacheSync(ctx.Done())
	synctest.Wait()
	for n := before + 1; n <= w.Watches(); n++ {
		p.watches = append(p.watches, n)
	}
	work := func(ctx context.Context) error {
		var running sync.WaitGroup
		for _, run := range []func(context.Context){func(ctx context.Context) { queue.Run(ctx, executor, restores) }, executor.Run, restores.Run, locations.Run, retention.Run, restoreRetention.Run} {
			running.Go(func() { run(ctx) })
		}
		running.Wait()
		return nil
	}
	go func() {
		defer close(p.stopped)
		if err := lease.Lead(ctx, leases, p.name, clock.RealClock{}, work); err != nil {
			w.referee.count(lostLeases, 1)
		}
		stop()
		_ = work(ctx) // if it never ran: to end its workqueues
		recorded.Shutdown()
		objects.Shutdown()
	}()
	return p
}

// counting counts the starts that are taken back.
type counting struct {
	*backupqueue.Controller
	referee *referee
}

func (c counting) TakeBack(ctx context.Context, run types.UID, location *enginev1alpha1.StorageLocation) error {
	c.referee.count(returns, 1)
	return c.Controller.TakeBack(ctx, run, location)
}

func (p *process) hasStopped() bool {
	select {
	case <-p.stopped:
		return true
	default:
		return false
	}
}

// kill ends a process without a word. What it has sent by then arrives.
func (p *process) kill() {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	p.resume()
	p.stop()
}

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// pause holds back what a process sends, and what it has sent and did not arrive.
func (p *process) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.paused, p.resumed = make(chan struct{}), time.Now(), time.Time{}
}

func (p *process) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed != nil {
		close(p.closed)
		p.closed, p.resumed = nil, time.Now()
	}
}

// awake returns when the process is not paused.
func (p *process) awake() {
	for {
		p.mu.Lock()
		closed := p.closed
		p.mu.Unlock()
		if closed == nil {
			return
		}
		<-closed
	}
}

// hold keeps a process's informers from seeing what happens, until release.
func (p *process) hold() (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held, p.released = time.Now(), time.Time{}
	open := p.world.Hold(p.watches...)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.released = time.Now()
		open()
	}
}

// notes what the process knows at least. What is sent at the instant of a release
// may be from before it.
func (p *process) notes() {
	now := time.Now()
	p.knew, p.read = now, now
	if !p.paused.IsZero() && (p.resumed.IsZero() || p.resumed.Equal(now)) {
		p.read = p.paused
	}
	if !p.held.IsZero() && (p.released.IsZero() || p.released.Equal(now)) {
		p.knew = p.held
	}
}

const queuePart = "queue"

// carry carries a request out, at once, late or never, and gives the error that came of
// it, or another one.
func (l link) carry(verb, resource string, request func() error) error {
	writes := verb != "get" && verb != "list"
	p := l.process
	p.mu.Lock()
	if p.dead {
		p.mu.Unlock()
		return errDead
	}
	fate := p.drawFate(verb, resource)
	if l.part == queuePart && resource == "configmaps" && writes {
		p.notes()
	}
	p.mu.Unlock()
	time.Sleep(fate.delay)
	p.awake()
	if p.isDead() && !writes {
		return errDead
	}
	if l.part == queuePart && writes {
		p.world.referee.count(queueTried, 1)
	}
	err := fate.before
	if err == nil {
		if err = request(); err == nil {
			err = fate.after
		}
	}
	if l.part == queuePart && writes && err != nil {
		switch {
		case fate.before != nil || fate.after != nil:
			p.world.referee.count(queueFaulty, 1)
		default:
			p.world.referee.refused(p.name)
		}
	}
	return err
}

// fate is what becomes of a request: it arrives late, is refused, or its answer is
// another one.
type fate struct {
	delay         time.Duration
	before, after error
}

func (p *process) drawFate(verb, resource string) fate {
	var f fate
	rate := p.world.faultRate()
	if verb == "get" || verb == "list" {
		if p.random.Float64() < rate/4 {
			f.before = errTimeout
		}
		return f
	}
	f.delay = time.Duration(1+p.random.IntN(15_000)) * time.Microsecond
	if p.random.IntN(500) == 0 {
		f.delay = time.Duration(p.random.IntN(10_000)) * time.Millisecond
	}
	if p.random.Float64() < rate {
		switch p.random.IntN(3) {
		case 0:
			f.before = apierrors.NewConflict(schema.GroupResource{Resource: resource}, "", errors.New("the object has been modified"))
		case 1:
			f.before = errTimeout
		case 2:
			f.after = errTimeout
		}
	}
	return f
}
