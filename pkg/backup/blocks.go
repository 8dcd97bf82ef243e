// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// maxPending is in how many pods hooks are noted to run at a time: each note is a write of
// a record, which is not to grow with the backup.
const maxPending = 100

// maxHeldBytes bounds what a backup keeps of pods, and what belongs to them, that is written after
// hooks, as it is stored: in memory it is about twice as much. Whoever may annotate pods decides how many have
// hooks, and how large they are.
var maxHeldBytes = 32 << 20

// readAgainTimeout is how long the pods of a block, and what belongs to them, may take to be read
// once more, while they may be frozen.
var readAgainTimeout = 15 * time.Second

var errNotReadInTime = errors.New("the server took too long for the pods that share claims, which may not stay frozen")

// heldPod is what is kept of a pod until all are known: one with volumes to hand over,
// with hooks, or that is to be written after those of others.
type heldPod struct {
	ref        engine.PodReference
	node       string
	notRunning string
	volumes    []heldVolume
	// claims are all of the pod's, also those that others are to give access to.
	claims    []string
	pre, post []hook
	// ran is true once its hooks may have been run.
	ran bool
	// unwritten is the pod as it goes into the backup, or nil if it is there.
	unwritten *object
	// belongings are the claims and persistent volumes that go there with it, since its pre hooks
	// may change them.
	belongings []*object
}

// heldVolume is a volume whose data is to be read, through a claim or not.
type heldVolume struct{ name, claim string }

// block are pods that belong together, since they share claims: whichever of them gives
// access to the data, the hooks of all are about it. Or the spec orders them.
type block []*heldPod

func (b block) hooked() bool {
	for _, pod := range b {
		if len(pod.pre)+len(pod.post) > 0 {
			return true
		}
	}
	return false
}

// waiting are the pods of the block with post hooks, which wait for its volumes.
func (b block) waiting() []engine.PodReference {
	var pods []engine.PodReference
	for _, pod := range b {
		if len(pod.post) > 0 {
			pods = append(pods, pod.ref)
		}
	}
	return pods
}

// nodes are those that the block's volumes are read on.
func (b block) nodes() sets.Set[string] {
	nodes := sets.New[string]()
	for _, pod := range b {
		if len(pod.volumes) > 0 && pod.notRunning == "" {
			nodes.Insert(pod.node)
		}
	}
	return nodes
}

