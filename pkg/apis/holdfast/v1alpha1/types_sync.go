// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +genclient
// +genclient:noStatus
// +genclient:onlyVerbs=create
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// SyncRequest asks for all of a store to be listed now. It is no object that is kept: the
// answer to its creation says what to wait for.
type SyncRequest struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name is that of the StorageLocation, and the namespace
	// that of the system.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The answer.
	// +optional
	Status SyncRequestStatus `json:"status,omitempty"`
}

// SyncRequestStatus says what to wait for.
type SyncRequestStatus struct {
	// Generation of the StorageLocation: it is done when the condition Synced is True, and its
	// observedGeneration is this one, or a later one.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// The same for people.
	// +optional
	Message string `json:"message,omitempty"`
}
