// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Volume backups that need what their store has lost are Damaged, and their backups say so,
// until the store has it again: whether the backup or the loss was heard of first.
func TestDamage(t *testing.T) {
	c := New("holdfast", nil)
	put := func(storeName string, began int64, snapshots ...string) {
		content := Content{Backup: stored("default", storeName, 5)}
		for i, id := range snapshots {
			content.Volumes = append(content.Volumes, Volume{Namespace: "shop", ClaimName: fmt.Sprintf("data-%d", i), PodName: "pod", PodVolume: "v", State: "Completed", SnapshotID: id, Start: metav1.Unix(began, 0)})
		}
		c.Put("default", storeName, content, time.Unix(1, 0))
	}
	listed := func(when, want string) {
		t.Helper()
		var got []string
		for _, backup := range c.Backups() {
			rows := c.locations["default"][backup.Name].held.rows
			for i := range rows.len() {
				r := rows.at(i)
				got = append(got, r.volume().State)
			}
			got = append(got, fmt.Sprint(meta.IsStatusConditionTrue(backup.Status.Conditions, v1alpha1.ConditionVolumesDamaged)))
		}
		if said := strings.Join(got, " "); said != want {
			t.Errorf("%s it lists %s, want %s", when, said, want)
		}
	}
	first, second, third := strings.Repeat("1", 32), strings.Repeat("2", 32), strings.Repeat("3", 32)
	put("a", 10, first, second)
	const whole = "Completed Completed false"
	listed("at first", whole)
	c.SetDamage("default", "other", &enginev1alpha1.RepositoryDamage{Snapshots: []string{second}})
	c.SetDamage("elsewhere", "shop", &enginev1alpha1.RepositoryDamage{Snapshots: []string{second}})
	listed("when another repository is damaged", whole)
	c.SetDamage("default", "shop", &enginev1alpha1.RepositoryDamage{Snapshots: []string{second, third}})
	listed("when its second volume is lost", "Completed Damaged true")
	put("b", 20, third)
	listed("when another backup is read", "Completed Damaged true Damaged true")
	until := metav1.Unix(15, 0)
	c.SetDamage("default", "shop", &enginev1alpha1.RepositoryDamage{AffectedUntil: &until})
	listed("when all are lost that began early", "Damaged Damaged true Completed false")
	c.SetDamage("default", "shop", nil)
	listed("when nothing is lost any more", whole+" Completed false")
}
