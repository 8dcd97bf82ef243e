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
	// ceilingAnnotation is above every version that the holder may have issued before
	// its next renewal.
	ceilingAnnotation = "holdfast.io/versions-below"
	// headroom is more than anybody can issue within Validity.
	headroom = 1 << 26
)

var errLost = errors.New("another replica has taken over the Lease")

// lock is the Lease as one campaign sees it. Unlike client-go's, it notes when a
// renewal was sent, writes down which versions are used up, and never touches a Lease
// again that another replica has held since. The elector calls it from one goroutine.
type lock struct {
	config Config
	term   *Term
	stop   func() // ends the campaign

	lease    *coordinationv1.Lease // as it was read or written last
	acquired bool
	lost     bool
	first    uint64 // the version that the term begins at
}

var _ resourcelock.Interface = &lock{}

// Get implements resourcelock.Interface.
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
	// The record has seconds only, and a renewal that can't be told from the one before
	// would not count.
	raw, err := json.Marshal([]any{record, lease.UID, lease.ResourceVersion})
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: l.config.Name}}
	return l.write(ctx, record, func(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
		return l.config.Leases.Create(ctx, lease, metav1.CreateOptions{})
	})
}

// Update implements resourcelock.Interface.
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
		l.term.end() // it gives the Lease back: from here on another replica may serve
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
	if !l.acquired { // else first is read by those whom the elector has told
		l.acquired, l.first = true, first
	}
	l.term.renewed.Store(&sent)
	return nil
}

// ceiling reads the annotation. One that nobody can read counts as none.
func ceiling(lease *coordinationv1.Lease) uint64 {
	version, err := strconv.ParseUint(lease.Annotations[ceilingAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return version
}

// versionAt is the version that a log begins at when it is born at a time: see
// pkg/registry/logstore.
func versionAt(seconds int64) uint64 { return uint64(max(seconds, 0)) << 20 }

// RecordEvent implements resourcelock.Interface.
func (l *lock) RecordEvent(string) {}

// Identity implements resourcelock.Interface.
func (l *lock) Identity() string { return l.config.Identity }

// Describe implements resourcelock.Interface.
func (l *lock) Describe() string { return "the Lease " + l.config.Name }
