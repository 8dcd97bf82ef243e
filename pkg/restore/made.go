// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/holdfast-io/holdfast/pkg/restore/object"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

const (
	// DefaultLook bounds the look at new objects, which ends at once when all is well. Schedulers
	// and provisioners report problems within a second or two.
	DefaultLook = 5 * time.Second
	// silence is the time without an event about a pod or its controller: without a scheduler there
	// is none.
	silence = time.Second
	// looksToBind multiplies Look for a claim that keeps its volume: if Kubernetes has seen the
	// claim first, it looks at both again within 15 s.
	looksToBind = 4
	// firstGlance is the first interval of looks, doubled up to pollInterval.
	firstGlance = 50 * time.Millisecond
)

var (
	eventKind = &kind{version: "v1", resource: "events", kind: "Event", namespaced: true}
	classKind = &kind{group: "storage.k8s.io", version: "v1", resource: "storageclasses", kind: "StorageClass"}

	scaledKinds = []*kind{
		{group: "apps", version: "v1", resource: "deployments", kind: "Deployment", namespaced: true}, replicaSetKind,
		{group: "apps", version: "v1", resource: "statefulsets", kind: "StatefulSet", namespaced: true},
	}
)

type madeIn struct {
	claims bool
	// workloads are pods and their makers.
	workloads map[types.UID]subject
	kinds     map[string]bool
}

// verdict has no reason without an event.
type verdict struct {
	about  subject
	text   string
	reason string
	// silent verdicts are reported only with a reason.
	silent bool
	// patient verdicts without a reason are given more time.
	patient bool
}

