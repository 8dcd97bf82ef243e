// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	podhooks "github.com/holdfast-io/holdfast/pkg/hooks"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

// Hooks runs commands in restored pods, with the rights of the restore. The begin and end of a
// pod's commands are noted durably, since filling a database must not run twice. After a stop in
// between, the result is unknown.
type Hooks interface {
	// Begin notes that a pod's commands begin, and returns an earlier note, if any.
	Begin(ctx context.Context, pod types.UID) (earlier *enginev1alpha1.HookedPod, err error)
	End(ctx context.Context, pod enginev1alpha1.HookedPod) error
	// Exec runs a command in a container and returns a part of its output. It returns when ctx
	// ends, even if the command runs on.
	Exec(ctx context.Context, pod enginev1alpha1.PodReference, container string, command []string) (output string, err error)
}

const (
	// hookWait is the default time until a container runs.
	hookWait    = 10 * time.Minute
	hookPods    = 16
	maxHookText = 512

	defaultInitName = "holdfast-restore-hook"
)

// The domains of annotations. The first with a value counts; Velero's keep Velero's meaning.
var (
	initHookDomains = []string{"init.hook.restore.holdfast.io/", "init.hook.restore.velero.io/"}
	execHookDomains = []string{"post.hook.restore.holdfast.io/", "post.hook.restore.velero.io/"}
)

var (
	podKind        = &kind{version: "v1", resource: "pods", kind: "Pod", namespaced: true}
	replicaSetKind = &kind{group: "apps", version: "v1", resource: "replicasets", kind: "ReplicaSet", namespaced: true}
)

type hookRule struct {
	name     string
	selector *podhooks.Selector
	hooks    []v1alpha1.RestoreResourceHook
}

type command struct {
	from, container string
	words           []string
	onError         v1alpha1.HookErrorMode
	ready           bool
	timeout, wait   time.Duration
	problem         string
}

// hooked is a pod of the backup with commands, found by its name or its controller.
type hooked struct {
	about    subject
	commands []command
	// pod is the backup's uid of a restored pod. Otherwise owner is its controller's uid, and above
	// the owner's. named says that the controller gives it the same name.
	pod, owner, above types.UID
	named             bool
}

type podHooks struct {
	e     *execution
	rules []hookRule
	began time.Time

	mu    sync.Mutex
	found []*hooked
	// noted are the pods already seen: a pod refused by a webhook is decided about twice.
	noted map[*manifest.Item]bool
	// taken are the found pods; seen caches pods by namespace.
	taken  map[types.UID]bool
	seen   map[string]seenPods
	served map[types.UID]bool

	attempted, failed atomic.Int32
}

type seenPods struct {
	at     time.Time
	pods   []corev1.Pod
	owners map[types.UID]types.UID
	err    error
}

func (e *execution) parseHooks() error {
	h := &podHooks{e: e, noted: map[*manifest.Item]bool{}, taken: map[types.UID]bool{}, seen: map[string]seenPods{}, served: map[types.UID]bool{}}
	for i := range e.spec.Hooks.Resources {
		of := &e.spec.Hooks.Resources[i]
		words := podhooks.Words{
			Name: of.Name, IncludedNamespaces: of.IncludedNamespaces, ExcludedNamespaces: of.ExcludedNamespaces,
			IncludedResources: of.IncludedResources, ExcludedResources: of.ExcludedResources, LabelSelector: of.LabelSelector,
		}
		for _, text := range words.Idle() {
			e.report.warn(subject{}, text)
		}
		selector, err := words.Parse()
		if err != nil {
			return &Refused{Reasons: []string{err.Error()}}
		}
		h.rules = append(h.rules, hookRule{of.Name, selector, of.PostHooks})
	}
	e.hooks = h
	return nil
}

