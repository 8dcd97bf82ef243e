// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BackupHooks are commands to run in pods while they are backed up.
type BackupHooks struct {
	// Hooks of pods. A pod has the hooks of all matching entries.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Resources []BackupResourceHookSpec `json:"resources,omitempty"`
}

// BackupResourceHookSpec says which pods have which hooks.
type BackupResourceHookSpec struct {
	// Name for the log.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Namespaces of the pods, by name or pattern. Empty means all of the backup.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	IncludedNamespaces []string `json:"includedNamespaces,omitempty"`
	// Namespaces whose pods are left out.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	ExcludedNamespaces []string `json:"excludedNamespaces,omitempty"`
	// Only pods can have hooks; empty means pods.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	IncludedResources []string `json:"includedResources,omitempty"`
	// Resources without the hooks.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	ExcludedResources []string `json:"excludedResources,omitempty"`
	// Labels of the pods. Unset means all.
	// +optional
	// +kubebuilder:validation:XValidation:rule="(!has(self.matchLabels) || size(self.matchLabels) <= 32) && (!has(self.matchExpressions) || size(self.matchExpressions) <= 32)",message="a selector has at most 32 labels and 32 expressions"
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// Hooks to run before the pod's volume data is read, in this order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Pre []BackupResourceHook `json:"pre,omitempty"`
	// Hooks to run after the pod's volume data is read, in this order. They also run if an earlier
	// hook failed, or the backup fails or is cancelled.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Post []BackupResourceHook `json:"post,omitempty"`
}

// BackupResourceHook is one hook.
type BackupResourceHook struct {
	// A command to run in a container.
	Exec *ExecHook `json:"exec"`
}

// ExecHook is a command in a pod's container.
type ExecHook struct {
	// Container of the command. Default: the pod's first.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Container string `json:"container,omitempty"`
	// The command and its arguments.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=32768
	Command []string `json:"command"`
	// On failure, Fail (default) does not read the pod's volume data, runs no further pre hooks of
	// it, and counts an error. Continue goes on, with a warning.
	// +optional
	// +kubebuilder:validation:Enum=Continue;Fail
	OnError HookErrorMode `json:"onError,omitempty"`
	// Time limit of the command. Default 30s, at most 4h.
	// +optional
	Timeout Duration `json:"timeout,omitempty"`
}

// HookErrorMode is the reaction to a failed hook.
type HookErrorMode string

const (
	// HookErrorModeContinue: the backup goes on.
	HookErrorModeContinue HookErrorMode = "Continue"
	// HookErrorModeFail: the pod's volume data is not backed up.
	HookErrorModeFail HookErrorMode = "Fail"
)

// HookStatus counts the hooks of a backup or restore.
type HookStatus struct {
	// Number of hooks.
	// +optional
	HooksAttempted int32 `json:"hooksAttempted,omitempty"`
	// Number of failed hooks.
	// +optional
	HooksFailed int32 `json:"hooksFailed,omitempty"`
}
