// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"context"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
)

// A request is written once, with who has asked; one whose listing is yet to begin is answered
// again; and one that comes after that is another one, within the same second too.
func TestSync(t *testing.T) {
	cluster := enginetest.New(&enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: "default", Generation: 4}})
	records := cluster.EngineV1alpha1().StorageLocations("holdfast")
	awaits, uid := false, "uid-of-jane"
	storage := NewSync("holdfast", records, func(*enginev1alpha1.StorageLocation) bool { return awaits }, clocktesting.NewFakePassiveClock(time.Unix(1000, 500)))
	ask := func(namespace, name string) (v1alpha1.SyncRequestStatus, error) {
		ctx := genericapirequest.WithUser(genericapirequest.WithNamespace(t.Context(), namespace), &user.DefaultInfo{Name: "jane", UID: uid})
		answer, err := storage.Create(ctx, &v1alpha1.SyncRequest{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil, &metav1.CreateOptions{})
		if err != nil {
			return v1alpha1.SyncRequestStatus{}, err
		}
		return answer.(*v1alpha1.SyncRequest).Status, nil
	}
	var asked []time.Time
	for i, test := range []struct {
		awaits bool
		writes int
		says   string
	}{{false, 1, "to wait for it: kubectl wait"}, {true, 1, "nothing to do: jane asked"}, {false, 2, "to wait for it: kubectl wait"}} {
		awaits = test.awaits
		answer, err := ask("holdfast", "default")
		if err != nil || !strings.HasPrefix(answer.Message, test.says) {
			t.Errorf("%d: it answers %+v, %v", i, answer, err)
		}
		if writes := len(cluster.Writes("storagelocations")); writes != test.writes {
			t.Errorf("%d: %d writes", i, writes)
		}
		record, err := records.Get(t.Context(), "default", metav1.GetOptions{})
		if err != nil || record.Spec.SyncRequest.Requester.Username != "jane" || answer.Generation != record.Generation {
			t.Fatalf("%d: it answers %+v, and the record is %+v, %v", i, answer, record, err)
		}
		asked = append(asked, record.Spec.SyncRequest.Timestamp.Time)
		if got := record.Spec.SyncRequest.Requester.UID; i != 1 && got != uid {
			t.Errorf("%d: the uid is %q, want %q: nothing is left of who asked before", i, got, uid)
		}
		uid = ""
	}
	if !asked[0].Equal(asked[1]) || !asked[2].After(asked[1]) {
		t.Errorf("asked at %v", asked)
	}
	if _, err := ask("holdfast", "nowhere"); !apierrors.IsNotFound(err) {
		t.Errorf("one that does not exist: %v", err)
	}
	for _, wrong := range [][2]string{{"shop", "default"}, {"holdfast", ""}} {
		if _, err := ask(wrong[0], wrong[1]); !apierrors.IsBadRequest(err) {
			t.Errorf("%v: %v", wrong, err)
		}
	}
	if _, err := storage.Create(genericapirequest.WithNamespace(context.Background(), "holdfast"), &v1alpha1.SyncRequest{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, nil, &metav1.CreateOptions{}); err == nil {
		t.Error("a request of nobody is taken")
	}
}
