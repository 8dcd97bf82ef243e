// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/exec"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	podhooks "github.com/holdfast-io/holdfast/pkg/hooks"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// testHooks notes what is done, together with the volumes of its fixture.
type testHooks struct {
	allowed func(namespace string) error
	pending func([]enginev1alpha1.PodReference) error
	exec    func(ctx context.Context, what string) (string, error)

	mu     sync.Mutex
	events []string
}

func (h *testHooks) note(event string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, event)
}

func (h *testHooks) Allowed(_ context.Context, namespace string) error {
	if h.allowed == nil {
		return nil
	}
	return h.allowed(namespace)
}

func (h *testHooks) Pending(_ context.Context, pods []enginev1alpha1.PodReference) error {
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	if len(pods) == 0 {
		names = []string{"none"}
	}
	h.note("pending " + strings.Join(names, ","))
	if h.pending == nil {
		return nil
	}
	return h.pending(pods)
}

func (h *testHooks) Exec(ctx context.Context, pod enginev1alpha1.PodReference, container string, command []string) (string, error) {
	what := fmt.Sprintf("%s/%s: %s", pod.Name, container, strings.Join(command, " "))
	h.note(what)
	if h.exec == nil {
		return "", nil
	}
	return h.exec(ctx, what)
}

// watched has the events of volumes among those of hooks.
func (f *fixture) watched() *fixture {
	f.volumes.submit = func(v *format.Volume) error { f.hooks.note("submit " + v.Pod.Name + "/" + v.Name); return nil }
	f.volumes.result = func(v *format.Volume) enginev1alpha1.VolumeUploadStatus {
		f.hooks.note("read " + v.Pod.Name + "/" + v.Name)
		return enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted}
	}
	f.deps.BlockWorkers = 1
	return f
}

// hookedPod is a running pod with containers c1 and c2, on a node.
func hookedPod(name, node, labels, annotations string, volumes ...string) string {
	pod := podWith(name, annotations, volumes...)
	pod = strings.Replace(pod, `"containers":[{`, `"containers":[{"name":"c1"},{"name":"c2",`, 1)
	pod = strings.Replace(pod, `"nodeName":"n1"`, fmt.Sprintf(`"nodeName":%q`, node), 1)
	return strings.Replace(pod, `"annotations"`, fmt.Sprintf(`"labels":{%s},"annotations"`, labels), 1)
}

func execHook(command string, onError v1alpha1.HookErrorMode) v1alpha1.BackupResourceHook {
	return v1alpha1.BackupResourceHook{Exec: &v1alpha1.ExecHook{Command: strings.Fields(command), OnError: onError}}
}

func dbHooks(onError v1alpha1.HookErrorMode) v1alpha1.BackupHooks {
	return v1alpha1.BackupHooks{Resources: []v1alpha1.BackupResourceHookSpec{{
		Name: "db", IncludedNamespaces: []string{"sh*"}, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
		Pre: []v1alpha1.BackupResourceHook{execHook("freeze /d", onError)}, Post: []v1alpha1.BackupResourceHook{execHook("thaw /d", onError)},
	}}}
}

const isDB = `"app":"db"`

func hookedFixture(t *testing.T, hooks v1alpha1.BackupHooks, pods ...string) *fixture {
	yes := true
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: &yes, Hooks: hooks}).watched()
	f.claims()
	f.add("pods", pods...)
	return f
}

// TestHooksEncloseTheData: what is read of a pod, through whichever pod its claims are read,
// is read between its pre and its post hooks.
func TestHooksEncloseTheData(t *testing.T) {
	f := hookedFixture(t, dbHooks(""),
		hookedPod("a", "n1", "", "", "d"+claimData),                 // gives access to the claim of the next
		hookedPod("b", "n1", isDB, "", "d"+claimData, "e"+emptyDir), // has hooks
		hookedPod("c", "n1", "", "", "e"+emptyDir),                  // would keep its node's agent busy
		hookedPod("d", "n2", "", "", "e"+emptyDir))
	outcome := f.run(t)
	want := []string{
		"submit d/e",
		"pending b",
		"b/c1: freeze /d", "submit a/d", "submit b/e", "read a/d", "read b/e", "b/c1: thaw /d",
		"pending none",
		"submit c/e",
		"read d/e", "read a/d", "read b/e", "read c/e",
	}
	if diff := gocmp.Diff(want, f.hooks.events); diff != "" {
		t.Errorf("what was done (-want +got):\n%s", diff)
	}
	for _, v := range f.volumes.submitted {
		if about := v.Pod.Name == "a" || v.Pod.Name == "b"; v.Hooked != about {
			t.Errorf("hooks are about %s/%s: %t", v.Pod.Name, v.Name, v.Hooked)
		}
	}
	if want := (&v1alpha1.HookStatus{HooksAttempted: 2}); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || *outcome.Status.HookStatus != *want {
		t.Errorf("the backup is %s with %+v", outcome.Status.Phase, outcome.Status.HookStatus)
	}
	if stored := f.stored(t); stored.Status.HookStatus == nil || stored.Status.HookStatus.HooksAttempted != 2 {
		t.Errorf("stored: %+v", stored.Status.HookStatus)
	}
}

