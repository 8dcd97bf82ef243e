// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	"github.com/holdfast-io/holdfast/pkg/format"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/volumefiles"
)

const (
	// usualIndexes is the size of a repository's indexes that may stay open unused.
	usualIndexes = 8 << 20
	// rememberFor is how long a backup's list of volumes is believed: a walk reads one volume many
	// times.
	rememberFor = time.Minute
	mostVolumes = 64
)

// Config configures a Reader.
type Config struct {
	// Namespace is the system namespace.
	Namespace string
	// Secrets has locations' credentials, Keys repositories' keys.
	Secrets, Keys location.Secrets
	Locations     enginelisters.StorageLocationNamespaceLister
	Repositories  enginelisters.VolumeRepositoryNamespaceLister
	// Readable returns nil if a namespace's volumes can be read from a location. It creates a
	// missing record of the repository.
	Readable func(ctx context.Context, volumeNamespace, location string) error
	// Continues reports whether a backup's namespace has the history of the present one of its
	// name. See restorerun.Executor.
	Continues func(ctx context.Context, location *enginev1alpha1.StorageLocation, origin *v1alpha1.BackupOrigin, namespace string, uid types.UID) (bool, error)
	// Indexes bounds the memory of all open repositories' indexes.
	Indexes int64
	// WorkDir is as in repository.Options.
	WorkDir string
	Clock   clock.WithTicker
}

// Reader is a Source.
type Reader struct {
	Config
	shared *opener.Shared

	mu      sync.Mutex
	volumes map[volumeKey]*volume
}

// New returns a Reader, for which the caller calls Run.
func New(config Config) *Reader {
	indexes := semaphore.NewWeighted(config.Indexes)
	return &Reader{
		Config:  config,
		volumes: map[volumeKey]*volume{},
		shared: &opener.Shared{
			Repositories: config.Repositories, Locations: config.Locations, Clock: config.Clock,
			Options: repository.Options{WorkDir: config.WorkDir},
			Indexes: func(ctx context.Context, bytes int64) (done func(), err error) {
				switch {
				case bytes <= usualIndexes:
					return nil, nil
				case bytes > config.Indexes:
					return nil, &volumefiles.Problem{Code: http.StatusConflict, Message: fmt.Sprintf(
						"the repository has indexes of %d MiB, and the controller takes at most %d MiB for them: restore the paths instead, or give the controller more memory", bytes>>20, config.Indexes>>20)}
				}
				if err := indexes.Acquire(ctx, bytes); err != nil {
					return nil, context.Cause(ctx)
				}
				return func() { indexes.Release(bytes) }, nil
			},
		},
	}
}

// Run closes unused repositories until ctx ends.
func (r *Reader) Run(ctx context.Context) { r.shared.Run(ctx) }

type volumeKey struct {
	location   types.UID
	generation int64
	storeName  string
	backup     types.UID
	volume     format.VolumeID
}

// volume is from a backup's signed metadata.
type volume struct {
	origin     *v1alpha1.BackupOrigin
	namespace  string
	uid        types.UID
	snapshotID string
	problem    string
	until      time.Time

	mu    sync.Mutex
	files *datapath.Files
}

// open returns the volume's files, the same in every opening of the repository.
func (v *volume) open(ctx context.Context, r *repository.Repository) (*datapath.Files, error) {
	v.mu.Lock()
	files := v.files
	v.mu.Unlock()
	if files != nil {
		return files, nil
	}
	files, err := datapath.OpenFiles(ctx, r, v.snapshotID)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.files = files
	return files, nil
}

func problem(code int, format string, args ...any) *volumefiles.Problem {
	return &volumefiles.Problem{Code: code, Message: fmt.Sprintf(format, args...)}
}

func (r *Reader) find(ctx context.Context, record *enginev1alpha1.StorageLocation, request *volumefiles.Request) (*volume, error) {
	key := volumeKey{record.UID, record.Generation, request.StoreName, request.BackupUID, request.Volume}
	now := r.Clock.Now()
	r.mu.Lock()
	known := r.volumes[key]
	r.mu.Unlock()
	if known != nil && now.Before(known.until) {
		return known, nil
	}
	bucket, err := location.Open(ctx, r.Secrets, record)
	if err != nil {
		return nil, err
	}
	defer func() { _ = bucket.Close() }()
	place := format.Place{StoreName: request.StoreName, Location: record.Name, SystemNamespace: r.Namespace, Now: now}
	backup, err := source.OpenVolumes(ctx, bucket, place, request.BackupUID)
	if err != nil {
		return nil, err
	}
	of := backup.Volume(request.Volume)
	if of == nil {
		return nil, problem(http.StatusNotFound, "the backup holds no volume %q of the namespace %s", request.Volume.Name, request.Volume.Namespace)
	}
	found := &volume{
		origin: backup.Metadata.Status.Origin, namespace: of.RepositoryNamespace(), uid: of.NamespaceUID,
		snapshotID: of.Status.SnapshotID, problem: of.Problem, until: now.Add(rememberFor),
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.volumes) >= mostVolumes {
		clear(r.volumes)
	}
	r.volumes[key] = found
	return found, nil
}

