// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/fs/virtualfs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/snapshotfs"
	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/pkg/blockdevice"
	"github.com/holdfast-io/holdfast/pkg/repository"
)

// A block device is a snapshot with one file, as in Velero. All of it is read, and only new data is
// stored.

// deviceName has the extension of a file that is written in place, and is cut as one.
const deviceName = "device.raw"

// clearedAtOnce bounds the bytes that one call clears: a call of minutes counts as hanging.
const clearedAtOnce = 1 << 30

// DeviceFolder returns the pod's emptyDir with the socket where it serves a block device. The error
// is PodFolder's.
func DeviceFolder(podsDir string, pod types.UID, emptyDir string) (Folder, error) {
	if err := segment("name of the emptyDir", emptyDir); err != nil {
		return Folder{}, err
	}
	volumes, _, err := PodFolder(podsDir, pod)
	return Folder{Path: filepath.Join(volumes, "kubernetes.io~empty-dir", emptyDir), Device: true}, err
}

func uploadDevice(ctx context.Context, r *repository.Repository, req UploadRequest, p *Progress) (UploadResult, error) {
	device, err := blockdevice.Open(ctx, req.Path)
	if err != nil {
		return UploadResult{}, err
	}
	defer device.Close()
	p.SetTotal(device.Size(), 1)
	earlier, err := earlierAttempts(ctx, r.Kopia(), req.Record)
	if err != nil {
		return UploadResult{}, fmt.Errorf("look for what an earlier attempt has stored: %w", err)
	}
	missing, err := r.Missing(ctx)
	if err != nil {
		return UploadResult{}, err
	}
	var (
		man      *snapshot.Manifest
		stored   atomic.Int64
		notes    notes
		observer = &uploadObserver{progress: p, notes: &notes}
		folder   = virtualfs.NewStaticDirectory(".", []fs.Entry{&deviceFile{device: device, progress: p, read: r.Kopia().Time()}})
	)
	options := repo.WriteSessionOptions{Purpose: "upload", OnUpload: func(bytes int64) { stored.Add(bytes) }}
	err = repo.WriteSession(ctx, r.Kopia(), options, func(ctx context.Context, w repo.RepositoryWriter) (err error) {
		if w, err = missing.Writer(ctx, w); err != nil {
			return err
		}
		if man, err = uploadFolder(ctx, w, folder, uploadPolicy(), req.Source.info(r.Kopia().ClientOptions(), requester), req.tags(), nil, observer); err != nil {
			return err
		}
		if got := man.RootEntry.DirSummary.TotalFileSize; got != device.Size() {
			return fmt.Errorf("read %d bytes of the block device, want %d", got, device.Size())
		}
		return save(ctx, w, man, newExtras(&notes), req.tags(), earlier)
	})
	if err != nil {
		return UploadResult{}, err
	}
	return UploadResult{SnapshotID: string(man.ID), TotalBytes: device.Size(), IncrementalBytes: min(stored.Load(), device.Size()), Files: 1, Warnings: notes.warnings()}, nil
}

// restoreDevice fills the rest of the device with zeros.
func restoreDevice(ctx context.Context, r *repository.Repository, man *snapshot.Manifest, req RestoreRequest, p *Progress) (RestoreResult, error) {
	if len(req.Only) > 0 {
		return RestoreResult{}, errors.New("the volume is a block device, which is restored as a whole: leave out the paths")
	}
	entries, err := readFolder(ctx, r.Kopia(), man.RootEntry)
	if err != nil {
		return RestoreResult{}, fmt.Errorf("read snapshot %s: %w", req.SnapshotID, err)
	}
	if len(entries) != 1 || entries[0].Type != snapshot.EntryTypeFile {
		return RestoreResult{}, fmt.Errorf("snapshot %s has %d entries, and of a block device it would have one file", req.SnapshotID, len(entries))
	}
	file, ok := snapshotfs.EntryFromDirEntry(r.Kopia(), entries[0]).(fs.File)
	if !ok {
		return RestoreResult{}, fmt.Errorf("snapshot %s has no file", req.SnapshotID)
	}
	device, err := blockdevice.Open(ctx, req.Path)
	if err != nil {
		return RestoreResult{}, err
	}
	defer device.Close()
	if device.Size() < file.Size() {
		return RestoreResult{}, fmt.Errorf("the block device has %d bytes, and its backup %d: make its claim larger", device.Size(), file.Size())
	}
	p.SetTotal(file.Size(), 1)
	cleared := true
	for at := int64(0); at < device.Size() && cleared; at += clearedAtOnce {
		p.Call(func() { cleared, err = device.Clear(ctx, at, min(clearedAtOnce, device.Size()-at)) })
		if err != nil {
			return RestoreResult{}, fmt.Errorf("clear the block device: %w", err)
		}
	}
	if !cleared {
		p.SetTotal(device.Size(), 1)
	}
	out := &output{progress: p, readers: semaphore.NewWeighted(MemoryOf(ctx).readers(partReaders))}
	out.notes.logger = klog.FromContext(ctx)
	done, err := MemoryOf(ctx).file(ctx)
	if err != nil {
		return RestoreResult{}, err
	}
	defer done()
	from, err := file.Open(ctx)
	if err != nil {
		return RestoreResult{}, fmt.Errorf("open the device in snapshot %s: %w", req.SnapshotID, err)
	}
	defer from.Close()
	if err := out.copy(ctx, &deviceTarget{ctx, device, p, !cleared}, from, file.Size(), file.Open); err != nil {
		return RestoreResult{}, fmt.Errorf("restore snapshot %s: %w", req.SnapshotID, err)
	}
	if !cleared {
		if err := writeZeros(ctx, device, file.Size(), p); err != nil {
			return RestoreResult{}, fmt.Errorf("fill the rest of the block device with zeros: %w", err)
		}
	}
	p.AddFile()
	p.Call(func() { err = device.Sync(ctx) })
	if err != nil {
		return RestoreResult{}, fmt.Errorf("write the block device to its disk: %w", err)
	}
	return RestoreResult{TotalBytes: file.Size(), Files: 1, Warnings: out.notes.warnings()}, nil
}

