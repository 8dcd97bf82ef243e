// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/identity"
)

// from makes a backup, with one volume, that says that it comes from somewhere.
func from(storeName string, change func(*v1alpha1.BackupOrigin)) Content {
	content := Content{Backup: stored("default", storeName, 5), Volumes: []Volume{claim("shop", "data", 1, 5)}}
	change(content.Backup.Status.Origin)
	return content
}

func ofTheirs(origin *v1alpha1.BackupOrigin) {
	origin.ClusterUID, origin.PublicKey = "their-cluster", "their-key"
}

func trusting(namespaces ...string) map[string][]enginev1alpha1.TrustedCluster {
	return map[string][]enginev1alpha1.TrustedCluster{"default": {{Name: "old", UID: "their-cluster", PublicKey: "their-key", Namespaces: namespaces}}}
}

// lists is everything that is listed.
func lists(c *Catalog) string {
	return names(c.Backups()) + "; " + names(c.Volumes()) + "; " + names(c.VolumeBackups())
}

const (
	athome    = "shop/daily; shop/data; shop/shop.daily:data"
	displaced = "holdfast/shop.daily; holdfast/data@shop; holdfast/shop.daily:data@shop"
)

func TestWhereABackupIsListed(t *testing.T) {
	for name, test := range map[string]struct {
		claims     func(*v1alpha1.BackupOrigin)
		namespaces map[string]types.UID
		clusters   map[string][]enginev1alpha1.TrustedCluster
		want       string
		trust      v1alpha1.BackupTrust
		message    string
	}{
		"our own, its namespace exists": {
			claims: func(*v1alpha1.BackupOrigin) {}, namespaces: map[string]types.UID{"shop": "uid-of-shop"},
			want: athome, trust: v1alpha1.BackupTrustOwn,
		},
		"our own, its namespace is gone": {
			claims: func(*v1alpha1.BackupOrigin) {}, namespaces: map[string]types.UID{"blog": "uid-of-shop"},
			want: athome, trust: v1alpha1.BackupTrustOwn,
		},
		"our own, its namespace was made anew": {
			claims: func(*v1alpha1.BackupOrigin) {}, namespaces: map[string]types.UID{"shop": "another"},
			want: displaced, trust: v1alpha1.BackupTrustOwn, message: "was made anew",
		},
		"our own, without the uid of its namespace": {
			claims: func(o *v1alpha1.BackupOrigin) { o.NamespaceUID = "" }, namespaces: map[string]types.UID{"shop": "uid-of-shop"},
			want: "holdfast/shop.daily; shop/data; shop/another-e6f95e03e7955a8382d1:data", trust: v1alpha1.BackupTrustOwn, message: "was made anew",
		},
		"our own, made anew and adopted": {
			claims: func(*v1alpha1.BackupOrigin) {}, namespaces: map[string]types.UID{"shop": "another"},
			clusters: map[string][]enginev1alpha1.TrustedCluster{"default": {{Name: "self", UID: ours.UID, PublicKey: ours.Keys[0], Namespaces: []string{"shop"}}}},
			want:     athome, trust: v1alpha1.BackupTrustOwn,
		},
		"our own, another namespace adopted": {
			claims: func(*v1alpha1.BackupOrigin) {}, namespaces: map[string]types.UID{"shop": "another"},
			clusters: map[string][]enginev1alpha1.TrustedCluster{"default": {{Name: "self", UID: ours.UID, PublicKey: ours.Keys[0], Namespaces: []string{"blog"}}}},
			want:     displaced, trust: v1alpha1.BackupTrustOwn,
		},
		"theirs, unknown": {
			claims: ofTheirs, want: displaced, trust: v1alpha1.BackupTrustForeign, message: "their-cluster",
		},
		"theirs, trusted": {
			claims: ofTheirs, namespaces: map[string]types.UID{"shop": "another"}, clusters: trusting(),
			want: athome, trust: v1alpha1.BackupTrustTrusted,
		},
		"theirs, trusted for the namespace": {
			claims: ofTheirs, clusters: trusting("blog", "shop"), want: athome, trust: v1alpha1.BackupTrustTrusted,
		},
		"theirs, trusted for another namespace": {
			claims: ofTheirs, clusters: trusting("blog"), want: displaced, trust: v1alpha1.BackupTrustTrusted, message: `does not trust the cluster "old" for the namespace "shop"`,
		},
		"theirs, trusted by another location": {
			claims: ofTheirs, clusters: map[string][]enginev1alpha1.TrustedCluster{"other": trusting()["default"]},
			want: displaced, trust: v1alpha1.BackupTrustForeign,
		},
		"not signed": {
			claims: func(o *v1alpha1.BackupOrigin) { o.Trust, o.Message = v1alpha1.BackupTrustForeign, "not signed" }, clusters: trusting(),
			want: displaced, trust: v1alpha1.BackupTrustForeign, message: "not signed",
		},
		"changed": {
			claims: func(o *v1alpha1.BackupOrigin) { o.Trust, o.Message = v1alpha1.BackupTrustForged, "changed" },
			want:   displaced, trust: v1alpha1.BackupTrustForged, message: "changed",
		},
		"in our name, with another key": {
			claims: func(o *v1alpha1.BackupOrigin) { o.PublicKey = "mallory" }, want: displaced, trust: v1alpha1.BackupTrustUnknownKey, message: "add it as a line to public-keys in the ConfigMap holdfast-identity",
		},
		"in our name, with the key of a trusted cluster": {
			claims: func(o *v1alpha1.BackupOrigin) { o.PublicKey = "their-key" }, clusters: trusting(),
			want: displaced, trust: v1alpha1.BackupTrustForged,
		},
		"in their name, with another key": {
			claims:   func(o *v1alpha1.BackupOrigin) { ofTheirs(o); o.PublicKey = "mallory" },
			clusters: trusting(), want: displaced, trust: v1alpha1.BackupTrustUnknownKey, message: "name it in spec.trustedClusters",
		},
		"in their name, with our key": {
			claims: func(o *v1alpha1.BackupOrigin) { o.ClusterUID = "their-cluster" }, clusters: trusting(),
			want: displaced, trust: v1alpha1.BackupTrustForged,
		},
		"in nobody's name": {
			claims: func(o *v1alpha1.BackupOrigin) { o.ClusterUID = "" }, want: displaced, trust: v1alpha1.BackupTrustForeign,
		},
		"our own, the folder of another name": {
			claims: func(o *v1alpha1.BackupOrigin) { o.Namespace = "blog" },
			want:   "holdfast/shop.daily; shop/data; shop/another-e6f95e03e7955a8382d1:data", trust: v1alpha1.BackupTrustOwn,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, m := newMirror(t)
			if test.namespaces != nil {
				c.SetNamespaces(test.namespaces)
			}
			c.SetTrustedClusters(test.clusters)
			c.Put("default", "shop.daily", from("shop.daily", test.claims), t0)
			m.check(c)
			want(t, "listed", lists(c), test.want)
			status := c.Backups()[0].Status
			want(t, "trust", string(status.Origin.Trust), string(test.trust))
			if (test.message == "") != (status.Origin.Message == "") && test.message != "" || !strings.Contains(status.Origin.Message, test.message) {
				t.Errorf("the message is %q, want %q", status.Origin.Message, test.message)
			}
			believed := test.trust == v1alpha1.BackupTrustOwn || test.trust == v1alpha1.BackupTrustTrusted
			want(t, "claimed requester", status.Origin.ClaimedRequester, "alice")
			if (status.Requester == "alice") != believed || !believed && status.Requester != "" {
				t.Errorf("a backup that is %s is said to be asked for by %q", test.trust, status.Requester)
			}
		})
	}
}

