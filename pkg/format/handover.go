// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"io"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Handover is the content of HandoverKey: a backup whose objects are stored, and some of whose volumes
// are still to be moved out of their snapshots. Later releases read it.
type Handover struct {
	// Contents are of the objects that are stored so far.
	Contents Contents
	// Volumes are all volumes. Those without a final phase are to be moved.
	Volumes []*Volume
	// Skipped are the volumes that are not backed up, and LeftOut counts those that were wanted.
	Skipped []VolumeInfo
	LeftOut int32

	Findings   FoundSoFar
	HookStatus *v1alpha1.HookStatus       `json:",omitempty"`
	Encryption *v1alpha1.BackupEncryption `json:",omitempty"`
	Progress   v1alpha1.BackupProgress
	// Log is the compressed log so far. Its end may be missing.
	Log []byte
}

// FoundSoFar are the errors and warnings of an unfinished backup.
type FoundSoFar struct {
	Results                  Results
	Errors, Warnings         int32
	ToldErrors, ToldWarnings Told
	// SecretsLeftOut counts Secrets by namespace.
	SecretsLeftOut map[string]int `json:",omitempty"`
}

// WriteHandover writes the content of HandoverKey.
func WriteHandover(w io.Writer, handover *Handover) error {
	return writeJSON(w, MaxSideFileBytes, handover)
}

// ReadHandover reads the content of HandoverKey.
func ReadHandover(r io.Reader) (*Handover, error) { return readJSON[*Handover](r) }
