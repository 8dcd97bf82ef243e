// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupchange

import (
	"context"
	"crypto/rand"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/format"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const system = "holdfast"

var instant = metav1.Unix(1_700_000_000, 0)

// closer is a store that is opened more than once, and whose writes can be counted and
// stopped: put is called before each.
type closer struct {
	*storetest.Faulty
	mu  sync.Mutex
	put func(key string) error // one call at a time
}

func (*closer) Close() error { return nil }

func (c *closer) writes(key string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.put(key)
}

func (c *closer) Create(ctx context.Context, key string, content []byte) error {
	if err := c.writes(key); err != nil {
		return err
	}
	return c.Faulty.Create(ctx, key, content)
}

func (c *closer) Put(ctx context.Context, key string, content []byte) error {
	if err := c.writes(key); err != nil {
		return err
	}
	return c.Faulty.Put(ctx, key, content)
}

type world struct {
	*testing.T
	*Controller
	cluster *enginetest.Cluster
	store   *closer
	clock   *clocktesting.FakeClock
	events  *events.FakeRecorder
	// ensured are the repositories that were.
	ensured []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	key, err := format.NewSigningKey(rand.Reader)
	must(t, err)
	w := &world{
		T: t, cluster: enginetest.New(), events: events.NewFakeRecorder(100), clock: clocktesting.NewFakeClock(instant.Time),
		store: &closer{Faulty: storetest.NewFaulty(storetest.Memory(t), clocktesting.NewFakeClock(instant.Time)), put: func(string) error { return nil }},
	}
	factory := enginefactory.NewSharedInformerFactory(w.cluster, 0)
	engine := factory.Engine().V1alpha1()
	w.Controller, err = New(Config{
		Namespace: system, Cluster: format.Cluster{SystemNamespace: system, UID: "cluster", Key: key}, Keys: []string{key.PublicKey()},
		Engine: w.cluster.EngineV1alpha1(),
		EnsureRepository: func(_ context.Context, namespace, location string) error {
			w.ensured = append(w.ensured, namespace+"."+location)
			return nil
		},
		Events: w.events, Clock: w.clock, ChangeInformer: engine.BackupChanges(), LocationInformer: engine.StorageLocations(),
		FormerExpirations: engine.ExpirationChanges(), FormerDeletions: engine.VolumeDeletions(),
	})
	must(t, err)
	must(t, engine.StorageLocations().Informer().GetStore().Add(&enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}}))
	w.open = func(context.Context, *enginev1alpha1.StorageLocation) (bucket, error) { return w.store, nil }
	must(t, w.store.Faulty.Put(t.Context(), format.RepositoryPrefix("shop")+"kopia.repository", []byte("a repository")))
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
