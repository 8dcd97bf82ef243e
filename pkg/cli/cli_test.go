// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

// refusal is an answer with its own code.
type refusal struct{ metav1.Status }

// server answers each path with an object, or a text, and keeps the requests.
type server struct {
	answers map[string]any

	mu       sync.Mutex
	requests []string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.Method+" "+r.URL.RequestURI())
	s.mu.Unlock()
	if r.URL.Query().Get("watch") == "true" {
		if r.URL.Query().Get("sendInitialEvents") == "true" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity, Message: "list first"})
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done() // nothing changes
		return
	}
	switch answer := s.answers[r.Method+" "+r.URL.Path].(type) {
	case nil:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Message: "not found"})
	case string:
		_, _ = w.Write([]byte(answer))
	case func(*http.Request) any:
		given := answer(r)
		w.Header().Set("Content-Type", "application/json")
		if refused, ok := given.(refusal); ok {
			w.WriteHeader(int(refused.Code))
		}
		_ = json.NewEncoder(w).Encode(given)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}
}

// run runs a command line against a server.
func run(t *testing.T, s *server, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	served := httptest.NewServer(s)
	defer served.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	code = Run(t.Context(), "v1", append(args, "--kubeconfig="+kubeconfig, "--server="+served.URL, "-n=shop"), genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut})
	return out.String(), errOut.String(), code
}

const of = "/apis/holdfast.io/v1alpha1/namespaces/shop/"

// TestDeletionNamesTheBackupThatWasShown: the request has the uid, so that another backup of the
// same name stays.
func TestDeletionNamesTheBackupThatWasShown(t *testing.T) {
	backup := &v1alpha1.Backup{TypeMeta: typed("Backup"), ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "shop", UID: "u1"}}
	byHandle := false
	s := &server{answers: map[string]any{
		"GET " + of + "backups/b": backup,
		"POST " + of + "backups/b/deletion": func(r *http.Request) any {
			body, err := io.ReadAll(r.Body)
			if err != nil || !strings.Contains(string(body), `"uid":"u1"`) {
				t.Errorf("sent %s, %v", body, err)
			}
			byHandle = strings.Contains(string(body), `"snapshotsByHandle":true`)
			return metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Message: "the backup is deleted"}
		},
	}}
	if _, stderr, code := run(t, s, "backup", "delete", "b"); code != ExitUsage || !strings.Contains(stderr, "--yes") || len(s.requests) != 1 {
		t.Errorf("without an answer: exit code %d, %q, %q", code, stderr, s.requests)
	}
	if _, stderr, code := run(t, s, "backup", "delete", "b", "--yes", "--snapshots-by-handle"); code != ExitOK || !byHandle {
		t.Errorf("with --snapshots-by-handle: exit code %d, %q, asked for: %t", code, stderr, byHandle)
	}
	if stdout, stderr, code := run(t, s, "backup", "delete", "b", "--yes"); code != ExitOK || !strings.Contains(stdout, "the backup is deleted") {
		t.Errorf("with --yes: exit code %d, %q, %q", code, stdout, stderr)
	}
}

