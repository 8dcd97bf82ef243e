// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/test/integration/history"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
	"github.com/holdfast-io/holdfast/test/story"
)

// locations are in both clusters, and the same store in both.
var locations = []string{"folder", "bucket", locked}

// TestTwoClustersOneStore is the campaign.
func TestTwoClustersOneStore(t *testing.T) {
	clusters := []*cluster{newCluster(t, labs[0], "a"), newCluster(t, labs[1], "b")}
	folder := filepath.Join(labs[0].Dir, "shared") // goes with the lab, whose processes write to it until then
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	stores := map[string]*enginev1alpha1.StorageLocationSpec{
		"folder": {Provider: enginev1alpha1.StorageProviderFilesystem, Prefix: "shared", Filesystem: &enginev1alpha1.FilesystemLocation{Path: folder}},
	}
	server := labs[0].S3(t)
	if err := os.Mkdir(filepath.Join(server.Buckets, "backups"), 0o755); err != nil {
		t.Fatal(err)
	}
	endpoint, err := url.Parse(server.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	sky, err := newNetwork(t.Context(), endpoint.Host)
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bucket"}, Data: map[string][]byte{
		store.SecretAccessKeyID:     []byte(server.AccessKeyID),
		store.SecretSecretAccessKey: []byte(server.SecretAccessKey),
	}}
	stores["bucket"] = &enginev1alpha1.StorageLocationSpec{
		Provider: enginev1alpha1.StorageProviderS3, Prefix: "shared",
		S3: &enginev1alpha1.S3Location{Bucket: "backups", Endpoint: "http://" + sky.address(), ForcePathStyle: true, CredentialsSecret: secret.Name},
	}
	attacker := &attack{bucket: server.LockedBucket(t, locked)}
	stores[locked] = stores["bucket"].DeepCopy()
	stores[locked].S3.Bucket = locked
	stores[locked].Lock = &enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockGovernance, Days: 2}
	for _, spec := range stores {
		spec.AllowedNamespaces = &enginev1alpha1.AllowedNamespaces{Names: []string{"*"}}
	}
	marks := make([]int64, len(clusters))
	for i, c := range clusters {
		c.must(t, func() error {
			_, err := c.Kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(labtest.System)).Create(t.Context(), secret, metav1.CreateOptions{})
			return err
		})
		for _, name := range locations {
			c.must(t, func() error {
				_, err := c.Engine.EngineV1alpha1().StorageLocations(labtest.System).Create(t.Context(),
					&enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: *stores[name]}, metav1.CreateOptions{})
				return err
			})
			c.AwaitAvailable(t, name, metav1.ConditionTrue)
		}
		c.StartAnother(t, labtest.AnotherController)
		marks[i] = c.AuditMark(t)
		c.first(t)
	}

	began := time.Now()
	h := badTime(t, clusters, sky, attacker)
	t.Logf("the bad time lasted %s; backups ended: %d and %d; %v; weather: %v", time.Since(began).Round(time.Second), clusters[0].progress(), clusters[1].progress(), h, sky.seen)

	for _, c := range clusters {
		c.giveUp(t)
		// A deletion waits for the store to be as it was, or for the end of its location.
		c.settle(t, func(run *enginev1alpha1.BackupRun) bool { return run.Spec.Backup.StorageLocation == locked })
	}
	t.Logf("the attacker of the locked bucket: %v", attacker)
	attacker.bucket.CorrectTimes(t)
	past := stores[locked].DeepCopy()
	past.Lock, past.S3.AsOf = nil, &metav1.Time{Time: attacker.began}
	delete(stores, locked)
	stores[before] = past
	for _, c := range clusters {
		t.Logf("cluster %s: %d backups were stored in the locked bucket before the attack", c.name, c.moveBefore(attacker.began))
		c.showBefore(t, past)
		c.restoreBefore(t)
	}
	for i, c := range clusters {
		c.checkHistory(t, marks[i])
		c.checkRestores(t, marks[i])
	}
	checkStores(t, clusters, stores)
	for _, c := range clusters {
		c.leaveLocked(t)
		c.checkLists(t)
	}
}

