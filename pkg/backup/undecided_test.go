// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// chosenPods are so many pods of the namespace shop with two claims each, of which only the pods
// have the label that the backup chooses by, beside one pod that it does not choose.
func chosenPods(t *testing.T, pods int) *fixture {
	t.Helper()
	f := newFixture(t, v1alpha1.BackupSpec{
		IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: new(true),
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
	})
	f.addPods(pods)
	chosen := f.objects[podsResource]
	f.objects[podsResource] = nil
	for _, pod := range chosen {
		f.add("pods", strings.Replace(string(pod.raw), `"metadata":{`, `"metadata":{"labels":{"app":"web"},`, 1))
	}
	f.add("pods", podWith("other", "", `data "persistentVolumeClaim":{"claimName":"other"}`))
	f.add("persistentvolumeclaims", named("shop", "other")...)
	return f
}

const (
	shopClaims = "/api/v1/namespaces/shop/persistentvolumeclaims"
	volumePath = "/api/v1/persistentvolumes"
)

// wantChosen checks that the pods, their claims and the volumes of these are in the backup, and
// that the data of all was handed over.
func (f *fixture) wantChosen(t *testing.T, outcome Outcome, pods int) {
	t.Helper()
	var want []string
	for i := range pods {
		want = append(want, fmt.Sprintf("pods shop/p-%d", i))
		for _, name := range []string{"data", "logs"} {
			want = append(want, fmt.Sprintf("persistentvolumeclaims shop/%s-%d", name, i), fmt.Sprintf("persistentvolumes pv-%s-%d", name, i))
		}
	}
	want = append(want, "namespaces shop")
	slices.Sort(want)
	if got := f.items(t); !slices.Equal(got, want) {
		t.Errorf("the backup holds %d objects, want %d: %q", len(got), len(want), got)
	}
	if got := outcome.Status; got.Phase != v1alpha1.BackupPhaseCompleted || got.Volumes == nil || got.Volumes.Completed != int32(2*pods) {
		t.Errorf("got %+v, volumes %+v: %+v", got, got.Volumes, f.results(t))
	}
}

// TestManyClaimsOfChosenPods: one list finds the claims of all pods that a label chooses, and
// another one their volumes; a few are read one by one.
func TestManyClaimsOfChosenPods(t *testing.T) {
	for pods, want := range map[int]struct{ claimGets, claimLists, volumeGets, volumeLists int }{
		manyGets / 2:   {manyGets, 0, manyGets, 0},
		manyGets/2 + 1: {0, 1, 0, 1},
		300:            {0, 2, 0, 2}, // pages of 500
	} {
		f := chosenPods(t, pods)
		f.wantChosen(t, f.run(t), pods)
		// The first list of each is that of what has the label itself.
		gets, lists := f.requested(shopClaims+"/"), f.requested(shopClaims)-f.requested(shopClaims+" labelSelector")
		if lists -= gets; gets != want.claimGets || lists != want.claimLists {
			t.Errorf("%d pods: %d claims were read one by one, and %d pages of them, want %+v", pods, gets, lists, want)
		}
		gets, lists = f.requested(volumePath+"/"), f.requested(volumePath)-f.requested(volumePath+" labelSelector")
		if lists -= gets; gets != want.volumeGets || lists != want.volumeLists {
			t.Errorf("%d pods: %d volumes were read one by one, and %d pages of them, want %+v", pods, gets, lists, want)
		}
	}
}

// TestPodsThatWaitAreBounded: if too many wait for their claims, those are looked for meanwhile.
func TestPodsThatWaitAreBounded(t *testing.T) {
	defer func(was int) { maxUndecidedBytes = was }(maxUndecidedBytes)
	const pods = 100
	maxUndecidedBytes = 64_000
	f := chosenPods(t, pods)
	f.wantChosen(t, f.run(t), pods)
	// Each pod takes some 3,700 bytes, so that it is about a fifth of them at a time.
	if got := f.requested(shopClaims) - f.requested(shopClaims+" labelSelector"); got < 3 || got > pods/5 {
		t.Errorf("the claims were asked for %d times", got)
	}
}

