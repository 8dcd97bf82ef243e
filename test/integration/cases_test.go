// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	graph "github.com/holdfast-io/holdfast/pkg/manifest"
	restoring "github.com/holdfast-io/holdfast/pkg/restore"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// The tests of the cases that docs/design/cases.md lists, as far as no other test has them.

// heldBy returns the kinds and names of all that a backup holds of a namespace and of the cluster.
func heldBy(t *testing.T, backup, namespace string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	answer := contentOf(t, "", labtest.System, backup, "manifest?format=ndjson")
	wantContent(t, answer, 200)
	for line := range strings.Lines(string(answer.Body)) {
		item := &graph.Item{}
		if err := json.Unmarshal([]byte(line), item); err != nil {
			t.Fatalf("%v: %q", err, line)
		}
		if item.Namespace == namespace || item.Namespace == "" {
			found[item.KindName+"/"+item.Name] = true
		}
	}
	return found
}

// TestEveryWordIsRightOrTold: whatever word people write for a resource, a backup holds what they mean,
// or is refused, or warns.
func TestEveryWordIsRightOrTold(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "every-word")
	manifestIn(t, namespace, `{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}}
---
{apiVersion: v1, kind: Secret, metadata: {name: password}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 0, selector: {matchLabels: {app: w}}, template: {metadata: {labels: {app: w}}, spec: {containers: [{name: c, image: example.com/c}]}}}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: site}, spec: {defaultBackend: {service: {name: site, port: {number: 80}}}}}
`)
	all := []string{"ConfigMap/settings", "Deployment/web", "Ingress/site", "Secret/password"}
	type backup struct {
		list, word, name string
		means            []string
	}
	var backups []backup
	for word, means := range map[string][]string{
		"Secret": {all[3]}, "secret": {all[3]}, "SECRETS": {all[3]}, "Secrets": {all[3]}, "secrets.": {all[3]}, "secrets.v1": {all[3]}, "v1/secrets": {all[3]},
		"core/secrets": {all[3]}, "secrets.core": {all[3]}, "deploy": {all[1]}, "Deployment": {all[1]}, "deployments.extensions": {all[1]}, "deployments.apps/v1": {all[1]},
		"deployments.v1.apps": {all[1]}, "Ingress.networking.k8s.io": {all[2]}, "ing": {all[2]}, "cm,secrets": {all[0], all[3]}, "*.apps": {all[1]}, "sec*": {all[3]}, "*": all,
		"pod, secrets": {all[3]}, " secrets": {all[3]}, "Secrets.nosuch.example.com": nil, "foos.example.com": nil,
	} {
		for _, list := range []string{"includedResources", "excludedResources"} {
			b := backup{list: list, word: word, name: labtest.Name("word"), means: means}
			text := fmt.Sprintf("apiVersion: holdfast.io/v1alpha1\nkind: Backup\nmetadata: {name: %s, namespace: %s}\nspec: {includedNamespaces: [%s], %s: [%q]}\n", b.name, labtest.System, namespace, list, word)
			if word == "cm,secrets" {
				text = strings.Replace(text, `"cm,secrets"`, "cm, secrets", 1)
			}
			if _, stderr, err := lab.TryKubectl(t, text, "create", "-f", "-"); err != nil {
				if !strings.Contains(stderr, "spec."+list) {
					t.Errorf("%s %q is refused, and the field is not named: %s", list, word, stderr)
				}
				continue
			}
			backups = append(backups, b)
		}
	}
	if len(backups) < 20 {
		t.Errorf("%d of 48 are taken", len(backups))
	}
	for _, b := range backups {
		ended := lab.AwaitPhase(t, labtest.System, b.name, v1alpha1.BackupPhaseCompleted, v1alpha1.BackupPhasePartiallyFailed)
		if ended.Status.Warnings+ended.Status.Errors > 0 {
			continue // it is told
		}
		holds := heldBy(t, b.name, namespace)
		for _, object := range all {
			if meant := slices.Contains(b.means, object); holds[object] != (meant == (b.list == "includedResources")) {
				t.Errorf("%s %q: %s is in the backup: %t, and nothing is told", b.list, b.word, object, holds[object])
			}
		}
	}
}

