// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package velero

import (
	"crypto/rand"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// Of any number of changes only those are read and kept that may count: the newest of each
// signer in the name of the backup's cluster, down to the newest by the signer of the backup.
func TestFewChangesAreRead(t *testing.T) {
	cluster := func(uid string) format.Cluster {
		key, err := format.NewSigningKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return format.Cluster{SystemNamespace: "holdfast", UID: uid, Key: key}
	}
	own, renewed, other := cluster("cluster"), cluster("cluster"), cluster("other")
	strangers := make([]format.Cluster, 2*maxSigners)
	for i := range strangers {
		strangers[i] = cluster("cluster")
	}
	for name, test := range map[string]struct {
		changes []format.Cluster // by number, from 1
		unknown bool
		want    []int64
		reads   int
	}{
		"ours":                       {changes: slices.Repeat([]format.Cluster{own}, 20), want: []int64{20}, reads: 1},
		"by a newer key":             {changes: []format.Cluster{own, own, renewed, renewed}, want: []int64{4, 2}, reads: 3},
		"by a newer key only":        {changes: []format.Cluster{renewed, renewed, renewed}, want: []int64{3}, reads: 3},
		"another cluster's":          {changes: []format.Cluster{own, own, other}, want: []int64{2}, reads: 2},
		"strangers' hide nothing":    {changes: append([]format.Cluster{own}, strangers...), want: []int64{17, 16, 15, 14, 13, 12, 11, 10, 1}, reads: 17},
		"whose nobody knows it is":   {changes: []format.Cluster{own}, unknown: true},
		"none, as with most backups": {},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakeClock(metav1.Now().Time)
			faulty := storetest.NewFaulty(storetest.Memory(t), clock)
			backup := &holdfast.Backup{ObjectMeta: metav1.ObjectMeta{UID: "0c7d5b1e-2f0a-4a57-9d0e-6f6b1a2f3c4d"}}
			backup.Status.Origin = &holdfast.BackupOrigin{ClusterUID: own.UID, PublicKey: own.Key.PublicKey()}
			if test.unknown {
				backup.Status.Origin = &holdfast.BackupOrigin{Trust: holdfast.BackupTrustForeign}
			}
			var keys []string
			for i, by := range test.changes {
				change := format.Expiration{StoreName: "shop.daily", UID: backup.UID, Number: int64(i + 1)}
				content, err := format.EncodeExpiration(change, by)
				if err != nil {
					t.Fatal(err)
				}
				keys = append(keys, format.ExpirationKey(change.StoreName, change.UID, change.Number))
				if err := faulty.Put(t.Context(), keys[i], content); err != nil {
					t.Fatal(err)
				}
			}
			layout := &Layout{Location: "default", SystemNamespace: "holdfast", Clock: clock}
			changes, err := layout.readChanges(t.Context(), faulty, "shop.daily", backup, format.NewestFirst(keys))
			if err != nil {
				t.Fatal(err)
			}
			var got []int64
			for _, change := range changes {
				got = append(got, change.Number)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("kept are %v, want %v", got, test.want)
			}
			if reads := faulty.Count(storetest.Get); reads != test.reads {
				t.Errorf("%d are read, want %d", reads, test.reads)
			}
		})
	}
}