// Before it is known who this cluster is, and which namespaces there are, nothing is
// listed where a tenant sees it.
func TestNothingIsTrustedAtFirst(t *testing.T) {
	c := New(system, nil)
	c.Put("default", "shop.daily", from("shop.daily", func(*v1alpha1.BackupOrigin) {}), t0)
	want(t, "at first", lists(c), displaced)
	c.SetNamespace("shop", "uid-of-shop")
	c.SetIdentity(ours)
	want(t, "without the namespaces", lists(c), displaced)
	c.SetNamespaces(map[string]types.UID{"shop": "uid-of-shop"})
	want(t, "with all", lists(c), athome)
	c.SetIdentity(identity.Identity{})
	want(t, "without an identity", lists(c), displaced)
	c.SetIdentity(identity.Identity{UID: ours.UID, Keys: []string{"new", ours.Keys[0]}})
	want(t, "with a new key beside the old one", lists(c), athome)
}

// What could not be read says nothing of its origin: no change of trust moves it.
func TestTrustIsNothingToTheUnreadable(t *testing.T) {
	c, m := newMirror(t)
	c.PutUnreadable("default", "shop.daily", "it is not JSON", t0)
	c.PutUnfinished("default", "shop.running", t0, t0)
	before := c.Backup(system, "shop.daily")
	c.SetIdentity(identity.Identity{UID: "another"})
	c.SetNamespaces(map[string]types.UID{"shop": "uid-of-shop"})
	c.SetNamespace("shop", "another")
	c.SetTrustedClusters(trusting("shop"))
	m.check(c)
	want(t, "listed", lists(c), "holdfast/shop.daily; ; ")
	if c.Backup(system, "shop.daily") != before || m.calls != 1 {
		t.Errorf("%d changes, want that of its reading", m.calls)
	}
}

