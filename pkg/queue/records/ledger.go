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
	// ConcurrentBackupsKey is its key for the number of slots.
	ConcurrentBackupsKey = "concurrentBackups"
	// DefaultConcurrentBackups is the number of slots unless it is set.
	DefaultConcurrentBackups = 1
)

// Start is one entry of the ledger: a run that was let start. It stays until the
// run is known to have ended, or goes back into the queue.
type Start struct {
	// UID and Name are those of the BackupRun.
	UID  types.UID `json:"uid"`
	Name string    `json:"name"`
	// At is when it was let start.
	At metav1.Time `json:"at"`
}

var (
	// ErrNoLedger says that there is no ledger.
	ErrNoLedger = errors.New("there is no ledger of started backups")
	// ErrLedger says that the ledger can't be read.
	ErrLedger = fmt.Errorf("the ledger of started backups can't be read: remove the key %q of the ConfigMap %s to have it written anew, and the backups that were let start and have not begun go back to their places", StartedKey, LedgerName)
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

// Limit is the number of slots that the ledger tells; the default while there is none
// that can be read.
func Limit(ledger *corev1.ConfigMap) int {
	if ledger != nil {
		if n, err := strconv.Atoi(ledger.Data[ConcurrentBackupsKey]); err == nil && n >= 1 {
			return n
		}
	}
	return DefaultConcurrentBackups
}

// Unclaimed reports whether a run has not begun, be it in the ledger or not.
func Unclaimed(run *enginev1alpha1.BackupRun) bool {
	if run.Deleting() {
		return false // it stands for a backup that has ended
	}
	switch run.Status.Phase {
	case "", v1alpha1.BackupPhaseNew, v1alpha1.BackupPhaseQueued, v1alpha1.BackupPhaseReadyToStart:
		return true
	}
	return false
}

// Phase is the phase of a run, given what the ledger holds: ReadyToStart is never
// written, it is what an unclaimed run is that was let start.
func Phase(run *enginev1alpha1.BackupRun, started sets.Set[types.UID]) v1alpha1.BackupPhase {
	switch {
	case run.Deleting():
		return v1alpha1.BackupPhaseDeleting
	case Unclaimed(run) && started.Has(run.UID):
		return v1alpha1.BackupPhaseReadyToStart
	case run.Status.Phase == v1alpha1.BackupPhaseReadyToStart:
		return v1alpha1.BackupPhaseQueued
	}
	return run.Status.Phase
}

// CancelledReason says by whom a run was cancelled.
func CancelledReason(run *enginev1alpha1.BackupRun) string {
	if asked := run.Spec.Cancellation; asked != nil && asked.Requester.Username != "" {
		return "cancelled by " + asked.Requester.Username
	}
	return "cancelled"
}

// BackupReference is the Backup that people know a run by, for events.
func BackupReference(run *enginev1alpha1.BackupRun) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.SchemeGroupVersion.String(),
		Kind:       "Backup",
		Namespace:  run.Spec.BackupRef.Namespace,
		Name:       run.Spec.BackupRef.Name,
		UID:        run.UID,
	}
}
