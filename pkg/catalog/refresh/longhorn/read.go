// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package longhorn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	format "github.com/holdfast-io/holdfast/pkg/longhorn"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	// frontBytes are read first; some 1,000 precede the blocks.
	frontBytes    = 16 << 10
	maxLabelBytes = 16 << 10
)

const method = "longhorn"

const unfinished = "it has not ended: it is under way, or has failed, which Longhorn's store does not tell apart"

// Probe implements refresh.Layout.
func (l *Layout) Probe(ctx context.Context, from store.Ranger, name string) error {
	_, err := from.Attributes(ctx, format.VolumeKey(name))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// Read implements refresh.Layout.
func (l *Layout) Read(ctx context.Context, from store.Ranger, name string, known refresh.KnownEntry) (catalog.Content, error) {
	var content catalog.Content
	var objects []store.Object
	var volume *format.Volume
	var trouble string
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		lister := lister{from: from, tokens: make(chan struct{}, 1)}
		objects, err = lister.backups(groupCtx, name)
		return err
	})
	group.Go(func() (err error) {
		volume, trouble, err = readVolume(groupCtx, from, name, known.MayRead)
		return err
	})
	if err := group.Wait(); err != nil {
		if known.MayRead && errors.Is(err, store.ErrDenied) {
			err = &refresh.UnreadableError{Reason: "its backups can't be listed: " + store.Reason(err)}
		}
		return content, err
	}
	content.Trusted, content.Versions = l.TrustNamespaces, l.versions(objects)

	ended := map[string]*catalog.Volume{}
	if known.Versions != nil {
		for _, v := range known.Volumes() {
			if v.State == v1alpha1.VolumeBackupCompleted {
				ended[v.BackupName] = &v
			}
		}
	}
	read := make([]*reading, len(objects))
	var reads errgroup.Group
	reads.SetLimit(atOnce)
	for i, object := range objects {
		backup, _ := format.BackupOf(object.Key)
		read[i] = &reading{volume: name, backup: backup, row: ended[backup]}
		if read[i].row == nil {
			reads.Go(func() error {
				read[i].do(ctx, from)
				return nil
			})
		}
	}
	_ = reads.Wait()
	if err := ctx.Err(); err != nil {
		return content, err
	}
	if err := judge(read, &known, &content); err != nil {
		return content, err
	}
	describe(name, volume, trouble, content.Volumes)
	if trouble != "" { // versions can't show when the file is whole
		content.Versions = map[string]string{"backups": "incomplete"}
	}
	return content, nil
}

// readVolume returns the volume's file, or its fault; an error is the store's.
func readVolume(ctx context.Context, from store.Ranger, name string, mayRead bool) (volume *format.Volume, trouble string, err error) {
	const consequence = ", so Longhorn does not restore it"
	content, err := from.Get(ctx, format.VolumeKey(name))
	var data []byte
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(content, format.MaxConfigBytes+1))
		content.Close()
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, "the volume.cfg of its volume is missing" + consequence, nil
	case err != nil && (isUnavailable(err) || errors.Is(err, store.ErrDenied) && !mayRead):
		return nil, "", err
	}
	if err == nil {
		volume, err = format.ReadVolume(bytes.NewReader(data))
	}
	if err != nil {
		return nil, "the volume.cfg of its volume can't be read" + consequence + ": " + store.Reason(err), nil
	}
	return volume, "", nil
}

type reading struct {
	volume, backup string
	row            *catalog.Volume
	err            error
}

func (r *reading) do(ctx context.Context, from store.Ranger) {
	var backup *format.Backup
	for range 2 {
		front := &front{ctx: ctx, from: from, key: format.BackupKey(r.volume, r.backup)}
		backup, r.err = format.ReadBackup(front, nil)
		if front.err != nil {
			r.err = front.err
		}
		if r.err == nil || !isUnavailable(r.err) || ctx.Err() != nil {
			break
		}
	}
	switch {
	case r.err == nil:
		r.row = r.newRow(backup)
	case !isUnavailable(r.err) && !errors.Is(r.err, store.ErrDenied) && !errors.Is(r.err, store.ErrNotFound):
		r.unreadable()
	}
}

