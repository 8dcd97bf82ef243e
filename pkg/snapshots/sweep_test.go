// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

var now = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// scene is what a sweep sees. A snapshot's name is also the uid of its content.
type scene struct{ View }

// backups adds snapshots of one claim that stay beside moved data: "a" to "d" of the backups of these names, the later
// the newer. The newest one says that so many stay, and the others that more do.
func (s *scene) backups(most string, fates string, changes ...func(*VolumeSnapshotContent)) *scene {
	for i, of := range []string{"c", "a", "d", "b"} { // in any order
		at, say := int64(of[0]), "9"
		if of == "d" {
			say = most
		}
		s.content(of, of, local(say, at))
		if i < len(changes) && changes[i] != nil {
			changes[i](&s.Contents[len(s.Contents)-1])
		}
		s.fate(of, map[byte]Fate{'s': Stored, 'l': Live, 'u': Unknown, 'm': Missing, 'f': Failed}[fates[of[0]-'a']])
	}
	return s
}

func newScene() *scene {
	return &scene{View{ClusterUID: ours, Now: now, Fates: map[types.UID]Fate{}, Since: map[types.UID]time.Time{}, Missing: map[types.UID]time.Time{}}}
}

// content adds a labelled, kept cut of a backup; its VolumeSnapshot is deleted.
func (s *scene) content(uid, backup string, changes ...func(*VolumeSnapshotContent)) *scene {
	c := VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid), Labels: map[string]string{LabelCluster: ours, LabelBackup: backup, LabelClaim: "claim"}, Finalizers: []string{finalizerBound, Finalizer}},
		Spec:       ContentSpec{Policy: Retain, Driver: "d", Source: ContentSource{Volume: "volume"}},
		Status:     ContentStatus{Handle: "h", Created: 1},
	}
	c.Spec.Ref.Name, c.Spec.Ref.UID = name(uid), types.UID("of-"+uid)
	for _, change := range changes {
		change(&c)
	}
	s.Contents = append(s.Contents, c)
	return s
}

// snapshot adds the VolumeSnapshot of a content.
func (s *scene) snapshot(uid, backup string, changes ...func(*VolumeSnapshot)) *scene {
	of := VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Name: name(uid), Namespace: "shop", UID: types.UID("of-" + uid), Labels: map[string]string{LabelCluster: ours, LabelBackup: backup, LabelClaim: "claim"}}}
	for _, change := range changes {
		change(&of)
	}
	s.Snapshots = append(s.Snapshots, of)
	return s
}

// fate sets a backup's fate. One that is missing is so for long.
func (s *scene) fate(backup string, fate Fate) *scene {
	s.Fates[types.UID(backup)] = fate
	return s.missing(backup, MissingAge)
}

func (s *scene) missing(backup string, age time.Duration) *scene {
	s.Missing[types.UID(backup)] = now.Add(-age)
	return s
}

func (s *scene) since(uid string, age time.Duration) *scene {
	s.Since[types.UID(uid)] = now.Add(-age)
	return s
}

func (s *scene) many(number int, backup string) *scene {
	for i := range number {
		s.content(fmt.Sprintf("%s-%d", backup, i), backup)
	}
	return s
}

func unlabelled(c *VolumeSnapshotContent) {
	c.Labels, c.Spec.Policy, c.Finalizers = nil, Delete, []string{finalizerBound}
}
func moved(c *VolumeSnapshotContent) { c.Labels[LabelMoved] = "true" }

// local keeps a content beside its moved data, among so many; it was cut at an instant.
func local(most string, at int64) func(*VolumeSnapshotContent) {
	return func(c *VolumeSnapshotContent) {
		c.Labels[LabelKeepLocal], c.Status.Created = most, at
		c.Labels[labelLocation+".0"] = "xdefaultx"
	}
}

func labelled(key, value string) func(*VolumeSnapshotContent) {
	return func(c *VolumeSnapshotContent) { c.Labels[key] = value }
}

// offer makes a content the one by which a restore makes a claim from the snapshot of the others.
func offer(c *VolumeSnapshotContent) {
	c.Labels = map[string]string{LabelOfferCluster: ours}
	c.Spec.Source = ContentSource{Snapshot: "h"}
}
func unheld(c *VolumeSnapshotContent) { c.Finalizers = nil }
func uncut(c *VolumeSnapshotContent)  { c.Status = ContentStatus{} }

