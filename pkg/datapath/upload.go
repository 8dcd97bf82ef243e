// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/policy"
	"github.com/kopia/kopia/snapshot/upload"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

// Source is the volume of a snapshot.
type Source struct {
	Namespace, Pod, Volume string
	// ClaimName and ClaimUID are empty without a claim.
	ClaimName string
	ClaimUID  types.UID
}

// Velero's name and tags of snapshots of pod volumes; it finds them by the first two tags. Source:
// a repository of Velero 1.18.1, see testdata.
const (
	snapshotDescription = "Kopia Uploader"
	snapshotPin         = "velero-pin"
	tagRequester        = "snapshot-requester"
	tagUploader         = "snapshot-uploader"
	requester           = "snapshot-pod-volume"
	uploader            = "kopia"
	// formerRequester is in snapshots of Holdfast's first versions.
	formerRequester = "pod-volume-backup-restore"
)

const (
	tagBackup = "holdfast.io/backup-uid"
	// tagStoreName has the backup's name in the store, tagCluster the uid of its cluster.
	tagStoreName = "holdfast.io/backup-store-name"
	tagCluster   = "holdfast.io/cluster-uid"
	tagClaim     = "holdfast.io/claim-uid"
	tagRecord    = "holdfast.io/upload-uid"
	tagFullRead  = "holdfast.io/full-read"
	tagCut       = "holdfast.io/cut"
	// tagCheckpoint marks a checkpoint of a long upload, for its next attempt.
	tagCheckpoint = "holdfast.io/checkpoint"
)

func (s Source) info(options repo.ClientOptions, requester string) snapshot.SourceInfo {
	return snapshot.SourceInfo{
		Host:     options.Hostname,
		UserName: options.Username,
		Path:     path.Join(requester, uploader, s.Namespace, s.Pod, cmp.Or(s.ClaimName, s.Volume)),
	}
}

// UploadRequest says what to upload.
type UploadRequest struct {
	// Path, Root and IsMount are as in Folder; the latter two are optional.
	Path, Root string
	IsMount    MountProbe
	// Device is as in Folder.
	Device bool
	// Source is the volume. The newest snapshot of its claim, or of the same source if the claim
	// may be the same, spares reading unchanged files.
	Source Source
	// FullReadEvery bounds the time between uploads that read every file; zero means never.
	FullReadEvery time.Duration
	// Cut is when the volume's snapshot was cut, if one is read. Later changes are not in it.
	Cut    time.Time
	Backup types.UID
	// Record is the uid of the VolumeUpload, optional. Its earlier unreported snapshots are
	// replaced.
	Record types.UID
	// StoreName is the backup's name in the store, ClusterUID as in package identity. They identify
	// a lost backup's snapshot.
	StoreName, ClusterUID string
}

func (r *UploadRequest) tags() map[string]string {
	tags := map[string]string{}
	if r.Backup != "" {
		tags[tagBackup] = string(r.Backup)
	}
	if r.Record != "" {
		tags[tagRecord] = string(r.Record)
	}
	if r.StoreName != "" && r.ClusterUID != "" {
		tags[tagStoreName], tags[tagCluster] = r.StoreName, r.ClusterUID
	}
	if !r.Cut.IsZero() {
		tags[tagCut] = r.Cut.UTC().Format(time.RFC3339)
	}
	if r.Source.ClaimUID != "" {
		tags[tagClaim] = string(r.Source.ClaimUID)
	}
	return tags
}

// UploadResult is the result of an upload.
type UploadResult struct {
	SnapshotID        string
	TotalBytes, Files int64
	// IncrementalBytes counts files that are new or differ in size, mode, owner or times, before
	// deduplication.
	IncrementalBytes int64
	// Warnings name files that are missing or may be inconsistent.
	Warnings Warnings
}

// measureAfter is when the volume is walked for its size: short uploads need no total, and a walk
// costs a tenth of an upload of small files.
const measureAfter = 15 * time.Second

