// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// claim is what is kept of a volume claim.
type claim struct {
	uid types.UID
	// volume is the bound persistent volume, or "".
	volume string
	// unusable says why the data can't be in the backup; empty if it can. The user
	// is warned unless that is known, or their own wish.
	unusable string
	known    bool
	// skipped says why a pod that has the claim gives no access to its data, and
	// another one still may.
	skipped string
	// taken is true once the data was handed over, and mounted once a pod of the
	// backup has the claim as a volume, so that it was judged with the pod.
	taken, mounted bool
	// notYet are findings about pods that do not run, held back because another
	// pod may still give access to the data.
	notYet []pendingWarning
}

type pendingWarning struct {
	about subject
	text  string
}

// persistentVolume is what is kept of a persistent volume. A nil one could not
// be read.
type persistentVolume struct {
	hostPath      bool
	reclaimPolicy corev1.PersistentVolumeReclaimPolicy
	labels        map[string]string
}

// podVolumes knows the claims and persistent volumes met so far, and hands over
// the volumes of pods. Its methods are called by one goroutine at a time: claims,
// persistent volumes and pods are read one after the other.
type podVolumes struct {
	*collector
	claims            map[types.NamespacedName]*claim
	persistentVolumes map[string]*persistentVolume
	submitted         []*format.Volume
}

func newPodVolumes(c *collector) *podVolumes {
	return &podVolumes{
		collector:         c,
		claims:            map[types.NamespacedName]*claim{},
		persistentVolumes: map[string]*persistentVolume{},
	}
}

// visitPersistentVolume takes a persistent volume.
func (p *podVolumes) visitPersistentVolume(_ context.Context, r resource, h *head, raw []byte) error {
	if _, err := p.keepPersistentVolume(h, raw); err != nil {
		p.findings.fail(subject{persistentVolumesResource, "", h.Metadata.Name}, err.Error())
	}
	return p.add(r, h, raw, itself)
}

func (p *podVolumes) keepPersistentVolume(h *head, raw []byte) (*persistentVolume, error) {
	var object struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Spec struct {
			HostPath      *struct{}                            `json:"hostPath"`
			ReclaimPolicy corev1.PersistentVolumeReclaimPolicy `json:"persistentVolumeReclaimPolicy"`
		} `json:"spec"`
	}
	if err := decode(raw, &object); err != nil {
		return nil, err
	}
	kept := &persistentVolume{object.Spec.HostPath != nil, object.Spec.ReclaimPolicy, object.Metadata.Labels}
	p.persistentVolumes[h.Metadata.Name] = kept
	return kept, nil
}

// persistentVolume finds a persistent volume by name. It comes along into the backup,
// for that reason, unless the backup excludes it. It is nil when it can't be read.
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
	kept, err := p.keepPersistentVolume(h, raw)
	if err != nil {
		p.findings.fail(subject{persistentVolumesResource, "", name}, err.Error())
		return nil, nil
	}
	return kept, p.addRelated(r, h, raw, reason)
}

// visitClaim takes a claim, and its persistent volume along.
func (p *podVolumes) visitClaim(ctx context.Context, r resource, h *head, raw []byte) error {
	if err := p.add(r, h, raw, itself); err != nil {
		return err
	}
	_, err := p.keepClaim(ctx, h, raw)
	return err
}

