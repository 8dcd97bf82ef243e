// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// toldDeletes answers deletions of stored objects and restores with the request to make instead.
// There is no such verb on purpose: the deletion of a namespace would use it.
type toldDeletes struct {
	handler    http.Handler
	serializer runtime.NegotiatedSerializer
}

// instead has the replacing requests by resource: the subresource, the kind of its body, and why
// there is no deletion.
var instead = map[string]struct{ subresource, kind, why string }{
	"backups":       {"deletion", "BackupDeletion", "nothing that is stored goes by a delete, so that no deleted namespace takes it along; ask for it"},
	"volumebackups": {"deletion", "VolumeDeletion", "nothing that is stored goes by a delete, so that no deleted namespace takes it along; ask for it"},
	"backupvolumes": {"deletion", "VolumeDeletion", "nothing that is stored goes by a delete, so that no deleted namespace takes it along; ask for it"},
	"restores":      {"cancel", "RestoreCancellation", "a restore is not deleted: it leaves the list by itself, --restore-retention after its end; to stop one"},
}

// ServeHTTP implements http.Handler.
func (d toldDeletes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := genericapirequest.RequestInfoFrom(r.Context())
	if !ok || info.Verb != "delete" && info.Verb != "deletecollection" || info.APIGroup != v1alpha1.GroupName || info.Subresource != "" || instead[info.Resource].kind == "" {
		d.handler.ServeHTTP(w, r)
		return
	}
	ask, path := instead[info.Resource], r.URL.Path
	if info.Verb == "deletecollection" {
		path = strings.TrimSuffix(path, "/") + "/NAME"
	}
	responsewriters.ErrorNegotiated(&apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
		Message: fmt.Sprintf(`%s: echo '{"apiVersion":%q,"kind":%q}' | kubectl create --raw %s/%s -f -`,
			ask.why, v1alpha1.SchemeGroupVersion, ask.kind, path, ask.subresource),
	}}, d.serializer, v1alpha1.SchemeGroupVersion, w, r)
}
