// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestTenantsSeeNothingForeign follows what two tenants are sent, byte by byte,
// while their backups wait for each other's and for an administrator's: nobody's
// names reach anybody else. Who may list all namespaces, and does, is told all names.
func TestTenantsSeeNothingForeign(t *testing.T) {
	// Bob has one namespace. Ann has one too, and may also back up Bob's.
	ann, bob := labtest.Name("ann"), labtest.Name("bob")
	orchard, cellar := lab.Namespace(t, "orchard"), lab.Namespace(t, "cellar")
	lab.Grant(t, ann, "edit", orchard)
	lab.Grant(t, ann, "edit", cellar)
	lab.Grant(t, bob, "edit", cellar)
	lab.Pod(t, cellar, labtest.Unattended)

	streams := map[string][]*labtest.Stream{}
	for user, namespace := range map[string]string{ann: orchard, bob: cellar} {
		for _, resource := range watched {
			for _, accept := range []string{"", asTable} {
				streams[user] = append(streams[user], lab.Watch(t, user, api+"/namespaces/"+namespace+"/"+resource+"?watch=1", accept))
			}
		}
		streams[user] = append(streams[user], lab.Watch(t, user, "/api/v1/namespaces/"+namespace+"/events?watch=1", ""))
	}

	everywhere := map[string]*labtest.Stream{}
	for _, accept := range []string{"", asTable} {
		everywhere[accept] = lab.Watch(t, "", api+"/backupqueues?watch=1", accept)
	}

	administrators := lab.HoldSpec(t, labtest.Name("inventory"), v1alpha1.BackupSpec{IncludedNamespaces: []string{cellar}})
	plum, quince, second := labtest.Name("plum"), labtest.Name("quince"), labtest.Name("walnut")
	create := func(user, namespace, name string, namespaces ...string) {
		t.Helper()
		_, err := as(t, user).HoldfastV1alpha1().Backups(namespace).Create(t.Context(), &v1alpha1.Backup{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.BackupSpec{IncludedNamespaces: namespaces},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	place := func(user, namespace, name string, want string) {
		t.Helper()
		labtest.Eventually(t, "the place of "+name, func() error {
			found, err := as(t, user).HoldfastV1alpha1().BackupQueueEntries(namespace).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got := explained(found.Status) + ": " + found.Status.Message; got != want {
				return fmt.Errorf("it is %s\nnot %s", got, want)
			}
			return nil
		})
	}
	create(ann, orchard, plum, orchard, cellar)
	place(ann, orchard, plum, fmt.Sprintf("1 Queued NamespaceOverlap blockers=[] others=1 conflict=[%s]: overlaps another backup in %s", cellar, cellar))
	create(bob, cellar, quince, cellar)
	place(bob, cellar, quince, fmt.Sprintf("2 Queued NamespaceOverlap blockers=[] others=1 conflict=[%s]: overlaps another backup in %s", cellar, cellar))
	create(bob, cellar, second, cellar)
	place(bob, cellar, second, fmt.Sprintf("3 Queued NamespaceOverlap blockers=[] others=1 conflict=[%s]: overlaps another backup in %s", cellar, cellar))
	// Within a namespace, who reads makes no difference.
	for name, namespace := range map[string]string{plum: orchard, quince: cellar} {
		record, err := lab.Holdfast.HoldfastV1alpha1().BackupQueueEntries(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(record.Status.Blockers) != 0 {
			t.Errorf("what %s shows depends on who reads it: %+v", name, record.Status)
		}
	}
	blocker := labtest.System + "/" + administrators.Name
	labtest.Eventually(t, "the names, over all namespaces", func() error {
		entries := entriesOver(t, "")
		for name, namespace := range map[string]string{plum: orchard, quince: cellar} {
			entry := entries[namespace+"/"+name]
			if entry == nil || entry.Status.OtherBlockers != 0 || len(entry.Status.Blockers) != 1 || entry.Status.Message != fmt.Sprintf("overlaps %s (running) in %s", blocker, cellar) {
				return fmt.Errorf("%s shows %+v", name, entry)
			}
			// A list and a watch of one scope show the same.
			for scope, shown := range map[string]*v1alpha1.BackupQueueEntry{"": entry, namespace: entriesOver(t, namespace)[namespace+"/"+name]} {
				if told := initially(t, scope, name); !equality.Semantic.DeepEqual(told, shown) {
					return fmt.Errorf("in the scope %q a watch tells %+v of %s, and a list %+v", scope, told, name, shown)
				}
			}
		}
		if got, err := lab.Holdfast.HoldfastV1alpha1().Backups("").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + plum}); err != nil || len(got.Items) != 1 || !strings.Contains(fmt.Sprint(got.Items[0].Status.Conditions), blocker) {
			return fmt.Errorf("the backups are %+v, %v", got, err)
		}
		table := string(lab.Request(t, http.MethodGet, api+"/backupqueues", asTable).Body)
		if !strings.Contains(table, `"`+blocker+`"`) {
			return fmt.Errorf("the table is %s", table)
		}
		for accept, want := range map[string]string{"": "overlaps " + blocker, asTable: `"` + blocker + `"`} {
			if text := everywhere[accept].Text(); !strings.Contains(text, want) {
				return fmt.Errorf("a watch as %q tells no %s: %s", accept, want, text)
			}
		}
		return nil
	})
	foreign := map[string][]string{
		ann: {bob, quince, second, administrators.Name, "lab-admin"},
		bob: {ann, orchard, plum, administrators.Name, "lab-admin"},
	}
	namespaces := map[string]string{ann: orchard, bob: cellar}
	lists := func() {
		t.Helper()
		for user, namespace := range namespaces {
			in := api + "/namespaces/" + namespace + "/"
			paths := map[string]int{
				"/api/v1/namespaces/" + namespace + "/events": http.StatusOK,
				in + "backups/of-nobody":                      http.StatusNotFound,
				in + "backups?fieldSelector=spec.bad%3D1":     http.StatusBadRequest,
				api + "/backups":                              http.StatusForbidden,
				api + "/backupqueues":                         http.StatusForbidden,
				api + "/backupqueues?watch=1&fieldSelector=metadata.namespace%3D" + namespace: http.StatusForbidden,
				api + "/volumebackups?fieldSelector=metadata.namespace%3D" + namespace:        http.StatusForbidden,
				in + "backupobjects?fieldSelector=kind%3DConfigMap":                           http.StatusOK,
				in + "backupobjects": http.StatusBadRequest,
				in + "protections":   http.StatusOK,
				api + "/protections?fieldSelector=metadata.namespace%3D" + namespace: http.StatusForbidden,
				api + "/backupobjects?fieldSelector=kind%3DConfigMap":                http.StatusForbidden,
				api + "/nodeagents":                 http.StatusForbidden,
				api + "/nodeagents?watch=1":         http.StatusForbidden,
				api + "/nodeagents/" + labtest.Node: http.StatusForbidden,
			}
			for _, resource := range resources {
				paths[in+resource] = http.StatusOK
				paths[in+resource+"?limit=1"] = http.StatusOK
				paths[in+resource+"?resourceVersion=1&resourceVersionMatch=Exact"] = http.StatusGone
			}
			for path, code := range paths {
				for _, accept := range []string{"application/json", asTable} {
					answer := lab.RequestAs(t, user, http.MethodGet, path, accept)
					if answer.Code != code {
						t.Errorf("%s as %s: %d, not %d: %s", path, user, answer.Code, code, answer.Body)
					}
					mustNotContain(t, fmt.Sprintf("the answer to %s as %s", path, user), fmt.Sprintf("%v %s", answer.Header, answer.Body), foreign[user])
				}
			}
		}
	}
	lists()

	administrators.Release(t)
	for _, backup := range [][2]string{{orchard, plum}, {cellar, quince}, {cellar, second}} {
		lab.AwaitPhase(t, backup[0], backup[1], v1alpha1.BackupPhaseCompleted)
		lab.AwaitRunGone(t, backup[0]+"."+backup[1])
	}
	lists()

	// Their volumes lie in an administrator's backup, in a store that goes away.
	location, folder := lab.Location(t, "vault")
	stocktaking := labtest.Name("stocktaking")
	barn, attic := lab.Namespace(t, "barn"), lab.Namespace(t, "attic")
	namespaces = map[string]string{ann: barn, bob: attic}
	foreign[ann] = append(foreign[ann], stocktaking, attic)
	foreign[bob] = append(foreign[bob], stocktaking, barn)
	for user, namespace := range namespaces {
		lab.Grant(t, user, "edit", namespace)
		lab.PodWithClaim(t, namespace, labtest.Node)
	}
	spec := v1alpha1.BackupSpec{IncludedNamespaces: []string{barn, attic}, DefaultVolumesToFsBackup: new(true)}
	lab.Create(t, labtest.System, stocktaking, spec)
	lab.AwaitCompleted(t, stocktaking)
	lab.AwaitRunGone(t, stocktaking)
	for user, namespace := range namespaces {
		for _, resource := range []string{"backupvolumes", "volumebackups"} {
			within, over := "another backup", labtest.System+"/"+stocktaking
			labtest.Eventually(t, "the "+resource+" of "+namespace, func() error {
				theirs := string(lab.RequestAs(t, user, http.MethodGet, api+"/namespaces/"+namespace+"/"+resource, asTable).Body)
				own := string(lab.Request(t, http.MethodGet, api+"/namespaces/"+namespace+"/"+resource, asTable).Body)
				all := string(lab.Request(t, http.MethodGet, api+"/"+resource, asTable).Body)
				if !strings.Contains(theirs, within) || !strings.Contains(own, within) || strings.Contains(own, stocktaking) || strings.Count(all, `"`+over+`"`) < len(namespaces) {
					return fmt.Errorf("%s is shown %s\nthe administrator there %s\nand over all namespaces %s", user, theirs, own, all)
				}
				return nil
			})
		}
	}
	for user, namespace := range namespaces {
		_, err := as(t, user).HoldfastV1alpha1().Backups(namespace).Create(t.Context(), &v1alpha1.Backup{
			ObjectMeta: metav1.ObjectMeta{Name: "own"},
			Spec:       v1alpha1.BackupSpec{DefaultVolumesToFsBackup: new(true)},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		lab.AwaitPhase(t, namespace, "own", v1alpha1.BackupPhaseCompleted)
		lab.AwaitRunGone(t, namespace+".own")
	}
	vaulted := labtest.Name("vaulted")
	lab.Create(t, labtest.System, vaulted, v1alpha1.BackupSpec{IncludedNamespaces: []string{labtest.System}, StorageLocation: location})
	lab.AwaitCompleted(t, vaulted)
	lab.AwaitRunGone(t, vaulted)
	if err := os.Rename(folder, folder+"-away"); err != nil {
		t.Fatal(err)
	}
	for user, namespace := range namespaces {
		foreign[user] = append(foreign[user], vaulted, location, folder)
		labtest.Eventually(t, "the history of "+namespace, func() error {
			answer := lab.RequestAs(t, user, http.MethodGet, api+"/namespaces/"+namespace+"/volumebackups", asTable)
			for _, want := range []string{"another backup", namespace + ".own:data"} {
				if !strings.Contains(string(answer.Body), want) {
					return fmt.Errorf("%q is not in %s", want, answer.Body)
				}
			}
			return nil
		})
	}
	labtest.Eventually(t, "a warning of the store", func() error {
		all := lab.Request(t, http.MethodGet, api+"/backups", "").Header.Values("Warning")
		theirs := lab.RequestAs(t, bob, http.MethodGet, api+"/namespaces/"+attic+"/backups", "").Header.Values("Warning")
		if !strings.Contains(strings.Join(all, "\n"), location) || len(theirs) != 1 || !strings.Contains(theirs[0], "what is shown may be incomplete") {
			return fmt.Errorf("the administrator is warned %q, and %s %q", all, bob, theirs)
		}
		return nil
	})
	lists()
	namespaces = map[string]string{ann: orchard, bob: cellar}
	lists()
	if err := os.Rename(folder+"-away", folder); err != nil {
		t.Fatal(err)
	}
	for user, last := range map[string]string{ann: plum, bob: second} {
		labtest.Eventually(t, "the events of "+last, func() error {
			events := streams[user][len(streams[user])-1].Text()
			if !strings.Contains(events, "The backup has ended") || !strings.Contains(events, last) {
				return fmt.Errorf("so far there are %s", events)
			}
			return nil
		})
		for i, stream := range streams[user] {
			stream.Close()
			mustNotContain(t, fmt.Sprintf("stream %d of %s", i, user), stream.Text(), foreign[user])
		}
		if text := streams[user][0].Text(); !strings.Contains(text, last) || !strings.Contains(text, "Completed") {
			t.Errorf("the backups that %s was sent end before %s does: %s", user, last, text)
		}
	}
}

// entriesOver lists the queue of a namespace, or of all if it is empty, as an administrator.
func entriesOver(t *testing.T, namespace string) map[string]*v1alpha1.BackupQueueEntry {
	t.Helper()
	list, err := lab.Holdfast.HoldfastV1alpha1().BackupQueueEntries(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*v1alpha1.BackupQueueEntry{}
	for i := range list.Items {
		found[list.Items[i].Namespace+"/"+list.Items[i].Name] = &list.Items[i]
	}
	return found
}

// initially is what a watch of a namespace, or of all, begins with about an entry; nil if it doesn't.
func initially(t *testing.T, namespace, name string) *v1alpha1.BackupQueueEntry {
	t.Helper()
	watcher, err := lab.Holdfast.HoldfastV1alpha1().BackupQueueEntries(namespace).Watch(t.Context(), metav1.ListOptions{
		SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		entry, ok := event.Object.(*v1alpha1.BackupQueueEntry)
		if !ok || event.Type == watch.Bookmark {
			return nil
		}
		if entry.Name == name {
			return entry
		}
	}
	return nil
}

func mustNotContain(t *testing.T, what, text string, forbidden []string) {
	t.Helper()
	for _, name := range forbidden {
		if at := strings.Index(text, name); at >= 0 {
			t.Errorf("%s has %q: %s", what, name, text[max(0, at-200):min(len(text), at+200)])
		}
	}
}
