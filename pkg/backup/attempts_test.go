// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/util/exec"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// stepped calls something before each write and removal, which fails if that does. It counts
// them.
type stepped struct {
	*storetest.Faulty
	step   func(n int) error
	writes int
}

func (s *stepped) next() error {
	s.writes++
	return s.step(s.writes)
}

func (s *stepped) Create(ctx context.Context, key string, content []byte) error {
	if err := s.next(); err != nil {
		return err
	}
	return s.Faulty.Create(ctx, key, content)
}

func (s *stepped) Delete(ctx context.Context, object store.Object) error {
	if err := s.next(); err != nil {
		return err
	}
	return s.Faulty.Delete(ctx, object)
}

func (s *stepped) NewWriter(ctx context.Context, key string) (store.ObjectWriter, error) {
	w, err := s.Faulty.NewWriter(ctx, key)
	return &steppedWriter{w, s}, err
}

type steppedWriter struct {
	store.ObjectWriter
	store *stepped
}

func (w *steppedWriter) Commit() error {
	if err := w.store.next(); err != nil {
		w.Abort()
		return err
	}
	return w.ObjectWriter.Commit()
}

// attempt runs the backup once more, on a store of its own view.
func (f *fixture) attempt(ctx context.Context, number int, step func(int) error) (Outcome, int, error) {
	request, deps := f.request, f.deps
	view := &stepped{Faulty: f.store, step: step}
	request.Attempt = number
	deps.Store, deps.Remover, deps.Progress = view, view, &Progress{}
	outcome, err := Run(ctx, request, deps)
	return outcome, view.writes, err
}

func goOn(int) error { return nil }

// wantWhole fails if the stored backup names what is not there as it was written.
func (f *fixture) wantWhole(t *testing.T) {
	t.Helper()
	backup := f.stored(t)
	contents, err := format.TakeContents(backup)
	if err != nil || len(contents) == 0 {
		t.Fatalf("contents %v, %v", contents, err)
	}
	for _, key := range f.keys(t) {
		if want, named := contents.Of(key); named {
			if got := format.NewContent(f.read(t, key)); got != want {
				t.Errorf("%s is %v in the store, and %v in the metadata", key, got, want)
			}
			delete(contents, key)
		}
	}
	for key := range contents {
		if !slices.Contains(f.keys(t), format.BackupPrefix("b")+key) && !slices.Contains(f.keys(t), key) {
			t.Errorf("%s is missing", key)
		}
	}
}

var errKilled = errors.New("killed")

// kill is the step of a process that dies before a write.
func kill(at int, end func()) func(int) error {
	return func(n int) error {
		if n >= at {
			end()
			return errKilled
		}
		return nil
	}
}

// Pitfall 7: a process that is killed before any of its writes costs the backup nothing: the next one
// makes it, as does the one after that if it is killed as well.
func TestAttemptAfterAKill(t *testing.T) {
	_, writes, err := shopOf(t, 3).attempt(t.Context(), 1, goOn)
	if err != nil {
		t.Fatal(err)
	}
	for first := 1; first <= writes+1; first++ {
		for second := 1; second <= writes+2; second += 3 {
			f := shopOf(t, 3)
			ctx, end := context.WithCancel(t.Context())
			_, _, err := f.attempt(ctx, 1, kill(first, end))
			if end(); err == nil && first <= writes {
				t.Fatalf("attempt 1 goes on when it is killed before write %d", first)
			}
			ctx, end = context.WithCancel(t.Context())
			_, _, _ = f.attempt(ctx, 2, kill(second, end))
			end()
			outcome, _, err := f.attempt(t.Context(), 3, goOn)
			if err != nil || outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || !outcome.Stored {
				t.Fatalf("killed before writes %d and %d: %+v, %v", first, second, outcome, err)
			}
			f.wantWhole(t)
			f.wantConfigMaps(t, 3)
		}
	}
}

