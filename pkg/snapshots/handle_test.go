// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clienttesting "k8s.io/client-go/testing"
)

// byHandle is a restore that may use the handle that its backup names.
func byHandle() Wanted {
	w := wants()
	w.ByHandle, w.Driver, w.Handle, w.Size = true, "d", "snap-1", 7
	return w
}

func classObject(name, driver string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": Version.String(), "kind": "VolumeSnapshotClass", "metadata": map[string]any{"name": name}, "driver": driver,
	}}
}

// TestLocateByHandle: the backup's handle counts only if the restore may use it, and the cluster has no record of
// the snapshot. The class is the driver's, if it is clear which.
func TestLocateByHandle(t *testing.T) {
	for name, test := range map[string]struct {
		// stored is a record of the claim in the backup.
		stored  bool
		classes []*unstructured.Unstructured
		want    func(*Wanted)
		answer  error
		found   Found
	}{
		"without a class":       {found: Found{Driver: "d", Handle: "snap-1", Size: 7, ByHandle: true}},
		"with the driver's":     {classes: []*unstructured.Unstructured{classObject("fast", "d"), classObject("nfs", "other")}, found: Found{Driver: "d", Class: "fast", Handle: "snap-1", Size: 7, ByHandle: true}},
		"with one of several":   {classes: []*unstructured.Unstructured{classObject("fast", "d"), classObject("slow", "d")}, found: Found{Driver: "d", Handle: "snap-1", Size: 7, ByHandle: true}},
		"not allowed":           {want: func(w *Wanted) { w.ByHandle = false }},
		"without a handle":      {want: func(w *Wanted) { w.Handle = "" }},
		"without a driver":      {want: func(w *Wanted) { w.Driver = "" }},
		"beside a record":       {stored: true, want: func(w *Wanted) { w.Handle = "" }, found: Found{Driver: "d", Handle: "stored-of-snapcontent-uid-1", Size: 5}},
		"another than recorded": {stored: true},
		"without the API":       {answer: apierrors.NewNotFound(Contents.GroupResource(), "")},
		"without an answer":     {answer: errors.New("it is denied")},
	} {
		t.Run(name, func(t *testing.T) {
			s, w := newSidecars(t), byHandle()
			if test.stored {
				s.kept(volume())
			}
			for _, of := range test.classes {
				of := of.DeepCopy()
				if of.GetName() == "slow" {
					of.SetUID("slow")
				}
				s.add(of)
			}
			if test.want != nil {
				test.want(&w)
			}
			s.before = func(clienttesting.Action) error { return test.answer }
			found, err := s.client().Locate(t.Context(), w)
			if found != test.found || (err == nil) != (test.found != Found{}) {
				t.Errorf("found is %+v, %v, want %+v", found, err, test.found)
			}
		})
	}
}

// TestConfirm: an offer is confirmed when the driver knows the snapshot. Its last words are the error if it
// denies it for a while, or does not answer. An error that passes is waited out.
func TestConfirm(t *testing.T) {
	denies := map[string]any{"error": map[string]any{"message": "rpc error: code = NotFound desc = no such snapshot"}}
	ready := map[string]any{"snapshotHandle": "snap-1", "restoreSize": int64(9), "readyToUse": true}
	for name, test := range map[string]struct {
		// status is the content's, and then its later one.
		status, then map[string]any
		after        time.Duration
		gone         bool
		answer       error
		cancel       bool
		size         int64
		says         string
		takes        time.Duration
	}{
		"known":                        {status: ready, size: 9},
		"of no size":                   {status: map[string]any{"readyToUse": true}},
		"known later":                  {then: ready, after: time.Minute, size: 9, takes: time.Minute},
		"denied":                       {status: denies, says: "no such snapshot", takes: denyTime},
		"denied, and known after that": {status: denies, then: ready, after: 10 * time.Second, size: 9, takes: 10 * time.Second},
		"denied after a minute":        {then: denies, after: time.Minute, says: "no such snapshot", takes: time.Minute + denyTime},
		"no answer":                    {says: "is its csi-snapshotter running?", takes: confirmTime},
		"copied for hours":             {status: map[string]any{"snapshotHandle": "snap-1"}, says: "not confirmed within 5m0s", takes: confirmTime},
		"deleted":                      {gone: true, says: "was deleted: restore again"},
		"refused":                      {answer: apierrors.NewForbidden(Contents.GroupResource(), "x", errors.New("no right")), says: "no right"},
		"an API server that is away":   {answer: errors.New("connection refused"), says: "connection refused", takes: confirmTime},
		"cancelled":                    {cancel: true, says: "cancelled"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w := newSidecars(t), byHandle()
				s.absent = true
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				name, err := s.client().Offer(ctx, w, Found{Driver: "d", Handle: "snap-1", ByHandle: true})
				if err != nil {
					t.Fatal(err)
				}
				begun := time.Now()
				s.before = func(clienttesting.Action) error {
					status := test.status
					if test.then != nil && time.Since(begun) >= test.after {
						status = test.then
					}
					content := s.object(Contents, "", name)
					delete(content.Object, "status")
					if status != nil {
						content.Object["status"] = status
					}
					if err := s.Tracker().Update(Contents, content, ""); err != nil {
						t.Error(err)
					}
					return test.answer
				}
				if test.gone {
					s.before = nil
					if err := s.Tracker().Delete(Contents, "", name); err != nil {
						t.Fatal(err)
					}
				}
				if test.cancel {
					cancel(errors.New("cancelled"))
				}
				size, err := s.client().Confirm(ctx, w)
				if test.says != "" {
					expectError(t, err, test.says)
				}
				if took := time.Since(begun); size != test.size || (err != nil) != (test.says != "") || took < test.takes || took > test.takes+3*time.Second {
					t.Errorf("the size is %d, %v, after %s, want %d after %s", size, err, took, test.size, test.takes)
				}
			})
		})
	}
}
