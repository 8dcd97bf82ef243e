// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/restore/volumes"
	"github.com/holdfast-io/holdfast/pkg/runlog"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
)

// storage stands for stored snapshots, and for what waits until claims are bound.
type storage struct {
	holding
	server *fakeServer

	mu    sync.Mutex
	found snapshots.Found
	// missing, notOffered, notConfirmed, notBound and notWithdrawn are the errors of the calls.
	missing, notOffered, notConfirmed, notBound, notWithdrawn error
	// mode is the claim's, if the snapshot has none.
	mode string
	// confirmed is the size that the driver says.
	confirmed int64
	// left is how many calls of Withdraw find something left.
	left int
	// called are the calls, wanted what they want, and claims what was waited for.
	called []string
	wanted []snapshots.Wanted
	claims []volumes.Claim
	// offered are the offers that are there.
	offered map[snapshots.Wanted]bool
}

func newStorage(t *testing.T) *storage {
	d := &storage{holding: holding{t}, server: newFakeServer(t), found: snapshots.Found{Driver: "ebs", Class: "c", Handle: "snap-1", Size: 2 << 30}, offered: map[snapshots.Wanted]bool{}}
	for _, namespace := range []string{"a", "copy"} {
		d.server.add("serviceaccounts", obj("v1", "ServiceAccount", namespace, "default")) // pods wait for it
	}
	d.class("fast", "ebs")
	return d
}

func (d *storage) class(name, driver string) {
	d.server.add("storageclasses.storage.k8s.io", obj("storage.k8s.io/v1", "StorageClass", "", name, with(driver, "provisioner")))
}

func (d *storage) call(what string, w snapshots.Wanted) {
	d.called = append(d.called, what)
	d.wanted = append(d.wanted, w)
}

func (d *storage) Locate(_ context.Context, w snapshots.Wanted) (snapshots.Found, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.call("Locate", w)
	return d.found, d.missing
}

func (d *storage) Offer(_ context.Context, w snapshots.Wanted, found snapshots.Found) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.call("Offer", w)
	wanted := d.found
	wanted.Mode = cmp.Or(d.mode, wanted.Mode)
	if found != wanted {
		d.t.Errorf("offered is %+v", found)
	}
	d.offered[w] = d.notOffered == nil
	return w.OfferName(), d.notOffered
}

func (d *storage) Confirm(_ context.Context, w snapshots.Wanted) (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.call("Confirm", w)
	return d.confirmed, d.notConfirmed
}

func (d *storage) Withdraw(_ context.Context, w snapshots.Wanted) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.call("Withdraw", w)
	if d.notWithdrawn != nil {
		return false, d.notWithdrawn
	}
	if d.left > 0 {
		d.left--
		return false, nil
	}
	delete(d.offered, w)
	return true, nil
}

func (d *storage) Claim(ctx context.Context, claim volumes.Claim) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.called = append(d.called, "Claim")
	d.claims = append(d.claims, claim)
	switch live := d.server.get("persistentvolumeclaims", claim.Namespace, claim.Name); {
	case live == nil:
		d.t.Error("a claim is waited for that is not there")
	case markOf(live) == nil && !isTaken(d.called) && claim.Begin == nil && len(claim.Paths) == 0: // Begin sets it
		d.t.Error("the claim has no mark before its data is there")
	}
	return errors.Join(d.notBound, ctx.Err())
}

// isTaken reports whether the claim was complete before.
func isTaken(called []string) bool { return slices.Contains(called, "Withdraw") }

// kept is a backup of a claim whose data is a snapshot in the storage of its volume, and of its pod.
func kept(t *testing.T, changes ...func(map[string]any)) *source.Backup {
	t.Helper()
	return keptBeside(t, nil, changes...)
}

func keptBeside(t *testing.T, others []map[string]any, changes ...func(map[string]any)) *source.Backup {
	t.Helper()
	pod := obj("v1", "Pod", "a", "p", with([]any{map[string]any{"name": "v", "persistentVolumeClaim": map[string]any{"claimName": "data"}}}, "spec", "volumes"))
	changes = append([]func(map[string]any){
		with("fast", "spec", "storageClassName"), with("1Gi", "spec", "resources", "requests", "storage"), with("pv", "spec", "volumeName"),
		with(map[string]any{"matchLabels": map[string]any{"disk": "old"}}, "spec", "selector"),
		with(map[string]any{"kind": "PersistentVolumeClaim", "name": "other"}, "spec", "dataSourceRef"),
	}, changes...)
	backup := backupOf(t, append(others, obj("v1", "Namespace", "", "a"), obj("v1", "PersistentVolumeClaim", "a", "data", changes...), pod)...)
	volume := source.Volume{Volume: format.Volume{Pod: enginev1alpha1.PodReference{Namespace: "a"}, ClaimName: "data"}}
	volume.Snapshot = &format.SnapshotSource{Driver: "ebs", Kept: true, Cut: &format.SnapshotCut{Handle: "snap-1", Size: 4}}
	volume.Status = enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted}
	backup.Volumes = append(backup.Volumes, volume)
	return backup
}

