// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
)

type claim struct {
	uid    types.UID
	labels map[string]string
	// volume is the bound persistent volume, or ""; named is an unbound claim's volumeName.
	volume, named string
	// unusable says why the data can't be backed up, or is "". If known, the user is not warned.
	unusable string
	known    bool
	// action is the volume policies' decision; asked has their inputs until then.
	action action
	asked  *claimTraits
	// skipped says why one pod gives no access; another may. excluded: a pod's annotation of ours
	// leaves it out.
	skipped  string
	excluded bool
	// taken: handed over. mounted: a pod of the backup uses the claim.
	taken, mounted bool
	// missed: the user knows that data is missing. lost: the handover failed.
	missed, lost bool
	// block is a block device, scratch a generic ephemeral volume's claim.
	block, scratch bool
	classes        snapshots.Wishes
	moveData       *bool
	keepLocal      int32
	snapshot       *format.SnapshotSource
	// noSnapshot says why no wanted snapshot is made. Files may be read.
	noSnapshot     string
	snapshotFailed bool
	// refused: a hook failed, so no pod gives access.
	refused bool
	others  []access
	// notYet are findings about pods that do not run: another pod may give access.
	notYet []pendingWarning
}

type pendingWarning struct {
	about subject
	text  string
}

type persistentVolume struct {
	hostPath       string
	driver, handle string
	fileSystem     string
	storageClass   string
	bound          types.NamespacedName
	claim          types.UID
	nodes          *corev1.VolumeNodeAffinity
	reclaimPolicy  corev1.PersistentVolumeReclaimPolicy
	labels         map[string]string
	capacity       int64
	created        metav1.Time
	traits         volumeTraits
}

func (p *podVolumes) visitPersistentVolume(_ context.Context, r resource, h *head, raw []byte) error {
	if _, err := p.keepPersistentVolume(h, raw); err != nil {
		p.findings.fail(subject{persistentVolumesResource, "", h.Metadata.Name}, err.Error())
	}
	return p.hold(r, h, raw, itself)
}

func (p *podVolumes) keepPersistentVolume(h *head, raw []byte) (*persistentVolume, error) {
	var object struct {
		Metadata struct {
			Labels            map[string]string `json:"labels"`
			CreationTimestamp metav1.Time       `json:"creationTimestamp"`
		} `json:"metadata"`
		Spec struct {
			HostPath      corev1.HostPathVolumeSource          `json:"hostPath"`
			CSI           corev1.CSIPersistentVolumeSource     `json:"csi"`
			StorageClass  string                               `json:"storageClassName"`
			ClaimRef      corev1.ObjectReference               `json:"claimRef"`
			NodeAffinity  *corev1.VolumeNodeAffinity           `json:"nodeAffinity"`
			ReclaimPolicy corev1.PersistentVolumeReclaimPolicy `json:"persistentVolumeReclaimPolicy"`
			Capacity      corev1.ResourceList                  `json:"capacity"`
		} `json:"spec"`
	}
	if err := decode(raw, &object); err != nil {
		return nil, err
	}
	kept := &persistentVolume{
		hostPath: object.Spec.HostPath.Path, driver: object.Spec.CSI.Driver, handle: object.Spec.CSI.VolumeHandle, fileSystem: object.Spec.CSI.FSType, storageClass: object.Spec.StorageClass, nodes: object.Spec.NodeAffinity, reclaimPolicy: object.Spec.ReclaimPolicy, labels: object.Metadata.Labels,
		bound: types.NamespacedName{Namespace: object.Spec.ClaimRef.Namespace, Name: object.Spec.ClaimRef.Name}, claim: object.Spec.ClaimRef.UID,
		capacity: object.Spec.Capacity.Storage().Value(), created: object.Metadata.CreationTimestamp,
	}
	if len(p.policies) > 0 {
		var whole corev1.PersistentVolume
		if err := decode(raw, &whole); err != nil {
			return nil, err
		}
		kept.traits = traitsOf(&whole.Spec)
	}
	p.persistentVolumes[h.Metadata.Name] = kept
	return kept, nil
}

// persistentVolume returns a persistent volume, or nil if unreadable, and adds it with the reason
// unless excluded.
func (p *podVolumes) persistentVolume(ctx context.Context, name, reason string) (*persistentVolume, error) {
	if kept, known := p.persistentVolumes[name]; known {
		return kept, nil
	}
	p.persistentVolumes[name] = nil
	r, found := p.discovered.find(persistentVolumesResource)
	if !found {
		return nil, nil
	}
	h, raw, err := p.fetch(ctx, r, "", name, expected)
	if raw == nil {
		return nil, err
	}
	err = p.takePersistentVolume(r, h, raw, reason)
	return p.persistentVolumes[name], err
}

func (p *podVolumes) takePersistentVolume(r resource, h *head, raw []byte, reason string) error {
	if _, err := p.keepPersistentVolume(h, raw); err != nil {
		p.persistentVolumes[h.Metadata.Name] = nil
		p.findings.fail(subject{persistentVolumesResource, "", h.Metadata.Name}, err.Error())
		return nil
	}
	if !p.comesAlong(r, h) {
		return nil
	}
	return p.hold(r, h, raw, reason)
}

