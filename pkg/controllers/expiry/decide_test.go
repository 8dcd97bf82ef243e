// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package expiry

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

var epoch = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// stored is one of the cluster's own backups, which is good.
func stored(name string, started time.Time, change ...func(*v1alpha1.Backup)) *v1alpha1.Backup {
	b := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: name, UID: types.UID("uid of " + name), CreationTimestamp: metav1.NewTime(started)},
		Spec:       v1alpha1.BackupSpec{StorageLocation: "default"},
		Status: v1alpha1.BackupStatus{
			Phase: v1alpha1.BackupPhaseCompleted, FormatVersion: "1.1.0",
			StartTimestamp: &metav1.Time{Time: started}, Expiration: &metav1.Time{Time: started.Add(24 * time.Hour)},
			Origin: &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustOwn},
		},
	}
	for _, f := range change {
		f(b)
	}
	return b
}

func of(namespaces ...string) func(*v1alpha1.Backup) {
	return func(b *v1alpha1.Backup) { b.Spec.IncludedNamespaces = namespaces }
}

func ended(phase v1alpha1.BackupPhase) func(*v1alpha1.Backup) {
	return func(b *v1alpha1.Backup) { b.Status.Phase = phase }
}

func lacking(b *v1alpha1.Backup) { b.Status.Volumes = &v1alpha1.BackupVolumesProgress{Deleted: 1} }

func leavingOut(b *v1alpha1.Backup) { b.Status.Volumes = &v1alpha1.BackupVolumesProgress{LeftOut: 1} }

func withVolumes(b *v1alpha1.Backup) { yes := true; b.Spec.DefaultVolumesToFsBackup = &yes }

func withoutVolumes(b *v1alpha1.Backup) { no := false; b.Spec.DefaultVolumesToFsBackup = &no }

func filtered(b *v1alpha1.Backup) { b.Spec.IncludedResources = []string{"configmaps"} }

func TestOwn(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.Backup)
		want   bool
	}{
		"good":      {func(*v1alpha1.Backup) {}, true},
		"failed":    {ended(v1alpha1.BackupPhaseFailed), true},
		"cancelled": {ended(v1alpha1.BackupPhaseCancelled), true},
		"deleting":  {ended(v1alpha1.BackupPhaseDeleting), true},
		"running":   {ended(v1alpha1.BackupPhaseInProgress), false},
		"bad":       {ended(v1alpha1.BackupPhaseUnreadable), false},
		"never stored": {func(b *v1alpha1.Backup) {
			b.Status.Phase, b.Status.FormatVersion = v1alpha1.BackupPhaseFailedValidation, ""
		}, false},
		"foreign":   {func(b *v1alpha1.Backup) { b.Status.Origin.Trust = v1alpha1.BackupTrustForeign }, false},
		"forged":    {func(b *v1alpha1.Backup) { b.Status.Origin.Trust = v1alpha1.BackupTrustForged }, false},
		"trusted":   {func(b *v1alpha1.Backup) { b.Status.Origin.Trust = v1alpha1.BackupTrustTrusted }, false},
		"no origin": {func(b *v1alpha1.Backup) { b.Status.Origin = nil }, false},
	} {
		if _, got := own(stored("b", epoch, c.change)); got != c.want {
			t.Errorf("%s: own is %v", name, got)
		}
	}
}

