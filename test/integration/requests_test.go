// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// ask posts a request about a backup, as the administrator.
func ask(t *testing.T, namespace, name, request, kind string) (stdout, stderr string, err error) {
	t.Helper()
	return lab.TryKubectl(t, body(kind), "create", "--raw", requestPath(namespace, name, request), "-f", "-")
}

func body(kind string) string {
	return fmt.Sprintf(`{"apiVersion":"holdfast.io/v1alpha1","kind":%q}`, kind)
}

func requestPath(namespace, name, request string) string {
	return api + "/namespaces/" + namespace + "/backups/" + name + "/" + request
}

func cancelBackup(t *testing.T, name string) string {
	t.Helper()
	stdout, stderr, err := ask(t, labtest.System, name, "cancel", "BackupCancellation")
	if err != nil {
		t.Fatalf("cancelling %s: %v\n%s", name, err, stderr)
	}
	return stdout
}

// gone waits until a backup is not listed any more, nor anything of it stored.
func gone(t *testing.T, name string) {
	t.Helper()
	labtest.Eventually(t, "the end of backup "+name, func() error {
		_, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is still there: %v", err)
	})
	cleaned(t, name)
}

// cleaned waits until nothing of a backup is in the store.
func cleaned(t *testing.T, name string) {
	t.Helper()
	labtest.Eventually(t, "the store to have nothing of "+name, func() error {
		found, err := os.ReadDir(filepath.Join(lab.Dir, "store", "backups", name))
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(found) == 0 {
			return nil
		}
		return fmt.Errorf("it has %v, %v", found, err)
	})
}

// reduced waits until the store has nothing of a backup but what says how it ended.
func reduced(t *testing.T, name string) {
	t.Helper()
	var want []string
	for _, key := range []string{format.LogKey(name), format.ResultsKey(name), format.OwnerKey(name), format.MetadataKey(name)} {
		want = append(want, filepath.Base(key))
	}
	slices.Sort(want)
	labtest.Eventually(t, "the store to have only the end of "+name, func() error {
		found, err := os.ReadDir(filepath.Join(lab.Dir, "store", "backups", name))
		if err != nil {
			return err
		}
		var names []string
		for _, entry := range found {
			names = append(names, entry.Name())
		}
		if !slices.Equal(names, want) {
			return fmt.Errorf("it has %q, want %q", names, want)
		}
		return nil
	})
}

// TestCancel cancels a backup that waits, and one that runs.
func TestCancel(t *testing.T) {
	held := lab.Hold(t, labtest.Name("cancel"))
	var waiting []string
	for range 3 {
		name := labtest.Name("waits")
		lab.Backup(t, name, held.Namespace)
		waiting = append(waiting, name)
	}
	position := func(name string, want int32) {
		t.Helper()
		labtest.Eventually(t, fmt.Sprintf("%s to be at position %d", name, want), func() error {
			backup, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && backup.Status.QueuePosition != want {
				err = fmt.Errorf("it is at %d", backup.Status.QueuePosition)
			}
			return err
		})
	}
	position(waiting[2], 3)
	cancelBackup(t, waiting[0])
	cancelled := lab.AwaitPhase(t, labtest.System, waiting[0], v1alpha1.BackupPhaseCancelled)
	if !strings.Contains(cancelled.Status.FailureReason, "cancelled by") {
		t.Errorf("it was cancelled for the reason %q", cancelled.Status.FailureReason)
	}
	position(waiting[1], 1)
	position(waiting[2], 2)

	cancelBackup(t, held.Name)
	lab.AwaitPhase(t, labtest.System, held.Name, v1alpha1.BackupPhaseCancelled)
	reduced(t, held.Name)
	lab.Kubectl(t, "wait", "--for=condition=Complete", "--timeout=10s", "-n", labtest.System, "backup/"+held.Name)
	for _, name := range waiting[1:] {
		cancelOrEnded(t, name)
	}

	_, stderr, err := ask(t, labtest.System, held.Name, "cancel", "BackupCancellation")
	if err == nil || !strings.Contains(stderr, "it has ended already, as Cancelled") {
		t.Errorf("cancelling it again: %v, %s", err, stderr)
	}
}