// lookAtMade warns of unbound claims and of pods without a node, with Kubernetes' reasons.
func (e *execution) lookAtMade(ctx context.Context) error {
	left := e.whatWasMade()
	if e.Look <= 0 || e.spec.PlanOnly || len(left) == 0 {
		return nil
	}
	waiting := waits.ForAnyone(ctx, "the claims and pods that it has made, which are to be bound and to get a node")
	defer waiting.End()
	begin, longest := time.Now(), e.Look
	for pause := firstGlance; ; pause = min(2*pause, pollInterval) {
		wrong := map[string][]verdict{}
		for _, namespace := range slices.Sorted(maps.Keys(left)) {
			found, err := e.lookInto(ctx, namespace, left[namespace])
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				e.report.warn(subject{resource: "namespaces", name: namespace}, fmt.Sprintf("whether its claims are bound and its pods have nodes is not known: %v", err))
			}
			elapsed := time.Since(begin)
			if elapsed >= min(silence, e.Look) {
				found = slices.DeleteFunc(found, func(v verdict) bool { return v.silent && v.reason == "" })
			}
			limit := e.Look
			if slices.ContainsFunc(found, func(v verdict) bool { return v.patient && v.reason == "" }) {
				limit *= looksToBind
			}
			longest = max(longest, limit)
			switch {
			case err != nil || len(found) == 0:
				delete(left, namespace)
			case elapsed >= limit:
				wrong[namespace] = found
			}
			if elapsed >= longest+e.Look { // the API server is slow
				return e.tellOf(wrong)
			}
		}
		if len(left) == 0 || time.Since(begin) >= e.Look && len(wrong) == len(left) {
			return e.tellOf(wrong)
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

func (e *execution) tellOf(wrong map[string][]verdict) error {
	for _, namespace := range slices.Sorted(maps.Keys(wrong)) {
		for _, v := range wrong[namespace] {
			e.report.warn(v.about, v.text+cmp.Or(v.reason, "no event says why"))
		}
	}
	return nil
}

func (e *execution) whatWasMade() map[string]*madeIn {
	e.mu.Lock()
	defer e.mu.Unlock()
	made := map[string]*madeIn{}
	for i := range e.graph.Nodes {
		node := &e.graph.Nodes[i]
		if a := e.outcomes[i]; node.Wait != "" || node.Item == nil || a != actionCreate && a != actionRecreate {
			continue
		}
		item := node.Item
		workload := item.APIGroup == "" && item.KindName == "Pod" || (item.APIGroup == "apps" || item.APIGroup == "batch") && item.Namespace != ""
		if !workload && !isClaim(item) {
			continue
		}
		about := e.subject(item)
		in := made[about.namespace]
		if in == nil {
			in = &madeIn{workloads: map[types.UID]subject{}, kinds: map[string]bool{}}
			made[about.namespace] = in
		}
		if uid := e.uids[types.UID(item.UID)]; uid != "" && workload {
			in.workloads[uid] = about
			in.kinds[item.KindName] = true
		}
		in.claims = in.claims || isClaim(item)
	}
	return made
}

func (e *execution) lookInto(ctx context.Context, namespace string, in *madeIn) ([]verdict, error) {
	var found []verdict
	if in.claims {
		claims, err := e.unbound(ctx, namespace)
		if err != nil {
			return nil, err
		}
		found = claims
	}
	if len(in.workloads) == 0 {
		return found, nil
	}
	// From the top: a Deployment without pods before may have unscheduled ones now.
	owners := maps.Clone(in.workloads)
	for _, k := range scaledKinds {
		if !in.kinds[k.kind] && (k != replicaSetKind || !in.kinds["Deployment"]) {
			continue
		}
		without, err := e.withoutPods(ctx, k, namespace, owners)
		if err != nil {
			return nil, err
		}
		found = append(found, without...)
	}
	pods, err := e.unscheduled(ctx, namespace, owners)
	return append(found, pods...), err
}

// unbound returns this restore's unbound claims that wait for no consumer.
func (e *execution) unbound(ctx context.Context, namespace string) (found []verdict, err error) {
	err = e.pages(ctx, claimKind, namespace, "", func(raw json.RawMessage) error {
		var claim corev1.PersistentVolumeClaim
		if err := json.Unmarshal(raw, &claim); err != nil {
			return err
		}
		if !e.madeHere(&claim) || claim.Status.Phase == corev1.ClaimBound || claim.DeletionTimestamp != nil {
			return nil
		}
		waits, err := e.awaitsConsumer(ctx, &claim)
		if err != nil || waits {
			return err
		}
		v := verdict{about: subject{claimKind.resource, namespace, claim.Name}, text: "it is not bound: ", patient: claim.Spec.VolumeName != "" && e.keeps(namespace, claim.Name)}
		v.reason, err = e.eventOf(ctx, namespace, claim.UID, false)
		found = append(found, v)
		return err
	})
	return found, err
}

func (e *execution) awaitsConsumer(ctx context.Context, claim *corev1.PersistentVolumeClaim) (waits bool, err error) {
	name := ptr.Deref(claim.Spec.StorageClassName, "")
	if name == "" || claim.Spec.VolumeName != "" || claim.Annotations["volume.kubernetes.io/selected-node"] != "" {
		return false, nil
	}
	err = e.pages(ctx, classKind, "", "metadata.name="+name, func(raw json.RawMessage) error {
		var class storagev1.StorageClass
		err := json.Unmarshal(raw, &class)
		waits = waits || class.Name == name && ptr.Deref(class.VolumeBindingMode, "") == storagev1.VolumeBindingWaitForFirstConsumer
		return err
	})
	return waits, err
}

// withoutPods returns this restore's workloads of a kind without any pod. It adds ReplicaSets of
// Deployments to owners.
func (e *execution) withoutPods(ctx context.Context, k *kind, namespace string, owners map[types.UID]subject) (found []verdict, err error) {
	err = e.pages(ctx, k, namespace, "", func(raw json.RawMessage) error {
		var workload struct {
			metav1.ObjectMeta `json:"metadata"`
			Spec              struct {
				Replicas *int32 `json:"replicas"`
			} `json:"spec"`
			Status struct {
				Replicas   int32                        `json:"replicas"`
				Conditions []appsv1.DeploymentCondition `json:"conditions"`
			} `json:"status"`
		}
		if err := json.Unmarshal(raw, &workload); err != nil {
			return err
		}
		about, made := owners[workload.UID]
		if owner := metav1.GetControllerOf(&workload); k == replicaSetKind && owner != nil && !made {
			if about, made := owners[owner.UID]; made {
				owners[workload.UID] = about
			}
			return nil
		}
		if !made || ptr.Deref(workload.Spec.Replicas, 1) == 0 || workload.Status.Replicas > 0 {
			return nil
		}
		v := verdict{about: about, text: "it has no pods: ", silent: true}
		for _, c := range workload.Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
				v.reason = c.Reason + ": " + c.Message
			}
		}
		if v.reason == "" {
			var err error
			if v.reason, err = e.eventOf(ctx, namespace, workload.UID, true); err != nil {
				return err
			}
		}
		found = append(found, v)
		return nil
	})
	return found, err
}

