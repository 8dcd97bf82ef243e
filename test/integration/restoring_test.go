// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

const restoreManifest = "apiVersion: holdfast.io/v1alpha1\nkind: Restore\nmetadata: {name: %s, namespace: %s}\nspec: %s\n"

var dryRun = []string{"create", "--dry-run=server", "-o", "yaml", "-f", "-"}

func restorePath(namespace, name, subresource string) string {
	return api + "/namespaces/" + namespace + "/restores/" + name + "/" + subresource
}

// TestRestoreRequests: what is asked for is checked at once, with the field that says so,
// and a dry run does all that and writes nothing.
func TestRestoreRequests(t *testing.T) {
	t.Parallel()
	backup, namespace := labtest.Name("for-restores"), lab.Namespace(t, "restored")
	lab.Backup(t, backup, namespace)
	lab.AwaitCompleted(t, backup)
	for name, c := range map[string]struct {
		spec string
		says []string
	}{
		"unknown field":          {"{backupName: %s, restoreVolumes: true}", []string{"restoreVolumes"}},
		"nearly Velero's":        {"{backupName: %s, uploaderConfig: {parallelFiles: 4}}", []string{"uploaderConfig.parallelFiles"}},
		"no such backup":         {"{backupName: not-%s}", []string{"spec.backupName", "no such Backup"}},
		"backup and schedule":    {"{backupName: %s, scheduleName: nightly}", []string{"spec.scheduleName"}},
		"no such schedule":       {"{scheduleName: of-%s}", []string{"spec.scheduleName", "no good backup of the schedule"}},
		"unknown policy":         {"{backupName: %s, existingResourcePolicy: replace}", []string{"spec.existingResourcePolicy", `"recreate"`}},
		"bad mapping":            {"{backupName: %s, namespaceMapping: {" + namespace + ": Not_A_Name}}", []string{"spec.namespaceMapping[" + namespace + "]"}},
		"mapping of another one": {"{backupName: %s, namespaceMapping: {default: other}}", []string{"spec.namespaceMapping[default]", "is not restored"}},
		"not in the backup":      {"{backupName: %s, includedNamespaces: [default]}", []string{"spec.includedNamespaces", "is not in the backup"}},
		"object without a name":  {"{backupName: %s, objects: [{resource: secrets, namespace: " + namespace + "}]}", []string{"spec.objects[0].name"}},
		"nothing to restore":     {"{backupName: %s, volumesOnly: true, restorePVs: false}", []string{"spec.restorePVs"}},
		"into Holdfast's own":    {"{backupName: %s, namespaceMapping: {" + namespace + ": holdfast-locations}}", []string{"Holdfast's own"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lab.Refused(t, fmt.Sprintf(restoreManifest, "bad", labtest.System, fmt.Sprintf(c.spec, backup)), []string{"create", "-f", "-"}, c.says...)
		})
	}
	stdout, stderr, err := lab.TryKubectl(t, fmt.Sprintf(restoreManifest, "dry", labtest.System, "{includedNamespaces: ["+namespace+"]}"), dryRun...)
	if err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	for _, want := range []string{"name: " + backup, "existingResourcePolicy: none", "restorePVs: true"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the dry run prints no %q: %s", want, stdout)
		}
	}
	if _, err := lab.Holdfast.HoldfastV1alpha1().Restores(labtest.System).Get(t.Context(), "dry", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it exists: %v", err)
	}
	if _, err := lab.Engine.EngineV1alpha1().RestoreRuns(labtest.System).Get(t.Context(), "dry", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it is recorded: %v", err)
	}
	for _, path := range []string{"restores", "restores.spec", "restores.spec.objects", "restores.status", "restores.status.backup"} {
		if text := lab.Kubectl(t, "explain", path); !strings.Contains(text, "DESCRIPTION") {
			t.Errorf("kubectl explain %s prints %s", path, text)
		}
	}
}

