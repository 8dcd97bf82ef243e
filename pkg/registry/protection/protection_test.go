// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package protection

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	domain "github.com/holdfast-io/holdfast/pkg/schedule"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
	"github.com/holdfast-io/holdfast/pkg/stored/storedtest"
)

const system = "holdfast"

// noon is the hour 0.
var noon = time.Date(2026, 5, 5, 12, 0, 0, 0, time.UTC)

func hour(n int) time.Time { return noon.Add(time.Duration(n) * time.Hour) }

// thing is an object of the cluster over the time.
type thing struct {
	kind                           string // as kind.name
	namespace, name, uid           string
	created, deleted, relabelledAt int // hours; deleted 0 is never
	was, is                        map[string]string
	owned                          bool
	rpo                            string
}

func (o *thing) labels(at int) map[string]string {
	if at < o.relabelledAt {
		return o.was
	}
	return o.is
}

// world is a cluster with its stores.
type world struct {
	*Publisher
	t          testing.TB
	catalog    *catalog.Catalog
	bucket     *store.Bucket
	clock      *clocktesting.FakeClock
	namespaces cache.Indexer
	plans      []*v1alpha1.Schedule
	// down are the locations that do not answer.
	down bool
}

func newWorld(t testing.TB, bucket *store.Bucket) *world {
	w := &world{t: t, bucket: bucket, clock: clocktesting.NewFakeClock(noon)}
	w.catalog = catalog.New(system, func(changes catalog.Changes) {
		for _, backup := range changes.Backups.Set {
			w.OnBackup(types.NamespacedName{Namespace: backup.Namespace, Name: backup.Name}, backup)
		}
		for _, name := range changes.Backups.Gone {
			w.OnBackup(name, nil)
		}
	})
	w.namespaces = cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	w.Publisher = New(Config{
		SystemNamespace: system, Namespaces: corelisters.NewNamespaceLister(w.namespaces), Stores: w, Ready: func() error { return nil },
		IsGood: w.catalog.IsGood, Holders: w.catalog.Holders, Schedules: w, Warn: func(context.Context) {}, Clock: w.clock,
	})
	w.catalog.SetIdentity(identity.Identity{UID: "cluster", Keys: []string{"key"}})
	w.catalog.SetNamespaces(map[string]types.UID{"shop": "uid-of-shop", "blog": "uid-of-blog", system: "uid-of-holdfast"})
	return w
}

func (w *world) Names() (names []types.NamespacedName) {
	for _, of := range w.plans {
		names = append(names, types.NamespacedName{Namespace: of.Namespace, Name: of.Name})
	}
	return names
}

func (w *world) Schedule(name types.NamespacedName) (*v1alpha1.Schedule, *enginev1alpha1.ScheduleEntry, []domain.Backup) {
	for _, of := range w.plans {
		if of.Namespace == name.Namespace && of.Name == name.Name {
			return of, nil, nil
		}
	}
	return nil, nil, nil
}

func (w *world) Stored(backup *v1alpha1.Backup) (location, storeName string, digests catalog.Digests, ok bool) {
	found, location, storeName, digests := w.catalog.Find(backup.Namespace, backup.Name)
	return location, storeName, digests, found != nil && found.UID == backup.UID
}

func (w *world) Use(context.Context, string) (store.Ranger, func(), error) {
	if w.down {
		return nil, nil, store.ErrUnavailable
	}
	return w.bucket, func() {}, nil
}

// namespace sets one, with its rpo.
func (w *world) namespace(name, rpo string) {
	w.t.Helper()
	of := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name)}}
	if rpo != "" {
		of.Annotations = map[string]string{v1alpha1.AnnotationRPO: rpo}
	}
	if err := w.namespaces.Add(of); err != nil {
		w.t.Fatal(err)
	}
}

