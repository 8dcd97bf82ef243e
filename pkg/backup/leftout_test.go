// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// leftOut is how many claims a backup says that it lacks.
func leftOut(outcome Outcome) int32 {
	if volumes := outcome.Status.Volumes; volumes != nil {
		return volumes.LeftOut
	}
	return 0
}

// skippedReasons are those of the volume info, by persistent volume.
func (f *fixture) skippedReasons(t *testing.T) map[string]string {
	t.Helper()
	infos, err := format.ReadVolumeInfo(bytes.NewReader(f.read(t, format.VolumeInfoKey("b"))))
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]string{}
	for _, info := range infos {
		if info.Skipped {
			reasons[info.PVName] = info.SkippedReason
		}
	}
	return reasons
}

// oneClaim adds a namespace with the bound claim data, and pods.
func (f *fixture) oneClaim(pods ...string) {
	f.add("namespaces", namespace("shop", ""))
	f.add("persistentvolumes", `{"metadata":{"name":"pv-data"},"spec":{"csi":{}}}`)
	f.add("persistentvolumeclaims", `{"metadata":{"name":"data","namespace":"shop","uid":"claim-data"},"spec":{"volumeName":"pv-data"},"status":{"phase":"Bound"}}`)
	f.add("pods", pods...)
}

// TestHooksThatFailLeaveOutWhatWasWanted: the data that is not read since a hook failed counts
// as left out only if the backup would have read it.
func TestHooksThatFailLeaveOutWhatWasWanted(t *testing.T) {
	const excluded = `"backup.holdfast.io/backup-volumes-excludes":"d"`
	for name, test := range map[string]struct {
		files *bool
		pods  []string
		want  int32
	}{
		"by default":        {pods: []string{hookedPod("p", "n1", isDB, "", "d"+claimData)}, want: 1},
		"Velero's false":    {files: new(false), pods: []string{hookedPod("p", "n1", isDB, "", "d"+claimData)}},
		"an exclusion":      {pods: []string{hookedPod("p", "n1", isDB, excluded, "d"+claimData)}},
		"by another's wish": {pods: []string{hookedPod("p", "n1", isDB, excluded, "d"+claimData), hookedPod("q", "n1", "", "", "d"+claimData)}, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, Hooks: dbHooks("")}).watched()
			f.request.Backup.Spec.DefaultVolumesToFsBackup = test.files
			f.oneClaim(test.pods...)
			f.hooks.exec = func(_ context.Context, what string) (string, error) {
				if strings.Contains(what, "freeze") {
					return "", errors.New("it does not freeze")
				}
				return "", nil
			}
			outcome := f.run(t)
			if got := leftOut(outcome); got != test.want || outcome.Status.Phase != v1alpha1.BackupPhasePartiallyFailed {
				t.Errorf("%d claims are left out, want %d: %+v", got, test.want, outcome.Status)
			}
		})
	}
}

// TestAVolumeThatNoAgentTakesIsListed: what could not be handed over is in the volume info.
func TestAVolumeThatNoAgentTakesIsListed(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
	f.request.Backup.Spec.DefaultVolumesToFsBackup = nil
	f.oneClaim(podWith("p", "", "d"+claimData), podWith("q", "", "d"+claimData))
	f.volumes.submit = func(*format.Volume) error { return errors.New("the server is full") }
	outcome := f.run(t)
	if got := leftOut(outcome); got != 1 || outcome.Status.Errors != 1 || outcome.Status.Warnings != 0 {
		t.Errorf("%d claims are left out: %+v, %+v", got, outcome.Status, f.results(t))
	}
	if reason := f.skippedReasons(t)["pv-data"]; reason != "its volume could not be handed over to an agent" {
		t.Errorf("the volume info says %q", reason)
	}
}

// TestAPodThatIsLabelledToBeLeftOut: the data that only such a pod uses was left out on purpose.
func TestAPodThatIsLabelledToBeLeftOut(t *testing.T) {
	labelled := strings.Replace(podWith("p", "", "d"+claimData), `"metadata":{`, `"metadata":{"labels":{"velero.io/exclude-from-backup":"true"},`, 1)
	for name, test := range map[string]struct {
		files *bool
		pods  []string
		want  string
	}{
		"by default":                   {want: "the pod p, which uses it, is labelled to be left out"},
		"if all volumes are asked for": {files: new(true), want: "the pod p, which uses it, is labelled to be left out"},
		"beside one that is read":      {pods: []string{podWith("q", "", "d"+claimData)}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
			f.request.Backup.Spec.DefaultVolumesToFsBackup = test.files
			f.oneClaim(append(test.pods, labelled)...)
			outcome := f.run(t)
			if got := leftOut(outcome); got != 0 || outcome.Status.Warnings != 0 {
				t.Errorf("%d claims are left out: %+v, %+v", got, outcome.Status, f.results(t))
			}
			if reason := f.skippedReasons(t)["pv-data"]; reason != test.want {
				t.Errorf("the volume info says %q", reason)
			}
		})
	}
}
