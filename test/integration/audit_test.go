// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// audited returns the one request of the API server's audit log that is meant.
func audited(t *testing.T, what string, is func(*auditv1.Event) bool) *auditv1.Event {
	t.Helper()
	var found []auditv1.Event
	labtest.Eventually(t, what+" in the audit log", func() error {
		events, _ := lab.Audited(t)
		found = slices.DeleteFunc(events, func(event auditv1.Event) bool {
			return event.Stage != auditv1.StageResponseComplete || event.ObjectRef == nil || !is(&event)
		})
		if len(found) != 1 {
			return fmt.Errorf("there are %d: %+v", len(found), found)
		}
		return nil
	})
	return &found[0]
}

// TestAuditLog: by the policy that is shipped, the audit log says who read which object of a
// backup, and has no byte of it, nor of what hooks run.
func TestAuditLog(t *testing.T) {
	t.Parallel()
	const secret, password = "bytes-that-no-log-has", "password-that-no-log-has"
	ann, namespace := labtest.Name("ann"), lab.Namespace(t, "audited")
	if _, err := lab.Kube.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "token"}, StringData: map[string]string{"key": secret}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lab.Grant(t, ann, "admin", namespace)
	spec := fmt.Sprintf(`{hooks: {resources: [{name: dump, pre: [{exec: {command: [dump, --password=%s]}}]}]}}`, password)
	if _, stderr, err := lab.TryKubectl(t, fmt.Sprintf(manifest, "audited", namespace, spec), "--as="+ann, "create", "-f", "-"); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	lab.AwaitPhase(t, namespace, "audited", v1alpha1.BackupPhaseCompleted)
	path := requestPath(namespace, "audited", "objects") + "?kind=Secret&namespace=" + url.QueryEscape(namespace) + "&name=token"
	labtest.Eventually(t, "the object", func() error {
		_, stderr, err := lab.TryKubectl(t, "", "--as="+ann, "get", "--raw", path)
		if err != nil {
			return fmt.Errorf("%w: %s", err, stderr)
		}
		return nil
	})

	created := audited(t, "the creation", func(event *auditv1.Event) bool {
		return event.Verb == "create" && event.ObjectRef.Namespace == namespace && event.ObjectRef.Resource == "backups" && event.ObjectRef.Subresource == "" && event.ResponseStatus.Code == 201
	})
	if created.Level != auditv1.LevelMetadata || created.User.Username != ann || created.RequestObject != nil {
		t.Errorf("the creation is %+v", created)
	}
	read := audited(t, "the reading", func(event *auditv1.Event) bool {
		return event.ObjectRef.Namespace == namespace && event.ObjectRef.Subresource == "objects" && event.ResponseStatus.Code == 200
	})
	if got := read.Annotations["objects.holdfast.io/read"]; read.Level != auditv1.LevelMetadata || read.User.Username != ann || !strings.Contains(got, "token") || !strings.Contains(got, namespace) {
		t.Errorf("the reading is %+v", read)
	}
	if _, log := lab.Audited(t); strings.Contains(log, secret) || strings.Contains(log, password) || !strings.Contains(log, ann) {
		t.Error("the audit log has what is secret")
	}
}

