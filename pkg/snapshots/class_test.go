// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

func class(name, driver string, marks ...string) VolumeSnapshotClass {
	made := VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}, Driver: driver}
	for _, mark := range marks {
		switch mark {
		case "labelled":
			made.Labels[LabelClass] = "any"
		case "default":
			made.Annotations[annotationDefault] = "true"
		}
	}
	return made
}

func TestClass(t *testing.T) {
	a, b := class("a", "d"), class("b", "d")
	other := class("other", "e", "labelled", "default")
	for name, test := range map[string]struct {
		wishes Wishes
		all    []VolumeSnapshotClass
		want   string
		fails  []string
	}{
		"the only one":       {all: []VolumeSnapshotClass{other, a}, want: "a"},
		"the default":        {all: []VolumeSnapshotClass{a, class("c", "d", "default"), other}, want: "c"},
		"the labelled":       {all: []VolumeSnapshotClass{class("c", "d", "default"), class("l", "d", "labelled"), other}, want: "l"},
		"of the backup":      {wishes: Wishes{Backup: "a"}, all: []VolumeSnapshotClass{a, class("l", "d", "labelled")}, want: "a"},
		"of the claim":       {wishes: Wishes{Backup: "a", Claim: "b"}, all: []VolumeSnapshotClass{a, b}, want: "b"},
		"of the policy":      {wishes: Wishes{Backup: "a", Claim: "a", Policy: "b"}, all: []VolumeSnapshotClass{a, b}, want: "b"},
		"none":               {all: []VolumeSnapshotClass{other}, fails: []string{"no VolumeSnapshotClass of the driver d", "create one"}},
		"several":            {all: []VolumeSnapshotClass{b, a}, fails: []string{"driver d", "a, b", LabelClass}},
		"two labelled":       {all: []VolumeSnapshotClass{class("l", "d", "labelled"), class("k", "d", "labelled")}, fails: []string{"driver d", "k, l", "remove"}},
		"two defaults":       {all: []VolumeSnapshotClass{class("l", "d", "default"), class("k", "d", "default")}, fails: []string{"driver d", "k, l", "label one"}},
		"missing, of policy": {wishes: Wishes{Policy: "z"}, all: []VolumeSnapshotClass{a}, fails: []string{"policy", "z", "driver d", "does not exist"}},
		"missing, of claim":  {wishes: Wishes{Claim: "z"}, all: []VolumeSnapshotClass{a}, fails: []string{"claim", "z", "driver d", "does not exist"}},
		"missing, of backup": {wishes: Wishes{Backup: "z"}, all: []VolumeSnapshotClass{a}, fails: []string{v1alpha1.AnnotationSnapshotClassOf + "d", "z", "does not exist"}},
		"of another driver":  {wishes: Wishes{Claim: "other"}, all: []VolumeSnapshotClass{a, other}, fails: []string{"other", "driver e", "class of d"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Class("d", test.wishes, test.all)
			switch {
			case test.fails != nil:
				expectError(t, err, test.fails...)
			case err != nil || got.Name != test.want:
				t.Errorf("got %v, %v, want %s", got, err, test.want)
			}
		})
	}
}
