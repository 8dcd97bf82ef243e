// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/encryption"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/registry/streamed"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
	"github.com/holdfast-io/holdfast/pkg/stored/storedtest"
)

// library serves one backup of the system namespace, which holds objects of several.
type library struct {
	*harness
	contents *Contents
	bucket   *store.Bucket
	// rights are what jane may get, as NAMESPACE RESOURCE; "*" is every namespace.
	rights []string
	broken bool
	asked  []string
	// anew are the namespaces that were made anew since the backup.
	anew map[string]bool
	// digests are what is known of the backup's files.
	digests catalog.Digests
}

func (l *library) Use(context.Context, string) (store.Ranger, func(), error) {
	return l.bucket, func() {}, nil
}

func (l *library) MayKnow(context.Context) bool { return false }

func (l *library) authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() != "get" || !a.IsResourceRequest() || a.GetUser().GetName() != "jane" {
		l.Errorf("asked about %+v", a)
	}
	what := strings.TrimSuffix(a.GetResource()+"/"+a.GetSubresource(), "/")
	l.asked = append(l.asked, a.GetNamespace()+" "+what)
	switch {
	case l.broken:
		return authorizer.DecisionNoOpinion, "", errors.New("the authorizer is broken")
	case slices.Contains(l.rights, "* "+what), a.GetNamespace() != "" && slices.Contains(l.rights, a.GetNamespace()+" "+what):
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

var held = []storedtest.Object{
	{Kind: "apps/v1/Deployment", Resource: "deployments", Namespace: "blog", Name: "web"},
	{Kind: "apps/v1/Deployment", Resource: "deployments", Namespace: "shop", Name: "web", Labels: map[string]string{"app": "<ü>"}},
	{Kind: "example.com/v1/Deployment", Resource: "deployments", Namespace: "shop", Name: "web"},
	{Kind: "v1/ConfigMap", Resource: "configmaps", Namespace: "shop", Name: "conf", Labels: map[string]string{"app": "x"}},
	{Kind: "v1/Namespace", Resource: "namespaces", Name: "shop"},
	{Kind: "v1/Secret", Resource: "secrets", Namespace: "blog", Name: "key"},
	{Kind: "v1/Secret", Resource: "secrets", Namespace: "shop", Name: "key"},
	{Kind: "v2/Record", Resource: "records", Namespace: system, Name: "of-others"},
}

func newLibrary(t testing.TB) *library {
	l := &library{harness: newHarness(t, nil), bucket: storetest.Memory(t)}
	l.kind.authorizer = authorizer.AuthorizerFunc(l.authorize)
	for _, name := range []string{"all", "old"} {
		storedtest.Write(t, l.bucket, name, held...)
	}
	manifest, err := l.bucket.Attributes(t.Context(), format.ManifestKey("old"))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.bucket.Delete(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
	for name, phase := range map[string]v1alpha1.BackupPhase{"all": v1alpha1.BackupPhaseCompleted, "old": v1alpha1.BackupPhaseCompleted, "failed": v1alpha1.BackupPhaseFailed, "running": v1alpha1.BackupPhaseInProgress, "refused": v1alpha1.BackupPhaseFailedValidation} {
		backup := newBackup(system, name)
		backup.UID = "uid-of-backup"
		backup.Status.Phase = phase
		backup.Status.Origin = &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustOwn, Namespace: system, NamespaceUID: "uid-of-holdfast"}
		if _, err := l.log.Apply(backup); err != nil {
			t.Fatal(err)
		}
	}
	l.contents = &Contents{Backups: l.REST, Streams: &streamed.Streams{Stores: l}, Stored: func(b *v1alpha1.Backup) (string, string, catalog.Digests, bool) {
		return "default", b.Name, l.digests, b.Name != "refused"
	}, Judge: func(location string, claims *v1alpha1.BackupOrigin) (v1alpha1.BackupOrigin, bool) {
		// The tarball of a test has no uids.
		if uid := claims.NamespaceUID; location != "default" || claims.Trust != "" || uid != "" && uid != "uid-4" {
			t.Errorf("judged in %s: %+v", location, claims)
		}
		return *claims, !l.anew[claims.Namespace]
	}}
	return l
}

type answers struct{ w http.ResponseWriter }

func (answers) Object(int, runtime.Object) {}

func (a answers) Error(err error) {
	status := errorStatus(err)
	http.Error(a.w, status.Message, int(status.Code))
}

func errorStatus(err error) metav1.Status {
	if failed, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return failed.ErrStatus
	}
	return metav1.Status{Code: 500, Message: err.Error()}
}

