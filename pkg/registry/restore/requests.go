// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// NewCancelREST returns restores/cancel.
func NewCancelREST(restores *REST, clock clock.PassiveClock) *recorded.Subresource {
	return recorded.NewRequest(restores, clock, &v1alpha1.RestoreCancellation{}, cancel)
}

func cancel(restore *v1alpha1.Restore, run *enginev1alpha1.RestoreRun, ask enginev1alpha1.Ask, _ runtime.Object) (*enginev1alpha1.RestoreRun, string, error) {
	switch {
	case run == nil:
		return nil, "", conflict(restore.Name, "it has ended already, as %s", restore.Status.Phase)
	case run.Status.Phase.Ended():
		return nil, "", conflict(restore.Name, "it has ended already, as %s", run.Status.Phase)
	case run.Spec.Cancellation != nil:
		asked := run.Spec.Cancellation
		return nil, fmt.Sprintf("nothing to do: %s asked for the restore to stop at %s", asked.Requester.Username, asked.Timestamp.UTC().Format("2006-01-02T15:04:05Z")), nil
	}
	changed := run.DeepCopy()
	changed.Spec.Cancellation = &ask
	return changed, "the restore is asked to stop; what it has written stays", nil
}

// StatusReasonRestoreState is the reason of a refusal because of the restore's state.
const StatusReasonRestoreState metav1.StatusReason = "RestoreState"

// conflict refuses a request because of the restore's state. Unlike other conflicts, a retry does not help.
func conflict(name, format string, args ...any) error {
	return recorded.Conflict(Resource.GroupResource, name, StatusReasonRestoreState, fmt.Sprintf("restore %q: ", name)+fmt.Sprintf(format, args...))
}