func (p *podVolumes) visitClaim(_ context.Context, r resource, h *head, raw []byte) error {
	stored, err := storedClaim(h, raw)
	if err != nil {
		p.findings.fail(subject{claimsResource, h.Metadata.Namespace, h.Metadata.Name}, err.Error())
		return nil
	}
	p.keepClaim(h, raw)
	p.unsettled = append(p.unsettled, types.NamespacedName{Namespace: h.Metadata.Namespace, Name: h.Metadata.Name})
	return p.hold(r, h, stored, itself)
}

func (p *podVolumes) settleClaims(ctx context.Context) error {
	missing := map[string]string{}
	for _, key := range p.unsettled {
		if name := p.claims[key].volume; name != "" {
			if _, known := p.persistentVolumes[name]; !known {
				missing[name] = boundBy(key)
			}
		}
	}
	if r, found := p.discovered.find(persistentVolumesResource); found && len(missing) > manyGets {
		_, err := p.search(ctx, query{resource: r}, func() int { return len(missing) }, func(h *head, raw []byte) error {
			reason, ok := missing[h.Metadata.Name]
			if !ok {
				return nil
			}
			delete(missing, h.Metadata.Name) // a list may repeat it
			return p.takePersistentVolume(r, h, raw, reason)
		})
		if err != nil {
			return err
		}
	}
	for _, key := range p.unsettled {
		if err := p.settle(ctx, key); err != nil {
			return err
		}
		if err := p.takeNamed(ctx, key); err != nil {
			return err
		}
	}
	p.unsettled = nil
	return nil
}

// takeNamed takes the persistent volume that an unbound claim names, but only if reserved for it:
// others may be another tenant's.
func (p *podVolumes) takeNamed(ctx context.Context, key types.NamespacedName) error {
	of := p.claims[key]
	r, found := p.discovered.find(persistentVolumesResource)
	if _, known := p.persistentVolumes[of.named]; of.named == "" || known || !found {
		return nil
	}
	h, raw, err := p.fetch(ctx, r, "", of.named, optional)
	if raw == nil {
		return err
	}
	var volume struct {
		Spec struct {
			ClaimRef corev1.ObjectReference `json:"claimRef"`
		} `json:"spec"`
	}
	if err := decode(raw, &volume); err != nil {
		p.findings.fail(subject{persistentVolumesResource, "", of.named}, err.Error())
		return nil
	}
	ref := volume.Spec.ClaimRef
	if ref.Namespace != key.Namespace || ref.Name != key.Name || ref.UID != "" && ref.UID != of.uid {
		return nil
	}
	return p.takePersistentVolume(r, h, raw, "the claim "+itemName(key.Namespace, key.Name)+" names it, and it is kept for that")
}

func (p *podVolumes) takeClaimsOfVolumes(ctx context.Context) error {
	r, found := p.discovered.find(claimsResource)
	if !found || len(p.selectors) == 0 || !p.wanted.IncludedRelated(claimsResource, true) {
		return nil
	}
	missing, of := map[types.NamespacedName]string{}, map[types.NamespacedName]string{}
	for name, volume := range p.persistentVolumes {
		if volume == nil || volume.bound.Name == "" || !p.inScope(volume.bound.Namespace) {
			continue
		}
		if _, known := p.claims[volume.bound]; !known {
			missing[volume.bound], of[volume.bound] = "the persistent volume "+name+" is bound to it", name
		}
	}
	if err := p.takeClaims(ctx, r, missing, optional, func(key types.NamespacedName, h *head) bool {
		return h.Metadata.UID == p.persistentVolumes[of[key]].claim // the volume refers to its claim by uid
	}); err != nil {
		return err
	}
	return p.settleClaims(ctx)
}

