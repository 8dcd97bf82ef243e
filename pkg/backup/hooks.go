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
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/exec"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	podhooks "github.com/holdfast-io/holdfast/pkg/hooks"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

const (
	defaultHookTimeout = podhooks.DefaultTimeout
	// maxHookTimeout bounds a hook, and all pre or post hooks of a block.
	maxHookTimeout = validation.MaxHookTimeout
	// maxAnnotatedTimeout bounds an annotation's hook: annotating users must not hold a shared worker
	// for hours.
	maxAnnotatedTimeout = 10 * time.Minute
	// DefaultHookTime bounds one namespace's hooks in one backup. Others' backups may wait for that
	// long.
	DefaultHookTime  = time.Hour
	lastHooksWorkers = 16
)

// lastHooksTimeout bounds post hooks of a block once the backup has stopped, and of a dead process.
var lastHooksTimeout = 2 * time.Minute

// hookDomains are domains of hook annotations. The first with a command counts. Velero's keep their
// meaning.
var hookDomains = []string{"hook.backup.holdfast.io/", "hook.backup.velero.io/"}

// Hooks runs commands in pods for one backup.
type Hooks interface {
	// Allowed returns nil if the backup's requester may run commands in a namespace's pods, and a
	// NotAllowedError if not. Other errors say that the answer is unknown.
	Allowed(ctx context.Context, namespace string) error
	// Pending durably notes, in place of the earlier note, the pods whose hooks may run from now on,
	// and whose post hooks must run later. No pods: all hooks have ended.
	Pending(ctx context.Context, pods []enginev1alpha1.PodReference) error
	// Exec runs a command in a container and returns a part of its output. It returns when ctx ends,
	// even if the command runs on. A podhooks.NotRunError says that it has not run and may be retried.
	Exec(ctx context.Context, pod enginev1alpha1.PodReference, container string, command []string) (output string, err error)
}

// NotAllowedError says that a user may not run commands in a namespace's pods.
type NotAllowedError string

func (e NotAllowedError) Error() string { return string(e) }

type hook struct {
	from      string
	container string
	command   []string
	goOn      bool
	timeout   time.Duration
	problem   string
}

type hookRule struct {
	name      string
	selector  *podhooks.Selector
	pre, post []v1alpha1.BackupResourceHook
}

type hooks struct {
	rules    []hookRule
	runner   Hooks
	findings *findings
	log      *logbook
	retry    wait.Backoff

	attempted, failed atomic.Int32
	// most bounds one namespace's hooks. After until only post hooks run; zero is never.
	most   time.Duration
	until  time.Time
	clock  clock.PassiveClock
	frozen func(took time.Duration, read string)

	mu        sync.Mutex
	spent     map[string]time.Duration
	notThawed []string
}

func parseHooks(spec *v1alpha1.BackupHooks) (rules []hookRule, idle []string, err error) {
	for i := range spec.Resources {
		of := &spec.Resources[i]
		words := podhooks.Words{
			Name: of.Name, IncludedNamespaces: of.IncludedNamespaces, ExcludedNamespaces: of.ExcludedNamespaces,
			IncludedResources: of.IncludedResources, ExcludedResources: of.ExcludedResources, LabelSelector: of.LabelSelector,
		}
		idle = append(idle, words.Idle()...)
		selector, err := words.Parse()
		if err != nil {
			return nil, nil, err
		}
		rules = append(rules, hookRule{of.Name, selector, of.Pre, of.Post})
	}
	return rules, idle, nil
}

func (h *hooks) of(pod *corev1.Pod) (pre, post []hook) {
	pre, post = h.annotated(pod, "pre."), h.annotated(pod, "post.")
	if pre == nil {
		pre = h.annotated(pod, "")
	}
	byAnnotation := [2]bool{pre != nil, post != nil}
	for _, rule := range h.rules {
		if !rule.selector.Matches(pod) {
			continue
		}
		if !byAnnotation[0] {
			pre = append(pre, specified(pod, rule.name, rule.pre)...)
		}
		if !byAnnotation[1] {
			post = append(post, specified(pod, rule.name, rule.post)...)
		}
	}
	return pre, post
}

