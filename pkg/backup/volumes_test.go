// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/restorewait"
)

// podWith is a running pod that mounts each of the volumes, given as NAME SOURCE.
func podWith(name, annotations string, volumes ...string) string {
	return podIn("Running", name, annotations, volumes...)
}

func podIn(phase, name, annotations string, volumes ...string) string {
	var mounts, sources []string
	for _, volume := range volumes {
		name, source, _ := strings.Cut(volume, " ")
		mounts = append(mounts, fmt.Sprintf(`{"name":%q}`, name))
		sources = append(sources, fmt.Sprintf(`{"name":%q,%s}`, name, source))
	}
	return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"shop","uid":"uid-%s","annotations":{%s}},
		"spec":{"nodeName":"n1","containers":[{"volumeMounts":[%s]}],"volumes":[%s]},"status":{"phase":%q}}`,
		name, name, annotations, strings.Join(mounts, ","), strings.Join(sources, ","), phase)
}

const (
	emptyDir     = ` "emptyDir":{}`
	claimData    = ` "persistentVolumeClaim":{"claimName":"data"}`
	claimIdle    = ` "persistentVolumeClaim":{"claimName":"idle"}`
	claimPending = ` "persistentVolumeClaim":{"claimName":"pending"}`
	claimLocal   = ` "persistentVolumeClaim":{"claimName":"local"}`
	claimLost    = ` "persistentVolumeClaim":{"claimName":"lost"}`
	claimNamed   = ` "persistentVolumeClaim":{"claimName":"named"}`
	claimUnnamed = ` "persistentVolumeClaim":{"claimName":"unnamed"}`
	claimGone    = ` "persistentVolumeClaim":{"claimName":"gone"}`
	claimPrivate = ` "persistentVolumeClaim":{"claimName":"private"}`
)

func (f *fixture) claims() {
	bound := func(name, volume, labels string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"shop","uid":"claim-%s","labels":{%s}},"spec":{"volumeName":%q},"status":{"phase":"Bound"}}`, name, name, labels, volume)
	}
	f.add("namespaces", namespace("shop", ""))
	f.add("persistentvolumes", `{"metadata":{"name":"pv-data"},"spec":{"csi":{}}}`, `{"metadata":{"name":"pv-idle"},"spec":{"csi":{}}}`,
		`{"metadata":{"name":"pv-local","labels":{"zone":"a"}},"spec":{"claimRef":{"uid":"claim-local"},"hostPath":{"path":"/data"}}}`, `{"metadata":{"name":"pv-private"},"spec":{"csi":{}}}`,
		`{"metadata":{"name":"pv-temp"},"spec":{"csi":{}}}`)
	f.add("persistentvolumeclaims", bound("data", "pv-data", ""), bound("idle", "pv-idle", ""), bound("local", "pv-local", ""),
		bound("private", "pv-private", `"velero.io/exclude-from-backup":"true"`), bound("eph-temp", "pv-temp", ""),
		`{"metadata":{"name":"pending","namespace":"shop"},"spec":{},"status":{"phase":"Pending"}}`)
}