// TestDeletionOfVolumes: the requests have the uid of what was shown, and the volume's name is typed.
func TestDeletionOfVolumes(t *testing.T) {
	deleted := metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Message: "deleted"}
	for command, test := range map[string]struct {
		path, name string
		shown      any
	}{
		"delete":        {"backupvolumes/data", "data", &v1alpha1.BackupVolume{TypeMeta: typed("BackupVolume"), ObjectMeta: metav1.ObjectMeta{Name: "data", UID: "u1"}}},
		"delete-backup": {"volumebackups/b:data", "b:data", &v1alpha1.VolumeBackup{TypeMeta: typed("VolumeBackup"), ObjectMeta: metav1.ObjectMeta{Name: "b:data", UID: "u1"}}},
	} {
		s := &server{answers: map[string]any{"GET " + of + test.path: test.shown, "POST " + of + test.path + "/deletion": func(r *http.Request) any {
			if body, err := io.ReadAll(r.Body); err != nil || !strings.Contains(string(body), `"uid":"u1"`) {
				t.Errorf("%s sent %s, %v", command, body, err)
			}
			return deleted
		}}}
		if _, stderr, code := run(t, s, "volumes", command, test.name); code != ExitUsage || !strings.Contains(stderr, "--yes") || len(s.requests) != 1 {
			t.Errorf("%s without an answer: exit code %d, %q, %q", command, code, stderr, s.requests)
		}
		if stdout, stderr, code := run(t, s, "volumes", command, test.name, "--yes"); code != ExitOK || !strings.Contains(stdout, "deleted") {
			t.Errorf("%s with --yes: exit code %d, %q, %q, %q", command, code, stdout, stderr, s.requests)
		}
	}
}

// TestDownload: objects are printed one after the other; a missing one is named, and is no success.
func TestDownload(t *testing.T) {
	s := &server{answers: map[string]any{
		"GET " + of + "backups/b/manifest": `{"group":"apps","version":"v1","kind":"Deployment","resource":"deployments","namespace":"shop","name":"web"}
{"group":"apps","version":"v1","kind":"Deployment","resource":"deployments","namespace":"blog","name":"web"}
`,
		"GET " + of + "backups/b/objects": func(r *http.Request) any {
			q := r.URL.Query()
			return map[string]string{"kind": q.Get("kind"), "name": q.Get("name"), "namespace": q.Get("namespace")}
		},
	}}
	const shop = "---\nkind: Deployment.apps\nname: web\nnamespace: shop\n"
	if stdout, stderr, code := run(t, s, "backup", "download", "b", "deployment/web", "--object-namespace=shop"); code != ExitOK || stdout != shop {
		t.Errorf("one: exit code %d, %q, %q", code, stdout, stderr)
	}
	if stdout, stderr, code := run(t, s, "backup", "download", "b", "deployment"); code != ExitOK || stdout != shop+strings.ReplaceAll(shop, "shop", "blog") {
		t.Errorf("all: exit code %d, %q, %q", code, stdout, stderr)
	}
	if stdout, stderr, code := run(t, s, "backup", "download", "b", "deployment/other"); code != ExitFailed || stdout != "" || !strings.Contains(stderr, "deployment/other") {
		t.Errorf("a missing one: exit code %d, %q, %q", code, stdout, stderr)
	}
	if _, _, code := run(t, s, "backup", "download", "b"); code != ExitUsage {
		t.Errorf("without a kind: exit code %d", code)
	}
}

// TestExitCodesOfWaiting: each end has its own code.
func TestExitCodesOfWaiting(t *testing.T) {
	for phase, want := range map[v1alpha1.BackupPhase]int{
		v1alpha1.BackupPhaseCompleted: ExitOK, v1alpha1.BackupPhasePartiallyFailed: ExitPartial,
		v1alpha1.BackupPhaseFailed: ExitFailed, v1alpha1.BackupPhaseCancelled: ExitFailed, v1alpha1.BackupPhaseInProgress: ExitTimeout,
	} {
		t.Run(string(phase), func(t *testing.T) {
			backup := v1alpha1.Backup{TypeMeta: typed("Backup"), ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "shop", UID: "u1", ResourceVersion: "7"},
				Status: v1alpha1.BackupStatus{Phase: phase, Message: "because"}}
			s := &server{answers: map[string]any{
				"POST " + of + "backups": &backup,
				"GET " + of + "backups":  &v1alpha1.BackupList{TypeMeta: typed("BackupList"), ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []v1alpha1.Backup{backup}},
			}}
			stdout, stderr, code := run(t, s, "backup", "create", "b", "--wait", "--timeout=2s")
			if code != want {
				t.Errorf("exit code %d, want %d: %q %q", code, want, stdout, stderr)
			}
			if want != ExitOK && want != ExitTimeout && !strings.Contains(stderr, "because") {
				t.Errorf("the reason is missing: %q", stderr)
			}
		})
	}
}

