// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
)

// testHooks is a record, and pods in which commands run.
type testHooks struct {
	mu     sync.Mutex
	ran    []string
	noted  map[types.UID]enginev1alpha1.HookedPod
	failed map[string]bool // words that fail
	during func()
}

func (h *testHooks) Begin(_ context.Context, pod types.UID) (*enginev1alpha1.HookedPod, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if earlier, ok := h.noted[pod]; ok {
		return &earlier, nil
	}
	h.noted[pod] = enginev1alpha1.HookedPod{UID: pod}
	return nil, nil
}

func (h *testHooks) End(_ context.Context, pod enginev1alpha1.HookedPod) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noted[pod.UID] = pod
	return nil
}

func (h *testHooks) Exec(ctx context.Context, pod enginev1alpha1.PodReference, container string, command []string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ran = append(h.ran, fmt.Sprintf("%s/%s %s: %s", pod.Namespace, pod.Name, container, strings.Join(command, " ")))
	if h.during != nil {
		h.during()
	}
	if h.failed[command[0]] {
		return "no", errors.New("exit code 1")
	}
	return "ok", ctx.Err()
}

func annotated(annotations map[string]any) func(map[string]any) {
	return with(annotations, "metadata", "annotations")
}

func containers(names ...string) func(map[string]any) {
	var all []any
	for _, name := range names {
		all = append(all, map[string]any{"name": name, "image": "app"})
	}
	return with(all, "spec", "containers")
}

// controlled makes an object one that another one controls.
func controlled(by map[string]any) func(map[string]any) {
	return func(o map[string]any) {
		ownedBy(by)(o)
		references := o["metadata"].(map[string]any)["ownerReferences"].([]any)
		references[0].(map[string]any)["controller"] = true
	}
}

func running(o map[string]any) {
	var statuses []any
	for _, c := range o["spec"].(map[string]any)["containers"].([]any) {
		statuses = append(statuses, map[string]any{"name": c.(map[string]any)["name"], "state": map[string]any{"running": map[string]any{}}})
	}
	o["status"] = map[string]any{"containerStatuses": statuses}
}

// hookedServer starts what is created: lone pods run, and a Deployment has pods.
func hookedServer(t *testing.T) *fakeServer {
	s := newFakeServer(t)
	for _, namespace := range []string{"shop", "copy"} {
		s.add("serviceaccounts", obj("v1", "ServiceAccount", namespace, "default"))
	}
	s.fault = func(r *http.Request) (int, bool) {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/pods") {
			return 0, false
		}
		for key, o := range s.objects {
			if strings.HasPrefix(key, "pods/") && o["status"] == nil {
				running(o)
			}
		}
		for _, namespace := range []string{"shop", "copy"} {
			web := s.objects["deployments.apps/"+namespace+"/web"]
			if web == nil || s.objects["pods/"+namespace+"/web-new-1"] != nil {
				continue
			}
			set := obj("apps/v1", "ReplicaSet", namespace, "web-new", controlled(web))
			s.objects["replicasets.apps/"+namespace+"/web-new"] = set
			for _, name := range []string{"web-new-1", "web-new-2"} {
				s.objects["pods/"+namespace+"/"+name] = obj("v1", "Pod", namespace, name, containers("c"), controlled(set), running)
			}
		}
		return 0, false
	}
	return s
}

func hookDependencies(h *testHooks, mayExec bool) func(*Dependencies) {
	return func(d *Dependencies) {
		d.Hooks = h
		d.Allowed = func(_ context.Context, right Right) (bool, error) {
			return mayExec && right == Right{Verb: "create", Resource: "pods", Subresource: "exec", Namespace: right.Namespace}, nil
		}
	}
}

func hookedObjects() []map[string]any {
	web := obj("apps/v1", "Deployment", "shop", "web", with(int64(2), "spec", "replicas"))
	set := obj("apps/v1", "ReplicaSet", "shop", "web-old", controlled(web), with(int64(2), "spec", "replicas"))
	labelled := with(map[string]any{"app": "web"}, "metadata", "labels")
	return []map[string]any{
		obj("v1", "Namespace", "", "shop"), web, set,
		obj("v1", "Pod", "shop", "web-old-1", containers("c"), labelled, controlled(set)),
		obj("v1", "Pod", "shop", "web-old-2", containers("c"), labelled, controlled(set)),
		obj("v1", "Pod", "shop", "db", containers("a", "b"), annotated(map[string]any{
			"post.hook.restore.velero.io/command":         `["load","dump"]`,
			"post.hook.restore.velero.io/container":       "b",
			"init.hook.restore.velero.io/container-image": "prepare:1",
			"init.hook.restore.velero.io/command":         `["prepare"]`,
		})),
		obj("v1", "Pod", "shop", "ended", containers("c"), labelled, with("Succeeded", "status", "phase")),
	}
}