// takeClaims takes claims, each with a reason, unless accept refuses. Missing ones stay in missing;
// expected and unreadable ones become findings.
func (p *podVolumes) takeClaims(ctx context.Context, r resource, missing map[types.NamespacedName]string, expected bool, accept func(types.NamespacedName, *head) bool) error {
	take := func(h *head, raw []byte) error {
		key := types.NamespacedName{Namespace: h.Metadata.Namespace, Name: h.Metadata.Name}
		why, ok := missing[key]
		if !ok || !accept(key, h) {
			return nil
		}
		delete(missing, key)
		return p.takeClaim(r, key, h, raw, why)
	}
	answered := sets.New[string]() // whose claims are all known; "" is all
	if len(missing) > manyGets {
		var err error
		if answered, err = p.searchClaims(ctx, r, missing, take); err != nil {
			return err
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(missing), compareNames) {
		if answered.HasAny("", key.Namespace) {
			if expected {
				p.findings.warn(subject{claimsResource, key.Namespace, key.Name}, notThere)
			}
			continue
		}
		h, raw, err := p.fetch(ctx, r, key.Namespace, key.Name, expected)
		if err != nil {
			return err
		}
		if raw == nil {
			continue
		}
		if err := take(h, raw); err != nil {
			return err
		}
	}
	return nil
}

func (p *podVolumes) searchClaims(ctx context.Context, r resource, missing map[types.NamespacedName]string, take func(*head, []byte) error) (sets.Set[string], error) {
	lacking := map[string]int{"": len(missing)}
	for key := range missing {
		lacking[key.Namespace]++
	}
	answered := sets.New[string]()
	for _, namespace := range p.listed {
		if lacking[namespace] == 0 {
			continue
		}
		whole, err := p.search(ctx, query{resource: r, namespace: namespace}, func() int { return lacking[namespace] }, func(h *head, raw []byte) error {
			before := len(missing)
			err := take(h, raw)
			lacking[namespace] -= before - len(missing)
			return err
		})
		if err != nil {
			return nil, err
		}
		if whole {
			answered.Insert(namespace)
		}
	}
	return answered, nil
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func boundBy(claim types.NamespacedName) string {
	return "the claim " + itemName(claim.Namespace, claim.Name) + " is bound to it"
}

const halfFilled = "it may hold only a part of the data of a restore that was stopped, and is backed up as it is: restore its data again, or, if you know better, remove its annotation " + format.AnnotationIncomplete

func (p *podVolumes) keepClaim(h *head, raw []byte) {
	kept := &claim{}
	p.claims[types.NamespacedName{Namespace: h.Metadata.Namespace, Name: h.Metadata.Name}] = kept
	var object struct {
		Metadata struct {
			UID         types.UID               `json:"uid"`
			Labels      map[string]string       `json:"labels"`
			Annotations map[string]string       `json:"annotations"`
			Owners      []metav1.OwnerReference `json:"ownerReferences"`
		} `json:"metadata"`
		Spec struct {
			VolumeName string                      `json:"volumeName"`
			VolumeMode corev1.PersistentVolumeMode `json:"volumeMode"`
		} `json:"spec"`
		Status struct {
			Phase corev1.PersistentVolumeClaimPhase `json:"phase"`
		} `json:"status"`
	}
	if err := decode(raw, &object); err != nil {
		kept.unusable = err.Error()
		return
	}
	if len(p.policies) > 0 {
		kept.asked = &claimTraits{}
		if err := decode(raw, kept.asked); err != nil {
			kept.unusable = err.Error()
			return
		}
	}
	kept.uid, kept.labels = object.Metadata.UID, object.Metadata.Labels
	kept.scratch = slices.ContainsFunc(object.Metadata.Owners, func(owner metav1.OwnerReference) bool { return owner.Kind == "Pod" })
	kept.block = object.Spec.VolumeMode == corev1.PersistentVolumeBlock
	kept.classes.Claim = object.Metadata.Annotations[snapshots.LabelClass]
	if _, half := object.Metadata.Annotations[format.AnnotationIncomplete]; half {
		p.findings.warn(subject{claimsResource, h.Metadata.Namespace, h.Metadata.Name}, halfFilled)
	}
	if object.Status.Phase != corev1.ClaimBound || object.Spec.VolumeName == "" {
		kept.unusable, kept.named = "the claim is not bound", object.Spec.VolumeName
		return
	}
	kept.volume = object.Spec.VolumeName
}

func (p *podVolumes) settle(ctx context.Context, key types.NamespacedName) error {
	of := p.claims[key]
	volume := &persistentVolume{}
	var err error
	if of.volume != "" {
		var known *persistentVolume
		if known, err = p.persistentVolume(ctx, of.volume, boundBy(key)); known != nil {
			volume = known
		}
	}
	if volume.hostPath != "" {
		switch {
		case p.hostPathRoots.Over(volume.hostPath) == "":
			of.unusable = "its persistent volume is of type hostPath, and not below the controller's --host-path-roots"
		case volume.claim != of.uid:
			of.unusable = "its persistent volume is bound to another claim"
		}
	}
	if of.asked != nil {
		var parameters snapshotParameters
		of.action, parameters = p.policies.decide(volume.traits, of.asked)
		of.classes.Policy, of.moveData, of.keepLocal, of.asked = parameters.Class, parameters.MoveData, parameters.KeepLocal, nil
	}
	if err == nil && of.volume != "" {
		err = p.chooseSnapshot(ctx, key, of, volume)
	}
	return err
}

func (p *podVolumes) takeClaim(r resource, key types.NamespacedName, h *head, raw []byte, why string) error {
	if reason := h.whyLeftOut(); reason != "" {
		p.claims[key] = &claim{unusable: "its claim is " + reason, known: h.unwanted()}
		return nil
	}
	stored, err := storedClaim(h, raw)
	if err != nil {
		p.findings.fail(subject{claimsResource, key.Namespace, key.Name}, err.Error())
		p.claims[key] = unreadClaim()
		return nil
	}
	if p.comesAlong(r, h) {
		if err := p.hold(r, h, stored, why); err != nil {
			return err
		}
	}
	p.keepClaim(h, raw)
	p.unsettled = append(p.unsettled, key)
	return nil
}

func unreadClaim() *claim { return &claim{unusable: "its claim can't be read", known: true} }

func (p *podVolumes) sortedClaims() []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(p.claims), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}
