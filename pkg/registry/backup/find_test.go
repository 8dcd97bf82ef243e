// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/stored/storedtest"
)

// countedReads counts the requests about each backup.
type countedReads struct {
	*library
	down   bool
	mu     sync.Mutex
	counts map[string]int
}

func (c *countedReads) Use(context.Context, string) (store.Ranger, func(), error) {
	if c.down {
		return nil, nil, store.ErrUnavailable
	}
	return ranger{c.bucket, c}, func() {}, nil
}

type ranger struct {
	store.Ranger
	*countedReads
}

func (r ranger) count(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[strings.Split(key, "/")[1]]++
}

func (r ranger) Attributes(ctx context.Context, key string) (store.Object, error) {
	r.count(key)
	return r.Ranger.Attributes(ctx, key)
}

func (r ranger) GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	r.count(key)
	return r.Ranger.GetRange(ctx, key, offset, length)
}

// searched is a library whose reads are counted, with a storage of backupobjects.
func searched(t testing.TB) (*countedReads, *FindREST) { return searchedIn(newLibrary(t)) }

func searchedIn(l *library) (*countedReads, *FindREST) {
	var mu sync.Mutex
	l.kind.authorizer = authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		mu.Lock()
		defer mu.Unlock()
		return l.authorize(ctx, a)
	})
	c := &countedReads{library: l, counts: map[string]int{}}
	l.contents.Streams.Stores = c
	return c, NewFindREST(l.contents, clock.RealClock{})
}

func (l *library) list(rest *FindREST, namespace string, limit int64, token string, selectors ...string) ([]string, string, []string, error) {
	l.Helper()
	warnings := recorder{}
	ctx := warning.WithWarningRecorder(l.ctx(namespace), &warnings)
	options := &internalversion.ListOptions{Limit: limit, Continue: token}
	if selectors[0] != "" {
		options.FieldSelector = fields.ParseSelectorOrDie(selectors[0])
	}
	if len(selectors) > 1 {
		selector, err := labels.Parse(selectors[1])
		if err != nil {
			l.Fatal(err)
		}
		options.LabelSelector = selector
	}
	list, err := rest.List(ctx, options)
	if err != nil {
		return nil, "", warnings, err
	}
	var rows []string
	for _, item := range list.(*v1alpha1.BackupObjectList).Items {
		rows = append(rows, fmt.Sprintf("%s %s/%s/%s", item.Spec.Backup, item.Spec.Kind, item.Spec.Namespace, item.Spec.Name))
	}
	return rows, list.(*v1alpha1.BackupObjectList).Continue, warnings, nil
}

