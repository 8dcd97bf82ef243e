// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
)

// TestForget: both objects are deleted with the stored snapshot, and the content is let go last.
func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSidecars(t)
		if _, err := s.client().Cut(t.Context(), volume(), nil); err != nil {
			t.Fatal(err)
		}
		content := s.content()
		s.requests = nil
		waits, err := s.client().Forget(t.Context(), content.Name, content.UID)
		if waits != "" || err != nil || len(s.stored) != 0 || len(s.snapshots()) != 0 {
			t.Errorf("got %q, %v; %v and %v are left", waits, err, s.stored, s.snapshots())
		}
		if want := []string{"patch volumesnapshotcontents", "delete volumesnapshots", "delete volumesnapshotcontents", "patch volumesnapshotcontents"}; !slices.Equal(s.requests, want) {
			t.Errorf("it writes %q, want %q", s.requests, want)
		}
		if waits, err := s.client().Forget(t.Context(), content.Name, content.UID); waits != "" || err != nil {
			t.Errorf("again: %q, %v", waits, err)
		}
	})
}

// TestForgetIsRepeated: stopped at each request, and repeated, it leaves nothing behind.
func TestForgetIsRepeated(t *testing.T) {
	for at := range 12 {
		synctest.Test(t, func(t *testing.T) {
			s := newSidecars(t)
			if _, err := s.client().Cut(t.Context(), volume(), nil); err != nil {
				t.Fatal(err)
			}
			content, left := s.content(), at
			killed := errors.New("killed")
			s.before = func(clienttesting.Action) error {
				if left--; left < 0 {
					return killed
				}
				return nil
			}
			_, first := s.client().Forget(t.Context(), content.Name, content.UID)
			if at < 8 && !errors.Is(first, killed) {
				t.Errorf("request %d: got %v", at, first)
			}
			s.before = nil
			if waits, err := s.client().Forget(t.Context(), content.Name, content.UID); waits != "" || err != nil || len(s.stored) != 0 || len(s.snapshots()) != 0 {
				t.Errorf("after request %d: %q, %v; %v is left", at, waits, err, s.stored)
			}
		})
	}
}

// TestForgetWaitsForTheCut: while the driver may still cut, the content stays. Its snapshot is deleted
// as soon as the driver has answered.
func TestForgetWaitsForTheCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSidecars(t)
		s.fails = "the storage is away"
		_, err := s.client().Cut(t.Context(), volume(), nil)
		expectError(t, err, "the storage is away")
		content := s.content()
		waits, err := s.client().Forget(t.Context(), content.Name, content.UID)
		if err != nil || !strings.Contains(waits, "the end of the cut: the storage is away") || len(s.snapshots()) != 0 {
			t.Errorf("got %q, %v, and %+v is left", waits, err, s.snapshots())
		}
		object := s.object(Contents, "", content.Name)
		s.cut(object)
		annotate(object, annotationBeingDeleted)
		s.change(object, func(map[string]any) {})
		if waits, err := s.client().Forget(t.Context(), content.Name, content.UID); waits != "" || err != nil || len(s.stored) != 0 {
			t.Errorf("after the cut: %q, %v; %v is left", waits, err, s.stored)
		}
	})
}

// TestForgetAFinalFailure: a cut that the driver has refused for good is deleted at once.
func TestForgetAFinalFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSidecars(t)
		s.fails, s.final = "no such volume", true
		_, err := s.client().Cut(t.Context(), volume(), nil)
		expectError(t, err, "no such volume")
		content := s.content()
		if waits, err := s.client().Forget(t.Context(), content.Name, content.UID); waits != "" || err != nil {
			t.Errorf("got %q, %v", waits, err)
		}
	})
}

// TestForgetUnprotected: a content that snapshot-controller has not taken up yet is left alone, as it
// would overwrite the finalizer.
func TestForgetUnprotected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSidecars(t)
		s.absent = true
		v := volume()
		_, err := s.client().Cut(t.Context(), v, nil)
		expectError(t, err, "is snapshot-controller running?")
		made, err := s.Resource(Snapshots).Namespace("shop").Create(t.Context(), s.client().snapshotOf(&v), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.take(made)
		object := s.object(Contents, "", s.content().Name)
		object.SetFinalizers(nil)
		s.change(object, func(map[string]any) {})
		content := s.content()
		s.requests = nil
		waits, err := s.client().Forget(t.Context(), content.Name, content.UID)
		if err != nil || !strings.Contains(waits, "snapshot-controller") || len(s.requests) > 0 {
			t.Errorf("got %q, %v, and %q is written", waits, err, s.requests)
		}
	})
}

