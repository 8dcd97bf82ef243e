// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	holdfastclient "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned/typed/holdfast/v1alpha1"
)

const plainInterval = 10 * time.Second

type progress struct {
	phase                 string
	ended                 bool
	message               string
	waits                 string
	items, itemsTotal     int64
	bytes, bytesTotal     int64
	volumes, volumesTotal int32
	errorCount, warnings  int32
	completed, partially  bool
}

func backupProgress(backup *v1alpha1.Backup) progress {
	status := &backup.Status
	p := progress{
		phase: string(status.Phase), ended: status.Phase.Ended(), message: cmp.Or(status.FailureReason, status.Message),
		waits: waitsFor(status.Conditions), errorCount: status.Errors, warnings: status.Warnings,
		completed: status.Phase == v1alpha1.BackupPhaseCompleted, partially: status.Phase == v1alpha1.BackupPhasePartiallyFailed,
	}
	if of := status.Progress; of != nil {
		p.items, p.itemsTotal = of.ItemsBackedUp, of.TotalItems
	}
	if of := status.Volumes; of != nil {
		p.bytes, p.bytesTotal, p.volumes, p.volumesTotal = of.BytesDone, of.TotalBytes, of.Completed+of.Failed, of.Total
	}
	return p
}

func restoreProgress(restore *v1alpha1.Restore) progress {
	status := &restore.Status
	p := progress{
		phase: string(status.Phase), ended: status.Phase.Ended(), message: cmp.Or(status.FailureReason, status.Message),
		waits: waitsFor(status.Conditions), errorCount: status.Errors, warnings: status.Warnings,
		completed: status.Phase == v1alpha1.RestorePhaseCompleted, partially: status.Phase == v1alpha1.RestorePhasePartiallyFailed,
	}
	if of := status.Progress; of != nil {
		p.items, p.itemsTotal = of.ItemsRestored, of.TotalItems
	}
	if of := status.Volumes; of != nil {
		p.bytes, p.bytesTotal, p.volumes, p.volumesTotal = of.BytesDone, of.TotalBytes, of.Completed+of.Failed, of.Total
	}
	return p
}

func waitsFor(conditions []metav1.Condition) string {
	for _, of := range []string{v1alpha1.ConditionQueued, v1alpha1.ConditionComplete} {
		for _, condition := range conditions {
			if condition.Type == of && condition.Message != "" && (of == v1alpha1.ConditionComplete || condition.Status == metav1.ConditionTrue) {
				return condition.Message
			}
		}
	}
	return ""
}

func (p progress) String() string {
	text := p.phase
	if p.itemsTotal > 0 {
		text += fmt.Sprintf(", objects %d/%d", p.items, p.itemsTotal)
	}
	if p.volumesTotal > 0 {
		text += fmt.Sprintf(", volumes %d/%d (%s of %s)", p.volumes, p.volumesTotal, human(p.bytes), human(p.bytesTotal))
	}
	if !p.ended && p.waits != "" {
		text += ": " + p.waits
	}
	return text
}

func human(bytes int64) string { return fmt.Sprintf("% .1f", decor.SizeB1024(bytes)) }

type display interface {
	show(progress)
	close()
}

type lines struct {
	t    *tool
	last time.Time
	said string
}

func (l *lines) show(p progress) {
	text := p.String()
	if now := time.Now(); text != l.said && (p.ended || now.Sub(l.last) >= plainInterval) {
		fmt.Fprintln(l.t.ErrOut, text)
		l.last, l.said = now, text
	}
}

func (l *lines) close() {}

type bars struct {
	of      *mpb.Progress
	items   *mpb.Bar
	volumes *mpb.Bar // nil until a volume is known
	phase   string
}

func newBars(t *tool) *bars {
	b := &bars{of: mpb.New(mpb.WithOutput(t.ErrOut), mpb.WithWidth(64))}
	b.items = b.of.AddBar(0, mpb.PrependDecorators(decor.Name("objects ", decor.WC{W: 9, C: decor.DindentRight}), decor.CountersNoUnit("%d/%d")),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return b.phase })))
	return b
}

func (b *bars) addVolumes() {
	b.volumes = b.of.AddBar(0, mpb.PrependDecorators(decor.Name("volumes ", decor.WC{W: 9, C: decor.DindentRight}), decor.CountersKibiByte("% .1f/% .1f")),
		mpb.AppendDecorators(decor.Any(func(s decor.Statistics) string {
			if s.Total == 0 {
				return "size not known yet"
			}
			return fmt.Sprintf("%d%%", 100*s.Current/s.Total)
		})))
}

func (b *bars) show(p progress) {
	b.phase = p.phase
	if !p.ended && p.waits != "" {
		b.phase += ": " + p.waits
	}
	b.items.SetTotal(p.itemsTotal, false)
	b.items.SetCurrent(p.items)
	if b.volumes == nil && p.volumesTotal > 0 {
		b.addVolumes()
	}
	if b.volumes != nil {
		b.volumes.SetTotal(p.bytesTotal, false)
		b.volumes.SetCurrent(p.bytes)
	}
}

