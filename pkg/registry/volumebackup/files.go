// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebackup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/audit"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/registry/streamed"
	"github.com/holdfast-io/holdfast/pkg/runlog/remote"
	"github.com/holdfast-io/holdfast/pkg/volumefiles"
)

// fileAnnotation says in the audit log which file of a volume backup was read.
const fileAnnotation = "files.holdfast.io/read"

const maxPath = 8 << 10 // longer than any path in a volume

// FileReader reads files where the repositories' keys are. See volumefiles.Client.
type FileReader interface {
	List(ctx context.Context, request *volumefiles.Request) (*v1alpha1.VolumeFileList, error)
	Copy(ctx context.Context, request *volumefiles.Request, begin func(size int64), to io.Writer) error
}

// Files are the subresources with the files of a volume backup. They take the right in the namespace that lists
// the volume backup. The reader checks again that it belongs there.
type Files struct {
	Streams *streamed.Streams
	// VolumeBackups gets a volume backup as it is listed, and Row tells where it is.
	VolumeBackups rest.Getter
	Row           func(namespace, name string) (catalog.Row, bool)
	Reader        FileReader
}

// List serves volumebackups/files: a page of a folder, as a VolumeFileList.
func (f Files) List() *streamed.REST {
	return f.subresource("application/json", []string{"path", "limit", "continue"}, func(request *volumefiles.Request, parameters url.Values) error {
		request.Kind, request.Continue = volumefiles.Folder, parameters.Get("continue")
		limit, err := number(parameters, "limit", 1)
		if err == nil && limit > volumefiles.MaxLimit {
			err = apierrors.NewBadRequest(fmt.Sprintf("the parameter limit is %d: it must be at most %d", limit, volumefiles.MaxLimit))
		}
		request.Limit = int(limit)
		return err
	}, func(ctx context.Context, request *volumefiles.Request, to http.ResponseWriter) error {
		list, err := f.Reader.List(ctx, request)
		if err != nil {
			return err
		}
		return json.NewEncoder(to).Encode(list)
	})
}

// Content serves volumebackups/content: a file's bytes or a part; with link=true the target of a symbolic link.
// The answer has a Content-Length, so a part of it can't look whole.
func (f Files) Content() *streamed.REST {
	return f.subresource("application/octet-stream", []string{"path", "offset", "length", "link"}, func(request *volumefiles.Request, parameters url.Values) (err error) {
		request.Kind = volumefiles.Content
		if value := parameters.Get("link"); value != "" {
			link, err := strconv.ParseBool(value)
			if err != nil {
				return apierrors.NewBadRequest(fmt.Sprintf("the parameter link is %q: it must be true or false", value))
			}
			if link {
				request.Kind = volumefiles.Link
			}
		}
		if request.Offset, err = number(parameters, "offset", 0); err != nil {
			return err
		}
		request.Length, err = number(parameters, "length", 1)
		return err
	}, func(ctx context.Context, request *volumefiles.Request, to http.ResponseWriter) error {
		// A browser must neither run it nor guess its type.
		headers := map[string]string{"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
		err := f.Reader.Copy(ctx, request, func(size int64) {
			headers["Content-Length"] = strconv.FormatInt(size, 10)
			for name, value := range headers {
				to.Header().Set(name, value)
			}
		}, to)
		if err != nil { // the answer may become a Status
			for name := range headers {
				to.Header().Del(name)
			}
		}
		return err
	})
}

func number(parameters url.Values, name string, least int64) (int64, error) {
	value := parameters.Get(name)
	if value == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < least {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("the parameter %s is %q: it must be a number, %d at least", name, value, least))
	}
	return n, nil
}

