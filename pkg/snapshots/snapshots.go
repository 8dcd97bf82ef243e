// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package snapshots cuts volumes by the cluster's VolumeSnapshots, and deletes the stored snapshots
// that no backup needs.
//
//   - Only one object may delete a stored snapshot: the VolumeSnapshotContent that the cluster made
//     for the cut. It is Retain until it is forgotten.
//   - Finalizer holds this content. One conditional write removes it, when the driver has no
//     snapshot and makes none.
//   - A VolumeSnapshot is deleted when its content is held, or when none is being made.
//
// docs/design/snapshots.md has the reasons.
package snapshots

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// Version is the version of the API.
var Version = schema.GroupVersion{Group: "snapshot.storage.k8s.io", Version: "v1"}

// The resources of the API.
var (
	Snapshots = Version.WithResource("volumesnapshots")
	Contents  = Version.WithResource("volumesnapshotcontents")
	Classes   = Version.WithResource("volumesnapshotclasses")
)

// Labels of a VolumeSnapshot and its content, and an annotation. All that must last is a label: Kubernetes's
// sidecars overwrite all annotations of a content by older ones.
const (
	LabelCluster = "engine.holdfast.io/cluster-uid"
	LabelBackup  = "engine.holdfast.io/backup-uid"
	LabelClaim   = "engine.holdfast.io/claim-uid"
	// LabelAttempt is set if hooks enclose the cut. Each attempt then cuts anew.
	LabelAttempt = "engine.holdfast.io/attempt"
	// LabelMoved is set if the backup needs the snapshot only until it has ended.
	LabelMoved = "engine.holdfast.io/moved"
	// LabelKeepLocal is set in its place if the snapshot stays beside its moved data. Its value is how many of the
	// claim's newest stay in a location.
	LabelKeepLocal = "engine.holdfast.io/keep-local"
	labelStoreName = "engine.holdfast.io/store-name"
	labelLocation  = "engine.holdfast.io/location"
	labelStoreID   = "engine.holdfast.io/store-id"

	AnnotationNudged = "engine.holdfast.io/nudged"

	// Finalizer is on each content with a backup's stored snapshot.
	Finalizer = "engine.holdfast.io/stored-snapshot"
)

const (
	annotationBeingCreated    = "snapshot.storage.kubernetes.io/volumesnapshot-being-created"
	annotationBeingDeleted    = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
	annotationSecretName      = "snapshot.storage.kubernetes.io/deletion-secret-name"
	annotationSecretNamespace = "snapshot.storage.kubernetes.io/deletion-secret-namespace"
	finalizerBound            = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
)

// Policies of a content.
const (
	Retain = "Retain"
	Delete = "Delete"
)

// VolumeSnapshotClass has the used fields of a class.
type VolumeSnapshotClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Driver            string            `json:"driver"`
	Parameters        map[string]string `json:"parameters,omitempty"`
}

// VolumeSnapshot has the used fields.
type VolumeSnapshot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              SnapshotSpec    `json:"spec"`
	Status            *SnapshotStatus `json:"status,omitempty"`
}

// SnapshotSpec names the claim and the class.
type SnapshotSpec struct {
	Source SnapshotSource `json:"source"`
	Class  string         `json:"volumeSnapshotClassName,omitempty"`
}

// SnapshotSource names the claim.
type SnapshotSource struct {
	Claim string `json:"persistentVolumeClaimName,omitempty"`
}

// SnapshotStatus names the content of the snapshot.
type SnapshotStatus struct {
	Content string `json:"boundVolumeSnapshotContentName,omitempty"`
	Error   *Error `json:"error,omitempty"`
}

// Error is the last failure, in the driver's words.
type Error struct {
	Time    *metav1.Time `json:"time,omitempty"`
	Message string       `json:"message,omitempty"`
}

// VolumeSnapshotContent has the used fields.
type VolumeSnapshotContent struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              ContentSpec   `json:"spec"`
	Status            ContentStatus `json:"status,omitzero"`
}

// ContentSpec names the VolumeSnapshot, and the snapshot's place.
type ContentSpec struct {
	Ref    corev1.ObjectReference `json:"volumeSnapshotRef"`
	Policy string                 `json:"deletionPolicy"`
	Driver string                 `json:"driver"`
	Class  string                 `json:"volumeSnapshotClassName,omitempty"`
	Source ContentSource          `json:"source"`
	Mode   string                 `json:"sourceVolumeMode,omitempty"` // Filesystem, Block or empty
}

// ContentSource is a volume that is cut, or a stored snapshot.
type ContentSource struct {
	Volume   string `json:"volumeHandle,omitempty"`
	Snapshot string `json:"snapshotHandle,omitempty"`
}

// ContentStatus is the driver's word on the stored snapshot. Created is in nanoseconds.
type ContentStatus struct {
	Handle  string `json:"snapshotHandle,omitempty"`
	Created int64  `json:"creationTime,omitempty"`
	Size    int64  `json:"restoreSize,omitempty"`
	Ready   bool   `json:"readyToUse,omitempty"`
	Error   *Error `json:"error,omitempty"`
}

