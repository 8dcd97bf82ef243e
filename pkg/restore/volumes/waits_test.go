// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/waits"
)

// TestWhatClaimsWaitFor shows that a restore can say within some seconds what the data of a claim
// waits for: also that its StorageClass is missing, which only an event of the claim says.
func TestWhatClaimsWaitFor(t *testing.T) {
	warning := func(of, reason, message string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "shop", Name: of + reason},
			InvolvedObject: corev1.ObjectReference{UID: "uid-of-data"}, Type: corev1.EventTypeWarning,
			Reason: reason, Message: message, LastTimestamp: metav1.Now(),
		}
	}
	for name, test := range map[string]struct {
		change func(h *harness)
		want   []string
	}{
		"its StorageClass is missing": {func(h *harness) {
			h.kubelet = unschedulable(h)
			if _, err := h.Kube.CoreV1().Events("shop").Create(h.Context(), warning("data", "ProvisioningFailed", `storageclass "fast" not found`), metav1.CreateOptions{}); err != nil {
				h.Fatal(err)
			}
		}, []string{"waits for pod holdfast-restore-", " in shop: it is on no node: 0/3 nodes are available", `; claim data: ProvisioningFailed: storageclass "fast" not found`}},
		"a quota": {func(h *harness) {
			h.refuse(apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota: few")))
		}, []string{"waits for pod holdfast-restore-", "to be created", "exceeded quota: few"}},
		"its agent does not begin": {func(h *harness) { h.agent = nil },
			[]string{"waits for the data of claim data in shop: the agent of node node-1 has not begun"}},
		"its agent writes": {func(h *harness) { h.agent = inProgress },
			[]string{"waits for the data of claim data in shop, which the agent of node node-1 writes"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				r := h.restorer()
				claim := h.claim("data")
				test.change(h)
				noted := waits.New(clock.RealClock{})
				ctx, cancel := context.WithCancel(waits.With(t.Context(), noted))
				ended := make(chan error, 1)
				go func() { ended <- r.Claim(ctx, claim) }()
				time.Sleep(5 * time.Second)
				line := noted.Line("shop", system)
				for _, want := range test.want {
					if !strings.Contains(line, want) {
						t.Errorf("it says %q, which lacks %q", line, want)
					}
				}
				if line := noted.Line("blog", system); line != "waits for 1 not named here" {
					t.Errorf("others are told %q", line)
				}
				cancel()
				<-ended
				if line := noted.Line("shop", system); line != "" {
					t.Errorf("in the end it says %q", line)
				}
			})
		})
	}
}
