// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/store"
)

var frozen = []enginev1alpha1.PodReference{{Namespace: "shop", Name: "db", UID: "uid-db"}}

// TestPendingHooksAreOnTheRecord: before a hook runs, its record says whose post hooks are
// to be run, and at the end that there are none. That is one write more than without hooks.
func TestPendingHooksAreOnTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var during []enginev1alpha1.PodReference
		var h *harness
		h = newHarness(t, &work{hooks: func(ctx context.Context, hooks PendingHooks) (backup.Outcome, error) {
			if err := hooks.Pending(ctx, frozen); err != nil {
				return backup.Outcome{}, err
			}
			during = h.Run("b").Status.PendingHooks
			outcome := stored(v1alpha1.BackupPhaseCompleted)
			outcome.Status.HookStatus = &v1alpha1.HookStatus{HooksAttempted: 2, HooksFailed: 1}
			return outcome, nil
		}}, newRun("b", ready))
		h.start(1)
		h.expect("b", v1alpha1.BackupPhaseCompleted, true)
		status := h.Run("b").Status
		if !slices.Equal(during, frozen) || len(status.PendingHooks) > 0 || status.HookStatus == nil || status.HookStatus.HooksFailed != 1 {
			t.Errorf("pending were %v, and are %v; %+v", during, status.PendingHooks, status.HookStatus)
		}
		if n := h.writes("b"); n != 3 {
			t.Errorf("%d writes of the record, want 3: the claim, the note, the end", n)
		}
	})
}

// TestNoHooksForTheOutvoted: a run that others have ended gets no new hooks.
func TestNoHooksForTheOutvoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h *harness
		var noted error
		h = newHarness(t, &work{hooks: func(ctx context.Context, hooks PendingHooks) (backup.Outcome, error) {
			run := h.Run("b")
			run.Status.Phase = v1alpha1.BackupPhaseFailed
			if _, err := h.EngineV1alpha1().BackupRuns(system).UpdateStatus(ctx, run, metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
			noted = hooks.Pending(ctx, frozen)
			return stored(v1alpha1.BackupPhaseFailed), nil
		}}, newRun("b", ready))
		h.start(1)
		time.Sleep(time.Minute)
		h.expect("b", v1alpha1.BackupPhaseFailed, true)
		if noted == nil || len(h.Run("b").Status.PendingHooks) > 0 {
			t.Errorf("noted: %v", noted)
		}
	})
}

// TestPendingHooksOfADeadProcess: they are run before anything else is done, once, unless it
// can't be written that they were. What came of them is told whoever ends the backup, and is
// counted; a failure of theirs is told to people.
func TestPendingHooksOfADeadProcess(t *testing.T) {
	enginetest.Each(t, map[string]struct {
		failed           string
		fails, cancelled bool
		written          enginetest.Fault
		phase            v1alpha1.BackupPhase
		ran              int32
	}{
		"well":                          {phase: done, ran: 1},
		"not well":                      {failed: "exit code 1", phase: done, ran: 1},
		"the backup fails":              {fails: true, phase: broken, ran: 1},
		"it is cancelled":               {cancelled: true, phase: cancelled, ran: 1},
		"that they were is not written": {written: enginetest.Fault{Err: errors.New("no")}, phase: done, ran: 2},
		"that they were is not written, and the backup fails": {written: enginetest.Fault{Err: errors.New("no")}, fails: true, phase: broken, ran: 2},
		"that they were is written, and the answer is lost":   {written: enginetest.Fault{Err: errors.New("no"), Lost: true}, phase: done, ran: 1},
	}, func(t *testing.T, c struct {
		failed           string
		fails, cancelled bool
		written          enginetest.Fault
		phase            v1alpha1.BackupPhase
		ran              int32
	}) {
		run := newRun("b", v1alpha1.BackupPhaseInProgress)
		run.Status.PendingHooks, run.Status.HookStatus = frozen, &v1alpha1.HookStatus{HooksAttempted: 4}
		if c.cancelled {
			run.Spec.Cancellation = &enginev1alpha1.Ask{}
		}
		h := newHarness(t, &work{failedPostHooks: c.failed}, run, newUpload("b-1", run, "shop"))
		h.failing = c.fails
		if c.written.Err != nil {
			h.faultFirst(1, c.written, v1alpha1.BackupPhaseInProgress)
		}
		controller := h.start(1)
		time.Sleep(time.Minute)
		h.expect("b", c.phase, true)
		if want := slices.Repeat([]string{"b 1"}, int(c.ran)); !slices.Equal(h.work.thawed, want) {
			t.Errorf("the post hooks that were run: %q", h.work.thawed)
		}
		status := h.Run("b").Status
		if len(status.PendingHooks) > 0 || status.HookStatus == nil || status.HookStatus.HooksAttempted != 4+c.ran {
			t.Errorf("still pending: %v, counted %+v", status.PendingHooks, status.HookStatus)
		}
		if told := h.work.told; len(told.Log) != int(c.ran) || told.Failed != c.failed || told.Status.HooksAttempted != 4+c.ran {
			t.Errorf("the backup was told %+v", told)
		}
		told := slices.ContainsFunc(h.Told(), func(event string) bool { return strings.Contains(event, "PostHookFailed") })
		if told != (c.failed != "") {
			t.Errorf("told: %t", told)
		}
		if kept := controller.postHooksOf(run); kept.Status != nil {
			t.Errorf("kept: %+v", kept)
		}
	})
}

