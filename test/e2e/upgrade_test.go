// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const (
	image = "ghcr.io/holdfast-io/holdfast"
	// ours and former are the tags of this tree's image and of the last release's.
	ours, former = "dev", "previous"
)

// formerOverlay is what comes behind overlay for the last release. It has images of another name,
// and a certificate of its own.
const formerOverlay = `- target: {kind: APIService}
  patch: |
    - {op: add, path: /spec/caBundle, value: %[1]s}
generatorOptions: {disableNameSuffixHash: true}
secretGenerator:
- name: holdfast-apiserver-tls
  namespace: holdfast
  type: kubernetes.io/tls
  files: [tls.crt, tls.key]
images:
- {name: holdfast.io/holdfast, newName: %[2]s, newTag: %[3]s}
- {name: %[2]s, newTag: %[3]s}
`

// previousTree is the source tree of the last release, for make upgrade.
func previousTree() string { return os.Getenv("HOLDFAST_PREVIOUS") }

// writeFormerOverlay writes the overlay of the last release's manifests.
func (c *cluster) writeFormerOverlay() error {
	certificate, key, err := cert.GenerateSelfSignedCertKey(servingName, nil, nil)
	if err != nil {
		return err
	}
	more := fmt.Sprintf(formerOverlay, base64.StdEncoding.EncodeToString(certificate), image, former)
	if err := c.writeOverlay(filepath.Join(previousTree(), "artifacts"), more); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(c.path("overlay", "tls.crt"), certificate, 0o600),
		os.WriteFile(c.path("overlay", "tls.key"), key, 0o600))
}

// helm runs a command of Helm for our chart, as a reader of the docs does.
func helm(t *testing.T, script string) error {
	t.Helper()
	fmt.Printf("$ %s\n", script)
	command, err := lab.reader(t.Context(), script)
	if err != nil {
		t.Fatal(err)
	}
	out, err := command.CombinedOutput()
	fmt.Print(string(out))
	return err
}

// allRun waits until all pods of a component run an image.
func allRun(t *testing.T, component, tag string) {
	t.Helper()
	eventually(t, "all pods of "+component+" have the image "+tag, func(ctx context.Context) error {
		pods, err := lab.pods(ctx, component)
		if err != nil {
			return err
		}
		for _, pod := range pods {
			if got := pod.Spec.Containers[0].Image; got != image+":"+tag {
				return fmt.Errorf("%s has %s", pod.Name, got)
			}
		}
		return nil
	})
}

