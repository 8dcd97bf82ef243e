// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// wants is a restore of the claim of volume() to another namespace.
func wants() Wanted {
	return Wanted{Backup: "backup", Origin: "shop", ClaimUID: "claim", Restore: "restore", Namespace: "new", Claim: "data-again"}
}

// kept cuts a volume, and deletes its VolumeSnapshot. It returns the name of the content.
func (s *sidecars) kept(v Volume) string {
	s.t.Helper()
	taken, err := s.client().Cut(s.t.Context(), v, nil)
	if err == nil {
		err = s.client().Release(s.t.Context(), taken.Content)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return taken.Content
}

// offered offers the cut to a restore. The fake would cut a VolumeSnapshot that has a content, so it is
// absent, and the content is protected here.
func (s *sidecars) offered(w Wanted) string {
	s.t.Helper()
	found, err := s.client().Locate(s.t.Context(), w)
	if err != nil {
		s.t.Fatal(err)
	}
	s.absent = true
	name, err := s.client().Offer(s.t.Context(), w, found)
	s.absent = false
	if err != nil {
		s.t.Fatal(err)
	}
	protected := s.object(Contents, "", name)
	s.change(protected, func(map[string]any) { protected.SetFinalizers([]string{finalizerBound}) })
	return name
}

// names returns the names of the contents, sorted.
func (s *sidecars) names() (all []string) {
	s.t.Helper()
	contents, err := list[VolumeSnapshotContent](s.t.Context(), s.Resource(Contents), "")
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range contents {
		all = append(all, contents[i].Name)
	}
	slices.Sort(all)
	return all
}

func sorted(names ...string) []string { slices.Sort(names); return names }

// add stores an object as others have made it.
func (s *sidecars) add(object *unstructured.Unstructured) {
	s.t.Helper()
	resource := Contents
	switch object.GetKind() {
	case "VolumeSnapshotClass":
		resource = Classes
	case "VolumeSnapshot":
		resource = Snapshots
	}
	object.SetUID("of-others")
	object.SetResourceVersion("1")
	if err := s.Tracker().Create(resource, object, object.GetNamespace()); err != nil {
		s.t.Fatal(err)
	}
}

// TestLocate: only a held and kept cut of the backup, the claim, the cluster and the namespace is found. Its
// deletion by others changes nothing.
func TestLocate(t *testing.T) {
	label := func(key, value string) func(*unstructured.Unstructured) {
		return func(o *unstructured.Unstructured) {
			labels := o.GetLabels()
			labels[key] = value
			o.SetLabels(labels)
		}
	}
	status := func(key string) func(*unstructured.Unstructured) {
		return func(o *unstructured.Unstructured) { unstructured.RemoveNestedField(o.Object, "status", key) }
	}
	for name, test := range map[string]struct {
		want   func(*Wanted)
		change func(*unstructured.Unstructured)
		found  bool
	}{
		"the record": {found: true},
		"a record that others have deleted": {found: true, change: func(o *unstructured.Unstructured) {
			now := metav1.Now()
			o.SetDeletionTimestamp(&now)
			o.SetFinalizers([]string{Finalizer})
		}},
		"for another restore, in any namespace": {found: true, want: func(w *Wanted) { w.Restore, w.Namespace, w.Claim = "r", "n", "c" }},
		"with the handle of the backup":         {found: true, want: func(w *Wanted) { w.Handle = "stored-of-snapcontent-uid-1" }},
		"with another handle":                   {want: func(w *Wanted) { w.Handle = "stored-of-others" }},
		"of another backup":                     {want: func(w *Wanted) { w.Backup = "another" }},
		"of another claim":                      {want: func(w *Wanted) { w.ClaimUID = "another" }},
		"of another namespace":                  {want: func(w *Wanted) { w.Origin = "new" }},
		"of another cluster":                    {change: label(LabelCluster, "that-cluster")},
		"labelled as of another backup":         {change: label(LabelBackup, "another")},
		"without a handle":                      {change: status("snapshotHandle")},
		"without a time":                        {change: status("creationTime")},
		"that leaves with its run":              {change: label(LabelMoved, "true")},
		"beside its moved data":                 {found: true, change: label(LabelKeepLocal, "3")},
		"not held":                              {change: func(o *unstructured.Unstructured) { o.SetFinalizers([]string{finalizerBound}) }},
		"about to be deleted": {change: func(o *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(o.Object, Delete, "spec", "deletionPolicy")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s, w := newSidecars(t), wants()
			content := s.kept(volume())
			s.add(&unstructured.Unstructured{Object: map[string]any{
				"apiVersion": Version.String(), "kind": "VolumeSnapshotClass", "metadata": map[string]any{"name": "fast"}, "driver": "d",
			}})
			object := s.object(Contents, "", content)
			_ = unstructured.SetNestedField(object.Object, "fast", "spec", "volumeSnapshotClassName")
			if test.change != nil {
				test.change(object)
			}
			s.change(object, func(map[string]any) {})
			if test.want != nil {
				test.want(&w)
			}
			found, err := s.client().Locate(t.Context(), w)
			if !test.found {
				expectError(t, err, LabelBackup+"="+string(w.Backup))
				if found != (Found{}) || !errors.Is(err, ErrNoRecord) {
					t.Errorf("found is %+v, %v", found, err)
				}
				return
			}
			if want := (Found{Driver: "d", Class: "fast", Handle: "stored-of-" + content, Size: 5}); err != nil || found != want {
				t.Errorf("found is %+v, %v, want %+v", found, err, want)
			}
		})
	}
}

// TestLocateTheNewest: the newest attempt wins by its number.
func TestLocateTheNewest(t *testing.T) {
	s, newest := newSidecars(t), ""
	for _, attempt := range []int32{2, 10, 9} {
		v := volume()
		v.Attempt = attempt
		if content := s.kept(v); attempt == 10 {
			newest = content
		}
	}
	found, err := s.client().Locate(t.Context(), wants())
	if err != nil || found.Handle != "stored-of-"+newest {
		t.Errorf("found is %+v, %v, want the content %s", found, err, newest)
	}
}

// TestWithoutAnAnswer: a cluster without the API has no snapshot and no offer. Other failures are told.
func TestWithoutAnAnswer(t *testing.T) {
	s := newSidecars(t)
	s.kept(volume())
	denied := errors.New("it is denied")
	for _, answer := range []error{apierrors.NewNotFound(Contents.GroupResource(), ""), denied} {
		s.before = func(clienttesting.Action) error { return answer }
		_, err := s.client().Locate(t.Context(), wants())
		expectError(t, err)
		offers, listErr := s.client().Offers(t.Context())
		discardErr := s.client().Discard(t.Context(), "backup", at("nightly", "default"))
		if told := answer == denied; len(offers) > 0 || errors.Is(err, denied) != told || errors.Is(listErr, denied) != told || errors.Is(discardErr, denied) != told ||
			!told && (listErr != nil || discardErr != nil) {
			t.Errorf("%v: got %v; %v, %v; %v", answer, err, offers, listErr, discardErr)
		}
	}
}

// TestOffer: an offer is a kept content of the stored snapshot, and its VolumeSnapshot in the namespace of the
// restore. It may be repeated.
func TestOffer(t *testing.T) {
	s, w := newSidecars(t), wants()
	original := s.kept(volume())
	found := Found{Driver: "d", Class: "fast", Handle: "stored-of-" + original}
	s.absent = true
	name, err := s.client().Offer(t.Context(), w, found)
	if err != nil || !ownName.MatchString(name) {
		t.Fatalf("the offer is %q, %v", name, err)
	}
	content, err := decode[VolumeSnapshotContent](s.object(Contents, "", name))
	if err != nil {
		t.Fatal(err)
	}
	if of := content.Spec; of.Policy != Retain || of.Driver != "d" || of.Class != "fast" || of.Source != (ContentSource{Snapshot: found.Handle}) || of.Ref.Namespace != "new" || of.Ref.Name != name || of.Ref.Kind != "VolumeSnapshot" {
		t.Errorf("the content is %+v", of)
	}
	snapshot := s.object(Snapshots, "new", name)
	if want := map[string]any{"volumeSnapshotClassName": "fast", "source": map[string]any{"volumeSnapshotContentName": name}}; fmt.Sprint(snapshot.Object["spec"]) != fmt.Sprint(want) {
		t.Errorf("the VolumeSnapshot is %v, want %v", snapshot.Object["spec"], want)
	}
	want := map[string]string{LabelOfferCluster: ours, LabelOfferRestore: "restore", "app.kubernetes.io/managed-by": "holdfast", format.LabelExclude: "true"}
	if !maps.Equal(content.Labels, want) || !maps.Equal(snapshot.GetLabels(), want) {
		t.Errorf("the labels are %v and %v, want %v", content.Labels, snapshot.GetLabels(), want)
	}

	again, err := s.client().Offer(t.Context(), w, found)
	if left := s.names(); again != name || err != nil || !slices.Equal(left, sorted(original, name)) || s.object(Contents, "", name).GetUID() != content.UID || s.object(Snapshots, "new", name).GetUID() != snapshot.GetUID() {
		t.Errorf("again: %q, %v, and there are %v", again, err, left)
	}
	seen := map[string]bool{name: true}
	for _, change := range []func(*Wanted){
		func(w *Wanted) { w.Restore = "another" }, func(w *Wanted) { w.Namespace = "other" }, func(w *Wanted) { w.Claim = "other" }, func(w *Wanted) { w.ClaimUID = "other" },
	} {
		w := wants()
		change(&w)
		name, err := s.client().Offer(t.Context(), w, found)
		if err != nil || seen[name] {
			t.Errorf("the offer %+v has the name %q, %v", w, name, err)
		}
		seen[name] = true
	}
}

// TestOfferIsRepeated: stopped at each request, and repeated, it is whole, and a sweep would see it.
func TestOfferIsRepeated(t *testing.T) {
	for at := range 3 {
		s, w, left := newSidecars(t), wants(), at
		s.absent = true
		killed := errors.New("killed")
		s.before = func(clienttesting.Action) error {
			if left--; left < 0 {
				return killed
			}
			return nil
		}
		if _, err := s.client().Offer(t.Context(), w, Found{Driver: "d", Handle: "h"}); at < 2 && !errors.Is(err, killed) {
			t.Errorf("request %d: got %v", at, err)
		}
		s.before = nil
		offers, err := s.client().Offers(t.Context())
		if want := min(at, 1); err != nil || len(offers) != want {
			t.Errorf("after request %d the offers are %v, %v, want %d", at, offers, err, want)
		}
		name, err := s.client().Offer(t.Context(), w, Found{Driver: "d", Handle: "h"})
		if err != nil || !slices.Equal(s.names(), []string{name}) || len(s.snapshots()) != 1 {
			t.Errorf("after request %d: %v, %v, %v", at, err, s.names(), s.snapshots())
		}
	}
}

// TestOfferIsRefused: an object of the offer's name that a tenant or another cluster has made is not taken for
// the offer. It stays as it is.
func TestOfferIsRefused(t *testing.T) {
	foreign := func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{LabelOfferCluster: "that"}) }
	bare := func(o *unstructured.Unstructured) { o.SetLabels(nil) }
	leaving := func(o *unstructured.Unstructured) { now := metav1.Now(); o.SetDeletionTimestamp(&now) }
	source := func(key, value string) func(*unstructured.Unstructured) {
		return func(o *unstructured.Unstructured) {
			_ = unstructured.SetNestedMap(o.Object, map[string]any{key: value}, "spec", "source")
		}
	}
	for name, test := range map[string]struct {
		content bool
		change  func(*unstructured.Unstructured)
	}{
		"a VolumeSnapshot without labels":         {false, bare},
		"a VolumeSnapshot of another cluster":     {false, foreign},
		"a VolumeSnapshot of a claim":             {false, source("persistentVolumeClaimName", "secret")},
		"a VolumeSnapshot of another content":     {false, source("volumeSnapshotContentName", "secret")},
		"a VolumeSnapshot that is being deleted":  {false, leaving},
		"a content without labels":                {true, bare},
		"a content of another cluster":            {true, foreign},
		"a content that is being deleted":         {true, leaving},
		"no: a VolumeSnapshot of an earlier call": {false, nil},
		"no: a content of an earlier call":        {true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, w := newSidecars(t), wants()
			s.absent = true
			labels := map[string]any{LabelOfferCluster: ours, LabelOfferRestore: "restore"}
			content, snapshot := static(w.Namespace, w.OfferName(), Found{Driver: "d", Class: "fast", Handle: "h"}, labels)
			object, resource := snapshot, Snapshots
			if test.content {
				object, resource = content, Contents
			}
			if test.change != nil {
				test.change(object)
			}
			s.add(object)
			before := s.object(resource, object.GetNamespace(), w.OfferName())
			_, err := s.client().Offer(t.Context(), w, Found{Driver: "d", Class: "fast", Handle: "h"})
			if test.change == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			expectError(t, err, object.GetKind(), w.OfferName(), "new/data-again", "not the restore's")
			if after := s.object(resource, object.GetNamespace(), w.OfferName()); fmt.Sprint(after) != fmt.Sprint(before) {
				t.Errorf("it was %v, and is %v", before, after)
			}
			if test.content && len(s.snapshots()) > 0 {
				t.Errorf("there are %v", s.snapshots())
			}
		})
	}
}