// TestPendingHooksAreForgotten: what came of them is kept while the store is away, and not longer
// than the record.
func TestPendingHooksAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := newRun("b", v1alpha1.BackupPhaseInProgress)
		run.Status.PendingHooks = frozen
		h := newHarness(t, &work{unreachable: store.ErrUnavailable}, run)
		controller := h.start(1)
		time.Sleep(time.Hour)
		synctest.Wait()
		if kept := controller.postHooksOf(run); len(h.work.thawed) != 1 || kept.Status == nil {
			t.Errorf("ran %q, kept %+v", h.work.thawed, kept)
		}
		h.Remove("b")
		time.Sleep(time.Minute)
		if kept := controller.postHooksOf(run); kept.Status != nil {
			t.Errorf("kept: %+v", kept)
		}
	})
}

// TestPendingHooksOfARemovedRecord: whoever ends the backup in the store has what came of them, and
// then, or if nobody does, it is kept no longer.
func TestPendingHooksOfARemovedRecord(t *testing.T) {
	enginetest.Each(t, map[string]struct{ executed bool }{
		"while it is executed again": {executed: true},
		"while they run":             {},
	}, func(t *testing.T, c struct{ executed bool }) {
		run := newRun("b", running)
		run.Status.PendingHooks = frozen
		var h *harness
		w := &work{execute: untilStopped}
		if !c.executed {
			w.thawing = func() {
				h.Remove("b")
				time.Sleep(time.Second) // until the informer has seen that
			}
		}
		h = newHarness(t, w, run)
		controller := h.start(1)
		time.Sleep(time.Minute)
		if c.executed {
			if executed, _ := h.work.done(); len(executed) != 1 {
				t.Fatalf("executed: %q", executed)
			}
			h.work.told = backup.PostHooks{}
			h.Remove("b")
			time.Sleep(time.Minute)
			if _, settled := h.work.done(); len(settled) != 1 || string(h.work.told.Log) != "+" {
				t.Errorf("ended in the store: %q, told %+v", settled, h.work.told)
			}
		}
		if kept := controller.postHooksOf(run); len(h.work.thawed) != 1 || kept.Status != nil {
			t.Errorf("ran %q, kept %+v", h.work.thawed, kept)
		}
	})
}

// TestPendingHooksOfATakenName: nobody stores what came of them.
func TestPendingHooksOfATakenName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := newRun("b", running)
		run.Status.PendingHooks = frozen
		h := newHarness(t, &work{execute: func(context.Context, *enginev1alpha1.BackupRun, backup.Volumes) (backup.Outcome, error) {
			return failed(backup.ErrNameTaken), backup.ErrNameTaken
		}}, run)
		controller := h.start(1)
		time.Sleep(time.Minute)
		h.expect("b", v1alpha1.BackupPhaseFailedValidation, false)
		if kept := controller.postHooksOf(run); len(h.work.thawed) != 1 || kept.Status != nil {
			t.Errorf("ran %q, kept %+v", h.work.thawed, kept)
		}
	})
}