// of returns a pod's hooks: from its annotations, or else from the spec.
func (h *podHooks) of(pod *corev1.Pod, about subject) (inits []map[string]any, commands []command) {
	if init := h.annotatedInit(pod); init != nil {
		inits = append(inits, init)
	}
	if annotated := h.annotated(pod, about); annotated != nil {
		commands = append(commands, *annotated)
	}
	byAnnotation := [2]bool{inits != nil, commands != nil}
	for _, rule := range h.rules {
		if !rule.selector.Matches(pod) {
			continue
		}
		for _, hook := range rule.hooks {
			if init := hook.Init; init != nil && !byAnnotation[0] {
				for _, raw := range init.InitContainers {
					container := map[string]any{}
					if err := json.Unmarshal(raw.Raw, &container); err != nil {
						h.e.report.fail(about, fmt.Sprintf("an init container of the hook %s: %v", rule.name, err))
						continue
					}
					inits = append(inits, container)
				}
			}
			if exec := hook.Exec; exec != nil && !byAnnotation[1] {
				commands = append(commands, newCommand(pod, command{
					from: rule.name, container: exec.Container, words: exec.Command,
					onError: exec.OnError, ready: ptr.Deref(exec.WaitForReady, false),
					timeout: exec.ExecTimeout.Duration, wait: exec.WaitTimeout.Duration,
				}))
			}
		}
	}
	return inits, commands
}

func newCommand(pod *corev1.Pod, c command) command {
	if c.timeout == 0 {
		c.timeout = podhooks.DefaultTimeout
	}
	if c.wait == 0 {
		c.wait = hookWait
	}
	c.container, c.problem = podhooks.Container(pod, c.container, c.words)
	return c
}

func (h *podHooks) annotated(pod *corev1.Pod, about subject) *command {
	for _, domain := range execHookDomains {
		words := pod.Annotations[domain+"command"]
		if words == "" {
			continue
		}
		found := newCommand(pod, command{
			from: "of the annotation " + domain + "command", container: pod.Annotations[domain+"container"], words: podhooks.Command(words),
			onError: v1alpha1.HookErrorMode(pod.Annotations[domain+"on-error"]),
			ready:   h.truth(pod, about, domain+"wait-for-ready"),
			timeout: h.duration(pod, about, domain+"exec-timeout"),
			wait:    h.duration(pod, about, domain+"wait-timeout"),
		})
		return &found
	}
	return nil
}

func (h *podHooks) duration(pod *corev1.Pod, about subject, annotation string) time.Duration {
	text := pod.Annotations[annotation]
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil || d < 0:
		h.e.report.warn(about, fmt.Sprintf("the annotation %s is no duration, such as 30s: the hook has the default", annotation))
		return 0
	case d > validation.MaxHookTimeout:
		h.e.report.warn(about, fmt.Sprintf("the annotation %s is too long: the hook has %s", annotation, validation.MaxHookTimeout))
		return validation.MaxHookTimeout
	}
	return d
}

func (h *podHooks) truth(pod *corev1.Pod, about subject, annotation string) bool {
	text := pod.Annotations[annotation]
	truth, err := strconv.ParseBool(text)
	if err != nil && text != "" {
		h.e.report.warn(about, fmt.Sprintf("the annotation %s is neither true nor false: the hook has false", annotation))
	}
	return truth
}

func (h *podHooks) annotatedInit(pod *corev1.Pod) map[string]any {
	for _, domain := range initHookDomains {
		image := pod.Annotations[domain+"container-image"]
		if image == "" {
			continue
		}
		name := pod.Annotations[domain+"container-name"]
		if name == "" {
			name = defaultInitName
		}
		// The image is mapped as the pod's own; images in the spec are for this cluster.
		container := map[string]any{"name": name, "image": h.e.rules.Image(image)}
		if words := pod.Annotations[domain+"command"]; words != "" {
			var command []any
			for _, word := range podhooks.Command(words) {
				command = append(command, word)
			}
			container["command"] = command
		}
		return container
	}
	return nil
}

