// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-io/holdfast/pkg/manifest"
)

// parseItem reads RESOURCE[.GROUP] KIND NAMESPACE/NAME [short] [owner=UID]... [ref=GROUP/KIND/NAMESPACE/NAME]...;
// the uid is the name.
func parseItem(t testing.TB, line string) *manifest.Item {
	t.Helper()
	words := strings.Fields(line)
	item := &manifest.Item{APIVersion: "v1", KindName: words[1], Size: 1}
	item.Resource, item.APIGroup, _ = strings.Cut(words[0], ".")
	var named bool
	if item.Namespace, item.Name, named = strings.Cut(words[2], "/"); !named {
		item.Namespace, item.Name = "", words[2]
	}
	item.UID = item.KindName + ":" + item.Name
	for _, word := range words[3:] {
		if word == "short" {
			item.Shortened = true
			continue
		}
		if owner, ok := strings.CutPrefix(word, "owner="); ok {
			item.OwnerUIDs = append(item.OwnerUIDs, owner)
			continue
		}
		parts := strings.Split(strings.TrimPrefix(word, "ref="), "/")
		item.References = append(item.References, manifest.Reference{APIGroup: parts[0], KindName: parts[1], Namespace: parts[2], Name: parts[3]})
	}
	return item
}

func parseItems(t testing.TB, text string) []*manifest.Item {
	t.Helper()
	var items []*manifest.Item
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			items = append(items, parseItem(t, line))
		}
	}
	return items
}

// walk gives the objects in an order in which they may come, each as late as possible if
// its name is late.
func walk(t testing.TB, g *Graph, late func(*manifest.Item) bool) []string {
	t.Helper()
	progress, ready := g.Start()
	var order []string
	for len(ready) > 0 {
		at := slices.IndexFunc(ready, func(node int32) bool { return late == nil || !late(g.Nodes[node].Item) })
		if at < 0 {
			at = 0
		}
		node := ready[at]
		ready = slices.Delete(ready, at, at+1)
		order = append(order, string(g.Nodes[node].Wait)+g.Nodes[node].Item.KindName+":"+g.Nodes[node].Item.Name)
		ready = append(ready, progress.Done(node)...)
	}
	if !progress.Finished() {
		t.Fatalf("it ends after %q", order)
	}
	return order
}