// TestWithdraw: first the VolumeSnapshot goes, then the content with the annotation. The stored snapshot and
// its record stay, and it may be repeated.
func TestWithdraw(t *testing.T) {
	s, w := newSidecars(t), wants()
	original := s.kept(volume())
	name := s.offered(w)
	record := s.object(Contents, "", original)
	s.requests = nil
	s.before = func(action clienttesting.Action) error {
		if action.Matches("delete", Contents.Resource) && s.object(Contents, "", name).GetAnnotations()[annotationBeingDeleted] == "" {
			t.Error("the content is deleted without the annotation")
		}
		return nil
	}
	for i, want := range []struct {
		gone  bool
		names []string
	}{{false, sorted(original, name)}, {false, []string{original}}, {true, []string{original}}, {true, []string{original}}} {
		gone, err := s.client().Withdraw(t.Context(), w)
		if gone != want.gone || err != nil || len(s.snapshots()) > 0 || !slices.Equal(s.names(), want.names) {
			t.Errorf("call %d: gone: %t, %v; left are %v and %v", i, gone, err, s.snapshots(), s.names())
		}
	}
	if want := []string{"delete volumesnapshots", "patch volumesnapshotcontents", "delete volumesnapshotcontents"}; !slices.Equal(s.requests, want) {
		t.Errorf("it writes %q, want %q", s.requests, want)
	}
	if after := s.object(Contents, "", original); len(s.stored) != 1 || fmt.Sprint(after) != fmt.Sprint(record) {
		t.Errorf("stored is %v, and the record is %v", s.stored, after)
	}
	if found, err := s.client().Locate(t.Context(), w); err != nil || found.Handle != s.stored[0] {
		t.Errorf("found is %+v, %v", found, err)
	}
}

