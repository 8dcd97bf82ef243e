// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// history is a Publisher with the store of one location.
type history struct {
	*harness
	catalog *catalog.Catalog
	store   *storetest.Faulty
}

func clusterOf(t *testing.T, uid string) format.Cluster {
	t.Helper()
	key, err := format.ParseSigningKey(bytes.Repeat([]byte(uid[:1]), 32))
	if err != nil {
		t.Fatal(err)
	}
	return format.Cluster{SystemNamespace: system, UID: uid, Key: key}
}

func newHistory(t *testing.T) *history {
	h := &history{harness: newHarness(t), catalog: catalog.New(system, func(catalog.Changes) {}), store: storetest.NewFaulty(storetest.Memory(t), clock.RealClock{})}
	h.catalog.SetIdentity(identity.Identity{UID: "us", Keys: []string{clusterOf(t, "us").Key.PublicKey()}})
	h.catalog.SetNamespaces(map[string]types.UID{"shop": "shop-now"})
	h.publisher.setNamespace(namespace("shop", "shop-now"), true)
	h.publisher.judge = h.catalog.Judge
	h.publisher.SetLocations(map[string]string{"default": ""})
	return h
}

// put stores the end of a restore, and returns its name in the store.
func (h *history) put(cluster format.Cluster, ns, name string, uid, namespaceUID types.UID, change ...func([]byte) []byte) string {
	h.Helper()
	restore := &v1alpha1.Restore{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: uid, CreationTimestamp: metav1.Unix(1000, 0), Labels: map[string]string{"a": "b"}},
		Spec:       v1alpha1.RestoreSpec{BackupName: "daily"},
		Status: v1alpha1.RestoreStatus{
			Phase: v1alpha1.RestorePhaseCompleted, Requester: "ann", CompletionTimestamp: new(metav1.Unix(2000, 0)),
			Backup: &v1alpha1.RestoredBackup{Namespace: ns, Name: "daily", StorageLocation: "as-it-was-called-there"},
			Origin: &v1alpha1.BackupOrigin{NamespaceUID: namespaceUID},
		},
	}
	storeName := format.RestoreStoreName(ns, name, cluster.SystemNamespace, uid)
	contents := format.Contents{}
	contents.Set(format.RestoreLogKey(storeName), format.NewContent([]byte("log of "+name)))
	data, err := format.EncodeRestore(restore, contents, cluster)
	if err != nil {
		h.Fatal(err)
	}
	for _, f := range change {
		data = f(data)
	}
	if err := h.store.Put(h.Context(), format.RestoreMetadataKey(storeName), data); err != nil {
		h.Fatal(err)
	}
	return storeName
}

func (h *history) read() {
	h.Helper()
	if err := h.publisher.ReadStore(h.Context(), "default", "", h.store); err != nil {
		h.Fatal(err)
	}
}

// shown are the restores that a list has, and how far each is believed.
func (h *history) shown() map[string]string {
	h.Helper()
	list := &v1alpha1.RestoreList{}
	if err := h.publisher.Log.GetList(h.Context(), "/holdfast.io/restores", storage.ListOptions{Recursive: true, Predicate: storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything(), GetAttrs: storage.DefaultNamespaceScopedAttr}}, list); err != nil {
		h.Fatal(err)
	}
	shown := map[string]string{}
	for i := range list.Items {
		r := &list.Items[i]
		text := "recorded"
		if r.Status.Origin != nil {
			text = strings.TrimSuffix(string(r.Status.Origin.Trust)+" "+r.Status.Requester, " ")
		}
		shown[r.Namespace+"/"+r.Name] = text
	}
	return shown
}

