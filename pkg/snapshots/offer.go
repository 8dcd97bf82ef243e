// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/holdfast-io/holdfast/pkg/format"
)

// Labels of an offer's objects. No other sweep sees them.
const (
	LabelOfferCluster = "engine.holdfast.io/offers-for-cluster"
	LabelOfferRestore = "engine.holdfast.io/offers-for-restore"
)

// ErrNoRecord says that only another cluster or the storage may have the snapshot of a claim.
var ErrNoRecord = errors.New("this cluster has no VolumeSnapshotContent of its snapshot")

// Wanted is a claim that a restore makes from a stored snapshot.
type Wanted struct {
	// Backup and Origin are the backup, and the claim's namespace in it.
	Backup   types.UID
	Origin   string
	ClaimUID types.UID
	// Handle is the backup's word, and only narrows the choice. With ByHandle it may also name a snapshot of
	// Driver without a record in the cluster. Size may be 0.
	Handle           string
	ByHandle         bool
	Driver           string
	Size             int64
	Restore          types.UID
	Namespace, Claim string
}

// OfferName returns the name of the claim's source, a VolumeSnapshot.
func (w *Wanted) OfferName() string {
	return name(string(w.Restore), string(w.ClaimUID), w.Namespace, w.Claim)
}

// Found is a stored snapshot.
type Found struct {
	Driver, Class, Handle string
	Mode                  string // Filesystem, Block, or empty if unknown
	Size                  int64  // the least of a volume from it in bytes, or 0 if unknown
	ByHandle              bool   // only the backup names the snapshot: Confirm asks the driver
}

// Locate returns the stored snapshot of a claim in a backup, by the cluster's own record, which no tenant can
// change. A handle could name any snapshot of the storage: it counts only with ByHandle, and without a record.
func (c *Client) Locate(ctx context.Context, w Wanted) (Found, error) {
	selector := LabelCluster + "=" + c.clusterUID + "," + LabelBackup + "=" + string(w.Backup) + "," + LabelClaim + "=" + string(w.ClaimUID)
	contents, err := list[VolumeSnapshotContent](ctx, c.objects.Resource(Contents), selector)
	if err != nil && !apierrors.IsNotFound(err) {
		return Found{}, fmt.Errorf("look for the snapshot of the claim %s/%s: %w", w.Origin, w.Claim, err)
	}
	if err == nil && len(contents) == 0 && w.ByHandle && w.Handle != "" && w.Driver != "" {
		return c.byHandle(ctx, w)
	}
	contents = slices.DeleteFunc(contents, func(content VolumeSnapshotContent) bool {
		return !content.cut() || !content.held() || content.Labels[LabelMoved] != "" || content.Spec.Policy != Retain || content.Spec.Ref.Namespace != w.Origin || w.Handle != "" && content.Status.Handle != w.Handle
	})
	if len(contents) == 0 {
		return Found{}, fmt.Errorf("%w, with the label %s=%s: another cluster, or storage, has it, or it was deleted", ErrNoRecord, LabelBackup, w.Backup)
	}
	newest := slices.MaxFunc(contents, func(a, b VolumeSnapshotContent) int {
		_, first := attempt(a.Labels)
		_, second := attempt(b.Labels)
		return cmp.Or(cmp.Compare(first, second), cmp.Compare(a.Status.Created, b.Status.Created))
	})
	found := Found{Driver: newest.Spec.Driver, Class: newest.Spec.Class, Handle: newest.Status.Handle, Mode: newest.Spec.Mode, Size: newest.Status.Size}
	classes, err := c.Classes(ctx)
	if err != nil {
		return Found{}, fmt.Errorf("read the cluster's VolumeSnapshotClasses: %w", err)
	}
	if !slices.ContainsFunc(classes, func(class VolumeSnapshotClass) bool { return class.Name == found.Class }) {
		found.Class = "" // a snapshot of a missing class is never ready
	}
	return found, nil
}

// Offer makes a VolumeSnapshot, as a source of claims, and returns its name. Its own content is always Retain. It
// may be repeated.
func (c *Client) Offer(ctx context.Context, w Wanted, found Found) (snapshot string, err error) {
	labels := map[string]any{LabelOfferCluster: c.clusterUID, LabelOfferRestore: string(w.Restore), "app.kubernetes.io/managed-by": "holdfast", format.LabelExclude: "true"}
	content, snapshotObject := static(w.Namespace, w.OfferName(), found, labels)
	for _, made := range []struct {
		in     dynamic.ResourceInterface
		object *unstructured.Unstructured
	}{{c.objects.Resource(Contents), content}, {c.objects.Resource(Snapshots).Namespace(w.Namespace), snapshotObject}} {
		_, err := made.in.Create(ctx, made.object, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = c.offeredBefore(ctx, made.in, made.object)
		}
		if err != nil {
			return "", fmt.Errorf("create the %s %s for the claim %s/%s: %w", made.object.GetKind(), w.OfferName(), w.Namespace, w.Claim, err)
		}
	}
	return w.OfferName(), nil
}

