// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package storagelocation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	claimInterval = 5 * time.Minute
	// claimPatience is the time after which another process's unchanged claim counts as dead.
	claimPatience = 2*claimInterval + checkInterval
	// claimChanges is how many renewals of another's claim prove that it lives:
	// docs/design/cloned-clusters.md.
	claimChanges = 2
	// leaseSlack is how long a process may work after its last renewal of the Lease.
	leaseSlack = 30 * time.Second
)

type claimant struct {
	mu      sync.Mutex
	storeID string
	next    time.Time
	// renewals counts this process's writes: if positive, it has led since.
	renewals int64
	// seen is another process's claim, since when, and changes its renewals.
	seen    *format.Claim
	since   time.Time
	changes int
	reason  string
	// ignores: the store ignores conditions, known once probed.
	probed, ignores bool
}

// judge returns whether to write the own claim in place of the found one. If another cluster may write
// to the store, it returns the reason for ConditionClonedCluster, whose present reason is stands.
// accepted says that an administrator lets this cluster continue.
func (c *claimant) judge(now time.Time, nonce string, found *format.Claim, before lease.Predecessor, stands string, accepted bool) (write bool, reason string) {
	if stands == "" {
		stands = c.reason // the condition may not be written
	}
	write, c.reason = c.decide(now, nonce, found, before, stands, accepted)
	if write {
		c.seen, c.changes = nil, 0
	}
	return write, c.reason
}

func (c *claimant) decide(now time.Time, nonce string, found *format.Claim, before lease.Predecessor, stands string, accepted bool) (write bool, reason string) {
	if found == nil || found.Nonce == nonce || accepted && stands != "" {
		return true, ""
	}
	if stands == enginev1alpha1.ReasonClaimedElsewhere {
		return false, stands
	}
	switch {
	case c.seen == nil:
		fresh := c.renewals == 0 && stands == "" && before.Identity != ""
		newer := found.Written.After(before.Renewed.Add(leaseSlack))
		if fresh && !newer && found.Holder == before.Identity {
			return true, "" // the process whose Lease this one has taken
		}
		if fresh && newer {
			stands = enginev1alpha1.ReasonStateIsOlder
		}
		c.seen, c.since = found, now
	case found.Nonce != c.seen.Nonce:
		c.seen, c.since, c.changes = found, now, 0
	case *found != *c.seen:
		c.seen, c.since = found, now
		if c.changes++; c.changes >= claimChanges {
			return false, enginev1alpha1.ReasonClaimedElsewhere
		}
	case now.Sub(c.since) >= claimPatience:
		return true, ""
	}
	return false, stands
}

// claim claims a store, and returns the condition about other clusters; nil if unchanged.
func (c *Controller) claim(ctx context.Context, bucket *store.Bucket, record *enginev1alpha1.StorageLocation, storeID string) *metav1.Condition {
	of := c.claimant(record.Name, storeID)
	of.mu.Lock()
	defer of.mu.Unlock()
	now, stands := c.clock.Now(), meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionClonedCluster)
	reason, accepted := "", false
	if record.Cloned() {
		reason, accepted = stands.Reason, acceptedTakeOver(ctx, record, stands, now)
	}
	if now.Before(of.next) && !accepted {
		return nil
	}
	logger := klog.FromContext(ctx).WithValues("storageLocation", record.Name)
	found, err := c.readClaim(ctx, bucket)
	if err != nil {
		logger.Info("The claim of this cluster on the store can't be read; it will be looked at again", "err", err)
		return nil
	}
	write, told := of.judge(now, c.nonce, found, c.before, reason, accepted)
	if write {
		if err := c.writeClaim(ctx, bucket, of, found == nil, now); err != nil {
			logger.Info("The claim of this cluster on the store can't be written; it will be tried again", "err", err)
			return nil
		}
	}
	of.next = now.Add(claimInterval)
	switch {
	case told != "" && told != reason:
		return &metav1.Condition{Type: enginev1alpha1.ConditionClonedCluster, Status: metav1.ConditionTrue, Reason: told, Message: clonedMessage(record, told, found, of.since.Add(claimPatience))}
	case told == "" && reason != "":
		return &metav1.Condition{Type: enginev1alpha1.ConditionClonedCluster, Status: metav1.ConditionFalse, Reason: enginev1alpha1.ReasonClaimedHere, Message: "of this cluster's copies, this one alone writes to the store"}
	}
	return nil
}

