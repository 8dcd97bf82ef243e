// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"cmp"
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
)

// DefaultHolders is how many claims of a restore are held at once, if nothing else is said.
// What waits for an agent beyond that need not take room on a node.
const DefaultHolders = 16

// Agents knows which nodes have an agent.
type Agents interface {
	// Absence is how long there has been no sign of life of a node's agent, counted from a
	// time.
	Absence(node string, since time.Time) time.Duration
	// NodeGone reports whether there is no such node, given when something of it was heard.
	NodeGone(node string, since time.Time) bool
	// Saw and Idle are those of liveness.Activity.
	Saw(node string, record types.UID, inProgress, changed bool, now time.Time)
	Idle(node string, since, now time.Time) (idle time.Duration, busy bool)
}

// Config is what all restores share.
type Config struct {
	// Namespace is the system namespace.
	Namespace string
	// Image of the holders, and of the containers that wait in pods: the agents' own, which
	// lies on each node that has one.
	Image func(ctx context.Context) (string, error)
	// Holders is how many claims of a restore are held at once.
	Holders int
	// VolumeTimeout is how long the restore of one volume may take from its start. As long
	// may the agent of a node begin and end nothing while others wait for it, and twice as long
	// and AgentTimeout while it has something in progress. AgentTimeout is how long a node may be
	// without an agent.
	VolumeTimeout, AgentTimeout time.Duration
	Agents                      Agents
	// Repository returns when the repository of a namespace in a storage location can be
	// read; its error says why it can't, and what to do.
	Repository func(ctx context.Context, namespace, location string) error
	Records    engineclient.VolumeRestoresGetter
	Runs       engineclient.RestoreRunsGetter
	// Removing deletes the pods that hold claims, of whichever restore: who restores may
	// have lost the right meanwhile.
	Removing corev1client.PodsGetter
	// Kube reads claims, persistent volumes and nodes, lists and watches pods, and lists
	// events and LimitRanges.
	Kube  kubernetes.Interface
	Clock clock.Clock

	RecordInformer engineinformers.VolumeRestoreInformer
}

// Volumes is what brings data back, for any number of restores.
type Volumes struct {
	Config
	records engineclient.VolumeRestoreInterface
	synced  cache.InformerSynced

	mu        sync.Mutex
	restorers map[*Restorer]struct{}
}

// New returns Volumes.
func New(config Config) (*Volumes, error) {
	v := &Volumes{Config: config, records: config.Records.VolumeRestores(config.Namespace), restorers: map[*Restorer]struct{}{}}
	v.Holders = cmp.Or(v.Holders, DefaultHolders)
	registration, err := config.RecordInformer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { v.changed(nil, obj, false) },
		UpdateFunc: func(before, after any) { v.changed(before, after, false) },
		DeleteFunc: func(obj any) { v.changed(nil, obj, true) },
	})
	if err != nil {
		return nil, err
	}
	v.synced = registration.HasSynced
	return v, nil
}

// changed passes a change of a record to the restore that it belongs to.
func (v *Volumes) changed(before, after any, deleted bool) {
	if last, ok := after.(cache.DeletedFinalStateUnknown); ok {
		after = last.Obj
	}
	record, ok := after.(*engine.VolumeRestore)
	if !ok {
		return
	}
	old, ok := before.(*engine.VolumeRestore)
	if ok && old.UID != record.UID {
		v.Agents.Saw(old.Spec.Node, old.UID, false, false, v.Clock.Now())
	}
	v.Agents.Saw(record.Spec.Node, record.UID, !deleted && record.Status.Phase == engine.VolumePhaseInProgress,
		ok && old.Status.Phase != record.Status.Phase, v.Clock.Now())
	v.mu.Lock()
	defer v.mu.Unlock()
	for r := range v.restorers {
		if string(r.run.UID) == record.Labels[engine.LabelRestore] {
			r.observe(record, deleted)
		}
	}
}

// Restorer returns what brings the data of one restore back. Pods creates pods with the
// rights of the restore. The caller closes it.
func (v *Volumes) Restorer(run *engine.RestoreRun, pods corev1client.PodsGetter) *Restorer {
	r := &Restorer{
		Volumes: v,
		run:     run,
		pods:    pods,
		slots:   make(chan struct{}, v.Holders),
		works:   map[string]*work{},
		binding: map[string]struct{}{},
		change:  make(chan struct{}),
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.restorers[r] = struct{}{}
	return r
}

// Close forgets the restore. What was asked for goes on; End ends it.
func (r *Restorer) Close() {
	r.Volumes.mu.Lock()
	defer r.Volumes.mu.Unlock()
	delete(r.restorers, r)
}
