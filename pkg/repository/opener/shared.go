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

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/repository"
)

const (
	// openTimeout is how long a store may take to let a repository be opened, or looked
	// at again.
	openTimeout = 2 * time.Minute
	// idleFor is how long a repository that nobody uses stays open at least, and mostIdle how
	// many of them do.
	idleFor  = 2 * time.Minute
	mostIdle = 4
)

// errNoAnswer: the store has taken too long.
var errNoAnswer = fmt.Errorf("the store has not answered within %s", openTimeout)

// Shared keeps the repositories of records open for those who use them at once or one
// after another: to open one takes a dozen requests and the derivation of a key.
//
// What it promises:
//   - Secrets, records and locations are read at each use, and a repository is used only
//     by those for whom nothing of that has changed since it was opened.
//   - Whoever uses it sees all that was stored before the work was asked for, whoever
//     stored it, and gets no repository that was replaced or has gone before that.
//   - When any use has failed, nobody begins another one: who comes next opens it anew. So
//     no error outlives the work that it befell.
//   - Of those who come while it is being opened, one opens it. An opening that fails is not
//     remembered, and one that nobody waits for any more is given up.
//   - It is closed when its last use has ended and it was idle for a while, or has made room
//     for others that are, or Run has ended. One whose indexes take memory that others need
//     is closed at once.
type Shared struct {
	// Repositories and Locations of the system namespace.
	Repositories enginelisters.VolumeRepositoryNamespaceLister
	Locations    enginelisters.StorageLocationNamespaceLister
	// Options for every repository.
	Options repository.Options
	// Indexes waits until the indexes of a repository may take so many bytes, and returns what
	// ends that; nil if nobody else needs the memory.
	Indexes func(ctx context.Context, bytes int64) (done func(), err error)
	Clock   clock.WithTicker

	mu     sync.Mutex
	open   map[string]*opening // by the record's name: those that may be used
	ending bool
}

// source is all that an opening depends on.
type source struct {
	Record    types.UID
	Namespace string
	Location  repository.Location
	Key       string
	Others    []repository.Key
	// Damage is what its store has lost: what an opening believes of its packs is older.
	Damage *engine.RepositoryDamage

	// credentials finds those of the location among Secrets. They change while it is open.
	credentials func(ctx context.Context, secrets []corev1.Secret) (map[string][]byte, error)
}

// opening is of a repository that is open, or will be.
type opening struct {
	name string
	// of tells of what it is an opening, without keeping a secret.
	of     [sha256.Size]byte
	cancel func() // of what opens it
	// opened is closed when repository or err is set.
	opened     chan struct{}
	repository *repository.Repository
	err        error
	// looking is full while someone looks at what was stored since, and guards seen: all
	// that was stored before is visible.
	looking chan struct{}
	seen    time.Time
	// indexes gives back the memory that the indexes take from others; nil if they take none.
	// It is set under looking, and measured once they were measured.
	indexes  func()
	measured bool

	// users of it, or who wait for it, and since when there are none. The mutex of Shared
	// guards them.
	users int
	idle  time.Time
	// readers read the Secrets with the rights of those users. The mutex guards them, too.
	readers []*Secrets
}

// Secrets gives those that whoever asks has for a repository: its key, and the credentials of
// its storage location.
type Secrets func(ctx context.Context) ([]corev1.Secret, error)

// given are the Secrets of one namespace of those that were given.
type given struct {
	namespace string
	secrets   []corev1.Secret
}

// Get implements location.Secrets.
func (g given) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Secret, error) {
	for i := range g.secrets {
		if secret := &g.secrets[i]; secret.Namespace == g.namespace && secret.Name == name {
			return secret, nil
		}
	}
	return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
}

// Use calls do with the repository of the record of that name. What was stored before the
// moment asked is visible in it. The context that do gets ends also when the repository
// can't be used any more.
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

// enter returns an opening that is ready, and which the caller leaves.
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

// source reads what an opening depends on.
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
		return given{engine.CredentialsNamespace(record.Namespace), secrets}
	}
	where, err := Where(ctx, among(read), stored)
	if err != nil {
		return source{}, err
	}
	key, others, err := Keys(ctx, given{engine.KeysNamespace(record.Namespace), read}, name)
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

// join returns the opening of what, for one user more. It is the caller's own if there was
// none: then it begins.
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
	// It goes on for others who wait when this one does not any more.
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

// again reads the credentials of an opening with the rights of those who use it now.
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

// begin opens a repository.
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

// look makes visible what was stored before the moment asked, once the indexes may be in
// memory.
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

// leave ends a use. After one that was not good nobody begins another.
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
		o.cancel() // and whoever opens it closes it
	case !slices.Contains(unused, o):
		unused = append(unused, o)
	}
	s.mu.Unlock()
	for _, o := range unused {
		o.close(ctx)
	}
}

// dropLocked has nobody begin another use of an opening.
func (s *Shared) dropLocked(o *opening) {
	if s.open[o.name] == o {
		delete(s.open, o.name)
	}
}

// unusedLocked drops the openings that were idle for long enough, and returns them.
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

// close closes what nobody uses or will.
func (o *opening) close(ctx context.Context) {
	if o.indexes != nil {
		defer o.indexes()
	}
	if err := o.repository.Close(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "A repository can't be closed", "repository", o.name)
	}
}

// Run closes what was idle for a while, until ctx ends; then also what is in use, when
// that has ended.
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