// TestEverySelector: what selectors of each form choose, of namespaces and outside of them.
func TestEverySelector(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "selectors")
	createAll(t, ofOne(`{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: NS-mine, labels: {app: a}}, value: 5}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: NS-other, labels: {app: z}}, value: 6}
---
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: NS-mine, labels: {app: a}}, provisioner: example.com/x}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: runner, namespace: NS}}
---
{apiVersion: v1, kind: Secret, metadata: {name: key, namespace: NS}, stringData: {a: b}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: labelled, namespace: NS, labels: {app: b}}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: empty-value, namespace: NS, labels: {app: ""}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: NS}, spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Gi}}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: NS, labels: {app: a}}, spec: {serviceAccountName: runner, priorityClassName: NS-mine, terminationGracePeriodSeconds: 0, containers: [{name: c, image: example.com/c, envFrom: [{secretRef: {name: key}}], volumeMounts: [{name: data, mountPath: /d}]}], volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]}}`, "NS", namespace))
	of := func(value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": value}}
	}
	oneOf := func(operator metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: operator, Values: values}}}
	}
	needed := []string{"Pod/p", "ServiceAccount/runner", "Secret/key", "PersistentVolumeClaim/data"}
	classes := []string{"PriorityClass/" + namespace + "-mine", "StorageClass/" + namespace + "-mine"}
	for name, test := range map[string]struct {
		spec        v1alpha1.BackupSpec
		holds, lack []string
	}{
		"a label":                    {v1alpha1.BackupSpec{LabelSelector: of("a")}, needed, []string{"ConfigMap/labelled", "ConfigMap/empty-value"}},
		"with cluster-scoped":        {v1alpha1.BackupSpec{LabelSelector: of("a"), IncludeClusterResources: new(true)}, slices.Concat(needed, classes), []string{"PriorityClass/" + namespace + "-other", "ConfigMap/labelled"}},
		"one of two":                 {v1alpha1.BackupSpec{OrLabelSelectors: []*metav1.LabelSelector{of("a"), of("b")}}, append(needed, "ConfigMap/labelled"), []string{"ConfigMap/empty-value"}},
		"none of two":                {v1alpha1.BackupSpec{LabelSelector: oneOf(metav1.LabelSelectorOpNotIn, "a", "b")}, []string{"ConfigMap/empty-value", "Secret/key", "ServiceAccount/runner"}, []string{"Pod/p", "ConfigMap/labelled"}},
		"the empty value":            {v1alpha1.BackupSpec{LabelSelector: oneOf(metav1.LabelSelectorOpIn, "")}, []string{"ConfigMap/empty-value"}, []string{"Pod/p", "ConfigMap/labelled", "Secret/key"}},
		"the empty selector":         {v1alpha1.BackupSpec{LabelSelector: &metav1.LabelSelector{}}, append(needed, "ConfigMap/labelled", "ConfigMap/empty-value"), nil},
		"claims without their label": {v1alpha1.BackupSpec{LabelSelector: of("a"), IncludedResources: []string{"persistentvolumeclaims"}}, nil, []string{"Pod/p", "ConfigMap/labelled", "Secret/key"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.spec.IncludedNamespaces, test.spec.SnapshotVolumes = []string{namespace}, new(false)
			backup := labtest.Name("selector")
			lab.Create(t, labtest.System, backup, test.spec)
			lab.AwaitPhase(t, labtest.System, backup, v1alpha1.BackupPhaseCompleted)
			holds := heldBy(t, backup, namespace)
			for _, object := range test.holds {
				if !holds[object] {
					t.Errorf("it lacks %s: %q", object, slices.Sorted(maps.Keys(holds)))
				}
			}
			for _, object := range test.lack {
				if holds[object] {
					t.Errorf("it has %s", object)
				}
			}
		})
	}
	lab.Refused(t, fmt.Sprintf("apiVersion: holdfast.io/v1alpha1\nkind: Backup\nmetadata: {name: both, namespace: %s}\nspec: {labelSelector: {matchLabels: {app: a}}, orLabelSelectors: [{matchLabels: {app: b}}]}\n", labtest.System), []string{"create", "-f", "-"}, "orLabelSelectors")
}

