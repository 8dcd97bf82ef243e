// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/sharded"
	"github.com/kopia/kopia/repo/format"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/snapshot/policy"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// markerBlob tells Velero that the repository is set up; it has its unique id. Source: Velero,
// pkg/repository/udmrepo/kopialib.
const markerBlob blob.ID = "udmrepo.Repository"

// Exists reports whether the folder of a namespace's repository has any blob.
func Exists(ctx context.Context, loc Location, namespace string) (bool, error) {
	folder, err := folderOf(namespace)
	if err != nil {
		return false, err
	}
	bucket, err := loc.open(ctx)
	if err != nil {
		return false, err
	}
	defer bucket.Close()
	for _, err := range blobs(ctx, bucket, folder, loc.Spec.Provider) {
		if err != nil {
			return false, fmt.Errorf("look for a repository: %w", err)
		}
		return true, nil
	}
	return false, nil
}

func blobs(ctx context.Context, st store.Reader, folder string, provider enginev1alpha1.StorageProvider) iter.Seq2[blob.ID, error] {
	return func(yield func(blob.ID, error) bool) {
		for object, err := range st.List(ctx, folder, store.ListOptions{Recursive: true}) {
			name := strings.TrimPrefix(object.Key, folder)
			if provider == enginev1alpha1.StorageProviderFilesystem {
				var isBlob bool
				// Kopia cuts long names into folders; these are short.
				if name, isBlob = strings.CutSuffix(name, sharded.CompleteBlobSuffix); !isBlob && err == nil {
					continue
				}
			}
			if !yield(blob.ID(name), err) {
				return
			}
		}
	}
}

// Create ensures that a namespace's repository exists, is set up, and opens with the key. It is
// idempotent. It fails with ErrWrongKey, or with ErrDamaged for data that no key can open.
func Create(ctx context.Context, loc Location, namespace string, key Key) error {
	if key == "" {
		return errors.New("the key of the repository is empty")
	}
	if _, err := folderOf(namespace); err != nil {
		return err
	}
	bucket, err := loc.open(ctx)
	if err != nil {
		return err
	}
	if err := initialize(ctx, bucket, loc.Spec.Provider, namespace, key); err != nil {
		return errors.Join(err, bucket.Close())
	}
	r, err := open(ctx, bucket, loc.Spec.Provider, namespace, key, "", nil)
	if err != nil {
		return err
	}
	return errors.Join(r.setUp(ctx), r.Close(ctx))
}

type creatable interface {
	store.Reader
	store.Remover
	Create(ctx context.Context, key string, content []byte) error
}

// initialize creates the repository, unless it exists, by one conditional write of its format: a
// stopped or concurrent process leaves no other format under existing data.
func initialize(ctx context.Context, st creatable, provider enginev1alpha1.StorageProvider, namespace string, key Key) error {
	folder, err := folderOf(namespace)
	if err != nil {
		return err
	}
	objectOf := func(id blob.ID) string {
		if provider == enginev1alpha1.StorageProviderFilesystem {
			return folder + string(id) + sharded.CompleteBlobSuffix
		}
		return folder + string(id)
	}
	_, err = st.Attributes(ctx, objectOf(format.KopiaRepositoryBlobID))
	if err == nil {
		return nil
	}
	if !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("look for the repository's format: %w", err)
	}

	unfinished := false
	for id, err := range blobs(ctx, st, folder, provider) {
		switch {
		case err != nil:
			return fmt.Errorf("look into the repository's folder: %w", err)
		case id == format.KopiaRepositoryBlobID:
			return nil
		case id != format.KopiaBlobCfgBlobID:
			return ErrDamaged
		}
		unfinished = true
	}
	if unfinished {
		// Kopia writes this blob first, and refuses to continue after a stop there. No other format
		// needs it, so a late removal is harmless.
		rest, err := st.Attributes(ctx, objectOf(format.KopiaBlobCfgBlobID))
		if err == nil {
			err = st.Delete(ctx, rest)
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrChanged) {
			return fmt.Errorf("remove the rest of an unfinished initialisation: %w", err)
		}
	}

	content, err := newFormat(ctx, namespace, key)
	if err != nil {
		return fmt.Errorf("initialise the repository: %w", err)
	}
	err = st.Create(ctx, objectOf(format.KopiaRepositoryBlobID), content)
	if err != nil && !errors.Is(err, store.ErrExists) {
		return fmt.Errorf("initialise the repository: %w", err)
	}
	return nil
}