// TestWithdrawIsRepeated: stopped at each request, and repeated, it leaves nothing of the offer.
func TestWithdrawIsRepeated(t *testing.T) {
	for at := range 8 {
		s, w, left := newSidecars(t), wants(), at
		original := s.kept(volume())
		s.offered(w)
		s.before = func(clienttesting.Action) error {
			if left--; left < 0 {
				return errors.New("killed")
			}
			return nil
		}
		var err error
		for gone := false; !gone && err == nil; {
			gone, err = s.client().Withdraw(t.Context(), w)
		}
		if err == nil && at < 7 {
			t.Errorf("request %d: there is no error", at)
		}
		s.before, err = nil, nil
		for gone, calls := false, 0; !gone && err == nil; calls++ {
			if gone, err = s.client().Withdraw(t.Context(), w); calls > 3 {
				t.Fatalf("after request %d it does not end", at)
			}
		}
		if err != nil || !slices.Equal(s.names(), []string{original}) || len(s.snapshots()) > 0 || len(s.stored) != 1 {
			t.Errorf("after request %d: %v; left are %v and %v", at, err, s.snapshots(), s.names())
		}
	}
}

// TestWithdrawWaits: while a VolumeSnapshot or a content is being deleted, nothing is written. A claim may
// still be made of it.
func TestWithdrawWaits(t *testing.T) {
	for _, resource := range []string{"VolumeSnapshot", "VolumeSnapshotContent"} {
		s, w := newSidecars(t), wants()
		s.away = true
		content, snapshot := static(w.Namespace, w.OfferName(), Found{Driver: "d", Class: "fast", Handle: "h"}, map[string]any{LabelOfferCluster: ours})
		content.SetFinalizers([]string{finalizerBound})
		annotate(content, annotationBeingDeleted)
		now := metav1.Now()
		if resource == "VolumeSnapshot" {
			snapshot.SetDeletionTimestamp(&now)
			s.add(snapshot)
		} else {
			content.SetDeletionTimestamp(&now)
		}
		s.add(content)
		if gone, err := s.client().Withdraw(t.Context(), w); gone || err != nil || len(s.requests) > 0 {
			t.Errorf("%s: gone: %t, %v, and it writes %q", resource, gone, err, s.requests)
		}
	}
}