func (c *Controller) claimant(location, storeID string) *claimant {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.claims[location]
	if of == nil || of.storeID != storeID {
		of = &claimant{storeID: storeID}
		c.claims[location] = of
	}
	return of
}

const conditionsIgnored = "it writes objects that must be new over others, so no other cluster may write there: docs/locations.md"

// ignoresConditions reports whether a store ignores the condition of conditional writes. It asks once,
// and again if the store could not answer.
func (c *claimant) ignoresConditions(ctx context.Context, bucket *store.Bucket) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.probed && lease.Holds(ctx) {
		heeds, err := bucket.KeepsConditions(ctx)
		c.probed = !errors.Is(err, store.ErrUnavailable)
		c.ignores = err == nil && !heeds
	}
	return c.ignores
}

func (c *Controller) readClaim(ctx context.Context, bucket *store.Bucket) (*format.Claim, error) {
	content, err := bucket.Get(ctx, format.ClaimKey(c.clusterUID))
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer content.Close()
	data, err := io.ReadAll(io.LimitReader(content, format.MaxClaimBytes+1))
	if err != nil {
		return nil, err
	}
	claim, err := format.DecodeClaim(data)
	if err != nil {
		klog.FromContext(ctx).Info("The claim of this cluster on a store is damaged, and is written anew", "err", err)
		return &format.Claim{Nonce: c.nonce}, nil
	}
	return &claim, nil
}

// writeClaim writes this process's claim. The first is created: of two processes one fails, and decides
// at its next check.
func (c *Controller) writeClaim(ctx context.Context, bucket *store.Bucket, of *claimant, first bool, now time.Time) error {
	content, err := format.EncodeClaim(format.Claim{Nonce: c.nonce, Holder: c.identity, Renewals: of.renewals + 1, Written: now.UTC()})
	if err != nil {
		return err
	}
	if !lease.Holds(ctx) {
		return lease.ErrLost
	}
	write := bucket.Put
	if first {
		write = bucket.Create
	}
	if err := write(ctx, format.ClaimKey(c.clusterUID), content); err != nil {
		return err
	}
	of.renewals++
	return nil
}

func acceptedTakeOver(ctx context.Context, record *enginev1alpha1.StorageLocation, told *metav1.Condition, now time.Time) bool {
	text := takeOver(record)
	if text == "" {
		return false
	}
	until, err := time.Parse(time.RFC3339, text)
	if err != nil {
		klog.FromContext(ctx).Error(err, "An annotation can't be read", "storageLocation", record.Name, "annotation", enginev1alpha1.AnnotationTakeOver)
		return false
	}
	return !until.Before(told.LastTransitionTime.Time) && !until.After(now)
}

func takeOver(record *enginev1alpha1.StorageLocation) string {
	return record.Annotations[enginev1alpha1.AnnotationTakeOver]
}

func clonedMessage(record *enginev1alpha1.StorageLocation, reason string, found *format.Claim, until time.Time) string {
	command := fmt.Sprintf("kubectl annotate hfl %s -n %s --overwrite %s=$(date -u +%%FT%%TZ)", record.Name, record.Namespace, enginev1alpha1.AnnotationTakeOver)
	if reason == enginev1alpha1.ReasonStateIsOlder {
		return fmt.Sprintf("The controller %s has written to the store as one of this cluster, and the cluster's records do not know it: they are older than the store, as after etcd was brought back from a copy. "+
			"Until %s it is watched whether that controller lives. No backup starts here meanwhile, and nothing is deleted. If it does not live, this cluster can go on at once: %s",
			found.Holder, until.UTC().Format(time.RFC3339), command)
	}
	return fmt.Sprintf("Another cluster with the uid of this one writes to the store, with the controller %s: one of them is a copy, as of etcd. No backup starts here, and nothing is deleted. "+
		"Give one of them another store or prefix, or end it. If this one is to go on here, and the other one to stop: %s", found.Holder, command)
}