// TestManySecrets: 5,000 Secrets of Helm's size, as long-lived namespaces have, are equal after a restore.
func TestManySecrets(t *testing.T) {
	t.Parallel()
	const count = 5000
	namespace := lab.Namespace(t, "many")
	config := rest.CopyConfig(lab.Config)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	wanted := make([]corev1.Secret, count)
	var creating errgroup.Group
	creating.SetLimit(16)
	for i := range wanted {
		release := make([]byte, 6000)
		_, _ = rand.Read(release) // it never fails
		wanted[i] = corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("sh.helm.release.v1.app%d.v%d", i/10, i%10+1), Labels: map[string]string{"owner": "helm", "name": fmt.Sprintf("app%d", i/10), "version": fmt.Sprint(i%10 + 1)}},
			Type:       "helm.sh/release.v1", Data: map[string][]byte{"release": release},
		}
		creating.Go(func() error {
			_, err := client.CoreV1().Secrets(namespace).Create(t.Context(), &wanted[i], metav1.CreateOptions{})
			return err
		})
	}
	if err := creating.Wait(); err != nil {
		t.Fatal(err)
	}
	backup := backedUp(t, namespace)
	want(t, restored(t, restoreRun(backup, labtest.Name("many"), v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted)
	list, err := client.CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*corev1.Secret{}
	for i := range list.Items {
		found[list.Items[i].Name] = &list.Items[i]
	}
	for i := range wanted {
		if is := found[wanted[i].Name]; is == nil || is.Type != wanted[i].Type || !maps.Equal(is.Labels, wanted[i].Labels) || !slices.Equal(is.Data["release"], wanted[i].Data["release"]) {
			t.Fatalf("%s differs", wanted[i].Name)
		}
	}
}

// quickClock shows that more time passes than does.
type quickClock struct {
	clock.RealClock
	begin time.Time
}

func (c quickClock) Now() time.Time { return c.begin.Add(10 * time.Since(c.begin)) }

// TestDeadAggregatedAPI: an aggregated API whose server is away costs other namespaces a warning, and a
// restore of its own a bounded wait, with a warning. All else is back.
func TestDeadAggregatedAPI(t *testing.T) {
	namespace := lab.Namespace(t, "aggregated")
	texts := ofOne(`{apiVersion: v1, kind: Service, metadata: {name: api, namespace: NS}, spec: {selector: {app: api}, ports: [{port: 443}]}}
---
{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.NS.example.com}, spec: {group: NS.example.com, version: v1, groupPriorityMinimum: 100, versionPriority: 10, insecureSkipTLSVerify: true, service: {name: api, namespace: NS, port: 443}}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: NS}, data: {a: b}}`, "NS", namespace)
	api := at(t, parseAll(t, texts)[1])
	drop := func() {
		_, _, _ = lab.TryKubectl(t, "", "delete", "apiservice", "v1."+namespace+".example.com", "--ignore-not-found")
	}
	t.Cleanup(drop)
	ended, told := restoredFrom(t, texts, v1alpha1.RestoreSpec{IncludeClusterResources: new(true)}, func(d *restoring.Dependencies) { d.Clock = quickClock{begin: time.Now()} })
	mustTell(t, ended, told, v1alpha1.RestorePhaseCompleted, "it has had no ready endpoint for")
	mustHave(t, texts)
	labtest.Eventually(t, "the API to be known as dead", func() error {
		found, err := api.Get(t.Context(), "v1."+namespace+".example.com", metav1.GetOptions{})
		if err == nil && !strings.Contains(fmt.Sprint(found.Object["status"]), "status:False") {
			err = fmt.Errorf("it is %v", found.Object["status"])
		}
		return err
	})
	name := labtest.Name("beside-dead")
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}})
	if backup := lab.AwaitPhase(t, labtest.System, name, v1alpha1.BackupPhaseCompleted); backup.Status.Warnings == 0 {
		t.Errorf("the backup is %+v", backup.Status)
	}
	if !heldBy(t, name, namespace)["ConfigMap/c"] {
		t.Error("the backup lacks what the API is not for")
	}
	drop()
}

