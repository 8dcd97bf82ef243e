// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	domain "github.com/holdfast-io/holdfast/pkg/schedule"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

const scheduleManifest = `apiVersion: holdfast.io/v1alpha1
kind: Schedule
metadata:
  name: %s
  namespace: %s
spec: %s
`

// awaitSchedule returns a schedule when it is as a condition says.
func awaitSchedule(t *testing.T, namespace, name, what string, is func(*v1alpha1.Schedule) bool) *v1alpha1.Schedule {
	t.Helper()
	var found *v1alpha1.Schedule
	labtest.Eventually(t, what, func() (err error) {
		if found, err = lab.Holdfast.HoldfastV1alpha1().Schedules(namespace).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !is(found) {
			return fmt.Errorf("its status is %+v", found.Status)
		}
		return nil
	})
	return found
}

// apply applies a manifest as a user, and returns what kubectl says.
func apply(t *testing.T, user, manifest string, more ...string) string {
	t.Helper()
	stdout, stderr, err := lab.TryKubectl(t, manifest, append([]string{"--as=" + user, "apply", "-f", "-"}, more...)...)
	if err != nil {
		t.Fatalf("applying: %v: %s", err, stderr)
	}
	return stdout + stderr
}

func triggerPath(namespace, name string) string {
	return api + "/namespaces/" + namespace + "/schedules/" + name + "/trigger"
}

// TestSchedule is a schedule as its users meet it, who may edit a namespace and no more:
// applied, edited, triggered, paused, deleted, and by the clock.
func TestSchedule(t *testing.T) {
	t.Parallel()
	ann, eve, namespace := labtest.Name("ann"), labtest.Name("eve"), lab.Namespace(t, "scheduled")
	lab.Grant(t, ann, "edit", namespace)
	lab.Grant(t, eve, "view", namespace)
	as := "--as=" + ann
	spec := "{schedule: 0 3 1 1 *, template: {metadata: {labels: {tier: gold}}, ttl: 48h0m0s}}"
	manifest := fmt.Sprintf(scheduleManifest, "yearly", namespace, spec)
	if said := apply(t, ann, manifest); !strings.Contains(said, "created") {
		t.Errorf("kubectl apply says %s", said)
	}
	if said := apply(t, ann, manifest); !strings.Contains(said, "unchanged") {
		t.Errorf("applying the same again says %s", said)
	}
	lab.Refused(t, manifest, []string{"--as=" + eve, "apply", "-f", "-", "--server-side", "--force-conflicts"}, "forbidden")
	if said := apply(t, ann, strings.Replace(manifest, "0 3 1 1 *", "0 4 1 1 *", 1)); !strings.Contains(said, "configured") {
		t.Errorf("applying a change says %s", said)
	}
	lab.Kubectl(t, as, "patch", "schedule", "yearly", "-n", namespace, "--type=merge", `-p={"spec":{"timeZone":"Europe/Berlin"}}`)
	s := awaitSchedule(t, namespace, "yearly", "the next time", func(s *v1alpha1.Schedule) bool { return s.Status.NextDueTimestamp != nil })
	if next := s.Status.NextDueTimestamp.UTC(); next.Hour() != 3 || next.YearDay() != 1 || s.Status.Requester != ann || s.Generation != 3 {
		t.Errorf("the next is due at %s, by %q, in generation %d", next, s.Status.Requester, s.Generation)
	}

	// By hand.
	answer, stderr, err := lab.TryKubectl(t, body("ScheduleTrigger"), as, "create", "--raw", triggerPath(namespace, "yearly"), "-f", "-")
	if err != nil {
		t.Fatalf("triggering: %v: %s", err, stderr)
	}
	s = awaitSchedule(t, namespace, "yearly", "its backup", func(s *v1alpha1.Schedule) bool {
		return s.Status.LastBackup != nil && s.Status.LastBackup.Phase == v1alpha1.BackupPhaseCompleted
	})
	backup, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(t.Context(), s.Status.LastBackup.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(answer, backup.Name) || backup.Status.Requester != ann || backup.Labels[v1alpha1.LabelScheduleName] != "yearly" || backup.Labels["tier"] != "gold" ||
		backup.Spec.TTL.Duration != 48*time.Hour || backup.Status.Origin.ScheduleUID != s.UID {
		t.Errorf("triggering says %s, and makes %+v", answer, backup)
	}
	lab.Refused(t, body("ScheduleTrigger"), []string{"--as=" + eve, "create", "--raw", triggerPath(namespace, "yearly"), "-f", "-"}, "orbidden")

	// By the clock, and paused.
	lab.Kubectl(t, as, "patch", "schedule", "yearly", "-n", namespace, "--type=merge", `-p={"spec":{"schedule":"* * * * *"}}`)
	first := backup.Name
	s = awaitSchedule(t, namespace, "yearly", "a backup by the clock", func(s *v1alpha1.Schedule) bool {
		return s.Status.LastBackup.Name != first && s.Status.LastBackup.Phase == v1alpha1.BackupPhaseCompleted
	})
	if !strings.HasSuffix(s.Status.LastBackup.Name, "00") || !meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.ConditionScheduled) || s.Status.Missed != 0 {
		t.Errorf("by the clock there is %+v", s.Status)
	}
	lab.Kubectl(t, as, "patch", "schedule", "yearly", "-n", namespace, "--type=merge", `-p={"spec":{"paused":true}}`)
	awaitSchedule(t, namespace, "yearly", "the pause", func(s *v1alpha1.Schedule) bool {
		return s.Status.NextDueTimestamp == nil && meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionScheduled).Reason == v1alpha1.ScheduleReasonPaused
	})
	lab.Kubectl(t, as, "delete", "schedule", "yearly", "-n", namespace)
	for _, name := range []string{first, s.Status.LastBackup.Name} {
		if _, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("with its schedule gone: %v", err)
		}
	}
}

