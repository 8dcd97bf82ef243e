// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/format"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/snapshot/policy"
)

// markerBlob tells Velero that the repository is set up. Its content names the
// repository's unique id. Source: Velero, pkg/repository/udmrepo/kopialib.
const markerBlob blob.ID = "udmrepo.Repository"

// errSomething ends a listing at its first blob.
var errSomething = errors.New("there is something")

// Exists reports whether anything lies in the folder of a namespace's
// repository, be it complete or not.
func Exists(ctx context.Context, loc Location, namespace string) (bool, error) {
	st, err := connect(ctx, loc, namespace, false)
	if errors.Is(err, ErrNotInitialized) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer st.Close(context.WithoutCancel(ctx))
	err = st.ListBlobs(ctx, "", func(blob.Metadata) error { return errSomething })
	if err != nil && !errors.Is(err, errSomething) {
		return false, fmt.Errorf("look for a repository: %w", err)
	}
	return err != nil, nil
}

// Create makes sure that the repository of a namespace exists, is set up, and
// opens with the key. It may be repeated, and completes what an earlier call
// left unfinished. It fails with ErrWrongKey if the repository has another key,
// and with ErrDamaged if it has data that no key can open.
func Create(ctx context.Context, loc Location, namespace string, key Key) error {
	if key == "" {
		return errors.New("the key of the repository is empty")
	}
	st, err := connect(ctx, loc, namespace, true)
	if err != nil {
		return err
	}
	if err := initialize(ctx, st, namespace, key); err != nil {
		return errors.Join(err, st.Close(context.WithoutCancel(ctx)))
	}
	r, err := open(ctx, st, key, Options{})
	if err != nil {
		return errors.Join(err, st.Close(context.WithoutCancel(ctx)))
	}
	return errors.Join(r.setUp(ctx, st), r.Close(ctx))
}

// initialize writes the repository's format, unless it is there.
func initialize(ctx context.Context, st blob.Storage, namespace string, key Key) error {
	_, err := st.GetMetadata(ctx, format.KopiaRepositoryBlobID)
	if err == nil {
		return nil
	}
	if !errors.Is(err, blob.ErrBlobNotFound) {
		return fmt.Errorf("look for the repository's format: %w", err)
	}

	unfinished := false
	err = st.ListBlobs(ctx, "", func(b blob.Metadata) error {
		if b.BlobID != format.KopiaBlobCfgBlobID {
			return ErrDamaged
		}
		unfinished = true
		return nil
	})
	if errors.Is(err, ErrDamaged) {
		return ErrDamaged
	}
	if err != nil {
		return fmt.Errorf("look into the repository's folder: %w", err)
	}
	if unfinished {
		// Kopia writes kopia.blobcfg before kopia.repository, and refuses to go on
		// when it was stopped in between.
		if err := st.DeleteBlob(ctx, format.KopiaBlobCfgBlobID); err != nil {
			return fmt.Errorf("remove the rest of an unfinished initialisation: %w", err)
		}
	}

	opts, err := newRepositoryOptions(namespace, key)
	if err != nil {
		return err
	}
	err = repo.Initialize(ctx, st, opts, string(key))
	if err != nil && !errors.Is(err, repo.ErrAlreadyInitialized) {
		return fmt.Errorf("initialise the repository: %w", err)
	}
	return nil
}

// setUp writes what a repository needs besides its format: the owner of its
// maintenance, a policy, and Velero's marker.
func (r *Repository) setUp(ctx context.Context, st blob.Storage) error {
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

	if _, err := st.GetMetadata(ctx, markerBlob); err == nil {
		return nil
	} else if !errors.Is(err, blob.ErrBlobNotFound) {
		return fmt.Errorf("look for the repository's marker: %w", err)
	}
	marker, err := json.Marshal(struct {
		UniqueID []byte `json:"uniqueID"`
	}{r.direct.UniqueID()})
	if err != nil {
		return err
	}
	if err := st.PutBlob(ctx, markerBlob, rawBlob(marker), blob.PutOptions{}); err != nil {
		return fmt.Errorf("write the repository's marker: %w", err)
	}
	return nil
}

// keepEverything is the policy of the repository. With Kopia's default each
// checkpoint of a long upload would delete older snapshots of its volume.
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

// rawBlob implements blob.Bytes.
type rawBlob []byte

func (b rawBlob) Length() int { return len(b) }

func (b rawBlob) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(b)
	return int64(n), err
}

func (b rawBlob) Reader() io.ReadSeekCloser { return nopCloser{bytes.NewReader(b)} }

type nopCloser struct{ io.ReadSeeker }

func (nopCloser) Close() error { return nil }
