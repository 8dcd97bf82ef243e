// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// Policies reads the ConfigMap of a backup's spec.resourcePolicy.
type Policies interface {
	// Policy returns the ConfigMap's data with the rights of the backup's requester, or a
	// NotAllowedError.
	Policy(ctx context.Context, namespace, name string) (map[string]string, error)
}

type action string

const (
	noAction       action = ""
	skipAction     action = "skip"
	filesAction    action = "fs-backup"
	snapshotAction action = "snapshot"
)

const (
	maxPolicies  = 1000
	maxKeepLocal = 64
)

// sane bounds quantities: comparing 1e1000000000 takes gigabytes and minutes.
var sane = regexp.MustCompile(`^[0-9]{1,18}(\.[0-9]{1,9})?(m|k|[MGTPE]|[KMGTPE]i)?$`)

// whyNot says why the action prevents reading a volume, or returns "". asked: the user must be told.
func (a action) whyNot() (reason string, asked bool) {
	switch a {
	case skipAction:
		return "a volume policy skips it", false
	case snapshotAction:
		return "a volume policy wants a snapshot of it, and none is made: see --snapshots of the controller, or use the action " + string(filesAction), true
	}
	return "", false
}

// policies are Velero's. The first match counts, before the pods and the spec.
type policies []volumePolicy

type volumePolicy struct {
	Conditions volumeConditions `json:"conditions"`
	Action     struct {
		Type       action              `json:"type"`
		Parameters *snapshotParameters `json:"parameters"`
	} `json:"action"`

	lower, upper apiresource.Quantity
}

type snapshotParameters struct {
	Class    string `json:"snapshotClass"`
	MoveData *bool  `json:"snapshotMoveData"`
	// KeepLocal is how many of a claim's newest snapshots stay in the storage beside their moved data.
	KeepLocal int32 `json:"keepLocalSnapshots"`
}

type volumeConditions struct {
	Capacity       string                              `json:"capacity"`
	StorageClass   []string                            `json:"storageClass"`
	NFS            *nfsTraits                          `json:"nfs"`
	CSI            *csiTraits                          `json:"csi"`
	VolumeTypes    []string                            `json:"volumeTypes"`
	PVCLabels      map[string]string                   `json:"pvcLabels"`
	PVCPhase       []corev1.PersistentVolumeClaimPhase `json:"pvcPhase"`
	PVCVolumeMode  corev1.PersistentVolumeMode         `json:"pvcVolumeMode"`
	PVCAccessModes []corev1.PersistentVolumeAccessMode `json:"pvcAccessModes"`
}

type nfsTraits struct {
	Server string `json:"server"`
	Path   string `json:"path"`
}

type csiTraits struct {
	Driver           string            `json:"driver"`
	VolumeAttributes map[string]string `json:"volumeAttributes"`
}

// volumeTraits are the policies' inputs, from the persistent volume if known, else from the pod's
// volume.
type volumeTraits struct {
	capacity     apiresource.Quantity
	storageClass string
	nfs          *nfsTraits
	csi          *csiTraits
	kind         string
}

type claimTraits struct {
	Metadata struct {
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		VolumeMode  *corev1.PersistentVolumeMode        `json:"volumeMode"`
		AccessModes []corev1.PersistentVolumeAccessMode `json:"accessModes"`
	} `json:"spec"`
	Status struct {
		Phase corev1.PersistentVolumeClaimPhase `json:"phase"`
	} `json:"status"`
}

