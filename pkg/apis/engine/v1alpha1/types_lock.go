// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LockMode decides about the right to remove locked objects.
// +kubebuilder:validation:Enum=governance;compliance
type LockMode string

const (
	// LockGovernance lets accounts with a special right remove them. Holdfast never needs it.
	LockGovernance LockMode = "governance"
	// LockCompliance lets no account remove them, not even the bucket's owner.
	LockCompliance LockMode = "compliance"
)

// StorageLock says how long objects are locked in a bucket.
type StorageLock struct {
	// Mode of the lock: governance, which accounts with a special right can override, or
	// compliance, which none can. An object keeps the mode it was written with.
	Mode LockMode `json:"mode"`
	// Days that an object is locked from its writing or last extension. Extensions continue while a
	// backup needs it. A smaller number shortens no existing lock.
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=36500
	Days int32 `json:"days"`
}

// Period returns the duration of one lock; zero without a lock.
func (l *StorageLock) Period() time.Duration {
	if l == nil {
		return 0
	}
	return time.Duration(l.Days) * 24 * time.Hour
}

// StorageLockStatus says until when a location's objects are locked.
type StorageLockStatus struct {
	// Mode and days of the lock.
	StorageLock `json:",inline"`
	// When the location got this lock.
	Since metav1.Time `json:"since"`
	// Backups' objects are locked until then at least. Missing until all were extended once.
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
	// When all locks were last long enough, or extended.
	// +optional
	CheckedAt *metav1.Time `json:"checkedAt,omitempty"`
}

const (
	// ConditionLocked is True while backups' objects are locked, and the locks were extended in
	// time. Missing without a lock.
	ConditionLocked = "Locked"
	// ReasonLocked: they are. The message says until when.
	ReasonLocked = "Locked"
	// ReasonNoObjectLock: the bucket can't lock objects. The location is not Available.
	ReasonNoObjectLock = "NoObjectLock"
	// ReasonLockPending: objects older than the location's lock are not locked yet.
	ReasonLockPending = "Pending"
	// ReasonExtensionFailed: some locks could not be extended.
	ReasonExtensionFailed = "ExtensionFailed"
	// ReasonMaintenanceLate: a repository's maintenance, which extends its locks, is late.
	ReasonMaintenanceLate = "MaintenanceLate"
)

// LockedUntil returns until when objects are locked at least, as far as known; nil if unlocked.
func (l *StorageLocation) LockedUntil() *metav1.Time {
	if l.Spec.Lock == nil || l.Status.Lock == nil {
		return nil
	}
	return l.Status.Lock.Until
}

// KeptVersions tells how a lock affects deleted backups; empty without a lock.
func (l *StorageLocation) KeptVersions() string {
	if l.Spec.Lock == nil {
		return ""
	}
	text := fmt.Sprintf("its objects are locked for up to %d days more, so the bucket keeps their versions", l.Spec.Lock.Days)
	if until := l.LockedUntil(); until != nil {
		text += " until at least " + until.UTC().Format(time.RFC3339)
	}
	return text
}