func TestOrder(t *testing.T) {
	for name, test := range map[string]struct {
		items, others string
		data          string   // names of claims with data
		before        []string // A<B: A comes before B, however late A may be
		cut           []string
	}{
		"pitfall 18: a namespace before what is in it": {
			items:  "configmaps ConfigMap shop/a\nnamespaces Namespace shop",
			before: []string{"Namespace:shop<ConfigMap:a"},
		},
		"pitfall 3: objects of a kind when it is served, and when what converts them is ready": {
			items: `widgets.example.com Widget shop/w
			  customresourcedefinitions.apiextensions.k8s.io CustomResourceDefinition widgets.example.com ref=/Service/ops/hook
			  services Service ops/hook
			  deployments.apps Deployment ops/operator`,
			before: []string{"CustomResourceDefinition:widgets.example.com<ServedCustomResourceDefinition:widgets.example.com", "ServedCustomResourceDefinition:widgets.example.com<Widget:w",
				"Deployment:operator<ReadyService:hook", "ReadyService:hook<Widget:w", "Service:hook<ReadyService:hook"},
		},
		"pitfall 2: webhooks last, when their Service is ready": {
			items: `validatingwebhookconfigurations.admissionregistration.k8s.io ValidatingWebhookConfiguration hook ref=/Service/ops/hook
			  services Service ops/hook
			  pods Pod ops/server
			  widgets.example.com Widget other/w`,
			before: []string{"Widget:w<ValidatingWebhookConfiguration:hook", "Pod:server<ReadyService:hook", "ReadyService:hook<ValidatingWebhookConfiguration:hook"},
		},
		"pitfall 21: an aggregated API before its objects, after its Service": {
			items: `apiservices.apiregistration.k8s.io APIService v1.wide.example.com ref=/Service/ops/wide
			  services Service ops/wide
			  things.wide.example.com Thing shop/t`,
			before: []string{"ReadyService:wide<APIService:v1.wide.example.com", "ServedAPIService:v1.wide.example.com<Thing:t"},
		},
		"pitfalls 4 and 15: what workloads rely on": {
			items: `deployments.apps Deployment shop/web
			  widgets.example.com Widget shop/w
			  resourcequotas ResourceQuota shop/q
			  limitranges LimitRange shop/l
			  secrets Secret shop/s
			  serviceaccounts ServiceAccount shop/bob ref=/Secret/shop/s
			  rolebindings.rbac.authorization.k8s.io RoleBinding shop/b
			  clusterrolebindings.rbac.authorization.k8s.io ClusterRoleBinding c ref=/ServiceAccount/shop/bob
			  priorityclasses.scheduling.k8s.io PriorityClass high`,
			before: []string{"ResourceQuota:q<Deployment:web", "LimitRange:l<Deployment:web", "Secret:s<Widget:w", "RoleBinding:b<Deployment:web",
				"ClusterRoleBinding:c<Deployment:web", "PriorityClass:high<Deployment:web", "ServiceAccount:bob<Secret:s"},
		},
		"pitfall 1: owners before what they own, whatever rules say": {
			items: `configmaps ConfigMap shop/owned owner=Deployment:web
			  deployments.apps Deployment shop/web
			  configmaps ConfigMap shop/free`,
			before: []string{"Deployment:web<ConfigMap:owned", "ConfigMap:free<Deployment:web"},
		},
		"proof 4: owners in a circle": {
			items:  "configmaps ConfigMap shop/a owner=ConfigMap:b\nconfigmaps ConfigMap shop/b owner=ConfigMap:c\nconfigmaps ConfigMap shop/c owner=ConfigMap:a",
			cut:    []string{"ConfigMap:a<ConfigMap:c 2"},
			before: []string{"ConfigMap:c<ConfigMap:b", "ConfigMap:b<ConfigMap:a"},
		},
		"proof 13: data before all that uses it, up the chain of owners, without the pods": {
			items: `persistentvolumeclaims PersistentVolumeClaim shop/data
			  deployments.apps Deployment shop/web owner=App:app
			  apps.example.com App shop/app`,
			others: `pods Pod shop/web-1 owner=ReplicaSet:web-1 ref=/PersistentVolumeClaim/shop/data
			  replicasets.apps ReplicaSet shop/web-1 owner=Deployment:web`,
			data:   "data",
			before: []string{"PersistentVolumeClaim:data<Deployment:web", "PersistentVolumeClaim:data<App:app", "App:app<Deployment:web"},
		},
		"proof 13: claims of a StatefulSet without pods": {
			items:  "persistentvolumeclaims PersistentVolumeClaim shop/data-my-db-12\nstatefulsets.apps StatefulSet shop/my-db",
			data:   "data-my-db-12",
			before: []string{"PersistentVolumeClaim:data-my-db-12<StatefulSet:my-db"},
		},
		"an operator's claim with data is there before the operator's object, and gets its owner later": {
			items:  "persistentvolumeclaims PersistentVolumeClaim shop/data owner=Cluster:db\nclusters.pg.example.com Cluster shop/db",
			others: "pods Pod shop/db-1 owner=Cluster:db ref=/PersistentVolumeClaim/shop/data",
			data:   "data",
			before: []string{"PersistentVolumeClaim:data<Cluster:db"}, cut: []string{"Cluster:db<PersistentVolumeClaim:data 2"},
		},
		"what may use any claim, since its references had no room, after the data of all": {
			items: `persistentvolumeclaims PersistentVolumeClaim shop/a
			  persistentvolumeclaims PersistentVolumeClaim shop/b owner=Deployment:web
			  persistentvolumeclaims PersistentVolumeClaim shop/web-tmp owner=Pod:web
			  deployments.apps Deployment shop/web short
			  pods Pod shop/web short
			  apps.example.com App shop/app
			  services Service shop/web short`,
			data: "a b web-tmp",
			before: []string{"PersistentVolumeClaim:a<Deployment:web", "PersistentVolumeClaim:b<Deployment:web", "PersistentVolumeClaim:a<Pod:web",
				"PersistentVolumeClaim:a<App:app", "Pod:web<PersistentVolumeClaim:web-tmp"},
			cut: []string{"Deployment:web<PersistentVolumeClaim:b 2"},
		},
		"the object behind a pod whose owner had no room": {
			items:  "persistentvolumeclaims PersistentVolumeClaim shop/data\nclusters.pg.example.com Cluster shop/db",
			others: "pods Pod shop/db-1 short",
			data:   "data",
			before: []string{"PersistentVolumeClaim:data<Cluster:db"},
		},
		"a volume before its claim": {
			items: `persistentvolumeclaims PersistentVolumeClaim shop/data ref=/PersistentVolume//pv
			  persistentvolumes PersistentVolume pv ref=/PersistentVolumeClaim/shop/data ref=storage.k8s.io/StorageClass//fast
			  storageclasses.storage.k8s.io StorageClass fast`,
			before: []string{"StorageClass:fast<PersistentVolume:pv", "PersistentVolume:pv<PersistentVolumeClaim:data"},
		},
		"claims that their StatefulSet owns, with and without data": {
			items: `statefulsets.apps StatefulSet shop/db
			  persistentvolumeclaims PersistentVolumeClaim shop/data-db-0 owner=StatefulSet:db
			  persistentvolumeclaims PersistentVolumeClaim shop/data-db-1 owner=StatefulSet:db`,
			data:   "data-db-1",
			before: []string{"PersistentVolumeClaim:data-db-0<StatefulSet:db", "PersistentVolumeClaim:data-db-1<StatefulSet:db"},
			cut:    []string{"StatefulSet:db<PersistentVolumeClaim:data-db-0 2", "StatefulSet:db<PersistentVolumeClaim:data-db-1 2"},
		},
		"revisions before their StatefulSet": {
			items:  "statefulsets.apps StatefulSet shop/db\ncontrollerrevisions.apps ControllerRevision shop/db-1 owner=StatefulSet:db",
			before: []string{"ControllerRevision:db-1<StatefulSet:db"}, cut: []string{"StatefulSet:db<ControllerRevision:db-1 2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			items := parseItems(t, test.items)
			g := Order(items, parseItems(t, test.others), func(i *manifest.Item) bool { return slices.Contains(strings.Fields(test.data), i.Name) })
			for _, pair := range test.before {
				first, second, _ := strings.Cut(pair, "<")
				order := walk(t, g, func(i *manifest.Item) bool { return strings.HasSuffix(first, i.KindName+":"+i.Name) })
				if a, b := slices.Index(order, first), slices.Index(order, second); a < 0 || b < 0 || a > b {
					t.Errorf("%s is not before %s: %q", first, second, order)
				}
			}
			var cut []string
			for _, c := range g.Cut {
				cut = append(cut, fmt.Sprintf("%s:%s<%s:%s %d", c.Before.KindName, c.Before.Name, c.After.KindName, c.After.Name, c.Strength))
			}
			if !slices.Equal(cut, test.cut) {
				t.Errorf("cut %q, want %q", cut, test.cut)
			}
		})
	}
}

