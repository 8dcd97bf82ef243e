// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package records

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
)

const (
	// LedgerName is the ledger, a ConfigMap in the system namespace with the started runs that have not
	// ended, and the controller's settings.
	LedgerName = "holdfast-queue"
	// StartedKey has the entries: a JSON list of Starts.
	StartedKey = "started"
	// LeaderKey has the writing controller process. Another process's writes came before, or fail.
	LeaderKey = "leader"
	// ConcurrentBackupsKey and ConcurrentRestoresKey have the numbers of slots.
	ConcurrentBackupsKey  = "concurrentBackups"
	ConcurrentRestoresKey = "concurrentRestores"
	// DefaultConcurrentBackups and DefaultConcurrentRestores are default slots.
	DefaultConcurrentBackups  = 1
	DefaultConcurrentRestores = 4
)

// Start is a run in the ledger, until it is known to have ended, or queued again.
type Start struct {
	// UID and Name are the BackupRun's, or the RestoreRun's if Restore is true.
	UID     types.UID   `json:"uid"`
	Name    string      `json:"name"`
	Restore bool        `json:"restore,omitempty"`
	At      metav1.Time `json:"at"`
}

var (
	ErrNoLedger = errors.New("there is no ledger of what was let start")
	// ErrLedger means an unreadable ledger.
	ErrLedger = fmt.Errorf("the ledger of what was let start can't be read: remove the key %q of the ConfigMap %s to have it written anew, and the backups and restores that were let start and have not begun go back to their places", StartedKey, LedgerName)
)

// Ledger returns the started runs. The error wraps ErrNoLedger or ErrLedger.
func Ledger(ledger *corev1.ConfigMap) ([]Start, error) {
	if ledger == nil {
		return nil, ErrNoLedger
	}
	text, ok := ledger.Data[StartedKey]
	if !ok {
		return nil, ErrNoLedger
	}
	var starts []Start
	if err := json.Unmarshal([]byte(text), &starts); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLedger, err)
	}
	for _, start := range starts {
		if start.UID == "" || start.Name == "" {
			return nil, fmt.Errorf("%w: an entry has no uid or no name", ErrLedger)
		}
	}
	return starts, nil
}

// WithLedger returns a copy of the ledger with other entries.
func WithLedger(ledger *corev1.ConfigMap, starts []Start) (*corev1.ConfigMap, error) {
	if starts == nil {
		starts = []Start{}
	}
	text, err := json.Marshal(starts)
	if err != nil {
		return nil, err
	}
	ledger = ledger.DeepCopy()
	if ledger.Data == nil {
		ledger.Data = map[string]string{}
	}
	ledger.Data[StartedKey] = string(text)
	return ledger, nil
}

// Started returns the ledger's runs; none if it is unreadable.
func Started(ledger *corev1.ConfigMap) sets.Set[types.UID] {
	starts, _ := Ledger(ledger)
	uids := sets.New[types.UID]()
	for _, start := range starts {
		uids.Insert(start.UID)
	}
	return uids
}

// Leader returns the process that writes the ledger, or "".
func Leader(ledger *corev1.ConfigMap) string {
	if ledger == nil {
		return ""
	}
	return ledger.Data[LeaderKey]
}

// DefaultLimits are the default numbers of slots.
var DefaultLimits = queue.Slots{queue.Backup: DefaultConcurrentBackups, queue.Restore: DefaultConcurrentRestores}

var limitKeys = [...]string{queue.Backup: ConcurrentBackupsKey, queue.Restore: ConcurrentRestoresKey}

// Limits returns the ledger's numbers of slots, or the defaults.
func Limits(ledger *corev1.ConfigMap) queue.Slots {
	limits := DefaultLimits
	for class, key := range limitKeys {
		if ledger == nil {
			break
		}
		if n, err := strconv.Atoi(ledger.Data[key]); err == nil && n >= 1 {
			limits[class] = n
		}
	}
	return limits
}

// SetLimits writes the numbers of slots.
func SetLimits(ledger *corev1.ConfigMap, limits queue.Slots) {
	for class, key := range limitKeys {
		ledger.Data[key] = strconv.Itoa(limits[class])
	}
}

// HasLimits reports whether the ledger has them.
func HasLimits(ledger *corev1.ConfigMap, limits queue.Slots) bool {
	for class, key := range limitKeys {
		if ledger.Data[key] != strconv.Itoa(limits[class]) {
			return false
		}
	}
	return true
}

// StartOf returns a run's entry.
func StartOf(run enginev1alpha1.QueuedRun, at metav1.Time) Start {
	return Start{UID: run.GetUID(), Name: run.GetName(), Restore: ClassOf(run) == queue.Restore, At: at}
}

// Class returns the class of the run.
func (s Start) Class() queue.Class {
	if s.Restore {
		return queue.Restore
	}
	return queue.Backup
}

// ClassOf returns a run's class.
func ClassOf(run enginev1alpha1.QueuedRun) queue.Class {
	if _, ok := run.(*enginev1alpha1.RestoreRun); ok {
		return queue.Restore
	}
	return queue.Backup
}

// Unclaimed reports whether a run has not begun, in the ledger or not.
func Unclaimed(run enginev1alpha1.QueuedRun) bool {
	if run.Deleting() {
		return false // it stands for an ended backup
	}
	switch run.Standing().Phase {
	case "", v1alpha1.BackupPhaseNew, v1alpha1.BackupPhaseQueued, v1alpha1.BackupPhaseReadyToStart:
		return true
	}
	return false
}

// Phase returns a run's phase. ReadyToStart is never written: it is an unclaimed run in the ledger.
func Phase(run enginev1alpha1.QueuedRun, started sets.Set[types.UID]) v1alpha1.BackupPhase {
	switch phase := run.Standing().Phase; {
	case run.Deleting():
		return v1alpha1.BackupPhaseDeleting
	case Unclaimed(run) && started.Has(run.GetUID()):
		return v1alpha1.BackupPhaseReadyToStart
	case phase == v1alpha1.BackupPhaseReadyToStart:
		return v1alpha1.BackupPhaseQueued
	default:
		return phase
	}
}

// CancelledReason says by whom a run was cancelled.
func CancelledReason(run enginev1alpha1.QueuedRun) string {
	if asked := run.Asked().Cancellation; asked != nil && asked.Requester.Username != "" {
		return "cancelled by " + asked.Requester.Username
	}
	return "cancelled"
}

// Reference returns the Backup or Restore of a run, for events.
func Reference(run enginev1alpha1.QueuedRun) *corev1.ObjectReference {
	asked := run.Asked()
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.SchemeGroupVersion.String(),
		Kind:       asked.Kind,
		Namespace:  asked.Ref.Namespace,
		Name:       asked.Ref.Name,
		UID:        run.GetUID(),
	}
}
