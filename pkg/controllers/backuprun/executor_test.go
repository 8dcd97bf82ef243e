// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/encryption"
	"github.com/holdfast-io/holdfast/pkg/format"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/recovery"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// newExecutor makes an Executor that stores in a folder of the test's own.
func newExecutor(t *testing.T) (e *Executor, folder string) {
	folder = t.TempDir()
	records := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	record := &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"},
		Spec: enginev1alpha1.StorageLocationSpec{
			Provider:   enginev1alpha1.StorageProviderFilesystem,
			Filesystem: &enginev1alpha1.FilesystemLocation{Path: folder},
		},
	}
	if err := records.Add(record); err != nil {
		t.Fatal(err)
	}
	return &Executor{
		Kube:      kubefake.NewClientset(),
		Leads:     func(context.Context) error { return nil },
		Locations: enginelisters.NewStorageLocationLister(records).StorageLocations(system),
		Cluster:   format.Cluster{SystemNamespace: system, UID: "cluster"},
		Clock:     clocktesting.NewFakeClock(now),
	}, folder
}

// The store has the last word, whatever the record says.
func TestSnapshotsOfAStoredBackupStay(t *testing.T) {
	run := newRun("a", cancelled)
	whole := run.AsBackup()
	whole.Status = v1alpha1.BackupStatus{Phase: done, StartTimestamp: &metav1.Time{Time: now}, CompletionTimestamp: &metav1.Time{Time: now}}
	metadata, err := format.EncodeBackup(whole, nil, format.Cluster{SystemNamespace: system})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		content []byte
		want    error
	}{
		"stored":     {metadata, nil},
		"unreadable": {[]byte("<html>"), backup.ErrUnreadable},
	} {
		t.Run(name, func(t *testing.T) {
			e, folder := newExecutor(t) // without Secrets, so that it can open no repository
			key := filepath.Join(folder, filepath.FromSlash(format.MetadataKey("a")))
			if err := errors.Join(os.MkdirAll(filepath.Dir(key), 0o755), os.WriteFile(key, c.content, 0o600)); err != nil {
				t.Fatal(err)
			}
			if err := e.DiscardSnapshots(t.Context(), run, "shop"); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

// What there is of a run is replaced by how it ended, once, whoever asks again.
func TestSettlingInTheStore(t *testing.T) {
	for phase, reason := range map[v1alpha1.BackupPhase]string{broken: "the power went out", cancelled: "cancelled by jane"} {
		t.Run(string(phase), func(t *testing.T) {
			e, folder := newExecutor(t)
			run := newRun("a", running)
			backups := filepath.Join(folder, "backups", "a")
			partial := filepath.Join(backups, "a.tar.gz")
			if err := errors.Join(os.MkdirAll(backups, 0o755), os.WriteFile(partial, []byte("half a tarball"), 0o600)); err != nil {
				t.Fatal(err)
			}
			var metadata []byte
			for i, asked := range []string{reason, "another reason"} {
				outcome, err := e.Abandon(t.Context(), run, backup.PostHooks{}, phase, asked)
				if err != nil || !outcome.Stored || outcome.Status.Phase != phase || outcome.Status.FailureReason != reason || !outcome.Status.CompletionTimestamp.Time.Equal(now) {
					t.Errorf("%v, %+v", err, outcome)
				}
				if _, err := os.Stat(partial); !os.IsNotExist(err) {
					t.Errorf("the part of the tarball is still there: %v", err)
				}
				before := metadata
				metadata, err = os.ReadFile(filepath.Join(backups, "velero-backup.json"))
				if err != nil || !strings.Contains(string(metadata), reason) || i > 0 && string(metadata) != string(before) {
					t.Errorf("stored is: %v, %s", err, metadata)
				}
			}
			namesake := newRun("a", running)
			namesake.UID = "another"
			if outcome, err := e.Abandon(t.Context(), namesake, backup.PostHooks{}, phase, reason); !errors.Is(err, backup.ErrNameTaken) || outcome.Stored {
				t.Errorf("the backup of another run was taken for its own: %v, %+v", err, outcome)
			}
		})
	}
}

func TestALocationThatIsGone(t *testing.T) {
	e, folder := newExecutor(t)
	gone := newRun("a", ready)
	gone.Spec.Backup.StorageLocation = "gone"
	outcome, err := e.Execute(t.Context(), t.Context(), gone, backup.PostHooks{}, nil, nil, nil)
	const want = `the storage location "gone" does not exist any more`
	if err == nil || err.Error() != want || outcome.Stored || outcome.Status.Phase != broken || outcome.Status.FailureReason != want {
		t.Errorf("Execute: %v, %+v", err, outcome)
	}
	if outcome, err := e.Abandon(t.Context(), gone, backup.PostHooks{}, broken, "a reason"); err == nil || outcome.Stored {
		t.Errorf("Abandon: %v, %+v", err, outcome)
	}

	if err := os.Remove(folder); err != nil {
		t.Fatal(err)
	}
	if outcome, err := e.Abandon(t.Context(), newRun("a", running), backup.PostHooks{}, broken, "a reason"); err == nil || outcome.Stored {
		t.Errorf("Abandon without its folder: %v, %+v", err, outcome)
	}
}

func TestTheClusterIsIdentified(t *testing.T) {
	kube := kubefake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "the uid"}})
	kube.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: "v1.37.2", Major: "1", Minor: "37"}
	got, err := Cluster(t.Context(), kube, system)
	want := format.Cluster{SystemNamespace: system, UID: "the uid", GitVersion: "v1.37.2", Major: "1", Minor: "37"}
	if err != nil || got != want {
		t.Errorf("Cluster: %+v, %v; want %+v", got, err, want)
	}
	if _, err := Cluster(t.Context(), kubefake.NewClientset(), system); err == nil {
		t.Error("a cluster without kube-system was identified")
	}
}