func specified(pod *corev1.Pod, name string, of []v1alpha1.BackupResourceHook) []hook {
	var found []hook
	for _, specified := range of {
		if exec := specified.Exec; exec != nil {
			found = append(found, newHook(pod, hook{
				from: name, container: exec.Container, command: exec.Command,
				goOn: exec.OnError == v1alpha1.HookErrorModeContinue, timeout: exec.Timeout.Duration,
			}))
		}
	}
	return found
}

func (h *hooks) annotated(pod *corev1.Pod, phase string) []hook {
	for _, domain := range hookDomains {
		prefix := phase + domain
		command := pod.Annotations[prefix+"command"]
		if command == "" {
			continue
		}
		found := hook{
			from: "of the annotation " + prefix + "command", container: pod.Annotations[prefix+"container"], command: podhooks.Command(command),
			goOn: pod.Annotations[prefix+"on-error"] == string(v1alpha1.HookErrorModeContinue),
		}
		if text := pod.Annotations[prefix+"timeout"]; text != "" {
			timeout, err := time.ParseDuration(text)
			about := subject{podsResource, pod.Namespace, pod.Name}
			switch {
			case err != nil || timeout < 0:
				h.findings.warn(about, fmt.Sprintf("the annotation %stimeout is no duration, such as 30s: the hook has %s", prefix, defaultHookTimeout))
				timeout = 0
			case timeout > maxAnnotatedTimeout:
				h.findings.warn(about, fmt.Sprintf("the annotation %stimeout is too long: the hook has %s; one of the backup's spec may have up to %s", prefix, maxAnnotatedTimeout, maxHookTimeout))
				timeout = maxAnnotatedTimeout
			}
			found.timeout = timeout
		}
		return []hook{newHook(pod, found)}
	}
	return nil
}

func newHook(pod *corev1.Pod, h hook) hook {
	h.timeout = cmp.Or(h.timeout, defaultHookTimeout)
	h.container, h.problem = podhooks.Container(pod, h.container, h.command)
	return h
}

// allowed returns nil if a namespace's hooks may run, else why not. asked caches answers.
func (h *hooks) allowed(ctx context.Context, namespace string, asked map[string]error) error {
	err, known := asked[namespace]
	if !known {
		err = retried(ctx, h.retry, func() error { return h.runner.Allowed(ctx, namespace) })
		asked[namespace] = err
	}
	return err
}

// run reports whether all required hooks of one pod succeeded. Pre hooks stop at the first required
// failure; each post hook is tried.
func (h *hooks) run(ctx context.Context, phase string, pod enginev1alpha1.PodReference, all []hook) bool {
	ok := true
	for _, hook := range all {
		h.attempted.Add(1)
		err := h.exec(ctx, phase, pod, hook)
		if err == nil {
			continue
		}
		h.failed.Add(1)
		in := ""
		if hook.container != "" {
			in = " in container " + hook.container
		}
		text := fmt.Sprintf("its %s hook %s failed%s: %v", phase, hook.from, in, err)
		h.tell(pod, hook.goOn, text)
		if phase == postHook {
			h.notThaw(pod, text)
		}
		if ok = ok && hook.goOn; !ok && phase == preHook {
			return false
		}
	}
	return ok
}

// These say how data is read while a pod is frozen. Files take longest, so they count beside snapshots.
const (
	ReadFiles     = "files"
	ReadSnapshots = "snapshots"
	ReadNone      = "none"
)

func (h *hooks) thawed(pod *heldPod, read string) {
	if len(pod.pre) == 0 || len(pod.post) == 0 {
		return
	}
	took := h.clock.Since(pod.began)
	h.log.write(slog.LevelInfo, fmt.Sprintf("was frozen by its hooks for %s", took.Round(time.Millisecond)), subject{podsResource, pod.ref.Namespace, pod.ref.Name}.attrs()...)
	if h.frozen != nil {
		h.frozen(took, read)
	}
}

