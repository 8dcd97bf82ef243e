// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/hostpath"
)

// claim is what is kept of a volume claim.
type claim struct {
	uid    types.UID
	labels map[string]string
	// volume is the bound persistent volume, or "".
	volume string
	// unusable says why the data can't be in the backup; empty if it can. The user
	// is warned unless that is known, or their own wish.
	unusable string
	known    bool
	// action is that of the volume policies, and asked what they look at, until then.
	action action
	asked  *claimTraits
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
	// hostPath is the path of a folder of a node, or "".
	hostPath string
	// bound is the claim that it is bound to, and claim that one's uid.
	bound types.NamespacedName
	claim types.UID
	// nodes are those where it is.
	nodes         *corev1.VolumeNodeAffinity
	reclaimPolicy corev1.PersistentVolumeReclaimPolicy
	labels        map[string]string
	capacity      int64
	created       metav1.Time
	// traits are what the volume policies look at, if there are any.
	traits volumeTraits
}

// podVolumes knows the claims and persistent volumes met so far, and hands over
// the volumes of pods. Claims, persistent volumes and pods are read one after the
// other. Then the maps change no more, and the pods that have a claim are one block,
// which one goroutine takes.
type podVolumes struct {
	*collector
	claims            map[types.NamespacedName]*claim
	persistentVolumes map[string]*persistentVolume
	nodes             map[string]*corev1.Node
	// unsettled are the claims that were read and whose persistent volumes were not.
	unsettled []types.NamespacedName
	// undecided are pods that wait for claims, in the order of being read, and undecidedBytes
	// what is kept of them.
	undecided      []undecidedPod
	undecidedBytes int
	// held are the pods to take when all are known.
	held []*heldPod
	// ordered are the pods that the spec orders, which come before all others.
	ordered map[types.NamespacedName]int
	// index are the claims and persistent volumes that are written when all pods are known, of so
	// many bytes as they are stored. It is full once others were written before.
	index      []*object
	indexBytes int
	indexFull  bool
	// behind is true once one of these is to be written after its hooks, and those behind it
	// therefore as well.
	behind bool

	mu        sync.Mutex
	submitted []*format.Volume
	// heldBytes are those of what is to be written after hooks, as it is stored.
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

// visitPersistentVolume takes a persistent volume.
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
		hostPath: object.Spec.HostPath.Path, nodes: object.Spec.NodeAffinity, reclaimPolicy: object.Spec.ReclaimPolicy, labels: object.Metadata.Labels,
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
	err = p.takePersistentVolume(r, h, raw, reason)
	return p.persistentVolumes[name], err
}

// takePersistentVolume takes a persistent volume that comes along.
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

// visitClaim takes a claim. Its persistent volume comes along when all claims are read.
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

// manyGets is how many objects are looked for in a list rather than read one by one.
const manyGets = 10

// settleClaims looks at the persistent volumes of the claims that were read, which come
// along.
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
			delete(missing, h.Metadata.Name) // it may come twice
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
	}
	p.unsettled = nil
	return nil
}

// takeClaimsOfVolumes takes the claims of the persistent volumes that labels have chosen: one is
// of no use without the other.
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
		return h.Metadata.UID == p.persistentVolumes[of[key]].claim // of another one of its name the volume knows nothing
	}); err != nil {
		return err
	}
	return p.settleClaims(ctx)
}

// takeClaims takes claims that come along, for a reason each, unless they are refused. Many of
// them are looked for in lists. One that is left in missing does not exist, which is told if it is
// expected, or can't be read.
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
	answered := sets.New[string]() // the namespaces whose claims are all known; "" is all
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

// searchClaims looks for missing claims in the lists of the namespaces that have some, and says of
// which it has seen all.
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

var (
	// errFound ends a search, since nothing is left to be found.
	errFound = errors.New("all are found")
	// errTooLong ends one whose list has far more objects than are looked for.
	errTooLong = errors.New("most of it is other objects")
)

// worthAGet is how many objects to come of a list are read rather than one that is looked for by
// itself: a page has some hundred, and takes the server as long as a few dozen single ones.
const worthAGet = 50