func (f Files) subresource(contentType string, parameters []string, read func(*volumefiles.Request, url.Values) error, relay func(context.Context, *volumefiles.Request, http.ResponseWriter) error) *streamed.REST {
	return &streamed.REST{
		Streams:    f.Streams,
		Object:     &v1alpha1.VolumeBackup{},
		Parameters: parameters,
		Find: func(ctx context.Context, of string, parameters url.Values) (*streamed.Answer, error) {
			request := &volumefiles.Request{Path: parameters.Get("path")}
			if len(request.Path) > maxPath {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("the parameter path has more than %d bytes", maxPath))
			}
			if !utf8.ValidString(request.Path) { // the reader would get another one
				return nil, apierrors.NewBadRequest("the parameter path is not UTF-8, as the names in a snapshot are")
			}
			if err := read(request, parameters); err != nil {
				return nil, err
			}
			if err := f.find(ctx, of, request); err != nil {
				return nil, err
			}
			audit.AddAuditAnnotation(ctx, fileAnnotation, request.Path)
			what := fmt.Sprintf("%q of the volume backup %q", request.Path, of)
			return &streamed.Answer{
				What: what, Location: request.StorageLocation, ContentType: contentType,
				Relay: func(ctx context.Context, to http.ResponseWriter) error {
					return f.explain(ctx, what, relay(ctx, request, to))
				},
			}, nil
		},
	}
}

func (f Files) find(ctx context.Context, name string, request *volumefiles.Request) error {
	found, err := f.VolumeBackups.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return err
	}
	conflict := func(text string, args ...any) error {
		return apierrors.NewConflict(Resource.GroupResource, name, fmt.Errorf(text, args...))
	}
	of := found.(*v1alpha1.VolumeBackup)
	switch {
	case of.Status.Phase == v1alpha1.VolumeBackupInProgress:
		return conflict("its upload is in progress: ask when it has ended")
	case of.Status.Phase == v1alpha1.VolumeBackupFailed:
		return conflict("its upload has failed, so it has no files")
	case of.Status.Method == catalog.MethodInStorage, of.Status.Method == catalog.MethodMoved && of.Status.SnapshotID == "":
		return conflict("%s", of.Status.Message)
	case of.Status.Method != format.UploaderKopia && of.Status.Method != catalog.MethodMoved:
		return conflict("it was stored with %q, and only files that were stored with %s can be read", of.Status.Method, format.UploaderKopia)
	}
	request.Namespace = genericapirequest.NamespaceValue(ctx)
	row, ok := f.Row(request.Namespace, name)
	if !ok {
		return apierrors.NewNotFound(Resource.GroupResource, name)
	}
	in := row.InBackup()
	request.StorageLocation, request.StoreName, request.BackupUID, request.Volume = in.Backup.Location, in.Backup.StoreName, in.Backup.UID, in.Volume
	return nil
}

// explain returns the error for the client. Only users that may know a store's reason get it.
func (f Files) explain(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	detail := func(text string) string {
		if text == "" || !f.Streams.Stores.MayKnow(ctx) {
			return ""
		}
		return ": " + text
	}
	if problem, ok := errors.AsType[*volumefiles.Problem](err); ok {
		message := fmt.Sprintf("%s can't be read: %s%s", what, problem.Message, detail(problem.Detail))
		switch problem.Code {
		case http.StatusTooManyRequests:
			return apierrors.NewTooManyRequests(message, 1)
		case http.StatusServiceUnavailable:
			return apierrors.NewServiceUnavailable(message)
		}
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: int32(problem.Code), Reason: reason(problem.Code), Message: message}}
	}
	if errors.Is(err, remote.ErrUnreachable) {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("%s can't be read: the controller, which reads files, can't be reached: try again%s", what, detail(err.Error())))
	}
	return err
}

func reason(code int) metav1.StatusReason {
	switch code {
	case http.StatusNotFound:
		return metav1.StatusReasonNotFound
	case http.StatusForbidden:
		return metav1.StatusReasonForbidden
	case http.StatusConflict:
		return metav1.StatusReasonConflict
	case http.StatusBadRequest:
		return metav1.StatusReasonBadRequest
	}
	return metav1.StatusReasonInternalError
}
