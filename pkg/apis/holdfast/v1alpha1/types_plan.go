// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// BackupPlan has the contents of a backup if it ran now. It is the answer to a dry run of its
// creation, and is not stored.
type BackupPlan struct {
	// Whether everything was read. If not, the message says why, and all numbers are lower bounds.
	Complete bool `json:"complete"`
	// In one line: why the plan is not complete, or the numbers of errors and warnings, with the
	// first ones.
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
	// The volumes of pods and claims, and whether their data would be read.
	// +optional
	// +listType=atomic
	Volumes []PlannedVolume `json:"volumes,omitempty"`
	// Objects that the spec does not select and that others need.
	// +optional
	// +listType=atomic
	Along []PlannedRelated `json:"along,omitempty"`
	// Objects that are excluded by a label, are being deleted, or are never backed up.
	// +optional
	// +listType=atomic
	LeftOut []PlannedLeftOut `json:"leftOut,omitempty"`
	// The hooks in pods, by namespace.
	// +optional
	// +listType=atomic
	Hooks []PlannedHooks `json:"hooks,omitempty"`
	// Place in the queue if the backup were created now.
	// +optional
	Queue *PlannedPlace `json:"queue,omitempty"`
	// Number of entries that the lists above lack, since they are too long.
	// +optional
	Omitted *PlanOmissions `json:"omitted,omitempty"`
}

// PlannedObjects counts the objects of a resource in a namespace.
type PlannedObjects struct {
	// The resource with its group, such as deployments.apps.
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
	// VolumeMethodFiles: an agent reads the files on the node of a running pod.
	VolumeMethodFiles VolumeMethod = "Files"
	// VolumeMethodSnapshot: an agent reads the files of a snapshot of the volume.
	VolumeMethodSnapshot VolumeMethod = "Snapshot"
	// VolumeMethodNone: the data is not read.
	VolumeMethodNone VolumeMethod = "None"
)