func (r *reading) unreadable() {
	r.row = &catalog.Volume{BackupName: r.backup, Method: method, State: v1alpha1.VolumeBackupUnreadable, Message: "its file can't be read: " + store.Reason(r.err)}
}

func (r *reading) newRow(b *format.Backup) *catalog.Volume {
	row := &catalog.Volume{BackupName: r.backup, Method: method}
	switch {
	case b.Name != "" && b.Name != r.backup || b.VolumeName != "" && b.VolumeName != r.volume:
		row.State = v1alpha1.VolumeBackupUnreadable
		row.Message = fmt.Sprintf("its file belongs to the backup %q of the volume %q", b.Name, b.VolumeName)
	case !b.Finished:
		row.State, row.Message = v1alpha1.VolumeBackupInProgress, unfinished
	default:
		row.State = v1alpha1.VolumeBackupCompleted
		row.SnapshotName = b.SnapshotName
		row.SnapshotCreated = metav1.NewTime(b.SnapshotCreated)
		row.Created, row.Completion = metav1.NewTime(b.Created), metav1.NewTime(b.Created)
		row.SizeBytes, row.BytesDone = b.SizeBytes, b.SizeBytes
		row.IncrementalBytes = b.NewBytes + b.ReuploadedBytes
		row.Labels = labels(b.Labels)
	}
	return row
}

func labels(of map[string]string) catalog.Labels {
	size := 0
	for key, value := range of {
		size += len(key) + len(value)
	}
	if size > maxLabelBytes {
		return ""
	}
	return catalog.NewLabels(of)
}

// judge makes the rows. If nothing was readable, the store has failed. Else failed backups are unreadable, until
// a later read.
func judge(read []*reading, known *refresh.KnownEntry, content *catalog.Content) error {
	shown := known.MayRead || slices.ContainsFunc(read, func(r *reading) bool { return r.row != nil })
	for _, r := range read {
		if r.row == nil && !errors.Is(r.err, store.ErrNotFound) {
			if !shown || errors.Is(r.err, context.Canceled) {
				return r.err
			}
			r.unreadable()
			content.Versions = map[string]string{"backups": "incomplete"}
		}
		if r.row != nil {
			content.Volumes = append(content.Volumes, *r.row)
		}
	}
	return nil
}

func describe(name string, volume *format.Volume, trouble string, rows []catalog.Volume) {
	var of map[string]string
	if volume != nil {
		of = volume.Labels
	} else if len(rows) > 0 {
		of = slices.MaxFunc(rows, func(a, b catalog.Volume) int { return a.Created.Compare(b.Created.Time) }).Labels.Map()
	}
	namespace, claim := format.Claim(of)
	if len(validation.IsDNS1123Label(namespace)) > 0 {
		namespace, claim = "", ""
	}
	if len(validation.IsDNS1123Subdomain(claim)) > 0 {
		claim = ""
	}
	for i := range rows {
		row := &rows[i]
		row.Namespace, row.ClaimName, row.VolumeName = namespace, claim, name
		if row.State == v1alpha1.VolumeBackupCompleted {
			row.Message = trouble
		}
		if volume != nil {
			row.VolumeSize, row.VolumeCreated = volume.SizeBytes, metav1.NewTime(volume.Created)
		}
	}
}

func isUnavailable(err error) bool {
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

type front struct {
	ctx    context.Context
	from   store.Ranger
	key    string
	part   bytes.Reader
	offset int64
	ended  bool
	err    error
}

func (f *front) Read(p []byte) (int, error) {
	for f.part.Len() == 0 {
		if f.err != nil {
			return 0, f.err
		}
		if f.ended {
			return 0, io.EOF
		}
		data, err := f.next(max(frontBytes, f.offset))
		if errors.Is(err, store.ErrRange) {
			err = nil
		}
		f.err = err
		f.part.Reset(data)
	}
	return f.part.Read(p)
}

// next reads a part to its end, so that the connection can be reused.
func (f *front) next(length int64) ([]byte, error) {
	f.ended = true
	content, err := f.from.GetRange(f.ctx, f.key, f.offset, length)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	data, err := io.ReadAll(io.LimitReader(content, length))
	f.offset += int64(len(data))
	f.ended = int64(len(data)) < length
	return data, err
}
