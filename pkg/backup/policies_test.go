// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// policy is a ConfigMap with one policy for each CONDITIONS: ACTION.
func policy(policies ...string) map[string]string {
	text := "version: v1\nvolumePolicies:\n"
	for _, policy := range policies {
		conditions, action, _ := strings.Cut(policy, ": ")
		text += fmt.Sprintf("- conditions: {%s}\n  action: {type: %s}\n", strings.ReplaceAll(conditions, ":", ": "), action)
	}
	return map[string]string{"policy.yaml": text}
}

func of(decided action, _ snapshotParameters) action { return decided }

// TestVolumeConditions goes through the conditions of Velero's resource-filtering page.
func TestVolumeConditions(t *testing.T) {
	decodeInto := func(raw string, into any) {
		t.Helper()
		if err := decode([]byte(raw), into); err != nil {
			t.Fatal(err)
		}
	}
	persistent := func(raw string) volumeTraits {
		var spec corev1.PersistentVolumeSpec
		decodeInto(raw, &spec)
		return traitsOf(&spec)
	}
	inPod := func(raw string) volumeTraits {
		var source corev1.VolumeSource
		decodeInto(raw, &source)
		return traitsInPod(&source)
	}
	ofClaim := func(raw string) *claimTraits {
		var of claimTraits
		decodeInto(raw, &of)
		return &of
	}
	disk := persistent(`{"capacity":{"storage":"5Gi"},"storageClassName":"gp2","csi":{"driver":"ebs","volumeAttributes":{"a":"1","b":"2"}}}`)
	share := persistent(`{"capacity":{"storage":"1Ti"},"nfs":{"server":"10.0.0.1","path":"/a"}}`)
	scratch, shareInPod := inPod(`{"emptyDir":{}}`), inPod(`{"nfs":{"server":"10.0.0.1","path":"/a"}}`)
	claim := ofClaim(`{"metadata":{"labels":{"env":"prod","team":"web"}},"spec":{"volumeMode":"Filesystem","accessModes":["ReadWriteOnce","ReadOnlyMany"]},"status":{"phase":"Bound"}}`)
	for conditions, test := range map[string]struct{ matches, not []volumeTraits }{
		`{}`:                                 {matches: []volumeTraits{disk, share, scratch, shareInPod}},
		`{capacity: "0,5Gi"}`:                {matches: []volumeTraits{disk, scratch}, not: []volumeTraits{share}},
		`{capacity: ",5Gi"}`:                 {matches: []volumeTraits{disk, scratch}, not: []volumeTraits{share}},
		`{capacity: "5Gi,"}`:                 {matches: []volumeTraits{disk, share}, not: []volumeTraits{scratch}},
		`{capacity: " 6Gi , 2Ti"}`:           {matches: []volumeTraits{share}, not: []volumeTraits{disk}},
		`{capacity: ","}`:                    {matches: []volumeTraits{disk, share, scratch}},
		`{storageClass: [gp3, gp2]}`:         {matches: []volumeTraits{disk}, not: []volumeTraits{share, scratch}},
		`{storageClass: [gp3]}`:              {not: []volumeTraits{disk}},
		`{nfs: {}}`:                          {matches: []volumeTraits{share, shareInPod}, not: []volumeTraits{disk, scratch}},
		`{nfs: {server: 10.0.0.1}}`:          {matches: []volumeTraits{share, shareInPod}},
		`{nfs: {path: /a}}`:                  {matches: []volumeTraits{share}},
		`{nfs: {server: b, path: /a}}`:       {not: []volumeTraits{share}},
		`{nfs: {server: 10.0.0.1, path: /}}`: {not: []volumeTraits{share}},
		`{csi: {}}`:                          {matches: []volumeTraits{disk}, not: []volumeTraits{share, scratch}},
		`{csi: {driver: ebs}}`:               {matches: []volumeTraits{disk}},
		`{csi: {driver: efs}}`:               {not: []volumeTraits{disk}},
		`{csi: {driver: ebs, volumeAttributes: {a: "1"}}}`:         {matches: []volumeTraits{disk}},
		`{csi: {driver: ebs, volumeAttributes: {a: "1", c: "3"}}}`: {not: []volumeTraits{disk}},
		`{volumeTypes: [emptyDir, configmap]}`:                     {matches: []volumeTraits{scratch, inPod(`{"configMap":{}}`)}, not: []volumeTraits{disk}},
		`{volumeTypes: [csi]}`:                                     {matches: []volumeTraits{disk}, not: []volumeTraits{share}},
		`{volumeTypes: [ephemeral]}`:                               {matches: []volumeTraits{inPod(`{"ephemeral":{}}`)}},
		`{pvcLabels: {env: prod}}`:                                 {matches: []volumeTraits{disk}},
		`{pvcLabels: {env: prod, app: x}}`:                         {not: []volumeTraits{disk}},
		`{pvcPhase: [Pending, Bound]}`:                             {matches: []volumeTraits{disk}},
		`{pvcPhase: [Lost]}`:                                       {not: []volumeTraits{disk}},
		`{pvcVolumeMode: Filesystem}`:                              {matches: []volumeTraits{disk}},
		`{pvcVolumeMode: Block}`:                                   {not: []volumeTraits{disk}},
		`{pvcAccessModes: [ReadOnlyMany, ReadWriteOnce]}`:          {matches: []volumeTraits{disk}},
		`{pvcAccessModes: [ReadWriteOnce]}`:                        {not: []volumeTraits{disk}},
		`{storageClass: [gp2], capacity: "6Gi,"}`:                  {not: []volumeTraits{disk}},
	} {
		found, err := parsePolicies(map[string]string{"p": "version: v1\nvolumePolicies:\n- conditions: " + conditions + "\n  action: {type: skip}\n"})
		if err != nil {
			t.Errorf("%s: %v", conditions, err)
			continue
		}
		for i, volume := range append(test.matches, test.not...) {
			if got := of(found.decide(volume, claim)) == skipAction; got != (i < len(test.matches)) {
				t.Errorf("%s matches %+v: %t", conditions, volume, got)
			}
		}
	}
	if found, _ := parsePolicies(policy("pvcPhase:[Bound]: skip")); of(found.decide(disk, nil)) != noAction {
		t.Error("a volume without a claim has a phase")
	}
	both, err := parsePolicies(policy("csi:{}: snapshot", "storageClass:[gp2]: fs-backup"))
	if err != nil || of(both.decide(disk, claim)) != snapshotAction {
		t.Errorf("the first of two does not count: %v", err)
	}
}