func TestLastGood(t *testing.T) {
	day := func(n int) time.Time { return epoch.AddDate(0, 0, n) }
	for name, c := range map[string]struct {
		backups []*v1alpha1.Backup
		want    []string
	}{
		"the newest of each namespace": {[]*v1alpha1.Backup{
			stored("a1", day(1), of("a")), stored("a2", day(2), of("a")), stored("b1", day(0), of("b")),
		}, []string{"a2", "b1"}},
		"one of all namespaces lets those before it go": {[]*v1alpha1.Backup{
			stored("a1", day(1), of("a")), stored("all", day(2)), stored("b1", day(3), of("b")),
		}, []string{"all", "b1"}},
		"what has failed is no good, and in part less so": {[]*v1alpha1.Backup{
			stored("a1", day(1), of("a")), stored("a2", day(2), of("a"), ended(v1alpha1.BackupPhasePartiallyFailed)),
			stored("a3", day(3), of("a"), ended(v1alpha1.BackupPhaseFailed)), stored("a4", day(4), of("a"), ended(v1alpha1.BackupPhaseDeleting)),
		}, []string{"a1", "a2"}},
		"what is complete stands in for what is not": {[]*v1alpha1.Backup{
			stored("a1", day(1), of("a"), ended(v1alpha1.BackupPhasePartiallyFailed)), stored("a2", day(2), of("a")),
			stored("b1", day(1), of("b"), ended(v1alpha1.BackupPhasePartiallyFailed)), stored("b2", day(2), of("b"), ended(v1alpha1.BackupPhasePartiallyFailed)),
		}, []string{"a2", "b2"}},
		"one whose volumes were deleted stands in for none that has them": {[]*v1alpha1.Backup{
			stored("a1", day(1), of("a")), stored("a2", day(2), of("a"), lacking), stored("b1", day(1), of("b"), lacking), stored("b2", day(2), of("b")),
		}, []string{"a1", "a2", "b2"}},
		"the data of a claim is no matter of the whole backup": {[]*v1alpha1.Backup{
			stored("a1", day(1), of("a")), stored("a2", day(2), of("a"), leavingOut), stored("a3", day(3), of("a"), leavingOut),
		}, []string{"a3"}},
		"of what is left one stays": {[]*v1alpha1.Backup{
			stored("a1", day(1), of("a"), lacking), stored("a2", day(2), of("a"), lacking),
		}, []string{"a2"}},
		"a namespace that is gone keeps none": {[]*v1alpha1.Backup{stored("x1", day(1), of("gone"))}, nil},
		"what takes less stands in for nothing that took more": {[]*v1alpha1.Backup{
			stored("whole", day(1), of("a"), withVolumes), stored("plain", day(2), of("a")), stored("some", day(3), of("a"), filtered),
		}, []string{"plain", "some", "whole"}},
		"one without the data of claims stands in for none that takes it": {[]*v1alpha1.Backup{
			stored("claims", day(1), of("a")), stored("none", day(2), of("a"), withoutVolumes),
			stored("other", day(1), of("b"), withoutVolumes), stored("later", day(2), of("b")),
		}, []string{"claims", "later", "none"}},
		"what takes more does": {[]*v1alpha1.Backup{
			stored("some", day(1), of("a"), filtered), stored("plain", day(2), of("a")), stored("whole", day(3), of("a"), withVolumes),
		}, []string{"whole"}},
		"one whose volumes nobody can read is no good": {[]*v1alpha1.Backup{
			stored("a1", day(1), of("a")), stored("a2", day(2), of("a"), func(b *v1alpha1.Backup) {
				b.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionVolumesListed, Status: metav1.ConditionFalse}}
			}),
		}, []string{"a1"}},
		"one that is damaged lets no whole one go, and stays itself": {[]*v1alpha1.Backup{
			stored("a1", day(1), of("a")), stored("a2", day(2), of("a"), func(b *v1alpha1.Backup) {
				b.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionVolumesDamaged, Status: metav1.ConditionTrue}}
			}),
		}, []string{"a1", "a2"}},
		"exclusion counts": {[]*v1alpha1.Backup{
			stored("a1", day(1), of("a")), stored("others", day(2), func(b *v1alpha1.Backup) { b.Spec.ExcludedNamespaces = []string{"a"} }),
		}, []string{"a1", "others"}},
	} {
		var backups []backup
		for _, object := range c.backups {
			if b, ok := own(object); ok {
				backups = append(backups, b)
			}
		}
		var got []string
		for uid := range lastGood(backups, []string{"a", "b"}) {
			got = append(got, string(uid)[len("uid of "):])
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestExpired(t *testing.T) {
	var backups []backup
	for _, object := range []*v1alpha1.Backup{
		stored("late", epoch.Add(time.Hour)), stored("early", epoch), stored("young", epoch.Add(2*time.Hour)),
		stored("going", epoch, ended(v1alpha1.BackupPhaseDeleting)),
		stored("forever", epoch, func(b *v1alpha1.Backup) { b.Status.Expiration = nil }),
	} {
		b, _ := own(object)
		backups = append(backups, b)
	}
	var got []string
	for _, b := range expired(backups, epoch.Add(25*time.Hour)) {
		got = append(got, b.Name)
	}
	if want := []string{"early", "late"}; !slices.Equal(got, want) {
		t.Errorf("%q have expired, want %q", got, want)
	}
}

// drawn draws backups that include and take this and that.
func drawn(t *rapid.T) []backup {
	var backups []backup
	for i := range rapid.IntRange(0, 12).Draw(t, "backups") {
		b, ok := own(stored(fmt.Sprint("b", i), epoch.Add(time.Duration(rapid.IntRange(0, 6).Draw(t, "start"))*time.Hour),
			of(rapid.SampledFrom([][]string{nil, {"a"}, {"b"}, {"a", "b"}, {"a*"}, {"*"}, {"c", "a"}, {"a?"}}).Draw(t, "includes")...),
			ended(rapid.SampledFrom([]v1alpha1.BackupPhase{
				v1alpha1.BackupPhaseCompleted, v1alpha1.BackupPhaseCompleted, v1alpha1.BackupPhasePartiallyFailed, v1alpha1.BackupPhaseFailed, v1alpha1.BackupPhaseDeleting,
			}).Draw(t, "phase")),
			rapid.SampledFrom([]func(*v1alpha1.Backup){withVolumes, lacking, filtered, func(*v1alpha1.Backup) {}, func(b *v1alpha1.Backup) {
				b.Spec.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
			}}).Draw(t, "scope")))
		if !ok {
			t.Fatal("it is not taken for the cluster's own")
		}
		backups = append(backups, b)
	}
	return backups
}

var present = []string{"a", "ab", "b", "kube-system"}

// includes is written anew, for the words that drawn uses.
func includes(b backup, namespace string) bool {
	switch b.reach.included {
	case "", "*":
		return true
	case "a*":
		return namespace == "a" || namespace == "ab"
	case "a?":
		return namespace == "ab"
	case "a,b":
		return namespace == "a" || namespace == "b"
	case "c,a":
		return namespace == "a"
	}
	return namespace == b.reach.included
}

// TestLastGoodAsDefined compares with the definition, word for word.
func TestLastGoodAsDefined(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		backups := drawn(t)
		want := map[types.UID]bool{}
		for _, b := range backups {
			for _, namespace := range present {
				if b.good && includes(b, namespace) && !slices.ContainsFunc(backups, func(other backup) bool {
					return other.good && newer(other, b) && includes(other, namespace) && other.scope.covers(b.scope)
				}) {
					want[b.uid] = true
				}
			}
		}
		got := map[types.UID]bool{}
		for uid := range lastGood(backups, present) {
			got[uid] = true
		}
		if !maps.Equal(got, want) {
			t.Fatalf("it keeps %v, want %v, of %+v", got, want, backups)
		}
	})
}