func (d *storage) run(ctx context.Context, backup *source.Backup, spec v1alpha1.RestoreSpec, change ...func(*Dependencies)) *Ended {
	return d.server.run(ctx, backup, request("r", spec), append([]func(*Dependencies){func(deps *Dependencies) { deps.Volumes, deps.Snapshots = d, d }}, change...)...)
}

// calls checks the calls in their order.
func (d *storage) calls(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(d.called, want) {
		t.Errorf("the calls are %q, want %q", d.called, want)
	}
}

// isHeldBack checks that neither the claim nor its user was created.
func (d *storage) isHeldBack(t *testing.T) {
	t.Helper()
	if claim := d.server.get("persistentvolumeclaims", "a", "data"); claim != nil {
		t.Errorf("there is the claim %v", claim.Object)
	}
	if d.server.get("pods", "a", "p") != nil {
		t.Error("its user was created")
	}
}

// TestClaimFromASnapshot: a new claim has its snapshot as its source, and room for it. It is waited for
// until it is bound. Then the source is deleted, and its users come.
func TestClaimFromASnapshot(t *testing.T) {
	for name, test := range map[string]struct {
		change func(map[string]any)
		size   int64
		want   string
	}{
		"the snapshot is larger":           {with("1Gi", "spec", "resources", "requests", "storage"), 2 << 30, "2Gi"},
		"of no round size":                 {with("1Gi", "spec", "resources", "requests", "storage"), 1<<30 + 1, "1073741825"},
		"the request is larger":            {with("3G", "spec", "resources", "requests", "storage"), 2 << 30, "3G"},
		"both are equal":                   {with("2048Mi", "spec", "resources", "requests", "storage"), 2 << 30, "2048Mi"},
		"the size of the snapshot unknown": {with("1Gi", "spec", "resources", "requests", "storage"), 0, "1Gi"},
		"no request":                       {func(o map[string]any) { unstructured.RemoveNestedField(o, "spec", "resources") }, 2 << 30, "2Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newStorage(t)
			d.found.Size = test.size
			want(t, d.run(t.Context(), kept(t, test.change), v1alpha1.RestoreSpec{}), v1alpha1.RestorePhaseCompleted)
			d.calls(t, "Locate", "Offer", "Claim", "Withdraw")
			claim := d.server.get("persistentvolumeclaims", "a", "data")
			if claim == nil || markOf(claim) != nil {
				t.Fatalf("the claim is %v", claim)
			}
			spec, _, _ := unstructured.NestedMap(claim.Object, "spec")
			wanted := map[string]any{
				"storageClassName": "fast", "resources": map[string]any{"requests": map[string]any{"storage": test.want}},
				"dataSource": map[string]any{"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": d.wanted[0].OfferName()},
			}
			if diff := gocmp.Diff(wanted, spec); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if len(d.claims) != 1 || !d.claims[0].Provisioned || d.claims[0].Pod == nil || d.claims[0].Pod.Name != "p" {
				t.Errorf("waited for is %+v", d.claims)
			}
			if d.server.get("pods", "a", "p") == nil {
				t.Error("its user is missing")
			}
		})
	}
}

// TestWhichSnapshotIsWanted: a snapshot is looked for by the backup and its claim. It is offered for the
// restore and the new claim, in a mapped namespace too.
func TestWhichSnapshotIsWanted(t *testing.T) {
	for namespace, mapping := range map[string]map[string]string{"a": nil, "copy": {"a": "copy"}} {
		t.Run(namespace, func(t *testing.T) {
			d := newStorage(t)
			want(t, d.run(t.Context(), kept(t), v1alpha1.RestoreSpec{NamespaceMapping: mapping}), v1alpha1.RestorePhaseCompleted)
			d.calls(t, "Locate", "Offer", "Claim", "Withdraw")
			wanted := snapshots.Wanted{
				Handle: "snap-1", Driver: "ebs", Size: 4,
				Backup: "backup-uid", Origin: "a", ClaimUID: "old-PersistentVolumeClaim-a-data",
				Restore: "r", Namespace: namespace, Claim: "data",
			}
			for i, got := range d.wanted {
				if got != wanted {
					t.Errorf("call %d wants %+v", i, got)
				}
			}
			if len(d.claims) != 1 || d.claims[0].Namespace != namespace || d.server.get("persistentvolumeclaims", namespace, "data") == nil {
				t.Errorf("waited for is %+v", d.claims)
			}
		})
	}
}

