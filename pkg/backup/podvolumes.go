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
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/hostpath"
)

// podVolumes reads claims, persistent volumes and pods, in this order, and hands over volumes. After
// that the maps don't change, and one goroutine takes a claim's pods, which are one block.
type podVolumes struct {
	*collector
	claims            map[types.NamespacedName]*claim
	persistentVolumes map[string]*persistentVolume
	nodes             map[string]*corev1.Node
	unsettled         []types.NamespacedName
	// undecided are pods that wait for claims, as listed; undecidedBytes is their memory.
	undecided      []undecidedPod
	undecidedBytes int
	held           []*heldPod
	ordered        map[types.NamespacedName]int
	// index has claims and persistent volumes to write once all pods are known, of indexBytes as
	// stored. indexFull: others were written before.
	index      []*object
	indexBytes int
	indexFull  bool
	// behind: an ordered pod is written after its hooks, and so are the next.
	behind bool

	impatient atomic.Bool

	mu        sync.Mutex
	submitted []*format.Volume
	kept      []*object
	scratch   map[string]int
	heldBytes int
}

func newPodVolumes(c *collector) *podVolumes {
	return &podVolumes{
		collector:         c,
		claims:            map[types.NamespacedName]*claim{},
		persistentVolumes: map[string]*persistentVolume{},
		nodes:             map[string]*corev1.Node{},
		ordered:           c.order.places(podsResource),
	}
}

// maxScratchVolumes bounds a namespace's volumes without a claim. Each is a record, and a pod can name
// any number of emptyDirs.
const maxScratchVolumes = 5000

func (p *podVolumes) takesScratch(namespace string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.scratch == nil {
		p.scratch = map[string]int{}
	}
	if p.scratch[namespace] >= maxScratchVolumes {
		return false
	}
	p.scratch[namespace]++
	return true
}

// actionOf returns the volume policies' action for a pod's volume. A claim's volume has the claim's
// action. A generic ephemeral volume is judged by its own type, as in Velero.
func (p *podVolumes) actionOf(pod *corev1.Pod, volume *corev1.Volume) action {
	if claim := volume.PersistentVolumeClaim; claim != nil {
		return p.claims[types.NamespacedName{Namespace: pod.Namespace, Name: claim.ClaimName}].action
	}
	of, _ := p.policies.decide(traitsInPod(&volume.VolumeSource), nil)
	return of
}

func (p *podVolumes) visitPod(ctx context.Context, r resource, h *head, raw []byte) error {
	about := subject{podsResource, h.Metadata.Namespace, h.Metadata.Name}
	var pod corev1.Pod
	if err := decode(raw, &pod); err != nil {
		p.findings.fail(about, err.Error())
		return p.add(r, h, raw, itself)
	}
	held := p.newHeldPod(&pod)
	later, err := p.holdBack(held, r, h, raw)
	if err != nil {
		return err
	}
	if !later {
		if err := p.add(r, h, raw, itself); err != nil {
			return err
		}
	}
	if p.waits(held) {
		return p.postpone(ctx, &pod, held)
	}
	return p.decide(ctx, &pod, held)
}

func (p *podVolumes) decide(ctx context.Context, pod *corev1.Pod, held *heldPod) error {
	about := subject{podsResource, pod.Namespace, pod.Name}
	for _, name := range held.claims {
		p.claims[types.NamespacedName{Namespace: pod.Namespace, Name: name}].mounted = true
	}
	picked, skipped := pickVolumes(pod, defaultsOf(p.spec.DefaultVolumesToFsBackup), func(volume *corev1.Volume) action { return p.actionOf(pod, volume) },
		func(volume *corev1.Volume, otherwise bool) bool { return p.cuts(pod, volume, otherwise) })
	for _, s := range skipped {
		of := p.claims[types.NamespacedName{Namespace: pod.Namespace, Name: s.claim}]
		s.asked = s.asked && (of == nil || !of.snapshotFailed)
		if of != nil && of.action == snapshotAction && of.unusable != "" {
			s.reason, s.asked = of.unusable, s.asked && !of.known
		}
		p.skip(about, s)
		if s.claim != "" {
			of.skipped, of.missed, of.excluded = s.reason, of.missed || s.asked, of.excluded || s.excluded
		}
	}
	for _, volume := range picked {
		here := heldVolume{volume.Name, claimOf(pod, &volume.Volume), volume.cut}
		if held.notRunning != "" || volume.cut {
			held.volumes = append(held.volumes, here)
			continue
		}
		of := p.claims[types.NamespacedName{Namespace: pod.Namespace, Name: here.claim}]
		why, err := p.notHere(ctx, of, pod.Spec.NodeName)
		switch {
		case err != nil:
			return err
		case why != "":
			p.skip(about, skippedVolume{here.name, here.claim, why, true, false})
			of.skipped, of.missed = why, true
		default:
			held.volumes = append(held.volumes, here)
		}
	}
	if len(held.volumes)+len(held.pre)+len(held.post) > 0 || held.unwritten != nil {
		p.held = append(p.held, held)
	}
	return ctx.Err()
}