func takenUp(message string) func(*VolumeSnapshot) {
	return func(of *VolumeSnapshot) {
		of.Finalizers = []string{"as-source"}
		if message != "" {
			of.Status = &SnapshotStatus{Error: &Error{Message: message}}
		}
	}
}

func deletedFor(age time.Duration) func(*VolumeSnapshotContent) {
	return func(c *VolumeSnapshotContent) { c.DeletionTimestamp = &metav1.Time{Time: now.Add(-age)} }
}

func attemptOf(number string) func(*VolumeSnapshotContent) {
	return func(c *VolumeSnapshotContent) { c.Labels[LabelAttempt] = number }
}

// TestDecide has one row for each rule of a sweep.
func TestDecide(t *testing.T) {
	for title, test := range map[string]struct {
		scene           *scene
		forget, release []string
		states          map[State]int
		orphans, doubt  int
		soon            bool
	}{
		"nothing":                                {scene: newScene()},
		"live":                                   {scene: newScene().content("a", "b").snapshot("a", "b").fate("b", Live), states: map[State]int{StateKept: 1}},
		"live, not cut":                          {scene: newScene().content("a", "b", uncut).snapshot("a", "b").fate("b", Live), states: map[State]int{StateKept: 1}},
		"live, without labels yet":               {scene: newScene().content("a", "b", unlabelled).snapshot("a", "b").fate("b", Live)},
		"stored":                                 {scene: newScene().content("a", "b").fate("b", Stored), states: map[State]int{StateKept: 1}},
		"stored, not released":                   {scene: newScene().content("a", "b").snapshot("a", "b").fate("b", Stored), release: []string{"of-a"}, states: map[State]int{StateKept: 1}},
		"stored, not cut":                        {scene: newScene().content("a", "b", uncut).snapshot("a", "b").fate("b", Stored), states: map[State]int{StateKept: 1}},
		"failed":                                 {scene: newScene().content("a", "b").snapshot("a", "b").fate("b", Failed), forget: []string{"a"}, states: map[State]int{StateLeaving: 1}},
		"failed, all of many":                    {scene: newScene().many(30, "b").fate("b", Failed), forget: namesOf(30, "b"), states: map[State]int{StateLeaving: 30}},
		"failed, labels missing":                 {scene: newScene().content("a", "b", unlabelled).snapshot("a", "b").fate("b", Failed), forget: []string{"a"}, states: map[State]int{StateLeaving: 1}},
		"missing":                                {scene: newScene().content("a", "b").fate("b", Missing), forget: []string{"a"}, states: map[State]int{StateLeaving: 1}},
		"missing for less than a day":            {scene: newScene().content("a", "b").snapshot("a", "b").fate("b", Missing).missing("b", MissingAge-1), release: []string{"of-a"}, states: map[State]int{StateDoubt: 1}},
		"missing before, and not read now":       {scene: newScene().content("a", "b").missing("b", MissingAge), states: map[State]int{StateDoubt: 1}},
		"missing for two days":                   {scene: newScene().content("a", "b").fate("b", Missing).missing("b", 2*MissingAge), forget: []string{"a"}, states: map[State]int{StateLeaving: 1}},
		"ten of ten missing":                     {scene: newScene().many(10, "b").fate("b", Missing), forget: namesOf(10, "b"), states: map[State]int{StateLeaving: 10}},
		"eleven of eleven missing":               {scene: newScene().many(11, "b").fate("b", Missing), doubt: 1, states: map[State]int{StateDoubt: 11}},
		"eleven of 219 missing":                  {scene: newScene().many(11, "b").fate("b", Missing).many(208, "c").fate("c", Stored), doubt: 1, states: map[State]int{StateDoubt: 11, StateKept: 208}},
		"eleven of 220 missing":                  {scene: newScene().many(11, "b").fate("b", Missing).many(209, "c").fate("c", Stored), forget: namesOf(11, "b"), states: map[State]int{StateLeaving: 11, StateKept: 209}},
		"doubt spares no failed one":             {scene: newScene().many(11, "b").fate("b", Missing).content("a", "f").fate("f", Failed), forget: []string{"a"}, doubt: 1, states: map[State]int{StateDoubt: 11, StateLeaving: 1}},
		"moved, live":                            {scene: newScene().content("a", "b", moved).snapshot("a", "b").fate("b", Live), states: map[State]int{StateKept: 1}},
		"moved, and stored":                      {scene: newScene().content("a", "b", moved).snapshot("a", "b").fate("b", Stored), forget: []string{"a"}, states: map[State]int{StateLeaving: 1}},
		"moved, not read":                        {scene: newScene().content("a", "b", moved), forget: []string{"a"}, states: map[State]int{StateLeaving: 1}},
		"local, among the newest":                {scene: newScene().backups("4", "ssss"), states: map[State]int{StateKept: 4}},
		"local, beyond the newest":               {scene: newScene().backups("2", "ssss"), forget: []string{"a", "b"}, states: map[State]int{StateKept: 2, StateLeaving: 2}},
		"local, one stays":                       {scene: newScene().backups("1", "ssss"), forget: []string{"c", "a", "b"}, states: map[State]int{StateKept: 1, StateLeaving: 3}},
		"local, and the newest has not ended":    {scene: newScene().backups("1", "sssl"), states: map[State]int{StateKept: 4}},
		"local, and the newest was not read":     {scene: newScene().backups("1", "sssu"), states: map[State]int{StateKept: 3, StateDoubt: 1}},
		"local, and the newest has failed":       {scene: newScene().backups("1", "sssf"), forget: []string{"d"}, states: map[State]int{StateKept: 3, StateLeaving: 1}},
		"local, and the newest is missing":       {scene: newScene().backups("1", "sssm"), forget: []string{"d"}, states: map[State]int{StateKept: 3, StateLeaving: 1}},
		"local, an older one was not read":       {scene: newScene().backups("1", "suss"), forget: []string{"c", "a"}, states: map[State]int{StateKept: 1, StateLeaving: 2, StateDoubt: 1}},
		"local, an older one has not ended":      {scene: newScene().backups("2", "lsss"), forget: []string{"b"}, states: map[State]int{StateKept: 3, StateLeaving: 1}},
		"local, the newest failed to be moved":   {scene: newScene().backups("1", "ssss", nil, nil, moved), forget: []string{"d"}, states: map[State]int{StateKept: 3, StateLeaving: 1}},
		"local, the newest is not cut":           {scene: newScene().backups("1", "ssss", nil, nil, uncut), states: map[State]int{StateKept: 4}},
		"local, an older one is not cut":         {scene: newScene().backups("1", "ssss", uncut), forget: []string{"a", "b"}, states: map[State]int{StateKept: 2, StateLeaving: 2}},
		"local, the newest is being discarded":   {scene: newScene().backups("1", "ssss", nil, nil, func(c *VolumeSnapshotContent) { c.Spec.Policy = Delete }), forget: []string{"d"}, states: map[State]int{StateKept: 3, StateLeaving: 1}},
		"local, deleted by others":               {scene: newScene().backups("3", "ssss", deletedFor(time.Minute)), forget: []string{"a"}, states: map[State]int{StateKept: 3, StateLeaving: 1}},
		"local, of no number":                    {scene: newScene().backups("some", "ssss"), states: map[State]int{StateKept: 4}},
		"local, of a number below one":           {scene: newScene().backups("-1", "ssss"), states: map[State]int{StateKept: 4}},
		"local, another claim's":                 {scene: newScene().backups("1", "ssss", nil, nil, labelled(LabelClaim, "made anew")), states: map[State]int{StateKept: 4}},
		"local, another location's":              {scene: newScene().backups("1", "ssss", nil, nil, labelled(labelLocation+".0", "xotherx")), states: map[State]int{StateKept: 4}},
		"local, another cluster's":               {scene: newScene().backups("1", "ssss", nil, nil, labelled(LabelCluster, "that")), states: map[State]int{StateKept: 3}},
		"local, two attempts of one backup":      {scene: newScene().backups("2", "ssss", labelled(LabelBackup, "d")), forget: []string{"a"}, states: map[State]int{StateKept: 3, StateLeaving: 1}},
		"local, a claim is made from one":        {scene: newScene().backups("1", "ssss").content("offer", "", offer), states: map[State]int{StateKept: 4}},
		"local, beside kept ones":                {scene: newScene().backups("2", "ssss", func(c *VolumeSnapshotContent) { delete(c.Labels, LabelKeepLocal) }), forget: []string{"a"}, states: map[State]int{StateKept: 3, StateLeaving: 1}},
		"its location was not read":              {scene: newScene().content("a", "b").snapshot("a", "b"), release: []string{"of-a"}, states: map[State]int{StateDoubt: 1}},
		"another cluster's":                      {scene: newScene().content("a", "b", func(c *VolumeSnapshotContent) { c.Labels[LabelCluster] = "that" }).fate("b", Missing)},
		"another cluster's snapshot":             {scene: newScene().snapshot("a", "b", func(of *VolumeSnapshot) { of.Labels[LabelCluster] = "that" }).fate("b", Failed)},
		"an earlier attempt, live":               {scene: newScene().content("a", "b", attemptOf("1")).content("c", "b", attemptOf("2")).fate("b", Live), forget: []string{"a"}, states: map[State]int{StateKept: 1, StateLeaving: 1}},
		"an earlier attempt, of another":         {scene: newScene().content("a", "b", attemptOf("1")).content("c", "d", attemptOf("2")).fate("b", Live).fate("d", Live), states: map[State]int{StateKept: 2}},
		"an orphan, just seen":                   {scene: newScene().content("a", "b", unlabelled), soon: true},
		"an orphan":                              {scene: newScene().content("a", "b", unlabelled).since("a", OrphanAge), forget: []string{"a"}, states: map[State]int{StateLeaving: 1}},
		"an orphan that is kept":                 {scene: newScene().content("a", "b", unlabelled, func(c *VolumeSnapshotContent) { c.Spec.Policy = Retain }).since("a", time.Hour), orphans: 1},
		"another tool's orphan":                  {scene: newScene().content("a", "b", unlabelled, func(c *VolumeSnapshotContent) { c.Spec.Ref.Name = "hf-mine" }).since("a", time.Hour)},
		"another tool's snapshot":                {scene: newScene().content("a", "b", unlabelled, func(c *VolumeSnapshotContent) { c.Spec.Source = ContentSource{Snapshot: "s"} }).since("a", time.Hour)},
		"a bare snapshot, just seen":             {scene: newScene().snapshot("a", "b").fate("b", Failed), soon: true},
		"a bare snapshot":                        {scene: newScene().snapshot("a", "b").fate("b", Failed).since("of-a", OrphanAge), release: []string{"of-a"}},
		"a bare snapshot that is being taken up": {scene: newScene().snapshot("a", "b", takenUp("")).fate("b", Failed).since("of-a", time.Hour)},
		"a bare snapshot with an error":          {scene: newScene().snapshot("a", "b", takenUp("no class")).fate("b", Failed).since("of-a", OrphanAge), release: []string{"of-a"}},
		"a bare snapshot of a run":               {scene: newScene().snapshot("a", "b").fate("b", Live).since("of-a", time.Hour)},
		"a user's, with our labels":              {scene: newScene().snapshot("a", "b", func(of *VolumeSnapshot) { of.Name = "mine" }).fate("b", Failed).since("of-a", time.Hour)},
		"being deleted, and stored":              {scene: newScene().content("a", "b", deletedFor(time.Minute)).fate("b", Stored), states: map[State]int{StateKept: 1}},
		"being deleted, and not held":            {scene: newScene().content("a", "b", unheld, deletedFor(time.Minute)).fate("b", Stored), forget: []string{"a"}, states: map[State]int{StateLeaving: 1}},
		"being deleted for long":                 {scene: newScene().content("a", "b", deletedFor(StuckAge+time.Second)).fate("b", Failed), forget: []string{"a"}, states: map[State]int{StateStuck: 1}},
		"not cut for long":                       {scene: newScene().content("a", "b", uncut).fate("b", Failed).since("a", StuckAge+time.Second), forget: []string{"a"}, states: map[State]int{StateStuck: 1}},
	} {
		t.Run(title, func(t *testing.T) {
			d := Decide(test.scene.View)
			var forget, release []string
			for _, content := range d.Forget {
				forget = append(forget, content.Name)
			}
			for _, of := range d.Release {
				release = append(release, string(of.UID))
			}
			if !slices.Equal(forget, test.forget) || !slices.Equal(release, test.release) || len(d.Orphans) != test.orphans || len(d.Doubted) != test.doubt || d.Soon != test.soon {
				t.Errorf("it forgets %v and releases %v, %d orphans are told of, %d backups doubted, soon: %t", forget, release, len(d.Orphans), len(d.Doubted), d.Soon)
			}
			want := map[State]int{StateKept: 0, StateLeaving: 0, StateStuck: 0, StateDoubt: 0}
			maps.Copy(want, test.states)
			for of := range test.scene.Missing {
				if fate := test.scene.Fates[of]; (fate == Missing || fate == Unknown) != !d.Missing[of].IsZero() && len(test.scene.Contents) > 0 && test.scene.Contents[0].Labels[LabelCluster] == ours {
					t.Errorf("%s, whose fate is %v, is missing since %v", of, fate, d.Missing[of])
				}
			}
			if !maps.Equal(d.States, want) {
				t.Errorf("the states are %v, want %v", d.States, want)
			}
		})
	}
}