// Upload stores a folder as a snapshot. If it fails, no snapshot is visible.
func Upload(ctx context.Context, r *repository.Repository, req UploadRequest, p *Progress) (_ UploadResult, err error) {
	defer func() { err = causeOf(ctx, err) }()
	if req.Device {
		return uploadDevice(ctx, r, req, p)
	}
	notes := notes{logger: klog.FromContext(ctx)}
	vol, err := openVolume(Folder{Path: req.Path, Root: req.Root, IsMount: req.IsMount}, &notes, p)
	if err != nil {
		return UploadResult{}, err
	}
	defer vol.close()
	vol.extras.most = MemoryOf(ctx).keptExtras()
	folder, err := vol.folder()
	if err != nil {
		return UploadResult{}, err
	}

	source := req.Source.info(r.Kopia().ClientOptions(), requester)
	complete, checkpoint, err := previousSnapshots(ctx, r.Kopia(), req.Source)
	if err != nil {
		return UploadResult{}, fmt.Errorf("look for the previous snapshot: %w", err)
	}
	known := basisOf(complete, checkpoint, r.Kopia().Time(), spread(req.FullReadEvery, req.Source))
	vol.since, vol.isFullRead = known.since(), known.isFullRead()
	tags := with(req.tags(), tagFullRead, known.fullRead.UTC().Format(time.RFC3339))
	earlier, err := earlierAttempts(ctx, r.Kopia(), req.Record)
	if err != nil {
		return UploadResult{}, fmt.Errorf("look for what an earlier attempt has stored: %w", err)
	}
	missing, err := r.Missing(ctx)
	if err != nil {
		return UploadResult{}, err
	}
	if missing.Any() {
		klog.FromContext(ctx).Info("The store lacks packs of the repository: what they held of this volume is stored anew", "packs", len(missing.Packs()), "contents", missing.Contents)
	}
	// With several, changes are looked for file by file.
	if len(known.spare) == 1 && !missing.Any() {
		folder.relyOn(r.Kopia(), known.spare[0], p)
	}
	for _, man := range []*snapshot.Manifest{complete, checkpoint} {
		if man == nil {
			continue
		}
		_, files := p.Files()
		p.SetTotal(max(p.Total(), man.Stats.TotalFileSize), max(files, int64(man.Stats.TotalFileCount)))
	}

	measured := measureLater(ctx, vol, p)
	defer measured()

	var man *snapshot.Manifest
	observer := &uploadObserver{progress: p, notes: &notes}
	err = repo.WriteSession(ctx, r.Kopia(), repo.WriteSessionOptions{Purpose: "upload"}, func(ctx context.Context, w repo.RepositoryWriter) (err error) {
		if w, err = missing.Writer(ctx, w); err != nil {
			return err
		}
		man, err = uploadFolder(ctx, w, folder, uploadPolicy(), source, tags, known.spare, observer)
		if err == nil {
			vol.last.addTo(&man.Stats)
			err = vol.stillThere()
		}
		if err == nil {
			err = save(ctx, w, man, vol.extras, tags, earlier)
		}
		return err // an error leaves nothing visible
	})
	if err != nil {
		return UploadResult{}, err
	}
	vol.outOfRange.tell(&notes)
	summary := man.RootEntry.DirSummary
	// An emptyDir is empty whenever its pod is new.
	if had := known.files(); had > 0 && summary.TotalFileCount+summary.TotalSymlinkCount == 0 && req.Source.ClaimUID != "" {
		notes.addFirst(".", fmt.Sprintf("has no files now, where the snapshot of %s has %d: see whether the pod finds its data there", complete.StartTime.ToTime().UTC().Format(time.RFC3339), had))
	}
	incremental := vol.read.Load()
	if complete != nil && complete.RootObjectID() == man.RootObjectID() {
		incremental = 0
	}
	return UploadResult{
		SnapshotID:       string(man.ID),
		TotalBytes:       summary.TotalFileSize,
		IncrementalBytes: incremental,
		Files:            summary.TotalFileCount,
		Warnings:         notes.warnings(),
	}, nil
}

func uploadFolder(ctx context.Context, w repo.RepositoryWriter, folder fs.Directory, policies *policy.Tree, source snapshot.SourceInfo, tags map[string]string, previous []*snapshot.Manifest, observer *uploadObserver) (*snapshot.Manifest, error) {
	u := newUploader(w, observer, tags)
	observer.cancel = u.Cancel
	// Kopia's uploader checks Cancel, not the context.
	stop := context.AfterFunc(ctx, u.Cancel)
	defer stop()

	man, err := u.Upload(ctx, folder, policies, source, previous...)
	switch failure := observer.failure.Load(); {
	case ctx.Err() != nil: // also when err is nil
		return nil, ctx.Err()
	case failure != nil: // also when err is nil
		return nil, *failure
	case err != nil:
		return nil, fmt.Errorf("upload the volume: %w", err)
	case man.IncompleteReason != "":
		return nil, fmt.Errorf("the upload ended early: %s", man.IncompleteReason)
	}
	return man, nil
}

