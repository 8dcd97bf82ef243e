// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

const (
	// unfinished is how many backups are under way or wait in a cluster.
	unfinished = 24
	// configMaps is how many each namespace has, beside those that Kubernetes makes.
	configMaps = 5
)

// common are namespaces that both clusters have, each with content of its own.
// They are many, and small, so that many backups run at once and soon end.
var common = []string{"shop", "blog", "wiki", "mail", "chat", "news", "maps", "jobs"}

// cluster is one of the two, with people who back it up.
type cluster struct {
	*labtest.Lab
	name string
	uid  string // of its namespace kube-system
	// files is a namespace with a volume, and folder where its files are.
	files, folder string

	mu sync.Mutex
	// created are the backups whose creation was answered.
	created map[types.UID]*made
	// ended counts those that have.
	ended int
	// restores counts those that were asked for.
	restores int
	// refused counts requests without a success, most of which nobody answered.
	refused int
}

// made is a backup as those who made it know it.
type made struct {
	name, location string
	// namespace is the one that it holds, unless that has a volume.
	namespace string
	// ended is the last phase of it that was seen, if that was a final one.
	ended v1alpha1.BackupPhase
	// stored is set once it was seen as Completed or PartiallyFailed, first at storedAt.
	stored   bool
	storedAt time.Time
	// cancelled and deleted are set before that is asked for.
	cancelled, deleted bool
	deletedAt          time.Time
}

func newCluster(t *testing.T, lab *labtest.Lab, name string) *cluster {
	t.Helper()
	c := &cluster{Lab: lab, name: name, created: map[types.UID]*made{}}
	c.must(t, func() error {
		system, err := lab.Kube.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
		c.uid = string(system.UID)
		return err
	})
	for _, namespace := range common {
		c.must(t, func() error {
			_, err := lab.Kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
			return err
		})
	}
	c.files = lab.Namespace(t, "files")
	_, c.folder = lab.PodWithClaim(t, c.files, labtest.Node)
	for i := range 50 {
		content := fmt.Sprintf("file %d of cluster %s", i, name)
		c.must(t, func() error { return os.WriteFile(filepath.Join(c.folder, fmt.Sprint(i)), []byte(content), 0o644) })
	}
	for _, namespace := range append([]string{c.files}, common...) {
		for i := range configMaps {
			object := &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("settings-%d", i)},
				Data:       map[string]string{"cluster": name},
			}
			c.must(t, func() error {
				_, err := lab.Kube.CoreV1().ConfigMaps(namespace).Create(t.Context(), object, metav1.CreateOptions{})
				return err
			})
		}
	}
	return c
}

func (c *cluster) must(t *testing.T, do func() error) {
	t.Helper()
	if err := do(); err != nil {
		t.Fatalf("cluster %s: %v", c.name, err)
	}
}

// work creates backups, cancels, deletes and restores some of them, and looks what is shown,
// until ctx ends.
func (c *cluster) work(ctx context.Context, random *rand.Rand) {
	for i := 0; pause(ctx, 100*time.Millisecond); i++ {
		if i%4 == 0 {
			c.look(ctx)
		}
		if c.waiting() < unfinished {
			c.create(ctx, random, i)
		}
		if i%8 == 7 {
			c.restore(ctx, random)
		}
		uid, backup := c.any(random)
		if backup == nil {
			continue
		}
		switch {
		case backup.ended == "" && random.IntN(60) == 0:
			c.change(uid, func(m *made) { m.cancelled = true })
			c.request(ctx, "backups", backup.name, "cancel", &v1alpha1.BackupCancellation{})
		case backup.ended != "" && random.IntN(10) == 0:
			c.change(uid, func(m *made) { m.deleted, m.deletedAt = true, time.Now() })
			c.request(ctx, "backups", backup.name, "deletion", &v1alpha1.BackupDeletion{})
		}
	}
}

// create creates a backup. Of each three, one has a name that the other cluster
// gives as well.
func (c *cluster) create(ctx context.Context, random *rand.Rand, i int) {
	name, location := fmt.Sprintf("%s-%d", c.name, i), locations[random.IntN(len(locations))]
	if i%3 == 0 {
		name = fmt.Sprintf("daily-%d", i/3)
	}
	backup := &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.BackupSpec{StorageLocation: location}}
	if random.IntN(8) == 0 {
		backup.Spec.IncludedNamespaces = []string{c.files}
		backup.Spec.DefaultVolumesToFsBackup = new(true)
	} else {
		backup.Spec.IncludedNamespaces = common[random.IntN(len(common)):][:1]
	}
	created, err := c.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Create(ctx, backup, metav1.CreateOptions{})
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.refused++
		return
	}
	m := &made{name: name, location: location}
	if namespace := backup.Spec.IncludedNamespaces[0]; namespace != c.files {
		m.namespace = namespace
	}
	c.created[created.UID] = m
}

func (c *cluster) request(ctx context.Context, resource, name, what string, body runtime.Object) {
	err := c.Holdfast.HoldfastV1alpha1().RESTClient().Post().Namespace(labtest.System).
		Resource(resource).Name(name).SubResource(what).Body(body).Do(ctx).Error()
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.refused++
	}
}

// look notes what is shown of the backups.
func (c *cluster) look(ctx context.Context) {
	list, err := c.Holdfast.HoldfastV1alpha1().Backups(labtest.System).List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range list.Items {
		m := c.created[list.Items[i].UID]
		if m == nil {
			continue
		}
		phase := list.Items[i].Status.Phase
		if phase.Ended() {
			if m.ended == "" {
				c.ended++
			}
			m.ended = phase
		}
		if isStored(phase) && !m.stored {
			m.stored, m.storedAt = true, time.Now()
		}
	}
}

func isStored(phase v1alpha1.BackupPhase) bool {
	return phase == v1alpha1.BackupPhaseCompleted || phase == v1alpha1.BackupPhasePartiallyFailed
}

func (c *cluster) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.created) - c.ended
}

// progress is how many backups have come to an end.
func (c *cluster) progress() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// any is one of the backups, and nil if all are to be deleted.
func (c *cluster) any(random *rand.Rand) (types.UID, *made) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var uids []types.UID
	for uid, m := range c.created {
		if !m.deleted {
			uids = append(uids, uid)
		}
	}
	if len(uids) == 0 {
		return "", nil
	}
	slices.Sort(uids)
	uid := uids[random.IntN(len(uids))]
	m := *c.created[uid]
	return uid, &m
}

func (c *cluster) change(uid types.UID, change func(*made)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c.created[uid])
}