// badTime lasts as long as the flags say, and a bad end is waited for.
// In its second half the locked bucket is attacked.
func badTime(t *testing.T, clusters []*cluster, sky *network, attacker *attack) *harm {
	h := &harm{kills: map[string]int{}, pauses: map[string]int{}, deaths: map[string]int{}}
	ctx, stop := context.WithCancel(t.Context())
	var people, trouble sync.WaitGroup
	seed, stream := story.Seed(t), uint64(0)
	random := func() *rand.Rand {
		stream++
		return rand.New(rand.NewPCG(seed, stream))
	}
	bad, endOfTrouble := context.WithCancel(ctx)
	weatherRandom := random()
	trouble.Go(func() { sky.change(bad, weatherRandom) })
	for _, c := range clusters {
		peopleRandom := random()
		people.Go(func() { c.work(ctx, peopleRandom) })
		for _, process := range processes {
			processRandom := random()
			trouble.Go(func() {
				if err := h.harass(bad, c, process, processRandom); err != nil {
					t.Errorf("cluster %s: %v", c.name, err)
					endOfTrouble()
				}
			})
		}
		if !long() { // most would end before there is a repository
			continue
		}
		for _, location := range locations {
			maintenanceRandom := random()
			trouble.Go(func() {
				if err := h.maintain(bad, c, location, maintenanceRandom); err != nil {
					t.Errorf("cluster %s: %v", c.name, err)
					endOfTrouble()
				}
			})
		}
	}
	began, attackRandom := time.Now(), random()
	err := wait.PollUntilContextCancel(bad, 100*time.Millisecond, true, func(context.Context) (bool, error) {
		switch lasted := time.Since(began); {
		case attacker.began.IsZero() && lasted > *duration/2:
			attacker.begin(t)
		case !attacker.began.IsZero():
			attacker.strike(t, attackRandom, strikes)
		}
		return !attacker.began.IsZero() && time.Since(began) > *duration && h.enough(*kills), nil
	})
	if !attacker.began.IsZero() {
		attacker.end(t, attackRandom)
	}
	endOfTrouble()
	trouble.Wait()
	stop()
	people.Wait()
	if err != nil && !t.Failed() {
		t.Error(err)
	}
	return h
}

// settle waits until all that was asked for has come to its end, but for the deletions of some
// backups.
func (c *cluster) settle(t *testing.T, mayWait func(*enginev1alpha1.BackupRun) bool) {
	t.Helper()
	// A record that is removed has ended before: it goes a while after its end.
	err := labtest.Await(t.Context(), "the backups of cluster "+c.name+" to end", func() error {
		// Who was paused for too long ends when it goes on, and is to be started again.
		for _, process := range processes {
			if !c.Running(process) {
				if err := c.Restart(t.Context(), process); err != nil {
					return err
				}
			}
		}
		runs, err := c.Engine.EngineV1alpha1().BackupRuns(labtest.System).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range runs.Items {
			run := &runs.Items[i]
			if run.Spec.Deletion != nil && mayWait != nil && mayWait(run) {
				continue
			}
			if run.Spec.Deletion != nil || !run.Status.Phase.Ended() {
				return fmt.Errorf("%s is %q, with deletion %v", run.Name, run.Status.Phase, run.Spec.Deletion)
			}
		}
		return c.restoresEnded(t.Context())
	})
	if err != nil {
		t.Error(err) // and the rest is judged all the same
	}
	c.look(t.Context())
}

// checkHistory checks by the audit log that nothing ran twice, or beside what it
// overlaps, or out of turn.
func (c *cluster) checkHistory(t *testing.T, mark int64) {
	t.Helper()
	var h *history.History
	labtest.Eventually(t, "the audit log of cluster "+c.name, func() error {
		runs, err := c.Engine.EngineV1alpha1().BackupRuns(labtest.System).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		h, err = history.Read(c.WritesSince(t, mark), runs.Items)
		return err
	})
	for _, err := range h.Check(slots) {
		t.Errorf("cluster %s: %v", c.name, err)
	}
	phases := map[string]int{}
	for _, run := range h.Runs() {
		phases[string(run.Status.Phase)]++
	}
	t.Logf("cluster %s: of %d runs: %v; %d writes had no answer; %d requests of people had none", c.name, len(h.Runs()), phases, h.Unanswered, c.refused)
}