// lives has the API server tell of an object.
func (w *world) lives(of *thing) {
	w.t.Helper()
	metadata := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: of.namespace, Name: of.name, UID: types.UID(of.uid), Labels: of.is, CreationTimestamp: metav1.NewTime(hour(of.created)),
	}}
	if of.owned {
		metadata.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "of"}}
	}
	if of.rpo != "" {
		metadata.Annotations = map[string]string{v1alpha1.AnnotationRPO: of.rpo, "other": "text"}
	}
	for _, table := range w.live.tables {
		if table.kind.name != of.kind {
			continue
		}
		trimmed, err := table.Transformer()(metadata)
		if err == nil {
			err = table.Add(trimmed)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// made is a stored backup, as the slow judge knows it.
type made struct {
	storeName, namespace string
	start                int
	spec                 v1alpha1.BackupSpec
	phase                v1alpha1.BackupPhase
	own, missing         bool
	volumes              []catalog.Volume
	digest               string
}

// put stores a backup with the items in its manifest.
func (w *world) put(m *made, items []*manifest.Item, digest string) {
	w.t.Helper()
	slices.SortFunc(items, manifest.Compare)
	document := storedtest.Manifest(w.t, items)
	if err := w.bucket.Put(context.Background(), format.ManifestKey(m.storeName), document); err != nil {
		w.t.Fatal(err)
	}
	if m.digest = digest; digest == "" {
		m.digest = format.NewContent(document).SHA256
	}
	name := strings.TrimPrefix(m.storeName, m.namespace+".")
	origin := &v1alpha1.BackupOrigin{ClusterUID: "cluster", PublicKey: "key", Namespace: m.namespace, NamespaceUID: types.UID("uid-of-" + m.namespace), Name: name}
	if !m.own {
		origin.ClusterUID = "another"
	}
	w.catalog.Put("default", m.storeName, catalog.Content{
		Backup: &v1alpha1.Backup{
			ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace, Name: name, UID: types.UID("uid-of-" + m.storeName), CreationTimestamp: metav1.NewTime(hour(m.start))},
			Spec:       m.spec,
			Status: v1alpha1.BackupStatus{
				Phase: m.phase, FormatVersion: "1.1.0", StartTimestamp: new(metav1.NewTime(hour(m.start))), CompletionTimestamp: new(metav1.NewTime(hour(m.start).Add(time.Minute))),
				Origin: origin,
			},
		},
		Volumes: m.volumes, Digests: catalog.Digests{Manifest: m.digest},
	}, hour(m.start))
}

// settle decides, and reads what is wanted, until nothing is.
func (w *world) settle(steps int) {
	for range steps {
		w.decide()
		select {
		case b := <-w.holdings.queue:
			w.holdings.read(context.Background(), b)
		default:
			return
		}
	}
}

func itemOf(o *thing, labels map[string]string) *manifest.Item {
	for _, k := range kinds {
		if k.name == o.kind {
			item := &manifest.Item{APIGroup: k.resource.Group, APIVersion: k.resource.Version, KindName: k.name, Resource: k.resource.Resource,
				Namespace: o.namespace, Name: o.name, UID: o.uid, Labels: labels, Size: 1}
			if o.owned {
				item.OwnerUIDs = []string{"of"}
			}
			return item
		}
	}
	panic(o.kind)
}

func volumeOf(o *thing, state string, at int) catalog.Volume {
	v := catalog.Volume{
		Namespace: o.namespace, NamespaceUID: "uid-of-" + o.namespace, ClaimName: o.name, PodName: "pod", PodVolume: o.name, Node: "node",
		Method: format.UploaderKopia, State: state, Start: metav1.NewTime(hour(at)), Completion: metav1.NewTime(hour(at).Add(time.Second)),
	}
	if state == v1alpha1.VolumeBackupCompleted {
		v.SnapshotID = strings.Repeat("ab", 16)
	}
	return v
}

// judgeSlowly says whether a stored backup covers an object at an instant, by the bytes in the store.
func (w *world) judgeSlowly(t *rapid.T, m *made, o *thing, now time.Time, within time.Duration) bool {
	if !m.own || m.missing || m.phase != v1alpha1.BackupPhaseCompleted && m.phase != v1alpha1.BackupPhasePartiallyFailed ||
		o.created > m.start || now.Sub(hour(m.start)) > within {
		return false
	}
	stream, err := w.bucket.Get(context.Background(), format.ManifestKey(m.storeName))
	if errors.Is(err, store.ErrNotFound) {
		return false
	} else if err != nil {
		t.Fatal(err)
	}
	document, err := io.ReadAll(stream)
	if err := errors.Join(err, stream.Close()); err != nil {
		t.Fatal(err)
	}
	if format.NewContent(document).SHA256 != m.digest {
		return false
	}
	want, held := itemOf(o, nil), false
	for item, err := range manifest.Read(bytes.NewReader(document)) {
		if err != nil {
			t.Fatal(err)
		}
		held = held || item.String() == want.String() && item.UID == o.uid
	}
	if o.kind != "PersistentVolumeClaim" {
		return held
	}
	return held && slices.ContainsFunc(m.volumes, func(v catalog.Volume) bool {
		return v.Namespace == o.namespace && v.ClaimName == o.name && v.State == v1alpha1.VolumeBackupCompleted
	})
}

func drawLabels(t *rapid.T, label string) map[string]string {
	return rapid.SampledFrom([]map[string]string{nil, {"app": "web"}, {"app": "db"}, {format.LabelExclude: "true"}}).Draw(t, label)
}

// TestCoveredOnlyIfTheManifestAgrees draws clusters, whose objects are made anew and change their
// labels, and backups of random selections: some fail in part, lack data, are others', are missing or
// have a manifest that was replaced. A row says Yes only if the stored manifest of a good backup
// agrees, read slowly, however many manifests were read so far. With few backups it says Yes whenever
// one does.
func TestCoveredOnlyIfTheManifestAgrees(t *testing.T) {
	bucket := storetest.Memory(t)
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		w := newWorld(t, bucket)
		w.down = false
		spaces := []string{"shop", "blog"}
		var things []*thing
		for i, n := 0, rapid.IntRange(1, 8).Draw(rt, "objects"); i < n; i++ {
			o := &thing{
				kind: rapid.SampledFrom([]string{"Deployment", "StatefulSet", "Pod", "PersistentVolumeClaim", "PersistentVolumeClaim", "CronJob"}).Draw(rt, "kind"), namespace: rapid.SampledFrom(spaces).Draw(rt, "namespace"),
				name: rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "name"), uid: fmt.Sprintf("%08d-0000-4000-8000-000000000000", i),
				created: -rapid.IntRange(1, 60).Draw(rt, "created"), relabelledAt: -rapid.IntRange(0, 60).Draw(rt, "relabelled"),
				was: drawLabels(rt, "was"), is: drawLabels(rt, "is"), rpo: rapid.SampledFrom([]string{"", "", "10h", "47h", "soon"}).Draw(rt, "rpo"),
			}
			// Of one name there is one at a time: a newer one replaces the others.
			for _, other := range things {
				if other.kind != o.kind || other.namespace != o.namespace || other.name != o.name || other.deleted != 0 {
					continue
				}
				if other.created == o.created {
					o.created--
				}
				if other.created < o.created {
					other.deleted = o.created
				} else if o.deleted == 0 || other.created < o.deleted {
					o.deleted = other.created
				}
			}
			things = append(things, o)
		}
		rpos := map[string]string{}
		for _, name := range spaces {
			rpos[name] = rapid.SampledFrom([]string{"", "", "30h", "nonsense"}).Draw(rt, "rpo of "+name)
			w.namespace(name, rpos[name])
		}
		anew := rapid.IntRange(0, 9).Draw(rt, "anew") == 0
		if anew { // whose objects would be others, too: there only what is called protected is compared
			w.catalog.SetNamespaces(map[string]types.UID{"shop": "anew", "blog": "uid-of-blog", system: "uid-of-holdfast"})
		}
		if rapid.Bool().Draw(rt, "scheduled") {
			w.plans = []*v1alpha1.Schedule{{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "nightly"}, Spec: v1alpha1.ScheduleSpec{Schedule: "@daily"}}}
		}
		backups := []*made{}
		for i, n := 0, rapid.IntRange(0, 6).Draw(rt, "backups"); i < n; i++ {
			m := &made{
				namespace: rapid.SampledFrom([]string{system, "shop"}).Draw(rt, "of"), start: -rapid.IntRange(0, 60).Draw(rt, "start"),
				phase: rapid.SampledFrom([]v1alpha1.BackupPhase{v1alpha1.BackupPhaseCompleted, v1alpha1.BackupPhaseCompleted, v1alpha1.BackupPhasePartiallyFailed, v1alpha1.BackupPhaseFailed}).Draw(rt, "phase"),
				own:   rapid.IntRange(0, 5).Draw(rt, "own") > 0,
			}
			m.storeName = fmt.Sprintf("r%d-b%d", runs, i)
			if m.namespace != system {
				m.storeName = m.namespace + "." + m.storeName
				m.spec.IncludedNamespaces = []string{m.namespace}
			} else {
				m.spec.IncludedNamespaces = rapid.SampledFrom([][]string{nil, {"shop"}, {"b*"}, {"shop", "blog"}}).Draw(rt, "included")
			}
			m.spec.IncludedResources = rapid.SampledFrom([][]string{nil, nil, {"deployments"}, {"pvc", "pods"}}).Draw(rt, "resources")
			if rapid.IntRange(0, 3).Draw(rt, "labelled") == 0 {
				m.spec.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
			}
			var items []*manifest.Item
			for _, o := range things {
				at := o.labels(m.start)
				switch {
				case o.created > m.start || o.deleted != 0 && o.deleted <= m.start || at[format.LabelExclude] == "true":
					// A late list has objects that were made since the start.
					if o.created != m.start+1 || at[format.LabelExclude] == "true" {
						continue
					}
				case len(m.spec.IncludedNamespaces) > 0 && !slices.ContainsFunc(m.spec.IncludedNamespaces, func(word string) bool { return word == o.namespace || word == "b*" && o.namespace == "blog" }):
					continue
				case len(m.spec.IncludedResources) == 1 && o.kind != "Deployment", len(m.spec.IncludedResources) == 2 && o.kind != "PersistentVolumeClaim" && o.kind != "Pod":
					continue
				case m.spec.LabelSelector != nil && !labels.SelectorFromSet(m.spec.LabelSelector.MatchLabels).Matches(labels.Set(at)):
					continue
				case m.phase == v1alpha1.BackupPhasePartiallyFailed && rapid.Bool().Draw(rt, "failed"):
					continue
				}
				if slices.ContainsFunc(items, func(other *manifest.Item) bool { return manifest.Compare(other, itemOf(o, at)) == 0 }) {
					continue
				}
				items = append(items, itemOf(o, at))
			}
			for _, o := range things {
				if o.kind == "PersistentVolumeClaim" && (o.created <= m.start && (o.deleted == 0 || o.deleted > m.start)) && rapid.Bool().Draw(rt, "data") {
					m.volumes = append(m.volumes, volumeOf(o, rapid.SampledFrom([]string{v1alpha1.VolumeBackupCompleted, v1alpha1.VolumeBackupCompleted, v1alpha1.VolumeBackupFailed}).Draw(rt, "volume"), m.start))
				}
			}
			digest := ""
			if rapid.IntRange(0, 9).Draw(rt, "replaced") == 0 {
				digest = strings.Repeat("0", 64)
			}
			w.put(m, items, digest)
			backups = append(backups, m)
		}
		if len(backups) > 1 && rapid.IntRange(0, 4).Draw(rt, "missing") == 0 {
			backups[0].missing = true
			var listed []string
			for _, m := range backups[1:] {
				listed = append(listed, m.storeName)
			}
			w.catalog.Observe("default", listed, hour(1), hour(1))
			w.clock.SetTime(hour(1))
		}
		for _, o := range things {
			if o.deleted == 0 {
				w.lives(o)
			}
		}
		for {
			w.decide()
			check(rt, w, things, backups, rpos, false)
			select {
			case b := <-w.holdings.queue:
				w.holdings.read(context.Background(), b)
				continue
			default:
			}
			break
		}
		check(rt, w, things, backups, rpos, len(backups) <= newest && !anew)
	})
}