// Random edges: nothing of what is left goes round, and only what goes round is cut.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 12).Draw(t, "nodes")
		edges := map[[2]int32]Strength{}
		for range rapid.IntRange(0, 30).Draw(t, "edges") {
			a, b := int32(rapid.IntRange(0, nodes-1).Draw(t, "a")), int32(rapid.IntRange(0, nodes-1).Draw(t, "b"))
			if a != b {
				edges[[2]int32{a, b}] = Strength(rapid.IntRange(0, 4).Draw(t, "strength"))
			}
		}
		b := &builder{nodes: make([]Node, nodes)}
		for i := range b.nodes {
			b.nodes[i].Item = &manifest.Item{Name: fmt.Sprint(i)}
		}
		for e, strength := range edges {
			b.add(e[0], e[1], strength)
		}
		g := b.finish()
		cut := map[[2]int32]bool{}
		number := func(i *manifest.Item) (n int32) {
			_, _ = fmt.Sscan(i.Name, &n)
			return n
		}
		for _, c := range g.Cut {
			e := [2]int32{number(c.Before), number(c.After)}
			if strength, ok := edges[e]; !ok || strength != c.Strength || cut[e] {
				t.Fatalf("cut %v, which is no edge", e)
			}
			cut[e] = true
			// There is a way back over edges that are at least as strong.
			if !reaches(edges, e[1], e[0], c.Strength) {
				t.Fatalf("cut %v of strength %d, which lies on no circle as strong", e, c.Strength)
			}
		}
		position := map[int32]int{}
		progress, ready := g.Start()
		for len(ready) > 0 {
			at := rapid.IntRange(0, len(ready)-1).Draw(t, "next")
			node := ready[at]
			ready = append(slices.Delete(slices.Clone(ready), at, at+1), progress.Done(node)...)
			if _, again := position[node]; again {
				t.Fatalf("%d comes twice", node)
			}
			position[node] = len(position)
		}
		if len(position) != nodes || !progress.Finished() {
			t.Fatalf("%d of %d nodes", len(position), nodes)
		}
		for e := range edges {
			if !cut[e] && position[e[0]] > position[e[1]] {
				t.Fatalf("%v is not respected", e)
			}
			if !cut[e] && g.Nodes[e[0]].Wave >= g.Nodes[e[1]].Wave {
				t.Fatalf("%v: waves %d and %d", e, g.Nodes[e[0]].Wave, g.Nodes[e[1]].Wave)
			}
		}
	})
}

