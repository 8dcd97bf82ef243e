// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh

import (
	"bytes"
	"crypto/rand"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
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
			backup := &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{UID: "0c7d5b1e-2f0a-4a57-9d0e-6f6b1a2f3c4d"}}
			backup.Status.Origin = &v1alpha1.BackupOrigin{ClusterUID: own.UID, PublicKey: own.Key.PublicKey()}
			if test.unknown {
				backup.Status.Origin = &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustForeign}
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
			layout := &VeleroLayout{Location: "default", SystemNamespace: "holdfast", Clock: clock}
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

// TestDigestsOfWhatIsSigned: what metadata says of the other files is known of it only as far as
// it was signed.
func TestDigestsOfWhatIsSigned(t *testing.T) {
	key, err := format.NewSigningKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	at := metav1.Unix(1_700_000_000, 0)
	contents := format.Contents{}
	for _, of := range []string{format.LogKey("b"), format.ResultsKey("b"), format.ManifestKey("b")} {
		contents.Set(of, format.NewContent([]byte(of)))
	}
	of := func(key string) string { return format.NewContent([]byte(key)).SHA256 }
	all := catalog.Digests{Log: of(format.LogKey("b")), Results: of(format.ResultsKey("b")), Manifest: of(format.ManifestKey("b"))}
	for name, test := range map[string]struct {
		key      *format.SigningKey
		contents format.Contents
		change   string
		want     catalog.Digests
	}{
		"signed":                      {key: key, contents: contents, want: all},
		"signed, with a log after it": {key: key, contents: format.Contents{"manifest.json.gz": contents["manifest.json.gz"]}, want: catalog.Digests{Manifest: all.Manifest}},
		"signed, without any":         {key: key},
		"changed":                     {key: key, contents: contents, change: "changed"},
		"not signed":                  {contents: contents},
	} {
		backup := &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: "b", UID: "uid", CreationTimestamp: at}}
		backup.Status = v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseFailed, FailureReason: "original", StartTimestamp: &at, CompletionTimestamp: &at}
		metadata, err := format.EncodeBackup(backup, test.contents, format.Cluster{SystemNamespace: "holdfast", UID: "cluster", Key: test.key})
		if err != nil {
			t.Fatal(err)
		}
		if test.change != "" {
			metadata = bytes.ReplaceAll(metadata, []byte("original"), []byte(test.change))
		}
		from := storetest.Memory(t)
		if err := from.Put(t.Context(), format.MetadataKey("b"), metadata); err != nil {
			t.Fatal(err)
		}
		l := &VeleroLayout{Location: "default", SystemNamespace: "holdfast", Clock: clocktesting.NewFakeClock(at.Time)}
		got, err := l.Read(t.Context(), from, "b", KnownEntry{Beside: func(types.UID) []string { return nil }})
		if err != nil || got.Digests != test.want {
			t.Errorf("%s: got %+v, %v", name, got.Digests, err)
		}
	}
}
