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

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	podhooks "github.com/holdfast-io/holdfast/pkg/hooks"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

const (
	defaultHookTimeout = podhooks.DefaultTimeout
	// maxHookTimeout bounds a hook, and all pre hooks and all post hooks of a block.
	maxHookTimeout = validation.MaxHookTimeout
	// maxAnnotatedTimeout bounds a hook of an annotation: whoever may annotate a pod is not to
	// hold a worker of the backups of everybody for hours. A spec is written by who waits.
	maxAnnotatedTimeout = 10 * time.Minute
	// DefaultHookTime is how long the hooks of one namespace may run in all, in one backup. The
	// backups of other namespaces may have to wait for that long.
	DefaultHookTime = time.Hour
	// lastHooksWorkers is in how many pods at once the post hooks run that another process
	// has left.
	lastHooksWorkers = 16
)

// lastHooksTimeout is how long the post hooks of a block, or those that another
// process has left, may take once nothing else is done for the backup any more.
var lastHooksTimeout = 2 * time.Minute

// hookDomains are the ends of the names of a pod's annotations, of which the first counts
// that gives a command. Velero's have Velero's meaning.
var hookDomains = []string{"hook.backup.holdfast.io/", "hook.backup.velero.io/"}

// Hooks runs commands in pods for one backup.
type Hooks interface {
	// Allowed is nil if whoever asked for the backup may run commands in the pods of a
	// namespace, and a NotAllowedError if not. Other errors say that it could not be asked.
	Allowed(ctx context.Context, namespace string) error
	// Pending notes, so that it outlives this process, in which pods hooks may run from
	// now on, and whose post hooks are then to be run. Those of earlier calls have ended. None
	// says that all have.
	Pending(ctx context.Context, pods []engine.PodReference) error
	// Exec runs a command in a container of a pod, and returns as much of its output as
	// is kept. When ctx ends it returns, whatever the command does. A command that has certainly
	// not run, and may be asked for again, is a podhooks.NotRunError.
	Exec(ctx context.Context, pod engine.PodReference, container string, command []string) (output string, err error)
}

// NotAllowedError says who may not run commands in the pods of a namespace.
type NotAllowedError string

func (e NotAllowedError) Error() string { return string(e) }

// hook is a command to run in a container of a pod.
type hook struct {
	// from is the annotation, or the name in the spec, that it is from.
	from      string
	container string
	command   []string
	// goOn says whether the data of the pod's volumes is read although the hook failed.
	goOn    bool
	timeout time.Duration
	// problem says why it can't be run; empty if it can.
	problem string
}

// hookRule is an entry of the spec's hooks.
type hookRule struct {
	name      string
	selector  *podhooks.Selector
	pre, post []holdfast.BackupResourceHook
}

// hooks knows which pods of a backup have which hooks, and runs them. It is safe for
// concurrent use.
type hooks struct {
	rules    []hookRule
	runner   Hooks
	findings *findings
	log      *logbook
	retry    wait.Backoff

	attempted, failed atomic.Int32
	// most is how long those of one namespace may run in all, and until is when none runs any
	// more, but to thaw; the zero time is never.
	most  time.Duration
	until time.Time
	clock clock.PassiveClock

	mu sync.Mutex
	// spent is how long those of a namespace have run.
	spent map[string]time.Duration
	// notThawed says which post hooks failed, or were not run.
	notThawed []string
}

