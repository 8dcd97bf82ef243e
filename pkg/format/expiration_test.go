// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const expiringUID types.UID = "0c7d5b1e-2f0a-4a57-9d0e-6f6b1a2f3c4d"

func aChange() Expiration {
	until := metav1.NewTime(time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC))
	return Expiration{
		StoreName: "shop.daily", UID: expiringUID, Number: 3, Expiration: &until, Requester: "jane", Request: "u/1", Timestamp: metav1.NewTime(now.Truncate(time.Second).UTC()),
		Hold:    &Hold{Requester: "joe", Timestamp: metav1.NewTime(time.Unix(9, 0).UTC()), Reason: "case \"7\" <é>"},
		Deleted: []DeletedVolume{{VolumeID: VolumeID{Namespace: "shop", Name: "data", Repeat: 1}, SnapshotID: "0123", Requester: "jim", Timestamp: metav1.NewTime(time.Unix(8, 0).UTC())}},
	}
}

func TestExpirationRoundTrip(t *testing.T) {
	change := aChange()
	data, err := EncodeExpiration(change, cluster)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeExpiration(data, change.StoreName, change.UID, change.Number)
	if err != nil {
		t.Fatal(err)
	}
	want := change
	want.ClusterUID, want.PublicKey = cluster.UID, cluster.Key.PublicKey()
	for _, instant := range []*metav1.Time{got.Expiration, &got.Timestamp, &got.Hold.Timestamp, &got.Deleted[0].Timestamp} {
		instant.Time = instant.UTC()
	}
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("got %+v, want %+v", *got, want)
	}
}

// What is said of a hold is as its signer wrote it, about this backup and in this place.
func TestExpirationsAreNotMadeUp(t *testing.T) {
	change := aChange()
	data, err := EncodeExpiration(change, cluster)
	if err != nil {
		t.Fatal(err)
	}
	for name, fails := range map[string]func() (*Expiration, error){
		"changed": func() (*Expiration, error) {
			return DecodeExpiration([]byte(strings.Replace(string(data), "2031", "2021", 1)), change.StoreName, change.UID, change.Number)
		},
		"another backup": func() (*Expiration, error) {
			return DecodeExpiration(data, "shop.weekly", change.UID, change.Number)
		},
		"another uid": func() (*Expiration, error) {
			return DecodeExpiration(data, change.StoreName, "1"+change.UID[1:], change.Number)
		},
		"an earlier one under a later number": func() (*Expiration, error) {
			return DecodeExpiration(data, change.StoreName, change.UID, change.Number+1)
		},
		"a backup": func() (*Expiration, error) {
			return DecodeExpiration(signedMetadata(t), change.StoreName, change.UID, change.Number)
		},
		"of another kind": func() (*Expiration, error) {
			return DecodeExpiration(signedAnew(t, data, func(document map[string]any) { document["kind"] = "BackupRemoval" }), change.StoreName, change.UID, change.Number)
		},
		"of another version": func() (*Expiration, error) {
			return DecodeExpiration(signedAnew(t, data, func(document map[string]any) { document["apiVersion"] = "holdfast.io/v2" }), change.StoreName, change.UID, change.Number)
		},
		"with fields of other types": func() (*Expiration, error) {
			return DecodeExpiration(signedAnew(t, data, func(document map[string]any) { document["spec"].(map[string]any)["requester"] = 7 }), change.StoreName, change.UID, change.Number)
		},
		"too long": func() (*Expiration, error) {
			return DecodeExpiration(append(data, make([]byte, MaxExpirationBytes)...), change.StoreName, change.UID, change.Number)
		},
	} {
		if got, err := fails(); err == nil {
			t.Errorf("%s: it says %+v", name, got)
		}
	}
	if backup, err := DecodeBackup(data, Place{StoreName: "shop.daily", SystemNamespace: "holdfast", Now: now}); err == nil {
		t.Errorf("it is read as the backup %+v", backup)
	}
	if _, err := EncodeExpiration(change, Cluster{UID: "c"}); err == nil {
		t.Error("it is written without a signature")
	}
	for _, number := range []int64{0, -1, MaxExpirationNumber + 1} {
		change.Number = number
		if _, err := EncodeExpiration(change, cluster); err == nil {
			t.Errorf("it is written with the number %d", number)
		}
	}
}

func TestExpirationKeys(t *testing.T) {
	for _, storeName := range []string{"a", "shop.daily", "x.expiration-" + string(expiringUID) + "-4.json"} {
		key := ExpirationKey(storeName, expiringUID, 12)
		name, uid, number, ok := ParseExpirationKey(key)
		if !ok || name != storeName || uid != expiringUID || number != 12 {
			t.Errorf("%s is %q, %q, %d, %v", key, name, uid, number, ok)
		}
		if _, isFolder := StoreNameOf(key); isFolder {
			t.Errorf("%s is taken for a folder", key)
		}
	}
	valid := ExpirationKey("a", expiringUID, 1)
	for _, key := range []string{
		"", BackupsPrefix, BackupPrefix("a"), MetadataKey("a"), valid + "/", valid[:len(valid)-5],
		ExpirationKey("a", expiringUID, 0), ExpirationKey("a", expiringUID, MaxExpirationNumber+1), ExpirationKey("a", "uid", 1), ExpirationKey("A/b", expiringUID, 1),
		strings.Replace(valid, "-1.", "-01.", 1),
	} {
		if name, _, _, ok := ParseExpirationKey(key); ok {
			t.Errorf("%q is a change of %q", key, name)
		}
	}
	keys := []string{ExpirationKey("a", expiringUID, 9), ExpirationKey("a", expiringUID, 10), ExpirationKey("a", expiringUID, 2)}
	if got, want := NewestFirst(keys), []string{keys[1], keys[0], keys[2]}; !slices.Equal(got, want) {
		t.Errorf("in the order %q", got)
	}
}

// A change that is as long as one may be is read, and a longer one is not written.
func TestExpirationsHaveALength(t *testing.T) {
	change := aChange()
	data, err := EncodeExpiration(change, cluster)
	if err != nil {
		t.Fatal(err)
	}
	change.Requester += strings.Repeat("x", MaxExpirationBytes-len(data))
	if data, err = EncodeExpiration(change, cluster); err != nil || len(data) != MaxExpirationBytes {
		t.Fatalf("%d bytes: %v", len(data), err)
	}
	if _, err := DecodeExpiration(data, change.StoreName, change.UID, change.Number); err != nil {
		t.Error(err)
	}
	if _, err := DecodeExpiration(append(data, '\n'), change.StoreName, change.UID, change.Number); err == nil {
		t.Error("a longer one is read")
	}
	change.Requester += "x"
	if _, err := EncodeExpiration(change, cluster); err == nil {
		t.Error("a longer one is written")
	}
}

// The greatest number counts, wherever it stands, and only among those that are believed.
func TestNewest(t *testing.T) {
	changes := []Expiration{{Number: 2, ClusterUID: "us"}, {Number: 4, ClusterUID: "us"}, {Number: 10, ClusterUID: "them"}, {Number: 3, ClusterUID: "us"}}
	for cluster, want := range map[string]*Expiration{"us": &changes[1], "them": &changes[2], "nobody": nil} {
		if got := Newest(changes, func(c *Expiration) bool { return c.ClusterUID == cluster }); got != want {
			t.Errorf("of %s: %+v, not %+v", cluster, got, want)
		}
	}
}
