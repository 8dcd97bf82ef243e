// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/exec"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

// stamped is a pod whose metadata has some more.
func stamped(pod, more string) string {
	return strings.Replace(pod, `"metadata":{`, `"metadata":{`+more+`,`, 1)
}

// bytesOf are the bytes of a pod in the tarball, which has it once, as the manifest and the
// resource list do.
func (f *fixture) bytesOf(t *testing.T, pod string) string {
	t.Helper()
	described := 0
	content := f.tarball(t)["resources/pods/namespaces/shop/"+pod+".json"]
	for item, err := range manifest.Read(bytes.NewReader(f.read(t, format.ManifestKey("b")))) {
		if err != nil {
			t.Fatal(err)
		}
		if item.Resource != "pods" || item.Name != pod {
			continue
		}
		described++
		if of := format.NewContent(content); of.Size != item.Size || of.SHA256 != item.SHA256 {
			t.Errorf("the manifest is about other bytes of %s", pod)
		}
	}
	list, err := format.ReadResourceList(bytes.NewReader(f.read(t, format.ResourceListKey("b"))))
	if err != nil {
		t.Fatal(err)
	}
	listed := 0
	for _, name := range list["v1/Pod"] {
		if name == "shop/"+pod {
			listed++
		}
	}
	if described != 1 || listed != 1 {
		t.Errorf("%s is %d times in the manifest and %d times in the list", pod, described, listed)
	}
	return string(content)
}

