// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// TestLoadOfVolumeDeletions: the records of a namespace are those of what is listed there.
func TestLoadOfVolumeDeletions(t *testing.T) {
	p := &Projector{deletions: recorded.NewSet((*enginev1alpha1.BackupChange).GetUID)}
	record := func(uid types.UID, listedIn string, done bool) {
		deletion := &enginev1alpha1.BackupChange{ObjectMeta: metav1.ObjectMeta{UID: uid}, Spec: enginev1alpha1.BackupChangeSpec{Namespace: "shop", ListedIn: listedIn, Targets: []enginev1alpha1.BackupChangeTarget{{StoreName: "shop.a"}}}}
		if done {
			deletion.Status.CompletionTimestamp = &metav1.Time{}
		}
		p.deletions.Observe(deletion)
	}
	record("1", "shop", false)
	record("2", "shop", true)
	record("3", "shop", false)
	record("4", "holdfast", false)
	if records, unfinished := p.LoadOfVolumeDeletions("shop", sets.New[string]()); records != 3 || unfinished != 2 {
		t.Errorf("%d records, %d of them not carried out", records, unfinished)
	}
}