// newFormat returns kopia.repository. Kopia's other blob, kopia.blobcfg, only sets a retention.
func newFormat(ctx context.Context, namespace string, key Key) ([]byte, error) {
	opts, err := newRepositoryOptions(namespace, key)
	if err != nil {
		return nil, err
	}
	staged := &staging{blobs: map[blob.ID][]byte{}}
	if err := repo.Initialize(ctx, staged, opts, string(key)); err != nil {
		return nil, err
	}
	return shortenEpochs(ctx, staged.blobs[format.KopiaRepositoryBlobID], key)
}

// Each upload writes an index or two, which each opening reads until a maintenance joins an
// epoch's. That needs two later epochs, of a day in Kopia.
const (
	minEpoch = 6 * time.Hour
	// rangeEpochs are joined again: a week, as Kopia's default.
	rangeEpochs = 28
)

// shortenEpochs changes a new format: Kopia's initialisation has no such option.
func shortenEpochs(ctx context.Context, data []byte, key Key) ([]byte, error) {
	st := &formatOnly{staging: staging{blobs: map[blob.ID][]byte{}}, data: data}
	manager, err := format.NewManager(ctx, st, "", -1, string(key), time.Now)
	if err != nil {
		return nil, err
	}
	parameters, err := manager.GetMutableParameters(ctx)
	if err != nil {
		return nil, err
	}
	retention, err := manager.BlobCfgBlob(ctx)
	if err != nil {
		return nil, err
	}
	features, err := manager.RequiredFeatures(ctx)
	if err != nil {
		return nil, err
	}
	parameters.EpochParameters.MinEpochDuration = minEpoch
	parameters.EpochParameters.FullCheckpointFrequency = rangeEpochs
	if err := manager.SetParameters(ctx, parameters, retention, features); err != nil {
		return nil, err
	}
	return st.blobs[format.KopiaRepositoryBlobID], nil
}

type staging struct {
	blob.Storage
	blobs map[blob.ID][]byte
}

func (s *staging) GetBlob(context.Context, blob.ID, int64, int64, blob.OutputBuffer) error {
	return blob.ErrBlobNotFound
}

func (s *staging) PutBlob(_ context.Context, id blob.ID, data blob.Bytes, _ blob.PutOptions) error {
	var content bytes.Buffer
	_, err := data.WriteTo(&content)
	s.blobs[id] = content.Bytes()
	return err
}

func (r *Repository) setUp(ctx context.Context) error {
	params, err := maintenance.GetParams(ctx, r.direct)
	if err != nil {
		return fmt.Errorf("read the repository's maintenance parameters: %w", err)
	}
	_, err = policy.GetDefinedPolicy(ctx, r.direct, policy.GlobalPolicySourceInfo)
	if err != nil && !errors.Is(err, policy.ErrPolicyNotFound) {
		return fmt.Errorf("read the repository's policy: %w", err)
	}
	owner := r.direct.ClientOptions().UsernameAtHost()
	if hasPolicy := err == nil; params.Owner != owner || !hasPolicy {
		err := repo.WriteSession(ctx, r.direct, repo.WriteSessionOptions{Purpose: "set up"}, func(ctx context.Context, w repo.RepositoryWriter) error {
			if params.Owner != owner {
				p := maintenance.DefaultParams()
				p.Owner = owner
				if err := maintenance.SetParams(ctx, w, &p); err != nil {
					return err
				}
			}
			if hasPolicy {
				return nil
			}
			return policy.SetPolicy(ctx, w, policy.GlobalPolicySourceInfo, keepEverything())
		})
		if err != nil {
			return fmt.Errorf("set up the repository: %w", err)
		}
	}

	object := r.storage.key(markerBlob)
	if _, err := r.storage.bucket.Attributes(ctx, object); err == nil {
		return nil
	} else if !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("look for the repository's marker: %w", err)
	}
	marker, err := json.Marshal(struct {
		UniqueID []byte `json:"uniqueID"`
	}{r.direct.UniqueID()})
	if err != nil {
		return err
	}
	if err := r.storage.bucket.Put(ctx, object, marker); err != nil {
		return fmt.Errorf("write the repository's marker: %w", err)
	}
	return nil
}

// keepEverything returns the repository's policy. By Kopia's default, each checkpoint of an upload
// would delete older snapshots of its volume.
func keepEverything() *policy.Policy {
	all := policy.OptionalInt(math.MaxInt32)
	return &policy.Policy{
		RetentionPolicy: policy.RetentionPolicy{
			KeepLatest: &all, KeepHourly: &all, KeepDaily: &all,
			KeepWeekly: &all, KeepMonthly: &all, KeepAnnual: &all,
		},
		SchedulingPolicy: policy.SchedulingPolicy{Manual: true},
	}
}