// PlannedVolume is a volume, and how its data would be read.
type PlannedVolume struct {
	// Namespace of the claim or the pod.
	Namespace string `json:"namespace"`
	// Name of the claim. Empty for a volume without one.
	// +optional
	Claim string `json:"claim,omitempty"`
	// Name of the pod that gives access to the data.
	// +optional
	Pod string `json:"pod,omitempty"`
	// Name of the volume in the pod.
	// +optional
	Volume string `json:"volume,omitempty"`
	// Capacity in bytes. Absent if unknown.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// Files or None.
	Method VolumeMethod `json:"method"`
	// The reason.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// PlannedRelated is an object that other objects need.
type PlannedRelated struct {
	// The resource with its group, such as clusterroles.rbac.authorization.k8s.io.
	Resource string `json:"resource"`
	// Empty for a cluster-scoped object.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Name of the object. Empty if the requester may not know it.
	// +optional
	Name string `json:"name,omitempty"`
	// Why it is included.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// PlannedLeftOut counts objects of a resource in a namespace that are left out for a reason.
type PlannedLeftOut struct {
	// The resource with its group.
	Resource string `json:"resource"`
	// Empty for cluster-scoped objects.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Number of objects.
	Count int64 `json:"count"`
	// Why they are left out.
	Reason string `json:"reason"`
}

// PlannedHooks are the hooks in the pods of a namespace.
type PlannedHooks struct {
	// Namespace of the pods.
	Namespace string `json:"namespace"`
	// Number of pods with hooks.
	Pods int32 `json:"pods"`
	// Number of hooks before the data is read.
	// +optional
	Pre int32 `json:"pre,omitempty"`
	// Number of hooks after the data is read.
	// +optional
	Post int32 `json:"post,omitempty"`
	// Whether the requester may run commands in these pods.
	Allowed bool `json:"allowed"`
	// Why they may not.
	// +optional
	Message string `json:"message,omitempty"`
}

// PlannedPlace is the place of a backup in the queue.
type PlannedPlace struct {
	// Place among the waiting ones, from 1.
	Position int32 `json:"position"`
	// Why the backup would wait; NextToStart if it would start at once.
	// +optional
	Reason QueueReason `json:"reason,omitempty"`
	// The same in a sentence.
	// +optional
	Message string `json:"message,omitempty"`
}

// PlanOmissions counts the entries that a plan's lists lack.
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

// RestorePlan is what a restore would do if it ran now. A dry run of its creation
// answers with it, and it is stored nowhere.
type RestorePlan struct {
	// Whether everything was decided. If not, the message says why, and all numbers are
	// lower bounds.
	Complete bool `json:"complete"`
	// In one line: why the plan is not complete, why the restore would be refused, or the
	// number of its errors and warnings with the first of them.
	// +optional
	Message string `json:"message,omitempty"`
	// Why the restore would be refused before anything is written. Empty if it would not.
	// +optional
	// +listType=atomic
	Refused []string `json:"refused,omitempty"`
	// Number of errors that the restore would have.
	// +optional
	Errors int32 `json:"errors,omitempty"`
	// Number of warnings that the restore would have.
	// +optional
	Warnings int32 `json:"warnings,omitempty"`
	// Number of objects.
	TotalItems int64 `json:"totalItems"`
	// The objects, by resource, namespace and what would be done.
	// +optional
	// +listType=atomic
	Objects []PlannedActions `json:"objects,omitempty"`
	// The volumes whose data the backup has, and what would become of it.
	// +optional
	// +listType=atomic
	Volumes []PlannedRestoreVolume `json:"volumes,omitempty"`
	// The errors and warnings that the restore would have.
	// +optional
	// +listType=atomic
	Problems []PlannedProblem `json:"problems,omitempty"`
	// How many entries the lists above lack, since they are too long.
	// +optional
	Omitted *RestorePlanOmissions `json:"omitted,omitempty"`
}

// PlannedActions counts the objects of a resource in a namespace to which the same would
// be done.
type PlannedActions struct {
	// The resource with its group, such as deployments.apps.
	Resource string `json:"resource"`
	// Namespace to restore into. Empty for cluster-scoped objects.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// create, update, recreate, skip, conflict, refused or error, as in restores/NAME/plan.
	Action string `json:"action"`
	// Number of objects.
	Count int64 `json:"count"`
}

// RestoredData is what becomes of the data of a volume.
type RestoredData string

const (
	// RestoredDataWritten: the data is written into a volume without data.
	RestoredDataWritten RestoredData = "Written"
	// RestoredDataOverwritten: files of the same name are replaced, and others stay.
	RestoredDataOverwritten RestoredData = "Overwritten"
	// RestoredDataReplaced: the volume becomes as in the backup.
	RestoredDataReplaced RestoredData = "Replaced"
	// RestoredDataKept: the present data stays.
	RestoredDataKept RestoredData = "Kept"
	// RestoredDataNone: the data is not restored.
	RestoredDataNone RestoredData = "None"
)

// PlannedRestoreVolume is a volume of the backup, and what becomes of its data.
type PlannedRestoreVolume struct {
	// Namespace to restore into.
	Namespace string `json:"namespace"`
	// Name of the claim. Empty for a volume without one.
	// +optional
	Claim string `json:"claim,omitempty"`
	// Name of the pod of a volume without a claim.
	// +optional
	Pod string `json:"pod,omitempty"`
	// Name of the volume in that pod.
	// +optional
	Volume string `json:"volume,omitempty"`
	// Bytes of the data in the backup.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// Written, Overwritten, Replaced, Kept or None.
	Data RestoredData `json:"data"`
	// Why.
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
	// The resource of the object with its group. Empty if the whole restore is meant.
	// +optional
	Resource string `json:"resource,omitempty"`
	// Namespace of the object.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Name of the object.
	// +optional
	Name string `json:"name,omitempty"`
	// The text that the results of the restore would have.
	Message string `json:"message"`
}

// RestorePlanOmissions counts the entries that the lists of a restore's plan lack.
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