// TestScheduleInput: what can't be is refused when it is written, with the field, and for
// what somebody may not do, by the code that refuses a backup.
func TestScheduleInput(t *testing.T) {
	t.Parallel()
	ann, own, foreign := labtest.Name("ann"), lab.Namespace(t, "own"), lab.Namespace(t, "foreign")
	lab.Grant(t, ann, "edit", own)
	for name, test := range map[string]struct {
		spec string
		want []string
	}{
		"no schedule":       {"{}", []string{"spec.schedule", "Required"}},
		"a bad cron":        {"{schedule: 61 * * * *}", []string{"spec.schedule"}},
		"a bad word":        {"{schedule: '@every 5m'}", []string{"spec.schedule", "no such word"}},
		"a day that is not": {"{schedule: 0 0 30 2 *}", []string{"spec.schedule", "no such time"}},
		"a bad zone":        {"{schedule: '@daily', timeZone: Mars/Olympus}", []string{"spec.timeZone", "Mars/Olympus"}},
		"a bad template":    {"{schedule: '@daily', template: {snapshotVolumes: true}}", []string{"spec.template.snapshotVolumes"}},
		"no such location":  {"{schedule: '@daily', template: {storageLocation: nowhere}}", []string{"spec.template.storageLocation"}},
		"an unknown field":  {"{schedule: '@daily', sometimes: true}", []string{"spec.sometimes"}},
		"an empty keep":     {"{schedule: '@daily', keep: {}}", []string{"spec.keep"}},
		"too little kept":   {"{schedule: '@daily', keep: {last: -1}}", []string{"spec.keep.last"}},
		"another namespace": {fmt.Sprintf("{schedule: '@daily', template: {includedNamespaces: [%s]}}", foreign), []string{foreign, "orbidden", "spec.template.includedNamespaces"}},
		"all namespaces":    {"{schedule: '@daily', template: {includedNamespaces: ['*']}}", []string{"orbidden", "all namespaces"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			manifest := fmt.Sprintf(scheduleManifest, "refused", own, test.spec)
			lab.Refused(t, manifest, []string{"--as=" + ann, "create", "-f", "-"}, test.want...)
			lab.Refused(t, manifest, []string{"--as=" + ann, "create", "-f", "-", "--dry-run=server"}, test.want...)
		})
	}
	long := strings.Repeat("a", 49)
	lab.Refused(t, fmt.Sprintf(scheduleManifest, long, own, "{schedule: '@daily'}"), []string{"--as=" + ann, "create", "-f", "-"}, "metadata.name", "48")
	stdout, stderr, err := lab.TryKubectl(t, fmt.Sprintf(scheduleManifest, "dry", own, "{schedule: '@daily'}"), "--as="+ann, "create", "-f", "-", "--dry-run=server", "-o=name")
	if err != nil || !strings.Contains(stdout, "schedule.holdfast.io/dry") {
		t.Errorf("a dry run says %s %s %v", stdout, stderr, err)
	}
	if _, err := lab.Holdfast.HoldfastV1alpha1().Schedules(own).Get(t.Context(), "dry", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after a dry run: %v", err)
	}
}

