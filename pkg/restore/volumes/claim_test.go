// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
)

// TestClaim: a pod holds the claim, the agent of its node is asked, and when it has
// written the data nothing is left but the record.
func TestClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		var holder *corev1.Pod
		h.kubelet = func(pod *corev1.Pod) bool { holder = pod.DeepCopy(); return true }
		const warning = "2 warnings: a: its owner could not be set"
		h.agent = func(*enginev1alpha1.VolumeRestore) enginev1alpha1.VolumeRestoreStatus {
			return enginev1alpha1.VolumeRestoreStatus{Phase: enginev1alpha1.VolumePhaseCompleted, Message: warning}
		}
		r := h.restorer()
		claim := h.claim("data")
		if err := r.Claim(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		records := h.records()
		if len(records) != 1 || len(h.livePods()) != 0 {
			t.Fatalf("there are %d records and %d pods", len(records), len(h.livePods()))
		}
		record := records[0]
		want := enginev1alpha1.VolumeRestoreSpec{
			Node: "node-1", Pod: enginev1alpha1.PodReference{Namespace: "shop", Name: holder.Name, UID: holder.UID},
			Volume: "data", PersistentVolume: "pv-of-data", BackupStorageLocation: "default", Repository: "origin.default",
			SnapshotID: "k-data", WaitVolume: "holdfast-restore",
		}
		if diff := gocmp.Diff(want, record.Spec); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if record.Labels[enginev1alpha1.LabelRestore] != "uid-of-run" || record.Labels[enginev1alpha1.LabelNode] != "node-1" {
			t.Errorf("labels: %v", record.Labels)
		}
		if owner := metav1.GetControllerOf(&record); owner == nil || owner.UID != "uid-of-run" || owner.Kind != "RestoreRun" {
			t.Errorf("owner: %v", owner)
		}
		if counts := r.Counts(); counts.Total != 1 || counts.Completed != 1 {
			t.Errorf("counts: %+v", counts)
		}

		// Again, also by another process: nothing is written.
		for _, again := range []*Restorer{r, h.restorer()} {
			h.ClearActions()
			h.Kube.ClearActions()
			if err := again.Claim(t.Context(), claim); err != nil {
				t.Error(err)
			}
			if writes := len(h.Writes("volumerestores")) + len(h.Writes("pods")); writes > 0 {
				t.Errorf("the second time there are %d writes", writes)
			}
			if got, want := again.Warnings(), []string{"the data of claim data in shop: " + warning}; !slices.Equal(got, want) {
				t.Errorf("the warnings are %q, want %q", got, want)
			}
		}
		// Also after the end: it may not have been recorded.
		if err := r.End(t.Context()); err != nil {
			t.Error(err)
		}
		h.ClearActions()
		h.Kube.ClearActions()
		if err := h.restorer().Claim(t.Context(), claim); err != nil {
			t.Error(err)
		}
		if writes := len(h.Writes("volumerestores")) + len(h.Writes("pods")); writes > 0 {
			t.Errorf("after the end there are %d writes", writes)
		}
		if err := r.Forget(t.Context(), r.run); err != nil || len(h.records()) != 0 {
			t.Errorf("%v, %d records are left", err, len(h.records()))
		}
	})
}

