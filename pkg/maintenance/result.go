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

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
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
	// Check is what a comparison of the packs with the index has found; nil if there was none.
	Check *Check `json:"check,omitempty"`
	// Cancelled is set if it was told to stop, which is no failure.
	Cancelled bool `json:"cancelled,omitempty"`
	// Error says why it failed.
	Error string `json:"error,omitempty"`
}

// Check is what a check of a repository has found.
type Check struct {
	// All is true if every pack was read.
	All bool `json:"all,omitempty"`
	// Packs are those that the index names, and ReadPacks and ReadBytes what was read of them.
	Packs     int   `json:"packs"`
	ReadPacks int   `json:"readPacks,omitempty"`
	ReadBytes int64 `json:"readBytes,omitempty"`
	// MissingPacks are those that the store lacks, or has only a part of, and DamagedPacks
	// those that hold something else than what was written. Damaged has names of the latter.
	MissingPacks int      `json:"missingPacks,omitempty"`
	DamagedPacks int      `json:"damagedPacks,omitempty"`
	Damaged      []string `json:"damaged,omitempty"`
	// MissingIndexes are those that the store lacks, and had at the last maintenance.
	MissingIndexes int `json:"missingIndexes,omitempty"`
	// Contents are those that can't be read.
	Contents int `json:"contents,omitempty"`
	// AffectedSnapshots need such contents, and Snapshots has the ids of these. If they are
	// too many, or not all could be looked through, AffectedUntil is when the newest began.
	AffectedSnapshots int        `json:"affectedSnapshots,omitempty"`
	Snapshots         []string   `json:"snapshots,omitempty"`
	AffectedUntil     *time.Time `json:"affectedUntil,omitempty"`

	until time.Time // when the newest began, in any case
}

// newCheck has as many names of what was found as a VolumeRepository has.
func newCheck(all bool, found repository.Check) *Check {
	c := &Check{
		All: all, Packs: found.Packs, ReadPacks: found.Read, ReadBytes: found.ReadBytes,
		MissingPacks: found.Missing, DamagedPacks: len(found.Damaged), Damaged: found.Damaged[:min(len(found.Damaged), engine.MaxDamagedPacks)],
		MissingIndexes: len(found.Indexes), Contents: found.Contents, AffectedSnapshots: len(found.Snapshots), Snapshots: found.Snapshots,
		until: found.AffectedUntil,
	}
	if found.Incomplete || len(found.Snapshots) > engine.MaxAffectedSnapshots {
		c.Snapshots, c.AffectedUntil = nil, &c.until
	}
	return c
}

// Lost reports whether anything can't be read.
func (c *Check) Lost() bool { return c != nil && c.MissingPacks+c.DamagedPacks+c.MissingIndexes > 0 }

// String says what was found.
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

// join are the texts that are not empty.
func join(texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(text string) bool { return text == "" }), "; ")
}

// messageLimit is how much of the message of a container Kubernetes keeps.
const messageLimit = 4096

// Message is what a process ends with that has maintained some repositories: a line for
// each; or the mere error of the only one, as Velero's has it.
func Message(results []Result) string {
	if len(results) == 1 && results[0].Error != "" && results[0].Check == nil {
		return truncated(results[0].Error, messageLimit)
	}
	results = withoutNames(results)
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

// withoutNames leaves out the names of what is lost, if there is not enough room for all of
// them. Then each snapshot counts that began until the newest that needs it.
func withoutNames(results []Result) []Result {
	room := messageLimit
	for _, result := range results {
		result.Error = ""
		room -= len(result.String()) + 1
	}
	if room >= len(results)*64 { // for the errors
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

// Lost is an error about the repositories whose store has lost data of them, or nil.
func Lost(results []Result) error {
	var errs []error
	for _, result := range results {
		if result.Check.Lost() {
			errs = append(errs, fmt.Errorf("%s: %s", result.Repository, result.Check))
		}
	}
	return errors.Join(errs...)
}
