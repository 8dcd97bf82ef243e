// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package snapshots tests pkg/snapshots against Kubernetes's own snapshot-controller and csi-snapshotter,
// and the lab's driver. `make csi` builds these, and runs it.
package snapshots

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"

	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
	"github.com/holdfast-io/holdfast/test/snapshots/kubelet"
)

const (
	driver    = "folder.lab.holdfast.io"
	namespace = "default"
	uid       = "this-cluster"
)

// lab is a Kubernetes without nodes, with the sidecars.
var lab struct {
	bin, dir string
	config   *rest.Config
	kube     kubernetes.Interface
	objects  dynamic.Interface
}

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "snapshots:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if lab.bin, err = filepath.Abs("../../.lab/bin"); err != nil {
		return 1, err
	}
	for _, program := range []string{"lab", "csi", "csi-snapshotter", "csi-provisioner", "snapshot-controller"} {
		if _, err := os.Stat(filepath.Join(lab.bin, program)); err != nil {
			return 1, fmt.Errorf("run `make csi`, which builds what is missing: %w", err)
		}
	}
	temporary, err := os.MkdirTemp("", "s")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(temporary)
	lab.dir = filepath.Join(temporary, "lab")
	defer func() { err = errors.Join(err, command("down", "--dir", lab.dir)) }()
	if err := command("up", "--dir", lab.dir, "--bin", lab.bin); err != nil {
		return 1, err
	}
	if err := restart(); err != nil {
		return 1, err
	}
	if lab.config, err = clientcmd.BuildConfigFromFlags("", filepath.Join(lab.dir, "kubeconfig")); err != nil {
		return 1, err
	}
	lab.config.QPS = -1
	if lab.kube, err = kubernetes.NewForConfig(lab.config); err != nil {
		return 1, err
	}
	if lab.objects, err = dynamic.NewForConfig(lab.config); err != nil {
		return 1, err
	}
	if err := allow(); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

