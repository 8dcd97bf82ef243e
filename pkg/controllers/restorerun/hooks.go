// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorerun

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	runs "github.com/holdfast-io/holdfast/pkg/controllers/run"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/hooks"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/restore"
)

// maxHooked bounds the pods in which a restore runs commands: each is in its record.
const maxHooked = 1000

// runHooks runs a run's commands in pods, and notes in its record where they began. Only the process
// that the record names may note, so only one of two begins them.
type runHooks struct {
	hooks.Client
	runs engineclient.RestoreRunInterface
	run  *enginev1alpha1.RestoreRun

	mu sync.Mutex
}

var _ restore.Hooks = &runHooks{}

var errOthers = errors.New("another process has taken the restore over")

// Begin implements restore.Hooks.
func (h *runHooks) Begin(ctx context.Context, pod types.UID) (earlier *enginev1alpha1.HookedPod, err error) {
	mine := false // a lost answer is this process's own
	err = h.note(ctx, func(status *enginev1alpha1.RestoreRunStatus) error {
		i := slices.IndexFunc(status.Hooked, func(h enginev1alpha1.HookedPod) bool { return h.UID == pod })
		if i >= 0 {
			if !mine {
				earlier = status.Hooked[i].DeepCopy()
			}
			return errNothing
		}
		if len(status.Hooked) >= maxHooked {
			return fmt.Errorf("a restore runs commands in at most %d pods", maxHooked)
		}
		mine = true
		status.Hooked = append(status.Hooked, enginev1alpha1.HookedPod{UID: pod})
		return nil
	})
	return earlier, err
}

// Exec implements restore.Hooks. A process paused since Begin must not repeat a command that another
// process, or a user, has handled since.
func (h *runHooks) Exec(ctx context.Context, pod enginev1alpha1.PodReference, container string, command []string) (output string, err error) {
	if !lease.Holds(ctx) {
		return "", lease.ErrLost
	}
	return h.Client.Exec(ctx, pod, container, command)
}

// End implements restore.Hooks. If the record has no room for the texts, it notes only the end.
func (h *runHooks) End(ctx context.Context, pod enginev1alpha1.HookedPod) error {
	err := h.end(ctx, pod)
	if isTooMuch(err) {
		err = h.end(ctx, enginev1alpha1.HookedPod{UID: pod.UID, Ended: pod.Ended, Failed: pod.Failed})
	}
	return err
}

func (h *runHooks) end(ctx context.Context, pod enginev1alpha1.HookedPod) error {
	return h.note(ctx, func(status *enginev1alpha1.RestoreRunStatus) error {
		i := slices.IndexFunc(status.Hooked, func(h enginev1alpha1.HookedPod) bool { return h.UID == pod.UID })
		if i < 0 {
			return errNothing
		}
		status.Hooked[i] = pod
		return nil
	})
}

var errNothing = errors.New("nothing")

// isTooMuch reports an invalid record, or one too large for the API server or etcd. A retry does not
// help.
func isTooMuch(err error) bool {
	return apierrors.IsRequestEntityTooLargeError(err) || apierrors.IsInvalid(err) ||
		err != nil && (strings.Contains(err.Error(), "too large") || strings.Contains(err.Error(), "larger than max"))
}

// note changes the record, with retries until ctx ends, unless isTooMuch.
func (h *runHooks) note(ctx context.Context, change func(*enginev1alpha1.RestoreRunStatus) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var final error
	err := runs.RetryUntilDone(ctx, func(ctx context.Context) (bool, error) {
		live, err := h.runs.Get(ctx, h.run.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && (live.UID != h.run.UID || live.Status.Executor != h.run.Status.Executor || live.Status.Attempts != h.run.Status.Attempts):
			final = errOthers
			return true, nil
		case err == nil:
			if final = change(&live.Status); final != nil {
				return true, nil
			}
			if _, err = h.runs.UpdateStatus(ctx, live, metav1.UpdateOptions{}); isTooMuch(err) {
				final = err
				return true, nil
			}
		}
		if err != nil && !apierrors.IsConflict(err) {
			klog.FromContext(ctx).Info("Noting the hooks of a restore failed; it will be tried again", "restoreRun", klog.KObj(h.run), "err", err)
		}
		return err == nil, nil
	})
	if final != nil && !errors.Is(final, errNothing) {
		return final
	}
	return err
}