// TestWithdrawLeavesOthers: objects of the offer's name without this cluster's label stay.
func TestWithdrawLeavesOthers(t *testing.T) {
	for name, labels := range map[string]map[string]any{
		"without labels":                    nil,
		"of another cluster":                {LabelOfferCluster: "that"},
		"of a mover":                        {LabelMoverCluster: ours},
		"of a cut":                          {LabelCluster: ours, LabelBackup: "backup"},
		"without a cluster":                 {LabelOfferRestore: "restore"},
		"of the restore, and of no cluster": {LabelOfferCluster: "", LabelOfferRestore: "restore"},
	} {
		s, w := newSidecars(t), wants()
		content, snapshot := static(w.Namespace, w.OfferName(), Found{Driver: "d", Class: "fast", Handle: "h"}, labels)
		s.add(content)
		s.add(snapshot)
		if gone, err := s.client().Withdraw(t.Context(), w); !gone || err != nil || len(s.requests) > 0 || len(s.snapshots()) != 1 || len(s.names()) != 1 {
			t.Errorf("%s: gone: %t, %v, and it writes %q", name, gone, err, s.requests)
		}
	}
}

// TestWithdrawBesideATenant: a VolumeSnapshot that is not the offer's stays, and the offer's content goes.
func TestWithdrawBesideATenant(t *testing.T) {
	s, w := newSidecars(t), wants()
	content, snapshot := static(w.Namespace, w.OfferName(), Found{Driver: "d", Class: "fast", Handle: "h"}, map[string]any{LabelOfferCluster: ours})
	snapshot.SetLabels(nil)
	s.add(content)
	s.add(snapshot)
	for _, want := range []bool{false, true} {
		if gone, err := s.client().Withdraw(t.Context(), w); gone != want || err != nil {
			t.Errorf("gone: %t, %v, want %t", gone, err, want)
		}
	}
	if len(s.snapshots()) != 1 || len(s.names()) > 0 {
		t.Errorf("left are %v and %v", s.snapshots(), s.names())
	}
}

