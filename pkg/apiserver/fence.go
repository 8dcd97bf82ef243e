// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/lease"
)

// fence passes requests for resources only while this replica serves. Discovery and health always pass.
type fence struct {
	handler     http.Handler
	enter       func() (*lease.Term, bool)
	longRunning genericapirequest.LongRunningRequestCheck
	serializer  runtime.NegotiatedSerializer
}

// ServeHTTP implements http.Handler. A refused client must retry over another connection: kube-apiserver keeps the
// present one as long as it can.
func (f *fence) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := genericapirequest.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest || info.APIGroup != v1alpha1.GroupName {
		f.handler.ServeHTTP(w, r)
		return
	}
	term, ok := f.enter()
	if !ok {
		w.Header().Set("Connection", "close")
		responsewriters.ErrorNegotiated(notServing(), f.serializer, v1alpha1.SchemeGroupVersion, w, r)
		return
	}
	defer term.Leave()
	if f.longRunning(r, info) {
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		r = r.WithContext(ctx)
		left := make(chan struct{})
		defer close(left)
		go func() {
			select {
			case <-term.Closing():
				cancel(notServing())
			case <-left:
			}
		}()
	}
	f.handler.ServeHTTP(responsewriter.WrapForHTTP1Or2(&fencedWriter{ResponseWriter: w, term: term}), r)
}

func notServing() error {
	err := apierrors.NewServiceUnavailable("another replica of Holdfast's API server serves at the moment, or is about to; try again")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// fencedWriter writes an answer only while this replica serves. Otherwise it breaks off the connection: a partial
// answer must not look whole.
type fencedWriter struct {
	http.ResponseWriter
	term *lease.Term
}

var _ responsewriter.UserProvidedDecorator = &fencedWriter{}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *fencedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *fencedWriter) WriteHeader(code int) {
	w.check()
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *fencedWriter) Write(p []byte) (int, error) {
	w.check()
	return w.ResponseWriter.Write(p)
}

func (w *fencedWriter) check() {
	if !w.term.Holds() {
		panic(http.ErrAbortHandler)
	}
}
