// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/runlog"
)

// TestPlanOfTheLeader: the controller that leads answers the API server only, and only while it
// leads. A plan ends with the request for it.
func TestPlanOfTheLeader(t *testing.T) {
	shown, err := NewServer(&runlog.Logs{}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	server := NewPlanServer(shown.MayAsk)
	certificate, err := tls.X509KeyPair(shown.Certificate, shown.Key)
	if err != nil {
		t.Fatal(err)
	}
	serving := httptest.NewUnstartedServer(server)
	serving.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	serving.StartTLS()
	defer serving.Close()
	secrets := kubefake.NewClientset().CoreV1().Secrets("holdfast")
	client := &PlanClient{Remote: &Client{Secrets: secrets}}
	run := &enginev1alpha1.BackupRun{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: enginev1alpha1.BackupRunSpec{Requester: enginev1alpha1.Requester{Username: "ann"}}}
	unreachable := func(when string) {
		t.Helper()
		if _, err := client.Backup(t.Context(), run); !errors.Is(err, ErrUnreachable) {
			t.Errorf("%s the answer is %v", when, err)
		}
	}
	unreachable("before anybody leads,")
	publishing, stop := context.WithCancel(t.Context())
	defer stop()
	go shown.Publish(publishing, secrets, serving.Listener.Addr().String(), func(context.Context) error { return nil })
	for {
		if _, err := secrets.Get(t.Context(), SecretName, metav1.GetOptions{}); err == nil {
			break
		}
	}
	unreachable("before its term,")

	term, end := context.WithCancel(t.Context())
	const objects = 20_000
	server.LeadBackups(term, func(_ context.Context, run *enginev1alpha1.BackupRun, each func(v1alpha1.PlannedRelated) error) *v1alpha1.BackupPlan {
		for i := 0; each != nil && i < objects; i++ {
			if err := each(v1alpha1.PlannedRelated{Resource: "configmaps", Name: strconv.Itoa(i)}); err != nil {
				return &v1alpha1.BackupPlan{Message: err.Error()}
			}
		}
		return &v1alpha1.BackupPlan{Complete: true, Message: run.Spec.Requester.Username, TotalItems: 7}
	})
	plan, err := client.Backup(t.Context(), run)
	if err != nil || plan.TotalItems != 7 || plan.Message != "ann" {
		t.Errorf("the plan is %+v, %v", plan, err)
	}
	seen := 0
	plan, err = client.BackupObjects(t.Context(), run, func(object v1alpha1.PlannedRelated) error {
		if object.Resource != "configmaps" || object.Name != strconv.Itoa(seen) {
			t.Errorf("object %d is %+v", seen, object)
		}
		seen++
		return nil
	})
	if err != nil || plan.TotalItems != 7 || seen != objects {
		t.Errorf("the plan is %+v with %d objects, %v", plan, seen, err)
	}
	left := errors.New("left")
	if _, err := client.BackupObjects(t.Context(), run, func(v1alpha1.PlannedRelated) error { return left }); !errors.Is(err, left) {
		t.Errorf("a reader that leaves gets %v", err)
	}
	if _, err := client.Restore(t.Context(), &enginev1alpha1.RestoreRun{}); !errors.Is(err, ErrUnreachable) {
		t.Errorf("before it plans restores, the answer is %v", err)
	}
	server.LeadRestores(term, func(_ context.Context, run *enginev1alpha1.RestoreRun) *v1alpha1.RestorePlan {
		return &v1alpha1.RestorePlan{Message: run.Spec.Requester.Username, TotalItems: 8}
	})
	restore := &enginev1alpha1.RestoreRun{Spec: enginev1alpha1.RestoreRunSpec{Requester: enginev1alpha1.Requester{Username: "bob"}}}
	if plan, err := client.Restore(t.Context(), restore); err != nil || plan.TotalItems != 8 || plan.Message != "bob" {
		t.Errorf("the plan of a restore is %+v, %v", plan, err)
	}
	response, err := serving.Client().Post(serving.URL+backupsPath, "application/json", http.NoBody)
	if err == nil {
		_ = response.Body.Close()
		if response.StatusCode != http.StatusUnauthorized {
			t.Errorf("a client without the token got %s", response.Status)
		}
	}

	begun, ended := make(chan struct{}), make(chan struct{})
	server.LeadBackups(term, func(ctx context.Context, _ *enginev1alpha1.BackupRun, _ func(v1alpha1.PlannedRelated) error) *v1alpha1.BackupPlan {
		close(begun)
		<-ctx.Done()
		close(ended)
		return &v1alpha1.BackupPlan{}
	})
	asking, leave := context.WithCancel(t.Context())
	go func() {
		<-begun
		leave()
	}()
	if _, err := client.Backup(asking, run); err == nil {
		t.Error("who left got an answer")
	}
	<-ended

	end()
	unreachable("after its term,")
}