// TestOnePodOfANodeIsFrozen: an agent reads one volume at a time, and who waits behind another
// pod's would be frozen for nothing. Other nodes' go on beside.
func TestOnePodOfANodeIsFrozen(t *testing.T) {
	for name, volumes := range map[string]int{"a volume": 1, "1,000 volumes": 1000} {
		t.Run(name, func(t *testing.T) {
			var many []string
			for i := range volumes {
				many = append(many, fmt.Sprintf("v%d", i)+emptyDir)
			}
			hooks := dbHooks("")
			hooks.Resources = append(hooks.Resources, v1alpha1.BackupResourceHookSpec{
				Name: "dump", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "dump"}},
				Pre: []v1alpha1.BackupResourceHook{execHook("dump", "")},
			})
			f := hookedFixture(t, hooks,
				hookedPod("a-dump", "n1", `"app":"dump"`, "", "e"+emptyDir), // waits for nothing, and comes after those that do
				hookedPod("b", "n1", isDB, "", many...),
				hookedPod("c", "n1", isDB, "", "e"+emptyDir),
				hookedPod("d", "n2", isDB, "", "e"+emptyDir),
				hookedPod("e", "n1", isDB, "")) // has nothing to be read
			f.deps.BlockWorkers = 4
			var once sync.Map
			frozen := func(pod string) chan struct{} {
				is, _ := once.LoadOrStore(pod, make(chan struct{}))
				return is.(chan struct{})
			}
			f.hooks.exec = func(_ context.Context, what string) (string, error) {
				if pod, rest, _ := strings.Cut(what, "/"); strings.Contains(rest, "freeze") {
					close(frozen(pod))
				}
				return "", nil
			}
			f.volumes.result = func(v *format.Volume) enginev1alpha1.VolumeUploadStatus {
				f.hooks.note("read " + v.Pod.Name + "/" + v.Name)
				// The two nodes' pods are frozen at the same time, and so is one without volumes.
				for _, other := range map[string][]string{"b": {"d", "e"}, "d": {"b"}}[v.Pod.Name] {
					select {
					case <-frozen(other):
					case <-time.After(time.Minute):
						t.Errorf("%s waits for %s", other, v.Pod.Name)
					}
				}
				return enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted}
			}
			f.run(t)
			at := func(event string) int { return slices.Index(f.hooks.events, event) }
			if thawed := at("b/c1: thaw /d"); thawed < 0 || thawed > at("c/c1: freeze /d") || thawed > at("submit c/e") {
				t.Errorf("c is frozen while b is read: %q", f.hooks.events)
			}
			if thawed := at("c/c1: thaw /d"); thawed < 0 || thawed > at("submit a-dump/e") {
				t.Errorf("c is frozen while a-dump is read: %q", f.hooks.events)
			}
		})
	}
}

// TestPodsWhoseHooksAreForbidden come after those that wait for their volumes, as all that have
// no post hooks do.
func TestPodsWhoseHooksAreForbidden(t *testing.T) {
	f := hookedFixture(t, dbHooks(v1alpha1.HookErrorModeContinue), hookedPod("b", "n1", isDB, "", "e"+emptyDir))
	f.request.Backup.Spec.IncludedNamespaces = []string{"shed", "shop"}
	f.add("namespaces", namespace("shed", ""))
	f.add("pods", strings.ReplaceAll(hookedPod("a", "n1", isDB, "", "e"+emptyDir), `"shop"`, `"shed"`))
	f.hooks.allowed = func(namespace string) error {
		if namespace == "shed" {
			return NotAllowedError("ada may not")
		}
		return nil
	}
	f.run(t)
	want := []string{"pending b", "b/c1: freeze /d", "submit b/e", "read b/e", "b/c1: thaw /d", "submit a/e", "pending none", "read b/e", "read a/e"}
	if diff := gocmp.Diff(want, f.hooks.events); diff != "" {
		t.Errorf("what was done (-want +got):\n%s", diff)
	}
}