func (h *history) want(when string, want map[string]string) {
	h.Helper()
	if diff := cmp.Diff(want, h.shown()); diff != "" {
		h.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// tail is a name in the store without the namespace.
func tail(storeName string) string { return strings.TrimPrefix(storeName, "shop.") }

// TestPast: a restore whose record is gone is shown as its store has it, in its namespace if
// that is borne out, as a backup is; whoever follows a list sees it there at once.
func TestPast(t *testing.T) {
	h := newHistory(t)
	us, them := clusterOf(t, "us"), clusterOf(t, "them")
	own := h.put(us, "shop", "back", "uid-of-back", "shop-now")
	system1 := h.put(us, system, "drill", "uid-of-drill", "x")
	former := h.put(us, "shop", "of-before", "uid-1", "shop-before")
	foreign := h.put(them, "shop", "theirs", "uid-2", "shop-now")
	forged := h.put(us, "shop", "forged", "uid-3", "shop-now", func(data []byte) []byte { return bytes.Replace(data, []byte("daily"), []byte("other"), 1) })
	unsigned := h.put(format.Cluster{SystemNamespace: system, UID: "us"}, "shop", "unsigned", "uid-4", "shop-now")
	h.put(us, "shop", "unended", "uid-5", "shop-now", func(data []byte) []byte { return bytes.Replace(data, []byte("Completed"), []byte("Queued"), 1) })
	// What is copied to another name is no restore, nor is what is none.
	data, err := format.EncodeRestore(&v1alpha1.Restore{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "back", UID: "uid-of-back"}, Status: v1alpha1.RestoreStatus{Phase: "Completed"}}, nil, us)
	if err != nil {
		t.Fatal(err)
	}
	for key, data := range map[string][]byte{
		format.RestoreMetadataKey("shop.copied-0123456789"): data, format.RestoreMetadataKey("shop.bad-0123456789"): []byte("{"),
		"restores/of-velero/restore-of-velero-logs.gz": nil, "restores/shop.begun-0123456789/restore-shop.begun-0123456789-logs.gz": nil,
	} {
		if err := h.store.Put(t.Context(), key, data); err != nil {
			t.Fatal(err)
		}
	}
	run := record(1, "shop-now", enginev1alpha1.RestoreRunStatus{Phase: "Completed", Stored: true})
	h.publisher.Observe(run)
	h.read()
	want := map[string]string{
		"shop/back":            "recorded",
		system + "/" + system1: "Own ann", system + "/" + former: "Own ann",
		system + "/" + foreign: "Foreign", system + "/" + forged: "Forged", system + "/" + unsigned: "Foreign",
	}
	h.want("with a record", want)

	delete(want, "shop/back")
	want["shop/"+tail(own)] = "Own ann"
	h.publisher.forget(run)
	h.want("without it", want)
	past, _ := h.publisher.Log.GetObject("shop", tail(own))
	if past.UID != "uid-of-back" || past.Status.Backup.StorageLocation != "default" || conditionsOf(past) != `Complete=True Completed "", Succeeded=True Completed ""` {
		t.Errorf("it is shown as %+v", past)
	}
	for _, restore := range []*v1alpha1.Restore{past, {ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "back", UID: "uid-of-back"}}} {
		if got := storeNameOf(restore, system); got != own {
			t.Errorf("its files are looked for at %s", got)
		}
	}
	if got := h.publisher.Digest(past, format.RestoreLogKey(own)); got != format.NewContent([]byte("log of back")).SHA256 {
		t.Errorf("its log is said to have the digest %q", got)
	}
	if err := second(cancel(past, nil, enginev1alpha1.Ask{}, nil)); err == nil || !strings.Contains(err.Error(), "has ended already") {
		t.Errorf("it is asked to stop: %v", err)
	}

	// An unchanged store costs one request, and what is new one more. Of what is not finished it
	// is asked again.
	h.store.Reset()
	h.read()
	if list, get := h.store.Count(storetest.List), h.store.Count(storetest.Get); list != 1 || get != 1 {
		t.Errorf("%d listings and %d readings of what is known", list, get)
	}
	h.want("read again", want)

	// Trust and namespaces move what is shown, without a request.
	h.store.Reset()
	h.catalog.SetTrustedClusters(map[string][]enginev1alpha1.TrustedCluster{"default": {{Name: "them", UID: "them", PublicKey: them.Key.PublicKey()}}})
	h.publisher.JudgeAgain("")
	delete(want, system+"/"+foreign)
	want["shop/"+tail(foreign)] = "Trusted ann"
	h.want("trusted", want)
	h.catalog.SetNamespace("shop", "made-anew")
	h.publisher.setNamespace(namespace("shop", "made-anew"), true)
	h.publisher.JudgeAgain("shop")
	delete(want, "shop/"+tail(own))
	want[system+"/"+own] = "Own ann"
	h.want("in another namespace of the name", want)
	for _, successions := range []identity.Successions{{"shop": {{"shop-now", "made-anew"}}}, nil} {
		h.catalog.SetSuccessions(successions)
		h.publisher.SetSuccessions(successions)
		succeeded := maps.Clone(want)
		if successions != nil {
			delete(succeeded, system+"/"+own)
			succeeded["shop/"+tail(own)] = "Own ann"
		}
		h.want("in one that continues it, or not", succeeded)
	}

	// What somebody has removed goes, and all goes with the location.
	gone, err := h.store.Attributes(t.Context(), format.RestoreMetadataKey(former))
	if err == nil {
		err = h.store.Delete(t.Context(), gone)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.read()
	h.want("one is not listed", want)
	h.read()
	delete(want, system+"/"+former)
	h.want("one was removed", want)
	h.publisher.SetLocations(map[string]string{"default": ""})
	h.want("the location stays", want)
	if h.reads == 0 {
		t.Error("nobody is told of lists, who could warn")
	}
	h.publisher.SetLocations(nil)
	h.want("the location goes", map[string]string{})
}

func second[T, U any](_ T, _ U, err error) error { return err }

// TestPastOfARecord: what has ended since the store was read last is shown when its record
// goes; what is not in the store is not.
func TestPastOfARecord(t *testing.T) {
	h := newHistory(t)
	h.read()
	for _, c := range []struct {
		stored bool
		want   []string
	}{{false, nil}, {true, []string{"shop/" + tail(format.RestoreStoreName("shop", "back", system, "uid-of-back"))}}} {
		run := record(1, "shop-now", enginev1alpha1.RestoreRunStatus{Phase: "Failed", Stored: c.stored, Digests: map[string]string{"a": "digest"}})
		run.Spec.Requester.Username = "ann"
		h.publisher.records = recorded.NewSet((*enginev1alpha1.RestoreRun).GetUID)
		h.publisher.Observe(run)
		h.want("recorded", map[string]string{"shop/back": "recorded"})
		if shown, _ := h.publisher.Log.GetObject("shop", "back"); h.publisher.Digest(shown, "restores/b/a") != "digest" {
			t.Error("the digests of what it has stored are not known")
		}
		h.publisher.forget(run)
		for _, name := range c.want {
			namespace, name, _ := strings.Cut(name, "/")
			if shown, _ := h.publisher.Log.GetObject(namespace, name); h.publisher.Digest(shown, "restores/b/a") != "digest" {
				t.Error("they are not known without the record")
			}
		}
		if got := slices.Sorted(maps.Keys(h.shown())); !slices.Equal(got, c.want) {
			t.Errorf("stored: %t: %v", c.stored, got)
		}
	}
	h.publisher.setNamespace(namespace("shop", "another"), true)
	if got := slices.Sorted(maps.Keys(h.shown())); len(got) != 1 || !strings.HasPrefix(got[0], system+"/shop.back-") {
		t.Errorf("in a namespace that was made anew: %v", got)
	}
}

// TestPastOfTwoLocations: two locations that have the same restore show it once.
func TestPastOfTwoLocations(t *testing.T) {
	h := newHistory(t)
	own := h.put(clusterOf(t, "us"), "shop", "back", "uid-of-back", "shop-now")
	for want, locations := range map[string]map[string]string{"a": {"a": "", "b": "another"}, "b": {"b": ""}} {
		h.publisher.SetLocations(map[string]string{"a": "", "b": ""})
		for _, location := range []string{"b", "a"} {
			if err := h.publisher.ReadStore(t.Context(), location, "", h.store); err != nil {
				t.Fatal(err)
			}
		}
		h.publisher.SetLocations(locations)
		if err := h.publisher.ReadStore(t.Context(), "b", "as it was", h.store); err == nil {
			t.Error("what is none by now is read")
		}
		past, ok := h.publisher.Log.GetObject("shop", tail(own))
		if !ok || past.Status.Backup.StorageLocation != want || len(h.shown()) != 1 {
			t.Errorf("of %v it is shown as %+v", locations, past)
		}
	}
}

// TestPastThatCannotBeRead: what can't be read is read next time, and what a store forbids to
// list is not there.
func TestPastThatCannotBeRead(t *testing.T) {
	h := newHistory(t)
	own := h.put(clusterOf(t, "us"), "shop", "back", "uid-of-back", "shop-now")
	h.store.Inject(storetest.Fault{Operation: storetest.Get, Err: store.ErrUnavailable})
	if err := h.publisher.ReadStore(t.Context(), "default", "", h.store); err == nil {
		t.Error("no error")
	}
	h.want("it can't be read", map[string]string{})
	other := h.put(clusterOf(t, "us"), "shop", "other", "uid-of-other", "shop-now")
	h.store.Inject(storetest.Fault{Operation: storetest.Get, Key: format.RestoreMetadataKey(own), Err: store.ErrUnavailable})
	if err := h.publisher.ReadStore(t.Context(), "default", "", h.store); err == nil {
		t.Error("no error of one")
	}
	h.want("one can't be read", map[string]string{"shop/" + tail(other): "Own ann"})
	h.store.Inject(storetest.Fault{Operation: storetest.Get, Key: format.RestoreMetadataKey(own), Err: errors.New("400 Bad Request")})
	h.read() // and not again until the next listing
	for i := range 100 {
		h.put(clusterOf(t, "us"), "shop", "many", types.UID(fmt.Sprintf("uid-%d", i)), "shop-now")
	}
	h.store.Inject(storetest.Fault{Operation: storetest.Get, Err: store.ErrUnavailable})
	h.store.Reset()
	if err := h.publisher.ReadStore(t.Context(), "default", "", h.store); err == nil || h.store.Count(storetest.Get) >= 2*pastReads {
		t.Errorf("%d readings of a store that does not answer: %v", h.store.Count(storetest.Get), err)
	}
	h.store.Inject()
	h.read()
	if got := len(h.shown()); got != 102 {
		t.Errorf("when all can be read %d are shown", got)
	}
}

// TestPastThatIsOlder: the newest are kept, and what is no restore takes no place of theirs.
func TestPastThatIsOlder(t *testing.T) {
	known := map[string]*past{}
	for i, name := range []string{"e", "d", "c", "b", "a"} {
		known[name] = &past{bytes: 10, restore: &v1alpha1.Restore{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Unix(int64(i), 0)}}}
		known["none-"+name] = &past{}
	}
	for _, c := range []struct {
		most  int
		bytes int64
		want  string
	}{{5, 50, ""}, {3, 50, "d e"}, {5, 20, "c d e"}, {0, 50, "a b c d e"}} {
		if got := strings.Join(tooOld(known, c.most, c.bytes), " "); got != c.want {
			t.Errorf("of %d in %d bytes %q are too old, want %q", c.most, c.bytes, got, c.want)
		}
	}
}