// TestNoClaimFromASnapshot: without a usable snapshot, no claim is created, and its users are held back.
// The error says what to do. A plan says so too.
func TestNoClaimFromASnapshot(t *testing.T) {
	for name, test := range map[string]struct {
		change func(d *storage, deps *Dependencies)
		class  string
		uid    string
		says   []string
		calls  []string
		// runs says that a plan finds nothing.
		runs bool
	}{
		"there is no snapshot":  {change: func(d *storage, _ *Dependencies) { d.missing = errors.New("another cluster has it") }, says: []string{"a snapshot in the storage of its volume: another cluster has it"}, calls: []string{"Locate"}},
		"no snapshots are used": {change: func(_ *storage, deps *Dependencies) { deps.Snapshots = nil }, says: []string{"start it with --snapshots"}},
		"there is no record of it": {change: func(d *storage, _ *Dependencies) { d.missing = fmt.Errorf("%w: it was deleted", snapshots.ErrNoRecord) }, says: []string{
			"no VolumeSnapshotContent of its snapshot: it was deleted; an administrator may restore it by its handle (docs/snapshots.md#snapshots-without-a-record), else choose a backup that has moved the data",
		}, calls: []string{"Locate"}},
		"the claim has no uid":      {uid: "-", says: []string{"does not have the uid of the claim"}},
		"the class is missing":      {class: "gone", says: []string{"a snapshot of the driver ebs, and there is no StorageClass gone", "storageClassMapping"}, calls: []string{"Locate"}},
		"the class is of another":   {class: "nfs", says: []string{"the StorageClass nfs is of nfs.example.com", "storageClassMapping"}, calls: []string{"Locate"}},
		"the snapshot is of others": {change: func(d *storage, _ *Dependencies) { d.found.Driver = "gce" }, says: []string{"a snapshot of the driver gce, and the StorageClass fast is of ebs"}, calls: []string{"Locate"}},
		"only the backup names it, and the driver does not know it": {change: func(d *storage, _ *Dependencies) {
			d.found.ByHandle, d.mode, d.notConfirmed = true, "Filesystem", errors.New("no such snapshot")
		}, says: []string{
			"the driver ebs does not confirm the snapshot snap-1, which only the backup names: no such snapshot",
		}, calls: []string{"Locate", "Offer", "Confirm", "Withdraw"}, runs: true},
		"only the backup names it, and the class is of another": {change: func(d *storage, _ *Dependencies) { d.found.ByHandle = true }, class: "nfs", says: []string{"the StorageClass nfs is of nfs.example.com"}, calls: []string{"Locate"}},
		"the mode is another":      {change: func(d *storage, _ *Dependencies) { d.found.Mode = "Block" }, says: []string{"a snapshot of a volume of the mode Block, and the claim has the mode Filesystem"}, calls: []string{"Locate"}},
		"no class, and no default": {class: "-", says: []string{"it names no StorageClass, and the cluster has no default one"}, calls: []string{"Locate"}},
		"an empty class":           {class: " ", says: []string{"its StorageClass is empty: name one of the driver"}, calls: []string{"Locate"}},
		"the offer fails":          {change: func(d *storage, _ *Dependencies) { d.notOffered = errors.New("may not create it") }, says: []string{"may not create it"}, calls: []string{"Locate", "Offer"}, runs: true},
	} {
		t.Run(name, func(t *testing.T) {
			changes := []func(map[string]any){}
			switch test.class {
			case "":
			case "-":
				changes = append(changes, func(o map[string]any) { unstructured.RemoveNestedField(o, "spec", "storageClassName") })
			default:
				changes = append(changes, with(strings.TrimSpace(test.class), "spec", "storageClassName"))
			}
			if test.uid != "" {
				changes = append(changes, func(o map[string]any) { unstructured.RemoveNestedField(o, "metadata", "uid") })
			}
			backup := kept(t, changes...)
			for _, plan := range []bool{true, false} {
				d := newStorage(t)
				d.class("nfs", "nfs.example.com")
				change := func(deps *Dependencies) {
					if test.change != nil {
						test.change(d, deps)
					}
				}
				ended := d.run(t.Context(), backup, v1alpha1.RestoreSpec{PlanOnly: plan}, change)
				calls := test.calls
				if plan && test.runs {
					want(t, ended, v1alpha1.RestorePhaseCompleted)
					calls = slices.DeleteFunc(slices.Clone(calls), func(call string) bool { return call != "Locate" })
				} else {
					want(t, ended, v1alpha1.RestorePhasePartiallyFailed, append(test.says, "it uses the claim a/data")...)
				}
				d.calls(t, calls...)
				d.isHeldBack(t)
			}
		})
	}
}