// A watcher sees a row go in one namespace, and come in the other.
func TestRowsMoveWithTheirNamespace(t *testing.T) {
	var seen []string
	c := newCatalog(func(changes Changes) {
		for _, name := range changes.Backups.Gone {
			seen = append(seen, "-"+name.String())
		}
		for _, backup := range changes.Backups.Set {
			seen = append(seen, "+"+backup.Namespace+"/"+backup.Name)
		}
	})
	c.SetNamespaces(map[string]types.UID{"shop": "uid-of-shop", "blog": "uid-of-blog"})
	c.Put("default", "shop.daily", from("shop.daily", func(*v1alpha1.BackupOrigin) {}), t0)
	c.SetNamespace("shop", "")
	c.SetNamespace("blog", "another")
	c.SetNamespace("shop", "another")
	c.SetNamespace("shop", "another")
	want(t, "made anew", lists(c), displaced)
	c.SetNamespace("shop", "")
	want(t, "removed once more", lists(c), athome)
	want(t, "events", strings.Join(seen, " "), "+shop/daily -shop/daily +holdfast/shop.daily -holdfast/shop.daily +shop/daily")
}

// A namespace that a restore has made anew gets back what the one before had, in whatever order
// that becomes known; the next one of its name that somebody else makes gets nothing.
func TestASuccessorGetsTheHistory(t *testing.T) {
	of := func(stored ...identity.Succession) identity.Successions {
		published := &corev1.ConfigMap{}
		if _, err := identity.Succeed(published, stored...); err != nil {
			t.Fatal(err)
		}
		return identity.SuccessionsOf(published)
	}
	once := of(identity.Succession{Namespace: "shop", Former: "uid-of-shop", UID: "second"})
	twice := of(identity.Succession{Namespace: "shop", Former: "uid-of-shop", UID: "second"}, identity.Succession{Namespace: "shop", Former: "second", UID: "third"})
	for _, namespaceFirst := range []bool{true, false} {
		c, m := newMirror(t)
		c.SetNamespaces(map[string]types.UID{"shop": "uid-of-shop"})
		c.Put("default", "shop.daily", from("shop.daily", func(*v1alpha1.BackupOrigin) {}), t0)
		c.SetNamespace("shop", "")
		succeed := func(uid types.UID, successions identity.Successions) {
			t.Helper()
			steps := []func(){func() { c.SetNamespace("shop", uid) }, func() { c.SetSuccessions(successions) }}
			if !namespaceFirst {
				slices.Reverse(steps)
			}
			for _, step := range steps {
				step()
				m.check(c)
			}
		}
		succeed("second", once)
		want(t, "its successor", lists(c), athome)
		c.Put("default", "shop.next", from("shop.next", func(o *v1alpha1.BackupOrigin) { o.NamespaceUID = "second" }), t0)
		succeed("third", twice)
		want(t, "after the second loss", names(c.Backups()), "shop/daily shop/next")
		c.SetNamespace("shop", "made-by-hand")
		m.check(c)
		want(t, "made by hand", names(c.Backups()), "holdfast/shop.daily holdfast/shop.next")
		c.SetSuccessions(of(identity.Succession{Namespace: "shop", Former: "another", UID: "made-by-hand"}, identity.Succession{Namespace: "blog", Former: "uid-of-shop", UID: "made-by-hand"}))
		m.check(c)
		want(t, "of another line, and another name", names(c.Backups()), "holdfast/shop.daily holdfast/shop.next")
	}
}

