// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// BackupPlan has the contents of a backup if it ran now. It answers a dry run of its creation, and
// is not stored.
type BackupPlan struct {
	// Whether everything was read. If not, the message says why, and all numbers are lower bounds.
	Complete bool `json:"complete"`
	// One line: why the plan is incomplete, or the numbers of errors and warnings, with the first
	// ones.
	// +optional
	Message string `json:"message,omitempty"`
	// Number of errors.
	// +optional
	Errors int32 `json:"errors,omitempty"`
	// Number of warnings.
	// +optional
	Warnings int32 `json:"warnings,omitempty"`
	// Number of objects.
	TotalItems int64 `json:"totalItems"`
	// The objects, by resource and namespace.
	// +optional
	// +listType=atomic
	Objects []PlannedObjects `json:"objects,omitempty"`
	// Volumes of pods and claims, and whether their data would be read.
	// +optional
	// +listType=atomic
	Volumes []PlannedVolume `json:"volumes,omitempty"`
	// Objects that others need and the spec does not select.
	// +optional
	// +listType=atomic
	Along []PlannedRelated `json:"along,omitempty"`
	// Objects excluded by a label, being deleted, or never backed up.
	// +optional
	// +listType=atomic
	LeftOut []PlannedLeftOut `json:"leftOut,omitempty"`
	// The hooks in pods, by namespace.
	// +optional
	// +listType=atomic
	Hooks []PlannedHooks `json:"hooks,omitempty"`
	// Place in the queue if created now.
	// +optional
	Queue *PlannedPlace `json:"queue,omitempty"`
	// Number of entries cut from the lists above, which are too long.
	// +optional
	Omitted *PlanOmissions `json:"omitted,omitempty"`
}

// PlannedObjects counts a resource's objects in a namespace.
type PlannedObjects struct {
	// Resource with group, such as deployments.apps.
	Resource string `json:"resource"`
	// Empty for cluster-scoped objects.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Number of objects.
	Count int64 `json:"count"`
}

// VolumeMethod is the way to read a volume's data.
type VolumeMethod string

const (
	// VolumeMethodFiles: an agent reads the files on a running pod's node.
	VolumeMethodFiles VolumeMethod = "Files"
	// VolumeMethodSnapshot: an agent reads the files of a volume snapshot.
	VolumeMethodSnapshot VolumeMethod = "Snapshot"
	// VolumeMethodNone: the data is not read.
	VolumeMethodNone VolumeMethod = "None"
)

