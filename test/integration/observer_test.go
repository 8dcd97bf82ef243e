// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// sight is what is seen of a backup of the system namespace, in the records
// themselves and in the store.
type sight struct {
	name   string
	run    *enginev1alpha1.BackupRun    // nil when there is no record
	by     string                       // the controller that leads, if the ledger lets it execute it
	volume *enginev1alpha1.VolumeUpload // of its only volume, if it has one
	stored bool                         // its metadata is in the store
}

func (s sight) phase() v1alpha1.BackupPhase {
	if s.run == nil {
		return ""
	}
	return s.run.Status.Phase
}

func (s sight) isNew() bool {
	return s.run != nil && s.run.Status.Phase == "" && s.run.Spec.Deletion == nil
}
func (s sight) waits() bool      { return s.phase() == v1alpha1.BackupPhaseQueued && s.by == "" }
func (s sight) ready() bool      { return s.phase() == v1alpha1.BackupPhaseQueued && s.by != "" }
func (s sight) inProgress() bool { return s.phase() == v1alpha1.BackupPhaseInProgress }
func (s sight) ended() bool      { return s.phase().Ended() && s.run.Spec.Deletion == nil }
func (s sight) cancelled() bool  { return s.run != nil && s.run.Spec.Cancellation != nil }
func (s sight) deleted() bool    { return s.run != nil && s.run.Spec.Deletion != nil }

func (s sight) volumeIn(phase enginev1alpha1.VolumePhase) bool {
	return s.inProgress() && s.volume != nil && s.volume.Status.Phase == phase
}

// observer sees all backups of the system namespace, at once when they change.
type observer struct {
	mu      sync.Mutex
	runs    map[types.UID]*enginev1alpha1.BackupRun
	started map[types.UID]string // whom it lets execute them
	volumes map[types.UID]*enginev1alpha1.VolumeUpload
	seen    map[types.UID]sight
	over    sets.Set[string] // those that have ended, by name
	// changed is called for every change, one after another.
	changed func(before, after sight)
}

// observe begins to call changed, until the test ends.
func observe(t *testing.T, changed func(before, after sight)) *observer {
	t.Helper()
	o := &observer{
		runs: map[types.UID]*enginev1alpha1.BackupRun{}, started: map[types.UID]string{},
		volumes: map[types.UID]*enginev1alpha1.VolumeUpload{},
		seen:    map[types.UID]sight{}, over: sets.New[string](), changed: changed,
	}
	engine := lab.Engine.EngineV1alpha1()
	ctx, cancel := context.WithCancel(t.Context())
	var watching wait.Group
	t.Cleanup(func() { cancel(); watching.Wait() })
	for _, open := range []func(context.Context, metav1.ListOptions) (watch.Interface, error){
		engine.BackupRuns(labtest.System).Watch, engine.VolumeUploads(labtest.System).Watch, lab.Kube.CoreV1().ConfigMaps(labtest.System).Watch,
	} {
		watcher, err := open(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		watching.Start(func() {
			for event := range watcher.ResultChan() {
				o.event(event)
			}
		})
	}
	// Nothing tells of the store.
	watching.StartWithContext(ctx, func(ctx context.Context) { wait.UntilWithContext(ctx, o.look, 2*time.Millisecond) })
	return o
}

func (o *observer) event(event watch.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	deleted := event.Type == watch.Deleted
	switch object := event.Object.(type) {
	case *enginev1alpha1.BackupRun:
		o.runs[object.UID] = object
		if deleted {
			o.runs[object.UID] = nil
		}
		o.update(object.UID, object.Name)
	case *enginev1alpha1.VolumeUpload:
		uid := types.UID(object.Labels[enginev1alpha1.LabelRun])
		o.volumes[uid] = object
		if deleted {
			delete(o.volumes, uid)
		}
		if run := o.runs[uid]; run != nil {
			o.update(uid, run.Name)
		}
	case *corev1.ConfigMap:
		if object.Name != records.LedgerName {
			return
		}
		before := o.started
		o.started = executors(object)
		for uid := range sets.KeySet(before).Union(sets.KeySet(o.started)) {
			if run := o.runs[uid]; run != nil {
				o.update(uid, run.Name)
			}
		}
	}
}

// look looks for what changes in the store.
func (o *observer) look(context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for uid, s := range o.seen {
		if s.inProgress() || s.deleted() {
			o.update(uid, s.name)
		}
	}
}

func (o *observer) update(uid types.UID, name string) {
	before := o.seen[uid]
	after := sight{name: name, run: o.runs[uid], by: o.started[uid], volume: o.volumes[uid], stored: isStored(name)}
	o.seen[uid] = after
	if after.run == nil || after.ended() {
		o.over.Insert(name)
	}
	o.changed(before, after)
}

// unfinished is how many of these backups have not ended.
func (o *observer) unfinished(names []string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(names) - o.over.Intersection(sets.New(names...)).Len()
}

// live reads what is to be seen of a backup now.
func live(ctx context.Context, name string, uid types.UID) (sight, error) {
	s := sight{name: name, stored: isStored(name)}
	run, err := lab.Engine.EngineV1alpha1().BackupRuns(labtest.System).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && run.UID != uid {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	s.run = run
	ledger, err := lab.Kube.CoreV1().ConfigMaps(labtest.System).Get(ctx, records.LedgerName, metav1.GetOptions{})
	if err != nil {
		return s, err
	}
	s.by = executors(ledger)[uid]
	volumes, err := lab.Engine.EngineV1alpha1().VolumeUploads(labtest.System).List(ctx, metav1.ListOptions{LabelSelector: enginev1alpha1.LabelRun + "=" + string(uid)})
	if err == nil && len(volumes.Items) > 0 {
		s.volume = &volumes.Items[0]
	}
	return s, err
}

// executors are the processes that the ledger lets execute backups: the one that leads.
func executors(ledger *corev1.ConfigMap) map[types.UID]string {
	processes := map[types.UID]string{}
	for uid := range records.Started(ledger) {
		processes[uid] = records.Leader(ledger)
	}
	return processes
}

func isStored(name string) bool {
	_, err := os.Stat(filepath.Join(lab.Dir, "store", format.MetadataKey(name)))
	return !errors.Is(err, fs.ErrNotExist)
}

// request posts a request about a backup, from any goroutine.
func request(ctx context.Context, name, subresource string, body runtime.Object) error {
	return lab.Holdfast.HoldfastV1alpha1().RESTClient().Post().Namespace(labtest.System).
		Resource("backups").Name(name).SubResource(subresource).Body(body).Do(ctx).Error()
}