func (p *podVolumes) keepClaim(ctx context.Context, h *head, raw []byte) (*claim, error) {
	kept := &claim{}
	p.claims[types.NamespacedName{Namespace: h.Metadata.Namespace, Name: h.Metadata.Name}] = kept
	var object struct {
		Metadata struct {
			UID types.UID `json:"uid"`
		} `json:"metadata"`
		Spec struct {
			VolumeName string `json:"volumeName"`
		} `json:"spec"`
		Status struct {
			Phase corev1.PersistentVolumeClaimPhase `json:"phase"`
		} `json:"status"`
	}
	if err := decode(raw, &object); err != nil {
		kept.unusable = err.Error()
		return kept, nil
	}
	kept.uid = object.Metadata.UID
	if object.Status.Phase != corev1.ClaimBound || object.Spec.VolumeName == "" {
		kept.unusable = "the claim is not bound"
		return kept, nil
	}
	kept.volume = object.Spec.VolumeName
	volume, err := p.persistentVolume(ctx, kept.volume, "the claim "+itemName(h.Metadata.Namespace, h.Metadata.Name)+" is bound to it")
	if volume != nil && volume.hostPath {
		kept.unusable = "its persistent volume is of type hostPath, which the agent can't reach"
	}
	return kept, err
}

// claim finds a claim that a pod of its namespace refers to. It comes along into the backup, even
// when the backup's label selector does not match it.
func (p *podVolumes) claim(ctx context.Context, key types.NamespacedName, pod string) (*claim, error) {
	if kept, known := p.claims[key]; known {
		return kept, nil
	}
	kept := &claim{}
	p.claims[key] = kept
	r, found := p.discovered.find(claimsResource)
	if !found || !p.wanted.IncludedRelated(claimsResource, true) {
		kept.unusable, kept.known = "the backup excludes its claim", true
		return kept, nil
	}
	h, raw, err := p.fetch(ctx, r, key.Namespace, key.Name, expected)
	if raw == nil {
		kept.unusable, kept.known = "its claim can't be read", true
		return kept, err
	}
	if reason := h.whyLeftOut(); reason != "" {
		kept.unusable, kept.known = "its claim is "+reason, true
		return kept, nil
	}
	if err := p.addRelated(r, h, raw, "the pod "+pod+" has it as a volume"); err != nil {
		return nil, err
	}
	return p.keepClaim(ctx, h, raw)
}

// visitPod takes a pod, its claims along, and hands over its volumes.
func (p *podVolumes) visitPod(ctx context.Context, r resource, h *head, raw []byte) error {
	if err := p.add(r, h, raw, itself); err != nil {
		return err
	}
	about := subject{podsResource, h.Metadata.Namespace, h.Metadata.Name}
	var pod corev1.Pod
	if err := decode(raw, &pod); err != nil {
		p.findings.fail(about, err.Error())
		return nil
	}
	for i := range pod.Spec.Volumes {
		if name := claimOf(&pod, &pod.Spec.Volumes[i]); name != "" {
			of, err := p.claim(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: name}, pod.Name)
			if err != nil {
				return err
			}
			of.mounted = true
		}
	}
	picked, skipped := pickVolumes(&pod, p.filesByDefault())
	for _, s := range skipped {
		p.skip(about, s)
		if s.claim != "" {
			p.claims[types.NamespacedName{Namespace: pod.Namespace, Name: s.claim}].skipped = s.reason
		}
	}
	for i := range picked {
		p.handOver(ctx, &pod, &picked[i])
	}
	return ctx.Err()
}

func (p *podVolumes) skip(about subject, s skippedVolume) {
	text := fmt.Sprintf("the data of volume %s is not backed up: %s", s.volume, s.reason)
	if s.asked {
		p.findings.warn(about, text)
		return
	}
	p.log.write(slog.LevelInfo, text, about.attrs()...)
}