func TestWhichHooksRun(t *testing.T) {
	const velero = "hook.backup.velero.io/"
	ours := func(phase, rest string) string {
		return fmt.Sprintf("%q:%s", phase+".hook.backup.holdfast.io/"+rest[:strings.Index(rest, "=")], rest[strings.Index(rest, "=")+1:])
	}
	for name, test := range map[string]struct {
		labels, annotations string
		hooks               v1alpha1.BackupHooks
		want                []string
		warnings            []string
	}{
		"none":        {hooks: dbHooks("")},
		"of the spec": {labels: isDB, hooks: dbHooks(""), want: []string{"c1: freeze /d", "c1: thaw /d"}},
		"of Velero's annotations, with defaults": {
			annotations: `"pre.` + velero + `command":"/bin/sync now","post.` + velero + `command":"[\"/bin/echo\",\"a b\"]"`,
			want:        []string{"c1: /bin/sync now", "c1: /bin/echo a b"},
		},
		"of Velero's annotation without a phase": {annotations: `"` + velero + `command":"x","` + velero + `container":"c2"`, want: []string{"c2: x"}},
		"of ours, before Velero's": {
			annotations: ours("pre", `command="y"`) + "," + ours("pre", `container="c2"`) + `,"pre.` + velero + `command":"x"`,
			want:        []string{"c2: y"},
		},
		"of annotations instead of the spec, each phase by itself": {
			labels: isDB, hooks: dbHooks(""), annotations: ours("pre", `command="y"`), want: []string{"c1: y", "c1: thaw /d"},
		},
		"a list that is none is a word": {annotations: ours("pre", `command="[ -f /x ]"`), want: []string{"c1: [ -f /x ]"}},
		"a timeout that is none": {
			annotations: ours("pre", `command="y"`) + "," + ours("pre", `timeout="soon"`), want: []string{"c1: y"},
			warnings: []string{"pods shop/p: the annotation pre.hook.backup.holdfast.io/timeout is no duration, such as 30s: the hook has 30s"},
		},
		"a timeout without end": {
			annotations: ours("pre", `command="y"`) + "," + ours("pre", `timeout="87600h"`), want: []string{"c1: y"},
			warnings: []string{"pods shop/p: the annotation pre.hook.backup.holdfast.io/timeout is too long: the hook has 10m0s; one of the backup's spec may have up to 4h0m0s"},
		},
		"a timeout that is just right": {annotations: ours("pre", `command="y"`) + "," + ours("pre", `timeout="10m"`), want: []string{"c1: y"}},
		"of other resources": {labels: isDB, hooks: v1alpha1.BackupHooks{Resources: []v1alpha1.BackupResourceHookSpec{
			{Name: "x", IncludedResources: []string{"deployments"}, Pre: []v1alpha1.BackupResourceHook{execHook("x", "")}},
			{Name: "y", ExcludedResources: []string{"po"}, Pre: []v1alpha1.BackupResourceHook{execHook("y", "")}},
			{Name: "z", IncludedResources: []string{"Pod"}, ExcludedNamespaces: []string{"shopping"}, Pre: []v1alpha1.BackupResourceHook{execHook("z1", ""), execHook("z2", "")}},
			{Name: "other", IncludedNamespaces: []string{"other"}, Pre: []v1alpha1.BackupResourceHook{execHook("w", "")}},
		}}, want: []string{"c1: z1", "c1: z2"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := hookedFixture(t, test.hooks, hookedPod("p", "n1", test.labels, test.annotations))
			f.request.Backup.Spec.DefaultVolumesToFsBackup, f.request.Backup.Spec.SnapshotVolumes = new(false), new(false)
			f.run(t)
			var ran []string
			for _, event := range f.hooks.events {
				if command, ok := strings.CutPrefix(event, "p/"); ok {
					ran = append(ran, command)
				}
			}
			if diff := gocmp.Diff(test.want, ran); diff != "" {
				t.Errorf("ran (-want +got):\n%s", diff)
			}
			if diff := gocmp.Diff(test.warnings, f.results(t).Warnings.Namespaces["shop"]); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTimeoutsOfAnnotations: who may annotate a pod holds no worker for hours, who writes the spec may.
func TestTimeoutsOfAnnotations(t *testing.T) {
	all, err := podhooks.Words{}.Parse()
	if err != nil {
		t.Fatal(err)
	}
	h := &hooks{findings: &findings{log: newLogbook(clock.RealClock{})}, rules: []hookRule{{name: "db", selector: all, post: []v1alpha1.BackupResourceHook{
		{Exec: &v1alpha1.ExecHook{Command: []string{"thaw"}, Timeout: v1alpha1.Duration{Duration: 4 * time.Hour}}},
	}}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", Annotations: map[string]string{
		"pre.hook.backup.velero.io/command": "freeze", "pre.hook.backup.velero.io/timeout": "4h",
	}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	pre, post := h.of(pod)
	if len(pre) != 1 || pre[0].timeout != 10*time.Minute || len(post) != 1 || post[0].timeout != 4*time.Hour {
		t.Errorf("%+v, %+v", pre, post)
	}
}

// TestHooksOfPodsThatDoNotRun: there is nobody to run a command in, and nothing to freeze.
func TestHooksOfPodsThatDoNotRun(t *testing.T) {
	f := hookedFixture(t, dbHooks(""), strings.Replace(hookedPod("p", "n1", isDB, ""), "Running", "Succeeded", 1))
	if outcome := f.run(t); outcome.Status.HookStatus != nil || outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || len(f.hooks.events) > 0 {
		t.Errorf("%+v, %v", outcome.Status, f.hooks.events)
	}
}

// TestHooksOfMirrorPods: a node may make mirror pods in each namespace, and no command is run in them.
func TestHooksOfMirrorPods(t *testing.T) {
	f := hookedFixture(t, dbHooks(""), strings.Replace(hookedPod("p", "n1", isDB, ""), `"metadata":{`, `"metadata":{"annotations":{"kubernetes.io/config.mirror":"x"},`, 1))
	outcome := f.run(t)
	if outcome.Status.HookStatus != nil || outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || !strings.Contains(outcome.Status.Message, "pods shop/p: its hooks are not run: it is a mirror pod") || len(f.hooks.events) > 0 {
		t.Errorf("%+v, %v", outcome.Status, f.hooks.events)
	}
}

func TestHooksThatFail(t *testing.T) {
	broken := exec.CodeExitError{Err: errors.New("command terminated with exit code 1"), Code: 1}
	failing := func(which string) func(context.Context, string) (string, error) {
		return func(_ context.Context, what string) (string, error) {
			if strings.Contains(what, which) {
				return "no such file", broken
			}
			return "", nil
		}
	}
	for name, test := range map[string]struct {
		onError          v1alpha1.HookErrorMode
		hooks            *testHooks
		timeout          time.Duration
		want             []string
		errors, warnings string
		failed           int32
	}{
		"the pre hook": {
			hooks: &testHooks{exec: failing("freeze")}, failed: 1,
			want:   []string{"pending p", "p/c1: freeze /d", "p/c1: thaw /d", "pending none", "submit plain/e", "read plain/e"},
			errors: "pods shop/p: its pre hook db failed in container c1: command terminated with exit code 1",
		},
		"the pre hook, and the backup goes on": {
			onError: v1alpha1.HookErrorModeContinue, hooks: &testHooks{exec: failing("freeze")}, failed: 1,
			want:     []string{"pending p", "p/c1: freeze /d", "submit other/d", "submit p/e", "read other/d", "read p/e", "p/c1: thaw /d", "pending none", "submit plain/e", "read other/d", "read p/e", "read plain/e"},
			warnings: "pods shop/p: its pre hook db failed in container c1: command terminated with exit code 1",
		},
		"the post hook": {
			hooks: &testHooks{exec: failing("thaw")}, failed: 1,
			want:   []string{"pending p", "p/c1: freeze /d", "submit other/d", "submit p/e", "read other/d", "read p/e", "p/c1: thaw /d", "submit plain/e", "read other/d", "read p/e", "read plain/e"},
			errors: "pods shop/p: its post hook db failed in container c1: command terminated with exit code 1",
		},
		"the connection in the pre hook": { // so it may have run
			hooks: &testHooks{exec: func(_ context.Context, what string) (string, error) {
				if strings.Contains(what, "freeze") {
					return "", errors.New("unexpected EOF")
				}
				return "", nil
			}}, failed: 1,
			want:   []string{"pending p", "p/c1: freeze /d", "p/c1: thaw /d", "pending none", "submit plain/e", "read plain/e"},
			errors: "pods shop/p: its pre hook db failed in container c1: unexpected EOF",
		},
		"the right to run it": {
			hooks: &testHooks{allowed: func(namespace string) error { return NotAllowedError("ada may not in " + namespace) }}, failed: 2,
			want:   []string{"submit plain/e", "read plain/e"},
			errors: "pods shop/p: its hooks were not run: ada may not in shop",
		},
		"the note that they are pending": {
			hooks: &testHooks{pending: func([]enginev1alpha1.PodReference) error { return errors.New("no") }}, failed: 2,
			want:   []string{"pending p", "submit plain/e", "read plain/e"},
			errors: "pods shop/p: its hooks were not run: note which post hooks are to be run: no",
		},
		"the note that they are pending, and the backup goes on": {
			onError: v1alpha1.HookErrorModeContinue, hooks: &testHooks{pending: func([]enginev1alpha1.PodReference) error { return errors.New("no") }}, failed: 2,
			want:     []string{"pending p", "submit other/d", "submit p/e", "submit plain/e", "read other/d", "read p/e", "read plain/e"},
			warnings: "pods shop/p: its hooks were not run: note which post hooks are to be run: no",
		},
		"a command that hangs": {
			hooks: &testHooks{exec: func(ctx context.Context, what string) (string, error) {
				if !strings.Contains(what, "freeze") {
					return "", nil
				}
				<-ctx.Done()
				return "", ctx.Err()
			}}, timeout: time.Millisecond, failed: 1,
			want:   []string{"pending p", "p/c1: freeze /d", "p/c1: thaw /d", "pending none", "submit plain/e", "read plain/e"},
			errors: "pods shop/p: its pre hook db failed in container c1: it did not end within 1ms; the command may still run",
		},
	} {
		t.Run(name, func(t *testing.T) {
			hooks := dbHooks(test.onError)
			hooks.Resources[0].Pre[0].Exec.Timeout.Duration = test.timeout
			f := hookedFixture(t, hooks, hookedPod("other", "n1", "", "", "d"+claimData), hookedPod("p", "n1", isDB, "", "d"+claimData, "e"+emptyDir),
				hookedPod("plain", "n1", "", "", "e"+emptyDir))
			f.hooks.allowed, f.hooks.pending, f.hooks.exec = test.hooks.allowed, test.hooks.pending, test.hooks.exec
			outcome := f.run(t)
			if diff := gocmp.Diff(test.want, f.hooks.events); diff != "" {
				t.Errorf("what was done (-want +got):\n%s", diff)
			}
			results := f.results(t)
			if got := strings.Join(append(results.Errors.Velero, results.Errors.Namespaces["shop"]...), "\n"); got != test.errors {
				t.Errorf("errors: %s", got)
			}
			warnings := slices.DeleteFunc(results.Warnings.Namespaces["shop"], func(text string) bool { return strings.HasPrefix(text, "persistentvolumeclaims") })
			if got := strings.Join(warnings, "\n"); got != test.warnings {
				t.Errorf("warnings: %s", got)
			}
			if status := outcome.Status.HookStatus; status == nil && test.failed > 0 || status != nil && status.HooksFailed != test.failed {
				t.Errorf("hooks: %+v", status)
			}
			if !slices.Contains(f.items(t), "pods shop/p") {
				t.Error("the pod itself is not in the backup")
			}
		})
	}
}

// TestPostHooksRunAfterACancellation: whatever ends the backup, what was frozen thaws.
func TestPostHooksRunAfterACancellation(t *testing.T) {
	for name, at := range map[string]string{"in the pre hook": "freeze", "while the pod is read after it": "pod", "while the data is read": ""} {
		t.Run(name, func(t *testing.T) {
			f := hookedFixture(t, dbHooks(""), hookedPod("p", "n1", isDB, "", "e"+emptyDir), hookedPod("q", "n1", isDB, "", "e"+emptyDir))
			ctx, cancel := context.WithCancel(t.Context())
			f.hooks.exec = func(ctx context.Context, what string) (string, error) {
				if at != "" && strings.Contains(what, at) {
					cancel()
				}
				return "", ctx.Err()
			}
			f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
				if at == "pod" && r.URL.Query().Get("fieldSelector") == "metadata.name=p" {
					cancel()
				}
				return false
			}
			f.volumes.wait = func(ctx context.Context) error { cancel(); return ctx.Err() }
			outcome, err := Run(ctx, f.request, f.deps)
			if !errors.Is(err, context.Canceled) || outcome.FailedPostHooks != "" {
				t.Fatalf("Run: %v, %q", err, outcome.FailedPostHooks)
			}
			if n := len(f.hooks.events); f.hooks.events[n-1] != "p/c1: thaw /d" || slices.Contains(f.hooks.events, "q/c1: freeze /d") {
				t.Errorf("what was done: %q", f.hooks.events)
			}
		})
	}
}

// TestPostHooksThatFailAfterACancellation: the outcome says which, and the counts are stored by whoever ends
// the backup.
func TestPostHooksThatFailAfterACancellation(t *testing.T) {
	f := hookedFixture(t, dbHooks(v1alpha1.HookErrorModeContinue), hookedPod("p", "n1", isDB, "", "e"+emptyDir))
	ctx, cancel := context.WithCancel(t.Context())
	f.hooks.exec = func(_ context.Context, what string) (string, error) {
		if strings.Contains(what, "thaw") {
			return "", exec.CodeExitError{Err: errors.New("exit code 1"), Code: 1}
		}
		return "", nil
	}
	f.volumes.wait = func(ctx context.Context) error { cancel(); return ctx.Err() }
	outcome, err := Run(ctx, f.request, f.deps)
	if want := "pods shop/p: its post hook db failed in container c1: exit code 1"; !errors.Is(err, context.Canceled) || outcome.FailedPostHooks != want {
		t.Fatalf("Run: %v, %q", err, outcome.FailedPostHooks)
	}
	f.request.Backup.Status.HookStatus = outcome.Status.HookStatus
	if _, err := Abandon(t.Context(), f.request, f.deps, f.store, v1alpha1.BackupPhaseCancelled, "cancelled by ada"); err != nil {
		t.Fatal(err)
	}
	if status := f.stored(t).Status.HookStatus; status == nil || *status != (v1alpha1.HookStatus{HooksAttempted: 2, HooksFailed: 1}) {
		t.Errorf("stored: %+v", status)
	}
}

// TestPostHooksThatHangEndAfterACancellation: nor does the backup last with them, whether it
// is cancelled before they run or while they do.
func TestPostHooksThatHangEndAfterACancellation(t *testing.T) {
	defer func(was time.Duration) { lastHooksTimeout = was }(lastHooksTimeout)
	lastHooksTimeout = time.Second
	for _, at := range []string{"freeze", "thaw"} {
		t.Run(at, func(t *testing.T) {
			hooks := dbHooks("")
			hooks.Resources[0].Post[0].Exec.Timeout.Duration = time.Hour
			f := hookedFixture(t, hooks, hookedPod("p", "n1", isDB, "", "e"+emptyDir))
			ctx, cancel := context.WithCancel(t.Context())
			f.hooks.exec = func(ctx context.Context, what string) (string, error) {
				if strings.Contains(what, at) {
					cancel()
				}
				if strings.Contains(what, "thaw") {
					<-ctx.Done()
				}
				return "", ctx.Err()
			}
			begun := time.Now()
			if _, err := Run(ctx, f.request, f.deps); !errors.Is(err, context.Canceled) || time.Since(begun) > time.Minute {
				t.Errorf("Run: %v after %s", err, time.Since(begun))
			}
			if want := []string{"p/c1: freeze /d", "p/c1: thaw /d"}; !slices.Equal(slices.DeleteFunc(f.hooks.events, func(e string) bool { return !strings.HasPrefix(e, "p/") }), want) {
				t.Errorf("what was done: %q", f.hooks.events)
			}
		})
	}
}

// TestHooksOfABlockAreBoundedTogether: many hooks that each keep to their time don't hold the backup for
// days.
func TestHooksOfABlockAreBoundedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runner := &testHooks{exec: func(ctx context.Context, what string) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}}
		log := newLogbook(clock.RealClock{})
		p := &podVolumes{collector: &collector{hooks: &hooks{runner: runner, findings: &findings{log: log}, log: log, most: 24 * time.Hour, clock: clock.RealClock{}}}}
		slow := hook{from: "x", container: "c", command: []string{"sleep"}, timeout: 3 * time.Hour}
		begun := time.Now()
		p.runPostHooks(t.Context(), block{{post: []hook{slow, slow}, ran: true}, {post: []hook{slow}, ran: true}})
		if took := time.Since(begun); took != maxHookTimeout || len(runner.events) != 2 {
			t.Errorf("%s for %q", took, runner.events)
		}
	})
}