// TestScheduleManagers: server-side apply, with two managers, finalizers and owners.
func TestScheduleManagers(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "managed")
	manifest := fmt.Sprintf(scheduleManifest, "managed", namespace, "{schedule: '@monthly', startingDeadlineSeconds: 60}")
	serverSide := func(manager string, more ...string) []string {
		return append([]string{"apply", "-f", "-", "--server-side", "--field-manager=" + manager}, more...)
	}
	if _, stderr, err := lab.TryKubectl(t, manifest, serverSide("gitops")...); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	other := fmt.Sprintf(scheduleManifest, "managed", namespace, "{schedule: '@weekly'}")
	lab.Refused(t, other, serverSide("somebody"), "conflict", "gitops", ".spec.schedule")
	if _, stderr, err := lab.TryKubectl(t, other, serverSide("somebody", "--force-conflicts")...); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	s, err := lab.Holdfast.HoldfastV1alpha1().Schedules(namespace).Get(t.Context(), "managed", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Spec.Schedule != "@weekly" || s.Spec.StartingDeadlineSeconds == nil || len(s.ManagedFields) != 2 {
		t.Errorf("two managers made %+v", s)
	}
	// What a manager does not mention any more goes, if it is nobody else's.
	if _, stderr, err := lab.TryKubectl(t, other, serverSide("gitops", "--force-conflicts")...); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	schedules := lab.Holdfast.HoldfastV1alpha1().Schedules(namespace)
	if s, err = schedules.Get(t.Context(), "managed", metav1.GetOptions{}); err != nil || s.Spec.StartingDeadlineSeconds != nil {
		t.Errorf("what nobody applies any more: %+v %v", s, err)
	}

	// Of two that read the same, one writes.
	first, second := s.DeepCopy(), s.DeepCopy()
	first.Labels, second.Labels = map[string]string{"by": "first"}, map[string]string{"by": "second"}
	first.Finalizers = []string{"holdfast.test/stay"}
	if _, err := schedules.Update(t.Context(), first, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := schedules.Update(t.Context(), second, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("the second one writes too: %v", err)
	}
	if list, err := schedules.List(t.Context(), metav1.ListOptions{LabelSelector: "by=first"}); err != nil || len(list.Items) != 1 {
		t.Errorf("by its label: %v %v", list, err)
	}
	// A finalizer holds it.
	lab.Kubectl(t, "delete", "schedule", "managed", "-n", namespace, "--wait=false")
	if s, err = schedules.Get(t.Context(), "managed", metav1.GetOptions{}); err != nil || s.DeletionTimestamp == nil {
		t.Fatalf("with a finalizer it is %+v, %v", s, err)
	}
	lab.Kubectl(t, "patch", "schedule", "managed", "-n", namespace, "--type=json", `-p=[{"op":"remove","path":"/metadata/finalizers"}]`)
	if _, err = schedules.Get(t.Context(), "managed", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("without its finalizer: %v", err)
	}
}

// TestVelerosScheduleIsAppliedAgain, as Velero gave it out, with its status: that is not looked
// at, by whatever means it comes. What has no effect is answered with a warning.
func TestVelerosScheduleIsAppliedAgain(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "moved")
	manifest := fmt.Sprintf(scheduleManifest, "nightly", namespace, "{schedule: 0 1 * * *, skipImmediately: false, template: {uploaderConfig: {parallelFilesUpload: 4}, csiSnapshotTimeout: 10m0s}}") +
		`status: {lastBackup: "2026-11-22T01:00:14Z", lastSkipped: "2026-11-22T00:01:14Z", phase: Enabled}`
	// kubectl leaves the fields to a server that says in its OpenAPI that it checks them.
	labtest.Eventually(t, "the group in the cluster's OpenAPI", func() error {
		if response := lab.Request(t, http.MethodGet, "/openapi/v3"+api, "application/json"); response.Code != http.StatusOK {
			return fmt.Errorf("it is answered with %d", response.Code)
		}
		return nil
	})
	for i, command := range [][]string{
		{"apply"}, {"apply"}, {"apply", "--server-side", "--force-conflicts"}, {"apply", "--server-side"}, {"replace"},
		{"patch", "schedule/nightly", "--type=merge", `-p={"status": {"phase": "New"}}`},
		{"patch", "schedule/nightly", "--type=json", `-p=[{"op": "add", "path": "/status/phase", "value": "New"}]`},
	} {
		command = append(command, "-n", namespace)
		if command[0] != "patch" {
			command = append(command, "-f", "-")
		}
		_, stderr, err := lab.TryKubectl(t, manifest, command...)
		if err != nil {
			t.Errorf("%d: %v: %v: %s", i, command, err, stderr)
			continue
		}
		if !strings.Contains(stderr, "spec.template.uploaderConfig.parallelFilesUpload has no effect") || strings.Contains(stderr, "csiSnapshotTimeout") {
			t.Errorf("%v warns of %s", command, stderr)
		}
	}
	s, err := lab.Holdfast.HoldfastV1alpha1().Schedules(namespace).Get(t.Context(), "nightly", metav1.GetOptions{})
	if err != nil || s.Generation != 1 || s.Status.LastBackup != nil {
		t.Errorf("it is %+v, %v", s, err)
	}
	for _, refused := range [][]string{{"--type=merge", `-p={"spec": {"phase": "New"}, "status": {}}`}, {"--type=merge", `-p={"statuses": {}}`}} {
		lab.Refused(t, "", append([]string{"patch", "schedule/nightly", "-n", namespace}, refused...), "unknown field")
	}
}