// search visits the objects of a list among which others are that are needed, and says whether
// it has seen all, or as many as are missing. What it misses, since the server fails or the list is
// long, is to be read by itself. The error is for the backup as a whole.
func (c *collector) search(ctx context.Context, q query, missing func() int, visit func(*head, []byte) error) (whole bool, _ error) {
	unread := false
	listCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	page := func(remaining int64) {
		if remaining > worthAGet*int64(missing()) {
			stop(errTooLong)
		}
	}
	err := c.lister.list(listCtx, q, visitor{page: page, object: func(raw []byte) error {
		h, err := headOf(raw)
		if err != nil {
			unread = true // if it is needed, that is told when it is read by itself
			return nil
		}
		if err := visit(h, raw); err != nil || missing() > 0 {
			return err
		}
		return errFound
	}})
	if listCtx.Err() != nil {
		err = context.Cause(listCtx)
	}
	var fatal visitError
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case errors.As(err, &fatal) && errors.Is(fatal.error, errFound):
		return true, nil
	case errors.As(err, &fatal):
		return false, fatal.error
	case err != nil:
		c.log.write(slog.LevelInfo, fmt.Sprintf("what others refer to is read one by one: list it: %v", err), subject{q.resource.GroupResource(), q.namespace, ""}.attrs()...)
	}
	return err == nil && !unread, nil
}

const halfFilled = "it may hold only a part of the data of a restore that was stopped, and is backed up as it is: restore its data again, or, if you know better, remove its annotation " + format.AnnotationIncomplete

