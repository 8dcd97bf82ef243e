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

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// maxPending bounds the pods in one note of pending hooks, a write of a record.
const maxPending = 100

// maxHeldBytes bounds the stored pods and claims that wait for hooks, as users annotate pods. Memory is
// about twice as much.
var maxHeldBytes = 32 << 20

// readAgainTimeout bounds the second read of a block, which may be frozen.
var readAgainTimeout = 15 * time.Second

var errNotReadInTime = errors.New("the server took too long for the pods that share claims, which may not stay frozen")

// heldPod is kept until all pods are known: it has volumes or hooks, or comes after such pods.
type heldPod struct {
	ref        enginev1alpha1.PodReference
	node       string
	notRunning string
	volumes    []heldVolume
	// claims includes claims without access.
	claims    []string
	pre, post []hook
	ran       bool
	began     time.Time
	unwritten *object
	// belongings are its claims and persistent volumes, which pre hooks may change.
	belongings []*object
}

type heldVolume struct {
	name, claim string
	cut         bool
}

// block has pods that share claims or that the spec orders. All their hooks run around the data of
// each.
type block []*heldPod

func (b block) hooked() bool {
	for _, pod := range b {
		if len(pod.pre)+len(pod.post) > 0 {
			return true
		}
	}
	return false
}

func (b block) waiting() []enginev1alpha1.PodReference {
	var pods []enginev1alpha1.PodReference
	for _, pod := range b {
		if len(pod.post) > 0 {
			pods = append(pods, pod.ref)
		}
	}
	return pods
}

func (b block) read() string {
	read := ReadNone
	for _, pod := range b {
		for _, volume := range pod.volumes {
			if !volume.cut {
				return ReadFiles
			}
			read = ReadSnapshots
		}
	}
	return read
}

func (b block) nodes() sets.Set[string] {
	nodes := sets.New[string]()
	for _, pod := range b {
		if pod.notRunning == "" && slices.ContainsFunc(pod.volumes, func(volume heldVolume) bool { return !volume.cut }) {
			nodes.Insert(pod.node)
		}
	}
	return nodes
}