// notHere says why a claim must not be read on the pod's node, or returns "". The kubelet does not
// mount hostPath volumes, so it does not refuse one of another node. If a running pod's claim was
// recreated on another node, the path on the pod's node belongs to another tenant.
func (p *podVolumes) notHere(ctx context.Context, of *claim, name string) (string, error) {
	if of == nil || name == "" {
		return "", nil
	}
	kept := p.persistentVolumes[of.volume]
	if kept == nil || kept.hostPath == "" || kept.nodes == nil {
		return "", nil
	}
	const unknown = "its persistent volume is of type hostPath, and it is not known whether it is on the pod's node"
	r, found := p.discovered.find(nodesResource)
	if !found {
		return unknown, nil
	}
	node := p.nodes[name]
	if node == nil {
		_, raw, err := p.fetch(ctx, r, "", name, true)
		if raw == nil {
			return unknown, err
		}
		node = &corev1.Node{}
		if err := decode(raw, node); err != nil {
			return unknown + ": " + err.Error(), nil
		}
		p.nodes[name] = node
	}
	switch on, err := hostpath.On(kept.nodes, node); {
	case err != nil:
		return unknown + ": " + err.Error(), nil
	case !on:
		return "its persistent volume is of type hostPath, and on another node than the pod", nil
	}
	return "", nil
}

func notBackedUp(volume, claim, reason string) string {
	if claim != "" {
		volume += " (claim " + claim + ")"
	}
	return fmt.Sprintf("the data of volume %s is not backed up: %s", volume, reason)
}

func (p *podVolumes) skip(about subject, s skippedVolume) {
	text := notBackedUp(s.volume, s.claim, s.reason)
	if s.asked {
		p.findings.warn(about, text)
		return
	}
	p.log.write(slog.LevelInfo, text, about.attrs()...)
}

func (p *podVolumes) handOverVolume(ctx context.Context, pod *heldPod, volume heldVolume, hooked bool) *format.Volume {
	about := subject{podsResource, pod.ref.Namespace, pod.ref.Name}
	if pod.ref.Name == "" {
		about = subject{claimsResource, pod.ref.Namespace, volume.claim}
	}
	to := &format.Volume{
		Pod:          pod.ref,
		NamespaceUID: p.existing[pod.ref.Namespace],
		Node:         pod.node,
		Name:         volume.name,
		ClaimName:    volume.claim,
		Hooked:       hooked,
	}
	if volume.cut {
		to.Node = "" // the node is unknown yet
	}
	// A claim has the same data through each pod.
	of := &claim{}
	if to.ClaimName != "" {
		of = p.claims[types.NamespacedName{Namespace: pod.ref.Namespace, Name: to.ClaimName}]
		if of.unusable != "" {
			p.skip(about, skippedVolume{volume.name, to.ClaimName, of.unusable, !of.known, false})
			of.missed = of.missed || of.refused || !of.known
			return nil
		}
		if of.taken {
			if pod.notRunning == "" && !volume.cut {
				of.others = append(of.others, access{pod.ref, pod.node, volume.name})
			}
			p.skip(about, skippedVolume{volume.name, to.ClaimName, "another pod has given access to its claim", false, false})
			return nil
		}
		to.ClaimUID, to.ClaimLabels, to.PersistentVolume, to.Device = of.uid, of.labels, of.volume, of.block
		if kept := p.persistentVolumes[of.volume]; kept != nil {
			to.ReclaimPolicy, to.Labels, to.Capacity, to.Created = kept.reclaimPolicy, kept.labels, kept.capacity, kept.created
			to.HostPath = kept.hostPath
		}
	}
	if volume.cut {
		to.Snapshot = of.snapshot
		if kept := p.persistentVolumes[of.volume]; to.Snapshot != nil && kept != nil && kept.fileSystem == "xfs" {
			// A copy has the same uuid: a node that mounts the original may refuse it.
			to.Snapshot.Avoid = pod.node
		}
	} else if reason := pod.notRunning; reason != "" {
		if to.ClaimName == "" {
			p.skip(about, skippedVolume{volume.name, "", reason, true, false})
			return nil
		}
		of.notYet = append(of.notYet, pendingWarning{about, notBackedUp(volume.name, volume.claim, reason)})
		return nil
	}
	if to.ClaimName == "" && !p.takesScratch(pod.ref.Namespace) {
		reason := fmt.Sprintf("a backup takes %d volumes without a claim of one namespace, and there are more", maxScratchVolumes)
		p.findings.fail(about, notBackedUp(volume.name, "", reason))
		return nil
	}
	of.taken = true
	if err := p.submit(ctx, to); err != nil {
		of.lost, of.unusable, of.known = true, "its volume could not be handed over to an agent", true
		p.findings.fail(about, fmt.Sprintf("hand over volume %s: %v", volume.name, err))
		return nil
	}
	if volume.cut {
		p.log.write(slog.LevelInfo, "a snapshot is made of the claim "+to.ClaimName+" by the driver "+to.Snapshot.Driver, about.attrs()...)
		return to
	}
	p.log.write(slog.LevelInfo, "handed over volume "+volume.name+" to node "+to.Node, about.attrs()...)
	return to
}