func (b *bars) close() {
	b.items.Abort(false)
	if b.volumes != nil {
		b.volumes.Abort(false)
	}
	b.of.Wait()
}

func (t *tool) display() display {
	if isTerminal(t.ErrOut) {
		return newBars(t)
	}
	return &lines{t: t}
}

type client[T, L runtime.Object] interface {
	Create(ctx context.Context, object T, options metav1.CreateOptions) (T, error)
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

type object interface {
	runtime.Object
	metav1.Object
}

type kind[T object, L runtime.Object] struct {
	name, singular string
	empty          T
	client         func(of holdfastclient.HoldfastV1alpha1Interface, namespace string) client[T, L]
	progress       func(T) progress // nil if such objects are not awaited
}

var (
	ofBackup = kind[*v1alpha1.Backup, *v1alpha1.BackupList]{"Backup", "backup", &v1alpha1.Backup{},
		func(of holdfastclient.HoldfastV1alpha1Interface, namespace string) client[*v1alpha1.Backup, *v1alpha1.BackupList] {
			return of.Backups(namespace)
		}, backupProgress}
	ofRestore = kind[*v1alpha1.Restore, *v1alpha1.RestoreList]{"Restore", "restore", &v1alpha1.Restore{},
		func(of holdfastclient.HoldfastV1alpha1Interface, namespace string) client[*v1alpha1.Restore, *v1alpha1.RestoreList] {
			return of.Restores(namespace)
		}, restoreProgress}
	ofSchedule = kind[*v1alpha1.Schedule, *v1alpha1.ScheduleList]{"Schedule", "schedule", &v1alpha1.Schedule{},
		func(of holdfastclient.HoldfastV1alpha1Interface, namespace string) client[*v1alpha1.Schedule, *v1alpha1.ScheduleList] {
			return of.Schedules(namespace)
		}, nil}
)

// create creates an object by the flags, prints it, and waits for its end on request.
func create[T object, L runtime.Object](ctx context.Context, t *tool, k kind[T, L], flags *createFlags, object T) error {
	did := "created"
	if flags.dryRun != "none" {
		did = map[string]string{"client": "created (dry run)", "server": "created (server dry run)"}[flags.dryRun]
	}
	if flags.dryRun != "client" {
		clients, _, err := t.client()
		if err != nil {
			return err
		}
		if object, err = k.client(clients.HoldfastV1alpha1(), object.GetNamespace()).Create(ctx, object, flags.options()); err != nil {
			return err
		}
	}
	if flags.format == "" {
		if err := printPlanned(t.Out, object); err != nil {
			return err
		}
	}
	object.GetObjectKind().SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(k.name))
	if err := t.printObject(object, k.singular+"s", object.GetName(), flags.format, did); err != nil || !flags.wait {
		return err
	}
	return await(ctx, t, k, object.GetNamespace(), object.GetName(), flags.timeout)
}

// await shows progress until an object ends. Its error says how it ended, if not well.
func await[T object, L runtime.Object](ctx context.Context, t *tool, k kind[T, L], namespace, name string, timeout time.Duration) error {
	clients, _, err := t.client()
	if err != nil {
		return err
	}
	of := k.client(clients.HoldfastV1alpha1(), namespace)
	named := fields.OneTermEqualSelector("metadata.name", name).String()
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = named
			return of.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = named
			return of.Watch(ctx, options)
		},
	}
	waiting := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	shown := t.display()
	var last progress
	_, err = watchtools.UntilWithSync(waiting, source, k.empty, nil, func(event watch.Event) (bool, error) {
		if event.Type == watch.Deleted {
			return false, apierrors.NewNotFound(v1alpha1.Resource(k.singular+"s"), name)
		}
		last = k.progress(event.Object.(T))
		shown.show(last)
		return last.ended, nil
	})
	shown.close()
	goesOn := fmt.Sprintf("the %s goes on: kubectl holdfast %s describe %s -n %s shows it, and cancel stops it", k.singular, k.singular, name, namespace)
	switch {
	case ctx.Err() != nil:
		return errors.New("stopped waiting; " + goesOn)
	case waiting.Err() != nil:
		return &exitError{ExitTimeout, fmt.Errorf("after %s it is %s; %s", timeout, last, goesOn)}
	case err != nil:
		return err
	}
	text := fmt.Sprintf("%s %s ended: %s", k.singular, name, last)
	switch {
	case last.completed:
		fmt.Fprintln(t.Out, text)
		if last.message != "" {
			fmt.Fprintln(t.Out, last.message)
		}
		return nil
	case last.partially:
		return &exitError{ExitPartial, fmt.Errorf("%s\n%s", text, last.message)}
	}
	return fmt.Errorf("%s\n%s", text, last.message)
}