// TestHostPath: of a persistent volume of type hostPath the agent is told the path, which only
// an administrator can have written.
func TestHostPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		for name, source := range map[string]corev1.PersistentVolumeSource{
			"pv-of-data":  {HostPath: &corev1.HostPathVolumeSource{Path: "/opt/data"}},
			"pv-of-other": {Local: &corev1.LocalVolumeSource{Path: "/opt/other"}},
		} {
			_, err := h.Kube.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
					PersistentVolumeSource: source, ClaimRef: &corev1.ObjectReference{Namespace: "shop", Name: "data", UID: "uid-of-data"},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}
		r := h.restorer()
		for _, name := range []string{"data", "other"} {
			if err := r.Claim(t.Context(), h.claim(name)); err != nil {
				t.Fatal(err)
			}
		}
		got := map[string]string{}
		for _, record := range h.records() {
			got[record.Spec.PersistentVolume] = record.Spec.HostPath
		}
		if diff := gocmp.Diff(map[string]string{"pv-of-data": "/opt/data", "pv-of-other": ""}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// TestHostPathOfOthers: a claim that only names a persistent volume, and a pod that only names a
// node, reach no folder there.
func TestHostPathOfOthers(t *testing.T) {
	on := func(host string) *corev1.VolumeNodeAffinity {
		return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{host}}},
		}}}}
	}
	ours := &corev1.ObjectReference{Namespace: "shop", Name: "data", UID: "uid-of-data"}
	for name, test := range map[string]struct {
		phase   corev1.PersistentVolumeClaimPhase
		ref     *corev1.ObjectReference
		nodes   *corev1.VolumeNodeAffinity
		node    string
		problem string
	}{
		"ours":                   {corev1.ClaimBound, ours, on("host-1"), "node-1", ""},
		"not bound":              {corev1.ClaimPending, ours, nil, "node-1", "not bound to the persistent volume"},
		"of nobody":              {corev1.ClaimBound, nil, nil, "node-1", "not bound to the persistent volume"},
		"of an earlier claim":    {corev1.ClaimBound, &corev1.ObjectReference{Namespace: "shop", Name: "data", UID: "before"}, nil, "node-1", "not bound to the persistent volume"},
		"of another namespace":   {corev1.ClaimBound, &corev1.ObjectReference{Namespace: "vault", Name: "data", UID: "uid-of-data"}, nil, "node-1", "not bound to the persistent volume"},
		"on another node":        {corev1.ClaimBound, ours, on("host-2"), "node-1", "a folder of another node than node-1"},
		"on a node that is gone": {corev1.ClaimBound, ours, nil, "node-9", "nodes \"node-9\" not found"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				must := func(err error) {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
				}
				h := newHarness(t)
				h.kubelet = func(*corev1.Pod) bool { return false } // the pod is where it says
				claim := h.claim("data")
				claim.Paths = []string{"file"}
				live, err := h.Kube.CoreV1().PersistentVolumeClaims("shop").Get(t.Context(), "data", metav1.GetOptions{})
				must(err)
				live.Spec.VolumeName, live.Status.Phase = "pv", test.phase
				_, err = h.Kube.CoreV1().PersistentVolumeClaims("shop").Update(t.Context(), live, metav1.UpdateOptions{})
				must(err)
				_, err = h.Kube.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
					PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/opt/data"}}, ClaimRef: test.ref, NodeAffinity: test.nodes,
				}}, metav1.CreateOptions{})
				must(err)
				_, err = h.Kube.CoreV1().Pods("shop").Create(t.Context(), &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "idle", UID: "uid-of-idle"},
					Spec: corev1.PodSpec{NodeName: test.node, Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
					}}}},
					Status: corev1.PodStatus{Phase: corev1.PodRunning},
				}, metav1.CreateOptions{})
				must(err)
				err = h.restorer().Claim(t.Context(), claim)
				switch records := h.records(); {
				case test.problem == "":
					if err != nil || len(records) != 1 || records[0].Spec.HostPath != "/opt/data" {
						t.Errorf("%v, with the records %+v", err, records)
					}
				case err == nil || !strings.Contains(err.Error(), test.problem) || len(records) > 0:
					t.Errorf("%v, with the records %+v", err, records)
				}
			})
		})
	}
}

// TestClaimMadeAnew: what waited for its turn writes into no other claim of that name.
func TestClaimMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		claim := h.claim("data")
		claim.Paths = []string{"file"}
		if _, err := h.Kube.CoreV1().Pods("shop").Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-of-web"},
			Spec: corev1.PodSpec{NodeName: "node-1", Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		r := h.restorer()
		for range cap(r.slots) {
			r.slots <- struct{}{}
		}
		result := begin(t.Context(), r, claim)
		time.Sleep(time.Minute) // in a bubble: it waits for its turn
		claims := h.Kube.CoreV1().PersistentVolumeClaims("shop")
		if err := claims.Delete(t.Context(), "data", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := claims.Create(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "shop", UID: "another"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		<-r.slots
		if err := <-result; !errors.Is(err, errRemade) || len(h.records()) > 0 {
			t.Errorf("%v, with the records %+v", err, h.records())
		}
	})
}