// nastyFiles makes what backups of files get wrong.
func nastyFiles(t *testing.T, folder string) {
	t.Helper()
	path := func(names ...string) string { return filepath.Join(folder, filepath.Join(names...)) }
	write := func(content string, names ...string) error {
		return errors.Join(os.MkdirAll(filepath.Dir(path(names...)), 0o755), os.WriteFile(path(names...), []byte(content), 0o644))
	}
	var errs []error
	add := func(more ...error) { errs = append(errs, more...) }
	for _, name := range []string{"new\nline", "-rf", " lead", "trail ", `back\slash`, `"q'`, "*", "?", "tab\t", "\u00e9", "e\u0301", "\u202ertl", strings.Repeat("a", 255), ".hidden", "...", "CON", "\u2028", "%2e%2e", "~", "\x01\x1b[31m", "\x7f"} {
		add(write(name, "names", name))
	}
	deep := []string{"depth"}
	for i := range 30 {
		deep = append(deep, strings.Repeat(fmt.Sprintf("d%03d", i), 20))
	}
	add(write("deep", append(deep, "end")...))
	// What Kopia and others give a meaning to.
	for name, content := range map[string]string{
		"kopia/.kopiaignore": "*.secret\n/ignored/\n", "kopia/a.secret": "s", "kopia/ignored/f": "i", ".kopiaignore": "root.txt\n", "root.txt": "r",
		"cache/CACHEDIR.TAG": "Signature: 8a477f597d28d172789f06886806bc55\n", "cache/data": "c", "notes.kopia-entry": "mine", "dir.kopia-entry/f": "mine", "kopia.repository": "mine",
		".kopia-entry": "mine", ".resticignore": "*", ".nobackup": "", "lost+found/orphan": "lf", ".snapshot/hourly.0/f": "snap", ".velero/x": "v", ".holdfast-restore-abc": "mine", ".holdfast": "m",
	} {
		add(write(content, name))
	}
	add(os.Chmod(path("lost+found"), 0o700), os.MkdirAll(path("empty", "a", "b"), 0o755))
	add(write("linked", "hl", "a", "one"), os.Mkdir(path("hl", "b"), 0o755), os.Link(path("hl", "a", "one"), path("hl", "b", "two")), os.Link(path("hl", "a", "one"), path("hl-root")), os.Mkdir(path("sl"), 0o755))
	for name, to := range map[string]string{"loop1": "loop2", "loop2": "loop1", "self": ".", "abs": "/etc/passwd", "up": "../../../../../../etc", "long": strings.Repeat("x", 4000), "nl": "new\nline"} {
		add(os.Symlink(to, path("sl", name)))
	}
	for _, mode := range []uint32{0o000, 0o200, 0o4755, 0o2755, 0o1644, 0o6711, 0o777} {
		name := fmt.Sprintf("f%o", mode)
		add(write(name, "modes", name), unix.Chmod(path("modes", name), mode))
	}
	for _, mode := range []uint32{0o000, 0o1777, 0o2775, 0o300, 0o555} {
		name := fmt.Sprintf("d%o", mode)
		add(write("in", "modes", name, "in"), unix.Chmod(path("modes", name), mode))
	}
	for _, id := range []int{1<<31 + 5, 1<<32 - 2, 65534} {
		name := fmt.Sprint(id)
		add(write(name, "owners", name), os.Chown(path("owners", name), id, id))
	}
	for name, at := range map[string]time.Time{
		"old": time.Date(1939, 12, 31, 1, 2, 3, 123456789, time.UTC), "before1970": time.Unix(0, -1), "epoch": time.Unix(0, 0), "ns": time.Unix(0, 1700000000123456789),
		"y2100": time.Unix(4102444800, 1),
	} {
		add(write("x", "times", name), os.Chtimes(path("times", name), at, at))
	}
	far := unix.Timespec{Sec: 13569465600} // which Go's own time can't be given in nanoseconds
	add(write("x", "times", "y2400"), unix.UtimesNanoAt(unix.AT_FDCWD, path("times", "y2400"), []unix.Timespec{far, far}, 0))
	add(os.Mkdir(path("times", "dir"), 0o755), os.Chtimes(path("times", "dir"), time.Unix(-5, 0), time.Unix(-5, 0)))
	add(write("", "sizes", "empty"), sparse(path("sizes", "sparse"), 1<<30), sparse(path("sizes", "islands"), 64<<20))
	for i := range 3000 {
		add(write(fmt.Sprint(i), "many", fmt.Sprintf("%05d", i)))
	}
	add(write("x", "x", "f"))
	if err := unix.Setxattr(path("x", "f"), "user.bin", []byte("\x00\xff\n"), 0); !errors.Is(err, unix.ENOTSUP) {
		add(err, unix.Setxattr(path("x"), "user.dir", []byte(strings.Repeat("d", 500)), 0))
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// ties are the attributes of files, and which names are of one file: what tree does not tell.
func ties(t *testing.T, folder string) map[string]string {
	t.Helper()
	found, first := map[string]string{}, map[uint64]string{}
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return err
		}
		name, _ := filepath.Rel(folder, path)
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if stat := info.Sys().(*syscall.Stat_t); info.Mode().IsRegular() && stat.Nlink > 1 {
			if first[stat.Ino] == "" {
				first[stat.Ino] = name
			}
			found[name] = "is " + first[stat.Ino]
		}
		for _, attribute := range []string{"user.bin", "user.dir"} {
			value := make([]byte, 600)
			if size, err := unix.Lgetxattr(path, attribute, value); err == nil {
				found[name] += fmt.Sprintf(" %s=%q", attribute, value[:size])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestNastyFilesComeBack: names, links, modes, owners, times, holes and attributes that backups of files
// get wrong are back. A time that no snapshot can hold is told.
func TestNastyFilesComeBack(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "nasty")
	pod, folder := lab.PodWithClaim(t, namespace, labtest.Node)
	nastyFiles(t, folder)
	before, tied := tree(t, folder), ties(t, folder)
	name := labtest.Name("nasty")
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, DefaultVolumesToFsBackup: new(true)})
	backup := lab.AwaitPhase(t, labtest.System, name, v1alpha1.BackupPhaseCompleted)
	lab.AwaitRunGone(t, name)
	if backup.Status.Warnings == 0 {
		t.Errorf("the backup is %+v", backup.Status)
	}
	empty(t, folder)
	restore(t, pod, namespace+"-data", volumeHistory(t, namespace, name).Status.SnapshotID)
	after := tree(t, folder)
	delete(before, "times/y2400")
	delete(after, "times/y2400")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("what came back differs (-before +after):\n%.5000s", diff)
	}
	if diff := cmp.Diff(tied, ties(t, folder)); diff != "" {
		t.Errorf("links or attributes differ (-before +after):\n%s", diff)
	}
}

