// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package opener

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/repository"
)

const (
	openTimeout = 2 * time.Minute
	// An unused repository stays open for at least idleFor, at most mostIdle of them.
	idleFor  = 2 * time.Minute
	mostIdle = 4
)

var errNoAnswer = fmt.Errorf("the store has not answered within %s", openTimeout)

// Shared keeps repositories of records open: opening takes a dozen requests and the derivation of a
// key.
//
//   - Each use reads Secrets, records and locations again, and shares only an opening with equal ones.
//     It sees no replaced repository.
//   - After a failed use, the next one opens the repository anew.
//   - Concurrent users open it once. A failed opening is not kept, and an opening without waiting users
//     is cancelled.
//   - It is closed when idle, to make room, or at the end of Run; after the last use if others need its
//     indexes' memory.
type Shared struct {
	Repositories enginelisters.VolumeRepositoryNamespaceLister
	Locations    enginelisters.StorageLocationNamespaceLister
	Options      repository.Options
	// Indexes waits until a repository's indexes may take so many bytes, and returns a function
	// that ends it. Nil: no limit.
	Indexes func(ctx context.Context, bytes int64) (done func(), err error)
	Clock   clock.WithTicker

	mu     sync.Mutex
	open   map[string]*opening
	ending bool
}

type source struct {
	Record    types.UID
	Namespace string
	Location  repository.Location
	Key       string
	Others    []repository.Key
	// Damage is what the store has lost; an opening is not reused after it changes.
	Damage *enginev1alpha1.RepositoryDamage

	// credentials selects the location's among Secrets, which may change meanwhile.
	credentials func(ctx context.Context, secrets []corev1.Secret) (map[string][]byte, error)
}

type opening struct {
	name string
	// of is the source's digest, which keeps no secret.
	of     [sha256.Size]byte
	cancel func()
	// opened is closed when repository or err is set.
	opened     chan struct{}
	repository *repository.Repository
	err        error
	// looking is full during a refresh, and guards seen: everything stored before is visible.
	looking chan struct{}
	seen    time.Time
	// indexes frees the memory of large indexes, or is nil. looking guards it and measured.
	indexes  func()
	measured bool

	// users counts users and waiting ones; idle is since when there are none. The mutex of Shared
	// guards both, and readers.
	users int
	idle  time.Time
	// readers read Secrets with the users' rights.
	readers []*Secrets
}

// Secrets returns a user's Secrets for a repository: its key and its location's credentials.
type Secrets func(ctx context.Context) ([]corev1.Secret, error)

type given struct {
	namespace string
	secrets   []corev1.Secret
}

func (g given) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Secret, error) {
	for i := range g.secrets {
		if secret := &g.secrets[i]; secret.Namespace == g.namespace && secret.Name == name {
			return secret, nil
		}
	}
	return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
}

// Use calls do with a record's repository. Everything stored before asked is visible. The context
// of do also ends if the repository becomes unusable.
func (s *Shared) Use(ctx context.Context, name string, secrets Secrets, asked time.Time, do func(ctx context.Context, r *repository.Repository) error) error {
	o, err := s.enter(ctx, name, &secrets, asked)
	if err != nil {
		return err
	}
	working, stop := o.repository.While(ctx)
	defer stop()
	if err = do(working, o.repository); err != nil && working.Err() != nil {
		err = context.Cause(working)
	}
	s.leave(ctx, o, &secrets, err == nil)
	return err
}

// enter returns a ready opening, for which the caller calls leave.
func (s *Shared) enter(ctx context.Context, name string, secrets *Secrets, asked time.Time) (*opening, error) {
	for {
		what, err := s.source(ctx, name, *secrets)
		if err != nil {
			return nil, err
		}
		o, mine, err := s.join(ctx, name, secrets, what)
		if err != nil {
			return nil, err
		}
		select {
		case <-o.opened:
		case <-ctx.Done():
			s.leave(ctx, o, secrets, true)
			return nil, context.Cause(ctx)
		}
		if o.err != nil {
			s.leave(ctx, o, secrets, false)
			return nil, o.err
		}
		if err = s.look(ctx, o, asked); err == nil {
			return o, nil
		}
		s.leave(ctx, o, secrets, false)
		if mine || ctx.Err() != nil {
			return nil, fmt.Errorf("VolumeRepository %s: %w", name, err)
		}
		klog.FromContext(ctx).V(2).Info("The repository is opened anew", "repository", name, "err", err)
	}
}

func (s *Shared) source(ctx context.Context, name string, secrets Secrets) (source, error) {
	record, err := s.Repositories.Get(name)
	if err != nil {
		return source{}, fmt.Errorf("find the repository: %w", err)
	}
	stored, err := s.Locations.Get(record.Spec.BackupStorageLocation)
	if err != nil {
		return source{}, fmt.Errorf("find the storage location of VolumeRepository %s: %w", name, err)
	}
	read, err := secrets(ctx)
	if err != nil {
		return source{}, fmt.Errorf("read the Secrets of VolumeRepository %s: %w", name, err)
	}
	among := func(secrets []corev1.Secret) location.Secrets {
		return given{enginev1alpha1.CredentialsNamespace(record.Namespace), secrets}
	}
	where, err := Where(ctx, among(read), stored)
	if err != nil {
		return source{}, err
	}
	key, others, err := Keys(ctx, given{enginev1alpha1.KeysNamespace(record.Namespace), read}, name)
	if err != nil {
		return source{}, err
	}
	return source{
		Record:    record.UID,
		Namespace: record.Spec.VolumeNamespace,
		Location:  where,
		Key:       string(key),
		Others:    others,
		Damage:    record.Status.Damage,

		credentials: func(ctx context.Context, secrets []corev1.Secret) (map[string][]byte, error) {
			return location.Credentials(ctx, among(secrets), stored)
		},
	}, nil
}