// TestClassOfAClaimFromASnapshot: a claim may have any class of the snapshot's driver, or the default one.
func TestClassOfAClaimFromASnapshot(t *testing.T) {
	for name, test := range map[string]struct {
		class, want string
		mapping     map[string]string
	}{
		"its own":                                {"fast", "fast", nil},
		"mapped to one of the driver, from none": {"gone", "slow", map[string]string{"gone": "slow"}},
		"mapped from one of another":             {"nfs", "slow", map[string]string{"nfs": "slow"}},
		"none":                                   {"", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			backup := kept(t, func(o map[string]any) {
				if test.class == "" {
					unstructured.RemoveNestedField(o, "spec", "storageClassName")
				} else {
					with(test.class, "spec", "storageClassName")(o)
				}
			})
			d := newStorage(t)
			d.class("slow", "ebs")
			d.class("nfs", "nfs.example.com")
			if test.class == "" {
				d.server.add("storageclasses.storage.k8s.io", obj("storage.k8s.io/v1", "StorageClass", "", "usual", with("ebs", "provisioner"),
					with(map[string]any{"storageclass.kubernetes.io/is-default-class": "true"}, "metadata", "annotations")))
			}
			want(t, d.run(t.Context(), backup, v1alpha1.RestoreSpec{StorageClassMapping: test.mapping}), v1alpha1.RestorePhaseCompleted)
			d.calls(t, "Locate", "Offer", "Claim", "Withdraw")
			if class, _, _ := unstructured.NestedString(d.server.get("persistentvolumeclaims", "a", "data").Object, "spec", "storageClassName"); class != test.want {
				t.Errorf("its class is %q", class)
			}
		})
	}
}

// TestExistingClaimAndASnapshot: an existing claim is an error that says so, unless it is to keep its
// data. No snapshot is offered, its data stays, and its users are held back.
func TestExistingClaimAndASnapshot(t *testing.T) {
	const existing = "it exists, and its data is a snapshot in the storage of its volume, from which only a new claim is made: delete it"
	for name, test := range map[string]struct {
		spec  v1alpha1.RestoreSpec
		phase v1alpha1.RestorePhase
		says  []string
		user  bool
	}{
		"":                 {phase: v1alpha1.RestorePhaseFailedValidation, says: []string{"the claim a/data exists, and its data is a snapshot"}},
		"keep":             {spec: v1alpha1.RestoreSpec{ExistingVolumePolicy: v1alpha1.ExistingVolumeKeep}, phase: v1alpha1.RestorePhaseCompleted, user: true},
		"overwrite":        {spec: v1alpha1.RestoreSpec{ExistingVolumePolicy: v1alpha1.ExistingVolumeOverwrite}, phase: v1alpha1.RestorePhasePartiallyFailed, says: []string{existing, "it uses the claim a/data"}},
		"replace":          {spec: v1alpha1.RestoreSpec{ExistingVolumePolicy: v1alpha1.ExistingVolumeReplace}, phase: v1alpha1.RestorePhasePartiallyFailed, says: []string{existing, "it uses the claim a/data"}},
		"only volumes":     {spec: v1alpha1.RestoreSpec{VolumesOnly: true}, phase: v1alpha1.RestorePhasePartiallyFailed, says: []string{existing}},
		"some paths of it": {spec: v1alpha1.RestoreSpec{VolumesOnly: true, Paths: []string{"file"}}, phase: v1alpha1.RestorePhasePartiallyFailed, says: []string{existing}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newStorage(t)
			d.server.add("namespaces", obj("v1", "Namespace", "", "a"))
			d.server.add("persistentvolumeclaims", obj("v1", "PersistentVolumeClaim", "a", "data", with("theirs", "metadata", "uid"),
				with("fast", "spec", "storageClassName"), with("1Gi", "spec", "resources", "requests", "storage")))
			before := d.server.get("persistentvolumeclaims", "a", "data")
			want(t, d.run(t.Context(), kept(t), test.spec), test.phase, test.says...)
			d.calls(t)
			if diff := gocmp.Diff(before.Object, d.server.get("persistentvolumeclaims", "a", "data").Object); diff != "" {
				t.Errorf("the claim (-before +after):\n%s", diff)
			}
			if (d.server.get("pods", "a", "p") != nil) != test.user {
				t.Errorf("its user is there: %t", !test.user)
			}
		})
	}
}

// TestPathsOfASnapshot: paths are an error, for a claim that is not there too.
func TestPathsOfASnapshot(t *testing.T) {
	d := newStorage(t)
	want(t, d.run(t.Context(), kept(t), v1alpha1.RestoreSpec{Paths: []string{"file"}}), v1alpha1.RestorePhasePartiallyFailed, "leave out paths", "it uses the claim a/data")
	if len(d.claims) > 0 || d.server.get("pods", "a", "p") != nil {
		t.Errorf("waited for is %+v", d.claims)
	}
}