// newHeldPod finds the claims of a pod, and its hooks.
func (p *podVolumes) newHeldPod(pod *corev1.Pod) *heldPod {
	held := &heldPod{
		ref:        engine.PodReference{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		node:       pod.Spec.NodeName,
		notRunning: whyNotRunning(pod),
	}
	for i := range pod.Spec.Volumes {
		if claim := claimOf(pod, &pod.Spec.Volumes[i]); claim != "" {
			held.claims = append(held.claims, claim)
		}
	}
	held.pre, held.post = p.hooks.of(pod)
	if held.notRunning != "" && len(held.pre)+len(held.post) > 0 {
		held.pre, held.post = nil, nil
		about, text := subject{podsResource, pod.Namespace, pod.Name}, "its hooks are not run: "+held.notRunning
		if isMirror(pod) {
			p.findings.warn(about, text)
		} else {
			p.log.write(slog.LevelInfo, text, about.attrs()...)
		}
	}
	return held
}

// comesLater says whether a pod is to be written after hooks: its own, since they may change
// it, or those of one that the spec orders before it. What a hook changes on other pods that
// share a claim with its own is not waited for: which these are is known when all pods are,
// and until then all that have claims would be in memory.
func (p *podVolumes) comesLater(pod *heldPod) bool {
	_, ordered := p.ordered[types.NamespacedName{Namespace: pod.ref.Namespace, Name: pod.ref.Name}]
	later := len(pod.pre) > 0 || ordered && p.behind
	p.behind = p.behind || ordered && later
	return later
}

// holdBack keeps a pod that comes later, unless too much is kept: then it is to be written now.
func (p *podVolumes) holdBack(pod *heldPod, r resource, h *head, raw []byte) (bool, error) {
	if !p.comesLater(pod) {
		return false, nil
	}
	o, _, err := newObject(nil, r, h, raw, itself)
	switch {
	case err != nil:
		return false, err
	case p.keep(&pod.unwritten, o):
		p.progress.found.Add(1)
		return true, nil
	}
	if len(pod.pre) > 0 {
		p.findings.warn(subject{podsResource, pod.ref.Namespace, pod.ref.Name}, asListed+tooMuchHeld)
	}
	return false, nil
}

// blocks puts together the held pods that share claims, and those that the spec orders, as
// Velero does.
func (p *podVolumes) blocks() []block {
	// Each pod points to one before it in its block, or to itself.
	before := make([]int, len(p.held))
	first := func(i int) int {
		for before[i] != i {
			before[i] = before[before[i]]
			i = before[i]
		}
		return i
	}
	join := func(a, b int) {
		a, b = first(a), first(b)
		before[max(a, b)] = min(a, b)
	}
	of := map[types.NamespacedName]int{}
	firstOrdered := -1
	for i, pod := range p.held {
		before[i] = i
		if _, named := p.ordered[types.NamespacedName{Namespace: pod.ref.Namespace, Name: pod.ref.Name}]; named {
			if firstOrdered < 0 {
				firstOrdered = i
			}
			join(i, firstOrdered)
		}
		for _, claim := range pod.claims {
			key := types.NamespacedName{Namespace: pod.ref.Namespace, Name: claim}
			if other, known := of[key]; known {
				join(i, other)
			} else {
				of[key] = i
			}
		}
	}
	var blocks []block
	places := map[int]int{}
	for i, pod := range p.held {
		place, known := places[first(i)]
		if !known {
			place = len(blocks)
			places[first(i)], blocks = place, append(blocks, nil)
		}
		blocks[place] = append(blocks[place], pod)
	}
	return blocks
}

// takeBlocks hands over the volumes of the held pods; the rest, beside which all else is
// read, does that for the blocks with hooks, and runs these. Whoever waits for a post hook
// waits for the agent of its node; so what has no hooks comes after what has, if it is on
// the same node.
func (p *podVolumes) takeBlocks(ctx context.Context) (rest func(context.Context) error, _ error) {
	if err := p.releaseIndex(); err != nil {
		return nil, err
	}
	var hooked, plain []block
	busy := sets.New[string]()
	for _, block := range p.blocks() {
		if !block.hooked() {
			plain = append(plain, block)
			continue
		}
		hooked = append(hooked, block)
		if len(block.waiting()) > 0 {
			busy = busy.Union(block.nodes())
		}
	}
	p.held = nil
	var now, later []block
	for _, block := range plain {
		if busy.HasAny(block.nodes().UnsortedList()...) {
			later = append(later, block)
		} else {
			now = append(now, block)
		}
	}
	return func(ctx context.Context) error {
		if err := p.takeAllHooked(ctx, hooked); err != nil {
			return err
		}
		return p.handOverAll(ctx, later)
	}, p.handOverAll(ctx, now)
}

// handOverAll hands over the volumes of blocks without hooks, of as many blocks at a time as
// there are workers: each volume is a request.
func (p *podVolumes) handOverAll(ctx context.Context, blocks []block) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(p.blockWorkers)
	for _, block := range blocks {
		group.Go(func() error {
			return p.contain(func() error {
				p.handOver(groupCtx, block)
				return groupCtx.Err()
			})
		})
	}
	return group.Wait()
}