func webHooks(onError v1alpha1.HookErrorMode) v1alpha1.RestoreHooks {
	exec := func(word string) v1alpha1.RestoreResourceHook {
		return v1alpha1.RestoreResourceHook{Exec: &v1alpha1.ExecRestoreHook{Command: []string{word}, OnError: onError}}
	}
	return v1alpha1.RestoreHooks{Resources: []v1alpha1.RestoreResourceHookSpec{{
		Name: "warm", IncludedNamespaces: []string{"shop"}, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		PostHooks: []v1alpha1.RestoreResourceHook{exec("warm"), exec("check")},
	}}}
}

// TestHooks: commands run once in each pod that the restore brings, be it by its controller,
// in order; and not again in a restore that finds all there, or is gone on with.
func TestHooks(t *testing.T) {
	s, h := hookedServer(t), &testHooks{noted: map[types.UID]enginev1alpha1.HookedPod{}}
	backup := backupOf(t, hookedObjects()...)
	spec := v1alpha1.RestoreSpec{Hooks: webHooks(""), NamespaceMapping: map[string]string{"shop": "copy"}, ImageMapping: map[string]string{"prepare": "mirror/prepare"}}
	ended := s.run(t.Context(), backup, request("r", spec), hookDependencies(h, true))
	want(t, ended, v1alpha1.RestorePhaseCompleted)
	slices.Sort(h.ran)
	if diff := gocmp.Diff([]string{
		"copy/db b: load dump",
		"copy/web-new-1 c: check", "copy/web-new-1 c: warm", "copy/web-new-2 c: check", "copy/web-new-2 c: warm",
	}, h.ran); diff != "" {
		t.Error(diff)
	}
	if got := ended.Status.HookStatus; got == nil || got.HooksAttempted != 5 || got.HooksFailed != 0 {
		t.Errorf("hooks %+v", got)
	}
	inits := s.get("pods", "copy", "db").Object["spec"].(map[string]any)["initContainers"]
	if diff := gocmp.Diff([]any{map[string]any{"name": "holdfast-restore-hook", "image": "mirror/prepare:1", "command": []any{"prepare"}}}, inits); diff != "" {
		t.Error(diff)
	}

	ran := len(h.ran)
	s.run(t.Context(), backup, request("r", spec), hookDependencies(h, true)) // gone on with
	s.writes = 0
	second := s.run(t.Context(), backup, request("r2", spec), hookDependencies(h, true))
	want(t, second, v1alpha1.RestorePhaseCompleted)
	if len(h.ran) != ran || second.Status.HookStatus != nil || s.writes > 0 {
		t.Errorf("ran %q, and wrote %d times", h.ran[ran:], s.writes)
	}
}