// TestPlanOfASnapshot: a plan looks for the snapshot, and offers nothing. It does so for a claim that waits for the
// end of another, and for a StorageClass that the restore creates.
func TestPlanOfASnapshot(t *testing.T) {
	const from, waits = "its data is the snapshot snap-1 of the driver ebs", "one of its name is being deleted, and is waited for"
	leaving := func(d *storage) {
		d.server.add("persistentvolumeclaims", obj("v1", "PersistentVolumeClaim", "a", "data", with("2026-01-02T03:04:05Z", "metadata", "deletionTimestamp")))
	}
	missing := func(d *storage) { d.missing = errors.New("it was deleted") }
	for name, test := range map[string]struct {
		class, driver string // of the StorageClass in the backup
		change        []func(*storage)
		reason, fails string
	}{
		"a new claim":                       {reason: from},
		"one is being deleted":              {change: []func(*storage){leaving}, reason: waits + "; " + from},
		"one is being deleted, no snapshot": {change: []func(*storage){leaving, missing}, fails: "it was deleted"},
		"a new class":                       {class: "new", driver: "ebs", reason: from},
		"a new class of another":            {class: "new", driver: "nfs.example.com", fails: "the StorageClass new is of nfs.example.com"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newStorage(t)
			for _, change := range test.change {
				change(d)
			}
			var others []map[string]any
			var changes []func(map[string]any)
			if test.class != "" {
				others = append(others, obj("storage.k8s.io/v1", "StorageClass", "", test.class, with(test.driver, "provisioner")))
				changes = append(changes, with(test.class, "spec", "storageClassName"))
			}
			ended := d.run(t.Context(), keptBeside(t, others, changes...), v1alpha1.RestoreSpec{PlanOnly: true, ExistingVolumePolicy: v1alpha1.ExistingVolumeReplace})
			d.calls(t, "Locate")
			if d.server.writes > 0 {
				t.Errorf("it made %d writes", d.server.writes)
			}
			if test.fails != "" {
				want(t, ended, v1alpha1.RestorePhasePartiallyFailed, test.fails, "it uses the claim a/data")
				return
			}
			plan := want(t, ended, v1alpha1.RestorePhaseCompleted)
			if i := slices.IndexFunc(plan.Items, func(o format.PlannedObject) bool { return o.Kind == "PersistentVolumeClaim" }); i < 0 || plan.Items[i].Action != "create" || plan.Items[i].Reason != test.reason {
				t.Errorf("the plan is %+v", plan.Items)
			}
		})
	}
}

// TestClaimByHandle: a claim from a snapshot that only the backup names has room for what the driver says,
// and the mode that it had. A plan says which snapshot it is.
func TestClaimByHandle(t *testing.T) {
	for name, test := range map[string]struct {
		mode      string
		confirmed int64
		want      string
	}{
		"the driver says more": {confirmed: 3 << 30, want: "3Gi"},
		"the driver says less": {confirmed: 1, want: "2Gi"},
		"a block device":       {mode: "Block", want: "2Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newStorage(t)
			d.found.ByHandle, d.confirmed = true, test.confirmed
			change := func(o map[string]any) {
				if test.mode != "" {
					with(test.mode, "spec", "volumeMode")(o)
				}
			}
			d.mode = cmp.Or(test.mode, "Filesystem")
			backup := kept(t, change)
			plan := d.server.plan(t.Context(), backup, request("r", v1alpha1.RestoreSpec{}), func(deps *Dependencies) { deps.Volumes, deps.Snapshots = d, d })
			if len(plan.Volumes) != 1 || plan.Volumes[0].Data != v1alpha1.RestoredDataWritten || plan.Volumes[0].Reason != "its data is the snapshot snap-1 of the driver ebs, which only the backup names: the cluster has no VolumeSnapshotContent of it" {
				t.Errorf("planned are %+v", plan.Volumes)
			}
			d.calls(t, "Locate")
			d.called = nil
			want(t, d.run(t.Context(), backup, v1alpha1.RestoreSpec{}), v1alpha1.RestorePhaseCompleted)
			d.calls(t, "Locate", "Offer", "Confirm", "Claim", "Withdraw")
			if size, _, _ := unstructured.NestedString(d.server.get("persistentvolumeclaims", "a", "data").Object, "spec", "resources", "requests", "storage"); size != test.want {
				t.Errorf("its size is %s, want %s", size, test.want)
			}
		})
	}
}

// TestClaimNeverMade: a claim that is not bound is an error. Its source stays, it is marked, and its users
// are held back.
func TestClaimNeverMade(t *testing.T) {
	d := newStorage(t)
	d.notBound = errors.New("not within an hour")
	want(t, d.run(t.Context(), kept(t), v1alpha1.RestoreSpec{}), v1alpha1.RestorePhasePartiallyFailed, "not within an hour", "it uses the claim a/data")
	d.calls(t, "Locate", "Offer", "Claim")
	if m := markOf(d.server.get("persistentvolumeclaims", "a", "data")); m == nil || m.restore != "r" {
		t.Errorf("its mark is %v", m)
	}
	if d.server.get("pods", "a", "p") != nil {
		t.Error("its user was created")
	}
}