// check compares all rows with the slow judge. If complete, a row that is not Yes has no backup.
func check(t *rapid.T, w *world, things []*thing, backups []*made, rpos map[string]string, complete bool) {
	rows := map[types.UID]v1alpha1.Protection{}
	for _, row := range w.rows(w.live.list(""), true) {
		rows[row.Spec.UID] = row
	}
	now := w.clock.Now()
	for _, o := range things {
		row, listed := rows[types.UID(o.uid)]
		if listed != (o.deleted == 0) {
			t.Fatalf("%+v is listed: %v", o, listed)
		}
		if !listed {
			continue
		}
		within := 36 * time.Hour // as the schedule's, too
		if rpo, err := time.ParseDuration(rpos[o.namespace]); err == nil {
			within = rpo
		}
		if rpo, err := time.ParseDuration(o.rpo); err == nil {
			within = rpo
		}
		covered := slices.ContainsFunc(backups, func(m *made) bool { return w.judgeSlowly(t, m, o, now, within) })
		switch state := row.Status.Protected; {
		case row.Status.Expectation.Duration != within:
			t.Fatalf("%+v is expected within %s, not %s", o, row.Status.Expectation, within)
		case state == v1alpha1.ProtectionYes && !covered:
			t.Fatalf("%+v is called protected: %+v; the backups are %+v", o, row.Status, backups)
		case complete && state != v1alpha1.ProtectionYes && covered:
			t.Fatalf("%+v is called %s: %s; the backups are %+v", o, state, row.Status.Message, backups)
		case complete && state == v1alpha1.ProtectionUnknown:
			t.Fatalf("%+v is not known, although all is read: %+v", o, row.Status)
		}
	}
}