// A process that is told to stop ends a backup of which everything is read, for as long as it may;
// any other one it leaves as one that is killed does.
func TestToldToStopBeforeEachWrite(t *testing.T) {
	_, writes, err := shopOf(t, 3).attempt(t.Context(), 1, goOn)
	if err != nil {
		t.Fatal(err)
	}
	ended := 0
	for at := 1; at <= writes; at++ {
		f := shopOf(t, 3)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		f.deps.Ending = t.Context()
		read, intime := false, false
		f.volumes.wait = func(context.Context) error { read = true; return nil }
		outcome, _, err := f.attempt(ctx, 1, func(n int) error {
			if n == at {
				intime = read
				stop()
			}
			return nil
		})
		switch {
		case !intime:
			if err == nil || outcome.Stored || slices.Contains(f.keys(t), format.MetadataKey("b")) {
				t.Errorf("before write %d: %+v, %v, in the store is %v", at, outcome, err, f.keys(t))
			}
			outcome, _, err = f.attempt(t.Context(), 2, goOn)
		default:
			ended++
		}
		if err != nil || !outcome.Stored || outcome.Status.Phase != v1alpha1.BackupPhaseCompleted {
			t.Errorf("before write %d, in time %t: %+v, %v", at, intime, outcome, err)
		}
		f.wantWhole(t)
		f.wantConfigMaps(t, 3)
	}
	if ended == 0 || ended == writes {
		t.Errorf("of %d %d ended", writes, ended)
	}
}