// TestScheduleOfARevokedRight: a right counts when a backup is due.
func TestScheduleOfARevokedRight(t *testing.T) {
	t.Parallel()
	ann, bob, own, second := labtest.Name("ann"), labtest.Name("bob"), lab.Namespace(t, "own"), lab.Namespace(t, "second")
	lab.Grant(t, ann, "edit", own)
	inSecond := lab.Grant(t, ann, "edit", second)
	lab.Grant(t, bob, "edit", own)
	manifest := fmt.Sprintf(scheduleManifest, "both", own, fmt.Sprintf("{schedule: 0 0 1 1 *, template: {includedNamespaces: [%s, %s]}}", own, second))
	apply(t, ann, manifest)
	// Who changes no more than a label, or pauses it, does not become who it is made as; who
	// changes the rest of the spec needs the rights.
	lab.Kubectl(t, "--as="+bob, "label", "schedule", "both", "-n", own, "of=bob")
	for _, paused := range []string{"true", "false"} {
		lab.Kubectl(t, "--as="+bob, "patch", "schedule", "both", "-n", own, "--type=merge", `-p={"spec":{"paused":`+paused+`}}`)
	}
	lab.Refused(t, "", []string{"--as=" + bob, "patch", "schedule", "both", "-n", own, "--type=merge", `-p={"spec":{"template":{"ttl":"24h0m0s"}}}`}, "orbidden", second)
	if err := lab.Kube.RbacV1().RoleBindings(second).Delete(context.Background(), inSecond, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, "the right to be gone", func() error {
		_, _, err := lab.TryKubectl(t, body("ScheduleTrigger"), "--as="+bob, "create", "--raw", triggerPath(own, "both")+"?dryRun=All", "-f", "-")
		if err != nil {
			return err
		}
		if _, stderr, err := lab.TryKubectl(t, "", "--as="+ann, "patch", "schedule", "both", "-n", own, "--type=merge", `-p={"spec":{"schedule":"* * * * *"}}`, "--dry-run=server"); err == nil || !strings.Contains(stderr, "orbidden") {
			return fmt.Errorf("it is still there: %v %s", err, stderr)
		}
		return nil
	})
	lab.Refused(t, body("ScheduleTrigger"), []string{"--as=" + bob, "create", "--raw", triggerPath(own, "both"), "-f", "-"}, "orbidden", second, ann)
	beginIn(t, own, "both", time.Now().AddDate(-2, 0, 0))
	s := awaitSchedule(t, own, "both", "the refusal", func(s *v1alpha1.Schedule) bool {
		c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionScheduled)
		return c != nil && c.Reason == v1alpha1.ScheduleReasonForbidden
	})
	if s.Status.LastBackup != nil || s.Status.Missed == 0 || s.Status.Requester != ann || s.Labels["of"] != "bob" {
		t.Errorf("it is %+v", s.Status)
	}
	labtest.Eventually(t, "the event", func() error {
		events := lab.Kubectl(t, "get", "events", "-n", own, "--field-selector=reason=Forbidden,involvedObject.name=both")
		if !strings.Contains(events, second) {
			return fmt.Errorf("the events are %s", events)
		}
		return nil
	})
	if table := lab.Kubectl(t, "get", "hfs", "-n", own); !strings.Contains(table, "Forbidden") {
		t.Errorf("kubectl get prints %s", table)
	}
}