// TestSourceThatStays: a source of a bound claim that is not gone yet is asked for again. One that can't be
// deleted is left to the sweep. The restore completes.
func TestSourceThatStays(t *testing.T) {
	for name, test := range map[string]struct {
		left  int
		err   error
		calls int
	}{"gone later": {left: 2, calls: 3}, "an error": {err: errors.New("may not delete it"), calls: 1}, "never gone": {left: 100, calls: attempts}} {
		t.Run(name, func(t *testing.T) {
			d := newStorage(t)
			d.left, d.notWithdrawn = test.left, test.err
			ended := d.run(t.Context(), kept(t), v1alpha1.RestoreSpec{})
			want(t, ended, v1alpha1.RestorePhaseCompleted)
			d.calls(t, append([]string{"Locate", "Offer", "Claim"}, slices.Repeat([]string{"Withdraw"}, test.calls)...)...)
			if d.server.get("pods", "a", "p") == nil || ended.Status.Warnings > 0 {
				t.Errorf("its user is missing, or warnings: %+v", ended.Status)
			}
		})
	}
}

// TestClaimOfAKilledProcess: a restore that continues finds its claim, and goes on waiting for it. It needs
// the snapshot no more, which may be gone since.
func TestClaimOfAKilledProcess(t *testing.T) {
	for name, change := range map[string]func(*storage){
		"the snapshot is there":         func(*storage) {},
		"the snapshot is gone":          func(d *storage) { d.missing = errors.New("there is none") },
		"its source is being deleted":   func(d *storage) { d.notOffered = errors.New("one of this name is being deleted") },
		"the StorageClass is gone":      func(d *storage) { delete(d.server.objects, "storageclasses.storage.k8s.io//fast") },
		"the namespace has more claims": func(d *storage) { d.server.add("persistentvolumeclaims", obj("v1", "PersistentVolumeClaim", "a", "b")) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newStorage(t)
			d.server.add("namespaces", obj("v1", "Namespace", "", "a"))
			d.server.add("persistentvolumeclaims", obj("v1", "PersistentVolumeClaim", "a", "data", with("fast", "spec", "storageClassName"),
				with(map[string]any{object.AnnotationRestoreUID: "r", format.AnnotationIncomplete: mark{restore: "r", made: true}.String()}, "metadata", "annotations")))
			before := d.server.get("persistentvolumeclaims", "a", "data").GetUID()
			change(d)
			want(t, d.run(t.Context(), kept(t), v1alpha1.RestoreSpec{}), v1alpha1.RestorePhaseCompleted)
			if len(d.claims) != 1 || !d.claims[0].Provisioned || d.called[len(d.called)-1] != "Withdraw" || len(d.offered) > 0 {
				t.Errorf("the calls are %q, and left is %v", d.called, d.offered)
			}
			if claim := d.server.get("persistentvolumeclaims", "a", "data"); claim == nil || claim.GetUID() != before || markOf(claim) != nil {
				t.Errorf("the claim is %v", claim)
			}
			if d.server.get("pods", "a", "p") == nil {
				t.Error("its user is missing")
			}
		})
	}
}

// TestKilledAtAClaimFromASnapshot: whichever request of a process is its last, the next one goes on, and
// completes the restore. The claim is made once, and no source is left.
func TestKilledAtAClaimFromASnapshot(t *testing.T) {
	backup := kept(t)
	for _, carriedOut := range []bool{false, true} {
		for n := 1; ; n++ {
			what := fmt.Sprintf("killed at request %d, carried out: %t", n, carriedOut)
			d := newStorage(t)
			ctx, kill := context.WithCancel(t.Context())
			left := n
			d.server.fault = func(*http.Request) (int, bool) {
				if left--; left == 0 {
					kill()
				}
				if left <= 0 {
					return -1, carriedOut && left == 0
				}
				return 0, false
			}
			own := *backup
			d.run(ctx, &own, v1alpha1.RestoreSpec{})
			kill()
			d.server.mu.Lock()
			d.server.fault = nil
			d.server.mu.Unlock()
			want(t, d.run(t.Context(), backup, v1alpha1.RestoreSpec{}), v1alpha1.RestorePhaseCompleted)
			claim := d.server.get("persistentvolumeclaims", "a", "data")
			if claim == nil || markOf(claim) != nil || claim.GetAnnotations()[object.AnnotationRestoreUID] != "r" || d.server.created["persistentvolumeclaims/a/data"] != 1 {
				t.Errorf("%s: the claim is %v", what, claim)
			} else if from, _, _ := unstructured.NestedString(claim.Object, "spec", "dataSource", "name"); from != d.wanted[0].OfferName() {
				t.Errorf("%s: it is made from %q", what, from)
			}
			if d.server.get("pods", "a", "p") == nil || len(d.offered) > 0 {
				t.Errorf("%s: its user is missing, or left is %v", what, d.offered)
			}
			d.server.server.Close()
			if left > 0 {
				break
			}
		}
	}
}