// TestBegin: Begin comes before the agent is asked, and nothing is left where it fails.
func TestBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		claim, begun, failure := h.claim("data"), 0, errors.New("it can't be marked")
		claim.Begin = func(context.Context) error {
			if begun++; len(h.records()) > 0 {
				t.Error("the agent is asked before")
			}
			return failure
		}
		r := h.restorer()
		if err := r.Claim(t.Context(), claim); !errors.Is(err, failure) || len(h.records())+len(h.livePods()) > 0 {
			t.Errorf("%v, and %d records and %d pods", err, len(h.records()), len(h.livePods()))
		}
		failure = nil
		for range 2 {
			if err := r.Claim(t.Context(), claim); err != nil || begun != 2 {
				t.Errorf("%v, begun %d times", err, begun)
			}
		}
	})
}

// TestReplace: agents are asked to remove other files of a volume if the restore says so, but
// never beside paths.
func TestReplace(t *testing.T) {
	for policy, want := range map[v1alpha1.ExistingVolumePolicy]bool{
		v1alpha1.ExistingVolumeNone: false, v1alpha1.ExistingVolumeOverwrite: false, v1alpha1.ExistingVolumeReplace: true,
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t)
			h.run.Spec.Restore.ExistingVolumePolicy = policy
			if err := h.restorer().Claim(t.Context(), h.claim("data")); err != nil {
				t.Fatal(err)
			}
			if records := h.records(); len(records) != 1 || records[0].Spec.Replace != want {
				t.Errorf("%s: the agent is asked for %+v", policy, records)
			}
		})
	}
}

// TestUsed: Used is called when a pod uses the claim, and what it says is told.
func TestUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		claim, failure := h.claim("data"), errors.New("it can't be marked")
		claim.Used = func(context.Context) error { return failure }
		claim.Begin = func(context.Context) error { return errors.New("it is begun") }
		h.kubelet = func(*corev1.Pod) bool { return false }
		web := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"},
			Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "x", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}}},
		}
		if _, err := h.Kube.CoreV1().Pods("shop").Create(t.Context(), web, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		err := h.restorer().Claim(t.Context(), claim)
		if !errors.Is(err, failure) || !strings.Contains(err.Error(), "existingVolumePolicy: overwrite or replace") || strings.Contains(err.Error(), "begun") {
			t.Error(err)
		}
	})
}

// TestHolder: the pod passes the restricted standard, has requests and limits, no token,
// and nothing by which a Service or a policy of the workload takes it for its own.
func TestHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		claim := h.claim("data")
		user := int64(1234)
		claim.Pod = &corev1.Pod{Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{RunAsUser: &user},
			Tolerations:     []corev1.Toleration{{Key: "db", Operator: corev1.TolerationOpExists}},
			NodeSelector:    map[string]string{"disk": "fast"},
		}}
		live := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: "uid-of-data"}}
		pod, err := h.restorer().holder("example.com/holdfast:v1", claim, live)
		if err != nil {
			t.Fatal(err)
		}
		spec := pod.Spec
		if len(spec.InitContainers) != 0 || len(spec.Containers) != 1 || *spec.AutomountServiceAccountToken {
			t.Fatalf("%+v", spec)
		}
		c := spec.Containers[0]
		if s := c.SecurityContext; *s.RunAsUser != user || !*s.RunAsNonRoot || *s.AllowPrivilegeEscalation || s.SeccompProfile == nil || len(s.Capabilities.Drop) != 1 {
			t.Errorf("security context: %+v", s)
		}
		if len(c.Resources.Requests) != 2 || len(c.Resources.Limits) != 2 {
			t.Errorf("resources: %+v", c.Resources)
		}
		if spec.RestartPolicy != corev1.RestartPolicyOnFailure || len(spec.Tolerations) != 1 || len(spec.NodeSelector) != 0 {
			t.Errorf("%+v", spec)
		}
		var mounts []string
		for _, m := range c.VolumeMounts {
			mounts = append(mounts, m.Name+":"+m.MountPath)
			if !m.ReadOnly {
				t.Errorf("%s can be written to", m.MountPath)
			}
		}
		if !strings.Contains(strings.Join(mounts, " "), "data:/data") {
			t.Errorf("it mounts %v", mounts)
		}
	})
}