// TestHooksSurviveAMomentWithoutAPIServer: neither the question who may run them, nor what freezes
// and has not begun, nor what thaws, fails at once.
// TestHooksOfANamespaceAreBounded: many pods with slow hooks don't hold up the backups of others. What their
// hooks have frozen thaws all the same.
func TestHooksOfANamespaceAreBounded(t *testing.T) {
	for name, test := range map[string]struct {
		hooks func(h *hooks)
		says  string
	}{
		"by their time":        {func(h *hooks) { h.most = time.Hour }, "the hooks of the namespace shop have run for"},
		"by the backup's time": {func(h *hooks) { h.most, h.until = 24*time.Hour, time.Now().Add(time.Hour) }, "the backup has taken as long as one may"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runner := &testHooks{exec: func(ctx context.Context, what string) (string, error) {
					time.Sleep(25 * time.Minute)
					return "", ctx.Err()
				}}
				log := newLogbook(clock.RealClock{})
				found := &findings{log: log, FoundSoFar: format.FoundSoFar{ToldErrors: format.NewTold("shop", "holdfast"), ToldWarnings: format.NewTold("shop", "holdfast")}}
				h := &hooks{runner: runner, findings: found, log: log, clock: clock.RealClock{}}
				test.hooks(h)
				slow := []hook{{from: "x", container: "c", command: []string{"sleep"}, timeout: 30 * time.Minute}}
				pod := func(namespace, name string) enginev1alpha1.PodReference {
					return enginev1alpha1.PodReference{Namespace: namespace, Name: name}
				}
				if !h.run(t.Context(), preHook, pod("shop", "a"), slow) || !h.run(t.Context(), preHook, pod("shop", "b"), slow) {
					t.Error("a hook within the time failed")
				}
				if h.run(t.Context(), preHook, pod("shop", "c"), slow) {
					t.Error("a hook that ends later went well")
				}
				begun := time.Now()
				if h.run(t.Context(), preHook, pod("shop", "d"), slow) || time.Since(begun) > 0 {
					t.Errorf("a hook was run when the time was over, for %s", time.Since(begun))
				}
				runner.exec = func(context.Context, string) (string, error) { time.Sleep(time.Minute); return "", nil }
				if !h.run(t.Context(), postHook, pod("shop", "a"), slow) {
					t.Error("what was frozen did not thaw")
				}
				if name == "by their time" && !h.run(t.Context(), preHook, pod("blog", "a"), slow) {
					t.Error("a hook of another namespace failed")
				}
				if text := found.ToldErrors.String(); !strings.Contains(text, test.says) {
					t.Errorf("what is told: %s", text)
				}
			})
		})
	}
}