// keepClaim keeps what is needed of a claim, which settle is to be called for.
func (p *podVolumes) keepClaim(h *head, raw []byte) {
	kept := &claim{}
	p.claims[types.NamespacedName{Namespace: h.Metadata.Namespace, Name: h.Metadata.Name}] = kept
	var object struct {
		Metadata struct {
			UID         types.UID         `json:"uid"`
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
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
	if _, half := object.Metadata.Annotations[format.AnnotationIncomplete]; half {
		p.findings.warn(subject{claimsResource, h.Metadata.Namespace, h.Metadata.Name}, halfFilled)
	}
	if object.Status.Phase != corev1.ClaimBound || object.Spec.VolumeName == "" {
		kept.unusable = "the claim is not bound"
		return
	}
	kept.volume = object.Spec.VolumeName
}

// settle looks at the persistent volume of a claim, which comes along, and asks the volume
// policies about the two.
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
	if of.asked != nil { // of a volume that can't be read, they know nothing
		of.action = p.policies.action(volume.traits, of.asked)
		of.asked = nil
	}
	return err
}

// actionOf is that of the volume policies about a volume of a pod. Through a claim it is the
// claim's, but for the one that Kubernetes makes for a generic ephemeral volume: as in
// Velero, such a volume is of that type.
func (p *podVolumes) actionOf(pod *corev1.Pod, volume *corev1.Volume) action {
	if claim := volume.PersistentVolumeClaim; claim != nil {
		return p.claims[types.NamespacedName{Namespace: pod.Namespace, Name: claim.ClaimName}].action
	}
	return p.policies.action(traitsInPod(&volume.VolumeSource), nil)
}

// takeClaim takes a claim that comes along for a reason. Its persistent volume comes along when
// claims are settled.
func (p *podVolumes) takeClaim(r resource, key types.NamespacedName, h *head, raw []byte, why string) error {
	if reason := h.whyLeftOut(); reason != "" {
		p.claims[key] = &claim{unusable: "its claim is " + reason, known: true}
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

// visitPod takes a pod, and holds it for its volumes and hooks. With hooks before, it is not
// written yet.
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

// decide decides on the volumes of a pod, whose claims are known.
func (p *podVolumes) decide(ctx context.Context, pod *corev1.Pod, held *heldPod) error {
	about := subject{podsResource, pod.Namespace, pod.Name}
	for _, name := range held.claims {
		p.claims[types.NamespacedName{Namespace: pod.Namespace, Name: name}].mounted = true
	}
	picked, skipped := pickVolumes(pod, p.filesByDefault(), func(volume *corev1.Volume) action { return p.actionOf(pod, volume) })
	for _, s := range skipped {
		p.skip(about, s)
		if s.claim != "" {
			p.claims[types.NamespacedName{Namespace: pod.Namespace, Name: s.claim}].skipped = s.reason
		}
	}
	for _, volume := range picked {
		here := heldVolume{volume.Name, claimOf(pod, &volume)}
		if held.notRunning != "" { // which is told
			held.volumes = append(held.volumes, here)
			continue
		}
		of := p.claims[types.NamespacedName{Namespace: pod.Namespace, Name: here.claim}]
		why, err := p.notHere(ctx, of, pod.Spec.NodeName)
		switch {
		case err != nil:
			return err
		case why != "":
			p.skip(about, skippedVolume{here.name, here.claim, why, true})
			of.skipped = why
		default:
			held.volumes = append(held.volumes, here)
		}
	}
	if len(held.volumes)+len(held.pre)+len(held.post) > 0 || held.unwritten != nil {
		p.held = append(p.held, held)
	}
	return ctx.Err()
}

// notHere says why a claim, or none, is not to be read on the node of a pod, or "". The kubelet mounts
// no volume of another node, but a folder of type hostPath it does not mount: a pod that goes on
// while its claim is made anew is on a node where the path is somebody else's.
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

func (p *podVolumes) skip(about subject, s skippedVolume) {
	text := fmt.Sprintf("the data of volume %s is not backed up: %s", s.volume, s.reason)
	if s.asked {
		p.findings.warn(about, text)
		return
	}
	p.log.write(slog.LevelInfo, text, about.attrs()...)
}

// handOverVolume hands over a volume of a pod. It is nil if that could not be.
func (p *podVolumes) handOverVolume(ctx context.Context, pod *heldPod, volume heldVolume, hooked bool) *format.Volume {
	about := subject{podsResource, pod.ref.Namespace, pod.ref.Name}
	to := &format.Volume{
		Pod:          pod.ref,
		NamespaceUID: p.existing[pod.ref.Namespace],
		Node:         pod.node,
		Name:         volume.name,
		ClaimName:    volume.claim,
		Hooked:       hooked,
	}
	// Through whichever pod a claim is read, its data is the same.
	of := &claim{}
	if to.ClaimName != "" {
		of = p.claims[types.NamespacedName{Namespace: pod.ref.Namespace, Name: to.ClaimName}]
		if of.unusable != "" {
			p.skip(about, skippedVolume{volume.name, to.ClaimName, of.unusable, !of.known})
			return nil
		}
		if of.taken {
			p.skip(about, skippedVolume{volume.name, to.ClaimName, "another pod has given access to its claim", false})
			return nil
		}
		to.ClaimUID, to.ClaimLabels, to.PersistentVolume = of.uid, of.labels, of.volume
		if kept := p.persistentVolumes[of.volume]; kept != nil {
			to.ReclaimPolicy, to.Labels, to.Capacity, to.Created = kept.reclaimPolicy, kept.labels, kept.capacity, kept.created
			to.HostPath = kept.hostPath
		}
	}
	if reason := pod.notRunning; reason != "" {
		if to.ClaimName == "" {
			p.skip(about, skippedVolume{volume.name, "", reason, true})
			return nil
		}
		of.notYet = append(of.notYet, pendingWarning{about, fmt.Sprintf("the data of volume %s is not backed up: %s", volume.name, reason)})
		return nil
	}
	of.taken = true
	if err := p.mover.Submit(ctx, to); err != nil {
		p.findings.fail(about, fmt.Sprintf("hand over volume %s: %v", volume.name, err))
		return nil
	}
	p.log.write(slog.LevelInfo, "handed over volume "+volume.name+" to node "+to.Node, about.attrs()...)
	return to
}

// podsDone gives the warnings that were held back, for claims that no running
// pod uses, and those for claims that no pod uses at all, if the files of all
// volumes were asked for, or a volume policy asks for something.
func (p *podVolumes) podsDone() {
	for _, key := range p.sortedClaims() {
		of := p.claims[key]
		if of.taken {
			continue
		}
		for _, pending := range of.notYet {
			of.unusable = "no running pod uses the claim"
			p.findings.warn(pending.about, pending.text)
		}
		refused, asked := of.action.whyNot()
		if asked = asked || of.action == filesAction || of.action == noAction && p.filesByDefault(); asked && !of.mounted && of.volume != "" {
			of.unusable = cmp.Or(refused, of.unusable, "no running pod of the backup uses the claim, and files are read through one")
			p.findings.warn(subject{claimsResource, key.Namespace, key.Name}, "the data of the claim is not backed up: "+of.unusable)
		}
	}
}

// filesByDefault says whether the files of all volumes were asked for.
func (p *podVolumes) filesByDefault() bool {
	return p.spec.DefaultVolumesToFsBackup != nil && *p.spec.DefaultVolumesToFsBackup
}

// conclude turns what failed into findings, and returns what became of the volumes, in the
// order of their pods.
func (p *podVolumes) conclude() []*format.Volume {
	slices.SortStableFunc(p.submitted, func(a, b *format.Volume) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
	})
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
			p.findings.warn(about, fmt.Sprintf("volume %s: %d warnings about its files: %s", volume.Name, status.Warnings, status.Message))
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
		refused, _ := of.action.whyNot()
		reason := cmp.Or(refused, of.unusable, of.skipped, "no pod selects it for the backup of its files")
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