// TestWithdrawAChangedContent: a content that changed or went since it was read is left to the next call.
// Other failures are told.
func TestWithdrawAChangedContent(t *testing.T) {
	resource := Contents.GroupResource()
	for _, test := range []struct {
		answer error
		told   bool
	}{{apierrors.NewConflict(resource, "c", nil), false}, {apierrors.NewNotFound(resource, "c"), false}, {errors.New("it is denied"), true}} {
		s, w := newSidecars(t), wants()
		original := s.kept(volume())
		name := s.offered(w)
		if _, err := s.client().Withdraw(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		s.requests = nil
		s.before = func(action clienttesting.Action) error {
			if action.GetVerb() == "patch" {
				patch := string(action.(clienttesting.PatchAction).GetPatch())
				of := s.object(Contents, "", name)
				if !strings.Contains(patch, `"uid":"`+string(of.GetUID())) || !strings.Contains(patch, `"resourceVersion":"`+of.GetResourceVersion()) {
					t.Errorf("the patch is %s", patch)
				}
				return test.answer
			}
			return nil
		}
		if gone, err := s.client().Withdraw(t.Context(), w); gone || (err != nil) != test.told || len(s.requests) > 0 || !slices.Equal(s.names(), sorted(original, name)) {
			t.Errorf("%v: gone: %t, %v, and it writes %q", test.answer, gone, err, s.requests)
		}
	}
}

// TestOffers: all offers of this cluster are listed, and withdrawn as they are listed. Cuts, exposures and
// other clusters' offers are none.
func TestOffers(t *testing.T) {
	s, first, second := newSidecars(t), wants(), wants()
	second.Restore, second.Namespace = "second", "other"
	original := s.kept(volume())
	content, _ := static("new", "hf-foreign", Found{Driver: "d", Class: "fast", Handle: "h"}, map[string]any{LabelOfferCluster: "that"})
	s.add(content)
	exposure, _ := static("holdfast-snapshots", "hf-mover", Found{Driver: "d", Class: "fast", Handle: "h"}, map[string]any{LabelMoverCluster: ours})
	s.add(exposure)
	s.offered(first)
	s.offered(second)
	offers, err := s.client().Offers(t.Context())
	slices.SortFunc(offers, func(a, b Offered) int { return strings.Compare(string(a.Restore), string(b.Restore)) })
	if want := []Offered{{"restore", "new", first.OfferName()}, {"second", "other", second.OfferName()}}; err != nil || !slices.Equal(offers, want) {
		t.Fatalf("the offers are %+v, %v, want %+v", offers, err, want)
	}
	for _, want := range []bool{false, false, true} {
		if gone, err := s.client().WithdrawOffer(t.Context(), offers[0]); gone != want || err != nil {
			t.Errorf("gone: %t, %v, want %t", gone, err, want)
		}
	}
	if left := s.names(); !slices.Equal(left, sorted(original, "hf-foreign", "hf-mover", second.OfferName())) || len(s.snapshots()) != 1 || len(s.stored) != 1 {
		t.Errorf("left are %v, %v", left, s.snapshots())
	}
	if offers, err := s.client().Offers(t.Context()); err != nil || len(offers) != 1 || offers[0].Restore != "second" {
		t.Errorf("the offers are %+v, %v", offers, err)
	}
}

// TestOffersAreNotSwept: the sweep of stored snapshots and the mover do not see offers.
func TestOffersAreNotSwept(t *testing.T) {
	for name, fate := range map[string]Fate{"live": Live, "stored": Stored, "unknown": Unknown} {
		t.Run(name, func(t *testing.T) {
			s := newSidecars(t)
			original := s.kept(volume())
			offer := s.offered(wants())
			contents, taken, err := s.client().Look(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			old := time.Now().Add(-24 * time.Hour)
			since := map[types.UID]time.Time{}
			for i := range contents {
				since[contents[i].UID] = old
			}
			d := Decide(View{ClusterUID: ours, Now: time.Now(), Contents: contents, Snapshots: taken, Fates: map[types.UID]Fate{"backup": fate}, Since: since})
			seen := 0
			for _, of := range d.States {
				seen += of
			}
			if len(d.Forget)+len(d.Release)+len(d.Orphans)+len(d.Doubted) > 0 || d.Soon || seen != 1 {
				t.Errorf("the decision is %+v", d)
			}
			if _, err := s.client().Sweep(t.Context(), d); err != nil || !slices.Equal(s.names(), sorted(original, offer)) || len(s.stored) != 1 {
				t.Errorf("left are %v, %v", s.names(), err)
			}
			exposed, err := s.mover(kubefake.NewClientset()).Exposed(t.Context())
			if err != nil || len(exposed) > 0 {
				t.Errorf("exposed are %v, %v", exposed, err)
			}
		})
	}
}

// TestExposuresAreNoOffers: what a mover has made is listed as its exposure only. Hidden, it leaves the stored
// snapshot and its record.
func TestExposuresAreNoOffers(t *testing.T) {
	s, v := newSidecars(t), volume()
	taken, err := s.client().Cut(t.Context(), v, nil)
	if err != nil {
		t.Fatal(err)
	}
	kube := kubefake.NewClientset()
	m := s.mover(kube)
	s.absent = true
	if waits, err := m.make(t.Context(), &v, &taken); waits != "" || err != nil {
		t.Fatalf("it waits for %q, %v", waits, err)
	}
	content, err := decode[VolumeSnapshotContent](s.object(Contents, "", v.name()))
	if err != nil || content.Spec.Policy != Retain || content.Spec.Source.Snapshot != taken.Handle || content.Spec.Ref.Namespace != m.namespace || content.Labels[LabelMoverBackup] != "backup" {
		t.Errorf("the content is %+v, %v", content, err)
	}
	offers, err := s.client().Offers(t.Context())
	exposed, exposedErr := m.Exposed(t.Context())
	if want := map[string]types.UID{v.name(): "backup"}; err != nil || exposedErr != nil || len(offers) > 0 || !maps.Equal(exposed, want) {
		t.Errorf("the offers are %v, %v; exposed are %v, %v", offers, err, exposed, exposedErr)
	}
	calls := 0
	for gone := false; !gone; calls++ {
		if gone, err = m.Hide(t.Context(), v); err != nil || calls > 5 {
			t.Fatalf("call %d: %v", calls, err)
		}
	}
	left := s.snapshots()
	if calls < 3 || len(left) != 1 || left[0].Namespace != "shop" || !slices.Equal(s.names(), []string{taken.Content}) || !slices.Equal(s.stored, []string{taken.Handle}) {
		t.Errorf("after %d calls left are %v, %v, %v", calls, left, s.names(), s.stored)
	}
}

// going cuts two claims of the backup "going", one of them with its VolumeSnapshot still there, and others that
// are to stay. It returns the contents of both kinds.
func going(s *sidecars) (leaving, staying []string) {
	cut := func(backup, claim string) string {
		v := volume()
		v.Backup, v.ClaimUID = types.UID(backup), types.UID(claim)
		return s.kept(v)
	}
	leaving = append(leaving, cut("going", "a"))
	staying = append(staying, cut("staying", "a"), cut("going", "foreign"))
	foreign := s.object(Contents, "", staying[1])
	labels := foreign.GetLabels()
	labels[LabelCluster] = "that"
	foreign.SetLabels(labels)
	s.change(foreign, func(map[string]any) {})
	v := volume()
	v.Backup, v.ClaimUID = "going", "b"
	taken, err := s.client().Cut(s.t.Context(), v, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return append(leaving, taken.Content), staying
}

func (s *sidecars) all(names []string) (all []string) {
	s.t.Helper()
	for _, name := range names {
		all = append(all, fmt.Sprint(s.object(Contents, "", name)))
	}
	return all
}

// TestDiscard: all snapshots of a deleted backup begin to leave, and others stay untouched. A later sweep ends it
// whatever the backup's fate is, as if its store was not read.
func TestDiscard(t *testing.T) {
	for name, fate := range map[string]Fate{"stored": Stored, "unknown": Unknown, "live": Live} {
		for _, away := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, the sidecar is away: %t", name, away), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newSidecars(t)
					leaving, staying := going(s)
					before := s.all(staying)
					s.away = away
					for range 2 { // it may be repeated
						began := time.Now()
						if err := s.client().Discard(t.Context(), "going", at("nightly", "default")); err != nil {
							t.Fatal(err)
						}
						if took := time.Since(began); took > 0 {
							t.Errorf("it waits for %s", took)
						}
						if !away {
							break
						}
					}
					for _, name := range leaving {
						content, err := decode[VolumeSnapshotContent](s.object(Contents, "", name))
						if err != nil || content.Spec.Policy != Delete || content.DeletionTimestamp == nil || content.Annotations[annotationBeingDeleted] == "" || !content.held() {
							t.Errorf("the content is %+v, %v", content, err)
						}
					}
					if got := s.all(staying); !slices.Equal(got, before) || len(s.snapshots()) > 0 {
						t.Errorf("others were %v, and are %v; left are %v", before, got, s.snapshots())
					}
					w := wants()
					w.Backup, w.ClaimUID = "going", "a"
					_, err := s.client().Locate(t.Context(), w)
					expectError(t, err)

					s.away = false
					time.Sleep(2 * nudgeAfter)
					contents, taken, err := s.client().Look(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					waiting, err := s.client().Sweep(t.Context(), Decide(View{
						ClusterUID: ours, Now: time.Now(), Contents: contents, Snapshots: taken, Fates: map[types.UID]Fate{"going": fate, "staying": Stored},
					}))
					stored := sorted("stored-of-"+staying[0], "stored-of-"+staying[1])
					if err != nil || len(waiting) > 0 || !slices.Equal(s.names(), sorted(staying...)) || !slices.Equal(sorted(s.stored...), stored) {
						t.Errorf("it waits for %v, %v; left are %v, stored %v", waiting, err, s.names(), s.stored)
					}
				})
			})
		}
	}
}