// TestFindShowsWhatMayBeRead: a search shows of each backup what its manifest shows to the same
// reader. Backups without a manifest are counted in a warning.
func TestFindShowsWhatMayBeRead(t *testing.T) {
	c, rest := searched(t)
	everything := []string{"* backups/manifest", "* secrets"}
	for _, test := range []struct {
		name      string
		rights    []string
		selectors []string
		want      []string
	}{
		{"a kind", everything, []string{"kind=deployment"}, []string{"all Deployment/blog/web", "all Deployment/shop/web", "all Deployment/shop/web"}},
		{"a kind by its plural", everything, []string{"kind=deployments.apps"}, []string{"all Deployment/blog/web", "all Deployment/shop/web"}},
		{"an object", everything, []string{"kind=Secret,namespace=shop,name=key"}, []string{"all Secret/shop/key"}},
		{"a name", everything, []string{"kind=Secret,name=key"}, []string{"all Secret/blog/key", "all Secret/shop/key"}},
		{"a label", everything, []string{"kind=ConfigMap", "app=x"}, []string{"all ConfigMap/shop/conf"}},
		{"another label", everything, []string{"kind=ConfigMap", "app=y"}, nil},
		{"of the cluster's scope", everything, []string{"kind=Namespace"}, []string{"all Namespace//shop"}},
		{"a backup", everything, []string{"kind=Namespace,backup=other"}, nil},
		{"a phase", everything, []string{"kind=Namespace,phase=PartiallyFailed"}, nil},
		{"without Secrets", []string{"* backups/manifest"}, []string{"kind=Secret"}, nil},
		{"as a tenant", []string{"holdfast backups/manifest", "shop backups/manifest", "shop secrets"}, []string{"kind=Secret"}, []string{"all Secret/shop/key"}},
		{"as a tenant, of the cluster's scope", []string{"holdfast backups/manifest", "shop backups/manifest"}, []string{"kind=Namespace"}, nil},
		{"of others", []string{"holdfast backups/manifest"}, []string{"kind=Record"}, nil},
	} {
		c.rights = test.rights
		rows, token, warnings, err := c.list(rest, system, 0, "", test.selectors...)
		if err != nil || token != "" || !slices.Equal(rows, test.want) {
			t.Errorf("%s: %v, %q, %v\nnot %v", test.name, rows, token, err, test.want)
		}
		if test.name == "a kind" && (len(warnings) != 1 || !strings.Contains(warnings[0], "1 backups have no manifest")) {
			t.Errorf("%s: the warnings are %v", test.name, warnings)
		}
	}
	c.rights, c.anew = []string{"holdfast backups/manifest", "shop backups/manifest", "shop secrets"}, map[string]bool{"shop": true}
	if rows, _, _, err := c.list(rest, system, 0, "", "kind=Secret"); err != nil || len(rows) > 0 {
		t.Errorf("the next owner of the namespace is shown %v, %v", rows, err)
	}
	c.rights = nil
	if _, _, _, err := c.list(rest, system, 0, "", "kind=Secret"); !apierrors.IsForbidden(err) {
		t.Errorf("without rights: %v", err)
	}
	c.rights = everything
	for _, selector := range []string{"", "name=key", "kind!=Secret", "kind=Secret,metadata.name=key"} {
		if _, _, _, err := c.list(rest, system, 0, "", selector); !apierrors.IsBadRequest(err) {
			t.Errorf("by %q: %v", selector, err)
		}
	}
}

// TestFindByImage: a search by image finds the workloads of all kinds with it, within what the reader may
// see, by at most three requests a backup. A backup that does not say the images is counted in a warning.
func TestFindByImage(t *testing.T) {
	c, rest := searched(t)
	c.rights = []string{"* backups/manifest"}
	pod := func(image string) []byte {
		return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"shop"},"spec":{"containers":[{"name":"c","image":%q}]}}`, image)
	}
	deployment := []byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop"},"spec":{"template":{"spec":{"containers":[{"name":"c","image":"docker.io/library/nginx:1.27"}]}}}}`)
	for i, image := range []string{"nginx:1.26", "nginx:1.27"} {
		name := fmt.Sprintf("b%d", i)
		storedtest.Write(t, c.bucket, name,
			storedtest.Object{Kind: "apps/v1/Deployment", Resource: "deployments", Namespace: "shop", Name: "web", Content: deployment, Labels: map[string]string{"app": "web"}},
			storedtest.Object{Kind: "v1/ConfigMap", Resource: "configmaps", Namespace: "shop", Name: "nginx"},
			storedtest.Object{Kind: "v1/Pod", Resource: "pods", Namespace: "shop", Name: "p", Content: pod(image)})
		backup := newBackup(system, name)
		backup.UID = "uid-of-backup"
		backup.Status.Phase = v1alpha1.BackupPhaseCompleted
		backup.Status.StartTimestamp = &metav1.Time{Time: time.Unix(int64(1000+i), 0)}
		if _, err := c.log.Apply(backup); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		selectors []string
		want      []string
	}{
		{[]string{"image=nginx:1.27"}, []string{"b1 Deployment/shop/web", "b1 Pod/shop/p", "b0 Deployment/shop/web"}},
		{[]string{"image=nginx:1.27,kind=Pod"}, []string{"b1 Pod/shop/p"}},
		{[]string{"image=nginx,namespace=shop,name=p,kind=Pod"}, []string{"b1 Pod/shop/p", "b0 Pod/shop/p"}},
		{[]string{"image=nginx", "app=web"}, []string{"b1 Deployment/shop/web", "b0 Deployment/shop/web"}},
		{[]string{"image=nginx,kind=ConfigMap"}, nil},
		{[]string{"image=redis"}, nil},
	} {
		clear(c.counts)
		rows, token, warnings, err := c.list(rest, system, 0, "", test.selectors...)
		if err != nil || token != "" || !slices.Equal(rows, test.want) {
			t.Errorf("%s: %v, %q, %v\nnot %v", test.selectors, rows, token, err, test.want)
		}
		// The workloads of the backup "all" have no containers, as in a manifest of an earlier version.
		told := slices.ContainsFunc(warnings, func(text string) bool { return strings.HasPrefix(text, "1 backups do not say the images") })
		if workloads := len(test.selectors) == 1 && !strings.Contains(test.selectors[0], "kind="); workloads && !told || strings.Contains(test.selectors[0], "ConfigMap") && told {
			t.Errorf("%s: the warnings are %q", test.selectors, warnings)
		}
		for name, count := range c.counts {
			if count > 3 {
				t.Errorf("%s: %s costs %d requests", test.selectors, name, count)
			}
		}
	}
	c.rights = []string{"holdfast backups/manifest"}
	if rows, _, _, err := c.list(rest, system, 0, "", "image=nginx"); err != nil || len(rows) > 0 {
		t.Errorf("without a right in the namespace: %v, %v", rows, err)
	}
}