func namesOf(number int, backup string) (all []string) {
	for i := range number {
		all = append(all, fmt.Sprintf("%s-%d", backup, i))
	}
	return all
}

// TestSince: an age is counted from the first sweep that saw it, and forgotten with the object.
func TestSince(t *testing.T) {
	s := newScene().content("a", "b").fate("b", Failed)
	first := Decide(s.View)
	s.View.Since, s.Now = first.Since, now.Add(2*StuckAge)
	if second := Decide(s.View); second.States[StateStuck] != 1 || !second.Since["a"].Equal(now) {
		t.Errorf("the states are %v, since %v", second.States, second.Since)
	}
	s.Contents = nil
	if third := Decide(s.View); len(third.Since) != 0 {
		t.Errorf("kept is %v", third.Since)
	}
}

// TestSweep: a sweep sees what was cut, forgets a failed backup's snapshots, and keeps a stored one's.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSidecars(t)
		for _, backup := range []string{"failed", "stored"} {
			v := volume()
			v.Backup = types.UID(backup)
			if _, err := s.client().Cut(t.Context(), v, nil); err != nil {
				t.Fatal(err)
			}
		}
		sweep := func() map[string]string {
			contents, taken, err := s.client().Look(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			waiting, err := s.client().Sweep(t.Context(), Decide(View{
				ClusterUID: ours, Now: time.Now(), Contents: contents, Snapshots: taken, Fates: map[types.UID]Fate{"failed": Failed, "stored": Stored},
			}))
			if err != nil {
				t.Error(err)
			}
			return waiting
		}
		if waiting := sweep(); len(waiting) != 0 || len(s.stored) != 1 || s.content().Labels[LabelBackup] != "stored" || len(s.snapshots()) != 0 {
			t.Errorf("left are %v, %+v, %v", s.stored, s.snapshots(), waiting)
		}
		v := volume()
		v.Backup = "failed"
		if _, err := s.client().Cut(t.Context(), v, nil); err != nil {
			t.Fatal(err)
		}
		s.hang = true
		waiting := sweep()
		if words := strings.Join(slices.Collect(maps.Values(waiting)), ""); words != "the driver to delete the stored snapshot" {
			t.Errorf("it waits for %q", waiting)
		}
	})
}

// TestSweepOfAnOldLook: a content that was looked at before its labels, and has become the record of a backup that is
// stored by now, stays. One that still has no labels leaves.
func TestSweepOfAnOldLook(t *testing.T) {
	for _, labelled := range []bool{true, false} {
		t.Run(fmt.Sprint("labelled since: ", labelled), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSidecars(t)
				if _, err := s.client().Cut(t.Context(), volume(), nil); err != nil {
					t.Fatal(err)
				}
				old := s.content()
				if old.Labels = nil; !labelled {
					s.change(s.object(Contents, "", old.Name), func(object map[string]any) { unstructured.RemoveNestedField(object, "metadata", "labels") })
				}
				_, err := s.client().Sweep(t.Context(), Decision{Forget: []*VolumeSnapshotContent{&old}})
				if err != nil || (len(s.stored) == 1) != labelled {
					t.Fatalf("%d snapshots are stored, %v", len(s.stored), err)
				}
				if labelled && (s.content().Spec.Policy != Retain || s.content().DeletionTimestamp != nil) {
					t.Errorf("the content is %+v", s.content())
				}
			})
		})
	}
}