func parsePolicies(data map[string]string) (policies, error) {
	if len(data) != 1 {
		return nil, fmt.Errorf("it has %d keys: it must have one, with the policies", len(data))
	}
	var document struct {
		Version  string   `json:"version"`
		Policies policies `json:"volumePolicies"`
	}
	for key, text := range data {
		if err := yaml.UnmarshalStrict([]byte(text), &document); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	if document.Version != "v1" {
		return nil, fmt.Errorf("its version is %q: it must be v1", document.Version)
	}
	if len(document.Policies) > maxPolicies {
		return nil, fmt.Errorf("it has %d volumePolicies, and %d is the most", len(document.Policies), maxPolicies)
	}
	for i := range document.Policies {
		if err := document.Policies[i].parse(); err != nil {
			return nil, fmt.Errorf("volumePolicies[%d]: %w", i, err)
		}
	}
	return document.Policies, nil
}

func (p *volumePolicy) parse() error {
	if known := []action{skipAction, filesAction, snapshotAction}; !slices.Contains(known, p.Action.Type) {
		return fmt.Errorf("action.type is %q: it must be one of %q", p.Action.Type, known)
	}
	switch parameters := p.Action.Parameters; {
	case parameters == nil, *parameters == (snapshotParameters{}):
	case p.Action.Type != snapshotAction:
		return fmt.Errorf("action.parameters: the action %s has none", p.Action.Type)
	case parameters.KeepLocal < 0, parameters.KeepLocal > maxKeepLocal:
		return fmt.Errorf("action.parameters.keepLocalSnapshots is %d: it must be from 0 to %d", parameters.KeepLocal, maxKeepLocal)
	}
	if csi := p.Conditions.CSI; csi != nil && csi.Driver == "" && len(csi.VolumeAttributes) > 0 {
		return errors.New("conditions.csi: volumeAttributes need a driver")
	}
	if p.Conditions.Capacity == "" {
		return nil
	}
	lower, upper, two := strings.Cut(p.Conditions.Capacity, ",")
	if !two {
		return fmt.Errorf("conditions.capacity is %q: it must be two quantities with a comma between them, of which either may be empty", p.Conditions.Capacity)
	}
	for text, bound := range map[*string]*apiresource.Quantity{&lower: &p.lower, &upper: &p.upper} {
		trimmed := strings.TrimSpace(*text)
		if trimmed == "" {
			continue
		}
		if !sane.MatchString(trimmed) {
			return fmt.Errorf("conditions.capacity: %q is no quantity such as 10Gi", trimmed)
		}
		quantity, err := apiresource.ParseQuantity(trimmed)
		if err != nil {
			return fmt.Errorf("conditions.capacity: %q: %w", trimmed, err)
		}
		*bound = quantity
	}
	if !p.upper.IsZero() && p.lower.Cmp(p.upper) > 0 {
		return errors.New("conditions.capacity: the lower bound is above the upper one")
	}
	return nil
}

// keepMoved fails if a policy keeps snapshots beside data that is not moved. moves is the backup's
// choice.
func (p policies) keepMoved(moves bool) error {
	for i := range p {
		if of := p[i].Action.Parameters; of != nil && of.KeepLocal > 0 && !ptr.Deref(of.MoveData, moves) {
			return fmt.Errorf("volumePolicies[%d]: action.parameters.keepLocalSnapshots is %d, and snapshotMoveData is false, by which all snapshots stay: set it to true there, or leave keepLocalSnapshots out", i, of.KeepLocal)
		}
	}
	return nil
}

// decide returns the first match. claim is nil for a volume without one.
func (p policies) decide(volume volumeTraits, claim *claimTraits) (of action, parameters snapshotParameters) {
	if claim == nil {
		claim = &claimTraits{}
	}
	for i := range p {
		if !p[i].matches(&volume, claim) {
			continue
		}
		return p[i].Action.Type, ptr.Deref(p[i].Action.Parameters, snapshotParameters{})
	}
	return noAction, snapshotParameters{}
}

func (p *volumePolicy) matches(volume *volumeTraits, claim *claimTraits) bool {
	wanted := &p.Conditions
	switch {
	case volume.capacity.Cmp(p.lower) < 0, !p.upper.IsZero() && volume.capacity.Cmp(p.upper) > 0:
	case len(wanted.StorageClass) > 0 && !slices.Contains(wanted.StorageClass, volume.storageClass):
	case wanted.NFS != nil && !wanted.NFS.match(volume.nfs):
	case wanted.CSI != nil && !wanted.CSI.match(volume.csi):
	case len(wanted.VolumeTypes) > 0 && !slices.ContainsFunc(wanted.VolumeTypes, func(kind string) bool { return strings.EqualFold(kind, volume.kind) }):
	case !isPart(wanted.PVCLabels, claim.Metadata.Labels):
	case len(wanted.PVCPhase) > 0 && !slices.Contains(wanted.PVCPhase, claim.Status.Phase):
	case wanted.PVCVolumeMode != "" && wanted.PVCVolumeMode != ptr.Deref(claim.Spec.VolumeMode, ""):
	case len(wanted.PVCAccessModes) > 0 && !sameModes(wanted.PVCAccessModes, claim.Spec.AccessModes):
	default:
		return true
	}
	return false
}

func (n *nfsTraits) match(of *nfsTraits) bool {
	return of != nil && (n.Server == "" || n.Server == of.Server) && (n.Path == "" || n.Path == of.Path)
}

func (c *csiTraits) match(of *csiTraits) bool {
	return of != nil && (c.Driver == "" || c.Driver == of.Driver) && isPart(c.VolumeAttributes, of.VolumeAttributes)
}

func isPart(part, whole map[string]string) bool {
	for key, value := range part {
		if is, known := whole[key]; !known || is != value {
			return false
		}
	}
	return true
}

func sameModes(a, b []corev1.PersistentVolumeAccessMode) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(mode corev1.PersistentVolumeAccessMode) bool { return !slices.Contains(b, mode) })
}