func reaches(edges map[[2]int32]Strength, from, to int32, least Strength) bool {
	seen, next := map[int32]bool{from: true}, []int32{from}
	for len(next) > 0 {
		node := next[0]
		next = next[1:]
		if node == to {
			return true
		}
		for e, strength := range edges {
			if e[0] == node && strength >= least && !seen[e[1]] {
				seen[e[1]] = true
				next = append(next, e[1])
			}
		}
	}
	return false
}

// Random objects, with owners and references that go round: each is there once, and no
// owner comes after what it owns unless that is cut.
func TestObjects(t *testing.T) {
	kinds := []string{"configmaps ConfigMap", "secrets Secret", "serviceaccounts ServiceAccount", "pods Pod", "deployments.apps Deployment",
		"persistentvolumeclaims PersistentVolumeClaim", "services Service", "widgets.example.com Widget", "statefulsets.apps StatefulSet",
		"validatingwebhookconfigurations.admissionregistration.k8s.io ValidatingWebhookConfiguration"}
	rapid.Check(t, func(t *rapid.T) {
		var items, others []*manifest.Item
		count := rapid.IntRange(1, 15).Draw(t, "count")
		var all []*manifest.Item
		for i := range count {
			kind := strings.Fields(rapid.SampledFrom(kinds).Draw(t, "kind"))
			item := &manifest.Item{KindName: kind[1], APIVersion: "v1", Name: fmt.Sprintf("n-x-%d", i), UID: fmt.Sprint(i)}
			item.Resource, item.APIGroup, _ = strings.Cut(kind[0], ".")
			if !strings.HasSuffix(item.KindName, "Configuration") {
				item.Namespace = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace")
			}
			all = append(all, item)
		}
		for _, item := range all {
			for range rapid.IntRange(0, 2).Draw(t, "owners") {
				item.OwnerUIDs = append(item.OwnerUIDs, rapid.SampledFrom(all).Draw(t, "owner").UID)
			}
			for range rapid.IntRange(0, 2).Draw(t, "references") {
				to := rapid.SampledFrom(all).Draw(t, "reference")
				item.References = append(item.References, manifest.Reference{APIGroup: to.APIGroup, KindName: to.KindName, Namespace: to.Namespace, Name: to.Name})
			}
			if rapid.IntRange(0, 4).Draw(t, "other") == 0 {
				others = append(others, item)
			} else {
				items = append(items, item)
			}
		}
		for _, ns := range []string{"a", "b"} {
			items = append(items, &manifest.Item{KindName: "Namespace", APIVersion: "v1", Resource: "namespaces", Name: ns, UID: "ns-" + ns})
		}
		data := func(i *manifest.Item) bool { return len(i.Name)%2 == 1 }
		g := Order(items, others, data)
		cut := map[[2]*manifest.Item]Strength{}
		for _, c := range g.Cut {
			cut[[2]*manifest.Item{c.Before, c.After}] = c.Strength
			if c.Strength == Needs {
				t.Fatalf("a namespace after what is in it")
			}
		}
		position := map[*manifest.Item]int{}
		progress, ready := g.Start()
		for len(ready) > 0 {
			at := rapid.IntRange(0, len(ready)-1).Draw(t, "next")
			node := ready[at]
			ready = append(slices.Delete(slices.Clone(ready), at, at+1), progress.Done(node)...)
			if g.Nodes[node].Wait == "" {
				if _, again := position[g.Nodes[node].Item]; again {
					t.Fatal("an object comes twice")
				}
				position[g.Nodes[node].Item] = len(position)
			}
		}
		if len(position) != len(items) {
			t.Fatalf("%d of %d objects", len(position), len(items))
		}
		byUID := map[string]*manifest.Item{}
		for _, item := range items {
			byUID[item.UID] = item
		}
		for _, item := range items {
			if item.Namespace != "" && position[byUID["ns-"+item.Namespace]] > position[item] {
				t.Fatalf("%s before its namespace", item.Name)
			}
			for _, uid := range item.OwnerUIDs {
				owner := byUID[uid]
				if owner == nil || owner == item {
					continue
				}
				if _, ok := cut[[2]*manifest.Item{owner, item}]; !ok && position[owner] > position[item] {
					t.Fatalf("%s before its owner %s", item.Name, owner.Name)
				}
			}
		}
		// The order does not depend on chance.
		again := Order(items, others, data)
		if !slices.Equal(g.out, again.out) || !slices.Equal(g.first, again.first) {
			t.Fatal("another graph of the same")
		}
	})
}