// takeAllHooked takes the blocks with hooks, in portions: first those that wait for their
// volumes, which are not to lie behind the others' then. At the end no post hook is noted, if
// all went well: else whoever goes on with the backup, in hours perhaps, would take pods for frozen.
func (p *podVolumes) takeAllHooked(ctx context.Context, hooked []block) error {
	slices.SortStableFunc(hooked, func(a, b block) int {
		return cmp.Compare(min(len(b.waiting()), 1), min(len(a.waiting()), 1))
	})
	noted := false
	for len(hooked) > 0 && ctx.Err() == nil {
		n := 0
		var pending []engine.PodReference
		asked := map[string]error{}
		for ; n < len(hooked); n++ {
			if n > 0 && len(pending)+len(hooked[n].waiting()) > maxPending {
				break
			}
			block := hooked[n]
			waits := len(block.waiting()) > 0
			p.dropForbidden(ctx, block, asked)
			if waits && len(block.waiting()) == 0 { // so it comes after all that do
				hooked = append(slices.Delete(hooked, n, n+1), block)
				n--
				continue
			}
			pending = append(pending, block.waiting()...)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		portion := hooked[:n:n]
		hooked = hooked[n:]
		if len(pending) > 0 {
			// Before any hook runs, so that somebody runs them whatever becomes of this process.
			if err := p.hooks.runner.Pending(ctx, pending); err != nil && ctx.Err() == nil {
				p.dropUnnoted(portion, fmt.Errorf("note which post hooks are to be run: %w", err))
				hooked = append(hooked, portion...) // after all that wait, too
				continue
			}
			noted = true
		}
		if err := p.takeHooked(ctx, portion); err != nil {
			return err
		}
	}
	if noted && ctx.Err() == nil && p.hooks.failedPostHooks() == "" {
		if err := p.hooks.runner.Pending(ctx, nil); err != nil {
			p.log.write(slog.LevelInfo, "the post hooks that were run stay noted until the backup ends: "+err.Error())
		}
	}
	return ctx.Err()
}

// dropForbidden leaves those hooks of a block that may be run. It comes before the post hooks
// are noted: whoever finds the note runs them, and asks nobody.
func (p *podVolumes) dropForbidden(ctx context.Context, block block, asked map[string]error) {
	for _, pod := range block {
		if len(pod.pre)+len(pod.post) == 0 {
			continue
		}
		if err := p.hooks.allowed(ctx, pod.ref.Namespace, asked); err != nil && ctx.Err() == nil {
			p.drop(pod, err)
		}
	}
}

// dropUnnoted leaves the hooks of those blocks that have no post hooks, which could not be noted.
func (p *podVolumes) dropUnnoted(blocks []block, err error) {
	for _, block := range blocks {
		if len(block.waiting()) == 0 {
			continue
		}
		for _, pod := range block {
			if len(pod.pre)+len(pod.post) > 0 {
				p.drop(pod, err)
			}
		}
	}
}

// drop has the hooks of a pod not run, which is as if they had failed.
func (p *podVolumes) drop(pod *heldPod, why error) {
	count := int32(len(pod.pre) + len(pod.post))
	p.hooks.attempted.Add(count)
	p.hooks.failed.Add(count)
	p.hooks.tell(pod.ref, pod.goesOn(), fmt.Sprintf("its hooks were not run: %v", why))
	if !pod.goesOn() {
		p.refuse(pod, "its hooks failed")
	}
	pod.pre, pod.post = nil, nil
}

// takeHooked takes blocks with hooks, as many at a time as there are workers, and of those
// that wait for volumes of a node one.
func (p *podVolumes) takeHooked(ctx context.Context, blocks []block) error {
	group, ctx := errgroup.WithContext(ctx)
	left, frozen := slices.Clone(blocks), sets.New[string]()
	ended := make(chan sets.Set[string], p.blockWorkers)
	for working := 0; len(left) > 0 || working > 0; {
		if i := next(left, frozen); i >= 0 && working < p.blockWorkers {
			block, holds := left[i], sets.New[string]()
			if len(block.waiting()) > 0 {
				holds = block.nodes()
			}
			left, frozen, working = slices.Delete(left, i, i+1), frozen.Union(holds), working+1
			group.Go(func() error {
				defer func() { ended <- holds }()
				return p.contain(func() error { return p.take(ctx, block) })
			})
			continue
		}
		frozen, working = frozen.Difference(<-ended), working-1
	}
	return group.Wait()
}

// next is the place of the first block that may be taken now, or -1: none while pods wait,
// frozen perhaps, for the data of its nodes, or blocks before it are to. An agent reads few
// volumes at a time, and each more that is asked for keeps the others frozen for longer.
func next(left []block, frozen sets.Set[string]) int {
	frozen = frozen.Clone()
	for i, block := range left {
		nodes := block.nodes()
		if !frozen.HasAny(nodes.UnsortedList()...) {
			return i
		}
		if len(block.waiting()) > 0 {
			frozen = frozen.Union(nodes)
		}
	}
	return -1
}

// take takes one block: what lies between its hooks, and then into the tarball what was held
// back of it, so that a store which is slow keeps no pod frozen.
func (p *podVolumes) take(ctx context.Context, block block) error {
	if err := p.takeBetweenHooks(ctx, block); err != nil {
		return err
	}
	return p.writeLater(block)
}

// takeBetweenHooks runs the pre hooks of a block's pods, reads what these are then, and the
// data of their volumes, and runs the post hooks. These run in any case once a pre hook may
// have.
func (p *podVolumes) takeBetweenHooks(ctx context.Context, block block) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	defer p.runPostHooks(ctx, block)
	timed, cancel := timedHooks(ctx)
	defer cancel()
	for _, pod := range block {
		if len(pod.pre)+len(pod.post) == 0 {
			continue
		}
		pod.ran = true
		ok := p.hooks.run(timed, preHook, pod.ref, pod.pre)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !ok {
			p.refuse(pod, "its hooks failed")
		}
	}
	submitted := p.handOver(ctx, block) // so that the agents work meanwhile
	again, cancel := context.WithTimeoutCause(ctx, readAgainTimeout, errNotReadInTime)
	defer cancel()
	for _, pod := range block {
		if len(pod.pre) > 0 && pod.unwritten != nil {
			p.readAgain(again, pod)
		}
	}
	if err := p.readBelongingsAgain(again, block); err != nil {
		return err
	}
	if len(block.waiting()) == 0 {
		return ctx.Err()
	}
	// What fails is told when all volumes are waited for.
	_ = p.await(ctx, submitted)
	return ctx.Err()
}

