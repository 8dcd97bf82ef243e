// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	clienttesting "k8s.io/client-go/testing"

	"github.com/holdfast-io/holdfast/pkg/format"
)

// TestCut: the content is Retain and labelled when a cut is returned, and another attempt gets the same.
func TestCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, v := newSidecars(t), volume()
		v.StoreName = strings.Repeat("nightly.", 31) + "x"
		first, err := s.client().Cut(t.Context(), v, nil)
		if err != nil {
			t.Fatal(err)
		}
		content := s.content()
		if first.Handle != s.stored[0] || first.Content != content.Name || first.Size != 5 || !first.Ready || first.Snapshot != v.name() || !ownName.MatchString(v.name()) {
			t.Errorf("the cut is %+v", first)
		}
		if content.Spec.Policy != Retain || content.Labels[LabelBackup] != "backup" || content.Labels[LabelClaim] != "claim" || content.Labels[LabelCluster] != ours || content.Labels[LabelVolume] != VolumeLabel("shop", "data") {
			t.Errorf("the content is %+v", content)
		}
		if PlaceOf(content.Labels) != v.Place {
			t.Errorf("it is stored in %+v", PlaceOf(content.Labels))
		}
		delete(content.Labels, LabelVolume)
		if taken := s.snapshots()[0]; !maps.Equal(taken.Labels, merged(content.Labels, format.LabelExclude, "true")) || taken.Spec.Class != "fast" || taken.Spec.Source.Claim != "data" {
			t.Errorf("the VolumeSnapshot is %+v", taken)
		}
		s.requests = nil
		again, err := s.client().Cut(t.Context(), v, nil)
		if err != nil || again != first {
			t.Errorf("the second attempt gets %+v, %v, want %+v", again, err, first)
		}
		if !slices.Equal(s.requests, []string{"create volumesnapshots"}) {
			t.Errorf("it writes %q", s.requests)
		}

		v.Attempt = 2
		hooked, err := s.client().Cut(t.Context(), v, nil)
		if err != nil || hooked.Handle == first.Handle {
			t.Errorf("an attempt with hooks gets %+v, %v", hooked, err)
		}
	})
}

func merged(labels map[string]string, key, value string) map[string]string {
	all := maps.Clone(labels)
	all[key] = value
	return all
}

// TestPlace: a name of any length becomes labels that Kubernetes accepts.
func TestPlace(t *testing.T) {
	for _, name := range []string{"a", "x", "x-x", strings.Repeat("x", 122), strings.Repeat("a.", 126) + "b", strings.Repeat("b-", 30) + ".x." + strings.Repeat("c", 60)} {
		labels := map[string]string{}
		spread(labels, labelStoreName, name)
		for key, value := range labels {
			if problems := slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)); len(problems) > 0 {
				t.Errorf("%s=%s: %q", key, value, problems)
			}
		}
		if got := PlaceOf(labels).StoreName; got != name {
			t.Errorf("of %q is left %q", name, got)
		}
	}
}

// TestDriverFails: failures that pass are reported in words, and waited out.
func TestDriverFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSidecars(t)
		s.fails = "the storage is away"
		var said []string
		taken, err := s.client().Cut(t.Context(), volume(), func(words string) {
			said = append(said, words)
			content := s.content()
			object := s.object(Contents, "", content.Name)
			s.cut(object)
			s.change(object, func(map[string]any) {})
		})
		if err != nil || taken.Handle != s.stored[0] || !slices.Equal(said, []string{"the storage is away"}) {
			t.Errorf("got %+v, %v, and %q is said", taken, err, said)
		}
	})
}

