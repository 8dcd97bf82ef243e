// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"slices"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clienttesting "k8s.io/client-go/testing"
)

// TestAdopt: a lost snapshot gets a record of its backup, by which it is discarded with it. One that is deleted
// already gets none, one that others use or whose driver does not answer is an error, and stays.
func TestAdopt(t *testing.T) {
	for name, test := range map[string]struct {
		// others is a content of the handle that is not the backup's, before is a record of it.
		others map[string]any
		before bool
		says   string // the driver, in place of the confirmation
		left   []string
		fails  string
	}{
		"lost":                      {},
		"with its record":           {before: true},
		"deleted already":           {says: "rpc error: code = NotFound desc = no", left: []string{"snap-1"}},
		"not in the list":           {says: "can not find snapshot for snapshotID snap-1", left: []string{"snap-1"}},
		"its driver is away":        {says: "connection refused", left: []string{"snap-1"}, fails: "the snapshot snap-1 of the driver d: connection refused"},
		"of a user":                 {others: map[string]any{}, left: []string{"snap-1"}, fails: "VolumeSnapshotContent of-others, which is not the backup's"},
		"of another backup":         {others: map[string]any{LabelBackup: "another", LabelCluster: ours}, left: []string{"snap-1"}, fails: "is also in use"},
		"offered to a restore":      {others: map[string]any{LabelOfferCluster: ours}, left: []string{"snap-1"}, fails: "is also in use"},
		"another driver's namesake": {others: map[string]any{"driver": "else"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSidecars(t)
				s.stored = []string{"snap-1"}
				lost := []Lost{{Backup: "backup", StoreName: "nightly", Location: "default", Claim: "claim", Driver: "d", Handle: "snap-1"}}
				if test.others != nil {
					driver := "d"
					if test.others["driver"] != nil {
						driver, test.others = "else", map[string]any{}
					}
					content, _ := static("shop", "of-others", Found{Driver: driver, Handle: "snap-1"}, test.others)
					content.Object["status"] = map[string]any{"snapshotHandle": "snap-1"}
					s.add(content)
				}
				if test.before {
					if err := s.client().Adopt(t.Context(), lost); err != nil {
						t.Fatal(err)
					}
				}
				if test.says != "" {
					s.before = func(action clienttesting.Action) error {
						if !action.Matches("get", Contents.Resource) {
							return nil
						}
						if object, err := s.Tracker().Get(Contents, "", action.(clienttesting.GetAction).GetName()); err == nil {
							content := object.(*unstructured.Unstructured).DeepCopy()
							content.Object["status"] = map[string]any{"error": map[string]any{"message": test.says}}
							if err := s.Tracker().Update(Contents, content, ""); err != nil {
								t.Error(err)
							}
						}
						return nil
					}
				}
				err := s.client().Adopt(t.Context(), lost)
				s.before = nil
				if test.fails != "" {
					expectError(t, err, test.fails)
				} else if err != nil {
					t.Fatal(err)
				}
				if test.others == nil && test.says != "" && test.fails == "" && len(s.names()) > 0 {
					t.Errorf("left are the contents %q", s.names())
				}
				if test.fails != "" && test.others != nil && !slices.Equal(s.names(), []string{"of-others"}) {
					t.Errorf("there are the contents %q", s.names())
				}
				if test.fails == "" {
					// It begins; the sweep ends it.
					if err := s.client().Discard(t.Context(), "backup", at("nightly", "default")); err != nil {
						t.Fatal(err)
					}
				}
				if !slices.Equal(s.stored, test.left) {
					t.Errorf("stored is %q, want %q", s.stored, test.left)
				}
			})
		})
	}
	if err := newSidecars(t).client().Adopt(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