// parseHooks makes ready the hooks of a spec, which was validated. Idle says which of its words
// apply to nothing.
func parseHooks(spec *holdfast.BackupHooks) (rules []hookRule, idle []string, err error) {
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

// of gives the hooks of a pod: those of its annotations, or else of the spec.
func (h *hooks) of(pod *corev1.Pod) (pre, post []hook) {
	pre, post = h.annotated(pod, "pre."), h.annotated(pod, "post.")
	if pre == nil {
		pre = h.annotated(pod, "") // as in Velero
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

func specified(pod *corev1.Pod, name string, of []holdfast.BackupResourceHook) []hook {
	var found []hook
	for _, specified := range of {
		if exec := specified.Exec; exec != nil {
			found = append(found, newHook(pod, hook{
				from: name, container: exec.Container, command: exec.Command,
				goOn: exec.OnError == holdfast.HookErrorModeContinue, timeout: exec.Timeout.Duration,
			}))
		}
	}
	return found
}

// annotated is the hook of a pod's annotations with a prefix, or nil.
func (h *hooks) annotated(pod *corev1.Pod, phase string) []hook {
	for _, domain := range hookDomains {
		prefix := phase + domain
		command := pod.Annotations[prefix+"command"]
		if command == "" {
			continue
		}
		found := hook{
			from: "of the annotation " + prefix + "command", container: pod.Annotations[prefix+"container"], command: podhooks.Command(command),
			goOn: pod.Annotations[prefix+"on-error"] == string(holdfast.HookErrorModeContinue),
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

// newHook fills in the defaults.
func newHook(pod *corev1.Pod, h hook) hook {
	h.timeout = cmp.Or(h.timeout, defaultHookTimeout)
	h.container, h.problem = podhooks.Container(pod, h.container, h.command)
	return h
}

// allowed says why the hooks of the pods of a namespace may not be run; nil is that they may. What is
// known of namespaces is in asked.
func (h *hooks) allowed(ctx context.Context, namespace string, asked map[string]error) error {
	err, known := asked[namespace]
	if !known {
		err = retried(ctx, h.retry, func() error { return h.runner.Allowed(ctx, namespace) })
		asked[namespace] = err
	}
	return err
}

// run runs hooks of one pod, and reports whether all went well that must. Pre hooks end with
// the first that must and does not; of post hooks each is tried.
func (h *hooks) run(ctx context.Context, phase string, pod engine.PodReference, all []hook) bool {
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

const (
	preHook  = "pre"
	postHook = "post"
)

// notThaw notes why a pod may still be frozen.
func (h *hooks) notThaw(pod engine.PodReference, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notThawed = append(h.notThawed, fmt.Sprintf("%s: %s", subject{podsResource, pod.Namespace, pod.Name}, text))
}

func (h *hooks) tell(pod engine.PodReference, goOn bool, text string) {
	about := subject{podsResource, pod.Namespace, pod.Name}
	if goOn {
		h.findings.warn(about, text)
		return
	}
	h.findings.fail(about, text)
}

func (h *hooks) exec(ctx context.Context, phase string, pod engine.PodReference, hook hook) error {
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
	// What was frozen thaws also if the API server was away for a while. A pre hook is run once.
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

// left is how long a hook may run that has a timeout, and why it is less. Those that thaw have
// lastHooksTimeout at least.
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

// notRun reports whether a command has certainly not run.
func notRun(err error) bool {
	_, is := errors.AsType[podhooks.NotRunError](err)
	return is
}

// unreached reports whether a command may not have run, since the connection failed.
func unreached(err error) bool {
	_, ended := errors.AsType[exec.ExitError](err)
	return err != nil && !ended && passing(err)
}

// counts is nil for a backup that has run no hook. With them are those that were counted before
// this attempt began.
func (h *hooks) counts() *holdfast.HookStatus {
	if h == nil || h.attempted.Load() == 0 {
		return nil
	}
	return &holdfast.HookStatus{HooksAttempted: h.attempted.Load(), HooksFailed: h.failed.Load()}
}

// failedPostHooks says in one line which post hooks failed; empty if none did.
func (h *hooks) failedPostHooks() string {
	if h == nil {
		return ""
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return told(h.notThawed)
}

// PostHooks is what became of the post hooks that another process has left pending.
type PostHooks struct {
	// Log is theirs, compressed, of which the backup's log has the lines.
	Log []byte
	// Status counts them, and what the status of the Backup had counted before; nil is none.
	Status *holdfast.HookStatus
	// Failed says in one line which did not go well, whatever their onError; empty if all did.
	Failed string
}

// newHooks goes on counting where the status of the request ends.
func (e *execution) newHooks(rules []hookRule) *hooks {
	h := &hooks{rules: rules, runner: e.Hooks, findings: e.findings, log: e.log, retry: e.Retry, most: e.HookTime, clock: e.Clock}
	if start := e.request.Backup.Status.StartTimestamp; e.Timeout > 0 && start != nil {
		h.until = start.Add(e.Timeout)
	}
	if before := e.request.Backup.Status.HookStatus; before != nil {
		h.attempted.Store(before.HooksAttempted)
		h.failed.Store(before.HooksFailed)
	}
	return h
}

// tellPostHooks warns of post hooks that failed before this attempt. That is no error: this one
// runs them again, and to undo what was not done may fail.
func (e *execution) tellPostHooks() {
	if failed := e.request.PostHooks.Failed; failed != "" {
		e.findings.warn(subject{}, "since the process that executed the backup was gone, its post hooks were run, and of these failed: "+failed)
	}
}

// RunPostHooks runs the post hooks that another process has left pending. Of the
// dependencies it needs Client, Hooks and Clock. It goes on from what an earlier call gave, if
// the request has that.
func RunPostHooks(ctx context.Context, request Request, deps Dependencies, pods []engine.PodReference) PostHooks {
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
			// Each has its own time: one that hangs takes none from the others.
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
	_ = group.Wait() // what fails is noted
	return PostHooks{e.log.close(), h.counts(), h.failedPostHooks()}
}

// pod reads a pod, by a list, since to get one is another right; it is nil if it is gone.
func (l *lister) pod(ctx context.Context, ref engine.PodReference) (*corev1.Pod, error) {
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