// TestClaimsThatAreGone: a list that has all tells as well as a request for each, and one that
// breaks off is no answer about what it lacks.
func TestClaimsThatAreGone(t *testing.T) {
	const pods = manyGets + 1
	for name, broken := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"the whole list": nil,
		"no list": func(w http.ResponseWriter, r *http.Request) bool {
			refused := r.URL.Path == shopClaims && !r.URL.Query().Has("labelSelector")
			if refused {
				writeStatus(w, metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden})
			}
			return refused
		},
		"a list with an object that can't be read": func(w http.ResponseWriter, r *http.Request) bool {
			mine := r.URL.Path == shopClaims && !r.URL.Query().Has("labelSelector")
			if mine {
				fmt.Fprint(w, `{"kind":"List","metadata":{},"items":[{"metadata":{"name":7}}]}`)
			}
			return mine
		},
	} {
		f := chosenPods(t, pods)
		// Of the second claim of each pod there is none.
		f.objects[claimsResource] = slices.DeleteFunc(f.objects[claimsResource], func(o testObject) bool { return strings.HasPrefix(o.name, "logs-") })
		f.intercept = broken
		outcome := f.run(t)
		if got := outcome.Status; got.Volumes == nil || got.Volumes.Completed != pods || got.Errors != 0 {
			t.Errorf("%s: got %+v, volumes %+v: %+v", name, got, got.Volumes, f.results(t))
		}
		told := 0
		for _, text := range f.results(t).Warnings.Namespaces["shop"] {
			if strings.Contains(text, "logs-") && strings.Contains(text, notThere) {
				told++
			}
		}
		if told != pods {
			t.Errorf("%s: of %d claims that are gone %d are told of: %+v", name, pods, told, f.results(t).Warnings)
		}
		wantGets := map[bool]int{true: 0, false: 2 * pods}[broken == nil]
		if got := f.requested(shopClaims + "/"); got != wantGets {
			t.Errorf("%s: %d claims were asked for one by one, want %d", name, got, wantGets)
		}
	}
}

// TestManyTouchedNamespaces come along by one list, and a few by a request each.
func TestManyTouchedNamespaces(t *testing.T) {
	for namespaces, want := range map[int]struct{ gets, lists int }{
		manyGets:     {manyGets, 1}, // the one of the beginning
		manyGets + 1: {0, 2},
	} {
		f := newFixture(t, v1alpha1.BackupSpec{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}})
		for i := range namespaces {
			name := fmt.Sprintf("shop-%02d", i)
			f.add("namespaces", namespace(name, ""), namespace(fmt.Sprintf("other-%02d", i), ""))
			f.add("configmaps", fmt.Sprintf(`{"metadata":{"name":"c","namespace":%q,"labels":{"app":"web"}}}`, name))
		}
		if got := f.run(t).Status; got.Phase != v1alpha1.BackupPhaseCompleted || got.Progress.ItemsBackedUp != int64(2*namespaces) {
			t.Errorf("%d namespaces: got %+v: %+v", namespaces, got, f.results(t))
		}
		const path = "/api/v1/namespaces"
		gets := 0
		for i := range namespaces {
			if slices.Contains(f.requests, fmt.Sprintf("%s/shop-%02d", path, i)) {
				gets++
			}
		}
		lists := 0
		for _, request := range f.requests {
			if request == path {
				lists++
			}
		}
		if gets != want.gets || lists != want.lists {
			t.Errorf("%d namespaces: %d were read one by one, and %d lists, want %+v", namespaces, gets, lists, want)
		}
	}
}

// TestFewClaimsInALongList: of a list that has far more than is looked for, no more than a page is
// read, whether what is looked for exists or not.
func TestFewClaimsInALongList(t *testing.T) {
	const pods, others = manyGets + 1, 5 * pageSize
	f := chosenPods(t, pods)
	f.objects[claimsResource] = slices.DeleteFunc(f.objects[claimsResource], func(o testObject) bool { return o.name == "logs-0" })
	var claims, volumes []string
	for i := range others {
		claims = append(claims, fmt.Sprintf("a-%d", i))
		volumes = append(volumes, fmt.Sprintf("a-%d", i))
	}
	f.add("persistentvolumeclaims", named("shop", claims...)...)
	f.add("persistentvolumes", named("", volumes...)...)
	if got := f.run(t).Status; got.Phase != v1alpha1.BackupPhaseCompleted || got.Volumes == nil || got.Volumes.Completed != 2*pods-1 {
		t.Errorf("got %+v, volumes %+v: %+v", got, got.Volumes, f.results(t))
	}
	if got := f.results(t).Warnings.Namespaces["shop"]; !slices.ContainsFunc(got, func(text string) bool { return strings.Contains(text, notThere) }) {
		t.Errorf("told: %q", got)
	}
	for path, want := range map[string]int{shopClaims: 2 * pods, volumePath: 2*pods - 1} {
		gets := f.requested(path + "/")
		pages := f.requested(path) - f.requested(path+" labelSelector") - gets
		if gets != want || pages > 2 { // the next page is asked for early
			t.Errorf("%s: %d were read one by one, and %d pages of them, want %d and a page", path, gets, pages, want)
		}
	}
}