// TestDiscardFails: a failure is told with the content, and the others begin to leave. A content that is gone
// is no failure.
func TestDiscardFails(t *testing.T) {
	resource := Contents.GroupResource()
	for _, test := range []struct {
		answer error
		told   bool
	}{{errors.New("it is denied"), true}, {apierrors.NewConflict(resource, "c", nil), true}, {apierrors.NewNotFound(resource, "c"), false}} {
		s := newSidecars(t)
		leaving, _ := going(s)
		s.before = func(action clienttesting.Action) error {
			patch, ok := action.(clienttesting.PatchAction)
			if !ok || patch.GetName() != leaving[0] {
				return nil
			}
			if !test.told {
				_ = s.Tracker().Delete(Contents, "", leaving[0])
			}
			return test.answer
		}
		err := s.client().Discard(t.Context(), "going", at("nightly", "default"))
		if test.told {
			expectError(t, err, leaving[0])
		} else if err != nil {
			t.Error(err)
		}
		if s.object(Contents, "", leaving[1]).GetDeletionTimestamp() == nil {
			t.Errorf("%v: the other content stays", test.answer)
		}
		s.before = nil
		if err := s.client().Discard(t.Context(), "going", at("nightly", "default")); err != nil || test.told && s.object(Contents, "", leaving[0]).GetDeletionTimestamp() == nil {
			t.Errorf("%v: again: %v", test.answer, err)
		}
	}
}