const (
	preHook  = "pre"
	postHook = "post"
)

func (h *hooks) notThaw(pod enginev1alpha1.PodReference, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notThawed = append(h.notThawed, fmt.Sprintf("%s: %s", subject{podsResource, pod.Namespace, pod.Name}, text))
}

func (h *hooks) tell(pod enginev1alpha1.PodReference, goOn bool, text string) {
	about := subject{podsResource, pod.Namespace, pod.Name}
	if goOn {
		h.findings.warn(about, text)
		return
	}
	h.findings.fail(about, text)
}

func (h *hooks) exec(ctx context.Context, phase string, pod enginev1alpha1.PodReference, hook hook) error {
	switch {
	case hook.problem != "":
		return errors.New(hook.problem)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	most, why := h.left(phase, pod.Namespace, hook.timeout)
	if most <= 0 {
		return errors.New("it was not run: " + why)
	}
	began := h.clock.Now()
	defer func() { h.spend(pod.Namespace, h.clock.Since(began)) }()
	timed, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	waiting := waits.For(ctx, pod.Namespace, fmt.Sprintf("a %s hook in pod %s in %s, container %s", phase, pod.Name, pod.Namespace, hook.container))
	defer waiting.End()
	output, err := h.runner.Exec(timed, pod, hook.container, hook.command)
	// A post hook is retried if the API server was unreachable. A pre hook runs once.
	for retry := h.retry; (notRun(err) || phase == postHook && unreached(err)) && timed.Err() == nil && sleep(timed, &retry) == nil; {
		output, err = h.runner.Exec(timed, pod, hook.container, hook.command)
	}
	attrs := append(subject{podsResource, pod.Namespace, pod.Name}.attrs(),
		slog.String("hook", hook.from), slog.String("container", hook.container), slog.String("output", output))
	h.log.write(slog.LevelInfo, "ran a "+phase+" hook", attrs...)
	switch {
	case err == nil || timed.Err() == nil:
		return err
	case ctx.Err() == nil:
		return fmt.Errorf("it did not end within %s%s; the command may still run", most, why)
	}
	return context.Cause(ctx)
}

// left returns the time for a hook, and why it is less than its timeout. Post hooks have at least
// lastHooksTimeout.
func (h *hooks) left(phase, namespace string, timeout time.Duration) (most time.Duration, why string) {
	h.mu.Lock()
	spent := h.spent[namespace]
	h.mu.Unlock()
	most = timeout
	if rest := h.most - spent; rest < most {
		most, why = rest, fmt.Sprintf("the hooks of the namespace %s have run for %s in this backup, and may for %s: see --hook-time-per-namespace of the controller", namespace, spent.Round(time.Second), h.most)
	}
	if !h.until.IsZero() {
		if rest := h.until.Sub(h.clock.Now()); rest < most {
			most, why = rest, "the backup has taken as long as one may: see --backup-timeout of the controller"
		}
	}
	if phase == postHook {
		most = max(most, min(timeout, lastHooksTimeout))
	}
	if most > 0 && why != "" {
		why = ", since " + why
	}
	return most, why
}

func (h *hooks) spend(namespace string, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.spent == nil {
		h.spent = map[string]time.Duration{}
	}
	h.spent[namespace] += took
}

func notRun(err error) bool {
	_, is := errors.AsType[podhooks.NotRunError](err)
	return is
}

// unreached reports a failed connection: the command may not have run.
func unreached(err error) bool {
	_, ended := errors.AsType[exec.ExitError](err)
	return err != nil && !ended && passing(err)
}

func (h *hooks) counts() *v1alpha1.HookStatus {
	if h == nil || h.attempted.Load() == 0 {
		return nil
	}
	return &v1alpha1.HookStatus{HooksAttempted: h.attempted.Load(), HooksFailed: h.failed.Load()}
}

func (h *hooks) failedPostHooks() string {
	if h == nil {
		return ""
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return told(h.notThawed)
}

// PostHooks is the result of another process's pending post hooks.
type PostHooks struct {
	Log []byte
	// Status adds them to the Backup's earlier status; nil is none.
	Status *v1alpha1.HookStatus
	// Failed lists failures in one line, with any onError, or is "".
	Failed string
}

func (e *execution) newHooks(rules []hookRule) *hooks {
	h := &hooks{rules: rules, runner: e.Hooks, findings: e.findings, log: e.log, retry: e.Retry, most: e.HookTime, clock: e.Clock, frozen: e.Frozen}
	if start := e.request.Backup.Status.StartTimestamp; e.Timeout > 0 && start != nil {
		h.until = start.Add(e.Timeout)
	}
	if before := e.request.Backup.Status.HookStatus; before != nil {
		h.attempted.Store(before.HooksAttempted)
		h.failed.Store(before.HooksFailed)
	}
	return h
}

// tellPostHooks warns of post hooks that failed before; this attempt runs them again.
func (e *execution) tellPostHooks() {
	if failed := e.request.PostHooks.Failed; failed != "" {
		e.findings.warn(subject{}, "since the process that executed the backup was gone, its post hooks were run, and of these failed: "+failed)
	}
}

// RunPostHooks runs post hooks that another process left pending. It needs only Client, Hooks and
// Clock, and continues from an earlier call's result in the request.
func RunPostHooks(ctx context.Context, request Request, deps Dependencies, pods []enginev1alpha1.PodReference) PostHooks {
	e := newExecution(ctx, request, deps)
	e.log.write(slog.LevelInfo, "the process that executed the backup is gone, and the post hooks that it may have left are run", slog.Int("pods", len(pods)))
	rules, _, err := parseHooks(&request.Backup.Spec.Hooks)
	h := e.newHooks(rules)
	if err != nil {
		text := fmt.Sprintf("its post hooks were not run: %v", err)
		h.findings.fail(subject{}, text)
		h.notThawed, pods = []string{text}, nil
	}
	lister := &lister{client: e.Client, retry: e.Retry}
	var group errgroup.Group
	group.SetLimit(lastHooksWorkers)
	for _, ref := range pods {
		group.Go(func() error {
			// Each pod has its own time: a hanging hook takes none from others.
			ctx, cancel := context.WithTimeout(ctx, lastHooksTimeout)
			defer cancel()
			pod, err := lister.pod(ctx, ref)
			switch {
			case err != nil:
				text := fmt.Sprintf("its post hooks were not run: read it: %v", err)
				h.tell(ref, false, text)
				h.notThaw(ref, text)
			case pod == nil:
				e.log.write(slog.LevelInfo, "it is gone, and its post hooks with it", subject{podsResource, ref.Namespace, ref.Name}.attrs()...)
			default:
				_, post := h.of(pod)
				h.run(ctx, postHook, ref, post)
			}
			return nil
		})
	}
	_ = group.Wait()
	return PostHooks{e.log.close(), h.counts(), h.failedPostHooks()}
}

// pod reads a pod by a list, since get is another right; nil if missing.
func (l *lister) pod(ctx context.Context, ref enginev1alpha1.PodReference) (*corev1.Pod, error) {
	r := resource{GroupVersionResource: corev1.SchemeGroupVersion.WithResource(podsResource.Resource)}
	named := fields.OneTermEqualSelector(metav1.ObjectNameField, ref.Name).String()
	var raw []byte
	for retry := l.retry; ; {
		result := l.request(r, ref.Namespace).Param("fieldSelector", named).Param("limit", strconv.Itoa(pageSize)).Do(ctx)
		raw, _ = result.Raw()
		err := result.Error()
		if err == nil {
			break
		}
		if !passing(err) || retry.Steps <= 1 || sleep(ctx, &retry) != nil {
			return nil, err
		}
	}
	var list corev1.PodList
	if err := decode(raw, &list); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list.Items, func(pod corev1.Pod) bool { return pod.Name == ref.Name && pod.UID == ref.UID })
	if i < 0 {
		return nil, nil
	}
	return &list.Items[i], nil
}
