// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

const (
	// locked is the location whose bucket locks its objects.
	locked = "locked"
	// before is the location that shows this bucket as it was before the attack.
	before = "before"
	// strikes is how many objects an attacker strikes at once.
	strikes = 10
)

// attack is an attacker who has the writer's keys of the locked bucket.
type attack struct {
	bucket *labtest.Versions
	// began is the last instant before the attack. It is zero until then.
	began time.Time
	// These count the struck objects: deleted, overwritten, removed for good, and kept, since the store
	// refused to remove them for good.
	hidden, overwritten, removed, kept int
}

// begin notes the last instant before the attack, in whole seconds as the API has them, and waits
// for its end.
func (a *attack) begin(t *testing.T) {
	t.Helper()
	a.began = time.Now().Truncate(time.Second).Add(time.Second)
	for time.Now().Before(a.began.Add(time.Second)) {
		pause(t.Context(), 50*time.Millisecond)
	}
}

// strike deletes, overwrites, or tries to remove for good, some of the objects.
func (a *attack) strike(t *testing.T, random *rand.Rand, most int) {
	t.Helper()
	current := a.bucket.Current(t)
	random.Shuffle(len(current), func(i, j int) { current[i], current[j] = current[j], current[i] })
	for _, version := range current[:min(most, len(current))] {
		switch random.IntN(3) {
		case 0:
			a.bucket.Hide(t, version.Key)
			a.hidden++
		case 1:
			a.bucket.Put(t, version.Key, "encrypted by an attacker")
			a.overwritten++
		case 2:
			if a.bucket.TryRemove(t, version) == nil {
				a.removed++
			} else {
				a.kept++
			}
		}
	}
}

func (a *attack) String() string {
	return fmt.Sprintf("deleted %d, overwritten %d, removed for good %d, kept by their locks %d", a.hidden, a.overwritten, a.removed, a.kept)
}

// end strikes each object once more.
func (a *attack) end(t *testing.T, random *rand.Rand) {
	t.Helper()
	a.strike(t, random, len(a.bucket.Current(t)))
}

// first makes a backup with a volume in the locked bucket, and waits for it: each attack has one to
// strike.
func (c *cluster) first(t *testing.T) {
	t.Helper()
	created := c.Create(t, labtest.System, c.name+"-first", v1alpha1.BackupSpec{
		IncludedNamespaces: []string{c.files}, StorageLocation: locked, DefaultVolumesToFsBackup: new(true),
	})
	c.created[created.UID] = &made{name: created.Name, location: locked}
	c.AwaitCompleted(t, created.Name)
	c.look(t.Context())
}

// giveUp cancels the backups into the locked bucket that have not ended, and the restores from it:
// most wait for it to be available, as it will not be again.
func (c *cluster) giveUp(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	for _, m := range c.created {
		m.cancelled = m.cancelled || m.location == locked && m.ended == ""
	}
	c.mu.Unlock()
	labtest.Eventually(t, "all that waits for the locked bucket to be cancelled", func() error {
		runs, err := c.Engine.EngineV1alpha1().BackupRuns(labtest.System).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, run := range runs.Items {
			if run.Spec.Backup.StorageLocation == locked && run.Spec.Deletion == nil && !run.Status.Phase.Ended() && run.Spec.Cancellation == nil {
				c.request(t.Context(), "backups", run.Spec.BackupRef.Name, "cancel", &v1alpha1.BackupCancellation{})
				err = errors.Join(err, fmt.Errorf("the backup %s is %q", run.Name, run.Status.Phase))
			}
		}
		restores, restoresErr := c.restoreRuns(t.Context())
		for _, run := range restores {
			if c.at(run.Spec.Backup.UID) == locked && !run.Status.Phase.Ended() && run.Spec.Cancellation == nil {
				c.request(t.Context(), "restores", run.Spec.RestoreRef.Name, "cancel", &v1alpha1.RestoreCancellation{})
				err = errors.Join(err, fmt.Errorf("the restore %s is %q", run.Name, run.Status.Phase))
			}
		}
		return errors.Join(err, restoresErr)
	})
}