// TestLetGo: a content is let go only when the sidecar has ended, no stored snapshot is left, and none is
// being made.
func TestLetGo(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*unstructured.Unstructured)
		gone   bool
	}{
		"all has ended":            {func(*unstructured.Unstructured) {}, true},
		"the sidecar has not":      {func(o *unstructured.Unstructured) { o.SetFinalizers([]string{finalizerBound, Finalizer}) }, false},
		"a snapshot is stored":     {func(o *unstructured.Unstructured) { o.Object["status"] = map[string]any{"snapshotHandle": "h"} }, false},
		"a snapshot is being made": {func(o *unstructured.Unstructured) { annotate(o, annotationBeingCreated) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSidecars(t)
				if _, err := s.client().Cut(t.Context(), volume(), nil); err != nil {
					t.Fatal(err)
				}
				s.away = true
				content := s.content()
				object := s.object(Contents, "", content.Name)
				now := metav1.Now()
				object.SetDeletionTimestamp(&now)
				object.SetFinalizers([]string{Finalizer})
				object.Object["status"] = map[string]any{}
				test.change(object)
				s.change(object, func(map[string]any) {})
				waits, err := s.client().Forget(t.Context(), content.Name, content.UID)
				all, listErr := list[VolumeSnapshotContent](t.Context(), s.Resource(Contents), "")
				if err != nil || listErr != nil || (len(all) == 0) != test.gone || (waits == "") != test.gone || len(all) == 1 && !all[0].held() {
					t.Errorf("it waits for %q, %v, %v; left is %+v", waits, err, listErr, all)
				}
			})
		})
	}
}

// TestForgetHangs: the reason is told, and a deletion that takes long is nudged once in a call.
func TestForgetHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSidecars(t)
		if _, err := s.client().Cut(t.Context(), volume(), nil); err != nil {
			t.Fatal(err)
		}
		content := s.content()
		s.hang = true
		for _, nudges := range []int{0, 1} {
			waits, err := s.client().Forget(t.Context(), content.Name, content.UID)
			if err != nil || waits != "the driver to delete the stored snapshot" {
				t.Errorf("got %q, %v", waits, err)
			}
			if got := s.content(); (got.Annotations[AnnotationNudged] != "") != (nudges > 0) {
				t.Errorf("%d nudges are wanted: %v", nudges, got.Annotations)
			}
			time.Sleep(2 * nudgeAfter)
		}
	})
}

// TestForgetADeletedContent: a held content that others have deleted is still the record, and is forgotten
// like any other.
func TestForgetADeletedContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSidecars(t)
		s.stale = true
		taken, err := s.client().Cut(t.Context(), volume(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.client().Release(t.Context(), taken.Content); err != nil {
			t.Fatal(err)
		}
		content := s.content()
		if content.DeletionTimestamp == nil || content.protected() || !content.cut() || len(s.stored) != 1 {
			t.Errorf("the content is %+v, with %v stored", content, s.stored)
		}
		if again, err := s.client().Cut(t.Context(), volume(), nil); err != nil || again.Content == taken.Content {
			t.Errorf("the next cut is %+v, %v", again, err)
		}
		waits, err := s.client().Forget(t.Context(), content.Name, content.UID)
		if waits != "" || err != nil || len(s.stored) != 1 || s.content().UID == content.UID {
			t.Errorf("got %q, %v; %v is left", waits, err, s.stored)
		}
	})
}