// submit hands over a volume, and waits for a restarting server. After a failure it tries each volume
// once, until one is accepted.
func (p *podVolumes) submit(ctx context.Context, volume *format.Volume) error {
	retry := p.lister.retry
	if p.impatient.Load() {
		retry.Steps = 1
	}
	err := retried(ctx, retry, func() error { return p.mover.Submit(ctx, volume) })
	p.impatient.Store(err != nil && passing(err))
	return err
}

// podsDone reports the held-back warnings of claims that no running pod uses, and claims without a pod.
func (p *podVolumes) podsDone() {
	for _, volume := range p.leaving {
		if of := p.claims[volume.claim]; of != nil {
			if refused, _ := of.action.whyNot(); of.taken || refused != "" {
				continue
			}
			of.skipped, of.mounted, of.missed = cmp.Or(of.skipped, podLeaves), true, true
		}
		p.findings.warn(volume.about, notBackedUp(volume.name, volume.claim.Name, podLeaves))
	}
	withoutPods := map[string][]string{}
	for _, key := range p.sortedClaims() {
		of := p.claims[key]
		if of.taken || of.snapshotFailed {
			continue
		}
		for _, pending := range of.notYet {
			of.unusable, of.missed = "no running pod uses the claim", true
			p.findings.warn(pending.about, pending.text)
		}
		if pod, labelled := p.ofLabelled[key]; labelled && !of.mounted && of.action == noAction {
			of.skipped = "the pod " + pod + ", which uses it, is labelled to be left out"
			continue
		}
		refused, asked := of.action.whyNot()
		asked = asked || of.action == filesAction || of.action == noAction && p.wantsClaims()
		if of.mounted || of.volume == "" {
			continue
		}
		if asked && of.action == noAction && !p.wanted.Included(podsResource, true) {
			of.missed, of.unusable = true, cmp.Or(of.unusable, "the backup includes no pods, and files are read through one")
			withoutPods[key.Namespace] = append(withoutPods[key.Namespace], key.Name)
			continue
		}
		if asked {
			of.missed = true
			of.unusable = cmp.Or(refused, of.unusable, "no running pod of the backup uses the claim, and files are read through one")
			p.findings.warn(subject{claimsResource, key.Namespace, key.Name}, "the data of the claim is not backed up: "+of.unusable)
		}
	}
	for _, namespace := range slices.Sorted(maps.Keys(withoutPods)) {
		names := withoutPods[namespace]
		others := ""
		if len(names) > 1 {
			others = fmt.Sprintf(", and of %s in its namespace,", format.Counted(len(names)-1, "other claim"))
		}
		p.findings.warn(subject{claimsResource, namespace, names[0]}, "the data of the claim"+others+
			" is not backed up: the backup includes no pods, and files are read through one. Include pods, or set defaultVolumesToFsBackup to false if no data is wanted")
	}
}

// warnOfNoData warns of a backup without any data that does not say so itself. Velero fills in
// defaultVolumesToFsBackup: false, and then makes snapshots unless the spec forbids them.
func (p *podVolumes) warnOfNoData() {
	if ptr.Deref(p.spec.DefaultVolumesToFsBackup, true) || p.spec.SnapshotVolumes != nil || p.spec.ResourcePolicy != nil || len(p.submitted) > 0 || !p.wanted.Included(podsResource, true) {
		return
	}
	var without []types.NamespacedName
	for _, key := range p.sortedClaims() {
		of := p.claims[key]
		if _, labelled := p.ofLabelled[key]; of.volume == "" || of.missed || of.excluded || labelled && !of.mounted {
			continue
		}
		of.missed = true
		without = append(without, key)
	}
	if len(without) == 0 {
		return
	}
	others := ""
	if len(without) > 1 {
		others = ", and of " + format.Counted(int32(len(without)-1), "other claim") + ","
	}
	p.findings.warn(subject{claimsResource, without[0].Namespace, without[0].Name}, "the data of the claim"+others+
		" is not backed up: defaultVolumesToFsBackup is false, snapshotVolumes is not set, and no pod names a volume. Leave defaultVolumesToFsBackup out for the files of claims, set snapshotVolumes: true for snapshots, or false if no data is wanted")
}