// unscheduled returns the workloads with pods without a node, each with its first such pod.
func (e *execution) unscheduled(ctx context.Context, namespace string, owners map[types.UID]subject) ([]verdict, error) {
	first, count := map[subject]verdict{}, map[subject]int{}
	err := e.pages(ctx, podKind, namespace, "status.phase=Pending", func(raw json.RawMessage) error {
		var pod corev1.Pod
		if err := json.Unmarshal(raw, &pod); err != nil {
			return err
		}
		about, ours := owners[pod.UID]
		if owner := metav1.GetControllerOf(&pod); !ours && owner != nil {
			about, ours = owners[owner.UID]
		}
		if !ours || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
			return nil
		}
		v := verdict{about: about, silent: true}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				v.reason = fmt.Sprintf("pod %s: %s: %s", pod.Name, c.Reason, c.Message)
			}
		}
		if count[about]++; first[about].reason == "" {
			first[about] = v
		}
		return nil
	})
	var found []verdict
	for about, v := range first {
		v.text = fmt.Sprintf("%d of its pods are on no node: ", count[about])
		if about.resource == podKind.resource {
			v.text = "it is on no node: "
		}
		found = append(found, v)
	}
	slices.SortFunc(found, func(a, b verdict) int { return cmp.Compare(a.about.String(), b.about.String()) })
	return found, err
}

func (e *execution) madeHere(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Annotations[object.AnnotationRestoreUID] == string(e.request.Run.UID)
}

// eventOf returns an object's last warning, or else its last event.
func (e *execution) eventOf(ctx context.Context, namespace string, uid types.UID, warningsOnly bool) (string, error) {
	var last *corev1.Event
	err := e.pages(ctx, eventKind, namespace, "involvedObject.uid="+string(uid), func(raw json.RawMessage) error {
		event := &corev1.Event{}
		if err := json.Unmarshal(raw, event); err != nil {
			return err
		}
		warns, warned := event.Type == corev1.EventTypeWarning, last != nil && last.Type == corev1.EventTypeWarning
		switch {
		case event.InvolvedObject.UID != uid || warningsOnly && !warns || warned && !warns:
		case last == nil || warns && !warned || !seenAt(event).Before(seenAt(last)):
			last = event
		}
		return nil
	})
	if err != nil || last == nil {
		return "", err
	}
	return last.Reason + ": " + last.Message, nil
}

func seenAt(event *corev1.Event) time.Time {
	if event.LastTimestamp.IsZero() {
		return event.EventTime.Time
	}
	return event.LastTimestamp.Time
}

func (e *execution) pages(ctx context.Context, k *kind, namespace, fields string, pass func(json.RawMessage) error) error {
	for next := ""; ; {
		page, more, err := e.reader.list(ctx, k, namespace, fields, next)
		if err != nil {
			return fmt.Errorf("list %s: %w", k.name(), err)
		}
		for _, raw := range page {
			if err := pass(raw); err != nil {
				return err
			}
		}
		if next = more; next == "" {
			return nil
		}
	}
}