// note records the commands of a backed-up pod, and returns its init containers. skipped says that
// its controller makes it.
func (h *podHooks) note(item *manifest.Item, about subject, content *unstructured.Unstructured, skipped string) []map[string]any {
	if item.APIGroup != "" || item.KindName != "Pod" {
		return nil
	}
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content.Object, pod); err != nil {
		return nil
	}
	controller := metav1.GetControllerOfNoCopy(pod)
	if skipped != "" && (controller == nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || pod.Annotations[corev1.MirrorPodAnnotationKey] != "") {
		return nil
	}
	inits, commands := h.of(pod, about)
	if skipped != "" && len(inits) > 0 {
		h.e.report.fail(about, fmt.Sprintf("the init containers of its hooks are not in the pod that its %s makes in its place: put them into the template of that, by a resourceModifier", controller.Kind))
	}
	h.mu.Lock()
	noted := h.noted[item]
	h.noted[item] = true
	h.mu.Unlock()
	if len(commands) > 0 && !noted {
		found := &hooked{about: about, commands: commands, pod: pod.UID}
		if skipped != "" {
			found.pod, found.owner, found.named = "", controller.UID, controller.Kind == "StatefulSet"
			if controller.Kind == "ReplicaSet" {
				found.above = h.e.controllerOf(controller.UID)
			}
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.found = append(h.found, found)
	}
	return inits
}

func (e *execution) controllerOf(uid types.UID) types.UID {
	e.indexItems()
	if item := e.byUID[string(uid)]; item != nil && len(item.OwnerUIDs) > 0 {
		return types.UID(item.OwnerUIDs[0])
	}
	return ""
}

// withInits puts init containers first, in place of others with the same names.
func withInits(pod *unstructured.Unstructured, inits []map[string]any) error {
	if len(inits) == 0 {
		return nil
	}
	all := []any{}
	names := map[any]bool{}
	for _, init := range inits {
		all = append(all, init)
		names[init["name"]] = true
	}
	there, _, err := unstructured.NestedSlice(pod.Object, "spec", "initContainers")
	if err != nil {
		return err
	}
	for _, container := range there {
		if fields, ok := container.(map[string]any); !ok || !names[fields["name"]] {
			all = append(all, container)
		}
	}
	return unstructured.SetNestedSlice(pod.Object, all, "spec", "initContainers")
}

// run runs the commands in new pods of this restore or its controllers. Failures are in the
// results.
func (h *podHooks) run(ctx context.Context) error {
	h.began = h.e.Clock.Now()
	var group errgroup.Group
	group.SetLimit(hookPods)
	for _, pod := range h.found {
		if h.e.spec.PlanOnly {
			h.e.report.info(pod.about, fmt.Sprintf("%d commands would be run in it", len(pod.commands)))
			continue
		}
		group.Go(func() error {
			if err := h.e.contain(func() error { h.inPod(ctx, pod); return nil }); err != nil {
				h.e.report.fail(pod.about, err.Error())
			}
			return nil
		})
	}
	_ = group.Wait()
	return ctx.Err()
}

func (h *podHooks) inPod(ctx context.Context, pod *hooked) {
	e, count := h.e, int32(len(pod.commands))
	isTheirs := h.match(pod)
	if isTheirs == nil {
		e.report.info(pod.about, "its hooks are not run: it, or what makes it, is not new")
		return
	}
	h.attempted.Add(count)
	fail := func(reason string) {
		h.failed.Add(count)
		e.report.fail(pod.about, "its hooks were not run: "+reason)
	}
	if e.Hooks == nil || e.Allowed == nil {
		fail("this Holdfast runs none")
		return
	}
	allowed, err := e.allowed(ctx, Right{Verb: "create", Resource: "pods", Subresource: "exec", Namespace: pod.about.namespace})
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		fail(err.Error())
		return
	case !allowed:
		fail(fmt.Sprintf("the requester of the restore may not create pods/exec in the namespace %s", pod.about.namespace))
		return
	}
	var there command
	for _, c := range pod.commands {
		there.wait = max(there.wait, c.wait)
	}
	live, err := h.await(ctx, pod.about.namespace, there, isTheirs)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil && pod.owner != "" && h.isServed(pod):
		h.attempted.Add(-count)
		e.report.warn(pod.about, "its hooks were run in fewer pods than the backup has: "+err.Error())
		return
	case err != nil:
		fail(err.Error())
		return
	}
	h.mu.Lock()
	h.served[pod.owner] = true
	h.mu.Unlock()
	earlier, err := e.Hooks.Begin(ctx, live.UID)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		fail(err.Error())
		return
	case earlier != nil && !earlier.Ended:
		h.failed.Add(count)
		e.report.fail(pod.about, fmt.Sprintf("its hooks were begun in the pod %s, and the controller stopped before they had ended: see what they have done, and run the rest by hand", live.Name))
		return
	case earlier == nil:
		earlier = &enginev1alpha1.HookedPod{UID: live.UID, Ended: true}
		h.commands(ctx, pod, live, earlier)
		if ctx.Err() != nil {
			return
		}
		if err := e.Hooks.End(ctx, *earlier); err != nil && ctx.Err() == nil {
			e.report.info(pod.about, "that its hooks have ended could not be noted: "+err.Error())
		}
	}
	h.failed.Add(earlier.Failed)
	for _, text := range earlier.Errors {
		e.report.fail(pod.about, text)
	}
	for _, text := range earlier.Warnings {
		e.report.warn(pod.about, text)
	}
}

