// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Backup creates a backup of namespaces in the system namespace.
func (l *Lab) Backup(t testing.TB, name string, namespaces ...string) *v1alpha1.Backup {
	t.Helper()
	return l.Create(t, System, name, v1alpha1.BackupSpec{IncludedNamespaces: namespaces})
}

// Create creates a backup.
func (l *Lab) Create(t testing.TB, namespace, name string, spec v1alpha1.BackupSpec) *v1alpha1.Backup {
	t.Helper()
	backup, err := l.Holdfast.HoldfastV1alpha1().Backups(namespace).Create(t.Context(),
		&v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return backup
}

// AwaitPhase waits until a backup is in one of the phases, and fails the test
// if it ends in another.
func (l *Lab) AwaitPhase(t testing.TB, namespace, name string, phases ...v1alpha1.BackupPhase) *v1alpha1.Backup {
	t.Helper()
	var backup *v1alpha1.Backup
	Eventually(t, fmt.Sprintf("backup %s/%s to be %v", namespace, name, phases), func() error {
		var err error
		backup, err = l.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(t.Context(), name, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case slices.Contains(phases, backup.Status.Phase):
			return nil
		case backup.Status.Phase.Ended():
			t.Fatalf("backup %s/%s has ended: %+v", namespace, name, backup.Status)
		}
		return fmt.Errorf("its phase is %s", backup.Status.Phase)
	})
	return backup
}

// AwaitCompleted waits until a backup in the system namespace is Completed.
func (l *Lab) AwaitCompleted(t testing.TB, name string) *v1alpha1.Backup {
	t.Helper()
	return l.AwaitPhase(t, System, name, v1alpha1.BackupPhaseCompleted)
}

// AwaitRunGone waits until the record of a backup is removed, so that what is
// shown of it comes from the store.
func (l *Lab) AwaitRunGone(t testing.TB, run string) {
	t.Helper()
	Eventually(t, "the removal of BackupRun "+run, func() error {
		_, err := l.Engine.EngineV1alpha1().BackupRuns(System).Get(t.Context(), run, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("it is still there")
	})
}

// Held is a backup that is InProgress until it is let go.
type Held struct {
	// Name of the backup, in the system namespace.
	Name string
	// Namespace is the first one that it includes.
	Namespace string

	lab *Lab
	uid string
}

// Hold starts a backup of a new namespace, with a volume on a node that no agent
// works for, and waits until it is InProgress. It ends with the test at the latest.
func (l *Lab) Hold(t testing.TB, name string) *Held {
	t.Helper()
	namespace := l.Namespace(t, name+"-ns")
	l.Pod(t, namespace, Unattended)
	return l.HoldSpec(t, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}})
}

// HoldSpec is like Hold, of namespaces that have one such volume already.
func (l *Lab) HoldSpec(t testing.TB, name string, spec v1alpha1.BackupSpec) *Held {
	t.Helper()
	spec.DefaultVolumesToFsBackup = new(true)
	backup := l.Create(t, System, name, spec)
	h := &Held{Name: name, Namespace: spec.IncludedNamespaces[0], lab: l, uid: string(backup.UID)}
	t.Cleanup(func() {
		if err := h.letGo(context.Background()); err != nil {
			t.Error(err)
		}
	})
	l.AwaitPhase(t, System, name, v1alpha1.BackupPhaseInProgress)
	Eventually(t, "the volume of "+name+" to wait for an agent", func() error {
		volumes, err := l.Engine.EngineV1alpha1().VolumeUploads(System).List(t.Context(), h.volumes())
		if err == nil && len(volumes.Items) != 1 {
			err = fmt.Errorf("it has %d VolumeUploads", len(volumes.Items))
		}
		return err
	})
	return h
}

// LetGo lets the backup end, without its volume.
func (h *Held) LetGo(t testing.TB) {
	t.Helper()
	if err := h.letGo(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Release lets the backup end, and waits until it has.
func (h *Held) Release(t testing.TB) {
	t.Helper()
	h.LetGo(t)
	h.lab.AwaitPhase(t, System, h.Name, v1alpha1.BackupPhasePartiallyFailed)
}

func (h *Held) letGo(ctx context.Context) error {
	return h.lab.Engine.EngineV1alpha1().VolumeUploads(System).DeleteCollection(ctx, metav1.DeleteOptions{}, h.volumes())
}

func (h *Held) volumes() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: enginev1alpha1.LabelRun + "=" + h.uid}
}