func TestMayExec(t *testing.T) {
	kube := kubefake.NewClientset()
	var asked authorizationv1.SubjectAccessReviewSpec
	kube.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		asked = review.Spec
		review.Status.Allowed = review.Spec.ResourceAttributes.Namespace == "shop"
		return true, review, nil
	})
	pods := &PodsClient{Kube: kube}
	ada := enginev1alpha1.Requester{Username: "ada", UID: "1", Groups: []string{"devs"}}
	if err := pods.MayExec(t.Context(), ada, "shop"); err != nil {
		t.Error(err)
	}
	if a := asked.ResourceAttributes; asked.User != "ada" || asked.UID != "1" || !slices.Equal(asked.Groups, ada.Groups) || a.Verb != "create" || a.Resource != "pods" || a.Subresource != "exec" {
		t.Errorf("asked %+v", asked)
	}
	if err := pods.MayExec(t.Context(), ada, "bank"); err == nil || err.Error() != "ada, who asked for the backup, may not create pods/exec in the namespace bank" {
		t.Errorf("another namespace: %v", err)
	}
	if err := pods.MayExec(t.Context(), enginev1alpha1.Requester{}, "shop"); err == nil {
		t.Error("nobody may")
	}
}

// TestPolicy: the ConfigMap is read if whoever asked for the backup may read that one.
func TestPolicy(t *testing.T) {
	kube := kubefake.NewClientset(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "mine"}, Data: map[string]string{"a": "b"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "other"}})
	var asked authorizationv1.SubjectAccessReviewSpec
	kube.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		asked = review.Spec
		review.Status.Allowed = review.Spec.ResourceAttributes.Name != "other"
		return true, review, nil
	})
	ada := reviewed{kube, enginev1alpha1.Requester{Username: "ada", Groups: []string{"devs"}}}
	if data, err := ada.Policy(t.Context(), "shop", "mine"); err != nil || data["a"] != "b" {
		t.Errorf("read %v, %v", data, err)
	}
	if a := asked.ResourceAttributes; asked.User != "ada" || !slices.Equal(asked.Groups, []string{"devs"}) || a.Verb != "get" || a.Resource != "configmaps" || a.Group != "" || a.Namespace != "shop" || a.Name != "mine" {
		t.Errorf("asked %+v", asked)
	}
	if _, err := ada.Policy(t.Context(), "shop", "none"); !apierrors.IsNotFound(err) {
		t.Errorf("one that is not there: %v", err)
	}
	if data, err := ada.Policy(t.Context(), "shop", "other"); err == nil || err.Error() != "ada, who asked for the backup, may not get configmaps in the namespace shop" {
		t.Errorf("another's: %v, %v", data, err)
	}
	if data, err := (reviewed{kube: kube}).Policy(t.Context(), "shop", "mine"); err == nil {
		t.Errorf("nobody reads %v", data)
	}
}

// TestMayChooseClass: a requester that may create VolumeSnapshots may choose their class.
func TestMayChooseClass(t *testing.T) {
	kube := kubefake.NewClientset()
	var asked *authorizationv1.ResourceAttributes
	kube.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		asked = review.Spec.ResourceAttributes
		review.Status.Allowed = asked.Namespace == "shop"
		return true, review, nil
	})
	ada := reviewed{kube, enginev1alpha1.Requester{Username: "ada"}}
	if err := ada.MayChooseClass(t.Context(), "shop"); err != nil {
		t.Errorf("not allowed: %v", err)
	}
	if want := (authorizationv1.ResourceAttributes{Namespace: "shop", Verb: "create", Group: "snapshot.storage.k8s.io", Resource: "volumesnapshots"}); *asked != want {
		t.Errorf("asked %+v, want %+v", *asked, want)
	}
	err := ada.MayChooseClass(t.Context(), "bank")
	if want := backup.NotAllowedError("ada, who asked for the backup, may not create volumesnapshots in the namespace bank"); !errors.Is(err, want) {
		t.Errorf("another namespace: %v", err)
	}
}

// TestExecAsksForOnePod: a name that looks like a path reaches no other one, and a server
// that speaks neither protocol is an error.
func TestExecAsksForOnePod(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.Path+"?"+r.URL.RawQuery)
		http.Error(w, "not today", http.StatusBadRequest)
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	pods := &PodsClient{Kube: kubernetes.NewForConfigOrDie(config), Config: config}
	for _, name := range []string{"..", "a/b", "a%2fb"} {
		if _, err := pods.Exec(t.Context(), enginev1alpha1.PodReference{Namespace: "shop", Name: name}, "c", []string{"x"}); err == nil || len(asked) > 0 {
			t.Errorf("%s: %v, asked %q", name, err, asked)
		}
	}
	_, err := pods.Exec(t.Context(), frozen[0], "c", []string{"echo", "a b"})
	const query = "/api/v1/namespaces/shop/pods/db/exec?command=echo&command=a+b&container=c&stderr=true&stdout=true"
	if want := []string{"GET " + query, "POST " + query}; err == nil || !slices.Equal(asked, want) {
		t.Errorf("%v, asked %q", err, asked)
	}
}