// commands runs the commands in a pod. A failure is an error, with Continue a warning; as in Velero,
// only Fail ends the pod's commands. It notes the number of failures and one text, for lack of room
// in the record; the log has all. Together they may take as long as one command, and the time of a
// restore's hooks is bounded.
func (h *podHooks) commands(ctx context.Context, pod *hooked, live *corev1.Pod, outcome *enginev1alpha1.HookedPod) {
	isThis := func(p *corev1.Pod, _ seenPods) bool { return p.UID == live.UID }
	most, in := validation.MaxHookTimeout, "the hooks of a pod have"
	if rest := h.e.HookTime - h.e.Clock.Since(h.began); rest < most {
		most, in = max(0, rest), "the hooks of a restore have, by --hook-time-per-namespace of the controller,"
	}
	timed, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	note, isError, further := "", false, 0
	for i, c := range pod.commands {
		err := h.exec(timed, pod, c, isThis)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			continue
		}
		late := timed.Err() != nil
		if late {
			err = fmt.Errorf("%s %s together, within which it did not end; the command may still run", in, most.Round(time.Second))
		}
		text := fmt.Sprintf("its hook %s failed in pod %s, container %s: %v", c.from, live.Name, c.container, err)
		if len(text) > maxHookText {
			text = strings.ToValidUTF8(text[:maxHookText], "") + "..."
		}
		h.e.report.info(pod.about, text)
		outcome.Failed++
		ends, counts := late || c.onError == v1alpha1.HookErrorModeFail, late || c.onError != v1alpha1.HookErrorModeContinue
		if note != "" {
			further++
		}
		if note == "" || ends || counts && !isError {
			note = text
		}
		isError = isError || counts
		if ends {
			if left := len(pod.commands) - i - 1; left > 0 {
				note += fmt.Sprintf("; %d further ones were not run", left)
				outcome.Failed += int32(left)
			}
			break
		}
	}
	if further > 0 {
		note += fmt.Sprintf("; and %d more failed, see the log", further)
	}
	switch {
	case isError:
		outcome.Errors = []string{note}
	case note != "":
		outcome.Warnings = []string{note}
	}
}

func (h *podHooks) exec(ctx context.Context, pod *hooked, c command, isThis func(*corev1.Pod, seenPods) bool) error {
	if c.problem != "" {
		return errors.New(c.problem)
	}
	live, err := h.await(ctx, pod.about.namespace, c, isThis)
	if err != nil {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	output, err := h.e.Hooks.Exec(timed, enginev1alpha1.PodReference{Namespace: live.Namespace, Name: live.Name, UID: live.UID}, c.container, c.words)
	h.e.report.info(pod.about, fmt.Sprintf("ran the hook %s in pod %s, container %s: %s", c.from, live.Name, c.container, output))
	if err != nil && timed.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("it did not end within %s; the command may still run", c.timeout)
	}
	return err
}