func (l *library) get(rest *streamed.REST, name, query string) (int, string) {
	l.Helper()
	l.asked = nil
	recorder := httptest.NewRecorder()
	ctx := l.ctx(system)
	handler, err := rest.Connect(ctx, name, nil, answers{recorder})
	if err != nil {
		l.Fatal(err)
	}
	handler.ServeHTTP(recorder, httptest.NewRequestWithContext(ctx, http.MethodGet, "/?"+query, nil))
	return recorder.Code, recorder.Body.String()
}

// items are those of a manifest as it was answered, as KIND NAMESPACE/NAME.
func (l *library) items(backup, query string) []string {
	l.Helper()
	code, text := l.get(l.contents.Manifest(), backup, query)
	var document struct {
		Version int
		Items   []*manifest.Item
	}
	if strings.Contains(query, "ndjson") {
		for line := range strings.Lines(text) {
			item := &manifest.Item{}
			if err := json.Unmarshal([]byte(line), item); err != nil {
				l.Fatalf("%s: %v: %q", query, err, line)
			}
			document.Items = append(document.Items, item)
		}
	} else if err := json.Unmarshal([]byte(text), &document); err != nil || document.Version != manifest.Version {
		l.Fatalf("%s: %v: %s", query, err, text)
	}
	names := []string{fmt.Sprint(code)}
	for _, item := range document.Items {
		names = append(names, item.GroupKind()+" "+item.Namespace+"/"+item.Name)
	}
	return names
}

func TestManifestShowsWhatMayBeRead(t *testing.T) {
	l := newLibrary(t)
	all := []string{"200", "apps/v1/Deployment blog/web", "apps/v1/Deployment shop/web", "example.com/v1/Deployment shop/web", "v1/ConfigMap shop/conf", "v1/Namespace /shop", "v1/Secret blog/key", "v1/Secret shop/key", "v2/Record holdfast/of-others"}
	pick := func(indexes ...int) []string {
		names := []string{"200"}
		for _, i := range indexes {
			names = append(names, all[i])
		}
		return names
	}
	everything := []string{"* backups/manifest", "* secrets"}
	for _, test := range []struct {
		name   string
		rights []string
		query  string
		want   []string
	}{
		{"everything", everything, "", all},
		{"in lines", everything, "format=ndjson", all},
		{"without Secrets", []string{"* backups/manifest"}, "", pick(1, 2, 3, 4, 5, 8)},
		{"Secrets of one namespace", []string{"* backups/manifest", "blog secrets"}, "", pick(1, 2, 3, 4, 5, 6, 8)},
		{"of one namespace", []string{"shop backups/manifest", "shop secrets"}, "", pick(2, 3, 4, 7)},
		{"of one namespace, without Secrets", []string{"shop backups/manifest", "blog secrets"}, "", pick(2, 3, 4)},
		{"nothing", []string{"* secrets", "shop backups", "holdfast backups/manifest"}, "", pick()},
		{"nothing, in lines", nil, "format=ndjson", pick()},
		{"of a kind", everything, "kind=deployment", pick(1, 2, 3)},
		{"of a kind and group", everything, "kind=Deployment.apps", pick(1, 2)},
		{"of a kind, group and version", everything, "kind=example.com/v1/Deployment", pick(3)},
		{"of an unknown kind", everything, "kind=v2/Secret", pick()},
		{"of a namespace", everything, "namespace=shop", pick(2, 3, 4, 7)},
		{"of no namespace", everything, "namespace=", pick(5)},
		{"of a name", everything, "name=key", pick(6, 7)},
		{"with a label", everything, "labelSelector=app", pick(2, 4)},
		{"with a label's value", everything, "labelSelector=app%3Dx", pick(4)},
		{"no more than two", everything, "limit=2&namespace=shop", pick(2, 3)},
		{"no more than two of what may be read", []string{"shop backups/manifest"}, "limit=2", pick(2, 3)},
	} {
		l.rights = test.rights
		for _, backup := range []string{"all", "old"} { // "old" has no manifest in its store
			if got := l.items(backup, test.query); !slices.Equal(got, test.want) {
				t.Errorf("%s, of %s: %v\nnot %v", test.name, backup, got, test.want)
			}
			if slices.Sort(l.asked); len(slices.Compact(slices.Clone(l.asked))) != len(l.asked) {
				t.Errorf("%s: asked more than once: %v", test.name, l.asked)
			}
		}
	}
	if code, text := l.get(l.contents.Manifest(), "all", "labelSelector=app"); code != 200 || !strings.Contains(text, "{\"version\":1,\"items\":[\n{") {
		t.Errorf("%d %s", code, text)
	}
}