func TestWhichVolumesAreHandedOver(t *testing.T) {
	const include, exclude = `"backup.velero.io/backup-volumes":`, `"backup.velero.io/backup-volumes-excludes":`
	const ours, notOurs = `"backup.holdfast.io/backup-volumes":`, `"backup.holdfast.io/backup-volumes-excludes":`
	yes := true
	for name, test := range map[string]struct {
		byDefault bool
		excluded  []string
		pods      []string
		want      []string // POD/VOLUME CLAIM PV
		warnings  []string
	}{
		"none without an annotation": {
			pods: []string{podWith("p", "", "a"+emptyDir)},
		},
		"those that the annotation names": {
			pods: []string{podWith("p", include+`"a, data"`, "a"+emptyDir, "b"+emptyDir, "data"+claimData)},
			want: []string{"p/a  ", "p/data data pv-data"},
		},
		"never of a mirror pod": {
			byDefault: true,
			pods:      []string{podWith("p", `"kubernetes.io/config.mirror":"x",`+include+`"a"`, "a"+emptyDir)},
			warnings:  []string{"pods shop/p: the data of volume a is not backed up: it is a mirror pod, which its node makes from a file: neither volumes nor hooks of such pods are taken"},
		},
		"what the annotation names in vain": {
			pods: []string{podWith("p", include+`"conf,host,other"`, `conf "configMap":{}`, `host "hostPath":{"path":"/"}`)},
			warnings: []string{
				"pods shop/p: the data of volume conf is not backed up: its content comes from objects",
				"pods shop/p: the data of volume host is not backed up: it is a hostPath volume, which the agent can't reach",
				"pods shop/p: the data of volume other is not backed up: the pod's annotation backup.velero.io/backup-volumes names it, but the pod has no such volume",
			},
		},
		"all by default, but for those without data of their own": {
			byDefault: true,
			pods: []string{podWith("p", exclude+`"b"`, "a"+emptyDir, "b"+emptyDir, "data"+claimData, `conf "configMap":{}`, `key "secret":{}`,
				`all "projected":{}`, `up "downwardAPI":{}`, `host "hostPath":{"path":"/"}`, `img "image":{}`, "default-token-x"+emptyDir, `nfs "nfs":{"server":"s","path":"/"}`)},
			want: []string{"p/a  ", "p/data data pv-data", "p/nfs  "},
		},
		"each annotation for its own way": {
			byDefault: true,
			pods:      []string{podWith("p", include+`"conf,none"`, "a"+emptyDir, `conf "configMap":{}`)},
			want:      []string{"p/a  "},
		},
		"and the other": {
			pods: []string{podWith("p", include+`"a",`+exclude+`"a"`, "a"+emptyDir)},
			want: []string{"p/a  "},
		},
		"our annotations": {
			pods: []string{podWith("p", ours+`"a,data,typo",`+notOurs+`"b,none"`, "a"+emptyDir, "b"+emptyDir, "c"+emptyDir, "data"+claimData)},
			want: []string{"p/a  ", "p/data data pv-data"},
			warnings: []string{
				"pods shop/p: the data of volume typo is not backed up: the pod's annotation backup.holdfast.io/backup-volumes names it, but the pod has no such volume",
			},
		},
		"our annotations, with all by default": {
			byDefault: true,
			pods:      []string{podWith("p", ours+`"a,conf",`+notOurs+`"b"`, "a"+emptyDir, "b"+emptyDir, "c"+emptyDir, `conf "configMap":{}`)},
			want:      []string{"p/a  ", "p/c  "},
			warnings:  []string{"pods shop/p: the data of volume conf is not backed up: its content comes from objects"},
		},
		"ours before Velero's": {
			pods: []string{podWith("p", include+`"a,b",`+ours+`"c",`+notOurs+`"b"`, "a"+emptyDir, "b"+emptyDir, "c"+emptyDir)},
			want: []string{"p/a  ", "p/c  "},
		},
		"ours before Velero's, with all by default": {
			byDefault: true,
			pods:      []string{podWith("p", exclude+`"a,b",`+ours+`"a",`+notOurs+`"c"`, "a"+emptyDir, "b"+emptyDir, "c"+emptyDir, "d"+emptyDir)},
			want:      []string{"p/a  ", "p/d  "},
		},
		"what is in and out is out": {
			pods: []string{podWith("p", ours+`"a,b",`+notOurs+`"a"`, "a"+emptyDir, "b"+emptyDir)},
			want: []string{"p/b  "},
		},
		"nothing of a pod without a node": {
			byDefault: true,
			pods:      []string{strings.Replace(podWith("p", "", "a"+emptyDir), `"nodeName":"n1",`, "", 1)},
			warnings:  []string{"pods shop/p: the data of volume a is not backed up: the pod is not on a node"},
		},
		"the claim of a generic ephemeral volume": {
			byDefault: true,
			pods:      []string{podWith("eph", "", `temp "ephemeral":{"volumeClaimTemplate":{}}`)},
			want:      []string{"eph/temp eph-temp pv-temp"},
		},
		"a claim of several pods once": {
			byDefault: true,
			pods:      []string{podWith("p1", "", "d"+claimData), podWith("p2", "", "other"+claimData, "idle"+claimIdle)},
			want:      []string{"p1/d data pv-data", "p2/idle idle pv-idle"},
		},
		"through the pod that runs": {
			byDefault: true,
			pods:      []string{podIn("Pending", "p1", "", "d"+claimData), podWith("p2", "", "d"+claimData)},
			want:      []string{"p2/d data pv-data"},
		},
		"nothing of pods that do not run": {
			byDefault: true,
			pods:      []string{podIn("Succeeded", "p1", "", "d"+claimData, "a"+emptyDir)},
			warnings: []string{
				"pods shop/p1: the data of volume a is not backed up: the pod is Succeeded, not Running",
				"pods shop/p1: the data of volume d (claim data) is not backed up: the pod is Succeeded, not Running",
			},
		},
		"claims whose data is out of reach": {
			byDefault: true,
			pods:      []string{podWith("p", "", "l"+claimLocal, "w"+claimPending, "private"+claimPrivate)},
			warnings: []string{
				"pods shop/p: the data of volume l (claim local) is not backed up: its persistent volume is of type hostPath, and not below the controller's --host-path-roots",
				"pods shop/p: the data of volume w (claim pending) is not backed up: the claim is not bound",
			},
		},
		"a claim that does not exist": {
			byDefault: true,
			pods:      []string{podWith("p", "", "g"+claimGone)},
			warnings:  []string{"persistentvolumeclaims shop/gone: another object refers to it, but it does not exist"},
		},
		"a claim whose volume does not exist, and those that are bound to none": {
			byDefault: true,
			pods:      []string{podWith("p", "", "l"+claimLost, "n"+claimNamed, "u"+claimUnnamed)},
			want:      []string{"p/l lost pv-lost"},
			warnings: []string{
				"pods shop/p: the data of volume n (claim named) is not backed up: the claim is not bound",
				"pods shop/p: the data of volume u (claim unnamed) is not backed up: the claim is not bound",
			},
		},
		"no claims in a backup without them": {
			byDefault: true,
			excluded:  []string{"persistentvolumeclaims"},
			pods:      []string{podWith("p", "", "d"+claimData, "a"+emptyDir)},
			want:      []string{"p/a  "},
		},
		"volumes that no container mounts, and devices": {
			byDefault: true,
			pods: []string{`{"metadata":{"name":"p","namespace":"shop"},"spec":{"nodeName":"n1","containers":[{"volumeDevices":[{"name":"raw"}]}],
				"initContainers":[{"volumeMounts":[{"name":"early"}]}],
				"volumes":[{"name":"raw",` + claimData + `},{"name":"idle",` + claimIdle + `},{"name":"early",` + emptyDir + `}]},"status":{"phase":"Running"}}`},
			want: []string{"p/early  "},
			warnings: []string{
				"pods shop/p: the data of volume idle (claim idle) is not backed up: no container mounts it",
				"pods shop/p: the data of volume raw (claim data) is not backed up: it is a block device, and only files can be read",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, ExcludedResources: test.excluded}
			if test.byDefault {
				spec.DefaultVolumesToFsBackup = &yes
			}
			f := newFixture(t, spec)
			f.claims()
			if name == "a claim whose volume does not exist, and those that are bound to none" {
				f.add("persistentvolumeclaims",
					`{"metadata":{"name":"lost","namespace":"shop"},"spec":{"volumeName":"pv-lost"},"status":{"phase":"Bound"}}`,
					`{"metadata":{"name":"named","namespace":"shop"},"spec":{"volumeName":"pv-data"},"status":{"phase":"Pending"}}`,
					`{"metadata":{"name":"unnamed","namespace":"shop"},"spec":{},"status":{"phase":"Bound"}}`)
			}
			f.add("pods", test.pods...)
			f.deps.BlockWorkers = 1 // for the order
			outcome := f.run(t)
			completed := 0
			if volumes := outcome.Status.Volumes; volumes != nil {
				completed = int(volumes.Completed)
			}
			if outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || completed != len(test.want) {
				t.Errorf("got %+v, volumes %+v", outcome.Status, outcome.Status.Volumes)
			}
			var got []string
			for _, volume := range f.volumes.submitted {
				got = append(got, fmt.Sprintf("%s/%s %s %s", volume.Pod.Name, volume.Name, volume.ClaimName, volume.PersistentVolume))
			}
			if diff := gocmp.Diff(test.want, got); diff != "" {
				t.Errorf("handed over (-want +got):\n%s", diff)
			}
			// Of the claims that no pod has, see TestClaimsThatNoPodUses.
			warnings := slices.DeleteFunc(f.results(t).Warnings.Namespaces["shop"], func(text string) bool {
				return strings.Contains(text, "the data of the claim is not backed up")
			})
			slices.Sort(warnings)
			if diff := gocmp.Diff(test.warnings, warnings); len(test.warnings)+len(warnings) > 0 && diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

// TestScratchVolumesAreBounded: each volume is a record, and whoever makes pods names any number of emptyDirs.
func TestScratchVolumesAreBounded(t *testing.T) {
	yes := true
	var volumes []string
	for i := range maxScratchVolumes + 3 {
		volumes = append(volumes, fmt.Sprintf("v%04d", i)+emptyDir)
	}
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, IncludedResources: []string{"pods"}, DefaultVolumesToFsBackup: &yes})
	f.claims()
	f.add("pods", podWith("p", "", volumes...))
	outcome := f.run(t)
	if outcome.Status.Phase != v1alpha1.BackupPhasePartiallyFailed || outcome.Status.Errors != 3 || !strings.Contains(outcome.Status.Message, "a backup takes 5000 volumes without a claim of one namespace") {
		t.Errorf("%+v", outcome.Status)
	}
	if got := len(f.volumes.submitted); got != maxScratchVolumes {
		t.Errorf("%d volumes were handed over", got)
	}
}

// When the files of all volumes are asked for, a claim without a pod that could give
// access to them is not left out in silence.
func TestClaimsThatNoPodUses(t *testing.T) {
	yes, no := true, false
	for name, test := range map[string]struct {
		byDefault *bool
		excluded  []string
		pods      []string
		want      []string
	}{
		"bound claims without a pod": {
			byDefault: &yes,
			pods:      []string{podWith("p", "", "d"+claimData)},
			want: []string{
				"persistentvolumeclaims shop/eph-temp: the data of the claim is not backed up: no running pod of the backup uses the claim, and files are read through one",
				"persistentvolumeclaims shop/idle: the data of the claim is not backed up: no running pod of the backup uses the claim, and files are read through one",
				"persistentvolumeclaims shop/local: the data of the claim is not backed up: its persistent volume is of type hostPath, and not below the controller's --host-path-roots",
			},
		},
		"not those that a pod excludes, or that were warned of with their pod": {
			byDefault: &yes,
			pods: []string{
				podWith("p", `"backup.velero.io/backup-volumes-excludes":"d,e,l"`, "d"+claimData, "l"+claimLocal, `e "persistentVolumeClaim":{"claimName":"eph-temp"}`),
				podIn("Succeeded", "q", "", "i"+claimIdle),
			},
			want: []string{"pods shop/q: the data of volume i (claim idle) is not backed up: the pod is Succeeded, not Running"},
		},
		"nobody asked for files":     {},
		"they are asked not to come": {byDefault: &no, pods: []string{podWith("p", "", "d"+claimData)}, want: []string{noData}},
		"no claims are asked for": {
			byDefault: &yes, excluded: []string{"persistentvolumeclaims"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, ExcludedResources: test.excluded, DefaultVolumesToFsBackup: test.byDefault})
			f.claims()
			f.add("pods", test.pods...)
			if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || int(outcome.Status.Warnings) != len(test.want) {
				t.Errorf("got %+v", outcome.Status)
			}
			if diff := gocmp.Diff(test.want, f.results(t).Warnings.Namespaces["shop"]); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

// TestWhatIsWantedByDefault: a backup that says nothing of volumes takes the data of claims,
// and names and counts each bound claim whose data it does not hold.
const noData = "persistentvolumeclaims shop/data: the data of the claim, and of 3 other claims, is not backed up: defaultVolumesToFsBackup is false, snapshotVolumes is not set, and no pod names a volume. Leave defaultVolumesToFsBackup out for the files of claims, set snapshotVolumes: true for snapshots, or false if no data is wanted"

func TestWhatIsWantedByDefault(t *testing.T) {
	const orphan = "the data of the claim is not backed up: no running pod of the backup uses the claim, and files are read through one"
	const hostPath = "persistentvolumeclaims shop/local: the data of the claim is not backed up: its persistent volume is of type hostPath, and not below the controller's --host-path-roots"
	idle, temp := "persistentvolumeclaims shop/idle: "+orphan, "persistentvolumeclaims shop/eph-temp: "+orphan
	for name, test := range map[string]struct {
		spec     v1alpha1.BackupSpec
		pods     []string
		want     []string // POD/VOLUME
		leftOut  int32
		warnings []string
	}{
		"claims, and no scratch space": {
			pods: []string{podWith("p", "", "a"+emptyDir, "data"+claimData, `nfs "nfs":{"server":"s","path":"/"}`), podWith("q", "", "idle"+claimIdle), podWith("eph", "", `temp "ephemeral":{"volumeClaimTemplate":{}}`)},
			want: []string{"p/data", "q/idle"}, leftOut: 1, warnings: []string{hostPath},
		},
		"what pods say": {
			pods: []string{
				podWith("p", `"backup.velero.io/backup-volumes":"a","backup.velero.io/backup-volumes-excludes":"data"`, "a"+emptyDir, "data"+claimData),
				podWith("q", `"backup.holdfast.io/backup-volumes-excludes":"idle"`, "idle"+claimIdle),
				podWith("eph", `"backup.holdfast.io/backup-volumes":"temp"`, `temp "ephemeral":{"volumeClaimTemplate":{}}`),
			},
			want: []string{"eph/temp", "p/a"}, leftOut: 1, warnings: []string{hostPath},
		},
		"a pod that is Pending, and a device": {
			pods: []string{
				podIn("Pending", "p", "", "data"+claimData),
				`{"metadata":{"name":"q","namespace":"shop"},"spec":{"nodeName":"n1","containers":[{"volumeDevices":[{"name":"raw"}]}],"volumes":[{"name":"raw",` + claimIdle + `}]},"status":{"phase":"Running"}}`,
			},
			leftOut: 4, warnings: []string{
				temp, hostPath,
				"pods shop/p: the data of volume data (claim data) is not backed up: the pod is Pending, not Running",
				"pods shop/q: the data of volume raw (claim idle) is not backed up: it is a block device, and only files can be read",
			},
		},
		"a pod that is Pending beside one that runs": {
			pods: []string{podIn("Pending", "p", "", "data"+claimData), podWith("q", "", "data"+claimData, "idle"+claimIdle), podWith("eph", "", `temp "ephemeral":{"volumeClaimTemplate":{}}`)},
			want: []string{"q/data", "q/idle"}, leftOut: 1, warnings: []string{hostPath},
		},
		"a claim that is not bound": {
			pods: []string{podWith("p", "", "w"+claimPending, "data"+claimData, "idle"+claimIdle, "l"+claimLocal, `e "persistentVolumeClaim":{"claimName":"eph-temp"}`)},
			want: []string{"p/data", "p/e", "p/idle"}, leftOut: 1, warnings: []string{
				"pods shop/p: the data of volume l (claim local) is not backed up: its persistent volume is of type hostPath, and not below the controller's --host-path-roots",
				"pods shop/p: the data of volume w (claim pending) is not backed up: the claim is not bound",
			},
		},
		"no pods": {
			leftOut: 4, warnings: []string{"persistentvolumeclaims shop/data: " + orphan, temp, idle, hostPath},
		},
		"claims without pods": {
			spec:    v1alpha1.BackupSpec{IncludedResources: []string{"deployments.apps", "persistentvolumeclaims", "persistentvolumes"}},
			pods:    []string{podWith("p", "", "data"+claimData)},
			leftOut: 4, warnings: []string{"persistentvolumeclaims shop/data: the data of the claim, and of 3 other claims in its namespace, is not backed up: the backup includes no pods, and files are read through one. Include pods, or set defaultVolumesToFsBackup to false if no data is wanted"},
		},
		"claims alone, and no data":   {spec: v1alpha1.BackupSpec{IncludedResources: []string{"persistentvolumeclaims"}, DefaultVolumesToFsBackup: new(false)}},
		"nothing of volumes":          {spec: v1alpha1.BackupSpec{ExcludedResources: []string{"persistentvolumeclaims"}}, pods: []string{podWith("p", "", "data"+claimData)}},
		"Velero's false":              {spec: v1alpha1.BackupSpec{DefaultVolumesToFsBackup: new(false)}, pods: []string{podWith("p", "", "data"+claimData)}, leftOut: 4, warnings: []string{noData}},
		"neither files nor snapshots": {spec: v1alpha1.BackupSpec{DefaultVolumesToFsBackup: new(false), SnapshotVolumes: new(false)}, pods: []string{podWith("p", "", "data"+claimData)}},
		"Velero's false, and a pod that names a volume": {
			spec: v1alpha1.BackupSpec{DefaultVolumesToFsBackup: new(false)}, pods: []string{podWith("p", `"backup.velero.io/backup-volumes":"data"`, "data"+claimData)}, want: []string{"p/data"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.spec.IncludedNamespaces = []string{"shop"}
			f := newFixture(t, test.spec)
			f.request.Backup.Spec.DefaultVolumesToFsBackup, f.request.Backup.Spec.SnapshotVolumes = test.spec.DefaultVolumesToFsBackup, test.spec.SnapshotVolumes
			f.claims()
			f.add("pods", test.pods...)
			f.deps.BlockWorkers = 1
			outcome := f.run(t)
			var got []string
			for _, volume := range f.volumes.submitted {
				got = append(got, volume.Pod.Name+"/"+volume.Name)
			}
			slices.Sort(got)
			if diff := gocmp.Diff(test.want, got); diff != "" {
				t.Errorf("handed over (-want +got):\n%s", diff)
			}
			warnings := f.results(t).Warnings.Namespaces["shop"]
			slices.Sort(warnings)
			slices.Sort(test.warnings)
			if diff := gocmp.Diff(test.warnings, warnings); len(test.warnings)+len(warnings) > 0 && diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			var leftOut int32
			if volumes := outcome.Status.Volumes; volumes != nil {
				leftOut = volumes.LeftOut
			}
			if outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || leftOut != test.leftOut {
				t.Errorf("%d claims are left out, want %d: %+v", leftOut, test.leftOut, outcome.Status)
			}
			stored, err := format.DecodeBackup(f.read(t, format.MetadataKey("b")), format.Place{StoreName: "b", Location: "default", SystemNamespace: "holdfast"})
			if err != nil {
				t.Fatal(err)
			}
			var kept int32
			if volumes := stored.Status.Volumes; volumes != nil {
				kept = volumes.LeftOut
			}
			if kept != test.leftOut {
				t.Errorf("the store says that %d claims are left out, want %d", kept, test.leftOut)
			}
		})
	}
}

// TestWhatIsBeingDeleted: neither a claim nor a pod that is being deleted is in the backup, and who
// asked for the data hears that it is not there either.
func TestWhatIsBeingDeleted(t *testing.T) {
	const asks = `"backup.holdfast.io/backup-volumes":"d"`
	leaving := func(pod string) string {
		return strings.Replace(pod, `"metadata":{`, `"metadata":{"deletionTimestamp":"2026-01-02T03:04:05Z",`, 1)
	}
	const podWarning = "pods shop/p: the data of volume d (claim idle) is not backed up: the pod is being deleted"
	for name, test := range map[string]struct {
		policy  string
		label   string
		files   bool
		claim   bool
		pods    []string
		want    []string
		skipped string
	}{
		"a claim, which a pod asks for": {
			claim: true, pods: []string{podWith("p", asks, "d"+claimIdle)},
			want: []string{"pods shop/p: the data of volume d (claim idle) is not backed up: its claim is left out: it is being deleted"},
		},
		"a claim, when all are asked for":      {claim: true, files: true, pods: []string{podWith("p", "", "d"+claimIdle)}, want: []string{"pods shop/p: the data of volume d (claim idle) is not backed up: its claim is left out: it is being deleted"}},
		"a claim, which nobody asks for":       {claim: true, pods: []string{podWith("p", "", "d"+claimIdle)}},
		"a pod that asks":                      {pods: []string{leaving(podWith("p", asks, "d"+claimIdle))}, want: []string{podWarning}, skipped: podLeaves},
		"a pod that asks, and not for a claim": {pods: []string{leaving(podWith("p", asks, "d"+emptyDir))}},
		"a pod that does not ask":              {pods: []string{leaving(podWith("p", "", "d"+claimIdle))}},
		"a pod, when all are asked for":        {files: true, pods: []string{leaving(podWith("p", "", "d"+claimIdle))}, want: []string{podWarning}, skipped: podLeaves},
		"a pod that the labels do not choose":  {label: "app", pods: []string{leaving(podWith("p", asks, "d"+claimIdle))}},
		"a pod whose claim the labels do not choose": {
			label: "app", pods: []string{leaving(strings.Replace(podWith("p", asks, "d"+claimIdle), `"metadata":{`, `"metadata":{"labels":{"app":"db"},`, 1))}, want: []string{podWarning},
		},
		"a pod that is labelled to be left out": {pods: []string{leaving(strings.Replace(podWith("p", asks, "d"+claimIdle), `"metadata":{`, `"metadata":{"labels":{"velero.io/exclude-from-backup":"true"},`, 1))}},
		"a pod beside another that asks":        {pods: []string{leaving(podWith("p", asks, "d"+claimIdle)), podWith("q", asks, "d"+claimIdle)}},
		"a pod, when its claim has a policy":    {policy: "skip", pods: []string{leaving(podWith("p", asks, "d"+claimIdle))}, skipped: "a volume policy skips it"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, IncludedResources: []string{"pods", "persistentvolumeclaims", "persistentvolumes"}, DefaultVolumesToFsBackup: &test.files, SnapshotVolumes: new(false)})
			if test.label != "" {
				f.request.Backup.Spec.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
			}
			if test.policy != "" {
				f.request.Backup.Spec.ResourcePolicy = &v1alpha1.ResourcePolicyReference{Kind: "ConfigMap", Name: "mine"}
				f.deps.Policies = testPolicies(func(string, string) (map[string]string, error) {
					return map[string]string{"policies": "version: v1\nvolumePolicies:\n- conditions: {csi: {}}\n  action: {type: " + test.policy + "}\n"}, nil
				})
			}
			claim := `{"metadata":{"name":"idle","namespace":"shop"},"spec":{"volumeName":"pv-idle"},"status":{"phase":"Bound"}}`
			if test.claim {
				claim = leaving(claim)
			}
			f.add("namespaces", namespace("shop", ""))
			f.add("persistentvolumes", `{"metadata":{"name":"pv-idle"},"spec":{"csi":{}}}`)
			f.add("persistentvolumeclaims", claim)
			f.add("pods", test.pods...)
			if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted {
				t.Errorf("got %+v", outcome.Status)
			}
			if diff := gocmp.Diff(test.want, f.results(t).Warnings.Namespaces["shop"]); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			infos, err := format.ReadVolumeInfo(bytes.NewReader(f.read(t, format.VolumeInfoKey("b"))))
			if err != nil {
				t.Fatal(err)
			}
			for _, info := range infos {
				if test.skipped != "" && !strings.Contains(info.SkippedReason, test.skipped) {
					t.Errorf("of %s: %q", info.PVCName, info.SkippedReason)
				}
			}
		})
	}
}