// TestClaimThatCannotBe: each of them says why, and leaves no pod and no record that an
// agent would begin with.
func TestClaimThatCannotBe(t *testing.T) {
	quota := apierrors.NewForbidden(corev1.Resource("pods"), "holdfast-restore-x", errors.New("exceeded quota: few, requested: pods=1, used: pods=3, limited: pods=3"))
	for name, test := range map[string]struct {
		break_ func(h *harness, claim *Claim)
		want   string
		after  time.Duration
	}{
		"the backup has no data": {
			func(h *harness, claim *Claim) {
				claim.Data.Status = enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseFailed, Message: "no space"}
			}, "is not in the backup: no space", 0,
		},
		"no claim":  {func(h *harness, claim *Claim) { claim.Name = "other" }, "the claim does not exist", 0},
		"no key":    {func(h *harness, _ *Claim) { h.repository = errors.New("bring the Secret back") }, "bring the Secret back", 0},
		"it failed": {func(h *harness, _ *Claim) { h.agent = failed("no space left on device") }, "no space left on device", 0},
		"no pods": {func(h *harness, _ *Claim) {
			h.refuse(apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("jane may not")))
		}, "creating the pod that holds the claim while its data is written", 0},
		"a quota":   {func(h *harness, _ *Claim) { h.refuse(quota) }, "exceeded quota: few", startTimeout},
		"no node":   {func(h *harness, _ *Claim) { h.kubelet = unschedulable(h) }, "it is on no node: 0/3 nodes are available", startTimeout},
		"no agent":  {func(h *harness, _ *Claim) { h.agent = nil; h.agents.leave("node-1") }, "has had no agent for 5m0s", tries * agentTimeout},
		"node gone": {func(h *harness, _ *Claim) { h.agent = nil; h.agents.remove("node-1") }, "does not exist any more", 0},
		"the agent goes away in the middle of it": {func(h *harness, _ *Claim) {
			h.agent = func(record *enginev1alpha1.VolumeRestore) enginev1alpha1.VolumeRestoreStatus {
				h.agents.leave("node-1")
				return inProgress(record)
			}
		}, "has had no agent for 5m0s", tries * agentTimeout},
		"it hangs":   {func(h *harness, _ *Claim) { h.agent = inProgress }, "was not restored within 1h0m0s after that had begun: if its data needs longer, raise --pod-volume-timeout of the controller", volumeTimeout},
		"never done": {func(h *harness, _ *Claim) { h.agent = nil }, "has begun and ended no other one for 1h0m0s", volumeTimeout},
		"never done, after a backup of another volume": {func(h *harness, _ *Claim) {
			h.agent = nil
			h.agents.Saw("node-1", "an upload", true, true, time.Now())
			time.AfterFunc(volumeTimeout+time.Minute, func() { h.agents.Saw("node-1", "an upload", false, true, time.Now()) })
		}, "has begun and ended no other one for 1h0m0s", 2*volumeTimeout + time.Minute},
		"never done, behind one that nobody ends": {func(h *harness, _ *Claim) {
			h.agent = nil
			h.agents.Saw("node-1", "an upload", true, true, time.Now())
		}, "has begun and ended no other one for 2h5m0s", 2*volumeTimeout + agentTimeout},
		"a pod uses it": {func(h *harness, _ *Claim) {
			h.kubelet = func(*corev1.Pod) bool { return false }
			_, err := h.Kube.CoreV1().Pods("shop").Create(h.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"},
				Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "x", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
				}}}},
			}, metav1.CreateOptions{})
			if err != nil {
				h.Fatal(err)
			}
		}, "the pod web uses the claim", 0},
		"a block device": {func(h *harness, claim *Claim) {
			claims := h.Kube.CoreV1().PersistentVolumeClaims("shop")
			live, err := claims.Get(h.Context(), "data", metav1.GetOptions{})
			if err == nil {
				live.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
				_, err = claims.Update(h.Context(), live, metav1.UpdateOptions{})
			}
			if err != nil {
				h.Fatal(err)
			}
		}, "the claim has the mode Block", 0},
		"no block device any more": {func(_ *harness, claim *Claim) { claim.Data.Device = true }, "the claim has the mode Filesystem", 0},
		"paths of a block device":  {func(_ *harness, claim *Claim) { claim.Data.Device, claim.Paths = true, []string{"a"} }, "is restored as a whole", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				r := h.restorer()
				claim := h.claim("data")
				test.break_(h, &claim)
				begun := time.Now()
				err := r.Claim(t.Context(), claim)
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v, want %q", err, test.want)
				}
				if took := time.Since(begun); took < test.after || took > test.after+time.Minute {
					t.Errorf("it took %s, want %s", took, test.after)
				}
				for _, pod := range h.livePods() {
					if pod.Name != "web" {
						t.Errorf("there is %s", pod.Name)
					}
				}
				for _, record := range h.records() {
					if !record.Status.Phase.Done() && !record.Spec.Cancel {
						t.Errorf("there is %s, %+v", record.Name, record.Status)
					}
				}
			})
		})
	}
}