// TestPodsAreReadAfterTheirPreHooks: what these change is in the backup, for one request each.
// Whatever comes in between, each pod is in it once.
func TestPodsAreReadAfterTheirPreHooks(t *testing.T) {
	listed := hookedPod("p", "n1", isDB, "", "d"+claimData)
	changed := stamped(listed, `"resourceVersion":"2"`)
	const before = "what the backup has of it is from before its pre hooks: "
	runs := []string{"pending p", "p/c1: freeze /d", "submit p/d", "read p again", "read p/d", "p/c1: thaw /d", "pending none", "read p/d"}
	leftOut := []string{"pending p", "p/c1: freeze /d", "read p again", "p/c1: thaw /d", "pending none"}
	withoutPost := dbHooks("")
	withoutPost.Resources[0].Post = nil
	onlyPost := dbHooks("")
	onlyPost.Resources[0].Pre = nil
	type answers []func(w http.ResponseWriter)
	serves := func(pods ...string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[%s]}`, strings.Join(pods, ","))
		}
	}
	refuses := func(code int32, reason metav1.StatusReason) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { writeStatus(w, metav1.Status{Code: code, Reason: reason, Message: "no"}) }
	}
	for name, test := range map[string]struct {
		hooks v1alpha1.BackupHooks
		// answers are those to the requests for the pod alone.
		answers answers
		spoil   func(*testHooks)
		want    string // nothing: what was listed
		events  []string
		phase   v1alpha1.BackupPhase
		// told is in the results, and logged in the log.
		told, logged string
	}{
		"changed": {answers: answers{serves(changed)}, want: changed, events: runs},
		"changed, without post hooks": {
			hooks: withoutPost, answers: answers{serves(changed)}, want: changed,
			events: []string{"p/c1: freeze /d", "submit p/d", "read p again", "read p/d"},
		},
		"changed, and the server is away for a moment": {
			answers: answers{refuses(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable), serves(changed)}, want: changed,
			events: slices.Insert(slices.Clone(runs), 3, "read p again"),
		},
		"changed by a hook that fails": {
			spoil: func(h *testHooks) {
				h.exec = func(_ context.Context, what string) (string, error) {
					if strings.Contains(what, "freeze") {
						return "", exec.CodeExitError{Err: errors.New("exit code 1"), Code: 1}
					}
					return "", nil
				}
			},
			answers: answers{serves(changed)}, want: changed, events: leftOut,
			phase: v1alpha1.BackupPhasePartiallyFailed, told: "its pre hook db failed in container c1: exit code 1",
		},
		"gone":                {answers: answers{serves()}, events: runs, logged: before + "it is gone"},
		"another of its name": {answers: answers{serves(strings.ReplaceAll(changed, "uid-p", "uid-q"))}, events: runs, logged: before + "it is gone"},
		"another one":         {answers: answers{serves(strings.ReplaceAll(changed, `"name":"p"`, `"name":"q"`))}, events: runs, logged: before + "it is gone"},
		"being deleted": {
			answers: answers{serves(stamped(listed, `"deletionTimestamp":"2026-08-01T12:00:00Z"`))}, events: runs,
			logged: before + "now it would be left out: it is being deleted",
		},
		"labelled to be left out": {
			answers: answers{serves(strings.Replace(listed, isDB, isDB+`,"velero.io/exclude-from-backup":"true"`, 1))}, events: runs,
			logged: before + "now it would be left out: it has the label velero.io/exclude-from-backup=true",
		},
		"ended by its hook": {
			answers: answers{serves(strings.Replace(listed, `"phase":"Running"`, `"phase":"Succeeded"`, 1))}, events: runs,
			logged: before + "it has ended since",
		},
		"no pod": {
			answers: answers{serves(`{"metadata":{"name":7}}`)}, events: runs,
			told: before + "list it: read an object: json: cannot unmarshal number into Go value of type string",
		},
		"not to be read": {answers: answers{refuses(http.StatusForbidden, metav1.StatusReasonForbidden)}, events: runs, told: before + "list it: no"},
		"not to be read in time": {
			answers: slices.Repeat(answers{refuses(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)}, 4),
			events:  slices.Insert(slices.Clone(runs), 3, "read p again", "read p again", "read p again"), told: before + "list it: no",
		},
		"no right to run hooks": {
			spoil:  func(h *testHooks) { h.allowed = func(string) error { return NotAllowedError("ada may not") } },
			phase:  v1alpha1.BackupPhasePartiallyFailed,
			told:   "its hooks were not run: ada may not",
			events: nil,
		},
		"hooks that are not noted": {
			spoil:  func(h *testHooks) { h.pending = func([]enginev1alpha1.PodReference) error { return errBoom } },
			phase:  v1alpha1.BackupPhasePartiallyFailed,
			told:   "note which post hooks are to be run: " + errBoom.Error(),
			events: []string{"pending p"},
		},
		"post hooks only": {hooks: onlyPost, events: []string{"pending p", "submit p/d", "read p/d", "p/c1: thaw /d", "pending none", "read p/d"}},
	} {
		t.Run(name, func(t *testing.T) {
			hooks := test.hooks
			if hooks.Resources == nil {
				hooks = dbHooks("")
			}
			// What shares a claim with the pod, and what does not, is read by the list alone.
			f := hookedFixture(t, hooks, listed, podWith("r", ""))
			f.add("pods", hookedPod("q", "n1", "", "", "d"+claimData))
			if test.spoil != nil {
				test.spoil(f.hooks)
			}
			var alone []string
			f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				named := r.URL.Query().Get("fieldSelector")
				if named == "" || !strings.HasSuffix(r.URL.Path, "/namespaces/shop/pods") {
					return false
				}
				alone = append(alone, named)
				f.hooks.note("read p again")
				test.answers[min(len(alone), len(test.answers))-1](w)
				return true
			}
			outcome := f.run(t)
			if diff := gocmp.Diff(test.events, f.hooks.events); diff != "" {
				t.Errorf("what was done (-want +got):\n%s", diff)
			}
			if len(alone) != len(test.answers) || slices.ContainsFunc(alone, func(named string) bool { return named != "metadata.name=p" }) {
				t.Errorf("asked for %q by themselves, want %d times for p", alone, len(test.answers))
			}
			if n := f.requested("/api/v1/namespaces/shop/pods"); n != 1+len(test.answers) {
				t.Errorf("pods were asked for %d times", n)
			}
			want := test.want
			if want == "" {
				want = listed
			}
			for pod, want := range map[string]string{"p": want, "q": hookedPod("q", "n1", "", "", "d"+claimData), "r": podWith("r", "")} {
				if diff := gocmp.Diff(decoded(t, []byte(stampedKind(want))), decoded(t, []byte(f.bytesOf(t, pod)))); diff != "" {
					t.Errorf("the bytes of %s (-want +got):\n%s", pod, diff)
				}
			}
			if phase := outcome.Status.Phase; phase != test.phase && (test.phase != "" || phase != v1alpha1.BackupPhaseCompleted) {
				t.Errorf("the backup is %s", phase)
			}
			if written := outcome.Status.Progress.ItemsBackedUp; written != int64(len(f.items(t))) {
				t.Errorf("%d objects were counted, and the list has %d", written, len(f.items(t)))
			}
			results, log := f.text(t, format.ResultsKey("b")), f.text(t, format.LogKey("b"))
			if !strings.Contains(results, test.told) || test.told == "" && strings.Contains(results, before) {
				t.Errorf("told: %s", results)
			}
			if !strings.Contains(log, test.logged) || test.logged+test.told == "" && strings.Contains(log, before) {
				t.Errorf("logged: %s", log)
			}
		})
	}
}

// TestBelongingsAreReadAfterPreHooks: what the pre hooks of a pod change on its claims, and on their
// persistent volumes, is in the backup, for one request each, or one list if they are many. What
// belongs to no such pod is not asked for, and each is in the backup once.
func TestBelongingsAreReadAfterPreHooks(t *testing.T) {
	const claims, volumes = "/api/v1/namespaces/shop/persistentvolumeclaims", "/api/v1/persistentvolumes"
	const note, changed = `"annotations":{"dumped":"yes"}`, `"dumped":"yes"`
	type edit func(path, object string) (string, int)
	isGone := func(path, object string) (string, int) { return object, http.StatusNotFound }
	for name, test := range map[string]struct {
		more  int // claims of the pod
		edit  edit
		spoil func(*fixture)
		// lists and gets are the requests for claims and persistent volumes, all in all.
		lists, gets int
		changed     []string
		told        string
		logged      string
	}{
		"changed":       {lists: 1, gets: 4, changed: []string{"data", "pv-data"}},
		"many, changed": {more: manyGets, lists: 3, gets: 11, changed: []string{"data", "more-3", "pv-data", "pv-more-3"}},
		"chosen by a label": {lists: 1, gets: 4, changed: []string{"data", "pv-data"}, spoil: func(f *fixture) {
			f.request.Backup.Spec.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
		}},
		"gone": {lists: 1, gets: 4, edit: isGone, logged: withClaim + "it is gone"},
		"another of its name": {lists: 1, gets: 4, logged: withClaim + "it is gone", edit: func(_, object string) (string, int) {
			return strings.Replace(object, `"uid":"`, `"uid":"other-`, 1), 0
		}},
		"being deleted": {lists: 1, gets: 4, logged: withClaim + "now it would be left out: it is being deleted", edit: func(_, object string) (string, int) {
			return stamped(object, `"deletionTimestamp":"2026-08-01T12:00:00Z"`), 0
		}},
		"not to be read": {lists: 1, gets: 4, told: withClaim + "read it: no", edit: func(_, object string) (string, int) { return object, http.StatusForbidden }},
		"no object": {lists: 1, gets: 4, told: withClaim + "read it: read an object", edit: func(path, object string) (string, int) {
			return `{"metadata":{"name":7}}`, 0
		}},
		"very many, changed": {more: manyFrozenGets, lists: 4, changed: []string{"data", "more-3", "pv-data", "pv-more-3"}},
		"many, and the list fails": {more: manyGets, lists: 3, gets: 22, told: withClaim + "read it: no", edit: func(_, object string) (string, int) {
			return object, http.StatusForbidden
		}},
		"ordered by the spec": {lists: 1, gets: 3, changed: []string{"pv-data"}, spoil: func(f *fixture) {
			f.request.Backup.Spec.OrderedResources = map[string]string{"persistentvolumeclaims": "shop/data"}
		}},
		"no right to run hooks": {lists: 1, gets: 2, told: "its hooks were not run", spoil: func(f *fixture) {
			f.hooks.allowed = func(string) error { return NotAllowedError("ada may not") }
		}},
		"hooks that are not noted": {lists: 1, gets: 2, told: "note which post hooks are to be run", spoil: func(f *fixture) {
			f.hooks.pending = func([]enginev1alpha1.PodReference) error { return errBoom }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			yes := true
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: &yes, Hooks: dbHooks("")}).watched()
			f.add("namespaces", namespace("shop", ""))
			objects := map[string]string{}
			bind := func(name string) {
				objects[claims+"/"+name] = fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"shop","uid":"uid-%s"},"spec":{"volumeName":"pv-%s","dataSource":{"name":"x"}},"status":{"phase":"Bound"}}`, name, name, name)
				objects[volumes+"/pv-"+name] = fmt.Sprintf(`{"metadata":{"name":"pv-%s","uid":"uid-pv-%s"},"spec":{"csi":{}}}`, name, name)
				f.add("persistentvolumeclaims", objects[claims+"/"+name])
				f.add("persistentvolumes", objects[volumes+"/pv-"+name])
			}
			bind("data")
			bind("local") // of a pod without hooks
			of := []string{"d" + claimData}
			for i := range test.more {
				name := fmt.Sprintf("more-%d", i)
				bind(name)
				of = append(of, name+strings.Replace(claimData, `"data"`, fmt.Sprintf("%q", name), 1))
			}
			f.add("pods", hookedPod("p", "n1", isDB, "", of...), hookedPod("q", "n1", "", "", "l"+strings.Replace(claimData, `"data"`, `"local"`, 1)))
			if test.spoil != nil {
				test.spoil(f)
			}
			var mu sync.Mutex
			frozen, thawed := false, false
			f.hooks.exec = func(_ context.Context, what string) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				frozen, thawed = true, strings.Contains(what, "thaw")
				return "", nil
			}
			if test.edit == nil {
				test.edit = func(_, object string) (string, int) { return stamped(object, note), 0 }
			}
			lists, gets := 0, 0
			f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				mu.Lock()
				defer mu.Unlock()
				isList := r.URL.Path == claims || r.URL.Path == volumes
				if isList && r.URL.Query().Get("fieldSelector") == "" {
					lists++
				} else if objects[r.URL.Path] != "" {
					gets++
				}
				if !frozen || !isList && objects[r.URL.Path] == "" {
					return false
				}
				if thawed {
					t.Errorf("%s is asked for after the post hooks", r.URL.Path)
				}
				if strings.Contains(r.URL.Path, "local") {
					t.Error("what belongs to the other pod is asked for")
				}
				answer, code := test.edit(r.URL.Path, objects[r.URL.Path])
				if isList {
					var items []string
					for path, object := range objects {
						if strings.HasPrefix(path, r.URL.Path+"/") {
							edited, refused := test.edit(path, object)
							items, code = append(items, edited), refused
						}
					}
					answer = `{"kind":"List","metadata":{},"items":[` + strings.Join(items, ",") + `]}`
				}
				if code != 0 {
					writeStatus(w, metav1.Status{Code: int32(code), Reason: map[int]metav1.StatusReason{http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusForbidden: metav1.StatusReasonForbidden}[code], Message: "no"})
					return true
				}
				fmt.Fprint(w, answer)
				return true
			}
			outcome := f.run(t)
			if lists != test.lists || gets != test.gets {
				t.Errorf("%d lists and %d single claims and volumes were asked for, want %d and %d", lists, gets, test.lists, test.gets)
			}
			tarball, items := f.tarball(t), f.items(t)
			for path := range objects {
				kind, name := "persistentvolumeclaims", path[strings.LastIndex(path, "/")+1:]
				where, item := "namespaces/shop/", "shop/"+name
				if strings.HasPrefix(name, "pv-") {
					kind, where, item = "persistentvolumes", "cluster/", name
				}
				content := string(tarball["resources/"+kind+"/"+where+name+".json"])
				chosen := f.request.Backup.Spec.LabelSelector == nil || !strings.Contains(name, "local")
				if (content != "") != chosen || slices.Contains(items, kind+" "+item) != chosen {
					t.Errorf("%s is in the tarball as %q, and in the list: %t", name, content, !chosen)
				}
				is := strings.Contains(content, changed)
				if want := slices.Contains(test.changed, name) || test.more > 0 && len(test.changed) > 0 && strings.Contains(name, "more-"); is != want || strings.Contains(content, "dataSource") {
					t.Errorf("%s has the change: %t: %s", name, is, content)
				}
			}
			if written := outcome.Status.Progress.ItemsBackedUp; written != int64(len(items)) || f.deps.Progress.Objects().TotalItems != written {
				t.Errorf("%d objects were counted, and the list has %d", written, len(items))
			}
			results, log := f.text(t, format.ResultsKey("b")), f.text(t, format.LogKey("b"))
			if !strings.Contains(results, test.told) || !strings.Contains(log, test.logged) || test.told+test.logged == "" && strings.Contains(log, withClaim) {
				t.Errorf("told: %s\nlogged: %s", results, log)
			}
		})
	}
}

