// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package storagelocation

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// probeTimeout bounds a probe, which has some ten requests.
const probeTimeout = 20 * time.Second

// Probe probes a location's store, and returns the condition Probed.
type Probe func(ctx context.Context, record *enginev1alpha1.StorageLocation) metav1.Condition

// isProbeDue reports a request since the last probe. An unavailable store is probed when it answers
// again.
func isProbeDue(record *enginev1alpha1.StorageLocation) bool {
	probed := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionProbed)
	return record.Spec.SyncRequest != nil && (probed == nil || probed.ObservedGeneration < record.Generation) &&
		meta.IsStatusConditionTrue(record.Status.Conditions, enginev1alpha1.ConditionAvailable)
}

func (c *Controller) checkAndProbe(ctx context.Context, key cache.ObjectName) error {
	record, err := c.update(ctx, key, nil)
	if err != nil || record == nil || c.probe == nil || !isProbeDue(record) {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	condition := c.probe(timed, record)
	if ctx.Err() != nil {
		return nil
	}
	condition.Type, condition.ObservedGeneration = enginev1alpha1.ConditionProbed, record.Generation
	condition.LastTransitionTime = metav1.NewTime(c.clock.Now())
	klog.FromContext(ctx).Info("Storage location probed", "storageLocation", key, "status", condition.Status, "reason", condition.Reason, "message", condition.Message)
	// The API server writes the same status, after its listing.
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		fresh, err := c.locations.StorageLocations(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		if err == nil && fresh.UID == record.UID && meta.SetStatusCondition(&fresh.Status.Conditions, condition) {
			_, err = c.locations.StorageLocations(key.Namespace).UpdateStatus(ctx, fresh, metav1.UpdateOptions{})
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("writing how the probe of StorageLocation %s went: %w", key, err)
	}
	return nil
}

func (c *Controller) tryOut(ctx context.Context, record *enginev1alpha1.StorageLocation) metav1.Condition {
	failed := func(errs ...error) metav1.Condition {
		var said []string
		for _, err := range errs {
			said = append(said, err.Error())
		}
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: enginev1alpha1.ReasonProbeFailed, Message: strings.Join(said, "; ")}
	}
	bucket, err := location.OpenAny(ctx, c.secrets, record)
	if err != nil {
		return failed(fmt.Errorf("open the store: %s", store.Reason(err)))
	}
	defer bucket.Close()
	p := &prober{store: bucket, provider: record.Spec.Provider, folder: format.ProbesPrefix(c.clusterUID, record.Name)}
	read := func(status metav1.ConditionStatus, why string) metav1.Condition {
		if err := p.readOnly(ctx); err != nil {
			return failed(err)
		}
		return metav1.Condition{Status: status, Reason: enginev1alpha1.ReasonProbeOnlyRead, Message: "the store was listed and read. Nothing was written: " + why}
	}
	switch {
	case record.Spec.IsLonghorn():
		return read(metav1.ConditionTrue, "it is Longhorn's")
	case record.Spec.AsOf() != nil:
		return read(metav1.ConditionTrue, "it is shown as of an earlier time")
	case record.Cloned():
		return read(metav1.ConditionUnknown, "another cluster with this one's uid may write to it")
	case !lease.Holds(ctx):
		return read(metav1.ConditionUnknown, "another controller may have taken over")
	}
	errs := p.write(ctx)
	clock, err := bucket.CompareClock(ctx, c.clock)
	switch {
	case errors.Is(errors.Join(errs...), store.ErrClock): // it is said already
	case errors.Is(err, store.ErrClock):
		errs = append(errs, fmt.Errorf("compare the clocks: %w. Set the wrong one", err))
	case err != nil && len(errs) == 0:
		errs = append(errs, p.failure("compare the clocks", toList, err))
	}
	if len(errs) > 0 {
		if clock != "" {
			errs = append(errs, fmt.Errorf("the controller's clock: %s", clock))
		}
		return failed(errs...)
	}
	return metav1.Condition{Status: metav1.ConditionTrue, Reason: enginev1alpha1.ReasonProbePassed,
		Message: "an object was created, not created twice, read, listed and deleted; the controller's clock: " + clock}
}

// right is the right to a bucket that a step needs, in each provider's words.
type right struct{ s3, gcs, azure string }

const blobs = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/"

var (
	toList   = right{"s3:ListBucket", "storage.objects.list", blobs + "read"}
	toCreate = right{"s3:PutObject", "storage.objects.create", blobs + "write"}
	toRead   = right{"s3:GetObject", "storage.objects.get", blobs + "read"}
	toDelete = right{"s3:DeleteObject", "storage.objects.delete", blobs + "delete"}
)

type probed interface {
	store.Reader
	store.Writer
	store.Remover
}

type prober struct {
	store    probed
	provider enginev1alpha1.StorageProvider
	folder   string
}

type failedStep struct {
	text  string
	cause error
}

func (f *failedStep) Error() string { return f.text }

func (f *failedStep) Unwrap() error { return f.cause }

func (p *prober) failure(step string, needs right, err error) error {
	said := fmt.Sprintf("%s: %s", step, store.Reason(err))
	switch {
	case !errors.Is(err, store.ErrDenied) || errors.Is(err, store.ErrClock):
	case p.provider == enginev1alpha1.StorageProviderFilesystem:
		said += ". The controller's user lacks a right to the folder: want reading, writing and removal"
	case p.provider == enginev1alpha1.StorageProviderGCS:
		said += ". The credentials lack the right " + needs.gcs
	case p.provider == enginev1alpha1.StorageProviderAzure:
		said += ". The credentials lack the right " + needs.azure
	default:
		said += ". The credentials lack the right " + needs.s3
	}
	return &failedStep{said, err}
}

func (p *prober) readOnly(ctx context.Context) error {
	for object, err := range p.store.List(ctx, "", store.ListOptions{Recursive: true}) {
		if err != nil {
			return p.failure("list the store", toList, err)
		}
		content, err := p.store.Get(ctx, object.Key)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err == nil {
			if _, err = content.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
				err = nil
			}
			_ = content.Close()
		}
		if err != nil {
			return p.failure("read an object", toRead, err)
		}
		return nil
	}
	return nil
}

