// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// TestLoadOfVolumeDeletions: the records of a namespace are those of what is listed there.
func TestLoadOfVolumeDeletions(t *testing.T) {
	record := func(listedIn string, done bool) *enginev1alpha1.VolumeDeletion {
		deletion := &enginev1alpha1.VolumeDeletion{Spec: enginev1alpha1.VolumeDeletionSpec{Namespace: "shop", ListedIn: listedIn}}
		if done {
			deletion.Status.CompletionTimestamp = &metav1.Time{}
		}
		return deletion
	}
	p := &Projector{deletions: map[types.UID]*enginev1alpha1.VolumeDeletion{
		"1": record("shop", false), "2": record("shop", true), "3": record("shop", false), "4": record("holdfast", false),
	}}
	if records, unfinished := p.LoadOfVolumeDeletions("shop"); records != 3 || unfinished != 2 {
		t.Errorf("%d records, %d of them not carried out", records, unfinished)
	}
}
