// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
)

func snapshotClass(name, driver string, labelled bool) snapshots.VolumeSnapshotClass {
	class := snapshots.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Driver: driver}
	if labelled {
		class.Labels = map[string]string{snapshots.LabelClass: "true"}
	}
	return class
}

// withSnapshots makes snapshots of the given classes.
func (f *fixture) withSnapshots(classes ...snapshots.VolumeSnapshotClass) *fixture {
	f.deps.SnapshotClasses = func(context.Context) ([]snapshots.VolumeSnapshotClass, error) { return classes, nil }
	return f
}

// csiClaim adds a claim with a volume of a driver, and perhaps annotations.
func (f *fixture) csiClaim(name, driver, mode string, annotations ...string) {
	f.csiClaimWith(name, driver, mode, `"annotations":{`+strings.Join(annotations, ",")+`}`)
}

func (f *fixture) csiClaimWith(name, driver, mode, metadata string) {
	f.add("persistentvolumes", fmt.Sprintf(`{"metadata":{"name":"pv-%s"},"spec":{"csi":{"driver":%q,"volumeHandle":"h-%[1]s"},"storageClassName":"slow","capacity":{"storage":"5Gi"},"claimRef":{"namespace":"shop","name":%[1]q,"uid":"uid-%[1]s"}}}`, name, driver))
	f.add("persistentvolumeclaims", fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"shop","uid":"uid-%[1]s",%[3]s},"spec":{"volumeName":"pv-%[1]s","volumeMode":%[2]q},"status":{"phase":"Bound"}}`, name, mode, metadata))
}

func claimIn(volume, claim string) string {
	return volume + fmt.Sprintf(` "persistentVolumeClaim":{"claimName":%q}`, claim)
}

// ways returns how each claim was handed over: by a snapshot, or by its pod.
func (f *fixture) ways() []string {
	var ways []string
	for _, volume := range f.volumes.submitted {
		way := "files in " + volume.Pod.Name
		if of := volume.Snapshot; of != nil {
			way = "class " + of.Class + " for " + volume.Pod.Name
		}
		ways = append(ways, volume.ClaimName+": "+way)
	}
	slices.Sort(ways)
	return ways
}

// TestWhichClaimsAreCut has the order of the choices: volume policy, pod, spec, and the label of a class.
func TestWhichClaimsAreCut(t *testing.T) {
	policyOf := func(action string) map[string]string {
		return policy("csi:{driver:d}: " + action)
	}
	for name, test := range map[string]struct {
		wanted  *bool
		files   *bool
		classes []snapshots.VolumeSnapshotClass
		policy  map[string]string
		pod     string // its annotations
		want    []string
		// how many are told of
		errors, warnings int32
		words            string
	}{
		"asked for": {wanted: new(true), files: new(false), classes: []snapshots.VolumeSnapshotClass{snapshotClass("fast", "d", false)},
			want: []string{"idle: class fast for ", "used: class fast for web"}, warnings: 1, words: "the data of the claim is not backed up: no snapshot is made of it: there is no VolumeSnapshotClass of the driver e"},
		"asked for, and the rest by files": {wanted: new(true), classes: []snapshots.VolumeSnapshotClass{snapshotClass("fast", "d", false)},
			want: []string{"idle: class fast for ", "other: files in web", "used: class fast for web"}},
		"a labelled class": {classes: []snapshots.VolumeSnapshotClass{snapshotClass("fast", "d", true), snapshotClass("else", "e", false)},
			want: []string{"idle: class fast for ", "other: files in web", "used: class fast for web"}},
		"no labelled class": {classes: []snapshots.VolumeSnapshotClass{snapshotClass("fast", "d", false)},
			want: []string{"other: files in web", "used: files in web"}, warnings: 1, words: "files are read through one"},
		"refused by the spec": {wanted: new(false), classes: []snapshots.VolumeSnapshotClass{snapshotClass("fast", "d", true)},
			want: []string{"other: files in web", "used: files in web"}, warnings: 1, words: "files are read through one"},
		"files of all": {wanted: new(true), files: new(true), classes: []snapshots.VolumeSnapshotClass{snapshotClass("fast", "d", false)},
			want: []string{"idle: class fast for ", "other: files in web", "used: files in web"}},
		"the pod names files": {wanted: new(true), files: new(false), classes: []snapshots.VolumeSnapshotClass{snapshotClass("fast", "d", false)},
			pod: `"backup.holdfast.io/backup-volumes":"u"`, want: []string{"idle: class fast for ", "used: files in web"}, warnings: 1},
		"the pod leaves them out": {wanted: new(true), classes: []snapshots.VolumeSnapshotClass{snapshotClass("fast", "d", false)},
			pod: `"backup.holdfast.io/backup-volumes-excludes":"u,o"`, want: []string{"idle: class fast for "}},
		"the pod leaves their files out": {wanted: new(true), files: new(true), classes: []snapshots.VolumeSnapshotClass{snapshotClass("fast", "d", false)},
			pod: `"backup.velero.io/backup-volumes-excludes":"u"`, want: []string{"idle: class fast for ", "other: files in web", "used: class fast for web"}},
		"a policy wins": {wanted: new(false), files: new(false), classes: []snapshots.VolumeSnapshotClass{snapshotClass("fast", "d", false)},
			policy: policyOf("snapshot"), pod: `"backup.holdfast.io/backup-volumes":"u"`, want: []string{"idle: class fast for ", "used: class fast for web"}},
		"a policy wants files": {wanted: new(true), classes: []snapshots.VolumeSnapshotClass{snapshotClass("fast", "d", false)},
			policy: policyOf("fs-backup"), want: []string{"other: files in web", "used: files in web"}, warnings: 1, words: "files are read through one"},
		"a policy skips": {wanted: new(true), classes: []snapshots.VolumeSnapshotClass{snapshotClass("fast", "d", false)},
			policy: policyOf("skip"), want: []string{"other: files in web"}},
		"no class, asked for by the spec": {wanted: new(true), want: []string{"other: files in web", "used: files in web"}, warnings: 1, words: "files are read through one"},
		"no class, asked for by a policy": {policy: policyOf("snapshot"), want: []string{"other: files in web"},
			errors: 2, words: "there is no VolumeSnapshotClass of the driver d"},
		"two classes": {wanted: new(true), classes: []snapshots.VolumeSnapshotClass{snapshotClass("fast", "d", true), snapshotClass("slow", "d", true)},
			want: []string{"other: files in web"}, errors: 2, words: "of fast, slow"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, SnapshotVolumes: test.wanted})
			f.withSnapshots(test.classes...)
			f.request.Backup.Spec.DefaultVolumesToFsBackup, f.request.Backup.Spec.SnapshotVolumes = test.files, test.wanted
			if test.policy != nil {
				f.request.Backup.Spec.ResourcePolicy = &v1alpha1.ResourcePolicyReference{Kind: "configmap", Name: "mine"}
				f.deps.Policies = testPolicies(func(string, string) (map[string]string, error) { return test.policy, nil })
			}
			f.add("namespaces", namespace("shop", ""))
			f.csiClaim("used", "d", "Filesystem")
			f.csiClaim("idle", "d", "Filesystem")
			f.csiClaim("other", "e", "Filesystem")
			f.add("pods", podWith("web", test.pod, claimIn("u", "used"), claimIn("o", "other")))
			outcome := f.run(t)
			if diff := gocmp.Diff(test.want, f.ways()); diff != "" {
				t.Errorf("the ways (-want +got):\n%s", diff)
			}
			if log := f.text(t, format.LogKey("b")); outcome.Status.Errors != test.errors || outcome.Status.Warnings != test.warnings || !strings.Contains(log, test.words) {
				t.Errorf("%d errors and %d warnings, want %d and %d with %q:\n%s", outcome.Status.Errors, outcome.Status.Warnings, test.errors, test.warnings, test.words, log)
			}
		})
	}
}

// TestGroupsOfSnapshots: claims with an equal group label are cut one after another, and the user is told, unless
// hooks of one pod freeze all of them.
func TestGroupsOfSnapshots(t *testing.T) {
	const hook = `"pre.hook.backup.velero.io/command":"/freeze"`
	for name, test := range map[string]struct {
		label  string
		values [2]string
		pods   []string // for each claim, or one for both
		hook   string
		want   int32
	}{
		"no label":            {label: "app", values: [2]string{"db", "db"}, pods: []string{"web"}},
		"another value":       {label: velerosGroupLabel, values: [2]string{"db", "else"}, pods: []string{"web"}},
		"no pod":              {label: velerosGroupLabel, values: [2]string{"db", "db"}, want: 1},
		"a pod without hooks": {label: velerosGroupLabel, values: [2]string{"db", "db"}, pods: []string{"web"}, want: 1},
		"a pod with hooks":    {label: velerosGroupLabel, values: [2]string{"db", "db"}, pods: []string{"web"}, hook: hook},
		"two pods with hooks": {label: velerosGroupLabel, values: [2]string{"db", "db"}, pods: []string{"web", "worker"}, hook: hook, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, SnapshotVolumes: new(true)})
			f.withSnapshots(snapshotClass("fast", "d", false))
			f.add("namespaces", namespace("shop", ""))
			for i, name := range []string{"data", "log"} {
				f.csiClaimWith(name, "d", "Filesystem", fmt.Sprintf(`"labels":{%q:%q}`, test.label, test.values[i]))
			}
			volumes := []string{claimIn("d", "data"), claimIn("l", "log")}
			switch len(test.pods) {
			case 1:
				f.add("pods", podWith(test.pods[0], test.hook, volumes...))
			case 2:
				f.add("pods", podWith(test.pods[0], test.hook, volumes[0]))
				f.add("pods", podWith(test.pods[1], test.hook, volumes[1]))
			}
			outcome := f.run(t)
			log := f.text(t, format.LogKey("b"))
			if told := strings.Contains(log, "not from the same instant as the one of the claim data"); outcome.Status.Warnings != test.want || told != (test.want > 0) {
				t.Errorf("%d warnings, want %d:\n%s", outcome.Status.Warnings, test.want, log)
			}
		})
	}
}

// TestSnapshotsOfALabelledPod: a pod that is labelled to be left out is not backed up. Its claim's data is, as in
// Velero, since no pod is needed for a snapshot.
func TestSnapshotsOfALabelledPod(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, SnapshotVolumes: new(true)}).withSnapshots(snapshotClass("fast", "d", false))
	f.add("namespaces", namespace("shop", ""))
	f.csiClaim("data", "d", "Filesystem")
	f.csiClaim("other", "e", "Filesystem")
	f.add("pods", strings.Replace(podWith("p", "", claimIn("d", "data"), claimIn("o", "other")), `"metadata":{`, `"metadata":{"labels":{"velero.io/exclude-from-backup":"true"},`, 1))
	outcome := f.run(t)
	if diff := gocmp.Diff([]string{"data: class fast for "}, f.ways()); diff != "" || outcome.Status.Warnings != 0 {
		t.Errorf("the ways (-want +got):\n%s\n%+v", diff, f.results(t))
	}
}

// TestPoliciesThatWantImpossibleSnapshots: the words name the cause, and scratch space is no warning.
func TestPoliciesThatWantImpossibleSnapshots(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}}).withSnapshots(snapshotClass("fast", "d", false))
	f.request.Backup.Spec.ResourcePolicy = &v1alpha1.ResourcePolicyReference{Kind: "configmap", Name: "mine"}
	f.deps.Policies = testPolicies(func(string, string) (map[string]string, error) {
		return map[string]string{"policies": "version: v1\nvolumePolicies:\n- conditions: {}\n  action: {type: snapshot}\n"}, nil
	})
	f.add("namespaces", namespace("shop", ""))
	f.add("persistentvolumeclaims", `{"metadata":{"name":"new","namespace":"shop","uid":"u"},"spec":{},"status":{"phase":"Pending"}}`)
	f.add("pods", podWith("p", "", "n"+claimIn("", "new"), "tmp"+emptyDir))
	f.run(t)
	want := []string{"pods shop/p: the data of volume n (claim new) is not backed up: the claim is not bound"}
	if diff := gocmp.Diff(want, f.results(t).Warnings.Namespaces["shop"]); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

// TestDevicesAreMoved: a block device is read from its snapshot, and listed without the pod that has it: Velero
// would mount it there.
func TestDevicesAreMoved(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, SnapshotVolumes: new(true)}).withSnapshots(snapshotClass("fast", "d", false))
	f.add("namespaces", namespace("shop", ""))
	f.csiClaim("disk", "d", "Block")
	f.csiClaim("data", "d", "Filesystem")
	f.run(t)
	for _, volume := range f.volumes.submitted {
		if volume.Device != (volume.ClaimName == "disk") {
			t.Errorf("%s is a device: %t", volume.ClaimName, volume.Device)
		}
	}
	if list := f.text(t, format.PodVolumeBackupsKey("b")); len(f.volumes.submitted) != 2 || strings.Count(list, `"holdfast.io/volume-mode":"Block"`) != 1 {
		t.Errorf("submitted are %+v, and listed %s", f.volumes.submitted, list)
	}
}

// TestWhichSnapshotsAreKept: a volume policy, the spec and the controller say, in this order, whether a snapshot
// stays in its storage. Then claims of pods can't be cut.
func TestWhichSnapshotsAreKept(t *testing.T) {
	for name, test := range map[string]struct {
		keep           bool
		spec           *bool
		policy         string
		mode, owner    string
		want           bool
		errors         int32
		words, inStore string
	}{
		"by default":               {},
		"the controller's default": {keep: true, want: true},
		"the spec":                 {spec: new(false), want: true},
		"the spec, over default":   {keep: true, spec: new(true)},
		"a policy":                 {spec: new(true), policy: "snapshotMoveData: false", want: true},
		"a policy that moves":      {spec: new(false), policy: "snapshotMoveData: true"},
		"a policy without a word":  {spec: new(false), policy: "snapshotClass: fast", want: true},
		"a block device":           {spec: new(false), mode: "Block", want: true},
		"a block device moved":     {mode: "Block"},
		"a pod's claim":            {spec: new(false), policy: "snapshotClass: fast", owner: "web", errors: 1, words: "can't be made from a snapshot"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, SnapshotVolumes: new(true), SnapshotMoveData: test.spec}).withSnapshots(snapshotClass("fast", "d", false))
			f.deps.KeepSnapshots = test.keep
			if test.policy != "" {
				f.request.Backup.Spec.ResourcePolicy = &v1alpha1.ResourcePolicyReference{Kind: "configmap", Name: "mine"}
				f.deps.Policies = testPolicies(func(string, string) (map[string]string, error) {
					return map[string]string{"a": "version: v1\nvolumePolicies: [{conditions: {csi: {driver: d}}, action: {type: snapshot, parameters: {" + test.policy + "}}}]"}, nil
				})
			}
			f.add("namespaces", namespace("shop", ""))
			f.csiClaim("web-data", "d", cmp.Or(test.mode, "Filesystem"))
			if test.owner != "" {
				claim := &f.objects[claimsResource][0]
				claim.raw = bytes.Replace(claim.raw, []byte(`"annotations"`), []byte(`"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"web","uid":"w"}],"annotations"`), 1)
			}
			f.volumes.result = func(volume *format.Volume) enginev1alpha1.VolumeUploadStatus {
				return enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted}
			}
			outcome := f.run(t)
			if outcome.Status.Errors != test.errors || !strings.Contains(f.text(t, format.LogKey("b")), test.words) {
				t.Errorf("%+v:\n%s", outcome.Status, f.text(t, format.LogKey("b")))
			}
			kept := len(f.volumes.submitted) == 1 && f.volumes.submitted[0].Snapshot.Kept
			listed := strings.Contains(f.text(t, format.PodVolumeBackupsKey("b")), "stored-web-data")
			if counted := outcome.Status.Volumes != nil && outcome.Status.Volumes.InStorage == 1; kept != test.want || counted != test.want || listed != test.want {
				t.Errorf("kept %t, counted %t, listed %t, want %t", kept, counted, listed, test.want)
			}
		})
	}
}