// TestFlagsMakeTheSpec: a dry run in the client prints the spec that flags and a file make.
func TestFlagsMakeTheSpec(t *testing.T) {
	file := filepath.Join(t.TempDir(), "backup.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: holdfast.io/v1alpha1\nkind: Backup\nmetadata: {name: b}\nspec: {ttl: 24h, storageLocation: far}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &server{}
	stdout, stderr, code := run(t, s, "backup", "create", "-f", file, "--dry-run=client", "-o=json", "--include-resources=pods,secrets", "-l=app in (a,b)", "--default-volumes-to-fs-backup=false", "--ttl=48h", "--ordered-resources=pods=a,b")
	if code != ExitOK || len(s.requests) > 0 {
		t.Fatalf("exit code %d, %q, %q", code, stderr, s.requests)
	}
	var made v1alpha1.Backup
	if err := json.Unmarshal([]byte(stdout), &made); err != nil {
		t.Fatal(err)
	}
	spec := made.Spec
	if made.Name != "b" || made.Namespace != "shop" || spec.TTL.Duration != 48*time.Hour || spec.StorageLocation != "far" || len(spec.IncludedResources) != 2 ||
		spec.DefaultVolumesToFsBackup == nil || *spec.DefaultVolumesToFsBackup || spec.LabelSelector == nil || spec.OrderedResources["pods"] == "" {
		t.Errorf("the spec is %s", stdout)
	}
	if err := os.WriteFile(file, []byte("spec: {tll: 24h}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := run(t, s, "backup", "create", "-f", file, "--dry-run=client"); code != ExitFailed || !strings.Contains(stderr, "tll") {
		t.Errorf("a misspelt field: exit code %d, %q", code, stderr)
	}
}

// TestRestoreIntoAnotherNamespace: --into maps the namespace of the backup.
func TestRestoreIntoAnotherNamespace(t *testing.T) {
	backup := &v1alpha1.Backup{TypeMeta: typed("Backup"), ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "shop"}, Spec: v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}}}
	s := &server{answers: map[string]any{"GET " + of + "backups/b": backup}}
	stdout, stderr, code := run(t, s, "restore", "create", "r", "--from=b", "--into=shop-before", "deployment/web", "--dry-run=client", "-o=json")
	var made v1alpha1.Restore
	if code != ExitOK || json.Unmarshal([]byte(stdout), &made) != nil {
		t.Fatalf("exit code %d: %q %q", code, stdout, stderr)
	}
	if made.Spec.NamespaceMapping["shop"] != "shop-before" || len(made.Spec.Objects) != 1 || made.Spec.Objects[0] != (v1alpha1.RestoreObject{Resource: "deployment", Namespace: "shop", Name: "web"}) {
		t.Errorf("the spec is %+v", made.Spec)
	}
	backup.Spec.IncludedNamespaces = []string{"shop", "blog"}
	if _, stderr, code := run(t, s, "restore", "create", "r", "--from=b", "--into=shop-before", "--dry-run=client"); code != ExitUsage || !strings.Contains(stderr, "--namespace-mappings") {
		t.Errorf("two namespaces: exit code %d, %q", code, stderr)
	}
}