// What a policy can't mean fails the backup before it reads anything.
func TestBadPolicies(t *testing.T) {
	const good = "version: v1\nvolumePolicies: []\n"
	for name, test := range map[string]struct {
		data   map[string]string
		err    error
		reason string
	}{
		"no keys":              {map[string]string{}, nil, "it has 0 keys"},
		"two keys":             {map[string]string{"a": good, "b": good}, nil, "it has 2 keys"},
		"no YAML":              {map[string]string{"a": "{"}, nil, "a: "},
		"no version":           {map[string]string{"a": "volumePolicies: []"}, nil, `its version is ""`},
		"another version":      {map[string]string{"a": "version: v2"}, nil, `its version is "v2"`},
		"an unknown condition": {policy("size:1: skip"), nil, `unknown field "size"`},
		"a policy that we do not have": {
			map[string]string{"a": "version: v1\nincludeExcludePolicy: {}"}, nil, `unknown field "includeExcludePolicy"`},
		"no action":             {policy("csi:{}: "), nil, `volumePolicies[0]: action.type is ""`},
		"an action of a plugin": {policy("csi:{}: skip", "nfs:{}: custom"), nil, `volumePolicies[1]: action.type is "custom"`},
		"one capacity":          {policy(`capacity:"5Gi": skip`), nil, "must be two quantities"},
		"three capacities":      {policy(`capacity:"1,2,3": skip`), nil, "conditions.capacity"},
		"no quantity":           {policy(`capacity:"a,b": skip`), nil, "conditions.capacity"},
		"a huge upper bound":    {policy(`capacity:"1,1e1000000000": skip`), nil, `"1e1000000000" is no quantity`},
		"a huge lower bound":    {policy(`capacity:"1e1000000000,": skip`), nil, `"1e1000000000" is no quantity`},
		"a tiny lower bound":    {policy(`capacity:"1e-2000000000,": skip`), nil, `"1e-2000000000" is no quantity`},
		"capacities turned":     {policy(`capacity:"2,1": skip`), nil, "the lower bound is above"},
		"attributes of any":     {policy(`csi:{volumeAttributes:{a:b}}: skip`), nil, "volumeAttributes need a driver"},
		"parameters":            {map[string]string{"a": "version: v1\nvolumePolicies: [{action: {type: skip, parameters: {snapshotClass: b}}}]"}, nil, "the action skip has none"},
		"an unknown parameter":  {map[string]string{"a": "version: v1\nvolumePolicies: [{action: {type: snapshot, parameters: {keepSnapshots: 3}}}]"}, nil, `unknown field "keepSnapshots"`},
		"too many kept":         {map[string]string{"a": "version: v1\nvolumePolicies: [{action: {type: snapshot, parameters: {keepLocalSnapshots: 65}}}]"}, nil, "keepLocalSnapshots is 65: it must be from 0 to 64"},
		"fewer kept than none":  {map[string]string{"a": "version: v1\nvolumePolicies: [{action: {type: snapshot, parameters: {keepLocalSnapshots: -1}}}]"}, nil, "keepLocalSnapshots is -1"},
		"kept, and not moved":   {map[string]string{"a": "version: v1\nvolumePolicies: [{action: {type: snapshot, parameters: {keepLocalSnapshots: 3, snapshotMoveData: false}}}]"}, nil, "volumePolicies[0]: action.parameters.keepLocalSnapshots is 3, and snapshotMoveData is false"},
		"kept without snapshot": {map[string]string{"a": "version: v1\nvolumePolicies: [{action: {type: fs-backup, parameters: {keepLocalSnapshots: 3}}}]"}, nil, "the action fs-backup has none"},
		"not there":             {nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, "mine"), `configmaps "mine" not found`},
		"not theirs to read":    {nil, NotAllowedError("ada may not"), "ada may not"},
		"away for too long":     {nil, apierrors.NewInternalError(errors.New("no quorum")), "no quorum"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{ResourcePolicy: &v1alpha1.ResourcePolicyReference{Kind: "configmap", Name: "mine"}})
			f.deps.Policies = testPolicies(func(namespace, name string) (map[string]string, error) {
				if namespace != "holdfast" || name != "mine" {
					t.Errorf("asked for %s/%s", namespace, name)
				}
				return test.data, test.err
			})
			outcome := f.run(t)
			reason := outcome.Status.FailureReason
			if outcome.Status.Phase != v1alpha1.BackupPhaseFailed || !strings.Contains(reason, test.reason) || !strings.Contains(reason, "holdfast/mine") {
				t.Errorf("got %+v", outcome.Status)
			}
			if len(f.requests) > 0 {
				t.Errorf("asked the cluster for %q", f.requests)
			}
		})
	}
}