// TestSnapshotsBesideMovedData: a volume policy says how many snapshots of a claim stay beside their moved data. One
// that contradicts the spec, or the controller, ends the backup.
func TestSnapshotsBesideMovedData(t *testing.T) {
	for name, test := range map[string]struct {
		keep    bool
		spec    *bool
		policy  string
		owner   bool
		want    int32
		kept    bool
		refused string
	}{
		"asked for":                      {policy: "keepLocalSnapshots: 3", want: 3},
		"the most":                       {policy: "keepLocalSnapshots: 64, snapshotMoveData: true", want: 64},
		"none":                           {policy: "keepLocalSnapshots: 0"},
		"none, and not moved":            {policy: "keepLocalSnapshots: 0, snapshotMoveData: false", kept: true},
		"against the spec":               {policy: "keepLocalSnapshots: 3", spec: new(false), refused: "volumePolicies[0]: action.parameters.keepLocalSnapshots is 3, and snapshotMoveData is false"},
		"against the controller":         {policy: "keepLocalSnapshots: 3", keep: true, refused: "set it to true there"},
		"over the spec":                  {policy: "keepLocalSnapshots: 3, snapshotMoveData: true", spec: new(false), want: 3},
		"the spec, over the default":     {policy: "keepLocalSnapshots: 3", spec: new(true), keep: true, want: 3},
		"a pod's claim can't be made so": {policy: "keepLocalSnapshots: 3", owner: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, SnapshotMoveData: test.spec}).withSnapshots(snapshotClass("fast", "d", false))
			f.deps.KeepSnapshots = test.keep
			f.request.Backup.Spec.ResourcePolicy = &v1alpha1.ResourcePolicyReference{Kind: "configmap", Name: "mine"}
			f.deps.Policies = testPolicies(func(string, string) (map[string]string, error) {
				return map[string]string{"a": "version: v1\nvolumePolicies: [{conditions: {csi: {driver: d}}, action: {type: snapshot, parameters: {" + test.policy + "}}}]"}, nil
			})
			f.add("namespaces", namespace("shop", ""))
			f.csiClaim("data", "d", "Filesystem")
			if test.owner {
				claim := &f.objects[claimsResource][0]
				claim.raw = bytes.Replace(claim.raw, []byte(`"annotations"`), []byte(`"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"web","uid":"w"}],"annotations"`), 1)
			}
			f.volumes.result = func(*format.Volume) enginev1alpha1.VolumeUploadStatus {
				return enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted}
			}
			plan, outcome := f.plan(t.Context(), DefaultPlanLimits), f.run(t)
			if said := fmt.Sprintf("; the claim's newest %d stay in its storage", test.want); test.want > 0 && (len(plan.Volumes) != 1 || !strings.HasSuffix(plan.Volumes[0].Reason, said)) {
				t.Errorf("planned are %+v", plan.Volumes)
			}
			if test.refused != "" {
				if outcome.Status.Phase != v1alpha1.BackupPhaseFailed || !strings.Contains(outcome.Status.FailureReason, test.refused) || len(f.volumes.submitted) > 0 {
					t.Errorf("%+v", outcome.Status)
				}
				return
			}
			if len(f.volumes.submitted) != 1 {
				t.Fatalf("submitted are %v: %+v", f.volumes.submitted, outcome.Status)
			}
			if of := f.volumes.submitted[0].Snapshot; of.KeepLocal != test.want || of.Kept != test.kept {
				t.Errorf("it is %+v", of)
			}
		})
	}
}

