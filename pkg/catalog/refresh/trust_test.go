// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"bytes"
	"crypto/sha256"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// madeBy is a cluster with a key of its own.
func madeBy(t testing.TB, name string) format.Cluster {
	t.Helper()
	seed := sha256.Sum256([]byte(name))
	key, err := format.ParseSigningKey(seed[:])
	if err != nil {
		t.Fatal(err)
	}
	return format.Cluster{SystemNamespace: system, UID: "uid-of-" + name, Key: key}
}

// storeBy writes the backup daily of the namespace shop, with one volume.
func (f *fixture) storeBy(cluster format.Cluster) { f.storeDaily(cluster, true) }

// storeWithout writes it without a list of volumes.
func (f *fixture) storeWithout(cluster format.Cluster) { f.storeDaily(cluster, false) }

func (f *fixture) storeDaily(cluster format.Cluster, listed bool) {
	f.t.Helper()
	f.location("default")
	ended := metav1.NewTime(time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC))
	backup := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "daily", UID: "uid-of-daily", CreationTimestamp: ended},
		Status: v1alpha1.BackupStatus{
			Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &ended, CompletionTimestamp: &ended, Requester: "alice",
			Origin: &v1alpha1.BackupOrigin{NamespaceUID: "uid-of-shop"},
		},
	}
	var volumes bytes.Buffer
	if err := format.WritePodVolumeBackups(&volumes, []format.PodVolumeBackup{format.NewPodVolumeBackup(backup, "shop.daily", format.Volume{
		Pod: enginev1alpha1.PodReference{Namespace: "shop", Name: "web"}, NamespaceUID: "uid-of-shop", Name: "data", ClaimName: "data",
		Status: enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s"},
	})}); err != nil {
		f.t.Fatal(err)
	}
	contents := format.Contents{}
	if listed {
		contents.Set(format.PodVolumeBackupsKey("shop.daily"), format.NewContent(volumes.Bytes()))
		f.write("default", format.PodVolumeBackupsKey("shop.daily"), volumes.Bytes())
	}
	metadata, err := format.EncodeBackup(backup, contents, cluster)
	if err != nil {
		f.t.Fatal(err)
	}
	f.write("default", format.MetadataKey("shop.daily"), metadata)
}

// knows makes the catalogue that of a cluster.
func (f *fixture) knows(cluster format.Cluster) {
	f.catalog.SetIdentity(identity.Identity{UID: cluster.UID, Keys: []string{cluster.Key.PublicKey()}})
	f.catalog.SetNamespaces(map[string]types.UID{"shop": "uid-of-shop"})
}

// listed is where the backup and its volumes are listed.
func (f *fixture) listed() string {
	f.t.Helper()
	var names []string
	for _, backup := range f.catalog.Backups() {
		names = append(names, backup.Namespace+"/"+backup.Name+" "+string(backup.Status.Origin.Trust))
	}
	for _, volume := range f.catalog.VolumeBackups() {
		names = append(names, volume.Namespace+"/"+volume.Name)
	}
	return strings.Join(names, " ")
}

// Verification asks nothing of the store that is not read anyway, and a change of what
// is trusted asks nothing at all.
func TestTrustCostsNoRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refresh.Options{})
		theirs := madeBy(t, "theirs")
		f.storeBy(theirs)
		f.knows(madeBy(t, "ours"))
		f.reset()
		f.run()
		f.setLocations("default")
		settle()
		want := func(what, want string) {
			t.Helper()
			if got := f.listed(); got != want {
				t.Errorf("%s: listed %q, want %q", what, got, want)
			}
			f.wantRequests("default", map[storetest.Operation]int{storetest.List: 1, storetest.Get: 2})
		}
		want("a stranger's", "holdfast/shop.daily Foreign holdfast/shop.daily:data@shop")
		f.catalog.SetTrustedClusters(map[string][]enginev1alpha1.TrustedCluster{"default": {{Name: "lost", UID: theirs.UID, PublicKey: theirs.Key.PublicKey()}}})
		want("a trusted cluster's", "shop/daily Trusted shop/shop.daily:data")
		f.catalog.SetTrustedClusters(nil)
		f.knows(theirs)
		want("our own", "shop/daily Own shop/shop.daily:data")
	})
}

// Whoever writes to the store can neither take over another cluster's backup nor change
// one unnoticed.
func TestForgeriesAreSeen(t *testing.T) {
	ours := madeBy(t, "ours")
	mallory := madeBy(t, "mallory")
	inOurName := mallory
	inOurName.UID = ours.UID
	for name, test := range map[string]struct {
		forge func(f *fixture)
		want  string
	}{
		"by a cluster of their own": {func(f *fixture) { f.storeBy(mallory) }, "holdfast/shop.daily Foreign holdfast/shop.daily:data@shop"},
		"in our name":               {func(f *fixture) { f.storeBy(inOurName) }, "holdfast/shop.daily UnknownKey holdfast/shop.daily:data@shop"},
		"without a signature": {func(f *fixture) {
			f.storeBy(format.Cluster{SystemNamespace: system, UID: ours.UID})
		}, "holdfast/shop.daily Foreign holdfast/shop.daily:data@shop"},
		"changed": {func(f *fixture) {
			f.storeBy(ours)
			metadata := f.content("default", format.MetadataKey("shop.daily"))
			f.write("default", format.MetadataKey("shop.daily"), bytes.Replace(metadata, []byte("alice"), []byte("admin"), 1))
		}, "holdfast/shop.daily Forged holdfast/shop.daily:data@shop"},
		"a list of volumes that nobody has signed": {func(f *fixture) {
			f.storeBy(ours)
			list := f.content("default", format.PodVolumeBackupsKey("shop.daily"))
			f.removeObject("default", format.PodVolumeBackupsKey("shop.daily"))
			f.storeWithout(ours)
			f.write("default", format.PodVolumeBackupsKey("shop.daily"), list)
		}, "shop/daily Own"},
		"of volumes": {func(f *fixture) {
			f.storeBy(ours)
			var other bytes.Buffer
			if err := format.WritePodVolumeBackups(&other, nil); err != nil {
				t.Fatal(err)
			}
			f.write("default", format.PodVolumeBackupsKey("shop.daily"), other.Bytes())
		}, "shop/daily Own"},
		"of volumes, by what follows": {func(f *fixture) {
			f.storeBy(ours)
			list := f.content("default", format.PodVolumeBackupsKey("shop.daily"))
			f.write("default", format.PodVolumeBackupsKey("shop.daily"), append(list, list...))
		}, "shop/daily Own"},
		"of volumes, by leaving them out": {func(f *fixture) {
			f.storeBy(ours)
			f.removeObject("default", format.PodVolumeBackupsKey("shop.daily"))
		}, "shop/daily Own"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, refresh.Options{})
				test.forge(f)
				f.knows(ours)
				f.run()
				f.setLocations("default")
				settle()
				if got := f.listed(); got != test.want {
					t.Errorf("listed %q, want %q", got, test.want)
				}
				unreadable := f.catalog.Backups()[0].Status.Phase == v1alpha1.BackupPhaseUnreadable
				if unreadable != strings.HasPrefix(name, "of volumes") {
					t.Errorf("its phase is %s", f.catalog.Backups()[0].Status.Phase)
				}
				for key := range f.catalog.Backups()[0].Annotations {
					if strings.HasPrefix(key, format.AnnotationPrefix) {
						t.Errorf("people are shown %s", key)
					}
				}
			})
		})
	}
}
