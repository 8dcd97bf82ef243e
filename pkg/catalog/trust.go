// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"maps"
	"slices"
	"unique"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
)

// trust decides where backups are listed; by default in the system namespace.
type trust struct {
	identity identity.Identity
	// namespaces are the existing ones; nil while unknown.
	namespaces  map[string]types.UID
	successions identity.Successions
	clusters    map[string][]enginev1alpha1.TrustedCluster
	damage      map[string]*enginev1alpha1.RepositoryDamage
}

type verdict struct {
	trust   v1alpha1.BackupTrust
	message string
	// own is for this cluster; grants are the location's for the signer.
	own    bool
	grants []enginev1alpha1.TrustedCluster
}

// SetIdentity sets this cluster's identity.
func (c *Catalog) SetIdentity(own identity.Identity) {
	if c.setTrust(func(t *trust) bool {
		same := equality.Semantic.DeepEqual(t.identity, own)
		t.identity = own
		return !same
	}) {
		c.replace(func(*entry) bool { return true })
		c.readLeftOut(func(string) bool { return true })
	}
}

// SetTrustedClusters sets the trusted clusters by location, and reports a change.
func (c *Catalog) SetTrustedClusters(clusters map[string][]enginev1alpha1.TrustedCluster) bool {
	var before map[string][]enginev1alpha1.TrustedCluster
	changed := c.setTrust(func(t *trust) bool {
		before, t.clusters = t.clusters, maps.Clone(clusters)
		return !equality.Semantic.DeepEqual(before, clusters)
	})
	if changed {
		differs := func(location string) bool { return !equality.Semantic.DeepEqual(before[location], clusters[location]) }
		c.replace(func(e *entry) bool { return differs(e.location) })
		c.readLeftOut(differs)
	}
	return changed
}

// SetNamespaces sets all existing namespaces.
func (c *Catalog) SetNamespaces(namespaces map[string]types.UID) {
	c.setTrust(func(t *trust) bool {
		t.namespaces = maps.Clone(namespaces)
		return true
	})
	c.replace(func(*entry) bool { return true })
}

// SetNamespace sets a namespace's uid; an empty one removes it. It does nothing before SetNamespaces.
func (c *Catalog) SetNamespace(name string, uid types.UID) {
	if c.setTrust(func(t *trust) bool {
		if t.namespaces == nil || t.namespaces[name] == uid {
			return false
		}
		if uid == "" {
			delete(t.namespaces, name)
		} else {
			t.namespaces[name] = uid
		}
		return true
	}) {
		c.replace(func(e *entry) bool {
			return e.claims.Namespace == name || e.isOf(map[string]bool{name: true})
		})
	}
}

// SetSuccessions sets which namespaces continue others of their names.
func (c *Catalog) SetSuccessions(successions identity.Successions) {
	changed := map[string]bool{}
	c.setTrust(func(t *trust) bool {
		for _, of := range []identity.Successions{t.successions, successions} {
			for name := range of {
				changed[name] = !equality.Semantic.DeepEqual(t.successions[name], successions[name])
			}
		}
		t.successions = successions
		return true
	})
	maps.DeleteFunc(changed, func(_ string, is bool) bool { return !is })
	if len(changed) > 0 {
		c.replace(func(e *entry) bool { return changed[e.claims.Namespace] || e.isOf(changed) })
	}
}

func (c *Catalog) setTrust(set func(*trust) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return set(&c.trust)
}

// replace moves entries to their present place, one by one for short locks.
func (c *Catalog) replace(concerned func(*entry) bool) {
	c.mu.RLock()
	var entries []*entry
	for _, of := range c.locations {
		for _, e := range of {
			if e.backup != nil && e.claims != nil && concerned(e) {
				entries = append(entries, e)
			}
		}
	}
	c.mu.RUnlock()
	c.relist(entries)
}

func (c *Catalog) relist(entries []*entry) {
	for _, e := range entries {
		c.change(func(changed *recorder) {
			switch {
			case c.locations[e.location][e.storeName] != e:
			case e.bare:
				c.setLocked(e, nil, c.leftLocked(e), nil, true, changed)
			case e.backup != nil && e.claims != nil:
				backup, rows, deleted := c.placeLocked(e, e.backup, e.rows)
				for i := range rows.len() {
					if rows.cells[i].displaced && !e.rows.cells[i].displaced {
						c.withdrawn++
						break
					}
				}
				c.setLocked(e, backup, rows, deleted, false, changed)
			}
		})
	}
}

func (e *entry) isOf(namespaces map[string]bool) bool {
	var before unique.Handle[shape]
	for i := range e.rows.len() {
		if shape := e.rows.shape(i); shape != before {
			if before = shape; namespaces[shape.Value().namespace] {
				return true
			}
		}
	}
	return false
}