func (p *podVolumes) handOver(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) {
	about := subject{podsResource, pod.Namespace, pod.Name}
	to := &format.Volume{
		Pod:          engine.PodReference{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		NamespaceUID: p.existing[pod.Namespace],
		Node:         pod.Spec.NodeName,
		Name:         volume.Name,
		ClaimName:    claimOf(pod, volume),
	}
	// Through whichever pod a claim is read, its data is the same.
	of := &claim{}
	if to.ClaimName != "" {
		of = p.claims[types.NamespacedName{Namespace: pod.Namespace, Name: to.ClaimName}]
		if of.unusable != "" {
			p.skip(about, skippedVolume{volume.Name, to.ClaimName, of.unusable, !of.known})
			return
		}
		if of.taken {
			p.skip(about, skippedVolume{volume.Name, to.ClaimName, "another pod has given access to its claim", false})
			return
		}
		to.ClaimUID, to.PersistentVolume = of.uid, of.volume
		if kept := p.persistentVolumes[of.volume]; kept != nil {
			to.ReclaimPolicy, to.Labels = kept.reclaimPolicy, kept.labels
		}
	}
	if reason := whyNotRunning(pod); reason != "" {
		if to.ClaimName == "" {
			p.skip(about, skippedVolume{volume.Name, "", reason, true})
			return
		}
		of.notYet = append(of.notYet, pendingWarning{about, fmt.Sprintf("the data of volume %s is not backed up: %s", volume.Name, reason)})
		return
	}
	of.taken = true
	if err := p.mover.Submit(ctx, to); err != nil {
		p.findings.fail(about, fmt.Sprintf("hand over volume %s: %v", volume.Name, err))
		return
	}
	p.submitted = append(p.submitted, to)
	p.log.write(slog.LevelInfo, "handed over volume "+volume.Name+" to node "+to.Node, about.attrs()...)
}

// podsDone gives the warnings that were held back, for claims that no running
// pod uses, and those for claims that no pod uses at all, if the files of all
// volumes were asked for.
func (p *podVolumes) podsDone() {
	all := p.filesByDefault()
	for _, key := range p.sortedClaims() {
		of := p.claims[key]
		if of.taken {
			continue
		}
		for _, pending := range of.notYet {
			of.unusable = "no running pod uses the claim"
			p.findings.warn(pending.about, pending.text)
		}
		if all && !of.mounted && of.volume != "" {
			of.unusable = cmp.Or(of.unusable, "no running pod of the backup uses the claim, and files are read through one")
			p.findings.warn(subject{claimsResource, key.Namespace, key.Name}, "the data of the claim is not backed up: "+of.unusable)
		}
	}
}

// filesByDefault says whether the files of all volumes were asked for.
func (p *podVolumes) filesByDefault() bool {
	return p.spec.DefaultVolumesToFsBackup != nil && *p.spec.DefaultVolumesToFsBackup
}

// conclude turns what failed into findings, and returns what became of the volumes.
func (p *podVolumes) conclude() []*format.Volume {
	for _, volume := range p.submitted {
		status := &volume.Status
		if !status.Phase.Done() {
			status.Phase, status.Message = engine.VolumePhaseFailed, "the upload ended without a result"
		}
		about := subject{podsResource, volume.Pod.Namespace, volume.Pod.Name}
		switch {
		case status.Phase == engine.VolumePhaseFailed:
			p.findings.fail(about, fmt.Sprintf("volume %s could not be uploaded: %s", volume.Name, status.Message))
		case status.Warnings > 0:
			p.findings.warn(about, fmt.Sprintf("volume %s: %d files could not be read: %s", volume.Name, status.Warnings, status.Message))
		}
	}
	return p.submitted
}

// notTaken describes the persistent volumes whose data is not in the backup,
// since a restore must know that there is none.
func (p *podVolumes) notTaken() []format.VolumeInfo {
	var infos []format.VolumeInfo
	for _, key := range p.sortedClaims() {
		of := p.claims[key]
		kept := p.persistentVolumes[of.volume]
		if of.taken || kept == nil {
			continue
		}
		reason := cmp.Or(of.unusable, of.skipped, "no pod selects it for the backup of its files")
		infos = append(infos, format.VolumeInfo{
			PVCName: key.Name, PVCNamespace: key.Namespace, PVName: of.volume,
			Skipped: true, SkippedReason: reason,
			PVInfo: &format.PersistentVolInfo{ReclaimPolicy: string(kept.reclaimPolicy), Labels: kept.labels},
		})
	}
	return infos
}

func (p *podVolumes) sortedClaims() []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(p.claims), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}