// TestWhatIsShown: rows have the state, the newest backup and the schedule of an object. A caller of
// one namespace is told no name of another one.
func TestWhatIsShown(t *testing.T) {
	w := newWorld(t, storetest.Memory(t))
	w.namespace("shop", "")
	w.namespace("blog", "100h")
	web := &thing{kind: "Deployment", namespace: "shop", name: "web", uid: "web", created: -90, is: map[string]string{"app": "web"}}
	data := &thing{kind: "PersistentVolumeClaim", namespace: "shop", name: "data", uid: "data", created: -90}
	young := &thing{kind: "StatefulSet", namespace: "shop", name: "young", uid: "young", created: -1}
	owned := &thing{kind: "Pod", namespace: "shop", name: "web-1", uid: "pod", created: -90, owned: true}
	strict := &thing{kind: "CronJob", namespace: "shop", name: "strict", uid: "strict", created: -90, rpo: "1h"}
	blog := &thing{kind: "Deployment", namespace: "blog", name: "web", uid: "blog", created: -90, rpo: "bad"}
	for _, o := range []*thing{web, data, young, owned, strict, blog} {
		w.lives(o)
	}
	w.plans = []*v1alpha1.Schedule{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "weekly"}, Spec: v1alpha1.ScheduleSpec{Schedule: "@weekly"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "nightly"}, Spec: v1alpha1.ScheduleSpec{Schedule: "@daily", Template: v1alpha1.ScheduleTemplate{
			BackupSpec: v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: new(false)}}}},
	}
	items := []*manifest.Item{itemOf(web, nil), itemOf(data, nil), itemOf(owned, nil), itemOf(strict, nil), itemOf(blog, nil)}
	w.put(&made{storeName: "shop.own", namespace: "shop", start: -50, phase: v1alpha1.BackupPhaseCompleted, own: true, spec: v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}},
		volumes: []catalog.Volume{volumeOf(data, v1alpha1.VolumeBackupCompleted, -50)}}, slices.Clone(items[:4]), "")
	w.put(&made{storeName: "all", namespace: system, start: -20, phase: v1alpha1.BackupPhasePartiallyFailed, own: true,
		volumes: []catalog.Volume{volumeOf(data, v1alpha1.VolumeBackupFailed, -20)}}, slices.Clone(items), "")

	table := func(namespace string, options *internalversion.ListOptions) string {
		t.Helper()
		list, err := NewREST(w.Publisher).List(genericapirequest.WithNamespace(t.Context(), namespace), options)
		if err != nil {
			t.Fatal(err)
		}
		shown, err := Resource.ConvertToTable(t.Context(), list, nil)
		if err != nil {
			t.Fatal(err)
		}
		var rows []string
		for i, row := range shown.Rows {
			p := &list.(*v1alpha1.ProtectionList).Items[i]
			// The ages are today's.
			rows = append(rows, fmt.Sprint(p.Namespace, " ", row.Cells[0], " ", row.Cells[1], " ", backupCell(row.Cells[2]), " ", backupCell(row.Cells[3]), " ", row.Cells[4], " ", row.Cells[5]))
		}
		return strings.Join(rows, "\n")
	}
	if _, err := NewREST(w.Publisher).List(t.Context(), nil); err == nil {
		t.Error("it answers before it knows anything")
	}
	w.down = true
	w.settle(10)
	if got, want := table("shop", &internalversion.ListOptions{FieldSelector: fields.ParseSelectorOrDie("spec.name=web")}), "shop deployment.web Unknown none - another schedule 36h0m0s Schedule"; got != want {
		t.Errorf("while the store is away:\n%s, want\n%s", got, want)
	}
	w.down = false
	w.clock.SetTime(noon.Add(time.Minute)) // the pause is over
	w.settle(10)
	want := `shop statefulset.young UNPROTECTED none - another schedule 36h0m0s Schedule
shop cronjob.strict Late another backup - another schedule 1h0m0s Annotation
shop deployment.web Yes another backup - another schedule 36h0m0s Schedule
shop persistentvolumeclaim.data Yes another backup own weekly 252h0m0s Schedule`
	if got := table("shop", nil); got != want {
		t.Errorf("in the namespace it shows\n%s\nwant\n%s", got, want)
	}
	want = `shop statefulset.young UNPROTECTED none - holdfast/nightly 36h0m0s Schedule
shop cronjob.strict Late holdfast/all - holdfast/nightly 1h0m0s Annotation
blog deployment.web Yes holdfast/all - - 100h0m0s NamespaceAnnotation
shop deployment.web Yes holdfast/all - holdfast/nightly 36h0m0s Schedule
shop persistentvolumeclaim.data Yes holdfast/all own weekly 252h0m0s Schedule`
	if got := table("", nil); got != want {
		t.Errorf("in all namespaces it shows\n%s\nwant\n%s", got, want)
	}
	if got := table("", &internalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"app": "web"})}); got != "shop deployment.web Yes holdfast/all - holdfast/nightly 36h0m0s Schedule" {
		t.Errorf("by a label it shows\n%s", got)
	}
	one, err := NewREST(w.Publisher).Get(genericapirequest.WithNamespace(t.Context(), "shop"), "persistentvolumeclaim.data", nil)
	if err != nil || one.(*v1alpha1.Protection).Status.Objects.Backup.Name != "" {
		t.Errorf("the one is %+v, %v", one, err)
	}
	if _, err := NewREST(w.Publisher).Get(genericapirequest.WithNamespace(t.Context(), "shop"), "pod.web-1", nil); err == nil {
		t.Error("a pod of a workload has a row")
	}
	// A claim made anew is another one.
	data.uid, data.created = "anew", -1
	w.lives(data)
	w.settle(10)
	if got := table("shop", &internalversion.ListOptions{FieldSelector: fields.ParseSelectorOrDie("status.protected=UNPROTECTED")}); !strings.Contains(got, "persistentvolumeclaim.data UNPROTECTED none none") {
		t.Errorf("with the claim made anew it shows\n%s", got)
	}
	// In pages each row comes once.
	var names []string
	for options := (&internalversion.ListOptions{Limit: 2, Continue: "Lw"}); ; { // from before the first
		list, err := NewREST(w.Publisher).List(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list.(*v1alpha1.ProtectionList).Items {
			names = append(names, p.Namespace+"/"+p.Name)
		}
		if options.Continue = list.(*v1alpha1.ProtectionList).Continue; options.Continue == "" {
			break
		}
	}
	if len(names) != 5 || !slices.IsSorted(names) {
		t.Errorf("in pages there are %q", names)
	}
}

