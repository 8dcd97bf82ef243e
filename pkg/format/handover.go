// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"io"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Handover is the content of HandoverKey: a backup with stored objects, and with volumes to be moved
// out of their snapshots. Later releases read it.
type Handover struct {
	// Contents are of the stored objects.
	Contents Contents
	// Volumes without a final phase are to be moved.
	Volumes []*Volume
	// Skipped volumes have no backup; LeftOut counts the wanted ones.
	Skipped []VolumeInfo
	LeftOut int32

	Findings   FoundSoFar
	HookStatus *v1alpha1.HookStatus       `json:",omitempty"`
	Encryption *v1alpha1.BackupEncryption `json:",omitempty"`
	Progress   v1alpha1.BackupProgress
	// Log is compressed, perhaps without its end.
	Log []byte
}

// FoundSoFar are an unfinished backup's errors and warnings.
type FoundSoFar struct {
	Results                  Results
	Errors, Warnings         int32
	ToldErrors, ToldWarnings Told
	// SecretsLeftOut counts Secrets by namespace.
	SecretsLeftOut map[string]int `json:",omitempty"`
}

// WriteHandover writes a Handover.
func WriteHandover(w io.Writer, handover *Handover) error {
	return writeJSON(w, MaxSideFileBytes, handover)
}

// ReadHandover reads a Handover.
func ReadHandover(r io.Reader) (*Handover, error) { return readJSON[*Handover](r) }
