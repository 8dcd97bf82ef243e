// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/backupqueue"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/liveness"
)

// process is a controller process: queue, executor, and a Lease of its own.
type process struct {
	story   *story
	name    string
	gate    *gate
	watches []int
	stop    context.CancelFunc
	stopped chan struct{}
}

// launch starts a process.
func (s *story) launch(prepare ...func(*process)) *process {
	s.Helper()
	s.named++
	ctx, stop := context.WithCancel(s.Context())
	p := &process{story: s, name: fmt.Sprintf("process-%d", s.named), gate: &gate{}, stop: stop, stopped: make(chan struct{})}
	if s.random != nil {
		p.gate.random = rand.New(rand.NewPCG(s.seed, uint64(s.named)))
	}
	for _, f := range prepare {
		f(p)
	}
	engine := gatedEngine{s.EngineV1alpha1(), p.gate}
	configMaps := gatedConfigMaps{s.Kube.CoreV1().ConfigMaps(system), p.gate}
	leases := gatedLeases{s.Kube.CoordinationV1().Leases(system), p.gate}
	monitor := liveness.NewMonitor(leases, p.name, clock.RealClock{})
	recorder := events.NewFakeRecorder(100_000)
	recorded := engineinformers.NewSharedInformerFactory(s.Cluster, 0)
	objects := informers.NewSharedInformerFactory(s.Kube, 0)
	runs := recorded.Engine().V1alpha1()
	queue, err := backupqueue.New(backupqueue.Config{
		Namespace: system, Limit: s.limit, Identity: p.name, Gone: monitor.Gone,
		Runs: engine.BackupRuns(system), ConfigMaps: configMaps, Events: recorder, Clock: clock.RealClock{},
		RunInformer: runs.BackupRuns(), LocationInformer: runs.StorageLocations(),
		NamespaceInformer: objects.Core().V1().Namespaces(), SettingsInformer: objects.Core().V1().ConfigMaps(),
	})
	if err != nil {
		s.Fatal(err)
	}
	executor, err := New(Config{
		Namespace: system, Workers: s.limit, Identity: p.name, VolumeTimeout: volumeTimeout, AgentTimeout: agentTimeout, Agents: &fakeAgents{}, Gone: monitor.Gone,
		Engine: engine, ConfigMaps: configMaps, Executor: p,
		CheckLocation: func(context.Context, string) error { p.gate.wait(); s.setAvailable(); return nil },
		Events:        recorder, Clock: clock.RealClock{},
		RunInformer: runs.BackupRuns(), LocationInformer: runs.StorageLocations(),
		VolumeInformer: runs.VolumeUploads(), SettingsInformer: objects.Core().V1().ConfigMaps(),
	})
	if err != nil {
		s.Fatal(err)
	}
	before := s.Watches()
	recorded.StartWithContext(ctx)
	objects.StartWithContext(ctx)
	recorded.WaitForCacheSync(ctx.Done())
	objects.WaitForCacheSync(ctx.Done())
	synctest.Wait()
	for n := before + 1; n <= s.Watches(); n++ {
		p.watches = append(p.watches, n)
	}
	go monitor.Run(ctx)
	go func() {
		defer close(p.stopped)
		err := liveness.Hold(ctx, leases, p.name, clock.RealClock{}, func(ctx context.Context) error {
			var running sync.WaitGroup
			running.Go(func() { queue.Run(ctx) })
			running.Go(func() { executor.Run(ctx) })
			running.Wait()
			return nil
		})
		// Not to the test's log: some processes end after the test has.
		klog.FromContext(ctx).Info("A process has ended", "process", p.name, "err", err)
		stop()
		queue.Run(ctx) // if it never ran: to end its workqueue
		executor.Run(ctx)
		recorded.Shutdown()
		objects.Shutdown()
	}()
	return p
}

// isGone reports whether nobody has to wait for a process any more.
func (p *process) isGone() bool {
	_, err := p.story.Kube.CoordinationV1().Leases(system).Get(p.story.Context(), p.name, metav1.GetOptions{})
	return err != nil
}

// kill ends a process without a word.
func (p *process) kill() {
	p.gate.shatter()
	p.stop()
}

// gate holds the requests of a process back while it is closed, and carries them
// out when it is opened, however old they are then.
type gate struct {
	mu sync.Mutex
	// claims, if set, holds claims back until it is closed.
	claims chan struct{}
	random *rand.Rand
	closed chan struct{}
	broken bool
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.closed)
	g.closed = nil
}