// dueAgo returns a schedule that was due so long ago, and will be in a year. Others, as @monthly, may
// have no due time between two backups of a test.
func dueAgo(ago time.Duration) string {
	at := time.Now().UTC().Add(-ago)
	return fmt.Sprintf("%d %d %d %d *", at.Minute(), at.Hour(), at.Day(), int(at.Month()))
}

// beginIn moves the record of a schedule into the past, as if it had been due since then.
func beginIn(t *testing.T, namespace, name string, since time.Time) {
	t.Helper()
	entries := lab.Engine.EngineV1alpha1().ScheduleEntries(labtest.System)
	labtest.Eventually(t, "the record to be changed", func() error {
		entry, err := entries.Get(t.Context(), namespace+"."+name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		entry.Spec.Since = metav1.NewTime(since)
		_, err = entries.Update(t.Context(), entry, metav1.UpdateOptions{})
		return err
	})
}

// TestScheduleKeeps: what no rule keeps is deleted, of the schedule's own backups alone, if
// whoever wrote it may.
func TestScheduleKeeps(t *testing.T) {
	t.Parallel()
	ann, namespace := labtest.Name("ann"), lab.Namespace(t, "kept")
	lab.Grant(t, ann, "edit", namespace)
	manifest := fmt.Sprintf(scheduleManifest, "keeps", namespace, fmt.Sprintf("{schedule: '%s', keep: {last: 1}}", dueAgo(72*time.Hour)))
	apply(t, ann, manifest)
	lab.TryKubectl(t, fmt.Sprintf("apiVersion: holdfast.io/v1alpha1\nkind: Backup\nmetadata: {name: by-hand, namespace: %s, labels: {velero.io/schedule-name: keeps}}", namespace), "create", "-f", "-")
	// What somebody asks for now is no rule's business.
	var backups []string
	for _, make := range []func(){
		func() {
			if _, stderr, err := lab.TryKubectl(t, body("ScheduleTrigger"), "--as="+ann, "create", "--raw", triggerPath(namespace, "keeps"), "-f", "-"); err != nil {
				t.Fatalf("%v: %s", err, stderr)
			}
		},
		func() { beginIn(t, namespace, "keeps", time.Now().AddDate(-2, 0, 0)) },
		func() {
			lab.Kubectl(t, "--as="+ann, "patch", "schedule", "keeps", "-n", namespace, "--type=merge", fmt.Sprintf(`-p={"spec":{"schedule":%q}}`, dueAgo(48*time.Hour)))
			beginIn(t, namespace, "keeps", time.Now().AddDate(0, -2, 0))
		},
	} {
		make()
		s := awaitSchedule(t, namespace, "keeps", "its backup", func(s *v1alpha1.Schedule) bool {
			last := s.Status.LastBackup
			return last != nil && !slices.Contains(backups, last.Name) && last.Phase == v1alpha1.BackupPhaseCompleted
		})
		backups = append(backups, s.Status.LastBackup.Name)
		labtest.Eventually(t, "another second, which tells the next one from it", func() error {
			if !time.Now().Truncate(time.Second).After(s.Status.LastBackup.CreationTimestamp.Time) {
				return errors.New("it is the same")
			}
			return nil
		})
	}
	awaitSchedule(t, namespace, "keeps", "that it may not delete", func(s *v1alpha1.Schedule) bool {
		c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionPruned)
		return c != nil && c.Reason == v1alpha1.ScheduleReasonForbidden && strings.Contains(c.Message, backups[1])
	})
	// The administrator takes it over.
	lab.Kubectl(t, "patch", "schedule", "keeps", "-n", namespace, "--type=merge", `-p={"spec":{"template":{"ttl":"24h0m0s"}}}`)
	awaitSchedule(t, namespace, "keeps", "that it has deleted", func(s *v1alpha1.Schedule) bool {
		_, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(t.Context(), backups[1], metav1.GetOptions{})
		return apierrors.IsNotFound(err) && meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.ConditionPruned)
	})
	for _, name := range []string{backups[0], backups[2], "by-hand"} {
		if _, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("what stays: %v", err)
		}
	}
}

