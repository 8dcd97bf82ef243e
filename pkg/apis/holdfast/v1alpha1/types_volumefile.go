// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VolumeFileType is the type of a file in a volume backup.
type VolumeFileType string

// Types of files. Other is neither a file, folder nor symbolic link.
const (
	VolumeFileTypeFile   VolumeFileType = "File"
	VolumeFileTypeFolder VolumeFileType = "Folder"
	VolumeFileTypeLink   VolumeFileType = "Link"
	VolumeFileTypeOther  VolumeFileType = "Other"
)

// VolumeFile is a file, folder or link in a volume backup.
type VolumeFile struct {
	// Name in its folder; / for the volume's root.
	Name string `json:"name"`
	// File, Folder, Link or Other.
	Type VolumeFileType `json:"type"`
	// Size in bytes. For a folder, of all files below.
	SizeBytes int64 `json:"sizeBytes"`
	// Number of files below the folder.
	// +optional
	Files int64 `json:"files,omitempty"`
	// Mode in octal, with the bits for setuid, setgid and sticky, as 0644 or 2775.
	Mode string `json:"mode"`
	// Time of the last modification, with nanoseconds.
	ModificationTime string `json:"modificationTime"`
	// Number of the owner.
	UserID int64 `json:"userID"`
	// Number of the owning group.
	GroupID int64 `json:"groupID"`
}

// VolumeFileList is the answer of volumebackups/files: a file and, for a folder, a page of its
// entries.
type VolumeFileList struct {
	metav1.TypeMeta `json:",inline"`
	// Path from the volume's root.
	Path string `json:"path"`
	// The file at the path.
	File VolumeFile `json:"file"`
	// Entries of the folder: folders first, each by name.
	// +optional
	// +listType=atomic
	Items []VolumeFile `json:"items,omitempty"`
	// Parameter continue for the next page. Empty for the last.
	// +optional
	Continue string `json:"continue,omitempty"`
}
