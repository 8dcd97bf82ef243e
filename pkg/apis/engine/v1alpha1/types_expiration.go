// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=expirationchanges,singular=expirationchange,scope=Namespaced
// +kubebuilder:printcolumn:name="Expiration",type=string,JSONPath=`.spec.expiration`
// +kubebuilder:printcolumn:name="Hold",type=boolean,JSONPath=`.spec.hold`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`

// ExpirationChange is the record of a request to change a stored backup's expiration or hold. Its
// name is the backup's name in the store. The controller writes the change into the store; the
// record counts until that is read. It is removed some time later.
type ExpirationChange struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The last request, and earlier ones that are not in the store yet.
	Spec ExpirationChangeSpec `json:"spec"`
	// Whether it is in the store.
	// +optional
	Status ExpirationChangeStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true

// ExpirationChangeList is a list of ExpirationChanges.
type ExpirationChangeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ExpirationChange `json:"items"`
}

// ExpirationChangeSpec is the request.
type ExpirationChangeSpec struct {
	// The Backup.
	BackupRef v1alpha1.BackupReference `json:"backupRef"`
	// Uid of the Backup. Another one of its name is not meant.
	UID types.UID `json:"uid"`
	// The backup's storage location.
	StorageLocation string `json:"storageLocation"`
	// The user and time of the last request.
	Ask Ask `json:"ask"`
	// The reason.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`
	// The new expiration. Absent if it does not change.
	// +optional
	Expiration *metav1.Time `json:"expiration,omitempty"`
	// Whether the backup is held. Absent if that does not change.
	// +optional
	Hold *bool `json:"hold,omitempty"`
}

// ExpirationChangeStatus is the result of the request.
type ExpirationChangeStatus struct {
	// The finished generation of the record.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Number of the change in the store; 0 if it could not be made.
	// +optional
	Number int64 `json:"number,omitempty"`
	// When it was finished.
	// +optional
	Timestamp *metav1.Time `json:"timestamp,omitempty"`
	// Why it was not made, or waits.
	// +optional
	Message string `json:"message,omitempty"`
}

// Done reports whether the change was made, or can't be.
func (c *ExpirationChange) Done() bool { return c.Status.ObservedGeneration == c.Generation }

// Counts reports whether the change counts for a backup, given the number of its changes known from
// the store.
func (c *ExpirationChange) Counts(backup types.UID, known int64) bool {
	return c.Spec.UID == backup && (!c.Done() || c.Status.Number > known)
}