// TestBelongingsAreBounded: claims and persistent volumes beyond a bound are written as they come,
// and so are those that can't be kept until the hooks have run, or are too large then.
func TestBelongingsAreBounded(t *testing.T) {
	for name, test := range map[string]struct {
		index, held int
		told        string
		gets        int
	}{
		"nothing is kept":              {0, 1 << 20, "", 0},
		"nothing is kept for hooks":    {1 << 20, 10, withClaim + tooMuchHeld, 0},
		"what is read then is too big": {1 << 20, 2000, withClaim + tooMuchHeld, 2},
	} {
		t.Run(name, func(t *testing.T) {
			defer func(index, held int) { maxIndexBytes, maxHeldBytes = index, held }(maxIndexBytes, maxHeldBytes)
			maxIndexBytes, maxHeldBytes = test.index, test.held
			f := hookedFixture(t, dbHooks(""), hookedPod("p", "n1", isDB, "", "d"+claimData))
			gets := 0
			var frozen atomic.Bool
			f.hooks.exec = func(context.Context, string) (string, error) { frozen.Store(true); return "", nil }
			f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
				if !frozen.Load() || name != "data" && name != "pv-data" {
					return false
				}
				gets++
				fmt.Fprintf(w, `{"metadata":{"name":%q,"uid":%q,"annotations":{"more":%q}}}`, name, map[string]string{"data": "claim-data"}[name], strings.Repeat("x", 2000))
				return true
			}
			f.run(t)
			items := f.items(t)
			if gets != test.gets || !slices.Contains(items, "persistentvolumeclaims shop/data") || !slices.Contains(items, "persistentvolumes pv-data") {
				t.Errorf("%d were read again; the backup has %q", gets, items)
			}
			if results := f.text(t, format.ResultsKey("b")); strings.Contains(results, withClaim) != (test.told != "") || !strings.Contains(results, test.told) {
				t.Errorf("told: %s", results)
			}
			if told := strings.Contains(f.text(t, format.LogKey("b")), "was read before any hook"); told != (test.index == 0) {
				t.Errorf("that too much is in memory is in the log: %t", told)
			}
		})
	}
}