// match returns a predicate for the pod in the cluster, or nil if neither it nor its controller is
// new.
func (h *podHooks) match(pod *hooked) func(*corev1.Pod, seenPods) bool {
	e := h.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if pod.pod != "" {
		live := e.uids[pod.pod]
		if !e.made[pod.pod] || live == "" {
			return nil
		}
		return func(p *corev1.Pod, _ seenPods) bool { return p.UID == live }
	}
	if live := e.uids[pod.owner]; e.made[pod.owner] && live != "" {
		return func(p *corev1.Pod, _ seenPods) bool {
			owner := metav1.GetControllerOfNoCopy(p)
			return owner != nil && owner.UID == live && (!pod.named || p.Name == pod.about.name)
		}
	}
	if live := e.uids[pod.above]; pod.above != "" && e.made[pod.above] && live != "" {
		return func(p *corev1.Pod, seen seenPods) bool {
			owner := metav1.GetControllerOfNoCopy(p)
			return owner != nil && seen.owners[owner.UID] == live
		}
	}
	return nil
}

func (h *podHooks) isServed(pod *hooked) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.served[pod.owner]
}

// await returns a pod when the named container runs, or, without a name, when it exists.
func (h *podHooks) await(ctx context.Context, namespace string, c command, wanted func(*corev1.Pod, seenPods) bool) (*corev1.Pod, error) {
	waiting := waits.For(ctx, namespace, fmt.Sprintf("a restored pod in %s, to run its hooks", namespace))
	defer waiting.End()
	for {
		seen := h.look(ctx, namespace)
		why := "no such pod is there"
		if seen.err != nil {
			why = seen.err.Error()
		}
		for i := range seen.pods {
			pod := &seen.pods[i]
			if !wanted(pod, seen) || pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
				continue
			}
			if c.container == "" {
				if h.take(pod) {
					return pod, nil
				}
				continue
			}
			if why = notYet(pod, c); why == "" {
				return pod, nil
			}
			waiting.Set(fmt.Sprintf("pod %s in %s, to run its hooks: %s", pod.Name, namespace, cmp.Or(waits.PodReason(pod), why)))
		}
		if h.e.Clock.Since(h.began) > c.wait {
			return nil, fmt.Errorf("after %s %s", c.wait, why)
		}
		if err := sleep(ctx, pollInterval); err != nil {
			return nil, err
		}
	}
}

func (h *podHooks) take(pod *corev1.Pod) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.taken[pod.UID] {
		return false
	}
	h.taken[pod.UID] = true
	return true
}

func notYet(pod *corev1.Pod, c command) string {
	for _, status := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		switch {
		case status.Name != c.container:
		case status.State.Running == nil && status.State.Waiting != nil:
			return fmt.Sprintf("its container %s does not run: %s %s", c.container, status.State.Waiting.Reason, status.State.Waiting.Message)
		case status.State.Running == nil:
			return fmt.Sprintf("its container %s does not run", c.container)
		case c.ready && !status.Ready:
			return fmt.Sprintf("its container %s is not ready", c.container)
		default:
			return ""
		}
	}
	return fmt.Sprintf("its container %s has not started", c.container)
}

func (h *podHooks) look(ctx context.Context, namespace string) seenPods {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen, ok := h.seen[namespace]
	if ok && h.e.Clock.Since(seen.at) < pollInterval {
		return seen
	}
	seen = seenPods{owners: map[types.UID]types.UID{}}
	seen.err = h.e.reader.each(ctx, replicaSetKind, namespace, func(raw []byte) error {
		var set metav1.PartialObjectMetadata
		err := json.Unmarshal(raw, &set)
		if owner := metav1.GetControllerOfNoCopy(&set); owner != nil {
			seen.owners[set.UID] = owner.UID
		}
		return err
	})
	if seen.err == nil {
		seen.err = h.e.reader.each(ctx, podKind, namespace, func(raw []byte) error {
			var pod corev1.Pod
			err := json.Unmarshal(raw, &pod)
			seen.pods = append(seen.pods, pod)
			return err
		})
	}
	seen.at = h.e.Clock.Now()
	h.seen[namespace] = seen
	return seen
}

func (h *podHooks) counts() *v1alpha1.HookStatus {
	if h == nil || h.attempted.Load() == 0 {
		return nil
	}
	return &v1alpha1.HookStatus{HooksAttempted: h.attempted.Load(), HooksFailed: h.failed.Load()}
}