// TestContentsOfFormerOwners: who has rights in a namespace that was made anew reads nothing of a backup of the
// one before it; nor does anybody of a backup for which nobody vouches, but who may read all.
func TestContentsOfFormerOwners(t *testing.T) {
	l := newLibrary(t)
	tenant := []string{"shop backups/manifest", "shop backups/objects", "shop secrets", "shop configmaps"}
	secret := "kind=Secret&namespace=shop&name=key"
	expect := func(what string, rights []string, items, code int) {
		t.Helper()
		l.rights = rights
		for _, backup := range []string{"all", "old"} {
			if got := l.items(backup, ""); len(got)-1 != items {
				t.Errorf("%s, of %s: %v", what, backup, got)
			}
			if got, text := l.get(l.contents.Objects(), backup, secret); got != code || code == 403 && !strings.Contains(text, "made anew since") {
				t.Errorf("%s, of %s: %d %s", what, backup, got, text)
			}
		}
	}
	expect("of the same namespace", tenant, 4, 200)
	l.anew = map[string]bool{"shop": true}
	expect("of the one before", tenant, 0, 403)
	expect("of the one before, to an administrator", []string{"* backups/manifest", "* backups/objects", "* secrets"}, 8, 200)
	l.anew = nil
	for _, name := range []string{"all", "old"} {
		backup := newBackup(system, name)
		backup.UID, backup.Status.Phase = "uid-of-backup", v1alpha1.BackupPhaseCompleted
		backup.Status.Origin = &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustForeign}
		if _, err := l.log.Apply(backup); err != nil {
			t.Fatal(err)
		}
	}
	expect("that nobody vouches for", tenant, 0, 403)
}