func (c *VolumeSnapshotContent) cut() bool { return c.Status.Handle != "" && c.Status.Created != 0 }

// beingCreated reports whether the driver may work on the snapshot.
func (c *VolumeSnapshotContent) beingCreated() bool {
	return c.Annotations[annotationBeingCreated] != ""
}

// held reports whether only a Client can end the record of the stored snapshot.
func (c *VolumeSnapshotContent) held() bool { return slices.Contains(c.Finalizers, Finalizer) }

// protected reports whether the content has snapshot-controller's finalizer. Before that, snapshot-controller may
// overwrite other finalizers.
func (c *VolumeSnapshotContent) protected() bool {
	return slices.Contains(c.Finalizers, finalizerBound)
}

func (c *VolumeSnapshotContent) hold() map[string]any {
	if c.held() || c.DeletionTimestamp != nil { // then the API server refuses new finalizers
		return map[string]any{}
	}
	return map[string]any{"finalizers": append(slices.Clone(c.Finalizers), Finalizer)}
}

func (c *VolumeSnapshotContent) message() string { return c.Status.Error.message() }

func (e *Error) message() string {
	if e == nil {
		return ""
	}
	return e.Message
}

// settled reports whether the deletion of this version leaks no stored snapshot: its content is held, or none is
// being made. See docs/design/snapshots.md#the-cut.
func (s *VolumeSnapshot) settled(content *VolumeSnapshotContent) bool {
	if content != nil {
		return content.held()
	}
	return len(s.Finalizers) == 0 || s.Status != nil && s.Status.Error.message() != ""
}

// Client works on the snapshots of one cluster. It is safe for concurrent use.
type Client struct {
	objects     dynamic.Interface
	clusterUID  string
	systemSpace string
	// lastReadyPause is the longest while the storage copies a snapshot.
	firstPause, lastPause, lastReadyPause time.Duration
}

// New returns a Client. clusterUID is the cluster's.
func New(objects dynamic.Interface, clusterUID, systemNamespace string) *Client {
	return &Client{objects: objects, clusterUID: clusterUID, systemSpace: systemNamespace, firstPause: 100 * time.Millisecond, lastPause: time.Second, lastReadyPause: 20 * time.Second}
}

