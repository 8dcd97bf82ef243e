// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package folder_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
	"github.com/holdfast-io/holdfast/test/story"
)

var (
	fenceCount = flag.Int("fence.count", 25, "how many stories are told of each store")
)

// TestTwoClustersOneLocation: processes of two clusters execute, take over, abandon and
// delete backups of the same names in one location. Each request to the store waits for its
// turn, which may never come in its process's life, or after that. Whatever they do,
// what is listed at the end is whole and was made by the cluster that it names, and
// what was stored and not deleted is still there.
func TestTwoClustersOneLocation(t *testing.T) {
	seed := story.Seed(t)
	for name, open := range map[string]func() storetest.Store{
		"folder": func() storetest.Store { return storetest.Filesystem(t) },
		"S3": func() storetest.Store {
			location, secret := storetest.FakeS3(t, nil)
			return storetest.Open(t, location, secret)
		},
	} {
		t.Run(name, func(t *testing.T) {
			counts := map[string]int{}
			for i := range *fenceCount {
				tell(t, open(), seed+uint64(i), counts)
				if t.Failed() {
					t.Fatalf("the seed of this one is %d", seed+uint64(i))
				}
			}
			t.Logf("%v", counts)
		})
	}
}

const fenceName = "daily"

// attempt is one backup of a cluster.
type attempt struct {
	request backup.Request
	cluster string

	mu             sync.Mutex
	stored         v1alpha1.BackupPhase // as somebody was told
	completedBy    int                  // the attempt that was told first that it is Completed
	deletionBegins bool
	deleted        bool // by one that lived to see the end of it
}

func (a *attempt) note(outcome backup.Outcome, number int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if outcome.Stored && a.stored == "" && outcome.Status.Phase == v1alpha1.BackupPhaseCompleted {
		a.completedBy = number
	}
	if outcome.Stored {
		a.stored = outcome.Status.Phase
	}
}

func tell(t *testing.T, target storetest.Store, seed uint64, counts map[string]int) {
	s := &stage{random: rand.New(rand.NewPCG(seed, 0)), counts: counts}
	s.turn = sync.NewCond(&s.mu)
	var all []*attempt
	var allMu sync.Mutex
	client := fenceClient(t)
	for _, cluster := range []string{"one", "two"} {
		s.begin(func(random *rand.Rand) {
			for round := range 3 {
				a := &attempt{cluster: cluster, request: backup.Request{
					Cluster: format.Cluster{SystemNamespace: system, UID: cluster},
					Backup: &v1alpha1.Backup{
						ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: fenceName, UID: types.UID(fmt.Sprintf("%s-%d", cluster, round)), CreationTimestamp: instant},
						Spec:       v1alpha1.BackupSpec{StorageLocation: "default", IncludedNamespaces: []string{"shop"}},
						Status:     v1alpha1.BackupStatus{StartTimestamp: &instant},
					},
				}}
				allMu.Lock()
				all = append(all, a)
				allMu.Unlock()
				s.execute(a, target, client, random)
			}
		})
	}
	s.play()
	judgeFence(t, target, all, counts)
}

// execute is the life of a backup: it is executed by one process, which others may
// take for dead that make further attempts, ended by those, and deleted by two at once.
func (s *stage) execute(a *attempt, target storetest.Store, client rest.Interface, random *rand.Rand) {
	clock := clocktesting.NewFakePassiveClock(instant.Time)
	deps := func(p *actor) backup.Dependencies {
		return backup.Dependencies{Discovery: fenceDiscovery{}, Client: client, Store: p, Remover: p, Volumes: noVolumes{}, Clock: clock, Workers: 1,
			Retry: wait.Backoff{Duration: time.Nanosecond, Steps: 2}}
	}
	run := func(number int) func(*actor) {
		return func(p *actor) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			if p.random.IntN(3) == 0 {
				p.cancelAt, p.cancel = p.random.IntN(25), cancel
			}
			if number > 1 {
				p.idle(p.random.IntN(30))
			}
			request := a.request
			request.Attempt = number
			outcome, err := backup.Run(ctx, request, deps(p))
			a.note(outcome, number)
			if errors.Is(err, backup.ErrNameTaken) && !p.dead {
				_ = backup.Release(context.Background(), request, deps(p), p)
			}
		}
	}
	s.beginActor(target, random.Uint64(), run(1))
	attempts := 1 + random.IntN(3)
	for number := 2; number <= attempts; number++ {
		if random.IntN(2) == 0 { // the next one comes while this one still lives
			s.beginActor(target, random.Uint64(), run(number))
		} else {
			s.await(target, random.Uint64(), run(number))
		}
	}
	for range 1 + random.IntN(2) {
		phase := v1alpha1.BackupPhaseFailed
		if random.IntN(2) == 0 {
			phase = v1alpha1.BackupPhaseCancelled
		}
		s.await(target, random.Uint64(), func(p *actor) {
			p.idle(random.IntN(40))
			outcome, _ := backup.Abandon(context.Background(), a.request, deps(p), p, phase, "somebody wanted that")
			a.note(outcome, 0)
		})
	}
	if random.IntN(3) == 0 {
		return
	}
	a.mu.Lock()
	deletable := a.stored != ""
	a.deletionBegins = deletable
	a.mu.Unlock()
	if !deletable {
		return
	}
	remove := func(p *actor) {
		d := deletion(p, fenceName, a.request.Backup.UID)
		err := d.Look(context.Background())
		if err == nil {
			err = d.RemoveMetadata(context.Background())
		}
		if err == nil && d.RemoveRest(context.Background()) == nil {
			a.mu.Lock()
			a.deleted = true
			a.mu.Unlock()
		}
	}
	s.beginActor(target, random.Uint64(), remove)
	s.await(target, random.Uint64(), remove)
}