// TestScheduleOfADeletedNamespace: the schedule goes with its namespace, its backups stay.
func TestScheduleOfADeletedNamespace(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "ending")
	lab.TryKubectl(t, fmt.Sprintf(scheduleManifest, "ending", namespace, "{schedule: '@yearly'}"), "create", "-f", "-")
	stdout, stderr, err := lab.TryKubectl(t, body("ScheduleTrigger"), "create", "--raw", triggerPath(namespace, "ending"), "-f", "-")
	if err != nil {
		t.Fatalf("%v: %s %s", err, stdout, stderr)
	}
	s := awaitSchedule(t, namespace, "ending", "its backup", func(s *v1alpha1.Schedule) bool {
		return s.Status.LastBackup != nil && s.Status.LastBackup.Phase == v1alpha1.BackupPhaseCompleted
	})
	lab.Kubectl(t, "delete", "namespace", namespace, "--timeout=120s")
	if entries, err := lab.Engine.EngineV1alpha1().ScheduleEntries(labtest.System).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	} else {
		for _, entry := range entries.Items {
			if entry.Spec.ScheduleRef.Namespace == namespace {
				t.Errorf("the record %s is still there", entry.Name)
			}
		}
	}
	if _, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(t.Context(), s.Status.LastBackup.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("its backup: %v", err)
	}
}

