// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// toldDeletes tells whoever deletes what is stored how that is asked for. There is no such
// verb on purpose: the deletion of a namespace would use it.
type toldDeletes struct {
	handler    http.Handler
	serializer runtime.NegotiatedSerializer
}

// deletions are the kinds of the requests for a deletion, by resource.
var deletions = map[string]string{
	"backups": "BackupDeletion", "volumebackups": "VolumeDeletion", "backupvolumes": "VolumeDeletion",
}

// ServeHTTP implements http.Handler.
func (d toldDeletes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := apirequest.RequestInfoFrom(r.Context())
	if !ok || info.Verb != "delete" || info.APIGroup != v1alpha1.GroupName || info.Subresource != "" || deletions[info.Resource] == "" {
		d.handler.ServeHTTP(w, r)
		return
	}
	responsewriters.ErrorNegotiated(&apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
		Message: fmt.Sprintf(`nothing that is stored goes by a delete, so that no deleted namespace takes it along; ask for it: echo '{"apiVersion":%q,"kind":%q}' | kubectl create --raw %s/deletion -f -`,
			v1alpha1.SchemeGroupVersion, deletions[info.Resource], r.URL.Path),
	}}, d.serializer, v1alpha1.SchemeGroupVersion, w, r)
}
