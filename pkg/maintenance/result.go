// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/repository"
)

// Result is the outcome of a repository's maintenance: a line of JSON in the Job's log and
// termination message.
type Result struct {
	// Repository is the VolumeRepository's name.
	Repository string    `json:"repository"`
	Kind       string    `json:"maintenance,omitempty"`
	Started    time.Time `json:"started"`
	Ended      time.Time `json:"ended"`
	// ReclaimedBytes were removed from the store, RewrittenBytes moved to new packs.
	ReclaimedBytes int64 `json:"reclaimedBytes"`
	RewrittenBytes int64 `json:"rewrittenBytes,omitempty"`
	// SizeBytes and Files are the repository's, after a full maintenance.
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	Files     int64 `json:"files,omitempty"`
	// LockedUntil is as in repository.Maintenance.
	LockedUntil *time.Time `json:"lockedUntil,omitempty"`
	// SweptBackups and SweptSnapshots count removed snapshots and their backups; in a dry run,
	// those to remove.
	SweptBackups   int `json:"sweptBackups,omitempty"`
	SweptSnapshots int `json:"sweptSnapshots,omitempty"`
	// WaitingBackups counts removals whose backups may exist.
	WaitingBackups int `json:"waitingBackups,omitempty"`
	// MissingBackups counts backups that are missing or don't list their snapshots, if too many:
	// the snapshots stay.
	MissingBackups int `json:"missingBackups,omitempty"`
	// ClockSkewSeconds is how far the store's clock is ahead.
	ClockSkewSeconds int64  `json:"clockSkewSeconds,omitempty"`
	Check            *Check `json:"check,omitempty"`
	// Cancelled says that it was told to stop, which is no failure.
	Cancelled bool   `json:"cancelled,omitempty"`
	Error     string `json:"error,omitempty"`
}

// Check has a check's findings.
type Check struct {
	All bool `json:"all,omitempty"`
	// Packs, ReadPacks and ReadBytes are as in repository.Check.
	Packs     int   `json:"packs"`
	ReadPacks int   `json:"readPacks,omitempty"`
	ReadBytes int64 `json:"readBytes,omitempty"`
	// MissingPacks counts packs that the store lacks in whole or in part, DamagedPacks packs with
	// wrong bytes; Damaged names some.
	MissingPacks int      `json:"missingPacks,omitempty"`
	DamagedPacks int      `json:"damagedPacks,omitempty"`
	Damaged      []string `json:"damaged,omitempty"`
	// MissingIndexes counts the last maintenance's indexes that the store lacks.
	MissingIndexes int `json:"missingIndexes,omitempty"`
	Contents       int `json:"contents,omitempty"`
	// AffectedSnapshots counts snapshots that need such contents, and Snapshots has their ids. If
	// they are too many, or partly unknown, AffectedUntil is the newest's start.
	AffectedSnapshots int        `json:"affectedSnapshots,omitempty"`
	Snapshots         []string   `json:"snapshots,omitempty"`
	AffectedUntil     *time.Time `json:"affectedUntil,omitempty"`

	until time.Time // start of the newest, in any case
}

// newCheck keeps as many names as a VolumeRepository has room for.
func newCheck(all bool, found repository.Check) *Check {
	c := &Check{
		All: all, Packs: found.Packs, ReadPacks: found.Read, ReadBytes: found.ReadBytes,
		MissingPacks: found.Missing, DamagedPacks: len(found.Damaged), Damaged: found.Damaged[:min(len(found.Damaged), enginev1alpha1.MaxDamagedPacks)],
		MissingIndexes: len(found.Indexes), Contents: found.Contents, AffectedSnapshots: len(found.Snapshots), Snapshots: found.Snapshots,
		until: found.AffectedUntil,
	}
	if found.Incomplete || len(found.Snapshots) > enginev1alpha1.MaxAffectedSnapshots {
		c.Snapshots, c.AffectedUntil = nil, &c.until
	}
	return c
}

// Lost reports whether the store has lost data.
func (c *Check) Lost() bool { return c != nil && c.MissingPacks+c.DamagedPacks+c.MissingIndexes > 0 }