func (c *Client) offeredBefore(ctx context.Context, in dynamic.ResourceInterface, wanted *unstructured.Unstructured) error {
	found, err := in.Get(ctx, wanted.GetName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	source, _, _ := unstructured.NestedMap(found.Object, "spec", "source")
	own, _, _ := unstructured.NestedMap(wanted.Object, "spec", "source")
	policy, _, _ := unstructured.NestedString(found.Object, "spec", "deletionPolicy")
	if found.GetDeletionTimestamp() != nil || found.GetLabels()[LabelOfferCluster] != c.clusterUID || policy == Delete || !equality.Semantic.DeepEqual(source, own) {
		return errors.New("there is one of this name that is not the restore's, or is being deleted: delete it, and restore again")
	}
	return nil
}

// Withdraw deletes what Offer has made, and reports whether all is deleted. The stored snapshot and a bound claim
// stay. It may be repeated.
func (c *Client) Withdraw(ctx context.Context, w Wanted) (gone bool, err error) {
	return c.withdraw(ctx, w.Namespace, w.OfferName(), LabelOfferCluster)
}

// Offered is an existing offer.
type Offered struct {
	Restore         types.UID
	Namespace, Name string
}

// Offers lists all offers of the cluster, by their contents. Without the API there are none.
func (c *Client) Offers(ctx context.Context) ([]Offered, error) {
	contents, err := list[VolumeSnapshotContent](ctx, c.objects.Resource(Contents), LabelOfferCluster+"="+c.clusterUID)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	var offers []Offered
	for i := range contents {
		offers = append(offers, Offered{types.UID(contents[i].Labels[LabelOfferRestore]), contents[i].Spec.Ref.Namespace, contents[i].Name})
	}
	return offers, err
}

// WithdrawOffer is Withdraw of a listed offer.
func (c *Client) WithdrawOffer(ctx context.Context, offer Offered) (gone bool, err error) {
	return c.withdraw(ctx, offer.Namespace, offer.Name, LabelOfferCluster)
}

// static returns a VolumeSnapshot and its content for a stored snapshot. The content is always Retain.
func static(namespace, name string, of Found, labels map[string]any) (content, snapshot *unstructured.Unstructured) {
	ofContent := map[string]any{
		"driver": of.Driver, "deletionPolicy": Retain,
		"source":            map[string]any{"snapshotHandle": of.Handle},
		"volumeSnapshotRef": map[string]any{"apiVersion": Version.String(), "kind": "VolumeSnapshot", "namespace": namespace, "name": name},
	}
	ofSnapshot := map[string]any{"source": map[string]any{"volumeSnapshotContentName": name}}
	if of.Class != "" {
		ofContent["volumeSnapshotClassName"], ofSnapshot["volumeSnapshotClassName"] = of.Class, of.Class
	}
	if of.Mode != "" { // the provisioner makes no volume of another mode
		ofContent["sourceVolumeMode"] = of.Mode
	}
	content = &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": Version.String(), "kind": "VolumeSnapshotContent",
		"metadata": map[string]any{"name": name, "labels": labels}, "spec": ofContent,
	}}
	snapshot = &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": Version.String(), "kind": "VolumeSnapshot",
		"metadata": map[string]any{"name": name, "namespace": namespace, "labels": labels}, "spec": ofSnapshot,
	}}
	return content, snapshot
}

// withdraw deletes a static VolumeSnapshot and its content if they have this cluster's label.
func (c *Client) withdraw(ctx context.Context, namespace, name, label string) (gone bool, err error) {
	for _, of := range []struct {
		in      dynamic.ResourceInterface
		content bool
	}{{c.objects.Resource(Snapshots).Namespace(namespace), false}, {c.objects.Resource(Contents), true}} {
		object, err := of.in.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return false, err
		case object.GetLabels()[label] != c.clusterUID:
			continue
		}
		deleting := object.GetDeletionTimestamp() != nil
		if of.content && object.GetAnnotations()[annotationBeingDeleted] == "" {
			// Without the annotation csi-snapshotter never lets go of it. Another sidecar may have overwritten it.
			content, err := decode[VolumeSnapshotContent](object)
			if err == nil {
				_, err = c.patch(ctx, content, map[string]any{"annotations": map[string]string{annotationBeingDeleted: "yes"}}, nil)
			}
			if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
				return false, nil
			}
			if err != nil {
				return false, err
			}
		}
		if deleting {
			return false, nil
		}
		return false, remove(ctx, of.in, name, object.GetUID(), "")
	}
	return true, nil
}
