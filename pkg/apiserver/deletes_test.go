// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// TestDeletesAreTold: a delete of stored data is answered with the command for it. Other requests pass.
func TestDeletesAreTold(t *testing.T) {
	handler := genericapifilters.WithRequestInfo(toldDeletes{http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
	}), Codecs}, &genericapirequest.RequestInfoFactory{APIPrefixes: sets.NewString("apis"), GrouplessAPIPrefixes: sets.NewString()})
	for _, test := range []struct{ method, address, says string }{
		{"DELETE", resources + "/mine", `kubectl holdfast backup delete mine -n shop. Without the plugin: echo '{"apiVersion":"holdfast.io/v1alpha1","kind":"BackupDeletion"}' | kubectl create --raw ` + resources + `/mine/deletion -f -`},
		{"DELETE", "/apis/holdfast.io/v1alpha1/namespaces/shop/volumebackups/mine:data", `"kind":"VolumeDeletion"}' | kubectl create --raw /apis/holdfast.io/v1alpha1/namespaces/shop/volumebackups/mine:data/deletion -f -`},
		{"DELETE", "/apis/holdfast.io/v1alpha1/namespaces/shop/schedules/nightly", ""},
		{"DELETE", "/apis/holdfast.io/v1alpha1/namespaces/shop/restores/mine", `it leaves the list by itself, --restore-retention after its end. To stop it: kubectl holdfast restore cancel mine -n shop. Without the plugin: echo '{"apiVersion":"holdfast.io/v1alpha1","kind":"RestoreCancellation"}' | kubectl create --raw /apis/holdfast.io/v1alpha1/namespaces/shop/restores/mine/cancel -f -`},
		{"DELETE", resources, `kubectl holdfast backup delete NAME -n shop. Without the plugin: `},
		{"DELETE", "/apis/holdfast.io/v1alpha1/namespaces/shop/backupqueues/mine", ""},
		{"DELETE", "/apis/other.io/v1/namespaces/shop/backups/mine", ""},
		{"GET", resources + "/mine", ""},
	} {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest(test.method, test.address, nil))
		told := strings.ReplaceAll(recorder.Body.String(), `\"`, `"`)
		if want := map[bool]int{true: http.StatusTeapot, false: http.StatusMethodNotAllowed}[test.says == ""]; recorder.Code != want || !strings.Contains(told, test.says) {
			t.Errorf("%s %s: %d %s", test.method, test.address, recorder.Code, told)
		}
	}
}