const podLeaves = "the pod is being deleted"

type leavingVolume struct {
	about subject
	name  string
	claim types.NamespacedName
}

// leaves notes claims whose files would be read if the pod were not being deleted.
func (c *collector) leaves(about subject, raw []byte) {
	var pod corev1.Pod
	if err := decode(raw, &pod); err != nil {
		return
	}
	picked, _ := pickVolumes(&pod, defaultsOf(c.spec.DefaultVolumesToFsBackup), func(*corev1.Volume) action { return noAction }, func(*corev1.Volume, bool) bool { return false })
	for _, volume := range picked {
		if claim := claimOf(&pod, &volume.Volume); claim != "" {
			c.leaving = append(c.leaving, leavingVolume{about, volume.Name, types.NamespacedName{Namespace: pod.Namespace, Name: claim}})
		}
	}
}

// leavesOut notes claims of a pod excluded by label. Unless other pods use them, they are left out on
// purpose.
func (c *collector) leavesOut(about subject, raw []byte) {
	var pod corev1.Pod
	if err := decode(raw, &pod); err != nil {
		return
	}
	for i := range pod.Spec.Volumes {
		if claim := claimOf(&pod, &pod.Spec.Volumes[i]); claim != "" {
			if c.ofLabelled == nil {
				c.ofLabelled = map[types.NamespacedName]string{}
			}
			c.ofLabelled[types.NamespacedName{Namespace: pod.Namespace, Name: claim}] = about.name
		}
	}
}

func (c *collector) wantsClaims() bool {
	return defaultsOf(c.spec.DefaultVolumesToFsBackup) != takeNone
}

func (p *podVolumes) leftOut() (count int32) {
	for _, of := range p.claims {
		if of.volume != "" && (of.lost || of.missed && !of.taken) {
			count++
		}
	}
	return count
}

func (p *podVolumes) inOrder() []*format.Volume {
	slices.SortStableFunc(p.submitted, func(a, b *format.Volume) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
	})
	return p.submitted
}

func (f *findings) conclude(volumes []*format.Volume) {
	for _, volume := range volumes {
		status := &volume.Status
		if !status.Phase.Done() {
			status.Phase, status.Message = enginev1alpha1.VolumePhaseFailed, "the upload ended without a result"
		}
		about := subject{podsResource, volume.Pod.Namespace, volume.Pod.Name}
		if volume.Pod.Name == "" {
			about = subject{claimsResource, volume.Pod.Namespace, volume.ClaimName}
		}
		switch {
		case status.Phase == enginev1alpha1.VolumePhaseFailed:
			verb := "uploaded"
			if volume.Snapshot != nil && volume.Snapshot.Kept {
				verb = "backed up"
			}
			f.fail(about, fmt.Sprintf("%s could not be %s: %s", described(volume), verb, whyFailed(volume)))
		case status.Warnings > 0:
			f.warn(about, fmt.Sprintf("%s: %s about its files: %s", described(volume), format.Counted(status.Warnings, "warning"), status.Message))
		}
	}
}

func described(volume *format.Volume) string {
	if volume.Pod.Name == "" {
		return "the claim"
	}
	if volume.ClaimName == "" {
		return "volume " + volume.Name
	}
	return fmt.Sprintf("volume %s of claim %s", volume.Name, volume.ClaimName)
}

func (of *claim) whyNotTaken() string {
	if of.snapshotFailed {
		return of.unusable
	}
	refused, _ := of.action.whyNot()
	return cmp.Or(refused, of.unusable, of.skipped, "no pod selects it for the backup of its files")
}

func (p *podVolumes) notTaken() []format.VolumeInfo {
	var infos []format.VolumeInfo
	for _, key := range p.sortedClaims() {
		of := p.claims[key]
		kept := p.persistentVolumes[of.volume]
		if of.taken && !of.lost || kept == nil {
			continue
		}
		info := format.VolumeInfo{
			PVCName: key.Name, PVCNamespace: key.Namespace, PVName: of.volume,
			Skipped: true, SkippedReason: of.whyNotTaken(),
			PVInfo: &format.PersistentVolInfo{ReclaimPolicy: string(kept.reclaimPolicy), Labels: kept.labels},
		}
		if of.snapshotFailed { // nothing is restored that would start on an empty volume
			info.Result = format.ResultFailed
		}
		infos = append(infos, info)
	}
	return infos
}
