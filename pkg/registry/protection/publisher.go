// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package protection

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	domain "github.com/holdfast-io/holdfast/pkg/schedule"
)

// Config is the configuration of a Publisher.
type Config struct {
	SystemNamespace string
	Metadata        metadata.Interface // lists the workloads and claims
	Namespaces      corelisters.NamespaceLister
	Stores          Stores
	Ready           func() error // nil once all stored backups are known
	// IsGood reports whether a backup, as shown, is this cluster's own, stored and restorable.
	IsGood    func(namespace, name string, uid types.UID) bool
	Holders   func(claim types.NamespacedName, most int) []types.UID // with data of a claim, the newest first
	Schedules Schedules
	Warn      func(ctx context.Context) // adds a warning for each store that could not be read
	Clock     clock.WithTicker
}

// Schedules are all schedules as they are shown.
type Schedules interface {
	Names() []types.NamespacedName
	Schedule(name types.NamespacedName) (*v1alpha1.Schedule, *enginev1alpha1.ScheduleEntry, []domain.Backup)
}

const (
	decidePause, decideInterval = 500 * time.Millisecond, 15 * time.Second // the least and the longest time between two decisions
	decideShare                 = 10                                       // the least pause after a decision, in multiples of its time
)

// Publisher knows what protects the workloads and claims of the cluster. It decides anew within seconds of a
// change, and answers from memory.
type Publisher struct {
	Config
	live     *live
	scopes   *scopes
	holdings *holdings
	born     time.Time
	wake     chan struct{}
	decided  atomic.Pointer[map[types.UID]facts]
}

// New returns a Publisher, to be told of backups before it runs.
func New(config Config) *Publisher {
	p := &Publisher{Config: config, scopes: newScopes(), born: config.Clock.Now(), wake: make(chan struct{}, 1)}
	p.live = newLive(p.changed)
	p.holdings = newHoldings(config.Stores, config.Clock, p.changed)
	registerMetrics(p)
	return p
}

func (p *Publisher) changed() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// OnBackup notes a backup as it is shown, or nil.
func (p *Publisher) OnBackup(name types.NamespacedName, backup *v1alpha1.Backup) {
	if p.scopes.set(name, backup) {
		p.changed()
	}
}

// Run keeps up with the cluster and its backups until ctx ends.
func (p *Publisher) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { p.live.run(ctx, p.Metadata) })
	running.Go(func() { p.holdings.run(ctx) })
	ticker := p.Clock.NewTicker(decideInterval)
	defer ticker.Stop()
	for {
		pause := decidePause
		if p.live.isSynced() && p.Ready() == nil {
			began := p.Clock.Now()
			p.decide()
			pause = max(pause, decideShare*p.Clock.Since(began))
		}
		select {
		case <-ctx.Done():
			return
		case <-p.Clock.After(pause):
		}
		if p.decided.Load() == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-ticker.C():
		}
	}
}

func (p *Publisher) decide() {
	now := p.Clock.Now()
	in := input{
		objects: p.live.list(metav1.NamespaceAll), scopes: p.scopes,
		excluded: func(namespace string) bool {
			of, err := p.Namespaces.Get(namespace)
			return err == nil && of.Labels[format.LabelExclude] == "true"
		},
		good: func(b *backup) bool { return p.IsGood(b.Namespace, b.Name, b.uid) },
		holders: func(namespace, claim string) []types.UID {
			return p.Holders(types.NamespacedName{Namespace: namespace, Name: claim}, holders)
		},
		ask: p.holdings.ask,
	}
	for _, name := range p.Schedules.Names() {
		if of, _, _ := p.Schedules.Schedule(name); of != nil {
			if plan := planOf(of, p.SystemNamespace, now); plan != nil {
				in.plans = append(in.plans, plan)
			}
		}
	}
	decided, wanted, used := decide(in)
	p.holdings.want(wanted, used)
	p.decided.Store(&decided)
}

func (p *Publisher) rpoOf(namespace string) string {
	of, err := p.Namespaces.Get(namespace)
	if err != nil {
		return ""
	}
	return of.Annotations[v1alpha1.AnnotationRPO]
}

func (p *Publisher) judged(objects []*object, each func(*object, facts, verdict)) {
	decided, now := *p.decided.Load(), p.Clock.Now()
	rpos := map[string]string{}
	for _, o := range objects {
		rpo, known := rpos[o.namespace]
		if !known {
			rpo = p.rpoOf(o.namespace)
			rpos[o.namespace] = rpo
		}
		f, known := decided[o.uid]
		each(o, f, judge(o, f, known, rpo, now))
	}
}

// rows returns the rows of objects. With all, they may name any backup and schedule.
func (p *Publisher) rows(objects []*object, all bool) []v1alpha1.Protection {
	rows := make([]v1alpha1.Protection, 0, len(objects))
	p.judged(objects, func(o *object, f facts, v verdict) { rows = append(rows, p.show(o, f, v, all)) })
	return rows
}

func (p *Publisher) show(o *object, f facts, v verdict, all bool) v1alpha1.Protection {
	mayName := func(namespace string) bool {
		return all || namespace == o.namespace || o.namespace == p.SystemNamespace
	}
	protectedBy := func(b *backup) *v1alpha1.ProtectedBy {
		if b == nil {
			return nil
		}
		by := &v1alpha1.ProtectedBy{Timestamp: metav1.NewTime(b.started)}
		if mayName(b.Namespace) {
			by.Backup = v1alpha1.BackupReference{Namespace: b.Namespace, Name: b.Name}
		}
		return by
	}
	made := v1alpha1.Protection{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Protection"},
		ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: o.rowName(), Labels: o.labels, CreationTimestamp: metav1.NewTime(o.created)},
		Spec:       v1alpha1.ProtectionSpec{APIVersion: o.resource.GroupVersion().String(), Kind: o.kind.name, Name: o.name, UID: o.uid},
		Status: v1alpha1.ProtectionStatus{
			Protected: v.state, Objects: protectedBy(f.objects), Data: protectedBy(f.data),
			Expectation: v1alpha1.Duration{Duration: v.expectation}, ExpectedBy: v.by, Message: v.message,
		},
	}
	if f.schedule != nil {
		made.Status.Schedule = &v1alpha1.ProtectingSchedule{}
		if name := f.schedule.name; mayName(name.Namespace) {
			*made.Status.Schedule = v1alpha1.ProtectingSchedule{Namespace: name.Namespace, Name: name.Name}
		}
	}
	return made
}

var order = map[v1alpha1.ProtectionState]int{v1alpha1.ProtectionNone: 0, v1alpha1.ProtectionUnknown: 1, v1alpha1.ProtectionLate: 2, v1alpha1.ProtectionYes: 3}

func compareRows(a, b *v1alpha1.Protection) int {
	return cmp.Or(cmp.Compare(order[a.Status.Protected], order[b.Status.Protected]), compareNames(a, b))
}

func compareNames(a, b *v1alpha1.Protection) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