// TestWhatANamespaceHasStays: whatever goes, one after the other, what a namespace could
// be restored from by one good backup, by some good one it still can.
func TestWhatANamespaceHasStays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		backups := drawn(t)
		before := slices.Clone(backups)
		for len(backups) > 0 {
			last := lastGood(backups, present)
			free := slices.DeleteFunc(slices.Clone(backups), func(b backup) bool { return last[b.uid] != "" })
			if len(free) == 0 {
				break
			}
			gone := rapid.SampledFrom(free).Draw(t, "gone")
			backups = slices.DeleteFunc(slices.Clone(backups), func(b backup) bool { return b.uid == gone.uid })
		}
		for _, b := range before {
			for _, namespace := range present {
				if b.good && includes(b, namespace) && !slices.ContainsFunc(backups, func(other backup) bool {
					return other.good && includes(other, namespace) && other.scope.covers(b.scope)
				}) {
					t.Fatalf("the namespace %s has lost %+v", namespace, b)
				}
			}
		}
	})
}

// BenchmarkLastGood is of 10,000 backups: half of them of one of 1,000 namespaces each, and
// half of all.
func BenchmarkLastGood(b *testing.B) {
	var backups []backup
	var namespaces []string
	for i := range 1000 {
		namespaces = append(namespaces, fmt.Sprint("n", i))
	}
	for i := range 5000 {
		one, _ := own(stored(fmt.Sprint("one", i), epoch.Add(time.Duration(i)*time.Minute), of(namespaces[i%1000])))
		all, _ := own(stored(fmt.Sprint("all", i), epoch.Add(time.Duration(i)*time.Minute)))
		backups = append(backups, one, all)
	}
	for b.Loop() {
		lastGood(backups, namespaces)
	}
}