// write removes killed probes' remains, then creates an object, tries to create it again, reads it,
// lists it and deletes it. It returns each failed step's error, and stops after a failed creation.
func (p *prober) write(ctx context.Context) (errs []error) {
	for object, err := range p.store.List(ctx, p.folder, store.ListOptions{Recursive: true}) {
		if err != nil {
			return append(errs, p.failure("list the probes", toList, err))
		}
		if err := p.store.Delete(ctx, object); err != nil && !errors.Is(err, store.ErrChanged) {
			errs = append(errs, p.failure("delete an earlier probe", toDelete, err))
			break
		}
	}
	id := strings.ToLower(rand.Text())
	key, first, second := p.folder+id, []byte("probe "+id+"\n"), []byte("second probe "+id+"\n")
	if failed := p.create(ctx, key, first); len(failed) > 0 {
		return append(errs, failed...)
	}
	if err := p.store.Create(ctx, key, second); err == nil {
		errs = append(errs, errors.New("create a probe again: the store took it, so it ignores the condition to create only what does not exist. "+
			"Two writers could replace each other's backups there: use a store with conditional writes (If-None-Match)"))
		first = second
	} else if !errors.Is(err, store.ErrExists) {
		errs = append(errs, p.failure("create a probe again", toCreate, err))
	}
	if content, err := p.read(ctx, key); err != nil {
		errs = append(errs, p.failure("read the probe", toRead, err))
	} else if !bytes.Equal(content, first) {
		errs = append(errs, fmt.Errorf("read the probe: the store has sent %q, and was given %q", content, first))
	}
	return append(errs, p.remove(ctx, key)...)
}

// create creates the probe. If the store refuses the condition itself, the error says so.
func (p *prober) create(ctx context.Context, key string, content []byte) (errs []error) {
	err := p.store.Create(ctx, key, content)
	if err == nil || errors.Is(err, store.ErrExists) { // the answer to the first attempt may be lost
		return nil
	}
	if errors.Is(err, store.ErrDenied) || p.store.Put(ctx, key, content) != nil {
		return append(errs, p.failure("create a probe", toCreate, err))
	}
	if errors.Is(p.store.Create(ctx, key, content), store.ErrExists) { // it did not answer for a moment
		return nil
	}
	errs = append(errs, fmt.Errorf("create a probe if it does not exist: %s. Without this condition the store takes it: use a store with conditional writes (If-None-Match)", store.Reason(err)))
	return append(errs, p.remove(ctx, key)...)
}

func (p *prober) read(ctx context.Context, key string) ([]byte, error) {
	content, err := p.store.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	return io.ReadAll(io.LimitReader(content, 1<<10))
}

func (p *prober) remove(ctx context.Context, key string) (errs []error) {
	var listed store.Object
	for object, err := range p.store.List(ctx, p.folder, store.ListOptions{Recursive: true}) {
		if err != nil {
			errs = append(errs, p.failure("list the probe", toList, err))
		} else if object.Key == key {
			listed = object
		}
	}
	if listed.Key == "" {
		if len(errs) == 0 {
			errs = append(errs, errors.New("list the probe: the store's list lacks it after it was written"))
		}
		var err error
		if listed, err = p.store.Attributes(ctx, key); err != nil {
			return append(errs, p.failure("find the probe", toRead, err))
		}
	}
	if err := p.store.Delete(ctx, listed); err != nil {
		return append(errs, p.failure("delete the probe", toDelete, err))
	}
	if _, err := p.store.Attributes(ctx, key); err == nil {
		errs = append(errs, errors.New("delete the probe: the store still has it"))
	} else if !errors.Is(err, store.ErrNotFound) {
		errs = append(errs, p.failure("find the deleted probe", toRead, err))
	}
	return errs
}