func (p *podVolumes) newHeldPod(pod *corev1.Pod) *heldPod {
	held := &heldPod{
		ref:        enginev1alpha1.PodReference{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
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

// comesLater reports whether a pod is written after its own hooks, or hooks of a pod ordered before it.
// Hooks of pods that share claims don't count: all pods with claims would be in memory.
func (p *podVolumes) comesLater(pod *heldPod) bool {
	_, ordered := p.ordered[types.NamespacedName{Namespace: pod.ref.Namespace, Name: pod.ref.Name}]
	later := len(pod.pre) > 0 || ordered && p.behind
	p.behind = p.behind || ordered && later
	return later
}

// holdBack keeps a pod that comes later. If too much is kept, the caller writes it now.
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

func (p *podVolumes) blocks() []block {
	// A union-find: each pod points to an earlier one of its block, or itself.
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

// takeBlocks hands over volumes of pods without hooks. rest takes the other blocks, during other
// reading. On a node where a post hook waits for the agent, volumes without hooks come later.
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
	p.planned.hooked(p.held)
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

// takeAllHooked takes blocks with hooks in portions, first those that wait for volumes. On success it
// clears the note of post hooks: a later process would take pods for frozen.
func (p *podVolumes) takeAllHooked(ctx context.Context, hooked []block) error {
	slices.SortStableFunc(hooked, func(a, b block) int {
		return cmp.Compare(min(len(b.waiting()), 1), min(len(a.waiting()), 1))
	})
	noted := false
	for len(hooked) > 0 && ctx.Err() == nil {
		n := 0
		var pending []enginev1alpha1.PodReference
		asked := map[string]error{}
		for ; n < len(hooked); n++ {
			if n > 0 && len(pending)+len(hooked[n].waiting()) > maxPending {
				break
			}
			block := hooked[n]
			waits := len(block.waiting()) > 0
			p.dropForbidden(ctx, block, asked)
			if waits && len(block.waiting()) == 0 {
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
			// The note precedes any hook: if this process dies, another one runs the post hooks.
			if err := p.hooks.runner.Pending(ctx, pending); err != nil && ctx.Err() == nil {
				p.dropUnnoted(portion, fmt.Errorf("note which post hooks are to be run: %w", err))
				hooked = append(hooked, portion...)
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

// dropForbidden drops forbidden hooks before the note: a process that finds the note reviews no right.
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

// takeHooked takes blocks with hooks in parallel, but one at a time of those that wait for a node's
// volumes.
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

// next returns the index of the first block that may be taken, or -1. Frozen pods and earlier blocks
// that wait for its nodes delay a block.
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

// take writes the held objects last, so that a slow store keeps no pod frozen.
func (p *podVolumes) take(ctx context.Context, block block) error {
	if err := p.takeBetweenHooks(ctx, block); err != nil {
		return err
	}
	return p.writeLater(block)
}

// takeBetweenHooks hands a block's volumes over between its hooks. Post hooks always run once a pre
// hook may have run.
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
		pod.ran, pod.began = true, p.hooks.clock.Now()
		ok := p.hooks.run(timed, preHook, pod.ref, pod.pre)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !ok {
			p.refuse(pod, "its hooks failed")
		}
	}
	submitted := p.handOver(ctx, block) // agents work meanwhile
	if err := p.readBlockAgain(ctx, block); err != nil {
		return err
	}
	if len(block.waiting()) == 0 {
		return ctx.Err()
	}
	_ = p.awaitCut(ctx, submitted)
	return ctx.Err()
}

func (p *podVolumes) readBlockAgain(ctx context.Context, block block) error {
	if p.planned != nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readAgainTimeout, errNotReadInTime)
	defer cancel()
	for _, pod := range block {
		if len(pod.pre) > 0 && pod.unwritten != nil {
			p.readAgain(ctx, pod)
		}
	}
	return p.readBelongingsAgain(ctx, block)
}

// readAgain reads a pod after its pre hooks, by a list, since get is another right. A missing or newly
// excluded pod stays as it was.
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
	case ctx.Err() != nil:
	case err != nil:
		p.findings.warn(about, fmt.Sprintf("%slist it: %v", asListed, err))
	default:
		p.log.write(slog.LevelInfo, asListed+missing, about.attrs()...)
	}
}

const asListed = "what the backup has of it is from before its pre hooks: "

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
	together.objects = p.holdKept(together.objects)
	err := p.write(&together)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heldBytes -= written
	return err
}

// goesOn reports whether volumes are read if hooks may not run: none is required.
func (pod *heldPod) goesOn() bool {
	for _, hook := range append(pod.pre[:len(pod.pre):len(pod.pre)], pod.post...) {
		if !hook.goOn {
			return false
		}
	}
	return true
}

func timedHooks(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, maxHookTimeout, fmt.Errorf("it and those before it, of pods that share claims, did not end within %s", maxHookTimeout))
}

// runPostHooks continues for lastHooksTimeout after the end of ctx.
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
		if pod.ran && p.hooks.run(timed, postHook, pod.ref, pod.post) {
			p.hooks.thawed(pod, block.read())
		}
	}
}

func (p *podVolumes) refuse(pod *heldPod, reason string) {
	about := subject{podsResource, pod.ref.Namespace, pod.ref.Name}
	for _, volume := range pod.volumes {
		if volume.claim == "" {
			p.skip(about, skippedVolume{volume.name, "", reason, false, false})
		}
	}
	wanted := pod.volumes
	pod.volumes = nil
	for _, claim := range pod.claims {
		if of := p.claims[types.NamespacedName{Namespace: pod.ref.Namespace, Name: claim}]; of.unusable == "" {
			of.refused = true
			of.missed = of.missed || slices.ContainsFunc(wanted, func(v heldVolume) bool { return v.claim == claim })
			of.unusable, of.known = "of the pod "+pod.ref.Name+", which has it as a volume: "+reason, true
			p.skip(about, skippedVolume{"of the claim " + claim, claim, reason, false, false})
		}
	}
}

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
