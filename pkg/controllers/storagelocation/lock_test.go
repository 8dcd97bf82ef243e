// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package storagelocation

import (
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// A location with a lock is not available in a bucket that can't lock, or may not be asked, and
// nothing is written there. In a bucket that can, its id is locked.
func TestABucketThatCantLock(t *testing.T) {
	for name, c := range map[string]struct {
		status             int
		code, reason, says string
	}{
		"can":     {0, "", enginev1alpha1.ReasonReachable, "the store answers"},
		"can't":   {http.StatusNotFound, "ObjectLockConfigurationNotFoundError", enginev1alpha1.ReasonInvalid, "made without object lock"},
		"may not": {http.StatusForbidden, "AccessDenied", enginev1alpha1.ReasonAccessDenied, "s3:GetBucketObjectLockConfiguration"},
	} {
		t.Run(name, func(t *testing.T) {
			locks := storetest.NewLocks()
			spec, secret := storetest.FakeS3(t, func(next http.Handler) http.Handler {
				next = locks.Wrap(next)
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if c.status == 0 || !r.URL.Query().Has("object-lock") {
						next.ServeHTTP(w, r)
						return
					}
					w.WriteHeader(c.status)
					_, _ = io.WriteString(w, "<Error><Code>"+c.code+"</Code></Error>")
				})
			})
			spec.Lock = &enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockGovernance, Days: 30}
			secrets := kubefake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: spec.S3.CredentialsSecret}, Data: secret})
			asking := &Controller{secrets: secrets.CoreV1().Secrets(system), clock: clock.RealClock{}, claims: map[string]*claimant{}, clusterUID: "c", nonce: "n"}
			record := &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}, Spec: spec}
			condition, _, _ := asking.ask(t.Context(), record)
			if condition.Reason != c.reason || !strings.Contains(condition.Message, c.says) {
				t.Errorf("got %+v, want %s that says %q", condition, c.reason, c.says)
			}
			written := 0
			for _, err := range storetest.Open(t, spec, secret).List(t.Context(), "", store.ListOptions{Recursive: true}) {
				if err != nil {
					t.Fatal(err)
				}
				written++
			}
			if written > 0 != (c.status == 0) || len(locks.All()) > 0 != (c.status == 0) {
				t.Errorf("%d objects were written, with the locks %v", written, locks.All())
			}
		})
	}
}