// cancelOrEnded ends what the test has left waiting. Without an agent on its node,
// a backup that has started meanwhile would wait for its volume.
func cancelOrEnded(t *testing.T, name string) {
	t.Helper()
	if _, stderr, err := ask(t, labtest.System, name, "cancel", "BackupCancellation"); err != nil && !strings.Contains(stderr, "it has ended already") {
		t.Fatalf("%v: %s", err, stderr)
	}
	lab.AwaitPhase(t, labtest.System, name, v1alpha1.BackupPhaseCancelled, v1alpha1.BackupPhaseCompleted)
}

// TestCancelSurvivesARestart: the controller is killed with the request recorded.
func TestCancelSurvivesARestart(t *testing.T) {
	held := lab.Hold(t, labtest.Name("cancel"))
	lab.Kill(t, labtest.Controller)
	cancelBackup(t, held.Name)
	lab.AwaitPhase(t, labtest.System, held.Name, v1alpha1.BackupPhaseCancelling)
	lab.Start(t, labtest.Controller)
	lab.AwaitPhase(t, labtest.System, held.Name, v1alpha1.BackupPhaseCancelled)
	reduced(t, held.Name)
}

// TestDelete deletes one of two backups of a volume: it goes from the lists, the
// store and the volume's history, and the other one still restores.
func TestDelete(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "delete")
	pod, folder := lab.PodWithClaim(t, namespace, labtest.Node)
	fill(t, folder)
	before := tree(t, folder)
	first, second := labtest.Name("delete"), labtest.Name("delete")
	for _, name := range []string{first, second} {
		lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, DefaultVolumesToFsBackup: new(true)})
		lab.AwaitCompleted(t, name)
		lab.AwaitRunGone(t, name)
	}
	uid, kept := lab.AwaitCompleted(t, first).UID, lab.AwaitCompleted(t, second).UID
	stdout, stderr, err := ask(t, labtest.System, first, "deletion", "BackupDeletion")
	if err != nil || !strings.Contains(stdout, "is being deleted") {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	gone(t, first)
	history, err := lab.Holdfast.HoldfastV1alpha1().VolumeBackups(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(history.Items) != 1 || history.Items[0].Spec.BackupUID != kept {
		t.Errorf("the history is %+v, %v", history.Items, err)
	}
	empty(t, folder)
	restore(t, pod, namespace+"-data", volumeHistory(t, namespace, second).Status.SnapshotID)
	if diff := cmp.Diff(before, tree(t, folder)); diff != "" {
		t.Errorf("what the other backup restores differs (-before +after):\n%s", diff)
	}
	// The name is free again.
	lab.Backup(t, first, namespace)
	if again := lab.AwaitCompleted(t, first); again.UID == uid {
		t.Error("a new backup of that name has the uid of the old one")
	}
}

// TestRightsToRequests: whoever edits a namespace may cancel. To delete is a right of
// its own, which not even the namespace's administrator has by itself.
func TestRightsToRequests(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "rights")
	editor, admin := labtest.Name("editor"), labtest.Name("admin")
	lab.Grant(t, editor, "edit", namespace)
	lab.Grant(t, admin, "admin", namespace)
	deleter := labtest.Name("deleter")
	lab.Bind(t, deleter, "holdfast-admin", namespace)
	lab.Grant(t, deleter, "view", namespace)
	lab.Create(t, namespace, "mine", v1alpha1.BackupSpec{})
	lab.AwaitPhase(t, namespace, "mine", v1alpha1.BackupPhaseCompleted)
	post := func(user, request string) []string {
		return []string{"--as=" + user, "create", "--raw", requestPath(namespace, "mine", request), "-f", "-"}
	}
	lab.Refused(t, body("BackupCancellation"), post(editor, "cancel"), "it has ended already")
	lab.Refused(t, body("BackupDeletion"), post(editor, "deletion"), "forbidden")
	lab.Refused(t, body("BackupDeletion"), post(admin, "deletion"), "forbidden")
	if _, stderr, err := lab.TryKubectl(t, body("BackupDeletion"), post(deleter, "deletion")...); err != nil {
		t.Errorf("%v: %s", err, stderr)
	}
	labtest.Eventually(t, "the backup to go", func() error {
		_, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(t.Context(), "mine", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is still there: %v", err)
	})
}