func TestTooMany(t *testing.T) {
	for _, c := range []struct {
		n, total, percent int
		want              bool
	}{
		{1, 1, 25, false}, {2, 2, 25, false}, {3, 3, 25, true}, {9, 10, 25, false}, {10, 11, 25, false}, {11, 12, 25, true},
		{25, 100, 25, false}, {26, 100, 25, true}, {11, 100, 0, true}, {1000, 1000, 100, false},
	} {
		if got := tooMany(c.n, c.total, c.percent); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestOneScopeInOtherWords: a hook's timeout of 60s is one of 1m, and one of 2m is another.
func TestOneScopeInOtherWords(t *testing.T) {
	of := func(timeout string) scope {
		var spec v1alpha1.BackupSpec
		if err := json.Unmarshal([]byte(`{"hooks": {"resources": [{"name": "a", "pre": [{"exec": {"command": ["sync"], "timeout": "`+timeout+`"}}], "post": [{"exec": {"command": ["sync"], "timeout": "`+timeout+`"}}]}]}}`), &spec); err != nil {
			t.Fatal(err)
		}
		return scopeOf(&spec, false)
	}
	if of("1m") != of("60s") {
		t.Error("1m and 60s are two scopes")
	}
	if of("1m") == of("2m") {
		t.Error("1m and 2m are one scope")
	}
}

// TestSnapshotsAreNoSecondCopy: a newer backup that keeps its snapshots in their storage does not let the last one
// go that has the data.
func TestSnapshotsAreNoSecondCopy(t *testing.T) {
	for _, inStorage := range []int32{0, 1} {
		var backups []backup
		for i, count := range []int32{0, inStorage} {
			b, ok := own(&v1alpha1.Backup{
				ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i)), CreationTimestamp: metav1.NewTime(epoch.Add(time.Duration(i) * time.Hour))},
				Spec:       v1alpha1.BackupSpec{IncludedNamespaces: []string{"a"}},
				Status: v1alpha1.BackupStatus{
					Phase: v1alpha1.BackupPhaseCompleted, FormatVersion: "1", Origin: &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustOwn},
					Volumes: &v1alpha1.BackupVolumesProgress{Total: 1, Completed: 1, InStorage: count},
				},
			})
			if !ok {
				t.Fatal("it is not our own")
			}
			backups = append(backups, b)
		}
		if stays := lastGood(backups, []string{"a"})["0"] != ""; stays != (inStorage > 0) {
			t.Errorf("with %d in their storage, the one with the data stays: %t", inStorage, stays)
		}
	}
}

// TestCopiesOfKeptSnapshots: only the first of equal backups that keep snapshots can be deleted, so it stays, by any
// uid of its copy. A copy of moved data is as good as the original.
func TestCopiesOfKeptSnapshots(t *testing.T) {
	for _, c := range []struct {
		inStorage int32
		copied    types.UID
		want      types.UID
	}{{1, "a", "m"}, {1, "z", "m"}, {0, "a", "m"}, {0, "z", "z"}} {
		var backups []backup
		for name, uid := range map[string]types.UID{"nightly": "m", "nightly@offsite": c.copied} {
			b, ok := own(stored(name, epoch, of("a"), func(b *v1alpha1.Backup) {
				b.UID, b.Status.Volumes = uid, &v1alpha1.BackupVolumesProgress{Total: 1, Completed: 1, InStorage: c.inStorage}
			}))
			if !ok {
				t.Fatal("it is not our own")
			}
			backups = append(backups, b)
		}
		if got := lastGood(backups, []string{"a"}); len(got) != 1 || got[c.want] != "a" {
			t.Errorf("with %d in their storage, and a copy %s, it keeps %v, want %s", c.inStorage, c.copied, got, c.want)
		}
	}
}

// Who asks for each backup by another selector does not have all of them kept, but the newest of
// so many, and nothing of that lets the last one of everything go.
func TestLastGoodOfManySelections(t *testing.T) {
	const selections = 3 * maxFiltered
	backups := []backup{{NamespacedName: types.NamespacedName{Namespace: "a", Name: "all"}, uid: "all", good: true, started: epoch, reach: reach{"a", ""}, scope: scope{volumes: volumesOfClaims, complete: true}}}
	for i := range selections {
		spec := v1alpha1.BackupSpec{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(i), "long": strings.Repeat("x", 63)}}}
		of := scopeOf(&spec, false)
		if of.complete = true; len(of.filter) > sha256.Size {
			t.Errorf("a filter of %d bytes is kept", len(of.filter))
		}
		of.volumes = volumesAll // which the one of everything does not take
		backups = append(backups, backup{uid: types.UID(fmt.Sprint(i)), good: true, started: epoch.Add(time.Duration(i+1) * time.Hour), reach: reach{"a", ""}, scope: of})
	}
	last := lastGood(backups, []string{"a"})
	if last["all"] == "" {
		t.Error("the last backup of everything goes")
	}
	if len(last) != maxFiltered+1 {
		t.Errorf("%d stay, want %d", len(last), maxFiltered+1)
	}
	for i := range selections {
		if kept := last[types.UID(fmt.Sprint(i))] != ""; kept != (i >= selections-maxFiltered) {
			t.Errorf("the backup %d stays: %v; the newest %d do", i, kept, maxFiltered)
		}
	}
}
