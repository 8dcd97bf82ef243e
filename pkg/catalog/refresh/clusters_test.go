// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog/index/publish"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// skewed is a clock that is ahead.
type skewed struct {
	clock.RealClock
	by time.Duration
}

func (s skewed) Now() time.Time                  { return s.RealClock.Now().Add(s.by) }
func (s skewed) Since(t time.Time) time.Duration { return s.Now().Sub(t) }

// unrewritten is a store that takes note of each object that is written over another one, as no
// lock of objects lets anybody do.
type unrewritten struct {
	*store.Bucket
	mu        sync.Mutex
	there     map[string]bool // guarded by mu
	rewritten []string        // guarded by mu
}

func (u *unrewritten) wrote(key string, err error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil {
		if u.there[key] {
			u.rewritten = append(u.rewritten, key)
		}
		u.there[key] = true
	}
	return err
}

func (u *unrewritten) Create(ctx context.Context, key string, content []byte) error {
	return u.wrote(key, u.Bucket.Create(ctx, key, content))
}

func (u *unrewritten) Put(ctx context.Context, key string, content []byte) error {
	return u.wrote(key, u.Bucket.Put(ctx, key, content))
}

func (u *unrewritten) Delete(ctx context.Context, object store.Object) error {
	err := u.Bucket.Delete(ctx, object)
	if err == nil {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.there, object.Key)
	}
	return err
}

// published is a store that stays open.
type published struct{ *storetest.Faulty }

func (published) Close() error { return nil }

func (published) GetRange(context.Context, string, int64, int64) (io.ReadCloser, error) {
	panic("not needed")
}