// at returns the location of a backup; empty if its creation had no answer.
func (c *cluster) at(uid types.UID) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.created[uid]; m != nil {
		return m.location
	}
	return ""
}

// leaveLocked deletes the location of the attacked bucket. The deletions that wait for it say so, and
// are given up.
func (c *cluster) leaveLocked(t *testing.T) {
	t.Helper()
	c.must(t, func() error {
		return c.Engine.EngineV1alpha1().StorageLocations(labtest.System).Delete(t.Context(), locked, metav1.DeleteOptions{})
	})
	runs := c.Engine.EngineV1alpha1().BackupRuns(labtest.System)
	labtest.Eventually(t, "the deletions from the locked bucket to be given up", func() error {
		list, err := runs.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, run := range list.Items {
			if run.Spec.Deletion == nil || run.Spec.Backup.StorageLocation != locked {
				continue
			}
			err = errors.Join(err, fmt.Errorf("the deletion of %s says %q", run.Name, run.Status.FailureReason))
			if strings.Contains(run.Status.FailureReason, "does not exist") {
				err = errors.Join(err, runs.Delete(t.Context(), run.Name, metav1.DeleteOptions{}))
			}
		}
		return err
	})
	c.settle(t, nil)
}

// showBefore makes a location that shows the locked bucket as it was before the attack, and waits
// until each backup that was stored then is listed there.
func (c *cluster) showBefore(t *testing.T, spec *enginev1alpha1.StorageLocationSpec) {
	t.Helper()
	c.must(t, func() error {
		_, err := c.Engine.EngineV1alpha1().StorageLocations(labtest.System).Create(t.Context(),
			&enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Name: before}, Spec: *spec}, metav1.CreateOptions{})
		return err
	})
	c.AwaitAvailable(t, before, metav1.ConditionTrue)
	labtest.Eventually(t, "the backups of before the attack in cluster "+c.name, func() error {
		list, err := c.Holdfast.HoldfastV1alpha1().Backups(labtest.System).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, m := range c.created {
			if m.location == before && m.stored && !m.deleted && !slices.ContainsFunc(list.Items, func(b v1alpha1.Backup) bool { return b.Name == m.name+"@"+before && isStored(b.Status.Phase) }) {
				return fmt.Errorf("%s is missing", m.name)
			}
		}
		return nil
	})
}

// moveBefore moves the backups of the locked bucket to the location before, and counts the stored
// ones. A backup that was stored before the attack is stored there, also if it was deleted after it.
func (c *cluster) moveBefore(began time.Time) (stored int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.created {
		if m.location != locked {
			continue
		}
		m.location = before
		if m.stored = !m.storedAt.IsZero() && m.storedAt.Before(began); m.stored {
			stored++
		}
		m.deleted = m.deleted && m.deletedAt.Before(began)
	}
	return stored
}

// restoreBefore restores some backups from before the attack, each into a namespace of its own.
func (c *cluster) restoreBefore(t *testing.T) {
	t.Helper()
	restored := 0
	for _, m := range c.created {
		if m.location != before || !m.stored || m.deleted || m.namespace == "" || restored == again {
			continue
		}
		restored++
		name := fmt.Sprintf("%s-before-%d", c.name, restored)
		created, err := c.Holdfast.HoldfastV1alpha1().Restores(labtest.System).Create(t.Context(), &v1alpha1.Restore{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.RestoreSpec{BackupName: m.name + "@" + before, NamespaceMapping: map[string]string{m.namespace: copies + name}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("cluster %s: restoring %s: %v", c.name, m.name, err)
			continue
		}
		labtest.Eventually(t, "the restore of "+m.name, func() error {
			run, err := c.Engine.EngineV1alpha1().RestoreRuns(labtest.System).Get(t.Context(), created.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if run.Status.Phase != v1alpha1.RestorePhaseCompleted {
				return fmt.Errorf("it is %q: %s %v", run.Status.Phase, run.Status.FailureReason, run.Status.ValidationErrors)
			}
			_, err = c.copied(t, run)
			return err
		})
	}
	t.Logf("cluster %s: %d backups were restored as of before the attack", c.name, restored)
}