func writeZeros(ctx context.Context, device *blockdevice.Device, from int64, p *Progress) (err error) {
	zeros := make([]byte, 1<<20)
	for at := from; at < device.Size(); at += int64(len(zeros)) {
		part := zeros[:min(int64(len(zeros)), device.Size()-at)]
		if p.Call(func() { err = device.Write(ctx, part, at) }); err != nil {
			return err
		}
		p.Add(int64(len(part)))
	}
	return nil
}

// deviceTarget may have other bytes than zeros before.
type deviceTarget struct {
	ctx      context.Context
	device   *blockdevice.Device
	progress *Progress
	used     bool
}

// WriteAt implements target.
func (t *deviceTarget) WriteAt(b []byte, offset int64) (n int, err error) {
	t.progress.Call(func() { err = t.device.Write(t.ctx, b, offset) })
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// Truncate does nothing: a device has its size.
func (t *deviceTarget) Truncate(int64) error { return nil }

func (t *deviceTarget) keepsZeros() bool { return !t.used }

type deviceFile struct {
	device   *blockdevice.Device
	progress *Progress
	read     time.Time
}

func (f *deviceFile) Name() string                { return deviceName }
func (f *deviceFile) Size() int64                 { return f.device.Size() }
func (f *deviceFile) Mode() os.FileMode           { return 0o600 }
func (f *deviceFile) ModTime() time.Time          { return f.read }
func (f *deviceFile) IsDir() bool                 { return false }
func (f *deviceFile) Sys() any                    { return nil }
func (f *deviceFile) Owner() fs.OwnerInfo         { return fs.OwnerInfo{} }
func (f *deviceFile) Device() fs.DeviceInfo       { return fs.DeviceInfo{} }
func (f *deviceFile) LocalFilesystemPath() string { return "" }
func (f *deviceFile) Close()                      {}

// Open is called once for each part of a large device.
func (f *deviceFile) Open(ctx context.Context) (fs.Reader, error) {
	done, err := MemoryOf(ctx).file(ctx)
	if err != nil {
		return nil, err
	}
	return &deviceReader{ctx: ctx, of: f, done: done}, nil
}

type deviceReader struct {
	ctx  context.Context
	of   *deviceFile
	done func()
	at   int64
	body io.ReadCloser
}

func (r *deviceReader) Read(b []byte) (n int, err error) {
	r.of.progress.Call(func() {
		if r.body == nil {
			if r.body, err = r.of.device.Read(r.ctx, r.at); err != nil {
				return
			}
		}
		n, err = r.body.Read(b)
	})
	r.at += int64(n)
	if errors.Is(err, io.EOF) && r.at < r.of.Size() {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (r *deviceReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.at
	case io.SeekEnd:
		offset += r.of.Size()
	}
	if offset == r.at {
		return offset, nil
	}
	if offset < 0 {
		return r.at, fmt.Errorf("seek to byte %d of the block device", offset)
	}
	err := r.leave()
	r.at = offset
	return offset, err
}

func (r *deviceReader) leave() (err error) {
	if r.body != nil {
		err, r.body = r.body.Close(), nil
	}
	return err
}

func (r *deviceReader) Entry() (fs.Entry, error) { return r.of, nil }

func (r *deviceReader) Close() error {
	defer r.done()
	return r.leave()
}

var _ fs.File = (*deviceFile)(nil)