// TestScratchIsNotCut: the volume of a generic ephemeral volume is deleted with its pod, and left out.
func TestScratchIsNotCut(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, SnapshotVolumes: new(true)}).withSnapshots(snapshotClass("fast", "d", false))
	f.add("namespaces", namespace("shop", ""))
	f.add("persistentvolumes", `{"metadata":{"name":"pv"},"spec":{"csi":{"driver":"d","volumeHandle":"h"},"claimRef":{"namespace":"shop","name":"web-tmp","uid":"u"}}}`)
	f.add("persistentvolumeclaims", `{"metadata":{"name":"web-tmp","namespace":"shop","uid":"u","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"web","uid":"w"}]},"spec":{"volumeName":"pv"},"status":{"phase":"Bound"}}`)
	if outcome := f.run(t); outcome.Status.Errors != 0 || len(f.ways()) > 0 {
		t.Errorf("%+v, %v", outcome.Status, f.ways())
	}
}

// TestSnapshotsThatCantBeMade: a backup that asks for snapshots fails where none are made, and where
// the classes can't be read.
func TestSnapshotsThatCantBeMade(t *testing.T) {
	for words, classes := range map[string]func(context.Context) ([]snapshots.VolumeSnapshotClass, error){
		"start it with --snapshots": nil,
		"no quorum":                 func(context.Context) ([]snapshots.VolumeSnapshotClass, error) { return nil, errors.New("no quorum") },
	} {
		f := newFixture(t, v1alpha1.BackupSpec{SnapshotVolumes: new(true)})
		f.deps.SnapshotClasses = classes
		if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseFailed || !strings.Contains(outcome.Status.FailureReason, words) {
			t.Errorf("%s: %+v", words, outcome.Status)
		}
	}
}