// TestTimeout: after csiSnapshotTimeout the error has the driver's words, the namespace is free, and
// a content is kept for the sweep.
func TestTimeout(t *testing.T) {
	for name, test := range map[string]struct {
		prepare  func(*sidecars)
		contents int
		words    []string
	}{
		"no snapshot-controller": {func(s *sidecars) { s.absent = true }, 0, []string{"within 1m0s", "is snapshot-controller running?", "shop/data", "driver d", "class fast"}},
		"no csi-snapshotter":     {func(s *sidecars) { s.away = true }, 1, []string{"within 1m0s", "the driver has not answered: is its csi-snapshotter running?"}},
		"the driver fails":       {func(s *sidecars) { s.fails = "no space" }, 1, []string{"no space"}},
		"a final error":          {func(s *sidecars) { s.fails, s.final = "no such volume", true }, 1, []string{"no such volume"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSidecars(t)
				test.prepare(s)
				_, err := s.client().Cut(t.Context(), volume(), nil)
				expectError(t, err, test.words...)
				if left := s.snapshots(); len(left) > 0 {
					t.Errorf("VolumeSnapshots are left: %+v", left)
				}
				if test.contents > 0 {
					if content := s.content(); content.Spec.Policy != Retain || content.Labels[LabelBackup] != "backup" {
						t.Errorf("the content is %+v", content)
					}
				}
			})
		})
	}
}

// TestTakenUpSlowly: a content that snapshot-controller has not protected is no cut yet, and a VolumeSnapshot
// that it is taking up is left to the sweep: its deletion could leak a stored snapshot.
func TestTakenUpSlowly(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*sidecars)
		taking  func(*sidecars, *Volume)
		left    int
	}{
		"its content is not protected": {prepare: func(s *sidecars) { s.unprotected = true }, left: 1},
		"its content is being made": {prepare: func(s *sidecars) { s.absent = true }, left: 1, taking: func(s *sidecars, v *Volume) {
			object := s.object(Snapshots, v.Namespace, v.name())
			object.SetFinalizers([]string{"as-source"})
			s.change(object, func(map[string]any) {})
		}},
		"its content can't be made": {prepare: func(s *sidecars) { s.absent = true }, taking: func(s *sidecars, v *Volume) {
			object := s.object(Snapshots, v.Namespace, v.name())
			object.SetFinalizers([]string{"as-source"})
			s.change(object, func(o map[string]any) {
				o["status"] = map[string]any{"error": map[string]any{"message": "no such class"}}
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, v := newSidecars(t), volume()
				test.prepare(s)
				said := 0
				taken, err := s.client().Cut(t.Context(), v, func(string) {
					if said++; said == 1 && test.taking != nil {
						test.taking(s, &v)
					}
				})
				expectError(t, err, "within 1m0s")
				if got := len(s.snapshots()); got != test.left || taken.Handle != "" || taken.Content != contentName("uid-1") {
					t.Errorf("%d VolumeSnapshots are left, want %d; taken is %+v", got, test.left, taken)
				}
			})
		})
	}
}

// TestQuota: a ResourceQuota is waited out until the timeout; other refusals fail at once.
func TestQuota(t *testing.T) {
	for message, want := range map[string]struct {
		attempts bool
		words    string
	}{
		"exceeded quota: snapshots, used: 5": {true, "within 1m0s"},
		"no right":                           {false, "no right"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSidecars(t)
			creations := 0
			s.before = func(action clienttesting.Action) error {
				if action.GetVerb() == "create" {
					creations++
					return apierrors.NewForbidden(Snapshots.GroupResource(), "x", errors.New(message))
				}
				return nil
			}
			_, err := s.client().Cut(t.Context(), volume(), nil)
			expectError(t, err, message, want.words)
			if creations > 1 != want.attempts {
				t.Errorf("%s: %d attempts", message, creations)
			}
		})
	}
}

// TestNotServed: without the CRDs there are no classes, a cut fails at once, and a sweep finds nothing.
func TestNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSidecars(t)
		s.before = func(action clienttesting.Action) error {
			return apierrors.NewGenericServerResponse(404, action.GetVerb(), action.GetResource().GroupResource(), "", "404 page not found", 0, true)
		}
		_, err := s.client().Cut(t.Context(), volume(), nil)
		expectError(t, err, "CRDs of external-snapshotter")
		if classes, err := s.client().Classes(t.Context()); err != nil || classes != nil {
			t.Errorf("the classes are %v, %v", classes, err)
		}
		if contents, taken, err := s.client().Look(t.Context()); err != nil || contents != nil || taken != nil {
			t.Errorf("a sweep sees %v, %v, %v", contents, taken, err)
		}
	})
}