// mayRead refuses a volume outside the namespace in which the caller has rights. A backup with a
// wrong signature names snapshots that its maker chose.
func (r *Reader) mayRead(ctx context.Context, record *enginev1alpha1.StorageLocation, v *volume, namespace string) error {
	switch {
	case v.origin == nil || v.origin.Trust == v1alpha1.BackupTrustForged:
		return problem(http.StatusConflict, "the backup is not as it was made, so its files are not shown")
	case namespace == r.Namespace:
		return nil // its rights are the administrators'
	case namespace == v.namespace:
		continues, err := r.Continues(ctx, record, v.origin, v.namespace, v.uid)
		if err != nil || continues {
			return err
		}
	}
	return problem(http.StatusForbidden, "the volume backup is of another namespace than the present one of this name: its files are shown to those who may get volumebackups/files and volumebackups/content in the namespace %s", r.Namespace)
}

// errTaken is a failure of the caller.
type errTaken struct{ error }

func (e errTaken) Unwrap() error { return e.error }

// use calls do with the files of a request.
func (r *Reader) use(ctx context.Context, request *volumefiles.Request, do func(ctx context.Context, files *datapath.Files, r *repository.Repository) error) error {
	record, err := r.Locations.Get(request.StorageLocation)
	if apierrors.IsNotFound(err) {
		return problem(http.StatusNotFound, "the storage location %q does not exist any more", request.StorageLocation)
	}
	if err != nil {
		return err
	}
	v, err := r.find(ctx, record, request)
	if err != nil {
		return explained(err)
	}
	if err := r.mayRead(ctx, record, v, request.Namespace); err != nil {
		return err
	}
	if v.problem != "" {
		return problem(http.StatusConflict, "the volume backup has no files: %s", v.problem)
	}
	name := enginev1alpha1.RepositoryName(v.namespace, record.Name)
	if err := r.Readable(ctx, v.namespace, record.Name); err != nil {
		return unreadable(name, err)
	}
	for asked := (time.Time{}); ; asked = r.Clock.Now() {
		var callers error
		err := r.shared.Use(ctx, name, r.secrets(name, record), asked, func(ctx context.Context, repository *repository.Repository) error {
			files, err := v.open(ctx, repository)
			if err == nil {
				err = do(ctx, files, repository)
			}
			if isCallers(err) {
				callers, err = err, nil // the repository is well
			}
			return err
		})
		if errors.Is(callers, datapath.ErrSnapshotNotFound) && asked.IsZero() {
			continue // it is newer than what is open
		}
		switch {
		case callers != nil:
			return explained(callers)
		case errors.Is(err, opener.ErrNoKey), errors.Is(err, repository.ErrWrongKey), errors.Is(err, repository.ErrNotInitialized), errors.Is(err, repository.ErrDamaged), apierrors.IsNotFound(err):
			return unreadable(name, err)
		case err != nil:
			return explained(err)
		}
		return nil
	}
}

func isCallers(err error) bool {
	for _, of := range []error{datapath.ErrNoFile, datapath.ErrFileKind, datapath.ErrFilePath, datapath.ErrFileToken, datapath.ErrSnapshotNotFound} {
		if errors.Is(err, of) {
			return true
		}
	}
	_, taken := errors.AsType[errTaken](err)
	_, told := errors.AsType[*volumefiles.Problem](err)
	return taken || told
}

func unreadable(name string, err error) error {
	return &volumefiles.Problem{Code: http.StatusServiceUnavailable, Detail: err.Error(),
		Message: fmt.Sprintf("the repository of the volume can't be opened: its key may be missing here, or the store does not answer; an administrator sees why in the VolumeRepository %s", name)}
}

func explained(err error) error {
	told, ok := errors.AsType[*volumefiles.Problem](err)
	switch {
	case ok:
		return told
	case errors.Is(err, datapath.ErrNoFile):
		return problem(http.StatusNotFound, "%v", err)
	case errors.Is(err, datapath.ErrFileKind), errors.Is(err, datapath.ErrFilePath), errors.Is(err, datapath.ErrFileToken):
		return problem(http.StatusBadRequest, "%v", err)
	case errors.Is(err, datapath.ErrSnapshotNotFound):
		return problem(http.StatusNotFound, "the repository has the data of this volume backup no more")
	case errors.Is(err, source.ErrNoBackup):
		return problem(http.StatusNotFound, "the store does not have this backup any more")
	case errors.Is(err, source.ErrRefused):
		return &volumefiles.Problem{Code: http.StatusConflict, Message: "the backup is damaged, or not as it was made", Detail: err.Error()}
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrDenied), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &volumefiles.Problem{Code: http.StatusServiceUnavailable, Message: "the store of the volume backup can't be read at the moment", Detail: store.Reason(err)}
	}
	return &volumefiles.Problem{Code: http.StatusInternalServerError, Message: "the volume backup can't be read: the store does not answer, or the data there is damaged", Detail: err.Error()}
}