// backupCell is a cell without the age.
func backupCell(cell any) string {
	name, _, _ := strings.Cut(fmt.Sprint(cell), " (")
	return name
}

// TestMemoryOfObjects: 1,000 objects take less than 1 MB, and pods of workloads none.
func TestMemoryOfObjects(t *testing.T) {
	w := newWorld(t, storetest.Memory(t))
	w.namespace("shop", "")
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	const n = 10_000
	fill := func(kind string, owned bool) uint64 {
		before := heap()
		for i := range n {
			w.lives(&thing{kind: kind, namespace: fmt.Sprint("shop-", i/20), name: fmt.Sprintf("a-name-of-some-length-%d", i), uid: fmt.Sprintf("%08d-0000-4000-8000-000000000000", i), owned: owned,
				created: -10, is: map[string]string{"app.kubernetes.io/name": fmt.Sprint("web-", i), "app.kubernetes.io/instance": fmt.Sprint("i-", i), "app.kubernetes.io/part-of": "shop", "tier": "gold"}})
		}
		w.decide()
		return max(heap(), before) - before
	}
	claims := fill("PersistentVolumeClaim", false)
	t.Logf("%d bytes for each claim", claims/n)
	if claims > n*1000 {
		t.Errorf("a claim takes %d bytes", claims/n)
	}
	if pods := fill("Pod", true); pods > n*20 {
		t.Errorf("a pod of a workload takes %d bytes", pods/n)
	}
	runtime.KeepAlive(w)
}