// TestLost: when the node goes away that a claim is held on, or the pod that holds it, it is held
// anew, elsewhere if that can be; once.
func TestLost(t *testing.T) {
	for name, lose := range map[string]func(h *harness, record *enginev1alpha1.VolumeRestore) enginev1alpha1.VolumeRestoreStatus{
		"the node": func(h *harness, record *enginev1alpha1.VolumeRestore) enginev1alpha1.VolumeRestoreStatus {
			h.agents.remove(record.Spec.Node)
			return enginev1alpha1.VolumeRestoreStatus{Phase: enginev1alpha1.VolumePhaseInProgress}
		},
		"its agent": func(h *harness, record *enginev1alpha1.VolumeRestore) enginev1alpha1.VolumeRestoreStatus {
			h.agents.leave(record.Spec.Node)
			return enginev1alpha1.VolumeRestoreStatus{Phase: enginev1alpha1.VolumePhaseInProgress}
		},
		"the pod": func(h *harness, record *enginev1alpha1.VolumeRestore) enginev1alpha1.VolumeRestoreStatus {
			if err := h.Kube.CoreV1().Pods("shop").Delete(context.Background(), record.Spec.Pod.Name, metav1.DeleteOptions{}); err != nil {
				h.Error(err)
			}
			return enginev1alpha1.VolumeRestoreStatus{Phase: enginev1alpha1.VolumePhaseFailed, Message: "the volume went away"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				var holders []*corev1.Pod
				h.kubelet = func(pod *corev1.Pod) bool { holders = append(holders, pod.DeepCopy()); return true }
				h.agent = func(record *enginev1alpha1.VolumeRestore) enginev1alpha1.VolumeRestoreStatus {
					if record.Spec.Node == "node-2" {
						return enginev1alpha1.VolumeRestoreStatus{Phase: enginev1alpha1.VolumePhaseCompleted}
					}
					h.node = "node-2"
					return lose(h, record)
				}
				r := h.restorer()
				if err := r.Claim(t.Context(), h.claim("data")); err != nil {
					t.Fatal(err)
				}
				if len(holders) != 2 || holders[0].Spec.Affinity != nil || holders[1].Name != holders[0].Name+"-2" {
					t.Fatalf("there were %d holders", len(holders))
				}
				avoided := holders[1].Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
				if len(avoided) != 1 || avoided[0].Preference.MatchFields[0].Values[0] != "node-1" {
					t.Errorf("it avoids %+v", avoided)
				}
				if records := h.records(); len(records) != 1 || records[0].Spec.Node != "node-2" || len(h.livePods()) != 0 {
					t.Errorf("%d records and %d pods are left", len(records), len(h.livePods()))
				}
				if counts := r.Counts(); counts.Total != 1 || counts.Completed != 1 {
					t.Errorf("counts: %+v", counts)
				}
			})
		})
	}
}

// TestLostAndKilled: a process that is killed after it has given a holder up, and before it has
// asked for the claim's data again, leaves another one where it was: the first holder never
// goes, or has gone and the second one is there.
func TestLostAndKilled(t *testing.T) {
	for name, stuck := range map[string]bool{"the first one never goes": true, "the second one is there": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				ctx, kill := context.WithCancel(t.Context())
				defer kill()
				var holders []*corev1.Pod
				h.kubelet = func(pod *corev1.Pod) bool {
					if pod.DeletionTimestamp != nil {
						return false
					}
					holders = append(holders, pod.DeepCopy())
					return true
				}
				h.agent = func(record *enginev1alpha1.VolumeRestore) enginev1alpha1.VolumeRestoreStatus {
					if record.Spec.Node == "node-2" {
						return enginev1alpha1.VolumeRestoreStatus{Phase: enginev1alpha1.VolumePhaseCompleted}
					}
					h.node = "node-2"
					h.agents.remove(record.Spec.Node)
					return inProgress(record)
				}
				created := 0
				h.Fault(func(action clienttesting.Action) enginetest.Fault {
					if action.GetVerb() != "create" || action.GetResource().Resource != "pods" {
						return enginetest.Fault{}
					}
					if created++; created == 2 {
						kill()
						return enginetest.Fault{Err: errors.New("killed"), Lost: !stuck}
					}
					return enginetest.Fault{}
				})
				claim := h.claim("data")
				if err := h.restorer().Claim(ctx, claim); !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				h.Fault(nil)
				settle()
				if stuck { // as the API server has a pod whose node does not answer
					first := holders[0].DeepCopy()
					first.Spec.NodeName, first.DeletionTimestamp = "node-1", new(metav1.Now())
					if err := h.Kube.Tracker().Add(first); err != nil {
						t.Fatal(err)
					}
				}
				begun := time.Now()
				if err := h.restorer().Claim(t.Context(), claim); err != nil || time.Since(begun) > time.Minute {
					t.Errorf("after %s: %v", time.Since(begun), err)
				}
				if len(holders) != 2 || holders[1].Name != holders[0].Name+"-2" || holders[1].Spec.Affinity == nil {
					t.Errorf("there were %d holders", len(holders))
				}
			})
		})
	}
}