type testPolicies func(namespace, name string) (map[string]string, error)

func (p testPolicies) Policy(_ context.Context, namespace, name string) (map[string]string, error) {
	return p(namespace, name)
}

// TestWhatPoliciesDo: they come before annotations and the default, which are for what no
// policy matches; after what the backup excludes, and what can't be read.
func TestWhatPoliciesDo(t *testing.T) {
	const include, exclude = `"backup.velero.io/backup-volumes":`, `"backup.velero.io/backup-volumes-excludes":`
	const notOurs = `"backup.holdfast.io/backup-volumes-excludes":`
	yes := true
	for name, test := range map[string]struct {
		byDefault bool
		excluded  []string
		policy    map[string]string
		pods      []string
		want      []string // POD/VOLUME
		warnings  []string
		skipped   map[string]string // by persistent volume
	}{
		"files of what matches, and of nothing else": {
			policy: policy("csi:{}: fs-backup"),
			pods:   []string{podWith("p", "", "a"+emptyDir, "data"+claimData, "idle"+claimIdle, `conf "configMap":{}`)},
			want:   []string{"p/data", "p/idle"},
			warnings: []string{
				"persistentvolumeclaims shop/eph-temp: the data of the claim is not backed up: no running pod of the backup uses the claim, and files are read through one",
			},
		},
		"the default for what does not match": {
			byDefault: true, policy: policy("volumeTypes:[emptyDir]: skip", "pvcPhase:[Pending]: skip"),
			pods: []string{podWith("p", "", "a"+emptyDir, "data"+claimData, "idle"+claimIdle, "w"+claimPending, `e "persistentVolumeClaim":{"claimName":"eph-temp"}`)},
			want: []string{"p/data", "p/e", "p/idle"},
			warnings: []string{
				"persistentvolumeclaims shop/local: the data of the claim is not backed up: its persistent volume is of type hostPath, and not below the controller's --host-path-roots",
			},
		},
		"annotations for what does not match": {
			policy: policy("csi:{}: skip"),
			pods:   []string{podWith("p", include+`"a,data"`, "a"+emptyDir, "b"+emptyDir, "data"+claimData)},
			want:   []string{"p/a"},
			skipped: map[string]string{"pv-data": "a volume policy skips it", "pv-idle": "a volume policy skips it", "pv-temp": "a volume policy skips it",
				"pv-local": "its persistent volume is of type hostPath, and not below the controller's --host-path-roots"},
		},
		"annotations do not undo a policy": {
			policy: policy("volumeTypes:[emptyDir]: fs-backup"),
			pods:   []string{podWith("p", exclude+`"a",`+notOurs+`"b"`, "a"+emptyDir, "b"+emptyDir)},
			want:   []string{"p/a", "p/b"},
		},
		"a snapshot, of which there are none": {
			byDefault: true, policy: policy("csi:{}: snapshot"),
			pods: []string{podWith("p", "", "a"+emptyDir, "data"+claimData, `l "persistentVolumeClaim":{"claimName":"local"}`, "idle"+claimIdle, `e "persistentVolumeClaim":{"claimName":"eph-temp"}`)},
			want: []string{"p/a"},
			warnings: []string{
				"pods shop/p: the data of volume data (claim data) is not backed up: a volume policy wants a snapshot of it, and none is made: see --snapshots of the controller, or use the action fs-backup",
				"pods shop/p: the data of volume e (claim eph-temp) is not backed up: a volume policy wants a snapshot of it, and none is made: see --snapshots of the controller, or use the action fs-backup",
				"pods shop/p: the data of volume idle (claim idle) is not backed up: a volume policy wants a snapshot of it, and none is made: see --snapshots of the controller, or use the action fs-backup",
				"pods shop/p: the data of volume l (claim local) is not backed up: its persistent volume is of type hostPath, and not below the controller's --host-path-roots",
			},
			skipped: map[string]string{
				"pv-data":  "a volume policy wants a snapshot of it, and none is made: see --snapshots of the controller, or use the action fs-backup",
				"pv-idle":  "a volume policy wants a snapshot of it, and none is made: see --snapshots of the controller, or use the action fs-backup",
				"pv-temp":  "a volume policy wants a snapshot of it, and none is made: see --snapshots of the controller, or use the action fs-backup",
				"pv-local": "its persistent volume is of type hostPath, and not below the controller's --host-path-roots",
			},
		},
		"a snapshot of what no pod has": {
			policy: policy("pvcLabels:{env:prod}: snapshot"),
			warnings: []string{
				"persistentvolumeclaims shop/labelled: the data of the claim is not backed up: a volume policy wants a snapshot of it, and none is made: see --snapshots of the controller, or use the action fs-backup",
			},
		},
		"a generic ephemeral volume is of that type": {
			policy: policy("volumeTypes:[ephemeral]: fs-backup", "csi:{}: skip"),
			pods:   []string{podWith("eph", "", `temp "ephemeral":{"volumeClaimTemplate":{}}`)},
			want:   []string{"eph/temp"},
		},
		"what is excluded stays so": {
			excluded: []string{"persistentvolumeclaims"}, policy: policy("csi:{}: fs-backup", ": fs-backup"),
			pods: []string{podWith("p", "", "data"+claimData, "a"+emptyDir, `host "hostPath":{"path":"/"}`, `conf "configMap":{}`)},
			want: []string{"p/a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := v1alpha1.BackupSpec{
				IncludedNamespaces: []string{"shop"}, ExcludedResources: test.excluded,
				ResourcePolicy: &v1alpha1.ResourcePolicyReference{Kind: "ConfigMap", Name: "mine"},
			}
			if test.byDefault {
				spec.DefaultVolumesToFsBackup = &yes
			}
			f := newFixture(t, spec)
			f.claims()
			if name == "a snapshot of what no pod has" {
				f.add("persistentvolumes", `{"metadata":{"name":"pv-l"},"spec":{"csi":{"driver":"x"}}}`)
				f.add("persistentvolumeclaims", `{"metadata":{"name":"labelled","namespace":"shop","labels":{"env":"prod"}},"spec":{"volumeName":"pv-l"},"status":{"phase":"Bound"}}`)
			}
			f.add("pods", test.pods...)
			tries := 0
			f.deps.Policies = testPolicies(func(string, string) (map[string]string, error) {
				if tries++; tries == 1 {
					return nil, apierrors.NewServiceUnavailable("a restart")
				}
				return test.policy, nil
			})
			if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted {
				t.Errorf("got %+v", outcome.Status)
			}
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
			if diff := gocmp.Diff(test.warnings, warnings); len(test.warnings)+len(warnings) > 0 && diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			if test.skipped == nil {
				return
			}
			infos, err := format.ReadVolumeInfo(strings.NewReader(string(f.read(t, format.VolumeInfoKey("b")))))
			if err != nil {
				t.Fatal(err)
			}
			skipped := map[string]string{}
			for _, info := range infos {
				if info.Skipped {
					skipped[info.PVName] = info.SkippedReason
				}
			}
			if diff := gocmp.Diff(test.skipped, skipped); diff != "" {
				t.Errorf("skipped (-want +got):\n%s", diff)
			}
		})
	}
}

// TestIdleVolumeTypes: a type that no volume is of is told.
func TestIdleVolumeTypes(t *testing.T) {
	found, err := parsePolicies(map[string]string{"policies": "{version: v1, volumePolicies: [{conditions: {volumeTypes: [NFS, emptyDir, csi, pvc]}, action: {type: skip}}]}"})
	if err != nil {
		t.Fatal(err)
	}
	if told := found.idle(); len(told) != 1 || !strings.Contains(told[0], `volumePolicies[0].conditions.volumeTypes has "pvc"`) {
		t.Errorf("told is %q", told)
	}
}
