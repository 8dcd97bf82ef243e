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
	// LedgerName is the name of the ledger, a ConfigMap of the system namespace: of the
	// runs that were let start and have not ended. By it the controller tells the API
	// server how it runs the queue, too.
	LedgerName = "holdfast-queue"
	// StartedKey is its key for the entries: a JSON list of Starts.
	StartedKey = "started"
	// LeaderKey is its key for the controller process that writes it. The others of its
	// writes came before, or fail.
	LeaderKey = "leader"
	// ConcurrentBackupsKey and ConcurrentRestoresKey are its keys for the numbers of slots.
	ConcurrentBackupsKey  = "concurrentBackups"
	ConcurrentRestoresKey = "concurrentRestores"
	// DefaultConcurrentBackups and DefaultConcurrentRestores are the numbers of slots
	// unless they are set.
	DefaultConcurrentBackups  = 1
	DefaultConcurrentRestores = 4
)

// Start is one entry of the ledger: a run that was let start. It stays until the
// run is known to have ended, or goes back into the queue.
type Start struct {
	// UID and Name are those of the BackupRun, or of the RestoreRun if Restore is set.
	UID     types.UID `json:"uid"`
	Name    string    `json:"name"`
	Restore bool      `json:"restore,omitempty"`
	// At is when it was let start.
	At metav1.Time `json:"at"`
}

var (
	// ErrNoLedger says that there is no ledger.
	ErrNoLedger = errors.New("there is no ledger of what was let start")
	// ErrLedger says that the ledger can't be read.
	ErrLedger = fmt.Errorf("the ledger of what was let start can't be read: remove the key %q of the ConfigMap %s to have it written anew, and the backups and restores that were let start and have not begun go back to their places", StartedKey, LedgerName)
)

// Ledger returns the runs that were let start. The error wraps ErrNoLedger or
// ErrLedger.
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

// WithLedger is a copy of the ledger with other entries.
func WithLedger(ledger *corev1.ConfigMap, starts []Start) (*corev1.ConfigMap, error) {
	if starts == nil {
		starts = []Start{} // an empty ledger is one all the same
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

// Started returns the uids of the runs in the ledger, for those who only show the
// queue: none while it can't be read.
func Started(ledger *corev1.ConfigMap) sets.Set[types.UID] {
	starts, _ := Ledger(ledger)
	uids := sets.New[types.UID]()
	for _, start := range starts {
		uids.Insert(start.UID)
	}
	return uids
}

// Leader is the process that writes the ledger; empty if there is none.
func Leader(ledger *corev1.ConfigMap) string {
	if ledger == nil {
		return ""
	}
	return ledger.Data[LeaderKey]
}

// DefaultLimits are the numbers of slots unless they are set.
var DefaultLimits = queue.Slots{queue.Backup: DefaultConcurrentBackups, queue.Restore: DefaultConcurrentRestores}

// limitKeys are where the ledger tells them.
var limitKeys = [...]string{queue.Backup: ConcurrentBackupsKey, queue.Restore: ConcurrentRestoresKey}

// Limits are the numbers of slots that the ledger tells; the default where there is none
// that can be read.
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

// SetLimits has the ledger tell the numbers of slots.
func SetLimits(ledger *corev1.ConfigMap, limits queue.Slots) {
	for class, key := range limitKeys {
		ledger.Data[key] = strconv.Itoa(limits[class])
	}
}

// HasLimits reports whether the ledger tells them.
func HasLimits(ledger *corev1.ConfigMap, limits queue.Slots) bool {
	for class, key := range limitKeys {
		if ledger.Data[key] != strconv.Itoa(limits[class]) {
			return false
		}
	}
	return true
}

// StartOf is the entry of a run.
func StartOf(run enginev1alpha1.QueuedRun, at metav1.Time) Start {
	return Start{UID: run.GetUID(), Name: run.GetName(), Restore: ClassOf(run) == queue.Restore, At: at}
}

// Class is that of the run.
func (s Start) Class() queue.Class {
	if s.Restore {
		return queue.Restore
	}
	return queue.Backup
}

// ClassOf is the class of a run.
func ClassOf(run enginev1alpha1.QueuedRun) queue.Class {
	if _, ok := run.(*enginev1alpha1.RestoreRun); ok {
		return queue.Restore
	}
	return queue.Backup
}

// Unclaimed reports whether a run has not begun, be it in the ledger or not.
func Unclaimed(run enginev1alpha1.QueuedRun) bool {
	if run.Deleting() {
		return false // it stands for a backup that has ended
	}
	switch run.Standing().Phase {
	case "", v1alpha1.BackupPhaseNew, v1alpha1.BackupPhaseQueued, v1alpha1.BackupPhaseReadyToStart:
		return true
	}
	return false
}

// Phase is the phase of a run, given what the ledger holds: ReadyToStart is never
// written, it is what an unclaimed run is that was let start.
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

// Reference is the Backup or Restore that people know a run by, for events.
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