// TestTwoClusters: two clusters whose clocks differ by ten minutes make backups in one store,
// delete them and volumes of them, and publish their indexes, all at once. What each of them
// lists in the end is what lies in the store, with who has made it; so does one that begins with
// the indexes; nothing is missed that is there; and no object is ever written over.
func TestTwoClusters(t *testing.T) {
	for seed := range uint64(2) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 14))
			shared := &unrewritten{Bucket: storetest.Memory(t), there: map[string]bool{}}
			faulty := storetest.NewFaulty(shared, clock.RealClock{})
			faulty.Inject(storetest.Fault{Delay: 100 * time.Millisecond})
			type made struct {
				uid     types.UID
				deleted bool // whether its volume is
			}
			type member struct {
				*fixture
				cluster   format.Cluster
				clock     skewed
				publisher *publish.Publisher
				backups   map[string]*made
			}
			var members []*member
			for i, name := range []string{"here", "there"} {
				m := &member{cluster: madeBy(t, name), clock: skewed{by: time.Duration(i) * 10 * time.Minute}, backups: map[string]*made{}}
				m.fixture = newFixture(t, refresh.Options{Interval: interval, Clock: m.clock})
				m.stores["default"] = faulty
				m.knows(m.cluster)
				m.setLocations("default")
				m.run()
				m.publisher = publish.New(publish.Options{Cluster: m.cluster, Keys: []string{m.cluster.Key.PublicKey()}, Clock: m.clock})
				m.publisher.SetLocations([]publish.Location{{
					Name: "default", Open: func(context.Context) (publish.Store, error) { return published{faulty}, nil },
					Layout: &refresh.VeleroLayout{Location: "default", SystemNamespace: system, Clock: m.clock},
				}})
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { m.publisher.Run(ctx) })
				t.Cleanup(func() { cancel(); running.Wait() })
				members = append(members, m)
			}
			create := func(key string, content []byte, err error) {
				t.Helper()
				if err == nil {
					err = faulty.Create(t.Context(), key, content)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			for step := range 120 {
				m := members[random.IntN(2)]
				mine := slices.Sorted(maps.Keys(m.backups))
				switch what := random.IntN(10); {
				case what < 5 || len(mine) < 8:
					name := fmt.Sprintf("%s-%03d", m.cluster.UID, step)
					b := &made{uid: types.UID(fmt.Sprintf("%08d-2f0a-4a57-9d0e-6f6b1a2f3c4d", step))}
					at := metav1.NewTime(m.clock.Now())
					backup := &v1alpha1.Backup{
						ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name, UID: b.uid, CreationTimestamp: at},
						Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &at, CompletionTimestamp: &at},
					}
					var list bytes.Buffer
					if err := format.WritePodVolumeBackups(&list, []format.PodVolumeBackup{format.NewPodVolumeBackup(backup, name, format.Volume{
						Pod: enginev1alpha1.PodReference{Namespace: "shop", Name: "web"}, Name: "data", ClaimName: "data",
						Status: enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s"},
					})}); err != nil {
						t.Fatal(err)
					}
					contents := format.Contents{}
					contents.Set(format.PodVolumeBackupsKey(name), format.NewContent(list.Bytes()))
					create(format.PodVolumeBackupsKey(name), list.Bytes(), nil)
					metadata, err := format.EncodeBackup(backup, contents, m.cluster)
					create(format.MetadataKey(name), metadata, err)
					m.backups[name] = b
					m.publisher.Ended("default", name)
					m.refresher.ReadSoon("default", name)
				case what < 7:
					name := mine[random.IntN(len(mine))]
					storetest.Empty(t, faulty, format.BackupPrefix(name))
					m.catalog.Remove("default", name)
					delete(m.backups, name)
				default:
					name := mine[random.IntN(len(mine))]
					b := m.backups[name]
					if b.deleted {
						continue
					}
					b.deleted = true
					at := metav1.NewTime(m.clock.Now())
					change, err := format.EncodeExpiration(format.Expiration{
						StoreName: name, UID: b.uid, Number: 1, Timestamp: at, Requester: "jane",
						Deleted: []format.DeletedVolume{{VolumeID: format.VolumeID{Namespace: "shop", Name: "data"}, Timestamp: at}},
					}, m.cluster)
					create(format.ExpirationKey(name, b.uid, 1), change, err)
				}
				time.Sleep(time.Duration(random.IntN(90)) * time.Second)
			}
			// A listing, one that confirms it, and the publishers' searches.
			pass(8 * time.Hour)

			check := func(who string, f *fixture, own format.Cluster) {
				t.Helper()
				var want, got []string
				for _, m := range members {
					for name, b := range m.backups {
						trust := v1alpha1.BackupTrustForeign
						if m.cluster.UID == own.UID {
							trust = v1alpha1.BackupTrustOwn
						}
						volumes := 1
						if b.deleted { // by whoever has signed the backup
							volumes = 0
						}
						want = append(want, fmt.Sprintf("%s %s %d", name, trust, volumes))
					}
				}
				volumes := map[types.UID]int{}
				for _, row := range f.catalog.VolumeBackups() {
					volumes[row.Spec.BackupUID]++
				}
				for _, backup := range f.catalog.Backups() {
					got = append(got, fmt.Sprintf("%s %s %d", backup.Name, backup.Status.Origin.Trust, volumes[backup.UID]))
				}
				slices.Sort(want)
				slices.Sort(got)
				if !slices.Equal(got, want) {
					t.Errorf("seed %d: %s lists\n%s\nand in the store are\n%s", seed, who, strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
				if warnings := f.refresher.Warnings(); len(warnings) > 0 {
					t.Errorf("seed %d: %s warns of %q", seed, who, warnings)
				}
			}
			for _, m := range members {
				check("cluster "+m.cluster.UID, m.fixture, m.cluster)
			}
			next := members[0].restart()
			pass(10 * time.Minute)
			check("one that begins with the index", next, members[0].cluster)
			shared.mu.Lock()
			defer shared.mu.Unlock()
			if len(shared.rewritten) > 0 {
				t.Errorf("seed %d: written over were %q", seed, shared.rewritten)
			}
		})
	}
}
