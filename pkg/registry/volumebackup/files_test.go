// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebackup_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/registry/streamed"
	"github.com/holdfast-io/holdfast/pkg/registry/volumebackup"
	"github.com/holdfast-io/holdfast/pkg/runlog/remote"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/volumefiles"
)

// fakeReader answers with content, or fails before or behind it.
type fakeReader struct {
	asked       *volumefiles.Request
	content     string
	early, late error
}

func (f *fakeReader) List(_ context.Context, request *volumefiles.Request) (*v1alpha1.VolumeFileList, error) {
	f.asked = request
	return &v1alpha1.VolumeFileList{Path: request.Path}, f.early
}

func (f *fakeReader) Copy(_ context.Context, request *volumefiles.Request, begin func(int64), to io.Writer) error {
	f.asked = request
	if f.early != nil {
		return f.early
	}
	begin(int64(len(f.content)))
	if f.content != "" {
		if _, err := io.WriteString(to, f.content); err != nil {
			return err
		}
	}
	return f.late
}

type stores struct{ mayKnow bool }

func (stores) Use(context.Context, string) (store.Ranger, func(), error) {
	return nil, nil, errors.New("the API server opens no store for files")
}

func (s stores) MayKnow(context.Context) bool { return s.mayKnow }

// one gets one volume backup.
type one struct{ *v1alpha1.VolumeBackup }

func (o one) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if name != o.Name {
		return nil, apierrors.NewNotFound(volumebackup.Resource.GroupResource, name)
	}
	return o.VolumeBackup, nil
}

type responding struct{ w http.ResponseWriter }

func (responding) Object(int, runtime.Object) {}

func (r responding) Error(err error) {
	failed, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		failed = apierrors.NewInternalError(err)
	}
	http.Error(r.w, failed.ErrStatus.Message, int(failed.ErrStatus.Code))
}