func TestObjectsNeedTheRightToThem(t *testing.T) {
	l := newLibrary(t)
	everything := []string{"* backups/objects", "* deployments", "* secrets", "* namespaces"}
	for _, test := range []struct {
		name   string
		rights []string
		query  string
		code   int
		want   string
	}{
		{"a Secret", everything, "kind=Secret&namespace=shop&name=key", 200, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"key","namespace":"shop","labels":null}}`},
		{"a Secret, as a tenant", []string{"shop backups/objects", "shop secrets"}, "kind=Secret&namespace=shop&name=key", 200, `"Secret"`},
		{"a Secret, without the right to it", []string{"* backups/objects", "blog secrets", "* deployments"}, "kind=Secret&namespace=shop&name=key", 403, "may not get secrets in the namespace"},
		{"of another namespace", []string{"shop backups/objects", "* secrets"}, "kind=Secret&namespace=blog&name=key", 403, "may not get backups/objects.holdfast.io in the namespace"},
		{"what is not there, of another namespace", []string{"shop backups/objects", "* secrets"}, "kind=Secret&namespace=blog&name=none", 403, "backups"},
		{"what is not there", everything, "kind=Secret&namespace=shop&name=none", 404, `the backup holds no Secret "shop/none"`},
		{"of no kind that is there", everything, "kind=Route&namespace=shop&name=none", 404, `the backup holds no Route`},
		{"of the cluster's scope", everything, "kind=Namespace&name=shop", 200, `"Namespace"`},
		{"of the cluster's scope, as a tenant", []string{"shop backups/objects", "* namespaces"}, "kind=Namespace&name=shop", 403, "outside of namespaces"},
		{"of a group", everything, "kind=Deployment.example.com&namespace=shop&name=web", 200, `"example.com/v1"`},
		{"of a kind that two groups have", everything, "kind=Deployment&namespace=shop&name=web", 400, "apps/v1/Deployment, example.com/v1/Deployment"},
		{"of a kind that two groups have, and an object of one", everything, "kind=Deployment&namespace=blog&name=web", 400, "apps/v1/Deployment, example.com/v1/Deployment"},
		{"of a kind that two groups have, and in full", everything, "kind=apps/v1/Deployment&namespace=shop&name=web", 200, `"apps/v1"`},
		{"without a name", everything, "kind=Secret&namespace=shop", 400, "kind and name"},
	} {
		l.rights = test.rights
		for _, backup := range []string{"all", "old"} {
			if code, got := l.get(l.contents.Objects(), backup, test.query); code != test.code || !strings.Contains(got, test.want) {
				t.Errorf("%s, of %s: %d %s", test.name, backup, code, got)
			}
		}
	}
	// What can't be decided is not shown.
	l.broken = true
	if code, got := l.get(l.contents.Objects(), "all", "kind=Secret&namespace=shop&name=key"); code != 500 || strings.Contains(got, "apiVersion") {
		t.Errorf("with a broken authorizer: %d %s", code, got)
	}
	if code, got := l.get(l.contents.Manifest(), "all", ""); code != 500 || strings.Contains(got, "items") {
		t.Errorf("with a broken authorizer: %d %s", code, got)
	}
}

// TestWhatSomebodyHasReplaced: whatever lies in the store in place of what a backup was stored
// with is not shown.
func TestWhatSomebodyHasReplaced(t *testing.T) {
	l := newLibrary(t)
	l.rights = []string{"* backups/manifest", "* backups/objects", "* configmaps"}
	zipped := func(text string) []byte {
		var compressed bytes.Buffer
		w := gzip.NewWriter(&compressed)
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return compressed.Bytes()
	}
	put := func(key string, content []byte) string {
		if err := l.bucket.Put(t.Context(), key, content); err != nil {
			t.Fatal(err)
		}
		return format.NewContent(content).SHA256
	}
	digests := catalog.Digests{
		Log: put(format.LogKey("all"), zipped("true")), Results: put(format.ResultsKey("all"), zipped("{}")),
		Manifest: put(format.ManifestKey("all"), storedtest.Manifest(t, storedtest.Items(t, io.Discard, held))),
	}
	requests := []struct {
		rest         *streamed.REST
		query, shown string
	}{
		{l.contents.Log(), "", "true"},
		{l.contents.Results(), "", "{}"},
		{l.contents.Manifest(), "", "conf"},
		{l.contents.Manifest(), "format=ndjson", "conf"},
		{l.contents.Manifest(), "kind=ConfigMap", "conf"},
		{l.contents.Manifest(), "name=conf&limit=1", "conf"},
		{l.contents.Objects(), "kind=ConfigMap&namespace=shop&name=conf", "conf"},
	}
	check := func(what string, want int) {
		t.Helper()
		for i, r := range requests {
			code, text := l.get(r.rest, "all", r.query)
			if code != want || want == 200 && !strings.Contains(text, r.shown) || want != 200 && !strings.Contains(text, "is not what was stored there") {
				t.Errorf("%s, request %d: %d %s", what, i, code, text)
			}
		}
	}
	l.digests = digests
	check("as it was stored", 200)
	put(format.LogKey("all"), zipped("true, changed"))
	put(format.ResultsKey("all"), zipped("{},"))
	items := storedtest.Items(t, io.Discard, held)
	items[0].Reason = "changed"
	put(format.ManifestKey("all"), storedtest.Manifest(t, items))
	check("changed", 500)
	l.digests = catalog.Digests{}
	check("changed, of which nothing is known", 200)
}

func TestContentsOfBackupsThatHaveNone(t *testing.T) {
	l := newLibrary(t)
	l.rights = []string{"* backups/manifest", "* backups/objects"}
	for name, rest := range map[string]*streamed.REST{"log": l.contents.Log(), "manifest": l.contents.Manifest(), "objects": l.contents.Objects()} {
		query := ""
		if name == "objects" {
			query = "kind=Secret&name=x"
		}
		for backup, want := range map[string]string{
			"absent":  "404 backups.holdfast.io \"absent\" not found",
			"running": "409 backup \"running\": it is InProgress, and its " + name + " is stored when it has ended",
			"refused": "404 the backup \"refused\" has no " + name + ": it ",
			"failed":  "404 the backup \"failed\" has no " + name,
		} {
			if code, text := l.get(rest, backup, query); !strings.HasPrefix(fmt.Sprint(code, " ", text), want) {
				t.Errorf("the %s of %s: %d %s", name, backup, code, text)
			}
		}
	}
	if code, text := l.get(l.contents.Manifest(), "all", "limit=none"); code != 400 {
		t.Errorf("a limit that is none: %d %s", code, text)
	}
	if code, text := l.get(l.contents.Manifest(), "all", "format=yaml"); code != 400 {
		t.Errorf("a format that is none: %d %s", code, text)
	}
	if code, text := l.get(l.contents.Manifest(), "all", "labelSelector=,"); code != 400 {
		t.Errorf("a selector that is none: %d %s", code, text)
	}
}

// TestEncryptedContents: an object of an encrypted backup is shown to those who may read it, with the
// key; without it, the answer says which keys decrypt the backup. What the manifest says needs none.
func TestEncryptedContents(t *testing.T) {
	l := newLibrary(t)
	keys, err := encryption.NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	to := keys.For(nil)
	secret := held[6]
	secret.Content = []byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"key","namespace":"shop"}}`)
	storedtest.WriteEncrypted(t, l.bucket, "sealed", to, secret)
	backup := newBackup(system, "sealed")
	backup.UID, backup.Status.Phase, backup.Status.Encryption = "uid-of-backup", v1alpha1.BackupPhaseCompleted, to.Status()
	if _, err := l.log.Apply(backup); err != nil {
		t.Fatal(err)
	}
	l.rights = []string{"* backups/objects", "* backups/manifest", "* secrets"}
	ask := func() (int, string) {
		return l.get(l.contents.Objects(), "sealed", "kind=Secret&namespace=shop&name=key")
	}
	for name, c := range map[string]struct {
		keys encryption.Source
		code int
		says string
	}{
		"without keys":          {nil, 409, "encrypted for the key " + to.Status().ClusterKey},
		"with another's":        {func(context.Context) (encryption.Keys, error) { return encryption.NewKeys() }, 409, "holdfast repo-key recover"},
		"with the key":          {func(context.Context) (encryption.Keys, error) { return keys, nil }, 200, string(secret.Content)},
		"while nobody can know": {func(context.Context) (encryption.Keys, error) { return encryption.Keys{}, errors.New("etcd is away") }, 503, "keys of encrypted backups can't be read"},
	} {
		l.contents.Decryption = c.keys
		if code, body := ask(); code != c.code || !strings.Contains(body, c.says) || strings.Contains(body, "etcd") {
			t.Errorf("%s: %d, %s", name, code, body)
		}
		if code, body := l.get(l.contents.Manifest(), "sealed", ""); code != 200 || !strings.Contains(body, `"name":"key"`) {
			t.Errorf("%s, the manifest: %d, %s", name, code, body)
		}
	}
}