// shatter lets no request pass any more.
func (g *gate) shatter() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.broken = true
}

func (g *gate) wait() error {
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed != nil {
		<-closed
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.broken {
		return errors.New("this process is dead")
	}
	return nil
}

// send makes a write when the gate is open. Now and then it lies for up to half a
// minute on its way, while others of the same process pass.
func send[T any](g *gate, request func() (T, error)) (T, error) {
	g.mu.Lock()
	late := time.Duration(0)
	if g.random != nil && g.random.IntN(4) == 0 {
		late = time.Duration(g.random.IntN(30_000)) * time.Millisecond
	}
	g.mu.Unlock()
	time.Sleep(late)
	return pass(g, request)
}

// pass makes a request when the gate is open.
func pass[T any](g *gate, request func() (T, error)) (T, error) {
	if err := g.wait(); err != nil {
		var none T
		return none, err
	}
	return request()
}

type gatedEngine struct {
	engineclient.EngineV1alpha1Interface
	gate *gate
}

func (e gatedEngine) BackupRuns(namespace string) engineclient.BackupRunInterface {
	return gatedRuns{e.EngineV1alpha1Interface.BackupRuns(namespace), e.gate}
}

type gatedRuns struct {
	engineclient.BackupRunInterface
	gate *gate
}

func (r gatedRuns) Get(ctx context.Context, name string, options metav1.GetOptions) (*enginev1alpha1.BackupRun, error) {
	return pass(r.gate, func() (*enginev1alpha1.BackupRun, error) { return r.BackupRunInterface.Get(ctx, name, options) })
}

func (r gatedRuns) List(ctx context.Context, options metav1.ListOptions) (*enginev1alpha1.BackupRunList, error) {
	return pass(r.gate, func() (*enginev1alpha1.BackupRunList, error) { return r.BackupRunInterface.List(ctx, options) })
}

func (r gatedRuns) UpdateStatus(ctx context.Context, run *enginev1alpha1.BackupRun, options metav1.UpdateOptions) (*enginev1alpha1.BackupRun, error) {
	if r.gate.claims != nil && run.Status.Phase == running {
		<-r.gate.claims
	}
	return send(r.gate, func() (*enginev1alpha1.BackupRun, error) {
		return r.BackupRunInterface.UpdateStatus(ctx, run, options)
	})
}

type gatedConfigMaps struct {
	coreclient.ConfigMapInterface
	gate *gate
}

func (c gatedConfigMaps) Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.ConfigMap, error) {
	return pass(c.gate, func() (*corev1.ConfigMap, error) { return c.ConfigMapInterface.Get(ctx, name, options) })
}

func (c gatedConfigMaps) Create(ctx context.Context, obj *corev1.ConfigMap, options metav1.CreateOptions) (*corev1.ConfigMap, error) {
	return send(c.gate, func() (*corev1.ConfigMap, error) { return c.ConfigMapInterface.Create(ctx, obj, options) })
}

func (c gatedConfigMaps) Update(ctx context.Context, obj *corev1.ConfigMap, options metav1.UpdateOptions) (*corev1.ConfigMap, error) {
	return send(c.gate, func() (*corev1.ConfigMap, error) { return c.ConfigMapInterface.Update(ctx, obj, options) })
}

type gatedLeases struct {
	coordinationclient.LeaseInterface
	gate *gate
}

func (l gatedLeases) Get(ctx context.Context, name string, options metav1.GetOptions) (*coordinationv1.Lease, error) {
	return pass(l.gate, func() (*coordinationv1.Lease, error) { return l.LeaseInterface.Get(ctx, name, options) })
}

func (l gatedLeases) List(ctx context.Context, options metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	return pass(l.gate, func() (*coordinationv1.LeaseList, error) { return l.LeaseInterface.List(ctx, options) })
}

func (l gatedLeases) Create(ctx context.Context, lease *coordinationv1.Lease, options metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return pass(l.gate, func() (*coordinationv1.Lease, error) { return l.LeaseInterface.Create(ctx, lease, options) })
}

func (l gatedLeases) Update(ctx context.Context, lease *coordinationv1.Lease, options metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	return pass(l.gate, func() (*coordinationv1.Lease, error) { return l.LeaseInterface.Update(ctx, lease, options) })
}

func (l gatedLeases) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	_, err := pass(l.gate, func() (struct{}, error) { return struct{}{}, l.LeaseInterface.Delete(ctx, name, options) })
	return err
}