func command(args ...string) error {
	out, err := exec.Command(filepath.Join(lab.bin, "lab"), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("lab %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// restart starts the driver and the sidecars anew. A lost driver ends csi-snapshotter.
func restart() error {
	source, err := filepath.Abs("../../hack/lab")
	if err != nil {
		return err
	}
	return command("csi", "up", "--dir", lab.dir, "--source", source, "--snapshots")
}

// allow binds the account of the tests to the role of the controller, and gives it no other right.
func allow() error {
	kubectl := exec.Command(filepath.Join(lab.bin, "kubectl"), "apply", "-f", "../../artifacts/rbac/snapshots.yaml", "-f", "../../artifacts/components/snapshots/binding.yaml", "-f", "../../artifacts/components/snapshots/movers.yaml")
	kubectl.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(lab.dir, "kubeconfig"))
	if out, err := kubectl.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// limited ends all requests after so many, as a kill does. If reach is set, the last one reaches the
// cluster, and its answer is lost.
type limited struct {
	next  http.RoundTripper
	left  *atomic.Int64
	reach bool
	kill  context.CancelCauseFunc
}

var errKilled = errors.New("killed")

func (l limited) RoundTrip(request *http.Request) (*http.Response, error) {
	left := l.left.Add(-1)
	if left >= 0 {
		return l.next.RoundTrip(request)
	}
	if left == -1 && l.reach {
		if answer, err := l.next.RoundTrip(request); err == nil {
			_ = answer.Body.Close()
		}
	}
	l.kill(errKilled)
	return nil, errKilled
}

// observed calls a function with the method of each request, before it.
type observed struct {
	next   http.RoundTripper
	before func(method string)
}

func (o observed) RoundTrip(request *http.Request) (*http.Response, error) {
	o.before(request.Method)
	return o.next.RoundTrip(request)
}

// client has the rights of the controller, and its requests pass through a wrapper, if any.
func client(t *testing.T, wrap transport.WrapperFunc) *snapshots.Client {
	t.Helper()
	config := rest.CopyConfig(lab.config)
	config.Impersonate.UserName = "system:serviceaccount:holdfast:holdfast-controller"
	if wrap != nil {
		config.Wrap(wrap)
	}
	objects, err := dynamic.NewForConfig(config)
	must(t, err)
	return snapshots.New(objects, uid, "holdfast")
}

// dying makes so many requests. Its context ends with the next one.
func dying(t *testing.T, requests int64, reach bool) (*snapshots.Client, context.Context) {
	t.Helper()
	ctx, kill := context.WithCancelCause(t.Context())
	left := &atomic.Int64{}
	left.Store(requests)
	return client(t, func(next http.RoundTripper) http.RoundTripper { return limited{next, left, reach, kill} }), ctx
}

func alive(t *testing.T) *snapshots.Client { return client(t, nil) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// claim returns a bound claim as a volume of a backup.
func claim(t *testing.T, backup string) snapshots.Volume {
	t.Helper()
	claims := lab.kube.CoreV1().PersistentVolumeClaims(namespace)
	class := "folder"
	made, err := claims.Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "data-"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, claims.Delete(context.Background(), made.Name, metav1.DeleteOptions{})) })
	v := snapshots.Volume{
		Backup: types.UID(backup), Place: snapshots.Place{StoreName: backup, Location: "default"}, Namespace: namespace, Claim: made.Name, ClaimUID: made.UID,
		Driver: driver, Class: "folder", Since: time.Now(), Timeout: time.Minute,
	}
	labtest.Eventually(t, "the claim", func() error {
		bound, err := claims.Get(t.Context(), made.Name, metav1.GetOptions{})
		must(t, err)
		if bound.Status.Phase != corev1.ClaimBound {
			return fmt.Errorf("it is %s", bound.Status.Phase)
		}
		volume, err := lab.kube.CoreV1().PersistentVolumes().Get(t.Context(), bound.Spec.VolumeName, metav1.GetOptions{})
		must(t, err)
		v.Handle = volume.Spec.CSI.VolumeHandle
		return nil
	})
	return v
}

// faults tells the driver what goes wrong from now on, until the test ends.
func faults(t *testing.T, content string) {
	t.Helper()
	path := filepath.Join(lab.dir, "csi", "faults.json")
	must(t, os.WriteFile(path+".part", []byte(content), 0o644))
	must(t, os.Rename(path+".part", path))
	if content != "" {
		t.Cleanup(func() { faults(t, "") })
	}
}

// stored returns how many snapshots the storage has.
func stored(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(lab.dir, "csi", "snapshots"))
	must(t, err)
	return len(entries)
}

// sweeper sweeps as the controller does.
type sweeper struct{ since map[types.UID]time.Time }

func (s *sweeper) sweep(ctx context.Context, c *snapshots.Client, fates map[types.UID]snapshots.Fate) error {
	contents, taken, err := c.Look(ctx)
	if err != nil {
		return err
	}
	d := snapshots.Decide(snapshots.View{ClusterUID: uid, Now: time.Now(), Contents: contents, Snapshots: taken, Fates: fates, Since: s.since})
	s.since = d.Since
	waiting, err := c.Sweep(ctx, d)
	if err == nil && len(waiting) > 0 {
		err = fmt.Errorf("it waits: %v", waiting)
	}
	return err
}

// told are the fates of all backups so far. Kubernetes may make a content long after its
// VolumeSnapshot was deleted.
var told = map[types.UID]snapshots.Fate{}

// owed sweeps until the storage has so many snapshots, and the cluster so many contents and as many
// VolumeSnapshots as are given.
func owed(t *testing.T, fates map[types.UID]snapshots.Fate, number int) {
	t.Helper()
	maps.Copy(told, fates)
	s := &sweeper{}
	labtest.Eventually(t, fmt.Sprintf("%d snapshots in the storage", number), func() error {
		if err := s.sweep(t.Context(), alive(t), told); err != nil {
			return err
		}
		contents, err := lab.objects.Resource(snapshots.Contents).List(t.Context(), metav1.ListOptions{})
		must(t, err)
		taken, err := lab.objects.Resource(snapshots.Snapshots).List(t.Context(), metav1.ListOptions{})
		must(t, err)
		if got := stored(t); got != number || len(contents.Items) != number || len(taken.Items) != 0 {
			text := ""
			for _, item := range contents.Items {
				spec, status := item.Object["spec"], item.Object["status"]
				text += fmt.Sprintf("\n%s, of %v, deleted %v, annotations %v, spec %v, status %v", item.GetName(), item.GetLabels(), item.GetDeletionTimestamp(), item.GetAnnotations(), spec, status)
			}
			return fmt.Errorf("there are %d, with %d contents and %d VolumeSnapshots: %s", got, len(contents.Items), len(taken.Items), text)
		}
		return nil
	})
}

