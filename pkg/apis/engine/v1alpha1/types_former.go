// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Records of the previous version, which this version carries out but does not create. The next
// version removes this file, and all its uses.

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=expirationchanges,singular=expirationchange,scope=Namespaced
// +kubebuilder:printcolumn:name="Expiration",type=string,JSONPath=`.spec.expiration`
// +kubebuilder:printcolumn:name="Hold",type=boolean,JSONPath=`.spec.hold`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`

// ExpirationChange is the previous version's BackupChange of an expiration.
type ExpirationChange struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The request.
	Spec BackupChangeSpec `json:"spec"`
	// The state of the request.
	// +optional
	Status BackupChangeStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true

// ExpirationChangeList is a list of ExpirationChanges.
type ExpirationChangeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ExpirationChange `json:"items"`
}

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=volumedeletions,singular=volumedeletion,scope=Namespaced
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.namespace`
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.spec.volume`
// +kubebuilder:printcolumn:name="Processed",type=integer,JSONPath=`.status.processed`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`

// VolumeDeletion is the previous version's BackupChange that deletes volumes.
type VolumeDeletion struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The request.
	Spec BackupChangeSpec `json:"spec"`
	// The state of the request.
	// +optional
	Status BackupChangeStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true

// VolumeDeletionList is a list of VolumeDeletions.
type VolumeDeletionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VolumeDeletion `json:"items"`
}

// InOrder returns a backup's BackupChange and same-named ExpirationChange in the order in which
// they apply. Either is nil if missing. A BackupChange that is not earlier replaces the fields that
// it sets: the ExpirationChange is returned without them. It replaces all if it means another
// backup of the name.
func InOrder(change, former *BackupChange) []*BackupChange {
	switch {
	case former == nil && change == nil:
		return nil
	case former == nil:
		return []*BackupChange{change}
	case change == nil:
		return []*BackupChange{former}
	case former.Spec.Ask.Timestamp.After(change.Spec.Ask.Timestamp.Time):
		return []*BackupChange{change, former}
	}
	if change.Changes() {
		former = former.DeepCopy()
		other := change.Spec.UID != former.Spec.UID
		if other || change.Spec.Expiration != nil {
			former.Spec.Expiration = nil
		}
		if other || change.Spec.Hold != nil {
			former.Spec.Hold = nil
		}
	}
	return []*BackupChange{former, change}
}

// AsBackupChange returns a record of the three kinds as a BackupChange that shares its memory; nil
// for others.
func AsBackupChange(record any) *BackupChange {
	switch record := record.(type) {
	case *BackupChange:
		return record
	case *ExpirationChange:
		return (*BackupChange)(record)
	case *VolumeDeletion:
		return (*BackupChange)(record)
	}
	return nil
}