func TestHooksSurviveAMomentWithoutAPIServer(t *testing.T) {
	f := hookedFixture(t, dbHooks(""), hookedPod("p", "n1", isDB, "", "e"+emptyDir))
	asked, froze, thawed := 0, 0, 0
	away := errors.New("connection refused")
	f.hooks.allowed = func(string) error {
		if asked++; asked == 1 {
			return away
		}
		return nil
	}
	f.hooks.exec = func(_ context.Context, what string) (string, error) {
		if strings.Contains(what, "freeze") {
			if froze++; froze < 3 {
				return "", podhooks.NotRunError{Reason: away}
			}
		}
		if strings.Contains(what, "thaw") {
			if thawed++; thawed < 3 {
				return "", away
			}
		}
		return "", nil
	}
	if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || asked != 2 || froze != 3 || thawed != 3 {
		t.Errorf("%s, asked %d times, froze %d times, thawed %d times", outcome.Status.Phase, asked, froze, thawed)
	}
}

// TestManyHookedPodsAreNotedInPortions: the record does not grow with the backup.
func TestManyHookedPodsAreNotedInPortions(t *testing.T) {
	var pods []string
	for i := range 2*maxPending + 1 {
		pods = append(pods, hookedPod(fmt.Sprintf("p%03d", i), "n1", isDB, ""))
	}
	f := hookedFixture(t, dbHooks(""), pods...)
	f.deps.BlockWorkers = 8
	var portions []int
	f.hooks.pending = func(pods []enginev1alpha1.PodReference) error { portions = append(portions, len(pods)); return nil }
	if outcome := f.run(t); outcome.Status.HookStatus.HooksAttempted != 2*(2*maxPending+1) || !slices.Equal(portions, []int{maxPending, maxPending, 1, 0}) {
		t.Errorf("%+v in portions of %v", outcome.Status.HookStatus, portions)
	}
	if all := f.inOrder(t, "pods"); len(all) != len(pods) || len(slices.Compact(slices.Sorted(slices.Values(all)))) != len(pods) {
		t.Errorf("the backup has %d pods", len(all))
	}
	if n := f.requested("/api/v1/namespaces/shop/pods"); n != 1+len(pods) {
		t.Errorf("pods were asked for %d times", n)
	}
}