// TestSnapshotsWithoutRights: a controller without the rights of its flag backs up files, and warns of it. A
// backup that asks for snapshots fails.
func TestSnapshotsWithoutRights(t *testing.T) {
	for _, wanted := range []*bool{nil, new(true)} {
		f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, SnapshotVolumes: wanted})
		f.request.Backup.Spec.DefaultVolumesToFsBackup, f.request.Backup.Spec.SnapshotVolumes = nil, wanted
		f.deps.SnapshotClasses = func(context.Context) ([]snapshots.VolumeSnapshotClass, error) {
			return nil, apierrors.NewForbidden(snapshots.Classes.GroupResource(), "", errors.New("no role"))
		}
		f.add("namespaces", namespace("shop", ""))
		f.csiClaim("used", "d", "Filesystem")
		f.add("pods", podWith("web", "", claimIn("u", "used")))
		outcome, want := f.run(t), v1alpha1.BackupPhaseCompleted
		if wanted != nil {
			want = v1alpha1.BackupPhaseFailed
		}
		if outcome.Status.Phase != want || want == v1alpha1.BackupPhaseCompleted && (outcome.Status.Warnings != 1 || !slices.Equal(f.ways(), []string{"used: files in web"})) {
			t.Errorf("%+v, %q", outcome.Status, f.ways())
		}
	}
}