func judgeFence(t *testing.T, target storetest.Store, all []*attempt, counts map[string]int) {
	t.Helper()
	read := func(key string) []byte {
		content, err := target.Get(t.Context(), key)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		must(t, err)
		defer content.Close()
		data, err := io.ReadAll(content)
		must(t, err)
		return data
	}
	listed := types.UID("")
	if metadata := read(format.MetadataKey(fenceName)); metadata != nil {
		found, err := format.DecodeBackup(metadata, format.Place{StoreName: fenceName, SystemNamespace: system, Now: instant.Time})
		must(t, err)
		contents, err := format.TakeContents(found)
		must(t, err)
		listed = found.UID
		if !strings.HasPrefix(string(listed), found.Status.Origin.ClusterUID+"-") {
			t.Errorf("%s is said to be of the cluster %s", listed, found.Status.Origin.ClusterUID)
		}
		if found.Status.Phase == v1alpha1.BackupPhaseCompleted {
			broken := 0
			for name, want := range contents {
				if format.NewContent(read(format.BackupPrefix(fenceName)+name)) != want {
					broken++
				}
			}
			volumes, _ := contents.Of(format.PodVolumeBackupsKey(fenceName))
			late := format.NewContent(read(format.PodVolumeBackupsKey(fenceName))) != volumes
			for _, a := range all {
				if a.request.Backup.UID != listed {
					continue
				}
				switch {
				case broken == 0:
					counts["listed and whole"]++
				case late && a.deletionBegins:
					counts["come late, and seen to be broken"]++
				case a.deletionBegins && !a.deleted:
					counts["come late into a deletion, which is to be gone on with"]++
				default:
					t.Errorf("%s is listed as Completed, and %d of its objects are not what was stored", listed, broken)
				}
			}
		}
	}
	for _, a := range all {
		if a.stored != "" && !a.deletionBegins && listed != a.request.Backup.UID {
			t.Errorf("%s was stored as %s, and is not there: %q is", a.request.Backup.UID, a.stored, listed)
		}
		counts["ended "+string(a.stored)]++
		if a.completedBy > 0 {
			counts[fmt.Sprintf("completed by attempt %d", a.completedBy)]++
		}
	}
}

// stage lets one request at a time happen, of those that wait, by the seed.
type stage struct {
	mu      sync.Mutex
	turn    *sync.Cond
	random  *rand.Rand
	running int
	waiting []*ticket
	counts  map[string]int
	last    int
}

type ticket struct {
	number int
	go_    chan struct{}
}

// begin starts somebody who may wait.
func (s *stage) begin(do func(*rand.Rand)) {
	s.mu.Lock()
	s.running++
	random := rand.New(rand.NewPCG(s.random.Uint64(), 1))
	s.mu.Unlock()
	go func() {
		defer s.leave()
		do(random)
	}()
}

func (s *stage) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	s.turn.Broadcast()
}

// pause waits for a turn.
func (s *stage) pause() {
	s.mu.Lock()
	s.last++
	mine := &ticket{number: s.last, go_: make(chan struct{})}
	s.waiting = append(s.waiting, mine)
	s.running--
	s.turn.Broadcast()
	s.mu.Unlock()
	<-mine.go_
}

// play gives turns until nobody waits any more. One in eight goes to the one that has
// waited for the shortest time, so that others sleep long.
func (s *stage) play() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for s.running > 0 {
			s.turn.Wait()
		}
		if len(s.waiting) == 0 {
			return
		}
		next := s.random.IntN(len(s.waiting))
		if s.random.IntN(8) > 0 {
			next = len(s.waiting) - 1 - s.random.IntN(min(2, len(s.waiting)))
		}
		chosen := s.waiting[next]
		s.waiting = append(s.waiting[:next:next], s.waiting[next+1:]...)
		s.running++
		close(chosen.go_)
	}
}