// TestNotOurs: VolumeSnapshots and contents that others made are not taken for the backup's.
func TestNotOurs(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Volume)
		words  string
	}{
		"another backup's":   {func(v *Volume) { v.Backup = "other" }, "label"},
		"another volume":     {func(v *Volume) { v.Handle = "new" }, "the claim was replaced"},
		"another driver":     {func(v *Volume) { v.Driver = "e" }, "the claim was replaced"},
		"cut before":         {func(v *Volume) { v.Since = time.Now().Add(2 * skew) }, "before the backup started"},
		"of another claim":   {func(v *Volume) { v.Claim = "other" }, `of the claim "data"`},
		"of another cluster": {func(*Volume) {}, "label"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, v := newSidecars(t), volume()
				client := s.client()
				if name == "of another cluster" {
					client = New(s, "that-cluster", system)
				}
				made := client.snapshotOf(&v)
				test.change(&v)
				made.SetName(v.name())
				if _, err := s.Resource(Snapshots).Namespace("shop").Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				_, err := s.client().Cut(t.Context(), v, nil)
				expectError(t, err, test.words)
				if len(s.snapshots()) != 1 {
					t.Error("it was deleted")
				}
			})
		})
	}
}

// TestDeletedByOthers: a cut that is held goes on when others delete its objects; an earlier deletion
// fails the volume.
func TestDeletedByOthers(t *testing.T) {
	for name, test := range map[string]struct {
		absent  bool
		deleted func(*sidecars, *Volume) // while the driver is slow
		answers bool
		words   string
		check   func(VolumeSnapshotContent) bool
	}{
		"the VolumeSnapshot, and the driver is slow": {
			deleted: func(s *sidecars, v *Volume) { s.deleteSnapshot(v) }, words: "not cut within 1m0s: slow",
			check: func(c VolumeSnapshotContent) bool { return c.held() && c.Spec.Policy == Retain },
		},
		"the VolumeSnapshot, and the driver answers": {
			deleted: func(s *sidecars, v *Volume) { s.deleteSnapshot(v) }, answers: true,
			check: func(c VolumeSnapshotContent) bool { return c.held() && c.Spec.Policy == Retain },
		},
		"the content, and the driver answers": {
			deleted: func(s *sidecars, _ *Volume) { s.terminate(s.object(Contents, "", s.content().Name)) }, answers: true,
			check: func(c VolumeSnapshotContent) bool { return c.held() && c.cut() && c.Spec.Policy == Retain },
		},
		"the content before it is held": {
			absent: true, words: "was deleted before it was cut",
			deleted: func(s *sidecars, v *Volume) {
				s.take(s.object(Snapshots, "shop", v.name()))
				s.terminate(s.object(Contents, "", s.content().Name))
			},
			check: func(c VolumeSnapshotContent) bool {
				return c.Spec.Policy == Delete && c.Annotations[annotationBeingDeleted] != "" && !c.held()
			},
		},
		"the VolumeSnapshot before there is a content": {
			absent: true, words: "was deleted before it was cut",
			deleted: func(s *sidecars, v *Volume) { s.deleteSnapshot(v) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, v := newSidecars(t), volume()
				s.fails, s.absent = "slow", test.absent
				done := false
				taken, err := s.client().Cut(t.Context(), v, func(string) {
					if done {
						return
					}
					done = true
					test.deleted(s, &v)
					if test.answers {
						object := s.object(Contents, "", s.content().Name)
						annotations := object.GetAnnotations()
						s.cut(object)
						delete(annotations, annotationBeingCreated)
						object.SetAnnotations(annotations)
						s.change(object, func(map[string]any) {})
					}
				})
				if test.words != "" {
					expectError(t, err, test.words)
				} else if err != nil || taken.Handle != s.stored[0] {
					t.Errorf("got %+v, %v", taken, err)
				}
				if test.check != nil && !test.check(s.content()) {
					t.Errorf("the content is %+v", s.content())
				}
			})
		})
	}
}

func (s *sidecars) deleteSnapshot(v *Volume) {
	s.t.Helper()
	if err := s.Tracker().Delete(Snapshots, v.Namespace, v.name()); err != nil {
		s.t.Error(err)
	}
}

// TestCancelled: nothing is deleted when the backup is cancelled; the sweep waits for the cut.
func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSidecars(t)
		s.fails = "slow"
		ctx, cancel := context.WithCancelCause(t.Context())
		stopped := errors.New("cancelled by its user")
		_, err := s.client().Cut(ctx, volume(), func(string) { cancel(stopped) })
		if !errors.Is(err, stopped) || len(s.snapshots()) != 1 {
			t.Errorf("got %v, with %d VolumeSnapshots", err, len(s.snapshots()))
		}
	})
}