// TestForgotten: what is heard late of a record that was given up says nothing of the next one.
func TestForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		r := h.restorer()
		record := &enginev1alpha1.VolumeRestore{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "second"}}
		r.know(record, "")
		earlier := record.DeepCopy()
		earlier.UID, earlier.Status.Phase = "first", enginev1alpha1.VolumePhaseInProgress
		r.observe(earlier, true)
		if counts := r.Counts(); counts.Failed != 0 {
			t.Errorf("counts: %+v", counts)
		}
		r.observe(record, true)
		if counts := r.Counts(); counts.Failed != 1 {
			t.Errorf("its own end: %+v", counts)
		}
	})
}

// TestPaths: files of a claim that a pod uses are written through that pod, which waits for
// nothing and stays; of one that none uses, through a holder.
func TestPaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		r := h.restorer()
		claim := h.claim("data")
		claim.Paths = []string{"db/users.dat"}
		if err := r.Claim(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		if records := h.records(); len(records) != 1 || records[0].Spec.WaitVolume == "" || !gocmp.Equal(records[0].Spec.Paths, claim.Paths) {
			t.Errorf("records %+v", records)
		}

		used := h.claim("used")
		used.Paths = []string{"db/users.dat"}
		web := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "uid-of-web"},
			Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "x", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "used"},
			}}}},
		}
		h.kubelet = func(*corev1.Pod) bool { return false }
		if _, err := h.Kube.CoreV1().Pods("shop").Create(t.Context(), web, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := r.Claim(t.Context(), used); err == nil || !strings.Contains(err.Error(), "the pod web uses the claim, and does not run yet") {
			t.Errorf("a pod that does not run: %v", err)
		}
		web.Spec.NodeName, web.Status.Phase = "node-1", corev1.PodRunning
		if _, err := h.Kube.CoreV1().Pods("shop").Update(t.Context(), web, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := r.Claim(t.Context(), used); err != nil {
			t.Fatal(err)
		}
		for _, record := range h.records() {
			if record.Spec.SnapshotID == "k-used" && (record.Spec.Pod.Name != "web" || record.Spec.Volume != "x" || record.Spec.WaitVolume != "" || !gocmp.Equal(record.Spec.Paths, used.Paths)) {
				t.Errorf("record %+v", record.Spec)
			}
		}
		if pods := h.livePods(); len(pods) != 1 || pods[0].Name != "web" {
			t.Errorf("there are %d pods", len(pods))
		}
	})
}

func failed(message string) func(*enginev1alpha1.VolumeRestore) enginev1alpha1.VolumeRestoreStatus {
	return func(*enginev1alpha1.VolumeRestore) enginev1alpha1.VolumeRestoreStatus {
		return enginev1alpha1.VolumeRestoreStatus{Phase: enginev1alpha1.VolumePhaseFailed, Message: message}
	}
}

func inProgress(*enginev1alpha1.VolumeRestore) enginev1alpha1.VolumeRestoreStatus {
	return enginev1alpha1.VolumeRestoreStatus{Phase: enginev1alpha1.VolumePhaseInProgress}
}

// refuse refuses pods.
func (h *harness) refuse(err error) {
	h.Fault(func(action clienttesting.Action) enginetest.Fault {
		if action.GetVerb() == "create" && action.GetResource().Resource == "pods" {
			return enginetest.Fault{Err: err}
		}
		return enginetest.Fault{}
	})
}