// placeLocked places a backup and rows, by the entry's claims and trust alone, and returns the deleted
// rows.
func (c *Catalog) placeLocked(e *entry, backup *v1alpha1.Backup, rows *packedRows) (*v1alpha1.Backup, *packedRows, []bool) {
	verdict := c.trust.judge(e.location, e.claims)
	placed := *backup
	placed.Namespace, placed.Name = c.systemNamespace, e.storeName
	if home, ok := format.Home(e.storeName, c.systemNamespace, e.claims.Namespace, e.claims.Name); ok {
		switch {
		case c.reachesLocked(&verdict, home.Namespace, e.claims.NamespaceUID):
			placed.Namespace, placed.Name = home.Namespace, home.Name
		case verdict.own:
			verdict.message = fmt.Sprintf("it was made in another namespace %q than the present one, which was made anew since: to list it there, trust this cluster for that namespace in spec.trustedClusters of the storage location", home.Namespace)
		case len(verdict.grants) > 0:
			verdict.message = fmt.Sprintf("the storage location does not trust the cluster %q for the namespace %q", verdict.grants[0].Name, home.Namespace)
		}
	}
	origin := *e.claims
	origin.Trust, origin.Message = verdict.trust, verdict.message
	if len(verdict.grants) > 0 {
		origin.Cluster = verdict.grants[0].Name
	}
	placed.Status.Origin, placed.Status.Requester = &origin, ""
	newest := c.applyChangesLocked(e, &placed)
	if verdict.own || len(verdict.grants) > 0 {
		placed.Status.Requester = e.claims.ClaimedRequester
	}

	rows = rows.displace(func(i int) bool {
		of := rows.shape(i).Value()
		return !c.reachesLocked(&verdict, of.namespace, types.UID(of.namespaceUID))
	})
	deleted := c.deletedLocked(e, &placed, rows, newest)
	return &placed, c.damagedLocked(e, &placed, rows, deleted), deleted
}

// Judge judges the signature of another object of a location, and whether it is listed in the namespace
// that it claims.
func (c *Catalog) Judge(location string, claims *v1alpha1.BackupOrigin) (origin v1alpha1.BackupOrigin, home bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	verdict := c.trust.judge(location, claims)
	origin = *claims
	origin.Trust, origin.Message = verdict.trust, verdict.message
	if len(verdict.grants) > 0 {
		origin.Cluster = verdict.grants[0].Name
	}
	return origin, c.reachesLocked(&verdict, claims.Namespace, claims.NamespaceUID)
}

// ofFormerKey is advice for objects that a lost key of this cluster may have signed.
const ofFormerKey = `if it is a former key of yours, as after Holdfast was installed anew, add it as a line to public-keys in the ConfigMap ` + identity.Name + `, and restart the controller ("The cluster's identity" in docs/install.md); else somebody else has written it`

func (t *trust) judge(location string, claims *v1alpha1.BackupOrigin) verdict {
	if claims.Trust != "" {
		return verdict{trust: claims.Trust, message: claims.Message}
	}
	v := verdict{trust: v1alpha1.BackupTrustTrusted}
	ours := claims.ClusterUID != "" && claims.ClusterUID == t.identity.UID
	known, anothers := ours, slices.Contains(t.identity.Keys, claims.PublicKey)
	if ours && anothers {
		v.own, v.trust = true, v1alpha1.BackupTrustOwn
	}
	for _, cluster := range t.clusters[location] {
		same := cluster.UID == claims.ClusterUID
		known = known || same
		if cluster.PublicKey == claims.PublicKey {
			anothers = true
			if same {
				v.grants = append(v.grants, cluster)
			}
		}
	}
	switch {
	case v.own || len(v.grants) > 0:
	case known && anothers:
		v.trust = v1alpha1.BackupTrustForged
		v.message = fmt.Sprintf("it says that it is of the cluster %s, but is signed with the key of another one", claims.ClusterUID)
	case ours:
		v.trust = v1alpha1.BackupTrustUnknownKey
		v.message = fmt.Sprintf("it is signed in this cluster's name with the key %s, which is not known here: %s", claims.PublicKey, ofFormerKey)
	case known:
		v.trust = v1alpha1.BackupTrustUnknownKey
		v.message = fmt.Sprintf("it is signed in the name of the cluster %s with the key %s, which is not known here: if it is a key of that cluster, name it in spec.trustedClusters of the storage location", claims.ClusterUID, claims.PublicKey)
	default:
		v.trust = v1alpha1.BackupTrustForeign
		v.message = fmt.Sprintf("it is signed by the cluster %s, which the storage location does not trust", claims.ClusterUID)
	}
	return v
}

// reachesLocked reports whether a backup is listed in its name's present namespace. Our own is, if that
// is or continues its namespace, or does not exist.
func (c *Catalog) reachesLocked(v *verdict, namespace string, uid types.UID) bool {
	if v.own && c.trust.namespaces != nil {
		if present, exists := c.trust.namespaces[namespace]; !exists || uid != "" && c.trust.successions.Same(namespace, present, uid) {
			return true
		}
	}
	// Another cluster's system namespace is not this one's.
	return namespace != c.systemNamespace && slices.ContainsFunc(v.grants, func(grant enginev1alpha1.TrustedCluster) bool {
		return len(grant.Namespaces) == 0 || slices.Contains(grant.Namespaces, namespace)
	})
}

var unsigned = &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustForeign, Message: "nothing says where it comes from"}

func (e *entry) rank() int {
	if e.bare || e.backup.Status.Origin == nil {
		return 2
	}
	switch e.backup.Status.Origin.Trust {
	case v1alpha1.BackupTrustOwn:
		return 0
	case v1alpha1.BackupTrustTrusted:
		return 1
	}
	return 2
}