// TestRelease: a VolumeSnapshot is deleted once its content is kept, and the content stays.
func TestRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSidecars(t)
		taken, err := s.client().Cut(t.Context(), volume(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.client().Release(t.Context(), taken.Content); err != nil {
				t.Fatal(err)
			}
		}
		if content := s.content(); content.Spec.Policy != Retain || len(s.snapshots()) != 0 || len(s.stored) != 1 {
			t.Errorf("left are %+v and %+v", content, s.snapshots())
		}
		expectError(t, s.client().Release(t.Context(), "unknown"), "unknown")
	})
}

// TestAwaitReady: a cut that its storage copies for hours is waited for, with few requests. The limit counts
// from the cut, so that an attempt after a restart does not wait longer.
func TestAwaitReady(t *testing.T) {
	for name, test := range map[string]struct {
		ready, restart time.Duration
		message        string
		words          []string
		wait           time.Duration // at most
	}{
		"at once":            {},
		"after hours":        {ready: 3 * time.Hour, wait: 3*time.Hour + time.Minute},
		"after a restart":    {ready: 3 * time.Hour, restart: 4*time.Hour + time.Minute},
		"never":              {message: "copied 7 %", words: []string{"was not ready to use within 4h0m0s", "copied 7 %", "class fast", "restart the driver's csi-snapshotter"}, wait: 4*time.Hour + time.Minute},
		"never, and restart": {restart: 3 * time.Hour, words: []string{"the storage has not finished it"}, wait: time.Hour + time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, v, requests := newSidecars(t), volume(), 0
				s.copying = test.ready > 0 || test.words != nil
				c := s.client()
				taken, err := c.Cut(t.Context(), v, nil)
				if err != nil || taken.Ready == s.copying {
					t.Fatalf("the cut is %+v, %v", taken, err)
				}
				s.change(s.object(Contents, "", taken.Content), func(of map[string]any) {
					status := of["status"].(map[string]any)
					if test.message != "" {
						status["error"] = map[string]any{"message": test.message}
					}
				})
				var copying sync.WaitGroup
				defer copying.Wait()
				if test.ready > 0 {
					copying.Go(func() {
						time.Sleep(test.ready)
						s.change(s.object(Contents, "", taken.Content), func(of map[string]any) {
							of["status"].(map[string]any)["readyToUse"] = true
							of["status"].(map[string]any)["restoreSize"] = int64(9)
						})
					})
				}
				time.Sleep(test.restart)
				s.before = func(clienttesting.Action) error { requests++; return nil }
				begun, said := time.Now(), []string{}
				taken, err = c.AwaitReady(t.Context(), v, taken, func(words string) { said = append(said, words) })
				switch waited := time.Since(begun); {
				case waited > test.wait:
					t.Errorf("it waited %s, want at most %s", waited, test.wait)
				case requests > 60*60*4/20+30:
					t.Errorf("it made %d requests", requests)
				case test.wait > 0 && len(said) != 1:
					t.Errorf("it said %q", said)
				case test.words != nil:
					expectError(t, err, test.words...)
				case err != nil || !taken.Ready || test.ready > 0 && taken.Size != 9:
					t.Errorf("got %+v, %v", taken, err)
				}
			})
		})
	}
	t.Run("without an answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, begun := newSidecars(t), time.Now()
			s.before = func(clienttesting.Action) error { return errors.New("connection refused") }
			_, err := s.client().AwaitReady(t.Context(), volume(), Taken{Content: "c", Time: begun.Add(-5 * time.Hour)}, nil)
			expectError(t, err, "not ready to use within 4h0m0s: connection refused")
			if waited := time.Since(begun); waited < unansweredTime || waited > unansweredTime+time.Minute {
				t.Errorf("it waited %s, want %s", waited, unansweredTime)
			}
		})
	})
	t.Run("without its content", func(t *testing.T) {
		s := newSidecars(t)
		_, err := s.client().AwaitReady(t.Context(), volume(), Taken{Content: "lost", Time: time.Now()}, nil)
		expectError(t, err, "VolumeSnapshotContent lost is gone")
	})
}