// TestHooksEncloseTheCut: a pod is thawed when its snapshot is cut, and its node's agent need not be free.
func TestHooksEncloseTheCut(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, SnapshotVolumes: new(true), Hooks: dbHooks("")}).watched().withSnapshots(snapshotClass("fast", "d", false))
	f.add("namespaces", namespace("shop", ""))
	f.csiClaim("data", "d", "Filesystem")
	f.add("pods", hookedPod("db", "n1", isDB, "", claimIn("v", "data")))
	f.volumes.onCut = func() { f.hooks.note("cut") }
	f.run(t)
	want := []string{"pending db", "db/c1: freeze /d", "submit db/v", "cut", "db/c1: thaw /d", "pending none", "cut", "read db/v"}
	if diff := gocmp.Diff(want, f.hooks.events); diff != "" {
		t.Errorf("what was done (-want +got):\n%s", diff)
	}
}

// TestCopiesOfXFS: a copy of an XFS has the uuid of the original, so another node is to mount it.
func TestCopiesOfXFS(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, SnapshotVolumes: new(true)}).withSnapshots(snapshotClass("fast", "d", false))
	f.add("namespaces", namespace("shop", ""))
	for _, fileSystem := range []string{"xfs", "ext4"} {
		f.add("persistentvolumes", fmt.Sprintf(`{"metadata":{"name":"pv-%[1]s"},"spec":{"csi":{"driver":"d","volumeHandle":"h-%[1]s","fsType":%[1]q},"storageClassName":"slow","claimRef":{"namespace":"shop","name":%[1]q,"uid":"uid-%[1]s"}}}`, fileSystem))
		f.add("persistentvolumeclaims", fmt.Sprintf(`{"metadata":{"name":%[1]q,"namespace":"shop","uid":"uid-%[1]s"},"spec":{"volumeName":"pv-%[1]s"},"status":{"phase":"Bound"}}`, fileSystem))
		f.add("pods", hookedPod("pod-"+fileSystem, "n1", "", "", claimIn("v", fileSystem)))
	}
	f.run(t)
	avoided := map[string]string{}
	for _, volume := range f.volumes.submitted {
		avoided[volume.ClaimName] = volume.Snapshot.Avoid
	}
	if want := map[string]string{"xfs": "n1", "ext4": ""}; !maps.Equal(avoided, want) {
		t.Errorf("avoided are %v, want %v", avoided, want)
	}
}