// TestHostPathVolumes: a persistent volume of type hostPath is handed over with its path below
// a root, and left out elsewhere; hostPath volumes of pods are left out below a root too.
func TestHostPathVolumes(t *testing.T) {
	yes := true
	for root, want := range map[string][]string{"/": nil, "/dat": nil, "/data/deeper": nil, "/data": {"local /data"}} {
		f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: &yes})
		f.deps.HostPathRoots = []string{root}
		f.claims()
		f.add("pods", podWith("p", "", "local"+claimLocal, `host "hostPath":{"path":"/data"}`))
		f.run(t)
		var got []string
		for _, volume := range f.volumes.submitted {
			got = append(got, volume.Name+" "+volume.HostPath)
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("below %s handed over (-want +got):\n%s", root, diff)
		}
	}
}

// What no kubelet has made sure of: that a folder of a node is the claim's, and on the pod's node.
func TestHostPathVolumesOfOthers(t *testing.T) {
	yes := true
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: &yes})
	f.deps.HostPathRoots = []string{"/data"}
	f.claims()
	f.add("nodes", `{"metadata":{"name":"n1","labels":{"kubernetes.io/hostname":"host-1"}}}`)
	var volumes []string
	for name, spec := range map[string]string{
		"here":    `"nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"In","values":["host-1"]}]}]}},"claimRef":{"uid":"claim-here"}`,
		"there":   `"nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"In","values":["host-2"]}]}]}},"claimRef":{"uid":"claim-there"}`,
		"broken":  `"nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"Is"}]}]}},"claimRef":{"uid":"claim-broken"}`,
		"foreign": `"claimRef":{"uid":"claim-of-another"}`,
		"of-none": `"capacity":{}`,
	} {
		f.add("persistentvolumes", fmt.Sprintf(`{"metadata":{"name":"pv-of-%s"},"spec":{%s,"hostPath":{"path":"/data/%s"}}}`, name, spec, name))
		f.add("persistentvolumeclaims", fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"shop","uid":"claim-%s"},"spec":{"volumeName":"pv-of-%s"},"status":{"phase":"Bound"}}`, name, name, name))
		volumes = append(volumes, fmt.Sprintf(`%s "persistentVolumeClaim":{"claimName":%q}`, name, name))
	}
	f.add("pods", podWith("p", "", volumes...))
	f.run(t)
	if got := f.volumes.submitted; len(got) != 1 || got[0].HostPath != "/data/here" {
		t.Errorf("handed over are %+v", got)
	}
	if made := f.requested("/api/v1/nodes/n1"); made != 1 {
		t.Errorf("the node is read %d times", made)
	}
	warnings := strings.Join(f.results(t).Warnings.Namespaces["shop"], "\n")
	for _, want := range []string{
		"volume there (claim there) is not backed up: its persistent volume is of type hostPath, and on another node than the pod",
		"volume broken (claim broken) is not backed up: its persistent volume is of type hostPath, and it is not known whether it is on the pod's node",
		"volume foreign (claim foreign) is not backed up: its persistent volume is bound to another claim",
		"volume of-none (claim of-none) is not backed up: its persistent volume is bound to another claim",
	} {
		if !strings.Contains(warnings, want) {
			t.Errorf("no warning says %q:\n%s", want, warnings)
		}
	}
}

// Each volume that is not read is in the backup's log with its reason, also where pods name
// those that are, and where nobody has to be warned.
func TestSkippedVolumesAreLogged(t *testing.T) {
	for _, byDefault := range []bool{false, true} {
		f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: &byDefault})
		f.claims()
		annotation := `"backup.holdfast.io/backup-volumes":"data"`
		if byDefault {
			annotation = `"backup.holdfast.io/backup-volumes-excludes":"scratch"`
		}
		f.add("pods", podWith("p", annotation, "data"+claimData, "scratch"+emptyDir, `conf "configMap":{}`, `host "hostPath":{"path":"/"}`))
		f.run(t)
		log := f.text(t, format.LogKey("b"))
		reason := "no annotation of the pod names it"
		if byDefault {
			reason = "the pod's annotation backup.holdfast.io/backup-volumes-excludes excludes it"
		}
		for _, want := range []string{
			"the data of volume scratch is not backed up: " + reason,
			"the data of volume conf is not backed up: its content comes from objects",
			"the data of volume host is not backed up: it is a hostPath volume, which the agent can't reach",
		} {
			if strings.Count(log, want) != 1 {
				t.Errorf("by default %t, the log does not say once %q:\n%s", byDefault, want, log)
			}
		}
		if strings.Contains(log, "the data of volume data is not") {
			t.Errorf("by default %t, the log has what is handed over", byDefault)
		}
	}
}

// What a restore has told a pod in its emptyDir is not backed up: a restore of that would tell
// the pod that its data is complete before it is.
func TestWhatARestoreHasToldIsNotBackedUp(t *testing.T) {
	yes := true
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: &yes})
	pod := podWith("p", "", "scratch"+emptyDir, "told"+emptyDir)
	waiter := fmt.Sprintf(`"initContainers":[{"args":[%q],"volumeMounts":[{"name":"told","mountPath":%q}]}],"containers"`, restorewait.Command, restorewait.Dir)
	f.claims()
	f.add("pods", strings.Replace(pod, `"containers"`, waiter, 1))
	f.run(t)
	log := f.text(t, format.LogKey("b"))
	if !strings.Contains(log, "the data of volume told is not backed up: an earlier restore") || strings.Contains(log, "the data of volume scratch is not") {
		t.Errorf("the log says:\n%s", log)
	}
}

// Volumes upload while objects are read: all are handed over before the other
// resources are listed.
func TestVolumesAreHandedOverEarly(t *testing.T) {
	yes := true
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: &yes})
	f.claims()
	f.add("pods", podWith("p", "", "data"+claimData))
	before := -1
	f.volumes.submit = func(*format.Volume) error {
		before = f.requested(configMaps)
		return nil
	}
	f.run(t)
	if before != 0 || f.requested(configMaps) != 1 {
		t.Errorf("the volume was handed over after %d lists of ConfigMaps", before)
	}
}

// What an upload warns about reaches the results of the backup, with the name of the claim.
func TestVolumesThatWarn(t *testing.T) {
	yes := true
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: &yes})
	f.claims()
	f.add("pods", podWith("p", "", "content"+claimData))
	f.volumes.result = func(*format.Volume) enginev1alpha1.VolumeUploadStatus {
		return enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s", Warnings: 1, Message: "no files"}
	}
	f.run(t)
	if got, want := f.results(t).Warnings.Namespaces["shop"], "pods shop/p: volume content of claim data: 1 warning about its files: no files"; !slices.Contains(got, want) {
		t.Errorf("the warnings are %q, want %q", got, want)
	}
}

func TestVolumesThatFail(t *testing.T) {
	yes := true
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: &yes})
	f.claims()
	f.add("pods", podWith("p", "", "data"+claimData, "idle"+claimIdle, "scratch"+emptyDir, "refused"+emptyDir))
	f.volumes.submit = func(volume *format.Volume) error {
		if volume.Name == "refused" {
			return errors.New("no agent on node n1")
		}
		return nil
	}
	f.volumes.result = func(volume *format.Volume) enginev1alpha1.VolumeUploadStatus {
		switch volume.Name {
		case "data":
			return enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseFailed, Message: "the node went away"}
		case "idle":
			return enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseInProgress}
		}
		return enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s", Warnings: 2, Message: "a socket"}
	}
	outcome := f.run(t)
	if outcome.Status.Phase != v1alpha1.BackupPhasePartiallyFailed {
		t.Errorf("the phase is %s", outcome.Status.Phase)
	}
	if got, want := *outcome.Status.Volumes, (v1alpha1.BackupVolumesProgress{Total: 3, Completed: 1, Failed: 2, LeftOut: 2}); got != want {
		t.Errorf("got %+v", got)
	}
	results := f.results(t)
	wantErrors := []string{
		"pods shop/p: hand over volume refused: no agent on node n1",
		"pods shop/p: volume data of claim data could not be uploaded: the node went away",
		"pods shop/p: volume idle of claim idle could not be uploaded: the upload ended without a result",
	}
	if diff := gocmp.Diff(wantErrors, results.Errors.Namespaces["shop"]); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
	wantWarnings := []string{
		"persistentvolumeclaims shop/eph-temp: the data of the claim is not backed up: no running pod of the backup uses the claim, and files are read through one",
		"persistentvolumeclaims shop/local: the data of the claim is not backed up: its persistent volume is of type hostPath, and not below the controller's --host-path-roots",
		"pods shop/p: volume scratch: 2 warnings about its files: a socket",
	}
	if diff := gocmp.Diff(wantWarnings, results.Warnings.Namespaces["shop"]); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	infos, err := format.ReadVolumeInfo(bytes.NewReader(f.read(t, format.VolumeInfoKey("b"))))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, info := range infos {
		got[info.PVName] = info.Result + info.SkippedReason
		if info.PVName == "pv-local" {
			got[info.PVName] += " in zone " + info.PVInfo.Labels["zone"]
		}
	}
	want := map[string]string{
		"pv-data": "failed", "pv-idle": "failed", "": "succeeded",
		"pv-local": "its persistent volume is of type hostPath, and not below the controller's --host-path-roots in zone a",
		"pv-temp":  "no running pod of the backup uses the claim, and files are read through one",
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("volume info (-want +got):\n%s", diff)
	}
}

// Each volume that is left out is listed with its reason: a persistent one where a
// restore looks for it, another in the log.
func TestVolumesThatAreLeftOut(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
	f.claims()
	f.add("pods", podWith("p", `"backup.holdfast.io/backup-volumes":"scratch,idle","backup.holdfast.io/backup-volumes-excludes":"data,scratch"`,
		"data"+claimData, "idle"+claimIdle, "scratch"+emptyDir, `e "persistentVolumeClaim":{"claimName":"eph-temp"}`))
	f.run(t)
	infos, err := format.ReadVolumeInfo(bytes.NewReader(f.read(t, format.VolumeInfoKey("b"))))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, info := range infos {
		got[info.PVName] = info.Result + info.SkippedReason
	}
	want := map[string]string{
		"pv-data":  "the pod's annotation backup.holdfast.io/backup-volumes-excludes excludes it",
		"pv-idle":  "succeeded",
		"pv-local": "its persistent volume is of type hostPath, and not below the controller's --host-path-roots",
		"pv-temp":  "no pod selects it for the backup of its files",
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("volume info (-want +got):\n%s", diff)
	}
	const line = "the data of volume scratch is not backed up: the pod's annotation backup.holdfast.io/backup-volumes-excludes excludes it"
	if log := f.text(t, format.LogKey("b")); !strings.Contains(log, line) {
		t.Errorf("the log lacks %q:\n%s", line, log)
	}
}

// What is not known of a volume must not be taken for a success.
func TestWaitThatFails(t *testing.T) {
	yes := true
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: &yes})
	f.claims()
	f.add("pods", podWith("p", "", "data"+claimData))
	f.volumes.wait = func(ctx context.Context) error { return errors.New("the records are gone") }
	outcome := f.run(t)
	if outcome.Status.Phase != v1alpha1.BackupPhasePartiallyFailed || outcome.Status.Errors != 2 || outcome.Status.Volumes.Failed != 1 {
		t.Errorf("got %+v", outcome.Status)
	}
}

// addPods adds so many pods with two claims each, and their volumes.
func (f *fixture) addPods(pods int) {
	f.add("namespaces", namespace("shop", ""))
	var all, claims, volumes []string
	for i := range pods {
		all = append(all, podWith(fmt.Sprintf("p-%d", i), "", fmt.Sprintf(`data "persistentVolumeClaim":{"claimName":"data-%d"}`, i), fmt.Sprintf(`logs "persistentVolumeClaim":{"claimName":"logs-%d"}`, i)))
		for _, name := range []string{"data", "logs"} {
			claims = append(claims, fmt.Sprintf(`{"metadata":{"name":"%s-%d","namespace":"shop"},"spec":{"volumeName":"pv-%s-%d"},"status":{"phase":"Bound"}}`, name, i, name, i))
			volumes = append(volumes, fmt.Sprintf(`{"metadata":{"name":"pv-%s-%d"},"spec":{"csi":{}}}`, name, i))
		}
	}
	f.add("pods", all...)
	f.add("persistentvolumeclaims", claims...)
	f.add("persistentvolumes", append(volumes, `{"metadata":{"name":"pv-of-others"},"spec":{"csi":{}}}`)...)
}

// TestManyClaimsCostNoRequestEach: what a list of all can answer is not asked for one by one.
func TestManyClaimsCostNoRequestEach(t *testing.T) {
	const pods = 2000
	yes := true
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: &yes})
	f.addPods(pods)
	outcome := f.run(t)
	if got := outcome.Status.Volumes; outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || got.Completed != 2*pods {
		t.Errorf("got %+v, volumes %+v", outcome.Status, got)
	}
	if got := outcome.Status.Progress.ItemsBackedUp; got != 5*pods+1 {
		t.Errorf("backed up %d objects", got)
	}
	if got := f.requested("/api/v1/persistentvolumes/"); got != 0 {
		t.Errorf("%d persistent volumes were asked for one by one", got)
	}
	// Pages of 500.
	if got := f.requested(""); got > 50 {
		t.Errorf("%d requests", got)
	}
}

// TestASearchEndsWhenAllAreFound, and reads nothing of a large cluster's other volumes.
func TestASearchEndsWhenAllAreFound(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
	f.add("namespaces", namespace("shop", ""))
	var others []string
	for i := range manyGets + 1 {
		f.add("persistentvolumeclaims", fmt.Sprintf(`{"metadata":{"name":"data-%d","namespace":"shop"},"spec":{"volumeName":"pv-%d"},"status":{"phase":"Bound"}}`, i, i))
		f.add("persistentvolumes", fmt.Sprintf(`{"metadata":{"name":"pv-%d"},"spec":{"csi":{}}}`, i))
	}
	for i := range 5 * pageSize {
		others = append(others, fmt.Sprintf(`{"metadata":{"name":"pv-of-others-%d"},"spec":{"csi":{}}}`, i))
	}
	f.add("persistentvolumes", others...)
	outcome := f.run(t)
	if got := outcome.Status; got.Phase != v1alpha1.BackupPhaseCompleted || got.Progress.ItemsBackedUp != 2*(manyGets+1)+1 {
		t.Errorf("got %+v: %+v", got, f.results(t))
	}
	if got := f.requested("/api/v1/persistentvolumes"); got > 2 { // the next page is asked for early
		t.Errorf("%d requests for persistent volumes", got)
	}
}

// TestVolumesThatCannotBeListed are read one by one.
func TestVolumesThatCannotBeListed(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
	f.add("namespaces", namespace("shop", ""))
	for i := range manyGets + 1 {
		f.add("persistentvolumeclaims", fmt.Sprintf(`{"metadata":{"name":"data-%d","namespace":"shop"},"spec":{"volumeName":"pv-%d"},"status":{"phase":"Bound"}}`, i, i))
		f.add("persistentvolumes", fmt.Sprintf(`{"metadata":{"name":"pv-%d"},"spec":{"csi":{}}}`, i))
	}
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/api/v1/persistentvolumes" {
			return false
		}
		writeStatus(w, metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden})
		return true
	}
	outcome := f.run(t)
	if got := outcome.Status; got.Phase != v1alpha1.BackupPhaseCompleted || got.Progress.ItemsBackedUp != 2*(manyGets+1)+1 {
		t.Errorf("got %+v: %+v", got, f.results(t))
	}
}

// TestManyClaimsOfVolumes are looked for in one list of each namespace.
func TestManyClaimsOfVolumes(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "ssd"}}})
	f.add("namespaces", namespace("shop", ""))
	f.add("persistentvolumeclaims", named("shop", "other")...)
	for i := range manyGets + 1 {
		f.add("persistentvolumeclaims", fmt.Sprintf(`{"metadata":{"name":"data-%d","namespace":"shop","uid":"u-%d"},"spec":{"volumeName":"pv-%d"},"status":{"phase":"Bound"}}`, i, i, i))
		f.add("persistentvolumes", fmt.Sprintf(`{"metadata":{"name":"pv-%d","labels":{"disk":"ssd"}},"spec":{"claimRef":{"namespace":"shop","name":"data-%d","uid":"u-%d"}}}`, i, i, i))
	}
	outcome := f.run(t)
	if got := outcome.Status; got.Phase != v1alpha1.BackupPhaseCompleted || got.Progress.ItemsBackedUp != 2*(manyGets+1)+1 {
		t.Errorf("got %+v: %+v", got, f.results(t))
	}
	if got := f.requested("/api/v1/namespaces/shop/persistentvolumeclaims/"); got != 0 {
		t.Errorf("%d claims were asked for one by one", got)
	}
	if log := f.text(t, format.LogKey("b")); !strings.Contains(log, `reason="the persistent volume pv-0 is bound to it"`) {
		t.Error("the log does not say why a claim was taken")
	}
}