// TestRestoresOfStrangers: what is in the name of a cluster that it is not of is restored
// by nobody, and what nobody vouches for by name only, with a warning.
func TestRestoresOfStrangers(t *testing.T) {
	t.Parallel()
	location, folder := lab.Location(t, "strange")
	stranger := anotherCluster(t)
	namespace := lab.Namespace(t, "strange")
	storeFrom(t, folder, stranger, namespace, "daily")
	name := namespace + ".daily"
	lab.AwaitCompleted(t, name)
	byName := fmt.Sprintf(restoreManifest, "strange", labtest.System, "{backupName: "+name+"}")
	if _, stderr, err := lab.TryKubectl(t, byName, dryRun...); err != nil || !strings.Contains(stderr, "nobody vouches for") {
		t.Errorf("one that is foreign: %v: %s", err, stderr)
	}
	// Another test's backup may be of all namespaces.
	stdout, stderr, err := lab.TryKubectl(t, fmt.Sprintf(restoreManifest, "strange", labtest.System, "{includedNamespaces: ["+namespace+"]}"), dryRun...)
	if err != nil && !strings.Contains(stderr, "no good backup") || strings.Contains(stdout, name) {
		t.Errorf("one that is foreign, and is not named: %v: %s%s", err, stdout, stderr)
	}
	other := anotherCluster(t)
	lab.Trust(t, location, enginev1alpha1.TrustedCluster{Name: "other", UID: stranger.UID, PublicKey: other.Key.PublicKey()})
	labtest.Eventually(t, "it to be seen as signed with a key that nobody knows", func() error {
		_, stderr, err := lab.TryKubectl(t, byName, dryRun...)
		if err == nil || !strings.Contains(stderr, "spec.backupName") || !strings.Contains(stderr, "is of nobody who is known") {
			return fmt.Errorf("%v: %s", err, stderr)
		}
		return nil
	})
}

