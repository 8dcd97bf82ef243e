// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// killer kills controllers at moments in the life of backups.
type killer struct {
	ctx context.Context
	// roles has that of the controller that leads, by its identity.
	roles map[string]string

	mu    sync.Mutex
	armed *moment
	role  string // whom to kill
	blind bool
	tries int
	err   error
}

// kill kills a controller at the next moment of that kind: the one that works on the
// backup, or else the one of this role. It returns its role. Unless it is blind, the
// controller is paused first, and goes on if the moment has passed.
func (k *killer) kill(t *testing.T, m moment, role string, blind bool) string {
	t.Helper()
	k.mu.Lock()
	k.armed, k.role, k.blind, k.tries = &m, role, blind, 0
	k.mu.Unlock()
	labtest.Eventually(t, "a backup: "+m.name, func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.armed != nil {
			return fmt.Errorf("none of %d was there when the controller was paused; the last error was %v", k.tries, k.err)
		}
		return nil
	})
	t.Logf("%s, at try %d", m.name, k.tries)
	lab.AwaitKilled(t, k.role)
	return k.role
}

// changed looks whether it is the moment.
func (k *killer) changed(before, after sight) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := k.armed
	if m == nil {
		return
	}
	asks := m.from != nil && m.from(after) && !m.from(before) && !after.cancelled()
	if !asks && (m.in(before) || !m.in(after)) {
		return
	}
	if after.by != "" {
		role, ok := k.roles[after.by]
		if !ok {
			return // it was killed before
		}
		k.role = role
	}
	k.tries++
	k.err = k.try(m, after, asks)
}

func (k *killer) try(m *moment, s sight, asks bool) error {
	if k.blind && !asks {
		k.armed = nil
		return lab.Signal(k.role, syscall.SIGKILL)
	}
	if m.paused || !asks {
		if err := lab.Signal(k.role, syscall.SIGSTOP); err != nil {
			return err
		}
	}
	there, err := k.bring(m, s, asks)
	if there {
		k.armed = nil
		return errors.Join(err, lab.Signal(k.role, syscall.SIGKILL))
	}
	return errors.Join(err, lab.Signal(k.role, syscall.SIGCONT))
}

// bring asks what leads to the moment, and reports whether the backup is there.
func (k *killer) bring(m *moment, s sight, asks bool) (bool, error) {
	if asks {
		var body runtime.Object = &v1alpha1.BackupCancellation{}
		if m.request == "deletion" {
			body = &v1alpha1.BackupDeletion{}
		}
		if err := request(k.ctx, s.name, m.request, body); err != nil {
			return false, err
		}
		if k.blind {
			return m.paused, nil // else it comes there by itself
		}
		if !m.paused {
			if err := lab.Signal(k.role, syscall.SIGSTOP); err != nil {
				return false, err
			}
		}
	}
	uid := types.UID("")
	if s.run != nil {
		uid = s.run.UID
	}
	now, err := live(k.ctx, s.name, uid)
	return err == nil && m.in(now), err
}

// start starts a controller in some way, and waits until it leads.
func (k *killer) start(t *testing.T, role string, start func()) {
	t.Helper()
	before := leader(t)
	start()
	k.elected(t, role, before)
}

// elected waits until another controller leads, which is that of this role.
func (k *killer) elected(t *testing.T, role, before string) {
	t.Helper()
	labtest.Eventually(t, "the "+role+" to lead", func() error {
		now := leader(t)
		if now == "" || now == before {
			return fmt.Errorf("%q leads", now)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.roles = map[string]string{now: role}
		return nil
	})
}

// leader is the controller that holds the Lease.
func leader(t *testing.T) string {
	t.Helper()
	held, err := lab.Kube.CoordinationV1().Leases(labtest.System).Get(t.Context(), lease.LeaderLease, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return *held.Spec.HolderIdentity
}

// bury lets nobody wait for the Lease of a controller that was killed.
func bury(t *testing.T, role string) {
	t.Helper()
	if err := lab.DeleteLeaseOf(t.Context(), role); err != nil {
		t.Fatal(err)
	}
}
