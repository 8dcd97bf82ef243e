// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"context"
	"errors"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
	"k8s.io/apimachinery/pkg/types"
)

// racy is the minimum time between a file's last change and a snapshot that spares reading it: file
// systems keep times in units of up to two seconds, which hide a second change.
var racy = 2 * time.Second

const skew = time.Minute // between the clocks of a snapshot's storage and of the files

type basis struct {
	complete *snapshot.Manifest
	// spare has the snapshots that spare reading unchanged files; none for a full read.
	spare []*snapshot.Manifest
	// fullRead is when the last upload that read every file began.
	fullRead time.Time
}

// basisOf returns the basis of an upload that begins now, from the newest complete snapshot and
// checkpoint, if any. For a full read, only a checkpoint of one counts.
func basisOf(complete, checkpoint *snapshot.Manifest, now time.Time, fullReadEvery time.Duration) basis {
	spares := func(man *snapshot.Manifest) bool {
		if man == nil {
			return false
		}
		read := fullReadOf(man)
		// A snapshot from a clock that was ahead proves nothing.
		return !man.StartTime.ToTime().After(now) && !read.After(now) && (fullReadEvery == 0 || now.Sub(read) < fullReadEvery)
	}
	b := basis{complete: complete, fullRead: now}
	if spares(complete) {
		b.spare, b.fullRead = append(b.spare, complete), fullReadOf(complete)
	}
	if spares(checkpoint) {
		if b.spare = append(b.spare, checkpoint); len(b.spare) == 1 {
			b.fullRead = fullReadOf(checkpoint)
		}
	}
	return b
}

// fullReadOf returns fullRead by a snapshot's tag. A snapshot without it, as Velero's, has read
// all.
func fullReadOf(man *snapshot.Manifest) time.Time {
	if read, err := time.Parse(time.RFC3339, man.Tags[tagFullRead]); err == nil {
		return read
	}
	return man.StartTime.ToTime()
}

// spread shortens a duration by up to a quarter, the same for a volume, so that not all are read in
// one night.
func spread(every time.Duration, of Source) time.Duration {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(of.ClaimUID))
	_, _ = sum.Write([]byte(of.Namespace + "/" + of.Pod + "/" + of.Volume))
	return every - time.Duration(float64(every)/4*float64(sum.Sum32())/math.MaxUint32)
}

// dataOf returns a time that no data of a snapshot is older than: the upload's start or, long before
// it, the cut that it has read.
func dataOf(man *snapshot.Manifest) time.Time {
	begun := man.StartTime.ToTime()
	if cut, err := time.Parse(time.RFC3339, man.Tags[tagCut]); err == nil && cut.Add(-skew).Before(begun) {
		return cut.Add(-skew)
	}
	return begun
}

// since returns the second from which on a changed file is read again: the older snapshot's, since
// a file may be in either.
func (b basis) since() int64 {
	second := int64(math.MaxInt64)
	for _, man := range append(slices.Clone(b.spare), b.complete) {
		if man != nil {
			second = min(second, dataOf(man).Add(-racy).Unix())
		}
	}
	return second
}

func (b basis) isFullRead() bool { return b.complete != nil && !slices.Contains(b.spare, b.complete) }

func (b basis) files() int64 {
	if b.complete == nil || b.complete.RootEntry == nil || b.complete.RootEntry.DirSummary == nil {
		return 0
	}
	summary := b.complete.RootEntry.DirSummary
	return summary.TotalFileCount + summary.TotalSymlinkCount
}

// veleroClaim is the tag with the claim's uid of Velero up to 1.16. Later versions have none.
const veleroClaim = "pvc-uid"

// previousSnapshots returns the newest complete snapshot of the claim or else of the source, and
// the newest checkpoint; nil if missing.
func previousSnapshots(ctx context.Context, r repo.Repository, source Source) (complete, checkpoint *snapshot.Manifest, err error) {
	// A claim outlives its pods, whose names are in the path.
	var ofClaim, ofSource, checkpoints []map[string]string
	for _, requester := range []string{requester, formerRequester} {
		info := source.info(r.ClientOptions(), requester)
		of := map[string]string{snapshot.HostnameLabel: info.Host, snapshot.UsernameLabel: info.UserName, snapshot.PathLabel: info.Path}
		complete := map[string]string{tagRequester: requester, tagUploader: uploader}
		ofClaim = append(ofClaim, with(complete, tagClaim, string(source.ClaimUID)))
		maps.Copy(complete, of)
		ofSource = append(ofSource, complete)
		checkpoints = append(checkpoints, with(of, tagCheckpoint, "true"))
	}
	checkpointsOfClaim := []map[string]string{{tagCheckpoint: "true", tagClaim: string(source.ClaimUID)}}
	if source.ClaimUID == "" {
		ofClaim, checkpointsOfClaim = nil, nil
	}
	if complete, err = newest(ctx, r, source.ClaimUID, ofClaim, ofSource); err != nil {
		return nil, nil, err
	}
	checkpoint, err = newest(ctx, r, source.ClaimUID, checkpointsOfClaim, checkpoints)
	return complete, checkpoint, err
}

func with(labels map[string]string, key, value string) map[string]string {
	labels = maps.Clone(labels)
	labels[key] = value
	return labels
}

// claimOf returns the uid of a snapshot's claim, empty without one. Velero's newer snapshots don't
// tell.
func claimOf(labels map[string]string) (uid types.UID, known bool) {
	uid = types.UID(cmp.Or(labels[tagClaim], labels[veleroClaim]))
	return uid, uid != "" || labels[tagRecord] != ""
}

// newest returns the newest snapshot of the first group with matches, or nil. Snapshots of another
// claim of the same name don't count; those without a known claim do.
func newest(ctx context.Context, r repo.Repository, claim types.UID, groups ...[]map[string]string) (*snapshot.Manifest, error) {
	for _, searches := range groups {
		var entries []*manifest.EntryMetadata
		for _, labels := range searches {
			found, err := r.FindManifests(ctx, with(labels, manifest.TypeLabelKey, snapshot.ManifestType))
			if err != nil {
				return nil, err
			}
			entries = append(entries, found...)
		}
		entries = slices.DeleteFunc(entries, func(entry *manifest.EntryMetadata) bool {
			of, known := claimOf(entry.Labels)
			return known && of != claim
		})
		if len(entries) == 0 {
			continue
		}
		latest := slices.MaxFunc(entries, func(a, b *manifest.EntryMetadata) int { return a.ModTime.Compare(b.ModTime) })
		man, err := snapshot.LoadSnapshot(ctx, r, latest.ID)
		if errors.Is(err, snapshot.ErrSnapshotNotFound) {
			continue
		}
		return man, err
	}
	return nil, nil
}