func failed(backups ...string) map[types.UID]snapshots.Fate {
	fates := map[types.UID]snapshots.Fate{}
	for _, backup := range backups {
		fates[types.UID(backup)] = snapshots.Failed
	}
	return fates
}

// TestLife: a cut is kept, with its labels, when its VolumeSnapshot goes, and is found again; its backup's end deletes it.
func TestLife(t *testing.T) {
	v := claim(t, "life")
	all, err := alive(t).Classes(t.Context())
	must(t, err)
	if _, err := snapshots.Class(driver, snapshots.Wishes{}, all); err == nil || !strings.Contains(err.Error(), "folder, folder-kept") {
		t.Errorf("the class is not in doubt: %v", err)
	}
	for _, class := range []string{"folder", "folder-kept"} {
		v.Class, v.Backup = class, types.UID("life-"+class)
		first, err := alive(t).Cut(t.Context(), v, nil)
		must(t, err)
		again, err := alive(t).Cut(t.Context(), v, nil)
		must(t, err)
		if first.Handle != again.Handle || first.Time != again.Time {
			t.Errorf("the second attempt gets %+v, and the first got %+v", again, first)
		}
		must(t, alive(t).Release(t.Context(), first.Content))
		owed(t, map[types.UID]snapshots.Fate{v.Backup: snapshots.Stored}, 1)
		_, kept := look(t)
		if snapshots.PlaceOf(kept.Labels) != v.Place || kept.Labels[snapshots.LabelBackup] != string(v.Backup) {
			t.Errorf("the labels are %v", kept.Labels)
		}
		owed(t, failed(string(v.Backup)), 0)
	}
}

// TestKilled: stopped after each number of requests, a cut and all that follows leave what is owed.
func TestKilled(t *testing.T) {
	v := claim(t, "killed")
	for at, done := int64(0), false; !done; at++ {
		backup := fmt.Sprint("killed-", at)
		v.Backup, v.Since = types.UID(backup), time.Now()
		c, ctx := dying(t, at, at%2 == 0)
		taken, err := c.Cut(ctx, v, nil)
		if err == nil {
			err = c.Release(ctx, taken.Content)
		}
		swept := err == nil
		if swept { // if it waits for others, owed goes on
			_ = (&sweeper{}).sweep(ctx, c, failed(backup))
		}
		if done = ctx.Err() == nil; done {
			must(t, err)
		}
		if !done && !swept && at%4 == 3 { // the next attempt goes on
			if taken.Content == "" {
				if taken, err = alive(t).Cut(t.Context(), v, nil); err != nil {
					t.Fatalf("after %d requests, the next attempt ends with %v", at, err)
				}
			}
			must(t, alive(t).Release(t.Context(), taken.Content))
			owed(t, map[types.UID]snapshots.Fate{v.Backup: snapshots.Stored}, 1)
		}
		owed(t, failed(backup), 0)
	}
}

// TestHookedAttempts: each attempt cuts anew, and the sweep forgets the earlier cut while the run lives.
func TestHookedAttempts(t *testing.T) {
	v := claim(t, "hooked")
	var last snapshots.Taken
	for _, v.Attempt = range []int32{1, 2} {
		taken, err := alive(t).Cut(t.Context(), v, nil)
		must(t, err)
		if taken.Handle == last.Handle {
			t.Error("the second attempt gets the first one's")
		}
		last = taken
	}
	s := &sweeper{}
	labtest.Eventually(t, "one snapshot", func() error {
		if err := s.sweep(t.Context(), alive(t), map[types.UID]snapshots.Fate{v.Backup: snapshots.Live}); err != nil {
			return err
		}
		if got := stored(t); got != 1 {
			return fmt.Errorf("there are %d", got)
		}
		return nil
	})
	owed(t, failed("hooked"), 0)
}