// TestFind: a snapshot without content gets one that no tenant can bind, with the secret of its class,
// and is forgotten. A snapshot whose backup has a content gets no other.
func TestFind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSidecars(t)
		s.stored = []string{"lost"}
		class := class("fast", "d")
		class.Parameters = map[string]string{"csi.storage.k8s.io/snapshotter-secret-name": "key", "csi.storage.k8s.io/snapshotter-secret-namespace": "storage"}
		lost := Lost{Backup: "backup", StoreName: "nightly", Location: "default", Claim: "claim", Driver: "d", Handle: "lost", Class: &class}
		name, uid, err := s.client().Find(t.Context(), lost)
		if err != nil {
			t.Fatal(err)
		}
		content := s.content()
		if content.Name != name || content.Spec.Policy != Retain || content.Spec.Ref.Namespace != system || !slices.Equal(content.Finalizers, []string{finalizerBound, Finalizer}) ||
			content.Annotations[annotationSecretName] != "key" || content.Annotations[annotationSecretNamespace] != "storage" || content.Labels[LabelCluster] != ours {
			t.Errorf("the content is %+v", content)
		}
		if again, same, err := s.client().Find(t.Context(), lost); again != name || same != uid || err != nil {
			t.Errorf("again: %s, %s, %v", again, same, err)
		}
		if waits, err := s.client().Forget(t.Context(), name, uid); waits != "" || err != nil || len(s.stored) != 0 {
			t.Errorf("got %q, %v; %v is left", waits, err, s.stored)
		}
		class.Parameters["csi.storage.k8s.io/snapshotter-secret-name"] = "${volumesnapshot.name}"
		_, _, err = s.client().Find(t.Context(), lost)
		expectError(t, err, "lost", "by hand")

		taken, err := s.client().Cut(t.Context(), volume(), nil)
		if err != nil {
			t.Fatal(err)
		}
		lost.Handle, lost.Class = taken.Handle, nil
		if known, _, err := s.client().Find(t.Context(), lost); known != taken.Content || err != nil {
			t.Errorf("the content of the cut is %s, and found is %s, %v", taken.Content, known, err)
		}
	})
}

// TestForgetAnother: a content that was made anew is another one.
func TestForgetAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSidecars(t)
		if _, err := s.client().Cut(t.Context(), volume(), nil); err != nil {
			t.Fatal(err)
		}
		if waits, err := s.client().Forget(t.Context(), s.content().Name, "another"); waits != "" || err != nil || len(s.stored) != 1 {
			t.Errorf("got %q, %v; stored is %v", waits, err, s.stored)
		}
	})
}

// TestLeaveLocal: only the snapshots beside a claim's deleted data leave, of the named backups and places.
func TestLeaveLocal(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Volume)
		leaves bool
	}{
		"beside the data":           {func(*Volume) {}, true},
		"of another claim":          {func(v *Volume) { v.Claim, v.ClaimUID = "logs", "another" }, false},
		"of another namespace":      {func(v *Volume) { v.Namespace, v.ClaimUID = "shop-2", "another" }, false},
		"of another backup":         {func(v *Volume) { v.Backup = "another" }, false},
		"of the backup's original":  {func(v *Volume) { v.Location = "another" }, false},
		"kept in place of the data": {func(v *Volume) { v.Moved, v.KeepLocal = false, 0 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, v := newSidecars(t), volume()
			v.Moved, v.KeepLocal = true, 3
			test.change(&v)
			content := s.kept(v)
			for range 2 {
				err := s.client().LeaveLocal(t.Context(), "shop", "data", func(backup types.UID, at Place) bool {
					return backup == "backup" && at.StoreName == "nightly" && at.Location == "default"
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			left, err := decode[VolumeSnapshotContent](s.object(Contents, "", content))
			if err != nil {
				t.Fatal(err)
			}
			for _, fate := range []Fate{Stored, Unknown} {
				d := Decide(View{ClusterUID: ours, Contents: []VolumeSnapshotContent{*left}, Fates: map[types.UID]Fate{v.Backup: fate}})
				if (len(d.Forget) == 1) != test.leaves {
					t.Errorf("%v: it leaves: %t", fate, len(d.Forget) == 1)
				}
			}
		})
	}
}

// TestLeaveLocalFails: a cluster that refuses lets a deletion wait, and one without the API has no snapshots.
func TestLeaveLocalFails(t *testing.T) {
	s, v := newSidecars(t), volume()
	v.Moved, v.KeepLocal = true, 3
	s.kept(v)
	resource := Contents.GroupResource()
	for _, test := range []struct {
		verb  string
		err   error
		words []string
	}{
		{"list", apierrors.NewForbidden(resource, "", errors.New("no right")), []string{"list the snapshots of the claim shop/data", "no right"}},
		{"patch", apierrors.NewForbidden(resource, "", errors.New("no right")), []string{"have the VolumeSnapshotContent", "no right"}},
		{"list", apierrors.NewNotFound(resource, ""), nil},
	} {
		s.before = func(action clienttesting.Action) error {
			if action.GetVerb() == test.verb {
				return test.err
			}
			return nil
		}
		err := s.client().LeaveLocal(t.Context(), "shop", "data", func(types.UID, Place) bool { return true })
		if test.words == nil {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		expectError(t, err, test.words...)
	}
}