// local is a backup of a claim whose data is moved, and whose snapshot stays in the storage of its volume.
func local(t *testing.T, changes ...func(map[string]any)) *source.Backup {
	t.Helper()
	backup := kept(t, changes...)
	backup.Volumes[0].Snapshot.Kept, backup.Volumes[0].Status.SnapshotID = false, "k1"
	return backup
}

// TestSnapshotBesideMovedData: a new claim is made from the snapshot that stays beside its moved data, if it can be.
// Else it gets the moved data, and a line says why. A plan says the same.
func TestSnapshotBesideMovedData(t *testing.T) {
	const fromSnapshot, fromLocation = "its data is the snapshot snap-1 of the driver ebs", "its data is read from the storage location, and not from its snapshot: "
	for name, test := range map[string]struct {
		change     func(d *storage, deps *Dependencies)
		class      string
		mapping    map[string]string
		annotation string
		uid        string
		says       string
		calls      []string
		// runs says that a plan finds nothing.
		runs bool
	}{
		"it is there":              {says: fromSnapshot, calls: []string{"Locate", "Offer", "Claim", "Withdraw"}},
		"asked for":                {annotation: "local", says: fromSnapshot, calls: []string{"Locate", "Offer", "Claim", "Withdraw"}},
		"another class of it":      {class: "gone", mapping: map[string]string{"gone": "fast"}, says: fromSnapshot, calls: []string{"Locate", "Offer", "Claim", "Withdraw"}},
		"the moved data asked for": {annotation: "moved", calls: []string{"Claim"}},
		"there is no snapshot":     {change: func(d *storage, _ *Dependencies) { d.missing = errors.New("it was deleted") }, says: fromLocation + "it was deleted", calls: []string{"Locate", "Claim"}},
		"there is no record of it": {change: func(d *storage, _ *Dependencies) { d.missing = snapshots.ErrNoRecord }, says: fromLocation + snapshots.ErrNoRecord.Error(), calls: []string{"Locate", "Claim"}},
		"only the backup names it": {change: func(d *storage, _ *Dependencies) { d.found.ByHandle = true }, says: fromLocation + "this cluster has no VolumeSnapshotContent", calls: []string{"Locate", "Claim"}},
		"no snapshots are used":    {change: func(_ *storage, deps *Dependencies) { deps.Snapshots = nil }, says: fromLocation, calls: []string{"Claim"}},
		"the claim has no uid":     {uid: "-", says: fromLocation, calls: []string{"Claim"}},
		"the class is of another":  {class: "nfs", says: fromLocation + "its data is a snapshot of the driver ebs, and the StorageClass nfs is of nfs.example.com", calls: []string{"Locate", "Claim"}},
		"mapped to one of another": {mapping: map[string]string{"fast": "nfs"}, says: fromLocation + "its data is a snapshot of the driver ebs, and the StorageClass nfs", calls: []string{"Locate", "Claim"}},
		"the class is missing":     {class: "gone", says: fromLocation + "its data is a snapshot of the driver ebs, and there is no StorageClass gone", calls: []string{"Locate", "Claim"}},
		"the mode is another":      {change: func(d *storage, _ *Dependencies) { d.found.Mode = "Block" }, says: fromLocation + "its data is a snapshot of a volume of the mode Block", calls: []string{"Locate", "Claim"}},
		"the offer fails":          {change: func(d *storage, _ *Dependencies) { d.notOffered = errors.New("no quorum") }, says: fromLocation + "no quorum", calls: []string{"Locate", "Offer", "Claim"}, runs: true},
	} {
		t.Run(name, func(t *testing.T) {
			var changes []func(map[string]any)
			if test.class != "" {
				changes = append(changes, with(test.class, "spec", "storageClassName"))
			}
			if test.uid != "" {
				changes = append(changes, func(o map[string]any) { unstructured.RemoveNestedField(o, "metadata", "uid") })
			}
			backup := local(t, changes...)
			for _, plan := range []bool{true, false} {
				d := newStorage(t)
				d.class("nfs", "nfs.example.com")
				r := request("r", v1alpha1.RestoreSpec{PlanOnly: plan, StorageClassMapping: test.mapping})
				r.Run.Spec.Annotations = map[string]string{}
				if test.annotation != "" {
					r.Run.Spec.Annotations[v1alpha1.AnnotationRestoreFrom] = test.annotation
				}
				log := runlog.New(clock.RealClock{})
				ended := want(t, d.server.run(t.Context(), backup, r, func(deps *Dependencies) {
					deps.Volumes, deps.Snapshots, deps.Log = d, d, log
					if test.change != nil {
						test.change(d, deps)
					}
				}), v1alpha1.RestorePhaseCompleted)
				says, calls := test.says, test.calls
				if plan {
					calls = slices.DeleteFunc(slices.Clone(calls), func(call string) bool { return call != "Locate" })
				}
				if plan && test.runs {
					says = fromSnapshot
				}
				d.calls(t, calls...)
				if plan {
					if i := slices.IndexFunc(ended.Items, func(o format.PlannedObject) bool { return o.Kind == "PersistentVolumeClaim" }); !strings.HasPrefix(ended.Items[i].Reason, says) || (ended.Items[i].Reason == "") != (says == "") {
						t.Errorf("the plan says %q, want %q", ended.Items[i].Reason, says)
					}
					continue
				}
				var text bytes.Buffer
				if err := log.Copy(t.Context(), &text, false); err != nil {
					t.Fatal(err)
				}
				unzip, err := gzip.NewReader(&text)
				if err != nil {
					t.Fatal(err)
				}
				said, err := io.ReadAll(unzip)
				if err != nil {
					t.Fatal(err)
				}
				lines := strings.Count(string(said), fromSnapshot) + strings.Count(string(said), fromLocation)
				if !strings.Contains(string(said), says) || says != "" && lines != 1 || says == "" && lines != 0 {
					t.Errorf("the log has %d lines, want %q:\n%s", lines, says, said)
				}
				made := says == fromSnapshot
				claim := d.server.get("persistentvolumeclaims", "a", "data")
				if _, from, _ := unstructured.NestedMap(claim.Object, "spec", "dataSource"); from != made || len(d.claims) != 1 || d.claims[0].Provisioned != made || d.claims[0].Data.Status.SnapshotID != "k1" {
					t.Errorf("the claim is %v, and waited for is %+v", claim.Object, d.claims)
				}
				if d.server.get("pods", "a", "p") == nil {
					t.Error("its user is missing")
				}
			}
		})
	}
}