// TestDriverAway: the failure is told in the driver's words, the namespace is free after the timeout,
// and all is deleted when the driver is back.
func TestDriverAway(t *testing.T) {
	v := claim(t, "away")
	faults(t, `{"fail":{"CreateSnapshot":{"code":"UNAVAILABLE","message":"the storage is away"}}}`)
	v.Timeout = 10 * time.Second
	said := ""
	_, err := alive(t).Cut(t.Context(), v, func(words string) { said += words })
	if err == nil || !strings.Contains(err.Error(), "the storage is away") || !strings.Contains(said, "the storage is away") {
		t.Errorf("got %v, and %q is said", err, said)
	}
	labtest.Eventually(t, "the namespace", func() error {
		taken, err := lab.objects.Resource(snapshots.Snapshots).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(taken.Items) > 0 {
			err = errors.New("a VolumeSnapshot is left")
		}
		return err
	})
	faults(t, "")
	owed(t, failed("away"), 0)
}

// TestFinalFailure: a snapshot that the driver refuses for good is forgotten while it still refuses.
func TestFinalFailure(t *testing.T) {
	v := claim(t, "final")
	faults(t, `{"fail":{"CreateSnapshot":{"code":"INVALID_ARGUMENT","message":"never"}}}`)
	v.Timeout = 10 * time.Second
	_, err := alive(t).Cut(t.Context(), v, nil)
	if err == nil || !strings.Contains(err.Error(), "never") {
		t.Errorf("got %v", err)
	}
	owed(t, failed("final"), 0)
}

// TestDeletionFails: the deletion of a stored snapshot waits for the driver.
func TestDeletionFails(t *testing.T) {
	v := claim(t, "kept")
	_, err := alive(t).Cut(t.Context(), v, nil)
	must(t, err)
	faults(t, `{"fail":{"DeleteSnapshot":{"code":"UNAVAILABLE","message":"the storage is away"}}}`)
	if err := (&sweeper{}).sweep(t.Context(), alive(t), failed("kept")); err == nil || stored(t) != 1 {
		t.Errorf("got %v, with %d stored", err, stored(t))
	}
	faults(t, "")
	owed(t, failed("kept"), 0)
}

// TestDeletedByOthers: a VolumeSnapshot that is deleted by others may fail the volume before its cut, and
// later does not. Nothing that is not owed is left at any stage.
func TestDeletedByOthers(t *testing.T) {
	v := claim(t, "others")
	for _, test := range []struct {
		stage string
		// reached is called before each request, with the content, or nil. The driver is away until then.
		reached func(method string, content *snapshots.VolumeSnapshotContent) bool
		cut     bool
	}{
		{stage: "created", reached: func(string, *snapshots.VolumeSnapshotContent) bool { return true }},
		{stage: "taken-up", reached: func(_ string, c *snapshots.VolumeSnapshotContent) bool { return c != nil }},
		{stage: "to-be-labelled", reached: func(method string, _ *snapshots.VolumeSnapshotContent) bool { return method == http.MethodPatch }},
		{stage: "labelled", reached: retained},
		{stage: "cut", reached: retained, cut: true},
	} {
		t.Run(test.stage, func(t *testing.T) {
			v.Backup, v.Since, v.Timeout = types.UID("others-"+test.stage), time.Now(), 10*time.Second
			faults(t, `{"fail":{"CreateSnapshot":{"code":"UNAVAILABLE","message":"slow"}}}`)
			deleted := false
			deleting := client(t, func(next http.RoundTripper) http.RoundTripper {
				return observed{next, func(method string) {
					taken, content := look(t)
					if deleted || taken == "" || !test.reached(method, content) {
						return
					}
					if test.cut {
						faults(t, "")
						labtest.Eventually(t, "the cut", func() error {
							if _, content = look(t); content == nil || content.Status.Handle == "" {
								return fmt.Errorf("the content is %+v", content)
							}
							return nil
						})
					}
					must(t, lab.objects.Resource(snapshots.Snapshots).Namespace(namespace).Delete(t.Context(), taken, metav1.DeleteOptions{}))
					deleted = true
				}}
			})
			taken, err := deleting.Cut(t.Context(), v, nil)
			if !test.cut && (err == nil || !strings.Contains(err.Error(), "was deleted before it was cut") && !strings.Contains(err.Error(), "slow")) {
				t.Errorf("got %v", err)
			}
			if !test.cut {
				if err := (&sweeper{}).sweep(t.Context(), alive(t), failed(string(v.Backup))); err != nil {
					t.Log("while the driver is away: ", err)
				}
			}
			faults(t, "")
			if test.cut {
				must(t, err)
				owed(t, map[types.UID]snapshots.Fate{v.Backup: snapshots.Stored}, 1)
				must(t, alive(t).Release(t.Context(), taken.Content))
			}
			owed(t, failed(string(v.Backup)), 0)
		})
	}
}