// TestHooksThatFail: what fails is an error, unless it may; what nobody knows of is one, and
// not run again.
func TestHooksThatFail(t *testing.T) {
	backup := backupOf(t, hookedObjects()...)
	spec := func(onError v1alpha1.HookErrorMode) v1alpha1.RestoreSpec {
		return v1alpha1.RestoreSpec{Hooks: webHooks(onError)}
	}
	record := func() *testHooks {
		return &testHooks{noted: map[types.UID]enginev1alpha1.HookedPod{}, failed: map[string]bool{"warm": true}}
	}
	t.Run("must not", func(t *testing.T) {
		s, h := hookedServer(t), record()
		ended := s.run(t.Context(), backup, request("r", spec(v1alpha1.HookErrorModeFail)), hookDependencies(h, true))
		want(t, ended, v1alpha1.RestorePhasePartiallyFailed, "its hook warm failed in pod web-new-1, container c: exit code 1; 1 further ones were not run")
		if got := ended.Status.HookStatus; got.HooksAttempted != 5 || got.HooksFailed != 4 || ended.Status.Errors != 2 {
			t.Errorf("%d errors, hooks %+v", ended.Status.Errors, got)
		}
		again := s.run(t.Context(), backup, request("r", spec(v1alpha1.HookErrorModeFail)), hookDependencies(h, true))
		want(t, again, v1alpha1.RestorePhasePartiallyFailed, "its hook warm failed in pod web-new-2")
		if *again.Status.HookStatus != *ended.Status.HookStatus || len(h.ran) != 3 {
			t.Errorf("gone on with: %+v, ran %q", again.Status.HookStatus, h.ran)
		}
	})
	t.Run("nothing is said", func(t *testing.T) {
		s, h := hookedServer(t), record()
		ended := s.run(t.Context(), backup, request("r", spec("")), hookDependencies(h, true))
		want(t, ended, v1alpha1.RestorePhasePartiallyFailed, "its hook warm failed in pod web-new-1, container c: exit code 1")
		if got := ended.Status.HookStatus; got.HooksFailed != 2 || ended.Status.Errors != 2 || len(h.ran) != 5 {
			t.Errorf("%d errors, hooks %+v, ran %q", ended.Status.Errors, got, h.ran)
		}
	})
	t.Run("the first of them may", func(t *testing.T) {
		s, h := hookedServer(t), record()
		h.failed["check"] = true
		hooks := spec(v1alpha1.HookErrorModeContinue)
		hooks.Hooks.Resources[0].PostHooks[1].Exec.OnError = ""
		ended := s.run(t.Context(), backup, request("r", hooks), hookDependencies(h, true))
		want(t, ended, v1alpha1.RestorePhasePartiallyFailed, "its hook warm failed in pod web-new-1, container c: exit code 1; and 1 more failed, see the log")
		if ended.Status.Errors != 2 || ended.Status.Warnings != 0 {
			t.Errorf("%d errors, %d warnings", ended.Status.Errors, ended.Status.Warnings)
		}
	})
	t.Run("may", func(t *testing.T) {
		s, h := hookedServer(t), record()
		ended := s.run(t.Context(), backup, request("r", spec(v1alpha1.HookErrorModeContinue)), hookDependencies(h, true))
		want(t, ended, v1alpha1.RestorePhaseCompleted, "its hook warm failed")
		if got := ended.Status.HookStatus; got.HooksFailed != 2 || ended.Status.Warnings != 2 {
			t.Errorf("%d warnings, hooks %+v", ended.Status.Warnings, got)
		}
	})
	t.Run("may, several", func(t *testing.T) {
		s, h := hookedServer(t), record()
		h.failed["check"] = true
		ended := s.run(t.Context(), backup, request("r", spec(v1alpha1.HookErrorModeContinue)), hookDependencies(h, true))
		want(t, ended, v1alpha1.RestorePhaseCompleted, "its hook warm failed in pod web-new-1, container c: exit code 1; and 1 more failed, see the log")
		if got := ended.Status.HookStatus; got.HooksFailed != 4 || ended.Status.Warnings != 2 {
			t.Errorf("%d warnings, hooks %+v", ended.Status.Warnings, got)
		}
		for uid, noted := range h.noted {
			if len(noted.Errors)+len(noted.Warnings) > 1 {
				t.Errorf("of pod %s is noted: %+v", uid, noted)
			}
		}
	})
	t.Run("not allowed", func(t *testing.T) {
		s, h := hookedServer(t), record()
		want(t, s.run(t.Context(), backup, request("r", spec("")), hookDependencies(h, false)), v1alpha1.RestorePhasePartiallyFailed,
			"its hooks were not run: the requester of the restore may not create pods/exec in the namespace shop")
		if len(h.ran) > 0 {
			t.Errorf("ran %q", h.ran)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		s, h := hookedServer(t), record()
		ctx, cancel := context.WithCancel(t.Context())
		h.during = cancel
		s.run(ctx, backup, request("r", spec("")), hookDependencies(h, true))
		h.during = nil
		ran := len(h.ran)
		ended := s.run(t.Context(), backup, request("r", spec("")), hookDependencies(h, true))
		want(t, ended, v1alpha1.RestorePhasePartiallyFailed, "and the controller stopped before they had ended: see what they have done")
		for _, once := range h.ran[ran:] {
			if slices.Contains(h.ran[:ran], once) {
				t.Errorf("%s ran twice", once)
			}
		}
	})
	t.Run("no place for init containers", func(t *testing.T) {
		s := hookedServer(t)
		hooks := webHooks("")
		hooks.Resources[0].PostHooks = []v1alpha1.RestoreResourceHook{{Init: &v1alpha1.InitRestoreHook{InitContainers: []runtime.RawExtension{{Raw: []byte(`{"name":"i","image":"i"}`)}}}}}
		want(t, s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{Hooks: hooks}), hookDependencies(record(), true)), v1alpha1.RestorePhasePartiallyFailed,
			"the init containers of its hooks are not in the pod that its ReplicaSet makes in its place")
	})
}