// TestListsOfBelongingsLeaveTime: if the list of the claims is not answered while pods are frozen,
// each of them is still read, and before all persistent volumes.
func TestListsOfBelongingsLeaveTime(t *testing.T) {
	defer func(list, all time.Duration) { listAgainTimeout, readAgainTimeout = list, all }(listAgainTimeout, readAgainTimeout)
	listAgainTimeout, readAgainTimeout = time.Millisecond, time.Hour
	yes := true
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: &yes, Hooks: dbHooks("")}).watched()
	f.add("namespaces", namespace("shop", ""))
	const claims = manyFrozenGets + 1
	var of []string
	for i := range claims {
		of = append(of, fmt.Sprintf(`v%d "persistentVolumeClaim":{"claimName":"c-%d"}`, i, i))
		f.add("persistentvolumeclaims", fmt.Sprintf(`{"metadata":{"name":"c-%d","namespace":"shop"},"spec":{"volumeName":"pv-%d"},"status":{"phase":"Bound"}}`, i, i))
		f.add("persistentvolumes", fmt.Sprintf(`{"metadata":{"name":"pv-%d"},"spec":{"csi":{}}}`, i))
	}
	f.add("pods", hookedPod("p", "n1", isDB, "", of...))
	var frozen atomic.Bool
	f.hooks.exec = func(context.Context, string) (string, error) { frozen.Store(true); return "", nil }
	var mu sync.Mutex
	var asked []string
	f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		if !frozen.Load() {
			return false
		}
		if r.URL.Path == shopClaims || r.URL.Path == volumePath {
			<-r.Context().Done()
			return true
		}
		mu.Lock()
		defer mu.Unlock()
		if strings.HasPrefix(r.URL.Path, shopClaims) || strings.HasPrefix(r.URL.Path, volumePath) {
			asked = append(asked, r.URL.Path)
		}
		return false
	}
	if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || strings.Contains(f.text(t, format.ResultsKey("b")), withClaim) {
		t.Errorf("%s with %s", outcome.Status.Phase, f.text(t, format.ResultsKey("b")))
	}
	if len(asked) != 2*claims || slices.ContainsFunc(asked[:claims], func(path string) bool { return strings.HasPrefix(path, volumePath) }) {
		t.Errorf("asked for %q", asked)
	}
}