// TestDrawTree draws owners above what they own, each object once, and a circle too.
func TestDrawTree(t *testing.T) {
	item := func(kind, namespace, name, uid string, owners ...string) *manifest.Item {
		return &manifest.Item{APIVersion: "v1", KindName: kind, Namespace: namespace, Name: name, UID: uid, OwnerUIDs: owners}
	}
	web := item("Deployment", "shop", "web", "1")
	web.References = []manifest.Reference{{KindName: "Secret", Namespace: "shop", Name: "key"}}
	var out bytes.Buffer
	drawTree(&out, []*manifest.Item{
		item("Namespace", "", "shop", "0"), web, item("ReplicaSet", "shop", "web-1", "2", "1"), item("Pod", "shop", "web-1-a", "3", "2"),
		item("A", "shop", "x", "8", "9"), item("A", "shop", "y", "9", "8"),
	})
	want := `(cluster)
  Namespace/shop
shop
  Deployment/web  needs Secret/key
  └─ ReplicaSet/web-1
     └─ Pod/web-1-a
  A/x
  └─ A/y
     └─ A/x
`
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}

// TestPrintPlan leaves out what stays, and counts it.
func TestPrintPlan(t *testing.T) {
	var out bytes.Buffer
	if err := printPlan(&out, format.RestorePlan{Items: []format.PlannedObject{
		{Kind: "Secret", Namespace: "shop", Name: "a", Action: "skip", Reason: "it is there, and equal"},
		{Kind: "PersistentVolumeClaim", Namespace: "shop", Name: "data", Action: "create", Bytes: 3 << 20},
	}}, false); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Contains(text, "Secret/a") || !strings.Contains(text, "PersistentVolumeClaim/data") || !strings.Contains(text, "3.0 MiB") || !strings.Contains(text, "2 objects: create 1, skip 1") {
		t.Errorf("got:\n%s", text)
	}
}

// TestStatusShowsTheNewestOfAllPages: pages come by name, and the newest backup may be on the last.
func TestStatusShowsTheNewestOfAllPages(t *testing.T) {
	page := func(name, next string, age time.Duration) *v1alpha1.BackupList {
		return &v1alpha1.BackupList{TypeMeta: typed("BackupList"), ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: next}, Items: []v1alpha1.Backup{{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", CreationTimestamp: metav1.NewTime(time.Now().Add(-age))},
			Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted},
		}}}
	}
	s := &server{answers: map[string]any{
		"GET " + of + "backupqueues": &v1alpha1.BackupQueueEntryList{TypeMeta: typed("BackupQueueEntryList")},
		"GET " + of + "schedules":    &v1alpha1.ScheduleList{TypeMeta: typed("ScheduleList")},
		"GET " + of + "backups": func(r *http.Request) any {
			if r.URL.Query().Get("continue") == "" {
				return page("alpha", "next", time.Hour)
			}
			return page("zulu", "", time.Minute)
		},
	}}
	stdout, stderr, code := run(t, s, "status")
	first, second := strings.Index(stdout, "shop/zulu"), strings.Index(stdout, "shop/alpha")
	if code != ExitOK || first < 0 || second < first {
		t.Errorf("exit code %d: %q %q", code, stdout, stderr)
	}
}

// TestStatusNamesLocations: a location that is away is wrong, also when nothing waits for it. A user who
// may not list locations sees the rest.
func TestStatusNamesLocations(t *testing.T) {
	answers := healthy(t)
	answers["GET "+of+"backups"] = &v1alpha1.BackupList{TypeMeta: typed("BackupList")}
	stdout, stderr, code := run(t, &server{answers: answers}, "status")
	if code != ExitOK || !strings.Contains(stdout, "Locations: 1 of 1 available\n") || !strings.Contains(stdout, "Nothing is wrong.") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	answers["GET "+engineOf+"storagelocations"] = enginev1alpha1.StorageLocationList{Items: []enginev1alpha1.StorageLocation{
		{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: enginev1alpha1.StorageLocationStatus{Conditions: conditions(condition(enginev1alpha1.ConditionAvailable, metav1.ConditionFalse, enginev1alpha1.ReasonUnreachable, "the store does not answer"))}},
		{ObjectMeta: metav1.ObjectMeta{Name: "b"}},
	}}
	stdout, stderr, code = run(t, &server{answers: answers}, "status")
	for _, want := range []string{"Locations: 0 of 2 available\n", "the storage location a is not available, Unreachable: the store does not answer\n", "the storage location b is not available, not checked yet: see kubectl holdfast doctor\n"} {
		if code != ExitOK || !strings.Contains(stdout, want) || strings.Contains(stdout, "Nothing is wrong.") {
			t.Errorf("exit code %d without %q: %s%s", code, want, stdout, stderr)
		}
	}
	answers["GET "+engineOf+"storagelocations"] = forbidden("GET " + engineOf + "storagelocations")
	if stdout, stderr, code = run(t, &server{answers: answers}, "status"); code != ExitOK || !strings.Contains(stdout, "Locations: not known: ") || !strings.Contains(stdout, "Nothing is wrong.") {
		t.Errorf("without the right: exit code %d: %s%s", code, stdout, stderr)
	}
}