// A graph of 300,000 objects takes a bounded time and memory.
func TestLarge(t *testing.T) {
	const namespaces, each = 300, 1000
	var items []*manifest.Item
	for n := range namespaces {
		namespace := fmt.Sprintf("n-%d", n)
		items = append(items, &manifest.Item{KindName: "Namespace", APIVersion: "v1", Resource: "namespaces", Name: namespace, UID: namespace})
		for i := range each {
			item := &manifest.Item{KindName: "ConfigMap", APIVersion: "v1", Resource: "configmaps", Namespace: namespace, Name: fmt.Sprintf("c-%d", i), UID: fmt.Sprintf("%d-%d", n, i)}
			switch i % 4 {
			case 1:
				item.KindName, item.Resource, item.APIGroup = "Deployment", "deployments", "apps"
				item.References = []manifest.Reference{{KindName: "ConfigMap", Namespace: namespace, Name: fmt.Sprintf("c-%d", i-1)}}
			case 2:
				item.OwnerUIDs = []string{fmt.Sprintf("%d-%d", n, i-1)}
			case 3: // a circle
				item.KindName, item.Resource, item.APIGroup = "Widget", "widgets", "example.com"
				item.OwnerUIDs = []string{fmt.Sprintf("%d-%d", n, (i+4)%each)}
			}
			items = append(items, item)
		}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	g := Order(items, nil, func(*manifest.Item) bool { return false })
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("%d nodes, %d edges, %d cut, %d MiB", len(g.Nodes), len(g.out), len(g.Cut), (int64(after.HeapAlloc)-int64(before.HeapAlloc))>>20)
	if len(g.Cut) != namespaces {
		t.Errorf("%d edges are cut, want one per circle", len(g.Cut))
	}
	if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > 64<<20 {
		t.Errorf("the graph takes %d MiB", kept>>20)
	}
	if len(g.out) > 4*len(items) {
		t.Errorf("%d edges", len(g.out))
	}
}