func (r *Reader) secrets(name string, record *enginev1alpha1.StorageLocation) opener.Secrets {
	return func(ctx context.Context) ([]corev1.Secret, error) {
		var found []corev1.Secret
		read := func(from location.Secrets, name string) error {
			secret, err := from.Get(ctx, name, metav1.GetOptions{})
			switch {
			case err == nil:
				found = append(found, *secret)
			case !apierrors.IsNotFound(err): // its user says that it is missing
				return err
			}
			return nil
		}
		if err := read(r.Keys, enginev1alpha1.KeySecretName(name)); err != nil {
			return nil, err
		}
		if name := record.Spec.CredentialsSecret(); name != "" {
			if err := read(r.Secrets, name); err != nil {
				return nil, err
			}
		}
		return found, nil
	}
}

// List implements Source.
func (r *Reader) List(ctx context.Context, request *volumefiles.Request) (list *v1alpha1.VolumeFileList, err error) {
	err = r.use(ctx, request, func(ctx context.Context, files *datapath.Files, repository *repository.Repository) error {
		elements, err := datapath.CleanFilePath(request.Path)
		if err != nil {
			return err
		}
		limit := request.Limit
		if limit <= 0 {
			limit = volumefiles.DefaultLimit
		}
		of, items, next, err := files.List(ctx, repository, request.Path, request.Continue, min(limit, volumefiles.MaxLimit))
		if err != nil {
			return err
		}
		list = &v1alpha1.VolumeFileList{
			TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "VolumeFileList"},
			Path:     "/" + strings.Join(elements, "/"), File: file(of), Continue: next,
		}
		for _, item := range items {
			list.Items = append(list.Items, file(item))
		}
		return nil
	})
	return list, err
}

func file(of datapath.StoredFile) v1alpha1.VolumeFile {
	return v1alpha1.VolumeFile{
		Name: of.Name, Type: v1alpha1.VolumeFileType(of.Type), SizeBytes: of.Size, Files: of.Files, Mode: fmt.Sprintf("%04o", bits(of)),
		ModificationTime: of.ModTime.UTC().Format(time.RFC3339Nano), UserID: int64(of.UserID), GroupID: int64(of.GroupID),
	}
}

// bits returns the mode as chmod takes it.
func bits(of datapath.StoredFile) uint32 {
	mode := uint32(of.Mode.Perm())
	for bit, flag := range map[uint32]os.FileMode{0o4000: os.ModeSetuid, 0o2000: os.ModeSetgid, 0o1000: os.ModeSticky} {
		if of.Mode&flag != 0 {
			mode |= bit
		}
	}
	return mode
}

// Copy implements Source.
func (r *Reader) Copy(ctx context.Context, request *volumefiles.Request, begin func(size int64), to io.Writer) error {
	return r.use(ctx, request, func(ctx context.Context, files *datapath.Files, repository *repository.Repository) error {
		if request.Kind == volumefiles.Link {
			_, target, err := files.Link(ctx, repository, request.Path)
			if err != nil {
				return err
			}
			begin(int64(len(target)))
			return take(io.WriteString(to, target))
		}
		of, content, err := files.Open(ctx, repository, request.Path)
		if err != nil {
			return err
		}
		defer content.Close()
		if request.Offset < 0 || request.Length < 0 || request.Offset > of.Size {
			return problem(http.StatusBadRequest, "the file has %d bytes: there is no part of it at the offset %d", of.Size, request.Offset)
		}
		rest := of.Size - request.Offset
		if request.Length > 0 {
			rest = min(rest, request.Length)
		}
		if _, err := content.Seek(request.Offset, io.SeekStart); err != nil {
			return err
		}
		// The first piece is read before the answer begins, so that its failure is told.
		buffer := make([]byte, pieceBytes)
		for begun := false; rest > 0 || !begun; begun = true {
			n, err := io.ReadFull(content, buffer[:min(rest, pieceBytes)])
			if err != nil {
				return fmt.Errorf("read %q: %w", request.Path, err)
			}
			if !begun {
				begin(rest)
			}
			if err := take(to.Write(buffer[:n])); err != nil {
				return err
			}
			rest -= int64(n)
		}
		return nil
	})
}

func take(_ int, err error) error {
	if err != nil {
		return errTaken{err}
	}
	return nil
}