// TestExistingClaimBesideASnapshot: an existing claim gets the moved data, with and without paths.
func TestExistingClaimBesideASnapshot(t *testing.T) {
	for _, spec := range []v1alpha1.RestoreSpec{
		{ExistingVolumePolicy: v1alpha1.ExistingVolumeOverwrite},
		{ExistingVolumePolicy: v1alpha1.ExistingVolumeOverwrite, VolumesOnly: true, Paths: []string{"file"}},
	} {
		d := newStorage(t)
		d.server.add("namespaces", obj("v1", "Namespace", "", "a"))
		d.server.add("persistentvolumeclaims", obj("v1", "PersistentVolumeClaim", "a", "data", with("theirs", "metadata", "uid"), with("fast", "spec", "storageClassName"), with("1Gi", "spec", "resources", "requests", "storage")))
		d.run(t.Context(), local(t), spec)
		d.calls(t, "Claim")
		if len(d.claims) != 1 || d.claims[0].Provisioned {
			t.Errorf("waited for is %+v", d.claims)
		}
	}
}

// TestLocalClaimNeverMade: a claim whose volume is not made from its snapshot is an error that says how to get the moved data.
func TestLocalClaimNeverMade(t *testing.T) {
	d := newStorage(t)
	d.notBound = errors.New("not within an hour")
	want(t, d.run(t.Context(), local(t), v1alpha1.RestoreSpec{}), v1alpha1.RestorePhasePartiallyFailed, "not within an hour: its data is in the storage location too: for that, give the restore the annotation holdfast.io/restore-from: moved", "it uses the claim a/data")
	d.calls(t, "Locate", "Offer", "Claim")
}

// TestLocalClaimOfAKilledProcess: a restore that continues knows by its claim whether that is made from its snapshot.
func TestLocalClaimOfAKilledProcess(t *testing.T) {
	for _, made := range []bool{true, false} {
		d := newStorage(t)
		d.missing = errors.New("it is gone since")
		d.server.add("namespaces", obj("v1", "Namespace", "", "a"))
		claim := obj("v1", "PersistentVolumeClaim", "a", "data", with("fast", "spec", "storageClassName"),
			with(map[string]any{object.AnnotationRestoreUID: "r", format.AnnotationIncomplete: mark{restore: "r", made: true}.String()}, "metadata", "annotations"))
		if made {
			of := snapshots.Wanted{Restore: "r", ClaimUID: "old-PersistentVolumeClaim-a-data", Namespace: "a", Claim: "data"}
			with(map[string]any{"kind": "VolumeSnapshot", "name": of.OfferName()}, "spec", "dataSource")(claim)
		}
		d.server.add("persistentvolumeclaims", claim)
		want(t, d.run(t.Context(), local(t), v1alpha1.RestoreSpec{}), v1alpha1.RestorePhaseCompleted)
		if len(d.claims) != 1 || d.claims[0].Provisioned != made {
			t.Errorf("made %t: waited for is %+v", made, d.claims)
		}
	}
}