// TestFiles: a request says which volume of which backup is read and for which namespace; errors keep
// their code, and what is wrong with a store is told to those who may know; a cut answer is aborted.
func TestFiles(t *testing.T) {
	f := newFixture(t).ready()
	f.put("shop.daily", 1, 1, 1)
	of := &f.mustList("namespace-000", internalversion.ListOptions{}).Items[0]
	name := of.Name
	reader := &fakeReader{}
	shown := of.DeepCopy()
	shown.Status.Method, shown.Status.Phase = "kopia", v1alpha1.VolumeBackupCompleted
	ask := func(t *testing.T, mayKnow bool, subresource, query string) (code int, header http.Header, body string, aborted bool) {
		t.Helper()
		files := volumebackup.Files{Streams: &streamed.Streams{Stores: stores{mayKnow}}, VolumeBackups: one{shown}, Row: f.storage.Row, Reader: reader}
		rest := files.Content()
		if subresource == "files" {
			rest = files.List()
		}
		ctx := genericapirequest.WithNamespace(genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "jane"}), of.Namespace)
		recorder := httptest.NewRecorder()
		handler, err := rest.Connect(ctx, name, nil, responding{recorder})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if failure := recover(); failure != nil {
				aborted = failure == http.ErrAbortHandler
			}
			code, header, body = recorder.Code, recorder.Result().Header, recorder.Body.String()
		}()
		handler.ServeHTTP(recorder, httptest.NewRequestWithContext(ctx, http.MethodGet, "/x?"+query, nil))
		return 0, nil, "", false
	}
	reader.content = "content"
	code, header, body, _ := ask(t, false, "content", "path=/a&offset=3&length=4")
	if code != http.StatusOK || body != "content" || header.Get("Content-Length") != "7" || header.Get("Content-Type") != "application/octet-stream" || header.Get("Content-Disposition") != "attachment" {
		t.Errorf("a content is answered with %d %q %v", code, body, header)
	}
	if got := reader.asked; got.Kind != volumefiles.Content || got.Path != "/a" || got.Offset != 3 || got.Length != 4 || got.Namespace != of.Namespace || got.StorageLocation != of.Spec.StorageLocation || got.BackupUID == "" || got.Volume.Name == "" || got.StoreName == "" {
		t.Errorf("it was asked for as %+v", got)
	}
	if _, _, _, _ = ask(t, false, "content", "path=/a&link=true"); reader.asked.Kind != volumefiles.Link {
		t.Errorf("a link was asked for as %+v", reader.asked)
	}
	reader.content = ""
	if code, header, body, _ := ask(t, false, "content", "path=/empty"); code != http.StatusOK || body != "" || header.Get("Content-Length") != "0" {
		t.Errorf("an empty file is answered with %d %q %v", code, body, header)
	}
	reader.content = "content"
	if code, header, body, _ := ask(t, false, "files", "path=/a&limit=7&continue=x"); code != http.StatusOK || !strings.Contains(body, `"path":"/a"`) || header.Get("Content-Type") != "application/json" || reader.asked.Limit != 7 || reader.asked.Continue != "x" {
		t.Errorf("a list is answered with %d %q %v", code, body, header)
	}
	for query, text := range map[string]string{"limit=0": "limit", "limit=x": "limit", "limit=10001": "at most", "path=" + strings.Repeat("x", 8<<10+1): "bytes", "of=x": "no parameter", "path=%ff": "UTF-8"} {
		if code, _, body, _ := ask(t, false, "files", query); code != http.StatusBadRequest || !strings.Contains(body, text) {
			t.Errorf("%.20q is answered with %d %q", query, code, body)
		}
	}
	for query, text := range map[string]string{"offset=-1": "offset", "length=0": "length", "link=x": "link"} {
		if code, _, body, _ := ask(t, false, "content", query); code != http.StatusBadRequest || !strings.Contains(body, text) {
			t.Errorf("%q is answered with %d %q", query, code, body)
		}
	}
	// Errors.
	for _, test := range []struct {
		err  error
		code int
	}{
		{&volumefiles.Problem{Code: http.StatusNotFound, Message: "it is absent", Detail: "secret"}, http.StatusNotFound},
		{&volumefiles.Problem{Code: http.StatusForbidden, Message: "it is absent", Detail: "secret"}, http.StatusForbidden},
		{&volumefiles.Problem{Code: http.StatusTooManyRequests, Message: "it is absent", Detail: "secret"}, http.StatusTooManyRequests},
		{&volumefiles.Problem{Code: http.StatusServiceUnavailable, Message: "it is absent", Detail: "secret"}, http.StatusServiceUnavailable},
		{&volumefiles.Problem{Code: http.StatusInternalServerError, Message: "it is absent", Detail: "secret"}, http.StatusInternalServerError},
		{fmt.Errorf("%w: it is absent, secret", remote.ErrUnreachable), http.StatusServiceUnavailable},
	} {
		reader.early = test.err
		for _, subresource := range []string{"files", "content"} {
			for _, mayKnow := range []bool{false, true} {
				if code, header, body, _ := ask(t, mayKnow, subresource, "path=/a"); code != test.code || strings.Contains(body, "secret") != mayKnow || header.Get("Content-Length") == "7" || header.Get("Content-Disposition") != "" {
					t.Errorf("%v: %s is answered with %d %q %v", test.err, subresource, code, body, header)
				}
			}
		}
	}
	reader.early, reader.late = nil, volumefiles.ErrBroken
	if code, _, _, aborted := ask(t, false, "content", "path=/a"); code != http.StatusOK || !aborted {
		t.Errorf("a cut answer ends with %d, aborted: %t", code, aborted)
	}
	reader.late, reader.content = volumefiles.ErrBroken, ""
	if code, header, _, aborted := ask(t, false, "content", "path=/a"); code != http.StatusInternalServerError || aborted || header.Get("Content-Disposition") != "" {
		t.Errorf("an answer that fails before its first byte ends with %d %v, aborted: %t", code, header, aborted)
	}
	reader.late = nil
	// What Velero has moved into a repository has files.
	shown.Status.Method, shown.Status.SnapshotID = catalog.MethodMoved, "k"
	if code, _, body, _ := ask(t, false, "files", ""); code != http.StatusOK {
		t.Errorf("a moved snapshot is answered with %d %q", code, body)
	}
	shown.Status.Method = "kopia"
	// What has no files.
	for _, change := range []func(*v1alpha1.VolumeBackup){
		func(b *v1alpha1.VolumeBackup) { b.Status.Phase = v1alpha1.VolumeBackupInProgress },
		func(b *v1alpha1.VolumeBackup) { b.Status.Phase = v1alpha1.VolumeBackupFailed },
		func(b *v1alpha1.VolumeBackup) { b.Status.Method = "restic" },
		func(b *v1alpha1.VolumeBackup) { b.Status.Method, b.Status.SnapshotID = catalog.MethodMoved, "" },
	} {
		before := *shown
		change(shown)
		if code, _, body, _ := ask(t, false, "files", ""); code != http.StatusConflict {
			t.Errorf("%+v is answered with %d %q", shown.Status, code, body)
		}
		*shown = before
	}
}