// readAgain reads a pod whose pre hooks may have changed it, by a list, since to get one is
// another right. What the backup takes was decided before. So of one that is gone by now, or
// does not belong into a backup any more, it has what the list of all brought.
func (p *podVolumes) readAgain(ctx context.Context, pod *heldPod) {
	about := subject{podsResource, pod.ref.Namespace, pod.ref.Name}
	var again *object
	missing := "it is gone"
	var status struct {
		Status struct {
			Phase corev1.PodPhase `json:"phase"`
		} `json:"status"`
	}
	q := query{resource: pod.unwritten.resource, namespace: pod.ref.Namespace, name: pod.ref.Name}
	err := p.lister.list(ctx, q, visitor{page: func(int64) {}, object: func(raw []byte) error {
		h, err := headOf(raw)
		if err != nil || h.Metadata.Name != pod.ref.Name || h.Metadata.UID != pod.ref.UID {
			return err
		}
		if why := h.whyLeftOut(); why != "" {
			missing = "now it would be " + why
			return nil
		}
		if err := decode(raw, &status); err != nil {
			return err
		}
		if phase := status.Status.Phase; phase == corev1.PodSucceeded || phase == corev1.PodFailed {
			missing = "it has ended since, and would not be restored"
			return nil
		}
		again, _, err = newObject(nil, q.resource, h, raw, itself)
		return err
	}})
	switch {
	case err == nil && again != nil:
		if !p.keep(&pod.unwritten, again) {
			p.findings.warn(about, asListed+tooMuchHeld)
		}
	case errors.Is(context.Cause(ctx), errNotReadInTime):
		p.findings.warn(about, asListed+errNotReadInTime.Error())
	case ctx.Err() != nil: // then there is no backup
	case err != nil:
		p.findings.warn(about, fmt.Sprintf("%slist it: %v", asListed, err))
	default:
		p.log.write(slog.LevelInfo, asListed+missing, about.attrs()...)
	}
}