// join adds a user to the opening of what. If mine, it is new, and the caller opens it.
func (s *Shared) join(ctx context.Context, name string, secrets *Secrets, what source) (o *opening, mine bool, err error) {
	encoded, err := json.Marshal(what)
	if err != nil {
		return nil, false, err
	}
	of := sha256.Sum256(encoded)
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.open[name]; o != nil {
		if o.of == of {
			o.users++
			o.readers = append(o.readers, secrets)
			return o, false, nil
		}
		s.dropLocked(o)
		if o.users == 0 {
			go o.close(ctx)
		}
	}
	// The opening continues for other users.
	work, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), openTimeout, errNoAnswer)
	o = &opening{name: name, of: of, users: 1, readers: []*Secrets{secrets}, cancel: cancel, opened: make(chan struct{}), looking: make(chan struct{}, 1)}
	if s.open == nil {
		s.open = map[string]*opening{}
	}
	s.open[name] = o
	what.Location.Again = func(ctx context.Context) (map[string][]byte, error) { return s.again(ctx, o, what) }
	go s.begin(work, o, what)
	return o, true, nil
}

func (s *Shared) again(ctx context.Context, o *opening, what source) (map[string][]byte, error) {
	s.mu.Lock()
	readers := slices.Clone(o.readers)
	s.mu.Unlock()
	err := fmt.Errorf("nobody uses the repository %s now", o.name)
	for _, read := range readers {
		var secrets []corev1.Secret
		if secrets, err = (*read)(ctx); err == nil {
			return what.credentials(ctx, secrets)
		}
	}
	return nil, err
}

func (s *Shared) begin(ctx context.Context, o *opening, what source) {
	defer o.cancel()
	seen := s.Clock.Now()
	options := s.Options
	options.Others, options.Damaged = what.Others, what.Damage.KnownPacks()
	opened, err := repository.Open(ctx, what.Location, what.Namespace, repository.Key(what.Key), options)
	if err != nil {
		err = fmt.Errorf("VolumeRepository %s: %w", o.name, cmp.Or(context.Cause(ctx), err))
	}
	s.mu.Lock()
	o.repository, o.err, o.seen = opened, err, seen
	if err != nil {
		s.dropLocked(o)
	}
	close(o.opened)
	abandoned := o.users == 0 && opened != nil
	s.mu.Unlock()
	if abandoned {
		o.close(ctx)
	}
}

// look makes visible what was stored before asked, once the indexes may be in memory.
func (s *Shared) look(ctx context.Context, o *opening, asked time.Time) error {
	ctx, stop := o.repository.While(ctx)
	defer stop()
	select {
	case o.looking <- struct{}{}:
		defer func() { <-o.looking }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !o.measured {
		measuring, cancel := context.WithTimeoutCause(ctx, openTimeout, errNoAnswer)
		bytes, err := o.repository.IndexBytes(measuring)
		cancel()
		if err != nil {
			return err
		}
		if o.indexes, err = s.Indexes(ctx, bytes); err != nil {
			return err
		}
		o.measured = true
	}
	if !o.seen.Before(asked) {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, openTimeout, errNoAnswer)
	defer cancel()
	seen := s.Clock.Now()
	if err := o.repository.Refresh(ctx); err != nil {
		return err
	}
	o.seen = seen
	return nil
}

// leave ends a use. After a failed one the opening is not used again.
func (s *Shared) leave(ctx context.Context, o *opening, secrets *Secrets, good bool) {
	s.mu.Lock()
	o.users--
	if i := slices.Index(o.readers, secrets); i >= 0 {
		o.readers = slices.Delete(o.readers, i, i+1)
	}
	o.idle = s.Clock.Now()
	if !good || o.users == 0 && (o.repository == nil || o.indexes != nil) {
		s.dropLocked(o)
	}
	unused := s.unusedLocked()
	switch {
	case s.open[o.name] == o || o.users > 0:
	case o.repository == nil:
		o.cancel() // its opener closes it
	case !slices.Contains(unused, o):
		unused = append(unused, o)
	}
	s.mu.Unlock()
	for _, o := range unused {
		o.close(ctx)
	}
}

func (s *Shared) dropLocked(o *opening) {
	if s.open[o.name] == o {
		delete(s.open, o.name)
	}
}

func (s *Shared) unusedLocked() (unused []*opening) {
	var idle []*opening
	for _, o := range s.open {
		if o.users == 0 {
			idle = append(idle, o)
		}
	}
	slices.SortFunc(idle, func(a, b *opening) int { return b.idle.Compare(a.idle) })
	now := s.Clock.Now()
	for i, o := range idle {
		if s.ending || i >= mostIdle || now.Sub(o.idle) >= idleFor {
			s.dropLocked(o)
			unused = append(unused, o)
		}
	}
	return unused
}

func (o *opening) close(ctx context.Context) {
	if o.indexes != nil {
		defer o.indexes()
	}
	if err := o.repository.Close(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "A repository can't be closed", "repository", o.name)
	}
}

// Run closes idle repositories until ctx ends; then all, after their uses.
func (s *Shared) Run(ctx context.Context) {
	ticker := s.Clock.NewTicker(idleFor / 4)
	defer ticker.Stop()
	for ending := false; !ending; { // the last turn must know that it is the last
		select {
		case <-ticker.C():
		case <-ctx.Done():
		}
		ending = ctx.Err() != nil
		s.mu.Lock()
		s.ending = ending
		unused := s.unusedLocked()
		s.mu.Unlock()
		for _, o := range unused {
			o.close(ctx)
		}
	}
}