func unschedulable(h *harness) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool {
		pod = pod.DeepCopy()
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available: 3 Insufficient cpu."}}
		if _, err := h.Kube.CoreV1().Pods(pod.Namespace).Update(context.Background(), pod, metav1.UpdateOptions{}); err != nil {
			h.Error(err)
		}
		return false
	}
}

// TestKilledAtAnyMoment: whichever request of a process is its last, the next one goes on,
// and there is one holder, one record, and nothing in the end.
func TestKilledAtAnyMoment(t *testing.T) {
	for n := range 40 {
		reached := true
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t)
			claim := h.claim("data")
			ctx, kill := context.WithCancel(t.Context())
			count := 0
			h.Fault(func(action clienttesting.Action) enginetest.Fault {
				if ctx.Err() != nil || action.GetVerb() == "update" {
					return enginetest.Fault{} // the agent and the kubelet live
				}
				if count++; count == n {
					kill()
					// Every other time it is carried out, and nobody hears of it.
					return enginetest.Fault{Err: errors.New("killed"), Lost: n%2 == 0}
				}
				return enginetest.Fault{}
			})
			first := h.restorer()
			err := first.Claim(ctx, claim)
			if reached = ctx.Err() != nil; !reached && err != nil {
				t.Errorf("nothing was broken, and yet: %v", err)
			}
			h.Fault(nil)
			second := h.restorer()
			if err := second.Claim(t.Context(), claim); err != nil {
				t.Errorf("killed at request %d: %v", n, err)
			}
			if pods, records := h.livePods(), h.records(); len(pods) != 0 || len(records) != 1 {
				t.Errorf("killed at request %d: %d pods and %d records", n, len(pods), len(records))
			}
			if err := errors.Join(second.End(t.Context()), second.Forget(t.Context(), second.run)); err != nil || len(h.records()) != 0 {
				t.Errorf("killed at request %d: %v, %d records are left", n, err, len(h.records()))
			}
			kill()
		})
		if !reached && n > 0 {
			t.Logf("%d requests", n-1)
			return
		}
	}
}

// TestTwoProcesses restore one claim at once: one holder, one record.
func TestTwoProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.agent = inProgress
		claim := h.claim("data")
		results := []<-chan error{begin(t.Context(), h.restorer(), claim), begin(t.Context(), h.restorer(), claim)}
		settle()
		if pods, records := h.livePods(), h.records(); len(pods) != 1 || len(records) != 1 {
			t.Fatalf("%d pods and %d records", len(pods), len(records))
		}
		h.report(h.records()[0].Name, enginev1alpha1.VolumeRestoreStatus{Phase: enginev1alpha1.VolumePhaseCompleted})
		for _, result := range results {
			if err, _ := ended(result); err != nil {
				t.Error(err)
			}
		}
		if len(h.livePods()) != 0 {
			t.Error("the holder is left")
		}
	})
}

// TestEnd stops what is being written, and returns when it has stopped.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.agent = nil
		r := h.restorer()
		ctx, cancel := context.WithCancel(t.Context())
		writing, waiting := begin(ctx, r, h.claim("data")), begin(ctx, r, h.claim("more"))
		settle()
		var begun string
		for _, record := range h.records() {
			if record.Spec.PersistentVolume == "pv-of-data" {
				begun = record.Name
				h.report(begun, inProgress(nil))
			}
		}
		cancel()
		for _, result := range []<-chan error{writing, waiting} {
			if err, _ := ended(result); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		}
		end := make(chan error, 1)
		go func() { end <- r.End(t.Context()) }()
		if _, yes := ended(end); yes {
			t.Fatal("it has ended, and the agent still writes")
		}
		records := h.records()
		if len(records) != 1 || records[0].Name != begun || !records[0].Spec.Cancel {
			t.Fatalf("records: %+v", records)
		}
		h.report(begun, enginev1alpha1.VolumeRestoreStatus{Phase: enginev1alpha1.VolumePhaseFailed, Message: "it was cancelled"})
		if err, _ := ended(end); err != nil {
			t.Error(err)
		}
		if len(h.records()) != 1 || len(h.livePods()) != 0 {
			t.Errorf("%d records and %d pods are left", len(h.records()), len(h.livePods()))
		}
	})
}
