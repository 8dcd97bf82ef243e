// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/identity"
)

// TestSuccessions: a namespace that a restore makes continues the one in the backup, however the
// restore ends and how often it is begun; one that is there, and one that is a copy, do not.
func TestSuccessions(t *testing.T) {
	blog := obj("v1", "Namespace", "", "blog")
	backup := backupOf(t, append(configMaps("shop", 3), blog, obj("v1", "ConfigMap", "blog", "c"))...)
	const of = "shop old-Namespace--shop, blog old-Namespace--blog"
	for name, test := range map[string]struct {
		spec   v1alpha1.RestoreSpec
		exists []string
		fault  string // of requests to this path
		lost   bool   // the answer, and not the request
		again  bool
		phase  v1alpha1.RestorePhase
		want   string
	}{
		"both are lost":                      {want: of},
		"one is there":                       {exists: []string{"blog"}, want: "shop old-Namespace--shop"},
		"one is a copy":                      {spec: v1alpha1.RestoreSpec{NamespaceMapping: map[string]string{"shop": "copy"}}, want: "blog old-Namespace--blog"},
		"only a plan":                        {spec: v1alpha1.RestoreSpec{PlanOnly: true}},
		"without the namespace itself":       {spec: v1alpha1.RestoreSpec{IncludedNamespaces: []string{"shop"}, IncludedResources: []string{"configmaps"}, IncludeClusterResources: new(false)}, want: "shop old-Namespace--shop"},
		"without all of its objects":         {fault: "/configmaps", phase: v1alpha1.RestorePhasePartiallyFailed, want: of},
		"the answer to a creation was lost":  {fault: "/namespaces", lost: true, want: of},
		"the process was killed after that":  {again: true, want: of},
		"made anew without itself, and then": {spec: v1alpha1.RestoreSpec{IncludedResources: []string{"configmaps"}, IncludeClusterResources: new(false)}, again: true, want: of},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t)
			for _, namespace := range test.exists {
				s.add("namespaces", obj("v1", "Namespace", "", namespace))
			}
			var mu sync.Mutex
			answered := map[string]bool{}
			s.fault = func(r *http.Request) (int, bool) {
				if test.fault == "" || r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, test.fault) {
					return 0, false
				}
				if test.lost {
					mu.Lock()
					defer mu.Unlock()
					if answered[r.URL.Path] {
						return 0, false
					}
					answered[r.URL.Path] = true
					return http.StatusServiceUnavailable, true
				}
				return http.StatusUnprocessableEntity, false
			}
			var made []identity.Succession
			succeed := func(d *Dependencies) {
				d.Succeed = func(ctx context.Context, of identity.Succession) error {
					mu.Lock()
					defer mu.Unlock()
					made = append(made, of)
					return ctx.Err()
				}
			}
			if test.again {
				s.run(t.Context(), backup, request("r", test.spec)) // it has made them, and recorded nothing
			}
			if test.phase == "" {
				test.phase = v1alpha1.RestorePhaseCompleted
			}
			want(t, s.run(t.Context(), backup, request("r", test.spec), succeed), test.phase)
			var got []string
			for _, one := range made {
				if live := s.get("namespaces", "", one.Namespace); live == nil || live.GetUID() != one.UID {
					t.Errorf("%+v, and there is %+v", one, live)
				}
				got = append(got, one.Namespace+" "+string(one.Former))
			}
			slices.Sort(got)
			wanted := strings.Split(test.want, ", ")
			slices.Sort(wanted)
			if diff := cmp.Diff(test.want == "", len(got) == 0); diff != "" || test.want != "" && cmp.Diff(wanted, got) != "" {
				t.Errorf("successions are %q, want %q", got, wanted)
			}
		})
	}
}

// TestSuccessionsThatCannotBeRecorded: the restore goes on, and says how to list what was there.
func TestSuccessionsThatCannotBeRecorded(t *testing.T) {
	s := newFakeServer(t)
	want(t, s.run(t.Context(), backupOf(t, configMaps("shop", 3)...), request("r", v1alpha1.RestoreSpec{}), func(d *Dependencies) {
		d.Succeed = func(context.Context, identity.Succession) error { return errors.New("there is no room") }
	}), v1alpha1.RestorePhaseCompleted, "there is no room", "spec.trustedClusters")
}

// TestSuccessionOfACancelledRestore: the namespace is there, so what it continues is recorded.
func TestSuccessionOfACancelledRestore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	e := newExecution(ctx, request("r", v1alpha1.RestoreSpec{}), Dependencies{Clock: clock.RealClock{}})
	cancel()
	recorded := errors.New("it was not called")
	e.Succeed = func(ctx context.Context, _ identity.Succession) error {
		recorded = ctx.Err()
		return nil
	}
	e.succeed(ctx, "shop", "former", "live")
	if recorded != nil {
		t.Errorf("recording it ended with %v", recorded)
	}
}
