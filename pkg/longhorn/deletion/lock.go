// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/pkg/longhorn"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// ErrLocked: Longhorn holds a lock on the volume. Try again later.
var ErrLocked = errors.New("the volume is being backed up or restored by Longhorn")

// errLockLost: the lock was not renewed in time, so others may ignore it.
var errLockLost = errors.New("the lock on the volume could not be kept: the deletion goes on when it is tried again")

// safely is the age at which others ignore our lock, less a removal's time.
const safely = longhorn.LockExpires - 45*time.Second

type lock struct {
	d   *Deleter
	key string
	own longhorn.Lock

	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	written time.Time // time before the last write; guarded by mu
	lost    bool      // it was too old at some time; guarded by mu
}

// acquire takes a lock as Longhorn does, or fails with ErrLocked. It compares locks by the store's
// clock.
func (d *Deleter) acquire(ctx context.Context, volume string) (_ *lock, err error) {
	random := make([]byte, 8)
	_, _ = rand.Read(random)
	l := &lock{d: d, own: longhorn.Lock{Name: "lock-" + hex.EncodeToString(random), Type: longhorn.LockDeletion}}
	l.key = longhorn.LockKey(volume, l.own.Name)
	refreshing, stop := context.WithCancel(ctx)
	l.stop = stop
	if err := l.write(ctx); err != nil {
		stop()
		return nil, err
	}
	defer func() {
		if err != nil {
			l.release(ctx)
		}
	}()
	settled := d.Clock.NewTimer(longhorn.LockSettles)
	defer settled.Stop()
	select {
	case <-settled.C():
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := l.yield(ctx, volume); err != nil {
		return nil, err
	}
	l.own.Acquired = true
	if err := l.write(ctx); err != nil {
		return nil, err
	}
	if err := l.check(); err != nil {
		return nil, err
	}
	l.done.Go(func() { l.refresh(refreshing) })
	return l, nil
}

func (l *lock) yield(ctx context.Context, volume string) error {
	var others []store.Object
	var own store.Object
	for object, err := range l.d.Store.List(ctx, longhorn.LocksPrefix(volume), store.ListOptions{}) {
		if err != nil {
			return err
		}
		if _, ok := longhorn.LockOf(object.Key); !ok || object.IsFolder {
			continue
		}
		if object.Key == l.key {
			own = object
		} else {
			others = append(others, object)
		}
	}
	if own.Key == "" {
		return errLockLost
	}
	now := own.ModTime.Add(l.age())
	for _, object := range others {
		if now.Sub(object.ModTime) > longhorn.LockExpires {
			continue
		}
		content, err := l.d.Store.Get(ctx, object.Key)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		other, err := longhorn.ReadLock(content)
		content.Close()
		if err != nil {
			if isStores(err) {
				return err
			}
			continue // as Longhorn does
		}
		// Longhorn compares whole seconds.
		equal := object.ModTime.Truncate(time.Second).Equal(own.ModTime.Truncate(time.Second))
		older := object.ModTime.Before(own.ModTime) || equal && object.Key < own.Key
		if other.Type != longhorn.LockDeletion && (other.Acquired || older) {
			return fmt.Errorf("%w: %s", ErrLocked, object.Key)
		}
	}
	return nil
}

func (l *lock) write(ctx context.Context) error {
	begun := l.d.Clock.Now().Round(0)
	if err := l.d.Store.Put(ctx, l.key, l.own.Encode()); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// A lock that was once ignored stays lost: another process may work.
	l.lost = l.lost || !l.written.IsZero() && l.since(l.written) > safely
	l.written = begun
	return nil
}

// since uses the wall clock, which goes on while a machine sleeps.
func (l *lock) since(instant time.Time) time.Duration {
	return l.d.Clock.Now().Round(0).Sub(instant).Abs()
}

func (l *lock) age() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since(l.written)
}

// check fails when others may ignore the lock, or may have.
func (l *lock) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost || l.since(l.written) > safely {
		return errLockLost
	}
	return nil
}

func (l *lock) refresh(ctx context.Context) {
	ticker := l.d.Clock.NewTicker(longhorn.LockRefreshed)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C():
			if err := l.write(ctx); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Info("Could not write a lock again", "key", l.key, "reason", store.Reason(err))
			}
		case <-ctx.Done():
			return
		}
	}
}

// release removes the lock. If that fails, it expires.
func (l *lock) release(ctx context.Context) {
	l.stop()
	l.done.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := l.d.Store.Remove(ctx, l.key); err != nil {
		klog.FromContext(ctx).Info("Could not remove a lock, which expires", "key", l.key, "reason", store.Reason(err))
	}
}