// TestAnnotatedHooks: the annotations of both domains mean the same as the fields.
func TestAnnotatedHooks(t *testing.T) {
	for name, test := range map[string]struct {
		annotations map[string]string // without the domain
		onError     v1alpha1.HookErrorMode
		ready       bool
		warnings    int32
	}{
		"nothing is said":    {},
		"all is said":        {annotations: map[string]string{"on-error": "Continue", "wait-for-ready": "true"}, onError: v1alpha1.HookErrorModeContinue, ready: true},
		"as Velero reads it": {annotations: map[string]string{"on-error": "Fail", "wait-for-ready": "True"}, onError: v1alpha1.HookErrorModeFail, ready: true},
		"a number":           {annotations: map[string]string{"wait-for-ready": "1"}, ready: true},
		"no":                 {annotations: map[string]string{"wait-for-ready": "F"}},
		"no truth value":     {annotations: map[string]string{"wait-for-ready": "yes"}, warnings: 1},
	} {
		for _, domain := range execHookDomains {
			t.Run(name+" "+domain, func(t *testing.T) {
				pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
				pod.Annotations = map[string]string{domain + "command": "load"}
				for annotation, value := range test.annotations {
					pod.Annotations[domain+annotation] = value
				}
				h := &podHooks{e: newExecution(t.Context(), request("r", v1alpha1.RestoreSpec{}), Dependencies{Clock: clocktesting.NewFakePassiveClock(time.Now())})}
				got := h.annotated(pod, subject{"pods", "shop", "db"})
				if _, warnings := h.e.report.counts(); got.onError != test.onError || got.ready != test.ready || warnings != test.warnings {
					t.Errorf("%d warnings, %+v", warnings, got)
				}
			})
		}
	}
}

// slowHooks run commands that never end.
type slowHooks struct{ ran int }

func (*slowHooks) Begin(context.Context, types.UID) (*enginev1alpha1.HookedPod, error) {
	return nil, nil
}
func (*slowHooks) End(context.Context, enginev1alpha1.HookedPod) error { return nil }
func (h *slowHooks) Exec(ctx context.Context, _ enginev1alpha1.PodReference, _ string, _ []string) (string, error) {
	h.ran++
	<-ctx.Done()
	return "", ctx.Err()
}

// TestHooksOfAPodAreBoundedTogether: many hooks that each keep to their time don't hold the
// restore for weeks, whatever may fail of them.
func TestHooksOfAPodAreBoundedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowHooks{}
		clock := clocktesting.NewFakePassiveClock(time.Now()) // so that pods are looked at once
		h := &podHooks{e: newExecution(t.Context(), request("r", v1alpha1.RestoreSpec{}), Dependencies{Clock: clock, Hooks: slow, HookTime: 24 * time.Hour}), began: clock.Now()}
		live := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", UID: "db"}}
		live.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		h.seen = map[string]seenPods{"shop": {at: clock.Now(), pods: []corev1.Pod{live}}}
		c := command{from: "x", container: "c", words: []string{"sleep"}, onError: v1alpha1.HookErrorModeContinue, timeout: 3 * time.Hour}
		begun, outcome := time.Now(), &enginev1alpha1.HookedPod{}
		h.commands(t.Context(), &hooked{about: subject{"pods", "shop", "db"}, commands: []command{c, c, c, c}}, &live, outcome)
		if took := time.Since(begun); took != validation.MaxHookTimeout || slow.ran != 2 {
			t.Errorf("%s for %d commands", took, slow.ran)
		}
		if outcome.Failed != 4 || len(outcome.Errors) != 1 || !strings.Contains(outcome.Errors[0], "have 4h0m0s together") || !strings.Contains(outcome.Errors[0], "2 further ones were not run") {
			t.Errorf("noted: %+v", outcome)
		}

		// All pods together have the time of a restore.
		h.e.HookTime = time.Hour
		clock.SetTime(h.began.Add(50 * time.Minute))
		h.seen["shop"] = seenPods{at: clock.Now(), pods: []corev1.Pod{live}}
		begun, outcome = time.Now(), &enginev1alpha1.HookedPod{}
		h.commands(t.Context(), &hooked{about: subject{"pods", "shop", "db"}, commands: []command{c, c}}, &live, outcome)
		if took := time.Since(begun); took != 10*time.Minute || outcome.Failed != 2 || !strings.Contains(outcome.Errors[0], "--hook-time-per-namespace") {
			t.Errorf("%s: %+v", took, outcome)
		}
	})
}