// mustRollOut waits until all workloads run an image.
func mustRollOut(t *testing.T, tag string) {
	t.Helper()
	if err := lab.rolledOut(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, component := range []string{"apiserver", "controller", "node-agent"} {
		allRun(t, component, tag)
	}
}

// keys are the Secrets with the keys of repositories.
func keys(t *testing.T) map[string]string {
	t.Helper()
	list, err := lab.kube.CoreV1().Secrets("holdfast-repositories").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, secret := range list.Items {
		all[secret.Name] = fmt.Sprint(secret.Data)
	}
	return all
}

// creating creates a backup every three seconds, whatever happens to the API server.
type creating struct {
	stop    context.CancelFunc
	ended   sync.WaitGroup
	created []string
	failed  []error
}

func create(t *testing.T, namespace string) *creating {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	c := &creating{stop: stop}
	t.Cleanup(func() { stop(); c.ended.Wait() })
	c.ended.Go(func() {
		for tick := time.NewTicker(3 * time.Second); ; {
			name := fmt.Sprintf("%s-%d", namespace, len(c.created)+len(c.failed))
			// In words that the last release knows.
			body := fmt.Sprintf(`{"apiVersion": "holdfast.io/v1alpha1", "kind": "Backup", "metadata": {"name": %q}, "spec": {"includedNamespaces": [%q]}}`, name, namespace)
			err := lab.holdfast.HoldfastV1alpha1().RESTClient().Post().Namespace(system).Resource("backups").Body([]byte(body)).Do(ctx).Error()
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				c.failed = append(c.failed, fmt.Errorf("creating %s at %s: %w", name, time.Now().Format(time.TimeOnly), err))
			default:
				c.created = append(c.created, name)
			}
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	})
	return c
}

// leave ends the creation, and returns the names of what was created. A refusal with 503 is no
// failure, since the client knows: in the hand-over from the release dfa59e6, what runs may be broken
// off, and kube-apiserver says so.
func (c *creating) leave(t *testing.T, what string) []string {
	t.Helper()
	c.stop()
	c.ended.Wait()
	for _, err := range c.failed {
		if !apierrors.IsServiceUnavailable(err) {
			t.Errorf("during %s: %v", what, err)
		}
	}
	fmt.Printf("during %s %d backups were created, and %d refused: %v\n", what, len(c.created), len(c.failed), errors.Join(c.failed...))
	return c.created
}

// watchAddresses reports each moment at which more than one replica of the API server has the
// Service's address.
func watchAddresses(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		for ctx.Err() == nil {
			if at, err := addresses(ctx); err == nil && len(at) > 1 {
				t.Errorf("several replicas of the API server serve: %v", at)
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	return func() { cancel(); ended.Wait() }
}

// fromSchedule counts the backups of a schedule that are completed.
func fromSchedule(ctx context.Context, schedule string) (int, error) {
	all, err := backups(ctx)
	count := 0
	for _, b := range all {
		if strings.HasPrefix(b.Name, schedule+"-") && b.Status.Phase == v1alpha1.BackupPhaseCompleted {
			count++
		}
	}
	return count, err
}

// awaitSchedule waits until a schedule has made one more good backup.
func awaitSchedule(t *testing.T, schedule string) {
	t.Helper()
	before, err := fromSchedule(t.Context(), schedule)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the schedule makes one more backup", func(ctx context.Context) error {
		now, err := fromSchedule(ctx, schedule)
		if err == nil && now <= before {
			err = fmt.Errorf("there are %d", now)
		}
		return err
	})
}

// awaitRestoreEnd waits until a restore that was created before is completed.
func awaitRestoreEnd(t *testing.T, name string) {
	t.Helper()
	eventually(t, "restore "+name+" has ended", func(ctx context.Context) error {
		live, err := lab.holdfast.HoldfastV1alpha1().Restores(system).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(live.Status.Conditions, v1alpha1.ConditionComplete) {
			return fmt.Errorf("it is %s, %+v", live.Status.Phase, live.Status.Volumes)
		}
		if live.Status.Phase != v1alpha1.RestorePhaseCompleted {
			t.Fatalf("restore %s is %s with %d errors (%s)", name, live.Status.Phase, live.Status.Errors, live.Status.FailureReason)
		}
		return nil
	})
}

// TestUpgrade replaces the last release, which was installed by its manifests, by our chart, while
// people list, watch and create backups, an upload and a restore run, others wait, and a schedule
// goes on. Then agents of the last release work with our controller, an image that does not exist
// is rolled back, and all goes back to the last release, with objects of ours in etcd.
func TestUpgrade(t *testing.T) {
	if previousTree() == "" {
		t.Fatal("this test needs the last release: run make upgrade")
	}
	sea := workload{"sea", "web", nodes[0], 8}
	const look = `cd /data; stat -c '%n %a %u:%g %s %Y' deep deep/* sums; cat sums`

	step("The last release, at work")
	// The files in the bay are uploaded for the first time, which takes a while.
	start(t, sea, workload{"bay", "left", nodes[0], 96}, workload{"bay", "right", nodes[1], 96})
	storageClasses(t, 16, "upgrade")
	lab.create(t, "{apiVersion: v1, kind: Namespace, metadata: {name: pond}}")
	lab.create(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: lake}\n---\n"+deploymentWithClaim("lake", "web", "upgrade"))
	data := lab.exec(t, "lake", readyPod(t, "lake", "web"), look)
	lab.create(t, `apiVersion: holdfast.io/v1alpha1
kind: Schedule
metadata: {name: minutely, namespace: holdfast}
spec: {schedule: "* * * * *", template: {includedNamespaces: [pond]}}
`)
	lab.create(t, backup("lake-before", "lake")+backup("sea-before", "sea"))
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "lake-before", "sea-before")
	awaitStored(t, "lake-before", "sea-before")
	files := map[string]string{}
	for volume := range volumes {
		files[volume] = sea.fingerprint(t, volume)
	}
	before, err := uids(t.Context(), lab.holdfast)
	if err != nil {
		t.Fatal(err)
	}
	secrets := keys(t)

	// same checks that whatever the last release has stored is there, under the same keys, and that
	// its data comes back into another namespace.
	same := func(restored string) {
		t.Helper()
		if err := listsAll(t.Context(), "lake-before", "sea-before"); err != nil {
			t.Error(err)
		}
		live := keys(t)
		for name, content := range secrets {
			if live[name] != content {
				t.Errorf("the key %s is another one", name)
			}
		}
		restoreBackup(t, restored, "lake-before", "namespaceMapping: {lake: "+restored+"}")
		if got := lab.exec(t, restored, readyPod(t, restored, "web"), look); got != data {
			t.Errorf("the data of the last release comes back as\n%s\nwant\n%s", got, data)
		}
	}

	step("Upgraded under load, from the manifests to the chart")
	people, creator, stopWatching := admit(t, before, 0), create(t, "pond"), watchAddresses(t)
	names := []string{"bay-interrupted", "bay-second", "bay-third"}
	for _, name := range names {
		lab.create(t, backup(name, "bay"))
	}
	lab.create(t, `apiVersion: holdfast.io/v1alpha1
kind: Restore
metadata: {name: lake-copy, namespace: holdfast}
spec: {backupName: lake-before, namespaceMapping: {lake: lake-copy}}
`)
	resume := pauseUploads(t, "bay-interrupted")
	lab.mustShow(t, "get", "backupruns,restoreruns,volumeuploads,volumerestores", "-n", system)
	if err := helm(t, operations(t)["From the manifests to the chart"]); err != nil {
		t.Fatal(err)
	}
	allRun(t, "node-agent", ours)
	resume()
	mustRollOut(t, ours)
	names = append(names, creator.leave(t, "the upgrade")...)
	stopWatching()
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, names...)
	awaitStored(t, names...)
	if err := listsAll(t.Context(), names...); err != nil {
		t.Error(err)
	}
	fmt.Printf("%d lists were answered; the informer listed %d times\n", people.lists.Load(), people.informed.lists.Load())
	people.leave(t, "the upgrade")
	awaitSchedule(t, "minutely")
	awaitRestoreEnd(t, "lake-copy")
	if got := lab.exec(t, "lake-copy", readyPod(t, "lake-copy", "web"), look); got != data {
		t.Errorf("the restore that was interrupted has\n%s\nwant\n%s", got, data)
	}
	leader, err := serving(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(fmt.Sprint(lab.mustPods(t, "apiserver", 2)), leader) {
		t.Errorf("%s serves, which is none of the new replicas", leader)
	}
	same("lake-upgraded")
	for volume := range volumes {
		sea.lose(t, volume)
	}
	restore(t, "sea-before", sea)
	for volume := range volumes {
		if got := sea.fingerprint(t, volume); got != files[volume] {
			t.Errorf("volume %s differs:\n%s\nwant:\n%s", volume, got, files[volume])
		}
	}

	step("Agents of the last release work for our controller")
	lab.mustShow(t, "apply", "--server-side", "--force-conflicts", "-k", lab.path("overlay"), "-l", "app.kubernetes.io/component=node-agent")
	lab.mustShow(t, "rollout", "status", "-n", agentsNamespace, "daemonset/holdfast-node-agent", "--timeout=180s")
	allRun(t, "node-agent", former)
	lab.create(t, backup("sea-former-agents", "sea"))
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "sea-former-agents")

	step("An image that does not exist is rolled back")
	people = admit(t, before, 0)
	if err := helm(t, "helm upgrade holdfast charts/holdfast -n holdfast --reset-then-reuse-values --set image.tag=missing --atomic --timeout=90s"); err == nil {
		t.Error("an upgrade to an image that does not exist has succeeded")
	}
	mustRollOut(t, ours)
	people.leave(t, "the upgrade to an image that does not exist")

	step("Back to the last release, with objects of ours in etcd")
	if err := helm(t, "kubectl holdfast backup hold bay-second -n holdfast && kubectl holdfast backup extend bay-third -n holdfast --for 1000h"); err != nil {
		t.Error(err)
	}
	lab.create(t, backup("sea-ours", "sea")+backup("lake-ours", "lake"))
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "sea-ours", "lake-ours")
	lab.must(t, "wait", "--for=jsonpath={.status.completionTimestamp}", "--timeout=120s", "-n", system, "backupchanges.engine.holdfast.io", "--all")
	known, err := uids(t.Context(), lab.holdfast)
	if err != nil {
		t.Fatal(err)
	}
	lab.mustShow(t, "apply", "--server-side", "--force-conflicts", "-k", lab.path("overlay"))
	mustRollOut(t, former)
	lab.create(t, backup("sea-back", "sea"))
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "sea-back")
	now, err := uids(t.Context(), lab.holdfast)
	if err != nil {
		t.Fatal(err)
	}
	for name, uid := range known {
		if now[name] != uid {
			t.Errorf("after the way back, backup %s has the uid %q, want %s", name, now[name], uid)
		}
	}
	same("lake-back")
	restoreBackup(t, "lake-ours", "lake-ours", "namespaceMapping: {lake: lake-ours}")
	awaitSchedule(t, "minutely")

	step("And forward again")
	if err := helm(t, "helm upgrade holdfast charts/holdfast -n holdfast --reset-then-reuse-values"); err != nil {
		t.Fatal(err)
	}
	mustRollOut(t, ours)
	if err := listsAll(t.Context(), append(names, "sea-back", "sea-ours")...); err != nil {
		t.Error(err)
	}
	lab.create(t, backup("sea-again", "sea"))
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "sea-again")
}