// TestOrderedPodsAreCutTogether: all pods that orderedResources names are frozen while their snapshots are cut, so that
// these agree.
func TestOrderedPodsAreCutTogether(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, SnapshotVolumes: new(true), Hooks: dbHooks(""), OrderedResources: map[string]string{"pods": "shop/db,shop/log"}}).watched().withSnapshots(snapshotClass("fast", "d", false))
	f.add("namespaces", namespace("shop", ""))
	f.csiClaim("data", "d", "Filesystem")
	f.csiClaim("journal", "d", "Filesystem")
	f.add("pods", hookedPod("log", "n1", isDB, "", claimIn("v", "journal")), hookedPod("db", "n1", isDB, "", claimIn("v", "data")))
	f.volumes.onCut = func() { f.hooks.note("cut") }
	f.run(t)
	want := []string{"pending db,log", "db/c1: freeze /d", "log/c1: freeze /d", "submit db/v", "submit log/v", "cut", "db/c1: thaw /d", "log/c1: thaw /d", "pending none", "cut", "read db/v", "read log/v"}
	if diff := gocmp.Diff(want, f.hooks.events); diff != "" {
		t.Errorf("what was done (-want +got):\n%s", diff)
	}
}

// TestAFailedSnapshotIsNamed: an error names the claim, and other ways are not taken.
func TestAFailedSnapshotIsNamed(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, SnapshotVolumes: new(true)}).withSnapshots(snapshotClass("fast", "d", false))
	f.add("namespaces", namespace("shop", ""))
	f.csiClaim("idle", "d", "Filesystem")
	f.csiClaim("used", "d", "Filesystem")
	f.add("pods", podWith("a", "", claimIn("u", "used")), podWith("b", "", claimIn("u", "used")))
	f.volumes.result = func(*format.Volume) enginev1alpha1.VolumeUploadStatus {
		return enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseFailed, Message: "no space"}
	}
	outcome := f.run(t)
	if log := f.text(t, format.LogKey("b")); outcome.Status.Errors != 2 || len(f.ways()) != 2 || !strings.Contains(log, "the claim could not be uploaded: no space") {
		t.Errorf("%+v, %v:\n%s", outcome.Status, f.ways(), log)
	}
}