func at(storeName, location string) func(Place) bool {
	return func(of Place) bool { return of.StoreName == storeName && of.Location == location }
}

// TestDiscardOfACopy: the deletion of a copy of a backup, in another location or by another name, discards no
// snapshot.
func TestDiscardOfACopy(t *testing.T) {
	s := newSidecars(t)
	content := s.kept(volume())
	for _, place := range [][2]string{{"nightly", "archive"}, {"copy", "default"}} {
		if err := s.client().Discard(t.Context(), "backup", at(place[0], place[1])); err != nil || s.object(Contents, "", content).GetDeletionTimestamp() != nil {
			t.Errorf("%v: the original leaves, %v", place, err)
		}
	}
	if err := s.client().Discard(t.Context(), "backup", at("nightly", "default")); err != nil || s.object(Contents, "", content).GetDeletionTimestamp() == nil {
		t.Errorf("the original stays, %v", err)
	}
}

// TestNamesOfAttempts: attempts that decide otherwise find no cut of each other, which may leave with its run. Each
// has its label.
func TestNamesOfAttempts(t *testing.T) {
	names := map[string]bool{}
	for i, of := range []struct {
		moved       bool
		most        int32
		label, want string
	}{{false, 0, LabelMoved, ""}, {true, 0, LabelMoved, "true"}, {true, 3, LabelKeepLocal, "3"}, {true, 3, LabelMoved, ""}, {true, 5, LabelKeepLocal, "5"}, {true, 0, LabelKeepLocal, ""}} {
		v := volume()
		v.Moved, v.KeepLocal = of.moved, of.most
		again := v
		names[v.name()] = true
		if got := New(nil, ours, system).labels(&v)[of.label]; v.name() != again.name() || got != of.want {
			t.Errorf("%d: its label %s is %q, want %q", i, of.label, got, of.want)
		}
	}
	if len(names) != 4 {
		t.Errorf("the names are %v, want four", names)
	}
}