func (c *Check) String() string {
	read := fmt.Sprintf("%d of %d packs were read", c.ReadPacks, c.Packs)
	if !c.Lost() {
		return "nothing is missing; " + read
	}
	var indexes string
	if c.MissingIndexes > 0 {
		indexes = fmt.Sprintf("the store has lost %d indexes, and what only they name is unknown, snapshots included", c.MissingIndexes)
	}
	if c.MissingPacks+c.DamagedPacks == 0 {
		return join(indexes, read)
	}
	snapshots := fmt.Sprintf("%d snapshots need them", c.AffectedSnapshots)
	if c.AffectedUntil != nil {
		snapshots = "snapshots may need them that began until " + c.AffectedUntil.UTC().Format(time.RFC3339)
	}
	packs := fmt.Sprintf("the store has lost data: %d packs are missing and %d damaged, by which %d contents can't be read", c.MissingPacks, c.DamagedPacks, c.Contents)
	return join(indexes, packs, snapshots, read)
}

// String returns a result's line.
func (r Result) String() string {
	line, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(line)
}

// Full reports whether the maintenance was full, and looked for missing backups.
func (r Result) Full() bool { return r.Kind == string(repository.MaintenanceFull) }

// Doubt says why the snapshots of missing backups stay; empty if none are.
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
	case r.Check.Lost():
		return join(r.Kind, r.Check.String())
	case r.ClockSkewSeconds != 0 && r.Check == nil:
		return fmt.Sprintf("%s; the clock of the store is ahead by %d s", r.Kind, r.ClockSkewSeconds)
	}
	if r.Check != nil {
		return join(r.Kind, r.Check.String())
	}
	return r.Kind
}

func join(texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(text string) bool { return text == "" }), "; ")
}

// messageLimit is Kubernetes's limit of a termination message.
const messageLimit = 4096

// Message returns the termination message: a line a repository, or the bare error of the only one,
// as Velero writes it.
func Message(results []Result) string {
	if len(results) == 1 && results[0].Error != "" && results[0].Check == nil {
		return truncated(results[0].Error, messageLimit)
	}
	results = withoutNames(results)
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
		if result.Error != "" { // an empty error would be a success
			result.Error = cmp.Or(fitting(result.Error, room/max(failed, 1)), "-")
		}
		fmt.Fprintln(&lines, result)
	}
	return truncated(lines.String(), messageLimit)
}

// withoutNames drops the names of lost data if they don't all fit; AffectedUntil replaces them.
func withoutNames(results []Result) []Result {
	room := messageLimit
	for _, result := range results {
		result.Error = ""
		room -= len(result.String()) + 1
	}
	if room >= len(results)*64 {
		return results
	}
	results = slices.Clone(results)
	for i := range results {
		if check := results[i].Check; check.Lost() {
			short := *check
			short.Damaged, short.Snapshots = nil, nil
			if short.AffectedSnapshots > 0 {
				short.AffectedUntil = &short.until
			}
			results[i].Check = &short
		}
	}
	return results
}

// fitting returns a text's beginning that fits into a JSON string of so many bytes; a byte may take
// six.
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

// Results reads a Message. Other lines, as a bare error, are skipped.
func Results(message string) (results []Result) {
	for line := range strings.Lines(message) {
		var result Result
		if json.Unmarshal([]byte(line), &result) == nil && result.Repository != "" {
			results = append(results, result)
		}
	}
	return results
}

// Failed returns the results' errors, or nil.
func Failed(results []Result) error {
	var errs []error
	for _, result := range results {
		if result.Error != "" {
			errs = append(errs, fmt.Errorf("maintaining %s: %s", result.Repository, result.Error))
		}
	}
	return errors.Join(errs...)
}

// Lost returns an error that names the repositories with lost data, or nil.
func Lost(results []Result) error {
	var errs []error
	for _, result := range results {
		if result.Check.Lost() {
			errs = append(errs, fmt.Errorf("%s: %s", result.Repository, result.Check))
		}
	}
	return errors.Join(errs...)
}