func causeOf(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func newUploader(w repo.RepositoryWriter, observer upload.Progress, tags map[string]string) *upload.Uploader {
	u := upload.NewUploader(newChunker(w))
	u.Progress = observer
	// More than processors, since workers mostly wait for the store; Kopia's default counts the
	// node's.
	u.ParallelUploads = parallelism(8)
	u.DisableIgnoreRules = true // a .kopiaignore in the volume is data
	u.CheckpointLabels = map[string]string{tagCheckpoint: "true"}
	maps.Copy(u.CheckpointLabels, tags)
	return u
}

const (
	compressor     = "zstd-fastest"
	compressedFrom = 512
)

func parallelism(least int) int { return max(least, 2*runtime.GOMAXPROCS(0)) }

// partsAbove is the size of the parts in which a larger file is uploaded in parallel. Each waits
// for the store after a pack of some 20 MB. Parallel uploads bound the packs in memory.
const partsAbove = 128 << 20

func uploadPolicy() *policy.Tree {
	var (
		p            = *policy.DefaultPolicy
		splitAbove   = policy.OptionalInt64(partsAbove)
		ignore       = policy.OptionalBool(true)
		noLog        = policy.LogDetail(policy.LogDetailNone)
		errorsIgnore = policy.ErrorHandlingPolicy{IgnoreFileErrors: &ignore, IgnoreDirectoryErrors: &ignore}
	)
	p.CompressionPolicy.CompressorName = compressor
	p.CompressionPolicy.NeverCompress = inPlaceExtensions
	p.CompressionPolicy.MinSize = compressedFrom
	p.UploadPolicy.ParallelUploadAboveSize = &splitAbove
	// Kopia reports the errors that it ignores; uploadObserver decides which ones end the upload.
	p.ErrorHandlingPolicy = errorsIgnore
	p.LoggingPolicy.Directories.Snapshotted = &noLog
	return policy.BuildTree(map[string]*policy.Policy{".": &p}, &p)
}

// save makes the snapshot and its extras visible, and deletes the snapshots that they replace.
func save(ctx context.Context, w repo.RepositoryWriter, man *snapshot.Manifest, extras *extras, tags map[string]string, earlier []manifest.ID) error {
	man.Description = snapshotDescription
	man.Pins = []string{snapshotPin} // else Kopia's retention may delete it
	man.Tags = map[string]string{tagRequester: requester, tagUploader: uploader}
	maps.Copy(man.Tags, tags)
	if err := extras.save(ctx, w, man, tags); err != nil {
		return fmt.Errorf("save the extended attributes and hard links: %w", err)
	}
	if _, err := snapshot.SaveSnapshot(ctx, w, man); err != nil {
		return fmt.Errorf("save the snapshot: %w", err)
	}
	checkpoints, err := snapshot.ListSnapshotManifests(ctx, w, &man.Source, map[string]string{tagCheckpoint: "true"})
	if err != nil {
		return fmt.Errorf("list the upload's checkpoints: %w", err)
	}
	for _, id := range append(checkpoints, earlier...) {
		if err := w.DeleteManifest(ctx, id); err != nil {
			return fmt.Errorf("remove what an earlier attempt has stored: %w", err)
		}
	}
	return nil
}

// earlierAttempts returns the record's snapshots by agents that stopped before reporting them.
// Later ones are another agent's, and stay: this agent may have been paused. Other records of the
// path and backup stay, since a pod may have a volume and a claim of one name.
func earlierAttempts(ctx context.Context, r repo.Repository, record types.UID) (ids []manifest.ID, err error) {
	if record == "" {
		return nil, nil
	}
	found, err := r.FindManifests(ctx, map[string]string{manifest.TypeLabelKey: snapshot.ManifestType, tagRecord: string(record)})
	if err != nil {
		return nil, err
	}
	for _, entry := range found {
		if entry.Labels[tagCheckpoint] == "" {
			ids = append(ids, entry.ID)
		}
	}
	return ids, nil
}

func measureLater(ctx context.Context, vol *volume, p *Progress) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(measureAfter):
		}
		// Warnings of this walk don't count.
		quiet := &volume{root: vol.root, notes: &notes{}}
		if bytes, files := quiet.size(ctx, "."); files > 0 && ctx.Err() == nil {
			p.SetTotal(bytes, files)
		}
	})
	return func() {
		cancel()
		group.Wait()
	}
}

type uploadObserver struct {
	upload.NullUploadProgress
	progress *Progress
	notes    *notes
	cancel   func()
	failure  atomic.Pointer[error]
}

func (o *uploadObserver) HashedBytes(n int64) { o.progress.Add(n) }

// CachedFile counts links as files, as Kopia doesn't distinguish them; the result does not.
func (o *uploadObserver) CachedFile(_ string, size int64) {
	o.progress.Add(size)
	o.progress.AddFile()
}

func (o *uploadObserver) FinishedHashingFile(string, int64) { o.progress.AddFile() }

// Error makes a vanished file a warning. Other errors fail the upload: a backup that silently lacks
// a file is worse than none.
func (o *uploadObserver) Error(path string, err error, _ bool) {
	if errors.Is(err, errVanished) {
		o.notes.vanished(path)
		return
	}
	failure := fmt.Errorf("read %.500q: %w", path, err) // leaves room for the reason
	o.failure.CompareAndSwap(nil, &failure)
	o.cancel()
}
