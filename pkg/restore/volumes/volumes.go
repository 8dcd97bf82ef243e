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

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
)

// DefaultHolders bounds the claims held at once in a restore: more would wait for agents, and take
// room on nodes.
const DefaultHolders = 16

// Agents tells which nodes have an agent.
type Agents interface {
	// Absence returns how long a node's agent has been silent, from since.
	Absence(node string, since time.Time) time.Duration
	// NodeGone reports whether the node, known since then, does not exist.
	NodeGone(node string, since time.Time) bool
	// Saw and Idle are methods of lease.Activity.
	Saw(node string, record types.UID, inProgress, changed bool, now time.Time)
	Idle(node string, since, now time.Time) (idle time.Duration, busy bool)
}

// Config is shared by all restores.
type Config struct {
	Namespace string
	// Image is for holders and waiting containers: the agents' own, which is on each node with an
	// agent.
	Image func(ctx context.Context) (string, error)
	// PullSecrets are the names of Secrets in a pod's namespace by which its node may pull Image.
	PullSecrets []string
	// Holders bounds the claims held at once in a restore.
	Holders int
	// VolumeTimeout bounds the restore of a volume from its start, and how long an agent may begin
	// and end nothing while others wait; twice that and AgentTimeout, while one is in progress.
	// AgentTimeout bounds the absence of a node's agent.
	VolumeTimeout, AgentTimeout time.Duration
	Agents                      Agents
	// Repository returns nil when a namespace's repository in a location can be read; the error
	// says why not, and what to do.
	Repository func(ctx context.Context, namespace, location string) error
	Records    engineclient.VolumeRestoresGetter
	Runs       engineclient.RestoreRunsGetter
	// Removing deletes holders of all restores, since a requester may have lost the right.
	Removing corev1client.PodsGetter
	// Kube reads claims, persistent volumes and nodes, lists and watches pods, and lists events and
	// LimitRanges.
	Kube  kubernetes.Interface
	Clock clock.Clock

	RecordInformer engineinformers.VolumeRestoreInformer
}

// Volumes restores data for all restores.
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

func (v *Volumes) changed(before, after any, deleted bool) {
	if last, ok := after.(cache.DeletedFinalStateUnknown); ok {
		after = last.Obj
	}
	record, ok := after.(*enginev1alpha1.VolumeRestore)
	if !ok {
		return
	}
	old, ok := before.(*enginev1alpha1.VolumeRestore)
	if ok && old.UID != record.UID {
		v.Agents.Saw(old.Spec.Node, old.UID, false, false, v.Clock.Now())
	}
	v.Agents.Saw(record.Spec.Node, record.UID, !deleted && record.Status.Phase == enginev1alpha1.VolumePhaseInProgress,
		ok && old.Status.Phase != record.Status.Phase, v.Clock.Now())
	v.mu.Lock()
	defer v.mu.Unlock()
	for r := range v.restorers {
		if string(r.run.UID) == record.Labels[enginev1alpha1.LabelRestore] {
			r.observe(record, deleted)
		}
	}
}

// Restorer returns the Restorer of a restore. pods creates pods with the restore's rights. The
// caller closes it.
func (v *Volumes) Restorer(run *enginev1alpha1.RestoreRun, pods corev1client.PodsGetter) *Restorer {
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

// Close forgets the restore. Its writes continue; End stops them.
func (r *Restorer) Close() {
	r.Volumes.mu.Lock()
	defer r.Volumes.mu.Unlock()
	delete(r.restorers, r)
}
