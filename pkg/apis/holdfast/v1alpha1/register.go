// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group for users.
const GroupName = "holdfast.io"

// SchemeGroupVersion is this package's group and version.
var SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

var (
	// SchemeBuilder collects this package's registering functions.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	// AddToScheme adds this package's types to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

// Resource qualifies a resource name with this group.
func Resource(resource string) schema.GroupResource {
	return SchemeGroupVersion.WithResource(resource).GroupResource()
}

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion,
		&Backup{}, &BackupList{}, &BackupCancellation{}, &BackupDeletion{}, &BackupExpiration{}, &VolumeDeletion{},
		&BackupQueueEntry{}, &BackupQueueEntryList{},
		&BackupVolume{}, &BackupVolumeList{},
		&VolumeBackup{}, &VolumeBackupList{},
		&BackupObject{}, &BackupObjectList{},
		&Protection{}, &ProtectionList{},
		&NodeAgent{}, &NodeAgentList{},
		&MaintenanceRequest{},
		&SyncRequest{},
		&Schedule{}, &ScheduleList{}, &ScheduleTrigger{},
		&Restore{}, &RestoreList{}, &RestoreCancellation{},
	)
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}