// actor is a process, and the store as it sees it.
type actor struct {
	storetest.Store
	stage    *stage
	random   *rand.Rand
	requests int
	killAt   int
	dead     bool
	cancelAt int
	cancel   func()
}

var errKilled = errors.New("the process was killed")

func (s *stage) newActor(target storetest.Store, seed uint64) *actor {
	random := rand.New(rand.NewPCG(seed, 2))
	p := &actor{Store: target, stage: s, random: random, killAt: -1, cancelAt: -1}
	if random.IntN(3) == 0 {
		p.killAt = random.IntN(25)
	}
	return p
}

func (s *stage) beginActor(target storetest.Store, seed uint64, do func(*actor)) {
	s.begin(func(*rand.Rand) { do(s.newActor(target, seed)) })
}

// await waits for an actor to end, and lets turns be given meanwhile.
func (s *stage) await(target storetest.Store, seed uint64, do func(*actor)) {
	do(s.newActor(target, seed))
}

func (p *actor) idle(turns int) {
	for range turns {
		p.stage.pause()
	}
}

// request makes a request in its turn. A process that is killed then has made it, or
// not, or it arrives later.
func (p *actor) request(do func() error) error {
	if p.dead {
		return errKilled
	}
	p.stage.pause()
	if p.requests == p.cancelAt {
		p.cancel()
	}
	p.requests++
	if p.requests != p.killAt+1 {
		return do()
	}
	p.dead = true
	switch p.random.IntN(3) {
	case 0:
		_ = do()
	case 1:
		p.stage.begin(func(random *rand.Rand) {
			for range random.IntN(60) {
				p.stage.pause()
			}
			_ = do()
		})
	}
	return errKilled
}

func (p *actor) Create(_ context.Context, key string, content []byte) error {
	return p.request(func() error { return p.Store.Create(context.Background(), key, content) })
}

func (p *actor) Delete(_ context.Context, object store.Object) error {
	return p.request(func() error { return p.Store.Delete(context.Background(), object) })
}

// Get answers no process that has been killed: nobody waits for what a read brings late.
func (p *actor) Get(ctx context.Context, key string) (content io.ReadCloser, err error) {
	err = p.request(func() error {
		if p.dead {
			return errKilled
		}
		content, err = p.Store.Get(ctx, key)
		return err
	})
	return content, err
}

func (p *actor) Attributes(ctx context.Context, key string) (object store.Object, err error) {
	err = p.request(func() error {
		if p.dead {
			return errKilled
		}
		object, err = p.Store.Attributes(ctx, key)
		return err
	})
	return object, err
}

func (p *actor) List(ctx context.Context, folder string, options store.ListOptions) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		if err := p.request(func() error { return nil }); err != nil {
			yield(store.Object{}, err)
			return
		}
		p.Store.List(ctx, folder, options)(yield)
	}
}

func (p *actor) NewWriter(_ context.Context, key string) (store.ObjectWriter, error) {
	w, err := p.Store.NewWriter(context.Background(), key)
	return &actorWriter{w, p, false}, err
}

type actorWriter struct {
	store.ObjectWriter
	actor *actor
	sent  bool
}

func (w *actorWriter) Commit() error {
	w.sent = true
	return w.actor.request(w.ObjectWriter.Commit)
}

// Abort takes nothing back that was sent.
func (w *actorWriter) Abort() {
	if !w.sent {
		w.ObjectWriter.Abort()
	}
}

type noVolumes struct{}

func (noVolumes) Submit(context.Context, *format.Volume) error { return nil }

func (noVolumes) Cut(context.Context, []*format.Volume) error { return nil }

func (noVolumes) Wait(context.Context, []*format.Volume) error { return nil }

type fenceDiscovery struct{}

func (fenceDiscovery) ServerPreferredResourcesWithContext(context.Context) ([]*metav1.APIResourceList, error) {
	verbs := metav1.Verbs{"create", "delete", "get", "list", "watch"}
	return []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: verbs},
		{Name: "namespaces", Kind: "Namespace", Verbs: verbs},
	}}}, nil
}

// fenceClient is an API server with one ConfigMap in one namespace.
func fenceClient(t *testing.T) rest.Interface {
	t.Helper()
	client, err := rest.UnversionedRESTClientFor(&rest.Config{
		Host: "http://cluster", QPS: -1,
		ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs.WithoutConversion()},
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			answer := `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"prices","namespace":"shop"}}]}`
			switch {
			case strings.HasSuffix(r.URL.Path, "/namespaces"):
				answer = `{"kind":"NamespaceList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"shop"}}]}`
			case strings.HasSuffix(r.URL.Path, "/shop"):
				answer = `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"shop"}}`
			}
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(answer)), Request: r}, nil
		}),
	})
	must(t, err)
	return client
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
