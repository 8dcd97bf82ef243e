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

// toldDeletes answers deletions of stored objects and restores with the request to make instead. They lack the
// verb, since the deletion of a namespace would use it.
type toldDeletes struct {
	handler    http.Handler
	serializer runtime.NegotiatedSerializer
}

const kept = "a delete does not remove stored data, so that it outlives its namespace. To delete it"

// instead has, by resource, why there is no deletion, the plugin's command, the subresource, and its body's kind.
var instead = map[string]struct{ why, command, subresource, kind string }{
	"backups":       {kept, "backup delete", "deletion", "BackupDeletion"},
	"volumebackups": {kept, "volumes delete-backup", "deletion", "VolumeDeletion"},
	"backupvolumes": {kept, "volumes delete", "deletion", "VolumeDeletion"},
	"restores":      {"a restore is not deleted: it leaves the list by itself, --restore-retention after its end. To stop it", "restore cancel", "cancel", "RestoreCancellation"},
}

// ServeHTTP implements http.Handler.
func (d toldDeletes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := genericapirequest.RequestInfoFrom(r.Context())
	if !ok || info.Verb != "delete" && info.Verb != "deletecollection" || info.APIGroup != v1alpha1.GroupName || info.Subresource != "" || instead[info.Resource].kind == "" {
		d.handler.ServeHTTP(w, r)
		return
	}
	ask, path, name := instead[info.Resource], r.URL.Path, info.Name
	if info.Verb == "deletecollection" {
		name = "NAME"
		path = strings.TrimSuffix(path, "/") + "/" + name
	}
	responsewriters.ErrorNegotiated(&apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
		Message: fmt.Sprintf(`%s: kubectl holdfast %s %s -n %s. Without the plugin: echo '{"apiVersion":%q,"kind":%q}' | kubectl create --raw %s/%s -f -`,
			ask.why, ask.command, name, info.Namespace, v1alpha1.SchemeGroupVersion, ask.kind, path, ask.subresource),
	}}, d.serializer, v1alpha1.SchemeGroupVersion, w, r)
}