// TestRestoresOfTenants: who may edit a namespace restores into it, with a backup of it, and
// reaches nothing else; and what they are sent names nobody else's restores.
func TestRestoresOfTenants(t *testing.T) {
	ann, bob, carol := labtest.Name("ann"), labtest.Name("bob"), labtest.Name("carol")
	orchard, cellar := lab.Namespace(t, "orchard"), lab.Namespace(t, "cellar")
	lab.Grant(t, ann, "edit", orchard)
	lab.Grant(t, bob, "edit", cellar)
	lab.Bind(t, carol, "holdfast-edit", cellar)
	lab.Grant(t, carol, "holdfast-view", cellar)
	lab.Grant(t, carol, "edit", orchard)
	streams := map[string][]*labtest.Stream{}
	namespaces := map[string]string{ann: orchard, bob: cellar}
	plum, quince := labtest.Name("plum"), labtest.Name("quince")
	names := map[string]string{ann: plum, bob: quince}
	for user, namespace := range namespaces {
		lab.Create(t, namespace, "own", v1alpha1.BackupSpec{})
		lab.AwaitPhase(t, namespace, "own", v1alpha1.BackupPhaseCompleted)
		for _, accept := range []string{"", asTable} {
			streams[user] = append(streams[user], lab.Watch(t, user, api+"/namespaces/"+namespace+"/restores?watch=1", accept))
		}
		streams[user] = append(streams[user], lab.Watch(t, user, "/api/v1/namespaces/"+namespace+"/events?watch=1", ""))
	}
	both := labtest.Name("both")
	lab.Backup(t, both, orchard, cellar)
	lab.AwaitCompleted(t, both)

	refused := func(user, namespace, spec string, says ...string) {
		t.Helper()
		lab.Refused(t, fmt.Sprintf(restoreManifest, "refused", namespace, spec), []string{"create", "-f", "-", "--as=" + user}, says...)
	}
	refused(ann, cellar, "{backupName: own}", "forbidden", "restores")
	refused(ann, orchard, "{backupName: own, namespaceMapping: {"+orchard+": "+cellar+"}}", "forbidden", fmt.Sprintf("may not create restores.holdfast.io in namespace %q", cellar))
	refused(ann, orchard, "{backupName: own, namespaceMapping: {"+orchard+": nowhere-at-all}}", "forbidden", `in namespace "nowhere-at-all"`)
	refused(ann, orchard, "{backupName: own, backupNamespace: "+cellar+"}", "spec.backupNamespace", "only a Restore in the namespace")
	refused(ann, orchard, "{backupName: "+both+", backupNamespace: "+labtest.System+"}", "spec.backupNamespace")
	refused(ann, orchard, "{backupName: "+both+"}", "spec.backupName", "no such Backup")
	refused(ann, orchard, "{backupName: own, includedNamespaces: ["+cellar+"]}", "spec.includedNamespaces", "is not in the backup")
	refused(ann, orchard, "{backupName: own, objects: [{resource: clusterroles, name: admin}]}", "forbidden", "cluster-scoped")
	// Carol may also restore Bob's, but not read what Bob has.
	onto := "{backupName: own, namespaceMapping: {" + orchard + ": " + cellar + "}}"
	if _, stderr, err := lab.TryKubectl(t, fmt.Sprintf(restoreManifest, "onto", orchard, onto), append(slices.Clone(dryRun), "--as="+carol)...); err != nil {
		t.Errorf("into a namespace that she may restore into: %v: %s", err, stderr)
	}
	refused(carol, cellar, "{backupName: own, namespaceMapping: {"+cellar+": "+orchard+"}}", "forbidden", fmt.Sprintf("may not get secrets in namespace %q", cellar))

	uids := map[string]types.UID{}
	for user, namespace := range namespaces {
		created, err := as(t, user).HoldfastV1alpha1().Restores(namespace).Create(t.Context(), &v1alpha1.Restore{
			ObjectMeta: metav1.ObjectMeta{Name: names[user]}, Spec: v1alpha1.RestoreSpec{PlanOnly: true}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		uids[user] = created.UID
		if created.Status.Requester != user || created.Status.Backup == nil || created.Status.Backup.Name != "own" {
			t.Errorf("created: %+v", created.Status)
		}
		found, err := as(t, user).HoldfastV1alpha1().Restores(namespace).Get(t.Context(), names[user], metav1.GetOptions{})
		if err != nil || found.UID != created.UID {
			t.Errorf("reading it: %+v, %v", found, err)
		}
		record, err := lab.Engine.EngineV1alpha1().RestoreRuns(labtest.System).Get(t.Context(), namespace+"."+names[user], metav1.GetOptions{})
		if err != nil || record.Spec.Requester.Username != user || len(record.Spec.TargetNamespaces) != 1 || record.Spec.TargetNamespaces[0] != namespace {
			t.Errorf("recorded: %+v, %v", record, err)
		}
		if _, stderr, err := lab.TryKubectl(t, body("RestoreCancellation"), "create", "--raw", restorePath(namespace, names[user], "cancel"), "-f", "-", "--as="+user); err != nil && !strings.Contains(stderr, "has ended") {
			t.Errorf("cancelling it: %v: %s", err, stderr)
		}
	}
	foreign := map[string][]string{ann: {bob, carol, quince, both, string(uids[bob])}, bob: {ann, carol, plum, orchard, both, string(uids[ann])}}
	for user, namespace := range namespaces {
		in := api + "/namespaces/" + namespace + "/restores"
		for path, code := range map[string]int{
			in: http.StatusOK, in + "?limit=1": http.StatusOK, in + "/" + names[user]: http.StatusOK, in + "/of-nobody": http.StatusNotFound,
			in + "?fieldSelector=spec.bad%3D1": http.StatusBadRequest, api + "/restores": http.StatusForbidden,
			restorePath(namespace, "of-nobody", "log"): http.StatusNotFound,
		} {
			for _, accept := range []string{"application/json", asTable} {
				answer := lab.RequestAs(t, user, http.MethodGet, path, accept)
				if answer.Code != code {
					t.Errorf("%s as %s: %d, not %d: %s", path, user, answer.Code, code, answer.Body)
				}
				mustNotContain(t, fmt.Sprintf("the answer to %s as %s", path, user), fmt.Sprintf("%v %s", answer.Header, answer.Body), foreign[user])
			}
		}
		labtest.Eventually(t, "the restore in a watch", func() error {
			for _, stream := range streams[user][:2] {
				if text := stream.Text(); !strings.Contains(text, names[user]) || !strings.Contains(text, "Cancel") && !strings.Contains(text, "Completed") && !strings.Contains(text, "Failed") {
					return fmt.Errorf("so far there is %s", text)
				}
			}
			return nil
		})
		for i, stream := range streams[user] {
			stream.Close()
			mustNotContain(t, fmt.Sprintf("stream %d of %s", i, user), stream.Text(), foreign[user])
		}
	}
}

// TestRestoresOutliveTheirRecords: a restore whose record is gone is listed from its store, with
// its log and results, to whoever sees its namespace. One of another cluster is the
// administrator's until its location trusts that.
func TestRestoresOutliveTheirRecords(t *testing.T) {
	t.Parallel()
	ann, orchard := labtest.Name("ann"), lab.Namespace(t, "orchard")
	lab.Grant(t, ann, "edit", orchard)
	lab.Create(t, orchard, "own", v1alpha1.BackupSpec{})
	lab.AwaitPhase(t, orchard, "own", v1alpha1.BackupPhaseCompleted)
	restores := as(t, ann).HoldfastV1alpha1().Restores(orchard)
	restore, err := restores.Create(t.Context(), &v1alpha1.Restore{ObjectMeta: metav1.ObjectMeta{Name: "plan"}, Spec: v1alpha1.RestoreSpec{PlanOnly: true}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	record := awaitRestored(t, orchard+".plan")
	if err := lab.Engine.EngineV1alpha1().RestoreRuns(labtest.System).Delete(t.Context(), record.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	storeName := format.RestoreStoreName(orchard, "plan", labtest.System, restore.UID)
	past := strings.TrimPrefix(storeName, orchard+".")
	only := func(want string) error {
		list, err := restores.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 || list.Items[0].Name != want || list.Items[0].Status.Origin == nil || list.Items[0].Status.Requester == "" {
			return fmt.Errorf("there are %+v", list.Items)
		}
		return nil
	}
	labtest.Eventually(t, "the restore to be listed from its store", func() error { return only(past) })
	if stdout := lab.Kubectl(t, "get", "hfr", "-n", orchard, "-o", "wide", "--as="+ann); !strings.Contains(stdout, past) || !strings.Contains(stdout, "Own") {
		t.Errorf("kubectl get prints %s", stdout)
	}
	for subresource, want := range map[string]string{"log": "objects are to be restored", "results": "{", "plan": "items"} {
		if stdout, stderr, err := lab.TryKubectl(t, "", "get", "--raw", restorePath(orchard, past, subresource), "--as="+ann); err != nil || !strings.Contains(stdout, want) {
			t.Errorf("its %s: %v: %s%s", subresource, err, stdout, stderr)
		}
	}

	// Somebody puts the plan in the place of the results.
	content := func(key string) string { return filepath.Join(lab.Dir, "store", key) }
	plan, err := os.ReadFile(content(format.RestorePlanKey(storeName)))
	if err == nil {
		err = os.WriteFile(content(format.RestoreResultsKey(storeName)), plan, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if stdout, stderr, err := lab.TryKubectl(t, "", "get", "--raw", restorePath(orchard, past, "results"), "--as="+ann); err == nil || !strings.Contains(stderr, "not what was stored there") {
		t.Errorf("results that were replaced: %v: %s%s", err, stdout, stderr)
	}

	// The same in a store that another cluster writes to, and a listing finds.
	location, folder := lab.Location(t, "past")
	stranger := anotherCluster(t)
	ended := metav1.Date(2026, time.March, 1, 1, 5, 0, 0, time.UTC)
	data, err := format.EncodeRestore(&v1alpha1.Restore{
		ObjectMeta: metav1.ObjectMeta{Namespace: orchard, Name: "theirs", UID: "uid-there", CreationTimestamp: ended},
		Status: v1alpha1.RestoreStatus{Phase: v1alpha1.RestorePhaseCompleted, CompletionTimestamp: &ended, Requester: "root-of-another",
			Backup: &v1alpha1.RestoredBackup{Namespace: orchard, Name: "daily", StorageLocation: "there"}},
	}, nil, stranger)
	if err != nil {
		t.Fatal(err)
	}
	theirs := format.RestoreStoreName(orchard, "theirs", labtest.System, "uid-there")
	put(t, folder, format.RestoreMetadataKey(theirs), data)
	if _, err := lab.Holdfast.HoldfastV1alpha1().SyncRequests(labtest.System).Create(t.Context(), &v1alpha1.SyncRequest{ObjectMeta: metav1.ObjectMeta{Name: location}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, "the other cluster's restore", func() error {
		found, err := lab.Holdfast.HoldfastV1alpha1().Restores(labtest.System).Get(t.Context(), theirs, metav1.GetOptions{})
		if err == nil && (found.Status.Origin.Trust != v1alpha1.BackupTrustForeign || found.Status.Requester != "" || found.Status.Backup.StorageLocation != location) {
			err = fmt.Errorf("it is %+v", found.Status)
		}
		return err
	})
	if err := only(past); err != nil {
		t.Error(err)
	}
	lab.Trust(t, location, enginev1alpha1.TrustedCluster{Name: "other", UID: stranger.UID, PublicKey: stranger.Key.PublicKey()})
	labtest.Eventually(t, "it to be trusted", func() error {
		_, err := restores.Get(t.Context(), strings.TrimPrefix(theirs, orchard+"."), metav1.GetOptions{})
		return err
	})
}

// TestRestoreExample: what the documentation shows is taken as it is.
func TestRestoreExample(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../artifacts/examples/restore.yaml")
	if err != nil {
		t.Fatal(err)
	}
	namespace := lab.Namespace(t, "example")
	lab.Create(t, namespace, "before-upgrade", v1alpha1.BackupSpec{})
	lab.AwaitPhase(t, namespace, "before-upgrade", v1alpha1.BackupPhaseCompleted)
	if _, stderr, err := lab.TryKubectl(t, strings.Replace(string(text), "namespace: shop", "namespace: "+namespace, 1), "create", "-f", "-"); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	if got := lab.Kubectl(t, "get", "hfr", "-n", namespace, "-o", "wide"); !strings.Contains(got, "after-upgrade") || !strings.Contains(got, "before-upgrade") {
		t.Errorf("kubectl get hfr prints\n%s", got)
	}
}