// Served reports whether the cluster serves the API.
func (c *Client) Served(ctx context.Context) (bool, error) {
	_, err := c.objects.Resource(Classes).List(ctx, metav1.ListOptions{Limit: 1})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// Classes lists the classes of the cluster. Without the API there are none.
func (c *Client) Classes(ctx context.Context) ([]VolumeSnapshotClass, error) {
	classes, err := list[VolumeSnapshotClass](ctx, c.objects.Resource(Classes), "")
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return classes, err
}

const prefix = "hf-"

var ownName = regexp.MustCompile(`^hf-[0-9a-f]{32}$`)

// name returns the name of a VolumeSnapshot, by which another attempt finds it.
func name(parts ...string) string {
	digest := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return prefix + hex.EncodeToString(digest[:16])
}

func (v *Volume) name() string {
	parts := []string{string(v.Backup), string(v.ClaimUID)}
	switch { // another attempt may decide otherwise, and must not find a cut that leaves
	case !v.Moved:
		parts = append(parts, "kept")
	case v.KeepLocal > 0:
		parts = append(parts, "local", strconv.Itoa(int(v.KeepLocal)))
	}
	if v.Attempt > 0 {
		parts = append(parts, strconv.Itoa(int(v.Attempt)))
	}
	return name(parts...)
}

// exposure returns the name of an exposure. A second try has another name: a lost node's pod may never be deleted.
func (v *Volume) exposure() string {
	if v.Try > 1 {
		return name(v.name(), strconv.Itoa(int(v.Try)))
	}
	return v.name()
}

func (c *Client) labels(v *Volume) map[string]string {
	labels := map[string]string{LabelCluster: c.clusterUID, LabelBackup: string(v.Backup), LabelClaim: string(v.ClaimUID)}
	if v.Attempt > 0 {
		labels[LabelAttempt] = strconv.Itoa(int(v.Attempt))
	}
	switch {
	case v.Moved && v.KeepLocal > 0:
		labels[LabelKeepLocal] = strconv.Itoa(int(v.KeepLocal))
	case v.Moved:
		labels[LabelMoved] = "true"
	}
	spread(labels, labelStoreName, v.StoreName)
	spread(labels, labelLocation, v.Location)
	spread(labels, labelStoreID, v.StoreID)
	return labels
}

// longest is the length of a part of a name: a label's, less the letters around it. A label can't begin or end
// with a dot.
const longest = 61

func spread(labels map[string]string, key, name string) {
	for i := 0; name != ""; i++ {
		end := min(len(name), longest)
		labels[part(key, i)], name = "x"+name[:end]+"x", name[end:]
	}
}

func part(key string, number int) string { return key + "." + strconv.Itoa(number) }

func joined(labels map[string]string, key string) (name string) {
	for i := 0; labels[part(key, i)] != ""; i++ {
		name += strings.TrimSuffix(strings.TrimPrefix(labels[part(key, i)], "x"), "x")
	}
	return name
}

// Place is where a backup is stored. A location may have another name later, or its name another store.
type Place struct {
	StoreName, Location string
	StoreID             string // empty if it was unknown at the cut
}

// In returns the location that has the store of a place, or nil. The name counts while a location of the name may have
// the store: another with its id is a copy. Else it has another name by now.
func (p Place) In(all []*enginev1alpha1.StorageLocation) *enginev1alpha1.StorageLocation {
	var renamed []*enginev1alpha1.StorageLocation
	for _, record := range all {
		id := record.Status.StoreID
		switch {
		case record.Name == p.Location && (p.StoreID == "" || id == "" || id == p.StoreID):
			return record
		case p.StoreID != "" && id == p.StoreID && record.Spec.IsWritten():
			renamed = append(renamed, record)
		}
	}
	if len(renamed) != 1 { // which of them is the copy is not known
		return nil
	}
	return renamed[0]
}

// DeletedFrom reports whether a snapshot leaves with its backup in a location. It does not leave with a copy. After its
// location was told to take another store, it leaves with the backup in that.
func (p Place) DeletedFrom(location, storeName string, all []*enginev1alpha1.StorageLocation) bool {
	if p.StoreName != storeName {
		return false
	}
	record := p.In(all)
	if record == nil {
		i := slices.IndexFunc(all, func(of *enginev1alpha1.StorageLocation) bool {
			return of.Name == p.Location && of.Annotations[enginev1alpha1.AnnotationGiveUpStore] == p.StoreID
		})
		return i >= 0 && location == p.Location
	}
	return record.Name == location
}

// PlaceOf returns the place of the backup of a labelled snapshot.
func PlaceOf(labels map[string]string) Place {
	return Place{StoreName: joined(labels, labelStoreName), Location: joined(labels, labelLocation), StoreID: joined(labels, labelStoreID)}
}

func decode[T any](object *unstructured.Unstructured) (*T, error) {
	var decoded T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &decoded); err != nil {
		return nil, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return &decoded, nil
}

// get returns nil for a missing object.
func get[T any](ctx context.Context, from dynamic.ResourceInterface, name string) (*T, error) {
	object, err := from.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decode[T](object)
}

const pageSize = 500

func list[T any](ctx context.Context, from dynamic.ResourceInterface, selector string) (all []T, err error) {
	options := metav1.ListOptions{LabelSelector: selector, Limit: pageSize}
	for {
		page, err := from.List(ctx, options)
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			decoded, err := decode[T](&page.Items[i])
			if err != nil {
				return nil, err
			}
			all = append(all, *decoded)
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return all, nil
		}
	}
}

// patch changes a content. It fails with a conflict if the content was changed or replaced.
func (c *Client) patch(ctx context.Context, content *VolumeSnapshotContent, metadata, spec map[string]any) (*VolumeSnapshotContent, error) {
	metadata["uid"], metadata["resourceVersion"] = content.UID, content.ResourceVersion
	change := map[string]any{"metadata": metadata}
	if spec != nil {
		change["spec"] = spec
	}
	data, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	object, err := c.objects.Resource(Contents).Patch(ctx, content.Name, types.MergePatchType, data, metav1.PatchOptions{})
	if err != nil {
		return nil, err
	}
	return decode[VolumeSnapshotContent](object)
}

// remove deletes an object with this uid and, unless empty, this version. It ignores a missing or replaced object.
func remove(ctx context.Context, from dynamic.ResourceInterface, name string, uid types.UID, version string) error {
	only := &metav1.Preconditions{UID: &uid}
	if version != "" {
		only.ResourceVersion = &version
	}
	err := from.Delete(ctx, name, metav1.DeleteOptions{Preconditions: only})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// pause waits, each time longer, up to most. It returns false if ctx has ended.
func (c *Client) pause(ctx context.Context, last *time.Duration, most time.Duration) bool {
	*last = min(max(c.firstPause, *last*3/2), most)
	timer := time.NewTimer(*last)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func passing(err error) bool {
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) {
		return true // there was no answer
	}
	return apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsConflict(err) ||
		apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
}

func (c *Client) snapshotOf(v *Volume) *unstructured.Unstructured {
	labels := map[string]any{format.LabelExclude: "true"}
	for key, value := range c.labels(v) {
		labels[key] = value
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": Version.String(), "kind": "VolumeSnapshot",
		"metadata": map[string]any{"name": v.name(), "namespace": v.Namespace, "labels": labels},
		"spec": map[string]any{
			"volumeSnapshotClassName": v.Class,
			"source":                  map[string]any{"persistentVolumeClaimName": v.Claim},
		},
	}}
}