// asListed is what people are told of a pod that is not as it was after its pre hooks.
const asListed = "what the backup has of it is from before its pre hooks: "

// keep keeps an object until it is written, unless too much is kept. What was kept of it goes.
func (p *podVolumes) keep(at **object, as *object) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	more := as.size()
	if *at != nil {
		more -= (*at).size()
	}
	if p.heldBytes+more > maxHeldBytes {
		return false
	}
	p.heldBytes += more
	*at = as
	return true
}

const tooMuchHeld = "too much is in memory of pods that are written after their hooks"

// writeLater writes what was held back of a block.
func (p *podVolumes) writeLater(block block) error {
	var together batch
	written := 0
	for _, pod := range block {
		together.objects = append(together.objects, pod.belongings...)
		if pod.unwritten != nil {
			together.objects = append(together.objects, pod.unwritten)
		}
		pod.unwritten, pod.belongings = nil, nil
	}
	for _, o := range together.objects {
		written += o.size()
	}
	err := p.write(&together)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heldBytes -= written
	return err
}

// goesOn reports whether the data of the pod's volumes is read although its hooks may
// not be run: none of them must.
func (pod *heldPod) goesOn() bool {
	for _, hook := range append(pod.pre[:len(pod.pre):len(pod.pre)], pod.post...) {
		if !hook.goOn {
			return false
		}
	}
	return true
}

// timedHooks bounds what the hooks of one kind of a block take in all.
func timedHooks(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, maxHookTimeout, fmt.Errorf("it and those before it, of pods that share claims, did not end within %s", maxHookTimeout))
}

// runPostHooks runs them also when ctx has ended, or ends meanwhile: they have
// lastHooksTimeout from then on.
func (p *podVolumes) runPostHooks(ctx context.Context, block block) {
	detached, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	last := lastHooksTimeout
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(last, func() {
			stop(fmt.Errorf("the backup was stopped, and the post hooks did not end within %s", last))
		})
	})()
	timed, cancel := timedHooks(detached)
	defer cancel()
	for _, pod := range block {
		if pod.ran {
			p.hooks.run(timed, postHook, pod.ref, pod.post)
		}
	}
}

// refuse leaves out the data of a pod's volumes, through whichever pod it is read.
func (p *podVolumes) refuse(pod *heldPod, reason string) {
	about := subject{podsResource, pod.ref.Namespace, pod.ref.Name}
	for _, volume := range pod.volumes {
		if volume.claim == "" {
			p.skip(about, skippedVolume{volume.name, "", reason, false})
		}
	}
	wanted := pod.volumes
	pod.volumes = nil
	for _, claim := range pod.claims {
		if of := p.claims[types.NamespacedName{Namespace: pod.ref.Namespace, Name: claim}]; of.unusable == "" {
			// Another pod of the block may want it, if this one does not.
			of.refused = true
			of.missed = of.missed || slices.ContainsFunc(wanted, func(v heldVolume) bool { return v.claim == claim })
			of.unusable, of.known = "of the pod "+pod.ref.Name+", which has it as a volume: "+reason, true
			p.skip(about, skippedVolume{"of the claim " + claim, claim, reason, false})
		}
	}
}

// handOver hands over the volumes of a block, and returns those that are on their way.
func (p *podVolumes) handOver(ctx context.Context, block block) (submitted []*format.Volume) {
	for _, pod := range block {
		for _, volume := range pod.volumes {
			if ctx.Err() != nil {
				return submitted
			}
			if to := p.handOverVolume(ctx, pod, volume, block.hooked()); to != nil {
				submitted = append(submitted, to)
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.submitted = append(p.submitted, submitted...)
	return submitted
}