func traitsOf(spec *corev1.PersistentVolumeSpec) volumeTraits {
	source := &spec.PersistentVolumeSource
	of := volumeTraits{capacity: spec.Capacity[corev1.ResourceStorage], storageClass: spec.StorageClassName, kind: sourceOf(source)}
	if nfs := source.NFS; nfs != nil {
		of.nfs = &nfsTraits{nfs.Server, nfs.Path}
	}
	if csi := source.CSI; csi != nil {
		of.csi = &csiTraits{csi.Driver, csi.VolumeAttributes}
	}
	return of
}

func traitsInPod(source *corev1.VolumeSource) volumeTraits {
	of := volumeTraits{kind: sourceOf(source)}
	if nfs := source.NFS; nfs != nil {
		of.nfs = &nfsTraits{nfs.Server, nfs.Path}
	}
	if csi := source.CSI; csi != nil {
		of.csi = &csiTraits{csi.Driver, csi.VolumeAttributes}
	}
	return of
}

func sourceOf(source any) string {
	value := reflect.ValueOf(source).Elem()
	for i := range value.NumField() {
		if !value.Field(i).IsNil() {
			name, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return ""
}

func (p policies) idle() (texts []string) {
	known := map[string]bool{}
	for _, source := range []any{corev1.VolumeSource{}, corev1.PersistentVolumeSource{}} {
		of := reflect.TypeOf(source)
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			known[strings.ToLower(name)] = true
		}
	}
	for i := range p {
		for _, word := range p[i].Conditions.VolumeTypes {
			if !known[strings.ToLower(word)] {
				texts = append(texts, fmt.Sprintf("volumePolicies[%d].conditions.volumeTypes has %q, which applies to nothing: no volume is of such a type", i, word))
			}
		}
	}
	return texts
}

// readPolicies fails for the whole backup: its content is undecided without policies.
func (e *execution) readPolicies(ctx context.Context) (policies, error) {
	of := e.request.Backup.Spec.ResourcePolicy
	if of == nil {
		return nil, nil
	}
	namespace := e.request.Backup.Namespace
	unusable := func(err error) error {
		return fmt.Errorf("spec.resourcePolicy: the ConfigMap %s can't be used: %w", itemName(namespace, of.Name), err)
	}
	var data map[string]string
	err := retried(ctx, e.Retry, func() (err error) {
		data, err = e.Policies.Policy(ctx, namespace, of.Name)
		return err
	})
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, unusable(err)
	}
	found, err := parsePolicies(data)
	if err == nil {
		err = found.keepMoved(ptr.Deref(e.request.Backup.Spec.SnapshotMoveData, !e.KeepSnapshots))
	}
	if err != nil {
		return nil, unusable(err)
	}
	return found, nil
}