func TestRecordOutcome(t *testing.T) {
	at := metav1.NewTime(now)
	earlier, later := metav1.NewTime(now.Add(-time.Minute)), metav1.NewTime(now.Add(time.Hour))
	progress, volumes := &v1alpha1.BackupProgress{TotalItems: 3, ItemsBackedUp: 3}, &v1alpha1.BackupVolumesProgress{Total: 1, Completed: 1}
	cases := map[string]struct {
		before  enginev1alpha1.BackupRunStatus
		outcome backup.Outcome
		want    enginev1alpha1.BackupRunStatus
	}{
		"what is known is kept": {
			before:  enginev1alpha1.BackupRunStatus{Phase: running, Ticket: 7, Executor: identity, StartTimestamp: &earlier, Expiration: &later, Progress: progress, Volumes: volumes},
			outcome: backup.Outcome{Status: v1alpha1.BackupStatus{Phase: broken, FailureReason: "why"}},
			want: enginev1alpha1.BackupRunStatus{Phase: broken, Ticket: 7, Executor: identity, StartTimestamp: &earlier, Expiration: &later, Progress: progress, Volumes: volumes,
				FailureReason: "why", CompletionTimestamp: &at},
		},
		"what is new replaces it": {
			before: enginev1alpha1.BackupRunStatus{Phase: running, Expiration: &at, Progress: &v1alpha1.BackupProgress{TotalItems: 1}, FailureReason: "an earlier one"},
			outcome: backup.Outcome{Stored: true, Status: v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhasePartiallyFailed, Errors: 2, Warnings: 1,
				CompletionTimestamp: &earlier, Expiration: &later, Progress: progress, Volumes: volumes}},
			want: enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhasePartiallyFailed, Stored: true, Errors: 2, Warnings: 1,
				CompletionTimestamp: &earlier, Expiration: &later, Progress: progress, Volumes: volumes},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := *c.before.DeepCopy()
			recordOutcome(&got, c.outcome, at)
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// TestLocationThatIsForOthersByNow: a backup whose namespace lost the right to its location while it waited
// fails, and stores nothing.
func TestLocationThatIsForOthersByNow(t *testing.T) {
	e, folder := newExecutor(t)
	run := newRun("a", running)
	run.Spec.BackupRef.Namespace = "shop"
	outcome, err := e.Execute(t.Context(), t.Context(), run, backup.PostHooks{}, nil, nil, nil)
	if !errors.Is(err, location.ErrNotAllowed) || outcome.Status.Phase != broken || !strings.Contains(outcome.Status.FailureReason, "spec.allowedNamespaces") {
		t.Errorf("%v, %+v", err, outcome.Status)
	}
	if stored, err := os.ReadDir(folder); err != nil || len(stored) != 0 {
		t.Errorf("%v is stored, %v", stored, err)
	}
}

// TestKeyBeforeTheBackup: before a backup is encrypted for this cluster's key, the store has that key
// for the recovery keys; and without them, or without the store, there is no such backup.
func TestKeyBeforeTheBackup(t *testing.T) {
	e, folder := newExecutor(t)
	key, err := format.NewSigningKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	e.Cluster.Key = key
	private, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	run := newRun("a", running)
	run.Spec.Backup.StorageLocation = "default"
	record, err := e.Locations.Get("default")
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := e.open(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	defer bucket.Close()
	wrapped := filepath.Join(folder, "metadata/holdfast/keys/cluster/encryption.key")
	for _, spec := range []*enginev1alpha1.StorageEncryption{nil, {}, {Objects: enginev1alpha1.ObjectEncryptionDisabled}} {
		if record.Spec.Encryption = spec; e.encryption(run, bucket) != nil {
			t.Errorf("with %+v it is encrypted", spec)
		}
	}
	record.Spec.Encryption = &enginev1alpha1.StorageEncryption{Objects: enginev1alpha1.ObjectEncryptionEnabled}
	if to, err := e.encryption(run, bucket)(t.Context()); err == nil || !strings.Contains(err.Error(), "names no recoveryKeys") {
		t.Errorf("without recovery keys: %v, %v", to, err)
	}
	record.Spec.RecoveryKeys = []string{private.Recipient().String()}
	for range 2 {
		to, err := e.encryption(run, bucket)(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		own, err := encryption.Own(t.Context(), e.Kube.CoreV1().Secrets(system))
		if err != nil || to.Status().ClusterKey != own.Public()[0] || !slices.Equal(to.Status().RecoveryKeys, record.Spec.RecoveryKeys) {
			t.Errorf("it is encrypted for %+v, and its own key is %v, %v", to.Status(), own, err)
		}
		if files, err := os.ReadDir(wrapped); err != nil || len(files) != 1 {
			t.Errorf("the store has %v, %v", files, err)
		}
		found, err := recovery.Find(t.Context(), bucket, func(err error) { t.Error(err) })
		if err != nil || len(found) != 1 {
			t.Fatalf("found %v, %v", found, err)
		}
		if keys, err := recovery.UnwrapEncryptionKeys(&found[0], []recovery.Identity{private}); err != nil || keys.String() != own.String() {
			t.Errorf("in the store is %v, %v", keys, err)
		}
	}
	// The key can't be stored: a file is in the way of its folder.
	if err := errors.Join(os.RemoveAll(wrapped), os.WriteFile(wrapped, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if to, err := e.encryption(run, bucket)(t.Context()); err == nil || to != nil || !strings.Contains(err.Error(), "the wrapped key of encrypted backups") {
		t.Errorf("without its key in the store: %v, %v", to, err)
	}
	run.Spec.Backup.StorageLocation = "gone"
	if to, err := e.encryption(run, bucket)(t.Context()); err == nil || to != nil {
		t.Errorf("of a location that is gone: %v, %v", to, err)
	}
}