// A backup of many namespaces is the administrator's; each volume goes its own way.
func TestVolumesFollowTheirOwnNamespaces(t *testing.T) {
	c, m := newMirror(t)
	c.SetNamespaces(map[string]types.UID{"shop": "uid-of-shop", "blog": "another", system: "another"})
	c.Put("default", "all", Content{Backup: stored("default", "all", 5), Volumes: []Volume{
		claim("shop", "data", 1, 5), claim("blog", "data", 2, 5), claim("gone", "data", 3, 5), claim(system, "data", 4, 5),
	}}, t0)
	m.check(c)
	want(t, "volumes", names(c.Volumes()), "gone/data holdfast/data@blog holdfast/data@holdfast shop/data")
	c.SetNamespace(system, types.UID("uid-of-"+system))
	c.SetNamespace("blog", "uid-of-blog")
	c.SetNamespace("shop", "another")
	m.check(c)
	want(t, "volumes", names(c.Volumes()), "blog/data gone/data holdfast/data holdfast/data@shop")
	c.SetSuccessions(identity.Successions{"shop": {{"uid-of-shop", "another"}}})
	m.check(c)
	want(t, "volumes of a successor", names(c.Volumes()), "blog/data gone/data holdfast/data shop/data")
	c.SetSuccessions(nil)
	m.check(c)
	want(t, "history", names(c.VolumeBackups()), "blog/another-1305e63b7b9e573fb332:data gone/another-1305e63b7b9e573fb332:data holdfast/all:data holdfast/all:data@shop")
}

// The system namespace of a cluster that is trusted is not this one's.
func TestTheirSystemNamespaceIsNotOurs(t *testing.T) {
	c, m := newMirror(t)
	c.SetTrustedClusters(trusting())
	content := Content{Backup: stored("default", "all", 5), Volumes: []Volume{claim("shop", "data", 1, 5), claim(system, "data", 2, 5)}}
	ofTheirs(content.Backup.Status.Origin)
	c.Put("default", "all", content, t0)
	m.check(c)
	want(t, "volumes", names(c.Volumes()), "holdfast/data@holdfast shop/data")
}

