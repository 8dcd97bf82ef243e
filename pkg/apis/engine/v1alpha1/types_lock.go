// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LockMode says which accounts may remove locked objects.
// +kubebuilder:validation:Enum=governance;compliance
type LockMode string

const (
	// LockGovernance lets accounts remove them that have a right for it, which Holdfast never needs.
	LockGovernance LockMode = "governance"
	// LockCompliance lets no account remove them, not even the owner of the bucket.
	LockCompliance LockMode = "compliance"
)

// StorageLock says how long objects are locked in a bucket.
type StorageLock struct {
	// Mode of the lock: governance, which accounts with a special right can override, or
	// compliance, which none can. An object keeps the mode that it was written with.
	Mode LockMode `json:"mode"`
	// Days that an object is locked from its writing, or from the last extension. Extensions go on
	// while a backup needs the object. A smaller number shortens no lock that an object has.
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=36500
	Days int32 `json:"days"`
}

// Period returns for how long an object is locked at once; zero without a lock.
func (l *StorageLock) Period() time.Duration {
	if l == nil {
		return 0
	}
	return time.Duration(l.Days) * 24 * time.Hour
}

// StorageLockStatus says until when a location's objects are locked.
type StorageLockStatus struct {
	// Mode and days of the lock that the status is about.
	StorageLock `json:",inline"`
	// When the location got this lock.
	Since metav1.Time `json:"since"`
	// Objects of the location's backups are locked until then at least. Missing until all were
	// extended once.
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
	// When all locks were last found long enough, or extended.
	// +optional
	CheckedAt *metav1.Time `json:"checkedAt,omitempty"`
}

const (
	// ConditionLocked is True while the objects of the location's backups are locked, and their
	// locks were extended in time. It is missing without a lock.
	ConditionLocked = "Locked"
	// ReasonLocked: they are. The message says until when.
	ReasonLocked = "Locked"
	// ReasonNoObjectLock: the bucket can't lock objects. The location is not Available either.
	ReasonNoObjectLock = "NoObjectLock"
	// ReasonLockPending: objects that are older than the location's lock are not locked yet.
	ReasonLockPending = "Pending"
	// ReasonExtensionFailed: the locks of some objects could not be extended.
	ReasonExtensionFailed = "ExtensionFailed"
	// ReasonMaintenanceLate: a repository was not maintained in time, which extends its locks.
	ReasonMaintenanceLate = "MaintenanceLate"
)

// LockedUntil returns until when the location's objects are locked at least, as far as is known;
// nil if they are not.
func (l *StorageLocation) LockedUntil() *metav1.Time {
	if l.Spec.Lock == nil || l.Status.Lock == nil {
		return nil
	}
	return l.Status.Lock.Until
}

// KeptVersions says what a lock means for a backup that is deleted from the location; empty without
// one.
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