// TestClaimsOfAStatefulSetWithData: claims that their StatefulSet owns, so that they go with it, come back
// with their data and labels, and it owns them again.
func TestClaimsOfAStatefulSetWithData(t *testing.T) {
	t.Parallel()
	core := lab.Kube.CoreV1()
	namespace := lab.Namespace(t, "owned")
	manifestIn(t, namespace, `{apiVersion: v1, kind: Service, metadata: {name: db}, spec: {clusterIP: None, selector: {app: db}, ports: [{port: 5432}]}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db}, spec: {serviceName: db, replicas: 2, podManagementPolicy: Parallel, persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Delete}, selector: {matchLabels: {app: db}},
  template: {metadata: {labels: {app: db}}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: db, image: example.com/db, volumeMounts: [{name: data, mountPath: /data}]}]}},
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Gi}}}}]}}
`)
	before := &stand{lab: lab, namespace: namespace, folders: map[string]string{}}
	labtest.Eventually(t, "the pods to run", func() error {
		if err := errors.Join(before.provision(t), before.start(t)); err != nil {
			return err
		}
		if len(before.folders) < 2 {
			return fmt.Errorf("there are the volumes %v", before.folders)
		}
		return nil
	})
	for claim, folder := range before.folders {
		if err := os.WriteFile(filepath.Join(folder, "whose"), []byte(claim), 0o600); err != nil {
			t.Fatal(err)
		}
		lab.Kubectl(t, "label", "pvc", claim, "-n", namespace, "mine=yes")
	}
	name := labtest.Name("owned")
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, DefaultVolumesToFsBackup: new(true)})
	backup := lab.AwaitCompleted(t, name)
	lose(t, namespace)
	for claim := range before.folders {
		if err := core.PersistentVolumes().Delete(t.Context(), before.volume(claim), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	runs := lab.Engine.EngineV1alpha1().RestoreRuns(labtest.System)
	run, err := runs.Create(t.Context(), restoreRun(backup, labtest.Name("owned"), v1alpha1.RestoreSpec{}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _, _ = lab.TryKubectl(t, "", "delete", "namespace", namespace, "--wait=false", "--ignore-not-found")
	})
	after := &stand{lab: lab, namespace: namespace, generation: "-again", folders: map[string]string{}}
	labtest.Eventually(t, "the restore to end", func() error {
		_ = errors.Join(after.provision(t), after.start(t)) // a pod may go meanwhile
		pods, err := core.Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp != nil { // as a kubelet confirms
				_ = core.Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
			}
		}
		if run, err = runs.Get(t.Context(), run.Name, metav1.GetOptions{}); err == nil && !run.Status.Phase.Ended() {
			err = fmt.Errorf("it is %q", run.Status.Phase)
		}
		return err
	})
	want(t, run, v1alpha1.RestorePhaseCompleted)
	set, err := lab.Kube.AppsV1().StatefulSets(namespace).Get(t.Context(), "db", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for claim, folder := range after.folders {
		if content, err := os.ReadFile(filepath.Join(folder, "whose")); err != nil || string(content) != claim {
			t.Errorf("the data of %s is %q, %v", claim, content, err)
		}
		labtest.Eventually(t, "the owner of "+claim, func() error {
			found, err := core.PersistentVolumeClaims(namespace).Get(t.Context(), claim, metav1.GetOptions{})
			if err == nil && (len(found.OwnerReferences) != 1 || found.OwnerReferences[0].UID != set.UID || found.Labels["mine"] != "yes") {
				err = fmt.Errorf("it is of %+v, with the labels %v", found.OwnerReferences, found.Labels)
			}
			return err
		})
	}
	if len(after.folders) != 2 {
		t.Errorf("there are the claims %v", after.folders)
	}
}
