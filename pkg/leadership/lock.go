// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package leadership

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

const (
	// ceilingAnnotation exceeds every version that the holder may issue before its next renewal.
	ceilingAnnotation = "holdfast.io/versions-below"
	// headroom exceeds what can be issued within Validity.
	headroom = 1 << 26
)

var errLost = errors.New("another replica has taken over the Lease")

// lock is the Lease for one campaign. Unlike client-go's, it records when renewals were sent and
// which versions are used, and never touches a Lease that another replica has held since. It is
// used by one goroutine.
type lock struct {
	config Config
	term   *Term
	stop   func()

	lease    *coordinationv1.Lease
	acquired bool
	lost     bool
	first    uint64
}

var _ resourcelock.Interface = &lock{}

func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, Validity)
	defer cancel()
	lease, err := l.config.Leases.Get(ctx, l.config.Name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	l.lease = lease
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	if l.acquired && record.HolderIdentity != l.config.Identity {
		klog.FromContext(ctx).Info("Another replica has taken over", "identity", l.config.Identity, "holder", record.HolderIdentity)
		l.lost = true
		l.term.end()
		l.stop()
	}
	// The record has seconds; renewals must differ to count.
	raw, err := json.Marshal([]any{record, lease.UID, lease.ResourceVersion})
	return record, raw, err
}

func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: l.config.Name}}
	return l.write(ctx, record, func(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
		return l.config.Leases.Create(ctx, lease, metav1.CreateOptions{})
	})
}

func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if l.acquired && !l.lost && record.HolderIdentity == l.config.Identity && l.term.isFresh() {
		return nil
	}
	return l.write(ctx, record, func(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
		return l.config.Leases.Update(ctx, lease, metav1.UpdateOptions{})
	})
}

func (l *lock) write(ctx context.Context, record resourcelock.LeaderElectionRecord, send func(context.Context, *coordinationv1.Lease) (*coordinationv1.Lease, error)) error {
	if record.HolderIdentity != l.config.Identity {
		l.term.end() // giving the Lease back: another replica may serve now
	}
	if l.lost {
		return errLost
	}
	ctx, cancel := context.WithTimeout(ctx, Validity)
	defer cancel()
	sent := l.config.Clock.Now()
	lease := l.lease.DeepCopy()
	issued, first := l.config.Issued(), l.first
	if !l.acquired {
		first = max(ceiling(lease), issued, versionAt(sent.Unix()))
	}
	lease.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&record)
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	lease.Annotations[ceilingAnnotation] = strconv.FormatUint(max(issued, first)+headroom, 10)
	lease, err := send(ctx, lease)
	if err != nil {
		return err
	}
	l.lease = lease
	if !l.acquired { // later first is read concurrently
		l.acquired, l.first = true, first
	}
	l.term.renewed.Store(&sent)
	return nil
}

func ceiling(lease *coordinationv1.Lease) uint64 {
	version, err := strconv.ParseUint(lease.Annotations[ceilingAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return version
}

// versionAt is the first version of a log that begins at a time (pkg/registry/logstore).
func versionAt(seconds int64) uint64 { return uint64(max(seconds, 0)) << 20 }

func (l *lock) RecordEvent(string) {}

func (l *lock) Identity() string { return l.config.Identity }

func (l *lock) Describe() string { return "the Lease " + l.config.Name }
