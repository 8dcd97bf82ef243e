// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

// Result is what came of the maintenance of one repository. In a Job's pod it is a line of
// JSON, in the log and in the message that its container ends with.
type Result struct {
	// Repository is the name of the VolumeRepository.
	Repository string `json:"repository"`
	// Kind is quick or full.
	Kind    string    `json:"maintenance,omitempty"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	// ReclaimedBytes were removed from the store, and RewrittenBytes put together anew.
	ReclaimedBytes int64 `json:"reclaimedBytes"`
	RewrittenBytes int64 `json:"rewrittenBytes,omitempty"`
	// SizeBytes and Files are how large the repository is, if it was a full one.
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	Files     int64 `json:"files,omitempty"`
	// SweptBackups are how many deleted backups had snapshots there that are removed, and
	// SweptSnapshots how many these were; in a dry run, that would be.
	SweptBackups   int `json:"sweptBackups,omitempty"`
	SweptSnapshots int `json:"sweptSnapshots,omitempty"`
	// WaitingBackups are to be deleted, and are still there, or may be.
	WaitingBackups int `json:"waitingBackups,omitempty"`
	// MissingBackups are not in the store, and nobody has asked for that, or have snapshots
	// that they don't list: too many to be believed, so that these stay.
	MissingBackups int `json:"missingBackups,omitempty"`
	// ClockSkewSeconds is how far the store's clock is ahead.
	ClockSkewSeconds int64 `json:"clockSkewSeconds,omitempty"`
	// Cancelled is set if it was told to stop, which is no failure.
	Cancelled bool `json:"cancelled,omitempty"`
	// Error says why it failed.
	Error string `json:"error,omitempty"`
}

// String is the line of a result.
func (r Result) String() string {
	line, err := json.Marshal(r)
	if err != nil { // a time out of range, which no clock gives
		return err.Error()
	}
	return string(line)
}

// Full reports whether it was a full maintenance, which looks for missing backups.
func (r Result) Full() bool { return r.Kind == string(repository.MaintenanceFull) }

// Doubt says why snapshots stay of backups that are missing; empty if there are none.
func (r Result) Doubt() string {
	if r.MissingBackups == 0 {
		return ""
	}
	return fmt.Sprintf("%d backups with snapshots are missing from the store, or do not list them, too many to be believed: bring them back, or have these snapshots removed by holdfast repo-maintenance --accept-missing-backups", r.MissingBackups)
}

// Summary says what was done, or why it failed.
func (r Result) Summary() string {
	switch {
	case r.Error != "":
		return r.Error
	case r.Cancelled:
		return "it was told to stop"
	case r.MissingBackups > 0:
		return r.Kind + "; " + r.Doubt()
	case r.ClockSkewSeconds != 0:
		return fmt.Sprintf("%s; the clock of the store is ahead by %d s", r.Kind, r.ClockSkewSeconds)
	}
	return r.Kind
}

// messageLimit is how much of the message of a container Kubernetes keeps.
const messageLimit = 4096

// Message is what a process ends with that has maintained some repositories: a line for
// each; or the mere error of the only one, as Velero's has it.
func Message(results []Result) string {
	if len(results) == 1 && results[0].Error != "" {
		return truncated(results[0].Error, messageLimit)
	}
	// What the lines take without their errors is not for these; the rest they share.
	room, failed := messageLimit, 0
	for _, result := range results {
		if result.Error != "" {
			failed++
			result.Error = "-"
		}
		room -= len(result.String()) + 1
	}
	var lines strings.Builder
	for _, result := range results {
		if result.Error != "" { // of which something stays, or it would be read as a success
			result.Error = cmp.Or(fitting(result.Error, room/max(failed, 1)), "-")
		}
		fmt.Fprintln(&lines, result)
	}
	return truncated(lines.String(), messageLimit)
}

// fitting is as much of a text as takes no more than so many bytes as a JSON string, in which
// one may take six.
func fitting(text string, bytes int) string {
	for limit := bytes; limit > 0; {
		text = truncated(text, limit)
		encoded, err := json.Marshal(text)
		if err == nil && len(encoded)-2 <= bytes {
			return text
		}
		limit = len(text) * bytes / max(len(encoded), bytes+1)
	}
	return ""
}

func truncated(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}

// Results reads a message that Message made. What is no line of a result, as the mere error
// of a process, is left out.
func Results(message string) (results []Result) {
	for line := range strings.Lines(message) {
		var result Result
		if json.Unmarshal([]byte(line), &result) == nil && result.Repository != "" {
			results = append(results, result)
		}
	}
	return results
}

// Failed is the error of the results that failed, or nil.
func Failed(results []Result) error {
	var errs []error
	for _, result := range results {
		if result.Error != "" {
			errs = append(errs, fmt.Errorf("maintaining %s: %s", result.Repository, result.Error))
		}
	}
	return errors.Join(errs...)
}