// The loss of a cluster: another one, with another uid and key, gets the store. One
// change of the location gives all of it back.
func TestALostClusterIsAdopted(t *testing.T) {
	c, m := newMirror(t)
	var storeNames []string
	for i := range 20 {
		storeName := fmt.Sprintf("tenant-%d.daily", i)
		storeNames = append(storeNames, storeName)
		content := Content{Backup: stored("default", storeName, 5), Volumes: []Volume{claim(fmt.Sprintf("tenant-%d", i), "data", 1, 5)}}
		ofTheirs(content.Backup.Status.Origin)
		c.Put("default", storeName, content, t0)
	}
	c.SetNamespaces(map[string]types.UID{"tenant-7": "uid-in-this-cluster"})
	for _, backup := range c.Backups() {
		want(t, "before", backup.Namespace, system)
	}
	c.SetTrustedClusters(trusting())
	m.check(c)
	for _, storeName := range storeNames {
		namespace := strings.TrimSuffix(storeName, ".daily")
		if backup := c.Backup(namespace, "daily"); backup == nil || backup.Status.Origin.Cluster != "old" || backup.Status.Requester != "alice" {
			t.Errorf("%s: %+v", storeName, backup)
		}
	}
	if listed := len(c.Backups()); listed != 20 {
		t.Errorf("%d backups", listed)
	}
	c.SetTrustedClusters(nil)
	m.check(c)
	for _, backup := range c.Backups() {
		want(t, "when the trust is taken back", backup.Namespace, system)
	}
}

// Whoever writes to a store takes no name from what is known to be this cluster's.
func TestForeignersTakeNoNames(t *testing.T) {
	c, m := newMirror(t)
	c.Put("b", "daily", Content{Backup: stored("b", "daily", 5)}, t0)
	forged := Content{Backup: stored("a", "daily", 5)}
	forged.Backup.Status.Origin.Trust = v1alpha1.BackupTrustForeign
	c.Put("a", "daily", forged, t0)
	m.check(c)
	want(t, "of the plain name", c.Backup(system, "daily").Spec.StorageLocation, "b")
	want(t, "backups", names(c.Backups()), "holdfast/daily holdfast/daily@a")

	// Nor does a cluster that is trusted; but it goes before those that are not.
	c.SetTrustedClusters(map[string][]enginev1alpha1.TrustedCluster{"a-trusted": trusting()["default"], "c": trusting()["default"]})
	c.PutUnreadable("a-bad", "daily", "it is not JSON", t0)
	for _, location := range []string{"a-trusted", "c"} {
		theirs := Content{Backup: stored(location, "daily", 5)}
		ofTheirs(theirs.Backup.Status.Origin)
		c.Put(location, "daily", theirs, t0)
	}
	m.check(c)
	want(t, "of the plain name", c.Backup(system, "daily").Spec.StorageLocation, "b")
	c.Forget("b")
	c.Forget("a-trusted")
	m.check(c)
	want(t, "of the plain name, without ours", c.Backup(system, "daily").Spec.StorageLocation, "c")
	c.SetTrustedClusters(nil)
	m.check(c)
	want(t, "of the plain name, without trust", c.Backup(system, "daily").Spec.StorageLocation, "a")
}