// TestWhatIsRemovedOfClaimsCounts as what is stored of them does, and no longer than they are kept.
func TestWhatIsRemovedOfClaimsCounts(t *testing.T) {
	const removed = 4000
	for name, test := range map[string]struct {
		index, held int
		early, told bool
	}{
		"all fit":       {4 * removed, 9000, false, false},
		"not at first":  {removed, 9000, true, false},
		"not for hooks": {4 * removed, removed, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			defer func(index, held int) { maxIndexBytes, maxHeldBytes = index, held }(maxIndexBytes, maxHeldBytes)
			maxIndexBytes, maxHeldBytes = test.index, test.held
			claim := func(name string, more int) string {
				return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"shop","uid":"u","annotations":{"volume.kubernetes.io/selected-node":%q}},"spec":{"volumeName":"pv-%s"},"status":{"phase":"Bound"}}`,
					name, strings.Repeat("x", more), name)
			}
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: new(true), Hooks: dbHooks("")}).watched()
			f.add("namespaces", namespace("shop", ""))
			for i, name := range []string{"a", "b"} {
				f.add("persistentvolumeclaims", claim(name, removed*(1-i)))
				f.add("pods", hookedPod("p-"+name, "n1", isDB, "", fmt.Sprintf(`d "persistentVolumeClaim":{"claimName":%q}`, name)))
			}
			// The second one grows by more than would fit if the first one, which is written, counted still.
			f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == shopClaims+"/b" {
					fmt.Fprint(w, claim("b", removed*3/2))
				}
				return r.URL.Path == shopClaims+"/b"
			}
			f.deps.BlockWorkers = 1
			f.run(t)
			if told := strings.Contains(f.text(t, format.ResultsKey("b")), withClaim+tooMuchHeld); told != test.told {
				t.Errorf("too much is held for hooks: %t", told)
			}
			if early := strings.Contains(f.text(t, format.LogKey("b")), "was read before any hook"); early != test.early {
				t.Errorf("too much is held until all pods are known: %t", early)
			}
		})
	}
}

func stampedKind(pod string) string { return `{"kind":"Pod","apiVersion":"v1",` + pod[1:] }

// TestNobodyIsFrozenForTheTarball: what was read of a pod between its hooks is written after
// them, and counts as found until then.
func TestNobodyIsFrozenForTheTarball(t *testing.T) {
	f := hookedFixture(t, dbHooks(""), hookedPod("p", "n1", isDB, "", "e"+emptyDir))
	var during v1alpha1.BackupProgress
	f.hooks.exec = func(_ context.Context, what string) (string, error) {
		if strings.Contains(what, "thaw") {
			during = f.deps.Progress.Objects()
		}
		return "", nil
	}
	f.run(t)
	if during.TotalItems != during.ItemsBackedUp+1 {
		t.Errorf("while the pod is frozen the progress is %+v", during)
	}
	log := f.text(t, format.LogKey("b"))
	thawed := strings.Index(log, `msg="ran a post hook"`)
	if written := strings.Index(log, `msg="backed up" resource=pods namespace=shop name=p`); thawed < 0 || written < thawed {
		t.Errorf("the pod was written before it had thawed:\n%s", log)
	}
}

// TestNobodyIsFrozenForTheServer: pods thaw though the server answers no request for one of them, or
// for what belongs to them.
func TestNobodyIsFrozenForTheServer(t *testing.T) {
	defer func(was time.Duration) { readAgainTimeout = was }(readAgainTimeout)
	readAgainTimeout = 100 * time.Millisecond
	f := hookedFixture(t, dbHooks(""), hookedPod("p", "n1", isDB, "", "d"+claimData), hookedPod("q", "n1", isDB, "", "d"+claimData))
	var frozen atomic.Bool
	f.hooks.exec = func(context.Context, string) (string, error) { frozen.Store(true); return "", nil }
	f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		if !frozen.Load() || (r.URL.Query().Get("fieldSelector") == "" || !strings.HasSuffix(r.URL.Path, "/pods")) && !strings.HasSuffix(r.URL.Path, "data") {
			return false
		}
		<-r.Context().Done()
		return true
	}
	outcome := f.run(t)
	if results := f.text(t, format.ResultsKey("b")); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || strings.Count(results, asListed+errNotReadInTime.Error()) != 2 ||
		strings.Count(results, withClaim+errNotReadInTime.Error()) != 2 {
		t.Errorf("%s with %s", outcome.Status.Phase, results)
	}
	thawed := slices.DeleteFunc(slices.Clone(f.hooks.events), func(event string) bool { return !strings.Contains(event, "thaw") })
	if !slices.Equal(thawed, []string{"p/c1: thaw /d", "q/c1: thaw /d"}) {
		t.Errorf("thawed: %q of %q", thawed, f.hooks.events)
	}
	for _, pod := range []string{"p", "q"} {
		f.bytesOf(t, pod)
	}
}

// TestHeldPodsAreBounded: pods beyond a bound are not kept until their hooks have run, nor is
// what a hook has made too large.
func TestHeldPodsAreBounded(t *testing.T) {
	const pods, size = 12, 1 << 12
	defer func(was int) { maxHeldBytes = was }(maxHeldBytes)
	maxHeldBytes = 11 * size
	large := func(name string, size int) string {
		return stamped(hookedPod(name, "n1", isDB, "", "e"+emptyDir), `"annotations":{"more":"`+strings.Repeat("x", size)+`"}`)
	}
	var all []string
	for i := range pods {
		all = append(all, large(fmt.Sprintf("p%02d", i), size))
	}
	f := hookedFixture(t, dbHooks(""), all...)
	var mu sync.Mutex
	var again []string
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		name, named := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
		if !named || !strings.HasSuffix(r.URL.Path, "/pods") {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		again = append(again, name)
		became := size
		if len(again) == 1 || len(again) == 10 { // with all others in memory, and by itself
			became = 2 * size
		}
		fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[%s]}`, large(name, became))
		return true
	}
	f.deps.BlockWorkers = 1
	f.run(t)
	// Each is a little larger than its annotation, so one fewer fits.
	if results := f.text(t, format.ResultsKey("b")); len(again) != 10 || strings.Count(results, asListed+tooMuchHeld) != 3 {
		t.Errorf("%q were read again: %s", again, results)
	}
	for i := range pods {
		name := fmt.Sprintf("p%02d", i)
		if content := f.bytesOf(t, name); len(content) >= 2*size != (name == again[9]) {
			t.Errorf("%s takes %d bytes", name, len(content))
		}
	}
}

// TestOrderOfPodsWithPreHooks: those that the spec orders stay in their order.
func TestOrderOfPodsWithPreHooks(t *testing.T) {
	f := hookedFixture(t, dbHooks(""),
		podWith("plain", ""), podWith("first", ""), hookedPod("db", "n1", isDB, ""), podWith("behind", ""), podWith("also", ""), hookedPod("last", "n1", isDB, ""))
	f.deps.BlockWorkers = 4
	f.request.Backup.Spec.OrderedResources = map[string]string{"pods": "shop/first,shop/db,shop/behind,shop/also"}
	f.run(t)
	got := slices.DeleteFunc(f.inOrder(t, "pods"), func(pod string) bool { return pod == "shop/last" })
	if want := []string{"shop/first", "shop/plain", "shop/db", "shop/behind", "shop/also"}; !slices.Equal(got, want) {
		t.Errorf("the pods are %q", got)
	}
	if n := f.requested("/api/v1/namespaces/shop/pods"); n != 1+4+2 { // all, those that are ordered, and those with hooks
		t.Errorf("pods were asked for %d times", n)
	}
	f.bytesOf(t, "last")
}