// TestLeave: a kept snapshot of a failed volume leaves when its backup has ended, also if that is stored.
func TestLeave(t *testing.T) {
	s := newSidecars(t)
	content := s.kept(volume())
	for range 2 {
		if err := s.client().Leave(t.Context(), content); err != nil {
			t.Fatal(err)
		}
	}
	left, err := decode[VolumeSnapshotContent](s.object(Contents, "", content))
	if err != nil {
		t.Fatal(err)
	}
	for fate, leaves := range map[Fate]bool{Live: false, Stored: true, Unknown: true} {
		d := Decide(View{ClusterUID: ours, Contents: []VolumeSnapshotContent{*left}, Fates: map[types.UID]Fate{"backup": fate}})
		if (len(d.Forget) == 1) != leaves {
			t.Errorf("%v: it leaves: %t", fate, len(d.Forget) == 1)
		}
	}
	// An attempt after that may not rely on it.
	kept := volume()
	taken := Taken{Content: content, Time: time.Now()}
	kept.ReadyTimeout = time.Hour
	if _, err := s.client().AwaitReady(t.Context(), kept, taken, nil); err == nil || !strings.Contains(err.Error(), "an earlier attempt of the backup has failed with it") {
		t.Errorf("it is taken once more: %v", err)
	}
	kept.Backup, kept.ClaimUID = "another", "b"
	if taken, err = s.client().Cut(t.Context(), kept, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.client().Leave(t.Context(), taken.Content); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client().Cut(t.Context(), kept, nil); err == nil || !strings.Contains(err.Error(), "an earlier attempt of the backup has failed with it") {
		t.Errorf("it is found: %v", err)
	}
	if err := s.client().Leave(t.Context(), "missing"); err != nil {
		t.Error(err)
	}
}

// TestWhichLocationHasASnapshot: a snapshot leaves with its backup in the store of its cut, also by another name, and
// not with a copy, even of the whole bucket.
func TestWhichLocationHasASnapshot(t *testing.T) {
	location := func(name, storeID string) *enginev1alpha1.StorageLocation {
		return &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: enginev1alpha1.StorageLocationStatus{StoreID: storeID}}
	}
	gaveUp := location("default", "new")
	gaveUp.Annotations = map[string]string{enginev1alpha1.AnnotationGiveUpStore: "the-store"}
	asOf := location("past", "the-store")
	asOf.Spec.S3 = &enginev1alpha1.S3Location{AsOf: &metav1.Time{Time: time.Unix(1, 0)}}
	at, unknown := Place{"a", "default", "the-store"}, Place{"a", "default", ""}
	for name, test := range map[string]struct {
		at          Place
		all         []*enginev1alpha1.StorageLocation
		in          string
		deletedFrom []string
	}{
		"its location":                    {at: at, all: []*enginev1alpha1.StorageLocation{location("default", "the-store")}, in: "default", deletedFrom: []string{"default"}},
		"beside a copy of the bucket":     {at: at, all: []*enginev1alpha1.StorageLocation{location("archive", "the-store"), location("default", "the-store")}, in: "default", deletedFrom: []string{"default"}},
		"not checked yet, beside a copy":  {at: at, all: []*enginev1alpha1.StorageLocation{location("archive", "the-store"), location("default", "")}, in: "default", deletedFrom: []string{"default"}},
		"renamed":                         {at: at, all: []*enginev1alpha1.StorageLocation{location("main", "the-store")}, in: "main", deletedFrom: []string{"main"}},
		"renamed, and the name is taken":  {at: at, all: []*enginev1alpha1.StorageLocation{location("default", "new"), location("main", "the-store")}, in: "main", deletedFrom: []string{"main"}},
		"renamed, or copied":              {at: at, all: []*enginev1alpha1.StorageLocation{location("main", "the-store"), location("archive", "the-store")}},
		"absent, beside one of the past":  {at: at, all: []*enginev1alpha1.StorageLocation{asOf}},
		"absent, beside a copy elsewhere": {at: at, all: []*enginev1alpha1.StorageLocation{location("archive", "another")}},
		"exchanged":                       {at: at, all: []*enginev1alpha1.StorageLocation{location("default", "new")}},
		"exchanged, as it was told":       {at: at, all: []*enginev1alpha1.StorageLocation{gaveUp, location("archive", "another")}, deletedFrom: []string{"default"}},
		"no id":                           {at: unknown, all: []*enginev1alpha1.StorageLocation{location("archive", ""), location("default", "the-store")}, in: "default", deletedFrom: []string{"default"}},
		"no id, and absent":               {at: unknown, all: []*enginev1alpha1.StorageLocation{location("archive", "another")}},
	} {
		t.Run(name, func(t *testing.T) {
			in := ""
			if record := test.at.In(test.all); record != nil {
				in = record.Name
			}
			if in != test.in {
				t.Errorf("it is in %q, want %q", in, test.in)
			}
			for _, record := range test.all {
				want := slices.Contains(test.deletedFrom, record.Name)
				if got := test.at.DeletedFrom(record.Name, "a", test.all); got != want {
					t.Errorf("it leaves with the backup in %s: %t, want %t", record.Name, got, want)
				}
				if test.at.DeletedFrom(record.Name, "b", test.all) {
					t.Errorf("it leaves with another backup in %s", record.Name)
				}
			}
		})
	}
}

// TestAForgedAttempt: a VolumeSnapshot that a tenant has labelled as a later attempt deletes no snapshot.
func TestAForgedAttempt(t *testing.T) {
	for _, fate := range []Fate{Live, Stored} {
		v := newScene().content("a", "b", func(c *VolumeSnapshotContent) { c.Labels[LabelAttempt] = "1" }).fate("b", fate).View
		forged := VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "hf-" + strings.Repeat("0", 32), Namespace: "shop", UID: "forged", Labels: maps.Clone(v.Contents[0].Labels)}}
		forged.Labels[LabelAttempt] = "999"
		v.Snapshots = append(v.Snapshots, forged)
		if d := Decide(v); len(d.Forget) > 0 {
			t.Errorf("%v: it leaves", fate)
		}
	}
}

// TestDecideDiscarded: a held content that is about to be deleted leaves whatever its backup's fate is, and no
// doubt about others keeps it. One that is not held follows its backup.
func TestDecideDiscarded(t *testing.T) {
	discarded := func(c *VolumeSnapshotContent) { c.Spec.Policy = Delete }
	for _, fate := range []Fate{Unknown, Live, Stored, Failed, Missing} {
		d := Decide(newScene().content("a", "b", discarded).content("c", "b", discarded, deletedFor(time.Minute)).many(11, "m").fate("m", Missing).fate("b", fate).View)
		if len(d.Forget) != 2 || len(d.Doubted) != 1 {
			t.Errorf("fate %d: it forgets %v and doubts %v", fate, d.Forget, d.Doubted)
		}
	}
	for _, fate := range []Fate{Unknown, Live, Stored} {
		if d := Decide(newScene().content("a", "b", discarded, unheld).content("c", "b").fate("b", fate).View); len(d.Forget) > 0 {
			t.Errorf("fate %d: it forgets %v", fate, d.Forget)
		}
	}
}