// TestWhoDeleted: a user, a rule of a schedule, and the end of its time delete a backup each; the
// event of each deletion, and the audit log, tell who and why.
func TestWhoDeleted(t *testing.T) {
	lab.Reconfigure(t, "--expiry-interval=1s --keep-last-backup=false --run-retention=1s --max-expired-percent=100")
	ann, namespace := labtest.Name("ann"), lab.Namespace(t, "who-deleted")
	lab.Grant(t, ann, "edit", namespace)
	lab.Bind(t, ann, "holdfast-admin", namespace)
	const controller = "system:serviceaccount:holdfast:holdfast-controller"
	awaitGone := func(name string) {
		t.Helper()
		labtest.Eventually(t, "the end of "+name, func() error {
			if _, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("there it is: %v", err)
			}
			return nil
		})
	}
	told := func(object, reason string, want ...string) {
		t.Helper()
		labtest.Eventually(t, "the event "+reason+" of "+object, func() error {
			out := lab.Kubectl(t, "get", "events", "-n", namespace, "--field-selector", "involvedObject.name="+object+",reason="+reason)
			for _, text := range want {
				if !strings.Contains(out, text) {
					return fmt.Errorf("without %q there is %s", text, out)
				}
			}
			return nil
		})
	}
	deletion := func(name string) *auditv1.Event {
		t.Helper()
		event := audited(t, "the deletion of "+name, func(event *auditv1.Event) bool {
			return event.Verb == "create" && event.ObjectRef.Subresource == "deletion" && event.ObjectRef.Namespace == namespace && event.ObjectRef.Name == name && event.ResponseStatus.Code == 201
		})
		if event.Level != auditv1.LevelRequest || event.RequestObject == nil {
			t.Errorf("the deletion of %s is audited as %+v", name, event)
		}
		return event
	}

	// A user.
	lab.Create(t, namespace, "by-user", v1alpha1.BackupSpec{})
	lab.AwaitPhase(t, namespace, "by-user", v1alpha1.BackupPhaseCompleted)
	lab.AwaitRunGone(t, namespace+".by-user")
	if _, stderr, err := lab.TryKubectl(t, body("BackupDeletion"), "--as="+ann, "create", "--raw", requestPath(namespace, "by-user", "deletion"), "-f", "-"); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	awaitGone("by-user")
	told("by-user", "Deleted", ann+" has deleted the backup")
	if event := deletion("by-user"); event.User.Username != ann || event.ImpersonatedUser != nil || event.Annotations["cause.holdfast.io/schedule"] != "" {
		t.Errorf("the user's deletion is %+v", event)
	}

	// The end of its time.
	lab.Create(t, namespace, "by-time", v1alpha1.BackupSpec{TTL: v1alpha1.Duration{Duration: time.Second}})
	awaitGone("by-time")
	told("by-time", "Deleted", "had expired", controller)
	if event := deletion("by-time"); event.User.Username != controller || !strings.Contains(string(event.RequestObject.Raw), `"expired":true`) {
		t.Errorf("the deletion of what had expired is %+v", event)
	}

	// A rule of a schedule.
	apply(t, ann, fmt.Sprintf(scheduleManifest, "nightly", namespace, fmt.Sprintf("{schedule: '%s', keep: {last: 1}}", dueAgo(72*time.Hour))))
	var made []string
	for _, years := range []int{-2, -1} {
		if years == -1 {
			lab.Kubectl(t, "--as="+ann, "patch", "schedule", "nightly", "-n", namespace, "--type=merge", fmt.Sprintf(`-p={"spec":{"schedule":%q}}`, dueAgo(48*time.Hour)))
		}
		beginIn(t, namespace, "nightly", time.Now().AddDate(years, 0, 0))
		s := awaitSchedule(t, namespace, "nightly", "its backup", func(s *v1alpha1.Schedule) bool {
			last := s.Status.LastBackup
			return last != nil && !slices.Contains(made, last.Name) && last.Phase == v1alpha1.BackupPhaseCompleted
		})
		made = append(made, s.Status.LastBackup.Name)
		labtest.Eventually(t, "another second", func() error {
			if !time.Now().Truncate(time.Second).After(s.Status.LastBackup.CreationTimestamp.Time) {
				return fmt.Errorf("it is the same")
			}
			return nil
		})
	}
	awaitGone(made[0])
	schedule := namespace + "/nightly"
	told(made[0], "Deleted", "The schedule "+schedule+" has deleted the backup", "as "+ann)
	told("nightly", "BackupAsked", made[0], made[1], ann)
	told("nightly", "DeletionAsked", made[0], ann, "no rule of spec.keep keeps it")
	creation := audited(t, "the creation by the schedule", func(event *auditv1.Event) bool {
		return event.Verb == "create" && event.ObjectRef.Resource == "backups" && event.ObjectRef.Subresource == "" && event.ObjectRef.Namespace == namespace && event.ObjectRef.Name == made[0]
	})
	for what, event := range map[string]*auditv1.Event{"creation": creation, "deletion": deletion(made[0])} {
		if event.ImpersonatedUser == nil || event.ImpersonatedUser.Username != ann || event.Annotations["cause.holdfast.io/schedule"] != schedule {
			t.Errorf("the %s by the schedule is %+v", what, event)
		}
	}
}