// TestScheduleIsRestored: a schedule is in the backups of its namespace, and comes back paused.
// Nothing is asked for as the account of the restores, and whoever resumes it takes it over, with
// the rights of their own.
func TestScheduleIsRestored(t *testing.T) {
	t.Parallel()
	namespace, owner, stranger := lab.Namespace(t, "planned"), labtest.Name("owner"), labtest.Name("stranger")
	lab.Grant(t, owner, "edit", namespace)
	apply(t, owner, fmt.Sprintf(scheduleManifest, "nightly", namespace, "{schedule: '@yearly', keep: {last: 3}}"))
	name := labtest.Name("with-schedule")
	lab.Backup(t, name, namespace)
	backup := lab.AwaitCompleted(t, name)
	lose(t, namespace)
	const paused = "it is paused, and makes no backups until somebody resumes it"
	want(t, restored(t, restoreRun(backup, labtest.Name("restore"), v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted, "nightly: "+paused)
	s := awaitSchedule(t, namespace, "nightly", "that it says why it is paused", func(s *v1alpha1.Schedule) bool {
		condition := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionScheduled)
		return condition != nil && strings.Contains(condition.Message, "it was restored")
	})
	account := enginev1alpha1.RestoreUser(labtest.System)
	if !s.Spec.Paused || s.Status.Requester != account || s.Spec.Keep == nil {
		t.Errorf("it came back as %+v, %+v", s.Spec, s.Status)
	}
	if _, stderr, err := lab.TryKubectl(t, body("ScheduleTrigger"), "create", "--raw", triggerPath(namespace, "nightly"), "-f", "-"); err == nil || !strings.Contains(stderr, "spec.paused") {
		t.Errorf("triggered: %v: %s", err, stderr)
	}
	resume := func(user string) (string, error) {
		_, stderr, err := lab.TryKubectl(t, "", "--as="+user, "patch", "schedule.holdfast.io", "nightly", "-n", namespace, "--type=merge", "-p", `{"spec":{"paused":false}}`)
		return stderr, err
	}
	if stderr, err := resume(account); err != nil { // it has the rights, and what it writes is paused
		t.Errorf("resumed by the account of restores: %v: %s", err, stderr)
	} else if s := awaitSchedule(t, namespace, "nightly", "it", func(*v1alpha1.Schedule) bool { return true }); !s.Spec.Paused {
		t.Error("the account of restores has resumed it")
	}
	lab.Grant(t, stranger, "view", namespace)
	if stderr, err := resume(stranger); err == nil || !strings.Contains(stderr, "forbidden") {
		t.Errorf("resumed by a stranger: %v: %s", err, stderr)
	}
	if stderr, err := resume(owner); err != nil {
		t.Fatalf("resumed by its owner: %v: %s", err, stderr)
	}
	awaitSchedule(t, namespace, "nightly", "its new owner", func(s *v1alpha1.Schedule) bool {
		return !s.Spec.Paused && s.Status.Requester == owner && meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.ConditionScheduled)
	})
	want(t, restored(t, restoreRun(backup, labtest.Name("again"), v1alpha1.RestoreSpec{ExistingResourcePolicy: v1alpha1.ExistingResourceUpdate})), v1alpha1.RestorePhaseCompleted)
	awaitSchedule(t, namespace, "nightly", "that an equal one stays as it is", func(s *v1alpha1.Schedule) bool {
		return !s.Spec.Paused && s.Status.Requester == owner
	})
}