// The time that a process has then ends, too.
func TestToldToStopForGood(t *testing.T) {
	f := shopOf(t, 3)
	ctx, stop := context.WithCancel(t.Context())
	ending, end := context.WithCancel(t.Context())
	f.deps.Ending = ending
	f.volumes.wait = func(context.Context) error { stop(); return nil }
	outcome, _, err := f.attempt(ctx, 1, goOn)
	if !errors.Is(err, context.Canceled) || outcome.Stored {
		t.Errorf("told while it reads: %+v, %v", outcome, err)
	}
	f.volumes.wait = nil
	outcome, _, err = f.attempt(t.Context(), 2, func(n int) error {
		if slices.Contains(f.keys(t), format.TarballKey("b")) {
			end()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || outcome.Stored || slices.Contains(f.keys(t), format.MetadataKey("b")) {
		t.Errorf("no time is left: %+v, %v", outcome, err)
	}
	f.deps.Ending = nil
	if outcome, _, err = f.attempt(t.Context(), 3, goOn); err != nil || outcome.Status.Phase != v1alpha1.BackupPhaseCompleted {
		t.Errorf("the next one: %+v, %v", outcome, err)
	}
	f.wantWhole(t)
}

// An attempt that has decided the backup may have been killed in the middle of its last write:
// what that has left goes with the attempt that finds it decided.
func TestDecidedAndUnfinished(t *testing.T) {
	_, writes, err := shopOf(t, 1).attempt(t.Context(), 1, goOn)
	if err != nil {
		t.Fatal(err)
	}
	f := shopOf(t, 1)
	f.store = storetest.NewFaulty(storetest.Filesystem(t), clocktesting.NewFakeClock(start))
	ctx, end := context.WithCancel(t.Context())
	_, _, _ = f.attempt(ctx, 1, kill(writes, end))
	end()
	if keys := f.keys(t); !slices.Contains(keys, format.AttemptKey("b", 1)) || slices.Contains(keys, format.MetadataKey("b")) {
		t.Fatalf("it was not killed before its last write: there are %v", keys)
	}
	dead, err := f.store.NewWriter(t.Context(), format.MetadataKey("b"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dead.Abort)
	if _, err := dead.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	unfinished := func() (keys []string) {
		for object, err := range f.store.List(t.Context(), format.BackupPrefix("b"), store.ListOptions{Recursive: true, Unfinished: true}) {
			if err != nil {
				t.Fatal(err)
			}
			if store.IsUnfinished(object.Key) {
				keys = append(keys, object.Key)
			}
		}
		return keys
	}
	if len(unfinished()) != 1 {
		t.Fatalf("the store has the unfinished %v", unfinished())
	}
	outcome, _, err := f.attempt(t.Context(), 2, goOn)
	if err != nil || outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || !outcome.Stored {
		t.Fatalf("the second attempt: %+v, %v", outcome, err)
	}
	if left := unfinished(); len(left) > 0 {
		t.Errorf("it has left %v", left)
	}
	f.wantWhole(t)
}

// What others have put in the place of an attempt's copy of the metadata is not published.
func TestForeignCopyOfTheMetadata(t *testing.T) {
	other := shopOf(t, 3)
	other.request.Backup.UID = "another"
	other.run(t)
	revocation, err := format.EncodeRevocation("b", "another")
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		content []byte
		fails   error
	}{
		"another backup":            {other.read(t, format.MetadataKey("b")), ErrNameTaken},
		"no backup":                 {[]byte("?"), ErrNameTaken},
		"one that has not finished": {revocation, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := shopOf(t, 3)
			ctx, end := context.WithCancel(t.Context())
			_, _, _ = f.attempt(ctx, 1, kill(4, end))
			if err := f.store.Create(t.Context(), format.AttemptKey("b", 1), test.content); err != nil {
				t.Fatal(err)
			}
			outcome, _, err := f.attempt(t.Context(), 2, goOn)
			if stored := slices.Contains(f.keys(t), format.MetadataKey("b")); !errors.Is(err, test.fails) || stored != (test.fails == nil) || outcome.Stored != stored {
				t.Errorf("%+v, stored %t, %v", outcome, stored, err)
			}
		})
	}
}

// Pitfall 7: a process that sleeps before any of its writes, is taken for dead, and wakes up before any
// write of the one that took over, or after all, changes nothing of the result of that, or has
// one of its own: never is something of both listed. The second attempt, which has removed what
// the first had left, removes nothing of the third.
func TestAttemptThatWakesUp(t *testing.T) {
	t.Run("the first", func(t *testing.T) { testAttemptThatWakesUp(t, 1) })
	t.Run("the second", func(t *testing.T) { testAttemptThatWakesUp(t, 2) })
}

func testAttemptThatWakesUp(t *testing.T, sleeper int) {
	begun := func() *fixture {
		f := shopOf(t, 3)
		if sleeper > 1 {
			ctx, end := context.WithCancel(t.Context())
			_, _, _ = f.attempt(ctx, 1, kill(4, end))
		}
		return f
	}
	_, writes, err := begun().attempt(t.Context(), sleeper, goOn)
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for asleep := 1; asleep <= writes; asleep++ {
		for awake := 1 + asleep%2; awake <= writes+asleep+4; awake += 2 {
			f := begun()
			sleeps, wake, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				_, _, _ = f.attempt(t.Context(), sleeper, func(n int) error {
					if n == asleep {
						close(sleeps)
						<-wake
					}
					return nil
				})
			}()
			<-sleeps
			_, took, err := f.attempt(t.Context(), sleeper+1, func(n int) error {
				if n == awake {
					close(wake)
					<-ended
				}
				return nil
			})
			if took < awake {
				close(wake)
				<-ended
			}
			switch phase := f.stored(t).Status.Phase; {
			case phase == v1alpha1.BackupPhaseCompleted:
				f.wantWhole(t)
				f.wantConfigMaps(t, 3)
			case took < awake:
				t.Errorf("asleep before write %d, awake after all: %s, %v", asleep, phase, err)
			default:
				failed++
			}
		}
	}
	if failed > 2*writes {
		t.Errorf("%d backups failed since two processes wrote at once", failed)
	}
}

// frozen follows hooks and data of processes one after the other, each of which dies before or
// after one of their steps.
type frozen struct {
	mu      sync.Mutex
	pods    map[string]bool
	pending []enginev1alpha1.PodReference // as recorded
	steps   int
	diesAt  int
	die     func()
}

// step is one of a process: what it does is done, or not, if the process dies in it.
func (z *frozen) step(do func()) error {
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, do := range []func(){func() {}, do} {
		do()
		if z.steps++; z.diesAt > 0 && z.steps >= z.diesAt {
			z.die()
			return errKilled
		}
	}
	return nil
}

// process begins with a process that dies at a step; 0 is never.
func (z *frozen) process(t *testing.T, diesAt int) context.Context {
	ctx, die := context.WithCancel(t.Context())
	t.Cleanup(die)
	z.steps, z.diesAt, z.die = 0, diesAt, die
	return ctx
}

func (z *frozen) dead() bool { return z.diesAt > 0 && z.steps >= z.diesAt }

// Pitfall 7: a process may be killed before, in or after any hook, of which it has just written that it is
// pending or not, or while the data is read; and the next one in any post hook that it has
// inherited: before the backup is gone on with, nothing is frozen, and at its end neither.
func TestKilledInAPhaseOfAHook(t *testing.T) {
	for first := 1; ; first++ {
		for second := range 5 {
			f := hookedFixture(t, dbHooks(""), hookedPod("p", "n1", isDB, "", "e"+emptyDir), hookedPod("q", "n1", isDB, "", "e"+emptyDir))
			z := &frozen{pods: map[string]bool{}}
			f.hooks.pending = func(pods []enginev1alpha1.PodReference) error {
				return z.step(func() { z.pending = slices.Clone(pods) })
			}
			f.hooks.exec = func(_ context.Context, what string) (string, error) {
				pod, _, _ := strings.Cut(what, "/")
				if err := z.step(func() { z.pods[pod] = strings.Contains(what, "freeze") }); err != nil {
					return "", exec.CodeExitError{Err: err, Code: 137} // which nobody tries again
				}
				return "", nil
			}
			f.volumes.wait = func(context.Context) error { return z.step(func() {}) }
			alive := func(int) error {
				if z.dead() {
					return errKilled
				}
				return nil
			}
			if _, _, err := f.attempt(z.process(t, first), 1, alive); err == nil {
				if z.dead() || first < 12 {
					t.Fatalf("killed at step %d of %d, attempt 1 has ended", first, z.steps)
				}
				return // there are no more steps
			}
			if did := RunPostHooks(z.process(t, second), f.request, f.deps, z.pending); did.Failed != "" && second == 0 {
				t.Errorf("killed at step %d: post hooks: %s", first, did.Failed)
			}
			if z.dead() {
				if did := RunPostHooks(z.process(t, 0), f.request, f.deps, z.pending); did.Failed != "" {
					t.Errorf("killed at steps %d and %d: post hooks: %s", first, second, did.Failed)
				}
			}
			if z.pods["p"] || z.pods["q"] {
				t.Errorf("killed at steps %d and %d: before the next attempt there is frozen: %v", first, second, z.pods)
			}
			z.pending = nil
			outcome, _, err := f.attempt(z.process(t, 0), 2, goOn)
			if err != nil || outcome.Status.Phase != v1alpha1.BackupPhaseCompleted {
				t.Errorf("killed at steps %d and %d: %+v, %v", first, second, outcome.Status, err)
			}
			if z.pods["p"] || z.pods["q"] {
				t.Errorf("killed at steps %d and %d: at the end there is frozen: %v", first, second, z.pods)
			}
			if pods := slices.Sorted(slices.Values(f.inOrder(t, "pods"))); !slices.Equal(pods, []string{"shop/p", "shop/q"}) {
				t.Errorf("killed at steps %d and %d: the backup has the pods %q", first, second, pods)
			}
		}
	}
}