func retained(_ string, c *snapshots.VolumeSnapshotContent) bool {
	return c != nil && c.Spec.Policy == snapshots.Retain
}

// look returns the name of the only VolumeSnapshot, and the only content.
func look(t *testing.T) (taken string, content *snapshots.VolumeSnapshotContent) {
	t.Helper()
	all, err := lab.objects.Resource(snapshots.Snapshots).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	contents, err := lab.objects.Resource(snapshots.Contents).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(all.Items) > 0 {
		taken = all.Items[0].GetName()
	}
	if len(contents.Items) > 0 {
		content = &snapshots.VolumeSnapshotContent{}
		must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(contents.Items[0].Object, content))
	}
	return taken, content
}

// TestLost: a snapshot whose content was lost is found by its handle, and deleted once the driver has
// confirmed the handle, even if the controller stops after some requests.
func TestLost(t *testing.T) {
	v := claim(t, "lost")
	for _, at := range []int64{0, 1, 2, 3, 4, 5, 1 << 40} {
		v.Backup, v.Since = types.UID(fmt.Sprint("lost-", at)), time.Now()
		lost := snapshots.Lost{Backup: v.Backup, StoreName: "lost", Location: "default", Claim: v.ClaimUID, Driver: driver, Handle: lose(t, v)}
		faults(t, `{"fail":{"ListSnapshots":{"code":"UNAVAILABLE","message":"the storage is away"}}}`)
		c, ctx := dying(t, at, at%2 == 0)
		name, of, err := c.Find(ctx, lost)
		if err == nil {
			var waits string
			waits, err = c.Forget(ctx, name, of)
			if ctx.Err() == nil && (err != nil || !strings.Contains(waits, "the driver to confirm")) {
				t.Errorf("without the driver's answer, a deletion waits for %q, %v", waits, err)
			}
		}
		if got := stored(t); got != 1 {
			t.Fatalf("after %d requests, and %v, %d are stored, want the lost one", at, err, got)
		}
		faults(t, "")
		name, of, err = alive(t).Find(t.Context(), lost)
		must(t, err)
		labtest.Eventually(t, "its deletion", func() error {
			waits, err := alive(t).Forget(t.Context(), name, of)
			if err == nil && waits != "" {
				err = errors.New(waits)
			}
			return err
		})
		owed(t, nil, 0)
	}
}