// TestKilledAtTheDueSecond: processes are killed at the very second at which a backup is due,
// and when it has just been asked for. Each due time has one backup, or is counted as missed.
func TestKilledAtTheDueSecond(t *testing.T) {
	namespace, mark := lab.Namespace(t, "second"), lab.AuditMark(t)
	apply(t, "system:admin", fmt.Sprintf(scheduleManifest, "each", namespace, "{schedule: '* * * * *'}"), "--as-group=system:masters")
	begun := awaitSchedule(t, namespace, "each", "its next time", func(s *v1alpha1.Schedule) bool { return s.Status.NextDueTimestamp != nil }).CreationTimestamp
	nextMinute := func() time.Time {
		due := time.Now().Truncate(time.Minute).Add(time.Minute)
		select {
		case <-time.After(time.Until(due)):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
		return due
	}
	dealtWith := func(due time.Time) {
		awaitSchedule(t, namespace, "each", "the backup of "+due.String(), func(s *v1alpha1.Schedule) bool {
			return s.Status.LastDueTimestamp != nil && !s.Status.LastDueTimestamp.Time.Before(due)
		})
	}

	due := nextMinute()
	lab.Kill(t, labtest.APIServer)
	lab.Start(t, labtest.APIServer)
	dealtWith(due)
	awaitSchedule(t, namespace, "each", "the end of its backup", func(s *v1alpha1.Schedule) bool {
		return s.Status.LastBackup != nil && s.Status.LastBackup.Phase == v1alpha1.BackupPhaseCompleted
	})

	runs, err := lab.Engine.EngineV1alpha1().BackupRuns(labtest.System).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer runs.Stop()
	due = nextMinute()
	lab.Kill(t, labtest.Controller)
	// On a slow machine an earlier one may still wait, so that there is a reason and no backup.
	asked, late := false, time.After(20*time.Second)
	for ended := false; !asked && !ended; {
		select {
		case event := <-runs.ResultChan():
			run, ok := event.Object.(*enginev1alpha1.BackupRun)
			asked = ok && run.Name == format.StoreName(namespace, domain.BackupName("each", due), labtest.System)
			ended = event.Object == nil
		case <-late:
			ended = true
		}
	}
	t.Logf("whether the backup of %s had been asked for: %t", due, asked)
	lab.Kill(t, labtest.APIServer)
	lab.Start(t, labtest.Controller)
	lab.Start(t, labtest.APIServer)
	dealtWith(due)

	lab.Kubectl(t, "patch", "schedule", "each", "-n", namespace, "--type=merge", `-p={"spec":{"paused":true}}`)
	entry, err := lab.Engine.EngineV1alpha1().ScheduleEntries(labtest.System).Get(t.Context(), namespace+".each", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := entry.Spec.Since.Unix()/60 - begun.Unix()/60
	var backups *v1alpha1.BackupList
	labtest.Eventually(t, fmt.Sprintf("a backup or a reason for each of %d due times", want), func() error {
		s, err := lab.Holdfast.HoldfastV1alpha1().Schedules(namespace).Get(t.Context(), "each", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if backups, err = lab.Holdfast.HoldfastV1alpha1().Backups(namespace).List(t.Context(), metav1.ListOptions{}); err != nil {
			return err
		}
		if made := int64(len(backups.Items)); made+s.Status.Missed != want {
			return fmt.Errorf("%d were made, and %d missed", made, s.Status.Missed)
		}
		return nil
	})
	labtest.Eventually(t, "that each was asked for once", func() error {
		made := map[string]int{}
		for _, write := range lab.WritesSince(t, mark) {
			if ref := write.ObjectRef; write.Verb == "create" && ref.Resource == "backupruns" && write.ResponseStatus.Code == http.StatusCreated {
				made[ref.Name]++
			}
		}
		for _, backup := range backups.Items {
			if n := made[format.StoreName(namespace, backup.Name, labtest.System)]; n != 1 {
				return fmt.Errorf("%s was made %d times", backup.Name, n)
			}
		}
		return nil
	})
	if asked && !slices.ContainsFunc(backups.Items, func(b v1alpha1.Backup) bool { return b.Name == domain.BackupName("each", due) }) {
		t.Errorf("the backup of %s, which was asked for, is not there", due)
	}
}

// TestScheduleExample: what the documentation shows is taken as it is.
func TestScheduleExample(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../artifacts/examples/schedule.yaml")
	if err != nil {
		t.Fatal(err)
	}
	namespace := lab.Namespace(t, "example")
	apply(t, "system:admin", strings.Replace(string(text), "namespace: shop", "namespace: "+namespace, 1), "--as-group=system:masters")
	awaitSchedule(t, namespace, "nightly", "its next time", func(s *v1alpha1.Schedule) bool { return s.Status.NextDueTimestamp != nil })
	if verbs := lab.Kubectl(t, "get", "hfs", "-n", namespace); !slices.Contains(strings.Fields(verbs), "nightly") {
		t.Errorf("kubectl get prints %s", verbs)
	}
}