// TestPostHooksThatCannotBeNoted are not run, nor the pre hooks of their blocks. Others are, and
// who waits for a post hook does not wait for the data of those.
func TestPostHooksThatCannotBeNoted(t *testing.T) {
	pods := []string{hookedPod("a-dump", "n1", `"app":"dump"`, "", "e"+emptyDir)}
	for i := range maxPending + 1 {
		pods = append(pods, hookedPod(fmt.Sprintf("p%03d", i), "n1", isDB, "", "e"+emptyDir))
	}
	hooks := dbHooks(v1alpha1.HookErrorModeContinue)
	hooks.Resources = append(hooks.Resources, v1alpha1.BackupResourceHookSpec{
		Name: "dump", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "dump"}},
		Pre: []v1alpha1.BackupResourceHook{execHook("dump", "")},
	})
	f := hookedFixture(t, hooks, pods...)
	f.hooks.pending = func(pods []enginev1alpha1.PodReference) error {
		if len(pods) == maxPending {
			return errors.New("no")
		}
		return nil
	}
	outcome := f.run(t)
	if got := outcome.Status.HookStatus; got.HooksAttempted != 2*(maxPending+1)+1 || got.HooksFailed != 2*maxPending || outcome.Status.Volumes.Completed != maxPending+2 {
		t.Errorf("%+v, %+v", got, outcome.Status.Volumes)
	}
	var ran []string
	for _, event := range f.hooks.events {
		if strings.Contains(event, "/c1: ") || strings.HasPrefix(event, "submit p000") {
			ran = append(ran, event)
		}
	}
	want := []string{"p100/c1: freeze /d", "p100/c1: thaw /d", "a-dump/c1: dump", "submit p000/e"}
	if diff := gocmp.Diff(want, ran); diff != "" {
		t.Errorf("what was done (-want +got):\n%s", diff)
	}
}

// TestTwoBackupsAtOnce: of different namespaces, with hooks, and with what they share of cluster
// scope. While one has its pod frozen so has the other.
func TestTwoBackupsAtOnce(t *testing.T) {
	yes := true
	backups := map[string]*fixture{}
	shared := needing(t, v1alpha1.BackupSpec{}).testCluster
	shared.add("clusterrolebindings.rbac.authorization.k8s.io", `{"metadata":{"name":"both"},"roleRef":{"kind":"ClusterRole","name":"viewer"},
		"subjects":[{"kind":"ServiceAccount","namespace":"shop","name":"web"},{"kind":"ServiceAccount","namespace":"other","name":"web"}]}`)
	frozen := map[string]chan struct{}{"shop": make(chan struct{}), "other": make(chan struct{})}
	for namespace, beside := range map[string]string{"shop": "other", "other": "shop"} {
		pod := strings.Replace(hookedPod("db", "n1", isDB, "", "d"+claimData), `"namespace":"shop"`, fmt.Sprintf(`"namespace":%q`, namespace), 1)
		shared.add("pods", strings.Replace(pod, `"nodeName"`, `"priorityClassName":"high","nodeName"`, 1))
		shared.add("persistentvolumes", `{"metadata":{"name":"of-`+namespace+`"},"spec":{"storageClassName":"slow"}}`)
		if namespace == "other" { // shop has one
			shared.add("persistentvolumeclaims", `{"metadata":{"name":"data","namespace":"other"},"spec":{"volumeName":"of-other","storageClassName":"slow"},"status":{"phase":"Bound"}}`)
		}
		hooks := dbHooks("")
		hooks.Resources[0].IncludedNamespaces = nil
		f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, DefaultVolumesToFsBackup: &yes, Hooks: hooks}).watched()
		f.testCluster = shared
		f.deps.Client, f.deps.Discovery = shared.client(), shared
		f.hooks.exec = func(_ context.Context, what string) (string, error) {
			if strings.Contains(what, "freeze") {
				close(frozen[namespace])
			}
			return "", nil
		}
		f.volumes.wait = func(context.Context) error {
			select {
			case <-frozen[beside]:
			case <-time.After(time.Minute):
				t.Errorf("the backup of %s does not go on beside that of %s", beside, namespace)
			}
			return nil
		}
		backups[namespace] = f
	}
	var running sync.WaitGroup
	for _, f := range backups {
		running.Go(func() {
			if outcome, err := Run(t.Context(), f.request, f.deps); err != nil || outcome.Status.Phase != v1alpha1.BackupPhaseCompleted {
				t.Errorf("%+v, %v", outcome, err)
			}
		})
	}
	running.Wait()
	for namespace, f := range backups {
		f.wantWhole(t)
		ran := slices.DeleteFunc(slices.Clone(f.hooks.events), func(event string) bool { return !strings.HasPrefix(event, "db/c1") })
		if want := []string{"db/c1: freeze /d", "db/c1: thaw /d"}; !slices.Equal(ran, want) {
			t.Errorf("%s: %q", namespace, ran)
		}
		needed := f.needed(t)
		for _, item := range []string{"ClusterRoleBinding both", "ClusterRole viewer", "PriorityClass high"} {
			if needed[item] == "" {
				t.Errorf("the backup of %s lacks %s: %v", namespace, item, needed)
			}
		}
		if !slices.Contains(f.items(t), "pods "+namespace+"/db") {
			t.Errorf("the backup of %s lacks its pod", namespace)
		}
	}
}

// broken is a store whose writers fail from some moment on.
type broken struct {
	Store
	since chan struct{}
}

func (b broken) NewWriter(ctx context.Context, key string) (store.ObjectWriter, error) {
	w, err := b.Store.NewWriter(ctx, key)
	return brokenWriter{w, b.since}, err
}

type brokenWriter struct {
	store.ObjectWriter
	since chan struct{}
}

func (w brokenWriter) Write(p []byte) (int, error) {
	select {
	case <-w.since:
		return 0, errBoom
	default:
		return w.ObjectWriter.Write(p)
	}
}