// lose returns the handle of a stored snapshot that has no content any more.
func lose(t *testing.T, v snapshots.Volume) string {
	t.Helper()
	taken, err := alive(t).Cut(t.Context(), v, nil)
	must(t, err)
	must(t, alive(t).Release(t.Context(), taken.Content))
	contents := lab.objects.Resource(snapshots.Contents)
	must(t, contents.Delete(t.Context(), taken.Content, metav1.DeleteOptions{}))
	_, err = contents.Patch(t.Context(), taken.Content, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	must(t, err)
	labtest.Eventually(t, "the loss", func() error {
		if _, content := look(t); content != nil {
			return errors.New("the content is left")
		}
		return nil
	})
	return taken.Handle
}

// TestMove: a cut becomes a volume of a pod in the namespace of movers, and is hidden without a trace;
// killed after each number of requests, what is left is hidden by the sweep, and the stored snapshot goes.
func TestMove(t *testing.T) {
	v := claim(t, "move")
	v.Moved = true
	kept := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "kept"}, Provisioner: driver, ReclaimPolicy: new(corev1.PersistentVolumeReclaimRetain)}
	_, err := lab.kube.StorageV1().StorageClasses().Create(t.Context(), kept, metav1.CreateOptions{})
	must(t, err)
	kubelet.Run(t, lab.kube, movers, nodeless, nil)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeless}} // else its pods are orphans, and end
	_, err = lab.kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	must(t, err)
	before := volumes(t)
	for at, done := int64(0), false; !done; at++ {
		v.Backup, v.Since, v.StorageClass = types.UID(fmt.Sprint("move-", at)), time.Now(), []string{"folder", "kept"}[at%2]
		taken, err := alive(t).Cut(t.Context(), v, nil)
		must(t, err)
		c, kube, ctx := dyingMover(t, at, at%4 < 2)
		m := mover(c, kube)
		exposed, err := m.Expose(ctx, v, taken, nil)
		if err == nil {
			if exposed.PersistentVolume == "" || exposed.Pod == "" || exposed.Node != nodeless {
				t.Errorf("exposed is %+v", exposed)
			}
			var failure error
			err = labtest.Await(ctx, "the pod to be hidden", func() error {
				gone, err := m.Hide(ctx, v)
				if failure = err; err == nil && !gone {
					return errors.New("it is not gone")
				}
				return nil
			})
			err = errors.Join(err, failure)
		}
		if done = ctx.Err() == nil; done {
			must(t, err)
		}
		if got := stored(t); got != 1 {
			t.Fatalf("after %d requests %d snapshots are stored, want the cut", at, got)
		}
		must(t, alive(t).Release(t.Context(), taken.Content))
		labtest.Eventually(t, "what was exposed to be hidden", func() error {
			m := mover(alive(t), lab.kube)
			exposed, err := m.Exposed(t.Context())
			must(t, err)
			gone, err := m.HideAll(t.Context(), slices.Collect(maps.Keys(exposed)))
			if err == nil && !gone {
				err = errors.New("something is left")
			}
			return errors.Join(err, m.DisposeVolumes(t.Context()))
		})
		owed(t, map[types.UID]snapshots.Fate{v.Backup: snapshots.Stored}, 0)
		labtest.Eventually(t, "the volumes", func() error {
			if got := volumes(t); got != before { // one may have been made after its claim was hidden
				return errors.Join(fmt.Errorf("there are %d, want %d", got, before), mover(alive(t), lab.kube).DisposeVolumes(t.Context()))
			}
			return nil
		})
	}
}

const (
	movers   = "holdfast-snapshots"
	nodeless = "no-node"
)

func mover(c *snapshots.Client, kube kubernetes.Interface) *snapshots.Mover {
	return snapshots.NewMover(c, kube, movers, func(context.Context) (string, error) { return "holdfast", nil }, nil, func() []int { return nil })
}

// dyingMover has the rights of the controller, and its clients make so many requests.
func dyingMover(t *testing.T, requests int64, reach bool) (*snapshots.Client, kubernetes.Interface, context.Context) {
	t.Helper()
	ctx, kill := context.WithCancelCause(t.Context())
	left := &atomic.Int64{}
	left.Store(requests)
	config := rest.CopyConfig(lab.config)
	config.Impersonate.UserName = "system:serviceaccount:holdfast:holdfast-controller"
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return limited{next, left, reach, kill} })
	objects, err := dynamic.NewForConfig(config)
	must(t, err)
	kube, err := kubernetes.NewForConfig(config)
	must(t, err)
	return snapshots.New(objects, uid, "holdfast"), kube, ctx
}

// volumes returns how many volumes the storage has.
func volumes(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(lab.dir, "csi", "volumes"))
	must(t, err)
	return len(entries)
}