// TestPlanOfSnapshots: a plan says which claims are cut, and by whom.
func TestPlanOfSnapshots(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, SnapshotVolumes: new(true)}).withSnapshots(snapshotClass("fast", "d", false))
	f.add("namespaces", namespace("shop", ""))
	f.csiClaim("idle", "d", "Filesystem")
	plan := f.plan(t.Context(), DefaultPlanLimits)
	if len(plan.Volumes) != 1 || plan.Volumes[0].Method != v1alpha1.VolumeMethodSnapshot || !strings.Contains(plan.Volumes[0].Reason, "driver d") || plan.Volumes[0].Bytes != 5<<30 {
		t.Errorf("the volumes are %+v", plan.Volumes)
	}
}

// TestChosenClasses: a volume policy, the claim and the backup choose the class, in this order. Another class
// than the cluster's takes the right to make VolumeSnapshots. A missing class is an error.
func TestChosenClasses(t *testing.T) {
	byPolicy := func(class string) map[string]string {
		return map[string]string{"a": "version: v1\nvolumePolicies: [{conditions: {csi: {driver: d}}, action: {type: snapshot, parameters: {snapshotMoveData: true, snapshotClass: " + class + "}}}]"}
	}
	cluster := []snapshots.VolumeSnapshotClass{snapshotClass("usual", "d", true), snapshotClass("fast", "d", false), snapshotClass("cheap", "d", false), snapshotClass("else", "e", false)}
	for name, test := range map[string]struct {
		policy        map[string]string
		claim, backup string
		classes       []snapshots.VolumeSnapshotClass
		refused       error
		asked         int
		want, words   string
	}{
		"none":                       {classes: cluster, want: "usual"},
		"the policy's":               {classes: cluster, policy: byPolicy("fast"), claim: "cheap", backup: "usual", asked: 1, want: "fast"},
		"the claim's":                {classes: cluster, claim: "cheap", backup: "fast", asked: 1, want: "cheap"},
		"the backup's":               {classes: cluster, backup: "fast", asked: 1, want: "fast"},
		"the usual one takes none":   {classes: cluster, claim: "usual", refused: NotAllowedError("ada may not"), want: "usual"},
		"without the right":          {classes: cluster, claim: "fast", refused: NotAllowedError("ada may not"), asked: 1, words: "a user has named the VolumeSnapshotClass fast, which takes a right: ada may not"},
		"without an answer":          {classes: cluster, claim: "fast", refused: errors.New("no quorum"), asked: 4, words: "no quorum"},
		"a missing one":              {classes: cluster, backup: "lost", words: "the backup's annotation velero.io/csi-volumesnapshot-class_d names the VolumeSnapshotClass lost for the driver d, which does not exist"},
		"of another driver":          {classes: cluster, claim: "else", words: "which is of the driver e and the volume of d"},
		"one, and the driver has no": {claim: "fast", words: "names the VolumeSnapshotClass fast for the driver d, which does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, SnapshotVolumes: new(true)}).withSnapshots(test.classes...)
			asked := 0
			f.deps.MayChooseClass = func(_ context.Context, namespace string) error {
				if asked++; namespace != "shop" {
					t.Errorf("asked about the namespace %s", namespace)
				}
				return test.refused
			}
			if test.policy != nil {
				f.request.Backup.Spec.ResourcePolicy = &v1alpha1.ResourcePolicyReference{Kind: "configmap", Name: "mine"}
				f.deps.Policies = testPolicies(func(string, string) (map[string]string, error) { return test.policy, nil })
			}
			if test.backup != "" {
				f.request.Backup.Annotations = map[string]string{"velero.io/csi-volumesnapshot-class_d": test.backup, "velero.io/csi-volumesnapshot-class_e": "lost"}
			}
			f.add("namespaces", namespace("shop", ""))
			want := []string{}
			for _, claim := range []string{"one", "two"} {
				if test.claim != "" {
					f.csiClaim(claim, "d", "Filesystem", fmt.Sprintf("%q:%q", snapshots.LabelClass, test.claim))
				} else {
					f.csiClaim(claim, "d", "Filesystem")
				}
				if test.want != "" {
					want = append(want, claim+": class "+test.want+" for ")
				}
			}
			outcome, errors := f.run(t), int32(2-len(want))
			if got := f.ways(); !slices.Equal(got, want) || asked != test.asked {
				t.Errorf("the ways are %q, want %q, after %d questions, want %d", got, want, asked, test.asked)
			}
			if log := f.text(t, format.LogKey("b")); outcome.Status.Errors != errors || !strings.Contains(log, test.words) {
				t.Errorf("%d errors, want %d with %q:\n%s", outcome.Status.Errors, errors, test.words, log)
			}
			// A restore makes nothing that would start on an empty volume.
			if failed := strings.Count(f.text(t, format.VolumeInfoKey("b")), `"result":"failed"`); failed != int(errors) {
				t.Errorf("%d volumes have failed, want %d", failed, errors)
			}
		})
	}
}