// TestPostHooksOfABackupThatFails: the store breaks off the tarball while a pod is frozen, and it
// thaws.
func TestPostHooksOfABackupThatFails(t *testing.T) {
	f := hookedFixture(t, dbHooks(""), hookedPod("p", "n1", isDB, "", "e"+emptyDir))
	// As many as are compressed at once, and one to write.
	for i := range min(runtime.GOMAXPROCS(0), 4) + 2 {
		f.add("configmaps", fmt.Sprintf(`{"metadata":{"name":"large-%d","namespace":"shop"},"data":{"x":%q}}`, i, strings.Repeat("x", 1<<20)))
	}
	frozen := make(chan struct{})
	f.deps.Store = broken{f.store, frozen}
	f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "configmaps") {
			<-frozen
		}
		return false
	}
	f.hooks.exec = func(_ context.Context, what string) (string, error) {
		if strings.Contains(what, "freeze") {
			close(frozen)
		}
		return "", nil
	}
	f.volumes.wait = func(ctx context.Context) error { // its data is read for longer than the store works
		<-ctx.Done()
		return ctx.Err()
	}
	outcome := f.run(t)
	if outcome.Status.Phase != v1alpha1.BackupPhaseFailed || !strings.Contains(outcome.Status.FailureReason, errBoom.Error()) {
		t.Errorf("%+v", outcome.Status)
	}
	if n := len(f.hooks.events); f.hooks.events[n-1] != "p/c1: thaw /d" {
		t.Errorf("what was done: %q", f.hooks.events)
	}
	if status := f.stored(t).Status.HookStatus; status == nil || *status != (v1alpha1.HookStatus{HooksAttempted: 2}) {
		t.Errorf("stored: %+v", status)
	}
}

// TestHowLongPodsAreFrozen: the log and Frozen tell it from the start of the first pre hook to the end of the last
// post hook, of pods that have both and have thawed.
func TestHowLongPodsAreFrozen(t *testing.T) {
	const both, before = `"app":"db"`, `"app":"dump"`
	for name, test := range map[string]struct {
		labels, volume string
		snapshots      bool
		fails          string
		want           string
	}{
		"files":              {labels: both, volume: "v" + claimData, want: "6.5s files"},
		"a snapshot":         {labels: both, volume: "v" + claimData, snapshots: true, want: "5.5s snapshots"},
		"no volume":          {labels: both, want: "3.5s none"},
		"the pre hook fails": {labels: both, volume: "v" + claimData, fails: "freeze", want: "3.5s none"},
		"it did not thaw":    {labels: both, volume: "v" + claimData, fails: "thaw"},
		"no post hook":       {labels: before, volume: "v" + claimData},
	} {
		t.Run(name, func(t *testing.T) {
			hooks := dbHooks("")
			hooks.Resources = append(hooks.Resources, v1alpha1.BackupResourceHookSpec{
				Name: "dump", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "dump"}},
				Pre: []v1alpha1.BackupResourceHook{execHook("dump", "")},
			})
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: new(!test.snapshots), SnapshotVolumes: new(test.snapshots), Hooks: hooks}).
				watched().withSnapshots(snapshotClass("fast", "d", false))
			f.add("namespaces", namespace("shop", ""))
			f.csiClaim("data", "d", "Filesystem")
			var volumes []string
			if test.volume != "" {
				volumes = []string{test.volume}
			}
			f.add("pods", hookedPod("db", "n1", test.labels, "", volumes...))
			clock := clocktesting.NewFakeClock(start)
			f.deps.Clock = clock
			f.hooks.exec = func(_ context.Context, what string) (string, error) {
				clock.Step(1750 * time.Millisecond)
				if test.fails != "" && strings.Contains(what, test.fails) {
					return "", exec.CodeExitError{Err: errors.New("exit code 1"), Code: 1}
				}
				return "", nil
			}
			f.volumes.onCut = func() { clock.Step(2 * time.Second) }
			read := f.volumes.result
			f.volumes.result = func(v *format.Volume) enginev1alpha1.VolumeUploadStatus {
				clock.Step(3 * time.Second)
				return read(v)
			}
			var told []string
			f.deps.Frozen = func(took time.Duration, read string) { told = append(told, took.String()+" "+read) }
			f.run(t)
			if got := strings.Join(told, ", "); got != test.want {
				t.Errorf("told is %q, want %q", got, test.want)
			}
			took, _, _ := strings.Cut(test.want, " ")
			line := fmt.Sprintf("msg=%q resource=pods namespace=shop name=db", "was frozen by its hooks for "+took)
			if log := f.text(t, format.LogKey("b")); test.want != "" && !strings.Contains(log, line) || test.want == "" && strings.Contains(log, "was frozen") {
				t.Errorf("the log is %s\nwant %s", log, line)
			}
		})
	}
}

// TestOutputOfHooksIsStored: whose hook it is, and what it said; what is kept of that the client bounds.
func TestOutputOfHooksIsStored(t *testing.T) {
	f := hookedFixture(t, dbHooks(""), hookedPod("p", "n1", isDB, ""))
	f.hooks.exec = func(_ context.Context, what string) (string, error) {
		return "said by " + strings.Fields(what)[1], nil
	}
	f.run(t)
	log := f.text(t, format.LogKey("b"))
	for _, want := range []string{
		`msg="ran a pre hook" resource=pods namespace=shop name=p hook=db container=c1 output="said by freeze"`,
		`msg="ran a post hook" resource=pods namespace=shop name=p hook=db container=c1 output="said by thaw"`,
	} {
		if !strings.Contains(log, want) {
			t.Errorf("not in the log: %s\n%s", want, log)
		}
	}
}

func TestRunPostHooks(t *testing.T) {
	f := hookedFixture(t, dbHooks(""), hookedPod("p", "n1", isDB, ""), hookedPod("again", "n1", isDB, ""), hookedPod("bad", "n1", isDB, ""))
	f.hooks.exec = func(_ context.Context, what string) (string, error) {
		if strings.HasPrefix(what, "bad") {
			return "", exec.CodeExitError{Err: errors.New("exit code 1"), Code: 1}
		}
		return "", nil
	}
	did := RunPostHooks(t.Context(), f.request, f.deps, []enginev1alpha1.PodReference{
		{Namespace: "shop", Name: "gone", UID: "uid-gone"}, {Namespace: "shop", Name: "again", UID: "another"},
		{Namespace: "shop", Name: "bad", UID: "uid-bad"}, {Namespace: "shop", Name: "p", UID: "uid-p"},
	})
	if want := "pods shop/bad: its post hook db failed in container c1: exit code 1"; did.Failed != want {
		t.Errorf("failed: %q", did.Failed)
	}
	slices.Sort(f.hooks.events)
	if want := []string{"bad/c1: thaw /d", "p/c1: thaw /d"}; !slices.Equal(f.hooks.events, want) {
		t.Errorf("ran %q", f.hooks.events)
	}
}