// TestNextSteps: the APIService is named only if kube-apiserver can't reach Holdfast, and not if Holdfast
// can't reach a store. Durations have an example.
func TestNextSteps(t *testing.T) {
	away := func(text string) any {
		return func(*http.Request) any {
			return refusal{metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonServiceUnavailable, Code: http.StatusServiceUnavailable, Message: text}}
		}
	}
	for text, want := range map[string]bool{
		"the server is currently unable to handle the request":                                                                               true,
		"the log of the backup \"b\" lies in the storage location \"default\", which can't be read at the moment: the store does not answer": false,
	} {
		_, stderr, code := run(t, &server{answers: map[string]any{"GET " + of + "backups/b": away(text)}}, "backup", "describe", "b")
		if code != ExitFailed || !strings.Contains(stderr, text) || strings.Contains(stderr, "kubectl get apiservice v1alpha1.holdfast.io") != want {
			t.Errorf("exit code %d: %s", code, stderr)
		}
	}
	for _, args := range [][]string{{"backup", "create", "b", "--ttl", "30d"}, {"backup", "extend", "b", "--for", "a month"}} {
		if _, stderr, code := run(t, &server{}, args...); code != ExitUsage || !strings.Contains(stderr, "want hours, minutes or seconds, such as 720h") {
			t.Errorf("%q: exit code %d: %s", args, code, stderr)
		}
	}
}

// TestKindOfAFile: a manifest of another kind is not sent.
func TestKindOfAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "restore.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: holdfast.io/v1alpha1\nkind: Restore\nmetadata: {name: a}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &server{}
	if _, stderr, code := run(t, s, "backup", "create", "-f", file); code == ExitOK || !strings.Contains(stderr, file+": it has the kind Restore, want Backup") || len(s.requests) > 0 {
		t.Errorf("exit code %d: %s, sent %q", code, stderr, s.requests)
	}
}

// TestInterruptedInput: an input from which nothing comes is left when the command is interrupted.
func TestInterruptedInput(t *testing.T) {
	in, out := io.Pipe()
	defer out.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := io.ReadAll(interruptible{in, ctx})
		ended <- err
	}()
	if _, err := out.Write([]byte("kind: Back")); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, errStopped) {
		t.Errorf("it ends with %v", err)
	}
	if text, err := io.ReadAll(interruptible{strings.NewReader(strings.Repeat("long ", 1000)), t.Context()}); err != nil || len(text) != 5000 {
		t.Errorf("%d bytes are read, %v", len(text), err)
	}
}

// TestUnknownCommands: a command that does not exist is a mistake on the command line, at each level.
func TestUnknownCommands(t *testing.T) {
	s := &server{}
	for _, args := range [][]string{{"nonsense"}, {"backup", "nonsense"}} {
		if _, stderr, code := run(t, s, args...); code != ExitUsage || !strings.Contains(stderr, `unknown command "nonsense"`) {
			t.Errorf("%v: exit code %d, %s", args, code, stderr)
		}
	}
}