// Where something is listed depends on what is known now, and not on what was known
// before: after a restart it is the same.
func TestARestartListsTheSame(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c, m := newMirror(t)
		own, clusters := ours, map[string][]enginev1alpha1.TrustedCluster(nil)
		namespaces := map[string]types.UID{}
		var successions identity.Successions
		contents := map[place]Content{}
		name := rapid.SampledFrom([]string{"shop", "blog", system})
		uid := rapid.SampledFrom([]string{"uid-of-shop", "uid-of-blog", "uid-of-holdfast", "another"})
		signer := rapid.SampledFrom([]string{"our", "their"})
		trusted := rapid.Custom(func(rt *rapid.T) enginev1alpha1.TrustedCluster {
			return enginev1alpha1.TrustedCluster{
				Name: "x", UID: signer.Draw(rt, "uid") + "-cluster", PublicKey: signer.Draw(rt, "key") + "-key",
				Namespaces: rapid.SliceOfNDistinct(name, 0, 2, rapid.ID[string]).Draw(rt, "namespaces"),
			}
		})
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				p := place{rapid.SampledFrom([]string{"one", "two"}).Draw(rt, "location"), rapid.SampledFrom([]string{"a", "shop.a", "blog.a"}).Draw(rt, "name")}
				content := Content{Backup: stored(p.location, p.storeName, 5)}
				content.Backup.UID += types.UID("-in-" + p.location) // which no copy of a store has
				origin := content.Backup.Status.Origin
				origin.ClusterUID, origin.PublicKey = signer.Draw(rt, "cluster")+"-cluster", signer.Draw(rt, "key")+"-key"
				origin.Trust = rapid.SampledFrom([]v1alpha1.BackupTrust{"", "", "", v1alpha1.BackupTrustForeign, v1alpha1.BackupTrustForged}).Draw(rt, "trust")
				for _, namespace := range rapid.SliceOfN(name, 0, 3).Draw(rt, "volumes") {
					content.Volumes = append(content.Volumes, claim(namespace, "data", int64(len(content.Volumes)), 5))
				}
				c.Put(p.location, p.storeName, content, t0)
				contents[p] = content
			},
			"identity": func(rt *rapid.T) {
				own = rapid.SampledFrom([]identity.Identity{{}, ours, {UID: ours.UID, Keys: []string{"their-key"}}}).Draw(rt, "identity")
				c.SetIdentity(own)
			},
			"namespace": func(rt *rapid.T) {
				name, uid := name.Draw(rt, "name"), types.UID(uid.Draw(rt, "uid"))
				if rapid.Bool().Draw(rt, "gone") {
					delete(namespaces, name)
					c.SetNamespace(name, "")
					return
				}
				namespaces[name] = uid
				c.SetNamespace(name, uid)
			},
			"successions": func(rt *rapid.T) {
				line := rapid.Map(rapid.SliceOfNDistinct(uid, 2, 2, rapid.ID[string]), func(of []string) [][]types.UID {
					return [][]types.UID{{types.UID(of[0]), types.UID(of[1])}}
				})
				successions = identity.Successions(rapid.MapOfN(name, line, 0, 2).Draw(rt, "successions"))
				c.SetSuccessions(successions)
			},
			"clusters": func(rt *rapid.T) {
				clusters = rapid.MapOfN(rapid.SampledFrom([]string{"one", "two"}), rapid.SliceOfN(trusted, 0, 2), 0, 2).Draw(rt, "clusters")
				c.SetTrustedClusters(clusters)
			},
			"": func(rt *rapid.T) {
				m.check(c)
				if t.Failed() {
					rt.FailNow()
				}
				restarted := New(system, nil)
				restarted.SetIdentity(own)
				restarted.SetSuccessions(successions)
				restarted.SetNamespaces(namespaces)
				restarted.SetTrustedClusters(clusters)
				for p, content := range contents {
					restarted.Put(p.location, p.storeName, content, t0)
				}
				if diff := cmp.Diff(summary(restarted), summary(c)); diff != "" {
					rt.Fatalf("after a restart (-) and before (+):\n%s", diff)
				}
				// What tenants see is signed by a cluster that may show it there.
				for _, backup := range c.Backups() {
					origin := backup.Status.Origin
					if backup.Namespace == system {
						continue
					}
					ours := origin.ClusterUID == own.UID && slices.Contains(own.Keys, origin.PublicKey)
					present, exists := namespaces[backup.Namespace]
					granted := slices.ContainsFunc(clusters[backup.Spec.StorageLocation], func(cluster enginev1alpha1.TrustedCluster) bool {
						return cluster.UID == origin.ClusterUID && cluster.PublicKey == origin.PublicKey &&
							(len(cluster.Namespaces) == 0 || slices.Contains(cluster.Namespaces, backup.Namespace))
					})
					if origin.Trust != v1alpha1.BackupTrustOwn && origin.Trust != v1alpha1.BackupTrustTrusted ||
						!granted && !(ours && (!exists || successions.Same(backup.Namespace, present, origin.NamespaceUID))) {
						rt.Fatalf("%s/%s is listed, of %+v, with %v and %v", backup.Namespace, backup.Name, origin, slices.Sorted(maps.Keys(namespaces)), clusters)
					}
				}
			},
		})
	})
}