// TestPendingPostHooksAreTold: what the post hooks put out that were left pending is in the log of
// the backup, whoever ends it, before its own lines; they are counted with its own, and those that
// failed are a warning.
func TestPendingPostHooksAreTold(t *testing.T) {
	for name, test := range map[string]struct {
		end    func(*fixture) (Outcome, error)
		phase  v1alpha1.BackupPhase
		counts v1alpha1.HookStatus
		before string // what comes after
	}{
		"goes on": {func(f *fixture) (Outcome, error) { return Run(t.Context(), f.request, f.deps) },
			v1alpha1.BackupPhaseCompleted, v1alpha1.HookStatus{HooksAttempted: 9, HooksFailed: 2}, `msg="ran a pre hook"`},
		"fails": {func(f *fixture) (Outcome, error) {
			return Abandon(t.Context(), f.request, f.deps, f.store, v1alpha1.BackupPhaseFailed, "the controller stopped")
		}, v1alpha1.BackupPhaseFailed, v1alpha1.HookStatus{HooksAttempted: 5, HooksFailed: 2}, `msg="the controller stopped"`},
		"is cancelled": {func(f *fixture) (Outcome, error) {
			return Abandon(t.Context(), f.request, f.deps, f.store, v1alpha1.BackupPhaseCancelled, "cancelled by ada")
		}, v1alpha1.BackupPhaseCancelled, v1alpha1.HookStatus{HooksAttempted: 5, HooksFailed: 2}, `msg="the backup is cancelled by ada"`},
	} {
		t.Run(name, func(t *testing.T) {
			f := hookedFixture(t, dbHooks(""), hookedPod("p", "n1", isDB, ""), hookedPod("bad", "n1", isDB, ""))
			f.request.Backup.Status.HookStatus = &v1alpha1.HookStatus{HooksAttempted: 1}
			said := "said at first"
			f.hooks.exec = func(_ context.Context, what string) (string, error) {
				if strings.HasPrefix(what, "bad") && said != "" {
					return said, exec.CodeExitError{Err: errors.New("exit code 1"), Code: 1}
				}
				return said, nil
			}
			pending := []enginev1alpha1.PodReference{
				{Namespace: "shop", Name: "gone", UID: "uid-gone"}, {Namespace: "shop", Name: "bad", UID: "uid-bad"}, {Namespace: "shop", Name: "p", UID: "uid-p"},
			}
			for range 2 { // the first time it could not be written that they were run
				f.request.PostHooks = RunPostHooks(t.Context(), f.request, f.deps, pending)
				f.request.Backup.Status.HookStatus = f.request.PostHooks.Status
				said = "said then"
			}
			said, f.request.Attempt = "", 2
			f.deps.Remover = f.store
			outcome, err := test.end(f)
			if err != nil || outcome.Status.Phase != test.phase || *outcome.Status.HookStatus != test.counts {
				t.Errorf("%v: %+v, counted %+v", err, outcome.Status, outcome.Status.HookStatus)
			}
			if stored := f.stored(t).Status.HookStatus; stored == nil || *stored != test.counts {
				t.Errorf("stored: %+v", stored)
			}
			log, results := f.text(t, format.LogKey("b")), f.text(t, format.ResultsKey("b"))
			own := strings.Index(log, test.before)
			for _, want := range []string{
				`msg="it is gone, and its post hooks with it" resource=pods namespace=shop name=gone`,
				`msg="ran a post hook" resource=pods namespace=shop name=p hook=db container=c1 output="said at first"`,
				`msg="ran a post hook" resource=pods namespace=shop name=p hook=db container=c1 output="said then"`,
				`level=ERROR msg="its post hook db failed in container c1: exit code 1" resource=pods namespace=shop name=bad`,
			} {
				if at := strings.Index(log, want); at < 0 || at > own {
					t.Errorf("not in the log, before what comes then: %s\n%s", want, log)
				}
			}
			if want := "of these failed: pods shop/bad: its post hook db failed in container c1: exit code 1"; strings.Count(results, want) != 1 {
				t.Errorf("results: %s", results)
			}
		})
	}
}

// TestEachPendingPostHookThatFailsIsTold: also one after which the backup goes on, and those of a
// pod that can't be read.
func TestEachPendingPostHookThatFailsIsTold(t *testing.T) {
	pending := []enginev1alpha1.PodReference{{Namespace: "shop", Name: "p", UID: "uid-p"}}
	t.Run("onError Continue", func(t *testing.T) {
		f := hookedFixture(t, dbHooks(v1alpha1.HookErrorModeContinue), hookedPod("p", "n1", isDB, ""))
		f.hooks.exec = func(context.Context, string) (string, error) {
			return "", exec.CodeExitError{Err: errors.New("exit code 1"), Code: 1}
		}
		did := RunPostHooks(t.Context(), f.request, f.deps, pending)
		if want := "pods shop/p: its post hook db failed in container c1: exit code 1"; did.Failed != want {
			t.Errorf("failed: %q", did.Failed)
		}
	})
	t.Run("not read", func(t *testing.T) {
		f := hookedFixture(t, dbHooks(""), hookedPod("p", "n1", isDB, ""))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		did := RunPostHooks(ctx, f.request, f.deps, pending)
		if want := "pods shop/p: its post hooks were not run: read it: "; !strings.HasPrefix(did.Failed, want) {
			t.Errorf("failed: %q", did.Failed)
		}
	})
}

// All that failed is told, as far as it fits.
func TestToldFailures(t *testing.T) {
	for n, want := range map[int]string{
		0: "",
		2: "pods shop/pod-0: broken; pods shop/pod-1: broken",
	} {
		if got := told(failures(n)); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
	if got := told(failures(1000)); len(got) > maxTold+50 || !strings.Contains(got, "pod-9: broken") || !strings.HasSuffix(got, " more") {
		t.Errorf("%q", got)
	}
}

func failures(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("pods shop/pod-%d: broken", i))
	}
	return all
}