// PlannedVolume is a volume and how its data would be read.
type PlannedVolume struct {
	// Namespace of the claim or the pod.
	Namespace string `json:"namespace"`
	// Name of the claim. Empty without one.
	// +optional
	Claim string `json:"claim,omitempty"`
	// The pod that gives access to the data.
	// +optional
	Pod string `json:"pod,omitempty"`
	// The volume's name in the pod.
	// +optional
	Volume string `json:"volume,omitempty"`
	// Capacity in bytes. Absent if unknown.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// Files, Snapshot or None.
	Method VolumeMethod `json:"method"`
	// The reason.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// PlannedRelated is an object that other objects need.
type PlannedRelated struct {
	// Resource with group, such as clusterroles.rbac.authorization.k8s.io.
	Resource string `json:"resource"`
	// Empty for a cluster-scoped object.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Its name. Empty if the requester may not know it.
	// +optional
	Name string `json:"name,omitempty"`
	// Why it is included.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// PlannedLeftOut counts a resource's objects left out in a namespace for a reason.
type PlannedLeftOut struct {
	// Resource with group.
	Resource string `json:"resource"`
	// Empty for cluster-scoped objects.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Number of objects.
	Count int64 `json:"count"`
	// The reason.
	Reason string `json:"reason"`
}

// PlannedHooks are hooks in a namespace's pods.
type PlannedHooks struct {
	// Namespace of the pods.
	Namespace string `json:"namespace"`
	// Number of pods with hooks.
	Pods int32 `json:"pods"`
	// Hooks before the data is read.
	// +optional
	Pre int32 `json:"pre,omitempty"`
	// Hooks after the data is read.
	// +optional
	Post int32 `json:"post,omitempty"`
	// Whether the requester may run commands in these pods.
	Allowed bool `json:"allowed"`
	// Why they may not.
	// +optional
	Message string `json:"message,omitempty"`
}

// PlannedPlace is a backup's place in the queue.
type PlannedPlace struct {
	// Place, from 1.
	Position int32 `json:"position"`
	// Why it would wait; NextToStart if it would not.
	// +optional
	Reason QueueReason `json:"reason,omitempty"`
	// The same in a sentence.
	// +optional
	Message string `json:"message,omitempty"`
}

// PlanOmissions counts entries that a plan's lists lack.
type PlanOmissions struct {
	// Entries of objects.
	// +optional
	Objects int64 `json:"objects,omitempty"`
	// Entries of volumes.
	// +optional
	Volumes int64 `json:"volumes,omitempty"`
	// Entries of along.
	// +optional
	Along int64 `json:"along,omitempty"`
	// Entries of leftOut.
	// +optional
	LeftOut int64 `json:"leftOut,omitempty"`
}

// RestorePlan has the effects of a restore if it ran now. It answers a dry run of its creation, and
// is not stored.
type RestorePlan struct {
	// Whether everything was decided. If not, the message says why, and all numbers are
	// lower bounds.
	Complete bool `json:"complete"`
	// One line: why the plan is incomplete, why the restore would be refused, or the numbers of
	// errors and warnings with the first ones.
	// +optional
	Message string `json:"message,omitempty"`
	// Why the restore would be refused before any write. Empty if it would not.
	// +optional
	// +listType=atomic
	Refused []string `json:"refused,omitempty"`
	// Number of errors.
	// +optional
	Errors int32 `json:"errors,omitempty"`
	// Number of warnings.
	// +optional
	Warnings int32 `json:"warnings,omitempty"`
	// Number of objects.
	TotalItems int64 `json:"totalItems"`
	// The objects, by resource, namespace and action.
	// +optional
	// +listType=atomic
	Objects []PlannedActions `json:"objects,omitempty"`
	// The volumes with data in the backup, and its fate.
	// +optional
	// +listType=atomic
	Volumes []PlannedRestoreVolume `json:"volumes,omitempty"`
	// The errors and warnings.
	// +optional
	// +listType=atomic
	Problems []PlannedProblem `json:"problems,omitempty"`
	// Number of entries cut from the lists above, which are too long.
	// +optional
	Omitted *RestorePlanOmissions `json:"omitted,omitempty"`
}

// PlannedActions counts a resource's objects in a namespace with the same action.
type PlannedActions struct {
	// Resource with group, such as deployments.apps.
	Resource string `json:"resource"`
	// Target namespace. Empty for cluster-scoped objects.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// create, update, recreate, skip, conflict, refused or error, as in restores/NAME/plan.
	Action string `json:"action"`
	// Number of objects.
	Count int64 `json:"count"`
}

// RestoredData is the fate of a volume's data.
type RestoredData string

const (
	// RestoredDataWritten: the data is written into an empty volume.
	RestoredDataWritten RestoredData = "Written"
	// RestoredDataOverwritten: files of the same name are replaced; others stay.
	RestoredDataOverwritten RestoredData = "Overwritten"
	// RestoredDataReplaced: the volume becomes as in the backup.
	RestoredDataReplaced RestoredData = "Replaced"
	// RestoredDataKept: the present data stays.
	RestoredDataKept RestoredData = "Kept"
	// RestoredDataNone: the data is not restored.
	RestoredDataNone RestoredData = "None"
)

// PlannedRestoreVolume is a volume of the backup, and the fate of its data.
type PlannedRestoreVolume struct {
	// Namespace to restore into.
	Namespace string `json:"namespace"`
	// Name of the claim. Empty without one.
	// +optional
	Claim string `json:"claim,omitempty"`
	// Pod of a volume without a claim.
	// +optional
	Pod string `json:"pod,omitempty"`
	// Name of the volume in that pod.
	// +optional
	Volume string `json:"volume,omitempty"`
	// Bytes in the backup.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// Written, Overwritten, Replaced, Kept or None.
	Data RestoredData `json:"data"`
	// The reason.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// ProblemSeverity says whether something requested would be missing.
type ProblemSeverity string

const (
	// ProblemError: something requested would be missing.
	ProblemError ProblemSeverity = "Error"
	// ProblemWarning: something would exist and differ.
	ProblemWarning ProblemSeverity = "Warning"
)

// PlannedProblem is an error or a warning.
type PlannedProblem struct {
	// Error or Warning.
	Severity ProblemSeverity `json:"severity"`
	// Resource with group. Empty for the whole restore.
	// +optional
	Resource string `json:"resource,omitempty"`
	// Its namespace.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Its name.
	// +optional
	Name string `json:"name,omitempty"`
	// The text, as in the restore's results.
	Message string `json:"message"`
}

// RestorePlanOmissions counts entries that a restore plan's lists lack.
type RestorePlanOmissions struct {
	// Entries of objects.
	// +optional
	Objects int64 `json:"objects,omitempty"`
	// Entries of volumes.
	// +optional
	Volumes int64 `json:"volumes,omitempty"`
	// Entries of problems.
	// +optional
	Problems int64 `json:"problems,omitempty"`
}