// TestFindInPages: pages of any size have every object once, newest backups first, and a backup
// costs three requests. A token is of one search.
func TestFindInPages(t *testing.T) {
	c, rest := searched(t)
	c.rights = []string{"* backups/manifest", "* secrets"}
	var want []string
	const backups = 40
	for i := range backups {
		name := fmt.Sprintf("b%02d", i)
		storedtest.Write(t, c.bucket, name, held...)
		backup := newBackup(system, name)
		backup.UID = "uid-of-backup"
		backup.Status.Phase = v1alpha1.BackupPhaseCompleted
		backup.Status.StartTimestamp = &metav1.Time{Time: time.Unix(int64(1000-i), 0)}
		if _, err := c.log.Apply(backup); err != nil {
			t.Fatal(err)
		}
		want = append(want, name+" Secret/blog/key", name+" Secret/shop/key")
	}
	for _, size := range []int64{1, 3, 7, 64, 0} {
		var got []string
		for token, pages := "", 0; ; pages++ {
			rows, next, _, err := c.list(rest, system, size, token, "kind=Secret")
			if err != nil || pages > 3*backups || size > 0 && int64(len(rows)) > size {
				t.Fatalf("a page of %d: %v, %v", size, rows, err)
			}
			got = append(got, rows...)
			if token = next; token == "" {
				break
			}
		}
		got = slices.DeleteFunc(got, func(row string) bool { return strings.HasPrefix(row, "all ") })
		if !slices.Equal(got, want) {
			t.Errorf("pages of %d have %v", size, got)
		}
	}
	clear(c.counts)
	if _, _, _, err := c.list(rest, system, 0, "", "kind=Secret,name=key,namespace=shop"); err != nil {
		t.Fatal(err)
	}
	for name, count := range c.counts {
		if count > 3 {
			t.Errorf("%s costs %d requests", name, count)
		}
	}
	_, token, _, err := c.list(rest, system, 1, "", "kind=Secret")
	if err != nil || token == "" {
		t.Fatal(token, err)
	}
	if _, _, _, err := c.list(rest, system, 1, token, "kind=ConfigMap"); !apierrors.IsBadRequest(err) {
		t.Errorf("the token of another search: %v", err)
	}
	if _, _, _, err := c.list(rest, system, 1, "x", "kind=Secret"); !apierrors.IsBadRequest(err) {
		t.Errorf("no token: %v", err)
	}
}

// TestFindWithoutAStore: a search that can read nothing fails, instead of saying that no backup holds
// the object.
func TestFindWithoutAStore(t *testing.T) {
	c, rest := searched(t)
	c.rights, c.down = []string{"* backups/manifest"}, true
	if rows, _, _, err := c.list(rest, system, 0, "", "kind=Namespace"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("without a store: %v, %v", rows, err)
	}
}
