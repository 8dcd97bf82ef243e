// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/hooks"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// PendingHooks notes the pods with pending post hooks. It is a record, except in tests.
type PendingHooks interface {
	Pending(ctx context.Context, pods []enginev1alpha1.PodReference) error
}

// Notes are for a later process. It is a record, except in tests.
type Notes interface {
	PendingHooks
	// Moving is as in backup.Dependencies.
	Moving(ctx context.Context) error
}

// Pods runs commands in pods, and reviews access to them.
type Pods interface {
	MayExec(ctx context.Context, who enginev1alpha1.Requester, namespace string) error
	// Exec is as in backup.Hooks.
	Exec(ctx context.Context, pod enginev1alpha1.PodReference, container string, command []string) (output string, err error)
}

// runHooks are a run's hooks, with its requester's rights.
type runHooks struct {
	Pods
	run *enginev1alpha1.BackupRun
	PendingHooks
	leads func(context.Context) error
}

var _ backup.Hooks = runHooks{}

// Allowed implements backup.Hooks.
func (h runHooks) Allowed(ctx context.Context, namespace string) error {
	return h.MayExec(ctx, h.run.Spec.Requester, namespace)
}

// Exec implements backup.Hooks. It refuses if this process no longer leads: the leader runs pending
// hooks before it begins anew, and a late thaw could corrupt its data.
func (h runHooks) Exec(ctx context.Context, pod enginev1alpha1.PodReference, container string, command []string) (string, error) {
	if err := h.leads(ctx); errors.Is(err, lease.ErrLost) {
		return "", fmt.Errorf("another controller has taken over, and runs the hooks: %w", err)
	}
	return h.Pods.Exec(ctx, pod, container, command)
}

// PodsClient implements Pods by the API server.
type PodsClient struct {
	Kube   kubernetes.Interface
	Config *rest.Config
}

var _ Pods = &PodsClient{}

// MayExec implements Pods.
func (p *PodsClient) MayExec(ctx context.Context, who enginev1alpha1.Requester, namespace string) error {
	return reviewed{p.Kube, who}.may(ctx, &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Resource: "pods", Subresource: "exec"})
}

// Exec implements Pods.
func (p *PodsClient) Exec(ctx context.Context, pod enginev1alpha1.PodReference, container string, command []string) (string, error) {
	return (&hooks.Client{Kube: p.Kube, Config: p.Config}).Exec(ctx, pod, container, command)
}

// runPendingHooks runs post hooks that another process left pending, and records that, with their
// counts. Messages are kept for the backup's log.
func (c *Controller) runPendingHooks(ctx context.Context, run *enginev1alpha1.BackupRun) (*enginev1alpha1.BackupRun, error) {
	if len(run.Status.PendingHooks) == 0 {
		return run, nil
	}
	klog.FromContext(ctx).Info("Running the post hooks that another process has left", "backupRun", klog.KObj(run), "pods", len(run.Status.PendingHooks))
	changed, before := run.DeepCopy(), c.postHooksOf(run)
	if before.Status != nil { // they ran before, and that could not be written
		changed.Status.HookStatus = before.Status
	}
	postHooks := c.Executor.RunPostHooks(ctx, changed, before)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if postHooks.Failed != "" {
		klog.FromContext(ctx).Info("A post hook that another process has left failed", "backupRun", klog.KObj(run), "failed", postHooks.Failed)
		c.tellPostHooks(run, "The controller stopped while the backup was in progress, and of the post hooks that were run then, these failed: "+postHooks.Failed)
	}
	c.mu.Lock()
	c.postHooks[run.UID] = postHooks
	c.mu.Unlock()
	if known, err := c.runLister.Get(run.Name); err != nil || known.UID != run.UID {
		c.forgetPostHooks(run) // runChanged may have handled the deletion before
	}
	changed.Status.PendingHooks, changed.Status.HookStatus = nil, postHooks.Status.DeepCopy()
	changed, err := c.runs.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("writing that the post hooks of BackupRun %s were run: %w", run.Name, err)
	}
	return changed, nil
}

func (c *Controller) postHooksOf(run *enginev1alpha1.BackupRun) backup.PostHooks {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.postHooks[run.UID]
}

// forgetPostHooks is called once the results are stored or never will be, or the record is deleted.
func (c *Controller) forgetPostHooks(run *enginev1alpha1.BackupRun) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.postHooks, run.UID)
}

// tellPostHooks emits an event that pods may still be frozen, if no backup's results will say so.
func (c *Controller) tellPostHooks(run *enginev1alpha1.BackupRun, note string) {
	c.Events.Eventf(records.Reference(run), nil, corev1.EventTypeWarning, "PostHookFailed", "Backup", "%s", note)
}
